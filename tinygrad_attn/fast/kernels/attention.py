"""Exact scaled dot-product attention on arrays, softmax(q k^T scale + mask) v, and its gradients.

Two kernels give the same numbers. `whole` keeps the weights of all T x S scores for the backward
pass and is faster while they are few; `tiled` keeps one number a row and computes the rest again,
and its memory grows with T alone. Which one runs is decided here, by size, and so is how many
weights `tiled` keeps after all: those for which a short sequence has room in the memory that a
longer one takes without. Leading axes (batch, heads, ...) are free; q, k, v may be strided views,
for instance of one packed projection (B, T, 3, H, D), and results may be written into such views
through `out`, `dq`, `dk`, `dv`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from . import tiled, whole
from .scores import Mask

# weights of one head: up to here its tiles would be small, and Python dearer than the products
KEEP_ALWAYS = whole.BLOCK
KEEP_SCORES = 1 << 19  # beyond this they do not fit the cache
# and between the two so much of all heads together: more memory would not be worth the time
KEEP_BYTES = 64 << 20
# bytes: what results and gradients leave of them `tiled` fills with weights; 8 heads of 4,096 x
# 64 leave 0
ROOM = 32 << 20


class Saved(NamedTuple):
    """What one attention call leaves for its gradient."""

    state: (
        whole.Whole | tiled.Tiled | None
    )  # None: there is nothing to compute, some axis has length 0
    mask: Mask


def _worth_keeping(shape: tuple[int, ...], causal: bool, itemsize: int) -> bool:
    """Should `whole` run, for scores of this shape?"""
    heads, (rows, columns) = math.prod(shape[:-2]), shape[-2:]
    kept = columns * (rows + min(rows, whole.STRIP)) / 2 if causal else columns * rows
    return kept <= KEEP_ALWAYS or kept <= KEEP_SCORES and heads * kept * itemsize <= KEEP_BYTES


def _whole_rows(x: ndarray) -> ndarray:
    """x, or a copy of it where a matrix product would find its rows in pieces or on top of each
    other, and be slow.
    """
    *_, row, item = x.strides
    fits = item == x.itemsize and (row >= x.shape[-1] * item or x.shape[-2] < 2)
    return x if fits else np.ascontiguousarray(x)


def attention(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    *,
    scale: float,
    mask: ndarray | None = None,
    causal: bool = False,
    keep: ndarray | None = None,
    keep_scale: float = 1.0,
    out: ndarray | None = None,
    recorded: bool = True,
) -> tuple[ndarray, Saved]:
    """out = (softmax(q k^T scale + mask) * keep * keep_scale) v, of shape (..., T, Dv).

    q (..., T, D), k (..., S, D), v (..., S, Dv): one dtype, float32 or float64, and the same
    leading axes. `mask` broadcasts to (..., T, S): boolean (True = may look) or float (added to the
    scores); `causal` hides the keys s > t as well. `keep` (..., T, S) is dropout's choice of
    weights. A row that may look at nothing gives zeros. `recorded` says that a backward pass may
    follow.
    """
    q, k, v = map(_whole_rows, (q, k, v))
    shape = (*q.shape[:-1], k.shape[-2])
    seen = Mask(mask, causal, shape, q.dtype)
    if out is None:
        out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    if 0 in shape or v.shape[-1] == 0:
        out[...] = 0
        return out, Saved(None, seen)
    if _worth_keeping(shape, causal, q.itemsize):
        return out, Saved(whole.forward(q, k, v, seen, scale, keep, keep_scale, out), seen)
    room = (
        min(ROOM // q.itemsize - out.size - q.size - k.size - v.size, math.prod(shape))
        if recorded
        else 0
    )
    return out, Saved(
        tiled.forward(q, k, v, seen, scale, keep, keep_scale, out, max(0, room)), seen
    )


def attention_backward(
    g: ndarray,
    out: ndarray,
    q: ndarray,
    k: ndarray,
    v: ndarray,
    saved: Saved,
    *,
    scale: float,
    keep: ndarray | None = None,
    keep_scale: float = 1.0,
    mask_shape: tuple[int, ...] | None = None,
    dq: ndarray | None = None,
    dk: ndarray | None = None,
    dv: ndarray | None = None,
) -> tuple[ndarray, ndarray, ndarray, ndarray | None]:
    """(dq, dk, dv, dmask) for the cotangent g of `out`; dmask only if `mask_shape`, the float
    mask's shape, is given.

    Where k or v was broadcast over a leading axis the caller sums dk and dv over it.
    """
    g, q, k, v = map(_whole_rows, (g, q, k, v))
    dq, dk, dv = (
        np.empty(x.shape, x.dtype) if dx is None else dx for x, dx in ((q, dq), (k, dk), (v, dv))
    )
    dmask = None
    if mask_shape is not None:
        dmask = np.zeros((1,) * (q.ndim - len(mask_shape)) + tuple(mask_shape), q.dtype)
    state = saved.state
    if isinstance(state, whole.Whole):
        whole.backward(g, out, q, k, v, state, scale, keep, keep_scale, dq, dk, dv, dmask)
    elif isinstance(state, tiled.Tiled):
        tiled.backward(
            g, out, q, k, v, state, saved.mask, scale, keep, keep_scale, dq, dk, dv, dmask
        )
    else:
        for dx in (dq, dk, dv):
            dx[...] = 0
    return dq, dk, dv, None if dmask is None else dmask.reshape(mask_shape or ())


def attention_weights(
    q: ndarray, k: ndarray, *, scale: float, mask: ndarray | None = None, causal: bool = False
) -> ndarray:
    """softmax(q k^T scale + mask), (..., T, S), of what `attention` takes; zeros in a row that may
    look at nothing.
    """
    q, k = map(_whole_rows, (q, k))
    shape = (*q.shape[:-1], k.shape[-2])
    if 0 in shape:
        return np.zeros(shape, q.dtype)
    seen = Mask(mask, causal, shape, q.dtype)
    if not _worth_keeping(shape, causal, q.itemsize):
        return tiled.weights(q, k, seen, scale)
    sums, one = np.empty((*shape[:-1], 1), q.dtype), np.ones((*k.shape[:-1], 1), q.dtype)
    return whole.weights(q, k, whole.forward(q, k, one, seen, scale, None, 1.0, sums))
