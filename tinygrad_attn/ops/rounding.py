"""Ops that are constant between jumps: rounding and sign. Their derivative is zero wherever it
exists, and zero at the jumps too.
"""

from __future__ import annotations

import numpy as np

from ..engine import op


def _zero(g, y, x, **static):
    return np.zeros(x.shape, x.dtype)


@op
def floor(x):
    """y = the largest whole number <= x."""
    return np.floor(x)


@op
def ceil(x):
    """y = the smallest whole number >= x."""
    return np.ceil(x)


@op
def trunc(x):
    """y = x without its fraction."""
    return np.trunc(x)


@op
def round(x, *, decimals=0):
    """y = x to so many decimals; halves go to the even neighbour."""
    return np.round(x, decimals)


@op
def sign(x):
    """y = -1, 0 or 1."""
    return np.sign(x)


@op(broadcasts=True)
def copysign(a, b):
    """y = |a| with the sign of b"""
    return np.copysign(a, b)


floor.vjp(_zero)
ceil.vjp(_zero)
trunc.vjp(_zero)
round.vjp(_zero)
sign.vjp(_zero)
copysign.vjp(lambda g, y, a, b: g * (np.sign(y) * np.sign(a)), lambda g, y, a, b: np.zeros_like(y))
