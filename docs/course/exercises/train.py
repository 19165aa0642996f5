"""Chapter 13: the training loop.

For each batch: scores from the model, their cross-entropy, its gradient, one step of the optimizer. Write `train`.

Hint: .grad adds up from one backward() to the next.
"""

import tinygrad_attn.functional as F


def train(model, optimizer, batches):
    """One round through `batches`, a list of pairs (x, y): inputs (B, ...) for the model and class numbers (B,).

    Returns the loss of each batch, measured before its step: a list of plain numbers (loss.item()).
    """
    return None
