"""What happens around a command: reading its options, and telling in one line how it ended.

Exit codes: 0 all is well, 1 a check failed, 2 the command could not be carried out, 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .options import make_parser
from .output import reader_gone, say_no_more, take_any_letter, write_out
from .targets import UsageError

PACKAGE = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code."""
    take_any_letter()
    arguments = parse(argv)
    if arguments.run is None:
        return 0
    try:
        require_folder()
        code = int(arguments.run(arguments))
        write_out()
        return code
    except KeyboardInterrupt as stop:
        write_out()
        print(f"\n{str(stop) or 'Stopped.'}", file=sys.stderr)
        return 130
    except Exception as error:
        if reader_gone(error):
            say_no_more()
            return 0
        if arguments.traceback:
            raise
        said = f"tinygrad-attn {arguments.command}: {users_line(error)}{error}"
        if not isinstance(error, UsageError):
            said += f"\n(`tinygrad-attn --traceback {arguments.command} ...` shows where)"
        print(said, file=sys.stderr)
        return 2


def parse(argv: Sequence[str] | None) -> Any:
    """The options as attributes; `.run` is the command's function, or None without a command."""
    parser = make_parser()
    try:
        arguments, rest = parser.parse_known_args(argv)
        if rest and (arguments.command != "exercise" or any(word.startswith("-") for word in rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if arguments.run is None:
            parser.print_help()
        if rest:  # argparse takes all files at once, and leaves those that come after an option
            arguments.files += rest
        return arguments
    finally:  # --help and --version end here too; Python itself tells of a full disk when it ends
        with contextlib.suppress(OSError):
            write_out()


def require_folder() -> None:
    """Refuse to run in a folder that was deleted: there, errors speak of files that are missing."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the folder this runs in has been deleted; go to another one with cd, "
            "or into the new one of its name."
        ) from error


def users_line(error: Exception) -> str:
    """`mine.py, line 7: KeyError: ` where an error passed through a file of the user's.

    Nothing where it did not, or where the text of the error says enough.
    """
    if isinstance(error, SyntaxError):  # its text names file and line
        return "SyntaxError: "
    if isinstance(error, UsageError):
        return ""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    not_theirs = ("<", str(PACKAGE), *installed)
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(not_theirs)
    ]
    if not theirs:
        return ""
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}: {type(error).__name__}: "
