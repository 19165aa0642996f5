"""The ranks that work together, and how they exchange arrays: a thin layer over MPI.

A **rank** is one of the copies of a program that `mpiexec -n 4 python train.py` has started. In a
**collective** every rank takes part, as in the sum of an array over all ranks. Nothing blocks
inside MPI: a rank that waits too long raises TimeoutError, ranks that make different small calls
raise RuntimeError, and an exception that nobody catches stops all ranks.

With one rank nothing is sent, and mpi4py need not be installed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from traceback import format_exception
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""What MPICH, Slurm, Open MPI and MVAPICH put into the environment of each rank."""

NAME_BYTES = 88  # of the name of a call, as it is compared between ranks
BUSY = 0.02  # seconds of waiting without a pause; most waits are over by then
PAUSE = 50e-6  # seconds between two questions to MPI after that
FORWARDED = 0.3  # seconds for the launcher to pass on a traceback before the ranks are stopped
INTERRUPTED = 130  # the exit code after Ctrl-C, as in shells

_limit = float(os.environ.get("TINYGRAD_ATTN_PARALLEL_TIMEOUT", 600))


def set_time_limit(seconds: float) -> None:
    """Set how long a rank waits for the others: 600 s, or TINYGRAD_ATTN_PARALLEL_TIMEOUT.

    It has to be longer than what one rank does alone, such as writing a large checkpoint. Raises
    ValueError unless it is above 0.
    """
    global _limit
    if not seconds > 0:
        raise ValueError(f"the time limit is a number of seconds above 0, got {seconds!r}.")
    _limit = float(seconds)


def get_time_limit() -> float:
    """Return how long a rank waits for the others, in seconds."""
    return _limit


