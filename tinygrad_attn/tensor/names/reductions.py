"""NumPy's reductions: sums, means, extremes, averages, quantiles.

`where=` is a choice of neutral elements (0 in a sum, 1 in a product) and of what is divided by, and
the functions that pass over NaN are the same ones with where=~np.isnan(a).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...engine import Variable, op
from ...messages.errors import describe
from ...ops.shapes import float16_in_float32
from ..pytorch_habits import values_alone
from .common import UNSET, as_array, axes_of, cast, plain, refuse_whole, rule, tensor, together
from .shapes import _concatenate, _diagonal, _moveaxis, _squeeze

# ---- which elements count


def _mask_of(a: Any, where: Any) -> Any:
    """`where` as a mask of a's shape; None if every element counts."""
    if where is None or where is True or where is UNSET:
        return None
    mask = as_array(plain(where)).astype(bool, casting="safe")
    try:
        return np.broadcast_to(mask, a.shape)
    except ValueError:
        raise ValueError(
            f"where= is a mask of the shape of {describe(a)}, or one that broadcasts to it; got "
            f"{describe(mask)}."
        ) from None


def _seen(a: Any, where: Any) -> Any:
    """The mask of the elements that count and are numbers."""
    mask, number = _mask_of(a, where), ~np.isnan(plain(a))
    return number if mask is None else mask & number


def _only(a: Any, mask: Any, neutral: float) -> Any:
    return a if mask is None else ops.where(mask, a, neutral)


# ---- sums, products and extremes


def _total(function: Callable, begin: Callable, neutral: int, mask_of: Callable) -> Callable:
    """The rule of a sum or product; with `initial` it begins with that number."""

    def reduction(a, axis=None, keepdims=False, initial=None, where=None):
        y = function(_only(a, mask_of(a, where), neutral), axis=axis, keepdims=keepdims)
        return y if initial is None or initial is UNSET else begin(y, initial)

    return reduction


rule(np.sum)(_total(ops.sum, ops.add, 0, _mask_of))
rule(np.prod)(_total(ops.prod, ops.multiply, 1, _mask_of))
rule(np.nansum)(_total(ops.sum, ops.add, 0, _seen))
rule(np.nanprod)(_total(ops.prod, ops.multiply, 1, _seen))


@op
def nanmax(x, *, axis=None, keepdims=False):
    """y = the largest element but for NaN.

    With -inf in place of NaN, as for where=, NaN would tie with an element that is -inf itself.
    """
    return np.nanmax(x, axis=axis, keepdims=keepdims)


@op
def nanmin(x, *, axis=None, keepdims=False):
    """y = the smallest element but for NaN."""
    return np.nanmin(x, axis=axis, keepdims=keepdims)


nanmax.vjp(ops.reductions.to_the_extremes)
nanmin.vjp(ops.reductions.to_the_extremes)


def _extreme(function: Callable, of_two: Callable, neutral: float, mask_of: Callable) -> Callable:
    """The rule of a maximum or minimum; `initial` and an equal element halve the gradient."""

    def reduction(a, axis=None, keepdims=False, initial=None, where=None):
        if initial is None or initial is UNSET:
            if _mask_of(a, where) is not None:
                raise ValueError(
                    f"np.{function.__name__} with where= needs initial=, the result where no "
                    f"element is chosen: write initial={'-' * (neutral < 0)}np.inf, or a bound."
                )
            return values_alone(function(a, axis=axis, keepdims=keepdims))
        if not a.size:
            return ops.add(ops.sum(a, axis=axis, keepdims=keepdims), initial)
        chosen = _only(a, mask_of(a, where), neutral)
        reduce = ops.max if neutral < 0 else ops.min
        return of_two(reduce(chosen, axis=axis, keepdims=keepdims), initial)

    return reduction


_max = rule(np.max, np.amax)(_extreme(ops.max, ops.maximum, -math.inf, _mask_of))
_min = rule(np.min, np.amin)(_extreme(ops.min, ops.minimum, math.inf, _mask_of))
rule(np.nanmax)(_extreme(nanmax, ops.maximum, -math.inf, _seen))
rule(np.nanmin)(_extreme(nanmin, ops.minimum, math.inf, _seen))


