"""Per-thread settings: recording, plain mode, the running module, watchers and transforms."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any, Self, TypeVar, overload

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Context(threading.local):
    """The settings of the current thread."""

    def __init__(self) -> None:
        self.recording = True  # False inside no_grad()
        self.plain = os.environ.get("TINYGRAD_ATTN_PLAIN", "") not in ("", "0")
        self.scope: Any = None  # the module call that is running
        self.watchers: tuple[Any, ...] = ()
        self.depth = 0  # the number of transforms, such as vjp, that enclose the running code


context = Context()


class Watcher:
    """An observer of ops and backward passes. It never affects a result."""

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Called after an op has computed `output`."""

    def pulling(self, y: Any, g: Any) -> None:
        """Called when the gradient g of y is complete, before the VJPs of y's op run."""

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        """Called after a VJP has added to the gradient of x, input i; total is the sum so far."""

    def finished(self, tensors: Any) -> None:
        """Called after a backward pass has computed the gradients of these tensors."""


@contextmanager
def watching(watcher: Any) -> Iterator[Any]:
    """Let the watcher observe this thread inside the block."""
    before = context.watchers
    context.watchers = (*before, watcher)
    try:
        yield watcher
    finally:
        context.watchers = before


class _Mode(ContextDecorator):
    """A context manager and decorator that changes one setting of the current thread."""

    _setting: str
    _value: bool

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: _Function) -> _Function: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        mode = super().__new__(cls)
        return mode if function is None else mode(function)  # a decorator without parentheses

    def _recreate_cm(self) -> Self:  # each call of a decorated function is its own block
        return type(self)()

    def __enter__(self) -> None:
        self._before = getattr(context, self._setting)
        setattr(context, self._setting, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(context, self._setting, self._before)

    def __call__(self, function: _Function) -> _Function:
        if not inspect.isgeneratorfunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Any:
            """Run each step of the generator in this mode, but not the code that consumes it."""
            generator = function(*args, **kwargs)
            while True:
                with type(self)():
                    try:
                        item = next(generator)
                    except StopIteration as end:
                        return end.value
                yield item

        return steps  # type: ignore[return-value]


class no_grad(_Mode):
    """Disable recording, so that ops compute values without building a graph.

    It works as a context manager or a decorator, and affects only the current thread.
    """

    _setting, _value = "recording", False


class enable_grad(_Mode):
    """Enable recording, even inside `no_grad`."""

    _setting, _value = "recording", True


class plain(_Mode):
    """Run reference functions instead of kernels; nothing in `tinygrad_attn/fast/` is used.

    Softmax, layer norm and attention then run as the compositions of ops in `functional`, so
    debuggers, graph pictures and backward steps show each op. Results are the same up to rounding.
    The environment variable `TINYGRAD_ATTN_PLAIN=1` sets plain mode for the whole process.
    """

    _setting, _value = "plain", True


def is_plain() -> bool:
    """Return whether this thread is in plain mode."""
    return context.plain
