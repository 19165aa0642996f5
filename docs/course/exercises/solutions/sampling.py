"""Chapter 15: from scores to the next character.

Always taking the likeliest character makes dull text that goes in circles. So the next character is drawn at random from

    softmax(scores / temperature), among the k best scores only

A temperature below 1 sharpens the probabilities, one above 1 flattens them. Write `probabilities`, so that a temperature of 0.001
does not overflow (chapter 6).

Hint: np.sort(scores, axis=-1)[:, -k] is each row's k-th best score; set every score below it to -np.inf.
"""

import numpy as np


def probabilities(scores, temperature, k):
    """scores: an array (B, V) -> probabilities (B, V); all but the k best of each row are 0."""
    bound = np.sort(scores, axis=-1)[:, -k][:, None]
    kept = np.where(scores >= bound, scores / temperature, -np.inf)
    e = np.exp(kept - kept.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
