"""Exercises that a teacher writes in a file of her own: see docs/own-exercises.md.

A file calls `exercise(...)` for each part. What a learner gets is a `Part`: the text of the stub and,
for a forward pass, inputs and right outputs in place of the teacher's function.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from _exam_cases import Formula
from _marking import Exercise, Marks
from _project import Project

KINDS = ("vjp", "forward", "engine")
SAMPLES = 3
"""How many random inputs a forward pass is compared at."""
PACKED = Path(__file__).with_name("own.json")
"""In a page, the parts of its exercise."""


@dataclass
class Part:
    """What a learner writes: backward rules, a forward pass, or a method of an engine."""

    name: str
    function: str
    arguments: list[str]
    shapes: list[tuple[int, ...]]
    ask: str
    points: float
    about: str  # the docstring
    given: str = ""  # the source that the learner gets, for `ask` other than "forward"
    outputs: list[Any] = field(default_factory=list)  # right outputs, for "forward"

    @property
    def rules(self) -> list[str]:
        """The names of the backward rules."""
        one = len(self.arguments) == 1
        return [f"{self.function}_vjp" + f"_{name}" * (not one) for name in self.arguments]

    def inputs(self, sample: int) -> list[np.ndarray]:
        rng = np.random.default_rng([sample, len(self.name)])
        return [rng.standard_normal(shape) for shape in self.shapes]

    def forward(self) -> Any:
        """Return the function that the learner gets."""
        names: dict[str, Any] = {"__name__": "given"}
        exec(self.given, names)
        return names[self.function]

    def check(self, marks: Marks) -> None:
        """Run the checks of this part."""
        marks.idea(self.name, self.points)
        if self.ask == "forward":
            mine = marks.function(self.function)
            for sample, right in enumerate(self.outputs):
                inputs = self.inputs(sample)
                marks.compare(
                    f"{self.name}, input {sample + 1}", lambda x=inputs: mine(*x), np.array(right)
                )
            return
        f = self.forward()
        if self.ask == "vjp":
            marks.reference(**{self.function: f})
            op = marks.op(self.function, *self.rules)
            marks.gradient(f"rule of {self.name}", op, *self.inputs(0))
            return
        mine = Project(marks)
        called = lambda a, *others: getattr(a, self.function)(*others)
        setattr(mine.adapter, self.function, called)
        text = f"{self.function}({', '.join(self.arguments)})"
        inputs = dict(zip(self.arguments, self.inputs(0)))
        case = Formula("", text, {}, text, inputs, {}, words={self.function: f})
        mine.check(f"- {text}", case, (self.function,))


def part(
    name: str,
    forward: Any,
    ask: str = "vjp",
    shapes: Sequence[tuple[int, ...]] = ((3, 4),),
    points: float = 1,
) -> Part:
    """Make a part from the arguments of `exercise` in a teacher's file.

    `forward` is a function on arrays. `ask` says what the learner writes: "vjp" (the backward rules
    of forward), "forward" (the function itself), or "engine" (a method of the class Tensor of the
    course's project). `shapes` has a shape for each argument. Raises ValueError if these do not fit.
    """
    arguments = list(signature(forward).parameters)
    if ask not in KINDS:
        raise ValueError(f"exercise {name!r}: ask must be one of {', '.join(KINDS)}, got {ask!r}.")
    if len(shapes) != len(arguments):
        raise ValueError(
            f"exercise {name!r}: {forward.__name__} has {len(arguments)} arguments "
            f"({', '.join(arguments)}), so it needs as many shapes, got {len(shapes)}: shapes={list(shapes)}."
        )
    about = inspect.getdoc(forward) or ""
    made = Part(name, forward.__name__, arguments, list(shapes), ask, points, about)
    if ask == "forward":
        made.outputs = [
            np.asarray(forward(*made.inputs(sample))).tolist() for sample in range(SAMPLES)
        ]
    else:
        made.given = needed(Path(inspect.getfile(forward)).read_text("utf-8"), made.function)
        made.forward()(*made.inputs(0))  # so that a missing name is found now
    return made


def needed(source: str, name: str) -> str:
    """Return the statements of a file that a function needs, in their order."""
    statements = ast.parse(source).body
    wanted, chosen = [name], set[int]()
    while wanted:
        name = wanted.pop()
        for k, statement in enumerate(statements):
            if k not in chosen and name in bound(statement):
                chosen.add(k)
                loaded = (n.id for n in ast.walk(statement) if isinstance(n, ast.Name))
                wanted += loaded
    texts = [ast.get_source_segment(source, statements[k]) or "" for k in sorted(chosen)]
    return "\n\n".join(texts) + "\n"


def bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a file defines."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
        return {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return set()


def parts_of(file: Path) -> list[Part]:
    """Run a teacher's file and return its parts."""
    parts: list[Part] = []
    names = {
        "__name__": "own",
        "__file__": str(file),
        "exercise": lambda *args, **settings: parts.append(part(*args, **settings)),
    }
    exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), names)
    if not parts:
        raise ValueError(f"{file} calls exercise(...) nowhere. docs/own-exercises.md has examples.")
    return parts


