"""The trial of a mutant: a copy of the package with the change in it, and the tests of its room on that copy.

Each job has a copy of its own, in a temporary folder; the working tree is only read. The tests run in a process that is
forked from this one, which has already imported all that they import except the package. First come those of all files
whose names speak of the changed function, then the others, file by file; the first that fails ends the trial.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from .places import PACKAGE, ROOT, Mutant

# The tests of the kind of a file, the likeliest to fail first; a folder stands for all its files not named before it.
# The first pattern that fits a file counts. In front of all come tests of the file's own name, and last those of the
# rooms that compute with what stands there.
FAST_AND_PLAIN = ["tests/fast/test_registry.py", "tests/fast/test_quick_ways.py"]
LAYERS = ["tests/functional", "tests/nn"]
TESTS = {
    "engine/*": [
        "tests/engine",
        "tests/ops/test_properties.py",
        "tests/transforms/test_transforms.py",
        "tests/fast/test_sweep.py",
        *LAYERS,
    ],
    "tensor/*": [
        "tests/tensor/test_interop.py",
        "tests/tensor",
        "tests/ops/test_opinfo.py",
        "tests/ops",
        "tests/transforms/test_transforms.py",
        *LAYERS,
    ],
    "random.py": ["tests/random", *LAYERS, "tests/fast/test_fused.py"],
    "files/*": ["tests/files", "tests/optim", "tests/nn/test_module.py"],
    "ops/*": [
        "tests/ops/test_properties.py",
        "tests/ops/test_extreme_numbers.py",
        "tests/tensor/test_numpy_edges.py",
        "tests/ops/test_opinfo.py",
        "tests/ops",
        *FAST_AND_PLAIN,
        "tests/transforms/test_transforms.py",
        *LAYERS,
        "tests/tensor",
    ],
    "functional/*": [
        "tests/ops/test_properties.py",
        *FAST_AND_PLAIN,
        "tests/functional/test_every_function.py",
        *LAYERS,
        "tests/fast/test_fused.py",
        "tests/ops",
    ],
    "fast/compiling/*": ["tests/transforms/test_compile.py", "tests/transforms"],
    "fast/engine.py": ["tests/fast/test_sweep.py", "tests/engine", "tests/fast", "tests/ops"],
    "fast/optimizers.py": ["tests/optim", "tests/fast"],
    "fast/kernels/tiled.py": ["tests/fast/test_kernels_attention.py", "tests/fast", *LAYERS],
    "fast/kernels/*": [
        "tests/fast/test_kernels_rows.py",
        "tests/fast/test_kernels_attention.py",
        "tests/fast/test_kernels_products.py",
        *FAST_AND_PLAIN,
        "tests/fast",
        "tests/ops/test_extreme_numbers.py",
        *LAYERS,
        "tests/ops",
    ],
    "fast/*": [
        *FAST_AND_PLAIN,
        "tests/fast/test_fused.py",
        "tests/fast/test_thresholds.py",
        "tests/fast",
        "tests/ops",
        *LAYERS,
    ],
    "transforms/programs/*": ["tests/program/test_source.py", "tests/transforms"],
    "parallel/*": ["tests/parallel"],
    "transforms/*": ["tests/transforms/test_transforms.py", "tests/transforms", "tests/optim"],
    "nn/*": [
        "tests/nn/test_layers.py",
        "tests/nn/test_attention.py",
        "tests/nn",
        "tests/functional",
        "tests/program/test_models_fuzz.py",
    ],
    "optim/*": ["tests/optim", "tests/files", "tests/fast/test_determinism.py"],
}
IMPORTED = ["pytest", "hypothesis", "numpy", "torch", "torch.testing._internal.common_modules"]
IMPORTED += ["torch.testing._internal.common_methods_invocations", "safetensors.numpy", "tqdm"]
NOTHING_TO_RUN = 5  # pytest's number for a file all of whose tests are left out
TIMERS = ("SIGVTALRM", "SIGALRM")
PROCESSOR_SECONDS, SECONDS = 60, 600  # what one test may take, before it counts as endless


class Outcome(NamedTuple):
    """What came of a trial: the test that failed, or None where none did."""

    mutant: Mutant
    killer: str | None
    seconds: float


def prepare() -> None:
    """Import what all tests import. Before that: one BLAS thread, so that no thread is lost in a fork."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    for name in IMPORTED:
        # Where one is missing its tests are skipped; in CI they fail, without any mutant too.
        with suppress(ImportError):
            importlib.import_module(name)


