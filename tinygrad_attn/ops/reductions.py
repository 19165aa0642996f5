"""Ops that sum, average or pick elements along axes.

`axis` is None (all axes), an int or a tuple; negative axes count from the end.
"""

import math

import numpy as np

from ..engine import array_of, op
from .shapes import broadcast_to, flip, inverse, transpose


def axes_of(x, axis):
    """Return the axes that are reduced, as a tuple of nonnegative integers."""
    if axis is None or x.ndim == 0:  # NumPy accepts the axes 0 and -1 for a scalar too
        return tuple(range(x.ndim))
    return tuple(a % x.ndim for a in ((axis,) if not isinstance(axis, tuple) else axis))


def kept(g, x, axis):
    """Put the reduced axes back into g with size 1, so that g broadcasts against x."""
    if g.ndim == x.ndim or axis is None and g.ndim == 0:
        return g
    if axis == -1:
        return g.reshape((*g.shape, 1))
    axes = axes_of(x, axis)
    return g.reshape(tuple(1 if i in axes else n for i, n in enumerate(x.shape)))


def count(x, axis):
    """Return the number of elements that each result is computed from."""
    return math.prod(x.shape[a] for a in axes_of(x, axis))


def divisor(x):
    """Replace zeros in x with inf, so that dividing by x gives 0 there, with slope 0."""
    return np.where(array_of(x) == 0, np.inf, x)


@op
def sum(x, *, axis=None, keepdims=False):
    """y = sum of x over the axes."""
    return x.sum(axis=axis, keepdims=keepdims)


sum.vjp(lambda g, _y, _x, *, axis, keepdims: broadcast_to(kept(g, _x, axis), shape=_x.shape))


@op
def mean(x, *, axis=None, keepdims=False):
    """y = (1/n) sum of x over the axes."""
    return x.mean(axis=axis, keepdims=keepdims)


mean.vjp(
    lambda g, _y, _x, *, axis, keepdims: broadcast_to(
        kept(g, _x, axis) / (count(_x, axis) or 1), shape=_x.shape
    )
)


@op
def var(x, *, axis=None, ddof=0, keepdims=False):
    """y = (1/(n - ddof)) sum of (x - mean)^2"""
    # NumPy's var subtracts the mean again, which removes what rounding left of it.
    return _centred(x, axis).var(axis=axis, ddof=ddof, keepdims=keepdims)


def _centred(x, axis):
    return x - mean(x, axis=axis, keepdims=True)


var.vjp(
    lambda g, _y, x, *, axis, ddof, keepdims: (
        kept(g, x, axis) * (_centred(x, axis) * (2 / (count(x, axis) - ddof or np.nan)))
    )
)


@op
def std(x, *, axis=None, ddof=0, keepdims=False):
    """y = sqrt(var(x)); where y is 0, the gradient is 0 too, as in PyTorch."""
    return np.sqrt(var.forward(x, axis=axis, ddof=ddof, keepdims=keepdims))


std.vjp(
    lambda g, y, x, *, axis, ddof, keepdims: (
        kept(g, x, axis) / (count(x, axis) - ddof) * (_centred(x, axis) / divisor(kept(y, x, axis)))
    )
)


@op
def l2_norm(x, *, axis=None, keepdims=False):
    """y = sqrt(sum of x^2), with slope 0 at the zero vector, as in torch.linalg.vector_norm."""
    return np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))


l2_norm.vjp(lambda g, y, x, *, axis, keepdims: kept(g, x, axis) * (x / divisor(kept(y, x, axis))))


def to_the_extremes(g, y, x, *, axis, keepdims):
    """Pass g to the extreme element, or divide it equally among tied elements.

    Where y is NaN, g is divided among the NaN elements.
    """
    top = array_of(y)
    hit = array_of(x) == kept(top, x, axis)
    # The usual case: no ties and no NaN. (NaN equals nothing.)
    if np.count_nonzero(hit) == top.size and not np.isnan(top).any():
        return kept(g, x, axis) * hit
    hit |= np.isnan(array_of(x)) & np.isnan(kept(top, x, axis))
    share = hit / hit.sum(axis=axis, keepdims=True)
    return kept(g, x, axis) * share.astype(g.dtype)


@op
def max(x, *, axis=None, keepdims=False):
    """y = the largest element; ties share the gradient evenly, as in torch.amax."""
    return x.max(axis=axis, keepdims=keepdims)


@op
def min(x, *, axis=None, keepdims=False):
    """y = the smallest element; ties share the gradient evenly, as in torch.amin."""
    return x.min(axis=axis, keepdims=keepdims)


max.vjp(to_the_extremes)
min.vjp(to_the_extremes)


@op
def prod(x, *, axis=None, keepdims=False):
    """y = product of the elements; the VJP is correct even if some are zero."""
    return x.prod(axis=axis, keepdims=keepdims)


def _product_before(rows):
    """Return the product of the elements before each element of the last axis."""
    ones = np.ones_like(array_of(rows)[..., :1])
    return cumprod(np.concatenate([ones, rows], axis=-1), axis=-1)[..., :-1]


@prod.vjp
def _prod_vjp(g, _y, x, *, axis, keepdims):
    """The slope at an element is the product of those before it and those after it."""
    axes = axes_of(x, axis)
    order = (*[i for i in range(x.ndim) if i not in axes], *axes)
    moved = transpose(x, axes=order)
    rows = moved.reshape(*moved.shape[: x.ndim - len(axes)], count(x, axis))
    after = flip(_product_before(flip(rows, axis=-1)), axis=-1)
    others = (_product_before(rows) * after).reshape(moved.shape)
    return kept(g, x, axis) * transpose(others, axes=inverse(order))


@op
def cumsum(x, *, axis=None):
    """y_i = x_0 + ... + x_i along the axis, or over the flattened array."""
    return x.cumsum(axis=axis)


@cumsum.vjp
def _cumsum_vjp(g, _y, _x, *, axis):
    along = 0 if axis is None else axis
    return flip(cumsum(flip(g, axis=along), axis=along), axis=along).reshape(_x.shape)


@op
def cumprod(x, *, axis=None):
    """y_i = x_0 ... x_i along the axis, or over the flattened array.

    The VJP is correct even if some elements are zero.
    """
    return x.cumprod(axis=axis)


def _cumprod_vjp(g, y, x, *, axis):
    """dx_i = y_(i-1) s_i with s_i = g_i + x_(i+1) s_(i+1), without a division."""
    if axis is None or x.ndim == 0:
        return _cumprod_vjp(*(a.reshape(-1) for a in (g, y, x)), axis=-1).reshape(x.shape)
    s, y, x = (a.swapaxes(axis, -1) for a in (g, y, x))
    before = np.concatenate([np.ones_like(array_of(y)[..., :1]), y[..., :-1]], axis=-1)
    # In each round, s_i is the sum of the first `terms` terms; each round doubles `terms`.
    factors, terms = x[..., 1:], 1
    while terms < x.shape[-1]:
        s = np.concatenate([s[..., :-terms] + factors * s[..., terms:], s[..., -terms:]], axis=-1)
        factors, terms = factors[..., :-terms] * factors[..., terms:], 2 * terms
    return (before * s).swapaxes(axis, -1)


cumprod.vjp(_cumprod_vjp)
