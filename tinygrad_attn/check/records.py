"""The engine's records and rules; no other module of the checks knows how they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.misuse import takes_needs
from ..engine.sweep import fit


def record(t: Any) -> Any:
    """How a tensor was made (op, inputs, settings, what was saved, time), or None for a leaf."""
    return t._record


def made_at(x: Any) -> int | None:
    """The time of a tensor's record; None for a leaf, and for anything else."""
    made = getattr(x, "_record", None)
    return None if made is None else made.time


def wants_gradient(x: Any) -> bool:
    """Is this a tensor that takes part in the graph?"""
    return isinstance(x, Variable) and x._tracked


def array_of(x: Any) -> np.ndarray:
    """The values of a tensor, or of anything NumPy takes."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


def as_given(operands: Iterable[Any]) -> list[Any]:
    """The operands as an op's function and rules get them: arrays in place of tensors."""
    return [x._data if isinstance(x, Variable) else x for x in operands]


def has_rules(op: Any) -> bool:
    """Has anybody said what the derivative is?"""
    return bool(op.rules or op.joint or op.plain.rules or op.plain.joint)


def ask_rules(
    op: Any, g: Any, y: Any, args: Sequence[Any], settings: dict, needs: Sequence[bool], saved: Any
) -> list[Any]:
    """What the op's rules answer for each input that needs a gradient; None for the others."""
    if not (op.rules or op.joint):
        op = op.plain  # a quick way whose rules are those of the op it stands for
    if op.joint is not None:
        extra = {"saved": saved} if op.saves else {}
        if takes_needs(op.joint):
            extra["needs"] = tuple(needs)
        answers = op.joint(g, y, *args, **settings, **extra)
        return [answer if need else None for answer, need in zip(answers, needs)]
    rules = [rule if need else None for rule, need in zip(op.rules, needs)]
    return [None if rule is None else rule(g, y, *args, **settings) for rule in rules]


def shares(t: Any, g: Any, needs: Sequence[bool] | None = None) -> Iterator[tuple[Any, Any]]:
    """(input, its share of the gradient) for each use by the op that made t."""
    made = record(t)
    needs = [wants_gradient(x) for x in made.inputs] if needs is None else needs
    answers = ask_rules(
        made.op, g, t._data, as_given(made.inputs), made.settings, needs, made.saved
    )
    for i, (x, answer) in enumerate(zip(made.inputs, answers)):
        if answer is not None:
            yield x, fit(answer, x, made.op, i)
