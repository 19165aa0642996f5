"""The course's exercises: every stub fails its marker with a helpful line, every solution passes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "docs" / "course" / "exercises"
NAMES = sorted(p.stem for p in (EXERCISES / "solutions").glob("*.py"))


def mark(name: str, path: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "tinygrad_attn", "exercise", name, str(path)], cwd=ROOT, capture_output=True, text=True)


def test_every_exercise_has_a_stub_and_a_solution():
    assert len(NAMES) == 18
    assert sorted(p.stem for p in EXERCISES.glob("*.py") if not p.stem.startswith("_") and p.stem != "mark") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_fails_and_the_solution_passes(name):
    stub, solution = mark(name, EXERCISES / f"{name}.py"), mark(name, EXERCISES / "solutions" / f"{name}.py")
    assert stub.returncode == 1 and "Traceback" not in stub.stdout + stub.stderr
    assert "not written yet" in stub.stdout
    assert solution.returncode == 0, solution.stdout + solution.stderr
    assert "not written" not in solution.stdout and "wrong" not in solution.stdout


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    broken = tmp_path / "softmax.py"
    broken.write_text("def softmax(:\n")
    result = mark("softmax", broken)
    assert result.returncode in (1, 2) and "Traceback" not in result.stdout + result.stderr
