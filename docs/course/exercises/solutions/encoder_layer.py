"""Chapter 11: the encoder layer, and a feed-forward net with a gate.

The layer has two sublayers, self-attention and a feed-forward net. Each has a residual connection
and a layer norm. Post-norm (Vaswani et al., 2017) normalises the sum; pre-norm normalises the
input of the sublayer:

    post:  x <- norm(x + sublayer(x))
    pre:   x <- x + sublayer(norm(x))

Write both as `encoder_layer`. The four parts are given as functions.

Many newer models replace the ReLU by a gate (Dauphin et al., 2017). One product decides how much
of another gets through, element by element:

    gated(x, W, V) = sigmoid(x W) * (x V)

Write its three backward rules, which take g = dL/dy. Derive them on paper first, with the steps of
chapter 3. x may have more axes in front, and W and V are shared by all rows of x.

Hint: give the two products names, and the derivative of the sigmoid s is s (1 - s).
"""

import numpy as np


def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):
    """x: (B, T, E) -> (B, T, E).

    attend and norm1 belong to the first sublayer, feed_forward and norm2 to the second.
    """
    if norm_first:
        x = x + attend(norm1(x))
        return x + feed_forward(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + feed_forward(x))


def gated(x, W, V):
    """x: (..., N, E), W, V: (E, M) -> (..., N, M)"""
    return 1 / (1 + np.exp(-(x @ W))) * (x @ V)


def gated_vjp_x(g, y, x, W, V):
    """g, y: (..., N, M). Returns (..., N, E)."""
    s, u = 1 / (1 + np.exp(-(x @ W))), x @ V
    return (g * u * s * (1 - s)) @ W.T + (g * s) @ V.T


def gated_vjp_W(g, y, x, W, V):
    """g, y: (..., N, M). Returns (E, M)."""
    s, u = 1 / (1 + np.exp(-(x @ W))), x @ V
    d = g * u * s * (1 - s)
    return x.reshape(-1, len(W)).T @ d.reshape(-1, W.shape[1])


def gated_vjp_V(g, y, x, W, V):
    """g, y: (..., N, M). Returns (E, M)."""
    s = 1 / (1 + np.exp(-(x @ W)))
    return x.reshape(-1, len(V)).T @ (g * s).reshape(-1, V.shape[1])
