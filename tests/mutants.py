"""`python -m tests.mutants`: change the package in one place at a time; a test has to fail.

The changes are made in a copy of the repository: a sign, a factor, the order of two operands, an
axis, a term, an epsilon, an index. Error texts, types, comparisons (with their tolerances) and the
length of pauses are left alone. For each change the tests of its subpackage run until the first one
fails. A change that none notices is a survivor: write the test that would have found it, or make
the code plainer.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tinygrad_attn"
SAMPLE, SECONDS = 200, 900  # changes, and seconds for the tests of one

TESTS = {  # the subpackages whose numbers are tested, and tests beside those of the same name
    "engine": ["ops", "transforms", "compositions"],
    "ops": ["fast", "transforms", "functional", "nn"],
    "tensor": ["ops", "transforms"],
    "random": ["nn"],
    "functional": ["fast", "nn", "ops"],
    "nn": ["functional", "compositions"],
    "optim": ["files", "fast"],
    "files": ["optim"],
    "transforms": ["optim", "compositions"],
    "program": ["transforms"],
    "tree": ["program"],
    "fast": ["functional", "nn", "ops"],
    "parallel": [],
}
NEGATED = {"add": "subtract", "subtract": "add", "maximum": "minimum", "minimum": "maximum"}
SIGNS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
TURNED = (ast.Sub, ast.Div, ast.MatMult, ast.Pow)
NUMBERLESS = {"warn", "describe", "TypeVar", "allclose", "isclose", "array_equal", "sleep"}
PAUSES = {"BUSY", "PAUSE", "FORWARDED"}  # how long a rank waits before it asks again, or ends
SYMMETRIC = {"isinstance", "getattr", "hasattr", "setattr", "zip", "max", "min"} | NEGATED.keys()


class Mutant(NamedTuple):
    """The change of one expression; `start` and `end` are bytes of the file."""

    file: str  # from the package's folder
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}"

    @property
    def room(self) -> str:
        return self.file.split("/")[0].removesuffix(".py")


def changes(node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kind of each change of this node, and what would stand in its place."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in SIGNS:
        yield "sign", replaced(node, op=SIGNS[type(node.op)]())
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Mult, ast.Div, ast.Pow)):
            yield "factor", node.left
        if isinstance(node.op, ast.Mult):
            yield "factor", node.right
        if isinstance(node.op, TURNED):
            yield "operand", replaced(node, left=node.right, right=node.left)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            yield "eps" if "eps" in ast.unparse(node.right) else "term", node.left
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not isinstance(node.operand, ast.Constant):
            yield "sign", node.operand
    elif isinstance(node, ast.Call):
        yield from changed_calls(node)
    elif isinstance(node, ast.keyword) and node.arg in ("axis", "keepdims"):
        if isinstance(node.value, ast.Constant) and node.value.value is not None:
            yield "axis", replaced(node, value=ast.Constant(-1 if not node.value.value else 0))
    elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield "axis", node.value
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        if isinstance(parent, (ast.Subscript, ast.Slice, ast.BinOp)):
            yield "index", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is float and node.value:
        small = abs(node.value) < 1e-3
        yield "eps" if small else "factor", ast.Constant((100 if small else 2) * node.value)


def changed_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Yield the changes of a call."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if isinstance(node.func, ast.Attribute) and name in NEGATED:
        yield "sign", replaced(node, func=replaced(node.func, attr=NEGATED[name]))
    if name in ("swapaxes", "transpose") and isinstance(node.func, ast.Attribute):
        yield "axis", node.args[0] if ast.unparse(node.func.value) == "np" else node.func.value
    first = 1 if name == "where" else 0
    pair = node.args[first : first + 2]
    if len(pair) == 2 and name not in SYMMETRIC and name != "swapaxes":
        constant = any(isinstance(x, (ast.Starred, ast.Constant)) for x in pair)
        if not constant and ast.dump(pair[0]) != ast.dump(pair[1]):
            args = [*node.args[:first], pair[1], pair[0], *node.args[first + 2 :]]
            yield "operand", replaced(node, args=args)


def replaced(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of this node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def left_out(node: ast.AST) -> bool:
    """Whether no number depends on what is in here: errors, texts, checks, types, pauses."""
    node = node.value if isinstance(node, ast.Expr) else node
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Compare, ast.BoolOp)):
        return True
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in NUMBERLESS or name.startswith("check")
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and node.targets[0].id in PAUSES
    if isinstance(node, ast.FunctionDef):
        return "repr" in node.name or node.name.lstrip("_").startswith("check")
    texts = (ast.Constant, ast.JoinedStr)
    return isinstance(node, ast.BinOp) and any(
        isinstance(n, texts) and not isinstance(getattr(n, "value", ""), (int, float))
        for n in ast.walk(node)
    )


def mutants_of(file: str, text: bytes) -> Iterator[Mutant]:
    """Yield the changes of one file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    pending: list[tuple[ast.AST, ast.AST]] = [(ast.parse(text), ast.Module([], []))]
    while pending:
        node, parent = pending.pop()
        if left_out(node):
            continue
        for kind, new in changes(node, parent):
            start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            after = ast.unparse(new)
            if isinstance(new, ast.expr) and not isinstance(new, (ast.Name, ast.Constant)):
                after = f"({after})"
            line = node.lineno  # type: ignore[attr-defined]
            yield Mutant(file, line, kind, ast.unparse(node), after, start, end)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "test", "ifs"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        pending.append((child, node))


