"""Restore what a checked function can change: objects that it refers to, and random streams."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..program.restore import reachable
from ..random import get_rng_state, set_rng_state
from ..tree import copied, refill
from .backend import Array, Backend, rewrite

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
    for x in reachable(roots):
        undo += content(x, backend)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def content(x, backend: Backend) -> list[Callable[[], None]]:
    """Return a function that restores the present content of x, if x has any, in a list."""
    if isinstance(x, backend.kind):
        return [backend.keep(x)]
    if isinstance(x, Array) and x.flags.writeable:
        return [partial(rewrite, x, x.copy())]
    if isinstance(x, (dict, list)):
        return [partial(refill, x, copied(x))]
    if isinstance(x, np.random.BitGenerator):
        return [partial(setattr, x, "state", x.state)]
    return []
