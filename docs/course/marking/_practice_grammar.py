"""Makes tasks for practice: functions that nobody has seen, of one line a level.

The same topic, level, seed and number give the same task on every machine: the generator is a hash,
and every number in a task is a short decimal fraction. CONTRIBUTING.md says what a change here means.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOPICS = (
    "elementwise",
    "reductions",
    "broadcasting",
    "products",
    "norms",
    "attention",
    "scans",
    "indexing",
)
LEVELS = range(1, 7)
ATTEMPTS = 1000
STEP_NAMES = ["h", "p", "q", "r", "s", "t", "u", "z", "e", "m"]
INPUT_NAMES = {"matrix": "ABCDEG", "row": "wvbla", "column": "cdjok"}
MOST_INPUTS = 3
# For each function of T: its formula, its NumPy, and the formula of its slope.
FUNCTIONS = {
    "tanh": (r"\tanh(T)", "np.tanh(T)", r"(1 - \tanh^2(T))"),
    "sin": (r"\sin(T)", "np.sin(T)", r"\cos(T)"),
    "cos": (r"\cos(T)", "np.cos(T)", r"(-\sin(T))"),
    "arctan": (r"\arctan(T)", "np.arctan(T)", "(1 + (T)^2)^{-1}"),
    "logistic": (
        r"(1 + \exp(-(T)))^{-1}",
        "(1 / (1 + np.exp(-(T))))",
        r"\exp(-(T)) (1 + \exp(-(T)))^{-2}",
    ),
    "softplus": (r"\ln(1 + \exp(T))", "np.log(1 + np.exp(T))", r"(1 + \exp(-(T)))^{-1}"),
    "log": (r"\ln(1 + (T)^2)", "np.log(1 + (T) ** 2)", "2 (T) (1 + (T)^2)^{-1}"),
    "root": (r"\sqrt{1 + (T)^2}", "np.sqrt(1 + (T) ** 2)", "(T) (1 + (T)^2)^{-1/2}"),
    "bell": (r"\exp(-(T)^2)", "np.exp(-((T) ** 2))", r"(-2) (T) \exp(-(T)^2)"),
    "exp": (r"\exp(T)", "np.exp(T)", r"\exp(T)"),
    "square": ("(T)^2", "(T) ** 2", "2 (T)"),
    "cube": ("(T)^3", "(T) ** 3", "3 (T)^2"),
    "hill": ("(1 + (T)^2)^{-1}", "(1 / (1 + (T) ** 2))", "(-2) (T) (1 + (T)^2)^{-2}"),
    "cosh": (r"\cosh(T)", "np.cosh(T)", r"\sinh(T)"),
    "bounded": ("(T) (1 + (T)^2)^{-1/2}", "(T) / np.sqrt(1 + (T) ** 2)", "(1 + (T)^2)^{-3/2}"),
}


class Draw:
    """A generator of whole numbers: the n-th one is a hash of the key and n."""

    def __init__(self, *key: Any) -> None:
        self.key, self.count = " ".join(map(str, key)), 0

    def below(self, end: int) -> int:
        self.count += 1
        digest = hashlib.sha256(f"{self.key} {self.count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % end

    def one_of(self, values: Any) -> Any:
        return [*values][self.below(len(values))]

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return numbers between -1.5 and 1.5 with two decimals."""
        count = int(np.prod(shape))
        return np.array([(self.below(301) - 150) / 100 for _ in range(count)]).reshape(shape)


