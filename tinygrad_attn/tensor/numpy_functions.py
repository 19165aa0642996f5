"""Implementations of NumPy's functions for Tensors. Parameters have NumPy's names.

Importing this module fills the table `FUNCTIONS` of numpy_dispatch.py.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .. import ops
from ..errors import describe, warn
from ..ops.products import parse
from .convert import as_sizes, copied
from .numpy_dispatch import FUNCTIONS, cast, floating, implements, plain, refuse, together

_UNSET: Any = np._NoValue


# ---- functions that move or repeat elements


def moved(function: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return function(x, ...) for a NumPy function that only moves or repeats elements.

    The function is applied to the positions of the elements, and the output consists of the
    elements at the resulting positions. x is an array or a nested list of arrays.
    """
    parts = together(_leaves(x))
    starts = np.cumsum([0, *(part.size for part in parts)]).tolist()
    positions = [np.arange(n, n + p.size).reshape(p.shape) for n, p in zip(starts, parts)]
    flat = [ops.reshape(part, shape=(-1,)) for part in parts]
    elements = flat[0] if len(flat) == 1 else ops.concatenate(*flat)
    settings = {k: plain(v) for k, v in kwargs.items()}
    places = function(_nested(x, iter(positions)), *plain(args), **settings)
    if isinstance(places, (list, tuple)):
        return type(places)(ops.getitem(elements, index=p) for p in places)
    return ops.getitem(elements, index=places)


def _leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, list | tuple) else [x]


def _nested(x: Any, leaves: Any) -> Any:
    return [_nested(p, leaves) for p in x] if isinstance(x, list | tuple) else next(leaves)


def _moving(function: Any) -> Callable:
    """Return an implementation of a function that moves the elements of its first argument."""
    first = next(iter(inspect.signature(function).parameters))

    def by_moving(*args: Any, **kwargs: Any) -> Any:
        x, *rest = args or (kwargs.pop(first),)
        return moved(function, x, *rest, **kwargs)

    return by_moving


MOVING_NAMES = """
    block column_stack delete diagonal dstack flip fliplr flipud repeat resize roll rot90 tile
    fft.fftshift fft.ifftshift linalg.diagonal
"""
for _name in MOVING_NAMES.split():
    _function = functools.reduce(getattr, _name.split("."), np)
    FUNCTIONS[_function] = _moving(_function)


@implements(np.take)
def _take(a, indices, axis=None):
    # Moving the positions of a whole embedding table would take a lot of memory.
    a, axis = (a.reshape(-1), 0) if axis is None else (a, normalize_axis_index(axis, a.ndim))
    places = copied(plain(indices))
    places = places.astype(int) if places.dtype == bool else places  # NumPy reads True as 1 here.
    return ops.getitem(a, index=(slice(None),) * axis + (places,))


@implements(np.pad)
def _pad(array, pad_width, mode="constant", constant_values=0):
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        return moved(np.pad, array, pad_width, mode)
    if mode != "constant":
        refuse("np.pad", "mode", mode)
    pairs = np.broadcast_to(pad_width, (array.ndim, 2)).tolist()
    return ops.pad(array, width=tuple(map(tuple, pairs)), value=constant_values)


@implements(np.diag)
def _diag(v, k=0):
    if v.ndim != 1:
        return moved(np.diag, v, k)
    along, n = np.arange(v.shape[0]), v.shape[0] + abs(k)
    return ops.scatter(v, index=(along + max(-k, 0), along + max(k, 0)), shape=(n, n))


# ---- shapes


@implements(np.transpose)
def transpose(a, axes=None):
    """Permute the axes; warn if a matrix stays unchanged where PyTorch would transpose it."""
    axes = None if axes is None else tuple(axes)
    if axes is not None and a.ndim == 2 and tuple(i % 2 for i in axes) == (0, 1):
        warn(
            f"transpose{axes} of {describe(a)} changes nothing: as in NumPy, the arguments list "
            "the axes in their new order, which is the same as the old order. To exchange two "
            "axes, as PyTorch's transpose does, write t.mT or t.swapaxes(0, 1)."
        )
    return ops.transpose(a, axes=axes)