def pattern_for(file: str) -> str:
    """The first pattern that fits a file of the package."""
    return next(pattern for pattern in TESTS if fnmatch(file, pattern))


def tests_of(file: str, root: Path = ROOT) -> list[str]:
    """The test files for a file of the package, in the order in which they run."""
    names = TESTS[pattern_for(file)]
    found: dict[str, None] = {}
    for name in names:
        path = root / name
        paths = sorted(path.rglob("test_*.py")) if path.is_dir() else [path][: path.exists()]
        found.update(dict.fromkeys(p.relative_to(root).as_posix() for p in paths))
    return sorted(found, key=lambda name: Path(file).stem not in Path(name).stem.split("_"))


class Watching:
    """What pytest is asked to tell: which test failed. And which are to be run, in which order: those that are near, whose
    names speak of the function; those that are not; or with None all.
    """

    def __init__(self, function: str, without: Collection[str], near: bool | None = None) -> None:
        self.without, self.near = without, near
        self.words = [w for w in function.lower().replace(".", "_").split("_") if len(w) > 2]
        self.failed: list[str] = []

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        # The same examples at each trial; and where one fails, nobody asks for the smallest.
        phases, name = (Phase.explicit, Phase.generate), "mutants"
        settings.register_profile(name, settings.get_profile("ci"), phases=phases)
        settings.load_profile(name)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        def speaks_of_it(item: Any) -> int:
            return sum(word in item.nodeid.lower() for word in self.words)

        items[:] = [
            item
            for item in items
            if item.nodeid not in self.without and self.near in (None, speaks_of_it(item) > 0)
        ]
        items.sort(key=speaks_of_it, reverse=True)

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_SECONDS)  # these end the process
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


class Copy:
    """A job's copy of the repository: package and tests as files, all else as links."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.root, self.folder, self.changes = root, folder / "repository", 0
        self.pycache = folder / "pycache"
        self.folder.mkdir(parents=True)
        without = shutil.ignore_patterns("__pycache__", "results")
        for path in root.iterdir():
            if path.name in (PACKAGE, "tests"):
                shutil.copytree(path, self.folder / path.name, ignore=without)
            elif path.is_file():
                shutil.copy2(path, self.folder)
            elif not path.name.startswith("."):
                (self.folder / path.name).symlink_to(path)

    def change(self, mutant: Mutant) -> None:
        """Write the mutant, with a time of its own: by that Python knows that it must compile it."""
        path = self.folder / PACKAGE / mutant.file
        path.write_text(mutant.source(self.root))
        self.changes += 1
        os.utime(path, (self.changes, self.changes))

    def restore(self, mutant: Mutant) -> None:
        """The file as it was."""
        shutil.copy2(self.root / PACKAGE / mutant.file, self.folder / PACKAGE / mutant.file)

    def start(self, names: list[str], function: str, without: Collection[str] = ()) -> int:
        """Run these test files, or tests, in a process of their own, whose number is returned."""
        (self.folder / "outcome").unlink(missing_ok=True)
        process = os.fork()
        if process:
            return process
        try:
            os.setsid()
            self.enter()
            failed = self.first_failure(names, function, without)
            (self.folder / "outcome").write_text(json.dumps(failed))
        finally:
            os._exit(0)

    def enter(self) -> None:
        """Make the forked process one that was started in the copy."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(self.folder / "output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate((nothing, output, output)):
            os.dup2(stream, number)
        os.chdir(self.folder)
        here = {"", str(self.root), os.getcwd()}
        sys.path[:] = [str(self.folder), *(p for p in sys.path if p not in here)]
        sys.pycache_prefix, sys.dont_write_bytecode = str(self.pycache), False
        os.environ["PYTHONPYCACHEPREFIX"], os.environ["PYTHONPATH"] = str(self.pycache), sys.path[0]
        for variable in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS"):
            os.environ.pop(variable, None)
        for name in [n for n in sys.modules if n.split(".")[0] in ("tests", PACKAGE)]:
            del sys.modules[name]

    def first_failure(
        self, names: list[str], function: str, without: Collection[str]
    ) -> str | None:
        """The first test that fails, file by file; first of those that speak of the function."""
        for near, name in itertools.product((True, False), names):
            watching = Watching(function, without, near)
            code = run_pytest(["-x", name], watching)
            if watching.failed:
                return watching.failed[0]
            if code not in (0, NOTHING_TO_RUN):
                return f"{name} (pytest ended with {code})"
        return None

    def outcome(self, status: int) -> str | None:
        """What the process has left: the test that failed, or why it did not get to the end."""
        path = self.folder / "outcome"
        if path.exists():
            return json.loads(path.read_text())
        ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "an exit"
        return "an endless test" if ended in TIMERS else f"the process ended by {ended}"

    def fail_here(self, names: Collection[str], *options: str) -> set[str]:
        """Which of these tests fail in the copy as it is; a file of which pytest cannot say it fails, too."""
        process = os.fork()
        if not process:
            try:
                self.enter()
                watching = Watching("", ())
                code = run_pytest([*names, *options], watching)
                failed = watching.failed if code in (0, 1, NOTHING_TO_RUN) else [*names]
                (self.folder / "outcome").write_text(json.dumps(failed))
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        return set(json.loads((self.folder / "outcome").read_text()))


