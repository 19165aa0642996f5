"""NumPy's running values, such as `cumsum`: one result for all elements up to each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...messages.errors import describe
from .common import FUNCTIONS, axes_of, cast, plain, refuse, refuse_whole, rule, tensor
from .reductions import without_nan
from .shapes import _concatenate, _moveaxis


@rule(np.cumsum)
def _cumsum(a, axis=None, dtype=None, out=None):
    refuse("cumsum", out=out)
    refuse_whole("cumsum", dtype, a)
    return ops.cumsum(cast(a, dtype), axis=axis)


@rule(np.cumprod)
def _cumprod(a, axis=None, dtype=None, out=None):
    refuse("cumprod", out=out)
    refuse_whole("cumprod", dtype, a)
    return ops.cumprod(cast(a, dtype), axis=axis)


FUNCTIONS |= {np.nancumsum: without_nan(_cumsum, 0.0), np.nancumprod: without_nan(_cumprod, 1.0)}


def _cumulative(
    name: str,
    function: Any,
    first: int,
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    """The array API's names for the same, which may begin with the sum or product of nothing."""
    x = np.atleast_1d(x)
    if axis is None and x.ndim != 1:
        raise ValueError(
            f"np.{name} runs along one axis: say axis=, which of those of {describe(x)}."
        )
    (axis,) = axes_of(x, 0 if axis is None else axis)
    y = function(x, axis, dtype, out)
    beginning = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), first, y.dtype)
    return _concatenate([beginning, y], axis) if include_initial else y


if hasattr(np, "cumulative_sum"):  # NumPy 2.1
    FUNCTIONS |= {
        np.cumulative_sum: functools.partial(_cumulative, "cumulative_sum", _cumsum, 0),
        np.cumulative_prod: functools.partial(_cumulative, "cumulative_prod", _cumprod, 1),
    }


def _extremes(ufunc: Any, x: Any, *, axis: int) -> Any:
    """The running maximum or minimum.  Of several equal ones the last gets the gradient, as in torch.cummax."""
    values = plain(x)
    places = np.arange(values.shape[axis]).reshape(
        [-1 if i == axis else 1 for i in range(values.ndim)]
    )
    reached = (values == ufunc.accumulate(values, axis)) | np.isnan(values)
    return ops.take_along_axis(
        x, indices=np.maximum.accumulate(np.where(reached, places, 0), axis), axis=axis
    )


def _scan(ufunc: Any, x: Any, *, axis: int) -> Any:
    """x_0, f(x_0, x_1), f(f(x_0, x_1), x_2), ... for an f that may be bracketed otherwise: in each round of twice as many."""
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
    refuse_whole(f"{ufunc.__name__}.accumulate", dtype, array)
    x = cast(tensor(array), dtype)
    ufunc.accumulate(
        np.empty((1,) * x.ndim, x.dtype), axis
    )  # NumPy's errors for a number, and for an axis that is not there
    (axis,) = axes_of(x, axis)
    return RUNNING[ufunc](x, axis=axis)
