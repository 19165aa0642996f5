"""Writing to standard output while its reader may go: `tinygrad-attn graph ... | head`."""

from __future__ import annotations

import errno
import io
import os
import sys


def take_any_letter() -> None:
    """Names have any letters, and a pipe on Windows takes only some: escape the others."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def write_out() -> None:
    """Write now what was printed. Python would do so at its end, and complain of a gone reader."""
    try:
        if sys.stdout is not None:  # as it is under pythonw
            sys.stdout.flush()
    except OSError as error:
        if not reader_gone(error):
            raise
        say_no_more()


def say_no_more() -> None:
    """The reader has seen enough: what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_gone(error: Exception) -> bool:
    """Does nobody read the pipe any more? Windows calls that an invalid argument without a file."""
    return isinstance(error, BrokenPipeError) or (
        os.name == "nt"
        and isinstance(error, OSError)
        and error.errno == errno.EINVAL
        and error.filename is None
    )
