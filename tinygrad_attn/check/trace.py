"""Looking on while ops run: which ops, on what, inside which module, and from which line of the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable, Watcher, local
from ..messages.errors import INNER, quoted
from ..nn.scopes import dotted_name


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
        if not file.startswith(
            (*INNER, "<frozen ")
        ):  # "<frozen runpy>": Python itself, at `python -m`
            return Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Step(NamedTuple):
    """One op as it ran."""

    op: Any
    inputs: tuple
    static: dict[str, Any]
    result: Any
    scope: Any
    place: Place | None


class Trace(Watcher):
    """An observer that writes down every op (`steps`) and every contribution of a backward pass (`parts`)."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.parts: list[
            tuple[Any, Any, Any, int, Any, Any]
        ] = []  # result, node, its gradient, input number, input, contribution

    def computed(self, op: Any, inputs: tuple, static: dict[str, Any], result: Any) -> None:
        self.steps.append(Step(op, inputs, static, result, local.context.scope, origin(3)))

    def pulled(
        self, t: Any, node: Any, g: Any, index: int, x: Any, part: Any, running_sum: Any
    ) -> None:
        self.parts.append((t, node, array_of(g).copy(), index, x, array_of(part).copy()))


def array_of(x: Any) -> np.ndarray:
    """The values of a tensor, or of anything NumPy takes."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


def as_given(operands: Iterable[Any]) -> list[Any]:
    """The operands as an op's function and rules get them: arrays in place of tensors."""
    return [x._data if isinstance(x, Variable) else x for x in operands]


def scope_name(scope: Any) -> str:
    """The dotted name of the module call, seen from the outermost module called; nothing outside modules."""
    return "" if scope is None else dotted_name(scope)