def is_own(name: str) -> bool:
    """Return whether a name is that of a teacher's file, and not of an exercise of the course."""
    path = Path(name)
    return path.suffix == ".py" and path.is_file() and "\nexercise(" in path.read_text("utf-8")


def made_from(name: str, parts: Sequence[Part]) -> Exercise:
    """Return the exercise of these parts."""

    def mark(marks: Marks) -> None:
        for one in parts:
            one.check(marks)

    return Exercise(-1, "", name, ", ".join(one.name for one in parts), mark)


def packed(parts: Sequence[Part]) -> str:
    """Return the parts as text for a page."""
    return json.dumps([asdict(one) for one in parts])


def unpacked(text: str) -> list[Part]:
    parts = [Part(**one) for one in json.loads(text)]
    for one in parts:
        one.shapes = [tuple(shape) for shape in one.shapes]
    return parts


def stub(parts: Sequence[Part]) -> str:
    """Return the file that a learner begins with."""
    titles = ", ".join(one.name for one in parts)
    texts = [f'"""Exercise: {titles}."""\n\nimport numpy as np\n']
    for one in parts:
        if one.given:
            texts.append(one.given.replace("import numpy as np\n", "").strip() + "\n")
        texts.append(STUBS[one.ask](one))
    return "\n\n".join(text for text in texts if text.strip())


def _forward_stub(one: Part) -> str:
    shapes = ", ".join(f"{a}: {s}" for a, s in zip(one.arguments, one.shapes))
    about = f"{one.about}\n\n    {shapes}\n    " if one.about else shapes
    return f'def {one.function}({", ".join(one.arguments)}):\n    """{about}"""\n    return None\n'


def _vjp_stub(one: Part) -> str:
    text = ""
    for rule, argument, shape in zip(one.rules, one.arguments, one.shapes):
        text += (
            f"def {rule}(g, y, {', '.join(one.arguments)}):\n"
            f'    """Return the gradient with respect to {argument}, {shape}, for g = dL/dy."""\n'
            "    return None\n\n\n"
        )
    return text.rstrip() + "\n"


def _engine_stub(one: Part) -> str:
    others = ", ".join(["self", *one.arguments[1:]])
    return (
        "class Tensor:\n"
        "    def __init__(self, data, parents=(), rules=()):\n"
        "        self.data, self.parents, self.vjps, self.grad = np.asarray(data), parents, rules, None\n\n"
        "    def backward(self, g=None):\n"
        '        """The marker brings its own."""\n\n'
        f"    def {one.function}({others}):\n"
        f'        """Return the Tensor of {one.function}(...), with a rule for each parent."""\n'
        "        return None\n"
    )


STUBS = {"forward": _forward_stub, "vjp": _vjp_stub, "engine": _engine_stub}


def own(name: str) -> list[Part]:
    """Return the parts of a teacher's file, or in a page those that it holds."""
    return unpacked(PACKED.read_text("utf-8")) if PACKED.is_file() else parts_of(Path(name))
