"""The digits model on several processes: `mpiexec -n 2 python examples/data_parallel.py`.

Without MPI, the same file runs as one process: `python examples/data_parallel.py`. For any number of
ranks, a batch has 64 images in total, and the result is the same up to rounding. Comments mark the
lines that turn a program for one process into a program for many.

You need scikit-learn for the images, and mpi4py and an MPI library for more than one process:
`pip install 'tinygrad_attn[examples,parallel]'`.
"""

import os
import sys
import time
from importlib.util import find_spec

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim, parallel

if find_spec("sklearn") is None:
    print("skipped: scikit-learn is not installed (pip install scikit-learn)")
    sys.exit()

from sklearn.datasets import load_digits

EPOCHS = 1 if "TINYGRAD_ATTN_QUICK" in os.environ else 10
BATCH = 64
PATCH = 2


class Digits(nn.Module):
    """(B, 16, 4), sixteen patches of 2 x 2 pixels, -> (B, 10)"""

    def __init__(self, width=64, heads=4, layers=2):
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.positions = nn.LearnedPositionalEncoding(16, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width))
        self.classify = nn.Linear(16 * width, 10)

    def forward(self, x):
        x = self.encoder(self.positions(self.embed(x)))  # (B, 16, E)
        return self.classify(x.reshape(len(x), -1))  # (B, 10)


def load():
    """Return patches (N, 16, 4) and digits (N,)."""
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 4, PATCH, 4, PATCH)
    return images.swapaxes(2, 3).reshape(-1, 16, PATCH * PATCH), digits


def main():
    # Every rank has a number; only rank 0 prints.
    first, ranks = parallel.rank() == 0, parallel.world_size()
    x, y = load()
    train, test = slice(0, 1437), slice(1437, None)

    ta.manual_seed(0)
    # Wrap the model: all ranks start with rank 0's weights, and backward() averages gradients.
    model = parallel.DataParallel(Digits())
    # This replaces AdamW: each rank keeps a part of the optimiser's state.
    optimizer = parallel.ShardedAdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    # This replaces a permutation: it picks this rank's samples.
    sampler = parallel.DistributedSampler(1437)
    steps = EPOCHS * -(-1437 // BATCH)
    schedule = optim.warmup_cosine(optimizer, warmup_steps=steps // 10 or 1, total_steps=steps)
    begun = time.perf_counter()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses, samples = 0.0, 0
        for indices, weight, own in sampler.batches(BATCH):
            loss = F.cross_entropy(model(x[train][indices]), y[train][indices])
            optimizer.zero_grad()
            (
                weight * loss
            ).backward()  # the weight is 1 if all ranks have the same number of samples
            parallel.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses, samples = losses + own * loss.item(), samples + own
        # This is the mean over all ranks. Every rank must make this call, even if it prints nothing.
        mean = parallel.mean(losses / max(samples, 1), weight=samples)
        if first:
            print(f"epoch {epoch + 1}: loss {mean:.4f}", flush=True)

    mine = slice(test.start + parallel.rank(), None, ranks)
    with ta.no_grad():
        right = int((model(x[mine]).numpy().argmax(axis=1) == y[mine]).sum())
    share = parallel.total(right) / len(y[test])
    if first:
        seconds = time.perf_counter() - begun
        many = "1 rank" if ranks == 1 else f"{ranks} ranks"
        print(f"{many}: {100 * share:.1f} % of 360 unseen images right, {seconds:.0f} s")


if __name__ == "__main__":
    main()
