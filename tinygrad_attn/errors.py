"""Error texts: what happened, with the op, the shapes and dtypes, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def describe(x: Any) -> str:
    """One operand in a few words: `Tensor (2, 3) float32 'encoder.weight'`."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        text = repr(x)
        return text if len(text) <= 40 else f"a {type(x).__name__}"
    kind = "array" if isinstance(x, np.ndarray) else type(x).__name__
    name = getattr(x, "name", None)
    return f"{kind} {tuple(shape)} {dtype}" + (f" {name!r}" if name else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def explain(op: str, inputs: Sequence[Any], error: Exception) -> Exception:
    """NumPy's complaint in terms of the op and its operands, with a way out; the same kind of error."""
    shapes = [tuple(np.shape(getattr(x, "_data", x))) for x in inputs if x is not None]
    operands = ", ".join(describe(x) for x in inputs if x is not None)
    text = str(error)
    hint = ""
    if op == "matmul" and len(shapes) == 2:
        hint = _matmul_hint(*shapes)
    elif "broadcast" in text:
        hint = _broadcast_hint(shapes)
    elif "reshape" in text:
        hint = "The number of elements must stay the same; write -1 for one size that follows from the others."
    elif "axis" in text or "axes" in text:
        hint = f"An axis of a tensor of shape {shapes[0]} lies in [-{len(shapes[0])}, {len(shapes[0])})." if shapes else ""
    elif isinstance(error, IndexError):
        hint = f"The tensor has shape {shapes[0]}; an index along an axis of size n lies in [-n, n)." if shapes else ""
    kind = type(error) if type(error) in (ValueError, TypeError, IndexError) else (
        IndexError if isinstance(error, IndexError) else ValueError if isinstance(error, ValueError) else
        TypeError if isinstance(error, TypeError) else None)
    if kind is None:
        error.add_note(f"in {op} of {operands}")
        return error
    return kind(f"{op} of {operands}: {text}{'' if text.endswith('.') else '.'}" + (f" {hint}" if hint else ""))


def _broadcast_hint(shapes: Sequence[tuple[int, ...]]) -> str:
    """Which axis disagrees, counted from the right as broadcasting counts."""
    rank = max((len(s) for s in shapes), default=0)
    for back in range(1, rank + 1):
        sizes = {s[-back] for s in shapes if len(s) >= back and s[-back] != 1}
        if len(sizes) > 1:
            listed = " and ".join(map(str, sorted(sizes)))
            return (f"Shapes are aligned at the right; at axis -{back} the sizes {listed} differ and neither is 1. "
                    "Give the smaller operand an axis of size 1 there (x[:, None] or x.reshape), or transpose it.")
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


def as_operand(op: str, x: Any, inputs: Sequence[Any]) -> Any:
    """An operand that is neither a Tensor nor a number, as an array.

    Beside a Tensor a NumPy scalar counts as a Python number, so that `x / np.sqrt(8)` keeps the dtype of x.
    """
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, np.generic):
        return x.item() if any(hasattr(t, "_data") for t in inputs) else x
    if isinstance(x, (list, tuple)):
        if any(hasattr(item, "_data") for item in x):
            raise TypeError(f"{op} got a {type(x).__name__} of Tensors; join them first with np.stack or np.concatenate.")
        array = np.asarray(x)
        like = next((t._data.dtype for t in inputs if hasattr(t, "_data")), array.dtype)
        return array.astype(like) if array.dtype.kind == like.kind == "f" else array
    if isinstance(x, str) or callable(x):
        return x
    raise TypeError(f"{op} cannot take {describe(x)}. Operands are Tensors, NumPy arrays and numbers; "
                    "convert it first, for example with Tensor(np.asarray(x)).")
