"""Trigonometric and hyperbolic ops, each with its derivative under it."""

from __future__ import annotations

import numpy as np

from ..engine import array_of, op


@op
def sin(x):
    """y = sin x"""
    return np.sin(x)


sin.vjp(lambda g, y, x: g * np.cos(x))


@op
def cos(x):
    """y = cos x"""
    return np.cos(x)


cos.vjp(lambda g, y, x: -g * np.sin(x))


@op
def tan(x):
    """y = tan x"""
    return np.tan(x)


tan.vjp(lambda g, y, x: g * (1 + y * y))


@op
def arcsin(x):
    """y = arcsin x"""
    return np.arcsin(x)


arcsin.vjp(lambda g, y, x: g / np.sqrt(1 - x * x))


@op
def arccos(x):
    """y = arccos x"""
    return np.arccos(x)


arccos.vjp(lambda g, y, x: -g / np.sqrt(1 - x * x))


@op
def arctan(x):
    """y = arctan x"""
    return np.arctan(x)


arctan.vjp(lambda g, y, x: g / (1 + x * x))


@op(broadcasts=True)
def arctan2(a, b):
    """y = the angle of the point (b, a), with slope 0 at the origin as PyTorch."""
    return np.arctan2(a, b)


def _over_square(x, a, b):
    """x / (a^2 + b^2); by the root where the squares are too large or too small for their dtype,
    long before the quotient is.
    """
    with np.errstate(over="ignore"):
        square = a * a + b * b
    size = array_of(square)
    if size.size and np.finfo(size.dtype).tiny < size.min() and size.max() < np.inf:
        return x / square
    origin = (a == 0) & (b == 0)
    # x / inf is 0, and so is its slope
    r = (
        np.where(origin, np.inf, np.hypot(a, np.where(origin, 1, b)))
        if origin.any()
        else np.hypot(a, b)
    )
    return x / r / r


arctan2.vjp(
    lambda g, y, a, b: g * _over_square(b, a, b), lambda g, y, a, b: -g * _over_square(a, a, b)
)


@op(broadcasts=True)
def hypot(a, b):
    """y = sqrt(a^2 + b^2)"""
    return np.hypot(a, b)


hypot.vjp(lambda g, y, a, b: g * (a / y), lambda g, y, a, b: g * (b / y))


@op
def sinh(x):
    """y = sinh x"""
    return np.sinh(x)


sinh.vjp(lambda g, y, x: g * np.cosh(x))


@op
def cosh(x):
    """y = cosh x"""
    return np.cosh(x)


cosh.vjp(lambda g, y, x: g * np.sinh(x))


@op
def tanh(x):
    """y = tanh x"""
    return np.tanh(x)


tanh.vjp(lambda g, y, x: g - g * y * y)


@op
def arcsinh(x):
    """y = arsinh x"""
    return np.arcsinh(x)


arcsinh.vjp(lambda g, y, x: g / np.sqrt(x * x + 1))


@op
def arccosh(x):
    """y = arcosh x"""
    return np.arccosh(x)


arccosh.vjp(lambda g, y, x: g / np.sqrt(x * x - 1))


@op
def arctanh(x):
    """y = artanh x"""
    return np.arctanh(x)


arctanh.vjp(lambda g, y, x: g / (1 - x * x))
