"""The data: 1,797 handwritten digits of 8 x 8 pixels that come inside scikit-learn.

An image becomes a sequence: 16 patches of 2 x 2 pixels are 16 tokens of 4 numbers, in reading
order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...random import Generator

SIDE, PATCH, CLASSES = 8, 2, 10
TOKENS, PATCH_NUMBERS = (SIDE // PATCH) ** 2, PATCH * PATCH
TEST_IMAGES = 360

Images = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]


class Split(NamedTuple):
    """Images (N, 8, 8) with values in [0, 1] and their digits (N,), to train and to test on."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def load_split(seed: int | None) -> Split:
    """1,437 images to learn from and 360 to test on.

    With a seed a random split that keeps the shares of the ten digits. With None the file's own
    order: its last fifth was written by other people than the rest, which is harder.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, SIDE, SIDE)
    labels = labels.astype(np.int64)
    if seed is None:
        return Split(
            "ordered",
            images[:-TEST_IMAGES],
            labels[:-TEST_IMAGES],
            images[-TEST_IMAGES:],
            labels[-TEST_IMAGES:],
        )
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_IMAGES, stratify=labels, random_state=seed
    )
    return Split(f"seed {seed}", images[train], labels[train], images[test], labels[test])


def patches(images: Images) -> Images:
    """(B, 8, 8) -> (B, 16, 4): each token holds the four pixels of one patch, row by row."""
    n = SIDE // PATCH
    # (B, 8, 8) -> (B, row of patches, row in the patch, column of patches, column in the patch)
    blocks = images.reshape(-1, n, PATCH, n, PATCH)
    return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1, TOKENS, PATCH_NUMBERS)


def wiggle(
    images: Images, rng: Generator, *, shift: float = 0.5, degrees: float = 8.0, zoom: float = 0.1
) -> Images:
    """Each image moved, turned and scaled a little at random, (B, 8, 8) -> (B, 8, 8).

    A 3 stays a 3, and the model never sees the same one twice. Each pixel of the result is read
    from between the four old pixels around the place it came from.
    """
    count, centre = len(images), (SIDE - 1) / 2
    between = lambda limit: rng.uniform((count, 1, 1), -limit, limit)
    angle, size = between(math.radians(degrees)), 1 + between(zoom)
    down, right = between(shift), between(shift)
    y, x = np.meshgrid(np.arange(SIDE) - centre, np.arange(SIDE) - centre, indexing="ij")
    cos, sin = np.cos(angle) / size, np.sin(angle) / size
    edge = 2  # a margin, so that what lies outside reads as empty
    padded = np.pad(images, ((0, 0), (edge, edge), (edge, edge)))
    limit = SIDE + 2 * edge - 1.001
    from_y = np.clip(cos * y - sin * x + down + centre + edge, 0, limit)
    from_x = np.clip(sin * y + cos * x + right + centre + edge, 0, limit)
    row, column = from_y.astype(int), from_x.astype(int)
    fy, fx = from_y - row, from_x - column
    image = np.arange(count)[:, None, None]
    upper = padded[image, row, column] * (1 - fx) + padded[image, row, column + 1] * fx
    lower = padded[image, row + 1, column] * (1 - fx) + padded[image, row + 1, column + 1] * fx
    return (upper * (1 - fy) + lower * fy).astype(np.float32)


def baselines(split: Split) -> dict[str, float]:
    """What scikit-learn's logistic regression and 1-nearest-neighbour get on this split, in %."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    # In float32 the regression gives other numbers on another processor.
    rows = lambda images: images.reshape(len(images), -1).astype(np.float64)
    models: dict[str, Any] = {
        "logistic regression": LogisticRegression(max_iter=2000),
        "1-nearest neighbour": KNeighborsClassifier(1),
    }
    return {
        name: 100
        * model.fit(rows(split.train_images), split.train_labels).score(
            rows(split.test_images), split.test_labels
        )
        for name, model in models.items()
    }
