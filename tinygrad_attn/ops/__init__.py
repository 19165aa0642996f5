"""The table of derivatives: every primitive, and under it its rules."""

from .arranging import arranged, pad, partition, sort
from .decompositions import (
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
from .einsum import einsum
from .elementwise import *  # noqa: F403
from .indexing import embedding, embedding_backward, getitem, scatter, take_along_axis
from .products import matmul
from .reductions import cumprod, cumsum, l2_norm, max, mean, min, prod, std, sum, var
from .rounding import ceil, copysign, floor, round, sign, trunc
from .shapes import (
    astype,
    broadcast_to,
    clone,
    concatenate,
    flip,
    reshape,
    roll,
    stack,
    swapaxes,
    transpose,
    tril,
    triu,
)
from .trigonometric import *  # noqa: F403
from .windows import convolve, overlapped, windows
