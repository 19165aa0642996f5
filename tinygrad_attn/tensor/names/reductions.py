"""NumPy's reductions: sums, means, extremes, quantiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...engine import Variable, op
from ...messages.errors import describe
from ...ops.shapes import in_single
from .common import FUNCTIONS, axes_of, cast, plain, refuse, refuse_whole, rule, tensor, together
from .shapes import _concatenate, _moveaxis


@rule(np.sum)
def _sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
    if dtype is not None or out is not None or initial is not None or where is not None:
        refuse("sum", out=out, initial=initial or None, where=where)
        refuse_whole("sum", dtype, a)
        a = cast(a, dtype)
    return ops.sum(a) if axis is None and not keepdims else ops.sum(a, axis=axis, keepdims=keepdims)


@rule(np.prod)
def _prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
    refuse("prod", out=out, initial=initial, where=where)
    refuse_whole("prod", dtype, a)
    return ops.prod(cast(a, dtype), axis=axis, keepdims=keepdims)


def _mean_rule(name: str, function: Callable) -> Callable:
    """The rule of a mean."""

    def reduction(a, axis=None, dtype=None, out=None, keepdims=False, *, where=None):
        refuse(name, out=out, where=where)
        refuse_whole(name, dtype, a)
        return function(cast(a, dtype), axis=axis, keepdims=keepdims)

    return reduction


def _extreme_rule(name: str, function: Callable) -> Callable:
    """The rule of a maximum or minimum, which has no dtype of its own."""

    def reduction(a, axis=None, out=None, keepdims=False, initial=None, where=None):
        refuse(name, out=out, initial=initial, where=where)
        return function(a, axis=axis, keepdims=keepdims)

    return reduction


def _spread_rule(name: str, function: Callable) -> Callable:
    """The rule of a variance or standard deviation."""

    def reduction(
        a,
        axis=None,
        dtype=None,
        out=None,
        ddof=0,
        keepdims=False,
        *,
        where=None,
        mean=None,
        correction=None,
    ):
        refuse(name, out=out, where=where, mean=mean)
        refuse_whole(name, dtype, a)
        return function(
            cast(a, dtype),
            axis=axis,
            ddof=ddof if correction is None else correction,
            keepdims=keepdims,
        )

    return reduction


_max, _min = _extreme_rule("max", ops.max), _extreme_rule("min", ops.min)
FUNCTIONS |= {
    np.max: _max,
    np.amax: _max,
    np.min: _min,
    np.amin: _min,
    np.mean: _mean_rule("mean", ops.mean),
    np.var: _spread_rule("var", ops.var),
    np.std: _spread_rule("std", ops.std),
}


@rule(np.ptp)
def _ptp(a, axis=None, out=None, keepdims=False):
    return _max(a, axis, out, keepdims) - _min(a, axis, out, keepdims)


@rule(np.average)
def _average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    if weights is None:  # not as weights of 1: in float16 their sum, or that of a, may be infinite
        average = ops.mean(a, axis=axis, keepdims=keepdims)
        return (
            (average, np.full(average.shape, ops.reductions.count(a, axis), average.dtype))
            if returned
            else average
        )
    a, weights = together([a, weights])
    dtype = np.result_type(a.dtype, weights.dtype, *["f8"] * (a.dtype.kind in "iub"))
    weights = (
        weights if weights.dtype == dtype else cast(weights, dtype)
    )  # in float16 of their own their sum may be infinite
    if weights.shape != a.shape:
        weights = _along(weights, a, axis)
    weights = ops.broadcast_to(weights, shape=a.shape)
    total = ops.sum(weights, axis=axis, keepdims=keepdims)
    if a.size and not np.all(plain(total)):
        raise ZeroDivisionError(
            f"np.average of {describe(a)}: its weights sum to zero, so there is nothing to divide "
            "by."
        )
    average = ops.sum(a * weights, axis=axis, keepdims=keepdims) / total
    return (average, total) if returned else average


def _along(weights: Any, a: Any, axis: Any) -> Any:
    """One weight for each element along the axes said, in the order said, so that they broadcast against a."""
    if axis is None:
        raise TypeError(
            f"np.average of {describe(a)} with {describe(weights)} as weights: say axis=, the axis "
            "that they belong to."
        )
    axes = axes_of(a, axis)
    sizes = tuple(a.shape[i] for i in axes)
    if weights.shape != sizes:
        raise ValueError(
            f"np.average of {describe(a)} takes a weight for each element along its axis: weights "
            f"of shape {weights.shape} "
            f"do not fit {sizes}."
        )
    weights = ops.transpose(weights, axes=tuple(np.argsort(axes)))
    return weights.reshape([n if i in axes else 1 for i, n in enumerate(a.shape)])


def without_nan(function: Callable, neutral: float) -> Callable:
    """The function of NumPy's that takes the elements which are NaN for neutral ones."""

    def reduction(a, axis=None, *args, **kwargs):
        return function(ops.where(np.isnan(plain(a)), neutral, a), axis, *args, **kwargs)

    return reduction


