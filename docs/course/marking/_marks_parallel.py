"""Marker for chapter 20: the sum over a ring of ranks, and the messages that it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise


@exercise(20, "ring", "the sum over a ring of ranks, and the weights of unequal parts")
def _(marks: Marks) -> None:
    ring_sum, weights = marks.function("ring_sum"), marks.function("weights")
    marks.idea("every rank ends with the sum of all", 3, main=True)
    for ranks, length in (2, 6), (4, 8), (3, 7), (1, 3):
        given = random_arrays(ranks, length)
        total = np.sum(given, axis=0)
        marks.compare(
            f"ring_sum: {ranks} ranks, arrays of {length}",
            lambda given=given: np.stack(ring_sum([a.copy() for a in given], Post().send)),
            np.stack([total] * ranks),
            mistakes={
                "These are means, but ring_sum should return sums.": np.stack(
                    [total / ranks] * ranks
                ),
                "Each rank still has its own array. Add what it receives.": np.stack(given),
            },
            hint="For three ranks, print each rank's chunks after each round.",
        )
    marks.that(
        "ring_sum: the given arrays do not change",
        lambda: unchanged(ring_sum),
        "np.array_split returns views, so adding to a chunk also changes the array. Copy the chunks "
        "first.",
    )
    marks.that(
        "ring_sum: 2 N (N - 1) messages, to the right, none longer than a chunk",
        lambda: frugal(ring_sum),
        "",
    )
    marks.idea("a rank counts by its number of samples", 2)
    for counts in [3, 1], [5, 5], [4, 3, 3], [2, 0, 0]:
        share = np.array(counts) / sum(counts)
        marks.compare(
            f"weights: {counts}",
            lambda counts=counts: np.array(weights(counts), float),
            len(counts) * share,
            mistakes={
                "These weights add up to 1. They should add up to N, because averaging over the ranks divides by N again.": share,
                "All weights are 1. A rank's weight should be proportional to its number of samples.": np.ones(
                    len(counts)
                ),
            },
            hint="The mean over the ranks is 1 / N times the sum of weight * mean.",
        )


class Post:
    """Delivers the messages, and records what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []

    def send(self, source: int, target: int, array: Any) -> np.ndarray:
        """Record the message, and return the array as it arrives."""
        self.sent.append((source, target, np.size(array)))
        return np.array(array)


def random_arrays(ranks: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(10 * ranks + length)
    return [rng.standard_normal(length) for _ in range(ranks)]


def unchanged(ring_sum: Any) -> bool:
    given = random_arrays(3, 7)
    kept = [a.copy() for a in given]
    ring_sum(given, Post().send)
    return all(map(np.array_equal, given, kept))


def frugal(ring_sum: Any) -> bool:
    ranks, length = 4, 12
    post = Post()
    ring_sum(random_arrays(ranks, length), post.send)
    longest = max((n for *_, n in post.sent), default=0)
    if wrong := [(s, t) for s, t, _ in post.sent if t != (s + 1) % ranks]:
        raise Wrong(
            "Rank {} sends to rank {}, which is not its right-hand neighbour.".format(*wrong[0])
        )
    if longest > length // ranks:
        raise Wrong(
            f"A message has {longest} numbers, but a chunk has only {length // ranks} when an array of "
            f"{length} is split over {ranks} ranks."
        )
    if len(post.sent) != 2 * ranks * (ranks - 1):
        raise Wrong(
            f"There are {len(post.sent)} messages, but {ranks} ranks need {2 * ranks * (ranks - 1)}: "
            f"{ranks} in each of 2 x {ranks - 1} rounds."
        )
    return True
