"""Error texts: what happened, with the op, the shapes and dtypes, and what to write instead."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import linecache
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set, ValuesView
from typing import Any

import numpy as np

from .other_names import AFTER, ELSEWHERE

# How the files begin whose lines are not the user's. contextlib calls what a context manager decorates, as in `no_grad()(f)`.
INNER = (
    *(
        os.path.dirname(os.path.abspath(file)) + os.sep
        for file in (os.path.dirname(__file__), np.__file__)
    ),
    contextlib.__file__,
)


def describe(x: Any) -> str:
    """One operand in a few words: `Tensor (2, 3) float32 'encoder.weight'`."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None or isinstance(x, type):
        text = repr(x)
        return text if len(text) <= 40 and "\n" not in text else f"a {type(x).__name__}"
    kind = "array" if isinstance(x, np.ndarray) else type(x).__name__
    name = getattr(x, "name", None)
    return f"{kind} {tuple(shape)} {dtype}" + (f" {name!r}" if name else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing: a name that is the same but for capitals, or one that is spelled nearly so."""
    public = [x for x in known if name.startswith("_") or not x.startswith("_")]
    close = [x for x in public if x.lower() == name.lower()] or difflib.get_close_matches(
        name, public, 1
    )
    return f" Did you mean {close[0]!r}?" if close else ""


def is_module(x: Any) -> bool:
    """Is this a module, of whatever library, and not merely its class?"""
    return hasattr(x, "named_modules") and not isinstance(x, type)


def unmade(x: Any) -> str:
    """What to do where a class stands in place of an object of it; else nothing."""
    return " Make an object of the class first, with brackets." if isinstance(x, type) else ""


def quoted(file: str, line: int) -> str:
    """A place as FILE:LINE and `its text`; in a notebook, whose cells are files with numbers for names, only the text is of use."""
    linecache.checkcache(
        file
    )  # the file may have been edited and loaded anew since it was last quoted
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f" `{text}`" if text else "")


def told(hint: str) -> str:
    """` Write x.`, or ` It is not here; y.`"""
    return f" {hint}." if hint.startswith("It is not here") else f" Write {hint}."


_PARTS = {"": "ta", ".nn": "nn", ".optim": "optim", ".functional": "F"}


def missing_from(module: str, name: str, known: dict[str, Any]) -> AttributeError:
    """The error for a name that a module of the package does not have, whose names are `known`; much of PyTorch's is NumPy's here."""
    public = known.get("__all__") or [
        k for k, value in known.items() if getattr(value, "__module__", None) == module
    ]
    others = {
        place: sys.modules.get(f"{__package__.partition(chr(46))[0]}{part}")
        for part, place in _PARTS.items()
    }
    home = next(
        (place for place, other in others.items() if name in getattr(other, "__all__", ())), None
    )
    hint = (
        ELSEWHERE.get(name)
        or (f"{home}.{name}" if home and name.lower() not in map(str.lower, public) else "")
        or (f"np.{name}, NumPy's own" if hasattr(np, name) else "")
    )
    hint = re.sub(
        r"^t\.astype\((np\.\w+)\)", r"\1", hint
    )  # of the package it is the dtype that is asked for
    return AttributeError(
        f"{module} has no {name!r}." + (told(hint) if hint else nearest(name, public))
    )


def warn(text: str) -> None:
    """A UserWarning that names the line outside this package that led here, however many calls lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(INNER) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def only_renamed(t: Any) -> TypeError:
    """The error for `p -= step` where p is trained: a new Tensor would get the name p, and what was trained would never change."""
    return TypeError(
        f"p += x, p -= x and the like would leave {describe(t)} as it is, for they make a new Tensor. Write p.data -= x.data "
        "to change it, or y = p - x for a result."
    )


class Elsewhere:
    """Stands where a class lacks a name that NumPy or PyTorch have: reading it raises AttributeError with what to write instead.

    `__getattr__` would do for all names at once, but a class that has it pays at every attribute, found or not: a fifth of the time
    of a small op.  Names that nobody has are left to Python, which asks "Did you mean ...?" itself.
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
        """Put one in place of each such name that the class does not have; `rules`, NumPy's functions that take a Tensor."""
        known, hints = set(rules), dict[str, Any](ELSEWHERE)
        numbers = {kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "fiub"}
        for name, value in vars(np).items():
            if isinstance(value, type) and value in numbers:
                hints.setdefault(name, f"t.astype(np.{name})")
            elif isinstance(value, np.ufunc) or hasattr(
                value, "_implementation"
            ):  # it asks its operands, so it takes arrays
                hints.setdefault(name, functools.partial(numpys, name, value in known))
        for name, hint in hints.items():
            if not hasattr(owner, name):
                setattr(owner, name, cls(name, hint))


def numpys(name: str, known: bool) -> str:
    """How NumPy's function of this name is called on t, with all that it must be given: `np.convolve(t, other)`."""
    function, t = getattr(np, name), "t" if known else "t.numpy()"
    if isinstance(function, np.ufunc):
        given = [t, "other"][: function.nin]
    elif name in AFTER:
        given = [t, AFTER[name]]
    else:
        written = inspect.isfunction(
            function._implementation
        )  # in Python: those in C have no signature in older NumPys
        parameters = inspect.signature(function).parameters.values() if written else []
        needed = [
            p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD
        ] or [t]
        at = next((needed.index(array) for array in ("a", "arr") if array in needed), 0)
        words = dict.fromkeys(("arrays", "tup"), f"[{t}, other]") | dict.fromkeys(
            ("b", "v", "a2", "ar2"), "other"
        )
        given = [
            words.get(parameter, t if i == at else parameter) for i, parameter in enumerate(needed)
        ]
    return f"np.{name}({', '.join(given)})" + ("" if known else ": it has no derivative here")


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "~": lambda a, _: ~a,
}


