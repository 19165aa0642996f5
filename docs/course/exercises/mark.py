"""Marks the exercises of the course: `python -m tinygrad_attn exercise NAME [FILE]`, or `python mark.py NAME [FILE]`.

    exercise                   lists the exercises
    exercise softmax           marks docs/course/exercises/softmax.py
    exercise softmax mine.py   marks your own file
    exercise zoo               real bugs of published engines, to be found with gradcheck

A line for each check: its name, the largest absolute and relative error, where it is, a verdict; then help with the first that
fails. The exit code is 0 if all pass, 1 if not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import _marks_engine  # noqa: F401  these enter their exercises
import _marks_layers  # noqa: F401
import _zoo
from _marking import Exercise, Marks, exercises

from tinygrad_attn.errors import nearest

HERE = Path(__file__).resolve().parent


def main(name: str | None = None, file: str | None = None, answer: str | None = None) -> int:
    """List the exercises, mark one, or show a bug of the zoo; returns the exit code.  Raises ValueError for what does not exist."""
    if name is None:
        print(catalogue())
        return 0
    if name == "zoo":
        return _zoo.main(file, answer)
    if answer is not None:
        raise ValueError(f"an exercise takes one file, got {file!r} and {answer!r}.")
    chosen = find(name)
    stub = HERE / f"{chosen.name}.py"
    path = Path(file) if file else stub
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}. Begin with a copy of the stub: copy {_shown(stub)} to {path}.")
    marks = mark(chosen, path)
    print(f"exercise {chosen.number}, {chosen.name}: {_shown(path)}\n\n{marks}")
    if not marks.ok and any(line.verdict == "not written yet" for line in marks.lines):
        print(f"\nWrite your answer into {_shown(path)} and run this again." if file else
              f"\nWrite your answer into {_shown(stub)}, or into a copy of it, and mark that:\n"
              f"    python -m tinygrad_attn exercise {chosen.name} mine.py")
    return 0 if marks.ok else 1


def mark(chosen: Exercise, path: Path) -> Marks:
    """Run all checks of an exercise on a file."""
    marks = Marks(path)
    if marks.load():
        chosen.mark(marks)
    return marks


def find(name: str) -> Exercise:
    """An exercise by its name, or by its chapter's number."""
    for one in exercises.values():
        if name.removesuffix(".py") == one.name or name.isdecimal() and int(name) == one.number:
            return one
    raise ValueError(f"there is no exercise {name!r}.{nearest(name, [*exercises, 'zoo'])}\n{catalogue()}")


def catalogue() -> str:
    """Every exercise with its task."""
    rows = [f"{one.number:4}  {one.name:14}  {one.task}" for one in sorted(exercises.values())]
    return "\n".join(["The exercises, one a chapter (docs/course):", "", *rows, "      zoo             find real bugs of published engines",
                      "", f"The stubs are in {_shown(HERE)}, the solutions in its folder solutions.",
                      "Mark one with: python -m tinygrad_attn exercise NAME [FILE]"])


def _shown(path: Path) -> str:
    """The shorter of the path from here and the whole path."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except ValueError:                               # another drive
        return str(path)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:4]))
    except ValueError as error:
        sys.exit(str(error))
