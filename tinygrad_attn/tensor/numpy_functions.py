"""Implementations of NumPy's functions for Tensors. Parameters have NumPy's names.

The tables `UFUNCS` and `FUNCTIONS` at the end of the file map NumPy's functions to these.
"""

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.lib.stride_tricks import sliding_window_view

from .. import ops
from ..engine import array_of
from ..errors import describe, warn
from ..ops.products import parse
from ..tree import tree_leaves, tree_map
from .convert import as_index, as_sizes
from .numpy_dispatch import cast, operands, read_only, refused, with_arguments_of

# ---- functions that move or repeat elements


def moved(function, x, *args, **kwargs):
    """Return function(x, ...) for a NumPy function that only moves or repeats elements.

    The function is applied to the positions of the elements, and the output consists of the
    elements at the resulting positions. x is an array or a nested list of arrays.
    """
    arrays = operands(tree_leaves(x))
    ends = np.cumsum([array.size for array in arrays]).tolist()
    numbers = iter([np.arange(end - a.size, end).reshape(a.shape) for end, a in zip(ends, arrays)])
    elements = ops.concatenate(*arrays, axis=None)
    settings = {name: array_of(value) for name, value in kwargs.items()}
    places = function(tree_map(lambda _: next(numbers), x), *read_only(args), **settings)
    if isinstance(places, (list, tuple)):
        return type(places)(ops.getitem(elements, index=p) for p in places)
    return ops.getitem(elements, index=places)


def take(a, indices, axis=None):
    # Moving the positions of a whole embedding table would take a lot of memory.
    """x[..., indices, ...] along the axis, without an axis of the flat x."""
    a, axis = (a.reshape(-1), 0) if axis is None else (a, normalize_axis_index(axis, a.ndim))
    places = as_index(indices)
    if np.result_type(places).kind == "b":
        places = np.multiply(places, 1)  # NumPy reads True as 1 here.
    return ops.getitem(a, index=(slice(None),) * axis + (places,))


def pad(array, pad_width, mode="constant", constant_values=0):
    """x with values around it; a constant mode fills with `constant_values`."""
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        return moved(np.pad, array, pad_width, mode)
    if mode != "constant":
        raise refused("np.pad", "mode", mode)
    pairs = np.broadcast_to(pad_width, (array.ndim, 2)).tolist()
    return ops.pad(array, width=tuple(map(tuple, pairs)), value=constant_values)


def diag(v, k=0):
    """The diagonal of a matrix, or the matrix with this diagonal."""
    if v.ndim != 1:
        return moved(np.diag, v, k)
    along, n = np.arange(v.shape[0]), v.shape[0] + abs(k)
    return ops.scatter(v, index=(along + max(-k, 0), along + max(k, 0)), shape=(n, n))


# ---- shapes


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


def reshaping(function):
    """Return an implementation of a reshaping function; NumPy computes the new shape."""

    def reshaped(x, *args, **kwargs):
        shape = function(np.broadcast_to(False, x.shape), *args, **kwargs).shape
        return ops.reshape(x, shape=shape)

    return reshaped


def permuting(function):
    """Return an implementation of an axis permutation; NumPy computes the new order."""

    def permuted(x, *args, **kwargs):
        sizes = np.empty(tuple(range(x.ndim)), bool)  # Axis i has size i.
        return ops.transpose(x, axes=function(sizes, *args, **kwargs).shape)

    return permuted


def of_each(f):
    """Return a function that applies f to one array, or to each of several."""
    return lambda *arys: f(arys[0]) if len(arys) == 1 else tuple(map(f, operands(arys)))


