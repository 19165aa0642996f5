"""The command line: what each command prints, its exit code, and one clear line where it cannot do what was asked."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT, require

import tinygrad_attn
from tinygrad_attn import cli
from tinygrad_attn.cli import commands, doctor, output
from tinygrad_attn.cli.demo import NEEDED
from tinygrad_attn.cli.demo.progress import Progress
from tinygrad_attn.fast import threads

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

def program():
    return ta.source(right, np.ones((2, 3)), np.ones((2, 3)), backward=False)

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


def said(capsys, *arguments, code=0):
    """What a command prints on stdout and stderr, after checking its exit code."""
    assert cli.main(list(arguments)) == code
    out, errors = capsys.readouterr()
    return out if not code else out + errors


def test_help_and_version(capsys):
    out = said(capsys)
    for command in ("demo", "doctor", "seeds", "graph", "gradcheck", "exercise"):
        assert f"\n    {command} " in out
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert (
        end.value.code == 0
        and capsys.readouterr().out == f"tinygrad_attn {tinygrad_attn.__version__}\n"
    )
    with pytest.raises(SystemExit) as end:
        cli.main(["dance"])
    assert end.value.code == 2 and "invalid choice: 'dance'" in capsys.readouterr().err


def test_python_dash_m_imports_little():
    code = (
        "import sys, runpy; sys.argv = ['x', '--version']\n"
        "try: runpy.run_module('tinygrad_attn', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'matplotlib', 'sklearn', 'torch', 'graphviz', 'tqdm'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert out.splitlines() == [f"tinygrad_attn {tinygrad_attn.__version__}", "[]"]


# ---- doctor


def test_doctor_says_that_all_is_well(capsys):
    out = said(capsys, "doctor")
    assert (
        f"tinygrad_attn {tinygrad_attn.__version__}" in out and "NumPy" in out and "threads" in out
    )
    assert "ok      gradients" in out and "Everything that is here works." in out


def test_doctor_names_what_is_missing_and_what_fails(capsys, monkeypatch):
    monkeypatch.setattr(
        doctor, "LIBRARIES", [("no_such_module", "no-such-thing", "viz", "nothing")]
    )
    monkeypatch.setattr(
        doctor, "checks", lambda: [("sums", lambda: (True, "fine")), ("products", lambda: 1 / 0)]
    )
    out = said(capsys, "doctor", code=1)
    assert 'no-such-thing missing     nothing: pip install "tinygrad_attn[viz]"' in out
    assert (
        "ok      sums: fine" in out
        and "FAILED  products: ZeroDivisionError" in out
        and "Something is wrong" in out
    )


@pytest.mark.parametrize(
    "core, features, lines",
    [
        ("Haswell", {"AVX512_SKX": True}, 2),
        ("Zen", {"X86_V4": True, "AVX512_SKX": False}, 2),
        ("Haswell", {"AVX2": True}, 1),
        ("SkylakeX", {"AVX512_SKX": True}, 1),
        ("", {"AVX512_SKX": True}, 0),
    ],
)
@pytest.mark.parametrize("asked", [None, "Haswell"])
def test_doctor_says_where_matrix_products_leave_the_processor_unused(
    asked, core, features, lines, monkeypatch
):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if asked:
        monkeypatch.setenv("OPENBLAS_CORETYPE", asked)
    better = {"OPENBLAS_CORETYPE": None if asked else "SkylakeX"}
    monkeypatch.setattr(
        doctor, "product_time", lambda **environment: 1.5 if environment == better else 3.0
    )
    found = doctor.kernels(core, features)
    assert len(found) == lines and all(
        core in line and ("OPENBLAS_CORETYPE=Haswell" in line) == bool(asked) for line in found[:1]
    )
    way_out = (
        "Without that variable" if asked else "With OPENBLAS_CORETYPE=SkylakeX in the environment"
    )
    assert all(way_out in line and "0.50 of the time" in line for line in found[1:])


def test_doctor_says_that_the_matrix_library_cannot_be_told(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "checks", list)
    monkeypatch.setattr(threads, "blas_found", lambda: True)
    assert "cannot be told" not in said(capsys, "doctor")
    monkeypatch.setattr(threads, "blas_found", lambda: False)
    assert (
        "The matrix products use as many as they like: their library cannot be told here."
        in said(capsys, "doctor")
    )


def test_doctor_times_a_product_in_a_process_of_its_own(monkeypatch):
    assert 1e-6 < doctor.product_time(SOME_VARIABLE="1", ANOTHER=None) < 10
    monkeypatch.setattr(doctor.sys, "executable", "no such program")
    assert len(doctor.kernels("Haswell", {"AVX512_SKX": True})) == 1, (
        "what cannot be timed is not advised"
    )


# ---- seeds, exercises


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source tree with examples and a course of its own."""
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "seed_000_good.py").write_text("print('good numbers')\n")
    (tmp_path / "examples" / "seed_001_bad.py").write_text("assert 1 + 1 == 3, 'other numbers'\n")
    marking = tmp_path / "docs" / "course" / "marking"
    marking.mkdir(parents=True)
    (marking / "mark.py").write_text(
        "def main(name, file):\n    print(name, file)\n    return 0 if file else 1\n"
    )
    return tmp_path


