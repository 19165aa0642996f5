"""Is a gradient the slope of its function?  And where it is not: the rule, or the measuring?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .measuring import How, Problem
from .report import Entry, greatest

SMALL = 512
"""Larger inputs are measured in this many groups of elements, a random projection of each."""

WHOLE = 1920
"""Up to so many elements are looked at one by one where a group is off; of more, some."""

EPSILONS = tuple(10.0 ** -(k / 2) for k in range(2, 25))
"""The steps that are tried; for values that are very small, in units of their size."""


def entries(problem: Problem, gradients: Sequence[Any], how: How, noise: float) -> list[Entry]:
    """The gradient by each input beside its slope; what rounding makes of either counts as right.

    A function that is constant to the last bit has no noise, but its gradient's own rounding is
    still there.
    """
    least = [max(noise, min(20 * r, 1e-8), 1e-14) for r in problem.shaken(gradients)]
    return [
        entry_of(problem, which, gradient, how, least[which])
        for which, gradient in enumerate(gradients)
    ]


def entry_of(
    problem: Problem, which: int, found: np.ndarray | None, how: How, noise: float
) -> Entry:
    """One input: element by element if it is small, else in groups, and the elements of bad
    ones."""
    x, name, projections, largest = problem.inputs[which], problem.names[which], 0, 0.0
    analytic = np.zeros(x.shape) if found is None else found
    chosen: Sequence[int] = range(x.size)
    if x.size > how.groups:
        projections = how.groups
        largest, chosen = _groups_off(problem, which, analytic, how, noise)
    numeric = problem.numeric(which, how.eps, chosen)
    tolerance = _tolerance(numeric, analytic, how.atol, how.rtol, noise)
    return Entry(name, analytic, numeric, tolerance, found is None, projections, largest)


def _groups_off(
    problem: Problem, which: int, analytic: np.ndarray, how: How, noise: float
) -> tuple[float, Sequence[int]]:
    """The largest error of a random projection, and the elements to look at one by one."""
    rng, largest = how.rng, 0.0
    size = analytic.size
    member, signs = rng.permutation(np.arange(size) % how.groups), rng.choice([-1.0, 1.0], size)
    suspicious: list[int] = []
    culprits: set[int] = set()  # among many, chance alone might miss the one that is wrong
    for k in range(how.groups):
        flats = np.flatnonzero(member == k)
        n, a, error = problem.projected(which, flats, signs, analytic, how.eps)
        largest = max(largest, error)
        # Of one small slope among large ones the group is off by little; its elements are judged
        # alone.
        both, strict = np.array([n, a]), min(how.rtol, 1e-6)
        if error > _tolerance(both, both, how.atol, strict, noise)[0]:
            suspicious += flats.tolist()
            if len(culprits) < 8:
                culprits.add(problem.culprit(which, flats, signs, analytic, how.eps))
    if suspicious and size <= WHOLE:
        return largest, range(size)
    order = np.argsort(rng.random(len(suspicious)))[:SMALL]
    return largest, sorted(culprits.union(suspicious[i] for i in order))


def _tolerance(
    numeric: np.ndarray, analytic: np.ndarray, atol: float, rtol: float, noise: float
) -> np.ndarray:
    """atol + rtol |n|, with atol relative to the largest slope where that is below 1.

    Never below what rounding makes.
    """
    slopes = np.abs(np.nan_to_num(numeric))
    scale = max(greatest(slopes), greatest(np.nan_to_num(analytic)))
    return min(atol, max(atol * scale, noise)) + rtol * slopes


class Trial:
    """One input whose gradient is off: the worst elements are measured again, with other steps."""

    def __init__(self, problem: Problem, which: int, entry: Entry, how: How) -> None:
        self.problem, self.which, self.entry, self.how = problem, which, entry, how
        self.x, wrong = problem.inputs[which], np.flatnonzero(entry.wrong)
        errors = np.nan_to_num(entry.error.flat[wrong], nan=np.inf)
        self.flats = [int(i) for i in wrong[np.argsort(-errors, kind="stable")][:24]]
        self.worst, size = self.flats[:12], abs(float(self.x._data.flat[self.flats[0]]))
        self.steps = [h * size if 0 < size < 1e-8 else h for h in EPSILONS]
        sizes = np.abs([entry.numeric, entry.analytic])
        self.scale = float(sizes[np.isfinite(sizes)].max(initial=1e-300))  # all may be NaN, or 0

    def slope(self, flat: int, eps: float) -> float:
        return self.problem.element(self.which, flat, eps)

    def slopes(self, flat: int) -> np.ndarray:
        """With each step; NaN outside the domain."""
        return np.array([self.slope(flat, h) for h in self.steps])

    @cached_property
    def curve(self) -> list[tuple[float, float]]:
        """The worst element's error against eps: a V if the gradient is right, else flat."""
        flat = self.flats[0]
        errors = np.abs(self.slopes(flat) - self.entry.analytic.flat[flat])
        errors = np.where(np.isnan(errors), np.inf, errors)
        return [(h, float(error)) for h, error in zip(self.steps, errors)][::2]

    def agreement(self, flats: list[int], better: float) -> np.ndarray:
        """(step, element): do gradient and slope agree there, as with the next smaller step?

        A wrong gradient may come near where a large step bends the slope: the error must be
        better by a factor.
        """
        n = np.stack([self.slopes(i) for i in flats], axis=1)
        a, error, given = (
            v.flat[flats] for v in (self.entry.analytic, self.entry.error, self.entry.numeric)
        )
        if a.any():
            own = np.fmax(np.abs(n), np.abs(a))
            allowed = 1e-3 * own + 1e-5 * own.max(axis=1, keepdims=True)
            fine = np.abs(n - a) <= np.minimum(allowed, error / better)
        else:
            # Slopes must vanish as h does, and not only because nothing moves any more.
            largest, eps = np.abs(given).max(), self.how.eps
            hidden = self.problem.noise(eps) * (eps / np.reshape(self.steps, (-1, 1)))
            fine = (np.abs(n) <= 1e-5 * largest) & (hidden <= 1e-3 * largest)
        return fine[:-1] & fine[1:]

    @cached_property
    def agreeing_steps(self) -> list[float] | None:
        """The steps at which all agrees; None where it cannot be told."""
        if not np.isfinite(self.entry.analytic.flat[self.worst]).all():
            return None
        fine = np.flatnonzero(self.agreement(self.worst, 2).all(axis=1))
        return [self.steps[k] for k in fine]

    def at_kink(self, flat: int) -> bool:
        return self.problem.at_kink(self.which, flat, self.how.eps, self.scale)

    @property
    def cleared(self) -> bool:
        """Are the elements that are off right with another step, or at a kink, or no numbers?"""
        return all(
            np.isinf(self.entry.numeric.flat[i])
            or np.isfinite(self.entry.analytic.flat[i])
            and (self.agreement([i], 10).any() or self.at_kink(i))
            for i in self.worst
        )

    @property
    def error(self) -> float:
        """The largest error over the largest slope."""
        finite = self.entry.error[np.isfinite(self.entry.numeric)]
        return greatest(np.nan_to_num(finite, nan=np.inf)) / self.scale

    @cached_property
    def kinks(self) -> str:
        """Do "all", "some" or "none" of the wrong elements lie at a kink?"""
        entry = self.entry
        finite = np.isfinite([entry.numeric, entry.analytic])[:, entry.wrong].all()
        hits = [self.at_kink(i) for i in self.flats] if finite and not self.unsteadiness else []
        return "none" if not any(hits) else "all" if all(hits) else "some"

    @cached_property
    def unsteadiness(self) -> dict[str, Any] | None:
        """Do the slopes of most wrong elements jump about with a slightly different step?"""
        steps = [factor * self.how.eps for factor in (0.6, 0.8, 1.0, 1.3, 1.7)]
        slopes = np.array([[self.slope(i, h) for i in self.flats] for h in steps])
        if not np.isfinite(slopes).all():
            return None
        change = slopes * np.reshape(steps, (-1, 1))  # which is steady at a jump
        jumpy = np.ptp(slopes, axis=0) > 0.1 * self.entry.error.flat[self.flats]
        erratic = jumpy & (np.ptp(change, axis=0) > 0.1 * np.abs(change).max(axis=0))
        if erratic.mean() < 0.5:
            return None
        worst = int(np.argmax(erratic))
        index = np.unravel_index(self.flats[worst], self.entry.analytic.shape)
        told = (f"{v:.3g} with eps={h:.1e}" for v, h in zip(slopes[:, worst], steps))
        return {"index": tuple(int(i) for i in index), "slopes": ", ".join(told)}
