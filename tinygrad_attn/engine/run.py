"""The run: everything besides its arguments that a computation depends on.

Each thread has its own run, in `context`. A run is a value. `captured` returns its settings, and
`entered` continues with them, which is how a checkpoint repeats a call. Nothing else sees or
changes a run: listeners hear of events and change nothing, and what changes a result is a function
in the graph (`Tensor.register_hook`) or in a module's call (a hook or a patch).
"""

import inspect
import os
import threading
from collections.abc import Callable
from contextlib import ContextDecorator, contextmanager
from typing import Any, Self, TypeVar, overload

_Function = TypeVar("_Function", bound=Callable[..., Any])

VALUES_ONLY = "values only"
"""The value of `recording` in the first run of a checkpoint: nodes keep no inputs."""


def new_lock():
    """Return a lock that nobody holds when the process forks, so that no child waits for it."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        release = lock.release
        os.register_at_fork(before=lock.acquire, after_in_parent=release, after_in_child=release)
    return lock


class Context(threading.local):
    """The run of the current thread."""

    def __init__(self):
        self.recording = True  # False inside no_grad(); or VALUES_ONLY
        self.plain = os.environ.get("TINYGRAD_ATTN_PLAIN", "") not in ("", "0")
        self.scope = None  # the module call that is running
        self.in_transform = False  # whether a function runs that a transform, like vjp, has called
        self.listeners: tuple = ()
        self.patches: tuple = ()  # (module, function of its output), see ta.patch
        self.replaced = ()  # modules whose tensors functional_call replaces
        self.noted_draws = None  # the random numbers, in a checkpoint's two runs
        self.repeated = None  # in a checkpoint, the tensors that its first run has used
        self.backward_pass = None  # the Pass that is running
        # each no_grad() and similar, and the value that it will restore
        self.blocks = {"recording": [], "plain": []}

    def captured(self):
        """Return the settings of this run, for `entered`."""
        return dict(self.__dict__)

    @contextmanager
    def entered(self, **settings):
        """Use other settings inside the block."""
        before = self.captured()
        self.__dict__.update(settings)
        try:
            yield
        finally:
            self.__dict__.update({name: before[name] for name in settings})

    @contextmanager
    def added(self, name, *entries):
        """Add entries to a tuple inside the block. Blocks may end in another order or thread."""
        here = self.__dict__  # of this thread; a block of a generator may end in another
        here[name] = (*here[name], *entries)
        try:
            yield
        finally:
            here[name] = tuple(x for x in here[name] if all(x is not y for y in entries))


context = Context()


class Listener:
    """Hears of events in this thread. It never affects a result.

    Arrays in events may change later, so a listener copies what it keeps.
    """

    hears_repeats = False  # whether it also hears of the second run of a checkpoint

    def computed(self, op, inputs, settings, output):
        """Called after an op has computed `output`."""

    def calling(self, module):
        """Called before a module is called, or its parameters are replaced for a while."""

    def changing(self, module, name):
        """Called before an attribute of a module changes."""

    def returned(self, module, output):
        """Called after a module has returned `output`."""

    def attended(self, scope, weights):
        """Called with the weights (B, H, T, S) of each attention module."""

    def pulling(self, y, g):
        """Called when the gradient g of y is complete, before the VJPs of y's op run."""

    def pulled(self, y, node, g, i, x, contribution, total):
        """Called after a VJP has added to the gradient of x, input i; total is the sum so far."""

    def replaced(self, x, before, after):
        """Called after a hook has returned another gradient of x, or `Parts` of a bundle."""

    def repeated(self):
        """Return what makes a listener for each second run of a checkpoint that starts now."""


def heard(event):
    """Return the methods of this thread's listeners that hear of an event."""
    return context.listeners and [
        getattr(x, event)
        for x in context.listeners
        if getattr(type(x), event) is not getattr(Listener, event)
    ]


@contextmanager
def listening(listener):
    """Let the listener hear of events in this thread inside the block."""
    with context.added("listeners", listener):
        yield listener


class _Mode(ContextDecorator):
    """A context manager and decorator that changes one setting of the current thread."""

    _setting: str
    _value: bool
    _runs: dict[int, dict[str, Any]]

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: _Function) -> _Function: ...  # type: ignore[misc]
    def __new__(cls, function=None) -> Any:
        mode = super().__new__(cls)
        mode._runs = {}  # those in which its blocks have begun, by id; each thread changes its own
        return mode if function is None else mode(function)  # a decorator without parentheses

    def __enter__(self) -> None:
        # The run, not this object, remembers the value before: blocks nest, also of one object.
        here = context.__dict__
        self._runs[id(here)] = here
        here["blocks"][self._setting].append((self, here[self._setting]))
        here[self._setting] = self._value

    def __exit__(self, *_: object) -> None:
        here = context.__dict__
        if id(here) not in self._runs:  # This block is a generator's, and began in another thread.
            if len(self._runs) != 1:
                return  # in which thread, nobody knows
            (here,) = self._runs.values()
        blocks = here["blocks"][self._setting]
        last = max(i for i, (block, _) in enumerate(blocks) if block is self)
        _, before = blocks.pop(last)
        if all(block is not self for block, _ in blocks):
            self._runs.pop(id(here), None)
        if blocks[last:]:  # This block is a generator's, and another began inside it.
            blocks[last] = blocks[last][0], before
        else:
            here[self._setting] = before

    def __reduce__(self):
        return type(self), ()  # A copy has no blocks.

    def __call__(self, function: _Function) -> _Function:
        later = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in (inspect.isclass, *later)):
            name = type(self).__name__
            raise TypeError(
                f"{name} cannot decorate {getattr(function, '__name__', function)!r}, whose body "
                f"runs after the call. Decorate the methods of a class. Write `with ta.{name}():` "
                "inside the function, between two yields."
            )
        return super().__call__(function)


class no_grad(_Mode):
    """Disable recording, so that ops compute values without building a graph.

    It works as a context manager or a decorator, and affects only the current thread. Raises
    TypeError as the decorator of a generator or coroutine.
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
