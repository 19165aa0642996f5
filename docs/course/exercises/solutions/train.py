"""Chapter 13: a training loop for batches that do not fit into memory.

A large batch comes as a group of small parts, which need not be equally long. Only one part is in
memory at a time, with its graph. Write `train`. For each group, take one step of the optimizer,
with the gradient of the mean loss over all samples of the group, as if the group were one batch.

Hints: .grad accumulates from one backward() to the next. F.cross_entropy is the mean over the
samples of its part. Write the mean over all samples as a sum over the parts, and see by which
factor each part's mean is multiplied.
"""

import tinygrad_attn.functional as F


def train(model, optimizer, groups):
    """Train once on each of `groups`, lists of pairs (x, y): inputs (B, ...) for the model and class numbers (B,).

    Returns a list of plain numbers: for each group, the mean loss over its samples before the step.
    """
    losses = []
    for group in groups:
        samples = sum(len(y) for _, y in group)
        optimizer.zero_grad()
        total = 0.0
        for x, y in group:
            loss = F.cross_entropy(model(x), y) * (len(y) / samples)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses
