"""What is said when a name is not there: the nearest one that is, or how it is written here."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .other_names import AFTER, ELSEWHERE, METHODS

_PARTS = {"": "ta", ".nn": "nn", ".optim": "optim", ".functional": "F"}
"""Modules whose names may have been looked for in another one, and what each is called."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for a known name in other capitals or in nearly the same spelling.

    A name with another first letter must be nearer than one with the same: `onnx` is no slip of
    `nn`, though two letters of three agree.
    """
    public = [x for x in known if name.startswith("_") or not x.startswith("_")]
    close = [x for x in public if x.lower() == name.lower()]
    if not close:
        alike = [x for x in public if x[:1].lower() == name[:1].lower()]
        close = difflib.get_close_matches(name, public, 1, cutoff=0.7)
        close = close or difflib.get_close_matches(name, alike, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def told(hint: str) -> str:
    """A hint of other_names.py as a sentence: ` Write x.`, or ` It is not here; y.`"""
    return f" {hint}." if hint.startswith("It is not here") else f" Write {hint}."


def missing_from(module: str, name: str, known: dict[str, Any]) -> AttributeError:
    """The error for a name that a module of the package lacks; `known` are the names it has.

    The hint is, in this order, what the name of PyTorch's is called here, the part of the package
    that has the name, NumPy's function of that name, or the nearest name of the module.
    """
    public = known.get("__all__") or [
        k for k, value in known.items() if getattr(value, "__module__", None) == module
    ]
    hint = ELSEWHERE.get(name) or _home_of(name, public)
    # A Tensor is cast with t.astype(np.int64); of the package it is the dtype that is asked for.
    hint = re.sub(r"^t\.astype\((np\.\w+)\)", r"\1", hint)
    return AttributeError(
        f"{module} has no {name!r}." + (told(hint) if hint else nearest(name, public))
    )


def missing_names(module: str, known: dict[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a module of the package, which has the `known` names."""

    def missing(name: str) -> Any:
        raise missing_from(module, name, known)

    return missing


def not_for_torch(name: str, kind: str) -> TypeError:
    """The error for one of PyTorch's functions that is called with a Tensor of ours."""
    hint = ELSEWHERE.get(name) or _home_of(name, ())
    return TypeError(
        f"PyTorch's {name} takes PyTorch's tensors and knows no {kind} of this "
        f"package.{told(hint) if hint else ''} To leave the graph on purpose give it "
        "torch.from_numpy(t.numpy())."
    )


def _home_of(name: str, public: Iterable[str]) -> str:
    """`nn.Linear`: where else the name is, in the package or NumPy, unless it is here but for
    capitals.
    """
    if name.lower() in map(str.lower, public):
        return ""
    package = __package__.partition(".")[0]
    for part, place in _PARTS.items():
        if name in getattr(sys.modules.get(package + part), "__all__", ()):
            return f"{place}.{name}"
    return f"np.{name}" if hasattr(np, name) else ""


class MissingName:
    """Stands in a class for a name that NumPy or PyTorch have and it has not.

    To read it raises AttributeError with what to write instead. `__getattr__` would do for all
    names at once, but a class that has it pays at every attribute, found or not: a fifth of the
    time of a small op. Names that nobody has are left to Python, which itself asks "Did you mean?".
    """

    def __init__(self, name: str, hint: str | Callable[[], str]) -> None:
        self.name, self.hint = name, hint

    def __get__(self, t: Any, owner: type) -> Any:
        hint = self.hint if isinstance(self.hint, str) else self.hint()
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self.name!r}.{told(hint)}",
            name=self.name,
            obj=t,
        )

    @classmethod
    def fill(cls, owner: type, rules: Iterable[Any]) -> None:
        """Put one in place of each such name; `rules` are NumPy's functions that take a Tensor."""
        known, hints = set(rules), dict[str, Any](ELSEWHERE | METHODS)
        numbers = {kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "fiub"}
        for name, value in vars(np).items():
            if isinstance(value, type) and value in numbers:
                hints.setdefault(name, f"t.astype(np.{name})")
            elif isinstance(value, np.ufunc) or hasattr(value, "_implementation"):
                hints.setdefault(name, functools.partial(numpys, name, value in known))
        for name, hint in hints.items():
            if not hasattr(owner, name):
                setattr(owner, name, cls(name, hint))


def numpys(name: str, known: bool) -> str:
    """How NumPy's function of this name is called on t, with all that it must be given.

    For example `np.linspace(t, stop)`, or, if it is not `known`, that is if it takes no Tensors,
    `np.convolve(t.numpy(), other): it has no derivative here`.
    """
    function, t = getattr(np, name), "t" if known else "t.numpy()"
    if isinstance(function, np.ufunc):
        given = [t, "other"][: function.nin]
    elif name in AFTER:
        given = [t, AFTER[name]]
    else:
        given = _needed_arguments(function, t)
    return f"np.{name}({', '.join(given)})" + ("" if known else ": it has no derivative here")


def _needed_arguments(function: Any, t: str) -> list[str]:
    """The arguments without a default, with t for the array and `other` for a second one."""
    parameters: list[inspect.Parameter] = []
    # Functions that are written in C have no signature in older NumPys.
    if inspect.isfunction(function._implementation):
        parameters += inspect.signature(function).parameters.values()
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD
    ] or [t]
    array = next((needed.index(name) for name in ("a", "arr") if name in needed), 0)
    called = dict.fromkeys(("arrays", "tup"), f"[{t}, other]")
    called |= dict.fromkeys(("b", "v", "a2", "ar2"), "other")
    return [called.get(name, t if i == array else name) for i, name in enumerate(needed)]
