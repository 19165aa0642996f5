"""Ranks and their exchange of arrays: a thin layer over MPI.

A **rank** is one of the copies of a program that `mpiexec -n 4 python train.py` has started. In a
**collective** every rank takes part, as in the sum of an array over all ranks. No call blocks
inside MPI. A rank that waits too long raises TimeoutError. Ranks that make different small calls
raise RuntimeError. An uncaught exception stops all ranks.

With one rank nothing is sent, and mpi4py need not be installed.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""What MPICH, Slurm, Open MPI and MVAPICH put into the environment of each rank."""

BUSY = 0.02  # seconds of waiting without a pause; most waits are over by then
PAUSE = 50e-6  # seconds between two questions to MPI after that
FORWARDED = 0.3  # seconds for the launcher to pass on a traceback before the ranks are stopped

_limit = float(os.environ.get("TINYGRAD_ATTN_PARALLEL_TIMEOUT", 600))


def set_time_limit(seconds: float) -> None:
    """Set how long a rank waits for the others: 600 s, or TINYGRAD_ATTN_PARALLEL_TIMEOUT.

    It has to be longer than what one rank does alone, such as writing a large checkpoint.
    """
    global _limit
    _limit = float(seconds)


class Group:
    """The ranks of a communicator; `group(comm)` makes it, or finds the one made before.

    `rank` is this one's number, from 0, and `size` how many there are. The methods are collectives:
    every rank calls the same ones in the same order. `call` names the call in error texts.
    """

    comm: Any
    rank: int = 0
    size: int = 1

    def __init__(self, comm: Any = None) -> None:
        if comm is not None:
            self.rank, self.size = comm.rank, comm.size
        if self.size > 1:  # a copy, so that the user's messages and these never meet
            self.comm, request = comm.Idup()
            self.wait("the first call of tinygrad_attn.parallel", request)
            _stop_all_on_an_exception(comm)

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def wait(self, call: str, *requests: Any) -> None:
        """Return when these requests of MPI's are done. Raises TimeoutError after the limit."""
        begun = time.perf_counter()
        while not all([request.Test() for request in requests]):
            waited = time.perf_counter() - begun
            if waited > _limit:
                raise TimeoutError(
                    f"rank {self.rank} has waited {waited:.0f} s in {call} for other ranks. Every "
                    "rank calls the same functions in the same order, also where only rank 0 needs "
                    "the output. If a rank needs longer alone, call set_time_limit(seconds)."
                )
            time.sleep(PAUSE if waited > BUSY else 0)

    def gather(self, call: str, value: Any) -> list[Any]:
        """Return what each rank has given. Raises RuntimeError where the calls differ."""
        if self.size == 1:
            return [value]
        from mpi4py import MPI

        mine = pickle.dumps((call, value))
        lengths = np.full(self.size, len(mine))
        self.wait(call, self.comm.Iallgather(MPI.IN_PLACE, lengths))
        every = bytearray(lengths.sum())
        self.wait(call, self.comm.Iallgatherv(mine, [every, lengths, MPI.BYTE]))
        stream = io.BytesIO(every)
        calls, values = zip(*(pickle.load(stream) for _ in lengths), strict=True)
        if {*calls} != {call}:
            texts = [f"rank {rank}: {other}" for rank, other in enumerate(calls)]
            raise RuntimeError(
                f"the ranks make different calls. {'; '.join(texts)}. Every rank calls the same "
                "functions in the same order."
            )
        return list(values)

    def sum(self, call: str, *arrays: np.ndarray) -> None:
        """Replace contiguous arrays by their sums over the ranks."""
        if self.size > 1:
            from mpi4py import MPI

            self.wait(call, *(self.comm.Iallreduce(MPI.IN_PLACE, array) for array in arrays))

    def broadcast(self, call: str, *arrays: tuple[np.ndarray, int]) -> None:
        """Copy into every rank's contiguous array the values of the rank that is given with it."""
        if self.size > 1:
            octets = [(array.reshape(-1).view(np.uint8), root) for array, root in arrays]
            self.wait(call, *(self.comm.Ibcast(array, root) for array, root in octets))


_known: dict[Any, Group] = {}  # by MPI's number of the communicator


def group(comm: Any = None) -> Group:
    """Return the group of a communicator of mpi4py; None is all ranks, or this process alone.

    Raises ImportError where mpiexec has started several ranks but mpi4py is missing.
    """
    comm = _world() if comm is None else comm
    key = None if comm is None else comm.py2f()
    if key not in _known:
        _known[key] = Group(comm)
    return _known[key]


def _world() -> Any:
    """Return MPI's communicator of all ranks, or None for a process alone."""
    if "mpi4py.MPI" not in sys.modules and find_spec("mpi4py") is None:
        if launched := [name for name in LAUNCHED if name in os.environ]:
            raise ImportError(
                f"this is one of several ranks ({launched[0]} is set), which need mpi4py: "
                "pip install 'tinygrad_attn[parallel]'"
            )
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def rank(comm: Any = None) -> int:
    """Return this rank's number, from 0. Rank 0 prints and writes files."""
    return group(comm).rank


def world_size(comm: Any = None) -> int:
    """Return how many ranks there are."""
    return group(comm).size


def barrier(comm: Any = None) -> None:
    """Wait until every rank is here."""
    group(comm).gather("barrier()", None)


def _stop_all_on_an_exception(comm: Any) -> None:
    """Let an uncaught exception on this rank end all ranks, by `sys.excepthook`.

    Otherwise the rank would wait, in MPI's own clean-up, for ranks that wait for it.
    """
    if len(_known) > 0:  # there is a group already, which has done it
        return
    before, name = sys.excepthook, f"rank {comm.rank} of {comm.size}"

    def stop(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        before(kind, error, traceback)
        print(
            f"{name} ended with {kind.__name__}: {error}. All ranks are stopped.", file=sys.stderr
        )
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(FORWARDED)
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = stop
