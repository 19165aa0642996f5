"""The form of a program that NumPy computes fastest: the same numbers up to rounding.

Where arrays are small, most of the time goes into the way to NumPy's loops. A product of matrices
with one matrix is a single call of BLAS if it is flat, and a sum is a product with ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .ir import Expression, Listing, is_, number_in
from .rules import UFUNCS
from .simplify import SUMMED_IN_SINGLE


class Lowering(Listing):
    """A listing that makes the fastest expression for each value.

    The methods `kind_name` return one, or None where the expression stays as it is.
    """

    def make(
        self, kind: str, name: Any, args: Any, settings: dict[str, Any], value: Any
    ) -> Expression:
        """The fastest expression for this."""
        args = tuple(args)
        if kind == "operator" and name in UFUNCS:  # a call can write its result into an operand
            negated = name == "-" and len(args) == 1
            kind, name = "call", "negative" if negated else UFUNCS[name].__name__
        rule = getattr(self, f"{kind}_{name}", None)
        found = rule(args, settings, value) if rule is not None else None
        return super().make(kind, name, args, settings, value) if found is None else found

    def method(self, name: str, x: Expression, *args: Any) -> Expression:
        """x.name(*args)"""
        values = [a.value if isinstance(a, Expression) else a for a in args]
        return self.make("method", name, (x, *args), {}, getattr(x.value, name)(*values))

    def method_reshape(self, args: Any, settings: Any, value: Any) -> Any:
        """x.reshape(shape)"""
        x = args[0]
        if x.shape == value.shape:
            return x
        return (
            self.method("reshape", x.args[0], *value.shape) if is_(x, "method", "reshape") else None
        )

    def call_matmul(self, args: Any, settings: Any, value: Any) -> Any:
        """a @ b with one matrix b, as one product of two matrices"""
        a, b = args
        if b.ndim != 2 or a.ndim < 2 or value.size == 0 or a.dtype != b.dtype:
            return None
        n = math.prod(a.shape[:-1])
        product = self.method("dot", self.method("reshape", a, n, a.shape[-1]), b)
        return self.method("reshape", product, *value.shape)

    def method_sum(self, args: Any, settings: Any, value: Any) -> Any:
        """x.sum(axis)"""
        return self.weighted(args[0], settings, value, mean=False)

    def method_mean(self, args: Any, settings: Any, value: Any) -> Any:
        """x.mean(axis)"""
        return self.weighted(args[0], settings, value, mean=True)

    def weighted(self, x: Expression, settings: Any, value: Any, mean: bool) -> Any:
        """The sum or mean over the last axis, or over all others, as a product."""
        axes = settings.get("axis")
        if axes is None or settings.keys() - {"axis", "keepdims"} or x.ndim < 2 or not x.value.size:
            return None
        n = x.value.size // value.size
        if x.dtype != np.float64 and (x.dtype != np.float32 or n > SUMMED_IN_SINGLE):
            return None
        weights = self.constant(np.full(n, 1 / n if mean else 1, x.dtype))
        axes = sorted(np.atleast_1d(axes) % x.ndim)
        if axes == [x.ndim - 1]:
            found = self.method("dot", self.method("reshape", x, value.size, n), weights)
        elif axes == [*range(x.ndim - 1)]:
            found = self.method("dot", weights, self.method("reshape", x, n, value.size))
        else:
            return None
        return self.method("reshape", found, *value.shape)

    def method_max(self, args: Any, settings: Any, value: Any) -> Any:
        """x.max(-1), picked by argmax: NumPy's maximum begins anew in each row."""
        x = args[0]
        if settings.get("axis") != -1 or settings.keys() - {"axis", "keepdims"} or not value.size:
            return None
        rows = self.method("reshape", x, value.size, x.shape[-1])
        places = rows.value.argmax(-1)
        largest = self.make("method", "argmax", (rows,), {"axis": -1}, places)
        each = np.arange(value.size)
        picked = self.make("item", None, (rows, (each, largest)), {}, rows.value[each, places])
        return self.method("reshape", picked, *value.shape)

    def call_where(self, args: Any, settings: Any, value: Any) -> Any:
        """np.where(condition, x, 0) by the bits of x, in a quarter of the time"""
        condition, x, *zero = args
        if not zero or str(number_in(zero[0])) not in ("0", "0.0"):
            return None
        if getattr(getattr(condition, "dtype", None), "kind", "") != "b":
            return None
        floating = getattr(x, "dtype", None) == value.dtype and value.dtype.kind == "f"
        if not floating or x.shape != value.shape:
            return None
        bits = self.method("view", x, np.dtype(f"i{x.dtype.itemsize}"))
        kept = self.make("call", "multiply", (bits, condition), {}, bits.value)
        return self.method("view", kept, x.dtype)
