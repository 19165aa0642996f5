"""One rank fails, all stop: an exception or Ctrl-C on one rank ends the whole run with one story.

Without this a rank that raises would print its traceback and then wait, in MPI's own clean-up, for
ranks that wait for it. `mpiexec` itself ends the others where a rank is killed from outside.
"""

from __future__ import annotations

import os
import sys
import time
from traceback import format_exception
from typing import Any

_installed = False

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended, as shells have it."""
FORWARDED = 0.3
"""Seconds for the launcher to pass on what a rank has written, before it hears of the end and may
drop the rest.
"""


def stop_all_on_an_exception(comm: Any) -> None:
    """From now on an exception that nobody catches on this rank ends all ranks.

    This replaces `sys.excepthook`, once; a hook of the user's is called before.
    """
    global _installed
    if _installed:
        return
    _installed = True
    before, rank, size = sys.excepthook, comm.rank, comm.size

    def stop(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        code = 1
        try:
            if issubclass(kind, KeyboardInterrupt):
                code = INTERRUPTED
                said = "was interrupted"
            else:
                first = (str(error).splitlines() or [""])[0].rstrip(".")
                said = f"ended with {kind.__name__}: {first}"
            if before is not sys.__excepthook__:
                before(kind, error, traceback)
                told = []
            else:  # in one piece, or what other ranks say would stand in between
                told = format_exception(kind, error, traceback) if code == 1 else []
            told.append(f"rank {rank} of {size} {said}. All ranks are stopped.\n")
            sys.stdout.flush()
            sys.stderr.write("".join(told))
            sys.stderr.flush()
            time.sleep(FORWARDED)
        finally:
            _stop_all(code)

    sys.excepthook = stop


def _stop_all(code: int) -> None:
    from mpi4py import MPI

    # What MPI would add, "Abort(1) on node 0", says less than the last line that is there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno() if sys.__stderr__ else 2)
    MPI.COMM_WORLD.Abort(code)