class Group:
    """The ranks of a communicator; `group(comm)` makes it, or finds the one made before.

    `rank` is this one's number, from 0, and `size` how many there are. The methods are collectives:
    every rank calls the same ones in the same order. `call` names the call in error texts.
    """

    def __init__(self, comm: Any = None) -> None:
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        if self.size > 1:
            # Copies, so that the user's messages, gradients and small calls never meet.
            for name in "small", "bulk":
                copy, request = comm.Idup()
                self.wait("the first call of tinygrad_attn.parallel", [request])
                setattr(self, name, copy)
            _stop_all_on_an_exception(comm)

    small: Any
    bulk: Any

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def wait(self, call: str, requests: Sequence[Any]) -> None:
        """Return when these requests of MPI's are done. Raises TimeoutError after the limit."""
        if self.size == 1:
            return
        from mpi4py import MPI

        begun = time.perf_counter()
        while not MPI.Request.Testall(requests):
            waited = time.perf_counter() - begun
            if waited > _limit:
                raise TimeoutError(
                    f"rank {self.rank} has waited {waited:.0f} s in {call} for other ranks. Every "
                    "rank calls the same functions in the same order, also where only rank 0 needs "
                    "the output. If a rank needs longer alone, call set_time_limit(seconds)."
                )
            time.sleep(PAUSE if waited > BUSY else 0)

    def gather_bytes(self, call: str, mine: bytes) -> list[bytes]:
        """Return what each rank has given. Raises RuntimeError where the calls differ."""
        if self.size == 1:
            return [mine]
        name = call.encode()[:NAME_BYTES]
        length = len(mine).to_bytes(8, "little")
        width = NAME_BYTES + len(length)
        headers = self._gather(call, name.ljust(NAME_BYTES, b"\0") + length, [width] * self.size)
        names = [header[:NAME_BYTES].rstrip(b"\0") for header in headers]
        if {*names} != {name}:
            texts = [f"rank {r}: {n.decode(errors='replace')}" for r, n in enumerate(names)]
            raise RuntimeError(
                f"the ranks make different calls. {'; '.join(texts)}. Every rank calls the same "
                "functions in the same order."
            )
        return self._gather(call, mine, [int.from_bytes(h[NAME_BYTES:], "little") for h in headers])

    def _gather(self, call: str, mine: bytes, lengths: list[int]) -> list[bytes]:
        from mpi4py import MPI

        every = bytearray(sum(lengths))
        request = self.small.Iallgatherv([mine, MPI.BYTE], [every, lengths, MPI.BYTE])
        self.wait(call, [request])
        ends = np.cumsum(lengths)
        return [bytes(every[end - n : end]) for end, n in zip(ends, lengths, strict=True)]

    def gather(self, call: str, numbers: Any) -> Array:
        """(size, n): row r holds the n numbers of rank r. The same on every rank, bit for bit."""
        mine = np.ascontiguousarray(numbers).reshape(-1)
        rows = self.gather_bytes(call, mine.tobytes())
        return np.stack([np.frombuffer(row, mine.dtype) for row in rows])

    def gather_text(self, call: str, text: str) -> list[str]:
        """Return the text of every rank."""
        return [row.decode() for row in self.gather_bytes(call, text.encode())]

    def agree(self, call: str, error: BaseException | None) -> None:
        """Raise on every rank if one of them has an error."""
        texts = self.gather_text(call, "" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text:
                raise RuntimeError(f"{call} went wrong on rank {rank}: {text}")

    def broadcast(self, call: str, array: Array) -> None:
        """Copy rank 0's values into every rank's array."""
        if self.size > 1:
            flat = np.ascontiguousarray(array)
            self.wait(call, [self.bulk.Ibcast(flat.reshape(-1).view(np.uint8))])
            array[...] = flat.reshape(array.shape)

    def begin_sum(self, array: Array) -> Any:
        """Begin to replace a contiguous array by its sum over the ranks; return MPI's request."""
        from mpi4py import MPI

        return self.bulk.Iallreduce(MPI.IN_PLACE, array)

    def begin_join(self, array: Array, bounds: list[int]) -> Any:
        """Begin to fill a contiguous array; rank r has its numbers bounds[r] : bounds[r + 1]."""
        from mpi4py import MPI

        octets = array.reshape(-1).view(np.uint8)
        starts = [bound * array.itemsize for bound in bounds]
        lengths = np.diff(starts).tolist()
        return self.bulk.Iallgatherv(MPI.IN_PLACE, [octets, lengths, starts[:-1], MPI.BYTE])

    def sum(self, call: str, array: Array) -> Array:
        """Return the sum of this array over the ranks, added up in float32 at least."""
        total = np.array(array, np.result_type(array, np.float32), order="C")
        if self.size > 1:
            self.wait(call, [self.begin_sum(total)])
        return total.astype(array.dtype, copy=False)


_known: dict[Any, Group] = {}  # by MPI's number of the communicator


def group(comm: Any = None) -> Group:
    """Return the group of a communicator of mpi4py; None is all ranks, or this process alone.

    Raises ImportError where mpiexec has started several ranks but mpi4py is missing, TypeError for
    what is no communicator.
    """
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
    """Return MPI's communicator of all ranks, or None for a process alone."""
    launched = [name for name in LAUNCHED if name in os.environ]
    if "mpi4py.MPI" not in sys.modules and find_spec("mpi4py") is None:
        if launched:
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
    group(comm).gather_bytes("barrier()", b"")


def _stop_all_on_an_exception(comm: Any) -> None:
    """Let an exception that nobody catches on this rank end all ranks, by `sys.excepthook`.

    Otherwise the rank would wait, in MPI's own clean-up, for ranks that wait for it.
    """
    before, rank, size = sys.excepthook, comm.rank, comm.size
    if getattr(before, "stops_all_ranks", False):
        return

    def stop(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        from mpi4py import MPI

        interrupted = issubclass(kind, KeyboardInterrupt)
        try:
            text = "" if interrupted else "".join(format_exception(kind, error, traceback))
            if before is not sys.__excepthook__:
                before(kind, error, traceback)
                text = ""
            first = (str(error).splitlines() or [""])[0].rstrip(".")
            end = "was interrupted" if interrupted else f"ended with {kind.__name__}: {first}"
            sys.stdout.flush()
            print(f"{text}rank {rank} of {size} {end}. All ranks are stopped.", file=sys.stderr)
            sys.stderr.flush()
            time.sleep(FORWARDED)
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own message says less
            MPI.COMM_WORLD.Abort(INTERRUPTED if interrupted else 1)

    stop.stops_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = stop