FUNCTIONS |= {np.nansum: without_nan(_sum, 0.0), np.nanprod: without_nan(_prod, 1.0)}


@op
def nanmax(x, *, axis=None, keepdims=False):
    """y = the largest element but for NaN; -inf in place of NaN would tie with an element that is -inf itself."""
    return np.nanmax(x, axis=axis, keepdims=keepdims)


@op
def nanmin(x, *, axis=None, keepdims=False):
    """y = the smallest element but for NaN."""
    return np.nanmin(x, axis=axis, keepdims=keepdims)


nanmax.vjp(ops.reductions.to_the_extremes)
nanmin.vjp(ops.reductions.to_the_extremes)


@in_single  # in float16 the number of elements may be infinite
def _nanmean(a, *, axis, keepdims):
    missing = np.isnan(plain(a))
    total = ops.sum(ops.where(missing, 0, a), axis=axis, keepdims=keepdims)
    return total / np.asarray(np.count_nonzero(~missing, axis=axis, keepdims=keepdims), a.dtype)


@in_single
def _nanvar(a, *, axis, ddof, keepdims):
    missing = np.isnan(plain(a))
    apart = ops.where(missing, 0, a - _nanmean(a, axis=axis, keepdims=True))
    seen = np.count_nonzero(~missing, axis=axis, keepdims=keepdims) - ddof
    return ops.sum(apart * apart, axis=axis, keepdims=keepdims) / np.where(
        seen > 0, seen, np.nan
    ).astype(a.dtype)


@in_single
def _nanstd(a, **settings):
    variance = _nanvar(a, **settings)
    equal = plain(variance) == 0  # their slope is 0, as np.std's
    return ops.where(equal, 0, ops.sqrt(ops.where(equal, 1, variance)))


FUNCTIONS |= {
    np.nanmax: _extreme_rule("nanmax", nanmax),
    np.nanmin: _extreme_rule("nanmin", nanmin),
    np.nanmean: _mean_rule("nanmean", _nanmean),
    np.nanvar: _spread_rule("nanvar", _nanvar),
    np.nanstd: _spread_rule("nanstd", _nanstd),
}


@rule(np.cov)
def _cov(
    m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None
):
    parts = together([m] if y is None else [m, y])
    refuse_whole("cov", dtype, *parts)
    if any(x.ndim > 2 for x in parts):
        raise ValueError(
            "np.cov takes vectors or matrices, a variable in each row; got "
            f"{', '.join(map(describe, parts))}."
        )
    turned = [
        x.T if x.ndim == 2 and not rowvar else x if x.ndim == 2 else x.reshape(1, -1) for x in parts
    ]
    x = cast(_concatenate(turned, 0), dtype)
    ddof = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        x = x - ops.mean(x, axis=1, keepdims=True)
        n, weighted = x.shape[1] - ddof, x
    else:
        np.cov(
            plain(x), fweights=plain(fweights), aweights=plain(aweights)
        )  # NumPy's errors for weights that do not fit
        times, sure = (
            cast(np.ones(x.shape[1]) if w is None else tensor(w), x.dtype)
            for w in (fweights, aweights)
        )
        w = times * sure
        x = x - ops.sum(x * w, axis=1, keepdims=True) / w.sum()
        n, weighted = w.sum() - ddof * (w * sure).sum() / w.sum(), x * w
    return FUNCTIONS[np.squeeze](ops.matmul(weighted, x.mT) / (n if plain(n) > 0 else np.nan))


