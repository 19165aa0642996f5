"""Writing a file so that a kill at any moment leaves the old one or the new one, whole.

A save writes a temporary file `.saving-*.part` in the same folder, flushes it to the disk and
renames it over the old file. It holds a lock on its temporary file as long as it runs. A part that
nobody has locked belongs to a process that was killed in the middle, and the next save into the
folder deletes it. (A process number in the name would not do: numbers are used again, and other
containers and machines that share the folder have numbers of their own.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, which deletes no file that is open
    fcntl = None  # type: ignore[assignment]

FIRST, LAST = ".saving-", ".part"
"""How the name of every temporary file begins and ends."""

DAY = 86_400.0
"""Seconds without a change after which a part is abandoned where no lock can tell."""


def write_atomically(data: bytes, path: str) -> None:
    """Replace the file `path`, or make it, with these contents.

    A link to a file keeps standing for it. Raises OSError if the disk or the folder refuses,
    PermissionError for a write-protected file, ValueError for a device; the old file is then still
    there, unchanged.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    mode = _mode_of_old_file(target, path)
    _clear_abandoned_parts(folder)
    part, replacing = "", False
    try:
        part, file = _new_part(folder)
        with file:  # locked until it has been renamed
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                os.chmod(part, mode)
            if fcntl is None:  # Windows renames no file that is open
                file.close()
            replacing = mode is not None
            os.replace(part, target)
    except BaseException as error:
        _remove(part)
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"could not save {path!r}: {_reason(error, folder, replacing)}; "
                "an older file of this name is unchanged",
            ) from error
        raise
    _flush_folder(folder)


def _new_part(folder: str) -> tuple[str, Any]:
    """The name of a new temporary file, and the file, open for writing and locked."""
    while True:
        part = os.path.join(folder, f"{FIRST}{secrets.token_hex(8)}{LAST}")
        file = open(part, "xb")  # noqa: SIM115 (the caller closes it)
        _lock(file, wait=True)
        if os.path.exists(part):
            return part, file
        file.close()  # another save took it for abandoned before it was locked


def _lock(file: Any, wait: bool) -> bool:
    """Lock an open file; False where another process holds the lock, or the system has none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _clear_abandoned_parts(folder: str) -> None:
    """Delete the temporary files of saves that were killed. What cannot be deleted stays."""
    parts: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        parts = [e for e in entries if e.name.startswith(FIRST) and e.name.endswith(LAST)]
    for part in parts:
        with contextlib.suppress(OSError):
            if not part.is_file(follow_symlinks=False):
                continue
            if fcntl is not None:
                with open(part.path, "r+b") as file:
                    if _lock(file, wait=False):
                        os.unlink(part.path)
            elif time.time() - part.stat().st_mtime > DAY:
                os.unlink(part.path)


def _mode_of_old_file(target: str, path: str) -> int | None:
    """The permissions that the new file takes over; None where there is no old one."""
    try:
        status = os.stat(target)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        example = os.path.join(path, "model.safetensors")
        raise IsADirectoryError(
            errno.EISDIR, f"{path!r} is a folder; name a file in it, as {example}"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path!r} is a device or a pipe, and a save replaces what it names; "
            "choose an ordinary file"
        )
    mode = stat.S_IMODE(status.st_mode)
    # Renaming asks the folder's permissions only, and root may write every file: the mode decides.
    if not (mode & 0o222 and os.access(target, os.W_OK)):
        raise PermissionError(
            errno.EACCES,
            f"could not save {path!r}: no permission to replace the old file, which is "
            "write-protected; choose another name, or allow it with chmod u+w",
        )
    return mode


def _reason(error: OSError, folder: str, replacing: bool) -> str:
    """Why the system refused, and what to do."""
    if not os.path.isdir(folder):
        return f"there is no folder {folder!r}; make it with os.makedirs"
    if replacing and isinstance(error, PermissionError):
        # The folder took the new file. Windows keeps an old one that some program has open.
        return (
            "no permission to replace the old file, which is write-protected or, on Windows, "
            "open in some program"
        )
    hints = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "the file is larger than the system allows",
        errno.EACCES: f"no permission to write in {folder!r}",
        errno.EPERM: f"no permission to write in {folder!r}",
        errno.EROFS: f"{folder!r} is read-only",
    }
    return hints.get(error.errno or 0, error.strerror or str(error))


def _remove(part: str) -> None:
    """Delete a temporary file, if there is one: the error that came first is the one to report."""
    with contextlib.suppress(OSError):
        os.unlink(part)


def _flush_folder(folder: str) -> None:
    """Put the rename itself on the disk, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # as on Windows
        return
    try:
        # Some network disks refuse. Then only surviving a power cut is not promised.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:  # an interrupt may come here too, while a slow disk is waited for
        os.close(descriptor)
