"""The model, and the loop that trains it: short enough to read in one go."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import functional as F
from ... import nn, optim
from ...engine import no_grad
from ...files import load_metadata
from ...files.checkpoints import load_checkpoint, save_checkpoint
from ...random import default_generator, manual_seed
from ...tensor import Tensor
from .digits import CLASSES, PATCH_NUMBERS, TOKENS, Images, Labels, Split, patches, wiggle


class DigitClassifier(nn.Module):
    """Scores of the ten digits from 16 patches, (B, 16, 4) -> (B, 10).

    Embed the patches, add positions, let them look at one another, and read them all.
    """

    def __init__(self, d_model: int = 64, heads: int = 4, layers: int = 2, d_ff: int = 128) -> None:
        self.embed = nn.Linear(PATCH_NUMBERS, d_model)
        self.positions = nn.LearnedPositionalEncoding(TOKENS, d_model)
        # Large, since where a stroke is matters as much as its form.
        nn.init.normal_(self.positions.weight, std=0.5)
        layer = nn.TransformerEncoderLayer(
            d_model, heads, d_ff, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d_model))
        self.classify = nn.Linear(TOKENS * d_model, CLASSES)

    def forward(self, x: Any) -> Tensor:
        x = self.encoder(self.positions(self.embed(x)))  # (B, 16, E)
        return self.classify(x.reshape(len(x), -1))  # (B, 10)


@dataclass
class Settings:
    """Everything that decides what a run computes."""

    seed: int = 0
    split: str = "seed 0"
    epochs: int = 20
    batch: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    clip: float = 1.0


@dataclass
class Run:
    """One training, finished or resumed: the model and how it came along."""

    settings: Settings
    model: DigitClassifier
    split: Split
    losses: list[float] = field(default_factory=list)  # one an update
    accuracies: list[float] = field(default_factory=list)  # one an epoch, of test images, in %
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.accuracies[-1]

    def probabilities(self) -> NDArray[Any]:
        """What the model believes of each test image, (N, 10)."""
        return predict(self.model, self.split.test_images)


def predict(model: DigitClassifier, images: Images) -> NDArray[Any]:
    """The probabilities of the ten digits for each image, (N, 8, 8) -> (N, 10)."""
    model.eval()
    with no_grad():
        return F.softmax(model(patches(images)), axis=-1).numpy()


def loss_of(
    model: DigitClassifier, images: Images, labels: Labels, label_smoothing: float
) -> Tensor:
    """Cross-entropy of the model's scores for these images; a single number."""
    return F.cross_entropy(model(patches(images)), labels, label_smoothing=label_smoothing)


def train(
    settings: Settings,
    split: Split,
    checkpoint: Path,
    *,
    resume: bool = False,
    on_step: Callable[[int, int, Run], None] = lambda step, steps, run: None,
) -> Run:
    """Train a model, and write a checkpoint after each epoch; `resume` goes on from the last one.

    All random numbers come from the seeded generator, which is part of the checkpoint, so a run
    that was stopped and resumed ends with the same weights as one that was not. Raises ValueError
    if the checkpoint is of other settings.
    """
    manual_seed(settings.seed)
    run = Run(settings, DigitClassifier(), split)
    per_epoch = math.ceil(len(split.train_labels) / settings.batch)
    steps = per_epoch * settings.epochs
    optimizer = optim.AdamW(
        run.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    schedule = optim.warmup_cosine(optimizer, warmup_steps=steps // 10, total_steps=steps)
    parts = {"model": run.model, "optimizer": optimizer, "schedule": schedule}
    if resume and checkpoint.exists():
        _check_settings(settings, checkpoint)
        extra = load_checkpoint(checkpoint, **parts).extra
        run.losses, run.accuracies = extra["losses"], extra["accuracies"]
        run.seconds = extra["seconds"]
    on_step(len(run.losses), steps, run)

    begun = time.perf_counter() - run.seconds
    for _ in range(len(run.accuracies), settings.epochs):
        run.model.train()
        for images, labels in _batches(split, settings.batch):
            loss = loss_of(run.model, images, labels, settings.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm_(run.model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
            run.losses.append(loss.item())
            on_step(len(run.losses), steps, run)
        right = predict(run.model, split.test_images).argmax(axis=1) == split.test_labels
        run.accuracies.append(100 * float(np.mean(right)))
        run.seconds = time.perf_counter() - begun
        _save(checkpoint, run, parts)
        on_step(len(run.losses), steps, run)
    return run


def _batches(split: Split, size: int) -> Iterator[tuple[Images, Labels]]:
    """One epoch: all training images in a random order, each moved and turned a little."""
    rng = default_generator()
    order = rng.permutation(len(split.train_labels))
    images = wiggle(split.train_images, rng)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        yield images[batch], split.train_labels[batch]


def _save(checkpoint: Path, run: Run, parts: dict[str, Any]) -> None:
    """Write the parts of the training, and how it came along, to one file."""
    extra = {
        "settings": asdict(run.settings),
        "losses": run.losses,
        "accuracies": run.accuracies,
        "seconds": run.seconds,
    }
    os.makedirs(checkpoint.parent, exist_ok=True)
    save_checkpoint(checkpoint, **parts, step=len(run.losses), extra=extra)


def _check_settings(settings: Settings, checkpoint: Path) -> None:
    metadata = load_metadata(checkpoint)
    try:
        saved = dict(json.loads(metadata["extra"])["settings"])
    except (KeyError, TypeError, ValueError):  # no extra, or no JSON, or none of the demo's
        raise ValueError(
            f"{str(checkpoint)!r} was not written by the demo. Name another folder with --out, or "
            "leave --resume out to "
            "begin afresh, which deletes it."
        ) from None
    other = {
        name: saved.get(name)
        for name, value in asdict(settings).items()
        if saved.get(name) != value
    }
    if other:
        listed = ", ".join(f"{name} {value}" for name, value in other.items())
        raise ValueError(
            f"{str(checkpoint)!r} belongs to a run with {listed}. Give the same settings to "
            "--resume, or leave "
            "--resume out to begin afresh."
        )