@dataclass
class Inner:
    """c phi(a u + b), for a function phi of the table and three constants."""

    phi: str
    a: str
    b: str
    c: str

    def argument(self, u: str, times: str) -> str:
        sign = "-" if self.b.startswith("-") else "+"
        return f"{self.a}{times}{u} {sign} {self.b.lstrip('-')}"

    def tex(self, u: str) -> str:
        return f"{self.c} {FUNCTIONS[self.phi][0].replace('T', self.argument(u, ' '))}"

    def code(self, u: str) -> str:
        return f"{self.c} * {FUNCTIONS[self.phi][1].replace('T', self.argument(u, ' * '))}"

    def slope(self, u: str) -> str:
        """Return the formula of the derivative with respect to u."""
        pattern = r"(?:(\d+|\(-\d+\)) )?(.*)"  # not the 1 of (1 - tanh^2(T))
        number, tex = re.fullmatch(pattern, FUNCTIONS[self.phi][2]).groups("1")
        factor = f"{float(self.a) * float(self.c) * int(number.strip('()')):.4g}"
        return f"{factor} {tex.replace('T', self.argument(u, ' '))}"


@dataclass
class Step:
    """One line of a function: its result, and the derivative of an element by an operand's element."""

    name: str
    indices: str
    code: str
    tex: str
    partials: dict[str, str]

    def __post_init__(self) -> None:
        self.tex = dotted(self.tex)
        self.partials = {operand: dotted(value) for operand, value in self.partials.items()}

    @property
    def formula(self) -> str:
        return f"{element(self.name, self.indices)} = {self.tex}"


class Held:
    """A function that holds its argument: differences find no slope in it, nor does this package."""

    def __init__(self) -> None:
        self.first: Any = None

    def __call__(self, t: Any) -> Any:
        if hasattr(t, "_data"):
            return 0 * t + t._data
        self.first = t if self.first is None else self.first
        return self.first


@dataclass
class Task:
    """A function to differentiate, and the inputs at which its gradient is checked."""

    topic: str
    level: int
    seed: int
    number: int
    rows: int = 3
    columns: int = 4
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    inputs: list[np.ndarray] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.topic} {self.level} {self.seed} {self.number}"

    @property
    def arguments(self) -> str:
        return ", ".join(self.shapes)

    @property
    def code(self) -> str:
        """Return the function as Python."""
        lines = [f"    {step.name} = {step.code}" for step in self.steps]
        return "\n".join([f"def f({self.arguments}):", *lines, "    return y"])

    def function(self, result: str = "y", code: str | None = None) -> Callable[..., Any]:
        """Return the function, or another expression of its steps, on arrays or Tensors."""
        text = (code or self.code).replace("    return y", f"    return {result}")
        names: dict[str, Any] = {"np": np, "held": Held()}
        place = f"practice {self}"
        linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
        exec(compile(text, place, "exec"), names)
        return names["f"]

    def uses(self, name: str) -> Iterator[tuple[Step, str]]:
        """List the lines that use a name, with the code in which this use has no slope."""
        for step in self.steps:
            for use in re.finditer(rf"\b{name}\b", step.code):
                code = f"{step.code[: use.start()]}held({name}){step.code[use.end() :]}"
                yield step, self.code.replace(f"{step.name} = {step.code}", f"{step.name} = {code}")

    @property
    def code_without_a_use(self) -> str:
        """Return the code in which one use of an operand of the last line has no slope."""
        last = self.steps[-1]
        operand = next(iter(last.partials)).partition("_")[0]
        return next(code for step, code in self.uses(operand) if step is last)

    def checkable(self) -> Callable[..., Any]:
        """Return the function for gradcheck, which would try other shapes: they are refused."""
        f, sizes = self.function(), [*self.shapes.values()]

        def of_these_shapes(*inputs: Any) -> Any:
            if [x.shape for x in inputs] != sizes:
                raise ValueError("the task has other shapes")
            return f(*inputs)

        return of_these_shapes

    def intermediates(self, code: str | None = None) -> Callable[..., Any]:
        """Return a function that returns the results of all lines."""
        return self.function(f"[{', '.join(step.name for step in self.steps)}]", code)


def make(topic: str, level: int, seed: int, number: int = 1) -> Task:
    """Make a task. All values and slopes at its inputs have a moderate size."""
    for attempt in range(ATTEMPTS):
        builder = Builder(
            Task(topic, level, seed, number), Draw(topic, level, seed, number, attempt)
        )
        builder.build()
        if moderate(builder.task, builder.draw):
            return builder.task
    raise RuntimeError(f"no function was found for {topic} {level} {seed} {number}")