def broadcast_arrays(*args):
    """All arrays in their common shape."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(ops.broadcast_to(x, shape=shape) for x in operands(args))


def axes_of(axis, ndim, *settings):
    """Return one axis, several or all (None) as a tuple of axes that count from the first."""
    return normalize_axis_tuple(range(ndim) if axis is None else axis, ndim, *settings)


def windows(x, window_shape, axis=None):
    """All windows of this shape, as new last axes."""
    sizes = tuple(np.atleast_1d(window_shape).tolist())
    axes = axes_of(axis, x.ndim, "axis", True)
    return ops.windows(x, sizes=sizes, axes=axes)


# ---- joins and splits


def concatenate(arrays, axis=0):
    """Arrays joined along an axis."""
    return ops.concatenate(*operands(arrays), axis=axis)


def slice_of(x, axis, *bounds):
    """x[..., start:stop, ...] along one axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(*bounds),)]


def splitting(function):
    """Return an implementation of np.split or np.array_split."""

    def split(ary, indices_or_sections, axis=0):
        parts = function(np.arange(ary.shape[axis]), array_of(indices_or_sections))
        bounds = [(int(p[0]), int(p[-1]) + 1) if p.size else (0, 0) for p in parts]
        return [slice_of(ary, axis, *pair) for pair in bounds]

    return split


# ---- elements


def where(condition, *choices):
    """x where the condition is true, else y; without x and y, the indices where it is true."""
    condition = array_of(condition)
    return ops.where(condition, *choices) if choices else np.nonzero(condition)


def clip(a, a_min=None, a_max=None, min=None, max=None):
    """min(max(x, low), high)."""
    return ops.clip(a, min if a_min is None else a_min, max if a_max is None else a_max)


def select(condlist, choicelist, default=0):
    """The choice of the first condition that is true, else the default."""
    *choices, y = operands([*choicelist, default])
    for condition, choice in zip(condlist[::-1], choices[::-1], strict=True):
        y = ops.where(array_of(condition), choice, y)
    return y


def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    """x with numbers in place of NaN and infinities."""
    values = array_of(x)
    return ops.where(np.isfinite(values), x, np.nan_to_num(values, True, nan, posinf, neginf))


def sinc(x):
    """sin(pi x) / (pi x), and 1 at 0."""
    x = x * math.pi
    z = x * x
    small = array_of(z) < 0.01  # A power series has the right derivatives there.
    x, z = ops.where(small, 1, x), ops.where(small, z, 0)
    series = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110))))
    return ops.where(small, series, ops.sin(x) / x)


# ---- differences


def diff(a, n=1, axis=-1, prepend=None, append=None):
    """x[1:] - x[:-1] along the axis, n times."""
    axis = normalize_axis_index(axis, a.ndim)
    if n < 0:
        raise ValueError(f"np.diff takes differences n times, so n={n} must not be negative.")
    ends = [x for x in (prepend, a, append) if x is not None and x is not np._NoValue]
    if n and len(ends) > 1:
        one = [1 if i == axis else size for i, size in enumerate(a.shape)]
        a = concatenate([x if np.ndim(x) else np.broadcast_to(x, one) for x in ends], axis)
    for _ in range(n):
        a = slice_of(a, axis, 1, None) - slice_of(a, axis, None, -1)
    return a