def _reshaping(function: Callable) -> Callable:
    """Return an implementation of a reshaping function; NumPy computes the new shape."""

    def reshaped(x: Any, *args: Any, **kwargs: Any) -> Any:
        shape = function(np.broadcast_to(False, x.shape), *args, **kwargs).shape
        return ops.reshape(x, shape=shape)

    return reshaped


def _permuting(function: Callable) -> Callable:
    """Return an implementation of an axis permutation; NumPy computes the new order."""

    def permuted(x: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = np.empty(tuple(range(x.ndim)), bool)  # Axis i has size i.
        return ops.transpose(x, axes=function(sizes, *args, **kwargs).shape)

    return permuted


def _of_each(f: Callable) -> Callable:
    return lambda *arys: f(arys[0]) if len(arys) == 1 else tuple(map(f, together(arys)))


@implements(np.broadcast_arrays)
def _broadcast_arrays(*args):
    shape = np.broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(ops.broadcast_to(x, shape=shape) for x in together(args))


@implements(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(x, window_shape, axis=None):
    sizes = tuple(np.atleast_1d(window_shape).tolist())
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim, "axis", True)
    return ops.windows(x, sizes=sizes, axes=axes)


# ---- joins and splits


def _concatenate(arrays, axis=0):
    return ops.concatenate(*together(arrays), axis=axis)


def _atleast(n: int, parts: Any) -> list[Any]:
    return [x if x.ndim >= n else x.reshape((1,) * (n - x.ndim) + x.shape) for x in together(parts)]


@implements(np.hstack)
def _hstack(tup):
    parts = _atleast(1, tup)
    return _concatenate(parts, int(parts[0].ndim > 1))


def _slice(x: Any, axis: int, *bounds: Any) -> Any:
    return x[(slice(None),) * (axis % x.ndim) + (slice(*bounds),)]


def _splitting(cut: Callable, along: int | None = None) -> Callable:
    """Return an implementation of np.split, or of a variant that cuts along a fixed axis."""

    def split(ary, indices_or_sections, axis=0):
        axis = axis if along is None else min(along, ary.ndim - 1)
        parts = cut(np.arange(ary.shape[axis]), plain(indices_or_sections))
        bounds = [(int(p[0]), int(p[-1]) + 1) if p.size else (0, 0) for p in parts]
        return [_slice(ary, axis, *pair) for pair in bounds]

    return split


# ---- elements


@implements(np.where)
def _where(condition, x=_UNSET, y=_UNSET):
    return np.nonzero(plain(condition)) if x is _UNSET else ops.where(plain(condition), x, y)


@implements(np.clip)
def _clip(a, a_min=None, a_max=None, min=None, max=None):
    return ops.clip(a, min if a_min is None else a_min, max if a_max is None else a_max)


@implements(np.select)
def _select(condlist, choicelist, default=0):
    *choices, y = together([*choicelist, default])
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        y = ops.where(plain(condition), choice, y)
    return y


@implements(np.nan_to_num)
def _nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    values, limits = plain(x), np.finfo(x.dtype)
    x = ops.where(np.isnan(values), nan, x)
    x = ops.where(np.isposinf(values), float(limits.max) if posinf is None else posinf, x)
    return ops.where(np.isneginf(values), float(limits.min) if neginf is None else neginf, x)


@implements(np.sinc)
def _sinc(x):
    x = x * math.pi
    z = x * x
    small = plain(z) < 0.01  # A power series has the right derivatives there.
    x, z = ops.where(small, 1, x), ops.where(small, z, 0)
    series = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110))))
    return ops.where(small, series, ops.sin(x) / x)


@implements(np.full_like)
def _full_like(a, fill_value):
    if not floating(fill_value):
        return np.full_like(plain(a), plain(fill_value))
    return ops.broadcast_to(cast(fill_value, a.dtype), shape=np.shape(a))


# ---- differences


