"""`no_grad`, `enable_grad` and `plain`: `with` blocks and decorators that set what holds in this
thread.

The two small difficulties are generators, which are left and entered again in the middle of a
block, and interrupts, which may come at any call. So a block is entered and left without a call,
and a decorated generator finds its own blocks again at each of its turns.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import ContextDecorator
from typing import Any, Self, overload

from ..messages.errors import describe
from ..messages.signatures import Function as _Function  # `Function` itself is PyTorch's name
from ..messages.signatures import NeedsBrackets
from .kernels import step_aside
from .modes import context


class _Block(ContextDecorator, metaclass=NeedsBrackets):
    """Sets what holds in this thread inside a `with` block or a decorated function."""

    _recording: bool | None = None  # None: as it was
    _plain: bool | None = None
    _turn: Any = None  # the turn of a decorated generator that ended with this block still open

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: _Function) -> _Function: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)  # as a decorator, without parentheses

    def _recreate_cm(self) -> Any:  # ContextDecorator's own uses one object for all calls
        return type(self)()

    def __call__(self, function: _Function) -> _Function:
        title = type(self).__name__
        if not callable(function):
            raise TypeError(
                f"{title} takes nothing but, as a decorator, a function; got {describe(function)}. "
                f"Write `with {title}():`."
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__name__", describe(function))  # a partial has none
            raise TypeError(
                f"{name} is async: it would run after the call that is decorated. Write `with "
                f"{title}():` inside, around what does not await."
            )
        if inspect.isgeneratorfunction(function):
            return self._between_yields(function)
        return super().__call__(function)

    def _between_yields(self, function: Any) -> Any:
        """A generator function whose steps run in the setting, while its user does not."""

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            advance, value = generator.send, None
            turn = _Turn(self)
            while True:
                try:
                    with turn:
                        item = advance(value)
                except StopIteration as end:
                    return end.value
                finally:
                    value = (
                        None  # an error's traceback holds this frame, and would be a cycle with it
                    )
                try:
                    advance, value = generator.send, (yield item)
                except GeneratorExit:
                    with turn:
                        generator.close()
                    raise
                except BaseException as error:
                    advance, value = generator.throw, error

        return steps

    def __enter__(self) -> None:
        here = context
        new, plain = self._recording, self._plain
        here.blocks = [*here.blocks, (self, here.recording, here.plain)]
        here.recording = here.recording if new is None else new
        here.plain = here.plain if plain is None else plain

    def __exit__(self, *_: object) -> None:
        here = context
        if here.blocks and here.blocks[-1][0] is self:  # nearly always, and again without a call
            *here.blocks, (_, here.recording, here.plain) = here.blocks
            return
        # A block begun in a decorated generator may end after the generator has yielded: then it
        # is in the list of that turn.
        for place in here, self._turn:
            at = _last(self, place)
            if at >= 0:
                _, recording, plain = place.blocks.pop(at)
                if at == len(place.blocks):
                    place.recording, place.plain = recording, plain
                else:  # those opened after it, in another generator say, stay open
                    place.blocks[at] = place.blocks[at][0], recording, plain
                return
        title = type(self).__name__
        raise RuntimeError(
            f"this `with {title}():` was entered in another thread, which is left in it. A "
            f"generator that threads share has @{title}() above its def instead, which holds only "
            "while it runs."
        )


def _last(owner: Any, place: Any) -> int:
    """Where the latest open block of this owner stands in a thread's list, or in a generator's; -1
    for nowhere.
    """
    opened = [i for i, block in enumerate(place.blocks) if block[0] is owner] if place else []
    return opened[-1] if opened else -1


class _Turn:
    """A generator's turn: it finds its own blocks as it left them, and afterwards its user finds
    theirs.
    """

    def __init__(self, block: _Block) -> None:
        self.recording, self.plain = block._recording, block._plain
        self.blocks = list[tuple[Any, bool, bool]]()

    def __enter__(self) -> None:
        here = context
        here.blocks = [*here.blocks, (self, here.recording, here.plain), *self.blocks]
        here.recording = here.recording if self.recording is None else self.recording
        here.plain = here.plain if self.plain is None else self.plain

    def __exit__(self, *_: object) -> None:
        here = context
        at = _last(self, here)
        self.blocks, self.recording, self.plain = here.blocks[at + 1 :], here.recording, here.plain
        _, here.recording, here.plain = here.blocks[at]
        del here.blocks[at:]
        for opened in self.blocks:
            opened[0]._turn = self


class no_grad(_Block):
    """Inside, ops compute and remember nothing.

    A context manager, and a decorator of functions and of generators; it holds for the thread that
    enters it.
    """

    _recording = False


class enable_grad(_Block):
    """Inside, ops are recorded even within `no_grad`; used as that is."""

    _recording = True


class plain(_Block):
    """Inside, the code that runs is the code that teaches: nothing of `tinygrad_attn/fast/`.

    The sweep as engine/sweep.py states it, the ops' own functions and rules, and the equations of
    softmax, layer norm or attention as composites of ops, so that a debugger, a picture of the
    graph or the steps of a backward pass show each of them. The numbers are the same up to
    rounding. A context manager and a decorator for the thread that enters it;
    `TINYGRAD_ATTN_PLAIN=1` in the environment does it for a whole process.
    """

    _plain = True

    def __enter__(self) -> None:
        for hook in step_aside:
            hook(True)
        super().__enter__()

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        for hook in step_aside:
            hook(False)


def is_plain() -> bool:
    """Is this thread in plain mode? See `plain`."""
    return context.plain
