"""Is it the check itself?  A step that does not suit, a kink, numbers too coarse to measure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ...engine import tracked
from ..measuring import How, Problem, rounding
from ..records import array_of
from ..report import Entry, Report
from ..trace import Trace
from .pattern import Found
from .suspects import Search, search

EPSILONS = tuple(10.0 ** -(k / 2) for k in range(2, 25))
"""The steps that are tried; for values that are very small, in units of their size."""


class Program:
    """A function whose gradient is wrong, and everything that was seen of it."""

    def __init__(
        self, report: Report, problem: Problem, trace: Trace, outputs: list[Any], how: How
    ) -> None:
        worst = report.worst
        self.entry: Entry = worst  # type: ignore
        self.which = report.entries.index(worst)  # type: ignore
        self.report, self.problem, self.trace = report, problem, trace
        self.outputs, self.how, self.x = outputs, how, problem.inputs[self.which]

    def offers(self, need: str) -> bool:
        return True

    @property
    def checkpointed(self) -> bool:
        """What runs inside checkpoint() is seen unrecorded, and recorded only later."""
        return any(step.name == "checkpoint" for step in self.trace.steps)

    @cached_property
    def search(self) -> Search:
        """The ops whose own rule is wrong."""
        return search(self.trace.steps, self.how.rng, self.how.rtol)

    # ---- measuring again with other steps

    def steps(self, flat: int) -> list[float]:
        size = abs(float(self.x._data.flat[flat]))
        return [h * size if 0 < size < 1e-8 else h for h in EPSILONS]

    def slope(self, flat: int, eps: float) -> float:
        return self.problem.element(self.which, flat, eps)

    def wrong_elements(self, most: int = 24, entry: Entry | None = None) -> list[int]:
        """Those that are off the most."""
        entry = entry or self.entry
        flats = np.flatnonzero(entry.wrong)
        errors = np.nan_to_num(entry.error.flat[flats], nan=np.inf)
        return [int(i) for i in flats[np.argsort(-errors)][:most]]

    @cached_property
    def curve(self) -> list[tuple[float, float]]:
        """The worst element's error against eps: a V if the gradient is right, else flat."""
        index, analytic = self.entry.index, self.entry.analytic
        flat = int(np.ravel_multi_index(index, analytic.shape)) if index else 0
        steps = self.steps(flat)[::2]
        errors = [float(abs(self.slope(flat, h) - analytic.flat[flat])) for h in steps]
        # NaN: outside the domain
        return [(h, np.inf if np.isnan(error) else error) for h, error in zip(steps, errors)]

    @cached_property
    def agreeing_steps(self) -> list[float] | None:
        """The steps at which, as at the next smaller one, all agrees; None where it cannot be
        told."""
        flats = self.wrong_elements(12)
        if not np.isfinite(self.entry.analytic.flat[flats]).all():
            return None
        steps = self.steps(flats[0])
        fine = [self._agrees(flats, h) for h in steps]
        return [h for h, here, after in zip(steps, fine, fine[1:]) if here and after]

    def _agrees(self, flats: list[int], h: float) -> bool:
        a, n = self.entry.analytic.flat[flats], np.array([self.slope(i, h) for i in flats])
        if a.any():
            own = np.maximum(np.abs(n), np.abs(a))
            # A wrong gradient may come near where a large step bends the slope: no such
            # improvement.
            allowed = np.minimum(1e-3 * own + 1e-5 * own.max(), self.entry.error.flat[flats] / 2)
            return bool((np.abs(n - a) <= allowed).all())
        # Slopes must vanish as h does, and not only because nothing moves any more.
        largest, eps = max(abs(self.entry.numeric.flat[i]) for i in flats), self.how.eps
        hidden = (self.problem.noise_of(self.which, i, eps) * eps / h for i in flats)
        return all(abs(v) <= 1e-5 * largest for v in n) and all(
            noise <= 1e-3 * largest for noise in hidden
        )

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

    @cached_property
    def kinks(self) -> str:
        """Do "all", "some" or "none" of the wrong elements lie at a kink?"""
        entry = self.entry
        if (
            self.unsteadiness
            or not np.isfinite([entry.numeric, entry.analytic])[:, entry.wrong].all()
        ):
            return "none"
        scale = float(np.nanmax(np.abs([entry.numeric, entry.analytic]), initial=0))
        kink = lambda i: self.problem.at_kink(self.which, i, self.how.eps, scale)
        hits = [kink(i) for i in self.wrong_elements()]
        return "all" if all(hits) else "some" if any(hits) else "none"

    @cached_property
    def unsteadiness(self) -> dict[str, Any] | None:
        """Do the slopes of most wrong elements jump about with a slightly different step?"""
        flats = self.wrong_elements()
        steps = [factor * self.how.eps for factor in (0.6, 0.8, 1.0, 1.3, 1.7)]
        slopes = np.array([[self.slope(i, h) for i in flats] for h in steps])
        if not np.isfinite(slopes).all():
            return None
        change = slopes * np.reshape(steps, (-1, 1))  # which is steady at a jump
        jumpy = np.ptp(slopes, axis=0) > 0.1 * self.entry.error.flat[flats]
        erratic = jumpy & (np.ptp(change, axis=0) > 0.1 * np.abs(change).max(axis=0))
        if erratic.mean() < 0.5:
            return None
        worst = int(np.argmax(erratic))
        index = np.unravel_index(flats[worst], self.entry.analytic.shape)
        told = (f"{v:.3g} with eps={h:.1e}" for v, h in zip(slopes[:, worst], steps))
        return {"index": tuple(int(i) for i in index), "slopes": ", ".join(told)}


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
    eps, flats = program.how.eps, program.wrong_elements(12)
    largest = float(np.abs(program.x._data.flat[flats]).max())
    finite = np.isfinite(program.entry.numeric.flat[flats]).all()
    if not (1e14 * eps <= largest < np.inf and finite):
        return None
    return {"eps": eps, "largest": largest, "better": 1e-6 * largest}


