"""The same values in fewer and plainer steps, equal up to rounding.

What the backward rules compute is right but wordy: sums of negatives, transposes of transposes,
numbers multiplied one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .ir import BACKWARD, Expression, fraction, is_, number_in, reached, rewrite
from .rules import Rewriting, table

PASSES = 3
SUMMED_IN_SINGLE = 1024
"""How many float32 numbers may be added in float32 where the op adds in float64: of more, added one
after the other, up to four digits would be lost.
"""
RULES = """
x + y -> x                                        if nothing(y) and like(x, here)
x + -y -> x - y
-x + y -> y - x                                   if not number(y)
x + x -> 2 * x                                    if not boolean(x)
x + y + y -> x + 2 * y                            if not number(y)
z + (x - y) + (y - x).mean(**s) -> z + (x - y - (x - y).mean(**s))   if backward(here)
x - y + (y - x).mean(**s) -> x - y - (x - y).mean(**s)
--x -> x
-(x - y) -> y - x
x - -y -> x + y
-x - y -> -(x + y)                                if not number(y)
x - y - y -> x - 2 * y                            if not number(y)
z + x - x.mean(**s) -> z + (x - x.mean(**s))      if backward(here) and keeps(s)
x - x.mean(**s) - (x - x.mean(**s)).mean(**s) -> x - x.mean(**s)     if backward(here) and keeps(s)
u / r - v / r -> (u - v) / r                      if rows(u / r, here)
u / r - v / r * w -> (u - v * w) / r              if rows(u / r, here)
u / r - w * (v / r) -> (u - v * w) / r            if rows(u / r, here)
-x * y -> -(x * y)
x * -y -> -(x * y)
x * n -> n * x                                    if not number(x)
1 * x -> x                                        if like(x, here)
-1 * x -> -x                                      if like(x, here)
m * (n * x) -> (m * n) * x                        if foldable(m, n, here)
m * (x / n) -> (m / n) * x                        if exact(m, n)
n * (x / (n * y)) -> x / y
n * (x / (n * y) * z) -> x / y * z
n * (z * (x / (n * y))) -> z * (x / y)
n * (x / (n * y) / z) -> x / y / z
u / r * y -> u * (y / r)                          if backward(u / r) and forward(y / r, here)
y * (u / r) -> u * (y / r)                        if backward(u / r) and forward(y / r, here)
-x / y -> -(x / y)
x / 1 -> x                                        if like(x, here)
x.sum(**s) / n -> x.mean(**s)                     if counts(x.sum(**s), n)
x.sum(**s) / y / n -> x.mean(**s) / y             if counts(x.sum(**s), n)
x.sum(**s) / y / z / n -> x.mean(**s) / y / z     if counts(x.sum(**s), n)
-x @ y -> -(x @ y)
x @ -y -> -(x @ y)
x.T.T -> x
(-x).T -> -x.T
(x.T @ y).T -> y.T @ x                            if turns(x.T @ y, here)
x.copy() -> x
(-x).astype(z) -> -x.astype(z)                    if narrows(x, z)
(-x).sum(**s) -> -x.sum(**s)
(-x).mean(**s) -> -x.mean(**s)
(u / r * y).sum(**s) -> (u * y).sum(**s) / r      if rows(u / r, u / r * y) and fits(r, here, s)
(y * (u / r)).sum(**s) -> (u * y).sum(**s) / r    if rows(u / r, y * (u / r)) and fits(r, here, s)
(u / r * y).mean(**s) -> (u * y).mean(**s) / r    if rows(u / r, u / r * y) and fits(r, here, s)
(y * (u / r)).mean(**s) -> (u * y).mean(**s) / r  if rows(u / r, y * (u / r)) and fits(r, here, s)
np.count_nonzero(b) == n -> b.all()               if boolean(b) and size(b, n)
np.broadcast_to(x, z) -> x                        if like(x, here)
np.broadcast_to(-x, z) -> -np.broadcast_to(x, z)
np.broadcast_to(np.broadcast_to(x, y), z) -> np.broadcast_to(x, z)
np.where(c, x, y) -> x                            if all(c) and like(x, here)
np.where(c, x, y) -> y                            if nothing(c) and like(y, here)
np.where(c, n, -x) -> -np.where(c, n, x)          if zero(n)
np.where(c, -x, n) -> -np.where(c, x, n)          if zero(n)
np.where(c, np.broadcast_to(x, z), y) -> np.where(c, x, y)           if span(here, c, x, y)
np.where(c, x, np.broadcast_to(y, z)) -> np.where(c, x, y)           if span(here, c, x, y)
"""


def simplified(outputs: Any) -> Any:
    """The outputs, nested as they were, from simpler expressions."""
    for _ in range(PASSES):
        count = len(reached(outputs))
        listing = Simplifier()
        outputs = rewrite(outputs, listing)
        if len(listing.expressions) == count:
            break  # nothing was rewritten
    return outputs


# ---- conditions of rules


def exact(m: Any, n: Any) -> bool:
    """Numbers that a reader would write as quotients of whole numbers."""
    return fraction(m) is not None and fraction(n) is not None


def like(x: Any, e: Any) -> bool:
    """An expression of the shape and dtype of e."""
    return isinstance(x, Expression) and x.shape == e.shape and x.dtype == e.dtype


def counts(total: Any, n: Any) -> bool:
    """A sum of n numbers, in their own dtype."""
    x, size = total.args[0], total.value.size
    return size > 0 and fraction(n) == x.value.size / size and x.dtype == total.dtype


def rows(quotient: Any, e: Any) -> bool:
    """A gradient u / r as large and exact as e, where r is one number for each row of e."""
    u, r = quotient.args
    whole = isinstance(u, Expression) and u.dtype == e.dtype and u.value.size == e.value.size
    by_row = isinstance(r, Expression) and r.ndim == e.ndim and r.value.size < e.value.size
    return quotient.phase == BACKWARD and whole and by_row


def turns(product: Any, e: Any) -> bool:
    """A product of matrices, not broadcast, which the pass of e has to compute anyway."""
    x, y = product.args
    return bool(product.phase == e.phase and x.ndim == y.ndim == e.ndim)


def span(e: Any, *args: Any) -> bool:
    """Operands that are broadcast to the shape of e."""
    return np.broadcast_shapes(*map(np.shape, args)) == e.shape


CONDITIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (exact, like, counts, rows, turns, span)
} | {
    "number": lambda x: number_in(x) is not None,
    "zero": lambda n: number_in(n) == 0,
    "foldable": lambda m, n, e: e.dtype == np.float64 or exact(m, n),
    "boolean": lambda x: isinstance(x, Expression) and x.dtype == bool,
    "size": lambda x, n: number_in(n) == x.value.size,
    "nothing": lambda c: is_(c, "constant") and c.dtype == bool and not c.value.any(),
    "all": lambda c: is_(c, "constant") and c.value.all(),
    "backward": lambda e: e.phase == BACKWARD,
    "forward": lambda e, here: e is not None and e.phase != BACKWARD and e.dtype == here.dtype,
    "keeps": lambda settings: settings.get("keepdims"),
    "fits": lambda r, e, settings: r.shape == e.shape and settings.keys() <= {"axis", "keepdims"},
    "narrows": lambda x, dtype: x.dtype == np.float64 and dtype == np.float32,
}


# ---- what rules cannot say


class Simplifier(Rewriting):
    """A listing that makes the simplest expression for each value."""

    rules = table(RULES, **CONDITIONS)

    def shorter(self, e: Expression) -> Expression | None:
        """The result of constants, and what depends on axes and shapes."""
        if all(x.kind in ("constant", "number") for x in e.operands):
            found = self.folded(e)
            if found is not None:
                return found
        if e.kind == "operator" and len(e.args) == 2 and e.name in "+-*/":
            found = self.unrepeated(e)
            return self.collected(e) if found is None and e.name == "+" else found
        if e.kind == "method":
            rule = self.reduced if e.name in REDUCTIONS else getattr(self, e.name, None)
            return rule(e) if e.name in METHODS and rule is not None else None
        return None

    def again(self, e: Expression, *args: Any, **settings: Any) -> Expression:
        """The method e of other arguments, which has the same value."""
        return self.make(e.kind, e.name, args, settings, e.value)

    def folded(self, e: Expression) -> Expression | None:
        """A constant, where it is one number again and again."""
        if isinstance(e.value, (tuple, list)) or e.kind in ("update", "check"):
            return None
        if e.ndim == 0 and e.dtype.kind in "fiu":
            return None if fraction(e.value) is None else self.number_of(e.value, e.dtype)
        return self.constant(np.asarray(e.value)) if repeats(e.value) else None

    def unrepeated(self, e: Expression) -> Expression | None:
        """The operator without the repetition that broadcasting does by itself."""
        for i in (0, 1):
            x, other = e.args[i], e.args[1 - i]
            small: Any = None
            if is_(x, "call", "broadcast_to") and span(e, x.args[0], other):
                small = x.args[0]
            elif uniform(x) and np.shape(other) == e.shape and x.dtype == e.dtype:
                n = x.value.flat[0]
                small = None if fraction(n) is None else self.number_of(n, x.dtype)
            if small is not None:
                return self.again(e, *((small, other) if i == 0 else (other, small)))
        return None

    def collected(self, e: Expression) -> Expression | None:
        """Gradients of x[0], x[1], ... or of x[:8], x[8:], ..., put into zeros and added up: one
        np.stack or np.concatenate.
        """
        places = [put_in_zeros(t) for t in terms_of(e)]
        if None in places or not e.ndim:
            return None
        found = [(range(len(e.value))[i], x) for i, x in places]  # type: ignore[misc]
        single = all(isinstance(i, int) for i, _ in found)
        if not single and any(isinstance(i, int) for i, _ in found):
            return None
        found.sort(key=lambda place: place[0] if single else place[0].start)
        covered = [k for i, _ in found for k in ([i] if single else i)]
        parts = [x for _, x in found]
        for i, x in found:
            shape = e.shape[1:] if single else (len(i), *e.shape[1:])
            if not isinstance(x, Expression) or (x.shape, x.dtype) != (shape, e.dtype):
                return None
        if covered != list(range(len(e.value))):
            return None
        if single:
            return self.make("call", "stack", (parts,), {"axis": 0}, e.value)
        return self.make("call", "concatenate", (parts,), {}, e.value)

    def swapaxes(self, e: Expression) -> Expression | None:
        """x.swapaxes(a, b), positive and in order; x.T for the last two."""
        x, *axes = e.args
        n = e.ndim
        pair = sorted(a % n for a in axes)
        if pair[0] == pair[1]:
            return x
        if pair == [n - 2, n - 1]:
            return self.make("attribute", "T", (x,), {}, e.value)
        if is_(x, "method", "swapaxes") and sorted(a % n for a in x.args[1:]) == pair:
            return x.args[0]
        return self.again(e, x, *pair) if pair != axes else None

    def transpose(self, e: Expression) -> Expression | None:
        """x.transpose(axes), also of a stack or of another transpose."""
        x, *axes = e.args
        moved = [i for i, a in enumerate(axes) if a != i]
        if not moved:
            return x
        if is_(x, "call", "stack") and x.settings.get("axis", 0) == 0 and axes[0] != 0:
            rest = [a - 1 for a in axes if a != 0]
            parts = [self.of("method", "transpose", part, *rest) for part in x.args[0]]
            return self.make("call", "stack", (parts,), {"axis": axes.index(0)}, e.value)
        if len(moved) == 2:
            return self.make("method", "swapaxes", (x, *moved), {}, e.value)
        if is_(x, "method", "transpose"):
            return self.again(e, x.args[0], *(x.args[1:][a] for a in axes))
        return None

    def reshape(self, e: Expression) -> Expression | None:
        """x.reshape(shape), also of another one, or of a sum that keeps its axes."""
        x, *shape = e.args
        if x.shape == e.shape:
            return x
        if is_(x, "method", "reshape") and x.hint is None:
            return self.again(e, x.args[0], *shape)
        if is_(x, "method", "sum"):
            rest = {k: v for k, v in x.settings.items() if k != "keepdims"}
            if x.args[0].value.sum(axis=rest.get("axis")).shape == e.shape:
                return self.make("method", "sum", x.args, rest, e.value)
        return None

    def reduced(self, e: Expression) -> Expression | None:
        """A reduction with its axes as a reader writes them: -1 for the last, nothing for all, and
        without a dtype that changes nothing.
        """
        x, settings = e.args[0], dict(e.settings)
        axis = settings.pop("axis", None)
        if isinstance(axis, tuple) and len(axis) == 1:
            axis = axis[0]
        if isinstance(axis, tuple) and len(set(axis)) == x.ndim and not settings.get("keepdims"):
            axis = None
        if x.ndim > 1 and axis == x.ndim - 1:
            axis = -1
        if "dtype" in settings and np.dtype(settings["dtype"]) == x.dtype:
            settings.pop("dtype")
        settings = settings if axis is None else {"axis": axis, **settings}
        if settings != e.settings:
            return self.again(e, *e.args, **settings)
        whole = not settings and is_(x, "method", "reshape") and x.hint is None
        return self.again(e, x.args[0]) if whole else None

    def astype(self, e: Expression) -> Expression | None:
        """A sum of few float32 numbers in float64, rounded: a sum in float32."""
        x, dtype = e.args
        if is_(x, "method", "sum") and x.dtype == np.float64 and dtype == x.args[0].dtype:
            if dtype == np.float32 and x.args[0].value.size <= SUMMED_IN_SINGLE * x.value.size:
                rest = {k: v for k, v in x.settings.items() if k != "dtype"}
                return self.make("method", "sum", x.args, rest, e.value)
        return None


REDUCTIONS = ("sum", "mean", "max", "min")
METHODS = (*REDUCTIONS, "swapaxes", "transpose", "reshape", "astype")


def uniform(a: Any) -> bool:
    """Whether this is a constant whose elements are all the same."""
    return is_(a, "constant") and repeats(a.value)


def repeats(array: Any) -> bool:
    """Whether it is one number again and again."""
    return np.size(array) > 0 and bool((array == array.flat[0]).all())


def terms_of(e: Any) -> list[Any]:
    """The terms of a sum."""
    return [t for x in e.args for t in terms_of(x)] if is_(e, "operator", "+") else [e]


def put_in_zeros(e: Any) -> tuple[Any, Any] | None:
    """(i, x) for an expression that is x at index i of the first axis, and zero elsewhere."""
    if not is_(e, "update", "add.at"):
        return None
    base, index, x = e.args
    simple = isinstance(index, (int, np.integer, slice))
    return (index, x) if simple and is_(base, "constant") and not base.value.any() else None
