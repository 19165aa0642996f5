"""Exact scaled dot-product attention on arrays, softmax(q k^T scale + mask) v, and its gradients.

Two kernels give the same numbers. The one in this module keeps the weights of all T x S scores for
the backward pass and is faster while they are few; `tiled` keeps one number a row and computes the
rest again, and its memory grows with T alone. Which one runs is decided here, by size, and so is
how many weights `tiled` keeps after all: those for which a short sequence has room in the memory
that a longer one takes without. Leading axes (batch, heads, ...) are free; q, k, v may be strided
views, for instance of one packed projection (B, T, 3, H, D), and results may be written into such
views through `out`, `dq`, `dk`, `dv`.

A softmax subtracts the largest score of each row so that no exponential overflows. That costs two
passes over T x S numbers and almost never matters, because scores are small. So both kernels are
optimistic: they take exponentials as the scores come, look at the row sums (which they need
anyway), and only if a sum has left [1e-15, 1e15] do they go back and subtract the maximum. In
float32 the exponential may be 2^x (see `elementwise`), with log2(e) folded into the scale. A
boolean mask multiplies the exponentials by 0 or 1; a float mask is added to the scores, where -inf
is slow in 2^x, so then e^x it is.

The work of the kernel here is cut over batch and heads into blocks whose T x S scores fit the
processor's cache, so that the several passes over them (product, scale, exponential, row sum,
division, product) do not go to memory. Blocks are shared out over threads, but not in a model of so
few rows that its products are left to the matrix library: its threads still spin on the other
cores, and an encoder layer on one sequence of 256 tokens, 64 wide, took 2.3 ms beside them and
takes 1.5 alone. Under a causal mask a block is cut once more, into strips of rows, and what lies
right of a strip's last row is left out. What is done to a row is done to the scores, which lie
contiguous, and not to the T x D numbers of a head, which are fewer but lie in short rows with gaps
between. Backward, for the weights p, reads (Dao et al. 2022, appendix B)

    dv = p^T g   dp = g v^T   ds = p * (dp - rowsum(g * out))   dq = ds k scale   dk = ds^T q scale
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from .. import tuning
from ..threads import get_num_threads, tasks
from . import tiled
from .elementwise import EXP, UNIT
from .products import left_to_library, weighted_sums
from .rows import ALL, QUIET, accumulate, in_range, ones, row_maximum, scaled

# ---- which kernel


class Saved(NamedTuple):
    """What one attention call leaves for its gradient."""

    state: Kept | tiled.Tiled | None  # None: there is nothing to compute, some axis has length 0
    mask: Mask


def _worth_keeping(shape: tuple[int, ...], causal: bool, itemsize: int) -> bool:
    """Should all weights be kept, for scores of this shape?"""
    heads, (rows, columns) = math.prod(shape[:-2]), shape[-2:]
    kept = columns * (rows + min(rows, tuning.CAUSAL_STRIP)) / 2 if causal else columns * rows
    return (
        kept <= tuning.KEPT_ALWAYS
        or kept <= tuning.KEPT_SCORES
        and heads * kept * itemsize <= tuning.KEPT_BYTES
    )


def _in_rows(*arrays: ndarray) -> list[ndarray]:
    """Each array, or a copy of it where a matrix product would find its rows in pieces or on top of
    each other, and be slow.
    """
    found = []
    for x in arrays:
        *_, row, item = x.strides
        fits = item == x.itemsize and (row >= x.shape[-1] * item or x.shape[-2] < 2)
        found.append(x if fits else np.ascontiguousarray(x))
    return found


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
    q, k, v = _in_rows(q, k, v)
    shape = (*q.shape[:-1], k.shape[-2])
    seen = Mask(mask, causal, shape, q.dtype)
    if out is None:
        out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    if 0 in shape or v.shape[-1] == 0:
        out[...] = 0
        return out, Saved(None, seen)
    if _worth_keeping(shape, causal, q.itemsize):
        return out, Saved(keep_weights(q, k, v, seen, scale, keep, keep_scale, out), seen)
    taken = out.size + q.size + k.size + v.size
    room = min(tuning.TILES_ROOM // q.itemsize - taken, math.prod(shape)) if recorded else 0
    tiles = tiled.forward(q, k, v, seen, scale, keep, keep_scale, out, max(0, room))
    return out, Saved(tiles, seen)


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
    g, q, k, v = _in_rows(g, q, k, v)
    dq = np.empty(q.shape, q.dtype) if dq is None else dq
    dk = np.empty(k.shape, k.dtype) if dk is None else dk
    dv = np.empty(v.shape, v.dtype) if dv is None else dv
    dmask = None
    if mask_shape is not None:
        dmask = np.zeros((1,) * (q.ndim - len(mask_shape)) + tuple(mask_shape), q.dtype)
    state = saved.state
    if isinstance(state, Kept):
        keep_weights_backward(g, out, q, k, v, state, scale, keep, keep_scale, dq, dk, dv, dmask)
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
    q, k = _in_rows(q, k)
    shape = (*q.shape[:-1], k.shape[-2])
    if 0 in shape:
        return np.zeros(shape, q.dtype)
    seen = Mask(mask, causal, shape, q.dtype)
    if not _worth_keeping(shape, causal, q.itemsize):
        return tiled.weights(q, k, seen, scale)
    sums, one = np.empty((*shape[:-1], 1), q.dtype), np.ones((*k.shape[:-1], 1), q.dtype)
    return kept_weights(q, k, keep_weights(q, k, one, seen, scale, None, 1.0, sums))


# ---- masks


class Mask:
    """Which scores count and what is added to them, for any block of a (..., T, S) matrix that is
    never built.
    """

    def __init__(self, mask: ndarray | None, causal: bool, shape: tuple[int, ...], dtype: np.dtype):
        self.causal, self.keep, self.bias = causal, None, None
        if mask is not None and mask.dtype == bool:
            # Multiplying by floats is faster, but a copy of T x S floats is not.
            small = mask.size <= tuning.MASK_OF_FLOATS
            self.keep = np.broadcast_to(mask.astype(dtype) if small else mask, shape)
        elif mask is not None:
            self.bias = np.broadcast_to(mask.astype(dtype, copy=False), shape)
        self.multiplies = causal or self.keep is not None
        self.dtype = dtype
        by_two = dtype == np.float32 and self.bias is None
        self.exp, self.unit = (EXP, UNIT) if by_two else (np.exp, 1.0)

    def add(self, scores: ndarray, at: tuple, rows: slice = ALL, columns: slice = ALL) -> None:
        """Scores become scores + float mask, in place."""
        if self.bias is not None:
            scores += self.bias[(*at, rows, columns)]

    def multiply(
        self, weights: ndarray, at: tuple, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        """Weights of keys that may not be looked at become 0, in place."""
        if self.keep is not None:
            weights *= self.keep[(*at, rows, columns)]
        if self.causal:
            first_hidden = (rows.start or 0) - (columns.start or 0) + 1  # from the first row
            hidden = weights[..., first_hidden:]
            height, width = hidden.shape[-2:]
            if width:
                few = height * width <= tuning.KEPT_VECTOR
                triangle = _below_diagonal if few else _below_diagonal.__wrapped__
                hidden *= triangle(height, width, self.dtype)

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

    def hide(self, scores: ndarray, at: tuple, rows: slice = ALL, columns: slice = ALL) -> None:
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


# ---- the kernel that keeps all weights


class Cut(NamedTuple):
    """How the work was cut up."""

    blocks: list[tuple[slice, ...]]  # over the leading axes
    strips: list[tuple[slice, slice]]  # rows, and the columns that they look at
    shared: bool  # by several threads?


class Kept(NamedTuple):
    """What backward needs: softmax(scores), 0 where masked and in a row that sees nothing."""

    cut: Cut
    weights: list[list[ndarray]]  # of each block each strip, (..., rows, columns)


def blocks(lead: tuple[int, ...], most: int) -> list[tuple[slice, ...]]:
    """Index tuples that cover leading axes of lengths `lead` in blocks of at most `most` items."""
    axis, inside = len(lead), 1
    while axis and inside * lead[axis - 1] <= most:  # axes from here on are taken whole
        axis -= 1
        inside *= lead[axis]
    if axis == 0:
        return [(slice(None),) * len(lead)]
    axis -= 1  # this one is cut into equal runs, those before it into single items
    runs = -(-lead[axis] // max(1, most // inside))
    cut = [lead[axis] * i // runs for i in range(runs + 1)]
    return [
        (*(slice(i, i + 1) for i in outer), slice(lo, hi), *(slice(None),) * (len(lead) - axis - 1))
        for outer in np.ndindex(lead[:axis])
        for lo, hi in zip(cut[:-1], cut[1:])
    ]


def _beside_library(q: ndarray) -> bool:
    """Were these heads cut from the rows of a projection (..., T, H D) so small that it is left to
    the matrix library's threads?
    """
    *lead, length, depth = q.shape
    side_by_side = len(lead) > 0 and q.strides[-3] < q.strides[-2]
    if not side_by_side:
        return False
    feed_forward = 4 * (lead[-1] * depth) ** 2  # the size of its weight
    return left_to_library(math.prod(lead[:-1]) * length, feed_forward)


def _cut(q: ndarray, k: ndarray, causal: bool) -> Cut:
    *lead, rows, _ = q.shape
    columns, heads = k.shape[-2], math.prod(lead)
    scores, block = rows * columns, tuning.ATTENTION_BLOCK
    big = heads * scores >= tuning.SHARED_ATTENTION
    threads = 1 if not (big or causal) or big and _beside_library(q) else get_num_threads()
    at_once, cut = heads, [(slice(None),) * len(lead)]
    if big:
        at_once = block // scores
        if threads > 1:
            at_once = min(2 * block // scores, max(block // 2 // scores, -(-heads // threads)))
        at_once = max(1, at_once)
        cut = blocks(tuple(lead), at_once)
    strips = [(slice(0, rows), slice(0, columns))]
    if causal:
        height = (block if threads > 1 else block // 2) // (at_once * columns)
        height = max(tuning.CAUSAL_STRIP, height)
        # The last rows, which see the most, come first, with all columns.
        strips = [
            (
                slice(max(0, end - height), end),
                slice(0, columns if end == rows else min(end, columns)),
            )
            for end in range(rows, 0, -height)
        ]
    return Cut(cut, strips, big and threads > 1)


def _for_each(run: Callable[[int], None], blocks: int, shared: bool) -> None:
    """Do each block, on several threads if they are shared out."""
    if shared:
        tasks(run, blocks)
    else:
        for n in range(blocks):
            run(n)


def _sums(weights: ndarray, one: ndarray) -> ndarray:
    """The sum of each row: one product, where `weights @ one` makes one for each head."""
    if len(one) >= tuning.SUMMED_BY_PRODUCT:
        return weights.sum(-1)
    return weights.reshape(-1, len(one)).dot(one).reshape(weights.shape[:-1])


@np.errstate(**QUIET)
def keep_weights(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    mask: Mask,
    scale: float,
    keep: ndarray | None,
    keep_scale: float,
    out: ndarray,
) -> Kept:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv)."""
    one, factor = ones(k.shape[-2], q.dtype), q.dtype.type(scale * mask.unit)
    cut = _cut(q, k, mask.causal)
    saved: list[list[ndarray]] = list(map(list, [()] * len(cut.blocks)))

    def run(n: int) -> None:
        at = cut.blocks[n]
        turned = k[at].swapaxes(-1, -2)
        for rows, columns in cut.strips:
            queries, keys, values, result = (
                q[(*at, rows)],
                turned[..., columns],
                v[(*at, columns)],
                out[(*at, rows)],
            )
            weights = queries @ keys
            weights *= factor
            mask.add(weights, at, rows, columns)
            mask.exp(weights, out=weights)
            total = unmasked = _sums(weights, one[columns])
            if mask.multiplies:
                mask.multiply(weights, at, rows, columns)
                total = _sums(weights, one[columns])
            if not in_range(total, unmasked):
                np.matmul(scaled(queries, scale), keys, out=weights)
                mask.add(weights, at, rows, columns)
                mask.hide(weights, at, rows, columns)
                weights -= row_maximum(weights)
                np.exp(weights, out=weights)
                total = _sums(weights, one[columns])
                total[total == 0] = np.inf
            weights *= np.reciprocal(total, out=total)[..., None]
            saved[n].append(weights)
            if keep is None:
                weighted_sums(weights, values, result)
            else:
                np.multiply(
                    weights * keep[(*at, rows, columns)] @ values,
                    q.dtype.type(keep_scale),
                    out=result,
                )

    _for_each(run, len(cut.blocks), cut.shared)
    return Kept(cut, saved)