def test_seeds_runs_all_or_the_one_named(capfd, source):
    out = said(capfd, "seeds", code=1)
    assert (
        "good numbers" in out
        and "AssertionError: other numbers" in out
        and "1 of 2 reproduced; not seed_001_bad" in out
    )
    for name in ("000", "0", "seed_000_good.py", "good"):
        assert "1 of 1 reproduced\n" in said(capfd, "seeds", name)
    assert "no seed '7'; there are seed_000_good, seed_001_bad" in said(capfd, "seeds", "7", code=2)


def test_exercise_hands_over_to_the_course(capsys, source):
    assert said(capsys, "exercise", "softmax", "mine.py") == "softmax mine.py\n"
    assert said(capsys, "exercise", code=1) == "None None\n"


@pytest.mark.parametrize("command, folder", [("seeds", "examples"), ("exercise", "exercises")])
def test_what_comes_with_the_source_only_says_so(capsys, tmp_path, monkeypatch, command, folder):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    out = said(capsys, command, code=2)
    assert folder in out and "Get the source" in out and "Traceback" not in out


# ---- graph


def test_graph_as_text_and_as_a_file(capsys, file, tmp_path):
    out = said(capsys, "graph", f"{file}:energy")
    assert "sum" in out and "multiply" in out
    path = tmp_path / "graph.txt"
    assert said(capsys, "graph", f"{file}:energy", "--output", str(path)) == f"{path}\n"
    assert path.read_text("utf-8") == out
    assert said(capsys, "graph", f"{file}:made") == out
    both = said(capsys, "graph", f"{file}:both")
    assert "exp" in both and "sin" in both


def test_graph_opens_modules_as_deep_as_asked_and_the_one_named(capsys, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    closed = said(capsys, "graph", str(path), "--depth", "0")
    one = said(capsys, "graph", str(path), "--depth", "1", "--expand", "1")
    both = said(capsys, "graph", str(path), "--depth", "2")
    assert [text.count("Tanh") for text in (closed, one, both)] == [0, 1, 2]


def test_graph_of_a_module_by_name(capsys, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "multiply" in said(capsys, "graph", "mine:energy")


@pytest.mark.parametrize(
    "name, expected",
    [
        (":number", "must return a Tensor (or several), but it returned int"),
        (":enrgy", "no 'enrgy'. Did you mean 'energy'?"),
        ("", "say which, as"),
        (":right", "needs inputs, and what is drawn is the result of a call without any"),
        (":broken", "mine.py, line 17: KeyError: 'no such key'"),
        (":layer", "needs inputs, and what is drawn is the result of a call without any"),
        (
            ":Layer",
            "mine.py:Layer is a class; name a function, or an object of that class, such as model in model = Layer(...).",
        ),
    ],
)
def test_graph_of_something_else(capsys, file, name, expected):
    assert expected in said(capsys, "graph", file + name, code=2)


def test_a_file_that_is_not_there(capsys, tmp_path):
    out = said(capsys, "graph", str(tmp_path / "none.py"), code=2)
    assert "there is no file" in out and "none.py" in out
    with pytest.raises(cli.UsageError):
        cli.main(["--traceback", "graph", str(tmp_path / "none.py")])


# ---- gradcheck


def test_gradcheck_passes_what_is_right(capsys, file):
    assert "gradcheck: passed" in said(capsys, "gradcheck", f"{file}:right")
    assert "(2, 5)" in said(
        capsys, "gradcheck", f"{file}:right", "--shape", "2,5", "--shape", "3x5"
    )
    assert "input 0 (): 1 elements agree" in said(
        capsys, "gradcheck", f"{file}:cube", "--shape", ""
    )
    assert "of order 2: passed" in said(capsys, "gradcheck", f"{file}:cube", "--order", "2")


def test_gradcheck_fails_what_is_wrong_and_names_the_op(capsys, file):
    out = said(capsys, "gradcheck", f"{file}:wrong", code=1)
    assert "FAILED" in out and "wrong" in out


def test_gradcheck_reads_the_file_as_it_is_now(capsys, file, monkeypatch):
    """Python keeps what it compiled, and by size and second alone it cannot tell that the file was corrected within the second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for factor, verdict in (("2", "FAILED"), ("3", "passed")):
        Path(file).write_text(FUNCTIONS.replace("g * 2 * x * x", f"g * {factor} * x * x"))
        os.utime(file, (1e9, 1e9))
        assert verdict in said(capsys, "gradcheck", f"{file}:wrong", code=int(verdict == "FAILED"))


def test_gradcheck_runs_the_file_by_its_own_rules(capsys, file):
    """Its annotations are values, unless it asks for text as this package's files do."""
    Path(file).write_text(
        "def same(x: float):\n    assert same.__annotations__ == {'x': float}\n    return x\n"
    )
    assert "passed" in said(capsys, "gradcheck", f"{file}:same", "--shape", "2")


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            (":right", "--shape", "2,3", "--shape", "2,3", "--shape", "2"),
            "takes 2 inputs, but --shape was given 3 times",
        ),
        ((":right", "--shape", "2,three"), "--shape '2,three' is no shape; write it as 2,3"),
        ((":right", "--shape", "2,x"), "--shape '2,x' is no shape; write it as 2,3"),
        ((":energy",), "takes no inputs, so there is no gradient to check"),
        ((":right", "--seed", "-1"), "--seed is 0 or more, got -1"),
        ((":ta",), "is no function but an object of type module"),
        ((":Layer",), "mine.py:Layer is a class; name a function, or an object of that class"),
        (
            (":layer", "--shape", "2", "--shape", "2"),
            "takes 1 input, but --shape was given 2 times",
        ),
    ],
)
def test_gradcheck_of_what_cannot_be_checked(capsys, file, options, expected):
    out = said(capsys, "gradcheck", file + options[0], *options[1:], code=2)
    assert expected in out and out.count("\n") == 1


