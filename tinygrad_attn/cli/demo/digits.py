"""The data: 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

An image becomes a sequence of 16 tokens: its patches of 2 x 2 pixels, in reading order.
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
    """Return 1,437 images to train on and 360 to test on.

    With a seed, the split is random and keeps the proportions of the ten digits. With None, it is
    the order of the file: other people wrote its last fifth, which is harder.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, SIDE, SIDE)
    train, test = np.split(np.arange(len(labels)), [-TEST_IMAGES])
    if seed is not None:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=TEST_IMAGES, stratify=labels, random_state=seed
        )
    labels, name = labels.astype(np.int64), "ordered" if seed is None else f"seed {seed}"
    return Split(name, images[train], labels[train], images[test], labels[test])


def patches(images: Images) -> Images:
    """(B, 8, 8) -> (B, 16, 4): each token has the four pixels of one patch, row by row."""
    n = SIDE // PATCH
    # (B, 8, 8) -> (B, row of patches, row in the patch, column of patches, column in the patch)
    blocks = images.reshape(-1, n, PATCH, n, PATCH)
    return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1, TOKENS, PATCH_NUMBERS)


def wiggle(
    images: Images, rng: Generator, *, shift: float = 0.5, degrees: float = 8.0, zoom: float = 0.1
) -> Images:
    """Move, turn and scale each image a little at random, (B, 8, 8) -> (B, 8, 8).

    Each pixel of the output is interpolated between the four pixels around the place it came from.
    """
    from scipy.ndimage import affine_transform

    centre = np.full(2, (SIDE - 1) / 2)
    angle, size, down, right = (
        rng.uniform((len(images),), -limit, limit)
        for limit in (math.radians(degrees), zoom, shift, shift)
    )
    cos, sin = np.cos(angle) / (1 + size), np.sin(angle) / (1 + size)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)  # (N, 2, 2)
    start = np.stack([down, right], -1) + centre - turn @ centre  # (N, 2)
    each = zip(images, turn, start, strict=True)
    return np.stack([affine_transform(*one, order=1, mode="grid-constant") for one in each])


def baselines(split: Split) -> dict[str, float]:
    """The accuracy of scikit-learn's logistic regression and 1-nearest-neighbour, in %."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    # In float32 the regression gives other numbers on another processor.
    train, test = (
        images.reshape(len(images), -1).astype(np.float64)
        for images in (split.train_images, split.test_images)
    )
    models = {
        "logistic regression": LogisticRegression(max_iter=2000),
        "1-nearest neighbour": KNeighborsClassifier(1),
    }
    return {
        name: 100 * model.fit(train, split.train_labels).score(test, split.test_labels)
        for name, model in models.items()
    }
