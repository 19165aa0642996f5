"""Texts of errors: what happened, with the op, the shapes and dtypes, and what to write instead.

What is said of an argument is in hints.py, of a name that is not there in missing_names.py, and of
a wrong call in signatures.py; user_line.py finds the line that led to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .hints import (
    is_integer,
    is_module,
    is_number,
    mask_lost,
    numbers_of,
    refuse_mask,
    several_results,
    unmade,
)
from .missing_names import MissingName, missing_from, missing_names, nearest, numpys, told
from .other_names import ELSEWHERE
from .user_line import INNER, quoted, warn

__all__ = [
    "ELSEWHERE",
    "INNER",
    "MissingName",
    "describe",
    "explain",
    "is_integer",
    "is_module",
    "is_number",
    "listed",
    "mask_lost",
    "missing_from",
    "missing_names",
    "nearest",
    "no_setting",
    "numbers_of",
    "numpys",
    "only_renamed",
    "quoted",
    "refuse_mask",
    "several_results",
    "told",
    "unmade",
    "warn",
]


def describe(x: Any) -> str:
    """One operand in a few words: `Tensor (2, 3) float32 'encoder.weight'`."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None or isinstance(x, type):
        text = repr(x)
        return text if len(text) <= 40 and "\n" not in text else f"a {type(x).__name__}"
    kind = "array" if isinstance(x, np.ndarray) else type(x).__name__
    name = getattr(x, "name", None)
    return f"{kind} {tuple(shape)} {dtype}" + (f" {name!r}" if name else "")


def only_renamed(t: Any) -> TypeError:
    """The error for `p -= step` of a tensor p that is trained.

    Python would give the name p to a new Tensor, and the one that is trained would never change.
    """
    return TypeError(
        f"p += x, p -= x and the like would leave {describe(t)} as it is, for they make a new "
        "Tensor. Write p.data -= x.data to change it, or y = p - x for a result."
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
        f"{op}: {name!r} is a keyword argument, which no derivative reaches, and got "
        f"{describe(value)}. {hint}"
    )


def listed(inputs: Sequence[Any]) -> str:
    """The operands of an op, one after the other."""
    return ", ".join(describe(x) for x in inputs if x is not None)


def explain(op: str, inputs: Sequence[Any], error: Exception) -> Exception:
    """NumPy's complaint as an error of the same kind that names the op and its operands.

    An error that is no complaint of NumPy's, such as one of the user's own, stays what it is and
    gets a note.
    """
    if not isinstance(error, (ValueError, TypeError, IndexError)) or type(
        error
    ).__module__.partition(".")[0] not in ("builtins", "numpy"):
        error.add_note(f"in {op} of {listed(inputs)}")
        return error
    shapes = [tuple(np.shape(getattr(x, "_data", x))) for x in inputs if x is not None]
    text = str(error)
    hint = _hint(op, inputs, shapes, error)
    if op == "matmul":
        text = f"these {'shapes' if len(shapes) == 2 else 'two'} cannot be multiplied"
    kind = next(
        kind
        for kind in (np.linalg.LinAlgError, IndexError, ValueError, TypeError)
        if isinstance(error, kind)
    )
    return kind(
        f"{op} of {listed(inputs)}: {text}{'' if text.endswith('.') else '.'}"
        + (f" {hint}" if hint else "")
    )


def _hint(op: str, inputs: Sequence[Any], shapes: list[tuple[int, ...]], error: Exception) -> str:
    """What to write instead: what the op knows of its operands, or what NumPy's words tell."""
    if any(isinstance(x, str) for x in inputs):
        return (
            "Text cannot be computed with; write float(...) or look it up in a table of indices "
            "first."
        )
    if any(x is None for x in inputs) and ("NoneType" in str(error) or op == "matmul"):
        return "An operand is None: does the function it comes from return its result?"
    if any(map(is_module, inputs)):
        return "A module is no operand, it is called: write module(x)."
    found = _hint_of_op(op, shapes, error)
    return _hint_of_text(op, str(error), shapes, error) if found is None else found


