"""Chapter 16: one vector for a sentence.

The encoder returns a vector for each token. Average the vectors of each sentence, without padding, and scale the average to
length 1. The dot product of two such vectors is then the cosine of the angle between them. Write `pool` with NumPy functions, so that it works on Tensors too.

Hints: there[..., None] has the shape (B, S, 1), so you can multiply it by tokens. The length is the square root of the sum of
squares.
"""

import numpy as np


def pool(tokens, there):
    """tokens: (B, S, E), an array or a Tensor; there: a bool array (B, S), True where there is a token. Returns (B, E)."""
    return None
