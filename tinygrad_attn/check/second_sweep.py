"""The sweep once more, as plainly as it can be said: a second opinion on the engine.

It shares the ops' rules with the engine and nothing else, keeps every gradient, and works to first
order only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.history import history
from .records import as_given, record, shares
from .report import Diagnosis


class Opinion(NamedTuple):
    """What a second sweep found, by id of tensor."""

    grads: dict[int, np.ndarray]
    uses: dict[int, list[str]]  # the names of the ops that use it
    faults: list[tuple[Any, Diagnosis]]  # results of ops whose rule mishandles memory, and how


def second_opinion(roots: Sequence[Any], seeds: Sequence[np.ndarray]) -> Opinion:
    """Sweep the graph of the roots, newest first."""
    found = Opinion({}, {}, [])
    for t, seed in zip(roots, seeds):
        found.grads[id(t)] = found.grads.get(id(t), 0) + seed
    for t in reversed(history(roots)):
        if id(t) not in found.grads:
            continue  # nothing that reaches it asked for its gradient
        g = np.array(found.grads[id(t)])
        arrays = [g, t._data, *as_given(record(t).inputs)]
        given = [a for a in arrays if isinstance(a, np.ndarray)]
        before = [np.array(a) for a in given]
        with np.errstate(all="ignore"):
            answers = list(shares(t, g))
            for x, share in answers:
                found.grads[id(x)] = found.grads.get(id(x), 0) + share
                found.uses.setdefault(id(x), []).append(record(t).op.__name__)
            fault = _memory_fault(t, [share for _, share in answers], given, before)
        if fault is not None:
            found.faults.append((t, fault))
    return found


def _memory_fault(
    t: Any, answers: list[Any], given: list[np.ndarray], before: list[np.ndarray]
) -> Diagnosis | None:
    """A rule must not write into what it was given, nor hand out the same memory twice."""
    op = record(t).op
    rule = f"the rule of op {op.__name__!r}"
    if any(a.tobytes() != b.tobytes() for a, b in zip(given, before)):
        return Diagnosis(
            "rule changes its operands",
            f"{rule} writes into the incoming gradient g, its result or an operand in place. "
            "Others share these arrays: compute a new one.",
        )
    first = [np.array(a) for a in answers]
    list(shares(t, -before[0]))  # asked only for what it does to the first answer
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(answers, first)):
        return Diagnosis(
            "reused memory",
            f"{rule} returns the same array at every call and overwrites what it returned before, "
            "which is still needed where the op is used twice. Compute a new array each time.",
        )
    again = [share for _, share in shares(t, before[0])]
    if any(
        not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True) for a, b in zip(first, again)
    ):
        return Diagnosis(
            "rule changes its operands",
            f"{rule} gives another answer each time it is asked, so a second backward pass gives "
            "another gradient. It keeps state between calls, or draws random numbers: draw them "
            "once, in the forward pass, and save them.",
        )
    return None
