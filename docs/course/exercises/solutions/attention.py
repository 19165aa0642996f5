"""Chapter 9: attention as a soft look-up.

    scores  = q k^T / sqrt(D)                  how well each query fits each key
    weights = softmax(scores), over the keys   with causal=True, query t gives weight 0 to the keys after t
    output  = weights v                        a weighted mean of the values for each query

Write `attention` with NumPy functions and operators. k.swapaxes(-1, -2) transposes the last two
axes. A blocked score is -np.inf *before* the softmax. np.tri and np.where are useful. Use the
softmax from tinygrad_attn.functional or your own from chapter 6. Compute the square root with
math.sqrt.

Then write four backward rules, which take g = dL/dy. Derive each on paper first, with the steps of
chapter 3.

    scaled(q, k, v, scale)   y = softmax(scale q k^T) v, where one number, the scale, is learned. Only its rule is asked.
    linear(q, k, v)          y_t = sum over s <= t of (q_t . k_s) v_s: causal attention without the softmax
                             (Katharopoulos et al., 2020). All three rules are asked.

Hints: in `scaled`, go backwards through the product with v, the softmax and the scale, one after
another. In `linear`, which y_t contain k_s? np.tri(T) is 1 for s <= t and 0 elsewhere.
"""

import math

import numpy as np

import tinygrad_attn.functional as F


def attention(q, k, v, causal=False):
    """q: (..., T, D), k: (..., S, D), v: (..., S, E), arrays or Tensors; with causal=True, T = S.

    Returns a dict of "scores" (..., T, S), before any mask, "weights" (..., T, S) and "output"
    (..., T, E).
    """
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    allowed = (
        np.tri(*scores.shape[-2:], dtype=bool) if causal else np.ones(scores.shape[-2:], dtype=bool)
    )
    weights = F.softmax(np.where(allowed, scores, -np.inf), axis=-1)
    return {"scores": scores, "weights": weights, "output": weights @ v}


def scaled(q, k, v, scale):
    """q: (T, D), k: (S, D), v: (S, E), scale: one number -> (T, E)"""
    return F.softmax(scale * (q @ k.T)) @ v


def scaled_vjp_scale(g, y, q, k, v, scale):
    """g, y: (T, E). Returns one number."""
    dots = q @ k.T
    weights = F.softmax(scale * dots)
    by_weights = g @ v.T
    by_scores = weights * (by_weights - (by_weights * weights).sum(axis=-1, keepdims=True))
    return (by_scores * dots).sum()


def linear(q, k, v):
    """q, k: (T, D), v: (T, E) -> (T, E)"""
    return (np.tri(len(q)) * (q @ k.T)) @ v


def linear_vjp_q(g, y, q, k, v):
    """g, y: (T, E). Returns (T, D)."""
    return (np.tri(len(q)) * (g @ v.T)) @ k


def linear_vjp_k(g, y, q, k, v):
    """g, y: (T, E). Returns (T, D)."""
    return (np.tri(len(q)) * (g @ v.T)).T @ q


def linear_vjp_v(g, y, q, k, v):
    """g, y: (T, E). Returns (T, E)."""
    return (np.tri(len(q)) * (q @ k.T)).T @ g