@rule(np.ptp)
def _ptp(a, axis=None, keepdims=False):
    return _max(a, axis, keepdims) - _min(a, axis, keepdims)


# ---- means, variances and standard deviations


@float16_in_float32  # The number of elements may be infinite in float16.
def _mean_among(a, mask, *, axis, keepdims):
    """The mean of the elements that the mask chooses."""
    count = np.count_nonzero(mask, axis=axis, keepdims=keepdims)
    return ops.sum(ops.where(mask, a, 0), axis=axis, keepdims=keepdims) / cast(count, a.dtype)


@float16_in_float32
def _var_among(a, mask, *, axis, ddof, keepdims, none):
    """The variance of the chosen elements; `none` is divided by where there are at most ddof."""
    apart = ops.where(mask, a - _mean_among(a, mask, axis=axis, keepdims=True), 0)
    degrees = np.count_nonzero(mask, axis=axis, keepdims=keepdims) - ddof
    total = ops.sum(apart * apart, axis=axis, keepdims=keepdims)
    return total / cast(np.where(degrees > 0, degrees, none), a.dtype)


@float16_in_float32
def _std_among(a, mask, **settings):
    """The root of the variance, with slope 0 where it is 0, as np.std's."""
    variance = _var_among(a, mask, **settings)
    equal = plain(variance) == 0
    return ops.where(equal, 0, ops.sqrt(ops.where(equal, 1, variance)))


@rule(np.mean)
def _mean(a, axis=None, keepdims=False, where=None):
    mask = _mask_of(a, where)
    if mask is None:
        return ops.mean(a, axis=axis, keepdims=keepdims)
    return _mean_among(a, mask, axis=axis, keepdims=keepdims)


@rule(np.nanmean)
def _nanmean(a, axis=None, keepdims=False, where=None):
    return _mean_among(a, _seen(a, where), axis=axis, keepdims=keepdims)


def _spread(function: Callable, among: Callable, mask_of: Callable, none: float) -> Callable:
    """The rule of a variance or standard deviation."""

    def reduction(a, axis=None, ddof=0, keepdims=False, where=None, correction=None):
        mask, ddof = mask_of(a, where), ddof if correction in (None, UNSET) else correction
        if mask is None:
            return function(a, axis=axis, ddof=ddof, keepdims=keepdims)
        return among(a, mask, axis=axis, ddof=ddof, keepdims=keepdims, none=none)

    return reduction


rule(np.var)(_spread(ops.var, _var_among, _mask_of, 0))
rule(np.std)(_spread(ops.std, _std_among, _mask_of, 0))
rule(np.nanvar)(_spread(ops.var, _var_among, _seen, np.nan))
rule(np.nanstd)(_spread(ops.std, _std_among, _seen, np.nan))


@rule(np.average)
def _average(a, axis=None, weights=None, returned=False, keepdims=False):
    if weights is None:  # Weights of 1 would do too, but their sum may be infinite in float16.
        average = ops.mean(a, axis=axis, keepdims=keepdims)
        total = np.full(average.shape, ops.reductions.count(a, axis), average.dtype)
        return (average, total) if returned else average
    a, weights = together([a, weights])
    dtype = np.result_type(a.dtype, weights.dtype, *["f8"] * (a.dtype.kind in "iub"))
    if weights.dtype != dtype:
        weights = cast(weights, dtype)
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
    """Weights for the elements along some axes, shaped so that they broadcast against a."""
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
            f"of shape {weights.shape} do not fit {sizes}."
        )
    weights = ops.transpose(weights, axes=tuple(np.argsort(axes)))
    return weights.reshape([n if i in axes else 1 for i, n in enumerate(a.shape)])


