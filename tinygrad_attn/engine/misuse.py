"""What is asked of an op, its rules and its results, so that a mistake is found where it was made
and told in words.

Almost all of it only asks, and returns what it was given. Two functions also complete what a rule
gave: `as_array` makes an array of a number, `as_gradient` repeats a share along axes that the
rule has left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..messages.errors import describe, explain, nearest
from .graph import Variable

# ---- an op as it is made


def check_flags_of_op(flags: dict[str, Any]) -> None:
    """Raise for a flag that @op does not have."""
    known = ("broadcasts", "saves", "reference")
    for name in flags:
        if name not in known:
            raise TypeError(
                f"@op has no flag {name!r}, only {', '.join(known)}.{nearest(name, known)}"
            )


def check_rules(op: Any, rules: tuple) -> None:
    """Raise unless there is one rule for each input, each of which can be called as a rule."""
    own, count = op.parameters, op.parameters.count
    if len(rules) < count or len(rules) > count and not own.takes_any:
        raise ValueError(
            f"op {op.__name__!r} has {count} positional inputs {own.inputs or ''} but .vjp() got "
            f"{len(rules)} rules. Give one rule for each, None where an input has no derivative, "
            "and make settings keyword-only (after a *)."
        )
    for rule in rules:
        if rule is not None:
            _check_rule(op, rule, len(rules))


def _check_rule(op: Any, rule: Any, inputs: int) -> None:
    own = op.parameters
    if not callable(rule):
        raise TypeError(
            f"a rule of op {op.__name__!r} is a function (g, y, *inputs) -> gradient, or None; got "
            f"{describe(rule)}."
        )
    code = getattr(rule, "__code__", None)
    names = ", ".join(["g", "out" if "y" in own.inputs else "y", *own.inputs])
    if code is None:
        return
    takes = code.co_argcount
    if takes < inputs + 2 and not (own.variadic or code.co_flags & inspect.CO_VARARGS):
        raise ValueError(
            f"a rule of op {op.__name__!r} is called with {inputs + 2} arguments, ({names}), but "
            f"one takes only {takes}, {code.co_varnames[:takes]}. Write lambda {names}: ..."
        )
    if sorted(code.co_varnames[:takes]) == sorted(names.split(", ")) and takes == inputs + 2:
        if code.co_varnames[:takes] != (*names.split(", "),):
            raise ValueError(
                f"a rule of op {op.__name__!r} is called with ({names}), in this order, but one "
                f"takes {code.co_varnames[:takes]}. Write lambda {names}: ..."
            )
    if own.optional and takes - len(rule.__defaults__ or ()) > inputs + 2 - len(own.optional):
        raise ValueError(
            f"op {op.__name__!r} may be called without {own.optional[0]!r}, but one of its rules "
            f"may not. Give the rule the same default (lambda {names}=...: ...), or make "
            f"{own.optional[0]} a setting, after a *."
        )


def asks_needs(rule: Any) -> bool:
    """Does a rule for all inputs ask which of them need a gradient?"""
    return "needs" in inspect.signature(rule).parameters


# ---- an op as it is called


@contextmanager
def explained(op: Any, inputs: Sequence[Any]) -> Iterator[None]:
    """NumPy's complaint comes in terms of the op and its inputs."""
    try:
        yield
    except Exception as error:
        told = explain(op.__name__, inputs, error)
        if told is error:
            raise
        raise told from error


def pair(op: Any, y: Any) -> tuple[Any, Any]:
    """The two things that the function of an op with saves=True returns."""
    if y.__class__ is not tuple or len(y) != 2:
        raise TypeError(
            f"op {op.__name__!r} is made with saves=True, so its function returns two things, (y, "
            f"what its rule needs); it returned {describe(y)}."
        )
    return y


# ---- rules as they are called


