"""Attention that keeps its weights, for sequences short enough: softmax(q k^T scale) v, a cache-sized block at a time.

The work is cut over batch and heads into blocks whose T x S scores fit the processor's cache, so that the several passes
over them (product, exponential, row sum, product) do not go to memory.  Blocks are shared out over threads.  The weights
stay unnormalised, e = exp(scores): dividing the T x D output by the row sums is cheaper than dividing T x S weights.
Backward, with p = e / sum, reads (Dao et al. 2022, appendix B)

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
    """What backward needs: exp(scores) with zeros where masked, and 1 / its row sums (0 for a row that sees nothing)."""

    exponentials: ndarray       # (..., T, S)
    inverse: ndarray            # (..., T)


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


def forward(q: ndarray, k: ndarray, v: ndarray, mask: Mask, scale: float, keep: ndarray | None, keep_scale: float,
            out: ndarray) -> Whole:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv)."""
    rows, columns = q.shape[-2], k.shape[-2]
    e = np.empty((*q.shape[:-1], columns), q.dtype)
    inverse = np.empty(q.shape[:-1], q.dtype)
    one = ones(columns, q.dtype)
    cut, big = _cut(q, k)

    def run(n: int) -> None:
        at = cut[n]
        weights, keys = e[at], k[at]
        np.matmul(scaled(q[at], scale * mask.unit), transposed(keys) if rows > 8 else keys.swapaxes(-1, -2), out=weights)
        mask.add(weights, at)
        mask.exp(weights, out=weights)
        total = unmasked = weights @ one
        if mask.multiplies:
            mask.multiply(weights, at)
            total = weights @ one
        if not in_range(total, unmasked):
            np.matmul(scaled(q[at], scale), keys.swapaxes(-1, -2), out=weights)
            mask.add(weights, at)
            mask.hide(weights, at)
            weights -= row_maximum(weights)
            np.exp(weights, out=weights)
            total = weights @ one
            total[total == 0] = np.inf
        np.reciprocal(total, out=inverse[at])
        here = out[at]
        np.matmul(weights if keep is None else weights * keep[at], v[at], out=here)
        here *= (inverse[at] if keep is None else inverse[at] * here.dtype.type(keep_scale))[..., None]

    with np.errstate(**QUIET):
        tasks(run, len(cut), big)
    return Whole(e, inverse)


def backward(g: ndarray, out: ndarray, q: ndarray, k: ndarray, v: ndarray, saved: Whole, scale: float,
             keep: ndarray | None, keep_scale: float, dq: ndarray, dk: ndarray, dv: ndarray, dmask: ndarray | None) -> None:
    """dq, dk, dv <- gradients; dmask, if given, is added to and has the mask's shape with as many axes as the scores."""
    e, inverse = saved
    factor = q.dtype.type(scale)
    cut, big = _cut(q, k)

    def run(n: int) -> None:
        at = cut[n]
        weights = e[at]
        gn = g[at] * inverse[at][..., None]
        delta = np.vecdot(gn, out[at])[..., None]
        kept = weights
        if keep is not None:
            kept = weights * keep[at]
            gn *= gn.dtype.type(keep_scale)
        np.matmul(kept.swapaxes(-1, -2), gn, out=dv[at])
        if dmask is None:                                   # scaling T x D numbers is cheaper than T x S
            gn *= factor
            delta *= factor
        ds = gn @ transposed(v[at])
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
    return saved.exponentials * saved.inverse[..., None]