@rule(np.cov)
def _cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, dtype=None):
    parts = together([m] if y is None else [m, y])
    refuse_whole("cov", dtype, *parts)
    if any(x.ndim > 2 for x in parts):
        raise ValueError(
            "np.cov takes vectors or matrices, a variable in each row; got "
            f"{', '.join(map(describe, parts))}."
        )
    rows = [x.reshape(1, -1) if x.ndim < 2 else x if rowvar else x.T for x in parts]
    x = cast(_concatenate(rows, 0), dtype)
    ddof = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        x = x - ops.mean(x, axis=1, keepdims=True)
        n, weighted = x.shape[1] - ddof, x
    else:
        # NumPy's own raises its errors for weights that do not fit.
        np.cov(plain(x), fweights=plain(fweights), aweights=plain(aweights))
        times, sure = (
            cast(np.ones(x.shape[1]) if w is None else tensor(w), x.dtype)
            for w in (fweights, aweights)
        )
        w = times * sure
        x = x - ops.sum(x * w, axis=1, keepdims=True) / w.sum()
        n, weighted = w.sum() - ddof * (w * sure).sum() / w.sum(), x * w
    return _squeeze(ops.matmul(weighted, x.mT) / (n if plain(n) > 0 else np.nan))


@rule(np.corrcoef)
def _corrcoef(x, y=None, rowvar=True, dtype=None):
    c = _cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    size = ops.sqrt(_diagonal(c))
    return ops.clip(c / size[:, None] / size, -1, 1)


# ---- quantiles

BETWEEN: dict[str, Callable] = {
    "linear": lambda place: place,
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.round,
    "midpoint": lambda place: (np.floor(place) + np.ceil(place)) / 2,
}
"""Where to read off a quantile whose place among the sorted elements is no whole number."""


def _quantiles(name, whole, a, q, axis, method, keepdims):
    """The values below which the shares q / whole of the elements lie."""
    if method not in BETWEEN:
        known = ", ".join(map(repr, BETWEEN))
        raise ValueError(f"np.{name} of a Tensor knows the methods {known}, not {method!r}.")
    given, x, q = q, tensor(a), tensor(q)
    if not ((plain(q) >= 0) & (plain(q) <= whole)).all():
        raise ValueError(
            f"np.{name} of a Tensor takes q from 0 to {whole}, got {plain(q).tolist()}."
        )
    if x.dtype.kind != "f":
        x = x * 1.0
    # As in NumPy plain numbers have no dtype, and only these methods compute with q.
    if isinstance(given, (Variable, np.ndarray)) and method in ("linear", "midpoint"):
        x = cast(x, np.result_type(x.dtype, q.dtype))
    axes = axes_of(x, axis)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    size = math.prod(x.shape[i] for i in axes)
    if size == 0:
        raise ValueError(f"np.{name} of nothing: {describe(x)} has no elements there.")
    rows = ops.transpose(x, axes=rest + axes).reshape(*(x.shape[i] for i in rest), size)
    place = BETWEEN[method](q / whole * (size - 1))
    found = _read_off(ops.sort(rows), place)
    for _ in range(place.ndim):  # One axis for each of q's, which NumPy has in front.
        found = _moveaxis(found, -1, 0)
    if not keepdims:
        return found
    return found.reshape(*place.shape, *(1 if i in axes else n for i, n in enumerate(x.shape)))


def _read_off(rows: Any, place: Any) -> Any:
    """The sorted rows at places that lie between two elements, on a straight line between them."""
    low, high = (f(plain(place)).astype(int) for f in (np.floor, np.ceil))
    # A whole place is read as twice the half of its element, since inf * 0 would be NaN.
    share = cast(np.where(low == high, 0.5, place - low), rows.dtype)
    found = rows[..., low] * (1 - share) + rows[..., high] * share
    if np.isnan(plain(rows)[..., -1]).any():  # NaN is sorted to the end, and makes its row NaN.
        last = rows[..., -1].reshape(*rows.shape[:-1], *(1,) * place.ndim)
        found = ops.where(np.isnan(plain(last)), last, found)
    return found


@rule(np.quantile)
def _quantile(a, q, axis=None, method="linear", keepdims=False):
    return _quantiles("quantile", 1, a, q, axis, method, keepdims)


@rule(np.percentile)
def _percentile(a, q, axis=None, method="linear", keepdims=False):
    return _quantiles("percentile", 100, a, q, axis, method, keepdims)


@rule(np.median)
def _median(a, axis=None, keepdims=False):
    if not a.size:
        return _mean(a, axis, keepdims)  # NaN, with NumPy's warning.
    return _quantiles("median", 1, a, 0.5, axis, "linear", keepdims)