def compared(sign: str, a: Any, b: Any) -> Any:
    """What an operator without a derivative gives: an array of booleans, say, of the plain values."""
    try:
        return SIGNS[sign](
            a._data, b._data if hasattr(b, "_record") else b
        )  # masked arrays too have a _data, without their mask
    except (ValueError, TypeError) as error:
        if sign in "&|^~":
            example = "~(t > 0)" if sign == "~" else f"(t > 0) {sign} (t < 1), with brackets"
            raise TypeError(
                f"{sign} works on masks, which are boolean, not on {describe(a)}. Write {example}, or np.where(mask, a, b) to "
                "choose by a mask; a sign is changed with -t."
            ) from None
        text = f"{describe(a)} {sign} {describe(b)}: these cannot be compared."
        if isinstance(error, ValueError):
            raise ValueError(
                f"{text} {_broadcast_hint([np.shape(getattr(x, '_data', x)) for x in (a, b)])}"
            ) from None
        raise TypeError(f"{text} Compare with numbers, arrays or Tensors.") from None


def comparison(sign: str) -> Callable[[Any, Any], Any]:
    """Such an operator as a method."""
    return lambda a, b: compared(sign, a, b)


def no_operator(t: Any, other: Any) -> Any:
    """In place of divmod, << and >>, which have no derivative and no meaning for real numbers."""
    raise TypeError(
        f"{describe(t)} has neither divmod nor << nor >>. Write t // n and t % n for divmod(t, n), t * 2**n for t << n and "
        "t // 2**n for t >> n."
    )


def in_terms_of(function: Any, args: Sequence[Any], error: Exception) -> Exception:
    """NumPy's own complaint about a call of one of its functions, with the operands; ours as they are."""
    text = str(error)
    ours = (
        "Tensor" in text or text.startswith("np.") or "array " in text and "(" in text
    )  # it names the function or an operand
    if ours or not any(hasattr(x, "_data") for x in args):
        return error
    if isinstance(error, TypeError) and "interpreted as an integer" not in text:
        return error
    return explain(
        f"{function.__module__.replace('numpy', 'np')}.{function.__name__}",
        [x for x in args if hasattr(x, "shape")],
        error,
    )


def no_setting(op: str, name: str, value: Any) -> TypeError:
    """The error for a Tensor in place of a setting of an op."""
    if name == "axis":
        hint = (
            f"Of two Tensors np.{op}imum(a, b) takes one element or the other."
            if op in ("max", "min")
            else "Write whole numbers, int(axis)."
        )
    else:
        hint = f"Pass {name}.numpy() if it is a constant, or make it a positional input of the op."
    return TypeError(
        f"{op}: {name!r} is a keyword argument, which no derivative reaches, and got {describe(value)}. {hint}"
    )


