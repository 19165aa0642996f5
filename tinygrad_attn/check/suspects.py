"""Which op is wrong when a gradient is? Each is checked alone, on the operands that it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .explain import Case, explanation, places
from .faults import (
    OF_THE_ANSWER,
    calls,
    differing,
    fault,
    lost_in_the_sweep,
    outside_the_graph,
    precision,
)
from .report import Diagnosis, Entry, Report, greatest
from .slopes import STRICT, Alone, Function, Program, entry_of

LARGE = 40_000
"""Jacobians of more elements are not computed."""


class Suspect(NamedTuple):
    """An op whose VJP for one input disagrees with finite differences."""

    step: Any
    f: Alone
    which: int
    entry: Entry
    error: float


def off(f: Function, which: int, gradient: np.ndarray | None) -> Entry | None:
    """The entry of an input whose gradient is off, kinks and edges apart; None if it is right."""
    entry = entry_of(f, which, gradient, STRICT)
    if entry.wrong.any():
        excuse(f, which, entry)
    return entry if entry.wrong.any() else None


def excuse(f: Function, which: int, entry: Entry) -> str:
    """Allow any gradient at kinks and edges of the domain; the name of one that was found."""
    both = np.nan_to_num([entry.numeric, entry.analytic], posinf=0, neginf=0)
    scale = greatest(both)
    found, smooth = "", 0
    for flat in np.flatnonzero(entry.wrong)[:24].tolist():
        if smooth == 4:
            break
        a = float(entry.analytic.flat[flat])
        edge = bool(np.isinf(entry.numeric.flat[flat]))
        kink = "edge" if edge else f.near_kink(which, flat, a, scale) if np.isfinite(a) else ""
        smooth += not kink
        if kink:
            entry.tolerance.flat[flat] = np.inf
            entry.numeric.flat[flat] = a if edge or kink == "near" else entry.numeric.flat[flat]
            found = kink if found in ("", "near") else found
    return found


def search(steps: Sequence[Any]) -> list[list[Suspect]]:
    """The ops whose own VJP is wrong, the worst first, each with its inputs that are off."""
    found: dict[Any, list[Suspect]] = {}
    for step, call in calls(steps):
        f = Alone(call)
        with suppress(Exception):
            for which, g in enumerate(f.pull(f.cotangents)):
                if (entry := off(f, which, g)) is None:
                    continue
                sizes = np.abs([entry.numeric, entry.analytic])
                scale = sizes[np.isfinite(sizes)].max(initial=1e-300)
                error = greatest(np.nan_to_num(entry.error, nan=np.inf)) / scale
                known = found.setdefault(step.op, [])
                if not known or known[0].step is step or error > 10 * known[0].error:
                    same = [s for s in known if s.step is step]
                    found[step.op] = [*same, Suspect(step, f, which, entry, error)]
    for known in found.values():
        known.sort(key=lambda s: -s.error)
    return sorted(found.values(), key=lambda known: -known[0].error)


def accused(suspects: list[Suspect]) -> tuple[str, str]:
    """What is wrong with an op's VJP; the first of its inputs that tells."""
    told: list[tuple[str, str]] = []
    for s in suspects:
        kind, text = _of_input(s)
        several = len(s.f.call.args) > 1
        number = f" (its rule for operand {s.f.positions[s.which]})" if several else ""
        told.append((kind, f"in op {s.step.name!r}{number}: {text}"))
    return next((found for found in told if found[0] != "rule"), told[0])


def _of_input(s: Suspect) -> tuple[str, str]:
    """By the Jacobians, of a few elements an axis if the VJP is wrong there too."""
    size = lambda f: f.inputs[s.which].size * sum(v.size for v in f.values)
    with suppress(Exception):  # what f knows besides its operands may not fit
        f = cut_short(s)
        if f and size(f) <= LARGE and off(f, s.which, f.pull(f.cotangents)[s.which]) is not None:
            kind, text = explanation(Case(f, s.which))
            if kind != "rule":
                cut = "with its operands cut to the first few elements along each axis"
                return kind, f"{cut}, {text}"
    return explanation(Case(s.f, s.which)) if size(s.f) <= LARGE else of_entry(s.entry)


