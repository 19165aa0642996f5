"""Marking what others wrote: each file in a process of its own, with a time limit, and a table for a class."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import EXERCISES, ROOT, changed

from tinygrad_attn import Tensor, cli

RIGHT = (EXERCISES / "solutions" / "softmax.py").read_text("utf-8")
WRONG = changed(
    RIGHT, "    return y * (g - (g * y).sum(axis=-1, keepdims=True))", "    return g * y * (1 - y)"
)
CHECKS = 9


def said(capfd, *arguments, code):
    """What is printed on stdout and stderr, after checking the exit code; an error in the options is one, too."""
    try:
        found = cli.main(["exercise", *map(str, arguments)])
    except SystemExit as end:
        found = end.code
    out, errors = capfd.readouterr()
    assert found == code, out + errors
    return out + errors


def written(folder, **files):
    """Files of these names and texts; a name's double underscore is a folder."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def function(body):
    """A softmax with this body; the others are right."""
    return f"{RIGHT}\nimport os, sys, time\ndef softmax(x, temperature):\n    {body}\n"


# ---- one file


@pytest.mark.parametrize(
    "text, said_of_it",
    [
        ("while True:\n    print('again and again')\n", "the file runs: no end in 1 s"),
        (function("sys.exit(0)"), "softmax: raises SystemExit in line"),
    ],
)
def test_a_file_that_does_not_come_back_is_a_line_of_the_report(capfd, tmp_path, text, said_of_it):
    path = written(tmp_path, mine=text) / "mine.py"
    out = said(capfd, "softmax", path, "--time-limit", 1, code=1)
    assert said_of_it in out and "Traceback" not in out


# ---- what is judged is what was asked


WRONG_SOFTMAX = changed(RIGHT, "return e / e.sum(axis=-1, keepdims=True)", "return e / e.sum()")


def failing(out):
    """The checks that fail, in their order. They stand indented under the ideas."""
    table = out.split("verdict\n")[1].split("\n\n")[0].splitlines()
    checks = [row.strip() for row in table if row.startswith("  ")]
    return [row.split("  ")[0] for row in checks if not row.endswith("ok")]


def test_marks_as_gradescope_reads_them(capfd, tmp_path):
    """A check without end, or that was not made, is a point less."""
    endless = function("while True: time.sleep(9)")
    written(tmp_path, endless=endless, broken="def softmax(x:", right=RIGHT)
    words = "softmax", tmp_path / "endless.py", "--json", "--time-limit", 1
    out = json.loads(said(capfd, *words, code=1))
    scores, most = ([test[key] for test in out["tests"]] for key in ("score", "max_score"))
    assert len(scores) == CHECKS and scores[:2] == [0, 0] and scores[2:] == most[2:]
    assert out["score"] == sum(scores) and sum(most) == 9
    assert all(test["extra_data"]["idea"] for test in out["tests"])
    assert out["tests"][0]["status"] == "failed" and "no end in 1 s" in out["tests"][0]["output"]
    paths = tmp_path / "broken.py", tmp_path / "right.py"
    both = json.loads(said(capfd, "softmax", *paths, "--json", code=1))
    assert {path: one["score"] for path, one in both.items()} == dict(zip(map(str, paths), (0, 9)))


def test_a_right_rule_is_not_marked_down_for_a_function_that_is_wrong(capfd, tmp_path):
    """That of log_softmax calls softmax, which is wrong here: its own two checks say so, no other."""
    path = written(tmp_path, mine=WRONG_SOFTMAX) / "mine.py"
    assert failing(said(capfd, "softmax", path, code=1)) == ["softmax", "softmax of large numbers"]


def test_every_failing_check_is_explained_with_all(capfd, tmp_path):
    path = (
        written(tmp_path, mine=changed(WRONG_SOFTMAX, "(g - np.sign(x)", "(g + np.sign(x)"))
        / "mine.py"
    )
    out = said(capfd, "softmax", path, code=1)
    names = failing(out)
    (first,) = [name for name in names if f"\n    {name}: " in out]
    assert f"{len(names) - 1} more: --all explains each." in out
    out = said(capfd, "softmax", path, "--all", code=1)
    assert all(f"\n    {name}: " in out for name in names) and "more: --all" not in out
    assert out.index(f"    {first}: ") < out.index("checks pass") < out.rindex("\n    ")


def test_a_check_that_does_not_come_back_costs_itself_alone(capfd, tmp_path):
    end = "os._exit(3)"
    text = f"{RIGHT}\nimport os\ndef shares_vjp(g, y, x):\n    {end}\n"
    text += f"def softmax_vjp_x(g, y, x, temperature):\n    {end}\n"
    path = written(tmp_path, mine=text) / "mine.py"
    out = said(capfd, "softmax", path, "--time-limit", 1, code=1)
    assert failing(out) == ["rule of softmax: x", "rule of shares"], out
    assert "rule of softmax: x: ends Python, exit code 3" in out and "Traceback" not in out


