"""Find the op whose VJP is wrong: each is checked alone, on the operands that it had."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .explain import at_some, explanation, places, simple
from .faults import Found, differing, outside_the_graph, single_ops
from .report import Diagnosis, Entry, Report, greatest
from .slopes import STRICT, Limits, OneOp, Program, entry_of, flatten

LARGE = 10_000
"""Jacobians of more elements are not computed."""


def all_off(f: Program, limits: Limits = STRICT) -> dict[int, Entry]:
    """The entries of the inputs whose gradients are off, by number; kinks and edges apart."""
    entries = {k: entry_of(f, k, g, limits) for k, g in enumerate(f.pull(f.cotangents))}
    return {k: entry for k, entry in entries.items() if entry.wrong.any()}


def blame(report: Report, program: Program, steps: Sequence[Any]) -> Diagnosis | None:
    """Name the ops whose own VJP is wrong in the report; return what is wrong with the worst."""
    found: dict[Any, Any] = {}
    for f in single_ops(steps, program.backend):
        with suppress(Exception):
            if f.step.op not in found and (entries := all_off(f)):
                entry = next(iter(entries.values()))
                relative = greatest(entry.error) / (greatest(np.nan_to_num(entry.numeric)) + 1e-300)
                found[f.step.op] = relative, f, entries
    if not found:
        return None
    suspects = sorted(found.values(), key=lambda suspect: suspect[0], reverse=True)
    report.culprits = [f.step.name for _, f, _ in suspects]
    _, f, entries = suspects[0]
    report.point_at(f.step)
    return Diagnosis(*accused(f, entries))


def accused(f: OneOp, entries: dict[int, Entry]) -> tuple[str, str]:
    """What is wrong with an op's VJP, by the first of its inputs that shows a pattern."""
    cut = lambda a: a[(slice(5),) * a.ndim] if isinstance(a, np.ndarray) else a
    note = ""
    with suppress(Exception):  # a setting may hold a size
        shorter = f.on([cut(a) for a in f.args])
        if still_off := all_off(shorter):
            if any(a.size < b.size for a, b in zip(shorter.inputs, f.inputs)):
                note = "with its operands cut to 5 elements along each axis, "
            f, entries = shorter, still_off
    found = []
    for which, entry in entries.items():
        kind, text = pattern(f, which, entry)
        number = f" (its VJP for {f.names[which]})" * (len(f.args) > 1)
        found.append((kind, f"in op {f.step.name!r}{number}: {note}{text}"))
    return next((one for one in found if one[0] != "VJP"), found[0])


def pattern(f: Program, which: int, entry: Entry) -> tuple[str, str]:
    """What the whole Jacobian shows; of a large one, what the measured elements show."""
    if f.inputs[which].size * sum(v.size for v in f.values) <= LARGE:
        with suppress(Exception):  # f may refuse other values or another g
            return explanation(f, which)
    R, J, at = entry.analytic.reshape(1, -1), entry.numeric.reshape(1, -1), entry.index
    rest = f"the gradient is {entry.analytic[at]:.6g} at index {at}"
    rest += f", and the slope {entry.numeric[at]:.6g}."
    return simple(R, J, entry.analytic.shape) or at_some(R, J, entry.wrong) or ("VJP", rest)


# ---- the whole function


EXCUSES = {
    "domain": "at {} of {} the function is not finite, or raises an error, a step to one side: the "
    "input is on the edge of the domain (sqrt, log, arcsin). Check it at inner points.",
    "kink": "at {} of {} the slopes to the left and to the right differ: the input is at a kink or "
    "a jump, so the VJP need not be wrong. Move the input away from it.",
    "precision": "at {} of {} the slope cannot be measured: large numbers cancel within the "
    "function, or it is not smooth. Check at inputs of moderate size.",
}


def explain(report: Report, program: Program, steps: list[Any]) -> Diagnosis:
    """Say why the gradient is wrong: the check itself, one op, or what joins the ops."""
    values, gradients = (flatten(v) for v in (program.values, [e.analytic for e in report.entries]))
    if np.isnan(values).any() or np.isinf(values).any() and not np.isfinite(gradients).all():
        return Diagnosis(
            "domain",
            "the result is NaN or Inf at these inputs, so there is no slope. Look for an overflow "
            "in exp, 0/0, a log or root outside its domain (ta.detect_anomaly() names the op), or "
            "choose other inputs.",
        )
    if any(e.wrong.any() for e in report.entries):
        return blame(report, program, steps) or between_the_ops(report, program)
    e = next(e for e in report.entries if e.excuse)
    return Diagnosis(e.excuse, EXCUSES[e.excuse].format(places(np.isinf(e.tolerance)), e.name))


def between_the_ops(report: Report, program: Program) -> Diagnosis:
    """No op is to blame: a value left the graph, or else the pattern of the whole gradient."""
    worst: Any = report.worst
    which = report.entries.index(worst)
    if program.backend.ours and (step := outside_the_graph(program, which)):
        report.point_at(step)
        return Diagnosis(
            "missed use" if worst.analytic.any() else "gradient missing",
            f"a value in op {step.name!r} depends on {worst.name} and is a constant to the graph. "
            "Every use of a tensor counts: look for detach(), .data, .numpy(), .item(), "
            "Tensor(...) or no_grad() on the way there.",
        )
    kind, text = pattern(program, which, worst)
    return Diagnosis(
        "missed use" if kind == "VJP" else kind,
        f"{text} No op's own VJP was found to be wrong, so look at what joins them: a use that is "
        "not counted (detach(), .data, .item(), no_grad(), hooks) or is counted twice. Check what "
        "is inside checkpoint() without it.",
    )


# ---- the second order


def gradient_of(program: Program) -> Program:
    """The gradient as a program, which depends on the inputs and on g."""
    weights = [program.backend.leaf(c) for c in program.cotangents]

    def gradient() -> list[Any]:
        return program.gradient(program.run(), weights, create_graph=True)

    named = dict(zip(program.names, program.tensors))
    named |= {f"cotangent of result {k}": w for k, w in enumerate(weights)}
    return Program(gradient, named, program.backend, program.rng)


def second_order(f: Program) -> Found:
    """How a gradient fails to be differentiated."""
    write = (
        f"Write the VJP with {f.backend.writes}; .numpy(), .data, .item(), float() and filling an "
        "array made by zeros leave the graph."
    )
    try:
        second, found = gradient_of(f), f.pull(f.cotangents)
        if name := differing(f.names, found, f.pull(f.cotangents, create_graph=True)):
            return "two answers", (
                f"{name}: the gradient under create_graph=True differs from the ordinary one: an "
                "op's reference, or a VJP that treats arrays and Tensors differently, is wrong."
            )
        if isinstance(f, OneOp) and (off := all_off(second)):
            names = " and ".join(second.names[k] for k in off)
            return "second order", f"how its VJP depends on {names} is not recorded. {write}"
    except Exception as failure:
        return "second order", f"the gradient cannot be differentiated: {failure}. {write}"
    return None