def cut_short(s: Suspect) -> Alone | None:
    """The op on the first few elements along each axis; None if all axes are short."""
    call = s.f.call
    arrays = [a for a in call.args if isinstance(a, np.ndarray) and a.dtype.kind in "fb"]
    lengths = sorted({n for a in arrays for n in a.shape if n > 5})
    kept = {n: 3 + k for k, n in enumerate(lengths)}  # what differs in length still does
    cut = lambda a: a[tuple(slice(kept.get(n)) for n in a.shape)].copy()
    with suppress(Exception):  # a setting may hold a size
        args = [cut(a) if isinstance(a, np.ndarray) else a for a in call.args]
        return Alone(call.with_args(args)) if lengths else None
    return None


def of_entry(entry: Entry) -> tuple[str, str]:
    """Of an input that is too large for its Jacobian."""
    bad, measured = entry.wrong, ~np.isnan(entry.numeric)
    a, n = entry.analytic[bad], entry.numeric[bad]
    k = float(np.sum(a * n) / np.sum(n * n)) if np.isfinite(a).all() and n.any() else 0.0
    fits = bool(k) and np.allclose(a, k * n, rtol=1e-3, atol=1e-6 * greatest(n))
    how = (
        f"is {k:.6g} times what it should be" if fits else "is zero" if not a.any() else "is wrong"
    )
    if not np.isfinite(a).all():
        return "nan", f"the rule gives NaN or Inf at {places(bad.shape, bad)}."
    if bad.sum() < 0.7 * measured.sum():
        return (
            "some elements",
            f"the gradient {how} only at {places(bad.shape, bad)}; the others are right.",
        )
    kind = "rule"
    if how == "is zero":
        kind = "zero"
    elif fits:
        kind = "sign" if abs(k + 1) < 1e-3 else "constant factor"
    more = "Check no more than 100 elements to learn more."
    return kind, f"the gradient {how} at the elements that were measured. {more}"


# ---- the whole function


def explain(report: Report, program: Program, steps: list[Any]) -> None:
    """Say why the gradient is wrong: the check itself, one op, the program or the engine."""
    if (found := of_the_check(report, program, steps)) is not None:
        report.diagnosis = Diagnosis(*found)
        return
    suspects = search(steps)
    report.culprits = [known[0].step.name for known in suspects]
    if suspects:
        report.point_at(suspects[0][0].step)
        report.diagnosis = Diagnosis(*accused(suspects[0]))
        return
    report.diagnosis = fault(steps, report, OF_THE_ANSWER) or between_the_ops(
        report, program, steps
    )


def of_the_check(report: Report, program: Program, steps: list[Any]) -> tuple[str, str] | None:
    """Rounding, a kink, or the edge of the domain."""
    if found := precision(steps, report):
        return found.kind, found.text
    entries = [e for e in report.entries if not e.ok]
    if not any(e.wrong.any() for e in entries):
        entry = entries[0]
        at = places(
            entry.analytic.shape, np.isin(np.arange(entry.analytic.size), entry.unmeasurable)
        )
        return "precision", (
            f"the slope of {entry.name} cannot be measured at {at}: large numbers cancel within "
            "the function and rounding drowns the difference, or it is not smooth. No op's own "
            "rule was found to be wrong. Check at inputs of moderate size."
        )
    if any(np.isnan(v).any() for v in program.values) or (
        any(np.isinf(v).any() for v in program.values) and not search(steps)
    ):
        return "domain", (
            "the result itself is NaN or Inf at these inputs, so there is no slope to compare "
            "with. Look for an overflow in exp, 0/0, a log or root outside its domain "
            "(ta.detect_anomaly() names the op), or choose other inputs."
        )
    off_ones = [
        (e, excuse(program, k, e), e.wrong.any()) for k, e in enumerate(report.entries) if not e.ok
    ]
    if any(wrong for *_, wrong in off_ones):
        if any(kind == "kink" for _, kind, _ in off_ones):
            report.notes.append(
                "some of the elements that are off lie at a kink; the diagnosis is about the rest."
            )
        return None
    known = [(e, kind) for e, kind, _ in off_ones if kind in ("kink", "edge")]
    if not known:
        return "", ""  # only near a kink: the gradient is right
    entry, kind = known[0]
    at = places(entry.tolerance.shape, np.isinf(entry.tolerance))
    if kind == "edge":
        return "domain", (
            "the function is not finite, or raises an error, a step to one side at "
            f"{at} of {entry.name}: the input lies on the edge of the domain (sqrt, log, arcsin). "
            "Check it at inner points."
        )
    return "kink", (
        f"at {at} of {entry.name}, where the gradient is off, lies a kink or a jump: the slopes to "
        "the left and to the right differ, so the rule need not be wrong. Move the input away "
        "from it."
    )


