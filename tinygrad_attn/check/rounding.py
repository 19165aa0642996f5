"""Measure how far rounding may move a result: Monte Carlo arithmetic.

A reference runs in float64, and the result of each NumPy function is moved by one random rounding
error of the precision in question. How far the results of a few such runs lie apart is how much
rounding alone explains. Inside a sum, the errors are those of float32, because kernels are expected
to accumulate in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .report import Array, largest_finite

SAMPLES = 4
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
LARGEST = {"float64": 1e308, "float32": 3e38, "float16": 65504.0, "bfloat16": 3e38}
EXACT = {
    np.maximum, np.minimum, np.fmax, np.fmin, np.negative, np.positive, np.absolute, np.sign,
    np.conjugate, np.floor, np.ceil, np.rint, np.trunc,
}  # fmt: skip
SUMS_OF_PRODUCTS: tuple[Any, ...] = (np.einsum, np.dot, np.tensordot, np.inner, np.convolve)


class Rounding:
    """The random rounding errors of a precision."""

    def __init__(self, dtype: str, rng: np.random.Generator) -> None:
        self.dtype, self.unit, self.tiny, self.rng = dtype, UNIT[dtype], TINY[dtype], rng
        self.of_sums = min(self.unit, UNIT["float32"])

    def moved(self, y: Array, size=0.0) -> Array:
        """Move the result of a function, or a sum whose terms have this size."""
        error = self.unit * np.abs(y) + self.of_sums * size + self.tiny
        error = error * (2 * self.rng.random(y.shape, np.float32) - 1)
        return np.where(np.isfinite(y), y + error, y)

    def rounded(self, x: Array) -> Rounded:
        """Return an array whose results are moved."""
        y = np.asarray(x).view(Rounded)
        y.rounding = self
        return y


class Rounded(np.ndarray):
    """An array that moves each result of a NumPy function by a rounding error."""

    rounding: Rounding
    cancelled: Any = 0.0  # the size of the terms of a sum or difference,
    again: Array | None = None  # of exp, and its result for a score with other errors
    __class__ = property(lambda self: Array)  # for the sweep, which fits shapes

    def __array_finalize__(self, origin) -> None:
        if isinstance(origin, Rounded):
            self.rounding = origin.rounding

    def __array_ufunc__(self, ufunc, method: str, *inputs, out=None, **options):
        rounded = [x for x in (*inputs, *(out or ())) if isinstance(x, Rounded)]
        rounding, arrays = rounded[0].rounding, [bare(x) for x in inputs]
        if out:
            options["out"] = tuple(map(bare, out))
        y = getattr(ufunc, method)(*arrays, **options)
        if not isinstance(y, (Array, np.floating)) or y.dtype.kind != "f":
            return y
        size: Any = 0.0
        again = getattr(inputs[0], "again", None)
        if ufunc is np.add and method == "reduce" and again is not None:
            y = ufunc.reduce(again, **options)  # a kernel computes its logsumexp elsewhere
        if ufunc in (np.add, np.subtract) and method == "__call__":
            size = 4 * np.add(*map(magnitude, arrays))  # where another formula adds several terms
        elif ufunc in (np.add, np.matmul):
            terms = arrays[0].size / max(1, y.size) if method == "reduce" else arrays[0].shape[-1]
            options.pop("out", None)
            size = np.sqrt(terms) * getattr(ufunc, method)(*map(magnitude, arrays), **options)
        if ufunc not in EXACT:
            moved = rounding.moved(np.asarray(y), size)
            if out:
                out[0][...] = moved
            y = moved
        if out:
            return out[0]
        y = rounding.rounded(y)
        y.cancelled = size
        if ufunc is np.exp:
            error = rounding.moved(np.zeros(y.shape), getattr(inputs[0], "cancelled", 0.0))
            y.again = np.exp(arrays[0] + error)
        return y

    def __array_function__(self, function, types, args, kwargs):
        y = super().__array_function__(function, types, args, kwargs)
        if function in SUMS_OF_PRODUCTS:
            size = function(*map(magnitude, bare(args)), **bare(kwargs))
            y = self.rounding.moved(np.asarray(y), size=8 * size)
        floats = isinstance(y, (Array, np.floating)) and y.dtype.kind == "f"
        return self.rounding.rounded(y) if floats and not isinstance(y, Rounded) else y


def bare(x):
    """Return plain arrays for the moved arrays in a tree."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(bare, x))
    if isinstance(x, dict):
        return {key: bare(value) for key, value in x.items()}
    return x.view(Array) if isinstance(x, Rounded) else x


def magnitude(x):
    """Return absolute values of floats, and anything else as it is."""
    return np.abs(x) if isinstance(x, Array) and x.dtype.kind == "f" else x


ALLOWED = 10.0
"""An error may be this many times what random rounding does to the reference."""


def allowed(right: Array, samples, dtype: str, scale: float) -> Array:
    """Return the error of each element that rounding explains.

    `scale` is the size of the numbers from which it is computed, which may cancel.
    """
    if not right.size:
        return np.zeros(right.shape)
    zeros = [np.zeros(right.shape)]  # without samples, there is no noise
    noise = np.sqrt(np.mean([(s - right) ** 2 for s in samples] or zeros, axis=0))
    rms = lambda axis: np.sqrt(np.nanmean(noise**2, axis, keepdims=True))
    # Where terms happen to cancel in the reference, another formula may have the errors of others.
    around = np.fmax(rms(-1), rms(None)) if right.ndim else noise
    several = max(1.0, right.size / 100) ** (1 / 8)  # the largest of many errors
    scale = max(scale, largest_finite(right))  # another formula cancels differently
    cancelled = 8 * min(UNIT[dtype], UNIT["float32"]) * scale
    tolerance = ALLOWED * several * (noise + around / 3 + UNIT[dtype] * np.abs(right) + cancelled)
    return np.where(np.isfinite(right), tolerance + 4 * TINY[dtype], np.inf)
