"""The same values in fewer and plainer steps, equal up to rounding.

What the rules give is right but wordy: sums of negatives, transposes of transposes, numbers that
are multiplied one after the other. Each rule of this file takes one expression whose operands are
simple already, and returns one that says the same.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from fractions import Fraction
from functools import partialmethod
from typing import Any

import numpy as np

from .expressions import BACKWARD, Expression, Listing, inside, key_of, reached, replaced

ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}
SUMMED_IN_SINGLE = 1024
"""So many numbers of float32 may be added in float32, although the rule adds in float64; of
more than these, added one after the other, up to four digits would be lost.
"""


def simplified(outputs: Any, asked: Any, facts: Mapping[int, bool]) -> tuple[Any, Any]:
    """The outputs, nested as they were, and what guards ask, from simpler expressions.

    `facts` says of which boolean arrays, by the id of their expression, all elements are known,
    since a guard has asked; the guard itself still asks. Few numbers that a rule of float32 adds up
    in float64 are added in float32.
    """
    for known in (facts, {}, {}):
        simplifier = Simplifier(known)
        count = len(reached(inside_of([outputs, asked])))
        outputs, asked = simplifier.run(outputs, asked)
        if len(simplifier.listing.expressions) == count:
            break  # nothing was rewritten
    return outputs, asked


def number_in(a: Any) -> Any:
    """The number that this is, or None."""
    if isinstance(a, Expression):
        return a.value if a.kind == "number" else None
    if isinstance(a, (int, float)) and not isinstance(a, bool):
        return a
    if isinstance(a, np.generic) and a.dtype.kind in "fiu":
        return a
    return None


def fraction(a: Any) -> Fraction | None:
    """The number as a quotient of whole numbers that a reader would write; else None."""
    number = number_in(a)
    if number is None or not math.isfinite(number):
        return None
    value = float(number)
    found = Fraction(value).limit_denominator(1 << 24)
    close = abs(float(found) - value) <= 1e-15 * abs(value)
    if getattr(number, "dtype", None) == np.float32:
        close = np.float32(float(found)) == number
    return found if close and (abs(found.numerator) <= 2 or found.denominator <= 64) else None


def is_(a: Any, kind: str, name: Any = None) -> bool:
    """Is this an expression of that kind and name?"""
    return isinstance(a, Expression) and a.is_a(kind, name)


def negated(a: Any) -> bool:
    """Is this -x of something?"""
    return is_(a, "operator", "-") and len(a.args) == 1


def uniform(a: Any) -> bool:
    """A constant whose elements are all the same?"""
    return is_(a, "constant") and repeats(a.value)


def repeats(array: Any) -> bool:
    """One number again and again?"""
    return np.size(array) > 0 and bool((array == array.flat[0]).all())


def earlier(a: Any, b: Any) -> bool:
    """Does a, which ranks no higher than b, say that this is the gradient by something before what
    b says? A gradient that goes through unchanged is called after where it arrives.
    """
    by, other = a[1], b[1]
    return isinstance(other, Expression) and by.id < other.id


def last_two(e: Expression) -> bool:
    """A transpose of matrices: x.T, or x.swapaxes(-1, -2)?"""
    if e.is_a("attribute", "T") and e.ndim == 2:
        return True
    return e.is_a("method", "swapaxes") and sorted(a % e.ndim for a in e.args[1:]) == [
        e.ndim - 2,
        e.ndim - 1,
    ]


class Simplifier:
    """Writes a new list, expression by expression."""

    def __init__(self, facts: Mapping[int, bool]) -> None:
        self.listing, self.facts = Listing(), facts
        self.simple: dict[int, Expression] = {}

    def run(self, outputs: Any, asked: Any) -> tuple[Any, Any]:
        """All that the outputs and the guards need, simplified."""
        of_guards = {e.id: e for e in inside_of(asked)}
        computed: dict[int, Expression] = {}  # what the facts are about
        as_asked = ChainMap(computed, self.simple)
        for e in reached(inside_of([outputs, asked])):
            self.listing.phase, self.listing.scope = e.phase, e.scope
            if e.id in of_guards:
                of_guards[e.id] = self.rewritten(e, as_asked)
            new = self.rewritten(e, self.simple)
            if e.id in self.facts:
                computed[e.id] = new
                new = self.listing.constant(np.full(e.shape, self.facts[e.id]))
            self.simple[e.id] = new
        found = self.mapped(outputs)
        self.simple.update(of_guards)
        return found, self.mapped(asked)

    def rewritten(self, e: Expression, simple: Mapping[int, Expression]) -> Expression:
        """The expression of simple operands, simplified."""
        swap = lambda x: simple[x.id] if isinstance(x, Expression) else x
        settings = {k: replaced(v, swap) for k, v in e.settings.items()}
        new = self.make(e.kind, e.name, replaced(e.args, swap), settings, e.value)
        self.carry_hint(e, new)
        return new

    def mapped(self, outputs: Any) -> Any:
        """The simple expressions in place of the others."""
        if isinstance(outputs, dict):
            return {k: self.mapped(v) for k, v in outputs.items()}
        if isinstance(outputs, (tuple, list)):
            return type(outputs)(map(self.mapped, outputs))
        return self.simple[outputs.id] if isinstance(outputs, Expression) else outputs

    def carry_hint(self, old: Expression, new: Expression) -> None:
        """The new expression is called as the old one was."""
        hint = old.hint
        if hint is None or new.kind == "number":
            return
        if new.kind == "constant" and old.kind != "constant":
            return
        if isinstance(hint[1], Expression):
            hint = (0, self.simple.get(hint[1].id, hint[1]))
        if new.hint is None or new.hint[0] < hint[0] or earlier(hint, new.hint):
            new.hint = hint

    # ---- making expressions

    def make(self, kind: str, name: Any, args: Any, settings: dict[str, Any], value: Any) -> Any:
        """The simplest expression for this."""
        if kind == "input":
            return self.listing.make(kind, name, (), {}, value, ("input", name))
        if kind == "constant":
            return self.listing.constant(value)
        if kind == "number":
            return self.listing.number(name, value)
        folded = self.folded(args, settings, value)
        if folded is not None:
            return folded
        for i in ODD.get((kind, name), ()):
            if negated(args[i]):
                args = (*args[:i], args[i].args[0], *args[i + 1 :])
                return self.minus(self.make(kind, name, args, settings, -value))
        rule = getattr(self, f"{kind}_{RULES.get(name, name)}", None)
        found = rule(args, settings, value) if rule is not None else None
        if found is not None:
            return found
        return self.listing.make(kind, name, args, settings, value)

    def number(self, f: Fraction, dtype: np.dtype) -> Expression:
        """A number of this dtype, written as a whole number or a quotient of two."""
        if f.denominator == 1:
            text = f"{f.numerator}.0" if dtype.kind == "f" else str(f.numerator)
        elif 64 % f.denominator == 0:
            text = repr(float(f))
        else:
            text = f"{f.numerator} / {f.denominator}"
        return self.listing.number(text, dtype.type(float(f)))

    def op(self, sign: str, a: Any, b: Any, value: Any = None) -> Any:
        """a sign b"""
        if value is None:
            plain = [x.value if isinstance(x, Expression) else x for x in (a, b)]
            with np.errstate(all="ignore"):
                value = (np.matmul if sign == "@" else ARITHMETIC[sign])(*plain)
        return self.make("operator", sign, (a, b), {}, value)

    def minus(self, a: Any) -> Any:
        """-a"""
        return self.make("operator", "-", (a,), {}, -a.value)

    def method(self, name: str, x: Any, *args: Any, value: Any, **settings: Any) -> Any:
        """x.name(*args)"""
        return self.make("method", name, (x, *args), settings, value)

    # ---- constants

    def folded(self, args: Any, settings: Any, value: Any) -> Any:
        """What is computed from constants alone, where the result is one number again and again."""
        if isinstance(value, (tuple, list)):
            return None
        operands = inside((args, tuple(settings.values())))
        if not all(x.kind in ("constant", "number") for x in operands):
            return None
        if np.ndim(value) == 0 and value.dtype.kind in "fiu":
            f = fraction(value)
            return None if f is None else self.number(f, value.dtype)
        return self.listing.constant(np.asarray(value)) if repeats(value) else None

    def unrepeated(self, sign: str, a: Any, b: Any, value: Any) -> Any:
        """Without what broadcasting does by itself, for an operator that broadcasts."""
        for i, (x, other) in enumerate(((a, b), (b, a))):
            small: Any = None
            if is_(x, "call", "broadcast_to") and (
                np.broadcast_shapes(np.shape(x.args[0]), np.shape(other)) == value.shape
            ):
                small = x.args[0]
            elif uniform(x) and np.shape(other) == value.shape and x.dtype == value.dtype:
                f = fraction(x.value.flat[0])
                small = None if f is None else self.number(f, x.dtype)
            if small is not None:
                pair = (small, b) if i == 0 else (a, small)
                return self.make("operator", sign, pair, {}, value)
        return None

    # ---- arithmetic

    def operator_plus(self, args: Any, settings: Any, value: Any) -> Any:
        """a + b"""
        a, b = args
        found = self.unrepeated("+", a, b, value)
        if found is not None:
            return found
        if is_(b, "constant") and b.dtype == bool and not b.value.any():
            if isinstance(a, Expression) and a.shape == value.shape:
                return a
        if negated(b):
            return self.op("-", a, b.args[0], value)
        if negated(a) and number_in(b) is None:
            return self.op("-", b, a.args[0], value)
        if a is b:
            return self.twice(a, value)
        if is_(a, "operator", "+") and isinstance(b, Expression) and a.args[1] is b:
            return self.op("+", a.args[0], self.twice(b, None), value)
        if self.listing.phase == BACKWARD and is_(a, "operator", "+") and self.flips(a.args[1], b):
            return self.op("+", a.args[0], self.op("+", a.args[1], b), value)
        if self.flips(a, b):
            mean = self.method("mean", a, value=-b.value, **b.settings)
            return self.op("-", a, mean, value)
        terms = [*sum_of(a), *sum_of(b)]
        return self.stacked(terms, value) or self.joined(terms, value)

    def operator_minus(self, args: Any, settings: Any, value: Any) -> Any:
        """a - b, or -a"""
        if len(args) == 1:
            (a,) = args
            if negated(a):
                return a.args[0]
            if is_(a, "operator", "-"):
                return self.op("-", a.args[1], a.args[0], value)
            return None
        a, b = args
        found = self.unrepeated("-", a, b, value)
        if found is not None:
            return found
        if negated(b):
            return self.op("+", a, b.args[0], value)
        if negated(a) and number_in(b) is None:
            return self.minus(self.op("+", a.args[0], b))
        if is_(a, "operator", "-") and len(a.args) == 2 and a.args[1] is b:
            if isinstance(b, Expression):
                return self.op("-", a.args[0], self.twice(b, None), value)
        if self.listing.phase == BACKWARD and is_(a, "operator", "+"):
            if self.centres(a.args[1], b):
                return self.op("+", a.args[0], self.op("-", a.args[1], b), value)
        if self.listing.phase == BACKWARD and self.centres(a, b):
            if is_(a, "operator", "-") and self.centres(a.args[0], a.args[1], b):
                return a  # taking the mean away twice is taking it away once
        return self.over_one_divisor(a, b, value)

    def over_one_divisor(self, a: Any, b: Any, value: Any) -> Any:
        """(u - v) / r for u / r - v / r, and for u / r - v / r * n, in gradients by rows."""
        if not self.by_rows(a, value):
            return None
        u, r = a.args
        if is_(b, "operator", "/") and b.args[1] is r:
            return self.op("/", self.op("-", u, b.args[0]), r, value)
        if is_(b, "operator", "*"):
            for x, n in (b.args, b.args[::-1]):
                if is_(x, "operator", "/") and x.args[1] is r and of_dtype(x.args[0], value.dtype):
                    return self.op("/", self.op("-", u, self.op("*", x.args[0], n)), r, value)
        return None

    def by_rows(self, x: Any, like: Any) -> bool:
        """Is x a quotient u / r of the backward pass, where r is a number for each row that is
        never 0, and u as large and as exact as all?
        """
        if not is_(x, "operator", "/") or x.phase != BACKWARD:
            return False
        u, r = x.args
        if not (of_dtype(u, like.dtype) and u.value.size == like.size):
            return False
        return never_zero(r) and r.ndim == like.ndim and r.value.size < like.size

    def centres(self, x: Any, m: Any, like: Any = None) -> bool:
        """Is m the mean of x over some axes, which are those of `like`?"""
        if not is_(m, "method", "mean") or m.args[0] is not x or not m.settings.get("keepdims"):
            return False
        return like is None or m.settings == like.settings

    def operator_times(self, args: Any, settings: Any, value: Any) -> Any:
        """a * b"""
        a, b = args
        found = self.unrepeated("*", a, b, value)
        if found is not None:
            return found
        if number_in(b) is not None and number_in(a) is None:
            a, b = b, a  # numbers first
        if number_in(a) is not None and isinstance(b, Expression):
            found = self.scaled(a, b, value)
            if found is not None:
                return found
        for x, y in ((a, b), (b, a)):
            if is_(x, "operator", "/") and x.phase == BACKWARD:
                known = self.quotient_known(y, x.args[1], value.dtype)
                if known is not None:
                    return self.op("*", x.args[0], known, value)
        return self.listing.make("operator", "*", (a, b), {}, value)

    def scaled(self, a: Any, b: Expression, value: Any) -> Any:
        """A number times b."""
        n, f = number_in(a), fraction(a)
        if n == 1 and b.dtype == value.dtype:
            return b
        if n == -1 and b.dtype == value.dtype:
            return self.minus(b)
        inner = number_in(b.args[0]) if is_(b, "operator", "*") else None
        if inner is not None and value.dtype == np.float64 and None in (f, fraction(inner)):
            product = np.float64(float(n) * float(inner))
            return self.op("*", self.listing.number(repr(float(product)), product), b.args[1])
        both = fraction(b.args[0]) if is_(b, "operator", "*") else None
        if f is not None and both is not None:
            return self.op("*", self.number(f * both, value.dtype), b.args[1], value)
        if f is not None and is_(b, "operator", "/") and fraction(b.args[1]):
            quotient = f / fraction(b.args[1])  # type: ignore[operator]
            return self.op("*", self.number(quotient, value.dtype), b.args[0], value)
        return None

    def quotient_known(self, y: Any, r: Any, dtype: np.dtype) -> Any:
        """y / r, if the forward pass has computed it as exactly: u / r * y is u times it, also
        where r is 0 or infinite.
        """
        known = self.listing.known.get(("operator", "/", key_of((y, r)), key_of(())))
        if known is None or known.phase == BACKWARD or known.dtype != dtype:
            return None
        return known

    def operator_over(self, args: Any, settings: Any, value: Any) -> Any:
        """a / b"""
        a, b = args
        found = self.unrepeated("/", a, b, value)
        if found is not None:
            return found
        if isinstance(a, Expression):
            if number_in(b) == 1 and a.dtype == value.dtype:
                return a
            return self.averaged(a, fraction(b), value)
        return None

    def flips(self, a: Any, b: Any) -> bool:
        """Is b the mean of -a, for a difference a?"""
        if not (is_(a, "operator", "-") and is_(b, "method", "mean")):
            return False
        return is_(b.args[0], "operator", "-") and b.args[0].args == a.args[::-1]

    def averaged(self, a: Any, n: Fraction | None, value: Any) -> Any:
        """The mean for a sum of n numbers divided by n; also where it was divided before."""
        if is_(a, "operator", "/"):
            inner = self.averaged(a.args[0], n, None)
            return None if inner is None else self.op("/", inner, a.args[1], value)
        if not is_(a, "method", "sum") or n is None:
            return None
        x = a.args[0]
        if not a.value.size or n * a.value.size != x.value.size or x.dtype != a.dtype:
            return None
        value = a.value / a.dtype.type(float(n)) if value is None else value
        return self.method("mean", x, value=value, **a.settings)

    def twice(self, a: Any, value: Any) -> Any:
        """2 a, the 2 taken together with a 1 / 2 inside."""
        found = self.times_two(a)
        if found is not None:
            return found
        return self.op("*", self.number(Fraction(2), a.dtype), a, value)

    def times_two(self, e: Any) -> Any:
        """2 e for e = ... / (2 r) ... without both; else None."""
        if not (isinstance(e, Expression) and e.name in ("*", "/")):
            return None
        a, b = e.args
        if e.name == "/" and is_(b, "operator", "*") and number_in(b.args[0]) == 2:
            return self.op("/", a, b.args[1])
        left = self.times_two(a)
        if left is not None:
            return self.op(e.name, left, b)
        if e.name == "*":
            right = self.times_two(b)
            if right is not None:
                return self.op("*", a, right)
        return None

    def stacked(self, terms: list[Any], value: Any) -> Any:
        """Gradients of x[0], x[1], ..., each put into zeros, and added up: np.stack."""
        places = [put_in_zeros(t) for t in terms]
        if None in places or len(places) != value.shape[0]:
            return None
        found = {i % value.shape[0]: part for i, part in places}  # type: ignore[misc]
        if len(found) != len(places):
            return None
        parts = [found[i] for i in range(len(found))]
        if not all(is_part(p, value.shape[1:], value) for p in parts):
            return None
        return self.make("call", "stack", (parts,), {"axis": 0}, value)

    def joined(self, terms: list[Any], value: Any) -> Any:
        """Gradients of x[:8], x[8:16], ..., each put into zeros, and added up: np.concatenate."""
        places = [put_in_zeros(t, slice) for t in terms]
        if None in places:
            return None
        found = [(i.indices(value.shape[0]), part) for i, part in places]  # type: ignore[misc]
        found.sort(key=lambda place: place[0])
        ends = [0]
        for (start, stop, _), part in found:
            shape = (stop - start, *value.shape[1:])  # which no part has that leaves rows out
            if start != ends[-1] or not is_part(part, shape, value):
                return None
            ends.append(stop)
        if ends[-1] != value.shape[0]:
            return None
        parts = [part for _, part in found]
        return self.make("call", "concatenate", (parts,), {}, value)

    # ---- shapes

    def attribute_T(self, args: Any, settings: Any, value: Any) -> Any:
        """x.T"""
        (x,) = args
        if value.ndim == 2:
            return self.transposed(x, value)
        return x.args[0] if is_(x, "attribute", "T") else None

    def attribute_mT(self, args: Any, settings: Any, value: Any) -> Any:
        """x.mT"""
        return self.transposed(args[0], value)

    def transposed(self, x: Any, value: Any) -> Any:
        """The matrices in x, transposed."""
        if last_two(x):
            return x.args[0]
        if negated(x):
            return self.minus(self.transposed(x.args[0], -value))
        if is_(x, "operator", "@"):
            left, right = x.args
            here = x.phase == self.listing.phase  # what was computed forwards is there already
            if here and last_two(left) and left.ndim == right.ndim == value.ndim:
                turned = self.transposed(right, right.value.mT)
                return self.op("@", turned, left.args[0], value)
        if value.ndim == 2:
            return self.listing.make("attribute", "T", (x,), {}, value)
        return self.listing.make("method", "swapaxes", (x, -1, -2), {}, value)

    def method_swapaxes(self, args: Any, settings: Any, value: Any) -> Any:
        """x.swapaxes(a, b)"""
        x, *axes = args
        pair = sorted(a % value.ndim for a in axes)
        if pair[0] == pair[1]:
            return x
        if pair == [value.ndim - 2, value.ndim - 1]:
            return self.transposed(x, value)
        if is_(x, "method", "swapaxes") and sorted(a % value.ndim for a in x.args[1:]) == pair:
            return x.args[0]
        if value.ndim > 3:
            return self.listing.make("method", "swapaxes", (x, *pair), {}, value)
        return None

    def method_transpose(self, args: Any, settings: Any, value: Any) -> Any:
        """x.transpose(axes)"""
        x, *axes = args
        if axes == list(range(value.ndim)):
            return x
        if is_(x, "call", "stack") and x.settings.get("axis", 0) == 0 and axes.index(0) > 0:
            rest = [a - 1 for a in axes if a != 0]
            parts = [self.turned(p, rest) for p in x.args[0]]
            return self.make("call", "stack", (parts,), {"axis": axes.index(0)}, value)
        moved = [i for i, a in enumerate(axes) if a != i]
        if len(moved) == 2:
            return self.method("swapaxes", x, *moved, value=value)
        if is_(x, "method", "transpose"):
            both = [x.args[1:][a] for a in axes]
            return self.method("transpose", x.args[0], *both, value=value)
        return None

    def turned(self, part: Any, axes: list[int]) -> Any:
        """A part of a stack with its axes in this order."""
        return self.method("transpose", part, *axes, value=part.value.transpose(axes))

    def method_reshape(self, args: Any, settings: Any, value: Any) -> Any:
        """x.reshape(shape)"""
        x, *shape = args
        if np.shape(x) == value.shape:
            return x
        if is_(x, "method", "reshape") and x.hint is None:
            return self.method("reshape", x.args[0], *shape, value=value)
        if is_(x, "method", "sum"):
            rest = {k: v for k, v in x.settings.items() if k != "keepdims"}
            if x.args[0].value.sum(axis=rest.get("axis")).shape == value.shape:
                return self.method("sum", *x.args, value=value, **rest)
        return None

    def method_copy(self, args: Any, settings: Any, value: Any) -> Any:
        """x.copy(): nothing is changed in place but what is made for it."""
        return args[0]

    def reduced(self, name: str, args: Any, settings: Any, value: Any) -> Any:
        """A reduction along axes as a reader would write them."""
        (x, *_) = args
        plain = self.plain_axis(x, settings)
        if plain != settings:
            return self.method(name, *args, value=value, **plain)
        if not settings and is_(x, "method", "reshape") and x.hint is None:
            return self.method(name, x.args[0], value=value)
        if name in ("sum", "mean") and settings.keys() <= {"axis", "keepdims"}:
            return self.divided_once(name, x, settings, value)
        return None

    method_sum, method_mean = partialmethod(reduced, "sum"), partialmethod(reduced, "mean")
    method_max, method_min = partialmethod(reduced, "max"), partialmethod(reduced, "min")

    def divided_once(self, name: str, x: Any, settings: Any, value: Any) -> Any:
        """(u * y).sum() / r for (u / r * y).sum(), where r is one number for each sum."""
        if not is_(x, "operator", "*"):
            return None
        for a, y in (x.args, x.args[::-1]):
            if self.by_rows(a, x.value) and a.args[1].shape == value.shape:
                u, r = a.args
                inner = self.op("*", u, y)
                top = getattr(inner.value, name)(**settings)
                return self.op("/", self.method(name, inner, value=top, **settings), r, value)
        return None

    def plain_axis(self, x: Any, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings with an axis as a reader writes it, and no dtype that changes nothing."""
        axis, dtype = settings.get("axis"), settings.get("dtype")
        found = dict(settings)
        if isinstance(axis, tuple) and len(axis) == 1:
            axis = axis[0]
        if isinstance(axis, tuple) and len(set(axis)) == x.ndim and not settings.get("keepdims"):
            axis = None
        if x.ndim > 1 and axis == x.ndim - 1:
            axis = -1
        if axis is None:
            found.pop("axis", None)
        else:
            found["axis"] = axis
        if dtype is not None and np.dtype(dtype) == x.dtype:
            found.pop("dtype")
        return found

    def method_astype(self, args: Any, settings: Any, value: Any) -> Any:
        """x.astype(dtype)"""
        x, dtype = args
        single = x.dtype == np.float64 and dtype == np.float32
        if single and negated(x):
            return self.minus(self.method("astype", x.args[0], dtype, value=-value))
        if single and is_(x, "method", "sum") and x.args[0].dtype == np.float32:
            if x.args[0].value.size <= SUMMED_IN_SINGLE * x.value.size:
                rest = {k: v for k, v in x.settings.items() if k != "dtype"}
                return self.method("sum", *x.args, value=value, **rest)
        return None

    # ---- functions

    def call_broadcast_to(self, args: Any, settings: Any, value: Any) -> Any:
        """np.broadcast_to(x, shape)"""
        x, *rest = args
        if np.shape(x) == value.shape:
            return x
        if is_(x, "call", "broadcast_to"):
            return self.make("call", "broadcast_to", (x.args[0], *rest), settings, value)
        return None

    def call_where(self, args: Any, settings: Any, value: Any) -> Any:
        """np.where(condition, a, b)"""
        if len(args) != 3:
            return None
        condition, a, b = args
        if uniform(condition):
            chosen = a if condition.value.flat[0] else b
            if isinstance(chosen, Expression) and chosen.dtype == value.dtype:
                if chosen.shape == value.shape:
                    return chosen
        if negated(b) and number_in(a) == 0:
            return self.minus(self.make("call", "where", (condition, a, b.args[0]), {}, -value))
        if negated(a) and number_in(b) == 0:
            return self.minus(self.make("call", "where", (condition, a.args[0], b), {}, -value))
        for i in (1, 2):
            x, other = args[i], args[3 - i]
            if is_(x, "call", "broadcast_to"):
                shapes = [np.shape(v) for v in (condition, x.args[0], other)]
                if np.broadcast_shapes(*shapes) == value.shape:
                    swapped = tuple(x.args[0] if j == i else v for j, v in enumerate(args))
                    return self.make("call", "where", swapped, {}, value)
        return None


