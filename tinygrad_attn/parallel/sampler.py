"""Divide samples among ranks, with no sample repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..random import Generator
from .group import group


class Batch(NamedTuple):
    """This rank's part of a batch that is split across all ranks.

    `indices` are its samples, and `samples` counts them. Averaged over the ranks, `weight` times
    the rank's mean loss gives the mean over the whole batch. A rank without samples gets one from
    another rank, with weight 0.
    """

    indices: np.ndarray
    weight: float
    samples: int


class DistributedSampler:
    """The samples of rank r of N: numbers r, r + N, r + 2 N, ... of 0 .. size - 1 in some order.

    Each epoch draws a new order from `seed`, the same on every rank. `size` may be a dataset.
    torch.utils.data.DistributedSampler repeats samples until all ranks have equally many; here
    every sample occurs once. With `drop_last` all ranks get equally many, and the rest is dropped.
    """

    def __init__(
        self,
        size: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        comm: Any = None,
    ) -> None:
        self.size = len(size) if hasattr(size, "__len__") else size
        self.num_replicas = group(comm).size if num_replicas is None else num_replicas
        self.rank = group(comm).rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank {self.rank} is not one of {self.num_replicas} ranks.")
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch from now on. Call it on every rank before each epoch."""
        self.epoch = epoch

    def order(self) -> np.ndarray:
        """Return the samples of all ranks in this epoch's order, the same on every rank."""
        generator, n = Generator(self.seed + self.epoch), self.size
        every = generator.permutation(n) if self.shuffle else np.arange(n)
        return every[: n - n % self.num_replicas if self.drop_last else n]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return len(self.order()[self.rank :: self.num_replicas])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's parts of batches of `batch_size` over all ranks.

        The last batch may be smaller; with `drop_last` it is then left out.
        """
        every = self.order()
        stop = len(every) // batch_size * batch_size if self.drop_last else len(every)
        for start in range(0, stop, batch_size):
            batch = every[start : start + batch_size]
            mine = batch[self.rank :: self.num_replicas]
            weight = self.num_replicas * len(mine) / len(batch)
            yield Batch(mine if len(mine) else batch[:1], weight, len(mine))
