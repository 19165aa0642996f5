"""Marker of chapter 20: the sum over a ring of ranks, and what it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise


@exercise(20, "ring", "the sum over a ring of ranks, and the weights of unequal parts")
def _(marks: Marks) -> None:
    ring_sum, weights = marks.function("ring_sum"), marks.function("weights")
    for ranks, length in (2, 6), (4, 8), (3, 7), (1, 3):
        given = random_arrays(ranks, length)
        total = np.sum(given, axis=0)
        marks.compare(
            f"ring_sum: {ranks} ranks, arrays of {length}",
            lambda given=given: np.stack(ring_sum([a.copy() for a in given], Post().send)),
            np.stack([total] * ranks),
            mistakes={
                "These are means: ring_sum gives the sum.": np.stack([total / ranks] * ranks),
                "Each rank still has its own array: add what it receives.": np.stack(given),
            },
            hint="Print which chunks each rank has after each round, for three ranks.",
        )
    marks.that(
        "ring_sum: the given arrays do not change",
        lambda: unchanged(ring_sum),
        "np.array_split gives views of the array: adding to a chunk adds to the array. Copy the "
        "chunks first.",
    )
    marks.that(
        "ring_sum: 2 N (N - 1) messages, to the right, none longer than a chunk",
        lambda: frugal(ring_sum),
        "",
    )
    for counts in [5, 5], [3, 1], [4, 3, 3], [2, 0, 0]:
        share = np.array(counts) / sum(counts)
        marks.compare(
            f"weights: {counts}",
            lambda counts=counts: np.array(weights(counts), float),
            len(counts) * share,
            mistakes={
                "These add up to 1. The ranks' results are averaged afterwards, which divides by N once more.": share,
                "Ranks with more samples count for more, in proportion to them.": np.ones(
                    len(counts)
                ),
            },
            hint="The mean over the ranks is 1 / N times the sum of weight * mean.",
        )


class Post:
    """Carries the messages, and records what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []

    def send(self, source: int, target: int, array: Any) -> np.ndarray:
        """The array as it arrives."""
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
            "rank {} sends to rank {}, which is not its right-hand neighbour.".format(*wrong[0])
        )
    if longest > length // ranks:
        raise Wrong(
            f"a message has {longest} numbers; a chunk of an array of {length} on {ranks} ranks "
            f"has {length // ranks}."
        )
    if len(post.sent) != 2 * ranks * (ranks - 1):
        raise Wrong(
            f"there are {len(post.sent)} messages; {ranks} ranks need {2 * ranks * (ranks - 1)}: "
            f"{ranks} in each of {ranks - 1} rounds, twice."
        )
    return True
