"""Ranks and the arrays that they exchange: a thin layer over MPI.

A **rank** is one of the processes that `mpiexec -n 4 python train.py` starts. A **collective** is a
function that every rank must call. A rank that waits too long raises TimeoutError, and an uncaught
exception stops all ranks.
"""

import os
import sys
import time
from typing import Any

# Environment variables that MPICH, Slurm, Open MPI and MVAPICH set for each rank.
LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
SAME = "Every rank must call the same functions in the same order, even if only rank 0 prints."
BUSY = 0.02  # seconds of polling MPI without a pause
PAUSE = 50e-6  # seconds between polls after that
FORWARDED = 0.3  # seconds for the launcher to print a traceback

_limit = float(os.environ.get("TINYGRAD_ATTN_PARALLEL_TIMEOUT", 600))


def set_time_limit(seconds: float) -> None:
    """Set the number of seconds that a rank waits for others, initially 600."""
    global _limit
    _limit = float(seconds)


class Group:
    """The ranks of a communicator. Its methods show `call` in error messages."""

    def __init__(self, comm=None) -> None:
        self.rank = 0 if comm is None else comm.rank
        self.size = 1 if comm is None else comm.size
        if self.size > 1:  # a duplicate keeps the user's messages separate
            self.comm, request = comm.Idup()
            self.wait("the first call of tinygrad_attn.parallel", request)
            self._gathers = self.comm.Dup()  # gather() never exchanges data with other calls
            if not _known:
                _stop_all_on_an_exception(comm)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        if self is not group():
            raise TypeError("only a model on all ranks can be pickled. Pickle model.module.")
        return group, ()  # all ranks of the program that reads it

    def wait(self, call, *requests):
        """Wait for these MPI requests. Raises TimeoutError after the time limit."""
        begun = time.perf_counter()
        while not all([request.Test() for request in requests]):
            waited = time.perf_counter() - begun
            if waited > _limit:
                raise TimeoutError(
                    f"rank {self.rank} has waited {waited:.0f} s in {call} for other ranks. {SAME}"
                    " If a rank needs more time, call set_time_limit(seconds)."
                )
            time.sleep(PAUSE if waited > BUSY else 0)

    def gather(self, call, value):
        """Return the values of all ranks. Raises RuntimeError if the ranks make different calls."""
        if self.size == 1:
            return [value]
        self.wait(call, self._gathers.Ibarrier())  # allgather has no time limit
        calls, values = zip(*self._gathers.allgather((call, value)), strict=True)
        if {*calls} != {call}:
            texts = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(calls))
            raise RuntimeError(f"the ranks make different calls. {texts}. {SAME}")
        return list(values)

    def sum(self, call, array):
        """Replace a contiguous array with its sum over the ranks."""
        if self.size > 1:
            from mpi4py import MPI

            self.wait(call, self.comm.Iallreduce(MPI.IN_PLACE, array))


_known: dict[Any, Group] = {}  # keyed by MPI's handle for the communicator


def group(comm=None):
    """Return the Group of an mpi4py communicator, which defaults to all ranks."""
    comm = _world() if comm is None else comm
    key = None if comm is None else comm.py2f()
    if key not in _known:
        _known[key] = Group(comm)
    return _known[key]


def _world():
    """Return the communicator of all ranks, or None for a single process."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        if launched := [name for name in LAUNCHED if name in os.environ]:
            raise ImportError(
                f"this process is one of several ranks ({launched[0]} is set), which need mpi4py: "
                "pip install 'tinygrad_attn[parallel]'"
            ) from error
        return None
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def rank(comm=None) -> int:
    """Return the number of this rank, counted from 0."""
    return group(comm).rank


def world_size(comm=None) -> int:
    """Return the number of ranks."""
    return group(comm).size


def barrier(comm=None) -> None:
    """Wait until every rank has called barrier()."""
    group(comm).gather("barrier()", None)


def _stop_all_on_an_exception(comm):
    """Make an uncaught exception stop all ranks, because the others would wait forever."""
    from mpi4py import MPI

    before, name = sys.excepthook, f"rank {comm.rank} of {comm.size}"

    def stop(kind, error, traceback):
        before(kind, error, traceback)
        text = f"{name} stopped with {kind.__name__}: {error}. All ranks will stop."
        print(text, file=sys.stderr, flush=True)
        sys.stdout.flush()
        time.sleep(FORWARDED)
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = stop
