"""Marks the files of a class, and makes a table of them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _apart import mark_apart
from _marking import Exercise, Marks

from tinygrad_attn.viz.render import write


class Row(NamedTuple):
    """One file; the columns of the CSV file."""

    file: str
    passed: int
    checks: int
    first_failing: str
    verdict: str

    @property
    def ok(self) -> bool:
        return not self.first_failing

    @property
    def score(self) -> str:
        return f"{self.passed} of {self.checks}"

    def __str__(self) -> str:
        return self.score if self.ok else f"{self.score}  {self.first_failing}: {self.verdict}"


def mark_class(
    chosen: Exercise, paths: Sequence[Path], time_limit: float, table: str | None
) -> int:
    """Mark every file, print a table and write it as CSV; 0 if all pass, else 1."""
    rows: list[Row] = []
    number, bar, stopped = checks(chosen), _bar(len(paths)), False
    try:
        for path in paths:
            marks = mark_apart(chosen, path, time_limit, quiet=True)
            first = next((line for line in marks.lines if not line.ok), None)
            why = (
                (first.name, " ".join(first.verdict.split())) if first else ("", "")
            )  # an error of the file's own may have any name
            rows.append(Row(str(path), sum(line.ok for line in marks.lines), number, *why))
            if bar is not None:
                bar.update()
            elif sys.stderr is not None:
                print(
                    f"{len(rows)} of {len(paths)}: {path}: {rows[-1].score}",
                    file=sys.stderr,
                    flush=True,
                )
    except KeyboardInterrupt:
        stopped = True
    if bar is not None:
        bar.close()
    for row in rows:
        print(f"{row.file:{max(len(one.file) for one in rows)}}  {row}")
    if stopped:
        raise KeyboardInterrupt(
            f"Stopped: {len(rows)} of {len(paths)} files {'is' if len(rows) == 1 else 'are'} "
            f"marked, see the table{f'; {table} is not written' if table else ''}."
        )
    passed = sum(row.ok for row in rows)
    print(f"\n{passed} of {len(rows)} files pass all checks.")
    if table:
        lines = io.StringIO()
        csv.writer(lines).writerows([Row._fields, *rows])
        try:
            write(
                table, lines.getvalue().encode("utf-8-sig", "backslashreplace")
            )  # with the mark by which Excel knows UTF-8
        except (
            OSError
        ) as error:  # which says why: the disk is full, or the old one is open in some program
            raise ValueError(f"{error.strerror}.") from error
    return 0 if passed == len(rows) else 1


def checks(chosen: Exercise) -> int:
    """How many checks an exercise has: as many as fail where nothing is written."""
    empty = Marks(Path(f"{chosen.name}.py"))
    chosen.mark(empty)
    return len(empty.lines)


def _bar(files: int) -> Any:
    """A bar on a terminal; in a log a line for each file does."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=files, unit="file", dynamic_ncols=True, leave=False)
