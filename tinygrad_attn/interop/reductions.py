"""NumPy's reductions: sums, means, extremes, quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .. import ops
from .common import FUNCTIONS, cast, plain, refuse, rule, tensor
from .shapes import _moveaxis


@rule(np.sum)
def _sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
    if dtype is not None or out is not None or initial is not None or where is not None:
        refuse("sum", out=out, initial=initial or None, where=where)
        a = cast(a, dtype)
    return ops.sum(a) if axis is None and not keepdims else ops.sum(a, axis=axis, keepdims=keepdims)


@rule(np.mean)
def _mean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=None):
    refuse("mean", out=out, where=where)
    return ops.mean(cast(a, dtype), axis=axis, keepdims=keepdims)


@rule(np.prod)
def _prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
    refuse("prod", out=out, initial=initial, where=where)
    return ops.prod(cast(a, dtype), axis=axis, keepdims=keepdims)


@rule(np.max, np.amax)
def _max(a, axis=None, out=None, keepdims=False, initial=None, where=None):
    refuse("max", out=out, initial=initial, where=where)
    return ops.max(a, axis=axis, keepdims=keepdims)


@rule(np.min, np.amin)
def _min(a, axis=None, out=None, keepdims=False, initial=None, where=None):
    refuse("min", out=out, initial=initial, where=where)
    return ops.min(a, axis=axis, keepdims=keepdims)


@rule(np.var)
def _var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=None, mean=None, correction=None):
    refuse("var", out=out, where=where, mean=mean)
    return ops.var(cast(a, dtype), axis=axis, ddof=ddof if correction is None else correction, keepdims=keepdims)


@rule(np.std)
def _std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=None, mean=None, correction=None):
    refuse("std", out=out, where=where, mean=mean)
    return ops.std(cast(a, dtype), axis=axis, ddof=ddof if correction is None else correction, keepdims=keepdims)


@rule(np.ptp)
def _ptp(a, axis=None, out=None, keepdims=False):
    return _max(a, axis, out, keepdims) - _min(a, axis, out, keepdims)


@rule(np.cumsum)
def _cumsum(a, axis=None, dtype=None, out=None):
    refuse("cumsum", out=out)
    return ops.cumsum(cast(a, dtype), axis=axis)


@rule(np.average)
def _average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    if weights is None:
        weights = np.ones(np.shape(a), plain(a).dtype)
    elif np.shape(weights) != np.shape(a):           # one weight for each element along the axis
        weights = tensor(weights).reshape([n if i == axis % np.ndim(a) else 1 for i, n in enumerate(np.shape(a))])
    weights = ops.broadcast_to(weights, shape=np.shape(a))
    total = ops.sum(weights, axis=axis, keepdims=keepdims)
    average = ops.sum(a * weights, axis=axis, keepdims=keepdims) / total
    return (average, total) if returned else average


def _without_nan(function: Callable, neutral: float) -> Callable:
    def reduction(a, axis=None, **kwargs):
        return function(ops.where(np.isnan(plain(a)), neutral, a), axis, **kwargs)
    return reduction


FUNCTIONS |= {np.nansum: _without_nan(_sum, 0.0), np.nanprod: _without_nan(_prod, 1.0), np.nanmax: _without_nan(_max, -math.inf),
              np.nanmin: _without_nan(_min, math.inf)}


@rule(np.nanmean)
def _nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    refuse("nanmean", out=out)
    seen = np.count_nonzero(~np.isnan(plain(a)), axis=axis, keepdims=keepdims)
    return FUNCTIONS[np.nansum](cast(a, dtype), axis, keepdims=keepdims) / np.asarray(seen, plain(a).dtype)


@rule(np.quantile)
def _quantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False):
    refuse("quantile", out=out, method=None if method == "linear" else method)
    x = tensor(a)
    axes = tuple(range(x.ndim)) if axis is None else tuple(i % x.ndim for i in (axis if isinstance(axis, tuple) else (axis,)))
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    rows = ops.sort(ops.transpose(x, axes=rest + axes).reshape(*(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)))
    place = np.asarray(plain(q)) * (rows.shape[-1] - 1)
    low, high = np.floor(place).astype(int), np.ceil(place).astype(int)
    share = (place - low).astype(x.dtype)
    found = rows[..., low] * (1 - share) + rows[..., high] * share
    for _ in range(place.ndim):                      # one axis for each of q's, and NumPy has them in front
        found = _moveaxis(found, -1, 0)
    return found.reshape(*place.shape, *(1 if i in axes else n for i, n in enumerate(x.shape))) if keepdims else found


@rule(np.percentile)
def _percentile(a, q, *args, **kwargs):
    return _quantile(a, np.asarray(plain(q)) / 100, *args, **kwargs)


@rule(np.median)
def _median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    return _quantile(a, 0.5, axis, out, keepdims=keepdims)
