"""Find the op whose VJP is wrong: each is checked alone, on the operands that it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .explain import at_some, everywhere, explanation, places
from .faults import calls, differing, outside_the_graph
from .report import Diagnosis, Entry, Report, greatest
from .slopes import STRICT, Alone, Function, Program, entry_of, flatten

LARGE = 40_000
"""Jacobians of more elements are not computed."""


class Suspect(NamedTuple):
    """An op whose VJP for one input disagrees with finite differences."""

    step: Any
    f: Alone
    which: int
    entry: Entry


def off(f: Function, which: int, gradient: np.ndarray | None) -> Entry | None:
    """The entry of an input whose gradient is off, kinks and edges apart; None if it is right."""
    entry = entry_of(f, which, gradient, STRICT)
    excuse(f, which, entry)
    return entry if entry.wrong.any() else None


def excuse(f: Function, which: int, entry: Entry) -> str:
    """Allow any gradient at kinks and edges of the domain; return "kink" or "edge" if one is."""
    scale = greatest(np.nan_to_num([entry.numeric, entry.analytic], posinf=0, neginf=0))
    kinds = []
    for flat in np.flatnonzero(entry.wrong).tolist():
        a = float(entry.analytic.flat[flat])
        edge = np.isinf(entry.numeric.flat[flat])
        kinds.append("edge" if edge else np.isfinite(a) and f.near_kink(which, flat, a, scale))
        if kinds[-1]:
            entry.tolerance.flat[flat] = np.inf
            if kinds[-1] != "kink":
                entry.numeric.flat[flat] = a
        elif len(kinds) - sum(map(bool, kinds)) == 4:  # enough that is smooth
            break
    return next((kind for kind in kinds if kind in ("kink", "edge")), "")


def search(steps: Sequence[Any]) -> list[list[Suspect]]:
    """The ops whose own VJP is wrong, the worst first, each with its inputs that are off."""
    found: dict[Any, list[Suspect]] = {}
    for step, call in calls(steps):
        with suppress(Exception):
            f = Alone(call)
            entries = [off(f, k, g) for k, g in enumerate(f.pull(f.cotangents))]
            suspects = [Suspect(step, f, k, entry) for k, entry in enumerate(entries) if entry]
            if suspects:
                found.setdefault(step.op, suspects)

    def relative_error(suspects: list[Suspect]) -> float:
        entry = suspects[0].entry
        size = greatest(np.nan_to_num(entry.numeric)) + 1e-300
        return greatest(np.nan_to_num(entry.error, nan=np.inf)) / size

    return sorted(found.values(), key=relative_error, reverse=True)


def accused(suspects: list[Suspect]) -> tuple[str, str]:
    """What is wrong with an op's VJP, by the first of its inputs that shows a pattern."""
    found = []
    for s in suspects:
        number = f" (its VJP for operand {s.f.positions[s.which]})" * (len(s.f.call.args) > 1)
        short = cut_short(s)
        kind, text = pattern(short or s.f, s.which, s.entry)
        cut = "with its operands cut to a few elements along each axis, " * (short is not None)
        found.append((kind, f"in op {s.step.name!r}{number}: {cut}{text}"))
    return next((one for one in found if one[0] != "VJP"), found[0])


def cut_short(s: Suspect) -> Alone | None:
    """The op on the first few elements along each axis, if its VJP is wrong there too."""
    cut = lambda a: a[(slice(5),) * a.ndim].copy() if isinstance(a, np.ndarray) else a
    with suppress(Exception):  # a setting may hold a size
        f = Alone(s.f.call.with_args([cut(a) for a in s.f.call.args]))
        smaller = sum(x.size for x in f.inputs) < sum(x.size for x in s.f.inputs)
        if smaller and off(f, s.which, f.pull(f.cotangents)[s.which]):
            return f
    return None


def pattern(f: Function, which: int, entry: Entry, limit: int = LARGE) -> tuple[str, str]:
    """What the whole Jacobian shows; of a large one, what the measured elements show."""
    if f.inputs[which].size * sum(v.size for v in f.values) <= limit:
        with suppress(Exception):  # f may refuse other values or another g
            return explanation(f, which)
    given = entry.analytic.reshape(1, -1), entry.numeric.reshape(1, -1), entry.wrong
    analytic, numeric = entry.analytic[entry.index], entry.numeric[entry.index]
    rest = f"the gradient is {analytic:.6g} at index {entry.index}, and the slope {numeric:.6g}."
    return everywhere(*given) or at_some(*given) or ("VJP", rest)


# ---- the whole function


def explain(report: Report, program: Program, steps: list[Any]) -> None:
    """Say why the gradient is wrong: the check itself, one op, or what joins the ops."""
    if (found := of_the_check(report, program, steps)) is not None:
        report.diagnosis = found
    elif suspects := search(steps):
        report.culprits = [known[0].step.name for known in suspects]
        report.point_at(suspects[0][0].step)
        report.diagnosis = Diagnosis(*accused(suspects[0]))
    else:
        report.diagnosis = between_the_ops(report, program, steps)