BORROWED = """
import importlib


def softmax(x, temperature):
    from helper import soft
    return soft(x / temperature)


def shares_vjp(g, y, x):
    return importlib.import_module("tinygrad_attn").vjp(shares, x)[1](g)[0]


def log_softmax_vjp(g, y, x, *, allowed):
    from tinygrad_attn import Tensor
    import scipy.special

    t = Tensor(np.where(allowed, x, -1e9), requires_grad=True)
    e = np.exp(t - x.max())
    (np.log(e / e.sum(axis=-1, keepdims=True)) * np.where(allowed, g, 0)).sum().backward()
    return np.where(allowed, t.grad.numpy(), 0)
"""


def test_a_function_that_lets_a_library_do_it_gets_no_points(capfd, tmp_path):
    """The library is imported in the function, in another file, or by its name; an import is no call."""
    helper = "def soft(x):\n    import tinygrad_attn.functional as F\n    return F.softmax(x)\n"
    path = written(tmp_path, mine=RIGHT + BORROWED, helper=helper) / "mine.py"
    out = said(capfd, "softmax", path, "--all", code=1)
    wrong = ["softmax", "softmax of large numbers", "rule of log_softmax", "rule of shares"]
    assert failing(out) == wrong
    for called in (
        "softmax calls tinygrad_attn's softmax in line 3",
        "log_softmax_vjp calls tinygrad_attn's Tensor",
        "shares_vjp calls tinygrad_attn's vjp",
    ):
        assert called in out and "Write it yourself" in out
    assert out.count("  calls tinygrad_attn's") == 4


def test_a_pass_names_the_next_exercise_after_what_the_file_prints(capfd, tmp_path):
    path = written(tmp_path, mine=f"{RIGHT}\nprint('hello from the top')\n") / "mine.py"
    out = said(capfd, "softmax", path, code=0)
    assert out.index("hello from the top") < out.index("exercise 6, softmax: ")
    assert "The next is exercise 7, layer_norm: " in out
    assert "exercise layer_norm" in out.splitlines()[-1]
    last = EXERCISES / "solutions" / "opened.py"
    assert "the last exercise of the course" in said(capfd, "opened", last, code=0)


# ---- a class


@pytest.fixture
def handed_in(tmp_path):
    """Ann's is right; the others' are wrong in every way, and Ben's would break NumPy for those after him."""
    return written(
        tmp_path / "handed in",
        ann__softmax=RIGHT,
        ben__softmax="import numpy as np\ndel np.exp\nnp.exp(1)\n",
        carl__softmax=WRONG,
        dora__softmax="def softmax(:\n",
        emil__softmax="",
        fay__softmax="import os\nos._exit(7)\n",
        gus__softmax="import time\nwhile True: print('x' * 10_000), time.sleep(0.01)\n",
        kim__other="not to be marked",
        **{"j\u00f8rgen__softmax": RIGHT},
    )


