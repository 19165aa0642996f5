"""Every op's own rule is right: what joins them wrongly?

A value that leaves the graph, a write, the sweep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...engine import Variable, tracked
from ..measuring import values_put_back
from ..records import array_of
from ..second_sweep import second_opinion
from ..trace import Step
from .measurement import Program
from .pattern import Found


def overwritten(program: Program) -> Found:
    """A result that no longer is what its op makes of its operands: somebody wrote into it."""
    for step in program.trace.steps:
        try:
            again = np.asarray(step.again().y)
        except Exception:
            continue
        value = array_of(step.result)
        if again.shape != value.shape or again.dtype != value.dtype:
            continue
        if not np.allclose(again, value, rtol=1e-6, atol=0, equal_nan=True):
            return {"step": step, "op": step.name}
    return None


def outside_the_graph(program: Program) -> Found:
    """What moves with the worst input and is a constant to the graph: it left it on its way."""
    x, now = program.x, program.trace.steps
    try:
        with values_put_back([x]):
            x._data = x._data + 1e-5 * np.random.default_rng(3).standard_normal(x.shape)
            outputs, trace = program.problem.traced()
    except Exception:
        return None
    if [s.op for s in trace.steps] != [s.op for s in now] or program.checkpointed:
        return None  # other ops ran, or not all were seen
    kind = "missed use" if program.entry.analytic.any() else "gradient missing"
    found = {"kind": kind, "name": program.entry.name}
    inside = set(program.problem.inputs)
    for step, then in zip(now, trace.steps):
        if (what := _constant_that_moves(step, then, inside)) is not None:
            how = " (computed under no_grad())" if what == "the result of" else ""
            what = f"{what} op {step.name!r} depends on {program.entry.name}"
            return found | {"step": step, "what": what, "how": how}
    for number, (p, q) in enumerate(zip(program.outputs, outputs)):
        if not tracked(p) and _differs(p, q):
            made = next((s for s in now if s.result is p), None)
            what = f"result {number} depends on {program.entry.name}"
            return found | {"step": made, "what": what, "how": ": it requires no gradient"}
    return None


def _constant_that_moves(now: Step, then: Step, inside: set[Any]) -> str | None:
    for i, (p, q) in enumerate(zip(now.inputs, then.inputs)):
        if not (tracked(p) or isinstance(p, Variable) and p in inside) and _differs(p, q):
            return f"operand {i} of"
    for name in now.settings:
        if _differs(now.settings[name], then.settings.get(name)):
            return f"the setting {name!r} of"
    unrecorded = not now.recorded and any(tracked(p) for p in now.inputs)
    return "the result of" if unrecorded and _differs(now.result, then.result) else None


def _differs(p: Any, q: Any) -> bool:
    try:
        p, q = array_of(p), array_of(q)
    except (ValueError, TypeError):
        return False
    return p.dtype.kind == "f" and p.shape == q.shape and not np.array_equal(p, q, equal_nan=True)


def lost_in_the_sweep(program: Program) -> Found:
    """Nothing leaves the graph: does a second, plainer sweep agree with the slopes?"""
    entry, x = program.entry, program.x
    try:
        grads, uses = second_opinion(program.outputs, program.problem.cotangents)
    except Exception:
        return None
    measured = ~np.isnan(entry.numeric)
    if x not in grads or not np.isfinite(entry.numeric[measured]).all():
        return None
    off = np.abs(grads[x] - entry.numeric)[measured] > entry.tolerance[measured]
    most = max(map(len, uses.values()))
    told = f"{most} time{'s' * (most != 1)}"
    ops = " and ".join(name for name, _ in uses[x])
    return None if off.any() else {"name": entry.name, "ops": ops, "most": told}
