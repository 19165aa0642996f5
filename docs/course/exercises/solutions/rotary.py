"""Chapter 18: rotary positions (Su et al., 2021), and attention with grouped queries (Ainslie et al., 2023).

The D numbers of a query or key form pairs of neighbours, (x[0], x[1]), (x[2], x[3]), ... At position t, pair i (counted from 0) is
rotated by an angle. Pairs with a small i turn faster:

    angle = t * 10000^(-2i / D)
    (a, b) becomes (a cos(angle) - b sin(angle), a sin(angle) + b cos(angle))

Write three functions without loops: `rotate`, its backward rule for g = dL/dy, and `rotary_attention`, which computes softmax(scores) v with
rotated queries and keys. No query looks at a later position. Of H query heads, the first H / G look at the first head of the keys
and values, the next H / G at the second, and so on.

There are S keys and values, at positions 0 to S - 1, and T queries, at the last T of these positions. T = S during training. T = 1
when a model writes symbol by symbol with a cache of keys and values.

Hints: angles of shape (T, D / 2) broadcast against (B, H, T, D / 2). x[..., 0::2] selects the first number of each pair. np.stack
with axis=-1 and a reshape put the two numbers of each pair back side by side. Cosines of float64 angles are float64, but a float32 x should stay
float32. The transpose of a rotation matrix is the rotation by the opposite angle. F.scaled_dot_product_attention can share heads
(enable_gqa) and takes a mask that is True where a query may look. Its is_causal lets query 0 see only key 0, whatever T and S are.
"""

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F


def rotate(x, *, positions):
    """x: (B, H, T, D), D even; positions: (T,) whole numbers. Returns (B, H, T, D)."""
    size = x.shape[-1]
    angles = positions[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def rotate_vjp(g, y, x, *, positions):
    """g, y, x: (B, H, T, D)"""
    return rotate(g, positions=-positions)


# rotate for arrays and Tensors, with your backward rule: turn(x, positions=...)
turn = ta.op(rotate).vjp(rotate_vjp)


def rotary_attention(q, k, v):
    """q: (B, H, T, D), k: (B, G, S, D), v: (B, G, S, E), not rotated yet, arrays or Tensors. Returns (B, H, T, E)."""
    queries, keys = q.shape[-2], k.shape[-2]
    q = turn(q, positions=np.arange(keys - queries, keys))
    k = turn(k, positions=np.arange(keys))
    allowed = np.tri(queries, keys, keys - queries, dtype=bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
