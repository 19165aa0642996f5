"""What a box says: an op with its result, a leaf, a folded module call, a folded run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import Variable
from ..nn.module import Parameter
from . import fold, labels
from .fold import Siblings, Unit
from .model import Box
from .trace import Names

RELEASED = "backward() released this graph; draw before it, or call backward(retain_graph=True)"


class Words:
    """Writes the boxes of one picture; knows names, how often each tensor is used, and which siblings are one."""

    def __init__(self, names: Names, uses: dict[int, int], siblings: Siblings | None) -> None:
        self.names, self.uses = names, uses
        self.rolled = siblings.times if siblings else {}

    def is_parameter(self, x: Any) -> bool:
        return isinstance(x, Parameter) or id(x) in self.names.tensors

    def call(self, scope: Any) -> list[str]:
        """A module call's dotted name if it has one, its class, and how many alike calls it stands for."""
        kind, name = type(scope.module).__name__, self.names.module(scope)
        if id(scope) not in self.rolled:
            return [name, kind] if name else [kind]
        times, last = self.rolled[id(scope)]
        until = self.names.module(last)
        return [
            f"{name} .. {until}" if name != until else name or kind,
            *([kind] if name else []),
            f"x{times}",
        ]

    def heading(self, scope: Any) -> str:
        """The line over a module call whose inside is drawn."""
        return " ".join(self.call(scope)) + (
            ", the first is drawn" if id(scope) in self.rolled else ""
        )

    def op(self, t: Variable) -> Box:
        node = t._record
        released = [RELEASED] if node.op is None else []  # type: ignore[union-attr]
        title, settings = _title(t)
        values = labels.value(t._data, labels.gradient(t))
        return Box("op", title, [*released, *settings, *values, *self._times_used(t)])

    def leaf(self, x: Any) -> Box:
        t = x if isinstance(x, Variable) else None
        if t is None and not isinstance(x, np.ndarray):
            return Box("input", f"{x:.8g}" if isinstance(x, float) else str(x))
        array, grad = (x, None) if t is None else (t._data, labels.gradient(t))
        kind = "parameter" if self.is_parameter(x) else "input"
        title = self.names.leaf(x) or ("constant" if t is None else str(t.name or kind))
        if kind == "parameter" and array.size > labels.SMALL:
            lines = [f"{labels.shape(array)} {array.dtype}", *labels.size_of(grad)]
        else:
            lines = labels.value(array, grad)
        in_grad = labels.alarm(grad)
        alarm = labels.alarm(array) or (f"{in_grad} in the gradient" if in_grad else None)
        return Box(kind, title, lines + ([] if t is None else self._times_used(t)), alarm=alarm)

    def module(self, unit: Unit, results: Sequence[Variable]) -> Box:
        title, *rest = self.call(unit.scope)
        count = sum(p._data.size for _, p in unit.scope.module.named_parameters())
        times = self._times_used(results[0]) if len(results) == 1 else []
        parameters = f"{count:,} parameter{'s' * (count != 1)}" if count else ""
        lines = [" ".join(rest), parameters, _shapes(results), *times]
        return Box("module", title, [line for line in lines if line])

    def run(self, unit: Unit, leaves: int, results: Sequence[Variable]) -> Box:
        own = (
            f"and {leaves:,} {'leaf' if leaves == 1 else 'leaves'} only they use" if leaves else ""
        )
        lines = [fold.census(unit.ops), own, _shapes(results)]
        return Box("folded", f"{len(unit.ops):,} ops", [line for line in lines if line])

    def _times_used(self, t: Variable) -> list[str]:
        times = self.uses.get(id(t), 0)
        return (
            [f"used {times:,} times: grad = sum of {times:,}"] if times > 1 and t._tracked else []
        )


def _shapes(results: Sequence[Variable]) -> str:
    """`-> (2, 3), ()`: the shapes of what is used of a folded box."""
    shapes = [labels.shape(t._data) for t in results[:4]]
    return (
        "-> " + ", ".join(shapes) + (f" and {len(results) - 4:,} more" if len(results) > 4 else "")
    )


def op_name(t: Variable) -> str:
    """The name of the op that made t."""
    op = t._record.op  # type: ignore[union-attr]
    return "released" if op is None else op.__name__


def _title(t: Variable) -> tuple[str, list[str]]:
    """`y = sum(axis=-1)`: the tensor's own name if it has one, the op, its settings; many have their own lines."""
    title = (f"{t.name} = " if t.name else "") + op_name(t)
    settings = labels.settings(t._record)
    if len(title) + sum(map(len, settings)) <= 40:
        return title + (f"({', '.join(settings)})" if settings else ""), []
    return title, settings


def broadcast(t: Variable, x: Any) -> str:
    """`(D,) -> (B, T, D)` where an operand is repeated along axes, since its gradient is then a sum along them."""
    op, shape = t._record.op, np.shape(getattr(x, "_data", x))  # type: ignore[union-attr]
    if not getattr(op, "broadcasts", False) or isinstance(x, (int, float)):
        return ""
    whole = t._data.shape
    if op.__name__ == "matmul":  # of a product only the axes before the last two are broadcast
        if len(shape) < 2 or len(whole) < len(shape):
            return ""
        whole = whole[:-2] + shape[-2:]
    return f"{shape} -> {whole}" if shape != whole else ""
