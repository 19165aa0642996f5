"""Waiting that ends: what a rank does while the others have not come yet.

`wait` asks MPI again and again whether its requests are done. When the time limit is over, the
rank asks every other one where it is. Whoever waits as well answers, whoever does not answer
computes, or has ended, and the error says both. So a collective that some ranks only have called is
found, and so is who has called it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

QUESTION, ANSWER = 20771, 20772
"""The tags of the messages about who waits where."""

GRACE = 2.0
"""Seconds in which the others can answer. A rank that waits looks for questions every few ms."""

BUSY = 0.02
"""Seconds in which a wait asks MPI without a pause, since MPI moves data only while it is asked.

Most waits are over by then; after that 50 us of sleep leave the core to others.
"""


def _from_environment() -> float:
    return float(os.environ.get("TINYGRAD_ATTN_PARALLEL_TIMEOUT", 600))


_limit = _from_environment()


def set_time_limit(seconds: float) -> None:
    """How long a rank waits for the others, in seconds; 600, or TINYGRAD_ATTN_PARALLEL_TIMEOUT.

    It has to be longer than what one rank does alone, such as writing a large checkpoint. Raises
    ValueError unless it is above 0.
    """
    global _limit
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"the time limit is a number of seconds above 0, got {seconds!r}.")
    _limit = float(seconds)


def get_time_limit() -> float:
    """How long a rank waits for the others, in seconds."""
    return _limit


def wait(requests: Sequence[Any], call: str, comm: Any) -> None:
    """Return when all requests are done; TimeoutError says who waits where.

    `comm` carries the questions and answers.
    """
    from mpi4py import MPI

    begun = time.perf_counter()
    while not MPI.Request.Testall(requests):
        waited = time.perf_counter() - begun
        if waited > _limit:
            raise TimeoutError(_who_waits_where(call, waited, comm))
        if waited > BUSY:
            _answer(call, comm)
            time.sleep(50e-6)
        else:
            time.sleep(0)  # another rank may need this core


def _answer(call: str, comm: Any) -> None:
    """Say where this rank is to everybody who asks."""
    from mpi4py import MPI

    status = MPI.Status()
    while comm.Iprobe(tag=QUESTION, status=status):
        comm.recv(source=status.Get_source(), tag=QUESTION)
        comm.isend(call, dest=status.Get_source(), tag=ANSWER)


def _who_waits_where(call: str, waited: float, comm: Any) -> str:
    """The text of the error: ask everybody, and list the answers."""
    others = [r for r in range(comm.size) if r != comm.rank]
    # The requests are kept until the end, or mpi4py would free what it has not sent yet.
    questions = [comm.isend(None, dest=r, tag=QUESTION) for r in others]
    told = {comm.rank: call}
    until = time.perf_counter() + GRACE
    while len(told) < comm.size and time.perf_counter() < until:
        _answer(call, comm)
        for r in others:
            if r not in told and comm.Iprobe(source=r, tag=ANSWER):
                told[r] = comm.recv(source=r, tag=ANSWER)
        time.sleep(1e-3)
    del questions
    silent = "does not wait: it computes, has ended or waits outside tinygrad_attn.parallel"
    rows = [f"rank {r} {'waits in ' + told[r] if r in told else silent}" for r in range(comm.size)]
    return (
        f"rank {comm.rank} has waited {waited:.0f} s in {call}. "
        + "; ".join(rows)
        + ". Every rank calls the same functions in the same order, also those that only rank 0 "
        "needs the result of. If one of them needs longer than that, set_time_limit(seconds)."
    )
