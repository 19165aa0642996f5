"""Find the op whose VJP is wrong by checking each op alone on its operands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .explain import at_some, explanation, places, simple
from .faults import single_ops
from .report import Diagnosis, Entry, Report
from .slopes import STRICT, Limits, OneOp, Program, entry_of, flatten

LARGE = 10_000  # elements of the largest Jacobian that is computed


def all_off(f: Program, limits: Limits = STRICT) -> dict[int, Entry]:
    """Return the entries with a wrong gradient in a dict, keyed by the index of the input."""
    entries = {k: entry_of(f, k, g, limits) for k, g in enumerate(f.pull(f.cotangents))}
    return {k: entry for k, entry in entries.items() if entry.wrong.any()}


def blame(report: Report, program: Program, steps: Sequence[Any]) -> Diagnosis | None:
    """Find the first op whose VJP is wrong, note it in the report, and return the diagnosis."""
    for f in single_ops(steps, program.backend):
        with suppress(Exception):
            if entries := all_off(f):
                report.point_at(f.step)
                return Diagnosis(*accused(f, entries))
    return None


def accused(f: OneOp, entries: dict[int, Entry]) -> tuple[str, str]:
    """Explain the VJP of an op for the first input whose gradient is wrong."""
    cut = lambda a: a[(slice(5),) * a.ndim] if isinstance(a, np.ndarray) else a
    note = ""
    with suppress(Exception):  # a setting may contain a size
        shorter = OneOp(f.step, f.backend, [cut(a) for a in f.args])
        if still_off := all_off(shorter):
            if any(a.size < b.size for a, b in zip(shorter.inputs, f.inputs)):
                note = "with its operands cut to 5 elements along each axis, "
            f, entries = shorter, still_off
    which, entry = next(iter(entries.items()))
    kind, text = of_elements(entry)
    if f.inputs[which].size * sum(v.size for v in f.values) <= LARGE:
        with suppress(Exception):  # f may refuse other values or another g
            kind, text = explanation(f, which)
    number = f" (its VJP for {f.names[which]})" * (len(f.args) > 1)
    return kind, f"in op {f.step.name!r}{number}: {note}{text}"


def of_elements(entry: Entry) -> tuple[str, str]:
    """Explain a wrong gradient from its measured elements."""
    R, J, at = entry.analytic.reshape(1, -1), entry.numeric.reshape(1, -1), entry.index
    rest = f"the gradient is {entry.analytic[at]:.6g} at index {at}"
    rest += f", but the slope is {entry.numeric[at]:.6g}."
    return simple(R, J, entry.analytic.shape) or at_some(R, J, entry.wrong) or ("VJP", rest)


EXCUSES = {
    "domain": "at {} of {}, the function is infinite or raises an error on one side: the input is "
    "on the edge of the domain (sqrt, log, arcsin). Check the gradient at interior points.",
    "kink": "at {} of {}, the slopes to the left and to the right differ: the input is at a kink "
    "or a jump, so the VJP may be right. Move the input away from that point.",
    "precision": "at {} of {}, the slope cannot be measured: large numbers cancel inside the "
    "function, or the function is not smooth. Check the gradient at inputs of moderate size.",
}


def explain(report: Report, program: Program, steps: list[Any]) -> Diagnosis:
    """Explain why the gradient of a function is wrong or cannot be measured."""
    finite = lambda arrays: np.isfinite(flatten(arrays)).all()
    if not (finite(program.values) or finite([e.analytic for e in report.entries])):
        return Diagnosis(
            "domain",
            "the result is NaN or Inf at these inputs, so no slope can be measured. Choose other "
            "inputs, or find the op with ta.detect_anomaly().",
        )
    if any(e.wrong.any() for e in report.entries):
        return blame(report, program, steps) or between_the_ops(report, program.backend)
    e = next(e for e in report.entries if e.excuse)
    return Diagnosis(e.excuse, EXCUSES[e.excuse].format(places(np.isinf(e.tolerance)), e.name))


def between_the_ops(report: Report, backend: Any) -> Diagnosis:
    """Explain a gradient that is wrong although each op is right."""
    worst: Any = report.worst
    if report.order == 2:
        text = f"how a VJP depends on {worst.name} is not recorded. {unrecorded(backend)}"
        return Diagnosis("second order", text)
    kind, text = of_elements(worst)
    return Diagnosis(
        "missed use" if kind == "VJP" else kind,
        f"{text} Every op's own VJP looks right, so look at the code between the ops for a use "
        "that is not counted (detach(), .data, .numpy(), .item(), Tensor(...), no_grad(), hooks) "
        "or is counted twice. If you use checkpoint(), check the checkpointed function directly.",
    )


def unrecorded(backend: Any) -> str:
    """Explain how to write a VJP that can be differentiated."""
    return (
        f"Write the VJP with {backend.writes}; .numpy(), .data, .item(), float() and filling a "
        "new array of zeros leave the graph."
    )
