"""Chapter 9: attention as a soft look-up.

    scores  = q k^T / sqrt(D)                  how well each query fits each key
    weights = softmax(scores), over the keys   with causal=True, query t has weight 0 for the keys after t
    output  = weights v                        each query's mixture of the values

Write `attention` with NumPy functions and operators; they work on tensors, so its gradient comes for nothing, and is checked.

Hints: the transpose of the last two axes is k.swapaxes(-1, -2). A blocked score is -np.inf *before* the softmax. np.tri and
np.where are handy; tinygrad_attn.functional has softmax, and so have you, in chapter 6. Take the root with math.sqrt.
"""

import math

import numpy as np

import tinygrad_attn.functional as F


def attention(q, k, v, causal=False):
    """q: (..., T, D), k: (..., S, D), v: (..., S, E), arrays or Tensors; with causal=True T = S.

    Returns a dict of "scores" (..., T, S), before any mask, "weights" (..., T, S) and "output" (..., T, E).
    """
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    allowed = (
        np.tri(*scores.shape[-2:], dtype=bool) if causal else np.ones(scores.shape[-2:], dtype=bool)
    )
    weights = F.softmax(np.where(allowed, scores, -np.inf), axis=-1)
    return {"scores": scores, "weights": weights, "output": weights @ v}
