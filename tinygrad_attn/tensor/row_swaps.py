"""Rows that overwrite each other: `x[i], x[j] = x[j], x[i]`, as random.shuffle(x) does it.

A row x[i] is a view: it shows the memory of x, and what is written there later. In a swap both rows
are taken first, so the first assignment changes the row that the second one writes back, and one
of the two is there twice. NumPy and PyTorch let it happen; here it is an error.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

_views: deque[weakref.ref[Any]] = deque(maxlen=2)
"""The two tensors that were taken last as views of others: a swap needs no more."""

_overwritten: deque[weakref.ref[Any]] = deque(maxlen=2)
"""Views that have been written over since they were taken."""


def took(view: Any) -> Any:
    """Remember a view that was taken of a tensor outside the graph."""
    if view._data.__class__ is np.ndarray and view._data.ndim and view._data.base is not None:
        _views.append(weakref.ref(view))
    return view


def check_swap(t: Any, index: Any, value: Any) -> None:
    """Called before t[index] = value: ValueError if value is half of a swap."""
    views = [view for ref in _views if (view := ref()) is not None]
    if not views:
        return
    written = t._data[index]
    hit = [v for v in views if v is not value and np.may_share_memory(v._data, written)]
    newer_is_hit = hit and hit[-1] is views[-1] is not value and views[0] is value
    if newer_is_hit or any(ref() is value for ref in _overwritten):
        raise ValueError(
            "x[i], x[j] = x[j], x[i], as random.shuffle(x) has it, would put one row in both "
            "places, since x[i] and x[j] show the memory that is written to. Write x[[i, j]] = "
            "x[[j, i]] to swap, x = x[ta.random.randperm(len(x))] to shuffle, or take the rows "
            "with x[i].copy()."
        )
    _overwritten.extend(map(weakref.ref, hit))
