"""Chapter 18: rotary positions (Su et al., 2021), and attention with grouped queries (Ainslie et al., 2023).

In a query or key of D numbers neighbours are pairs, (x[0], x[1]), (x[2], x[3]), ... At position t pair i, with i from 0, is
rotated by an angle, the faster the smaller i:

    angle = t * 10000^(-2i / D)
    (a, b) becomes (a cos(angle) - b sin(angle), a sin(angle) + b cos(angle))

Write three functions, without loops: `rotate`; its rule, from g = dL/dy; and `rotary_attention`, softmax(scores) v with queries and
keys rotated, in which no query looks at a later position. Of H query heads the first H / G look at the first head of the keys and
values, the next H / G at the second, and so on.

There are S keys and values, of the positions 0 to S - 1, and T queries, of the last T of them: T is S while a model learns, and 1
when it writes symbol by symbol, with the keys and values kept.

Hints: angles of shape (T, D / 2) broadcast against (B, H, T, D / 2). x[..., 0::2] are the first numbers of all pairs; np.stack with
axis=-1 and a reshape put the two back side by side. Cosines of float64 angles are float64, but a float32 x should stay float32. The
transposed matrix of a rotation is the rotation by the opposite angle. F.scaled_dot_product_attention can share heads (enable_gqa) and
takes a mask, True where a query may look; its is_causal lets query 0 see key 0 only, whatever T and S are.
"""

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F


def rotate(x, *, positions):
    """x: (B, H, T, D), D even; positions: (T,) whole numbers. Returns (B, H, T, D)."""
    return None


def rotate_vjp(g, y, x, *, positions):
    """g, y, x: (B, H, T, D)"""
    return None


# rotate for arrays and Tensors, by your rule: turn(x, positions=...)
turn = ta.op(rotate).vjp(rotate_vjp)


def rotary_attention(q, k, v):
    """q: (B, H, T, D), k: (B, G, S, D), v: (B, G, S, E), not rotated yet, arrays or Tensors. Returns (B, H, T, E)."""
    return None
