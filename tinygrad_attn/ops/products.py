"""Products that sum over shared axes."""

from __future__ import annotations

import math

from ..engine import op


@op(broadcasts=True)
def matmul(a, b):
    """y = a @ b: (..., M, K), (..., K, N) -> (..., M, N); 1-D operands as NumPy's."""
    return a @ b


def _rows(x):
    """All leading axes folded into one: (..., N) -> (R, N)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _matmul_by_left(g, y, a, b):
    if b.ndim == 1:
        return g.reshape(*g.shape, 1) * b
    if a.ndim == 1:
        left = g.reshape(*g.shape[:-1], 1, g.shape[-1]) @ b.mT
        return left.reshape(*left.shape[:-2], left.shape[-1])
    return g @ b.mT


def _matmul_by_right(g, y, a, b):
    if a.ndim == 1:
        if b.ndim == 1:
            return g * a
        a, g = a.reshape(1, -1), g.reshape(*g.shape[:-1], 1, g.shape[-1])  # a row vector
    if b.ndim == 1:
        return (_rows(a).mT @ g.reshape(-1, 1)).reshape(b.shape)
    if b.ndim == 2:  # one matrix for all rows: fold them, and the product sums over them
        return _rows(a).mT @ _rows(g)
    return a.mT @ g


matmul.vjp(_matmul_by_left, _matmul_by_right)
