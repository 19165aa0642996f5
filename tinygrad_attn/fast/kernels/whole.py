"""Attention that keeps its weights, for sequences short enough: softmax(q k^T scale) v, a
cache-sized block at a time.

The work is cut over batch and heads into blocks whose T x S scores fit the processor's cache, so
that the several passes over them (product, scale, exponential, row sum, division, product) do not
go to memory. Blocks are shared out over threads, but not in a model of so few rows that its
products are left to the matrix library: its threads still spin on the other cores, and an encoder
layer on one sequence of 256 tokens, 64 wide, took 2.3 ms beside them and takes 1.5 alone. Under a
causal mask a block is cut once more, into strips of rows, and what lies right of a strip's last row
is left out. What is done to a row is done to the scores, which lie contiguous, and not to the T x D
numbers of a head, which are fewer but lie in short rows with gaps between. Backward, for the
weights p, reads (Dao et al. 2022, appendix B)

    dv = p^T g   dp = g v^T   ds = p * (dp - rowsum(g * out))   dq = ds k scale   dk = ds^T q scale
"""

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, tasks
from .linear import left_to_library
from .scores import QUIET, SUMMED, Mask, accumulate, in_range, ones, row_maximum, scaled, transposed

# scores in a block, half a megabyte of float32; with several threads up to twice, at least half
# as many
BLOCK = 1 << 17
BIG = 1 << 17  # scores in all, from where a second thread is worth its start
# rows of a strip at least: so many that it holds half a block of scores, with several threads a
# block
STRIP = 128


class Cut(NamedTuple):
    """How the work was cut up."""

    blocks: list[tuple[slice, ...]]  # over the leading axes
    strips: list[tuple[slice, slice]]  # rows, and the columns that they look at
    shared: bool  # by several threads?


class Whole(NamedTuple):
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
    return side_by_side and left_to_library(
        math.prod(lead[:-1]) * length, 4 * (lead[-1] * depth) ** 2
    )  # feed-forward's weight


def _cut(q: ndarray, k: ndarray, causal: bool) -> Cut:
    *lead, rows, _ = q.shape
    columns, heads, scores = k.shape[-2], math.prod(lead), rows * k.shape[-2]
    big = heads * scores >= BIG
    threads = 1 if big and _beside_library(q) else get_num_threads()
    if not big:
        at_once, cut = heads, [(slice(None),) * len(lead)]
    else:
        share = -(-heads // threads)
        at_once = (
            BLOCK // scores
            if threads == 1
            else min(2 * BLOCK // scores, max(BLOCK // 2 // scores, share))
        )
        at_once = max(1, at_once)
        cut = blocks(tuple(lead), at_once)
    height = (
        max(STRIP, (BLOCK if threads > 1 else BLOCK // 2) // (at_once * columns))
        if causal
        else rows
    )
    strips = [
        (slice(max(0, end - height), end), slice(0, columns if end == rows else min(end, columns)))
        for end in range(rows, 0, -height)
    ]  # the last rows, which see the most, come first, with all columns
    return Cut(cut, strips, big and threads > 1)


def _turned(x: ndarray, rows: int) -> ndarray:
    """x^T as the right side of a product with so many rows: copied if that is faster, which it is
    for narrow x only.
    """
    return transposed(x) if rows > 8 and x.shape[-1] < 64 else x.swapaxes(-1, -2)


def _sums(weights: ndarray, one: ndarray) -> ndarray:
    """The sum of each row: one product, where `weights @ one` makes one for each head."""
    if len(one) >= SUMMED:
        return weights.sum(-1)
    return weights.reshape(-1, len(one)).dot(one).reshape(weights.shape[:-1])


@np.errstate(**QUIET)
def forward(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    mask: Mask,
    scale: float,
    keep: ndarray | None,
    keep_scale: float,
    out: ndarray,
) -> Whole:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv)."""
    length, one, factor = q.shape[-2], ones(k.shape[-2], q.dtype), q.dtype.type(scale * mask.unit)
    cut = _cut(q, k, mask.causal)
    saved: list[list[ndarray]] = [[] for _ in cut.blocks]

    def run(n: int) -> None:
        at = cut.blocks[n]
        turned = _turned(k[at], length)
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
                np.matmul(weights, values, out=result)
            else:
                np.multiply(
                    weights * keep[(*at, rows, columns)] @ values,
                    q.dtype.type(keep_scale),
                    out=result,
                )

    tasks(run, len(cut.blocks), cut.shared)
    return Whole(cut, saved)


@np.errstate(under="ignore")
def backward(
    g: ndarray,
    out: ndarray,
    q: ndarray,
    k: ndarray,
    v: ndarray,
    saved: Whole,
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
        turned = _turned(v[at], length)
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

    tasks(
        run, len(cut.blocks), cut.shared and dmask is None
    )  # blocks may add to the same entries of dmask


def _add(a: ndarray, b: ndarray, total: ndarray, first: bool) -> None:
    """total <- a b if it is the first share, total + a b otherwise."""
    if not first:
        total += a @ b
    elif a.shape[-1] == 1:  # of a single query: columns by rows, which `matmul` is slow at
        np.multiply(a, b, out=total)
    else:
        np.matmul(a, b, out=total)


def weights(q: ndarray, k: ndarray, saved: Whole) -> ndarray:
    """The normalised weights, (..., T, S)."""
    w = np.zeros((*q.shape[:-1], k.shape[-2]), q.dtype)
    for at, block in zip(saved.cut.blocks, saved.weights, strict=True):
        for (rows, columns), part in zip(saved.cut.strips, block, strict=True):
            w[(*at, rows, columns)] = part
    return w
