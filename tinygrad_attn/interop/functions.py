"""NumPy's functions on each element that are not ufuncs, its differences, and the functions that get plain arrays."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .. import ops
from ..errors import describe
from ..ops.shapes import in_single
from .common import UNSET, axes_of, cast, plain, refuse, refuse_whole, rule, tensor, together
from .shapes import _concatenate, _moveaxis, _slice

# ---- elementwise functions that are not ufuncs

@rule(np.where)
def _where(condition, x=UNSET, y=UNSET, /):
    if (x is UNSET) is not (y is UNSET):
        raise TypeError("np.where(mask, a, b) takes both values to choose from: a where the mask is True, b elsewhere.")
    return np.nonzero(plain(condition)) if x is UNSET else ops.where(plain(condition), x, y)


@rule(np.clip)
def _clip(a, a_min=UNSET, a_max=UNSET, out=None, *, min=UNSET, max=UNSET, dtype=None):
    refuse("clip", out=out)
    refuse_whole("clip", dtype, a)
    low, high = (old if new is UNSET else new for old, new in ((a_min, min), (a_max, max)))
    return ops.clip(cast(a, dtype), None if low is UNSET else low, None if high is UNSET else high)


@rule(np.round, np.around)
def _round(a, decimals=0, out=None):
    refuse("round", out=out)
    return ops.round(a, decimals=decimals)


@rule(np.select)
def _select(condlist, choicelist, default=0):
    *choices, rest = together([*choicelist, default])
    return functools.reduce(lambda rest, pair: ops.where(plain(pair[0]), pair[1], rest),
                            reversed(list(zip(condlist, choices, strict=True))), rest)


@rule(np.nan_to_num)
def _nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    refuse("nan_to_num", copy=None if copy else False)
    limits = np.finfo(plain(x).dtype)
    x = ops.where(np.isnan(plain(x)), nan, x)
    x = ops.where(np.isposinf(plain(x)), float(limits.max) if posinf is None else posinf, x)
    return ops.where(np.isneginf(plain(x)), float(limits.min) if neginf is None else neginf, x)


@rule(np.sinc)
@in_single
def _sinc(x):
    """sin(pi x) / (pi x); near 0 the power series, which has the right derivatives there."""
    x = x * math.pi
    z = x * x
    small = plain(z) < 0.01
    x, z = ops.where(small, 1, x), ops.where(small, z, 0)
    series = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110))))
    return ops.where(small, series, ops.sin(x) / x)


@rule(np.real, np.real_if_close, np.copy)
def _same(a, *args, **kwargs):
    return a.copy()


@rule(np.astype)
def _astype(x, dtype, /, *, copy=True, device=None):
    return cast(x, dtype)


@rule(np.full_like)
def _full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    like = np.full_like(plain(a), plain(fill_value), dtype, shape=shape)
    return like if plain(fill_value) is fill_value else cast(ops.broadcast_to(fill_value, shape=like.shape), like.dtype)


if hasattr(np, "fix"):                               # deprecated since NumPy 2.5
    @rule(np.fix)
    def _fix(x, out=None):
        refuse("fix", out=out)
        return ops.trunc(x)


@rule(np.imag)
def _imag(val):
    return ops.where(True, 0, val)


@rule(np.angle)
def _angle(z, deg=False):
    return ops.arctan2(0.0, z) * (180 / math.pi if deg else 1)


# ---- differences and running values

@rule(np.diff)
def _diff(a, n=1, axis=-1, prepend=UNSET, append=UNSET):
    a = tensor(a)
    if n < 0 or a.ndim == 0:
        raise ValueError(f"np.diff takes differences along at least one axis, n >= 0 times; got {describe(a)} and n={n}.")
    if n == 0:
        return a                                     # without the ends, as NumPy
    axis = normalize_axis_index(axis, a.ndim)
    slice_shape = (*a.shape[:axis], 1, *a.shape[axis + 1:])      # of a single number, put before or after
    parts = [x if np.ndim(x) else ops.broadcast_to(tensor(x), shape=slice_shape) for x in (prepend, a, append) if x is not UNSET]
    if len(parts) > 1:
        a = _concatenate(parts, axis)
    for _ in range(n):
        a = _slice(a, axis, 1, None) - _slice(a, axis, None, -1)
    return a


@rule(np.gradient)
def _gradient(f, *spacing, axis=None, edge_order=1):
    refuse("gradient", edge_order=None if edge_order == 1 else edge_order)
    f = tensor(f)
    axes = axes_of(f, axis)
    steps = list(spacing) * len(axes) if len(spacing) == 1 else list(spacing) or [1.0] * len(axes)
    if len(steps) != len(axes):
        raise TypeError(f"np.gradient got {len(steps)} spacings for {len(axes)} axes; pass one for all, or one for each.")
    if any(f.shape[i] < 2 for i in axes):
        raise ValueError(f"np.gradient takes differences, so it needs at least two elements along each axis; got {describe(f)}.")
    found = []
    for h, i in zip(steps, axes, strict=True):
        if np.ndim(h):
            raise TypeError("np.gradient of a Tensor takes one number as the spacing along each axis; "
                            "write the differences out for an uneven one.")
        ends = _diff(f, axis=i)
        found.append(_concatenate([_slice(ends, i, None, 1) / h, (_slice(f, i, 2, None) - _slice(f, i, None, -2)) / (2 * h),
                                   _slice(ends, i, -1, None) / h], i))
    return found[0] if len(found) == 1 else tuple(found)


@rule(np.trapezoid)
def _trapezoid(y, x=None, dx=1.0, axis=-1):
    y = tensor(y)
    step = dx if x is None else np.diff(x, axis=axis if np.ndim(x) > 1 else -1)
    axis = normalize_axis_index(axis, y.ndim)
    if np.ndim(step) == 1:
        step = step.reshape([-1 if i == axis else 1 for i in range(y.ndim)])
    return ops.sum((_slice(y, axis, 1, None) + _slice(y, axis, None, -1)) * step / 2, axis=axis)


@rule(np.linspace)
def _linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0):
    refuse("linspace", retstep=retstep or None)
    start, stop = together([start, stop])
    share = np.linspace(0, 1, num, endpoint, dtype=np.result_type(plain(start), plain(stop)))
    share = share.reshape(-1, *(1,) * np.broadcast(plain(start), plain(stop)).ndim)
    line = _moveaxis(start * (1 - share) + stop * share, 0, axis)
    return cast(ops.floor(line) if dtype is not None and np.dtype(dtype).kind in "iu" else line, dtype)       # rounded down, as NumPy


PLAIN_FUNCTIONS = {
    np.shape, np.ndim, np.size, np.argmax, np.argmin, np.nanargmax, np.nanargmin, np.argsort, np.argpartition,
    np.argwhere, np.nonzero, np.flatnonzero,
    np.count_nonzero, np.searchsorted, np.digitize, np.lexsort, np.isin, np.zeros_like, np.ones_like, np.empty_like,
    np.array_equal, np.array_equiv, np.allclose, np.isclose, np.any, np.all, np.iscomplex, np.iscomplexobj, np.isreal, np.isrealobj,
    np.isneginf, np.isposinf, np.array2string, np.array_repr, np.array_str, np.result_type, np.can_cast, np.min_scalar_type, np.common_type,
    np.shares_memory, np.may_share_memory, np.save, np.savez, np.savez_compressed, np.savetxt,
}
"""Their results are shapes, places, booleans, new constants or files: nothing that a gradient belongs to."""