def listed(inputs: Sequence[Any]) -> str:
    """The operands of an op, one after the other."""
    return ", ".join(describe(x) for x in inputs if x is not None)


def explain(op: str, inputs: Sequence[Any], error: Exception) -> Exception:
    """NumPy's complaint in terms of the op and its operands, with a way out; the same kind of error.

    What is no complaint of NumPy's, an error of the user's own kind among them, stays the one that was raised, with a note.
    """
    if not isinstance(error, (ValueError, TypeError, IndexError)) or type(
        error
    ).__module__.partition(".")[0] not in ("builtins", "numpy"):
        error.add_note(f"in {op} of {listed(inputs)}")
        return error
    shapes = [tuple(np.shape(getattr(x, "_data", x))) for x in inputs if x is not None]
    text = str(error)
    hint = ""
    if any(isinstance(x, str) for x in inputs):
        hint = "Text cannot be computed with; write float(...) or look it up in a table of indices first."
    elif any(x is None for x in inputs) and isinstance(error, TypeError) and "NoneType" in text:
        hint = "An operand is None: does the function it comes from return its result?"
    elif op == "matmul" and len(shapes) == 2:
        text, hint = "these shapes cannot be multiplied", _matmul_hint(*shapes)
    elif isinstance(error, IndexError) and op in (
        "getitem",
        "scatter",
        "take_along_axis",
        "embedding",
    ):
        hint = (
            ""
            if op == "scatter"
            else (
                f"The tensor has shape {shapes[0]}; an index along an axis of size n is a whole number in "
                "[-n, n), a slice, or an array of integers or booleans."
            )
        )
    elif op == "take_along_axis" and "number of dimensions" in text:
        hint = "The indices need as many axes as the tensor: one index for each row is indices[:, None]."
    elif op == "einsum":
        hint = (
            "Every letter stands for one size in all operands, and each letter of the result occurs in an operand; the operands have "
            f"the shapes {', '.join(map(str, shapes))}."
        )
    elif op in ("concatenate", "stack") and "out of bounds" not in text:
        hint = (
            f"The shapes are {', '.join(map(str, shapes))}: stack needs equal ones, concatenate may differ along its axis alone. Pad, "
            "slice or reshape them first."
        )
    elif op == "transpose":
        hint = f"transpose takes each axis of the tensor once, a permutation of {tuple(range(len(shapes[0])))}; swapaxes exchanges two."
    elif "integer" in text and "interpreted" in text:
        hint = "Axes and sizes are integers: write int(...), or divide with // instead of /; several of them are a tuple, not a list."
    elif "broadcast" in text and op != "setitem":
        hint = _broadcast_hint(shapes)
    elif "reshape" in text:
        hint = "The number of elements must stay the same; write -1 for one size that follows from the others."
    elif "squeeze" in text:
        hint = "squeeze drops axes of size 1: write .squeeze() for all of size 1, or t[:, 0] to pick one element of it."
    elif "unknown dimension" in text:
        hint = "Only one size can follow from the others: write -1 once."
    elif shapes and ("axis" in text or "axes" in text) and not text.startswith("index "):
        rank = len(shapes[0])
        hint = (
            f"An axis of a tensor of shape {shapes[0]} lies in [-{rank}, {rank})."
            if rank
            else "A single number has no axes: leave axis out."
        )
    elif shapes and isinstance(error, IndexError):
        hint = (
            f"The tensor has shape {shapes[0]}; an index along an axis of size n lies in [-n, n)."
        )
    kind = next(
        kind
        for kind in (np.linalg.LinAlgError, IndexError, ValueError, TypeError)
        if isinstance(error, kind)
    )
    return kind(
        f"{op} of {listed(inputs)}: {text}{'' if text.endswith('.') else '.'}"
        + (f" {hint}" if hint else "")
    )


def _broadcast_hint(shapes: Sequence[tuple[int, ...]]) -> str:
    """Which axis disagrees, counted from the right as broadcasting counts."""
    rank = max((len(s) for s in shapes), default=0)
    for back in range(1, rank + 1):
        sizes = {s[-back] for s in shapes if len(s) >= back and s[-back] != 1}
        if len(sizes) > 1:
            differing = " and ".join(map(str, sorted(sizes)))
            return (
                f"Shapes are aligned at the right; at axis -{back} the sizes {differing} differ and neither is 1. "
                "Give the smaller operand an axis of size 1 there (x[:, None] or x.reshape), or transpose it."
            )
    return ""