def test_gradcheck_of_a_module_object(capsys, file):
    assert "(3, 4): 12 elements agree" in said(capsys, "gradcheck", f"{file}:layer")


def test_what_is_neither_a_python_file_nor_a_module(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "importing.py").write_text("import no_such_thing\n")
    for target, words in (
        ("a.txt", "'a.txt' is no Python file; its name should end in .py"),
        ("b.txt", "there is no module 'b.txt', nor is it a file that ends in .py"),
        ("no_such:f", "there is no module 'no_such'"),
        ("importing:f", "No module named 'no_such_thing'"),
    ):
        assert words in said(capsys, "gradcheck", target, code=2)


def test_a_file_that_is_no_python_is_one_line(capsys, tmp_path):
    path = tmp_path / "typo.py"
    path.write_text("def f(x) return x\n")
    out = said(capsys, "gradcheck", str(path), code=2)
    assert "SyntaxError: expected ':' (typo.py, line 1)" in out and "Traceback" not in out


@pytest.mark.parametrize("target", ["", ":energy"])
def test_a_target_without_a_place(capsys, target):
    out = said(capsys, "graph", target, code=2)
    assert (
        out
        == f"tinygrad-attn graph: {target!r} names no file and no module; write FILE.py:FUNCTION or MODULE:FUNCTION.\n"
    )


@pytest.mark.parametrize("place", [".", "./model", "../model"])
def test_a_place_that_begins_with_a_dot_is_no_module(capsys, place):
    """Which Python takes for an import within a package, and then asks for the package."""
    out = said(capsys, "graph", f"{place}:energy", code=2)
    assert out == (
        f"tinygrad-attn graph: there is no module {place!r}, nor is it a file that ends in .py; write FILE.py:FUNCTION or "
        "MODULE:FUNCTION.\n"
    )


# ---- ends


