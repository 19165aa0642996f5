"""Rewrite a program in fewer and simpler steps. Results agree up to rounding.

VJPs produce sums of negated terms, transposes of transposes, and products of several numbers.
Each line of `RULES` is `pattern -> replacement`, with or without `if conditions`. In a pattern
    a lower-case letter matches any operand, except that `n` matches only a number;
    a letter that occurs twice matches equal operands;
    `**s` matches the keyword arguments of a method or of `np.f(...)`;
    `x.T` is the transpose of a matrix or of a stack of matrices.
In a condition, `here` is the expression that matches the pattern. A term such as `u / r` stands for
the expression of that form in the listing, or for None if there is none.
"""

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..errors import is_number
from .ir import Expression, Listing, form, is_

SUMMED_IN_SINGLE = 1024
"""The maximum count of float32 numbers to sum in float32 where the op uses float64."""
RULES = """
x + -y -> x - y
-x + y -> y - x                                   if moving(y)
x + x -> 2 * x                                    if numeric(x)
x + y + y -> x + 2 * y                            if moving(y)
z + (x - y) + (y - x).mean(**s) -> z + (x - y - (x - y).mean(**s))   if backward(here)
x - y + (y - x).mean(**s) -> x - y - (x - y).mean(**s)
--x -> x
-(x - y) -> y - x                                 if backward(here)
x - -y -> x + y
-x - y -> -(x + y)                                if moving(y), backward(here)
x - y - y -> x - 2 * y                            if moving(y)
x - x.mean(**s) - (x - x.mean(**s)).mean(**s) -> x - x.mean(**s)     if backward(here), keeps(s)
u / r - v / r -> (u - v) / r                      if sized(u / r, here)
u / r - v / r * w -> (u - v * w) / r              if sized(u / r, here)
-x * y -> -(x * y)
x * -y -> -(x * y)
x * n -> n * x                                    if moving(x)
1 * x -> x                                        if like(x, here)
-1 * x -> -x                                      if like(x, here)
n * (x / (n * y) * z) -> x / y * z
u / r * y -> u * (y / r)                          if backward(u / r), forward(y / r, here)
-x / y -> -(x / y)
x.sum(**s) / n -> x.mean(**s)                     if counts(x.sum(**s), n)
x.sum(**s) / y / z / n -> x.mean(**s) / y / z     if counts(x.sum(**s), n)
x.T.T -> x
(x.T @ y).T -> y.T @ x                            if turnable(x.T @ y, here)
x.copy() -> x
(-x).astype(z) -> -x.astype(z)                    if backward(here)
(-x).sum(**s) -> -x.sum(**s)
(u / r * y).sum(**s) -> (u * y).sum(**s) / r      if sized(u / r, u / r * y), fits(r, here, s)
np.count_nonzero(b) == n -> b.all()               if size(b, n)
np.broadcast_to(x, z) -> x                        if like(x, here)
np.where(c, x, y) -> y                            if nothing(c), like(y, here)
"""


# ---- conditions of rules


def like(x, e):
    """Return whether x is an expression with the shape and dtype of e."""
    return isinstance(x, Expression) and x.shape == e.shape and x.dtype == e.dtype


def counts(total, n):
    """Return whether `total` is a sum of n numbers in their own dtype."""
    x, size = total.args[0], total.value.size
    return size > 0 and n == x.value.size / size and x.dtype == total.dtype


def sized(quotient, e):
    """Return whether u / r is a gradient of e's size and dtype."""
    same = quotient.dtype == e.dtype and quotient.value.size == e.value.size
    return bool(quotient.backward and same)


def turnable(product, e):
    """Return whether this matrix product does not broadcast and is in the same pass as e."""
    x, y = product.args
    return bool(product.backward == e.backward and x.ndim == y.ndim == e.ndim)


CONDITIONS: dict[str, Callable] = {
    **{f.__name__: f for f in (like, counts, sized, turnable)},
    "moving": lambda x: not is_number(x),
    "numeric": lambda x: x.dtype != bool,
    "size": lambda x, n: n == x.value.size,
    "nothing": lambda c: c is np.False_ or is_zero(c) and c.dtype == bool,
    "backward": lambda e: e.backward,
    "forward": lambda e, here: e is not None and not e.backward and e.dtype == here.dtype,
    "keeps": lambda settings: settings.get("keepdims"),
    "fits": lambda r, e, settings: r.shape == e.shape and settings.keys() <= {"axis", "keepdims"},
}


