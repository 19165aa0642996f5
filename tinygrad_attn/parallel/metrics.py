"""What is told about training, over all ranks: means of losses, counts of right answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import describe
from .group import group


def _array(values: Any) -> Any:
    """The numbers as an array. None, which NumPy takes for NaN, is refused, and so are texts."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"what the ranks put together are numbers, got {describe(values)}.")
    return array


def _number(value: Any) -> float:
    return float(_array(value) if value is None or isinstance(value, str) else value)


def mean(values: Any, weight: float = 1.0, *, comm: Any = None) -> Any:
    """sum(weight * value) / sum(weight) over the ranks: a number, an array, or a dict of numbers.

        told = parallel.mean({"loss": loss.item(), "accuracy": right.mean()}, weight=len(right))

    A rank of weight 0 does not count, whatever its value. Computed in float64, the same on every
    rank. A collective.
    """
    if isinstance(values, Mapping):
        call = f"mean of {', '.join(values)}"
        numbers = mean_of(call, np.array([_number(v) for v in values.values()]), weight, comm)
        return dict(zip(values, numbers.tolist(), strict=True))
    array = _array(values).astype(np.float64)
    found = mean_of("mean()", array, weight, comm)
    return found if array.ndim else float(found)


def mean_of(call: str, array: Any, weight: float, comm: Any) -> Any:
    """The weighted mean of an array of float64."""
    rows = group(comm).gather(call, np.append(array.reshape(-1), weight))
    weights = rows[:, -1:]
    known = np.where(weights == 0, 0, rows[:, :-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((weights * known).sum(axis=0) / weights.sum()).reshape(array.shape)


def total(values: Any, *, comm: Any = None) -> Any:
    """The sum over the ranks: a number, an array, or a dict of numbers. A collective."""
    if isinstance(values, Mapping):
        numbers = np.array([_number(v) for v in values.values()])
        rows = group(comm).gather(f"total of {', '.join(values)}", numbers)
        return dict(zip(values, rows.sum(axis=0).tolist(), strict=True))
    array = _array(values)
    found = group(comm).gather("total()", array).sum(axis=0).reshape(array.shape)
    return found if array.ndim else found.item()
