"""Divides samples among ranks without repeating any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..random import Generator
from .group import group


class Batch(NamedTuple):
    """This rank's part of a batch.

    Averaged over the ranks, `weight` times the mean loss is the mean loss of the whole batch. A
    rank without samples gets a sample of another rank, with weight 0 and `samples` 0.
    """

    indices: np.ndarray
    weight: float
    samples: int


class DistributedSampler:
    """Selects samples r, r + N, r + 2 N, ... of a shuffled order for rank r of N.

    `size` is a number of samples or a dataset. All ranks draw the same order from `seed` and the
    epoch. Unlike torch.utils.data.DistributedSampler, no sample is repeated. With `drop_last`, all
    ranks get the same number of samples.
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
        """Set the epoch, which determines the order. Call it on every rank."""
        self.epoch = epoch

    def order(self) -> np.ndarray:
        """Return the sample indices of all ranks in the order of this epoch."""
        generator, n = Generator(self.seed + self.epoch), self.size
        every = generator.permutation(n) if self.shuffle else np.arange(n)
        return every[: n - n % self.num_replicas if self.drop_last else n]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return len(self.order()[self.rank :: self.num_replicas])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's part of each batch. The whole batch has `batch_size` samples.

        With `drop_last`, a smaller last batch is dropped.
        """
        every = self.order()
        stop = len(every) // batch_size * batch_size if self.drop_last else len(every)
        for start in range(0, stop, batch_size):
            batch = every[start : start + batch_size]
            mine = batch[self.rank :: self.num_replicas]
            weight = self.num_replicas * len(mine) / len(batch)
            yield Batch(mine if len(mine) else batch[:1], weight, len(mine))
