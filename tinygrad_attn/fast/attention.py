"""Attention, softmax(q k^T scale + mask) v, in blocks of heads x rows x columns of the scores.

The T x S scores of a block stay in the cache. Exponentials are taken as the scores come, without
subtracting the maximum, so they add up over column blocks: one loop serves short and long
sequences. Only where a sum of exponentials leaves its range are rows computed again, with the
maximum subtracted. Backward reads the exponentials that were kept and computes the others again.
So memory grows with T, not with T S (Rabe and Staats 2021; Dao et al. 2022, appendix B):

    dv = p^T g   dp = g v^T   ds = p (dp - rowsum(g out))   dq = ds k scale   dk = ds^T q scale
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from ..engine import array_of, context, kernel, op, sum_to
from ..functional import attention as F
from . import tuning
from .blocks import QUIET, fits, in_range, row_sums
from .threads import tasks, workers

_AVX512 = np._core._multiarray_umath.__cpu_features__.get("AVX512_SKX")
# With AVX-512 2^x takes half the time of e^x, without it twice.
EXP, UNIT = (np.exp2, math.log2(math.e)) if _AVX512 else (np.exp, 1.0)


class Scores:
    """The exponentials of the scores, for any block of a (..., T, S) matrix that is never built."""

    def __init__(
        self, q: ndarray, k: ndarray, scale: float, mask: ndarray | None, causal: bool
    ) -> None:
        self.q, self.k, self.scale, self.causal = q, k, scale, causal
        self.shape = shape = (*q.shape[:-1], k.shape[-2])
        self.seen = self.bias = None
        if mask is not None and mask.dtype == bool:
            small = mask.size <= tuning.MASK_OF_FLOATS  # floats multiply faster
            self.seen = np.broadcast_to(mask.astype(q.dtype) if small else mask, shape)
        elif mask is not None:
            self.bias = np.broadcast_to(mask, shape)
        self.masks = causal or self.seen is not None
        # 2^x is slow at -inf, which a mask may hold.
        by_two = q.dtype == np.float32 and self.bias is None
        self.exp, self.unit = (EXP, UNIT) if by_two else (np.exp, 1.0)

    def queries(self, at: tuple, shifted: bool = False) -> ndarray:
        """Return the scaled queries of a block."""
        return self.q[at] * self.q.dtype.type(self.scale * (1 if shifted else self.unit))

    def products(self, q: ndarray, h: tuple, r: slice, c: slice) -> ndarray:
        """Return q k^T + mask, where the mask is one of numbers."""
        w = np.matmul(q, self.k[(*h, c)].swapaxes(-1, -2))
        if self.bias is not None:
            w += self.bias[(*h, r, c)]
        return w

    def hide(self, w: ndarray, h: tuple, r: slice, c: slice) -> None:
        """Set the weights of hidden keys to 0, in place."""
        if self.seen is not None:
            w *= self.seen[(*h, r, c)]
        if self.causal:
            hidden = w[..., max(0, r.start + 1 - c.start) :]
            if hidden.shape[-1]:
                first = min(0, r.start + 1 - c.start) - 1
                hidden *= _below_diagonal(*hidden.shape[-2:], first, w.dtype)

    def hidden_products(self, q: ndarray, h: tuple, r: slice, c: slice) -> ndarray:
        """Return the same as `products`, -inf for hidden keys, whatever their score was."""
        w = self.products(q, h, r, c)
        if self.masks:
            seen = np.ones_like(w)
            self.hide(seen, h, r, c)
            w[seen == 0] = -np.inf
        return w

    def exponentials(self, q: ndarray, h: tuple, r: slice, c: slice, top: Any) -> ndarray:
        """Return exp(scores), or exp(scores - top); 0 for hidden keys."""
        if top is not None:
            w = self.hidden_products(q, h, r, c)
            return np.exp(np.subtract(w, top, out=w), out=w)
        w = self.products(q, h, r, c)
        self.exp(w, out=w)
        self.hide(w, h, r, c)
        return w

    def top(self, q: ndarray, h: tuple, r: slice, columns: list[slice]) -> ndarray:
        """Return the largest score of each row, 0 for rows that see nothing."""
        top: Any = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
        for c in columns:
            w = self.hidden_products(q, h, r, c)
            np.maximum(top, w.max(-1, keepdims=True), out=top)
        top[top == -np.inf] = 0
        return top

    def columns(self, h: tuple, r: slice, wide: int) -> list[slice]:
        """Return blocks of columns up to the last key that these rows see, none without one."""
        end = min(self.shape[-1], r.stop) if self.causal else self.shape[-1]
        blocks = [slice(j, min(j + wide, end)) for j in range(0, end, wide)]
        if self.seen is None:
            return blocks
        seen = self.seen[(*h, r)]
        each = tuple(slice(None if stride else 1) for stride in seen.strides[:-1])
        shown = seen[each].any(axis=tuple(range(seen.ndim - 1)))
        last = [np.flatnonzero(shown[c])[-1:] for c in blocks]
        return [slice(c.start, c.start + int(n[0]) + 1) for c, n in zip(blocks, last) if n.size]


@lru_cache(maxsize=8)
def _below_diagonal(rows: int, columns: int, first: int, dtype: np.dtype) -> ndarray:
    return np.tri(rows, columns, first, dtype=dtype)


class Plan(NamedTuple):
    """How the scores are cut into blocks."""

    tasks: list[tuple[tuple, list[slice]]]  # index of heads, blocks of rows
    wide: int  # columns of a block
    whole: bool  # whether all exponentials are kept
    parts: int  # tasks of each index
    shared: bool  # whether threads share the tasks


def plan(shape: tuple[int, ...], causal: bool, itemsize: int) -> Plan:
    """Cut scores of this shape (..., T, S)."""
    *lead, T, S = shape
    heads = math.prod(lead)
    kept = S * (T + min(T, tuning.CAUSAL_ROWS)) // 2 if causal else S * T
    whole = kept <= tuning.ATTENTION_BLOCK or (
        kept <= tuning.KEPT_SCORES and heads * kept * itemsize <= tuning.KEPT_BYTES
    )
    shared = heads * T * S >= tuning.ATTENTION_BLOCK
    threads = workers(shared)
    per = heads
    if shared:
        per = max(1, min(tuning.ATTENTION_BLOCK // (T * S), -(-heads // threads)))
    high, wide = (T, S) if whole else (tuning.TILE_ROWS, tuning.TILE_COLUMNS)
    if whole and causal:
        high = max(tuning.CAUSAL_ROWS, tuning.ATTENTION_BLOCK // (2 * S * per))
    rows = [slice(i, min(i + high, T)) for i in range(0, T, high)]
    parts = min(threads, len(rows)) if heads < threads else 1  # of a head
    groups = _groups(tuple(lead), per)
    cut = [(h, rows[i::parts]) for h in groups for i in range(parts)]
    return Plan(cut, wide, whole, parts, shared)


def _groups(lead: tuple[int, ...], most: int) -> list[tuple]:
    """Return indices that cover axes of these lengths, at most `most` items each."""
    if math.prod(lead) <= most:
        return [(slice(None),) * len(lead)]
    *outer, n = lead
    if most >= n and outer:  # this axis is taken whole
        return [(*h, slice(None)) for h in _groups(tuple(outer), most // n)]
    return [(*h, slice(j, j + most)) for h in np.ndindex(*outer) for j in range(0, n, most)]


class Saved(NamedTuple):
    """What backward needs."""

    scores: Scores
    plan: Plan
    kept: dict[tuple[int, int, int], ndarray]  # exponentials by task, first row, first column
    reciprocals: ndarray  # (..., T), 1 / sum of exponentials
    tops: dict[tuple[int, int], ndarray]  # by task and first row, where they were subtracted


@np.errstate(**QUIET)
def attend(q, k, v, mask, *, scale, is_causal, keep, keep_scale, out):
    """Write attention to out (..., T, V); return what backward needs.

    q (..., T, D), k (..., S, D), v (..., S, V) have equal leading axes. `keep` (..., T, S) tells
    which weights dropout keeps.
    """
    q, k, v = in_rows(q, k, v)
    scores = Scores(q, k, scale, mask, is_causal)
    cut = plan(scores.shape, is_causal, q.itemsize)
    saved = Saved(scores, cut, {}, np.empty(q.shape[:-1], q.dtype), {})
    room = 0.0  # for exponentials
    if context.recording:
        taken = out.size + q.size + k.size + v.size
        room = math.inf if cut.whole else tuning.TILES_BYTES // q.itemsize - taken

    def run(n: int) -> None:
        h, rows = cut.tasks[n]
        for r in rows:
            columns = scores.columns(h, r, cut.wide)
            y, total = add_up(n, r, columns, scores.queries((*h, r)), None)
            if not in_range(total, tuning.SMALLEST_SUM, tuning.LARGEST_SUM):
                queries = scores.queries((*h, r), shifted=True)
                top = saved.tops[n, r.start] = scores.top(queries, h, r, columns)
                y, total = add_up(n, r, columns, queries, top)
                total[total == 0] = np.inf  # rows that see nothing
            np.reciprocal(total, out=total)
            saved.reciprocals[(*h, r)] = total
            total *= q.dtype.type(keep_scale)
            np.multiply(y, total[..., None], out=out[(*h, r)])

    def add_up(n: int, r: slice, columns: list[slice], queries: ndarray, top: Any) -> tuple:
        """Return the sums of exponentials times values, and of exponentials."""
        nonlocal room
        h = cut.tasks[n][0]
        y: Any = np.zeros((*queries.shape[:-1], v.shape[-1]), q.dtype) if not columns else None
        total: Any = np.zeros(queries.shape[:-1], q.dtype) if not columns else None
        for c in columns:
            w = scores.exponentials(queries, h, r, c, top)
            part = row_sums(w)
            total = part if total is None else np.add(total, part, out=total)
            if room >= w.size or (n, r.start, c.start) in saved.kept:
                room -= w.size
                saved.kept[n, r.start, c.start] = w
            part = np.matmul(w if keep is None else w * keep[(*h, r, c)], v[(*h, c)])
            y = part if y is None else np.add(y, part, out=y)
        return y, total

    tasks(run, len(cut.tasks), cut.shared)
    return saved


@np.errstate(**QUIET)
def attend_vjp(g, y, v, saved, *, keep, keep_scale, dq, dk, dv, dmask=None):
    """Write the gradients to dq, dk and dv; add to dmask, which has as many axes as the scores."""
    scores, cut, kept, reciprocals, tops = saved
    q, k, (g, v) = scores.q, scores.k, in_rows(g, v)
    scale, whole = q.dtype.type(scores.scale), slice(0, k.shape[-2])
    sums: dict[int, tuple[ndarray, ndarray]] = {}

    def run(n: int) -> None:
        h, rows = cut.tasks[n]
        columns = [scores.columns(h, r, cut.wide) for r in rows]
        once = cut.parts == 1 and columns == [[whole]]  # dk and dv are products, not sums of them
        dkeys, dvalues = dk[h], dv[h]
        if not once:
            dkeys, dvalues = (np.zeros(x.shape, x.dtype) for x in (dkeys, dvalues))
        for r, cs in zip(rows, columns):
            rest, top = (*h, r), tops.get((n, r.start))
            gr = g[rest] * reciprocals[rest][..., None]  # weights are exponentials times these
            delta = np.vecdot(gr, y[rest])[..., None]
            if keep is not None:
                gr *= q.dtype.type(keep_scale)
            # Scaling T x D numbers is cheaper than T x S.
            gs, delta = (gr * scale, delta * scale) if dmask is None else (gr, delta)
            queries = None
            for c in cs:
                p = kept.get((n, r.start, c.start))
                if p is None:
                    if queries is None:
                        queries = scores.queries(rest, top is not None)
                    p = scores.exponentials(queries, h, r, c, top)
                ds = np.matmul(gs, v[(*h, c)].swapaxes(-1, -2))
                if keep is not None:
                    ds *= keep[(*h, r, c)]
                ds -= delta
                ds *= p
                if dmask is not None:
                    _add_to_mask(dmask, ds, (*h, r, c))
                    ds *= scale
                if keep is not None:
                    p = p * keep[(*h, r, c)]
                _add_product(p, gr, dvalues[..., c, :], once)
                _add_product(ds, q[rest], dkeys[..., c, :], once)
                if c is cs[0]:
                    np.matmul(ds, k[(*h, c)], out=dq[rest])
                else:
                    dq[rest] += ds @ k[(*h, c)]
            if not cs:
                dq[rest] = 0
        if cut.parts > 1:
            sums[n] = dkeys, dvalues
        elif not once:
            dk[h], dv[h] = dkeys, dvalues

    tasks(run, len(cut.tasks), cut.shared and dmask is None)
    for n in sorted(sums):  # in order, so that results repeat
        h = cut.tasks[n][0]
        dk[h], dv[h] = sums[n] if n % cut.parts == 0 else (dk[h] + sums[n][0], dv[h] + sums[n][1])


def _add_product(a: ndarray, b: ndarray, total: ndarray, once: bool) -> None:
    """Write a^T b to total if that is all, else add it."""
    # matmul is slow at columns by rows, as a single query has them.
    product = np.multiply if a.shape[-2] == 1 else np.matmul
    if once:
        product(a.swapaxes(-1, -2), b, out=total)
    else:
        total += product(a.swapaxes(-1, -2), b)


def _add_to_mask(dmask: ndarray, ds: ndarray, at: tuple) -> None:
    """Add the gradient of a block of scores to that of a mask that was broadcast."""
    every = (0 if isinstance(i, int) else slice(None) for i in at)
    target = dmask[tuple(i if n > 1 else j for i, j, n in zip(at, every, dmask.shape))]
    target += sum_to(ds, target.shape)


def in_rows(*arrays: ndarray) -> list[ndarray]:
    """Return the arrays, or copies where a product would find rows in pieces or overlapping."""
    found = []
    for x in arrays:
        row, item = x.strides[-2:]
        fine = item == x.itemsize and (row >= x.shape[-1] * item or x.shape[-2] < 2)
        found.append(x if fine else np.ascontiguousarray(x))
    return found


# ---- ops and kernels


def _heads_inside(shape: tuple[int, ...], dtype: Any) -> ndarray:
    """Return an empty (..., H, T, D) in the memory order (..., T, H, D): merging copies nothing."""
    if len(shape) < 3:
        return np.empty(shape, dtype)
    *lead, h, t, d = shape
    return np.empty((*lead, t, h, d), dtype).swapaxes(-2, -3)


def _mask_gradient(needed: bool, mask: ndarray, axes: int) -> ndarray | None:
    """Return zeros of the mask's shape with so many axes, None if no gradient is needed."""
    if not needed:
        return None
    return np.zeros((1,) * (axes - mask.ndim) + mask.shape, mask.dtype)


