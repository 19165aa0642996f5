"""Kernels of ops on which NumPy's own functions are slow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
from ..engine import Op, array_of, kernel, sum_to
from . import tuning
from .blocks import by_elements, filled, fits, matrix, ones
from .layers import erf, product
from .threads import dot


def kernel_of(plain: Op, forward: Any, *vjps: Any) -> Op:
    """Return an op in place of this one, with another forward function and other VJPs."""
    made = Op(forward, broadcasts=plain.broadcasts, stands_for=plain)
    made.__name__ = plain.__name__
    return made.vjp(*vjps)


# ---- sums over broadcast axes


@kernel(sum_to)
def sum_to_kernel(g: Any, shape: tuple[int, ...]) -> Any:
    """A product with ones: up to twenty times as fast as NumPy's sum over rows."""
    if g.__class__ is not ndarray or g.dtype.char not in "fd":
        return NotImplemented
    lead = g.ndim - len(shape)
    if lead >= 0 and g.size <= tuning.SMALL_SUM:
        stretched = (i + lead for i, n in enumerate(shape) if n == 1 != g.shape[i + lead])
        axes = (*range(lead), *stretched)
        total = np.add.reduce(g, axes, keepdims=True) if axes else g
        return total.reshape(total.shape[lead:])
    if lead <= 0 or not shape or g.shape[lead:] != shape:
        return NotImplemented
    many = math.prod(g.shape[:lead])
    if many > tuning.LONG_SUM:
        return NotImplemented
    return dot(ones(many, g.dtype), g.reshape(many, -1)).reshape(shape)


# ---- ReLU

# The integer of each dtype's size. The bits of a number times 1 or 0 are that number or 0:
# np.where takes seven times as long on random conditions, and 0 times infinity would be NaN.
_BITS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


def _relu(x: ndarray) -> ndarray:
    """Return max(x, 0). NumPy is slower with a number in place of an array of zeros."""
    zeros = filled(min(x.size, tuning.BLOCK_OF_THREADS), 0, x.dtype)
    return by_elements(lambda x, y: np.maximum(x, zeros[: x.size].reshape(x.shape), out=y), x)[0]


def _relu_vjp(g: Any, y: Any, _x: Any) -> Any:
    """Return g where y is not 0, also where it is NaN, as PyTorch."""
    if not fits(y, g):
        return ops.relu.vjps[0](g, y, _x)  # type: ignore[misc]
    bits, zero = _BITS[y.dtype], np.zeros((), y.dtype)

    def run(g: ndarray, y: ndarray, dx: ndarray) -> None:
        np.multiply(g.view(bits), y != zero, out=dx.view(bits))

    return by_elements(run, g, y)[0]


relu = kernel_of(ops.relu, _relu, _relu_vjp)


@kernel(ops.relu)
def relu_kernel(x: Any) -> Any:
    """Any shape with axes."""
    return relu(x) if fits(x) else NotImplemented


# ---- the error function, which NumPy lacks: ops.erf takes Python's for each element

erf_of_float32 = kernel_of(ops.erf, erf, *ops.erf.vjps)


@kernel(ops.erf)
def erf_kernel(x: Any) -> Any:
    """Twenty times as fast in float32, within 3e-7."""
    array = array_of(x)
    quick = isinstance(array, ndarray) and array.ndim > 0 and array.dtype == np.float32
    return erf_of_float32(x) if quick else NotImplemented


# ---- matrix products


def _matmul(a: ndarray, b: ndarray) -> ndarray:
    """Return a @ b, with the rows of all leading axes of a in one product if b is a matrix."""
    if b.ndim == 2:
        return product(a.reshape(-1, len(b)), b).reshape(*a.shape[:-1], b.shape[1])
    if a.shape[-1] == 1:  # columns by rows, at which matmul is slow
        return a * b
    return a @ b


def _matmul_by_right(g: Any, _y: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2:
        return product(matrix(a).T, matrix(g))
    return _matmul(a.mT, g)


matmul = kernel_of(ops.matmul, _matmul, lambda g, _y, _a, b: _matmul(g, b.mT), _matmul_by_right)


@kernel(ops.matmul)
def matmul_kernel(a: Any, b: Any) -> Any:
    """a (..., M, K), b (..., K, N)."""
    x, y = array_of(a), array_of(b)
    if not fits(x, y) or x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        return NotImplemented
    return matmul(a, b)


# ---- embedding: rows added to the rows of a table


def add_rows(table: ndarray, indices: ndarray, g: ndarray) -> None:
    """table[i] += g[n] for a table of zeros and each n, i = indices[n]; rows may be repeated."""
    width = table.shape[1]
    if width <= tuning.ADDED_WIDTH or g.size <= tuning.ADDED_ELEMENTS:
        # add.at is ten times as fast with one flat index.
        places = indices[:, None] * width + np.arange(width)
        np.add.at(table.reshape(-1), places.reshape(-1), g.reshape(-1))
        return
    # NumPy sorts 16 bits by radix, in a tenth of the time.
    short = indices.astype(np.uint16) if len(table) <= 1 << 16 else indices
    order = np.argsort(short, kind="stable")
    indices = indices[order]
    starts = np.flatnonzero(np.r_[True, indices[1:] != indices[:-1]])
    counts = np.diff(starts, append=indices.size)
    # Rare rows: the first uses of all rows at once, then the second ones, and so on. Frequent
    # rows: a sum of their own.
    most = max(1024 // width, 8)
    rare = counts <= most
    for use in range(min(int(counts.max()), most)):
        places = starts[rare & (counts > use)] + use
        if use:
            table[indices[places]] += g[order[places]]
        else:  # the table is zeros
            table[indices[places]] = g[order[places]]
    for start, count in zip(starts[~rare].tolist(), counts[~rare].tolist()):
        rows = g[order[start : start + count]]
        table[indices[start]] += np.ones(count, g.dtype).dot(rows)


def _embedding_backward(g: ndarray, *, indices: ndarray, rows: int) -> ndarray:
    table = np.zeros((rows, g.shape[-1]), g.dtype)
    flat = indices.reshape(-1).astype(np.intp, copy=False)
    add_rows(table, np.where(flat < 0, flat + rows, flat), matrix(g))
    return table


embedding_backward = kernel_of(
    ops.embedding_backward, _embedding_backward, ops.embedding_backward.vjps[0]
)


@kernel(ops.embedding_backward)
def embedding_backward_kernel(g: Any, *, indices: ndarray, rows: int) -> Any:
    """g (..., E), indices (...) in range."""
    a = array_of(g)
    if not fits(a) or indices.shape != a.shape[:-1] or indices.dtype.kind not in "iu":
        return NotImplemented
    if not -rows <= indices.min() <= indices.max() < rows:
        return NotImplemented
    return embedding_backward(g, indices=indices, rows=rows)
