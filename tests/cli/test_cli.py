"""The command line: what each command prints, its exit code, and one line for each mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

import tinygrad_attn
from tinygrad_attn import cli
from tinygrad_attn.cli import commands, make_parser

FUNCTIONS = """
import numpy as np
import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn

def energy():
    x = Tensor([1.0, 2.0], requires_grad=True)
    return np.sum(x * x)

def right(x, y):
    return np.exp(-x * x) @ y.T

def number():
    return 3

def broken():
    return {}["no such key"]

class Layer(nn.Module):
    def forward(self, x):
        return np.tanh(x) * 2

layer = Layer()
dense = nn.Linear(4, 2).astype(np.float64)
w = Tensor(np.ones(2), requires_grad=True)

def loss(x):
    return np.mean((dense(x) * w) ** 2)

@ta.op
def cube(x):
    return x * x * x
cube.vjp(lambda g, y, x: g * 3 * x * x)

@ta.op
def wrong(x):
    return x * x * x
wrong.vjp(lambda g, y, x: g * 2 * x * x)

def both():
    x = Tensor([1.0, 2.0], requires_grad=True)
    return np.exp(x), np.sin(x)

def softmax():
    return ta.functional.softmax(Tensor([1.0, 2.0], requires_grad=True))

made = energy()
"""

MODEL = """
import numpy as np
from tinygrad_attn import nn

model = nn.Sequential(
    nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Sequential(nn.Linear(3, 2), nn.Tanh())
)

def main():
    return model(np.ones((1, 2), np.float32)).sum()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def output(capsys, *arguments, code=0):
    """What a command prints, after checking its exit code."""
    assert cli.main(list(arguments)) == code
    out, errors = capsys.readouterr()
    return out if not code else out + errors


@pytest.mark.parametrize(
    "command", ["demo", "doctor", "exercise", "gradcheck", "graph", "seeds", "source"]
)
def test_every_command_is_listed_and_has_a_help_page(command, capsys):
    assert f"\n    {command} " in output(capsys)
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0 and f"tinygrad-attn {command}" in capsys.readouterr().out


