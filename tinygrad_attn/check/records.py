"""The engine's records and rules; no other module of the checks knows how they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from ..engine import Node, Variable, tracked
from ..engine.backward import _fit as fit


def made_at(x: Any) -> int | None:
    """The time of a tensor's record; None for a leaf, and for anything else."""
    made = getattr(x, "_node", None)
    return None if made is None else made.number


def array_of(x: Any) -> np.ndarray:
    """The values of a tensor, or of anything NumPy takes."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


def as_given(operands: Iterable[Any]) -> list[Any]:
    """The operands as an op's function and rules get them: arrays in place of tensors."""
    return [x._data if isinstance(x, Variable) else x for x in operands]


def has_rules(op: Any) -> bool:
    """Has anybody said what the derivative is?"""
    return bool(op.vjps or op.joint_vjp or op.stands_for.vjps or op.stands_for.joint_vjp)


Answers = dict[int, np.ndarray]
"""What rules answer, by the number of the input."""


class Call:
    """One call of an op: what it was given, gave and saved; and what its rules answer."""

    def __init__(
        self, op: Any, inputs: Sequence[Any], settings: dict[str, Any], y: Any, saved: Any = None
    ) -> None:
        self.op, self.args, self.settings, self.y, self.saved = (
            op,
            as_given(inputs),
            settings,
            y,
            saved,
        )
        self.needs = [tracked(x) for x in inputs]

    def again(self, **change: Any) -> Call:
        """The same op with other args or settings."""
        new = copy(self)
        vars(new).update(change)
        found = self.op.forward(*new.args, **new.settings)
        new.y, new.saved = found if self.op.saves else (found, None)
        return new

    def answers(self, g: Any, needs: Sequence[bool] | None = None) -> Answers:
        """What the rules answer for the inputs that need a gradient."""
        op = self.op
        if not (op.vjps or op.joint_vjp):
            op = op.stands_for  # a quick way whose rules are those of the op it stands for
        record = Node(op, (), self.settings, self.saved, None)
        needs = list(self.needs if needs is None else needs)
        found = op.pull(g, self.y, record, list(self.args), needs)
        return {i: array_of(answer) for i, answer in enumerate(found) if answer is not None}


def call_of(t: Any) -> Call:
    """The call that made t."""
    made = t._node
    return Call(made.op, made.inputs, made.settings, t._data, made.saved)


def shares(t: Any, g: Any, args: list[Any] | None = None) -> Iterator[tuple[Any, Any]]:
    """(input, its share of the gradient) for each use by the op that made t; or for other args."""
    made, call = t._node, call_of(t)
    call.args = call.args if args is None else args
    for i, answer in call.answers(g).items():
        yield made.inputs[i], fit(answer, made.inputs[i], made.op, i, isinstance(answer, Variable))