def run_pytest(arguments: list[str], watching: Watching) -> int:
    """Run pytest in this process. Its own watch over endless tests is a thread, and a fork leaves threads behind."""
    import pytest

    options = ["-pno:cacheprovider", "-pno:xdist", "-ofaulthandler_timeout=0", "--tb=line"]
    return int(pytest.main([*options, "-m", "not slow", *arguments], [watching]))


def kill(process: int) -> None:
    """End a trial and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def trials(
    mutants: list[Mutant], copies: list[Copy], without: Collection[str] = ()
) -> Iterator[Outcome]:
    """The outcome of each mutant, in the order in which they come; as many at once as there are copies."""
    waiting, free = list(reversed(mutants)), list(copies)
    running: dict[int, tuple[Copy, Mutant, float]] = {}
    try:
        while waiting or running:
            while waiting and free:
                copy, mutant = free.pop(), waiting.pop()
                copy.change(mutant)
                process = copy.start(tests_of(mutant.file, copy.root), mutant.function, without)
                running[process] = copy, mutant, time.monotonic()
            process, status = os.waitpid(-1, 0)
            copy, mutant, started = running.pop(process)
            kill(process)
            copy.restore(mutant)
            free.append(copy)
            yield Outcome(mutant, copy.outcome(status), time.monotonic() - started)
    finally:
        for process, (copy, mutant, _) in running.items():
            kill(process)
            os.waitpid(process, 0)
            copy.restore(mutant)


def with_progress(outcomes: Iterator[Outcome], size: int) -> Iterator[Outcome]:
    """The same, with a bar on a terminal and a line each in a log."""
    if sys.stderr.isatty() and "tqdm" in sys.modules:
        yield from sys.modules["tqdm"].tqdm(outcomes, total=size, unit="mutant")
        return
    for i, o in enumerate(outcomes, 1):
        fate = f"killed by {o.killer}" if o.killer else f"SURVIVED  {o.mutant.text}"
        print(f"{i}/{size}  {o.seconds:.0f} s  {o.mutant.name}  {fate}", flush=True)
        yield o


def unfounded(outcomes: list[Outcome], copy: Copy) -> set[str]:
    """Which of the tests that failed fail without any mutant, too: what they have killed counts for nothing."""
    killers = {o.killer for o in outcomes if o.killer and o.killer.startswith("tests/")}
    tests = {name for name in killers if "::" in name}
    for name in sorted(killers - tests):  # of a file that could not even be read
        file = name.split(" ")[0]
        if copy.fail_here([file], "--collect-only"):
            raise SystemExit(f"pytest cannot read {file}, without any mutant.")
    wrong = copy.fail_here(tests) if tests else set()
    # Beside one that fails there may be others, which would come out one by one.
    return wrong | copy.fail_here({name.partition("::")[0] for name in wrong}) if wrong else wrong