def between_the_ops(report: Report, program: Program, steps: list[Any]) -> Diagnosis:
    """No op is to blame: look at what joins them, and at the pattern of the whole gradient."""
    worst: Any = report.worst
    which = report.entries.index(worst)
    if program.backend.ours:
        if (found := outside_the_graph(program, which, steps)) is not None:
            step, text = found
            report.point_at(step)
            kind = "missed use" if worst.analytic.any() else "gradient missing"
            return Diagnosis(
                kind,
                f"{text}, so this use is missed. Every use of a tensor counts: look for detach(), "
                ".data, .numpy(), .item(), Tensor(...) or no_grad() on the way there.",
            )
        if (lost := lost_in_the_sweep(program, which, worst.numeric)) is not None:
            return Diagnosis("missed use", lost)
    kind, text = of_entry(worst)
    size = program.inputs[which].size * sum(v.size for v in program.values)
    if size <= LARGE // 4:
        with suppress(Exception):
            kind, text = explanation(Case(program, which))
    hint = (
        "no op's own rule was found to be wrong, so look at what joins them: a value computed "
        "outside the graph, or a use that is not counted."
    )
    if any(step.name == "checkpoint" for step in steps):
        hint = "the ops inside checkpoint() cannot be looked at one by one: check without it."
    elif not program.backend.ours:
        hint = (
            "no torch.autograd.Function was found to be wrong, so look for detach(), .data, "
            ".item(), .numpy(), torch.no_grad() and hooks on the way."
        )
    return Diagnosis(kind, f"{text} Note: {hint}")


# ---- the second order


def accuse(report: Report, steps: Sequence[Any], question: Callable[[Any], Any]) -> None:
    """Point at the first op that answers a question badly."""
    for step in steps:
        if step.differentiable and (told := question(step)):
            report.point_at(step)
            report.culprits = [step.name]
            report.diagnosis = told if isinstance(told, Diagnosis) else report.diagnosis
            return


def raises(step: Any) -> bool:
    """Whether a VJP of this op raises."""
    try:
        f = Alone(step.call())
        return any(
            g is not None and g.shape != x.shape for g, x in zip(f.pull(f.cotangents), f.inputs)
        )
    except Exception:
        return True


def second_order(program: Program) -> tuple[Callable[[], list[Any]], list[Any]]:
    """The gradient as a function that can be differentiated, and its cotangents."""
    backend = program.backend
    tracked = [k for k, t in enumerate(program.run()) if backend.wants_gradient(t)]
    weights = [backend.leaf(program.cotangents[k]) for k in tracked]

    def gradient() -> list[Any]:
        outputs = program.run()
        chosen = [outputs[k] for k in tracked]
        return program.gradient(chosen, weights, create_graph=True)

    return gradient, weights


def two_answers(program: Program) -> str | None:
    """The input whose gradient under create_graph=True is not the ordinary one."""
    found = [
        None if g is None else np.array(program.backend.value(g))
        for g in second_order(program)[0]()
    ]
    return differing(program.names, program.pull(program.cotangents), found)


def alone(step: Any, backend: Any) -> Program:
    """The op by itself, as a program on leaves of its own."""
    call = step.call()
    leaves = [backend.leaf(a) if need else a for a, need in zip(call.args, call.needs)]
    tensors = [x for x, need in zip(leaves, call.needs) if need]
    names = [f"operand {i}" for i, need in enumerate(call.needs) if need]
    return Program(lambda: step.run(leaves), tensors, names, backend, np.random.default_rng(9))


def leaves_the_graph(step: Any, backend: Any) -> Diagnosis | str:
    """Whether the op's VJP cannot be differentiated in its turn."""
    why = ""
    try:
        one = alone(step, backend)
        gradient, weights = second_order(one)
        names = [*one.names, "g"]
        existing = lambda: [g for g in gradient() if g is not None]
        second = Program(existing, [*one.tensors, *weights], names, backend, one.rng)
        for which, g in enumerate(second.pull(second.cotangents)):
            if off(second, which, g) is not None:
                why = f"what it returns depends on {names[which]} in a way that is not recorded"
    except Exception as failure:
        why = f"given Tensors it raises {type(failure).__name__}: {failure}"
    return why and Diagnosis(
        "second order",
        f"the rule of op {step.name!r} cannot be differentiated again: {why.rstrip('.')}. Write "
        f"it with {backend.writes}; .numpy(), .data, .item(), float() and filling an array made "
        "by zeros leave the graph.",
    )
