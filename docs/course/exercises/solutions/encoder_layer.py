"""Chapter 11: the encoder layer.

Two sublayers, self-attention and a feed-forward net, each with a residual connection and a layer norm. Post-norm, as in Vaswani
et al., 2017, normalises the sum; pre-norm normalises what goes into the sublayer:

    post:  x <- norm(x + sublayer(x))
    pre:   x <- x + sublayer(norm(x))

Write both. The four parts are given as functions.
"""


def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):
    """x: (B, T, E) -> (B, T, E). attend and norm1 are the first sublayer's, feed_forward and norm2 the second's."""
    if norm_first:
        x = x + attend(norm1(x))
        return x + feed_forward(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + feed_forward(x))