@np.errstate(under="ignore")
def keep_weights_backward(
    g: ndarray,
    out: ndarray,
    q: ndarray,
    k: ndarray,
    v: ndarray,
    saved: Kept,
    scale: float,
    keep: ndarray | None,
    keep_scale: float,
    dq: ndarray,
    dk: ndarray,
    dv: ndarray,
    dmask: ndarray | None,
) -> None:
    """dq, dk, dv <- gradients; dmask, if given, is added to and has the mask's shape with as many
    axes as the scores.
    """
    length, factor, cut = q.shape[-2], q.dtype.type(scale), saved.cut

    def run(n: int) -> None:
        at = cut.blocks[n]
        turned = v[at].swapaxes(-1, -2)
        for (rows, columns), weights in zip(cut.strips, saved.weights[n], strict=True):
            here, there = (*at, rows), (*at, columns)
            kept, gn = weights, g[here]
            delta = np.vecdot(gn, out[here])[..., None]
            if keep is not None:
                kept = weights * keep[(*at, rows, columns)]
                gn = gn * gn.dtype.type(keep_scale)
            _add(kept.swapaxes(-1, -2), gn, dv[there], rows.stop == length)
            if dmask is None:  # scaling T x D numbers is cheaper than T x S
                gn = gn * factor
                delta *= factor
            ds = gn @ turned[..., columns]
            if keep is not None:
                ds *= keep[(*at, rows, columns)]
            ds -= delta
            ds *= weights
            if dmask is not None:
                accumulate(dmask, ds, at, rows, columns)
                ds *= factor
            np.matmul(ds, k[there], out=dq[here])
            _add(ds.swapaxes(-1, -2), q[here], dk[there], rows.stop == length)

    # Several blocks may add to the same entries of dmask.
    _for_each(run, len(cut.blocks), cut.shared and dmask is None)


def _add(a: ndarray, b: ndarray, total: ndarray, first: bool) -> None:
    """total <- a b if it is the first share, total + a b otherwise."""
    if not first:
        total += a @ b
    elif a.shape[-1] == 1:  # of a single query: columns by rows, which `matmul` is slow at
        np.multiply(a, b, out=total)
    else:
        np.matmul(a, b, out=total)


def kept_weights(q: ndarray, k: ndarray, saved: Kept) -> ndarray:
    """The normalised weights, (..., T, S)."""
    w = np.zeros((*q.shape[:-1], k.shape[-2]), q.dtype)
    for at, block in zip(saved.cut.blocks, saved.weights, strict=True):
        for (rows, columns), part in zip(saved.cut.strips, block, strict=True):
            w[(*at, rows, columns)] = part
    return w
