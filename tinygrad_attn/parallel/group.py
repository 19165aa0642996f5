"""The ranks that work together, and how they talk: a thin layer over MPI with three promises.

A **rank** is one of several copies of a program that `mpiexec -n 4 python train.py` has started;
it knows its number and how many there are. In a **collective** every rank takes part, as in the
sum of one array over all ranks. Three things go wrong with collectives in practice, and each is
an error here instead of a hang:

- Ranks call different ones. What is small carries the name of its call with it, and the names are
  compared before the numbers are.
- Some ranks call none. Nothing here blocks inside MPI: every wait asks again and again whether it
  is over, and ends after a time limit with a list of who waits where (time_limit.py).
- A rank dies. An exception that nobody catches stops all ranks (stopping.py).

With one rank nothing is sent, and mpi4py need not be installed.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import stopping
from .time_limit import wait

Array = NDArray[Any]

LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""What MPICH, Slurm, Open MPI and MVAPICH put into the environment of each rank."""

NAME_BYTES = 88
"""The longest name of a call that is compared between ranks; longer ones are cut."""


class Group:
    """Some ranks that work together; `group(comm)` makes it, or finds the one made before.

    `rank` is this one's number, from 0, and `size` how many there are. The methods are collectives:
    every rank calls the same ones in the same order. `call` names the call in what a rank is told
    when it waits in vain.
    """

    def __init__(self, comm: Any = None) -> None:
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        if self.size > 1:
            # Communicators of our own: what the user sends on comm never meets what is sent here,
            # and gradients never meet the small messages.
            self.small, self.bulk = (self._copy_of(comm) for _ in range(2))
            stopping.stop_all_on_an_exception(comm)

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def _copy_of(self, comm: Any) -> Any:
        copy, request = comm.Idup()
        wait([request], "the first call of tinygrad_attn.parallel", comm)
        return copy

    def gather(self, call: str, numbers: Any) -> Array:
        """(size, n): row r holds the n numbers of rank r. The same on every rank, bit for bit."""
        mine = np.ascontiguousarray(numbers).reshape(-1)
        if self.size == 1:
            return mine[None].copy()
        self._same_call(call, mine)
        rows = np.empty((self.size, mine.size), mine.dtype)
        octets = mine.view(np.uint8), rows.view(np.uint8)
        wait([self.small.Iallgather(*octets)], call, self.small)
        return rows

    def gather_text(self, call: str, text: str) -> list[str]:
        """The text of every rank."""
        mine = text.encode()
        lengths = self.gather(call, [len(mine)])[:, 0]
        rows = np.zeros((1, lengths.max()), np.uint8)
        rows[0, : len(mine)] = np.frombuffer(mine, np.uint8)
        every = self.gather(call, rows)
        return [bytes(row[:n]).decode() for row, n in zip(every, lengths, strict=True)]

    def agree(self, call: str, error: BaseException | None) -> None:
        """Raise on every rank where one of them has an error; its own error on that one."""
        said = "" if error is None else f"{type(error).__name__}: {error}"
        texts = self.gather_text(call, said)
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text:
                raise RuntimeError(f"{call} went wrong on rank {rank}: {text}")

    def broadcast(self, call: str, array: Array) -> None:
        """Every rank's array gets the values that rank 0 has in it."""
        if self.size > 1:
            flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            octets = flat.reshape(-1).view(np.uint8)
            wait([self.bulk.Ibcast(octets)], call, self.small)
            if flat is not array:
                array[...] = flat

    def begin_sum(self, array: Array) -> Any:
        """Begin to replace the array, which is contiguous, by its sum over the ranks.

        Returns MPI's request; the array belongs to MPI until the request is done.
        """
        from mpi4py import MPI

        return self.bulk.Iallreduce(MPI.IN_PLACE, array)

    def begin_join(self, array: Array, bounds: list[int]) -> Any:
        """Begin to fill an array for all; of its numbers rank r has bounds[r] : bounds[r + 1].

        The array is contiguous.
        """
        from mpi4py import MPI

        octets = array.reshape(-1).view(np.uint8)
        starts = [bound * array.itemsize for bound in bounds]
        lengths = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        return self.bulk.Iallgatherv(MPI.IN_PLACE, [octets, lengths, starts[:-1], MPI.BYTE])

    def sum(self, call: str, array: Array) -> Array:
        """The sum of this array over the ranks, in memory of its own."""
        total = np.array(array, np.result_type(array, np.float32), order="C")
        if self.size > 1:
            self.finish(call, [self.begin_sum(total)])
        return total.astype(array.dtype, copy=False)

    def finish(self, call: str, requests: list[Any]) -> None:
        """Wait until these requests are done."""
        if self.size > 1:
            wait(requests, call, self.small)

    def _same_call(self, call: str, mine: Array) -> None:
        """Raise RuntimeError on every rank unless all of them have made this call."""
        frame = np.zeros(NAME_BYTES + 8, np.uint8)
        name = call.encode()[:NAME_BYTES]
        frame[: len(name)] = np.frombuffer(name, np.uint8)
        frame[NAME_BYTES:] = np.array([mine.nbytes]).view(np.uint8)
        frames = np.empty((self.size, frame.size), np.uint8)
        wait([self.small.Iallgather(frame, frames)], call, self.small)
        if (frames != frame).any():
            raise RuntimeError("the ranks do not make the same call. " + _listed(frames))


def _listed(frames: Array) -> str:
    said = []
    for rank, row in enumerate(frames):
        name = bytes(row[:NAME_BYTES]).rstrip(b"\0").decode(errors="replace")
        said.append(f"rank {rank}: {name} with {int(row[NAME_BYTES:].view(np.int64)[0])} bytes")
    return "; ".join(said) + ". Every rank calls the same functions in the same order."


_known: dict[Any, Group] = {}
"""By MPI's number of a communicator the group made for it: all users of one share its copies."""


def group(comm: Any = None) -> Group:
    """The group of a communicator of mpi4py; None is all ranks of this run, or this process alone.

    Raises ImportError where mpiexec has started several ranks but mpi4py is missing, TypeError for
    what is no communicator.
    """
    if isinstance(comm, Group):
        return comm
    if comm is None:
        comm = _world()
    elif not (hasattr(comm, "py2f") and hasattr(comm, "rank")):
        raise TypeError(
            f"comm is a communicator of mpi4py such as MPI.COMM_WORLD, or None, got {comm!r}."
        )
    key = None if comm is None else comm.py2f()
    if key not in _known:
        _known[key] = Group(comm)
    return _known[key]


def _world() -> Any:
    """MPI's communicator of all ranks, or None for a process alone, for which MPI is not loaded."""
    launched = [name for name in LAUNCHED if name in os.environ]
    if "mpi4py.MPI" not in sys.modules and find_spec("mpi4py") is None:
        if launched:
            raise ImportError(
                f"this is one of several ranks ({launched[0]} is set), and they talk through "
                "mpi4py, which is not installed: pip install 'tinygrad_attn[parallel]'"
            )
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def rank(comm: Any = None) -> int:
    """This rank's number, from 0. Rank 0 prints and writes files."""
    return group(comm).rank


def world_size(comm: Any = None) -> int:
    """How many ranks there are."""
    return group(comm).size


def barrier(comm: Any = None) -> None:
    """Every rank waits for the others."""
    group(comm).gather("barrier()", [0])
