"""The model and the training loop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import functional as F
from ... import nn, no_grad, optim
from ...random import manual_seed
from ...tensor import Tensor
from .digits import CLASSES, PATCH_NUMBERS, TOKENS, Split, patches, wiggle

BATCH = 64


class DigitClassifier(nn.Module):
    """A Transformer that maps 16 patches to the scores of ten digits, (B, 16, 4) -> (B, 10)."""

    def __init__(self) -> None:
        self.embed = nn.Linear(PATCH_NUMBERS, 64)
        self.positions = nn.LearnedPositionalEncoding(TOKENS, 64)
        # The std is large, because the position of a stroke matters as much as its shape.
        nn.init.normal_(self.positions.weight, std=0.5)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(64))
        self.classify = nn.Linear(TOKENS * 64, CLASSES)

    def forward(self, x: Any) -> Tensor:
        x = self.encoder(self.positions(self.embed(x)))  # (B, 16, E)
        return self.classify(x.reshape(len(x), -1))  # (B, 10)


@dataclass
class Run:
    """One training run: the model, and its losses and accuracies along the way."""

    split: Split
    model: DigitClassifier
    losses: list[float]  # one per update
    accuracies: list[float]  # one per epoch, on test images, in %
    seconds: float = 0.0


def predict(model: DigitClassifier, images: np.ndarray) -> np.ndarray:
    """Return the probabilities of the ten digits for each image, (N, 8, 8) -> (N, 10)."""
    with no_grad():
        return F.softmax(model(patches(images)), axis=-1).numpy()


def loss_of(model: DigitClassifier, images: Any, labels: Any) -> Tensor:
    """Return the cross-entropy of the model's scores for these images."""
    return F.cross_entropy(model(patches(images)), labels, label_smoothing=0.1)


def train(split: Split, seed: int = 0, epochs: int = 20) -> Run:
    """Train a model, with all random numbers drawn from the seed."""
    from tqdm import tqdm

    rng, n = manual_seed(seed), len(split.train_labels)
    run = Run(split, DigitClassifier(), [], [])
    parameters, steps = list(run.model.parameters()), math.ceil(n / BATCH) * epochs
    optimizer = optim.AdamW(parameters, lr=3e-3, weight_decay=0.05)
    schedule = optim.warmup_cosine(optimizer, steps // 10, steps)
    begun = time.perf_counter()
    bar = tqdm(range(epochs), f"  {split.name}", unit="epoch", disable=None)
    for _ in bar:
        order, images = rng.permutation(n), wiggle(split.train_images, rng)
        for batch in np.split(order, range(BATCH, n, BATCH)):
            loss = loss_of(run.model, images[batch], split.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            run.losses.append(loss.item())
        right = predict(run.model, split.test_images).argmax(axis=1) == split.test_labels
        run.accuracies.append(100 * float(np.mean(right)))
        bar.set_postfix(loss=f"{run.losses[-1]:.3f}", test=f"{run.accuracies[-1]:.2f} %")
    run.seconds = time.perf_counter() - begun
    return run
