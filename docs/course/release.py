"""Makes a lecturer's release: `python -m tinygrad_attn course --release DIR`.

DIR/student      the stubs, the chapters as notebooks and the questions, without any answer
DIR/variants     for each student of the list, tasks of practice that nobody else has
DIR/autograder   a zip for each exercise, and one for practice, to upload to Gradescope
DIR/slides       every chapter as slides
"""

from __future__ import annotations

import csv
import io
import json
import re
import secrets
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinygrad_attn import __file__ as package
from tinygrad_attn.files import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "autograder"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "marking"))

import layout
import notebooks
import run as autograder
import slides
from _practice import file_name, make, stub

HERE = Path(__file__).resolve().parent
TASKS = [["elementwise", 1], ["broadcasting", 2], ["norms", 3], ["attention", 4]]
"""The topics and levels of each student's tasks of practice."""
TIME_LIMIT = 10
TRIES = 8
"""How many hidden inputs are tried until the solution passes with them."""
ANSWER = re.compile(r"<details>.*?</details>\n*", re.S)
OUTWARDS = re.compile(r"(?<!!)\[([^]]*)\]\((?:\.\./|/)[^)]*\)")
INTRODUCTION = re.compile(r" The\s+answers are folded.*?(?=\n## )", re.S)
SCRIPTS = ("setup.sh", "run_autograder")


def release(folder: Path, students: str | None = None) -> str:
    """Write a release into a new or empty folder. Returns a text that says what it contains."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name a new folder.")
    numbers = list_of_students(students)
    copy_for_students(folder / "student")
    for _, number in numbers:
        write_variants(folder / "variants" / number, int(number))
    names = sorted(path.stem for path in (HERE / "exercises").glob("*.py"))
    hidden = make_autograders(folder / "autograder", names, numbers)
    reveal = slides.write_all(folder / "slides")
    return "\n".join(
        [
            f"{folder / 'student'}: {len(names)} stubs, the notebooks and the questions.",
            f"{folder / 'variants'}: {len(TASKS)} tasks for each of {len(numbers)} students."
            if numbers
            else "No variants: --students FILE takes a file with a line `email,number` for each.",
            f"{folder / 'autograder'}: {len(names) + 1} zips for Gradescope, "
            f"{hidden} of them with hidden inputs.",
            f"{folder / 'slides'}: {len(notebooks.chapters())} chapters; {reveal}.",
        ]
    )


def list_of_students(path: str | None) -> list[tuple[str, str]]:
    """Read pairs of an address and a number. Raises ValueError for a line that has no number."""
    if path is None:
        return []
    with open(path, newline="", encoding="utf-8-sig") as opened:
        rows = [[cell.strip() for cell in row] for row in csv.reader(opened) if any(row)]
    if rows and not rows[0][-1].isdigit():
        rows = rows[1:]  # a line of titles
    for row in rows:
        if len(row) != 2 or not row[1].isdigit():
            raise ValueError(f"{path}: expected a line `email,number`, got {','.join(row)!r}.")
    return [(row[0], row[1]) for row in rows]


def copy_for_students(folder: Path) -> None:
    """Write stubs, notebooks and questions; links that lead out of the folder become plain text."""
    layout.lay_out(folder)
    for path in (folder / "notebooks").glob("*.ipynb"):
        write_atomically(OUTWARDS.sub(r"\1", path.read_text("utf-8")), path)
    source = HERE / "questions.md"
    text = ANSWER.sub("", source.read_text("utf-8"))
    text = notebooks.links(text, source, (folder / "notebooks").resolve())
    text = OUTWARDS.sub(r"\1", text)
    text = re.sub(r"\]\((?!https?:|#)", "](notebooks/", text)
    write_atomically(INTRODUCTION.sub("\n", text), folder / "questions.md")


def write_variants(folder: Path, number: int) -> None:
    """Write a student's own tasks of practice."""
    folder.mkdir(parents=True, exist_ok=True)
    for topic, level in TASKS:
        task = make(topic, level, number)
        write_atomically(stub(task), folder / file_name(task))


# ---- the autograder


def make_autograders(folder: Path, names: list[str], numbers: list[tuple[str, str]]) -> int:
    """Write a zip for each exercise and for practice. Return how many have hidden inputs."""
    folder.mkdir(parents=True)
    files, count = dict(contents()), 0
    with tempfile.TemporaryDirectory() as staged:
        for name, content in files.items():
            Path(staged, name).parent.mkdir(parents=True, exist_ok=True)
            Path(staged, name).write_bytes(content)
        autograder.SOURCE = Path(staged)
        for done, name in enumerate(names, 1):
            print(f"{done} of {len(names)}: {name}", file=sys.stderr, flush=True)
            inputs = hidden_inputs(name)
            count += inputs is not None
            settings = {"exercise": name, "time_limit": TIME_LIMIT, "inputs": inputs}
            write_zip(folder / f"{name}.zip", files, settings)
    if numbers:
        lines = io.StringIO()
        csv.writer(lines).writerows(numbers)
        files["students.csv"] = lines.getvalue().encode()
    settings = {"exercise": "practice", "time_limit": TIME_LIMIT, "tasks": TASKS}
    write_zip(folder / "practice.zip", files, settings)
    return count


def contents() -> Iterator[tuple[str, bytes]]:
    """List the files of every zip: the package, the stubs, the marker and the scripts."""
    root = Path(package).resolve().parent
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and path.suffix != ".pyc" and not name.startswith("_docs"):
            yield f"tinygrad_attn/{name}", path.read_bytes()
    for pattern in ("exercises/*.py", "marking/*.py", "marking/*.po"):
        for path in sorted(HERE.glob(pattern)):
            yield f"docs/course/{path.relative_to(HERE).as_posix()}", path.read_bytes()
    for path in sorted((HERE / "autograder").iterdir()):
        if path.is_file():
            yield path.name, path.read_bytes()


def hidden_inputs(name: str) -> int | None:
    """Return a shift of the marker's seeds with which the solution passes, or None without one."""
    solution = HERE / "exercises" / "solutions" / f"{name}.py"
    if not solution.is_file():
        return None  # an installed package has no solutions
    for _ in range(TRIES):
        inputs = secrets.randbelow(10**9)
        tests = autograder.marked([name, str(solution)], 60, inputs)["tests"]
        if all(test["status"] == "passed" for test in tests):
            return inputs
    return None


def write_zip(path: Path, files: dict[str, bytes], settings: dict[str, Any]) -> None:
    """Write a zip, whose scripts can be executed."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, "settings.json": json.dumps(settings).encode()}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name in SCRIPTS else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    write_atomically(into.getvalue(), path)
