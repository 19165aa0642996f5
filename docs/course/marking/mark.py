"""Marks the exercises of the course: `python -m tinygrad_attn exercise NAME [FILE]`.

`python docs/course/marking/mark.py NAME [FILE]` does the same. The names of the other modules here
begin with `_`, so that they never clash with a learner's file.

    exercise                   lists the exercises
    exercise softmax           marks docs/course/exercises/softmax.py
    exercise softmax mine.py   marks your own file
    exercise softmax a.py b.py or handed-in/*.py
                               marks each file and prints a table
    exercise zoo               shows real bugs of published engines, to find with gradcheck
    exercise engine --step 2   marks one step of the project
    exercise gelu.py mine.py   marks an answer to an exercise of a teacher's own
    exercise exam engine.py    examines a whole engine: see docs/exam.md

Each check prints a line with its name, the largest absolute and relative error, the index of the
error, and a verdict. Help with the first failure comes before these lines; `--all` prints help with
each failure. `--json` prints both in the format of Gradescope. The exit code is 0 if all checks
pass, 1 if not. Each file runs in its own process, which is stopped if a check does not end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import _exam
import _language
import _marks_attention  # noqa: F401  these register their exercises
import _marks_dual  # noqa: F401
import _marks_engine  # noqa: F401
import _marks_layers  # noqa: F401
import _marks_llm  # noqa: F401
import _marks_parallel  # noqa: F401
import _marks_program  # noqa: F401
import _marks_project  # noqa: F401
import _own
import _practice
from _apart import mark_apart
from _class import mark_class, results
from _marking import Exercise, Marks, exercises, plan

from tinygrad_attn.errors import nearest

EXERCISES = Path(__file__).resolve().parent.parent / "exercises"
TIME_LIMIT = 60.0
"""How many seconds a check may take."""


@_language.speaking()
def main(
    name: str | None = None,
    *words: str | None,
    time_limit: float = TIME_LIMIT,
    csv: str | None = None,
    everything: bool = False,
    as_json: bool = False,
    step: str | None = None,
) -> int:
    """List the exercises, mark one, or show a bug of the zoo, and return the exit code. Raises
    ValueError for a name, file or bug that does not exist.
    """
    given = [word for word in words if word is not None]
    if not time_limit >= 0:
        raise ValueError(f"--time-limit is a number of seconds, 0 for none, got {time_limit:g}.")
    if csv is not None and (not given or name == "zoo"):
        raise ValueError(
            "--csv needs an exercise and files: exercise softmax handed-in/*.py --csv marks.csv"
        )
    if name is None:
        print(catalogue())
        return 0
    if name == "zoo":
        if len(given) > 2:
            raise ValueError(
                "the zoo takes the number of a bug and an answer, got "
                f"{', '.join(map(repr, given))}."
            )
        import _zoo  # here, because a process that only marks a file starts sooner without it

        return _zoo.main(*[*given, None, None][:2])
    if name == "exam" and len(given) == 1:
        return _exam.main(given[0], as_json=as_json, time_limit=time_limit)
    chosen = find(name)
    if chosen.number < 0 and not given:
        print(_own.stub(_own.own(name)), end="")
        return 0
    stub = EXERCISES / f"{chosen.name}.py"
    chosen = find(f"{name}, step {step}") if step else chosen
    paths = files(given, stub) or [stub]
    if csv is not None:
        refuse_table(csv)
    if as_json:
        found = {str(path): mark_apart(chosen, path, time_limit, quiet=True) for path in paths}
        forms = {path: results(chosen, marks) for path, marks in found.items()}
        print(json.dumps(forms if len(forms) > 1 else forms.popitem()[1], indent=1))
        return int(not all(marks.ok for marks in found.values()))
    if len(paths) > 1 or csv is not None:
        return mark_class(chosen, paths, time_limit, csv)
    (path,) = paths
    marks = mark_apart(chosen, path, time_limit)
    print(outcome(chosen, marks, path, everything))
    print(what_next(chosen, marks, None if given else stub, everything), end="")
    return 0 if marks.ok else 1


def outcome(chosen: Exercise, marks: Marks, path: Path, everything: bool = False) -> str:
    """Return the text about a file, for the terminal or for a page."""
    if chosen.name == "exam":
        return _exam.report(marks)
    if chosen.name == "practice":
        return _practice.outcome(marks)
    text = f"exercise {chosen.title}: {_shown(path)}\n\n{marks.report(everything)}"
    if chosen not in exercises.values() or not marks.ok:
        return text
    if later := following(chosen):
        task = f"{later.chapter}, {later.name}: {later.task}"
        return f"{text}\n\nWell done. The next is exercise {task}."
    return f"{text}\n\nWell done: that was the last exercise of the course."


def what_next(chosen: Exercise, marks: Marks, stub: Path | None, everything: bool) -> str:
    """Return what to type next, after the text about a file, which may be the `stub` itself."""
    texts = []
    if len(marks.helps) > 1 and not everything:
        texts.append(f"{len(marks.helps) - 1} more: --all explains each.")
    if any(line.verdict.startswith("no end") for line in marks.lines):
        texts.append("--time-limit SECONDS gives each check more time.")
    if any(line.verdict == "not written yet" for line in marks.lines):
        if stub is None:
            texts.append(f"Write your answer in {_shown(marks.file)} and run this again.")
        else:
            texts.append(
                f"Write your answer in {_shown(stub)}, or in a copy of it, and mark the file:\n"
                f"    python -m tinygrad_attn exercise {chosen.name.replace(', step', ' mine.py --step')}"
                f"{'' if ', step' in chosen.name else ' mine.py'}"
            )
    if marks.ok and (later := following(chosen)):
        texts.append(f"    python -m tinygrad_attn exercise {later.name}")
    return "".join(f"\n{text}\n" for text in texts)


def following(chosen: Exercise) -> Exercise | None:
    """Return the exercise that comes next, if there is one."""
    order = sorted(exercises.values())
    later = order[order.index(chosen) + 1 :] if chosen in order else []
    return later[0] if later else None


def files(words: Sequence[str], stub: Path) -> list[Path]:
    """List the named files without duplicates. A pattern such as handed-in/*.py is expanded here if the
    shell has not done so.
    """
    found: list[str] = []
    for word in words:
        if Path(word).is_file():
            found.append(word)
        elif Path(word).is_dir():
            raise ValueError(
                f"{word!r} is a folder; name the files in it, such as {Path(word, '*.py')} or "
                f"{Path(word, '*', stub.name)}."
            )
        elif set("*?[") & set(word):
            matches = sorted(match for match in glob(word, recursive=True) if Path(match).is_file())
            if not matches:
                raise ValueError(f"no file matches {word!r}.")
            found += matches
        else:
            raise ValueError(
                f"there is no file {word!r}. Begin with a copy of the stub: copy {_shown(stub)} to "
                f"{word}."
            )
    return [Path(one) for one in dict.fromkeys(found)]


def refuse_table(path: str) -> None:
    """Raise ValueError if the table cannot be written to `path`, before the marking, which may take
    long.
    """
    if Path(path).suffix == ".py":
        raise ValueError(
            f"--csv would overwrite {path!r}, which is a Python file; give a name that ends in .csv."
        )
    if Path(path).is_dir():
        raise ValueError(
            f"{path!r} is a folder; name a file in it: --csv {Path(path, 'marks.csv')}"
        )
    if not Path(path).parent.is_dir():
        raise ValueError(
            f"there is no folder {str(Path(path).parent)!r} for {path!r}; create it first."
        )


def mark(chosen: Exercise, path: Path) -> Marks:
    """Run all checks of an exercise on a file, in this process."""
    marks = Marks(path)
    if marks.load():
        chosen.mark(marks)
    return marks


def find(name: str) -> Exercise:
    """Find an exercise by its name or by the number of its chapter."""
    kind, _, groups = name.partition(" ")
    if kind == "exam":
        return _exam.exam(groups)
    if kind == "practice":
        return _practice.practice()
    name, _, step = name.partition(", step ")
    if step:
        return only(find(name), step)
    if _own.PACKED.is_file() or _own.is_own(name):
        return _own.made_from(name, _own.own(name))
    for one in exercises.values():
        if name.removesuffix(".py") in (one.name, one.chapter, f"0{one.chapter}"):
            return one
    raise ValueError(
        f"there is no exercise {name!r}.{nearest(name, [*exercises, 'zoo'])}\n{catalogue()}"
    )


def only(chosen: Exercise, step: str) -> Exercise:
    """Return the part of an exercise whose checks begin with the number of a step."""

    def mark(marks: Marks) -> None:
        marks.step = step
        chosen.mark(marks)

    steps = dict.fromkeys(line.name.split()[0] for line in plan(chosen).lines)
    numbers = [number for number in steps if number.isdigit()]
    if step not in numbers:
        which = f"are {', '.join(numbers)}" if numbers else "do not exist for this exercise"
        raise ValueError(f"there is no step {step!r}; the steps of {chosen.name} {which}.")
    return chosen._replace(name=f"{chosen.name}, step {step}", mark=mark)


def catalogue() -> str:
    """List every exercise with its task."""
    rows = [f"{one.chapter:>4}  {one.name:14}  {one.task}" for one in sorted(exercises.values())]
    return "\n".join(
        [
            "The exercises of docs/course, one for each chapter, and a project:",
            "",
            *rows,
            "      zoo             find real bugs of published engines",
            "",
            f"The stubs are in {_shown(EXERCISES)}.",
            "Mark one with: python -m tinygrad_attn exercise NAME [FILE]",
        ]
    )


def _shown(path: Path) -> str:
    """Return the relative or the absolute path, whichever is shorter."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except ValueError:  # on another drive
        return str(path)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
