"""NumPy's running values, such as `cumsum`: one result for all elements up to each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...messages.errors import describe
from .common import axes_of, converted, plain, rule, tensor
from .shapes import _concatenate, _moveaxis


@rule(np.cumsum)
def _cumsum(a, axis=None):
    return ops.cumsum(a, axis=axis)


@rule(np.cumprod)
def _cumprod(a, axis=None):
    return ops.cumprod(a, axis=axis)


@rule(np.nancumsum)
def _nancumsum(a, axis=None):
    return ops.cumsum(ops.where(np.isnan(plain(a)), 0, a), axis=axis)


@rule(np.nancumprod)
def _nancumprod(a, axis=None):
    return ops.cumprod(ops.where(np.isnan(plain(a)), 1, a), axis=axis)


def _cumulative(name: str, function: Callable, neutral: int) -> Callable:
    """The rule of the array API's name, which may begin with the sum or product of nothing."""

    def running(x, axis=None, include_initial=False):
        x = np.atleast_1d(x)
        if axis is None and x.ndim != 1:
            raise ValueError(
                f"np.{name} runs along one axis: say axis=, which of those of {describe(x)}."
            )
        (axis,) = axes_of(x, 0 if axis is None else axis)
        y = function(x, axis)
        if not include_initial:
            return y
        first = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), neutral, y.dtype)
        return _concatenate([first, y], axis)

    return running


if hasattr(np, "cumulative_sum"):  # NumPy 2.1
    rule(np.cumulative_sum)(_cumulative("cumulative_sum", _cumsum, 0))
    rule(np.cumulative_prod)(_cumulative("cumulative_prod", _cumprod, 1))


def _extremes(ufunc: Any, x: Any, *, axis: int) -> Any:
    """The running maximum or minimum.

    Of several equal elements the last one gets the gradient, as in torch.cummax.
    """
    values = plain(x)
    places = np.arange(values.shape[axis]).reshape(
        [-1 if i == axis else 1 for i in range(values.ndim)]
    )
    reached = (values == ufunc.accumulate(values, axis)) | np.isnan(values)
    last = np.maximum.accumulate(np.where(reached, places, 0), axis)
    return ops.take_along_axis(x, indices=last, axis=axis)


def _scan(ufunc: Any, x: Any, *, axis: int) -> Any:
    """x_0, f(x_0, x_1), f(f(x_0, x_1), x_2), ... for an associative f.

    After each round every result combines twice as many elements as before it.
    """
    x, done = _moveaxis(x, axis, -1), 1
    while done < x.shape[-1]:
        x = _concatenate([x[..., :done], ufunc(x[..., :-done], x[..., done:])], -1)
        done *= 2
    return _moveaxis(x, -1, axis)


RUNNING: dict[Any, Callable] = {np.add: ops.cumsum, np.multiply: ops.cumprod}
RUNNING |= {ufunc: functools.partial(_scan, ufunc) for ufunc in (np.logaddexp, np.logaddexp2)}
RUNNING |= {ufunc: functools.partial(_extremes, ufunc) for ufunc in (np.maximum, np.minimum)}


def accumulate(ufunc: Any, array: Any, axis: int = 0, dtype: Any = None) -> Any:
    """np.add.accumulate(t), the running sum, and the like."""
    x = converted(f"{ufunc.__name__}.accumulate", tensor(array), dtype)
    # NumPy raises its errors for a single number, and for an axis that is not there.
    ufunc.accumulate(np.empty((1,) * x.ndim, x.dtype), axis)
    (axis,) = axes_of(x, axis)
    return RUNNING[ufunc](x, axis=axis)
