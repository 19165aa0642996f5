"""What installing and importing the package does, and what it leaves alone."""

import ast
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import typing
import zipfile
from email import message_from_bytes

import pytest
from support import IN_CI, ROOT, require

import tinygrad_attn as ta

PACKAGE = ROOT / "tinygrad_attn"


def fresh(code: str):
    """What `code` prints as JSON, in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stated_version() -> str:
    """`__version__` as it is written in __init__.py: nothing is imported to read it."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return ast.literal_eval(node.value)
    raise AssertionError("tinygrad_attn/__init__.py states no __version__")


def test_no_test_module_needs_an_optional_library_to_be_collected():
    """A plain `import torch` in one of them stops the whole suite where torch is missing; require() skips the module."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    optional = {re.split(r"\W", name)[0] for name in sum(stated.values(), [])} - {
        "tinygrad_attn",
        "pytest",
        "hypothesis",
    } | {"sklearn"}
    assert {"torch", "matplotlib", "safetensors"} <= optional
    for path in (ROOT / "tests").rglob("*.py"):
        required: set[str] = set()
        if "benchmarks" in path.parts:  # run by hand, each library in a process of its own
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            required |= set(re.findall(r"require\(['\"](\w+)", ast.unparse(node)))
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [getattr(node, "module", None) or ""]
            )
            assert not {module.split(".")[0] for module in modules} & (optional - required), (
                f"{path.name}, line {node.lineno}"
            )


def test_import_brings_in_numpy_only():
    loaded = fresh("""
import json, sys
before = set(sys.modules)
import tinygrad_attn, tinygrad_attn.nn, tinygrad_attn.optim, tinygrad_attn.functional
new = {name.partition(".")[0] for name in set(sys.modules) - before if getattr(sys.modules[name], "__file__", None)}
print(json.dumps(sorted(new - sys.stdlib_module_names)))
""")
    assert loaded == ["numpy", "tinygrad_attn"]


def test_what_the_hints_promise_is_what_comes(monkeypatch):
    """mypy reads the same program in `make lint`."""

    def check(value, hint):
        assert hint is typing.Any or isinstance(value, typing.get_origin(hint) or hint), (
            f"{value!r} is no {hint}"
        )
        checked.append(hint)

    checked: list = []
    monkeypatch.setattr(typing, "assert_type", check)
    runpy.run_path(str(ROOT / "tests" / "helpers" / "typed_program.py"))["right"]()
    assert len(checked) > 10


def test_a_star_import_brings_in_this_packages_names_only():
    for name in ("", ".nn", ".nn.init", ".functional", ".optim", ".check", ".viz", ".random"):
        module = importlib.import_module("tinygrad_attn" + name)
        got: dict = {}
        exec(f"from {module.__name__} import *", got)
        homes = {
            getattr(got[public], "__module__", None) or got[public].__name__
            for public in got
            if public != "__builtins__"
        }
        assert all(home.startswith("tinygrad_attn") for home in homes), (module, homes)
        assert module.__all__ and len({*module.__all__}) == len(module.__all__)


@pytest.mark.parametrize(
    "library, call, words",
    [
        (
            "torch",
            lambda: ta.compare_with_torch(ta.nn.Linear(2, 2), None),
            r'needs torch.*"tinygrad_attn\[torch\]".*ta\.gradcheck',
        ),
        (
            "matplotlib.pyplot",
            lambda: ta.viz.attention([[[1.0]]]),
            r'matplotlib.*"tinygrad_attn\[viz\]".*ta\.viz\.attention_html',
        ),
    ],
)
def test_without_a_library_one_reads_what_to_install_and_what_works_all_the_same(
    library, call, words, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=words):
        call()


def test_import_changes_nothing_about_the_process():
    require("threadpoolctl")
    before, after, events = fresh("""
import gc, json, os, signal, sys, threading, warnings
import numpy as np, threadpoolctl
def state():
    return {
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
        "blas": [(pool["internal_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()],
        "environment": dict(os.environ),
        "floating point errors": np.geterr(),
        "numpy's random state": str(np.random.get_state()),
        "print options": str(np.get_printoptions()),
        "warning filters": str(warnings.filters),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "recursion limit": sys.getrecursionlimit(),
        "hooks": (str(sys.excepthook), str(sys.displayhook), str(signal.getsignal(signal.SIGINT))),
    }
before, events = state(), []
# calls into C (mallopt, a BLAS's thread setter) and child processes leave a trace here
sys.addaudithook(lambda event, args: event.startswith(("ctypes.", "os.putenv", "subprocess.", "socket."))
                 and events.append(f"{event} {args}"))
import tinygrad_attn, tinygrad_attn.nn, tinygrad_attn.optim
events = list(events)
print(json.dumps([before, state(), events]))
""")
    assert before == after
    assert events == []


def test_the_version_is_one():
    package = importlib.import_module("tinygrad_attn")
    assert package.__version__ == stated_version()
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev|post)\d+)?", package.__version__)
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        installed = importlib.metadata.version("tinygrad_attn")
    except importlib.metadata.PackageNotFoundError:
        assert not IN_CI, "CI runs the installed package"
        pytest.skip("tinygrad_attn is not installed here")
    assert installed == package.__version__


def test_the_wheel_holds_the_whole_package_and_nothing_else(tmp_path):
    require("hatchling")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in archive.namelist()} - {"tinygrad_attn"}
        inside = {name for name in archive.namelist() if name.startswith("tinygrad_attn/")}
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
        scripts = archive.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
        archive.extractall(tmp_path / "installed")
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    shipped = {
        path.relative_to(ROOT / "docs").as_posix()
        for folder in ("course", "images")
        for path in (ROOT / "docs" / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.parent.name != "solutions"
    }
    live = (ROOT / "docs" / "live").glob("*")
    shipped |= {f"live/{path.name}" for path in live if path.suffix in (".js", ".css")}
    shipped |= {f"live/{name}_page.py" for name in ("live", "own")}
    shipped |= {"live/make_site.py", "zh/live.json"}
    assert inside == ours | {f"tinygrad_attn/_docs/{name}" for name in shipped}
    assert "tinygrad_attn/py.typed" in inside
    assert metadata["Version"] == stated_version()
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert core == ["numpy>=2.0"]
    assert set(metadata.get_all("Provides-Extra")) == {
        "viz",
        "examples",
        "llm",
        "parallel",
        "torch",
        "test",
        "docs",
        "dev",
    }
    assert "tinygrad-attn = tinygrad_attn.cli:main" in scripts
    _writes_a_page(tmp_path)


def _writes_a_page(folder):
    """The unpacked wheel writes a teacher's page, in Chinese, without a clone."""
    exercise = "def f(x):\n    return x * x\n\n\nexercise('f', forward=f)\n"
    (folder / "square.py").write_text(exercise, "utf-8")
    command = [sys.executable, "-m", "tinygrad_attn", "page", "square.py", "-o", "page"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "installed")}
    done = subprocess.run(
        [*command, "--lang", "zh"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "按“批改”" in (folder / "page" / "index.html").read_text("utf-8")
    with zipfile.ZipFile(folder / "page" / "live" / "tinygrad_attn.zip") as archive:
        names = set(archive.namelist())
    assert {"live_page.py", "docs/course/marking/own.json", "tinygrad_attn/__init__.py"} <= names
    assert not [name for name in names if "_docs/" in name or "exercises/" in name]
