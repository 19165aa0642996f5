"""Compile expressions to flat NumPy functions for the forward and the backward pass.

Each expression becomes one line. If possible, the line writes its result into the memory of an
operand that no later line needs. The caller owns the memory of the returned arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import ops
from .ir import LEAVES, Expression, inside, reached
from .simplify import like
from .text import Sizes, Text

FRESH = {
    "method": "sum mean max min prod any all astype copy cumsum argmax dot",
    "call": "where stack concatenate erf",
}
"""Methods and functions, besides ufuncs, that never return a view."""
VIEWS = ("T", "swapaxes", "transpose", "reshape", "view")
"""Methods that return a view that is safe to write to, because no element occurs in it twice."""


class Changed(Exception):
    """Raised if the package would take a different branch for these values than during tracing."""


class Flat:
    """The compiled functions of one program, and their source text.

    `forward(inputs)` returns (outputs, saved). `backward[i](inputs, saved, g)` takes the gradient g
    with respect to output i, and returns a gradient or None for each input.
    """

    def __init__(self, inputs: list[str], outputs: Any, gradients: list[Any], checks: Any) -> None:
        self.space: dict[str, Any] = {"np": np, "erf": ops.erf, "Changed": Changed}
        self.text, self.spelling = "", Text(self.name, Sizes({}))
        steps_to = lambda ends: [e for e in reached(ends) if e.kind not in LEAVES]
        order = steps_to([outputs, checks])
        known = {*order}
        late = [[e for e in steps_to(each) if e not in known] for each in gradients]
        used = {*inside(gradients), *(x for steps in late for e in steps for x in e.operands)}
        saved = [e for e in order if e in used]
        given = [f"{listed(inputs)} = inputs"]
        self.forward = self.function("forward(inputs)", given, order, outputs, saved)
        given.append(f"{listed(map(self.name, saved))} = saved")
        self.backward = [
            self.function(
                f"backward(inputs, saved, d_output{i})", given, steps, [*map(each.get, inputs)], []
            )
            for i, (each, steps) in enumerate(zip(gradients, late))
        ]

    def name(self, e: Expression) -> str | None:
        """Return the name of a value. Constants become global variables of the functions."""
        if e.kind == "constant":
            self.space[f"c{e.id}"] = e.value[()]
            return f"c{e.id}"
        return e.name if e.kind == "input" else f"t{e.id}"

    def function(self, title: str, given: list[str], order: Any, results: Any, saved: Any) -> Any:
        """Compile a function that computes these expressions."""
        self.users: dict[int, list[Any]] = {e.id: [] for e in order}
        for e in order:
            for x in e.operands:
                self.users.get(x.id, []).append(e)
        for x in [*inside(results), *saved]:
            self.users.get(x.id, []).append(None)
        lines = [line for e in order for line in self.lines(e)]
        shared = lambda x: isinstance(x, Expression) and x.ndim > 0 and not self.free(x, None)
        end = [self.spelling.of(x) + ".copy()" * shared(x) for x in results]
        found = f"[{', '.join(end)}]"
        if title.startswith("forward"):
            found += f", {listed(map(self.name, saved))}"
        text = "\n    ".join([f"def {title}:", *given, *lines, f"return {found}"]) + "\n"
        self.text += text
        exec(compile(text, "<flat, written by ta.compile>", "exec"), self.space)
        return self.space[title.partition("(")[0]]

    def free(self, x: Expression, user: Expression | None) -> bool:
        """Return whether `user` (None for the caller) is the last to need the memory of x."""
        *before, last = self.users.get(x.id) or [x]
        view = x.name in VIEWS and x.kind == "method"
        own = view and self.free(x.args[0], x) or fresh(x)
        return last is user and own and None not in before and all(map(fresh, before))

    def lines(self, e: Expression) -> list[str]:
        of, name = self.spelling.of, str(self.name(e))
        if e.kind == "check":
            return [f"if {of(e.args[0])} != {of(e.args[1])}: raise Changed"]
        places = (of(x) for x in e.operands if e.ndim and like(x, e) and self.free(x, e))
        if e.kind == "update":
            return self.spelling.update(e, name, self.free(e.args[0], e))
        text, place = self.spelling.spelled(e)[0], next(places, None)
        return [
            f"{name} = {text[:-1]}, out={place})" if place and is_ufunc(e) else f"{name} = {text}"
        ]


def listed(names: Iterable[Any]) -> str:
    """Write a tuple of names."""
    return f"({''.join(f'{name}, ' for name in names)})"


def fresh(e: Expression) -> bool:
    """Return whether this array is certain to have its own memory."""
    if e.kind == "item":
        return any(x.ndim for x in inside(e.args[1]))  # indexing with an array copies
    kinds = ("operator", "update", "check")
    return e.kind in kinds or is_ufunc(e) or e.name in FRESH.get(e.kind, "").split()


def is_ufunc(e: Expression) -> bool:
    """Return whether this is a call of a NumPy ufunc with one output."""
    return e.kind == "call" and getattr(getattr(np, e.name, None), "nout", 0) == 1
