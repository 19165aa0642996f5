"""Lengths of vectors."""

from __future__ import annotations

import numpy as np

from ..engine import op
from .reductions import divisor, kept


@op
def l2_norm(x, *, axis=None, keepdims=False):
    """y = sqrt(sum of x^2), with slope 0 at the zero vector, as torch.linalg.vector_norm."""
    half = x.dtype == np.float16                     # where 300^2 is infinite, and (1e-4)^2 is 0
    wide = x.astype(np.float32) if half else x
    y = np.sqrt((wide * wide).sum(axis=axis, keepdims=keepdims))
    return y.astype(np.float16) if half else y


l2_norm.vjp(lambda g, y, x, *, axis, keepdims: kept(g, x, axis) * (x / divisor(kept(y, x, axis))))
