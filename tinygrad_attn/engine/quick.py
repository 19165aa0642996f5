"""Where a quicker way may be put in place of a function, from outside.

An op or an equation is what it says. `fast/` may register a **quick way** for it: another function
of the same arguments, which returns the same, or NotImplemented where it does not fit. In plain
mode nobody asks for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..messages.signatures import several_axes, strange_keyword, wrong_number
from .context import local

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
    quick: Any = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.__name__}>"

    def __reduce__(self) -> str:
        """Copied and pickled by name, as a function is."""
        return self.__name__


class Equation(Replaceable):
    """A function that says what is meant, and the place for a quicker one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        parameters = inspect.signature(function).parameters.values()
        self.names = frozenset(p.name for p in parameters)
        self.most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        # A call that Python would refuse in other words: dim= for axis=, or transpose(0, 1).
        if settings and not settings.keys() <= self.names:
            raise strange_keyword(self.function, self.__name__, settings)
        if len(args) > self.most and "axis" in self.names:
            raise several_axes(self.__name__, args)
        try:
            if self.quick is not None and not local.context.plain:
                y = self.quick(*args, **settings)
                if y is not NotImplemented:
                    return y
            return self.function(*args, **settings)
        except TypeError as error:
            if (told := wrong_number(self.function, self.__name__, error)) is None:
                raise
            raise told from None


def equation(function: Function) -> Function:
    """A decorator: the function says what is meant, and a quicker one may be put in its place."""
    return Equation(function)  # type: ignore[return-value]


def quick_way(replaces: Any) -> Callable[[Function], Function]:
    """A decorator: this function, or this op, is a quicker way of an equation, or of an op."""

    def register(way: Function) -> Function:
        replaces.quick = way
        ways.append(QuickWay(replaces, way))
        return way

    return register
