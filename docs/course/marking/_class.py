"""Marks the files of a class and prints a table of the results."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _apart import mark_apart
from _compare import Line
from _marking import Exercise, Marks, plan
from _points import Points, points, short

from tinygrad_attn.files import write_atomically


class Row(NamedTuple):
    """One file, its points, and the verdict on each of its checks."""

    file: str
    points: Points
    first_failing: str
    verdict: str
    verdicts: dict[str, str]

    @property
    def ok(self) -> bool:
        return not self.first_failing

    @property
    def score(self) -> str:
        return f"{short(self.points.total)} of {short(self.points.most)}"

    def __str__(self) -> str:
        return self.score if self.ok else f"{self.score}  {self.first_failing}: {self.verdict}"


COLUMNS = ["file", "points", "of", "first_failing", "verdict"]


def row(path: Path, marks: Marks, planned: Marks) -> Row:
    """Make the table row for one file."""
    # The file may define an exception with any name, so collapse the whitespace in the verdict.
    verdicts = {line.name: " ".join(line.verdict.split()) for line in marks.lines}
    first = next((line.name for line in marks.lines if not line.ok), "")
    return Row(str(path), points(marks, planned), first, verdicts.get(first, ""), verdicts)


def grid(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a table with a column for each check: ok, x, or a dot for a check that was not run. The
    names of the checks follow below.
    """
    width = max(len(one.file) for one in rows)
    numbers = " ".join(f"{k + 1:>2}" for k in range(len(names)))
    lines = [f"{'check':{width}}  {numbers}"]
    for one in rows:
        signs = [one.verdicts.get(name) for name in names]
        cells = ["ok" if v == "ok" else " ." if v is None else " x" for v in signs]
        lines.append(f"{one.file:{width}}  {' '.join(cells)}")
    return "\n".join([*lines, *(f"{k + 1:>4}  {name}" for k, name in enumerate(names))])


def mark_class(
    chosen: Exercise, paths: Sequence[Path], time_limit: float, table: str | None
) -> int:
    """Mark every file, print a table and write it as CSV. Return 0 if all files pass, else 1."""
    rows: list[Row] = []
    planned, bar, stopped = plan(chosen), _bar(len(paths)), False
    try:
        for path in paths:
            marks = mark_apart(chosen, path, time_limit, quiet=True)
            rows.append(row(path, marks, planned))
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
    for one in rows:
        print(f"{one.file:{max(len(one.file) for one in rows)}}  {one}")
    if stopped:
        raise KeyboardInterrupt(
            f"Stopped: {len(rows)} of {len(paths)} files {'is' if len(rows) == 1 else 'are'} "
            f"marked, see the table{f'; {table} is not written' if table else ''}."
        )
    found = (name for one in rows for name in one.verdicts)
    names = list(dict.fromkeys([*(line.name for line in planned.lines), *found]))
    print(f"\n{grid(rows, names)}")
    passed = sum(one.ok for one in rows)
    print(f"\n{passed} of {len(rows)} files pass all checks.")
    if table:
        lines = io.StringIO()
        cells = [
            [
                *(one.file, short(one.points.total), short(one.points.most)),
                *(one.first_failing, one.verdict),
                *(one.verdicts.get(name, "") for name in names),
            ]
            for one in rows
        ]
        csv.writer(lines).writerows([[*COLUMNS, *names], *cells])
        try:
            # The byte order mark tells Excel that this is UTF-8.
            write_atomically(lines.getvalue().encode("utf-8-sig", "backslashreplace"), table)
        except (
            OSError
        ) as error:  # for example, the disk is full, or another program has the old file open
            raise ValueError(f"{error.strerror}.") from error
    return 0 if passed == len(rows) else 1


def results(chosen: Exercise, marks: Marks, names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the marks in the format of Gradescope's results.json.

    `names` are those of all checks, with one point each, if an empty file does not tell them.
    """
    planned = marks if names else plan(chosen)
    found = points(marks, planned)
    made = {line.name: line for line in marks.lines}
    about = {line.name: line.idea for line in planned.lines}
    tests = []
    for name in dict.fromkeys([*(names or about), *made]):
        line = made.get(name, Line(name, "not run"))
        one = {
            "name": name,
            "score": round(found.gained.get(name, 0.0), 4),
            "max_score": round(found.possible.get(name, 1.0 if names else 0.0), 4),
            "output": marks.helps.get(name, line.verdict),
            "extra_data": {"verdict": line.verdict, "idea": about.get(name, "")},
        }
        tests.append({**one, "status": "passed" if line.ok or not line.counts else "failed"})
    passed = sum(line.ok for line in marks.lines)
    counted = sum(made[test["name"]].counts if test["name"] in made else True for test in tests)
    text = f"{chosen.name}: {passed} of {counted} checks pass"
    said = (
        f", {len(tests) - counted} not offered" * (counted < len(tests)) if names else f", {found}"
    )
    return {"score": round(found.total, 4), "output": f"{text}{said}.", "tests": tests}


def _bar(files: int) -> Any:
    """Return a progress bar if stderr is a terminal; a log gets a line for each file instead."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=files, unit="file", dynamic_ncols=True, leave=False)
