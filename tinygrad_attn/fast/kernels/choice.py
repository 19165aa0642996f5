"""Choosing number by number without asking each: ReLU, and `where`.

NumPy's `where` looks at one element of the condition after the other, and where that is random, as
in x > 0, the processor guesses wrong half the time: 3.5 ns a number. The bits of a number, read as
an integer and multiplied by 1 or 0, are that number or 0 (the product of numbers themselves would
be NaN for an infinite one), and what was chosen from two arrays can be joined bit by bit: 0.5 ns.
ReLU, max(x, 0), is one more such choice on the way back; on the way forward x is compared with an
array of zeros, since NumPy finds the maximum of two arrays five times as fast as that of an array
and a number. Large arrays go block by block and to several threads. Of few numbers all this takes
longer than `where`; and a 0 of Python's, which NumPy must first look at, as long as the rest of a
call.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from .rows import SHARED, by_elements

FEW = 256  # elements, up to which calls count, not numbers
SMALL = 1 << 14  # elements, up to which one call for all of them is soonest done
MANY = 1 << 13  # elements, from where `where` takes longer than several products
BITS = {
    np.dtype(f"f{n}"): np.dtype(f"i{n}") for n in (2, 4, 8)
}  # the integer as long as each floating dtype
ZERO = {dtype: np.zeros((), dtype) for dtype in BITS}


def chosen(g: ndarray, where: ndarray, out: ndarray | None = None) -> ndarray:
    """g where `where` (boolean) holds, else 0; g is float16, float32 or float64, and both
    broadcast.
    """
    if g.size <= FEW and out is None:
        return np.where(where, g, ZERO[g.dtype])
    bits = BITS[g.dtype]
    return np.multiply(g.view(bits), where, out=None if out is None else out.view(bits)).view(
        g.dtype
    )


def where(condition: Any, a: Any, b: Any) -> Any:
    """np.where(condition, a, b), of Tensors too; by bits where there are many and a or b is an
    array of floats.
    """
    like = a if isinstance(a, ndarray) else b
    if (
        not (isinstance(like, ndarray) and isinstance(condition, ndarray))
        or max(like.size, condition.size) < MANY
    ):
        return np.where(condition, a, b)
    if condition.dtype != bool or like.dtype not in BITS or not like.ndim:
        return np.where(condition, a, b)
    a, b = (np.asarray(x, like.dtype) if x.__class__ in (int, float, bool) else x for x in (a, b))
    if not all(isinstance(x, (ndarray, np.generic)) and x.dtype == like.dtype for x in (a, b)):
        return np.where(condition, a, b)
    bits = BITS[like.dtype]
    found = [
        chosen(x, taken).view(bits)
        for x, taken in ((a, condition), (b, ~condition))
        if x.ndim or x.view(bits)
    ]  # 0 adds nothing
    return (found[0] if len(found) == 1 else np.bitwise_or(*found)).view(like.dtype)


@lru_cache(maxsize=16)
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> ndarray:
    return np.zeros(shape, dtype)


def relu(x: ndarray) -> ndarray:
    """max(x, 0); NaN stays NaN."""
    if x.size <= SMALL:
        return np.maximum(
            x, ZERO[x.dtype] if x.size <= FEW and x.dtype in ZERO else _zeros(x.shape, x.dtype)
        )
    zeros = _zeros((SHARED,), x.dtype)
    return by_elements(lambda x, y: np.maximum(x, zeros[: x.size], out=y), x)[0]


def relu_backward(g: ndarray, y: ndarray) -> ndarray:
    """g where y = relu(x) is not 0, else 0; where x is NaN it is g, as in PyTorch."""
    zero = ZERO[y.dtype]
    if y.size <= SMALL:
        return chosen(g, y != zero)
    return by_elements(lambda g, y, dx: chosen(g, y != zero, out=dx), g, y)[0]
