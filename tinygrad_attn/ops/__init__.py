"""The primitives, each with its partial derivatives under it: the package's table of derivatives."""

from ..engine import Op
from . import elementwise, trigonometric
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

# An elementwise op on operands of one shape and dtype has a result of both, and so has what each of its rules makes of them.
for _op in [*vars(elementwise).values(), *vars(trigonometric).values()]:
    if isinstance(_op, Op) and not _op._special:
        _op.exact = _op.partials
del _op