RULES = {"+": "plus", "-": "minus", "*": "times", "/": "over"}
ODD = {
    **{("operator", "*"): (0, 1), ("operator", "@"): (0, 1), ("operator", "/"): (0,)},
    **{("method", "sum"): (0,), ("method", "mean"): (0,), ("call", "broadcast_to"): (0,)},
}
"""For which operands a sign goes through: f(-x) = -f(x)."""


def inside_of(outputs: Any) -> list[Expression]:
    """The expressions in nested dicts, tuples and lists."""
    if isinstance(outputs, dict):
        return [e for v in outputs.values() for e in inside_of(v)]
    if isinstance(outputs, (tuple, list)):
        return [e for v in outputs for e in inside_of(v)]
    return [outputs] if isinstance(outputs, Expression) else []


def sum_of(e: Any) -> list[Any]:
    """The terms of a sum."""
    if is_(e, "operator", "+"):
        return [*sum_of(e.args[0]), *sum_of(e.args[1])]
    return [e]


def of_dtype(e: Any, dtype: np.dtype) -> bool:
    """An expression of this dtype?"""
    return isinstance(e, Expression) and e.dtype == dtype


def never_zero(e: Any) -> bool:
    """Is it positive by its form, as the sum in softmax is, or a deviation with an epsilon? An
    exponential alone is not: that of -1000 is 0 in floats.
    """
    if not isinstance(e, Expression) or e.dtype.kind != "f" or not of_all(e):
        return False
    if e.is_a("operator", "+"):
        for a, b in (e.args, e.args[::-1]):
            if not_negative(b, e.dtype) and (above_zero(a, e.dtype) or counts_itself(a, b)):
                return True
    if e.is_a("method", "sum") or e.is_a("method", "mean"):
        return e.args[0].value.size > 0 and never_zero(e.args[0]) or counts_itself(e)
    return e.is_a("call", "sqrt") and never_zero(e.args[0])


