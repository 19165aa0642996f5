"""Flat NumPy functions, forwards and backwards, from expressions.

Each expression is a line. It writes its result into the memory of an operand that no later line
needs, so that little is allocated. No memory outlives a call, except for what the backward pass
needs and for the results, which belong to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import ops
from .ir import Expression, inside, reached
from .layout import basic, picks_once
from .text import NO_DTYPE, Sizes, Text

LEAVES = ("input", "constant", "number")
FRESH = {
    "method": "sum mean max min prod any all astype copy cumsum argmax dot",
    "call": "where stack concatenate erf",
}
"""Beside ufuncs, what never returns a view."""
VIEWS = ("T", "swapaxes", "transpose", "reshape", "view")
"""Views in which no element comes twice, so that they may be written to."""
HELD, UNKNOWN = "held", "unknown"
SHARED = {HELD, UNKNOWN}
"""The memory of inputs, constants and saved values, which is never written to; and that of what
may be a view of any operand.
"""


class Changed(Exception):
    """The package reads these numbers otherwise than those that were traced."""


class Flat:
    """The functions of one program, and their text.

    `forward(inputs)` returns (outputs, saved). `backward[i](inputs, saved, g)` returns for each
    input its gradient, or None, where g is the gradient by output i.
    """

    def __init__(
        self,
        inputs: list[str],
        outputs: list[Any],
        gradients: list[dict[str, Any]],
        checks: list[Expression],
    ) -> None:
        self.space: dict[str, Any] = {"np": np, "erf": ops.erf, "Changed": Changed}
        self.text = ""
        order = reached([outputs, checks])
        known = {e.id for e in order if e.kind not in LEAVES}
        late = [[e for e in reached(each) if e.id not in known] for each in gradients]
        used = {*inside(gradients), *(x for each in late for e in each for x in e.operands)}
        saved = [e for e in order if e in used and e.id in known]
        writer = Writer(self.name, order, [*outputs, *saved])
        lines = [f"({''.join(f'{n}, ' for n in inputs)}) = inputs"]
        results = writer.own(outputs, SHARED.union(map(writer.group_of, saved)))
        end = f"return [{results}], ({writer.own(saved, {UNKNOWN}, False)})"
        self.forward = self.function("forward(inputs)", [*lines, *writer.lines(), end])
        lines.append(f"({''.join(f'{self.name(e)}, ' for e in saved)}) = saved")
        self.backward = []
        for place, (each, steps) in enumerate(zip(gradients, late)):
            ends = [each.get(n) for n in inputs]
            writer = Writer(self.name, steps, ends)
            body = [*lines, *writer.lines(), f"return [{writer.own(ends, SHARED)}]"]
            self.backward.append(self.function(f"backward(inputs, saved, d_output{place})", body))

    def function(self, title: str, lines: list[str]) -> Callable[..., Any]:
        """The function with this title and these lines."""
        text = "\n    ".join([f"def {title}:", *lines]) + "\n"
        self.text += text
        exec(compile(text, "<flat, written by ta.compile>", "exec"), self.space)
        made: Callable[..., Any] = self.space[title.partition("(")[0]]
        return made

    def name(self, e: Expression) -> str | None:
        """The name of a value; that of a constant is a global of the functions."""
        if e.kind == "constant":
            self.space[f"c{e.id}"] = e.value if e.ndim else e.value[()]
            return f"c{e.id}"
        return {"input": e.name, "number": None}.get(e.kind, f"t{e.id}")


class Writer:
    """Writes the lines of one function."""

    def __init__(
        self, name: Callable[[Expression], str | None], order: list[Expression], ends: Iterable[Any]
    ) -> None:
        self.name, self.order = name, order
        self.text = Text(name, Sizes({}))
        self.group: dict[int, Any] = {}  # by expression: its memory
        self.last: dict[Any, float] = {}  # by group: the last line that needs it
        self.now = 0
        for i, e in enumerate(order):
            groups = {self.group_of(x) for x in e.operands} - {HELD}
            if fresh(e):
                self.group[e.id] = e.id
            elif groups:
                view = e.name in VIEWS or e.kind == "item" and basic(e.args[1])
                self.group[e.id] = min(groups) if view else UNKNOWN
            until = math.inf if self.group_of(e) == UNKNOWN else i
            self.last |= {g: max(until, self.last.get(g, 0)) for g in groups}
        kept = {*SHARED, *map(self.group_of, inside([*ends]))}
        self.last |= dict.fromkeys(kept, math.inf)

    def group_of(self, e: Expression) -> Any:
        """The memory of a value; a view has its operand's."""
        return self.group.get(e.id, HELD)

    def dying(self, x: Expression, e: Expression) -> bool:
        """Whether the result e may be written into the memory of its operand x."""
        g = self.group_of(x)
        alike = x.ndim > 0 and x.shape == e.shape and x.dtype == e.dtype
        alone = all(y is x or self.group_of(y) != g for y in e.operands)
        return alike and alone and self.last[g] == self.now

    def own(self, ends: list[Any], taken: set[Any], alone: bool = True) -> str:
        """The names of results, copied where their memory is one of these groups, or if each is to
        be alone in its memory, that of a result before.
        """
        text = ""
        for e in ends:
            groups = {self.group_of(x) for x in inside(e) if x.ndim}
            text += self.text.of(e, -1, NO_DTYPE) + ".copy()" * bool(groups & taken) + ", "
            taken = taken | groups if alone else taken
        return text

    def lines(self) -> list[str]:
        """The statements that compute the expressions."""
        found: list[str] = []
        for i, e in enumerate(self.order):
            self.now = i
            if e.kind == "check":
                asked, answer = map(self.text.of, e.args)
                found.append(f"if {asked} != {answer}: raise Changed")
            elif e.kind == "update":
                found += self.update(e)
            elif e.kind not in LEAVES:
                found.append(f"{self.name(e)} = {self.spelled(e)}")
        return found

    def spelled(self, e: Expression) -> str:
        """The expression, with a place for its result if an operand is not needed any more."""
        text = self.text.spelled(e)[0]
        out = next((self.text.of(x) for x in e.operands if self.dying(x, e)), None)
        return f"{text[:-1]}, out={out})" if out and is_ufunc(e) else text

    def update(self, e: Expression) -> list[str]:
        """A changed copy of an array, or the array itself if nothing else needs it."""
        base, index, *values = e.args
        name, given = self.name(e), ", ".join(map(self.text.of, values))
        start = f"{self.text.of(base)}.copy()"
        if self.dying(base, e):
            start = self.text.of(base)
        elif base.kind == "constant" and not base.value.any():
            start = f"np.zeros({e.shape}, {str(e.dtype)!r})"
        change = f"np.{e.name}({name}, {self.text.of(index)}, {given})"
        once = basic(index) or picks_once(index, base.shape)
        if e.name == "setitem" or e.name == "add.at" and once:
            sign = "=" if e.name == "setitem" else "+="
            change = f"{name}[{self.text.index(index)}] {sign} {given}"
        return [f"{name} = {start}", change]


def fresh(e: Expression) -> bool:
    """Whether this is surely an array of its own."""
    if e.kind == "item":
        return any(x.ndim for x in inside(e.args[1]))  # an index of places copies
    kinds = ("operator", "update", "check")
    return e.kind in kinds or is_ufunc(e) or e.name in FRESH.get(e.kind, "").split()


def is_ufunc(e: Expression) -> bool:
    """Whether this is a call of one of NumPy's ufuncs that have one result."""
    return e.kind == "call" and getattr(getattr(np, e.name, None), "nout", 0) == 1
