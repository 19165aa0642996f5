"""Windows that slide over an array, of which convolutions and moving averages are made, their
adjoint, and the convolution of vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..engine import op


@op
def windows(x, *, sizes, axes):
    """y[..., i, ..., k] = x[..., i + k, ...], without copying: where the window stands along each
    axis, then the places within it.
    """
    return sliding_window_view(x, sizes, axes)


@op
def overlapped(g, *, sizes, axes, shape):
    """Zeros of `shape` with each number added at the place that its window took it from. The
    adjoint of windows.
    """
    out = np.zeros_like(g, order="C", shape=shape)
    # No two windows have the same place of theirs in common, so all can be added at once there.
    for within in np.ndindex(sizes):
        start = [0] * out.ndim
        for axis, k in zip(axes, within, strict=True):
            start[axis] += k  # an axis may be listed twice
        out[tuple(slice(k, k + n) for k, n in zip(start, g.shape))] += g[(..., *within)]
    return out


windows.vjp(lambda g, y, x, *, sizes, axes: overlapped(g, sizes=sizes, axes=axes, shape=x.shape))
overlapped.vjp(lambda gg, y, g, *, sizes, axes, shape: windows(gg, sizes=sizes, axes=axes))


@op
def convolve(a, v, *, mode):
    """y_n = sum over m of a_m v_(n - m); `mode` says how much of it: "full", "same" (the middle) or
    "valid" (where they overlap wholly).
    """
    return np.convolve(a, v, mode)


def _full(g, a, v, mode):
    """A cotangent of the whole convolution, with zeros where `mode` left something out."""
    shorter, length = min(a.size, v.size), a.size + v.size - 1
    start = {"full": 0, "same": (shorter - 1) // 2, "valid": shorter - 1}[mode]
    return np.pad(g, (start, length - start - g.size))


convolve.vjp(
    lambda g, y, a, v, *, mode: np.convolve(_full(g, a, v, mode), v[::-1], "valid"),
    lambda g, y, a, v, *, mode: np.convolve(_full(g, a, v, mode), a[::-1], "valid"),
)
