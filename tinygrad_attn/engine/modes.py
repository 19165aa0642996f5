"""What is true for one thread: are ops recorded, is the mode plain, inside which module call, and
who looks on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class State(threading.local):
    """The settings of one thread."""

    def __init__(self) -> None:
        self.recording = True  # False inside `with no_grad():`
        # The no_grad block of a checkpoint's first run, whose ops are recorded when it runs again.
        self.rehearsal: Any = None
        self.plain = os.environ.get("TINYGRAD_ATTN_PLAIN", "") not in ("", "0")
        self.scope: Any = None  # the module call that is running
        self.watchers: tuple[Any, ...] = ()
        self.blocks: list[tuple[Any, bool, bool]] = []  # open `with` blocks; see recording.py


def rehearsing() -> bool:
    """Is nothing recorded here only because a checkpointed function is run, which comes again?"""
    here = context
    blocks = here.blocks
    return here.rehearsal is not None and bool(blocks) and blocks[-1][0] is here.rehearsal


context = State()

everywhere: list[Any] = []
"""The watchers of all threads: the one that finds changes in place, see changes.py."""


class Watcher:
    """Is told of every op and of every rule. It computes nothing that a result needs."""

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """An op has made this tensor."""

    def pulling(self, y: Any, g: Any) -> None:
        """The gradient by y, g, is complete, and the rules of its op come next."""

    def pulled(self, y: Any, record: Any, g: Any, i: int, x: Any, share: Any, total: Any) -> None:
        """A rule has given input i, the tensor x, its share; `total` is the sum of its shares so
        far.
        """

    def finished(self, tensors: Any) -> None:
        """A backward pass has given these tensors their gradients."""


@contextmanager
def watching(watcher: Any) -> Iterator[Any]:
    """Let the watcher look on inside the block, in this thread; nested ones each see everything."""
    here = context
    before = here.watchers
    within = here.watchers = (*before, watcher)
    try:
        yield watcher
    finally:
        # An interrupt comes at a call and would leave the watcher there, so the usual end calls
        # nothing.
        here.watchers = (
            before
            if here.watchers is within
            else tuple(other for other in here.watchers if other is not watcher)
        )
