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


def part(scores, v):
    """scores: (T, N), v: (N, E), for N keys. Returns maximum (T, 1), total (T, 1) and result (T, E)."""
    return None


def merge(one, two):
    """Merge two partial results. Each is a tuple (maximum, total, result), and so is the returned one."""
    return None


def attention(q, k, v, block, causal=False):
    """q: (T, D), k: (S, D), v: (S, E). Returns y (T, E) and lse (T,)."""
    return None


def attention_vjp(g, y, lse, q, k, v, block, causal=False):
    """g, y: (T, E), lse: (T,), from attention(q, k, v, block, causal). Returns dq (T, D), dk (S, D), dv (S, E)."""
    return None
