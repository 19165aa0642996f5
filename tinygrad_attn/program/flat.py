"""Flat NumPy functions, forwards and backwards, from expressions.

Each expression is a line. It writes its result into the memory of an operand that no later line
needs, so that little is allocated. No memory outlives a call, except for what the backward pass
needs and for the results, which belong to the caller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import ops
from .ir import Expression, inside, number_in, reached
from .layout import basic, picks_once
from .rules import UFUNCS
from .text import NO_DTYPE, Sizes, Text, beside, dtype_text

LEAVES = ("input", "constant", "number")
WITH_OUT = "exp log sqrt tanh sin cos maximum minimum square absolute reciprocal exp2 log1p expm1"
"""Functions that write their result where `out=` says."""
FRESH_CALLS = (
    "where stack concatenate erf vecdot matmul equal not_equal isnan isfinite sign log2 log10 "
    "take_along_axis logical_not logical_and logical_or hypot arctan2 tan arcsin arccos "
    f"arctan sinh cosh arcsinh arccosh arctanh floor ceil rint trunc {WITH_OUT}"
)
FRESH = "sum mean max min prod any all astype copy cumsum argmax dot"
"""Functions and methods that never return a view, as einsum and squeeze may."""
REDUCED = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
VIEWS = {("attribute", "T")} | {("method", f) for f in ("swapaxes", "transpose", "reshape")}
HELD = "held"
"""The group of memory that must not be written to: inputs, constants, what the backward needs."""


class Changed(Exception):
    """The package reads these numbers otherwise than those that were traced."""


class Flat:
    """The functions of one program.

    `forward(*inputs)` returns (results, saved). `backward(which, wanted)` is the function that
    maps (g, saved, inputs) to the wanted gradients, where g is the gradient by a result.
    """

    def __init__(
        self,
        inputs: list[str],
        outputs: list[Any],
        gradients: list[dict[str, Any]],
        checks: list[Expression],
    ) -> None:
        self.inputs, self.gradients = inputs, gradients
        self.seeds = [f"d_output{i}" for i in range(len(gradients))]
        self.space: dict[str, Any] = {"np": np, "erf": ops.erf, "Changed": Changed}
        self.written: dict[Any, Callable[..., Any]] = {}
        self.texts: list[str] = []
        after = reached([gradients, checks])
        late = depending(after, set(self.seeds))
        early = [e for e in checks if e.id not in late]
        self.checks = [
            [e for e in checks if e.id in depending(after, {seed})] for seed in self.seeds
        ]
        order = reached([outputs, early])
        self.known = {e.id for e in order if e.kind not in LEAVES} - views_of_inputs(after)
        used = [
            x
            for each, asked in zip(gradients, self.checks)
            for e in [*(needed([each, asked], self.known)), *inside(each)]
            for x in (e, *e.operands)
        ]
        self.saved = {x.id: x for x in used if x.id in self.known}
        writer = Writer(self, order, [*outputs, *self.saved.values()])
        lines = writer.lines()
        results = writer.own(outputs, {writer.group_of(e) for e in self.saved.values()})
        kept = writer.own(self.saved.values(), set(), shared=True)
        lines.append(f"return [{', '.join(results)}], ({''.join(f'{n}, ' for n in kept)})")
        self.forward = self.function(f"forward({', '.join(inputs)})", lines)
        for which, each in enumerate(gradients):
            self.backward(which, tuple(each))

    def backward(self, which: int, wanted: tuple[str, ...]) -> Callable[..., Any]:
        """The function for these gradients by one result."""
        if (which, wanted) not in self.written:
            ends = [self.gradients[which][name] for name in wanted]
            order = needed([ends, self.checks[which]], self.known)
            writer = Writer(self, order, ends)
            saved = "".join(f"{self.name(e)}, " for e in self.saved.values())
            lines = [f"{saved}= saved"] if saved else []
            used = {x.name for e in order for x in (e, *e.operands) if x.kind == "input"}
            lines += [f"{n} = inputs[{i}]" for i, n in enumerate(self.inputs) if n in used]
            lines += writer.lines()
            lines.append(f"return [{', '.join(writer.own(ends, set()))}]")
            title = f"backward({self.seeds[which]}, saved, inputs)"
            self.written[which, wanted] = self.function(title, lines)
        return self.written[which, wanted]

    def function(self, title: str, lines: list[str]) -> Callable[..., Any]:
        """The function with this title and these lines."""
        text = f"def {title}:\n" + "".join(f"    {line}\n" for line in lines)
        self.texts.append(text)
        exec(compile(text, "<flat, written by ta.compile>", "exec"), self.space)
        made: Callable[..., Any] = self.space[title.partition("(")[0]]
        return made

    def name(self, e: Expression) -> str:
        """The name of a value; that of a constant is a global of the functions."""
        if e.kind == "input":
            return str(e.name)
        if e.kind == "constant":
            self.space[f"c{e.id}"] = e.value if e.ndim else e.value[()]
            return f"c{e.id}"
        return f"t{e.id}"


def depending(order: list[Expression], seeds: set[str]) -> set[int]:
    """The ids of what depends on one of these inputs."""
    found: set[int] = set()
    for e in order:
        if e.kind == "input" and e.name in seeds or any(x.id in found for x in e.operands):
            found.add(e.id)
    return found


def needed(ends: Any, known: set[int]) -> list[Expression]:
    """What these need, in an order to compute it, except for what is known."""
    found: dict[int, Expression] = {}
    waiting = list(inside(ends))
    while waiting:
        e = waiting.pop()
        if e.id not in found and e.id not in known:
            found[e.id] = e
            waiting.extend(e.operands)
    return [found[i] for i in sorted(found)]


def views_of_inputs(order: list[Expression]) -> set[int]:
    """The ids of what may be a view of an input: it is not saved, since the input may change."""
    found: set[int] = set()
    for e in order:
        if e.kind not in LEAVES and not fresh(e):
            read = [
                x.kind == "input" or x.id in found for x in e.operands if x.kind not in LEAVES[1:]
            ]
            if read and all(read):
                found.add(e.id)
    return found


class Writer:
    """Writes the lines of one function."""

    def __init__(self, flat: Flat, order: list[Expression], ends: Iterable[Any]) -> None:
        self.flat, self.order = flat, order
        self.text = Text(lambda e: None if e.kind == "number" else flat.name(e), Sizes({}))
        self.group: dict[int, Any] = {}  # by expression: its memory
        self.last: dict[Any, float] = {}  # by group: the last line that needs it
        self.places: dict[int, tuple[Expression, str]] = {}  # of a product: its stack and place
        self.begun: set[int] = set()  # stacks that have memory, and their parts
        self.now = 0
        self.assign(list(inside(list(ends))))

    # ---- memory

    def group_of(self, e: Expression) -> Any:
        """The memory of a value; a view has its operand's."""
        return self.group.get(e.id, HELD)

    def assign(self, ends: list[Expression]) -> None:
        """Find the group of each value, and the last line that needs it."""
        self.find_stacks(ends)
        for i, e in enumerate(self.order):
            if e.id in self.places:
                self.group[e.id] = self.places[e.id][0].id
            elif fresh(e):
                self.group[e.id] = e.id
            elif e.kind not in LEAVES:
                groups = {self.group_of(x) for x in e.operands if x.ndim or x.kind == "input"}
                if len(groups) == 1 and is_view(e):
                    self.group[e.id] = groups.pop()
                if self.group_of(e) is HELD:  # it may be a view of any operand
                    self.last.update((self.group_of(x), math.inf) for x in e.operands)
            for x in e.operands:
                g = self.group_of(x)
                self.last[g] = max(self.last.get(g, 0), i)
        for x in ends:
            self.last[self.group_of(x)] = math.inf

    def find_stacks(self, ends: list[Expression]) -> None:
        """Find stacks of products that are used for nothing else: they are computed in place."""
        uses = Counter(x.id for e in self.order for x in e.operands)
        uses.update(x.id for x in ends)
        computed = {e.id for e in self.order}
        for e in self.order:
            if not e.is_a("call", "stack") or e.settings.keys() - {"axis"}:
                continue
            axis, found, parts = e.settings.get("axis", 0) % e.ndim, {}, []
            for i, x in enumerate(e.args[0]):
                place = f"[{':, ' * axis}{i}]"
                while x.is_a("method", "swapaxes") and uses[x.id] == 1:
                    parts.append(x.id)
                    place += f".swapaxes({x.args[1]}, {x.args[2]})"
                    x = x.args[0]
                once = uses[x.id] == 1 and x.id in computed and x.dtype == e.dtype
                if once and x.is_a("operator", "@") and x.ndim > 1:
                    found[x.id] = e, place
            if len(found) == len(e.args[0]):
                self.places |= found
                self.begun.update(parts)

    def dying(self, x: Any, e: Expression) -> bool:
        """Whether the result e may be written into the memory of its operand x."""
        if not isinstance(x, Expression) or x.kind in LEAVES:
            return False
        g = self.group_of(x)
        if g is HELD or self.last.get(g) != self.now or not e.ndim:
            return False
        alike = x.shape == e.shape and x.dtype == e.dtype
        return alike and all(y is x or self.group_of(y) != g for y in e.operands)

    def own(self, ends: Iterable[Any], seen: set[Any], shared: bool = False) -> list[str]:
        """The names of results, each of which has memory of its own unless they may be `shared`."""
        found = []
        for e in ends:
            name = self.text.of(e, -1, NO_DTYPE)
            if isinstance(e, Expression) and e.ndim:
                g = self.group_of(e)
                name += ".copy()" if g is HELD or g in seen else ""
                seen.update(() if shared else (g,))
            found.append(name)
        return found

    # ---- lines

    def lines(self) -> list[str]:
        """The statements that compute the expressions."""
        found: list[str] = []
        for i, e in enumerate(self.order):
            self.now = i
            if e.kind in LEAVES or e.id in self.begun:
                continue
            name = self.flat.name(e)
            if e.id in self.places:
                found += self.into_stack(e)
            elif e.kind == "check":
                asked, answer = (self.text.of(x) for x in e.args)
                found.append(f"if {asked} != {answer}: raise Changed")
            elif e.kind == "update":
                found += self.update(e, name)
            elif masks(e):
                found += self.masked(e, name)
            else:
                found.append(f"{name} = {self.spelled(e)}")
        return found

    def spelled(self, e: Expression) -> str:
        """The expression, with a place for its result if an operand is not needed any more."""
        text = self.text.spelled(e)[0]
        out = next((x for x in e.args if self.dying(x, e)), None)
        if e.kind == "method" and e.name in REDUCED and len(e.args) == 1 and e.args[0].ndim:
            if e.settings.keys() <= {"axis", "keepdims"}:
                settings = {"axis": None, **e.settings}
                words = [self.text.of(e.args[0]), *(f"{k}={v!r}" for k, v in settings.items())]
                return f"np.{REDUCED[e.name]}.reduce({', '.join(words)})"
        if out is None:
            return text
        if e.kind == "operator" and len(e.args) == 1 and e.name == "-":
            return f"np.negative({self.text.of(out)}, {self.text.of(out)})"
        if e.kind == "operator" and e.name in "+-*/":
            a, b = (self.text.of(x, -1, beside(x, e.args)) for x in e.args)
            return f"np.{UFUNCS[e.name].__name__}({a}, {b}, {self.text.of(out)})"
        if e.kind == "call" and e.name in WITH_OUT.split() and not e.settings:
            return f"{text[:-1]}, out={self.text.of(out)})"
        return text

    def into_stack(self, e: Expression) -> list[str]:
        """A product that is written into a stack."""
        stack, place = self.places[e.id]
        whole = self.flat.name(stack)
        start = [f"{whole} = np.empty({stack.shape}, {dtype_text(stack.dtype)})"]
        lines = [] if stack.id in self.begun else start
        self.begun.add(stack.id)
        a, b = map(self.text.of, e.args)
        return [*lines, f"np.matmul({a}, {b}, {whole}{place})"]

    def masked(self, e: Expression, name: str) -> list[str]:
        """x where a condition holds, else 0, by its bits: a quarter of the time of np.where."""
        condition, x = map(self.text.of, e.args[:2])
        bits = f"{x}.view(np.int{8 * e.dtype.itemsize})"
        if not self.dying(e.args[1], e):
            return [f"{name} = ({bits} * {condition}).view({dtype_text(e.dtype)})"]
        return [f"{name} = {x}", f"np.multiply({bits}, {condition}, {bits})"]

    def update(self, e: Expression, name: str) -> list[str]:
        """A changed copy of an array, or the array itself if nothing else needs it."""
        base, index, *values = e.args
        zero = base.kind == "constant" and not base.value.any()
        start = f"{self.text.of(base)}.copy()"
        if base.kind == "update" and self.dying(base, e):
            start = self.text.of(base)
        elif zero:
            start = f"np.zeros({e.shape}, {dtype_text(e.dtype)})"
        given = ", ".join(map(self.text.of, values))
        if e.name == "setitem":
            change = f"{name}[{self.text.index(index)}] = {given}"
        elif e.name == "add.at" and (basic(index) or picks_once(index, base.shape)):
            change = f"{name}[{self.text.index(index)}] {'=' if zero else '+='} {given}"
        else:
            change = f"np.{e.name}({', '.join([name, self.text.of(index), given])})"
        return [f"{name} = {start}", change]


def fresh(e: Expression) -> bool:
    """Whether this is surely an array of its own."""
    if e.kind in ("method", "call"):
        return e.name in (FRESH if e.kind == "method" else FRESH_CALLS).split()
    return e.kind in ("operator", "update")


def is_view(e: Expression) -> bool:
    """Whether this is a view in which no element comes twice, so that it may be written to."""
    return basic(e.args[1]) if e.kind == "item" else (e.kind, e.name) in VIEWS


def masks(e: Expression) -> bool:
    """Whether this is np.where(condition, x, 0) of floats, all of one shape."""
    if not e.is_a("call", "where") or len(e.args) != 3 or not e.ndim:
        return False
    condition, x, zero = e.args
    if not isinstance(x, Expression) or number_in(zero) != 0 or np.signbit(float(number_in(zero))):
        return False
    alike = x.shape == condition.shape == e.shape and x.dtype == e.dtype
    return alike and e.dtype in (np.float32, np.float64) and condition.dtype == bool