def _hint_of_op(op: str, shapes: list[tuple[int, ...]], error: Exception) -> str | None:
    """What an op asks of its operands; None where it is not that."""
    every, text = ", ".join(map(str, shapes)), str(error)
    if op == "matmul" and len(shapes) == 2:
        return _matmul_hint(*shapes)
    if op in _BY_OP and not isinstance(error, IndexError):
        return _BY_OP[op]
    if op == "scatter" and isinstance(error, IndexError):
        return ""
    if op in ("getitem", "take_along_axis", "embedding") and isinstance(error, IndexError):
        return (
            f"The tensor has shape {shapes[0]}; an index along an axis of size n is a whole "
            "number in [-n, n), a slice, or an array of integers or booleans."
        )
    if op == "take_along_axis" and "number of dimensions" in text:
        return (
            "The indices need as many axes as the tensor: one index for each row is indices[:, "
            "None]."
        )
    if op == "einsum":
        return (
            "Every letter stands for one size in all operands, and each letter of the result "
            f"occurs in an operand; the operands have the shapes {every}."
        )
    if op in ("concatenate", "stack") and "out of bounds" not in text:
        return (
            f"The shapes are {every}: stack needs equal ones, concatenate "
            "may differ along its axis alone. Pad, slice or reshape them first."
        )
    if op == "transpose":
        return (
            "transpose takes each axis of the tensor once, a permutation of "
            f"{tuple(range(len(shapes[0])))}; swapaxes exchanges two."
        )
    return None


def _hint_of_text(op: str, text: str, shapes: list[tuple[int, ...]], error: Exception) -> str:
    """What NumPy's words tell, whatever the op."""
    if "integer" in text and "interpreted" in text:
        return (
            "Axes and sizes are integers: write int(...), or divide with // instead of /; several "
            "of them are a tuple, not a list."
        )
    for word, hint in _BY_WORD.items():
        if word in text:
            return hint
    if "broadcast" in text and op != "setitem":
        return _broadcast_hint(shapes)
    if shapes and ("axis" in text or "axes" in text) and not text.startswith("index "):
        rank = len(shapes[0])
        if not rank:
            return "A single number has no axes: leave axis out."
        return f"An axis of a tensor of shape {shapes[0]} lies in [-{rank}, {rank})."
    if shapes and isinstance(error, IndexError):
        return (
            f"The tensor has shape {shapes[0]}; an index along an axis of size n lies in [-n, n)."
        )
    return ""


_BY_OP = {
    "np.repeat": "The repeats are one whole number, or one for each row along the axis.",
    "np.pad": "The widths are one number, one pair (before, after), or a pair for each axis.",
}
_BY_WORD = {
    "duplicate value": "Each axis is named once.",
    "which has no identity": "Give it a number to begin with: np.max(t, axis, initial=-np.inf), "
    "np.min(t, axis, initial=np.inf).",
    "must be non-negative": "The shape is the whole one, as one tuple and without -1.",
    "equal division": "Give the places to cut instead, as in np.split(t, [2, 4]), or pad t first.",
    "reshape": "The number of elements must stay the same; write -1 for one size that follows from "
    "the others.",
    "squeeze": "squeeze drops axes of size 1: write .squeeze() for all of size 1, or t[:, 0] to "
    "pick one element of it.",
    "unknown dimension": "Only one size can follow from the others: write -1 once.",
}


def _broadcast_hint(shapes: Sequence[tuple[int, ...]]) -> str:
    """Which axis disagrees, counted from the right as broadcasting counts."""
    rank = max((len(s) for s in shapes), default=0)
    for back in range(1, rank + 1):
        sizes = {s[-back] for s in shapes if len(s) >= back and s[-back] != 1}
        if len(sizes) > 1:
            differing = " and ".join(map(str, sorted(sizes)))
            return (
                f"Shapes are aligned at the right; at axis -{back} the sizes {differing} differ "
                "and neither is 1. Give the smaller operand an axis of size 1 there (x[:, None] "
                "or x.reshape), or transpose it."
            )
    return ""


def _matmul_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if not a or not b:
        return "A number has no rows or columns: multiply with * instead of @."
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] != inner:
        hint = (
            f"The last axis of the first ({a[-1]}) must equal the second's "
            f"{'only' if len(b) == 1 else 'next-to-last'} axis ({inner})."
        )
        if len(b) > 1 and a[-1] == b[-1]:
            hint += " Did you mean a @ b.mT?"
        elif len(a) > 1 and a[-2] == inner:
            hint += " Did you mean a.mT @ b?"
        return hint
    return "The axes before the last two must broadcast: aligned at the right, equal or 1."
