"""Quicker ways of picking elements and of putting them back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
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


def _single(index):
    """(axis, indices) if one axis alone is indexed by an array of integers and all others are taken
    whole, or None.
    """
    found = None
    for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
        if found is None and isinstance(part, np.ndarray) and part.ndim and part.dtype.kind in "iu":
            found = axis, part
        elif not (isinstance(part, slice) and part == slice(None)):
            return None
    return found


def _picked(x: Any, *, index: Any) -> Any:
    """y = x[index], basic or advanced."""
    if index.__class__ is not tuple or ndarray not in map(type, index):
        return x[index]
    single = _single(index)
    if single is None or len(index) > x.ndim:
        return x[index]
    axis, indices = single  # two to five times as fast as x[:, indices]; NumPy 2.0 takes no uint64
    return x.take(indices.astype(np.intp, copy=False), axis)


def _scattered(g: Any, *, index: Any, shape: Any) -> ndarray:
    """Zeros of `shape` with g added at index: repeated indices add up."""
    g = np.asarray(g)
    parts = index if isinstance(index, tuple) else (index,)
    single, once = _single(parts), picks_each_once(index)
    if single is not None and not once and len(shape) > 1 and math.prod(shape):
        return _rows_along(g, single[0], single[1], shape)
    out = np.zeros(shape, g.dtype)
    if once:
        out[index] = g
    elif _picks_elements(parts, out):
        places = np.ravel_multi_index([_from_front(i, n) for i, n in zip(parts, shape)], shape)
        _check_shape(g, places.shape, shape)
        np.add.at(out.reshape(-1), places.reshape(-1), g.reshape(-1))
    else:
        np.add.at(out, index, g)
    return out


def _picks_elements(parts, x):
    """Is each axis of x indexed by an array of integers?"""
    return len(parts) == x.ndim and all(
        isinstance(p, ndarray) and p.dtype.kind in "iu" for p in parts
    )


def _rows_along(g, axis, indices, shape):
    """The same for indices along one axis, to each of which a row of numbers belongs."""
    _check_shape(g, (*shape[:axis], *indices.shape, *shape[axis + 1 :]), shape)
    g = np.ascontiguousarray(np.moveaxis(g, range(axis, axis + indices.ndim), range(indices.ndim)))
    size, places = shape[axis], indices.reshape(-1)
    few = axis and 2 * places.size < size  # these alone are gone through then
    if few:
        taken, places = np.unique(_from_front(places, size), return_inverse=True)
        size = taken.size
    width = math.prod(shape) // shape[axis]
    summed = _rows_summed(g.reshape(places.size, width), indices=places, rows=size)
    turned = np.moveaxis(summed.reshape(size, *shape[:axis], *shape[axis + 1 :]), 0, axis)
    if not few:
        return turned
    out = np.zeros(shape, g.dtype)
    out[(slice(None),) * axis + (taken,)] = turned
    return out


def _check_shape(g, places, shape):
    if g.shape != places:
        raise ValueError(
            f"what is added must have the shape of its places, {places} in {shape}, but has "
            f"{g.shape}; np.broadcast_to(g, {places}) repeats a smaller one"
        )


def _from_front(indices, size):
    """Indices along an axis of this size, all counted from the front. IndexError, as NumPy's, for
    what it does not have.
    """
    indices = indices.astype(np.intp)
    low, high = (indices.min(), indices.max()) if indices.size else (0, -1)
    if low < -size or high >= size:
        raise IndexError(
            f"index {low if low < -size else high} is out of bounds for an axis of size {size}"
        )
    return indices % size if low < 0 else indices  # -1 and size - 1 are one place


def _rows_summed(g: ndarray, *, indices: ndarray, rows: int) -> ndarray:
    """The gradient of the table: each row sums the gradients of the places that looked it up. (...,
    E) -> (V, E)
    """
    width = g.shape[-1]
    out, g = np.zeros((rows, width), g.dtype), g.reshape(indices.size, width)
    flat = _from_front(indices.reshape(-1), rows)
    if width > tuning.ADDED_WIDTH and g.size > tuning.ADDED_ELEMENTS:
        _add_sorted(out, flat, g)
        return out
    # `add.at` is ten times as fast with one flat index.
    step, columns = max(1, tuning.ADDED_AT_ONCE // max(width, 1)), np.arange(width)
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        places = flat[part, None] * width + columns
        np.add.at(out.reshape(-1), places.reshape(-1), g[part].reshape(-1))
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


def _taken(x: Any, *, indices: Any, axis: Any) -> Any:
    """y = np.take_along_axis(x, indices, axis)"""
    if (
        indices.size < tuning.PLACES
        or axis is None
        or indices.ndim != x.ndim
        or indices.dtype.kind not in "iu"
    ):
        return np.take_along_axis(x, indices, axis)
    if not -x.shape[axis] <= indices.min() <= indices.max() < x.shape[axis]:
        return np.take_along_axis(x, indices, axis)  # which says so
    return np.ascontiguousarray(x).reshape(-1).take(_places(indices, axis, x.shape))


def _places(indices, axis, shape):
    """Where take_along_axis finds each element in an array of that shape laid out row by row: a
    third of the time of several indices.
    """
    if axis is None:
        return indices
    axis %= len(shape)
    places = indices.astype(np.intp, copy=False)
    if places.min(initial=0) < 0:
        places = np.where(places < 0, places + shape[axis], places)
    if axis < len(shape) - 1:
        places = places * math.prod(shape[axis + 1 :])
    for i, n in enumerate(shape):
        if i != axis:
            places = places + (np.arange(n) * math.prod(shape[i + 1 :])).reshape(
                -1, *(1,) * (len(shape) - 1 - i)
            )
    return places


def _put_back(g: Any, y: Any, x: ndarray, *, indices: ndarray, axis: Any) -> ndarray:
    put = _scattered(g, index=_places(indices, axis, x.shape), shape=(x.size,))
    return put.reshape(x.shape)


def _add_at(total: ndarray, g: Any, *, index: Any) -> bool:
    """total[index] += g where that can be done in place; what is picked twice is summed up first,
    as `_scattered` does.
    """
    if picks_each_once(index):
        total[index] += g
        return True
    parts = index if isinstance(index, tuple) else (index,)
    single = _single(parts)
    if single is not None and total.size:
        axis, indices = single
        taken, places = np.unique(_from_front(indices, total.shape[axis]), return_inverse=True)
        before = (slice(None),) * axis
        shape = (*total.shape[:axis], len(taken), *total.shape[axis + 1 :])
        share = _scattered(g, index=(*before, places.reshape(indices.shape)), shape=shape)
        total[(*before, taken)] += share
        return True
    if _picks_elements(parts, total):
        front = tuple(_from_front(p, n) for p, n in zip(parts, total.shape))
        flat_places: Any = np.ravel_multi_index(front, total.shape)
        return _add_at_places(total, g, flat_places)
    return False


def _add_at_places(total: ndarray, g: Any, places: ndarray) -> bool:
    """The same for places counted row by row."""
    taken, inverse = np.unique(places, return_inverse=True)
    share = _scattered(g, index=(inverse.reshape(places.shape),), shape=(len(taken),))
    if total.flags.c_contiguous:
        total.reshape(-1)[taken] += share
    else:
        total[np.unravel_index(taken, total.shape)] += share
    return True


def _add_along_axis(total: ndarray, g: Any, *, indices: ndarray, axis: Any) -> bool:
    if g.shape != np.broadcast_shapes(indices.shape, g.shape):
        return False
    return _add_at_places(total, g, np.broadcast_to(_places(indices, axis, total.shape), g.shape))


quicker(
    ops.getitem,
    lambda x, *, index: x.__class__ is ndarray,
    _picked,
    lambda g, y, x, *, index: _scattered(g, index=index, shape=x.shape),
    adds=_add_at,
)
quicker(
    ops.scatter,
    lambda g, *, index, shape: True,
    _scattered,
)
quicker(
    ops.embedding,
    lambda weight, *, indices: weight.__class__ is ndarray and weight.ndim == 2,
    None,
    lambda g, y, weight, *, indices: _rows_summed(g, indices=indices, rows=len(weight)),
    adds=lambda total, g, *, indices: _add_at(total, g, index=indices),
)
quicker(
    ops.embedding_backward,
    lambda g, *, indices, rows: g.__class__ is ndarray,
    _rows_summed,
)
quicker(
    ops.take_along_axis,
    lambda x, *, indices, axis: x.__class__ is ndarray,
    _taken,
    _put_back,
    adds=_add_along_axis,
)