@implements(np.diff)
def _diff(a, n=1, axis=-1, prepend=_UNSET, append=_UNSET):
    ends = [x for x in (prepend, a, append) if x is not _UNSET]
    if n and len(ends) > 1:
        one = [1 if i == axis % a.ndim else size for i, size in enumerate(a.shape)]
        a = _concatenate([x if np.ndim(x) else np.broadcast_to(x, one) for x in ends], axis)
    for _ in range(n):
        a = _slice(a, axis, 1, None) - _slice(a, axis, None, -1)
    return a


@implements(np.gradient)
def _gradient(f, *varargs, axis=None, edge_order=1):
    axes = normalize_axis_tuple(range(f.ndim) if axis is None else axis, f.ndim)
    steps = varargs if len(varargs) > 1 else (varargs or (1.0,)) * len(axes)
    if edge_order != 1:
        refuse("np.gradient", "edge_order", edge_order)
    if any(f.shape[i] < 2 for i in axes):
        raise ValueError(
            f"np.gradient needs at least two elements along each axis, got {describe(f)}."
        )
    slopes = [_slopes(f, i, h) for i, h in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slopes(f: Any, axis: int, h: Any) -> Any:
    """Return np.gradient along one axis; h is the spacing of the elements, or their positions."""
    gaps = np.diff(h) if np.ndim(h) else h * np.ones(f.shape[axis] - 1, f.dtype)
    gaps = gaps.reshape(-1, *(1,) * (f.ndim - 1 - axis))
    slopes, left, right = _diff(f, axis=axis) / gaps, gaps[:-1], gaps[1:]
    before, after = _slice(slopes, axis, None, -1), _slice(slopes, axis, 1, None)
    middle = (right * before + left * after) / (left + right)
    ends = _slice(slopes, axis, None, 1), _slice(slopes, axis, -1, None)
    return _concatenate([ends[0], middle, ends[1]], axis)


@implements(np.linspace)
def _linspace(start, stop, num=50, endpoint=True, axis=0):
    start, stop = together([start, stop])
    share = np.linspace(0, 1, num, endpoint, dtype=np.result_type(start.dtype, stop.dtype))
    share = share.reshape(-1, *(1,) * max(start.ndim, stop.ndim))
    return np.moveaxis(start * (1 - share) + stop * share, 0, axis)


# ---- products


def _dot(a, b):
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return ops.multiply(a, b)
    return ops.matmul(a, b) if np.ndim(b) <= 2 else _tensordot(a, b, (-1, -2))


def _inner(a, b):
    return ops.multiply(a, b) if np.ndim(a) == 0 or np.ndim(b) == 0 else _tensordot(a, b, (-1, -1))


@implements(np.tensordot)
def _tensordot(a, b, axes=2):
    a, b = together([a, b])
    left, right = (range(a.ndim - axes, a.ndim), range(axes)) if np.ndim(axes) == 0 else axes
    left, right = normalize_axis_tuple(left, a.ndim), normalize_axis_tuple(right, b.ndim)
    n, sizes = len(left), [a.shape[i] for i in left]
    if sizes != [b.shape[i] for i in right]:
        raise ValueError(
            f"np.tensordot sums over axes {left} of {describe(a)} and axes {right} of "
            f"{describe(b)}, so the sizes of these axes must be equal."
        )
    # One matrix product, with these axes last in a and first in b.
    a, b = np.moveaxis(a, left, range(-n, 0)), np.moveaxis(b, right, range(n))
    outer_a, outer_b, summed = a.shape[: a.ndim - n], b.shape[n:], math.prod(sizes)
    rows, columns = a.reshape(math.prod(outer_a), summed), b.reshape(summed, math.prod(outer_b))
    return ops.matmul(rows, columns).reshape(outer_a + outer_b)


@implements(np.einsum)
def _einsum(*operands, optimize=True):
    arrays, labels, result = parse(operands, np.ndim)
    return ops.einsum(*together(arrays), labels=labels, result=result)


def _outer(a, b):
    a, b = together([a, b])
    return a.reshape(-1, 1) * b.reshape(1, -1)


@implements(np.kron)
def _kron(a, b):
    n = max(np.ndim(a), np.ndim(b))
    a, b = _atleast(n, [a, b])
    a_odd, b_even = tuple(range(1, 2 * n, 2)), tuple(range(0, 2 * n, 2))
    blocks = np.expand_dims(a, a_odd) * np.expand_dims(b, b_even)
    return blocks.reshape([i * j for i, j in zip(a.shape, b.shape)])


@implements(np.cross)
def _cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(a, axisa, 0), np.moveaxis(b, axisb, 0)
    if len(a) != 3 or len(b) != 3:
        raise ValueError(
            f"np.cross needs vectors with three elements, got {len(a)} and {len(b)} elements."
        )
    return np.stack([a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axisc)


# ---- np.linalg


@implements(np.linalg.norm)
def _norm(x, ord=None, axis=None, keepdims=False):
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)
    if ord is None:
        return ops.l2_norm(x, axis=axes, keepdims=keepdims)
    if len(axes) == 1:
        return _vector_norm(x, axes, keepdims, ord)
    if len(axes) != 2:
        raise ValueError(f"np.linalg.norm of {describe(x)} needs axis= with one or two axes.")
    y = _matrix_norm(np.moveaxis(x, axes, (-2, -1)), ord)
    return np.expand_dims(y, axes) if keepdims else y


@implements(np.linalg.vector_norm)
def _vector_norm(x, axis=None, keepdims=False, ord=2):
    settings, size = {"axis": axis, "keepdims": keepdims}, ops.absolute(x)
    if ord == 2:
        return ops.l2_norm(x, **settings)
    if abs(ord) == math.inf:
        return (ops.max if ord > 0 else ops.min)(size, **settings)
    if ord == 0:
        return ops.sum(ops.sign(size), **settings)
    return _power(ops.sum(_power(size, ord), **settings), 1 / ord)


def _power(x: Any, p: float) -> Any:
    """Return x^p for x >= 0, with slope 0 at 0, as in torch.linalg.vector_norm."""
    zero = plain(x) == 0
    return ops.where(zero, 0 if p > 0 else math.inf, ops.power(ops.where(zero, 1, x), p))


def _matrix_norm(x: Any, ord: Any) -> Any:
    if ord == "fro":
        return ops.l2_norm(x, axis=(-2, -1))
    if ord == "nuc":
        return ops.sum(ops.singular_values(x), axis=-1)
    if ord not in (1, -1, 2, -2, math.inf, -math.inf):
        raise ValueError(
            "the ord of a matrix norm must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got "
            f"{ord!r}."
        )
    summed = -2 if abs(ord) == 1 else -1
    sizes = ops.singular_values(x) if abs(ord) == 2 else ops.sum(ops.absolute(x), axis=summed)
    return (ops.max if ord > 0 else ops.min)(sizes, axis=-1)


# The types of NumPy's results, by name.
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
SVDResult = namedtuple("SVDResult", "U S Vh")
QRResult = namedtuple("QRResult", "Q R")


@implements(np.linalg.eigh)
def _eigh(a, UPLO="L"):
    # Computed alone, eigenvalues have a derivative even where the vectors have none.
    return EighResult(ops.eigvalsh(a, uplo=UPLO), ops.eigh(a, uplo=UPLO)[..., 1:].mT)


@implements(np.linalg.svd)
def _svd(a, full_matrices=True, compute_uv=True):
    if not compute_uv:
        return ops.singular_values(a)
    m, n = a.shape[-2:]
    if full_matrices and m != n:  # The extra vectors are arbitrary.
        raise TypeError("np.linalg.svd of a Tensor that is not square needs full_matrices=False.")
    triplets = ops.svd(a)
    return SVDResult(triplets[..., :m].mT, ops.singular_values(a), triplets[..., m + 1 :])


@implements(np.linalg.qr)
def _qr(a, mode="reduced"):
    if mode not in ("reduced", "r"):
        refuse("np.linalg.qr", "mode", mode)
    m, n = a.shape[-2:]
    both = ops.qr(a[..., :m])  # The first m columns determine Q.
    q, r = both[..., :m, :], both[..., m:, :]
    if n > m:
        r = _concatenate([r, ops.matmul(q.mT, a[..., m:])], -1)
    return r if mode == "r" else QRResult(q, r)


# ---- one-line functions

SHORT: dict[Any, Callable] = {
    np.append: lambda arr, values, axis=None: _concatenate([arr, values], axis),
    np.array_split: _splitting(np.array_split),
    np.astype: cast,
    np.broadcast_to: lambda array, shape: ops.broadcast_to(array, shape=as_sizes([shape])),
    np.concatenate: _concatenate,
    np.copy: ops.clone,
    np.cumprod: ops.cumprod,
    np.cumsum: ops.cumsum,
    np.diagflat: lambda v, k=0: _diag(v.reshape(-1), k),
    np.dot: _dot,
    np.dsplit: _splitting(np.split, 2),
    np.hsplit: _splitting(np.split, 1),
    np.imag: lambda val: ops.where(True, 0, val),
    np.angle: lambda z, deg=False: ops.arctan2(0.0, z) * (180 / math.pi if deg else 1),
    np.inner: _inner,
    np.linalg.cholesky: lambda a, upper=False: ops.cholesky(a.mT).mT if upper else ops.cholesky(a),
    np.linalg.det: ops.det,
    np.linalg.eigvalsh: lambda a, UPLO="L": ops.eigvalsh(a, uplo=UPLO),
    np.linalg.inv: ops.inv,
    np.linalg.multi_dot: lambda arrays: functools.reduce(_dot, arrays),
    np.linalg.pinv: ops.pinv,
    np.linalg.slogdet: lambda a: np.linalg.slogdet(plain(a))._replace(logabsdet=ops.logabsdet(a)),
    np.linalg.solve: lambda a, b: ops.solve(*together([a, b])),
    np.linalg.svdvals: ops.singular_values,
    np.matrix_transpose: lambda x: ops.swapaxes(x, a=-1, b=-2),
    np.max: ops.max,
    np.mean: ops.mean,
    np.min: ops.min,
    np.outer: _outer,
    np.partition: ops.partition,
    np.prod: ops.prod,
    np.ravel: lambda a: ops.reshape(a, shape=(-1,)),
    np.real: ops.clone,
    np.real_if_close: ops.clone,
    np.reshape: lambda a, shape=None, newshape=None: ops.reshape(  # `newshape` until NumPy 2.1
        a, shape=as_sizes([newshape if shape is None else shape])
    ),
    np.round: ops.round,
    np.sort: ops.sort,
    np.split: _splitting(np.split),
    np.stack: lambda arrays, axis=0: ops.stack(*together(arrays), axis=axis),
    np.std: ops.std,
    np.sum: ops.sum,
    np.swapaxes: lambda a, axis1, axis2: ops.swapaxes(a, a=axis1, b=axis2),
    np.take_along_axis: lambda arr, indices, axis=-1: ops.take_along_axis(
        arr, indices=copied(plain(indices)), axis=axis
    ),
    np.trace: lambda a, offset=0, axis1=0, axis2=1: ops.sum(
        np.diagonal(a, offset, axis1, axis2), axis=-1
    ),
    np.tril: ops.tril,
    np.triu: ops.triu,
    np.var: ops.var,
    np.vdot: lambda a, b: ops.matmul(*(x.reshape(-1) for x in together([a, b]))),
    np.vsplit: _splitting(np.split, 0),
    np.vstack: lambda tup: _concatenate(_atleast(2, tup)),
}
for _function, _answer in SHORT.items():
    implements(_function)(_answer)

FUNCTIONS |= {
    np.around: FUNCTIONS[np.round],
    np.amax: FUNCTIONS[np.max],
    np.amin: FUNCTIONS[np.min],
    np.atleast_1d: _of_each(_reshaping(np.atleast_1d)),
    np.atleast_2d: _of_each(_reshaping(np.atleast_2d)),
    np.atleast_3d: _of_each(_reshaping(np.atleast_3d)),
    np.expand_dims: _reshaping(np.expand_dims),
    np.meshgrid: lambda *xi, indexing="xy": moved(
        lambda p: np.meshgrid(*p, indexing=indexing), list(xi)
    ),
    np.moveaxis: _permuting(np.moveaxis),
    np.rollaxis: _permuting(np.rollaxis),
    np.squeeze: _reshaping(np.squeeze),
}
