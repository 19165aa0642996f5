"""Run a function in plain mode, and name its values after the variables in the code.

Functions of `functional` that kernels replace, such as softmax, are recorded as module calls are.
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
    """The functions that kernels replace, by code object."""
    found = [f for module in (basic, attention) for f in vars(module).values()]
    return {inspect.unwrap(f).__code__: f for f in found if hasattr(f, "function")}


class Run:
    """A run of a function: its result, and the names of its values by id."""

    def __init__(self) -> None:
        self.result: Any = None
        self.attended: list[dict[str, Any]] = []  # the values of each attention
        self.scores: Any = None  # of the last one
        self.variables: dict[int, str] = {}
        self.arguments: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no id is reused

    def name(self, x: Any) -> str:
        """The name of the variable or argument that holds x, or an empty string."""
        return self.variables.get(id(x)) or self.arguments.get(id(x)) or ""

    def profile(self, frame: FrameType, event: str, result: Any) -> None:
        """Handle an event of `sys.setprofile`."""
        function = _functions().get(frame.f_code)
        if function and event == "call":
            call = FunctionCall(getattr(context.scope, "module", None), context.scope)
            call.title, call.equation = function.__name__, equation_of(function)
            context.scope = call
        elif function and event == "return":
            context.scope, values, code = context.scope.outer, frame.f_locals, frame.f_code
            taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            for name, x in values.items():
                if name not in MEANINGLESS:
                    self._add(self.arguments if name in taken else self.variables, x, name)
            if function is attention.attention:
                more = {"name": dotted_name(context.scope), "scores": self.scores, "output": result}
                self.attended.append(values | values["settings"] | more)
        elif event == "return" and frame.f_code is attention.masked_softmax.__code__:
            self.scores = frame.f_locals["scores"]  # with the mask added
            for name, x in frame.f_locals.items():
                self._add(self.variables, x, name)
        elif event == "return" and frame.f_code is basic.largest.__code__:
            self._add(self.variables, result, "largest of each row, a constant")

    def _add(self, names: dict[int, str], x: Any, name: str) -> None:
        if isinstance(x, (Variable, np.ndarray)):
            names.setdefault(id(x), name)
            names.setdefault(id(array_of(x)), name)
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
