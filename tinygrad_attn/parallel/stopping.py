"""One rank fails, all stop: an exception or Ctrl-C on one rank ends the whole run with one story.

Without this a rank that raises would print its traceback and then wait, in MPI's own clean-up, for
ranks that wait for it. `mpiexec` itself ends the others where a rank is killed from outside.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_installed = False

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended, as shells have it."""


def say_it_ourselves() -> None:
    """Ask MPICH not to add a line of its own when we stop all ranks; before MPI is loaded."""
    os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")


def stop_all_on_an_exception(comm: Any) -> None:
    """From now on an exception that nobody catches on this rank ends all ranks.

    This replaces `sys.excepthook`, once, and calls the one that was there for the traceback.
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
                print(f"\nrank {rank} of {size} raised:", file=sys.stderr)
                before(kind, error, traceback)
                first = (str(error).splitlines() or [""])[0]
                said = f"ended with {kind.__name__}: {first}"
            print(f"rank {rank} of {size} {said}. All ranks are stopped.", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            _stop_all(code)

    sys.excepthook = stop


def _stop_all(code: int) -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)
