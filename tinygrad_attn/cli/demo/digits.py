"""The data: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, as 16 patches of 2 x 2."""

import math
from typing import NamedTuple

import numpy as np

SIDE, PATCH, CLASSES, TEST_IMAGES = 8, 2, 10, 360
TOKENS, PATCH_NUMBERS = (SIDE // PATCH) ** 2, PATCH * PATCH


class Split(NamedTuple):
    """Images (N, 8, 8) with values in [0, 1] and labels (N,), for training and testing."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_split(seed):
    """Return 1,437 images for training and 360 for testing.

    With a seed, the split is random, with the same proportions of digits. With None, the last fifth
    of the file is for testing. This split is harder, because other people wrote these digits.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, SIDE, SIDE)
    random = {"shuffle": False} if seed is None else {"stratify": labels, "random_state": seed}
    parts = train_test_split(images, labels, test_size=TEST_IMAGES, **random)
    train, test, train_labels, test_labels = parts
    name = "ordered" if seed is None else f"seed {seed}"
    return Split(name, train, train_labels, test, test_labels)


def patches(images):
    """Return patches as tokens, (B, 8, 8) -> (B, 16, 4), in reading order."""
    n = SIDE // PATCH
    # (B, 8, 8) -> (B, row of patches, row in the patch, column of patches, column in the patch)
    blocks = images.reshape(-1, n, PATCH, n, PATCH)
    return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1, TOKENS, PATCH_NUMBERS)


def wiggle(images, rng):
    """Rotate, scale and shift each image a little at random, (B, 8, 8) -> (B, 8, 8)."""
    from scipy.ndimage import affine_transform

    limits = math.radians(8), 0.1, 0.5, 0.5
    angle, size, down, right = (rng.uniform(len(images), -x, x) for x in limits)
    cos, sin = np.cos(angle) / (1 + size), np.sin(angle) / (1 + size)
    turn = np.stack([cos, -sin, sin, cos], -1).reshape(-1, 2, 2)
    centre = np.full(2, (SIDE - 1) / 2)
    start = np.stack([down, right], -1) + centre - turn @ centre  # (N, 2)
    each = zip(images, turn, start, strict=True)
    return np.stack([affine_transform(*one, order=1, mode="grid-constant") for one in each])


def baselines(split):
    """Return the accuracy of scikit-learn's logistic regression and 1-nearest-neighbour, in %."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    _, images, labels, test_images, test_labels = split
    # In float32 the regression gives different numbers on different processors.
    train, test = (x.reshape(-1, SIDE * SIDE).astype(np.float64) for x in (images, test_images))
    right = lambda model: 100 * model.fit(train, labels).score(test, test_labels)
    return {
        "logistic regression": right(LogisticRegression(max_iter=2000)),
        "1-nearest neighbour": right(KNeighborsClassifier(1)),
    }
