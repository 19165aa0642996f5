"""Ops that only copy elements to other places.

Whatever NumPy function does the copying, apply it to the positions 0, 1, 2, ... instead of the
values: the result says where each element of the outcome came from, so the function is one indexing
and its adjoint is the one of indexing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import array_of, op
from .indexing import getitem, take_along_axis
from .shapes import reshape


def arranged(function: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
    """`function(x, ...)` for a NumPy function that copies elements (tile, repeat, rot90, delete,
    ...), differentiable.
    """
    shape = np.shape(array_of(x))
    places = function(np.arange(math.prod(shape)).reshape(shape), *args, **kwargs)
    return getitem(reshape(x, shape=(-1,)), index=places)


@op
def pad(x, *, width, value=0):
    """x with `value` around it: `width` is a pair (before, after) for each axis."""
    return np.pad(x, width, constant_values=value) if x.ndim else x.copy()


pad.vjp(
    lambda g, y, x, *, width, value: g[
        tuple(slice(before, before + n) for (before, _), n in zip(width, x.shape, strict=True))
    ]
)


def sort(x: Any, axis: int | None = -1) -> Any:
    """The elements in rising order; each gradient goes back to where its element came from."""
    return take_along_axis(x, indices=np.argsort(array_of(x), axis, kind="stable"), axis=axis)


def partition(x: Any, kth: Any, axis: int | None = -1) -> Any:
    """The kth element in its sorted place, smaller ones before it and larger ones after it."""
    return take_along_axis(x, indices=np.argpartition(array_of(x), kth, axis), axis=axis)
