"""Compile expressions to fast, flat NumPy functions for the forward and the backward pass.

`Lowering` rewrites expressions in the form that NumPy computes fastest; results agree up to
rounding. In `Flat`, each expression becomes one line. If possible, the line writes its result into
the memory of an operand that no later line needs. The caller owns the memory of returned arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import ops
from .ir import LEAVES, Expression, inside, is_, number_in, reached
from .simplify import SUMMED_IN_SINGLE, Rewriting, like
from .text import Sizes, Text

FRESH = {
    "method": "sum mean max min prod any all astype copy cumsum argmax dot",
    "call": "where stack concatenate erf",
}
"""Methods and functions, besides ufuncs, that never return a view."""
VIEWS = ("T", "swapaxes", "transpose", "reshape", "view")
"""Methods that return a view that is safe to write to, because no element occurs in it twice."""


class Lowering(Rewriting):
    """A listing that replaces expressions with faster ones."""

    def reshaped(self, x: Expression, *shape: int) -> Expression:
        return self.of("method", "reshape", x, *shape)

    def method_reshape(self, e: Expression) -> Expression | None:
        """Remove a reshape that has no effect, and merge two consecutive reshapes."""
        x = e.args[0]
        if x.shape == e.shape:
            return x
        if is_(x, "method", "reshape"):
            return self.make("method", "reshape", e.value, x.args[0], *e.shape)
        return None

    def call_matmul(self, e: Expression) -> Expression | None:
        """Turn a @ b with a single matrix b into one product of two matrices."""
        a, b = e.args
        if b.ndim != 2 or a.ndim < 2 or e.value.size == 0 or a.dtype != b.dtype:
            return None
        rows = self.reshaped(a, math.prod(a.shape[:-1]), a.shape[-1])
        return self.reshaped(self.of("method", "dot", rows, b), *e.shape)

    def method_sum(self, e: Expression) -> Expression | None:
        """Turn a sum or mean over the last axis, or over all axes but the last, into a product."""
        x, total, axes = e.args[0], e.value.size, e.settings.get("axis")
        if axes is None or e.settings.keys() - {"axis", "keepdims"} or x.ndim < 2 or not total:
            return None
        n = x.value.size // total
        if not n or x.dtype != np.float64 and (x.dtype != np.float32 or n > SUMMED_IN_SINGLE):
            return None
        weights = self.constant(np.full(n, 1 / n if e.name == "mean" else 1, x.dtype))
        axes = sorted(np.atleast_1d(axes) % x.ndim)
        if axes == [x.ndim - 1]:
            found = self.of("method", "dot", self.reshaped(x, total, n), weights)
        elif axes == [*range(x.ndim - 1)]:
            found = self.of("method", "dot", weights, self.reshaped(x, n, total))
        else:
            return None
        return self.reshaped(found, *e.shape)

    method_mean = method_sum

    def method_max(self, e: Expression) -> Expression | None:
        """Turn x.max(-1) into argmax and indexing, which is faster."""
        x, usual = e.args[0], ({"axis": -1}, {"axis": -1, "keepdims": True})
        if e.settings not in usual or not e.ndim or not e.value.size:
            return None
        rows = self.reshaped(x, e.value.size, x.shape[-1])
        index = np.arange(e.value.size), self.of("method", "argmax", rows, axis=-1)
        return self.reshaped(self.make("item", None, e.value.ravel(), rows, index), *e.shape)

    def call_where(self, e: Expression) -> Expression | None:
        """Turn np.where(condition, x, 0) into bits of x times condition, which is faster."""
        condition, x, *zero = e.args
        if [str(number_in(n)) for n in zero] not in (["0"], ["0.0"]) or not like(x, e):
            return None
        if x.dtype.kind != "f" or not isinstance(condition, Expression) or condition.dtype != bool:
            return None
        bits = self.of("method", "view", x, np.dtype(f"i{x.dtype.itemsize}"))
        kept = self.make("call", "multiply", bits.value, bits, condition)
        return self.of("method", "view", kept, x.dtype)


class Changed(Exception):
    """Raised if the package would take a different branch for these values than during tracing."""


class Flat:
    """The compiled functions of one program, and their source text.

    `forward(inputs)` returns (outputs, saved). `backward[i](inputs, saved, g)` takes the gradient g
    with respect to output i, and returns a gradient or None for each input.
    """

    def __init__(self, inputs: list[str], outputs: Any, gradients: list[Any], checks: Any) -> None:
        self.space: dict[str, Any] = {"np": np, "erf": ops.erf, "Changed": Changed}
        self.text, self.spelling = "", Text(self.name, Sizes({}), {})
        steps_to = lambda ends: [e for e in reached(ends) if e.kind not in LEAVES]
        order = steps_to([outputs, checks])
        known = {*order}
        late = [[e for e in steps_to(each) if e not in known] for each in gradients]
        used = {*inside(gradients), *(x for steps in late for e in steps for x in e.operands)}
        saved = [e for e in order if e in used]
        given = [f"{listed(inputs)} = inputs"]
        self.forward = self.function("forward(inputs)", given, order, outputs, saved)
        given.append(f"{listed(map(self.name, saved))} = saved")
        self.backward = []
        for i, (each, steps) in enumerate(zip(gradients, late)):
            title, ends = f"backward(inputs, saved, d_output{i})", [*map(each.get, inputs)]
            self.backward.append(self.function(title, given, steps, ends, []))

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
        """Return the lines of code that compute e."""
        of, name = self.spelling.of, str(self.name(e))
        if e.kind == "check":
            return [f"if {of(e.args[0])} != {of(e.args[1])}: raise Changed"]
        if e.kind == "update":
            return self.spelling.update(e, name, self.free(e.args[0], e))
        text = self.spelling.spelled(e)[0]
        unused = [x for x in e.operands if e.ndim and like(x, e) and self.free(x, e)]
        if unused and is_ufunc(e):
            text = f"{text[:-1]}, out={of(unused[0])})"
        return [f"{name} = {text}"]


def listed(names: Iterable[Any]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


def fresh(e: Expression) -> bool:
    """Return whether this array is certain to have its own memory."""
    if e.kind == "item":
        return any(x.ndim for x in inside(e.args[1]))  # indexing with an array copies
    return e.kind in ("update", "check") or is_ufunc(e) or e.name in FRESH.get(e.kind, "").split()


def is_ufunc(e: Expression) -> bool:
    """Return whether this is a call of a NumPy ufunc with one output."""
    return e.kind == "call" and getattr(getattr(np, e.name, None), "nout", 0) == 1