def right_by_large_steps_only(program: Program) -> Found:
    best, usual = program.best_step, max(1.0, float(np.abs(program.x._data).mean()))
    if best is None or best < 1e-3 * usual or program.how.eps >= best:
        return None
    return {"best": best}


def right_by_another_step(program: Program) -> Found:
    if (best := program.best_step) is None:
        return None
    steps: Any = program.agreeing_steps
    eps = program.how.eps
    small = "too small: rounding drowns the difference"
    large = "too large: the function bends within one step"
    size = large if eps > best else small
    return {"eps": eps, "size": size, "largest": steps[0], "smallest": steps[-1], "best": best}


def all_at_kinks(program: Program) -> Found:
    return {"index": program.entry.index} if program.kinks == "all" else None


def unsteady(program: Program) -> Found:
    return program.unsteadiness


def drowned(program: Program) -> bool:
    """Are all slopes that are off hidden by rounding, and right by larger steps?  Then they pass.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding, but the result
    itself is too small to tell.
    """
    report, problem, eps = program.report, program.problem, program.how.eps
    most = rounding((np.abs(c) for c in problem.cotangents), eps)  # as if all results were about 1
    for which, entry in enumerate(report.entries):
        for i in program.wrong_elements(entry=entry):
            a, off, allowed = (v.flat[i] for v in (entry.analytic, entry.error, entry.tolerance))
            enough = max(allowed, 0.2 * min(abs(a), off))
            larger = (problem.element(which, i, eps * 10.0**k) for k in range(1, 6))
            if not off <= most or all(not abs(slope - a) <= enough for slope in larger):
                return False
    for entry in (entry for entry in report.entries if not entry.ok):
        report.notes.append(
            f"{entry.name}: at {int(entry.wrong.sum())} elements the slope is so small that with "
            f"eps={eps:.0e} rounding hides it; with larger steps it agrees with the gradient to a "
            "fifth."
        )
        entry.tolerance = np.maximum(entry.tolerance, entry.error)
    return True
