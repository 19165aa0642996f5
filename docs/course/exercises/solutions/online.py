"""Chapter 19: attention in linear memory (Milakov and Gimelshein, 2018; Dao et al., 2022), for one head.

For each query, a block of keys gives a partial result with three parts:

    maximum  (T, 1)  the largest score m of the query among these keys, or -inf if it sees none of them
    total    (T, 1)  the sum of e^(score - m), or 0 if it sees none
    result   (T, E)  the sum of e^(score - m) * value, not divided by the total, or 0 if it sees none

Write four functions with NumPy, on arrays:

    part           computes the partial result of a block of keys from their scores and values; a score of -inf is masked
    merge          combines two partial results, from different keys, into the partial result for all these keys
    attention      computes softmax(q k^T / sqrt(D)) v, one block of keys after another, and the log-sum-exp of each query,
                   lse = m + log(total); a query that sees no key gets the output 0 and the lse -inf
    attention_vjp  computes its backward rule: it recomputes each block of weights from lse, as e^(score - lse), and the row sum in the rule
                   of softmax as delta = rowsum(g * y), which is the same for all blocks

With causal=True, there are as many keys as queries (T = S), and query t looks at keys 0 to t.

The last two functions may keep the scores or weights of only `block` keys at a time, so use no array of T x S numbers and no
list of all blocks. The marker measures this. The number of keys need not be a multiple of `block`.

Hints: -inf - -inf is NaN, so where the maximum is -inf, subtract 0. float32 should stay float32. With causal=True, only queries
from `start` on see the keys from `start` on. Skip the other queries, and use np.tri for the mask among the rest.
"""

import math

import numpy as np


def finite(maximum):
    """What may be subtracted: 0 where no key was seen."""
    return np.where(maximum == -np.inf, 0, maximum)


def part(scores, v):
    """scores: (T, N), v: (N, E), for N keys. Returns maximum (T, 1), total (T, 1) and result (T, E)."""
    maximum = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - finite(maximum))
    return maximum, e.sum(axis=-1, keepdims=True), e @ v


def merge(one, two):
    """Merge two partial results. Each is a tuple (maximum, total, result), and so is the returned one."""
    maximum = np.maximum(one[0], two[0])
    a, b = np.exp(one[0] - finite(maximum)), np.exp(two[0] - finite(maximum))
    return maximum, a * one[1] + b * two[1], a * one[2] + b * two[2]


def blocks(q, k, block, causal):
    """For each block of keys: which they are, which queries see them, and the scores of those."""
    for start in range(0, len(k), block):
        keys, rows = slice(start, start + block), slice(start if causal else 0, None)
        scores = q[rows] @ k[keys].T / math.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
        yield keys, rows, scores


def attention(q, k, v, block, causal=False):
    """q: (T, D), k: (S, D), v: (S, E). Returns y (T, E) and lse (T,)."""
    maximum = np.full((len(q), 1), -np.inf, q.dtype)
    total, result = np.zeros_like(maximum), np.zeros((len(q), v.shape[-1]), q.dtype)
    for keys, rows, scores in blocks(q, k, block, causal):
        before = maximum[rows], total[rows], result[rows]
        maximum[rows], total[rows], result[rows] = merge(before, part(scores, v[keys]))
    with np.errstate(divide="ignore"):  # log(0) where no key was seen
        lse = maximum + np.log(total)
    return result / np.where(total == 0, 1, total), lse[:, 0]


def attention_vjp(g, y, lse, q, k, v, block, causal=False):
    """g, y: (T, E), lse: (T,), from attention(q, k, v, block, causal). Returns dq (T, D), dk (S, D), dv (S, E)."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    delta = (g * y).sum(axis=-1, keepdims=True)
    for keys, rows, scores in blocks(q, k, block, causal):
        p = np.exp(scores - lse[rows, None])
        dv[keys] = p.T @ g[rows]
        ds = p * (g[rows] @ v[keys].T - delta[rows]) / math.sqrt(q.shape[-1])
        dq[rows] += ds @ k[keys]
        dk[keys] = ds.T @ q[rows]
    return dq, dk, dv
