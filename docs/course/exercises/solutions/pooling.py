"""Chapter 16: one vector for a sentence.

The encoder gives a vector for each token. Average the vectors of a sentence, without padding, and scale the average to length 1.
The dot product of two such vectors is then their cosine. Write `pool` with NumPy functions, so that it works on Tensors too.

Hints: there[..., None] is (B, S, 1) and multiplies (B, S, E). The length is the root of the sum of squares.
"""

import numpy as np


def pool(tokens, there):
    """tokens: (B, S, E), an array or a Tensor; there: a bool array (B, S), True where there is a token. Returns (B, E)."""
    mean = (tokens * there[..., None]).sum(axis=1) / there.sum(axis=1)[:, None]
    return mean / np.sqrt((mean * mean).sum(axis=-1, keepdims=True))
