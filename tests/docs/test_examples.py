"""Every program in examples/ runs by itself, from any folder, and the documents' numbers come out."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from support import IN_CI, ROOT

ELSEWHERE = {  # run by tests of their own, here and in tests/parallel
    *("language_model", "sort_sequences", "sentence_embeddings", "data_parallel"),
    *("chat", "inside", "lora"),
}
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("[!_]*.py") if path.stem not in ELSEWHERE
)
SEEDS = [path for path in EXAMPLES if path.name.startswith("seed_")]
PRINTED = re.compile(
    r"""page\.prints\((?P<before>.*?"{3}\s+|.*?, ")(?P<number>-?\d[\d.e+-]*)""", re.DOTALL
)
"""The first number a script claims that its document printed."""


def run(command, folder):
    """The finished process of a Python command line, with training shortened."""
    variables = {
        **os.environ,
        "TINYGRAD_ATTN_QUICK": "1",
        "MPLBACKEND": "Agg",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def plain(name):
    """A package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of_the_tests():
    """What the extra `test` installs, other extras of ours included."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    found, waiting = set(), ["test"]
    while waiting:
        for requirement in extras[waiting.pop()]:
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()
            if plain(name) == "tinygrad-attn":
                waiting += inner.split(",")
            else:
                found.add(plain(name))
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    done = run([path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if skipped := re.search(r"^skipped: +`?([\w.-]+)`?.*", done.stdout, re.MULTILINE):
        package = plain(skipped[1])
        assert not (IN_CI and package in packages_of_the_tests()), (
            f"CI must have {package}: {skipped[0]}"
        )
        pytest.skip(skipped[0])
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("different", "false"))]
    assert not wrong and done.stdout.strip()
    if path in SEEDS:
        assert sum(line.startswith("equal") for line in done.stdout.splitlines()) >= 6


def test_there_are_five_documents():
    assert [path.name[:9] for path in SEEDS] == [f"seed_00{n}_" for n in range(5)]


@pytest.mark.parametrize("path", SEEDS[1:3], ids=lambda path: path.stem)
def test_one_wrong_number_is_seen(path, tmp_path):
    """A document that had printed something else makes one line different, and exit code 1."""
    source = path.read_text("utf-8")
    first = PRINTED.search(source)
    number = first["number"]
    digit = max(i for i, c in enumerate(number.partition("e")[0]) if c.isdigit())
    other = f"{number[:digit]}{(int(number[digit]) + 1) % 10}{number[digit + 1 :]}"
    (tmp_path / path.name).write_text(
        source[: first.start("number")] + other + source[first.end("number") :], "utf-8"
    )
    (tmp_path / "_document.py").write_text(
        (ROOT / "examples" / "_document.py").read_text("utf-8"), "utf-8"
    )
    done = run([path.name], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sum(line.startswith("different") for line in done.stdout.splitlines()) == 1
    assert "1 different" in done.stdout and other in done.stdout


def test_a_false_statement_is_seen(tmp_path):
    code = "from _document import Document\npage = Document('x', '')\npage.check('water is dry', False)\npage.end()"
    (tmp_path / "_document.py").write_text(
        (ROOT / "examples" / "_document.py").read_text("utf-8"), "utf-8"
    )
    (tmp_path / "x.py").write_text(code, "utf-8")
    done = run(["x.py"], tmp_path)
    assert done.returncode == 1 and "false      water is dry" in done.stdout


@pytest.mark.parametrize(
    "number, text, same",
    [
        (-1.03284, "-1.0328", True),
        (-1.03286, "-1.0328", False),
        (1.29420131e-12, "1.2942e-12", True),
        (1.29420131e-11, "1.2942e-12", False),
        (0.99999999999, "1.00000000e+00", True),
        (28, "28", True),
        (float("nan"), "1.0", False),
    ],
)
def test_numbers_are_compared_to_the_digits_printed(number, text, same, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from _document import Document

    page = Document("", "")
    page.prints("number", [number], text)
    assert (page.equal, page.different) == ((1, 0) if same else (0, 1))
    with pytest.raises(ValueError, match="2 numbers here and 1 in the document"):
        page.prints("numbers", [number, number], text)
