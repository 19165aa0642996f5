"""Ops that move elements without changing them: reshape, transpose, broadcast, join and pick.

They return a view wherever NumPy does.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..engine import array_of, op, sum_to


@op
def clone(x):
    """Copy x to new memory."""
    return x.copy()


clone.vjp(lambda g, *_: g)


@op
def reshape(x, *, shape):
    """Return the same elements, in the same order, in another shape."""
    return x.reshape(shape)


reshape.vjp(lambda g, _y, _x, *, shape: g.reshape(_x.shape))


@op
def transpose(x, *, axes=None):
    """Permute the axes of x, or reverse them if `axes` is None."""
    return x.transpose(axes)


def inverse(axes):
    """Return the permutation that undoes this permutation of axes."""
    return None if axes is None else tuple(np.argsort(np.mod(axes, len(axes))).tolist())


transpose.vjp(lambda g, _y, _x, *, axes: transpose(g, axes=inverse(axes)))


@op
def swapaxes(x, *, a, b):
    """Exchange two axes of x."""
    return x.swapaxes(a, b)


swapaxes.vjp(lambda g, _y, _x, *, a, b: g.swapaxes(a, b))


@op
def broadcast_to(x, *, shape):
    """Repeat x along new axes and axes of size 1, without copying."""
    return np.broadcast_to(x, shape)


broadcast_to.vjp(lambda g, _y, _x, *, shape: sum_to(g, _x.shape))


@op
def astype(x, *, dtype):
    """Convert x to another dtype; the gradient is converted back to the original one."""
    return x.astype(dtype)


astype.vjp(lambda g, *_, dtype: g)  # the engine casts it back


@op
def flip(x, *, axis=None):
    """Reverse the order of the elements along the axes."""
    return np.flip(x, axis)


flip.vjp(lambda g, *_, axis: flip(g, axis=axis))


@op
def concatenate(*parts, axis=0):
    """Join the parts along an existing axis; with axis=None, flatten them first."""
    return np.concatenate(parts, axis)


@concatenate.vjp_all
def _split_back(g, _y, *_parts, axis, needs):
    along = 0 if axis is None else axis % g.ndim
    gradients, start = [], 0
    for part, needed in zip(_parts, needs, strict=True):
        size = part.size if axis is None else part.shape[along]
        here = (slice(None),) * along + (slice(start, start + size),)
        gradients.append(g[here].reshape(part.shape) if needed else None)
        start += size
    return gradients


@op
def stack(*parts, axis=0):
    """Stack the parts along a new axis."""
    return np.stack(parts, axis)


@stack.vjp_all
def _unstack(g, _y, *_parts, axis, needs):
    along = axis % g.ndim
    return [g[(slice(None),) * along + (i,)] if needed else None for i, needed in enumerate(needs)]


@op(broadcasts=True)
def tril(x, *, k=0):
    """Return the lower triangle of the last two axes, with zeros above the k-th diagonal.

    As in NumPy, a vector is first repeated to form the rows of a square matrix.
    """
    return np.tril(x, k)


@op(broadcasts=True)
def triu(x, *, k=0):
    """Return the upper triangle of the last two axes, with zeros below the k-th diagonal."""
    return np.triu(x, k)


tril.vjp(lambda g, *_, k: tril(g, k=k))
triu.vjp(lambda g, *_, k: triu(g, k=k))


# ---- picking elements, and the adjoint: adding them back at their positions


@op
def getitem(x, *, index):
    """y = x[index], basic or advanced."""
    return x[index]


def is_basic(index):
    """Return whether the index has only integers, slices, `...` and None, so that none repeats."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or isinstance(part, (int, slice, type(...))) for part in parts)


def add_at(total, g, *, index):
    """Add g to total[index] in place; repeated indices add up."""
    if is_basic(index):
        total[index] += g  # np.add.at is slow
    else:
        np.add.at(total, index, g)
    return ()


