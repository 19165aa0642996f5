"""Rewrite a program in the form that NumPy computes fastest. Results agree up to rounding.

The product of a stack of matrices with one matrix becomes one BLAS call, and sums become products.
"""

from __future__ import annotations

import math

import numpy as np

from .ir import Expression, is_, number_in
from .rules import UFUNCS, Rewriting
from .simplify import SUMMED_IN_SINGLE, like


class Lowering(Rewriting):
    """A listing that replaces expressions with faster ones."""

    def shorter(self, e: Expression) -> Expression | None:
        """Turn an operator into a call, which can write its result into an operand."""
        if e.kind != "operator":
            return None
        negated = e.name == "-" and len(e.args) == 1
        name = "negative" if negated else UFUNCS[e.name].__name__
        return self.make("call", name, e.value, *e.args, **e.settings)

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
