"""Looking on while ops run: which, on what, inside which module, from which line of the user's."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ..engine import Watcher, context, tracked
from ..messages.errors import INNER, quoted
from ..nn.scopes import dotted_name
from .records import Call, has_rules


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return quoted(self.file, self.line)


def origin(depth: int = 1) -> Place | None:
    """The innermost line on the stack that belongs neither to this package nor to NumPy."""
    frame = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        # "<frozen runpy>" is Python itself, which starts a program at `python -m`.
        if not file.startswith((*INNER, "<frozen ")):
            return Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Step(NamedTuple):
    """One op as it ran."""

    op: Any
    inputs: tuple
    settings: dict[str, Any]
    result: Any
    scope: Any
    place: Place | None

    @property
    def name(self) -> str:
        return self.op.__name__

    @property
    def module(self) -> str:
        return scope_name(self.scope)

    @property
    def recorded(self) -> bool:
        """Does the gradient pass through this op?"""
        return tracked(self.result)

    @property
    def differentiable(self) -> bool:
        return self.recorded and has_rules(self.op)

    def again(self, **change: Any) -> Call:
        """The op called with the operands as they are now, or with others."""
        return Call(self.op, self.inputs, self.settings, None).again(**change)


class Trace(Watcher):
    """A watcher that lists every op."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        scope = context.scope
        self.steps.append(Step(op, inputs, settings, result, scope, origin(3)))


def scope_name(scope: Any) -> str:
    """The dotted name of the module call, seen from the outermost one; empty outside modules."""
    return "" if scope is None else dotted_name(scope)
