"""NumPy's products and np.linalg."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np

from ... import ops
from ...messages.errors import describe
from ...ops.products import parse
from ...ops.shapes import float16_in_float32
from .common import FUNCTIONS, axes_of, cast, plain, refuse, rule, tensor
from .shapes import _concatenate, _moveaxis, _ravel, _stack
from .ufuncs import vecdot


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Sum over a's last axis and b's last but one, or b's only one; a number multiplies."""
    refuse("dot", out=out)
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return ops.multiply(a, b)
    if np.ndim(b) <= 2:
        return ops.matmul(a, b)
    return tensordot(a, b, (-1, -2))


def inner(a: Any, b: Any, /) -> Any:
    """Sum over the last axes of both."""
    return ops.multiply(a, b) if np.ndim(a) == 0 or np.ndim(b) == 0 else tensordot(a, b, (-1, -1))


def vdot(a: Any, b: Any, /) -> Any:
    """The sum of the products of all elements."""
    return ops.matmul(_ravel(tensor(a)), _ravel(tensor(b)))


@rule(np.outer)
def outer(a: Any, b: Any) -> Any:
    """Every element of a times every element of b: (M,), (N,) -> (M, N)"""
    return ops.reshape(tensor(a), shape=(-1, 1)) * ops.reshape(tensor(b), shape=(1, -1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum over pairs of axes: a matrix product, the summed axes last in a and first in b."""
    a, b = tensor(a), tensor(b)
    try:
        left, right = axes
    except TypeError:
        left, right = range(a.ndim - axes, a.ndim), range(axes)
    left, right = axes_of(a, left), axes_of(b, right)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ValueError(
            f"np.tensordot of Tensors sums over axes {left} of shape {a.shape} and {right} of "
            f"shape {b.shape}; their sizes must be the same."
        )
    keep_a, keep_b = (
        tuple(i for i in range(x.ndim) if i not in s) for x, s in ((a, left), (b, right))
    )
    sizes_a, sizes_b = [a.shape[i] for i in keep_a], [b.shape[i] for i in keep_b]
    summed = math.prod(a.shape[i] for i in left)
    rows = ops.transpose(a, axes=keep_a + left).reshape(math.prod(sizes_a), summed)
    columns = ops.transpose(b, axes=right + keep_b).reshape(summed, math.prod(sizes_b))
    return ops.matmul(rows, columns).reshape(*sizes_a, *sizes_b)


def einsum(*arguments: Any, out: Any = None, **kwargs: Any) -> Any:
    """np.einsum, in either of its two spellings."""
    refuse("einsum", out=out, **kwargs)
    operands, labels, result = parse(arguments, np.ndim)
    return ops.einsum(*map(tensor, operands), labels=labels, result=result)


def kron(a: Any, b: Any) -> Any:
    """Every element of a times the whole of b, as blocks."""
    a, b = tensor(a), tensor(b)
    n = max(a.ndim, b.ndim)
    p, q = ((1,) * (n - x.ndim) + x.shape for x in (a, b))
    blocks = a.reshape([i for size in p for i in (size, 1)])
    blocks = blocks * b.reshape([i for size in q for i in (1, size)])
    return blocks.reshape([i * j for i, j in zip(p, q, strict=True)])


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """The vector product of vectors of three numbers."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _moveaxis(tensor(a), axisa, 0), _moveaxis(tensor(b), axisb, 0)
    if len(a) != 3 or len(b) != 3:
        raise ValueError(
            f"np.cross of Tensors takes vectors of three numbers, got {len(a)} and {len(b)}."
        )
    return _stack([a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axisc)


def _two_vectors(function: str, a: Any, v: Any, mode: str) -> Any:
    a, v = FUNCTIONS[np.atleast_1d](a, v)
    if a.ndim > 1 or v.ndim > 1 or not (a.size and v.size):
        raise ValueError(
            f"np.{function} takes two arrays of one axis, neither of them empty; got {describe(a)} "
            f"and {describe(v)}."
        )
    if mode not in ("full", "same", "valid"):
        raise ValueError(
            f"np.{function} of Tensors knows the modes 'full', 'same' or 'valid', not {mode!r}."
        )
    return a, v


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """y_n = sum over m of a_m v_(n - m)"""
    a, v = _two_vectors("convolve", a, v, mode)
    return ops.convolve(a, v, mode=mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """y_k = sum over n of a_(n + k) v_n"""
    a, v = _two_vectors("correlate", a, v, mode)
    if len(v) > len(a):  # As NumPy: the longer one decides where the middle of an even length is.
        return ops.flip(ops.convolve(v, ops.flip(a), mode=mode))
    return ops.convolve(a, ops.flip(v), mode=mode)


# ---- np.linalg


def _power(x: Any, p: float) -> Any:
    """x ** p for x >= 0, with slope 0 at 0, as torch.linalg.vector_norm.

    The rule of the power would multiply infinity by 0 there.
    """
    zero = plain(x) == 0
    if not zero.any():
        return ops.power(x, p)
    return ops.where(zero, 0 if p > 0 else math.inf, ops.power(ops.where(zero, 1, x), p))


@float16_in_float32
def _root_of_powers(x: Any, *, axis: Any, keepdims: bool, ord: Any) -> Any:
    return _power(ops.sum(_power(x, ord), axis=axis, keepdims=keepdims), 1 / ord)


def _largest(x: Any, axis: Any, keepdims: bool = False) -> Any:
    """The largest of numbers that are not negative; 0 where there is none, as an empty sum is."""
    return (ops.max if x.size else ops.sum)(x, axis=axis, keepdims=keepdims)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """(sum |x|^ord)^(1/ord); for ord 0 how many are not 0, for infinity the largest |x|."""
    if ord is None or ord == 2:
        return ops.l2_norm(x, axis=axis, keepdims=keepdims)
    if isinstance(ord, str):
        raise ValueError(
            f"a norm of vectors has a number as its ord, got {ord!r} for {describe(x)}; for "
            "matrices say axis=, two of them."
        )
    size = ops.absolute(x)
    if ord == math.inf:
        return _largest(size, axis, keepdims)
    if ord == -math.inf:
        return ops.min(size, axis=axis, keepdims=keepdims)
    if ord in (0, 1):
        if ord == 0:  # A constant, but recorded: its slope is 0.
            size = ops.where(True, (plain(size) != 0).astype(size.dtype), size)
        return ops.sum(size, axis=axis, keepdims=keepdims)
    return _root_of_powers(size, axis=axis, keepdims=keepdims, ord=ord)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """A norm of each matrix on the last two axes.

    Frobenius, nuclear, spectral (2, -2), or the largest sum of a column (1) or row (inf).
    """
    if ord in ("fro", None):
        return ops.l2_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord == "nuc":
        found = ops.sum(ops.singular_values(x), axis=-1)
    elif ord in (2, -2, 1, -1, math.inf, -math.inf):
        if abs(ord) == 2:
            sizes = ops.singular_values(x)
        else:
            sizes = ops.sum(ops.absolute(x), axis=-2 if abs(ord) == 1 else -1)
        found = _largest(sizes, -1) if ord > 0 else ops.min(sizes, axis=-1)
    else:
        raise ValueError(
            f"a matrix norm has ord 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}."
        )
    return found.reshape(*found.shape, 1, 1) if keepdims else found


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Of vectors along one axis, of matrices on two, or of all elements without axis and ord."""
    x = tensor(x)
    if axis is None and ord is None:
        return vector_norm(x, keepdims=keepdims)
    axes = axes_of(x, axis)
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], ord=ord, keepdims=keepdims)
    if len(axes) != 2:
        raise ValueError(
            "np.linalg.norm takes one axis or two: say axis=, that of the vectors or those of the "
            f"matrices in {describe(x)}."
        )
    found = matrix_norm(_moveaxis(x, axes, (-2, -1)), ord=ord)
    if not keepdims:
        return found
    return found.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


# What NumPy returns, with its names.
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
SVDResult = namedtuple("SVDResult", "U S Vh")
QRResult = namedtuple("QRResult", "Q R")


def slogdet(a: Any) -> Any:
    """Sign (a plain array) and logarithm of |det a|."""
    return np.linalg.slogdet(plain(a))._replace(logabsdet=ops.logabsdet(a))


def eigh(a: Any, UPLO: str = "L") -> EighResult:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    pairs = ops.eigh(a, uplo=UPLO)
    # The values alone have slopes where the vectors have none. LAPACK's way to them may refuse an
    # infinity, which the pairs take.
    found = ops.eigvalsh(a, uplo=UPLO) if np.isfinite(plain(a)).all() else pairs[..., 0]
    return EighResult(found, pairs[..., 1:].mT)


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Singular values, with their vectors unless compute_uv=False; `hermitian` changes nothing."""
    if not compute_uv:
        return ops.singular_values(a)
    m, n = a.shape[-2:]
    if full_matrices and m != n:
        raise TypeError(
            "np.linalg.svd of a Tensor that is not square needs full_matrices=False: the extra "
            "vectors are arbitrary, so they have no derivative."
        )
    triplets = ops.svd(a)
    return SVDResult(triplets[..., :m].mT, ops.singular_values(a), triplets[..., m + 1 :])


def qr(a: Any, mode: str = "reduced") -> Any:
    """a = Q R, Q with orthonormal columns and R upper triangular.

    (..., M, N) -> (..., M, K) and (..., K, N), K = min(M, N)
    """
    if a.ndim < 2:
        raise ValueError(f"np.linalg.qr takes matrices, got {describe(a)}.")
    m, n = a.shape[-2:]
    if mode not in ("reduced", "r") and not (mode == "complete" and m <= n):
        raise TypeError(
            "np.linalg.qr of a Tensor knows the modes 'reduced' and 'r': the further columns of Q "
            f"in 'complete' are arbitrary and have no derivative. Got {describe(a)} and "
            f"mode={mode!r}."
        )
    both = ops.qr(a[..., :m])  # The first m columns already give all of Q.
    q, r = both[..., :m, :], both[..., m:, :]
    if n > m:
        r = _concatenate([r, ops.matmul(q.mT, a[..., m:])], -1)
    return r if mode == "r" else QRResult(q, r)


def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Any, Any, int, Any]:
    """The x of least |a x - b|, the sums of squares left, the rank, and a's singular values."""
    a, b = tensor(a), tensor(b)
    if a.ndim != 2 or b.ndim not in (1, 2) or len(a) != len(b):
        raise ValueError(
            "np.linalg.lstsq takes a matrix, and a vector or matrix of as many rows; got "
            f"{describe(a)} and {describe(b)}."
        )
    (rows, columns), eps, kinds = a.shape, np.finfo(np.float64).eps, a.dtype.kind + b.dtype.kind
    dtype = np.result_type(a.dtype, b.dtype, *["f8"] * (kinds != "ff"))
    a, b = (cast(x, np.float64) for x in (a, b))  # NumPy computes float32 in float64, too.
    # What counts as zero beside the largest singular value; for rcond=-1 that is eps.
    least = eps * max(rows, columns) if rcond is None else max(plain(rcond), 0) or eps
    sizes = ops.singular_values(a)
    rank = int(np.count_nonzero(plain(sizes) > least * plain(sizes).max(initial=0)))
    x = ops.matmul(ops.pinv(a, rtol=float(least)), b)
    left = ops.matmul(a, x) - b if rank == columns < rows else np.empty((1, 0), b.dtype)
    left = ops.sum(left * left, axis=0)
    x, left, sizes = (cast(y, dtype) for y in (x, left if left.ndim else left.reshape(1), sizes))
    return x, left, rank, sizes


def cond(x: Any, p: Any = None) -> Any:
    """The largest singular value divided by the smallest, or norm(x) norm(x^-1) with a norm p."""
    if 0 in x.shape[-2:]:
        raise ValueError(f"np.linalg.cond of {describe(x)}: an empty matrix has none.")
    if p in (None, 2, -2):
        sizes = ops.singular_values(x)
        found = sizes[..., -1] / sizes[..., 0] if p == -2 else sizes[..., 0] / sizes[..., -1]
        # Of a zero matrix the quotient is 0 / 0.
        zeros = np.isnan(plain(found)) & ~np.isnan(plain(x)).any((-2, -1))
        return ops.where(zeros, math.inf, found)
    return matrix_norm(x, ord=p) * matrix_norm(ops.inv(x), ord=p)


def _times_itself(a: Any, n: int) -> Any:
    """a^n for n > 0, by squaring: a^13 = (a^6)^2 a."""
    if n == 1:
        return a
    half = _times_itself(a, n // 2)
    square = ops.matmul(half, half)
    return ops.matmul(square, a) if n % 2 else square


def matrix_power(a: Any, n: int) -> Any:
    """a times itself n times; the inverse for negative n."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"np.linalg.matrix_power takes square matrices, got {describe(a)}.")
    if not isinstance(n, (int, np.integer)):
        raise TypeError(
            f"np.linalg.matrix_power takes a whole number as the power, got {describe(n)}."
        )
    if n == 0:  # Of a's shape, and with slope 0.
        return ops.where(True, np.eye(a.shape[-1], dtype=a.dtype), a)
    return _times_itself(ops.inv(a) if n < 0 else a, abs(n))


@rule(np.linalg.multi_dot)
def multi_dot(arrays: Any) -> Any:
    """The product of all, bracketed for the fewest multiplications; vectors at the ends."""
    arrays = list(arrays)
    shapes = [np.shape(x) for x in arrays]
    if len(arrays) < 2 or any(
        len(shape) not in ((1, 2) if i in (0, len(arrays) - 1) else (2,))
        for i, shape in enumerate(shapes)
    ):
        raise ValueError(
            "np.linalg.multi_dot takes two or more matrices, of which the first and the last may "
            f"be vectors; got {', '.join(map(describe, arrays)) or 'nothing'}."
        )
    rows = [shape[0] if i or len(shape) == 2 else 1 for i, shape in enumerate(shapes)]
    return _bracketed(arrays, _cuts((*rows, (*shapes[-1], 1)[1])), 0, len(arrays))


def _cuts(sizes: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """For each i < j where the product of the matrices i to j - 1 is cut for its last product.

    Matrix i has sizes[i] rows and sizes[i + 1] columns.
    """
    n = len(sizes) - 1
    cost, cuts = {(i, i + 1): 0 for i in range(n)}, {}
    for length in range(2, n + 1):
        for i in range(n + 1 - length):
            j = i + length
            cost[i, j], cuts[i, j] = min(
                (cost[i, k] + cost[k, j] + sizes[i] * sizes[k] * sizes[j], k)
                for k in range(i + 1, j)
            )
    return cuts


def _bracketed(arrays: list[Any], cuts: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if j - i == 1:
        return arrays[i]
    k = cuts[i, j]
    return dot(_bracketed(arrays, cuts, i, k), _bracketed(arrays, cuts, k, j))


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """The triangular factor of a symmetric positive definite matrix."""
    return ops.cholesky(ops.swapaxes(a, a=-1, b=-2)).mT if upper else ops.cholesky(a)


@rule(np.linalg.pinv)
def pinv(a: Any) -> Any:
    """The pseudo-inverse, with NumPy's own tolerance. Another, by rcond or rtol, is refused."""
    return ops.pinv(a)


_PRODUCTS = (dot, inner, vdot, tensordot, einsum, kron, cross, convolve, correlate)
_OF_MATRICES = (
    *(norm, vector_norm, matrix_norm, slogdet, cond, matrix_power, cholesky),
    *(eigh, svd, qr, lstsq, ops.inv, ops.det, ops.matmul),
)
FUNCTIONS |= {
    **{getattr(np, f.__name__): f for f in _PRODUCTS},
    **{getattr(np.linalg, f.__name__): f for f in _OF_MATRICES},
    np.linalg.solve: lambda a, b: ops.solve(tensor(a), tensor(b)),
    np.linalg.eigvalsh: lambda a, UPLO="L": ops.eigvalsh(a, uplo=UPLO),
    np.linalg.svdvals: lambda x, /: ops.singular_values(x),
    np.linalg.tensordot: lambda x1, x2, /, *, axes=2: tensordot(x1, x2, axes),
    np.linalg.outer: lambda x1, x2, /: outer(x1, x2),
    np.linalg.vecdot: lambda x1, x2, /, *, axis=-1: vecdot(x1, x2, axis),
    np.linalg.cross: lambda x1, x2, /, *, axis=-1: cross(x1, x2, axis=axis),
}
