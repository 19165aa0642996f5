"""Marks a file in its own process, so that a file that loops, exits, crashes or changes NumPy does
no harm elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _marking import Exercise, Idea, Line, Marks

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

HERE = Path(__file__).resolve().parent
EXERCISES = HERE.parent / "exercises"
START = 60
"""The seconds that Python and NumPy may take to start, even if the time limit is shorter."""
START_OF_ALL = "Python starts"
NO_MORE = "\n    The checks after it were not run."
ATTEMPTS = 4
"""How many processes a file may use, by default. Each check that does not end uses up one."""
PRINTED = 2000
"""How many characters of a file's output are shown."""
# The parent handles Ctrl-C and then ends this process, so a KeyboardInterrupt here comes from the
# file itself. A separate session blocks the terminal's Ctrl-C even while Python starts. Where there
# are no sessions, the line below blocks it.
CODE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = sys.argv[6:]; "
    "import _apart; _apart.child(*sys.argv[1:6])"
)


def mark_apart(
    chosen: Exercise, path: Path, time_limit: float, quiet: bool = False, attempts: int = ATTEMPTS
) -> Marks:
    """Mark a file. A check that takes longer than `time_limit` seconds, or that ends Python, fails,
    and the remaining checks run in a new process. `quiet` hides the output and the windows of the
    file.
    """
    marks, limit = Marks(path), time_limit or float("inf")
    for again in range(attempts):
        if not (running := _run(chosen, marks, limit, quiet or again > 0)):
            break
        if running in (START_OF_ALL, "the file runs"):
            marks.helps[running] += NO_MORE
            break
        if again == attempts - 1:
            marks.helps[running] += (
                "\n    The checks after it were not run, because too many checks did not end."
            )
    return marks


def _run(chosen: Exercise, marks: Marks, limit: float, quiet: bool) -> str:
    """Mark the file in a process. Return the check that did not end, or an empty string."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told, known = Path(folder, "told"), Path(folder, "known")
        told.touch()
        known.write_text(_as_text(marks), "utf-8")
        command = [
            sys.executable,
            "-P",
            "-c",
            CODE,
            chosen.name,
            str(marks.file),
            str(told),
            str(known),
            str(os.getpid()),
            str(HERE),
            str(marks.file.resolve().parent),  # one answer may import another
            str(EXERCISES),
            *map(str, sys.path),
            os.getcwd(),  # the engine that an adapter imports
        ]
        if sys.stdout is not None:
            sys.stdout.flush()  # so that earlier output comes before that of the file
        nowhere = subprocess.DEVNULL if quiet else None
        environment = {**os.environ, "MPLBACKEND": "Agg"} if quiet else None
        with subprocess.Popen(
            command,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            env=environment,
            start_new_session=True,
        ) as process:
            try:
                in_time = _ends(process, told, limit)
            finally:
                process.kill()
                process.wait()  # after Ctrl-C, leaving `with` does not wait
        marks.running, marks.lines, marks.helps = START_OF_ALL, [], {}
        for text in told.read_text("utf-8").splitlines(keepends=True)[-2:]:
            if text.endswith("\n"):  # the last line may be incomplete
                _from_text(marks, text)
    if marks.running and in_time:
        code = process.returncode
        how = (
            f"exit code {code}"
            if code >= 0 or -code not in set(signal.Signals)
            else signal.Signals(-code).name
        )
        marks.failed(
            marks.running,
            f"ends Python, {how}",
            f"Python itself ended during this check ({how}). The cause may be os._exit, a crash, or a "
            "NumPy function and one of yours that call each other endlessly.",
        )
    elif marks.running:
        no_end(marks, limit)
    return marks.running


def no_end(marks: Marks, limit: float) -> None:
    """Record that the running check took too long."""
    marks.failed(
        marks.running,
        f"no end in {limit:g} s",
        f"This check did not end within {limit:g} s. Is there an endless loop? Check what makes each loop "
        "stop.",
    )


def mark_here(
    chosen: Exercise, path: Path, tell: Callable[[str], Any], known: str, limit: float = 0
) -> Marks:
    """Mark a file in this process, except for the checks that are `known`. Whenever a check begins,
    `tell` is called with the results so far. A `limit` means that the check that is running
    according to `known` took longer than this.
    """
    before = Marks(path)
    if known:
        _from_text(before, known)
    if limit and before.running:
        no_end(before, limit)
        if before.running == "the file runs":
            before.helps[before.running] += NO_MORE
    past = {line.name: (line, before.helps.get(line.name, "")) for line in before.lines}
    marks = Marks(path, lambda marks: tell(_as_text(marks)), past)
    try:
        if marks.load():
            chosen.mark(marks)
    except (
        BaseException
    ) as error:  # a KeyboardInterrupt that the file raises is a mistake like any other
        marks.failed(marks.running, *marks.explain(error))
    marks.begin("")
    return marks


def _as_text(marks: Marks) -> str:
    """Return the marks as one line of JSON."""
    lines = [vars(line) for line in marks.lines]
    parts = [marks.running, lines, marks.helps, marks.ideas]
    return json.dumps(parts, default=lambda x: x.item()) + "\n"


def _from_text(marks: Marks, text: str) -> None:
    marks.running, lines, marks.helps, ideas = json.loads(text)
    marks.ideas = {name: Idea(*about) for name, about in ideas.items()}
    marks.lines = [Line(**{**line, "index": tuple(line["index"])}) for line in lines]


def _ends(process: subprocess.Popen, told: Path, limit: float) -> bool:
    """Wait until the process ends or a check takes too long. Return whether the process ended."""
    said, end = 0, time.monotonic() + max(limit, START)
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # a short wait, because Windows notices Ctrl-C only between waits
        if (size := told.stat().st_size) != said:  # the next check has begun
            said, end = size, time.monotonic() + limit
    return process.poll() is not None


class Shortened(io.TextIOBase):
    """A stream that cuts off a file's output at a limit, because a print in a function that is called a
    thousand times would hide the report.
    """

    def __init__(self, stream: Any) -> None:
        self.stream, self.left = stream, PRINTED

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.left > 0:
            self.stream.write(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                self.stream.write(f"\n... (the file prints more than {PRINTED} characters)\n")
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    @property
    def buffer(self) -> Any:
        return self.stream.buffer

    def fileno(self) -> int:
        return self.stream.fileno()


def child(name: str, file: str, told: str, known: str, parent: str) -> None:
    """Mark the file, except for the known checks. This runs in the new process. Whenever a check
    begins, the results so far are appended to the file `told`.
    """
    from mark import find

    def tell(text: str) -> None:
        with open(told, "a", encoding="utf-8") as file:
            file.write(text)

    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # as in the command line
        sys.stdout = Shortened(sys.stdout)
    sys.argv[:] = [file]
    if os.name != "nt":  # on Windows the parent id never changes
        with contextlib.suppress(RuntimeError):  # a sandbox may allow no thread
            threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    _leave_memory()
    mark_here(find(name), Path(file), tell, Path(known).read_text("utf-8"))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced
            stream.flush()
    os._exit(0)  # at once, even if the file has left threads running


def _leave_memory() -> None:
    """Limit the process to half of the memory, so that a list that grows forever ends in a
    MemoryError and does not bring down the machine.
    """
    if resource is not None:
        half, (_, most) = (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            resource.getrlimit(resource.RLIMIT_AS),
        )
        resource.setrlimit(resource.RLIMIT_AS, (half if most < 0 else min(half, most), most))


def _end_with(parent: int) -> None:
    """End when another process has replaced the parent, because nothing else would stop an endless
    loop if the parent is killed.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