# ---- how rules are applied


class Pattern(NDArrayOperatorsMixin):
    """A letter, or an operation on patterns and numbers."""

    def __init__(self, kind, name, *args, **settings):
        self.kind, self.name, self.args, self.settings = kind, name, args, settings

    def __array_ufunc__(self, ufunc, method, *args):
        return Pattern("call", ufunc.__name__, *args)

    def keys(self):
        """Return the letter of the settings, so that `f(**pattern)` works."""
        return [self.name]

    def __getitem__(self, name):
        return self

    def __getattr__(self, name):
        if name == "T":
            return Pattern("method", "T", self)
        kind, first = ("call", ()) if self.name == "np" else ("method", (self,))
        return lambda *args, **settings: Pattern(kind, name, *first, *args, **settings)


def table(text, **functions):
    """Parse rules to (pattern, replacement, conditions), by the kind and name of the expression."""
    letters = {name: Pattern("letter", name) for name in (*ascii_lowercase, "np", "here")}
    asked = {n: lambda *args, f=f: (f, args) for n, f in functions.items()} | letters
    found: dict[Any, list] = {}
    for line in text.strip().splitlines():
        sides, _, conditions = line.partition(" if ")
        pattern, replacement = (eval(side.strip(), letters) for side in sides.split("->"))
        rule = pattern, replacement, eval(f"[{conditions}]", asked)
        found.setdefault((pattern.kind, pattern.name), []).append(rule)
    return found


def matches(p, e, found):
    """Return whether the pattern p matches e, and add the operand of each letter to `found`."""
    if isinstance(p, Pattern) and p.kind != "letter":
        if not is_(e, p.kind, p.name) or len(e.args) != len(p.args):
            return False
        settings = found.setdefault("s", e.settings) if p.settings else {}
        pairs = zip(p.args, e.args, strict=True)
        return settings == e.settings and all(matches(q, a, found) for q, a in pairs)
    number = is_number(e)
    if not isinstance(p, Pattern):
        return number and bool(e == p)
    if p.name == "n" and not number:
        return False
    before = found.setdefault(p.name, e)
    return before is e or number and bool(e == before)


