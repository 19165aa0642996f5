"""Values in a few words: what a box of the picture says about the numbers in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SMALL = 6
"""Up to so many elements are shown as numbers, more as shape, dtype, mean and deviation."""


def number(x: Any) -> str:
    """A number in four digits."""
    return f"{x:.4g}" if isinstance(x, (float, np.floating)) else str(x)


def numbers(array: np.ndarray) -> str:
    """`1 2 3`, and `1 2; 3 4` for rows."""
    rows = (
        array.reshape(-1, array.shape[-1])
        if array.ndim > 1 and array.size
        else array.reshape(1, -1)
    )
    return "; ".join(" ".join(map(number, row)) for row in rows.tolist())


def shape(array: Any) -> str:
    """The shape as text."""
    return str(tuple(np.shape(array)))


def value(array: np.ndarray, grad: np.ndarray | None = None) -> list[str]:
    """`data 1 2 | grad 3 4` of a small array; shape, dtype, mean, std and |grad| of a large one."""
    if array.size <= SMALL:
        text = f"data {numbers(array)}" if array.size else "empty"
        lines = [shape(array)] if array.ndim else []
        return [*lines, text + (f" | grad {numbers(grad)}" if grad is not None else "")]
    with np.errstate(all="ignore"):
        mean, std = array.mean(dtype=np.float64), array.std(dtype=np.float64)
    return [f"{shape(array)} {array.dtype}", f"mean {mean:.3g}  std {std:.3g}", *size_of(grad)]


def norm(array: np.ndarray) -> str:
    """The Euclidean norm, the square root of the sum of squares."""
    with np.errstate(all="ignore"):
        return f"{float(np.sqrt(np.sum(np.square(array, dtype=np.float64)))):.3g}"


def size_of(grad: np.ndarray | None) -> list[str]:
    """`|grad| 0.5`, or nothing without a gradient."""
    return [] if grad is None else [f"|grad| {norm(grad)}"]


def alarm(array: Any) -> str | None:
    """`2 NaN, 1 Inf`, or None where every number is finite."""
    array = np.asarray(array)  # it may be a number
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return None
    nan = int(np.isnan(array).sum())
    inf = int(np.isinf(array).sum())
    return ", ".join(f"{count} {word}" for count, word in ((nan, "NaN"), (inf, "Inf")) if count)


def setting(x: Any) -> str:
    """The value of one setting."""
    if isinstance(x, np.ndarray):
        return f"[{numbers(x)}]" if x.ndim == 1 and x.size <= SMALL else f"{shape(x)} {x.dtype}"
    if isinstance(x, slice):
        ends = ["" if end is None else str(end) for end in (x.start, x.stop)]
        return ":".join(ends if x.step is None else [*ends, str(x.step)])
    if x is Ellipsis:
        return "..."
    if isinstance(x, tuple):
        inside = ", ".join(map(setting, x[:8])) + (", ..." if len(x) > 8 else "")
        return f"({inside}{',' if len(x) == 1 else ''})"
    if callable(x):
        return getattr(x, "__name__", type(x).__name__)
    try:
        text = number(x) if isinstance(x, (bool, int, float, np.generic, type(None))) else repr(x)
    except Exception:  # an object of the user's, whose repr may fail
        text = f"<{type(x).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def settings(given: Mapping[str, Any]) -> list[str]:
    """Settings as they are written in a call: `axis=-1`, `keepdims=True`."""
    return [f"{name}={setting(x)}" for name, x in given.items()]
