"""Chapter 9: attention as a soft look-up.

    scores  = q k^T / sqrt(D)                  how well each query fits each key
    weights = softmax(scores), over the keys   with causal=True, query t gives weight 0 to the keys after t
    output  = weights v                        a weighted mean of the values for each query

Write `attention` with NumPy functions and operators. They also work on Tensors, so you get the
gradient for free, and the marker checks it too.

Hints: k.swapaxes(-1, -2) transposes the last two axes. A blocked score is -np.inf *before* the
softmax. np.tri and np.where are useful. Use the softmax from tinygrad_attn.functional or your own
from chapter 6. Compute the square root with math.sqrt.
"""

import math

import numpy as np

import tinygrad_attn.functional as F


def attention(q, k, v, causal=False):
    """q: (..., T, D), k: (..., S, D), v: (..., S, E), arrays or Tensors; with causal=True, T = S.

    Returns a dict of "scores" (..., T, S), before any mask, "weights" (..., T, S) and "output"
    (..., T, E).
    """
    return None