@rule(np.corrcoef)
def _corrcoef(x, y=None, rowvar=True, *, dtype=None):
    c = _cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    size = ops.sqrt(FUNCTIONS[np.diagonal](c))
    return ops.clip(c / size[:, None] / size, -1, 1)


BETWEEN: dict[str, Callable] = {
    "linear": lambda place: place,
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.round,
    "midpoint": lambda place: (np.floor(place) + np.ceil(place)) / 2,
}
"""Where to read off a quantile whose place among the sorted elements is no whole number."""


def _quantiles(
    name,
    whole,
    a,
    q,
    axis=None,
    out=None,
    overwrite_input=False,
    method="linear",
    keepdims=False,
    *,
    weights=None,
):
    """The values below which the shares q / whole of the elements lie, between two of them on a straight line."""
    refuse(name, out=out, weights=weights)
    if method not in BETWEEN:
        raise ValueError(
            f"np.{name} of a Tensor knows the methods {', '.join(map(repr, BETWEEN))}, not "
            f"{method!r}."
        )
    given, x, q = q, tensor(a), tensor(q)
    if not ((plain(q) >= 0) & (plain(q) <= whole)).all():
        raise ValueError(
            f"np.{name} of a Tensor takes q from 0 to {whole}, got {plain(q).tolist()}."
        )
    if x.dtype.kind != "f":
        x = x * 1.0
    if isinstance(given, (Variable, np.ndarray)) and method in (
        "linear",
        "midpoint",
    ):  # which has a dtype; plain numbers have none
        x = cast(x, np.result_type(x.dtype, q.dtype))
    axes = axes_of(x, axis)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    rows = ops.sort(
        ops.transpose(x, axes=rest + axes).reshape(
            *(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)
        )
    )
    if rows.shape[-1] == 0:
        raise ValueError(f"np.{name} of nothing: {describe(x)} has no elements there.")
    place = BETWEEN[method](q / whole * (rows.shape[-1] - 1))
    low, high = (f(plain(place)).astype(int) for f in (np.floor, np.ceil))
    share = np.where(low == high, 0.5, place - low).astype(
        x.dtype
    )  # one number: twice its half, as inf * 0 would be NaN
    found = rows[..., low] * (1 - share) + rows[..., high] * share
    if np.isnan(
        plain(rows)[..., -1]
    ).any():  # NaN is sorted to the end, and makes all of its row NaN
        last = rows[..., -1].reshape(*rows.shape[:-1], *(1,) * place.ndim)
        found = ops.where(np.isnan(plain(last)), last, found)
    for _ in range(place.ndim):  # one axis for each of q's, and NumPy has them in front
        found = _moveaxis(found, -1, 0)
    return (
        found.reshape(*place.shape, *(1 if i in axes else n for i, n in enumerate(x.shape)))
        if keepdims
        else found
    )


FUNCTIONS |= {
    np.quantile: functools.partial(_quantiles, "quantile", 1),
    np.percentile: functools.partial(_quantiles, "percentile", 100),
}


@rule(np.median)
def _median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    if not a.size:
        return FUNCTIONS[np.mean](a, axis, None, out, keepdims)  # NaN, with NumPy's warning
    return _quantiles("median", 1, a, 0.5, axis, out, keepdims=keepdims)
