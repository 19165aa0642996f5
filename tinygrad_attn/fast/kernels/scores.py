"""What both attention kernels share: who may look at whom, and an exponential that rarely needs the
row maximum.

A softmax subtracts the largest score of each row so that no exponential overflows. That costs two
passes over T x S numbers and almost never matters, because scores are small. So the kernels are
optimistic: they take exponentials as the scores come, look at the row sums (which they need
anyway), and only if a sum has left [1e-15, 1e15] do they go back and subtract the maximum. In
float32 the exponential may be 2^x (see `exponentials`), with log2(e) folded into the scale. A
boolean mask multiplies the exponentials by 0 or 1; a float mask is added to the scores, where -inf
is slow in 2^x, so then e^x it is.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from .exponentials import EXP, UNIT

LOW, HIGH = 1e-15, 1e15
SUMMED = (
    512  # numbers in a row, from where a product with ones rounds equal ones to one side too often
)
# elements of what is kept for the next call: a triangle of one block of either kernel, not of all
# T x S scores, and no vector as long as a data set, which would stay when that is gone
KEPT = 1 << 19
QUIET: dict[str, Any] = dict.fromkeys(
    ("over", "under", "invalid", "divide"), "ignore"
)  # no warnings: the sums show what went wrong
_ALL = slice(None)


class Mask:
    """Which scores count and what is added to them, for any block of a (..., T, S) matrix that is
    never built.
    """

    def __init__(self, mask: ndarray | None, causal: bool, shape: tuple[int, ...], dtype: np.dtype):
        self.causal, self.keep, self.bias = causal, None, None
        if mask is not None and mask.dtype == bool:
            small = (
                mask.size <= 1 << 16
            )  # multiplying by floats is faster, a copy of T x S floats is not
            self.keep = np.broadcast_to(mask.astype(dtype) if small else mask, shape)
        elif mask is not None:
            self.bias = np.broadcast_to(mask.astype(dtype, copy=False), shape)
        self.multiplies = causal or self.keep is not None
        self.dtype = dtype
        self.exp, self.unit = (
            (EXP, UNIT) if dtype == np.float32 and self.bias is None else (np.exp, 1.0)
        )

    def add(self, scores: ndarray, at: tuple, rows: slice = _ALL, columns: slice = _ALL) -> None:
        """Scores become scores + float mask, in place."""
        if self.bias is not None:
            scores += self.bias[(*at, rows, columns)]

    def multiply(
        self, weights: ndarray, at: tuple, rows: slice = _ALL, columns: slice = _ALL
    ) -> None:
        """Weights of keys that may not be looked at become 0, in place."""
        if self.keep is not None:
            weights *= self.keep[(*at, rows, columns)]
        if self.causal:
            first = (
                (rows.start or 0) - (columns.start or 0) + 1
            )  # the first column hidden from the first row
            hidden = weights[..., first:]
            if hidden.shape[-1]:
                triangle = (
                    _below_diagonal
                    if hidden.shape[-2] * hidden.shape[-1] <= KEPT
                    else _below_diagonal.__wrapped__
                )
                hidden *= triangle(*hidden.shape[-2:], self.dtype)

    def seen(self, at: tuple, rows: slice, columns: slice) -> slice:
        """The columns up to the last one that a boolean mask shows to these rows: a third of a
        batch may be padding.
        """
        if self.keep is None:
            return columns
        block = self.keep[(*at, rows, columns)]
        if block.strides[0] != 0:  # not the same keys for every row
            return columns if block.any() else slice(columns.start, columns.start)
        shown = block[0].nonzero()[0]
        return slice(columns.start, columns.start + (int(shown[-1]) + 1 if shown.size else 0))

    def hide(self, scores: ndarray, at: tuple, rows: slice = _ALL, columns: slice = _ALL) -> None:
        """Scores of keys that may not be looked at become -inf, in place: what `multiply` does,
        before the exponential.
        """
        if self.multiplies:
            seen = np.ones_like(scores)
            self.multiply(seen, at, rows, columns)
            np.copyto(scores, -np.inf, where=seen == 0)


@lru_cache(maxsize=4)
def _below_diagonal(rows: int, columns: int, dtype: np.dtype) -> ndarray:
    return np.tri(rows, columns, -1, dtype=dtype)


@lru_cache(maxsize=32)
def _filled(n: int, value: float, dtype: np.dtype) -> ndarray:
    return np.full(n, value, dtype)


def ones(n: int, dtype: np.dtype) -> ndarray:
    """A vector of ones: x @ ones(n) is the fastest sum over the last axis, ones(n) @ x over the
    first.
    """
    return _filled(n, 1, dtype) if n <= KEPT else np.ones(n, dtype)


def averaging(n: int, dtype: np.dtype) -> ndarray:
    """A vector of 1/n: x @ averaging(n) is the fastest mean over the last axis."""
    return _filled(n, 1 / n, dtype) if n <= KEPT else np.full(n, 1 / n, dtype)


def in_range(total: ndarray, unmasked: ndarray) -> bool:
    """May sums of unshifted exponentials be trusted? NaN answers no. The sum before masking bounds
    every single weight.
    """
    return smallest(total) > LOW and largest(unmasked) < HIGH


def smallest(x: ndarray) -> float:
    """The least number of x, NaN if there is one: by way of its place, which takes NumPy a third of
    the time.
    """
    return x.item(x.argmin())


def largest(x: ndarray) -> float:
    """The largest number of x, likewise."""
    return x.item(x.argmax())


def row_maximum(scores: ndarray) -> ndarray:
    """The largest score of each row; 0 for a row of -inf, whose exponentials then are 0 and not
    NaN.
    """
    top = scores.max(-1, keepdims=True)
    top[top == -np.inf] = 0
    return top


def scaled(x: ndarray, factor: float) -> ndarray:
    """A fresh contiguous x * factor of the same dtype."""
    return np.multiply(x, x.dtype.type(factor), order="C")


def transposed(x: ndarray) -> ndarray:
    """x^T copied to lie contiguous, which makes a product with it from the right faster."""
    return np.ascontiguousarray(x.swapaxes(-1, -2))


def accumulate(
    total: ndarray, part: ndarray, at: tuple, rows: slice = _ALL, columns: slice = _ALL
) -> None:
    """Add the gradient of one block of scores to the gradient of a mask that was broadcast over
    some axes.
    """
    index = tuple(
        s if n > 1 else _ALL for s, n in zip((*at, rows, columns), total.shape, strict=True)
    )
    target = total[index]
    axes = tuple(i for i, n in enumerate(target.shape) if n == 1)
    target += part.sum(axis=axes, keepdims=True) if axes else part
