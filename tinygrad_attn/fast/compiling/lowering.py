"""Expressions in the form in which NumPy computes them soonest: the same numbers up to rounding.

Where arrays are small, most of the time goes into NumPy's way to its loops, and that differs: a
product of matrices is a call of BLAS if it is flat, a sum is a product with ones, and softmax need
not look for the largest score as long as its sums show that nothing has overflowed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...transforms.programs.expressions import (
    Expression,
    Listing,
    inside,
    reached,
    replaced,
)
from ...transforms.programs.simplify import SUMMED_IN_SINGLE, is_, number_in
from ...transforms.programs.symbol import Guard

NAMES = {"@": "at"}
BY_ELEMENT = {("operator", sign) for sign in ("+", "-", "*", "/", ">", "<", "==", "!=")}
BY_ELEMENT |= {("call", f) for f in ("exp", "tanh", "sqrt", "maximum", "where", "erf")}
SMALL = 1 << 16
"""Elements of an array of zeros that is kept to be compared with."""
LENGTHS = (1009, 1013)
"""Sizes that stand for how many tokens a cache has, and that hardly any other axis has."""


class Lowering:
    """Writes a new list, expression by expression."""

    def __init__(self, ends: list[Any], speculate: bool) -> None:
        self.listing = Listing()
        self.new: dict[int, Expression] = {}
        self.guards: list[Guard] = []
        order = reached(ends)
        shifted = shift_free(order, ends) if speculate else {}
        for e in order:
            self.listing.phase = e.phase
            if e.id in shifted:
                new = self.make("call", "exp", (self.new[shifted[e.id].id],), e.value)
                total = self.make("method", "sum", (new,), e.value[..., :1], axis=-1, keepdims=True)
                self.guards.append(Guard(total, "in range", "softmax"))
            else:
                new = self.lowered(e)
            self.new[e.id] = new

    def of(self, e: Any) -> Any:
        """What an expression has become."""
        return self.new[e.id] if isinstance(e, Expression) else e

    def lowered(self, e: Expression) -> Expression:
        """One expression, whose operands are lowered already."""
        if e.kind == "input":
            return self.listing.make("input", e.name, (), {}, e.value, ("input", e.name))
        if e.kind == "constant":
            return self.listing.constant(e.value)
        if e.kind == "number":
            return self.listing.number(e.name, e.value)
        found = [self.new[x.id] for x in e.operands]
        known = all(x.kind in ("constant", "number") for x in found)
        if known and e.kind != "update" and isinstance(e.value, (np.ndarray, np.generic)):
            whole = np.ndim(e.value) > 0
            return self.listing.constant(np.asarray(e.value)) if whole else self.number(e)
        args = replaced(e.args, self.of)
        settings = {k: replaced(v, self.of) for k, v in e.settings.items()}
        return self.make(e.kind, e.name, args, e.value, **settings)

    def number(self, e: Expression) -> Expression:
        """A single number that is known."""
        return self.listing.number(repr(e.value), e.value)

    def make(self, kind: str, name: Any, args: Any, value: Any, /, **settings: Any) -> Expression:
        """The expression, by a rule of this class if there is one."""
        rule = getattr(self, f"{kind}_{NAMES.get(name, name)}", None)
        found = rule(args, settings, value) if rule is not None else None
        if found is None and not settings and (kind, name) in BY_ELEMENT:
            found = self.on_rows(kind, name, args, value)
        if found is not None:
            return found
        return self.listing.make(kind, name, args, settings, value)

    # ---- shapes

    def shaped(self, x: Expression, shape: tuple[int, ...]) -> Expression:
        """x in this shape."""
        if x.shape == shape:
            return x
        return self.make("method", "reshape", (x, *shape), like(shape, x.dtype))

    def method_reshape(self, args: Any, settings: Any, value: Any) -> Any:
        """x.reshape(shape)"""
        x = args[0]
        if x.shape == value.shape:
            return x
        if is_(x, "method", "reshape"):
            return self.shaped(x.args[0], value.shape)
        return None

    # ---- products

    def operator_at(self, args: Any, settings: Any, value: Any) -> Any:
        """a @ b"""
        a, b = args
        if b.ndim != 2:
            return None
        if a.ndim == 2:
            return self.listing.make("dot", None, (a, b), {}, value)
        if a.ndim == 1 or value.size == 0:
            return None
        flat = (math.prod(a.shape[:-1]), a.shape[-1])
        product = like((flat[0], b.shape[1]), value.dtype)
        found = self.listing.make("dot", None, (self.shaped(a, flat), b), {}, product)
        return self.shaped(found, value.shape)

    # ---- sums

    def method_sum(self, args: Any, settings: Any, value: Any) -> Any:
        """x.sum(axis)"""
        return self.summed(args[0], settings, value, 1.0)

    def method_mean(self, args: Any, settings: Any, value: Any) -> Any:
        """x.mean(axis)"""
        x = args[0]
        return self.summed(x, settings, value, max(value.size, 1) / max(x.value.size, 1))

    def summed(self, x: Any, settings: Any, value: Any, factor: float) -> Any:
        """A sum along the last axis, or along all others, as a product with ones."""
        if x.ndim < 2 or x.dtype not in (np.float32, np.float64):
            return None
        if settings.keys() - {"axis", "keepdims"} or not x.value.size:
            return None
        axes = settings.get("axis")
        if axes is None:
            return None
        axes = axes if isinstance(axes, tuple) else (axes,)
        axes = tuple(sorted(a % x.ndim for a in axes))
        n = x.value.size // value.size
        if n in LENGTHS:
            return None
        if n > SUMMED_IN_SINGLE and x.dtype != np.float64:
            return None
        ones = self.listing.constant(np.full(n, factor, x.dtype))
        if axes == (x.ndim - 1,):
            rows = like(x.shape[:-1], x.dtype)
            if flattened(x, x.shape):
                inner = self.summed(x.args[0], {"axis": -1}, rows.reshape(-1), factor)
                if inner is not None:
                    return self.shaped(inner, value.shape)
            if is_(x, "operator", "*") and all(same_kind(a, x) for a in x.args):
                found = self.listing.make("call", "vecdot", x.args, {}, rows)
                if factor != 1:
                    scaled = (found, x.dtype.type(factor))
                    found = self.listing.make("operator", "*", scaled, {}, found.value)
            else:
                flat = self.shaped(x, (x.value.size // n, n))
                rows = like((x.value.size // n,), x.dtype)
                found = self.listing.make("dot", None, (flat, ones), {}, rows)
            return self.shaped(found, value.shape)
        if axes == tuple(range(x.ndim - 1)):
            flat = self.shaped(x, (n, x.shape[-1]))
            rows = like((x.shape[-1],), x.dtype)
            found = self.listing.make("dot", None, (ones, flat), {}, rows)
            return self.shaped(found, value.shape)
        return None

    # ---- element by element, as matrices

    def as_rows(self, x: Any, shape: tuple[int, ...]) -> Any:
        """An operand of an element-wise step on arrays of this shape, for the same on its rows."""
        if not isinstance(x, Expression) or x.ndim < 2:
            return x
        n = math.prod(shape[:-1])
        if x.shape == shape:
            return self.shaped(x, (n, shape[-1]))
        if x.shape == (*shape[:-1], 1):
            return self.shaped(x, (n, 1))
        return None

    def on_rows(self, kind: str, name: Any, args: Any, value: Any) -> Any:
        """An element-wise step between products: on the matrix that they are made as, which saves
        reshaping it to and fro.
        """
        if np.ndim(value) < 3 or not any(flattened(x, value.shape) for x in args):
            return None
        if not all(easy(x) for x in args):
            return None
        rows = [self.as_rows(x, value.shape) for x in args]
        if any(x is None for x in rows):
            return None
        flat = like((math.prod(value.shape[:-1]), value.shape[-1]), value.dtype)
        return self.shaped(self.make(kind, name, tuple(rows), flat), value.shape)

    # ---- element by element

    def call_erf(self, args: Any, settings: Any, value: Any) -> Any:
        """erf(x), which has numbers of Python's in ops; the kernel's have the dtype of x."""
        (x,) = args
        if x.dtype == value.dtype:
            return None
        wide = self.make("method", "astype", (x, value.dtype), like(x.shape, value.dtype))
        return self.make("call", "erf", (wide,), value)

    def method_astype(self, args: Any, settings: Any, value: Any) -> Any:
        """erf of float32 in float32, which is as good to the last bit but one."""
        x = args[0]
        if is_(x, "call", "erf") and is_(x.args[0], "method", "astype"):
            narrow = x.args[0].args[0]
            if narrow.dtype == value.dtype == np.float32:
                return self.make("call", "erf", (narrow,), value)
        return None

    def call_maximum(self, args: Any, settings: Any, value: Any) -> Any:
        """np.maximum(x, 0): with an array of zeros it is three times as quick."""
        x, y = args
        if number_in(y) == 0 and not settings:
            found = self.on_rows("call", "maximum", args, value)
            if found is not None:
                return found
            if x.value.size <= SMALL and x.dtype == value.dtype:
                zeros = self.listing.constant(np.zeros(x.shape, x.dtype))
                return self.listing.make("call", "maximum", (x, zeros), {}, value)
        return None


def flattened(x: Any, shape: tuple[int, ...]) -> bool:
    """Is this a matrix in another shape, of which the rows are the same, or a vector with a number
    for each row?
    """
    if not is_(x, "method", "reshape") or x.shape != shape:
        return False
    n, inner = math.prod(shape[:-1]), x.args[0].shape
    return inner in ((n, x.shape[-1]), (n,))


def same_kind(a: Any, x: Expression) -> bool:
    """Is a an array of the shape and dtype of x?"""
    return isinstance(a, Expression) and a.shape == x.shape and a.dtype == x.dtype


def easy(x: Any) -> bool:
    """An operand whose rows can be had without a copy, as far as one knows?"""
    if not isinstance(x, Expression) or x.ndim < 2:
        return True
    if x.is_a("method", "reshape"):
        return True
    return x.kind in ("input", "constant", "operator", "dot") or x.is_a("call", "vecdot")


def like(shape: tuple[int, ...], dtype: Any) -> Any:
    """Stands for a value of this shape and dtype."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def shift_free(order: list[Expression], ends: list[Any]) -> dict[int, Expression]:
    """{id of exp(s - s.max(-1)): s}, where no result would be another without the maximum.

    Without it the exponentials, and so their sums, are larger by a factor for each row. Each
    expression is given the power in which it has this factor, and the results have to have none.
    """
    found: dict[int, Expression] = {}
    for e in order:
        s = e.args[0] if e.is_a("call", "exp") and not e.settings else None
        if not is_(s, "operator", "-") or len(s.args) != 2:  # type: ignore[union-attr]
            continue
        x, top = s.args  # type: ignore[union-attr]
        if not is_(top, "method", "max") or top.args[0] is not x or e.dtype.itemsize < 4:
            continue
        if top.settings != {"axis": -1, "keepdims": True}:
            continue
        if powers_vanish(e, order, {x.id for x in inside(ends)}):
            found[e.id] = x
    return found


def powers_vanish(e: Expression, order: list[Expression], ends: set[int]) -> bool:
    """Does the factor of each row of e drop out of everything that is made of it?"""
    powers, summed = {e.id: 1}, False
    for y in order:
        used = [x for x in y.operands if powers.get(x.id)]
        if not used:
            continue
        if y.is_a("method", "sum") and y.settings == {"axis": -1, "keepdims": True}:
            powers[y.id] = powers[used[0].id]
            summed = summed or used[0] is e
            continue
        if y.name not in ("+", "-", "*", "/") or y.shape != e.shape:
            return False
        if any(np.shape(x) not in ((), e.shape, (*e.shape[:-1], 1)) for x in y.args):
            return False
        each = [powers.get(x.id, 0) if isinstance(x, Expression) else 0 for x in y.args]
        if y.name in ("+", "-"):
            if len(set(each)) > 1:
                return False
            powers[y.id] = each[0]
        else:
            powers[y.id] = each[0] + (each[1] if y.name == "*" else -each[1])
    return summed and not any(powers.get(i) for i in ends)
