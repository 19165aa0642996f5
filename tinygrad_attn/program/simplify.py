"""The same values in fewer and plainer steps, equal up to rounding.

What the backward rules compute is right but wordy: sums of negatives, transposes of transposes,
numbers multiplied one after the other.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import numpy as np

from .ir import BACKWARD, Expression, fraction, inside, is_, number_in, reached, rewrite
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
(-x).sum(**s) -> -x.sum(**s)
(-x).mean(**s) -> -x.mean(**s)
(u / r * y).sum(**s) -> (u * y).sum(**s) / r      if rows(u / r, u / r * y) and fits(r, here, s)
(y * (u / r)).sum(**s) -> (u * y).sum(**s) / r    if rows(u / r, y * (u / r)) and fits(r, here, s)
(u / r * y).mean(**s) -> (u * y).mean(**s) / r    if rows(u / r, u / r * y) and fits(r, here, s)
(y * (u / r)).mean(**s) -> (u * y).mean(**s) / r  if rows(u / r, y * (u / r)) and fits(r, here, s)
np.count_nonzero(b) == n -> b.all()               if boolean(b) and size(b, n)
np.where(c, n, -x) -> -np.where(c, n, x)          if zero(n)
np.where(c, -x, n) -> -np.where(c, x, n)          if zero(n)
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


def number(a: Any) -> bool:
    """A single number."""
    return number_in(a) is not None


def zero(n: Any) -> bool:
    """The number 0."""
    return bool(number_in(n) == 0)


def exact(m: Any, n: Any) -> bool:
    """Numbers that a reader would write as quotients of whole numbers."""
    return fraction(m) is not None and fraction(n) is not None


def foldable(m: Any, n: Any, e: Any) -> bool:
    """Numbers whose product is as exact as e."""
    return e.dtype == np.float64 or exact(m, n)


def boolean(x: Any) -> bool:
    """An array of booleans, whose sums are no numbers."""
    return isinstance(x, Expression) and x.dtype == bool


def size(x: Any, n: Any) -> bool:
    """The number of elements of x."""
    return bool(number_in(n) == x.value.size)


def nothing(a: Any) -> bool:
    """Booleans of which none is true."""
    return is_(a, "constant") and a.dtype == bool and not a.value.any()


def like(x: Any, e: Any) -> bool:
    """An expression of the shape and dtype of e."""
    return isinstance(x, Expression) and x.shape == e.shape and x.dtype == e.dtype


def backward(e: Any) -> bool:
    """A value of the backward pass."""
    return bool(e.phase == BACKWARD)


def forward(e: Any, like: Any) -> bool:
    """A value that the forward pass has computed, of the dtype of another."""
    return e is not None and e.phase != BACKWARD and e.dtype == like.dtype


def turns(product: Any, e: Any) -> bool:
    """A product of matrices, not broadcast, which the pass of e has to compute anyway."""
    x, y = product.args
    return bool(product.phase == e.phase and x.ndim == y.ndim == e.ndim)


def keeps(settings: dict[str, Any]) -> bool:
    """A reduction that keeps its axes."""
    return bool(settings.get("keepdims"))


def counts(total: Any, n: Any) -> bool:
    """A sum of n numbers, in their own dtype."""
    x, size = total.args[0], total.value.size
    return size > 0 and fraction(n) == x.value.size / size and x.dtype == total.dtype


def rows(quotient: Any, e: Any) -> bool:
    """A gradient u / r as large and exact as e, where r is one number for each row of e."""
    u, r = quotient.args
    whole = isinstance(u, Expression) and u.dtype == e.dtype and u.value.size == e.value.size
    by_row = isinstance(r, Expression) and r.ndim == e.ndim and r.value.size < e.value.size
    return backward(quotient) and whole and by_row


def fits(r: Any, total: Any, settings: dict[str, Any]) -> bool:
    """One number r for each of these sums, which have no settings but their axes."""
    return r.shape == total.shape and settings.keys() <= {"axis", "keepdims"}


CONDITIONS = (
    *(number, zero, exact, foldable, boolean, size, nothing, like, backward, forward),
    *(turns, keeps, counts, rows, fits),
)


# ---- what rules cannot say


class Simplifier(Rewriting):
    """A listing that makes the simplest expression for each value.

    The methods `kind_name` handle what a rule cannot say: constants, axes and shapes.
    """

    rules = table(RULES, *CONDITIONS)

    def make(
        self, kind: str, name: Any, args: Any, settings: dict[str, Any], value: Any
    ) -> Expression:
        """The simplest expression for this."""
        args = tuple(args)
        found = self.folded(kind, args, settings, value)
        if found is None and kind == "operator" and len(args) == 2 and name in "+-*/":
            found = self.unrepeated(name, args, value)
        if found is None:
            rule = getattr(self, "operator_plus" if name == "+" else f"{kind}_{name}", None)
            found = rule(args, settings, value) if rule is not None else None
        return super().make(kind, name, args, settings, value) if found is None else found

    # ---- constants

    def folded(self, kind: str, args: Any, settings: Any, value: Any) -> Any:
        """The result of constants alone, where it is one number again and again."""
        operands = list(inside((args, settings)))
        known = all(x.kind in ("constant", "number") for x in operands)
        if not known or isinstance(value, (tuple, list)) or kind in ("update", "check"):
            return None
        if np.ndim(value) == 0 and value.dtype.kind in "fiu":
            return None if fraction(value) is None else self.number_of(value, value.dtype)
        return self.constant(np.asarray(value)) if repeats(value) else None

    def unrepeated(self, sign: str, args: Any, value: Any) -> Any:
        """The operator without the repetition that broadcasting does by itself."""
        a, b = args
        for i, (x, other) in enumerate(((a, b), (b, a))):
            small: Any = None
            if is_(x, "call", "broadcast_to"):
                if np.broadcast_shapes(x.args[0].shape, np.shape(other)) == value.shape:
                    small = x.args[0]
            elif uniform(x) and np.shape(other) == value.shape and x.dtype == value.dtype:
                n = x.value.flat[0]
                small = None if fraction(n) is None else self.number_of(n, x.dtype)
            if small is not None:
                pair = (small, b) if i == 0 else (a, small)
                return self.make("operator", sign, pair, {}, value)
        return None

    def call_where(self, args: Any, settings: Any, value: Any) -> Any:
        """np.where(condition, a, b)"""
        if len(args) != 3:
            return None
        condition, *pair = args
        if uniform(condition):
            chosen = pair[0] if condition.value.flat[0] else pair[1]
            if like(chosen, value):
                return chosen
        for i, (x, other) in enumerate((pair, pair[::-1])):
            if is_(x, "call", "broadcast_to"):
                shapes = [np.shape(v) for v in (condition, x.args[0], other)]
                if np.broadcast_shapes(*shapes) == value.shape:
                    pair[i] = x.args[0]
                    return self.make("call", "where", (condition, *pair), {}, value)
        return None

    def operator_plus(self, args: Any, settings: Any, value: Any) -> Any:
        """Gradients of x[0], x[1], ... or of x[:8], x[8:], ..., put into zeros and added up: one
        np.stack or np.concatenate.
        """
        places = [put_in_zeros(t) for t in terms_of(args)]
        if None in places or not value.ndim:
            return None
        rows = [(range(len(value))[i], x) for i, x in places]  # type: ignore[misc]
        whole = all(isinstance(i, int) for i, _ in rows)
        rows.sort(key=lambda row: row[0] if whole else row[0].start)
        parts = [x for _, x in rows]
        if not all(isinstance(x, Expression) and x.dtype == value.dtype for x in parts):
            return None
        if whole and [i for i, _ in rows] == list(range(len(value))):
            if all(x.shape == value.shape[1:] for x in parts):
                return self.make("call", "stack", (parts,), {"axis": 0}, value)
        elif not any(isinstance(i, int) for i, _ in rows):
            covered = [k for i, _ in rows for k in i]
            fits = all(x.shape == (len(i), *value.shape[1:]) for i, x in rows)
            if fits and covered == list(range(len(value))):
                return self.make("call", "concatenate", (parts,), {}, value)
        return None

    # ---- shapes

    def method_swapaxes(self, args: Any, settings: Any, value: Any) -> Any:
        """x.swapaxes(a, b)"""
        x, *axes = args
        n = value.ndim
        pair = sorted(a % n for a in axes)
        if pair[0] == pair[1]:
            return x
        if pair == [n - 2, n - 1]:
            return self.make("attribute", "T", (x,), {}, value)
        if is_(x, "method", "swapaxes") and sorted(a % n for a in x.args[1:]) == pair:
            return x.args[0]
        return self.make("method", "swapaxes", (x, *pair), {}, value) if pair != axes else None

    def method_transpose(self, args: Any, settings: Any, value: Any) -> Any:
        """x.transpose(axes)"""
        x, *axes = args
        moved = [i for i, a in enumerate(axes) if a != i]
        if not moved:
            return x
        if is_(x, "call", "stack") and x.settings.get("axis", 0) == 0 and axes[0] != 0:
            rest = [a - 1 for a in axes if a != 0]
            parts = [self.method("transpose", part, *rest) for part in x.args[0]]
            return self.make("call", "stack", (parts,), {"axis": axes.index(0)}, value)
        if len(moved) == 2:
            return self.make("method", "swapaxes", (x, *moved), {}, value)
        if is_(x, "method", "transpose"):
            both = [x.args[1:][a] for a in axes]
            return self.make("method", "transpose", (x.args[0], *both), {}, value)
        return None

    def method_reshape(self, args: Any, settings: Any, value: Any) -> Any:
        """x.reshape(shape)"""
        x = args[0]
        if np.shape(x) == value.shape:
            return x
        if is_(x, "method", "reshape") and x.hint is None:
            return self.make("method", "reshape", (x.args[0], *args[1:]), {}, value)
        if is_(x, "method", "sum"):
            rest = {k: v for k, v in x.settings.items() if k != "keepdims"}
            if x.args[0].value.sum(axis=rest.get("axis")).shape == value.shape:
                return self.make("method", "sum", x.args, rest, value)
        return None

    def method_copy(self, args: Any, settings: Any, value: Any) -> Any:
        """x.copy(): nothing is changed in place but what is made for it."""
        return args[0]

    def call_broadcast_to(self, args: Any, settings: Any, value: Any) -> Any:
        """np.broadcast_to(x, shape)"""
        x, *rest = args
        if np.shape(x) == value.shape:
            return x
        if negated(x):
            return self.minus(self.make("call", "broadcast_to", (x.args[0], *rest), {}, -value))
        if is_(x, "call", "broadcast_to"):
            return self.make("call", "broadcast_to", (x.args[0], *rest), {}, value)
        return None

    # ---- reductions

    def reduced(self, name: str, args: Any, settings: Any, value: Any) -> Any:
        """A reduction, with its axes as a reader would write them."""
        x = args[0]
        plain = plain_settings(x, settings)
        if plain != settings:
            return self.make("method", name, args, plain, value)
        if not settings and is_(x, "method", "reshape") and x.hint is None:
            return self.make("method", name, x.args[:1], {}, value)
        return None

    method_sum, method_mean = partialmethod(reduced, "sum"), partialmethod(reduced, "mean")
    method_max, method_min = partialmethod(reduced, "max"), partialmethod(reduced, "min")

    def method_astype(self, args: Any, settings: Any, value: Any) -> Any:
        """x.astype(dtype)"""
        x, dtype = args
        if x.dtype != np.float64 or dtype != np.float32:
            return None
        if negated(x):
            return self.minus(self.make("method", "astype", (x.args[0], dtype), {}, -value))
        if is_(x, "method", "sum") and x.args[0].dtype == np.float32:
            if x.args[0].value.size <= SUMMED_IN_SINGLE * x.value.size:
                rest = {k: v for k, v in x.settings.items() if k != "dtype"}
                return self.make("method", "sum", x.args, rest, value)
        return None


def plain_settings(x: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a reduction: -1 for the last axis, nothing for all, no dtype of x's own."""
    found = dict(settings)
    axis = found.pop("axis", None)
    if isinstance(axis, tuple) and len(axis) == 1:
        axis = axis[0]
    if isinstance(axis, tuple) and len(set(axis)) == x.ndim and not settings.get("keepdims"):
        axis = None
    if x.ndim > 1 and axis == x.ndim - 1:
        axis = -1
    if "dtype" in found and np.dtype(found["dtype"]) == x.dtype:
        found.pop("dtype")
    return found if axis is None else {"axis": axis, **found}


def negated(a: Any) -> bool:
    """Whether this is -x."""
    return is_(a, "operator", "-") and len(a.args) == 1


def uniform(a: Any) -> bool:
    """Whether this is a constant whose elements are all the same."""
    return is_(a, "constant") and repeats(a.value)


def repeats(array: Any) -> bool:
    """Whether it is one number again and again."""
    return np.size(array) > 0 and bool((array == array.flat[0]).all())


def terms_of(e: Any) -> list[Any]:
    """The terms of a sum, also given as its operands."""
    if isinstance(e, tuple):
        return [term for x in e for term in terms_of(x)]
    return terms_of(e.args) if is_(e, "operator", "+") else [e]


def put_in_zeros(e: Any) -> tuple[Any, Any] | None:
    """(i, x) for an expression that is x at index i of the first axis, and zero elsewhere."""
    if not is_(e, "update", "add.at"):
        return None
    base, index, x = e.args
    simple = isinstance(index, (int, np.integer, slice))
    return (index, x) if simple and is_(base, "constant") and not base.value.any() else None
