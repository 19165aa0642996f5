"""Which samples belong to which rank: no sample comes twice."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..random import Generator
from .group import group


class Batch(NamedTuple):
    """This rank's part of one batch of all ranks.

    `indices` are its samples, at least one. The mean of their losses times `weight`, averaged over
    the ranks, is the mean over the whole batch: 1 where all ranks have as many samples. A rank for
    which none is left gets a sample of another rank's and weight 0. `samples` counts its own.
    """

    indices: NDArray[np.int64]
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
    the ranks get as many each and the rest is left out. Raises ValueError, TypeError.
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
        self.size = operator.index(len(size) if hasattr(size, "__len__") else size)
        if num_replicas is None or rank is None:
            if num_replicas is not rank:
                raise ValueError("give num_replicas and rank both, or neither.")
            num_replicas, rank = group(comm).size, group(comm).rank
        if self.size < 0 or not 0 <= rank < num_replicas:
            raise ValueError(
                f"size is 0 or more and rank below num_replicas; got size {self.size}, rank "
                f"{rank} of {num_replicas}."
            )
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch from now on; call it on every rank before each."""
        self.epoch = operator.index(epoch)

    def order(self) -> NDArray[np.int64]:
        """Return the samples of all ranks in this epoch's order, the same on every rank."""
        every = np.arange(self.size)
        if self.shuffle:
            every = np.asarray(Generator(self.seed + self.epoch).permutation(self.size))
        rest = self.size % self.num_replicas if self.drop_last else 0
        return every[: self.size - rest]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        rest = self.size % self.num_replicas if self.drop_last else 0
        return len(range(self.rank, self.size - rest, self.num_replicas))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's parts of batches of `batch_size` over all ranks, as many on each rank.

        The last batch may be smaller; with `drop_last` it is left out. Raises ValueError unless
        batch_size is above 0.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is a whole number above 0, got {batch_size!r}.")
        every = self.order()
        for start in range(0, len(every), batch_size):
            batch = every[start : start + batch_size]
            if self.drop_last and len(batch) < batch_size:
                return
            mine = batch[self.rank :: self.num_replicas]
            weight = self.num_replicas * len(mine) / len(batch)
            yield Batch(mine if len(mine) else batch[:1], weight, len(mine))
