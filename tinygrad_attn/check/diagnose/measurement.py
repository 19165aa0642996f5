"""Is it the check itself?  A step that does not suit, a kink, numbers too coarse to measure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ...engine import tracked
from ..judging import Trial
from ..measuring import How, Problem, rounding
from ..records import array_of
from ..report import Report
from ..trace import Step, Trace
from .pattern import Found
from .suspects import Search, search


class Program(Trial):
    """A function whose gradient is wrong, and everything that was seen of it."""

    def __init__(
        self, report: Report, problem: Problem, trace: Trace, outputs: list[Any], how: How
    ) -> None:
        self.report, self.trace, self.outputs, worst = report, trace, outputs, report.worst
        super().__init__(problem, report.entries.index(worst), worst, how)  # type: ignore[arg-type]

    @property
    def checkpointed(self) -> bool:
        """What runs inside checkpoint() is seen unrecorded, and recorded only later."""
        return any(step.name == "checkpoint" for step in self.trace.steps)

    @cached_property
    def search(self) -> Search:
        """The ops whose own rule is wrong."""
        return search(self.trace.steps, self.how.rng)

    @cached_property
    def best_step(self) -> float | None:
        runs = self.agreeing_steps
        if not runs:
            return None
        known = ((error, h) for h, error in self.curve if runs[-1] <= h <= runs[0])
        return min(known, default=(0, runs[0]))[1]

    @property
    def better_steps(self) -> list[float]:
        """The steps to try instead of the default one."""
        if right_by_large_steps_only(self):
            return []
        if self.best_step is not None:
            return [self.best_step, self.agreeing_steps[0]]  # type: ignore[index]
        found = lost_beside_large_values(self)
        return [found["better"]] if found else []


def lower_precision(program: Program) -> Found:
    """The first step that turns float64 into something shorter."""
    for step in program.trace.steps:
        dtype = step.result._data.dtype
        from_double = any(tracked(x) and array_of(x).dtype == np.float64 for x in step.inputs)
        if dtype.kind == "f" and dtype.itemsize < 8 and from_double:
            return {"step": step, "op": step.name, "dtype": dtype}
    return None


def lost_beside_large_values(program: Program) -> Found:
    """The step is too small to move the values."""
    if program.agreeing_steps is None or program.agreeing_steps:
        return None
    eps, flats = program.how.eps, program.worst
    largest = float(np.abs(program.x._data.flat[flats]).max())
    finite = np.isfinite(program.entry.numeric.flat[flats]).all()
    if not (1e14 * eps <= largest < np.inf and finite):
        return None
    return {"eps": eps, "largest": largest, "better": 1e-6 * largest}


def right_by_large_steps_only(program: Program) -> Found:
    """The gradient agrees only with steps much larger than usual, as where f rounds."""
    best, usual = program.best_step, max(1.0, float(np.abs(program.x._data).mean()))
    if best is None or best < 1e-3 * usual or program.how.eps >= best:
        return None
    return {"best": best, "step": _rounded(program)}


def _rounded(program: Program) -> Step | None:
    """The first step whose result, though float64, has the digits of float32 only."""
    short = lambda v: v.dtype.kind == "f" and bool((v.astype(np.float32) == v).all())
    steps = (s for s in program.trace.steps if s.recorded and short(s.result._data))
    return next((s for s in steps if not all(short(array_of(x)) for x in s.inputs)), None)


def right_by_another_step(program: Program) -> Found:
    """The gradient agrees with another step than the one that was taken."""
    if (best := program.best_step) is None:
        return None
    steps: Any = program.agreeing_steps
    eps = program.how.eps
    large = "too large: the function bends within one step"
    size = large if eps > best else "too small: rounding drowns the difference"
    return {"eps": eps, "size": size, "largest": steps[0], "smallest": steps[-1], "best": best}


def all_at_kinks(program: Program) -> Found:
    """Every wrong element lies at a kink, where there is no one slope."""
    return {"index": program.entry.index} if program.kinks == "all" else None


def unsteady(program: Program) -> Found:
    """The slope jumps about with the step, as where f is not smooth."""
    return program.unsteadiness


def drowned(report: Report, problem: Problem, how: How) -> bool:
    """Are all slopes that are off hidden by rounding, and right by larger steps?  Then they pass.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding, but the result
    itself is too small to tell.
    """
    eps, wrong = how.eps, [e for e in report.entries if not e.ok]
    most = rounding((np.abs(c) for c in problem.cotangents), eps)  # as if all results were about 1
    for entry in wrong:
        trial = Trial(problem, report.entries.index(entry), entry, how)
        for i in trial.flats:
            a, off, allowed = (v.flat[i] for v in (entry.analytic, entry.error, entry.tolerance))
            enough = max(allowed, 0.2 * min(abs(a), off))
            larger = (trial.slope(i, eps * 10.0**k) for k in range(1, 6))
            if not off <= most or all(not abs(slope - a) <= enough for slope in larger):
                return False
    for entry in wrong:
        report.notes.append(
            f"{entry.name}: at {int(entry.wrong.sum())} elements the slope is so small that with "
            f"eps={eps:.0e} rounding hides it; with larger steps it agrees with the gradient to a "
            "fifth."
        )
        entry.tolerance = np.maximum(entry.tolerance, entry.error)
    return True
