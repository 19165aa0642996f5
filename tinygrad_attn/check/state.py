"""Restore what a checked function can change: modules, buffers, values that it refers to, streams.

The function's objects are found by following references from it: attributes, variables of closures,
globals that its code names, and elements of containers.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..random import get_rng_state, set_rng_state
from .backend import Array, Backend, rewrite

LIBRARIES = {"numpy", "torch", __name__.partition(".")[0]}  # their functions keep no state

STREAMS: list[Any] = [  # how to read and write the state of a random stream
    (get_rng_state, set_rng_state),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
]


@contextmanager
def restored(backend: Backend, *roots) -> Iterator[None]:
    """Restore all objects that the roots refer to, and the random streams, after the block."""
    torch: Any = sys.modules.get("torch")
    streams = [*STREAMS, (torch.get_rng_state, torch.set_rng_state)] if torch else STREAMS
    undo: list[Callable[[], None]] = [partial(write, read()) for read, write in streams]
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice
    waiting = [*roots]
    while waiting:
        x = waiting.pop()
        if id(x) not in seen:
            seen[id(x)] = x
            waiting += referred(x)
            undo += content(x, backend)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def referred(x):
    """Return the objects that x refers to, and that running x may change."""
    if isinstance(x, (dict, list, tuple)):
        return [*(x.values() if isinstance(x, dict) else x)]
    if isinstance(x, (type, ModuleType)):
        return []
    if isinstance(x, FunctionType) and x.__module__.partition(".")[0] not in LIBRARIES:
        with suppress(ValueError):  # a variable of the closure may have no value yet
            names = inspect.getclosurevars(x)
            return [*names.nonlocals.values(), *names.globals.values()]
    if isinstance(x, MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, np.random.Generator):
        return [x.bit_generator]
    return [getattr(x, "__dict__", None)]


def content(x, backend: Backend) -> list[Callable[[], None]]:
    """Return a function that restores the present content of x, if x has any, in a list."""
    if isinstance(x, backend.kind):
        return [backend.keep(x)]
    if isinstance(x, Array) and x.flags.writeable:
        return [partial(rewrite, x, x.copy())]
    if isinstance(x, (dict, list)):
        return [partial(refill, x, x.copy())]
    if isinstance(x, np.random.BitGenerator):
        return [partial(setattr, x, "state", x.state)]
    return []


def refill(container, before) -> None:
    """Restore the elements of a list or dict if they are not the same objects."""
    elements = lambda c: [*map(id, [*c, *c.values()] if isinstance(c, dict) else c)]
    if elements(container) != elements(before):
        container.clear()
        (container.update if isinstance(container, dict) else container.extend)(before)
