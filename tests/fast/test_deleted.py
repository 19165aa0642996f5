"""The folder fast/ can be deleted: all tests of numbers pass."""

import os
import shutil
import subprocess
import sys

import pytest
from support import ROOT

NUMBERS = [
    "tests/ops/test_properties.py",  # values and gradients of each function of F are PyTorch's,
    "tests/nn/test_every_class.py",  # those of each module are, to second order
    "tests/transforms/test_transforms.py",  # derivatives of derivatives
    "tests/cli/test_cli.py::test_seeds_runs_all_or_the_one_named",
]
# These ask for speed or memory, which is what the room is for, or for the room itself; what is right
# in float64 is computed by the same text in float32, and in training by the same as in evaluation;
# a Transformer is made of layers that are asked; one test reads what the detection says; how
# transforms nest and what they leave behind is the engine's, which has no part in fast/; and an op
# that no kernel replaces is the same text, so those of F and with a kernel are asked, and others
# that add, multiply and join.
NOT_OF_NUMBERS = (
    "not memory and not quick and not threads and not notebook and not skipped and not float32"
    " and not says_when_what_it_uses_was_changed and not inside_another and not evaluation"
    " and not transforms_can_be_nested and not Transformer-training"
    " and (not test_properties or nothing_given and"
    " (F. or relu or matmul or scatter or getitem or embedding or add or multiply or concatenate))"
    " and (not test_every_class or values_are or slopes)"
)


def run(folder, names, **environment):
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-x"]
    done = subprocess.run(
        [*command, "-k", NOT_OF_NUMBERS, *names],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without") / "project"
    for name in ("tinygrad_attn", "tests", "examples", "docs"):
        ignored = shutil.ignore_patterns(
            "__pycache__", "_build", *(["fast"] if name == "tinygrad_attn" else [])
        )
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "README.zh-CN.md"):
        shutil.copy(ROOT / name, folder / name)
    assert not (folder / "tinygrad_attn" / "fast").exists()
    return folder


@pytest.mark.slow
def test_all_numbers_without_the_folder(copy):
    """The engine, the ops and the references alone."""
    run(copy, NUMBERS)


def test_threads_say_that_the_room_is_missing(copy):
    code = "import tinygrad_attn as ta; ta.set_num_threads(2); print(ta.get_num_threads(), ta.reuse_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "1 False", done.stderr
    assert "ta.set_num_threads() has no effect" in done.stderr
