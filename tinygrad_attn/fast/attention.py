"""Attention, softmax(q k^T scale + mask) v, in blocks of heads x rows x columns of the scores.

The scores of a block stay in the cache. Exponentials are computed directly, without subtracting the
maximum, so they can be summed over column blocks. One loop handles short and long sequences. If a
sum of exponentials leaves its range, the rows are recomputed with the maximum subtracted. The
backward pass reads the exponentials that were kept and recomputes the others. So memory grows with
T, not with T S (Rabe and Staats 2021; Dao et al. 2022, appendix B):

    dv = p^T g   dp = g v^T   ds = p (dp - rowsum(g y))   dq = ds k scale   dk = ds^T q scale
"""

import math
from functools import lru_cache, partial, reduce
from itertools import product
from operator import iadd
from typing import NamedTuple

import numpy as np

from ..engine import Op, Parts, array_of, context, kernel, sum_to
from ..engine.bundle import Bundling, bundle, members
from ..functional import attention as equations
from . import tuning
from .blocks import QUIET, in_range, ordinary, row_sums
from .threads import keep_freed, tasks, workers


class Blocks(NamedTuple):
    """How the scores of one call are divided into blocks."""

    heads: list  # for each task, two slices: the entries of the batch and the heads
    rows: list  # slices of the queries
    columns: int  # the most keys in a block
    kept: float  # how many exponentials may be kept for the backward pass


