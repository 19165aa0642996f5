"""Run a function in plain mode, and keep what its values are called in the code that made them.

The functions of `functional` that kernels replace, such as softmax, count as calls around their
ops, as modules do. Their variables (`q`, `scores`, `weights`) name the boxes of a picture.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..engine import Variable, context, plain
from ..functional import attention, basic
from ..nn.scopes import Scope, dotted_name
from .rules import equation_of

MEANINGS = {basic.largest.__code__: "largest of each row, a constant"}
"""Names for the results of helpers that the code gives no name."""
MEANINGLESS = ("x", "y", "packed", "heads")


class FunctionCall(Scope):
    """A call of a function, among the module calls around an op."""

    __slots__ = ("function",)
    function: Any

    @property
    def title(self) -> str:
        """The function's name."""
        return str(self.function.__name__)

    @property
    def equation(self) -> str:
        """What it computes."""
        return equation_of(self.function)


@cache
def _functions() -> dict[CodeType, Any]:
    """The functions that kernels replace, by their code."""
    found = [f for module in (basic, attention) for f in vars(module).values()]
    return {inspect.unwrap(f).__code__: f for f in found if hasattr(f, "function")}


class Run:
    """One run of a function: what it returned, and the names of its values by their ids."""

    def __init__(self) -> None:
        self.result: Any = None
        self.attended: list[tuple[str, dict[str, Any]]] = []  # module and arguments of attention
        self.variables: dict[int, str] = {}
        self.arguments: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no id is used again

    def name(self, x: Any) -> str:
        """The name of a value: that of a variable, or else of an argument; or empty."""
        return self.variables.get(id(x)) or self.arguments.get(id(x)) or ""

    def profile(self, frame: FrameType, event: str, result: Any) -> None:
        """Follow calls and returns, as sys.setprofile reports them."""
        code = frame.f_code
        if event == "call" and code in _functions():
            call = FunctionCall()
            call.function, call.outer = _functions()[code], context.scope
            call.module = getattr(context.scope, "module", None)
            if call.function is attention.attention:
                self.attended.append((dotted_name(call.outer), dict(frame.f_locals)))
            context.scope = call
        elif event == "return" and code in _functions():
            context.scope = context.scope.outer
            taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            for name, x in frame.f_locals.items():
                if name not in MEANINGLESS:
                    self._add(self.arguments if name in taken else self.variables, x, name)
        elif event == "return" and code in MEANINGS:
            self._add(self.variables, result, MEANINGS[code])

    def _add(self, names: dict[int, str], x: Any, name: str) -> None:
        if isinstance(x, (Variable, np.ndarray)):
            names.setdefault(id(x), name)
            names.setdefault(id(getattr(x, "_data", x)), name)
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