def gradient(f, *varargs, axis=None, edge_order=1):
    """Central differences inside, one-sided ones at the ends."""
    axes = axes_of(axis, f.ndim)
    steps = varargs if len(varargs) > 1 else (varargs or (1.0,)) * len(axes)
    if edge_order != 1:
        raise refused("np.gradient", "edge_order", edge_order)
    slopes = [_slopes(f, i, h) for i, h in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slopes(f, axis, h):
    """Return np.gradient along one axis; h is the spacing of the elements, or their positions."""
    f = np.moveaxis(f, axis, 0)
    if len(f) < 2 or np.ndim(h) and len(h) != len(f):
        raise ValueError(
            f"np.gradient along an axis needs two elements or more, and one distance for all or "
            f"one position for each. Axis {axis} has {len(f)} elements, and the distance or the "
            f"positions are {describe(h)}."
        )
    gaps = np.diff(h) if np.ndim(h) else h * np.ones(len(f) - 1, f.dtype)
    gaps = gaps.reshape(-1, *(1,) * (f.ndim - 1))
    slopes, left, right = (f[1:] - f[:-1]) / gaps, gaps[:-1], gaps[1:]
    middle = (right * slopes[:-1] + left * slopes[1:]) / (left + right)
    return np.moveaxis(concatenate([slopes[:1], middle, slopes[-1:]]), 0, axis)


def linspace(start, stop, num=50, endpoint=True):
    """`num` numbers at equal distances from start to stop."""
    start, stop = operands([start, stop])
    share = np.linspace(0, 1, num, endpoint, dtype=np.result_type(start.dtype, stop.dtype))
    share = share.reshape(-1, *(1,) * max(start.ndim, stop.ndim))
    return start * (1 - share) + stop * share


# ---- products


def dot(a, b):
    """The sum over the last axis of a and the second to last of b."""
    if 0 in (np.ndim(a), np.ndim(b)):
        return ops.multiply(a, b)
    return ops.matmul(a, b) if np.ndim(b) <= 2 else tensordot(a, b, (-1, -2))


def inner(a, b):
    """The sum over the last axes of both."""
    return ops.multiply(a, b) if 0 in (np.ndim(a), np.ndim(b)) else tensordot(a, b, (-1, -1))


def vecdot(a, b, axis=-1):
    """sum a b along the axis."""
    a, b = np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)
    return ops.matmul(a[..., None, :], b[..., None])[..., 0, 0]


def tensordot(a, b, axes=2):
    """The sum over pairs of axes of a and b."""
    a, b = operands([a, b])
    left, right = (range(a.ndim - axes, a.ndim), range(axes)) if np.ndim(axes) == 0 else axes
    left, right = normalize_axis_tuple(left, a.ndim), normalize_axis_tuple(right, b.ndim)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ValueError(
            f"np.tensordot sums over axes {left} of {describe(a)} and axes {right} of "
            f"{describe(b)}, so the sizes of these axes must be equal."
        )
    labels, labels_of_b = range(a.ndim), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip(left, right):
        labels_of_b[j] = i
    return einsum(a, labels, b, labels_of_b, sorted({*labels} ^ {*labels_of_b}))


def einsum(*operands_and_labels, optimize=True):
    """The sum of products that the letters describe."""
    arrays, labels, result = parse(operands_and_labels, np.ndim)
    return ops.einsum(*operands(arrays), labels=labels, result=result)


def multi_dot(arrays):
    """The product of two or more matrices."""
    first, second, *others = arrays
    return functools.reduce(dot, others, dot(first, second))


def outer(a, b):
    """y_ij = a_i b_j, of the flat arrays."""
    a, b = operands([a, b])
    return a.reshape(-1, 1) * b.reshape(1, -1)


def kron(a, b):
    """The blocks a_ij b."""
    a, b = operands([a, b])
    return moved(lambda places: np.kron(places, np.ones(b.shape, int)), a) * moved(
        lambda places: np.kron(np.ones(a.shape, int), places), b
    )


