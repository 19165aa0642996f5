"""Chapter 15: from scores to the next character.

If a model always chooses the likeliest character, its text is dull and goes in circles. So the next character is drawn at random
from the characters with the k best scores, with the probabilities

    softmax(scores / temperature)

A temperature below 1 sharpens the probabilities, and a temperature above 1 flattens them. Write `probabilities`. A temperature of
0.001 must not cause an overflow (see chapter 6).

Hint: np.sort(scores, axis=-1)[:, -k] is the k-th best score of each row. Set every score below it to -np.inf.
"""

import numpy as np


def probabilities(scores, temperature, k):
    """scores: an array (B, V) -> probabilities (B, V); all but the k best of each row are 0."""
    bound = np.sort(scores, axis=-1)[:, -k][:, None]
    kept = np.where(scores >= bound, scores / temperature, -np.inf)
    e = np.exp(kept - kept.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
