"""Quicker ways of picking elements and of putting them back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
from ..ops.indexing import places_along
from . import tuning
from .ops import quicker


def picks_each_once(index):
    """Slices, integers, boolean masks, None and ... pick every element at most once."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, (int, slice, np.integer))
        and not isinstance(part, bool)
        or isinstance(part, np.ndarray)
        and part.dtype == bool
        for part in parts
    )


def _scattered(g: Any, *, index: Any, shape: Any) -> ndarray:
    """Zeros of `shape` with g added at index: repeated indices add up."""
    if index.__class__ is ndarray and index.dtype.kind in "iu" and index.ndim and len(shape) == 2:
        return _rows_summed(g, indices=index, rows=shape[0])
    out = np.zeros(shape, g.dtype)
    if picks_each_once(index):
        out[index] = g
    else:
        np.add.at(out, index, g)
    return out


def _rows_summed(g: ndarray, *, indices: ndarray, rows: int) -> ndarray:
    """The gradient of the table: each row sums the gradients of the places that looked it up. (...,
    E) -> (V, E)
    """
    width = g.shape[-1]
    out, g = np.zeros((rows, width), g.dtype), g.reshape(indices.size, width)
    flat = indices.reshape(-1).astype(np.intp) % max(rows, 1)  # -1 and rows - 1 are one place
    if width > tuning.ADDED_WIDTH and g.size > tuning.ADDED_ELEMENTS:
        _add_sorted(out, flat, g)
        return out
    # `add.at` is ten times as fast with one flat index.
    places = flat[:, None] * width + np.arange(width)
    np.add.at(out.reshape(-1), places.reshape(-1), g.reshape(-1))
    return out


def _add_sorted(out, indices, g):
    """out[i] += g row by row, for `out` (V, E) full of zeros, indices (N,) and g (N, E)."""
    # Numbers of 16 bits NumPy sorts by radix, in a tenth of the time.
    order = np.argsort(indices.astype(np.uint16) if len(out) <= 1 << 16 else indices, kind="stable")
    indices = indices[order]  # equal ones side by side
    starts = np.flatnonzero(np.r_[True, indices[1:] != indices[:-1]])
    counts = np.diff(starts, append=indices.size)
    # What is used seldom: first all rows' first uses at once, then all second ones, and so on. Long
    # rows are sooner worth a call of their own.
    most = max(1024 // g.shape[1], 8)
    seldom = counts <= most
    first = starts[seldom]
    out[indices[first]] = g[order[first]]
    for use in range(1, min(int(counts.max()), most)):
        places = starts[seldom & (counts > use)] + use
        out[indices[places]] += g[order[places]]
    # What is used often: a product with ones is the fastest sum.
    one = np.ones(int(counts.max()), g.dtype)
    for start, count in zip(starts[~seldom].tolist(), counts[~seldom].tolist(), strict=True):
        out[indices[start]] += one[:count].dot(g[order[start : start + count]])


# ---- shares added where they belong: x[0], x[1], ... of T rows would otherwise take T x T


def _add_at(total: ndarray, g: Any, *, index: Any) -> bool:
    """total[index] += g, where what is picked twice has both shares."""
    if picks_each_once(index):
        total[index] += g
    else:
        np.add.at(total, index, g)
    return True


def _add_rows(total: ndarray, g: Any, *, indices: Any) -> bool:
    if g.size < total.size:
        np.add.at(total, indices, g)
    else:
        total += _rows_summed(g, indices=indices, rows=len(total))
    return True


def _add_along_axis(total: ndarray, g: Any, *, indices: Any, axis: Any) -> bool:
    if axis is not None:
        np.add.at(total, places_along(indices, axis, total.shape), g)
    return axis is not None


quicker(
    ops.getitem,
    lambda x, *, index: x.__class__ is ndarray,
    None,
    lambda g, y, x, *, index: _scattered(g, index=index, shape=x.shape),
    adds=_add_at,
)
quicker(
    ops.embedding,
    lambda weight, *, indices: weight.__class__ is ndarray and weight.ndim == 2,
    None,
    lambda g, y, weight, *, indices: _rows_summed(g, indices=indices, rows=len(weight)),
    adds=_add_rows,
)
quicker(
    ops.take_along_axis,
    lambda x, *, indices, axis: x.__class__ is ndarray,
    None,
    *ops.take_along_axis.rules,
    adds=_add_along_axis,
)
