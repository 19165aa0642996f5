"""The form of a program that NumPy computes fastest: the same numbers up to rounding.

Where arrays are small, most of the time goes into the way to NumPy's loops. A product of matrices
with one matrix is a single call of BLAS if it is flat, and a sum is a product with ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .ir import Expression, Listing, inside, is_, is_array
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
        operands = list(inside((args, settings)))
        known = operands and all(x.kind in ("constant", "number") for x in operands)
        if known and kind not in ("update", "check") and is_array(value) and value.ndim:
            return self.constant(value)
        rule = getattr(self, f"{kind}_{'matmul' if name == '@' else name}", None)
        found = rule(args, settings, value) if rule is not None else None
        return super().make(kind, name, args, settings, value) if found is None else found

    def shaped(self, x: Expression, shape: tuple[int, ...]) -> Expression:
        """x in this shape."""
        return self.make("method", "reshape", (x, *shape), {}, x.value.reshape(shape))

    def dot(self, a: Expression, b: Expression, shape: tuple[int, ...]) -> Expression:
        """The product of matrices, or of a matrix and a vector."""
        return self.make("method", "dot", (a, b), {}, like(shape, a.dtype))

    def method_reshape(self, args: Any, settings: Any, value: Any) -> Any:
        """x.reshape(shape)"""
        x = args[0]
        if x.shape == value.shape:
            return x
        return self.shaped(x.args[0], value.shape) if is_(x, "method", "reshape") else None

    def operator_matmul(self, args: Any, settings: Any, value: Any) -> Any:
        """a @ b with one matrix b, as one product of two matrices"""
        a, b = args
        if b.ndim != 2 or a.ndim < 2 or value.size == 0 or a.dtype != b.dtype:
            return None
        n = math.prod(a.shape[:-1])
        product = self.dot(self.shaped(a, (n, a.shape[-1])), b, (n, b.shape[1]))
        return self.shaped(product, value.shape)

    def method_sum(self, args: Any, settings: Any, value: Any) -> Any:
        """x.sum(axis)"""
        return self.summed(args[0], settings, value, 1.0)

    def method_mean(self, args: Any, settings: Any, value: Any) -> Any:
        """x.mean(axis)"""
        return self.summed(args[0], settings, value, value.size / max(args[0].value.size, 1))

    def summed(self, x: Expression, settings: Any, value: Any, factor: float) -> Any:
        """factor times a sum over the last axis or over all others, as a product with ones."""
        axes = settings.get("axis")
        if axes is None or settings.keys() - {"axis", "keepdims"} or not x.value.size:
            return None
        n = x.value.size // value.size
        exact = x.dtype == np.float64 or x.dtype == np.float32 and n <= SUMMED_IN_SINGLE
        if x.ndim < 2 or not exact:
            return None
        ones = self.constant(np.full(n, factor, x.dtype))
        rest, last = x.shape[:-1], x.shape[-1]
        axes = sorted(a % x.ndim for a in (axes if isinstance(axes, tuple) else (axes,)))
        if axes == [x.ndim - 1]:
            if factor == 1 and is_(x, "operator", "*") and all(same_kind(a, x) for a in x.args):
                found = self.make("call", "vecdot", x.args, {}, like(rest, x.dtype))
            else:
                rows = x.value.size // n
                found = self.dot(self.shaped(x, (rows, n)), ones, (rows,))
        elif axes == [*range(x.ndim - 1)]:
            found = self.dot(ones, self.shaped(x, (n, last)), (last,))
        else:
            return None
        return self.shaped(found, value.shape)

    def call_erf(self, args: Any, settings: Any, value: Any) -> Any:
        """erf(x) in the dtype of x, which is what `ops.erf` returns"""
        (x,) = args
        if x.dtype == value.dtype or not is_array(value):
            return None
        return self.make("call", "erf", args, {}, like(x.shape, x.dtype))

    def method_astype(self, args: Any, settings: Any, value: Any) -> Any:
        """x.astype(dtype)"""
        return args[0] if args[0].dtype == value.dtype else None


def same_kind(a: Any, x: Expression) -> bool:
    """Whether a is an array of the shape and dtype of x."""
    return isinstance(a, Expression) and a.shape == x.shape and a.dtype == x.dtype


def like(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of this shape and dtype without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)