def check_derivative(op: Any, needs: Sequence[bool]) -> None:
    """Raise unless there is a rule for each input that needs a gradient."""
    if not op.vjps:
        raise TypeError(
            f"op {op.__name__!r} has no derivative: give it one with {op.__name__}.vjp(...), one "
            "rule for each input, or detach() its result."
        )
    if True in needs[len(op.vjps) :]:
        raise TypeError(
            f"op {op.__name__!r} has {len(op.vjps)} rules, but was called with {len(needs)} "
            "inputs. Give .vjp() one for each, or write one for all, however many they are, with "
            ".vjp_all."
        )


def check_saved(op: Any, saved: Any) -> None:
    """Raise if a rule that is to be differentiated would take saved numbers for constants."""
    values = list(saved.values()) if isinstance(saved, dict) else saved
    if isinstance(values, (tuple, list)):
        for value in values:
            check_saved(op, value)
    elif isinstance(values, float) or getattr(getattr(values, "dtype", None), "kind", "") == "f":
        raise TypeError(
            f"op {op.__name__!r} saves {describe(values)} for its rule, in which it counts as a "
            "constant, so the derivative of that rule would be wrong. Give the op a reference, @op("
            "saves=True, reference=f), where f computes the same from ops; or let the rule compute "
            "that value again. A mask that depends on no input is saved as booleans."
        )


def one_for_each(op: Any, shares: Any, needs: Sequence[bool]) -> Any:
    """What a rule for all inputs has returned, if it is a gradient, or None, for each; more of
    them may follow if they are None.
    """
    inputs, several = len(needs), isinstance(shares, (tuple, list))
    if not several or len(shares) < inputs or any(share is not None for share in shares[inputs:]):
        told = f"{len(shares)} gradients" if several else describe(shares)
        raise TypeError(
            f"the rule of op {op.__name__!r} returned {'nothing' if shares is None else told}. It "
            f"returns a tuple of {inputs}, a gradient for each input, None for one that has none."
        )
    return shares[:inputs]


def as_array(share: Any, op: Any, index: int) -> Any:
    """What a rule returned, which may be a number, as an array."""
    if isinstance(share, (np.ndarray, np.generic, Variable)):
        return share
    if share is None:
        raise TypeError(
            f"the rule of op {op.__name__!r} for input {index} returned None. Does it end with "
            "return? For an input that has no derivative write None in place of the rule: "
            f"{op.__name__}.vjp(..., None)."
        )
    return np.asarray(share)


def as_gradient(share: Any, x: Variable, op: Any, index: int) -> Any:
    """The share in the shape and dtype of x, and real; a rule may leave out axes along which its
    result is constant.
    """
    shape, dtype = x._data.shape, x._data.dtype
    if share.shape == shape and share.dtype == dtype:
        return share
    if share.shape != shape and op.broadcasts and _reaches(share.shape, shape):
        share = share * np.ones(shape, dtype)
    if share.shape != shape:
        hint = (
            ", or the broadcast shape."
            if op.broadcasts
            else "; if the op broadcasts, write @op(broadcasts=True)."
        )
        raise ValueError(
            f"the rule of op {op.__name__!r} for input {index} gave a gradient of shape "
            f"{share.shape}, but that input has shape {shape}. A partial has its input's "
            f"shape{hint}"
        )
    if share.dtype.kind == "c":
        raise TypeError(
            f"the rule of op {op.__name__!r} for input {index} gave complex numbers, "
            f"{describe(share)}, for an input of real ones. Take the part that is meant, as in "
            "np.real(...) around what np.fft returns."
        )
    return share.astype(dtype)


def _reaches(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Can an array of the first shape be broadcast to the second?"""
    return len(small) <= len(shape) and all(
        n in (1, m) for n, m in zip(small[::-1], shape[::-1], strict=False)
    )


def graph_released() -> RuntimeError:
    """The error for a second pass through what a first one has used."""
    return RuntimeError(
        "this graph has been released: backward() was called on it before. Pass retain_graph=True "
        "to the first call to use it twice, or compute the loss again; detach() the part that was "
        "released if it is meant as a constant."
    )