def test_ctrl_c_ends_with_130_and_one_line(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_doctor", interrupted)
    assert said(capsys, "doctor", code=130) == "\nStopped.\n"


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT to send")
def test_ctrl_c_while_a_script_of_the_seeds_runs(source):
    (source / "examples" / "seed_000_good.py").write_text(
        "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
    )
    code = (
        "import sys; from pathlib import Path; from tinygrad_attn.cli import commands, main; "
        "commands.ROOT = Path(sys.argv[1]); sys.exit(main(['seeds']))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, str(source)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert (
        running.stdout.readline() == "==== seed_000_good\n"
        and running.stdout.readline() == "begun\n"
    )
    os.killpg(
        running.pid, signal.SIGINT
    )  # as a terminal does: to the command and to what it has begun
    _, errors = running.communicate(
        timeout=30
    )  # which waits for the script, too, since it holds the pipe
    assert (running.returncode, errors) == (130, "\nStopped.\n")


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that somebody is in")
@pytest.mark.parametrize(
    "arguments", [["gradcheck", "mine.py:right"], ["graph", "mine:energy"], ["exercise"], ["demo"]]
)
def test_a_folder_that_was_deleted_meanwhile(capsys, tmp_path, monkeypatch, arguments):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert said(capsys, *arguments, code=2) == (
        f"tinygrad-attn {arguments[0]}: the folder this runs in has been deleted; go to another "
        "one with cd, or into the new one of its name.\n"
    )


def process(*arguments, **settings):
    """A command in a process of its own, whose output is text in another encoding than UTF-8."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "PYTHONIOENCODING": "cp1252",
    }
    return subprocess.run(
        [sys.executable, "-m", "tinygrad_attn", *arguments],
        env=variables,
        **{"capture_output": True, **settings},
    )


def test_what_the_encoding_of_a_pipe_lacks_is_written_otherwise(tmp_path):
    """Windows' pipes and files have 256 characters, and the branches of a tree are not among them."""
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS, "utf-8")
    done = process("graph", f"{path}:energy")
    assert done.returncode == 0, done.stderr
    assert "`- multiply" in done.stdout.decode("cp1252")
    picture = tmp_path / "\u4e2d.txt"
    done = process("graph", f"{path}:energy", "--output", str(picture))
    assert done.returncode == 0 and rb"\u4e2d.txt" in done.stdout, done.stderr
    assert "\u2514\u2500 multiply" in picture.read_text("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="Windows says it otherwise")
@pytest.mark.parametrize(
    "arguments",
    [
        ["gradcheck", "FILE:right"],
        ["graph", "FILE:energy"],
        ["--help"],
        ["demo", "--help"],
        ["--version"],
        [],
    ],
)
def test_a_reader_that_is_gone_is_no_error(file, arguments, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is printed waits until Python ends
    read, write = os.pipe()
    os.close(read)
    done = process(
        *(a.replace("FILE", str(file)) for a in arguments),
        capture_output=False,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="Windows says it otherwise")
def test_ctrl_c_that_has_ended_the_reader_too(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = """
from tinygrad_attn.cli import commands, main
def stopped(arguments):
    print("half")
    raise KeyboardInterrupt
commands.run_doctor = stopped
raise SystemExit(main(["doctor"]))"""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (130, b"\nStopped.\n")


def test_windows_calls_a_reader_that_is_gone_an_invalid_argument(monkeypatch):
    gone, name = (
        OSError(errno.EINVAL, "Invalid argument"),
        OSError(errno.EINVAL, "Invalid argument", "a?b"),
    )
    assert not output.reader_gone(gone)
    monkeypatch.setattr(output, "os", SimpleNamespace(name="nt"))
    assert output.reader_gone(gone) and not output.reader_gone(name)


def test_nothing_to_print_to(file, monkeypatch):
    """As under pythonw."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert (
        cli.main(["gradcheck", f"{file}:right"]) == 0 and cli.main(["graph", f"{file}:energy"]) == 0
    )
    monkeypatch.setattr(
        commands, "run_doctor", lambda arguments: signal.raise_signal(signal.SIGINT)
    )
    assert cli.main(["doctor"]) == 130
    assert not Progress("seed 0").on_terminal


def test_a_mistake_in_an_option_is_one_line(capsys, tmp_path):
    for library in NEEDED:
        require(library)
    out = said(capsys, "demo", "--epochs", "0", "--out", str(tmp_path), code=2)
    assert (
        out.startswith(
            "tinygrad-attn demo: the demo needs at least one epoch and one run, got epochs 0\n"
        )
        and out.count("\n") == 2
    )


def test_source_writes_a_program(file, capsys, tmp_path):
    assert cli.main(["source", f"{file}:right", "--shape", "2,3"]) == 0
    text = capsys.readouterr().out
    assert "def forward_backward(x, y, d_output):" in text and "d_y = " in text
    assert cli.main(["source", f"{file}:right", "--shape", "2,3", "--forward"]) == 0
    assert "def forward(x, y):" in capsys.readouterr().out
    assert cli.main(["source", f"{file}:program"]) == 0  # ta.source's own result
    assert "def forward(x, y):" in capsys.readouterr().out
    out = tmp_path / "out.py"
    assert cli.main(["source", f"{file}:loss", "--output", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert '"dense.weight": d_dense_weight' in out.read_text() and '"w": d_w' in out.read_text()
    assert cli.main(["source", f"{file}:dense", "--shape", "3,4"]) == 0
    assert "input @ weight.T + bias" in capsys.readouterr().out


@pytest.mark.parametrize(
    "target, options, words",
    [
        ("number", [], "must take arrays, or return what ta.source returns; it is of type int"),
        ("right", ["--shape", "2", "--shape", "2", "--shape", "2"], "takes 2 inputs"),
        ("Layer", [], "is a class"),
    ],
)
def test_source_says_what_it_cannot_write(file, capsys, target, options, words):
    assert cli.main(["source", f"{file}:{target}", *options]) == 2
    assert words in capsys.readouterr().err
