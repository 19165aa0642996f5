"""Gradients travel in buckets: arrays that hold the gradients of several parameters side by side.

A message costs a fixed time, the latency, and a time for each byte. One message for each bias would
pay the latency a hundred times; one message for everything could only leave when the last gradient
is there. So parameters share buckets of about a megabyte. The gradients of the last layers are
complete first, so the first bucket has the last parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .group import Group

Array = NDArray[Any]


class Bucket:
    """The gradients of some parameters, of one dtype, in one flat array.

    Behind the gradients stands a number for each of them: 1 where this rank has one. Their sum
    tells how many ranks have used that parameter.
    """

    def __init__(self, members: Sequence[int], shapes: Sequence[tuple[int, ...]], dtype: Any):
        self.members = list(members)
        bounds = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        # MPI knows no float16, and a sum of float32 loses less.
        self.flat = np.zeros(bounds[-1] + len(members), np.result_type(dtype, np.float32))
        self.used = self.flat[bounds[-1] :]
        self.slots = [
            self.flat[start:end].reshape(shape)
            for start, end, shape in zip(bounds, bounds[1:], shapes, strict=False)
        ]


class Buckets:
    """All parameters in buckets, and the exchange of one backward pass.

    `begin`, then `put` each gradient as it is complete, `finish`, then `get` the means. A bucket
    leaves as soon as it is full and all before it have left: in MPI the k-th sum of one rank meets
    the k-th of another, whatever is in it.
    """

    def __init__(self, parameters: Sequence[Any], group: Group, size: int) -> None:
        self.group, self.count = group, len(parameters)
        self.all = [
            Bucket(members, [parameters[i].shape for i in members], parameters[members[0]].dtype)
            for members in _split(parameters, size)
        ]
        self.place = {
            i: (number, at)
            for number, bucket in enumerate(self.all)
            for at, i in enumerate(bucket.members)
        }
        self.begin()

    def begin(self) -> None:
        """No gradient is there yet."""
        self.requests: list[Any] = []
        self.missing = [len(bucket.members) for bucket in self.all]
        for bucket in self.all:
            bucket.used[...] = 0

    def put(self, i: int, gradient: Array, before: Array | None = None) -> None:
        """The gradient of parameter i is complete on this rank; `before` is added to it."""
        number, at = self.place[i]
        bucket, size = self.all[number], self.group.size
        slot = bucket.slots[at]
        if before is None:  # divided first: the sum over the ranks is then the mean
            np.divide(gradient, size, out=slot)
        else:
            np.add(gradient, before, out=slot)
            slot /= size
        bucket.used[at] = 1
        self.missing[number] -= 1
        while len(self.requests) < len(self.all) and not self.missing[len(self.requests)]:
            self._send()
        self._progress()

    def has(self, i: int) -> bool:
        """Has this rank put a gradient of parameter i?"""
        number, at = self.place[i]
        return bool(self.all[number].used[at])

    def finish(self) -> None:
        """Wait for the means of all. A gradient that this rank does not have counts as zeros."""
        while len(self.requests) < len(self.all):
            bucket = self.all[len(self.requests)]
            for slot, used in zip(bucket.slots, bucket.used, strict=True):
                if not used:
                    slot[...] = 0
            self._send()
        self.group.finish("the average of the gradients in backward()", self.requests)

    def get(self, i: int) -> Array:
        """The mean of the gradients of parameter i over the ranks, in the bucket's memory."""
        number, at = self.place[i]
        return self.all[number].slots[at]

    def _send(self) -> None:
        self.requests.append(self.group.begin_sum(self.all[len(self.requests)].flat))

    def _progress(self) -> None:
        """Let MPI go on with what is under way: most MPI libraries move data only when called."""
        if self.requests:
            from mpi4py import MPI

            MPI.Request.Testall(self.requests)


def _split(parameters: Sequence[Any], size: int) -> list[list[int]]:
    """The numbers of the parameters that share a bucket, the last parameters first.

    A bucket is closed when it has `size` bytes, or when the dtype changes.
    """
    found: list[list[int]] = []
    room, dtype = 0, None
    for i in reversed(range(len(parameters))):
        p = parameters[i]
        if room <= 0 or p.dtype != dtype:
            found.append([])
            room, dtype = size, p.dtype
        found[-1].append(i)
        room -= p.size * p.dtype.itemsize
    return found
