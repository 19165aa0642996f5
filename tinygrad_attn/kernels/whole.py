"""Attention that keeps its weights, for sequences short enough: softmax(q k^T scale) v, a cache-sized block at a time.

The work is cut over batch and heads into blocks whose T x S scores fit the processor's cache, so that the several passes
over them (product, scale, exponential, row sum, division, product) do not go to memory.  Blocks are shared out over threads.
What is done to a row is done to the scores, which lie contiguous, and not to the T x D numbers of a head, which are fewer
but lie in short rows with gaps between.  Backward, for the weights p, reads (Dao et al. 2022, appendix B)

    dv = p^T g        dp = g v^T        ds = p * (dp - rowsum(g * out))        dq = ds k scale        dk = ds^T q scale
"""

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, tasks
from .scores import QUIET, Mask, accumulate, in_range, ones, row_maximum, scaled, transposed

BLOCK = 1 << 17                 # scores in a block, half a megabyte of float32; with several threads up to twice, at least half as many
BIG = 1 << 17                   # scores in all, from where a second thread is worth its start


class Whole(NamedTuple):
    """What backward needs: softmax(scores), with zeros where masked and in a row that sees nothing."""

    weights: ndarray            # (..., T, S)


def blocks(lead: tuple[int, ...], most: int) -> list[tuple[slice, ...]]:
    """Index tuples that cover leading axes of lengths `lead` in blocks of at most `most` items."""
    axis, inside = len(lead), 1
    while axis and inside * lead[axis - 1] <= most:         # axes from here on are taken whole
        axis -= 1
        inside *= lead[axis]
    if axis == 0:
        return [(slice(None),) * len(lead)]
    axis -= 1                                               # this one is cut into equal runs, those before it into single items
    runs = -(-lead[axis] // max(1, most // inside))
    cut = [lead[axis] * i // runs for i in range(runs + 1)]
    return [(*(slice(i, i + 1) for i in outer), slice(lo, hi), *(slice(None),) * (len(lead) - axis - 1))
            for outer in np.ndindex(lead[:axis]) for lo, hi in zip(cut[:-1], cut[1:])]


def _cut(q: ndarray, k: ndarray) -> tuple[list[tuple[slice, ...]], bool]:
    scores, threads = q.shape[-2] * k.shape[-2], get_num_threads()
    total = scores * math.prod(q.shape[:-2])
    if total < BIG:
        return [(slice(None),) * (q.ndim - 2)], False
    heads = -(-total // scores // threads)           # a thread's share
    most = BLOCK // scores if threads == 1 else min(2 * BLOCK // scores, max(BLOCK // 2 // scores, heads))
    return blocks(q.shape[:-2], max(1, most)), True


def _turned(x: ndarray, rows: int) -> ndarray:
    """x^T as the right side of a product with so many rows: copied if that is faster, which it is for narrow x only."""
    return transposed(x) if rows > 8 and x.shape[-1] < 64 else x.swapaxes(-1, -2)


def forward(q: ndarray, k: ndarray, v: ndarray, mask: Mask, scale: float, keep: ndarray | None, keep_scale: float,
            out: ndarray) -> Whole:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv)."""
    columns = k.shape[-2]
    p = np.empty((*q.shape[:-1], columns), q.dtype)
    one, factor = ones(columns, q.dtype), q.dtype.type(scale * mask.unit)
    cut, big = _cut(q, k)

    def run(n: int) -> None:
        at = cut[n]
        weights, keys = p[at], _turned(k[at], q.shape[-2])
        np.matmul(q[at], keys, out=weights)
        weights *= factor
        mask.add(weights, at)
        mask.exp(weights, out=weights)
        total = unmasked = weights @ one
        if mask.multiplies:
            mask.multiply(weights, at)
            total = weights @ one
        if not in_range(total, unmasked):
            np.matmul(scaled(q[at], scale), keys, out=weights)
            mask.add(weights, at)
            mask.hide(weights, at)
            weights -= row_maximum(weights)
            np.exp(weights, out=weights)
            total = weights @ one
            total[total == 0] = np.inf
        weights *= np.reciprocal(total, out=total)[..., None]
        if keep is None:
            np.matmul(weights, v[at], out=out[at])
        else:
            np.multiply(weights * keep[at] @ v[at], q.dtype.type(keep_scale), out=out[at])

    with np.errstate(**QUIET):
        tasks(run, len(cut), big)
    return Whole(p)


def backward(g: ndarray, out: ndarray, q: ndarray, k: ndarray, v: ndarray, saved: Whole, scale: float,
             keep: ndarray | None, keep_scale: float, dq: ndarray, dk: ndarray, dv: ndarray, dmask: ndarray | None) -> None:
    """dq, dk, dv <- gradients; dmask, if given, is added to and has the mask's shape with as many axes as the scores."""
    factor = q.dtype.type(scale)
    cut, big = _cut(q, k)

    def run(n: int) -> None:
        at = cut[n]
        weights = kept = saved.weights[at]
        gn = g[at]
        delta = np.vecdot(gn, out[at])[..., None]
        if keep is not None:
            kept = weights * keep[at]
            gn = gn * gn.dtype.type(keep_scale)
        np.matmul(kept.swapaxes(-1, -2), gn, out=dv[at])
        if dmask is None:                                   # scaling T x D numbers is cheaper than T x S
            gn = gn * factor
            delta *= factor
        ds = gn @ _turned(v[at], q.shape[-2])
        if keep is not None:
            ds *= keep[at]
        ds -= delta
        ds *= weights
        if dmask is not None:
            accumulate(dmask, ds, at)
            ds *= factor
        np.matmul(ds, k[at], out=dq[at])
        np.matmul(ds.swapaxes(-1, -2), q[at], out=dk[at])

    with np.errstate(under="ignore"):
        tasks(run, len(cut), big and dmask is None)         # blocks may add to the same entries of dmask


def weights(saved: Whole) -> ndarray:
    """The normalised weights, (..., T, S)."""
    return saved.weights.copy()
