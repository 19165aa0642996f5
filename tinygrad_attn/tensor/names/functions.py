"""NumPy's functions of elements and of neighbours, and the functions that get plain arrays."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ... import ops
from ...messages.errors import describe
from ...ops.shapes import float16_in_float32
from .common import (
    FUNCTIONS,
    UNSET,
    as_array,
    axes_of,
    cast,
    floating,
    is_whole,
    plain,
    refuse,
    refuse_among_whole,
    rule,
    tensor,
    together,
    wrapped,
)
from .shapes import _concatenate, _moveaxis, _ravel, _slice, _stack

# ---- elementwise functions that are not ufuncs


@rule(np.where)
def _where(condition, x=UNSET, y=UNSET):
    if (x is UNSET) is not (y is UNSET):
        raise TypeError(
            "np.where(mask, a, b) takes both values to choose from: a where the mask is True, b "
            "elsewhere."
        )
    return np.nonzero(plain(condition)) if x is UNSET else ops.where(plain(condition), x, y)


@rule(np.clip)
def _clip(a, a_min=None, a_max=None, min=UNSET, max=UNSET):
    bounds = (old if new is UNSET else new for old, new in ((a_min, min), (a_max, max)))
    return ops.clip(a, *(None if bound is UNSET else bound for bound in bounds))


@rule(np.round, np.around)
def _round(a, decimals=0):
    return ops.round(a, decimals=decimals)


@rule(np.select)
def _select(condlist, choicelist, default=0):
    *choices, y = together([*choicelist, default])
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        y = ops.where(plain(condition), choice, y)
    return y


@rule(np.nan_to_num)
def _nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    limits = np.finfo(plain(x).dtype)
    x = ops.where(np.isnan(plain(x)), nan, x)
    x = ops.where(np.isposinf(plain(x)), float(limits.max) if posinf is None else posinf, x)
    return ops.where(np.isneginf(plain(x)), float(limits.min) if neginf is None else neginf, x)


@rule(np.sinc)
@float16_in_float32
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
def _astype(x, dtype, copy=True):
    return cast(x, dtype)


@rule(np.full_like)
def _full_like(a, fill_value, dtype=None, order="K", shape=None):
    if plain(fill_value) is fill_value:
        return np.full_like(plain(a), fill_value, dtype, shape=shape)
    like = np.zeros_like(plain(a), dtype, shape=shape)
    refuse_among_whole("full_like", like, fill_value)
    return cast(ops.broadcast_to(fill_value, shape=like.shape), like.dtype)


if hasattr(np, "fix"):  # Deprecated since NumPy 2.5.

    @rule(np.fix)
    def _fix(x):
        return ops.trunc(x)


@rule(np.imag)
def _imag(val):
    return ops.where(True, 0, val)


@rule(np.angle)
def _angle(z, deg=False):
    return ops.arctan2(0.0, z) * (180 / math.pi if deg else 1)


@rule(np.unwrap)
def _unwrap(p, discont=None, axis=-1, period=2 * math.pi):
    p = tensor(p)
    unwrapped = np.unwrap(plain(p), plain(discont), axis, period=plain(period))
    turns = unwrapped - plain(p)  # Whole periods, whose slope by p is 0.
    if floating(period):
        return p + np.rint(turns / plain(period)) * period
    return p + (turns.astype(p.dtype, copy=False) if p.dtype.kind == "f" else turns)


@rule(np.piecewise)
def _piecewise(x, condlist, funclist, *args, **kw):
    given, conditions = tensor(x), np.asarray(plain(condlist), bool)
    if conditions.ndim == given.ndim:  # one alone needs no list
        conditions = conditions[None]
    if conditions.shape[1:] != given.shape or not len(conditions):
        raise ValueError(
            f"np.piecewise takes a list of conditions, each of the shape {given.shape} of x; got "
            f"{describe(conditions)}."
        )
    x = np.atleast_1d(given)
    conditions = conditions.reshape(-1, *x.shape) if given.ndim == 0 else conditions
    if len(funclist) == len(conditions) + 1:
        conditions = np.concatenate([conditions, ~conditions.any(0, keepdims=True)])
    if len(funclist) != len(conditions):
        raise ValueError(
            f"np.piecewise takes a function or a value for each of the {len(conditions)} "
            f"conditions, and one more for where none of them holds; got {len(funclist)}."
        )
    y = np.zeros(x.shape, x.dtype)
    # Where several conditions hold the last one counts.
    for where, part in zip(conditions, funclist, strict=True):
        at = np.nonzero(where)
        if not len(at[0]):
            continue
        if callable(part):
            values = tensor(part(x[where], *args, **kw))
            values = ops.broadcast_to(values, shape=at[0].shape)
            part = ops.scatter(values, index=at, shape=x.shape)
        y = ops.where(where, part, y)
    refuse_among_whole("piecewise", x, y)
    return cast(y, x.dtype).reshape(given.shape)


# ---- polynomials and straight lines between points


@rule(np.polyval)
def _polyval(p, x):
    p, x = together([p, x])
    p, x = (cast(a, np.result_type(p.dtype, x.dtype)) for a in (p, x))
    return functools.reduce(lambda y, coefficient: y * x + coefficient, p, np.zeros_like(plain(x)))


@rule(np.vander)
def _vander(x, N=None, increasing=False):
    x = tensor(x)
    if x.ndim != 1:
        raise ValueError(
            "np.vander takes a vector, of whose numbers each row has the powers; got "
            f"{describe(x)}."
        )
    n = len(x) if N is None else N
    first = np.ones((len(x), min(n, 1)), x.dtype)
    rest = ops.broadcast_to(x.reshape(-1, 1), shape=(len(x), max(n - 1, 0)))
    powers = ops.cumprod(_concatenate([first, rest], 1), axis=1)
    return powers if increasing else ops.flip(powers, axis=1)


@rule(np.interp)
def _interp(x, xp, fp, left=None, right=None, period=None):
    """A knot has the slope of the line to its right; beyond all knots the result is constant."""
    x, xp, fp = _alike(None, x, xp, fp)
    if xp.ndim != 1 or xp.shape != fp.shape or not len(xp):
        raise ValueError(
            "np.interp takes two vectors of one length, at least 1, the places and the values "
            f"there; got {describe(xp)} and {describe(fp)}."
        )
    if period is not None:
        if period == 0:
            raise ValueError("np.interp: the period must not be 0.")
        left, right, period = None, None, abs(period)
        x, xp = x % period, xp % period
        order = np.argsort(plain(xp))
        xp, fp = xp[order], fp[order]
        xp = _concatenate([xp[-1:] - period, xp, xp[:1] + period])
        fp = _concatenate([fp[-1:], fp, fp[:1]])
    at, knots = as_array(plain(x)), as_array(plain(xp))
    i = np.searchsorted(knots, at, "right").clip(1, max(len(knots) - 1, 1)) - 1
    j = np.minimum(i + 1, len(knots) - 1)
    before, after = at < knots[0], at >= knots[-1]
    # Beyond the knots 0 * infinity would make the gradients NaN.
    inside = ops.where(before | after, knots[i], x)
    width = xp[j] - xp[i]
    slope = (fp[j] - fp[i]) / ops.where(plain(width) == 0, 1, width)
    y = fp[i] + slope * (inside - xp[i])
    unknown = np.isnan(plain(y))
    if unknown.any():  # As infinity - infinity: ask the knot itself, and the one to the right.
        alone = (at == knots[i]) | (plain(fp)[i] == plain(fp)[j])
        y = ops.where(unknown, ops.where(alone, fp[i], fp[j] + slope * (inside - xp[j])), y)
    y = ops.where(after, fp[-1] if right is None else ops.where(at == knots[-1], fp[-1], right), y)
    return ops.where(before, fp[0] if left is None else left, y)


# ---- differences, and sums of them


@rule(np.ediff1d)
def _ediff1d(ary, to_end=None, to_begin=None):
    flat = _ravel(tensor(ary))
    begin, end = ([] if x is None else [_ravel(together([x, flat])[0])] for x in (to_begin, to_end))
    refuse_among_whole("ediff1d", flat, *begin, *end)
    return _concatenate([cast(x, flat.dtype) for x in (*begin, _diff(flat), *end)])


@rule(np.diff)
def _diff(a, n=1, axis=-1, prepend=UNSET, append=UNSET):
    a = tensor(a)
    if n < 0 or a.ndim == 0:
        raise ValueError(
            f"np.diff takes differences along at least one axis, n >= 0 times; got {describe(a)} "
            f"and n={n}."
        )
    if n == 0:
        return a  # Without the ends, as NumPy.
    axis = normalize_axis_index(axis, a.ndim)
    one = (*a.shape[:axis], 1, *a.shape[axis + 1 :])  # The shape of a number put before or after.
    parts = [x for x in (prepend, a, append) if x is not UNSET]
    if len(parts) > 1:
        parts = [x if np.ndim(x) else ops.broadcast_to(tensor(x), shape=one) for x in parts]
        a = _concatenate(parts, axis)
    for _ in range(n):
        a = _slice(a, axis, 1, None) - _slice(a, axis, None, -1)
    return a


@rule(np.gradient)
def _gradient(f, *spacing, axis=None, edge_order=1):
    f = tensor(f)
    f = f if f.dtype.kind == "f" else f * 1.0
    axes, steps = axes_of(f, axis), list(spacing) or [1.0]
    if len(steps) == 1 and np.ndim(steps[0]) == 0:
        steps *= len(axes)
    if len(steps) != len(axes):
        raise TypeError(
            f"np.gradient got {len(steps)} spacings for {len(axes)} axes; pass one number for all, "
            "or for each axis a number or the places along it."
        )
    if edge_order not in (1, 2):
        raise ValueError(f"np.gradient knows edge_order 1 and 2, got {edge_order!r}.")
    if any(f.shape[i] <= edge_order for i in axes):
        raise ValueError(
            "np.gradient takes differences, so it needs at least "
            f"{('two', 'three')[edge_order - 1]} elements along each axis; got {describe(f)}."
        )
    found = [_slopes(f, i, h, edge_order) for i, h in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(f: Any, axis: int, h: Any, edge_order: int) -> Any:
    """np.gradient along one axis; h is the distance of the elements, or a vector of places."""
    n = f.shape[axis]
    if np.ndim(h) > 1 or np.ndim(h) and len(h) != n:
        raise ValueError(
            f"np.gradient: the places along axis {axis} are a vector of {n}, got {describe(h)}."
        )
    gaps = cast(np.diff(tensor(h)) if np.ndim(h) else h * np.ones(n - 1, f.dtype), f.dtype)
    gaps = gaps.reshape(-1, *(1,) * (f.ndim - 1 - axis))
    slopes, left, right = _diff(f, axis=axis) / gaps, gaps[:-1], gaps[1:]
    before, after = _slice(slopes, axis, None, -1), _slice(slopes, axis, 1, None)
    if np.ndim(h) == 0 or not floating(h) and (gaps == gaps[:1]).all():
        # Of even places the element in the middle does not count.
        middle = (_slice(f, axis, 2, None) - _slice(f, axis, None, -2)) / (left + right)
    else:
        middle = (right * before + left * after) / (left + right)
    first, last = _slice(slopes, axis, None, 1), _slice(slopes, axis, -1, None)
    if edge_order == 2:  # On the parabola through the three outermost.
        first = first + _slice(before - after, axis, None, 1) * (left / (left + right))[:1]
        last = last + _slice(after - before, axis, -1, None) * (right / (left + right))[-1:]
    return _concatenate([first, middle, last], axis)


@rule(np.trapezoid)
def _trapezoid(y, x=None, dx=1.0, axis=-1):
    y = tensor(y)
    step = dx if x is None else np.diff(x, axis=axis if np.ndim(x) > 1 else -1)
    axis = normalize_axis_index(axis, y.ndim)
    if np.ndim(step) == 1:
        step = step.reshape([-1 if i == axis else 1 for i in range(y.ndim)])
    return ops.sum((_slice(y, axis, 1, None) + _slice(y, axis, None, -1)) * step / 2, axis=axis)


# ---- numbers between two


def _alike(wanted, *numbers):
    """All of them in the floating dtype that they, and the one that is wanted, have in common."""
    numbers = together(numbers)
    dtypes = [x.dtype for x in numbers] + [np.dtype(wanted)] * (wanted is not None)
    dtype = np.result_type(*dtypes, *["f8"] * all(d.kind in "iub" for d in dtypes))
    return [cast(x, dtype) for x in numbers]


def _between(numpys: Callable) -> Callable:
    """Enters the rule of a function of two ends, for a floating dtype.

    Integers have no slope, and the last digit of a number decides which one is below it, so for an
    integer dtype the result is NumPy's own.
    """
    names = tuple(inspect.signature(numpys).parameters)

    def enter(f: Callable) -> Callable:
        def between(*args, **kwargs):
            given = {**dict(zip(names, args)), **kwargs}
            dtype = given.pop("dtype", None)
            if is_whole(dtype):
                return wrapped(numpys(dtype=dtype, **{k: plain(v) for k, v in given.items()}))
            ends = _alike(dtype, given.pop("start"), given.pop("stop"))
            return cast(f(*ends, **given), dtype)

        FUNCTIONS[numpys] = between
        return between

    return enter


@_between(np.linspace)
def _linspace(start, stop, num=50, endpoint=True, retstep=False, axis=0, device=None):
    refuse("linspace", retstep=retstep or None)
    share = np.linspace(0, 1, num, endpoint, dtype=np.result_type(plain(start), plain(stop)))
    share = share.reshape(-1, *(1,) * max(np.ndim(plain(start)), np.ndim(plain(stop))))
    return _moveaxis(start * (1 - share) + stop * share, 0, axis)


@_between(np.logspace)
def _logspace(start, stop, num=50, endpoint=True, base=10.0, axis=0):
    start, stop, base = _alike(None, start, stop, base)
    if np.ndim(base):
        raise TypeError(
            f"np.logspace of Tensors takes one number as the base, got {describe(base)}; write "
            "base ** np.linspace(...)."
        )
    return base ** _linspace(start, stop, num, endpoint, axis=axis)


@_between(np.geomspace)
def _geomspace(start, stop, num=50, endpoint=True, axis=0):
    if not (plain(start) * plain(stop) > 0).all():
        raise ValueError(
            "np.geomspace of Tensors goes from one number to another of the same sign, and "
            f"neither is 0; got {describe(start)} and {describe(stop)}."
        )
    sizes = _linspace(*(ops.log(ops.absolute(x)) for x in (start, stop)), num, endpoint, axis=axis)
    signs = _moveaxis(np.sign(plain(start) + 0 * plain(stop))[None], 0, axis)
    return signs * ops.exp(sizes)


@rule(np.apply_along_axis)
def _apply_along_axis(func1d, axis, arr, *args, **kwargs):
    rows = _moveaxis(tensor(arr), axis, -1)
    *lead, n = rows.shape
    if 0 in lead:
        raise ValueError(
            f"np.apply_along_axis has no vector to call the function with: {describe(arr)}, axis "
            f"{axis}."
        )
    rows = rows.reshape(math.prod(lead), n)
    found = _stack([tensor(func1d(row, *args, **kwargs)) for row in rows])
    found = found.reshape((*lead, *found.shape[1:]))
    # The axes of one result stand where the axis was.
    axis = normalize_axis_index(axis, len(lead) + 1)
    inner = range(found.ndim - len(lead))
    return _moveaxis(found, [len(lead) + i for i in inner], [axis + i for i in inner])


PLAIN_NAMES = """
    shape ndim size argmax argmin nanargmax nanargmin argsort argpartition argwhere nonzero
    flatnonzero count_nonzero searchsorted digitize lexsort isin zeros_like ones_like empty_like
    array_equal array_equiv allclose isclose any all iscomplex iscomplexobj isreal isrealobj
    isneginf isposinf array2string array_repr array_str result_type can_cast min_scalar_type
    common_type shares_memory may_share_memory save savez savez_compressed savetxt
"""
PLAIN_FUNCTIONS = {getattr(np, name) for name in PLAIN_NAMES.split()}
"""Their results are shapes, places, booleans, new constants or files, which have no gradient."""
