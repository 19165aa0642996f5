"""Format arrays, gradients and settings for boxes and steps."""

import re

import numpy as np

SMALL = 6  # elements; larger arrays are shown by shape and statistics
WIDEST = 16  # rows or columns of a heat map


def number(x):
    """Format a number with four digits."""
    return f"{x:.4g}" if isinstance(x, (float, np.floating)) else str(x)


def numbers(array):
    """Format all elements: `1 2 3`, or `1 2; 3 4` for rows."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.reshape(1, -1)
    return "; ".join(" ".join(map(number, row)) for row in rows.tolist())


def norm(array):
    """Format the Euclidean norm of an array."""
    with np.errstate(all="ignore"):
        return f"{np.linalg.norm(array.astype(np.float64)):.3g}"


def value(array, grad=None):
    """Describe an array and its gradient by their numbers, or by statistics if they are large."""
    if array.size <= SMALL:
        text = f"data {numbers(array)}" if array.size else "empty"
        text += "" if grad is None else f" | grad {numbers(grad)}"
        return [str(array.shape), text] if array.ndim else [text]
    with np.errstate(all="ignore"):
        mean, std = array.mean(dtype=np.float64), array.std(dtype=np.float64)
    lines = [f"{array.shape} {array.dtype}", f"mean {mean:.3g}  std {std:.3g}"]
    return lines if grad is None else [*lines, f"|grad| {norm(grad)}"]


def gradient(array):
    """Describe a gradient in one line by its numbers, or by its shape, norm and first numbers."""
    if array.size <= SMALL:
        return numbers(array) + (f"  {array.shape}" if array.ndim else "")
    return f"{array.shape}  |g| {norm(array)}  {numbers(array.reshape(-1)[:4])} ..."


def cells(array):
    """Return the data of a heat map: at most 16 x 16 numbers from the first matrix of an array."""
    array = np.asarray(array)
    matrix = np.atleast_2d(array) if array.size else np.empty((0, 0))
    part = "[0]" * (matrix.ndim - 2)
    matrix = matrix[(0,) * (matrix.ndim - 2)]  # the first one
    rows = [[_short(x) for x in row] for row in matrix[:WIDEST, :WIDEST].tolist()]
    if max(matrix.shape) > WIDEST:
        part += f" {len(rows)} x {len(rows[0])} of it"
    return {"shape": str(array.shape), "part": part, "rows": rows}


def _short(x):
    """Round to five digits. NaN and infinity become strings, because JSON lacks them."""
    return float(f"{x:.5g}") if np.isfinite(x) else str(x)


def not_finite(array):
    """Count the non-finite elements, as in `2 NaN, 1 Inf`, or return an empty string."""
    counts = (np.isnan(array).sum(), "NaN"), (np.isinf(array).sum(), "Inf")
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def setting(x):
    """Format the value of one setting in at most 40 characters."""
    if isinstance(x, np.ndarray):
        return f"[{numbers(x)}]" if x.ndim == 1 and x.size <= SMALL else f"{x.shape} {x.dtype}"
    if isinstance(x, slice):
        ends = ["" if end is None else str(end) for end in (x.start, x.stop, x.step)]
        return ":".join(ends if x.step is not None else ends[:2])
    if isinstance(x, tuple):
        return f"({', '.join(map(setting, x))}{',' * (len(x) == 1)})"[:40]
    if x is Ellipsis:
        return "..."
    text = getattr(x, "__name__", "") or (number(x) if np.isscalar(x) else repr(x))
    text = re.sub(r" at 0x\w+", "", text)  # addresses differ in every run
    return text if len(text) <= 40 else text[:37] + "..."
