"""Ops that pick elements, and their adjoints, which put them back and add up where one element was picked twice."""

from __future__ import annotations

import numpy as np

from ..engine import op

WIDE = 16                       # numbers in a row, from where rows are sorted before they are added up


def _is_basic(index):
    """Slices, integers, None and ... pick every element at most once."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice, np.integer)) and not isinstance(part, bool)
               or isinstance(part, np.ndarray) and part.dtype == bool for part in parts)


@op(fresh=True)
def getitem(x, *, index):
    """y = x[index], basic or advanced."""
    return x[index]


@op
def scatter(g, *, index, shape):
    """Zeros of `shape` with g added at index: repeated indices add up.  The adjoint of getitem."""
    g = np.asarray(g)
    parts = index if isinstance(index, tuple) else (index,)
    integers = all(isinstance(part, np.ndarray) and part.dtype.kind in "iu" for part in parts)
    out = np.zeros(shape, g.dtype)
    if _is_basic(index):
        out[index] = g
    elif integers and len(parts) == out.ndim:        # single elements, by their places: `add.at` is ten times as fast with one flat index
        places = parts[0] if out.ndim == 1 else np.ravel_multi_index(parts, shape, mode="wrap")
        np.add.at(out.reshape(-1), places.reshape(-1), g.reshape(-1))
    elif integers and len(parts) == 1 and (width := out[:1].size) >= WIDE:
        add_rows(out.reshape(-1, width), parts[0].reshape(-1), g.reshape(-1, width))
    else:
        np.add.at(out, index, g)
    return out


getitem.vjp(lambda g, y, x, *, index: scatter(g, index=index, shape=x.shape))
scatter.vjp(lambda gg, y, g, *, index, shape: gg[index])


@op(fresh=True)
def embedding(weight, *, indices):
    """y = weight[indices]: a row of the table for each index.  (V, E), (...) -> (..., E)"""
    return weight[indices]


@op
def embedding_backward(g, *, indices, rows):
    """The gradient of the table: each row sums the gradients of the places that looked it up.  (..., E) -> (V, E)"""
    out = np.zeros((rows, g.shape[-1]), g.dtype)
    add_rows(out, indices.reshape(-1), g.reshape(indices.size, g.shape[-1]))
    return out


def add_rows(out, indices, g):
    """out[i] += g row by row, for `out` (V, E) full of zeros, indices (N,) and g (N, E)."""
    if not indices.size:
        return
    rows = len(out)
    flat = indices.astype(np.intp) % rows            # -1 and rows - 1 are one row
    short = flat.astype(np.uint16) if rows <= 1 << 16 else flat      # NumPy sorts those by radix, in a tenth of the time
    order = np.argsort(short, kind="stable")         # equal indices side by side
    flat = flat[order]
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    counts = np.diff(starts, append=flat.size)
    # What is used seldom: first all rows' first uses at once, then all second ones, ...  Long rows are sooner worth a call of their own.
    most = min(max(1024 // max(g.shape[-1], 1), 8), 32)
    seldom = counts <= most
    out[flat[starts[seldom]]] = g[order[starts[seldom]]]
    for use in range(1, min(int(counts.max()), most)):
        places = starts[seldom & (counts > use)] + use
        out[flat[places]] += g[order[places]]
    one = np.ones(int(counts.max()), g.dtype)        # what is used often: a product with ones is the fastest sum
    for start, count in zip(starts[~seldom].tolist(), counts[~seldom].tolist(), strict=True):
        one[:count].dot(g[order[start:start + count]], out=out[flat[start]])


embedding.vjp(lambda g, y, weight, *, indices: embedding_backward(g, indices=indices, rows=weight.shape[0]))
embedding_backward.vjp(lambda gg, y, g, *, indices, rows: embedding(gg, indices=indices))


@op(fresh=True)
def take_along_axis(x, *, indices, axis=-1):
    """y = np.take_along_axis(x, indices, axis)"""
    return np.take_along_axis(x, indices, axis)


def _along(indices, axis, shape):
    """take_along_axis spelled as one advanced index."""
    if axis is None:
        return np.unravel_index(indices, shape)
    axis %= len(shape)
    grid = list(np.ogrid[tuple(slice(n) for n in shape)])        # the other axes broadcast, as in NumPy
    grid[axis] = indices
    return tuple(grid)


take_along_axis.vjp(lambda g, y, x, *, indices, axis: scatter(g, index=_along(indices, axis, x.shape), shape=x.shape))
