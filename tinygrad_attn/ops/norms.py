"""Lengths of vectors."""

from __future__ import annotations

import numpy as np

from ..engine import op
from .reductions import kept, values


def divisor(length):
    """The length, or 1 where it is 0: x / divisor(length of x) is 0 for x = 0."""
    zero = values(length) == 0
    return np.where(zero, 1, length) if zero.any() else length


@op
def l2_norm(x, *, axis=None, keepdims=False):
    """y = sqrt(sum of x^2), with slope 0 at the zero vector, as torch.linalg.vector_norm."""
    return np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))


l2_norm.vjp(lambda g, y, x, *, axis, keepdims: kept(g, x, axis) * x / divisor(kept(y, x, axis)))