def _matmul_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if not a or not b:
        return "A number has no rows or columns: multiply with * instead of @."
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] != inner:
        hint = f"The last axis of the first ({a[-1]}) must equal the second's {'only' if len(b) == 1 else 'next-to-last'} axis ({inner})."
        if len(b) > 1 and a[-1] == b[-1]:
            hint += " Did you mean a @ b.mT?"
        elif len(a) > 1 and a[-2] == inner:
            hint += " Did you mean a.mT @ b?"
        return hint
    return "The axes before the last two must broadcast: aligned at the right, equal or 1."


def several_results(x: Any) -> str:
    """What else a tuple of Tensors may be: the results of one call."""
    return (
        " If one call returned them, as nn.MultiheadAttention does, take them apart: y, weights = ..."
        if isinstance(x, tuple)
        else ""
    )


def numbers_of(x: Any) -> str:
    """` Write list(x).`: how to get at the numbers of what NumPy takes for a single object or for objects, or nothing."""
    if hasattr(x, "toarray"):
        return " Write x.toarray(), in which a sparse matrix has its zeros too."
    if isinstance(x, np.ndarray) and x.dtype.kind in "OV" and x.dtype.names is None:
        return " Write x.astype(np.float32), if these are real numbers."
    return " Write list(x)." if isinstance(x, (Iterator, Set, ValuesView)) else ""


def mask_lost(op: str) -> TypeError:
    """The error for a masked array."""
    return TypeError(
        f"{op} cannot take a masked array, whose mask would be lost. Write x.filled(0), and np.where(mask, a, b) to choose "
        "by the mask."
    )


def refuse_mask(op: str, x: Any) -> None:
    """Raise for a masked array in which something is masked, or a list of such; others some readers of files return for any array."""
    if x.__class__ is np.ndarray:
        return
    parts = x if isinstance(x, (list, tuple)) else (x,)
    kinds = {*map(type, parts)} - {np.ndarray}  # few, however long the list
    if any(issubclass(kind, np.ndarray) for kind in kinds) and any(map(np.ma.is_masked, parts)):
        raise mask_lost(op)


def as_operand(op: str, x: Any, inputs: Sequence[Any]) -> Any:
    """An operand that is neither a Tensor nor a number, as an array.

    Beside a Tensor a NumPy scalar counts as a Python number, and so do the numbers in a list, so that `x / np.sqrt(8)` and
    `x * [1, 2]` keep the dtype of x.
    """
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub" and any(hasattr(t, "_data") for t in inputs):
            raise TypeError(
                f"{op} cannot take {describe(x)} beside a Tensor, which holds real numbers or booleans."
            )
        if isinstance(x, np.ma.MaskedArray):
            raise mask_lost(op)
        return np.asarray(x)  # of a np.matrix `*` would be the matrix product
    if isinstance(x, np.generic):
        if x.dtype.kind in "mM":  # item() of one in nanoseconds is a plain number
            raise TypeError(
                f"{op} cannot take {describe(x)}, a time. Write x / np.timedelta64(1, 's') for a span in seconds."
            )
        return x.item() if any(hasattr(t, "_data") for t in inputs) else x
    if isinstance(x, (list, tuple)):
        if any(hasattr(item, "_record") for item in x):
            raise TypeError(
                f"{op} got a {type(x).__name__} of Tensors; join them first with np.stack or np.concatenate."
                + several_results(x)
            )
        refuse_mask(op, x)
        array = np.asarray(x)
        like = next((t._data.dtype for t in inputs if hasattr(t, "_data")), array.dtype)
        return array.astype(like) if array.dtype.kind in "iuf" and like.kind == "f" else array
    if isinstance(x, str) or callable(x) and not isinstance(x, type):
        return x
    if isinstance(x, complex):
        raise TypeError(
            f"{op} cannot take {x}: a Tensor holds real numbers or booleans. Compute with x.real and x.imag apart."
        )
    raise TypeError(
        f"{op} cannot take {describe(x)}. Operands are Tensors, NumPy arrays and numbers"
        + (
            "." + found
            if (found := numbers_of(x))
            else "; convert it first, for example with Tensor(np.asarray(x))."
        )
    )
