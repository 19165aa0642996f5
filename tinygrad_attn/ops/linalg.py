"""Matrix inverses, determinants and factorisations over the last two axes.

An op has one output, so a factorisation packs its parts into one array. Each row of `eigh`'s output
is an eigenvalue followed by its eigenvector. Each row of `svd`'s output is a left singular vector,
its singular value and the right singular vector.

Sources: M. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008); J. Townsend, "Differentiating the singular value decomposition"
(2016); and for the pseudo-inverse, G. Golub and V. Pereyra, SIAM J. Numer. Anal. 10 (1973).
"""

import numpy as np

from ..engine import op
from .shapes import tril, triu


def _column(v):
    """(..., N) -> (..., N, 1)"""
    return v.reshape(*v.shape, 1)


def _row(v):
    """(..., N) -> (..., 1, N)"""
    return v.reshape(*v.shape[:-1], 1, v.shape[-1])


def _identity(x):
    """Return the identity matrix of the size of x's last axis, in x's dtype."""
    return np.eye(x.shape[-1], dtype=x.dtype)


inv = op(np.linalg.inv, lambda g, y, _a: -(y.mT @ g @ y.mT))


def _solve_by_right(g, _y, a, b):
    """Return a^-T g; if b is a single vector, g consists of one or more vectors."""
    return solve(a.mT, _column(g)).reshape(g.shape) if b.ndim == 1 else solve(a.mT, g)


def _solve_by_matrix(g, y, a, b):
    back = _solve_by_right(g, y, a, b)
    return -(_column(back) @ _row(y)) if b.ndim == 1 else -(back @ y.mT)


solve = op(np.linalg.solve, _solve_by_matrix, _solve_by_right, broadcasts=True)


@op
def logabsdet(a):
    """y = log |det a|"""
    return np.linalg.slogdet(a)[1]


# A singular matrix raises LinAlgError here.
det = op(np.linalg.det, lambda g, y, a: (g * y)[..., None, None] * inv(a).mT)
logabsdet.vjp(lambda g, _y, a: g[..., None, None] * inv(a).mT)


@op
def pinv(a):
    """y = the Moore-Penrose inverse a^+: (..., M, N) -> (..., N, M)

    The VJP assumes that the rank of a stays constant. Singular values up to 1e-15 times the largest
    count as zero. There is no `rtol` because a larger cutoff would need a different derivative.
    """
    return np.linalg.pinv(a)


@pinv.vjp
def _pinv_vjp(g, y, a):
    m, n = a.shape[-2:]
    yt, gt = y.mT, g.mT
    outside_columns = np.eye(m, dtype=a.dtype) - a @ y
    outside_rows = np.eye(n, dtype=a.dtype) - y @ a
    return -(yt @ g @ yt) + outside_columns @ gt @ y @ yt + yt @ y @ gt @ outside_rows


def _half_diagonal(x):
    return x * (1 - 0.5 * _identity(x))


def _one_triangle(s, uplo="L"):
    """Fold the gradient s of a symmetric matrix into the triangle that the op reads."""
    return _half_diagonal((tril if uplo in "Ll" else triu)(s + s.mT))


@op
def cholesky(a):
    """The lower triangular matrix y with y y^T = a.

    As in NumPy, only the lower triangle of a is read, so only that triangle gets a gradient.
    """
    return np.linalg.cholesky(a)


@cholesky.vjp
def _cholesky_vjp(g, y, _a):
    half = _half_diagonal(tril(y.mT @ g))
    return _one_triangle(solve(y.mT, solve(y.mT, half.mT).mT))  # of y^-T half y^-1


@op
def eigh(a, *, uplo="L"):
    """Row i of y is eigenvalue i, then its eigenvector: (..., N, N) -> (..., N, 1 + N).

    Eigenvalues are in ascending order, and only one triangle of a is read. An eigenvector has a
    derivative only if its eigenvalue is not repeated.
    """
    w, vectors = np.linalg.eigh(a, uplo)
    return np.concatenate([_column(w), vectors.mT], axis=-1)


@op
def eigvalsh(a, *, uplo="L"):
    """y = the eigenvalues in ascending order, from one triangle of a: (..., N, N) -> (..., N)

    The gradient is correct even for repeated eigenvalues if the loss ignores their order.
    """
    return np.linalg.eigvalsh(a, uplo)


def _one_over_gaps(w):
    """Return the matrix with 1 / (w_j - w_i) at [i, j] and zeros on the diagonal."""
    same = _identity(w)
    return (1 - same) / (_row(w) - _column(w) + same)


@eigh.vjp
def _eigh_vjp(g, y, _a, *, uplo):
    w, v = y[..., 0], y[..., 1:].mT
    gw, gv = g[..., 0], g[..., 1:].mT
    middle = _identity(w) * _row(gw) + _one_over_gaps(w) * (v.mT @ gv)
    return _one_triangle(v @ middle @ v.mT, uplo)


@eigvalsh.vjp
def _eigvalsh_vjp(g, _y, a, *, uplo):
    v = eigh(a, uplo=uplo)[..., 1:].mT
    return _one_triangle((v * _row(g)) @ v.mT, uplo)


@op
def svd(a):
    """Row i of y is left singular vector i, singular value i and right singular vector i.

    (..., M, N) -> (..., min(M, N), M + 1 + N), with the largest singular value first. A singular
    vector has a derivative only if its singular value is nonzero and not repeated.
    """
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return np.concatenate([u.mT, _column(s), vh], axis=-1)


@op
def singular_values(a):
    """y = the singular values in descending order: (..., M, N) -> (..., K)"""
    return np.linalg.svd(a, compute_uv=False)


@svd.vjp
def _svd_vjp(g, y, a):
    m, n = a.shape[-2:]
    ut, s, vt = y[..., :m], y[..., m], y[..., m + 1 :]
    gut, gs, gvt = g[..., :m], g[..., m], g[..., m + 1 :]
    u = ut.mT
    gaps = _one_over_gaps(s * s)
    by_u, by_v = ut @ gut.mT, vt @ gvt.mT
    inside = (gaps * (by_u - by_u.mT)) * _row(s) + _column(s) * (gaps * (by_v - by_v.mT))
    inside = inside + _identity(s) * _row(gs)
    part = u @ inside @ vt
    if m > n:  # the part of the longer vectors' gradients outside their span
        part = part + (gut.mT - u @ by_u) / _row(s) @ vt
    if n > m:
        part = part + u @ ((gvt - by_v.mT @ vt) / _column(s))
    return part


@singular_values.vjp
def _singular_values_vjp(g, _y, a):
    m = a.shape[-2]
    triplets = svd(a)
    return triplets[..., :m].mT @ (_column(g) * triplets[..., m + 1 :])


@op
def qr(a):
    """y = Q stacked on top of R, where a = Q R and N <= M: (..., M, N) -> (..., M + N, N)

    The columns of Q = y[..., :M, :] are orthonormal; R = y[..., M:, :] is upper triangular.
    """
    return np.concatenate(np.linalg.qr(a), axis=-2)


@qr.vjp
def _qr_vjp(g, y, a):
    m = a.shape[-2]
    q, r, gq, gr = y[..., :m, :], y[..., m:, :], g[..., :m, :], g[..., m:, :]
    low = _half_diagonal(tril(r @ gr.mT - gq.mT @ q))
    return solve(r, (gq + q @ (low + low.mT)).mT).mT  # (...) R^-T
