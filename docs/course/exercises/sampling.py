"""Chapter 15: from scores to the next character.

The likeliest character every time makes dull text that runs in circles. So the next one is drawn at random from

    softmax(scores / temperature), among the k best scores only

A temperature below 1 sharpens, above 1 flattens. Write `probabilities`, such that a temperature of 0.001 is no trouble: chapter 6.

Hint: np.sort(scores, axis=-1)[:, -k] is each row's k-th best score; set what is below it to -np.inf.
"""

import numpy as np


def probabilities(scores, temperature, k):
    """scores: an array (B, V) -> probabilities (B, V); all but the k best of each row are 0."""
    return None
