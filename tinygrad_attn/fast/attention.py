"""Attention, softmax(q k^T scale + mask) v, in blocks of heads x rows x columns of the scores.

The scores of a block stay in the cache. Exponentials are computed directly, without subtracting the
maximum, so they can be summed over column blocks. One loop handles short and long sequences. If a
sum of exponentials leaves its range, the rows are recomputed with the maximum subtracted. The
backward pass reads the exponentials that were kept and recomputes the others. So memory grows with
T, not with T S (Rabe and Staats 2021; Dao et al. 2022, appendix B):

    dv = p^T g   dp = g v^T   ds = p (dp - rowsum(g y))   dq = ds k scale   dk = ds^T q scale
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from itertools import product
from operator import iadd
from typing import Any

import numpy as np
from numpy import ndarray

from ..engine import array_of, context, kernel, op, sum_to
from ..functional import attention as F
from . import tuning
from .blocks import QUIET, in_range, ordinary, row_sums
from .threads import keep_freed, tasks, workers


class Attention:
    """One call: q (B, H, T, D), k (B, H, S, D), v (B, H, S, V), mask broadcastable to (B, H, T, S).

    `keep` (B, H, T, S) is True for the weights that dropout keeps. A block is addressed by h (two
    slices for batch and heads), r (its rows, the queries) and c (its columns, the keys).
    """

    def __init__(self, q, k, v, mask, *, scale, is_causal=False, keep=None, keep_scale=1.0):
        self.q, self.k, self.v = map(in_rows, (q, k, v))
        mask, self.keep, self.causal = with_heads(mask), with_heads(keep), is_causal
        boolean = mask is not None and mask.dtype == bool
        self.seen, self.bias = (mask, None) if boolean else (None, mask)
        self.scale, self.keep_scale = map(q.dtype.type, (scale, keep_scale))
        self.kept = {}  # exponentials, by (task, first row, first column)
        self.tops = {}  # maxima of rows that needed them, by (task, first row)
        self.reciprocals = np.empty(q.shape[:-1], q.dtype)  # of the sums of exponentials
        self.cut()

    def cut(self):
        """Divide the scores into blocks, and set how many exponentials may be kept."""
        (b, heads, t, _), s = self.q.shape, self.k.shape[-2]
        scores, block = b * heads * t * s, tuning.ATTENTION_BLOCK
        self.shared = scores >= block
        per = max(1, min(block // (t * s), -(-b * heads // workers(self.shared))))
        self.wide = min(s, tuning.COLUMNS)
        high = max(tuning.LEAST_ROWS, block // (self.wide * per) // (2 if self.causal else 1))
        self.rows = pieces(t, high)
        self.heads = list(product(pieces(b, max(1, per // heads)), pieces(heads, per)))
        self.room = 0.0
        if context.recording:
            item, taken = self.q.itemsize, 2 * self.q.size + self.k.size + self.v.size
            few = t * s <= tuning.KEPT_SCORES and scores * item <= tuning.KEPT_BYTES
            self.room = math.inf if few else tuning.TILES_BYTES // item - taken

    # ---- blocks of exponentials

    def scores(self, q, h, r, c):
        """Return the product of scaled queries and keys, plus a float mask."""
        w = np.matmul(q, self.k[(*h, c)].swapaxes(-1, -2))
        if self.bias is not None:
            w += part(self.bias, (*h, r, c))
        return w

    def hide(self, w, h, r, c):
        """Set the weights of hidden keys to 0, in place."""
        if self.seen is not None:
            w *= part(self.seen, (*h, r, c))
        first = max(r.start, c.start)  # all rows see the columns before it
        if self.causal and c.stop > first:
            lower = _tri(w.shape[-2], c.stop - first, r.start - first, w.dtype)
            w[..., first - c.start :] *= lower

    def exponentials(self, q, h, r, c, top):
        """Return exp(scores), or exp(scores - top) if top is given, with 0 for hidden keys."""
        w = self.scores(q, h, r, c)
        if top is not None:
            w -= top
            np.minimum(w, 0, out=w)  # larger ones belong to hidden keys and could overflow
        np.exp(w, out=w)
        self.hide(w, h, r, c)
        return w

    def largest(self, q, h, r, columns):
        """Return the largest score of each row, or 0 for rows that see no key."""
        top = -np.inf
        for c in columns:
            w = self.scores(q, h, r, c)
            seen = np.ones_like(w)
            self.hide(seen, h, r, c)
            w[seen == 0] = -np.inf
            top = np.maximum(top, w.max(-1, keepdims=True))
        return np.where(top == -np.inf, 0, top)

    def columns(self, h, r):
        """Return the blocks of columns up to the last key that these rows see."""
        end = self.k.shape[-2]
        if self.seen is not None:
            shown = part(self.seen, (*h, r, slice(None))).any(axis=(0, 1, 2))
            end = int(np.flatnonzero(np.broadcast_to(shown, end)).max(initial=0)) + 1
        return pieces(min(end, r.stop) if self.causal else end, self.wide)

    # ---- both passes

    @np.errstate(**QUIET)
    def forward(self, y):
        """Write the output to y (B, H, T, V)."""
        keep_freed()

        def run(n):
            h = self.heads[n]
            for r in self.rows:
                q, columns = self.q[(*h, r)] * self.scale, self.columns(h, r)
                sums, total = self.add_up(q, n, r, columns, None)
                if not in_range(total, tuning.SMALLEST_SUM, tuning.LARGEST_SUM):
                    top = self.tops[n, r.start] = self.largest(q, h, r, columns)
                    sums, total = self.add_up(q, n, r, columns, top)
                    total[total == 0] = np.inf  # rows that see no key
                reciprocal = self.reciprocals[(*h, r)] = np.reciprocal(total, out=total)
                np.multiply(sums, (reciprocal * self.keep_scale)[..., None], out=y[(*h, r)])

        tasks(run, len(self.heads), self.shared)

    def add_up(self, q, n, r, columns, top):
        """Return two sums over keys: of exponentials times values, and of exponentials."""
        h, sums, total = self.heads[n], [], []
        for c in columns:
            w, place = self.exponentials(q, h, r, c, top), (n, r.start, c.start)
            if self.room >= w.size or place in self.kept:
                self.room -= w.size
                self.kept[place] = w
            total.append(row_sums(w))
            kept = w if self.keep is None else w * self.keep[(*h, r, c)]
            sums.append(np.matmul(kept, self.v[(*h, c)]))
        return reduce(iadd, sums), reduce(iadd, total)

    @np.errstate(**QUIET)
    def backward(self, g, y, dq, dk, dv, dmask):
        """Add the gradients to dq, dk, dv and, unless it is None, dmask; all start as zeros."""
        g, once = in_rows(g), len(self.rows) == 1

        def run(n):
            h = self.heads[n]
            for r in self.rows:
                at, q = (*h, r), self.q[(*h, r)] * self.scale
                gr = g[at] * self.reciprocals[at][..., None]  # weights are exponentials times these
                delta = np.vecdot(gr, y[at])[..., None]
                gr *= self.keep_scale
                for c in self.columns(h, r):
                    p = self.kept.get((n, r.start, c.start))
                    if p is None:
                        p = self.exponentials(q, h, r, c, self.tops.get((n, r.start)))
                    ds = np.matmul(gr, self.v[(*h, c)].swapaxes(-1, -2))
                    if self.keep is not None:
                        ds *= self.keep[(*at, c)]
                    ds -= delta
                    ds *= p
                    if dmask is not None:
                        target = part(dmask, (*at, c))
                        target += sum_to(ds, target.shape)
                    if self.keep is not None:
                        p = p * self.keep[(*at, c)]
                    add_product(p.swapaxes(-1, -2), gr, dv[(*h, c)], once)
                    add_product(ds.swapaxes(-1, -2), q, dk[(*h, c)], once)
                    add_product(ds, self.k[(*h, c)], dq[at], c.start == 0)
                dq[at] *= self.scale

        tasks(run, len(self.heads), self.shared and dmask is None)


def with_heads(x: ndarray | None) -> Any:
    """(..., T, D) with at most four axes -> (B, H, T, D), a view."""
    return None if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape)


def in_rows(x: ndarray) -> ndarray:
    """Return x itself, or a copy if the rows of x are not contiguous."""
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def pieces(n: int, most: int) -> list[slice]:
    """Return slices of length `most` or less that cover range(n)."""
    return [slice(i, min(i + most, n)) for i in range(0, n, most)]


def part(mask: ndarray, at: tuple) -> ndarray:
    """Return the part of a mask, which may have axes of length 1, for this block of scores."""
    return mask[tuple(i if n > 1 else slice(None) for i, n in zip(at, mask.shape))]


def add_product(a: ndarray, b: ndarray, total: ndarray, first: bool) -> None:
    """Add the product a b to `total`, or overwrite `total` if this is the first product."""
    # matmul is slow for a column times a row, which occurs with a single query.
    multiply = np.multiply if a.shape[-1] == 1 else np.matmul
    if first:
        multiply(a, b, out=total)
    else:
        total += multiply(a, b)


_tri = lru_cache(maxsize=8)(np.tri)


# ---- ops and kernels


@op(saves=True, reference=F.attention.function)
def attention(q, k, v, mask, **settings):
    """(softmax(q k^T scale + mask) keep keep_scale) v"""
    call = Attention(*map(with_heads, (q, k, v)), mask, **settings)
    b, h, t, _ = call.q.shape
    # In the memory order (B, T, H, V), merging the heads needs no copy.
    y = np.empty((b, t, h, v.shape[-1]), q.dtype).swapaxes(1, 2)
    call.forward(y)
    return y.reshape(*q.shape[:-1], v.shape[-1]), call


@attention.vjp_all
def _attention_vjp(g, y, q, k, v, mask, *, saved, needs, **_settings):
    gradients = [np.zeros_like(x) for x in (q, k, v)]  # in their memory order
    gradients.append(np.zeros_like(mask) if needs[3] else None)
    saved.backward(*map(with_heads, (g, y, *gradients)))
    return gradients


@op(saves=True, reference=F.packed_attention.function)
def packed_attention(packed, mask, *, num_heads, **settings):
    """Self-attention with q, k and v packed into one array: (B, T, 3 H D) -> (B, T, H D)"""
    b, t, width = packed.shape
    heads = F.unpack_heads(np.ascontiguousarray(packed), num_heads)
    call = Attention(*heads, mask, **settings)
    y = np.empty((b, t, width // 3), packed.dtype)
    call.forward(_split(y, num_heads))
    return y, call


@packed_attention.vjp_all
def _packed_vjp(g, y, packed, mask, *, num_heads, saved, needs, **_settings):
    dpacked = np.zeros(packed.shape, packed.dtype)
    gradients = F.unpack_heads(dpacked, num_heads)
    dmask = np.zeros_like(mask) if needs[1] else None
    saved.backward(_split(g, num_heads), _split(y, num_heads), *gradients, with_heads(dmask))
    return dpacked, dmask


def _split(x: ndarray, num_heads: int) -> ndarray:
    """(B, T, H D) -> (B, H, T, D), a view"""
    return np.ascontiguousarray(x).reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)


def _usable(mask: Any, scores: tuple[int, ...], q: Any) -> bool:
    """Return whether the mask is boolean or has q's dtype, and broadcasts to the scores."""
    mask = array_of(mask)
    return mask is None or (
        mask.dtype in (bool, q.dtype) and np.broadcast_shapes(mask.shape, scores) == scores
    )


@kernel(F.attention)
def attention_kernel(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
    """The kernel for q (..., T, D), k (..., S, D), v (..., S, V) with up to two equal lead axes."""
    arrays = ordinary(q, k, v)
    if not arrays or len({x.shape[:-2] for x in arrays}) > 1:
        return NotImplemented
    scores = (*q.shape[:-1], k.shape[-2])
    if len(scores) > 4 or not _usable(mask, scores, q):
        return NotImplemented
    return attention(q, k, v, mask, **settings)


@kernel(F.packed_attention)
def packed_kernel(packed: Any, mask: Any = None, *, num_heads: int, **settings: Any) -> Any:
    """The kernel for a packed tensor (B, T, 3 H D)."""
    if not ordinary(packed):
        return NotImplemented
    b, t, _ = packed.shape
    if not _usable(mask, (b, num_heads, t, t), packed):
        return NotImplemented
    return packed_attention(packed, mask, num_heads=num_heads, **settings)