class Simplifier(Listing):
    """A listing whose `make` returns a shorter expression if there is one.

    Methods named `<kind>_<name>` are simplifications that no rule can express.
    """

    rules = table(RULES, **CONDITIONS)

    def make(self, kind, name, value, /, *args, **settings):
        e = Expression(-1, kind, name, args, settings, value, self.backward)
        known = kind not in ("update", "check") and all(x.kind == "constant" for x in e.operands)
        if known and repeats(value):
            return self.operand(self.constant(value))
        method = getattr(self, f"{kind}_{name}", None)
        found = method and method(e)
        found = self.ruled(e) if found is None else found
        return super().make(kind, name, value, *args, **settings) if found is None else found

    def ruled(self, e):
        """Return the replacement from the first rule that matches e, or None."""
        known = lambda kind, name, *args, **s: self.known.get(form(kind, name, args, s))
        for pattern, replacement, conditions in self.rules.get((e.kind, e.name), ()):
            found: dict = {"here": e}
            if matches(pattern, e, found):
                of = lambda p: self.instance(p, found, known)  # noqa: B023
                if all(condition(*map(of, args)) for condition, args in conditions):
                    return self.instance(replacement, found, self.of)
        return None

    def instance(self, p, found, make):
        """Replace the letters of a pattern with their operands."""
        if not isinstance(p, Pattern):
            return found["here"].dtype.type(p)
        if p.kind == "letter":
            return found[p.name]
        args = tuple(self.instance(a, found, make) for a in p.args)
        return make(p.kind, p.name, *args, **(found["s"] if p.settings else {}))

    def of(self, kind, name, /, *args, **settings):
        """Make an expression and compute its value."""
        x, *rest = [a.value if isinstance(a, Expression) else a for a in args]
        with np.errstate(all="ignore"):
            function = getattr(np if kind == "call" else type(x), name)
            value = x.mT if name == "T" else function(x, *rest, **settings)
        return self.make(kind, name, value, *args, **settings)

    def unrepeated(self, e):
        """Remove the repetition of an operand if NumPy's broadcasting takes care of it."""
        for i, x in enumerate(e.args):
            args, other = [*e.args], e.args[1 - i]
            repeated = is_(x, "call", "broadcast_to")
            if repeated and np.broadcast_shapes(*map(np.shape, (x.args[0], other))) == e.shape:
                args[i] = x.args[0]
            elif uniform(x) and np.shape(other) == e.shape:
                args[i] = x.value.flat[0]
            if args[i] is not x:
                return self.make(e.kind, e.name, e.value, *args, **e.settings)
        return None

    call_subtract = call_multiply = call_divide = unrepeated

    def call_add(self, e):
        """Stack the summed gradients of x[0], x[1], ..., or join those of x[:8], x[8:], ..."""
        found = self.unrepeated(e)
        if found is not None or not e.ndim or not all(map(put_in_zeros, terms_of(e))):
            return found
        rows = np.arange(len(e.value))
        parts = sorted(terms_of(e), key=lambda p: np.ravel(rows[p.args[1]]).tolist())
        places, parts = [rows[p.args[1]] for p in parts], [p.args[2] for p in parts]
        alike = all(like(x, e.value[i]) for i, x in zip(places, parts, strict=True))
        whole = np.array_equal(np.hstack(places), rows)
        if not alike or not whole or len({*map(np.ndim, places)}) > 1:
            return None
        joined = "concatenate" if places[0].ndim else "stack"
        return self.make("call", joined, e.value, parts)

    def method_transpose(self, e):
        """Turn x.transpose(axes) into x.T or x.swapaxes."""
        x, *axes = e.args
        moved = [i for i, a in enumerate(axes) if a != i]
        if moved == [e.ndim - 2, e.ndim - 1]:
            return self.make("method", "T", e.value, x)
        if len(moved) == 2:
            return self.make("method", "swapaxes", e.value, x, *moved)
        return None

    def method_reshape(self, e):
        """Remove a reshape that has no effect, or that only undoes the keepdims of a sum."""
        x = e.args[0]
        if x.shape == e.shape:
            return x
        if is_(x, "method", "sum"):
            rest = plainest(x.args[0], {**x.settings, "keepdims": False})
            if x.args[0].value.sum(axis=rest.get("axis")).shape == e.shape:
                return self.make("method", "sum", e.value, *x.args, **rest)
        return None

    def method_astype(self, e):
        """Sum a few float32 numbers in float32 if their float64 sum is then rounded to float32."""
        x, dtype = e.args
        if is_(x, "method", "sum") and x.dtype == np.float64 and dtype == x.args[0].dtype:
            if dtype == np.float32 and x.args[0].value.size <= SUMMED_IN_SINGLE * x.value.size:
                rest = {k: v for k, v in x.settings.items() if k != "dtype"}
                return self.make("method", "sum", e.value, *x.args, **rest)
        return None


REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


def uniform(a):
    """Return whether a is a constant whose elements are all equal."""
    return is_(a, "constant") and repeats(a.value)


def is_zero(a):
    """Return whether a is a constant of zeros."""
    return is_(a, "constant") and not a.value.any()


def repeats(array):
    """Return whether an array has elements, and all are equal, also in the signs of zeros."""
    first, last = array.flat[:1].tobytes(), array.flat[-1:].tobytes()
    return np.size(array) > 0 and first == last and array.tobytes() == first * array.size


def terms_of(e):
    """Yield the terms of a sum of sums, last ones first."""
    waiting = [e]
    while waiting:
        e = waiting.pop()
        if is_(e, "call", "add"):
            waiting.extend(e.args)
        else:
            yield e


def put_in_zeros(e):
    """Return whether e is zero except at an index or slice of its first axis."""
    in_zeros = is_(e, "update", "add.at") and is_zero(e.args[0])
    return in_zeros and isinstance(e.args[1], (int, np.integer, slice))


def plainest(x, settings):
    """Write the last axis as -1, and omit settings that have no effect on a method of x."""
    usual = {"axis": None, "keepdims": False, "dtype": None, "where": True, "initial": np._NoValue}
    left = {k: v for k, v in settings.items() if v is not usual.get(k, settings)}
    axis = left.pop("axis", None)
    if isinstance(axis, tuple) and len(axis) in (1, x.ndim):
        axis = axis[0] if len(axis) == 1 else None
    if x.ndim > 1 and axis == x.ndim - 1:
        axis = -1
    if "dtype" in left and left["dtype"] == x.dtype:
        del left["dtype"]
    return left if axis is None else {"axis": axis, **left}