def test_version_and_a_command_that_does_not_exist(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tinygrad_attn {tinygrad_attn.__version__}\n"
    with pytest.raises(SystemExit) as end:
        cli.main(["dance"])
    assert end.value.code == 2 and "invalid choice: 'dance'" in capsys.readouterr().err


def test_python_dash_m_imports_little():
    code = (
        "import sys, runpy; sys.argv = ['x', '--version']\n"
        "try: runpy.run_module('tinygrad_attn', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'matplotlib', 'sklearn', 'torch', 'tqdm'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [f"tinygrad_attn {tinygrad_attn.__version__}", "[]"]


def test_doctor(capsys, monkeypatch):
    out = output(capsys, "doctor")
    assert "NumPy" in out and "threads" in out and "agree with finite differences\n" in out
    assert "Everything that is installed works." in out
    monkeypatch.setattr(commands, "LIBRARIES", [("no_such", "no-such-thing", "viz", "nothing")])
    monkeypatch.setattr(commands, "check_layer", lambda: "")
    out = output(capsys, "doctor", code=1)
    assert 'no-such-thing missing     nothing: pip install "tinygrad_attn[viz]"' in out
    assert "DISAGREE" in out and "Something is wrong" in out


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source folder with examples and a course of its own."""
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "seed_000_good.py").write_text("print('good numbers')\n")
    (tmp_path / "examples" / "seed_001_bad.py").write_text("assert 1 + 1 == 3, 'other numbers'\n")
    marking = tmp_path / "docs" / "course" / "marking"
    marking.mkdir(parents=True)
    (marking / "mark.py").write_text(
        "def main(name, *files, **options):\n    print(name, files, options)\n    return not files\n"
    )
    return tmp_path


def test_seeds_runs_all_or_the_one_named(capfd, source):
    out = output(capfd, "seeds", code=1)
    assert "good numbers" in out and "AssertionError: other numbers" in out
    assert "==== seed_001_bad" in out and "1 of 2 reproduced" in out
    assert "1 of 1 reproduced\n" in output(capfd, "seeds", "000")
    assert "0 of 0 reproduced\n" in output(capfd, "seeds", "7", code=1)


def test_exercise_hands_over_to_the_course(capsys, source):
    out = output(
        capsys, "exercise", "softmax", "a.py", "b.py", "--csv", "t.csv", "--time-limit", "3"
    )
    options = {
        "time_limit": 3.0,
        "csv": "t.csv",
        "as_json": False,
        "step": None,
        "everything": False,
    }
    assert out == f"softmax ('a.py', 'b.py') {options}\n"
    out = output(capsys, "exercise", "--all", code=1)
    assert out.startswith("None () {") and "'everything': True}" in out


@pytest.mark.parametrize("command", ["seeds", "exercise"])
def test_what_comes_with_the_source_only_says_so(capsys, tmp_path, monkeypatch, command):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert "Clone the source" in output(capsys, command, code=2)


def test_graph_as_text_and_as_a_file(capsys, file, tmp_path, monkeypatch):
    out = output(capsys, "graph", f"{file}:energy")
    assert "sum" in out and "multiply" in out
    path = tmp_path / "graph.txt"
    assert output(capsys, "graph", f"{file}:energy", "--output", str(path)) == f"{path}\n"
    assert path.read_text("utf-8") == out == output(capsys, "graph", f"{file}:made")
    both = output(capsys, "graph", f"{file}:both")
    assert "exp" in both and "sin" in both
    opened = output(capsys, "graph", f"{file}:softmax", "--plain")
    assert "exp" in opened and "exp" not in output(capsys, "graph", f"{file}:softmax")
    assert "write lambda" in output(capsys, "graph", f"{file}:made", "--plain", code=2).lower()
    monkeypatch.chdir(tmp_path)
    assert output(capsys, "graph", "mine:energy") == out, "a module by name"


def test_graph_opens_modules_as_deep_as_asked_and_the_one_named(capsys, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    closed = output(capsys, "graph", str(path), "--depth", "0")
    one = output(capsys, "graph", str(path), "--depth", "1", "--expand", "1")
    both = output(capsys, "graph", str(path), "--depth", "2")
    assert [text.count("Tanh") for text in (closed, one, both)] == [0, 1, 2]


@pytest.mark.parametrize(
    "name, expected",
    [
        (":number", "how a Tensor was computed"),
        (":enrgy", "no function 'enrgy'. Did you mean 'energy'?"),
        ("", "mine.py:energy. Functions in this file: energy, right"),
        (":right", "missing 2 required positional arguments: 'x' and 'y' (--traceback"),
        (":broken", "KeyError: 'no such key' (--traceback"),
        (":Layer", "no function 'Layer'. Did you mean 'layer'?"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(capsys, file, name, expected):
    assert expected in output(capsys, "graph", file + name, code=2)


@pytest.mark.parametrize(
    "target, expected",
    [
        ("none.py", "No such file or directory"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("bad.py", "SyntaxError"),
    ],
)
def test_a_target_that_cannot_be_found_is_one_line(capsys, tmp_path, monkeypatch, target, expected):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("def f(:\n")
    assert expected in output(capsys, "gradcheck", target, code=2)
    with pytest.raises((OSError, ImportError, SyntaxError)):
        cli.main(["--traceback", "gradcheck", target])


def test_gradcheck(capsys, file):
    assert "gradcheck: passed" in output(capsys, "gradcheck", f"{file}:right")
    shapes = ("--shape", "2,5", "--shape", "3,5", "--seed", "3")
    assert "(2, 5)" in output(capsys, "gradcheck", f"{file}:right", *shapes)
    assert "(): 1 elements agree" in output(capsys, "gradcheck", f"{file}:cube", "--shape", "")
    assert "of order 2: passed" in output(capsys, "gradcheck", f"{file}:cube", "--order", "2")
    assert "passed" in output(capsys, "gradcheck", f"{file}:layer")
    out = output(capsys, "gradcheck", f"{file}:wrong", code=1)
    assert "FAILED" in out and "wrong" in out


def test_shapes_of_all_inputs_are_enough_for_a_function_without_a_signature(
    capsys, file, monkeypatch
):
    """Ufuncs have no signature in older versions of NumPy."""
    monkeypatch.delattr("tinygrad_attn.cli.commands.inspect")
    shapes = ("--shape", "2,5", "--shape", "3,5")
    assert "passed" in output(capsys, "gradcheck", f"{file}:right", *shapes)


def test_gradcheck_reads_the_file_as_it_is_now(capsys, file, monkeypatch):
    """Python's cache of compiled files cannot tell a correction within the same second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for factor, verdict in (("2", "FAILED"), ("3", "passed")):
        Path(file).write_text(FUNCTIONS.replace("g * 2 * x * x", f"g * {factor} * x * x"))
        os.utime(file, (1e9, 1e9))
        assert verdict in output(capsys, "gradcheck", f"{file}:wrong", code=verdict == "FAILED")


@pytest.mark.parametrize(
    "options, expected",
    [
        ((":number",), "takes 0 positional arguments but 1 was given"),
        ((":made",), "is not a callable"),
        ((":right", *["--shape", "2,3"] * 3), "takes 2 positional arguments but 3 were given"),
    ],
)
def test_what_cannot_be_checked_is_one_line(capsys, file, options, expected):
    target, *rest = options
    assert expected in output(capsys, "gradcheck", file + target, *rest, code=2)


@pytest.mark.parametrize(
    "options, expected",
    [
        (["gradcheck", "f.py", "--shape", "2,a"], "invalid shapes value: '2,a'"),
        (["gradcheck", "f.py", "--shapes", "(4,64) 3"], "invalid shapes value: '(4,64) 3'"),
        (["gradcheck", "f.py", "--shapes", "(4,64"], "invalid shapes value: '(4,64'"),
        (["demo", "--runs", "0"], "must be at least 1, got 0"),
        (["demo", "--epochs", "-1"], "must be at least 1, got -1"),
        (["practice", "--count", "0"], "must be at least 1, got 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(capsys, options, expected):
    with pytest.raises(SystemExit) as end:
        make_parser().parse_args(options)
    assert end.value.code == 2 and expected in capsys.readouterr().err


def test_shapes_of_all_inputs():
    parse = lambda *texts: make_parser().parse_args(["gradcheck", "f.py", *texts]).shape
    for one in ("4,64", "(4, 64)", "(4,64,)"):
        assert parse("--shape", one, "--shape", "64") == [(4, 64), (64,)]
    assert (
        parse("--shapes", "(4, 64) (64,)") == parse("--shapes", "(4,64),(64)") == [(4, 64), (64,)]
    )
    assert parse("--shape", "()") == parse("--shape", "") == [()]


def test_students_without_a_release(capsys, tmp_path):
    options = ("course", str(tmp_path / "new"), "--students", "students.csv")
    assert "--students is for --release" in output(capsys, *options, code=2)
    assert not (tmp_path / "new").exists()


def test_a_script_that_ends_python(capsys, tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "no folder"
    script.write_text("import sys\nf = lambda x: x\nsys.exit(3)\n")
    assert "script.py ends Python (code 3)" in output(capsys, "source", str(script), code=2)
    out = output(capsys, "source", "numpy:tanh", "-o", str(folder / "x.py"), code=2)
    assert f"could not save '{folder}/x.py'" in out


def run_alone(file, encoding, read=-1):
    """Print a graph in a process of its own, of whose output some characters are read."""
    command = [sys.executable, "-W", "ignore", "-m", "tinygrad_attn", "graph", f"{file}:energy"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, encoding=encoding, **pipes) as process:
        text = process.stdout.read(read)
        process.stdout.close()
        return text, process.stderr.read(), process.wait()


def test_an_encoding_without_lines_and_a_reader_that_has_seen_enough(file):
    text, errors, code = run_alone(file, "ascii")
    assert text.startswith("sum") and "?? multiply" in text and (errors, code) == ("", 0)
    assert run_alone(file, "utf-8", 0) == ("", "", 141)


def test_source_writes_a_program(file, capsys, tmp_path):
    assert "d_x = " in output(capsys, "source", "numpy:tanh", "--shape", "2,3")
    assert "d_x" not in output(capsys, "source", f"{file}:right", "--forward")
    text = output(capsys, "source", f"{file}:loss")
    assert '"dense.weight"' in text and '"w"' in text, "gradients by the parameters it uses"
    path = tmp_path / "written.py"
    assert str(path) in output(capsys, "source", f"{file}:layer", "--output", str(path))
    assert "import numpy" in path.read_text("utf-8")
    assert "takes 0 positional" in output(capsys, "source", f"{file}:number", code=2)


KERNEL = """
import numpy as np

def kernel(x, w):
    return np.asarray(x * w)

def backward(g, y, x, w):
    return g * w, (g * x).sum(axis=0)

def wrong(g, y, x, w):
    return g * w, 3 * (g * x).sum(axis=0)

def plain(x, w):
    return x * w
"""


def test_gradcheck_of_a_kernel(capsys, tmp_path):
    (tmp_path / "kern.py").write_text(KERNEL)
    place = lambda name: f"{tmp_path / 'kern.py'}:{name}"
    options = ("--shapes", "(4, 6) (6,)", "--reference", place("plain"), "--dtype", "float32")
    right = output(capsys, "gradcheck", place("kernel"), "--vjp", place("backward"), *options)
    assert "passed" in right and "(4, 6)" in right
    wrong = (place("kernel"), "--vjp", place("wrong"), *options, "--json")
    report = json.loads(output(capsys, "gradcheck", *wrong, code=1))
    assert not report["ok"] and report["kind"] == "constant factor"
    assert report["operand"] == "input 1" and len(report["index"]) == 1
