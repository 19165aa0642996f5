"""Kernels for ops whose NumPy functions are slow."""

import math

import numpy as np
from numpy import ndarray

from .. import ops
from ..engine import Op, kernel, sum_to
from ..ops.shapes import is_basic
from . import tuning
from .blocks import by_elements, matrix, ones, ordinary
from .layers import products
from .threads import dot


def kernel_of(replaced, forward, *vjps):
    """Return an op with another forward function and perhaps other VJPs than the replaced op."""
    made = Op(forward, broadcasts=replaced.broadcasts, stands_for=replaced)
    made.__name__ = replaced.__name__
    return made.vjp(*vjps or replaced.vjps)


# ---- sums over broadcast axes


@kernel(sum_to)
def sum_to_kernel(g, shape):
    """Sum by a product with ones, which is up to twenty times as fast as NumPy's sum over rows."""
    if g.__class__ is not ndarray or g.dtype.char not in "fd":
        return NotImplemented
    lead = g.ndim - len(shape)
    many = math.prod(g.shape[: max(lead, 0)])
    if lead <= 0 or g.shape[lead:] != shape or many > tuning.LONG_SUM:
        return NotImplemented
    return dot(ones(many, g.dtype), g.reshape(many, math.prod(shape))).reshape(shape)


# ---- ReLU

# Integer types of the same size. Multiplying a number's bits by 1 or 0 gives the number or 0.
# np.where takes seven times as long on random conditions, and 0 times infinity would be NaN.
_BITS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


def _relu(x):
    return by_elements(lambda x, y: np.maximum(x, 0, out=y), x)[0]


def _relu_vjp(g, y, _x):
    """Return g where y is not 0, including where it is NaN, like PyTorch."""
    bits, zero = _BITS[y.dtype], np.zeros((), y.dtype)

    def run(g, y, dx):
        np.multiply(g.view(bits), y != zero, out=dx.view(bits))

    return by_elements(run, g, y)[0]


relu = kernel_of(ops.relu, _relu, _relu_vjp)


@kernel(ops.relu)
def relu_kernel(x):
    """The kernel for x with at least one axis."""
    return relu(x) if ordinary(x) else NotImplemented


# ---- products of any number of rows with one matrix


def _matmul(a, b):
    """Return a @ b, computed as one product with the rows of all leading axes of a."""
    rows = matrix(a)
    return products(len(rows), (rows, b, None))[0].reshape(*a.shape[:-1], b.shape[1])


matmul = kernel_of(
    ops.matmul,
    _matmul,
    lambda g, _y, _a, b: _matmul(g, b.T),
    lambda g, _y, a, _b: products(g.size // g.shape[-1], (matrix(a).T, matrix(g), None))[0],
)


@kernel(ops.matmul)
def matmul_kernel(a, b):
    """The kernel for a (..., M, K) and b (K, N)."""
    arrays = ordinary(a, b)
    if not arrays or b is None:
        return NotImplemented
    x, y = arrays
    quick = x.ndim > 1 and y.ndim == 2 and x.shape[-1] == len(y)
    return matmul(a, b) if quick else NotImplemented


# ---- gradients of slices, and of rows of a table


def _scatter(g, *, index, shape):
    """Write g to a slice, or add rows using one flat index: np.add.at takes five times as long."""
    if type(index) is not ndarray:
        out = np.zeros(shape, g.dtype)
        out[index] = g
        return out
    table, width = np.zeros(math.prod(shape), g.dtype), shape[1]
    starts, g = index.reshape(-1, 1).astype(np.intp) * width, matrix(g)
    step = max(1, tuning.BLOCK // max(1, width))  # the flat index takes more memory than g
    for i in range(0, len(g), step):
        places = starts[i : i + step] + np.arange(width)
        np.add.at(table, places.ravel(), g[i : i + step].ravel())
    return table.reshape(shape)


scatter = kernel_of(ops.scatter, _scatter)


@kernel(ops.scatter)
def scatter_kernel(g, *, index, shape):
    """The kernel for a basic index; and for g (..., E), integers (...) and shape (V, E)."""
    if not ordinary(g):
        return NotImplemented
    if type(index) is ndarray:
        rows = index.dtype.kind in "iu" and len(shape) == 2
        quick = rows and g.shape == (*index.shape, shape[1])
    else:
        quick = is_basic(index) and np.broadcast_to(False, shape)[index].shape == g.shape
    return scatter(g, index=index, shape=shape) if quick else NotImplemented
