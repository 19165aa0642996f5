"""Marks a submission and writes results.json as Gradescope reads it: `run.py [FOLDER]`.

settings.json says what is marked. "inputs" shifts the seeds of the marker's random inputs for a second
run, whose results students see after the due date; null leaves it out. "time_limit" holds for each
check. For "practice", students.csv has a line `email,number` for each student.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent
ALL = 900
"""How many seconds the marking of a file may take."""
Settings = dict[str, Any]


class Unmarked(Exception):
    """Says why a submission cannot be marked."""


def main(folder: str = "/autograder") -> int:
    """Mark the submission in a folder that is laid out as Gradescope does."""
    settings = json.loads((SOURCE / "settings.json").read_text("utf-8"))
    try:
        way = practice if settings["exercise"] == "practice" else exercise
        results = way(Path(folder), settings)
    except Unmarked as reason:
        results = {"score": 0.0, "output": str(reason)}
    into = Path(folder, "results")
    into.mkdir(exist_ok=True)
    (into / "results.json").write_text(json.dumps(results, indent=1), "utf-8")
    return 0


def exercise(folder: Path, settings: Settings) -> dict[str, Any]:
    """Mark an exercise with the usual inputs, and with others that students do not see."""
    name = settings["exercise"]
    path = folder / "submission" / f"{name}.py"
    if not path.is_file():
        there = ", ".join(sorted(one.name for one in path.parent.glob("*"))) or "nothing"
        raise Unmarked(f"Submit a file called {path.name}. This submission has: {there}.")
    results = marked([name, str(path)], settings["time_limit"])
    if settings["inputs"] is None:
        return results
    others = marked([name, str(path)], settings["time_limit"], settings["inputs"])
    hidden = [
        {**test, "name": f"other inputs: {test['name']}", "visibility": "after_due_date"}
        for test in others["tests"]
    ]
    tests = [halved(test) for test in [*results["tests"], *hidden]]
    return {**results, "score": (results["score"] + others["score"]) / 2, "tests": tests}


def halved(test: dict[str, Any]) -> dict[str, Any]:
    """Return a test that counts half, because there are two runs."""
    return {**test, "score": test["score"] / 2, "max_score": test["max_score"] / 2}


def marked(words: list[str], limit: float, inputs: int | None = None) -> dict[str, Any]:
    """Run the marker in a process of its own and return what it prints as JSON."""
    command = [sys.executable, "-m", "tinygrad_attn"]
    command += [*(["practice"] if len(words) == 1 else ["exercise"]), *words, "--json"]
    command += ["--time-limit", str(limit)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    if inputs is not None:
        environment["TINYGRAD_ATTN_INPUTS"] = str(inputs)
    try:
        done = subprocess.run(
            command, cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=ALL
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise Unmarked(f"The marking took more than {ALL} seconds.") from None
    except json.JSONDecodeError:
        print(done.stdout, done.stderr, file=sys.stderr)  # the instructor sees it
        raise Unmarked("The marker failed; the instructor sees why.") from None


def practice(folder: Path, settings: Settings) -> dict[str, Any]:
    """Mark a student's own tasks of practice."""
    number, tests = student_number(folder), []
    files = sorted((folder / "submission").glob("*.py"))
    tasks = {task_of(path): path for path in files}
    for topic, level in settings["tasks"]:
        fits = [task for task in tasks if task.startswith(f"{topic} {level} ")]
        name = f"{topic}, level {level}"
        test = {"name": name, "score": 0.0, "max_score": 1.0}
        if number is not None:
            fits = [task for task in fits if task == f"{topic} {level} {int(number)} 1"]
        if not fits:
            seed = "" if number is None else f" --seed {number}"
            text = f"There is no file for: practice {topic} --level {level}{seed}"
            tests.append({**test, "output": text})
            continue
        found = marked([str(tasks[fits[0]])], settings["time_limit"])["tests"]
        tests += [{**one, "name": f"{name}: {one['name']}"} for one in shared(found)]
    return {"output": f"Practice, student number {number}.", "tests": tests}


def shared(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the checks of one task count one point together."""
    total = sum(test["max_score"] for test in found) or 1
    return [
        {**one, "score": one["score"] / total, "max_score": one["max_score"] / total}
        for one in found
    ]


def task_of(path: Path) -> str:
    """Return the task that a file names, or an empty text."""
    found = re.search(r'^TASK = ["\'](.*)["\']', path.read_text("utf-8", "replace"), re.M)
    return found[1] if found else ""


def student_number(folder: Path) -> str | None:
    """Return the number of the student, or None if there is no list of students."""
    listed = SOURCE / "students.csv"
    if not listed.is_file():
        return None
    with open(listed, newline="", encoding="utf-8-sig") as opened:
        numbers = {
            row[0].strip().lower(): row[1].strip() for row in csv.reader(opened) if len(row) > 1
        }
    data = json.loads((folder / "submission_metadata.json").read_text("utf-8"))
    for user in data["users"]:
        if (email := user["email"].lower()) in numbers:
            return numbers[email]
    raise Unmarked("Your address is not in the list of students; please tell the instructor.")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