def cut(q, k, v, causal):
    """Divide the scores of q (B, H, T, D) and k (B, H, S, D) into blocks that fit in the cache."""
    (b, heads, t, _), s = q.shape, k.shape[-2]
    scores, block = b * heads * t * s, tuning.ATTENTION_BLOCK
    per_task = max(1, min(block // (t * s), -(-b * heads // workers(scores >= block))))
    columns = min(s, tuning.COLUMNS)
    rows = max(tuning.LEAST_ROWS, block // (columns * per_task) // (2 if causal else 1))
    kept = 0.0
    if context.recording:
        few = t * s <= tuning.KEPT_SCORES and scores * q.itemsize <= tuning.KEPT_BYTES
        results = 2 * q.size + k.size + v.size
        kept = math.inf if few else tuning.TILES_BYTES // q.itemsize - results
    tasks_of_heads = product(pieces(b, max(1, per_task // heads)), pieces(heads, per_task))
    return Blocks(list(tasks_of_heads), pieces(t, rows), columns, kept)


class AttentionCall:
    """One call: q (B, H, T, D), k (B, H, S, D), v (B, H, S, V), mask broadcastable to (B, H, T, S).

    `keep` (B, H, T, S) is True for the weights that dropout keeps. A block is addressed by h (two
    slices for batch and heads), r (its rows, the queries) and c (its columns, the keys).
    """

    def __init__(
        self, q, k, v, mask, *, scale, is_causal=False, keep=None, keep_scale=1, need_weights=False
    ):
        self.q, self.k, self.v = map(in_rows, (q, k, v))
        mask, self.keep, self.causal = with_heads(mask), with_heads(keep), is_causal
        boolean = mask is not None and mask.dtype == bool
        self.may_look, self.bias = (mask, None) if boolean else (None, mask)
        self.scale, self.keep_scale = map(q.dtype.type, (scale, keep_scale))
        self.blocks = cut(self.q, self.k, self.v, is_causal)
        self.room = self.blocks.kept
        self.kept = {}  # exponentials, by (task, first row, first column)
        self.tops = {}  # maxima of rows that needed them, by (task, first row)
        self.reciprocals = np.empty(q.shape[:-1], q.dtype)  # of the sums of exponentials
        self.weights = np.zeros((*q.shape[:-1], k.shape[-2]), q.dtype) if need_weights else None

    # ---- blocks of exponentials

    def scores(self, q, h, r, c):
        """Return the product of scaled queries and keys, plus a float mask."""
        w = np.matmul(q, self.k[(*h, c)].swapaxes(-1, -2))
        if self.bias is not None:
            w += block_of(self.bias, (*h, r, c))
        return w

    def hide(self, w, h, r, c):
        """Set the weights of hidden keys to 0, in place."""
        if self.may_look is not None:
            w *= block_of(self.may_look, (*h, r, c))
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
            visible = np.ones_like(w)
            self.hide(visible, h, r, c)
            w[visible == 0] = -np.inf
            top = np.maximum(top, w.max(-1, keepdims=True))
        return np.where(top == -np.inf, 0, top)

    def columns(self, h, r):
        """Return the blocks of columns up to the last key that these rows see."""
        end = self.k.shape[-2]
        if self.may_look is not None:
            shown = block_of(self.may_look, (*h, r, slice(None))).any(axis=(0, 1, 2))
            end = int(np.flatnonzero(np.broadcast_to(shown, end)).max(initial=0)) + 1
        return pieces(min(end, r.stop) if self.causal else end, self.blocks.columns)

    # ---- both passes

    @np.errstate(**QUIET)
    def forward(self):
        """Compute the output, in the memory order (B, T, H, V): merging heads copies nothing."""
        keep_freed()
        b, heads, t, _ = self.q.shape
        self.output = np.empty((b, t, heads, self.v.shape[-1]), self.q.dtype).swapaxes(1, 2)

        def run(n):
            h = self.blocks.heads[n]
            for r in self.blocks.rows:
                at, columns = (*h, r), self.columns(h, r)
                q = self.q[at] * self.scale
                sums, total = self.add_up(q, n, r, columns, None)
                if not in_range(total, tuning.SMALLEST_SUM, tuning.LARGEST_SUM):
                    top = self.tops[n, r.start] = self.largest(q, h, r, columns)
                    sums, total = self.add_up(q, n, r, columns, top)
                    total[total == 0] = np.inf  # rows that see no key
                self.reciprocals[at] = np.reciprocal(total, out=total)
                total *= self.keep_scale
                np.multiply(sums, total[..., None], out=self.output[at])
                if self.weights is not None:
                    self.weights[at] *= total[..., None]

        tasks(run, len(self.blocks.heads))

    def dropped(self, w, h, r, c):
        """Return the block w with zeros where dropout drops a weight."""
        return w if self.keep is None else w * self.keep[(*h, r, c)]

    def add_up(self, q, n, r, columns, top):
        """Return two sums over keys: of exponentials times values, and of exponentials."""
        h, sums, total = self.blocks.heads[n], [], []
        for c in columns:
            w, place = self.exponentials(q, h, r, c, top), (n, r.start, c.start)
            if self.room >= w.size or place in self.kept:
                self.room -= w.size
                self.kept[place] = w
            total.append(row_sums(w))
            w = self.dropped(w, h, r, c)
            if self.weights is not None:
                self.weights[(*h, r, c)] = w
            sums.append(np.matmul(w, self.v[(*h, c)]))
        return reduce(iadd, sums), reduce(iadd, total)

    @np.errstate(**QUIET)
    def backward(self, g, dweights, dq, dk, dv, dmask):
        """Add the gradients to dq, dk, dv and, unless it is None, dmask; all start as zeros."""
        once = len(self.blocks.rows) == 1

        def run(n):
            h = self.blocks.heads[n]
            for r in self.blocks.rows:
                at, q = (*h, r), self.q[(*h, r)] * self.scale
                reciprocal = self.reciprocals[at][..., None]
                gr = g[at] * reciprocal  # weights are exponentials times these
                delta = np.vecdot(gr, self.output[at])[..., None]
                gr *= self.keep_scale
                if dweights is not None:
                    dw = dweights[at] * reciprocal
                    delta += np.vecdot(dw, self.weights[at])[..., None]
                    dw *= self.keep_scale
                for c in self.columns(h, r):
                    p = self.kept.get((n, r.start, c.start))
                    if p is None:
                        p = self.exponentials(q, h, r, c, self.tops.get((n, r.start)))
                    ds = np.matmul(gr, self.v[(*h, c)].swapaxes(-1, -2))
                    if dweights is not None:
                        ds += dw[..., c]
                    if self.keep is not None:
                        ds *= self.keep[(*at, c)]
                    ds -= delta
                    ds *= p
                    if dmask is not None:
                        target = block_of(dmask, (*at, c))
                        target += sum_to(ds, target.shape)
                    p = self.dropped(p, h, r, c)
                    add_product(p.swapaxes(-1, -2), gr, dv[(*h, c)], once)
                    add_product(ds.swapaxes(-1, -2), q, dk[(*h, c)], once)
                    add_product(ds, self.k[(*h, c)], dq[at], c.start == 0)
                dq[at] *= self.scale

        tasks(run, len(self.blocks.heads), dmask is None)


def with_heads(x):
    """(..., T, D) with at most four axes -> (B, H, T, D), a view."""
    return None if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape)


def in_rows(x):
    """Return x itself, or a copy if the rows of x are not contiguous."""
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def pieces(n, most):
    """Return slices of length `most` or less that cover range(n)."""
    return [slice(i, min(i + most, n)) for i in range(0, n, most)]


def block_of(mask, at):
    """Return a block of a mask, which may have axes of length 1."""
    return mask[tuple(i if n > 1 else slice(None) for i, n in zip(at, mask.shape))]


def add_product(a, b, total, first):
    """Add the product a b to `total`, or overwrite `total` if this is the first product."""
    # matmul is slow for a column times a row, which occurs with a single query.
    multiply = np.multiply if a.shape[-1] == 1 else np.matmul
    if first:
        multiply(a, b, out=total)
    else:
        total += multiply(a, b)


_tri = lru_cache(maxsize=8)(np.tri)


# ---- ops on q, k, v and a mask, or on one array that packs q, k and v, and a mask


def _equation(*inputs, call):
    output, weights = call.equation(*inputs)
    return output if weights is None else bundle(output, weights)


attention = Op(lambda *_inputs, call: call.result, reference=_equation)
attention_and_weights = Bundling(lambda *_inputs, call: np.zeros(()), reference=_equation)


def _attention_vjp(g, y, *inputs, call, needs):  # reads y, whose memory is that of call.output
    g, dweights = (g.get(0), g.get(1)) if isinstance(g, Parts) else (g, None)
    g = np.zeros_like(call.result) if g is None else g
    gradients = [_zeros_of(x) for x in inputs[:-1]]
    dmask = np.zeros_like(inputs[-1]) if needs[-1] else None
    if call.num_heads:
        g = equations.split_heads(g, call.num_heads)
        heads = equations.unpack_heads(gradients[0], call.num_heads)
    else:
        heads = map(with_heads, gradients)
    call.backward(in_rows(with_heads(g)), with_heads(dweights), *heads, with_heads(dmask))
    return *gradients, dmask


def _zeros_of(x):
    """Return zeros in the memory order of x, unless x is broadcast."""
    if x.flags.c_contiguous:
        return np.zeros(x.shape, x.dtype)  # in a tenth of the time
    return np.zeros_like(x, order="C" if 0 in x.strides else "K")


for _op in (attention, attention_and_weights):
    _op.__name__ = "attention"
    _op.vjp_all(_attention_vjp)


def _outputs(call, result, equation, *inputs, **settings):
    """Return the output of a call, and the weights if they are needed, as parts of the graph."""
    call.result, call.equation = result, partial(equation.function, **settings)
    call.num_heads = settings.get("num_heads")
    if call.weights is None:
        return attention(*inputs, call=call), None
    weights = call.weights if call.num_heads else call.weights.reshape(*result.shape[:-1], -1)
    together = attention_and_weights(*inputs, call=call)
    return members(together, [result.copy(), weights.copy()])  # the user may change the arrays


def _fits(mask, scores, q):
    """Return whether the mask is boolean or has q's dtype, and broadcasts to the scores."""
    mask = array_of(mask)
    return mask is None or (
        mask.dtype in (bool, q.dtype) and np.broadcast_shapes(mask.shape, scores) == scores
    )


@kernel(equations.attention)
def attention_kernel(q, k, v, mask=None, **settings):
    """The kernel for q (..., T, D), k (..., S, D), v (..., S, V) with up to two equal lead axes."""
    arrays = ordinary(q, k, v)
    if not arrays or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or q.ndim > 4:
        return NotImplemented
    if not _fits(mask, (*q.shape[:-1], k.shape[-2]), q):
        return NotImplemented
    call = AttentionCall(*map(with_heads, arrays), array_of(mask), **settings)
    call.forward()
    result = call.output.reshape(*q.shape[:-1], -1)
    return _outputs(call, result, equations.attention, q, k, v, mask, **settings)


@kernel(equations.packed_attention)
def packed_kernel(packed, mask=None, *, num_heads, **settings):
    """The kernel for a packed tensor (B, T, 3 H D)."""
    arrays = ordinary(packed)
    if not arrays or not arrays[0].flags.c_contiguous:
        return NotImplemented
    b, t, _ = packed.shape
    if not _fits(mask, (b, num_heads, t, t), packed):
        return NotImplemented
    call = AttentionCall(*equations.unpack_heads(arrays[0], num_heads), array_of(mask), **settings)
    call.forward()
    result, settings["num_heads"] = equations.merge_heads(call.output), num_heads
    return _outputs(call, result, equations.packed_attention, packed, mask, **settings)