def test_a_class_is_a_table(capfd, handed_in, tmp_path):
    table = tmp_path / "marks.csv"
    words = "softmax", handed_in / "*" / "softmax.py", "--time-limit", 1, "--csv", table
    assert cli.main(["exercise", *map(str, words)]) == 1
    out, log = capfd.readouterr()
    names = ("ann", "ben", "carl", "dora", "emil", "fay", "gus", "j\u00f8rgen")
    for number, (name, line) in enumerate(zip(names, log.splitlines(), strict=True), 1):
        assert line.startswith(f"{number} of 8: {handed_in / name / 'softmax.py'}: "), log
    assert log.endswith(": 9 of 9\n")
    told = [
        " ".join(line.split()).split("/softmax.py ")
        for line in out.replace(f"{handed_in}{os.sep}", "").replace("\\", "/").splitlines()
        if "/softmax.py  " in line
    ]
    lines, signs = dict(told[: len(told) // 2]), dict(told[len(told) // 2 :])
    assert signs["ann"] == "ok " * 9 + "." and signs["carl"] == "ok ok x " + "ok " * 6 + "."
    assert signs["dora"] == ". " * 9 + "x" and " 3 rule of softmax: x" in " ".join(out.split())
    assert lines.pop("ben").startswith("0 of 9 the file runs: ")
    assert lines == {
        "ann": "9 of 9",
        "j\u00f8rgen": "9 of 9",
        "carl": "4.5 of 9 rule of softmax: x: missing sum",
        "dora": "0 of 9 the file runs: syntax error in line 1",
        "emil": "0 of 9 softmax: not written yet",
        "fay": "0 of 9 the file runs: ends Python, exit code 7",
        "gus": "0 of 9 the file runs: no end in 1 s",
    }
    assert "xxx" not in out
    assert "2 of 8 files pass all checks." in out
    with open(table, encoding="utf-8-sig", newline="") as file:
        header, *found = csv.reader(file)
    assert header[:7] == ["file", "points", "of", "first_failing", "verdict"] + [
        "softmax",
        "softmax of large numbers",
    ]
    assert header[-1] == "the file runs" and len(header) == 5 + CHECKS + 1
    assert found[0] == [str(handed_in / "ann" / "softmax.py"), "9", "9", "", "", *["ok"] * 9, ""]
    (carl,) = [one for one in found if "carl" in one[0]]
    assert carl[1:8] == ["4.5", "9", "rule of softmax: x", "missing sum", "ok", "ok", "missing sum"]
    assert len(found) == 8
    assert not list(tmp_path.glob(".saving*"))


@pytest.mark.parametrize(
    "words, expected",
    [
        (["softmax", "A", "none.py"], "there is no file 'none.py'"),
        (["sofmax", "A", "A2"], "no exercise 'sofmax'"),
        (
            ["softmax", "A", "--time-limit", "-1"],
            "--time-limit is a number of seconds, 0 for none, got -1",
        ),
        (["softmax", "--csv", "t.csv"], "--csv needs an exercise and files"),
    ],
)
def test_wrong_use_is_said_before_anything_is_marked(capfd, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(written(tmp_path, a=RIGHT, a2=RIGHT))
    out = said(capfd, *({"A": "a.py", "A2": "a2.py"}.get(word, word) for word in words), code=2)
    assert (
        expected.replace("'A'", "'a.py'") in out and "1 of 2" not in out and "Traceback" not in out
    )
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be sent Ctrl-C there")
def test_ctrl_c_tells_what_is_done_and_leaves_no_half_file_and_no_process(tmp_path):
    endless = "import os, time\nopen('begun', 'w').write(str(os.getpid()))\nwhile True: time.sleep(0.01)\n"
    written(tmp_path, a=RIGHT, b=endless, c=RIGHT)
    words = ["-m", "tinygrad_attn", "exercise", "softmax", "a.py", "b.py", "c.py", "--csv", "t.csv"]
    marking = subprocess.Popen(
        [sys.executable, *words],
        cwd=tmp_path,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    begun = tmp_path / "begun"
    while not (begun.exists() and begun.read_text()) and marking.poll() is None:
        time.sleep(0.02)
    marking.send_signal(signal.SIGINT)
    out, errors = (
        marking.communicate()
    )  # ends when the file's own process, with the same pipes, has
    assert marking.returncode == 130 and "Traceback" not in errors and "a.py  9 of 9" in out
    assert "Stopped: 1 of 3 files is marked, see the table; t.csv is not written." in errors
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py", "b.py", "begun", "c.py"]


def test_compare_prints_a_line_for_each_array(monkeypatch):
    monkeypatch.syspath_prepend(EXERCISES.parent / "marking")
    from _compare import compare

    a = np.arange(6.0).reshape(2, 3)
    result = compare({"scores": a, "weights": a * 2, "out": a.T, "extra": 1}, {"scores": a, "weights": a, "out": a, "grad": a})  # fmt: skip
    assert [line.verdict for line in result.lines] == [
        "ok",
        "5 of 6 off: 2 times what it should be",
        "shape (3, 2), expected (2, 3) (transposed?)",
        "missing",
        "not asked for",
    ]
    assert not result and result.lines[1].index == (1, 2) and result.lines[1].max_abs == 5
    assert "inf" not in str(result) and "weights" in repr(result)
    assert (
        compare(Tensor(a), a)
        and compare({"x": a, "more": a}, {"x": a})
        and not compare({}, {"x": a})
    )
    for wrong, words in ((a * 0, "zero everywhere"), (-a, "-1 times"), (a * np.nan, "NaN or Inf"), (a / 2, "0.5 times")):  # fmt: skip
        assert words in compare(wrong, a).lines[0].verdict
    for wrong in ("text", {1: 2}):
        assert compare({"x": wrong}, {"x": a}).lines[0].verdict.endswith("expected numbers")


def test_hidden_checks_come_from_a_file_of_the_teachers(tmp_path, monkeypatch, capsys):
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "import numpy as np\n"
        "def softmax(marks):\n"
        "    f = marks.function('softmax')\n"
        "    marks.that('hidden: sums to 3', lambda: f(np.ones((1, 3)), 1.0).sum() == 3, 'not 3')\n"
    )
    monkeypatch.setenv("TINYGRAD_ATTN_HIDDEN", "")
    solution = str(ROOT / "docs/course/exercises/solutions/softmax.py")
    arguments = ["exercise", "softmax", solution, "--hidden", str(hidden), "--json"]
    assert cli.main(arguments) == 1
    tests = json.loads(capsys.readouterr().out)["tests"]
    assert [test["name"] for test in tests if test["status"] == "failed"] == ["hidden: sums to 3"]
    assert cli.main([*arguments[:4], "nowhere.py"]) == 2
