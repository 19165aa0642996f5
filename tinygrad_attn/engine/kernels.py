"""Where a quicker way may be put in place of a function, from outside.

An op or an equation is what it says. `fast/` may register a **quick way** for it: another function
of the same arguments, which returns the same, or NotImplemented where it does not fit. In plain
mode nobody asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..messages.signatures import of_the_call, own_names
from .modes import context

Function = TypeVar("Function", bound=Callable[..., Any])


class QuickWay(NamedTuple):
    """What is replaced, and by what: a function of the same arguments, or an op."""

    replaces: Any
    way: Any


ways: list[QuickWay] = []
"""All that have been registered."""


when_loaded: dict[str, Callable[[], Any]] = {}
"""By the name of a room that is loaded late: what puts its quick ways in place once it is there."""


def loaded(room: str) -> None:
    """Said by such a room when it is there."""
    if room in when_loaded:
        when_loaded[room]()


step_aside: list[Callable[[bool], Any]] = []
"""What is called with True before a thread goes into plain mode, and with False after it has left
it.
"""


class Replaceable:
    """What stands where a function would stand, and has a place for a quicker one."""

    __name__: str
    kind = "function"
    kernel: Any = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.__name__}>"

    def __reduce__(self) -> str:
        """Copied and pickled by name, as a function is."""
        return self.__name__


class Reference(Replaceable):
    """A function that says what is meant, and the place for a quicker one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = own_names(function)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if self.kernel is not None and not context.plain:
            try:
                y = self.kernel(*args, **settings)
            except TypeError as error:
                if not of_the_call(error):
                    raise
                y = NotImplemented  # and the function says what is wrong with the call
            if y is not NotImplemented:
                return y
        return self.function(*args, **settings)


def reference(function: Function) -> Function:
    """A decorator: the function says what is meant, and a quicker one may be put in its place."""
    return Reference(function)  # type: ignore[return-value]


def kernel(replaces: Any) -> Callable[[Function], Function]:
    """A decorator: this function, or this op, is a quicker way of an equation, or of an op."""

    def register(way: Function) -> Function:
        replaces.kernel = way
        ways.append(QuickWay(replaces, way))
        return way

    return register
