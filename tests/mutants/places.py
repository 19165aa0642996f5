"""The mutants that there are: a walk through the rooms, and a sample that is spread over rooms and kinds."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from .kinds import DECISIONS, KINDS, Around, called

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tinygrad_attn"

# The rooms whose numbers are asked for. Not among them are those that say, show or check something, for whose answers there
# are tests of planted mistakes, and what looks after threads, memory, messages and programs that are known already.
ROOMS = {
    "engine": ["engine/*.py"],
    "ops": ["ops/*.py"],
    "tensor": ["tensor/*.py"],
    "random": ["random.py"],
    "functional": ["functional/equations.py", "functional/masks.py", "functional/__init__.py"],
    "fast": [
        "fast/engine.py",
        "fast/equations.py",
        "fast/indexing.py",
        "fast/ops.py",
        "fast/optimizers.py",
    ],
    "kernels": ["fast/kernels/*.py"],
    "transforms": ["transforms/derivatives.py", "transforms/checkpointing.py"],
    "programs": ["transforms/programs/*.py"],
    "compiling": ["fast/compiling/flat.py", "fast/compiling/lowering.py"],
    "nn": ["nn/*.py"],
    "optim": ["optim/*.py"],
    "parallel": [
        "parallel/buckets.py",
        "parallel/clipping.py",
        "parallel/data_parallel.py",
        "parallel/metrics.py",
        "parallel/sampler.py",
        "parallel/sharded.py",
        "parallel/streams.py",
        "parallel/tensor_parallel.py",
    ],
    "files": ["files/__init__.py", "files/atomic.py", "files/checkpoints.py"],
}

# Where an `if` decides what is computed, so that a condition too few is a wrong number, and by which kinds it is changed.
# Elsewhere an `if` chooses between two ways that are both right, or complains.
DECIDED = {
    "transforms/programs/simplify.py": ("condition", "never"),
    "fast/compiling/lowering.py": ("condition",),
}

# What is called to say something, or to ask whether a call is right: another argument, another text.
SAYS = {"warn", "describe", "errstate", "TypeVar", "nearest"}
REPRESENTS = ("__repr__", "extra_repr", "__str__")


@dataclass(frozen=True)
class Mutant:
    """One change of one expression; `start` and `end` are places in the bytes of the file."""

    room: str
    file: str  # from the package's folder
    line: int
    kind: str
    number: int  # among those of this kind in this line
    function: str
    before: str
    after: str
    start: int
    end: int
    which: str = ""  # " (2 of 3)" for the second of three such changes in one function

    @property
    def name(self) -> str:
        """As a command takes it: `ops/elementwise.py:120 sign`, and `sign.2` for the second in that line."""
        more = f".{self.number}" if self.number > 1 else ""
        return f"{self.file}:{self.line} {self.kind}{more}"

    @property
    def text(self) -> str:
        """What is changed, by which it is known when the lines have moved: where, what, and which one of several."""
        return f"{self.function}: {self.before} -> {self.after}{self.which}"

    def source(self, root: Path = ROOT) -> str:
        """The text of the file with the change in it."""
        text = (root / PACKAGE / self.file).read_bytes()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()


class Walk:
    """All changes of one file, in the order in which they stand there."""

    def __init__(self, room: str, file: str, text: bytes) -> None:
        self.room, self.file, self.text = room, file, text
        lengths = (len(line) for line in text.splitlines(keepends=True))
        self.starts = [0, *itertools.accumulate(lengths)]
        self.counts: dict[tuple[int, str], int] = defaultdict(int)
        self.decided = DECIDED.get(file, ())
        self.kinds = KINDS | {kind: DECISIONS[kind] for kind in self.decided}

    def mutants(self) -> Iterator[Mutant]:
        """The mutants of the whole file, in which those of the same text are numbered."""
        every = self.visit(ast.parse(self.text), Around(ast.Module(), ()), "")
        found = {(m.start, m.end, m.after): m for m in every}.values()  # x for either x of x * x
        several = Counter(m.text for m in found)
        seen: Counter[str] = Counter()
        for m in found:
            seen[m.text] += 1
            which = f" ({seen[m.text]} of {several[m.text]})" if several[m.text] > 1 else ""
            yield replace(m, which=which)

    def visit(self, node: ast.AST, around: Around, function: str) -> Iterator[Mutant]:
        """Those of a node and of all that is in it."""
        if left_out(node, bool(self.decided)):
            return
        if isinstance(node, ast.expr | ast.stmt | ast.keyword):
            for kind, change in self.kinds.items():
                for new in change(node, around):
                    mutant = self.mutant(node, new, kind, function)
                    if mutant.after.strip("()") != mutant.before.strip("()"):
                        yield mutant
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            around = around._replace(operands=operands_of(node) or around.operands)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        elif isinstance(node, ast.Expr | ast.Assign) and not function:
            function = named_at_the_top(node)
        for child in parts(node, bool(self.decided)):
            yield from self.visit(child, around._replace(parent=node), function)

    def mutant(self, node: ast.AST, new: ast.AST, kind: str, function: str) -> Mutant:
        """The change of this node into that."""
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(new, ast.expr) and not isinstance(new, ast.Name | ast.Constant):
            after = f"({after})"  # what stands around it binds as before
        self.counts[node.lineno, kind] += 1
        number = self.counts[node.lineno, kind]
        place = (node.lineno, kind, number, function or "the module", ast.unparse(node))
        return Mutant(self.room, self.file, *place, after, start, end)


def operands_of(function: ast.FunctionDef | ast.Lambda) -> tuple[str, ...]:
    """In a rule, which takes g, y and the inputs, the names of all but g; else nothing."""
    names = [a.arg for a in function.args.args]
    return tuple(names[1:]) if names[:2] == ["g", "y"] else ()


def named_at_the_top(node: ast.Expr | ast.Assign) -> str:
    """Whose rules these are, in `exp.vjp(lambda ...)` and `quicker(ops.exp, ...)`; or what is assigned."""
    call = node.value
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if not isinstance(call, ast.Call):
        return ""
    if isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func.value).rpartition(".")[2]
    return ast.unparse(call.args[0]).rpartition(".")[2] if call.args else ""


def left_out(node: ast.AST, decided: bool = False) -> bool:
    """Can no change in here show in a number?

    So it is with errors and their texts, types, what a class says of itself, a predicate (it returns a bool) that
    chooses between two ways, unless the number is `decided` by it, and what is made of the thresholds of
    fast/tuning.py, on which only the time depends.
    """
    node = node.value if isinstance(node, ast.Expr) else node
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ExceptHandler):
        return True
    if called(node) in SAYS or called(node).startswith(("check_", "refuse")):
        return True
    if isinstance(node, ast.FunctionDef):
        predicate = node.returns is not None and ast.unparse(node.returns) == "bool"
        return (
            (predicate and not decided)
            or node.name in REPRESENTS
            or node.name.startswith(("check", "_check"))
        )
    if isinstance(node, ast.AugAssign | ast.BinOp):
        return any(isinstance(n, ast.JoinedStr) for n in ast.walk(node))
    thresholds = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)
    if thresholds or isinstance(node, ast.Compare | ast.BoolOp):
        return "tuning." in ast.unparse(node)
    return False


def parts(node: ast.AST, decided: bool = False) -> Iterator[ast.AST]:
    """What a node is made of, but for types, decorators and, unless the number is `decided` by it, the condition of an
    `if`: both ways may be right.
    """
    conditions = () if decided else ("test", "ifs")
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", *conditions):
            yield from (
                n for n in (value if isinstance(value, list) else [value]) if isinstance(n, ast.AST)
            )


def mutants(root: Path = ROOT) -> list[Mutant]:
    """All mutants of the package, in the order of the rooms and files."""
    found: list[Mutant] = []
    for room, patterns in ROOMS.items():
        folder = root / PACKAGE
        for path in sorted(folder.rglob("*.py")):
            file = path.relative_to(folder).as_posix()
            if path.name != "arguments.py" and any(fnmatch(file, p) for p in patterns):
                found += Walk(room, file, path.read_bytes()).mutants()
    return found


def sample(all_of_them: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """So many of them, in turn from each room and kind, in each of these by chance."""
    rng = random.Random(seed)
    groups: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in all_of_them:
        groups[mutant.room, mutant.kind].append(mutant)
    queues = [rng.sample(group, len(group)) for group in groups.values()]
    rng.shuffle(queues)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*queues))
    return list(itertools.islice((m for m in in_turn if m is not None), size))