def above_zero(a: Any, dtype: np.dtype) -> bool:
    """A positive number, also as this dtype has it, or positive by its form?"""
    n = number_in(a)
    return never_zero(a) if n is None else bool(dtype.type(n) > 0)


def not_negative(e: Any, dtype: np.dtype) -> bool:
    """Is no element of it below 0, by its form? A product of whole numbers may be too large."""
    if is_(e, "method", "sum") or is_(e, "method", "mean"):
        return of_all(e) and not_negative(e.args[0], e.dtype)
    if is_(e, "operator", "*") and e.args[0] is e.args[1]:
        return bool(e.dtype.kind == "f")
    return is_(e, "call", "exp") or of_dtype(e, np.dtype(bool)) or above_zero(e, dtype)


def of_all(e: Expression) -> bool:
    """A reduction of all elements in their own dtype, and with nothing beside them?"""
    return e.settings.keys() <= {"axis", "keepdims"}


def counts_itself(total: Any, blind: Any = None) -> bool:
    """Is it softmax's sum of exp(x - m) for the largest m, which has itself among its terms, as 1?
    In rows that are `blind`, to which 1 is added, another m may be.
    """
    if not (is_(total, "method", "sum") and is_(total.args[0], "call", "exp")):
        return False
    shifted = total.args[0].args[0]
    if not is_(shifted, "operator", "-") or len(shifted.args) == 1:
        return False
    x, m = shifted.args
    if is_(m, "call", "where") and m.args[0] is blind and blind.shape == total.shape:
        m = m.args[2]
    if not is_(m, "method", "max") or m.args[0] is not x:
        return False
    return m.settings == total.settings and "keepdims" in m.settings and of_all(m)


def put_in_zeros(e: Any, kind: Any = (int, np.integer)) -> tuple[Any, Any] | None:
    """(i, x) for an expression that is x at index i of the first axis, and zero elsewhere."""
    if not is_(e, "update", "add.at"):
        return None
    base, index, x = e.args
    if is_(base, "constant") and not base.value.any() and isinstance(index, kind):
        return index, x
    return None


def is_part(x: Any, shape: tuple[int, ...], whole: Any) -> bool:
    """An array of this shape, which was put into the whole without being repeated or converted?"""
    return isinstance(x, Expression) and x.shape == shape and x.dtype == whole.dtype