@op(saves=True, reference=F.attention.function)
def attention(q, k, v, mask, *, scale, is_causal=False, keep=None, keep_scale=1.0):
    """(softmax(q k^T scale + mask) keep keep_scale) v"""
    out = _heads_inside((*q.shape[:-1], v.shape[-1]), q.dtype)
    settings = dict(scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale)
    return out, attend(q, k, v, mask, out=out, **settings)


@attention.vjp_all
def _attention_vjp(g, y, q, k, v, mask, *, scale, is_causal, keep, keep_scale, saved, needs):
    dq, dk, dv = map(np.empty_like, (q, k, v))  # in their memory order
    dmask = _mask_gradient(needs[3], mask, q.ndim)
    results = dict(dq=dq, dk=dk, dv=dv, dmask=dmask)
    attend_vjp(g, y, v, saved, keep=keep, keep_scale=keep_scale, **results)
    return dq, dk, dv, None if dmask is None else dmask.reshape(mask.shape)


def _heads_of(packed: ndarray, num_heads: int) -> ndarray:
    """(B, T, 3 H D) -> (3, B, H, T, D), a view."""
    b, t, width = packed.shape
    return packed.reshape(b, t, 3, num_heads, width // (3 * num_heads)).transpose(2, 0, 3, 1, 4)


@op(saves=True, reference=F.packed_attention.function)
def packed_attention(packed, mask, *, num_heads, scale, is_causal=False, keep=None, keep_scale=1.0):
    """Self-attention of queries, keys and values side by side: (B, T, 3 H D) -> (B, T, H D)"""
    b, t, width = packed.shape
    y = np.empty((b, t, width // 3), packed.dtype)
    out = y.reshape(b, t, num_heads, -1).swapaxes(1, 2)
    heads = _heads_of(np.ascontiguousarray(packed), num_heads)
    settings = dict(scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale)
    return y, attend(*heads, mask, out=out, **settings)


@packed_attention.vjp_all
def _packed_vjp(g, y, packed, mask, *, num_heads, keep, keep_scale, saved, needs, **_):
    shape = (*y.shape[:2], num_heads, -1)
    dpacked = np.empty(packed.shape, packed.dtype)
    dq, dk, dv = _heads_of(dpacked, num_heads)
    dmask = _mask_gradient(needs[1], mask, 4)
    g, y = (np.ascontiguousarray(x).reshape(shape).swapaxes(1, 2) for x in (g, y))
    v = _heads_of(np.ascontiguousarray(packed), num_heads)[2]
    results = dict(dq=dq, dk=dk, dv=dv, dmask=dmask)
    attend_vjp(g, y, v, saved, keep=keep, keep_scale=keep_scale, **results)
    return dpacked, None if dmask is None else dmask.reshape(mask.shape)


def _usable(mask: Any, *arrays: Any) -> bool:
    """Whether the arrays are ordinary and the mask is boolean or of their dtype."""
    mask = array_of(mask)
    return fits(*arrays) and (mask is None or mask.dtype in (bool, array_of(arrays[0]).dtype))


@kernel(F.attention)
def attention_kernel(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
    """q (..., T, D), k (..., S, D), v (..., S, V) with the same leading axes."""
    if not _usable(mask, q, k, v):
        return NotImplemented
    lead = array_of(q).shape[:-2]
    if array_of(k).shape[:-2] != lead or array_of(v).shape[:-2] != lead:
        return NotImplemented
    if mask is not None and np.broadcast_shapes(lead, array_of(mask).shape[:-2]) != lead:
        return NotImplemented
    return attention(q, k, v, mask, **settings)


@kernel(F.packed_attention)
def packed_kernel(packed: Any, mask: Any = None, **settings: Any) -> Any:
    """packed (B, T, 3 H D)."""
    return packed_attention(packed, mask, **settings) if _usable(mask, packed) else NotImplemented
