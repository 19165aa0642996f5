"""Which samples belong to which rank: no sample comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..random import Generator
from .group import group


class Batch(NamedTuple):
    """This rank's part of one batch of all ranks.

    `indices` are its samples, at least one. The average over the ranks of `weight` times their
    mean loss is the mean over the whole batch. `weight` is 1 where all ranks have equally many
    samples. A rank without samples gets one of another rank and weight 0. `samples` counts its own.
    """

    indices: np.ndarray
    weight: float
    samples: int


class DistributedSampler:
    """This rank's samples, of 0 .. size - 1 in some order: number r, r + N, r + 2 N ... of N ranks.

        sampler = DistributedSampler(len(x), comm=comm)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)                      # another order
            for indices, weight, _ in sampler.batches(64):    # 64 samples over all ranks
                loss = weight * F.cross_entropy(model(x[indices]), y[indices])

    The order is drawn anew for each epoch from `seed`, the same on every rank, and touches no other
    generator. As torch.utils.data.DistributedSampler, which takes a dataset in place of its length
    and repeats samples until all ranks have as many; here every sample comes once. With `drop_last`
    the ranks get as many each and the rest is left out.
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
            raise ValueError(f"rank {self.rank} is none of {self.num_replicas} ranks.")
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch from now on; call it on every rank before each."""
        self.epoch = epoch

    def order(self) -> np.ndarray:
        """Return the samples of all ranks in this epoch's order, the same on every rank."""
        every = np.arange(self.size)
        if self.shuffle:
            every = np.asarray(Generator(self.seed + self.epoch).permutation(self.size))
        rest = self.size % self.num_replicas if self.drop_last else 0
        return every[: self.size - rest]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's parts of batches of `batch_size` over all ranks, as many on each rank.

        The last batch may be smaller; with `drop_last` it is left out.
        """
        every = self.order()
        stop = len(every) // batch_size * batch_size if self.drop_last else len(every)
        for start in range(0, stop, batch_size):
            batch = every[start : start + batch_size]
            mine = batch[self.rank :: self.num_replicas]
            weight = self.num_replicas * len(mine) / len(batch)
            yield Batch(mine if len(mine) else batch[:1], weight, len(mine))