def of_the_check(report: Report, program: Program, steps: list[Any]) -> Diagnosis | None:
    """Rounding, a kink, or the edge of the domain; an empty text if nothing is wrong after all."""
    entries = {k: e for k, e in enumerate(report.entries) if not e.ok}
    if not any(e.wrong.any() for e in entries.values()):
        return Diagnosis(
            "precision",
            "the slope cannot be measured at flat indices "
            f"{[e.unmeasurable[:4] for e in entries.values()]}: large numbers cancel within the "
            "function, or it is not smooth. Check at inputs of moderate size.",
        )
    values = flatten(program.values)
    if np.isnan(values).any() or np.isinf(values).any() and not search(steps):
        return Diagnosis(
            "domain",
            "the result is NaN or Inf at these inputs, so there is no slope. Look for an overflow "
            "in exp, 0/0, a log or root outside its domain (ta.detect_anomaly() names the op), or "
            "choose other inputs.",
        )
    kinds = {k: excuse(program, k, e) for k, e in entries.items()}
    if any(e.wrong.any() for e in entries.values()):
        return None
    told = {
        "edge": "the function is not finite, or raises an error, a step to one side: the input is "
        "on the edge of the domain (sqrt, log, arcsin). Check it at inner points.",
        "kink": "the slopes to the left and to the right differ: the input is at a kink or a jump, "
        "so the VJP need not be wrong. Move the input away from it.",
    }
    for k, kind in kinds.items():
        if kind in told:
            at = f"at {places(np.isinf(entries[k].tolerance))} of {entries[k].name}"
            return Diagnosis("domain" if kind == "edge" else kind, f"{at} {told[kind]}")
    return Diagnosis()


def between_the_ops(report: Report, program: Program, steps: list[Any]) -> Diagnosis:
    """No op is to blame: a value left the graph, or else the pattern of the whole gradient."""
    worst: Any = report.worst
    which = report.entries.index(worst)
    if program.backend.ours and (found := outside_the_graph(program, which, steps)):
        report.point_at(found[0])
        return Diagnosis(
            "missed use" if worst.analytic.any() else "gradient missing",
            f"{found[1]} to the graph. Every use of a tensor counts: look for detach(), .data, "
            ".numpy(), .item(), Tensor(...) or no_grad() on the way there.",
        )
    kind, text = pattern(program, which, worst, LARGE // 4)
    return Diagnosis(
        "missed use" if kind == "VJP" else kind,
        f"{text} No op's own VJP was found to be wrong, so look at what joins them: a use that is "
        "not counted (detach(), .data, .item(), no_grad(), hooks) or is counted twice. Check what "
        "is inside checkpoint() without it.",
    )


# ---- the second order


def accuse(report: Report, steps: Sequence[Any], backend: Any, test: Callable[..., Any]) -> Any:
    """Point at the first op that fails a test as a program of its own; return what it says."""
    for step in steps:
        if step.differentiable:
            try:
                found = test(alone(step, backend))
            except Exception as failure:
                found = f"given tensors it raises {type(failure).__name__}: {failure}"
            if found:
                report.point_at(step)
                report.culprits = [step.name]
                return found
    return None


def alone(step: Any, backend: Any) -> Program:
    """An op by itself, as a program on leaves of its own."""
    call = step.call()
    leaves = [backend.leaf(a) if need else a for a, need in zip(call.args, call.needs)]
    tensors = {f"operand {i}": x for i, (x, need) in enumerate(zip(leaves, call.needs)) if need}
    rng = np.random.default_rng(9)
    return Program(lambda: step.run(leaves), [*tensors.values()], [*tensors], backend, rng)


def gradient_of(program: Program) -> Program:
    """The gradient as a program, which depends on the inputs and on g."""
    wants = list(map(program.backend.wants_gradient, program.run()))
    weights = [program.backend.leaf(c) for c, want in zip(program.cotangents, wants) if want]

    def gradient() -> list[Any]:
        outputs = [t for t, want in zip(program.run(), wants) if want]
        found = program.gradient(outputs, weights, create_graph=True)
        return [g for g in found if g is not None]

    names = [*program.names, *(f"cotangent of result {k}" for k in range(len(weights)))]
    tensors = [*program.tensors, *weights]
    return Program(gradient, tensors, names, program.backend, program.rng)


def two_answers(program: Program) -> str | None:
    """The input whose gradient under create_graph=True is not the ordinary one."""
    found = zip(program.names, program.pull(program.cotangents))
    names, gradients = zip(*((name, g) for name, g in found if g is not None))
    return differing(names, gradients, gradient_of(program).values)


def not_recorded(program: Program) -> str | None:
    """How a gradient leaves the graph, so that it cannot be differentiated."""
    second = gradient_of(program)
    for which, g in enumerate(second.pull(second.cotangents)):
        if off(second, which, g):
            return f"how its value depends on {second.names[which]} is not recorded"
    return None


def accuse_second(report: Report, steps: Sequence[Any], backend: Any) -> None:
    """Name the op whose VJP cannot be differentiated."""
    if why := accuse(report, steps, backend, not_recorded):
        report.diagnosis = Diagnosis(
            "second order",
            f"the VJP of op {report.op!r} cannot be differentiated: {why.rstrip('.')}. Write it "
            f"with {backend.writes}; .numpy(), .data, .item(), float() and filling an array made "
            "by zeros leave the graph.",
        )
