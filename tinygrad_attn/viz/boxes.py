"""What a box says: an op with its result, a leaf, a folded module call, a folded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import Variable
from . import labels
from .fold import Siblings, Unit
from .model import Box
from .trace import Names, array_of, gradient_of, is_released, op_name, op_of, settings_of

RELEASED = "backward() released this graph; draw before it, or call backward(retain_graph=True)"


class Words:
    """Writes the boxes of one picture.

    It knows the names, how often each tensor is used, which leaves come from outside the modules,
    and which siblings are drawn as one.
    """

    def __init__(
        self, names: Names, uses: Counter[int], inputs: set[int], siblings: Siblings | None
    ) -> None:
        self.names, self.uses, self.inputs = names, uses, inputs
        self.rolled = siblings.times if siblings else {}

    def call(self, scope: Any) -> list[str]:
        """A module call's dotted name if any, its class, and how many calls it stands for."""
        kind, name = type(scope.module).__name__, self.names.module(scope)
        if id(scope) not in self.rolled:
            return [name, kind] if name else [kind]
        times, last = self.rolled[id(scope)]
        until = self.names.module(last)
        first = f"{name} .. {until}" if name != until else name or kind
        return [first, *([kind] if name else []), f"x{times}"]

    def heading(self, scope: Any) -> str:
        """The line over a module call whose inside is drawn."""
        rolled = ", the first is drawn" if id(scope) in self.rolled else ""
        return " ".join(self.call(scope)) + rolled

    def op(self, t: Variable) -> Box:
        """`y = sum(axis=-1)`, with the tensor's own name if it has one; and the result's values."""
        title = (f"{t.name} = " if t.name else "") + op_name(t)
        settings = labels.settings(settings_of(t))
        lines = [RELEASED] if is_released(t) else []
        if len(title) + sum(map(len, settings)) > 40:  # many settings have lines of their own
            lines += settings
        elif settings:
            title += f"({', '.join(settings)})"
        return Box(
            "op", title, [*lines, *labels.value(t._data, gradient_of(t)), *self._times_used(t)]
        )

    def leaf(self, x: Any) -> Box:
        """A parameter, an input or a constant, with its values."""
        array, grad, name = array_of(x), gradient_of(x), self.names.leaf(x)
        if not (isinstance(array, np.ndarray) or isinstance(x, Variable) or name):
            return Box("input", f"{x:.8g}" if isinstance(x, (float, np.floating)) else str(x))
        kind = "parameter" if self.names.is_parameter(x) else "input"
        own = kind if isinstance(x, Variable) or id(x) in self.inputs else "constant"
        title = name or str(getattr(x, "name", None) or own)
        if kind == "parameter" and array.size > labels.SMALL:
            lines = [f"{labels.shape(array)} {array.dtype}", *labels.size_of(grad)]
        else:
            lines = labels.value(array, grad)
        in_grad = labels.alarm(grad)
        alarm = labels.alarm(array) or (f"{in_grad} in the gradient" if in_grad else None)
        return Box(kind, title, lines + self._times_used(x), alarm=alarm)

    def module(self, unit: Unit, results: Sequence[Variable]) -> Box:
        """A module call that is not opened: class, number of parameters, shapes of its results."""
        title, *rest = self.call(unit.scope)
        count = sum(p._data.size for _, p in unit.scope.module.named_parameters())
        parameters = f"{count:,} parameter{'s' * (count != 1)}" if count else ""
        times = self._times_used(results[0]) if len(results) == 1 else []
        lines = [" ".join(rest), parameters, _shapes(results), *times]
        return Box("module", title, [line for line in lines if line])

    def run(self, unit: Unit, leaves: int, results: Sequence[Variable]) -> Box:
        """A run of folded ops: how many of which kind, and the shapes of its results."""
        kind = "leaf" if leaves == 1 else "leaves"
        own = f"and {leaves:,} {kind} only they use" if leaves else ""
        lines = [_census(unit.ops), own, _shapes(results)]
        return Box("folded", f"{len(unit.ops):,} ops", [line for line in lines if line])

    def _times_used(self, x: Any) -> list[str]:
        """Each use of a tensor gives a share of its gradient."""
        times = self.uses[id(x)] if isinstance(x, Variable) and x._tracked else 0
        return [f"used {times:,} times: grad = sum of {times:,}"] if times > 1 else []


def _shapes(results: Sequence[Variable]) -> str:
    """`-> (2, 3), ()`: the shapes of what is used of a folded box."""
    more = f" and {len(results) - 4:,} more" if len(results) > 4 else ""
    return "-> " + ", ".join(labels.shape(t._data) for t in results[:4]) + more


def _census(ops: Sequence[Variable]) -> str:
    """`add x120, exp x7`: the most frequent ops of a run."""
    counts = Counter(op_name(t) for t in ops if not is_released(t)).most_common()
    more = f" and {len(counts) - 3} more kinds" if len(counts) > 3 else ""
    return ", ".join(f"{name} x{n:,}" for name, n in counts[:3]) + more


def broadcast(t: Variable, x: Any) -> str:
    """`(D,) -> (B, T, D)` where an operand is repeated along axes.

    The picture says so because the operand's gradient is then a sum along these axes.
    """
    op, shape = op_of(t), np.shape(array_of(x))
    if not getattr(op, "broadcasts", False) or isinstance(x, (int, float)):
        return ""
    full = t._data.shape
    if op.__name__ == "matmul":  # a product broadcasts only the axes before the last two
        if len(shape) < 2 or len(full) < len(shape):
            return ""
        full = full[:-2] + shape[-2:]
    return f"{shape} -> {full}" if shape != full else ""