@op
def scatter(g, *, index, shape):
    """Add g at `index` to zeros of `shape`; repeated indices add up. The adjoint of getitem.

    `scatter(messages, index=receivers, shape=(nodes, width))` does what np.add.at and PyTorch's
    index_add do. Raises IndexError for an index outside `shape`, and ValueError if g does not have
    the shape of the indexed elements.
    """
    out = np.zeros_like(g, order="C", subok=False, shape=shape)
    places = out[index].shape
    if np.shape(g) != places:
        raise ValueError(
            f"g must have the shape of the indexed elements, {places} in {shape}, but has "
            f"{np.shape(g)}; to repeat a smaller g, write np.broadcast_to(g, {places})"
        )
    np.add.at(out, index, g)
    return out


getitem.vjp(lambda g, _y, _x, *, index: scatter(g, index=index, shape=_x.shape))
getitem.adds_in_place = add_at  # a loop over x[0], x[1], ... allocates one gradient of x, not T
scatter.vjp(lambda gg, *_, index, shape: gg[index])


@op
def embedding(weight, *, indices):
    """y = weight[indices]: one row of the table for each index. (V, E), (...) -> (..., E)"""
    return weight[indices]


embedding.vjp(lambda g, _y, _weight, *, indices: scatter(g, index=indices, shape=_weight.shape))
embedding.adds_in_place = lambda total, g, *, indices: add_at(total, g, index=indices)


@op
def take_along_axis(x, *, indices, axis=-1):
    """y = np.take_along_axis(x, indices, axis)"""
    return np.take_along_axis(x, indices, axis)


@take_along_axis.vjp
def _put_back_along_axis(g, _y, _x, *, indices, axis):
    if axis is None:
        return scatter(g, index=(indices,), shape=(_x.size,)).reshape(_x.shape)
    places = [np.arange(n).reshape(-1, *(1,) * (_x.ndim - 1 - i)) for i, n in enumerate(_x.shape)]
    places[axis] = indices
    return scatter(g, index=tuple(places), shape=_x.shape)


# ---- windows that slide over an array


@op
def windows(x, *, sizes, axes):
    """y[..., i, ..., k] = x[..., i + k, ...], without copying.

    The window's position along each axis comes first, then the position within the window.
    """
    return sliding_window_view(x, sizes, axes)


@op
def overlapped(g, *, sizes, axes, shape):
    """Add each element of g to zeros of `shape`, at the position that its window read.

    This is the adjoint of windows.
    """
    out = np.zeros_like(g, order="C", shape=shape)
    # At a fixed position, all windows read different elements of x, so add them all at once.
    for within in np.ndindex(sizes):
        start = [0] * out.ndim
        for axis, k in zip(axes, within, strict=True):
            start[axis] += k  # an axis may be listed twice
        out[tuple(slice(k, k + n) for k, n in zip(start, g.shape))] += g[(..., *within)]
    return out


windows.vjp(lambda g, _y, _x, *, sizes, axes: overlapped(g, sizes=sizes, axes=axes, shape=_x.shape))
overlapped.vjp(lambda gg, *_, sizes, axes, shape: windows(gg, sizes=sizes, axes=axes))


# ---- functions that only move elements


@op
def pad(x, *, width, value=0):
    """Pad x with `value`; `width` has a pair (before, after) for each axis."""
    return np.pad(x, width, constant_values=value) if x.ndim else x.copy()


pad.vjp(
    lambda g, _y, _x, *, width, value: g[
        tuple(slice(before, before + n) for (before, _), n in zip(width, _x.shape, strict=True))
    ]
)


def sort(x, axis=-1):
    """Sort x in ascending order; each gradient goes back to its element's original position."""
    return take_along_axis(x, indices=np.argsort(array_of(x), axis, kind="stable"), axis=axis)


def partition(x, kth, axis=-1):
    """Move the kth element to its sorted position, between the smaller and the larger elements."""
    return take_along_axis(x, indices=np.argpartition(array_of(x), kth, axis), axis=axis)