def every_mutant() -> list[Mutant]:
    """Return all changes of the subpackages in TESTS, by file and line."""
    folder = ROOT / PACKAGE
    files = [p for room in TESTS for p in (folder / f"{room}.py", *(folder / room).rglob("*.py"))]
    found = [
        mutant
        for path in files
        if path.exists()
        for mutant in mutants_of(path.relative_to(folder).as_posix(), path.read_bytes())
    ]
    return sorted(found)


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return so many of them, in turn from each subpackage and kind."""
    groups: dict[tuple[str, str], int] = {}
    ranked = []
    for m in random.Random(seed).sample(mutants, len(mutants)):
        turn = groups[m.room, m.kind] = groups.get((m.room, m.kind), 0) + 1
        ranked.append((turn, m))
    return [m for _, m in sorted(ranked, key=lambda pair: pair[0])[:size]]


def copy_of_the_repository(folder: Path) -> Path:
    """Copy the package and tests, and link the rest."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name in (PACKAGE, "tests"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    return folder


def run_pytest(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run tests in the copy; return pytest's exit code and the tests that failed."""
    options = ["-q", "-n0", "--tb=no", "-rfE", "-pno:cacheprovider", "-m", "not slow"]
    for compiled in [*(folder / PACKAGE).rglob("__pycache__")]:  # by processes that tests start
        shutil.rmtree(compiled)  # Another change may be as long, and of the same second.
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    ids = [rest.split(" - ")[0] for kind, _, rest in lines if kind in ("FAILED", "ERROR")]
    return done.returncode, ids


def killer(mutant: Mutant, folder: Path) -> str | None:
    """Return the first test that fails, or None for a survivor."""
    path = folder / PACKAGE / mutant.file
    original = path.read_bytes()
    rooms = dict.fromkeys((mutant.room, *TESTS[mutant.room]))
    tests = [f"tests/{room}" for room in rooms if (folder / "tests" / room).exists()]
    try:
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        code, failed = run_pytest(folder, "-x", *tests)
    except subprocess.TimeoutExpired:
        return "an endless test"
    finally:
        path.write_bytes(original)
    if failed and run_pytest(folder, failed[0])[0]:
        print(f"fails without any change, so nothing was tested: {failed[0]}")
        return None
    return None if code == 0 else (failed or [f"pytest ended with {code}"])[0]


def main() -> int:
    """Parse, try, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="a subpackage, a file, a file:line, or a mutant")
    parser.add_argument("--sample", type=int, help=f"how many ({SAMPLE}; of what is named, all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("-n", "--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--may-survive", type=int, default=0, help="how many survivors are fine")
    parser.add_argument("--list", action="store_true", help="print them only")
    given = parser.parse_args()
    found = [
        m
        for m in every_mutant()
        if not given.names or {m.name, m.room, m.file, f"{m.file}:{m.line}"} & {*given.names}
    ]
    size = given.sample or (len(found) if given.names else SAMPLE)
    found = sample(found, size, given.seed)
    if given.list or not found:
        print(*(f"{m.name:45} {m.before} -> {m.after}" for m in sorted(found)), sep="\n")
        return not found
    with tempfile.TemporaryDirectory(prefix="mutants-") as top:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            copies.put(copy_of_the_repository(Path(top) / str(job)))

        def attempt(mutant: Mutant) -> bool:
            folder = copies.get()
            test = killer(mutant, folder)
            copies.put(folder)
            print(f"{mutant.name:45} {test or 'SURVIVED ' + mutant.before + ' -> ' + mutant.after}")
            return test is None

        with ThreadPoolExecutor(given.jobs) as pool:
            survivors = sum(pool.map(attempt, found))
    print(f"{len(found) - survivors} of {len(found)} mutants killed.")
    return survivors > given.may_survive


if __name__ == "__main__":
    sys.exit(main())
