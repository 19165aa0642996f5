"""The sweep once more, as plainly as it can be said: a second opinion on the engine.

It shares the ops' rules and `fit` with engine.py and nothing else, keeps every gradient, and works to first order only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable
from ..engine.sweep import fit
from .report import Diagnosis
from .trace import as_given


def contributions(t: Any, g: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """(input, its share of the gradient) for each use by the op that made t."""
    record = t._record
    needs = [isinstance(x, Variable) and x._tracked for x in record.inputs]
    shares = record.op.pull(g, t._data, record, as_given(record.inputs), needs)
    for i, share in shares.items():
        yield record.inputs[i], fit(share, record.inputs[i], record.op, i)


def newest_first(roots: Iterable[Any]) -> list[Any]:
    """Every recorded tensor that leads to the roots; an op's inputs are older than its result, so this is a topological order."""
    waiting, found = list(roots), dict[int, Any]()
    while waiting:
        t = waiting.pop()
        if id(t) not in found and t._record is not None:
            found[id(t)] = t
            waiting += [x for x in t._record.inputs if isinstance(x, Variable) and x._tracked]
    return sorted(found.values(), key=lambda t: -t._record.time)


class Opinion(NamedTuple):
    """What a sweep by hand found, by id of tensor."""

    grads: dict[int, np.ndarray]
    uses: dict[int, list[str]]  # the ops that use it
    faults: list[
        tuple[Any, Diagnosis]
    ]  # results of ops whose rule treats memory as it must not, and how


def second_opinion(roots: Sequence[Any], seeds: Sequence[np.ndarray]) -> Opinion:
    """Sweep the graph of the roots by hand."""
    found = Opinion({}, {}, [])
    for t, seed in zip(roots, seeds):
        found.grads[id(t)] = found.grads.get(id(t), 0) + seed
    for t in newest_first(roots):
        g = np.array(found.grads[id(t)])
        given = [a for a in (g, t._data, *as_given(t._record.inputs)) if isinstance(a, np.ndarray)]
        before = [np.array(a) for a in given]
        with np.errstate(all="ignore"):
            shares = list(contributions(t, g))
        for x, part in shares:
            found.grads[id(x)] = found.grads.get(id(x), 0) + part
            found.uses.setdefault(id(x), []).append(t._record.op.__name__)
        if (fault := _memory_fault(t, [part for _, part in shares], given, before)) is not None:
            found.faults.append((t, fault))
    return found


def _memory_fault(
    t: Any, parts: list[Any], given: list[np.ndarray], before: list[np.ndarray]
) -> Diagnosis | None:
    """What a rule does that it must not with the memory of what it was given, what it returned, and what it remembers."""
    name = t._record.op.__name__
    if any(a.tobytes() != b.tobytes() for a, b in zip(given, before)):
        return Diagnosis(
            "rule changes its operands",
            f"the rule of op {name!r} writes into the incoming gradient g, its result or an "
            "operand in place. Others share these arrays: compute a new one.",
        )
    if getattr(t._record.op, "fresh", False) and any(
        np.shares_memory(a, b)
        for a, b in [*itertools.product(parts, given), *itertools.combinations(parts, 2)]
    ):
        return Diagnosis(
            "not fresh",
            f"op {name!r} is declared with fresh=True, but its rule returns memory that somebody else holds: "
            "the incoming gradient g, an operand, the result, or one array for two inputs. The sweep adds into "
            "such an array and would change theirs: return a copy, or leave fresh out.",
        )
    first = [np.array(part) for part in parts]
    with np.errstate(all="ignore"):
        list(contributions(t, -before[0]))  # only to see what it does to the first answer
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(parts, first)):
        return Diagnosis(
            "reused memory",
            f"the rule of op {name!r} returns the same array at every call and overwrites what it returned "
            "before, which is still needed where the op is used twice. Compute a new array each time.",
        )
    with np.errstate(all="ignore"):
        again = [part for _, part in contributions(t, before[0])]
    if any(
        not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True) for a, b in zip(first, again)
    ):
        return Diagnosis(
            "rule changes its operands",
            f"the rule of op {name!r} gives another answer each time it is asked, so a second "
            "backward pass gives another gradient. It keeps state between calls, or draws random "
            "numbers: draw them once, in the forward pass, and save them.",
        )
    return None
