"""Writes files atomically: a killed process leaves either the old file or the whole new one."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX, SUFFIX = ".saving-", ".part"
ABANDONED = 86_400.0  # seconds; older temporary files were left by killed processes


def write_atomically(data: bytes | str, path: str | bytes | os.PathLike[str]) -> None:
    """Create or replace the file `path` with this content.

    A temporary file in the same folder is flushed to disk and renamed over the old file. Symbolic
    links and permissions are kept. Raises OSError if writing fails, such as PermissionError for a
    write-protected file. After an error, the old file is unchanged.
    """
    target = os.path.realpath(os.fsdecode(path))
    folder = os.path.dirname(target)
    mode = _mode(target)
    for old in Path(folder).glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > ABANDONED:
                old.unlink()
    descriptor, part = tempfile.mkstemp(SUFFIX, PREFIX, folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, mode)
        os.replace(part, target)
    except BaseException as error:
        error.add_note(f"could not save {path!r}; an older file with this name is unchanged.")
        with suppress(OSError):
            os.unlink(part)
        raise
    with suppress(OSError):  # Windows and some network disks refuse this
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)  # makes the rename durable
        finally:
            os.close(opened)


def _mode(target: str) -> int:
    """Return the permissions of the old file, or the default ones for a new file."""
    if not os.path.exists(target):
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    if not os.path.isfile(target):
        raise IsADirectoryError(
            f"{target!r} is not an ordinary file; choose a file name such as x.safetensors."
        )
    mode = stat.S_IMODE(os.stat(target).st_mode)
    if not mode & 0o222:  # os.replace would overwrite it
        raise PermissionError(
            f"{target!r} is write-protected; choose another name, or run chmod u+w."
        )
    return mode