def moderate(task: Task, draw: Draw) -> bool:
    """Return whether all values and slopes have a moderate size, and mistakes would show."""
    if len(task.inputs) > MOST_INPUTS:
        return False
    f, inputs = task.function(), task.inputs
    with np.errstate(all="ignore"):
        values = task.intermediates()(*inputs)
        if not all(np.isfinite(v).all() and 0.02 < np.abs(v).max() < 12 for v in values):
            return False
        g = draw.array(values[-1].shape)
        right = slopes(f, inputs, g)
        if not all(0.05 < np.abs(d).max() < 30 for d in right):
            return False
        held = task.function(code=task.code_without_a_use)
        wrong = [
            slopes(f, [1.1 * x for x in inputs], g),
            slopes(f, inputs, np.ones_like(g)),
            slopes(held, inputs, g),
            [d[..., ::-1] if d.shape[-1] > 1 else d[::-1] for d in right],
        ]
    return all(apart(name, task, values) for name in maxima(task)) and all(
        any(np.abs(a - b).max() > 0.03 * np.abs(a).max() for a, b in zip(right, mistake))
        for mistake in wrong
    )


def slopes(f: Callable[..., Any], inputs: list[np.ndarray], g: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of sum(g f) by central differences."""
    f(*inputs)
    found = [np.zeros(x.shape) for x in inputs]
    for k, x in enumerate(inputs):
        for at in np.ndindex(x.shape):
            for sign in (1, -1):
                moved = [a.copy() for a in inputs]
                moved[k][at] += sign * 1e-4
                found[k][at] += sign * (g * f(*moved)).sum() / 2e-4
    return found


def maxima(task: Task) -> Iterator[str]:
    """List the operands of which a line takes the maximum."""
    for step in task.steps:
        if "np.max(" in step.code:
            yield step.code.partition("np.max(")[2].partition(",")[0]


def apart(name: str, task: Task, values: list[np.ndarray]) -> bool:
    """Return whether the largest element of each row is clearly the largest."""
    known = dict(zip(task.shapes, task.inputs)) | dict(zip([s.name for s in task.steps], values))
    ordered = np.sort(known[name], axis=1)
    return bool((ordered[:, -1] - ordered[:, -2]).min() > 0.05)


def dotted(tex: str) -> str:
    """Put a dot between a factor and a number, but not after the sign of a sum."""
    tex = re.sub(r"(?<=[})\]]) -(\d[\d.]*)", r" \\cdot (-\1)", tex)  # a factor: a sum has " - "
    tex = re.sub(r"([})\]]) (?=\d)", r"\1 \\cdot ", tex)
    return re.sub(r"(\\sum_\{[^}]*\}) \\cdot ", r"\1 ", tex)


def plain(tex: str) -> str:
    """Return a formula as plain text, for a terminal."""
    for word, sign in {
        r"\delta": "δ",
        r"\cdot": "*",
        r"\quad": "  where",
        r"\le": "<=",
        r"\ge": ">=",
    }.items():
        tex = tex.replace(word, sign)
    tex = re.sub(r"sum_\{(k [^}]*)\}", r"sum_(\1)", tex)
    found, closing = [], []
    for part in re.split(r"(\\sqrt\{|\^\{|_\{|\{|\})", tex):
        if part.endswith("{"):
            opening = {r"\sqrt{": "sqrt(", "^{": "^(", "_{": "_"}.get(part, "")
            closing.append(")" if "(" in opening else "")
            found.append(opening)
        else:
            found.append(closing.pop() if part == "}" else part)
    return "".join(found).replace("\\", "")


def element(name: str, indices: str) -> str:
    return f"{name}_{{{indices}}}" if indices else name


# ---- building


@dataclass
class Template:
    """A rule of the grammar, which adds `lines` lines. A rule that is `last` gives another shape."""

    topic: str
    lines: int
    last: bool
    add: Callable[[Any], None]


TEMPLATES: list[Template] = []


def template(topic: str, lines: int = 1, last: bool = False) -> Callable[[Any], Any]:
    """Add a rule to the grammar. This is a decorator."""

    def enter(add: Callable[[Any], None]) -> Callable[[Any], None]:
        TEMPLATES.append(Template(topic, lines, last, add))
        return add

    return enter


class Builder:
    """A task while lines are added to it. `u` is the name of the newest matrix."""

    def __init__(self, task: Task, draw: Draw) -> None:
        self.task, self.draw = task, draw
        task.rows, task.columns = draw.one_of([(2, 3), (3, 2), (3, 4), (4, 3), (2, 4), (4, 2)])
        self.u = self.input("matrix", (task.rows, task.columns), "x")
        self.matrices = [self.u]

    def build(self) -> None:
        """Add as many lines as the level, the rules of the topic among them."""
        task, left = self.task, self.task.level
        plan: list[Template] = []
        own = lambda t: task.topic in (t.topic, "mixed")
        closing = self.draw.below(2) == 0
        while left:
            first = not plan  # the topic's rule is chosen first, and takes its place later
            fits = [t for t in TEMPLATES if t.lines <= left and (own(t) or not first)]
            if first and task.level >= 3:  # of long tasks, the long rules are the topic's point
                fits = [t for t in fits if t.lines > 1] or fits
            ends = any(t.last for t in plan)
            fits = [t for t in fits if not (t.last and (ends or not (first or closing)))]
            plan.append(self.draw.one_of(fits))
            left -= plan[-1].lines
        swap = self.draw.below(len(plan))
        plan[0], plan[swap] = plan[swap], plan[0]
        plan.sort(key=lambda t: t.last)
        for place, rule in enumerate(plan):
            self.closing = place == len(plan) - 1
            self.left = rule.lines
            rule.add(self)
        task.inputs = [self.draw.array(shape) for shape in task.shapes.values()]

    # ---- what rules use

    def inner(self, phis: Any = tuple(FUNCTIONS)) -> Inner:
        draw = self.draw
        a = draw.one_of([n for n in range(3, 20) if n != 10])
        b = (1 + draw.below(15)) * draw.one_of((1, -1))
        c = draw.one_of([n for n in range(4, 60) if n != 20])
        return Inner(draw.one_of(phis), f"{a / 10}", f"{b / 10}", f"{c / 20:g}")

    def number(self, least: int = 2, most: int = 30) -> str:
        """Return a constant in tenths that is not 1."""
        return f"{self.draw.one_of([n for n in range(least, most) if n != 10]) / 10}"

    def input(self, kind: str, shape: tuple[int, ...], name: str = "") -> str:
        """Add an input and return its name."""
        name = name or next(n for n in INPUT_NAMES[kind] if n not in self.task.shapes)
        self.task.shapes[name] = shape
        return name

    def other(self) -> str:
        """Return a matrix of the same shape as u: an earlier one, or a further input."""
        earlier = [name for name in self.matrices if name != self.u]
        return self.draw.one_of(earlier) if earlier else self.more()

    def more(self) -> str:
        self.matrices.insert(0, self.input("matrix", (self.task.rows, self.task.columns)))
        return self.matrices[0]

    def step(self, code: str, tex: str, partials: dict[str, str], indices: str = "ij") -> str:
        """Add a line and return the name of its result, which is y for the last line."""
        self.left -= 1
        ends = self.closing and not self.left
        name = "y" if ends else STEP_NAMES[len(self.task.steps)]
        self.task.steps.append(Step(name, indices, code, tex, partials))
        if indices == "ij":
            self.u = name
            self.matrices.append(name)
        return name

    def forget(self, name: str) -> None:
        """Take a result of another shape out of the matrices."""
        self.matrices.remove(name)
