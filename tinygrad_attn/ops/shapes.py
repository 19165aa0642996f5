"""Ops that move elements and change none: reshape, transpose, broadcast, join. Where NumPy returns
a view, so do these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import op, sum_to


@op
def clone(x):
    """y = x, in memory of its own."""
    return x.copy()


clone.vjp(lambda g, y, x: g)


@op
def reshape(x, *, shape):
    """The same elements, in the same order, in another shape."""
    return x.reshape(shape)


reshape.vjp(lambda g, y, x, *, shape: g.reshape(x.shape))


@op
def transpose(x, *, axes=None):
    """Axes in another order; all reversed without `axes`."""
    return x.transpose(axes)


def inverse(axes):
    """The order that undoes this order of axes."""
    return (
        None if axes is None else tuple(int(i) for i in np.argsort([a % len(axes) for a in axes]))
    )


transpose.vjp(lambda g, y, x, *, axes: transpose(g, axes=inverse(axes)))


@op
def swapaxes(x, *, a, b):
    """Two axes exchanged."""
    return x.swapaxes(a, b)


swapaxes.vjp(lambda g, y, x, *, a, b: g.swapaxes(a, b))


@op
def broadcast_to(x, *, shape):
    """x repeated along new or size-1 axes, without copying."""
    return np.broadcast_to(x, shape)


broadcast_to.vjp(lambda g, y, x, *, shape: sum_to(g, x.shape))


@op
def astype(x, *, dtype):
    """The same numbers in another dtype; the gradient comes back in the first."""
    return x.astype(dtype)


astype.vjp(lambda g, y, x, *, dtype: g)  # the engine casts it back


@op
def flip(x, *, axis=None):
    """Elements in reverse order along the axes."""
    return np.flip(x, axis)


flip.vjp(lambda g, y, x, *, axis: flip(g, axis=axis))


@op
def roll(x, *, shift, axis=None):
    """Elements shifted round along the axes."""
    return np.roll(x, shift, axis)


roll.vjp(
    lambda g, y, x, *, shift, axis: roll(
        g, shift=tuple(-s for s in shift) if isinstance(shift, tuple) else -shift, axis=axis
    )
)


@op
def concatenate(*parts, axis=0):
    """The parts one after the other along an axis, or flattened for axis None."""
    return np.concatenate(parts, axis)


@concatenate.vjp_all
def _split_back(g, y, *parts, axis, needs):
    along = 0 if axis is None else axis % g.ndim
    gradients, start = [], 0
    for part, needed in zip(parts, needs, strict=True):
        size = part.size if axis is None else part.shape[along]
        here = (slice(None),) * along + (slice(start, start + size),)
        gradients.append(g[here].reshape(part.shape) if needed else None)
        start += size
    return gradients


@op
def stack(*parts, axis=0):
    """The parts side by side along a new axis."""
    return np.stack(parts, axis)


@stack.vjp_all
def _unstack(g, y, *parts, axis, needs):
    along = axis % g.ndim
    return [g[(slice(None),) * along + (i,)] if needed else None for i, needed in enumerate(needs)]


@op(broadcasts=True)
def tril(x, *, k=0):
    """The lower triangle of the last two axes, zeros above the k-th diagonal; NumPy repeats a
    vector as rows first.
    """
    return np.tril(x, k)


@op(broadcasts=True)
def triu(x, *, k=0):
    """The upper triangle of the last two axes, zeros below the k-th diagonal; NumPy repeats a
    vector as rows first.
    """
    return np.triu(x, k)


tril.vjp(lambda g, y, x, *, k: tril(g, k=k))
triu.vjp(lambda g, y, x, *, k: triu(g, k=k))


def float16_in_float32(function: Callable) -> Callable:
    """The function of Tensors or arrays, but of float16 computed in float32 and rounded once, as
    PyTorch does.

    In float16 itself 300^2 and e^12 are infinite, and adding 1 over and over ends at 2,048.
    """

    @functools.wraps(function)
    def rounded(x: Any, *others: Any, **settings: Any) -> Any:
        half = getattr(x, "dtype", None) == np.float16
        if not half or any(
            a.dtype.kind == "f" and a.dtype != np.float16 for a in others if hasattr(a, "dtype")
        ):
            return function(x, *others, **settings)
        wide = [
            astype(a, dtype=np.float32) if hasattr(a, "dtype") and a.dtype == np.float16 else a
            for a in (x, *others)
        ]
        return astype(function(*wide, **settings), dtype=np.float16)

    return rounded