def cross(a, b, axis=-1):
    """The cross product of vectors in three dimensions."""
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    if not len(a) == len(b) == 3:
        raise ValueError("np.cross of Tensors needs vectors with three elements.")
    return np.stack([a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axis)


# ---- np.linalg


def norm(x, ord=None, axis=None, keepdims=False):
    """The norm of a vector or matrix, by `ord`."""
    np.linalg.norm(np.ones([1] * x.ndim), ord, axis)  # raises NumPy's errors
    axes = axes_of(axis, x.ndim)
    if ord is None or len(axes) == 1:
        return vector_norm(x, axes, keepdims, ord)
    y = _matrix_norm(np.moveaxis(x, axes, (-2, -1)), ord)
    return np.expand_dims(y, axes) if keepdims else y


def vector_norm(x, axis=None, keepdims=False, ord=2):
    """(sum |x|^ord)^(1 / ord) along the axes."""
    settings, size = {"axis": axis, "keepdims": keepdims}, ops.absolute(x)
    if ord in (None, 2):
        return ops.l2_norm(x, **settings)
    if abs(ord) == math.inf:
        return (ops.max if ord > 0 else ops.min)(size, **settings)
    if ord == 0:
        return ops.sum(ops.sign(size), **settings)
    return _power(ops.sum(_power(size, ord), **settings), 1 / ord)


def _power(x, p):
    """Return x^p for x >= 0, with slope 0 at 0, as in torch.linalg.vector_norm."""
    zero = array_of(x) == 0
    return ops.where(zero, 0 if p > 0 else math.inf, ops.power(ops.where(zero, 1, x), p))


def _matrix_norm(x, ord):
    if ord in ("fro", "f"):
        return ops.l2_norm(x, axis=(-2, -1))
    if ord == "nuc":
        return ops.sum(ops.singular_values(x), axis=-1)
    if abs(ord) == 2:
        sizes = ops.singular_values(x)
    else:
        sizes = ops.sum(ops.absolute(x), axis=-2 if abs(ord) == 1 else -1)
    return (ops.max if ord > 0 else ops.min)(sizes, axis=-1)


# The types of NumPy's results, by name.
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
SVDResult = namedtuple("SVDResult", "U S Vh")
QRResult = namedtuple("QRResult", "Q R")


def eigh(a, UPLO="L"):
    # Computed alone, eigenvalues have a derivative even where the vectors have none.
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    return EighResult(ops.eigvalsh(a, uplo=UPLO), ops.eigh(a, uplo=UPLO)[..., 1:].mT)


def svd(a, full_matrices=True, compute_uv=True):
    """u, s and v^T with x = u diag(s) v^T."""
    if not compute_uv:
        return ops.singular_values(a)
    m, n = a.shape[-2:]
    if full_matrices and m != n:  # The extra vectors are arbitrary.
        raise TypeError("np.linalg.svd of a Tensor that is not square needs full_matrices=False.")
    triplets = ops.svd(a)
    return SVDResult(triplets[..., :m].mT, ops.singular_values(a), triplets[..., m + 1 :])


def qr(a, mode="reduced"):
    """q and r with x = q r."""
    if mode not in ("reduced", "r"):
        raise refused("np.linalg.qr", "mode", mode)
    m, n = a.shape[-2:]
    both = ops.qr(a[..., :m])  # The first m columns determine Q.
    q, r = both[..., :m, :], both[..., m:, :]
    if n > m:
        r = concatenate([r, ops.matmul(q.mT, a[..., m:])], -1)
    return r if mode == "r" else QRResult(q, r)


# ---- the tables

UFUNCS: dict[Any, Callable] = {
    **ops.UFUNCS,
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.fabs: ops.absolute,
    np.vecdot: vecdot,
    **dict.fromkeys((np.degrees, np.rad2deg), lambda x: x * (180 / math.pi)),
    **dict.fromkeys((np.radians, np.deg2rad), lambda x: x * (math.pi / 180)),
}
"""Maps each ufunc to a function that takes Tensors."""

MOVING = (
    np.block,
    np.column_stack,
    np.delete,
    np.diagonal,
    np.dsplit,
    np.dstack,
    np.flip,
    np.fliplr,
    np.flipud,
    np.hsplit,
    np.hstack,
    np.repeat,
    np.roll,
    np.rot90,
    np.tile,
    np.vsplit,
    np.vstack,
    np.fft.fftshift,
    np.fft.ifftshift,
    np.linalg.diagonal,
)
ATLEAST = (np.atleast_1d, np.atleast_2d, np.atleast_3d)

# Functions that have NumPy's name, in np or in np.linalg.
OF_NUMPYS_NAME = (
    ops.cumprod, ops.cumsum, ops.max, ops.mean, ops.min, ops.partition, ops.prod,
    ops.round, ops.sort, ops.std, ops.sum, ops.tril, ops.triu, ops.var,
    broadcast_arrays, clip, concatenate, cross, diag, diff, dot, einsum, gradient, inner,
    kron, linspace, nan_to_num, outer, pad, select, sinc, take, tensordot, transpose, where,
)  # fmt: skip
OF_NUMPYS_NAME_IN_LINALG = (ops.det, ops.inv, ops.pinv, eigh, multi_dot, norm, qr, svd, vector_norm)

IMPLEMENTATIONS: dict[Any, Callable] = {
    **{getattr(np, f.__name__): f for f in OF_NUMPYS_NAME},
    **{getattr(np.linalg, f.__name__): f for f in OF_NUMPYS_NAME_IN_LINALG},
    **{f: functools.partial(moved, f) for f in MOVING},
    **{f: of_each(reshaping(f)) for f in ATLEAST},
    **{f: reshaping(f) for f in (np.expand_dims, np.squeeze)},
    **{f: permuting(f) for f in (np.moveaxis, np.rollaxis)},
    **{f: splitting(f) for f in (np.array_split, np.split)},
    **dict.fromkeys((np.copy, np.real, np.real_if_close), ops.clone),
    np.amax: ops.max,
    np.amin: ops.min,
    np.angle: lambda z, deg=False: ops.arctan2(0.0, z) * (180 / math.pi if deg else 1),
    np.append: lambda arr, values, axis=None: concatenate([arr, values], axis),
    np.astype: cast,
    np.broadcast_to: lambda array, shape: ops.broadcast_to(array, shape=as_sizes([shape])),
    np.diagflat: lambda v, k=0: diag(v.reshape(-1), k),
    np.full_like: lambda a, fill_value: ops.clone(
        ops.broadcast_to(cast(fill_value, a.dtype), shape=np.shape(a))
    ),
    np.imag: lambda val: ops.where(True, 0, val),
    np.linalg.cholesky: lambda a, upper=False: ops.cholesky(a.mT).mT if upper else ops.cholesky(a),
    np.linalg.eigvalsh: lambda a, UPLO="L": ops.eigvalsh(a, uplo=UPLO),
    np.linalg.slogdet: lambda a: np.linalg.slogdet(a._data)._replace(logabsdet=ops.logabsdet(a)),
    np.linalg.solve: lambda a, b: ops.solve(*operands([a, b])),
    np.linalg.svdvals: ops.singular_values,
    np.meshgrid: lambda *xi, indexing="xy": moved(
        lambda places: np.meshgrid(*places, indexing=indexing), list(xi)
    ),
    np.ravel: lambda a: ops.reshape(a, shape=(-1,)),
    np.reshape: lambda a, shape=None, newshape=None: ops.reshape(  # `newshape` until NumPy 2.1
        a, shape=as_sizes([newshape if shape is None else shape])
    ),
    np.stack: lambda arrays, axis=0: ops.stack(*operands(arrays), axis=axis),
    np.swapaxes: lambda a, axis1, axis2: ops.swapaxes(a, a=axis1, b=axis2),
    np.take_along_axis: lambda arr, indices, axis=-1: ops.take_along_axis(
        arr, indices=as_index(indices), axis=axis
    ),
    np.trace: lambda a, offset=0, axis1=0, axis2=1: ops.sum(
        np.diagonal(a, offset, axis1, axis2), axis=-1
    ),
    np.vdot: lambda a, b: ops.matmul(*(x.reshape(-1) for x in operands([a, b]))),
    sliding_window_view: windows,
}
FUNCTIONS = {f: with_arguments_of(f, g) for f, g in IMPLEMENTATIONS.items()}
"""Maps each other NumPy function to one that takes the same arguments and handles Tensors."""
