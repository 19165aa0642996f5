"""The table of derivatives: all primitive ops, each followed by its VJPs."""

import numpy as np

from ..engine import Op
from .elementwise import *  # noqa: F403
from .linalg import (
    cholesky,
    det,
    eigh,
    eigvalsh,
    inv,
    logabsdet,
    pinv,
    qr,
    singular_values,
    solve,
    svd,
)
from .products import einsum, matmul
from .reductions import cumprod, cumsum, l2_norm, max, mean, min, prod, std, sum, var
from .shapes import (
    astype,
    broadcast_to,
    clone,
    concatenate,
    embedding,
    embedding_backward,
    flip,
    getitem,
    overlapped,
    pad,
    partition,
    reshape,
    scatter,
    sort,
    stack,
    swapaxes,
    take_along_axis,
    transpose,
    tril,
    triu,
    windows,
)

UFUNCS: dict[np.ufunc, Op] = {
    getattr(np, name): op
    for name, op in list(globals().items())
    if isinstance(op, Op) and isinstance(getattr(np, name, None), np.ufunc)
}
"""Maps each NumPy ufunc to the op that computes and differentiates it."""
