"""Run a function in plain mode, and name its values after the variables in the code.

Functions that kernels replace outside plain mode, such as softmax, are recorded like module calls.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..engine import Variable, array_of, context, plain
from ..functional import attention, basic
from ..nn.calls import Scope, dotted_name
from .rules import equation_of

MEANINGLESS = ("x", "y", "packed", "heads")


class FunctionCall(Scope):
    """A call of a function, recorded like the call of a module."""

    __slots__ = ("title", "equation")
    title: str
    equation: str


@cache
def _functions() -> dict[CodeType, Any]:
    """Return the functions that kernels replace, keyed by code object."""
    found = [f for module in (basic, attention) for f in vars(module).values()]
    return {inspect.unwrap(f).__code__: f for f in found if hasattr(f, "function")}


class Run:
    """A run of a function: its result, and the names of its values by id."""

    def __init__(self) -> None:
        self.result: Any = None
        self.attended: list[dict[str, Any]] = []  # the values of each attention call
        self.scores: Any = None  # of the last one
        self.names: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no id is reused

    def profile(self, frame: FrameType, event: str, result: Any) -> None:
        """Handle an event of `sys.setprofile`."""
        function = _functions().get(frame.f_code)
        if function and event == "call":
            call = FunctionCall(getattr(context.scope, "module", None), context.scope)
            call.title, call.equation = function.__name__, equation_of(function)
            context.scope = call
        elif function and event == "return":
            context.scope, values = context.scope.outer, frame.f_locals
            self._add(values)
            if function is attention.attention:
                more = {"name": dotted_name(context.scope), "scores": self.scores}
                self.attended.append(values | values["settings"] | more)
        elif event == "return" and frame.f_code is attention.masked_softmax.__code__:
            self.scores = frame.f_locals["scores"]  # with the mask added
            self._add(frame.f_locals)
        elif event == "return" and frame.f_code is basic.largest.__code__:
            self._add({"largest of each row, a constant": result})

    def _add(self, values: dict[str, Any]) -> None:
        for name, x in values.items():
            if isinstance(x, (Variable, np.ndarray)) and name not in MEANINGLESS:
                self.names.setdefault(id(x), name)
                self.names.setdefault(id(array_of(x)), name)
                self.kept.append(x)


def run_plainly(function: Callable[..., Any], *inputs: Any) -> Run:
    """Call a function in plain mode."""
    run, before, scope = Run(), sys.getprofile(), context.scope
    with plain():
        sys.setprofile(run.profile)
        try:
            run.result = function(*inputs)
        finally:
            sys.setprofile(before)
            context.scope = scope
    return run
