"""The engine's records and rules; no other module of the checks knows how they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..engine import Record, Variable, tracked
from ..engine.sweep import fit


def made_at(x: Any) -> int | None:
    """The time of a tensor's record; None for a leaf, and for anything else."""
    made = getattr(x, "_record", None)
    return None if made is None else made.time


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
    found = op.pull(g, y, Record(0, op, (), settings, saved, None), list(args), list(needs))
    return [found.get(i) for i in range(len(needs))]


def shares(t: Any, g: Any) -> Iterator[tuple[Any, Any]]:
    """(input, its share of the gradient) for each use by the op that made t."""
    made = t._record
    needs, args = [tracked(x) for x in made.inputs], as_given(made.inputs)
    answers = ask_rules(made.op, g, t._data, args, made.settings, needs, made.saved)
    for i, (x, answer) in enumerate(zip(made.inputs, answers)):
        if answer is not None:
            yield x, fit(answer, x, made.op, i)
