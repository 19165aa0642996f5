"""Chapter 11: the encoder layer.

The layer has two sublayers, self-attention and a feed-forward net. Each has a residual connection
and a layer norm. Post-norm (Vaswani et al., 2017) normalises the sum; pre-norm normalises the input
of the sublayer:

    post:  x <- norm(x + sublayer(x))
    pre:   x <- x + sublayer(norm(x))

Write both. The four parts are given as functions.
"""


def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):
    """x: (B, T, E) -> (B, T, E).

    attend and norm1 belong to the first sublayer, feed_forward and norm2 to the second.
    """
    return None
