"""Compare a gradient with slopes: all elements of an input, or random projections of a large one.

Where the central difference disagrees with the gradient, the slope is measured again by
extrapolation. A gradient is wrong if it differs from the slope by more than the slope's error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .report import Array, Entry, greatest, largest_finite
from .slopes import ROUNDING, Curve
from .subject import Subject, flatten

SMALL = 512
"""Larger inputs are split into this many groups, and one random projection measures each group."""


class Limits(NamedTuple):
    """Settings for measuring a gradient and judging it."""

    eps: float
    atol: float
    rtol: float
    groups: int
    exact: bool = True  # whether rounding at the step eps is small compared with the gradient


STRICT = Limits(1e-6, 1e-6, 1e-4, 96)
"""Limits for a single op, whose error has no contribution from other ops."""


class Slope(NamedTuple):
    """A measured slope, and how far the gradient is off."""

    value: float
    off: float
    allowed: float
    excuse: str = ""  # why there is no usable slope: "kink", "domain" or "precision"

    @property
    def agrees(self) -> bool:
        return self.off <= self.allowed


def all_entries(f: Subject, limits: Limits) -> list[Entry]:
    """Check the gradients of all inputs."""
    if f.reference is not None:
        return f.entries()
    return [entry_of(f, which, g, limits) for which, g in enumerate(f.pull(f.cotangents))]


def entry_of(f: Subject, which: int, analytic: Array | None, limits: Limits) -> Entry:
    """Check all elements of one input, or, if it is large, groups and the worst elements."""
    x = f.inputs[which]
    a = np.zeros(x.shape) if analytic is None else analytic
    entry = Entry(f.names[which], a, np.full(x.shape, np.nan), np.zeros(x.shape), analytic is None)
    size, scale = f.total(flatten(f.values), np.linalg.norm), largest_finite(a)
    atol = 1e-10 * min(1.0, size) + limits.atol * min(1.0, scale)
    exact = ROUNDING * size / limits.eps <= 1e-3 * (scale or 1.0)
    limits = limits._replace(atol=atol, exact=exact)
    large, confirmed = x.size > limits.groups, 0
    for flat in _elements_of_bad_groups(f, which, entry, limits) if large else range(x.size):
        slope = measured(f, which, f.unit(which, flat), a, limits, extrapolate=confirmed < 4)
        entry.numeric.flat[flat], entry.tolerance.flat[flat] = slope.value, slope.allowed
        entry.excuse = entry.excuse or slope.excuse
        confirmed += not slope.agrees
    return entry


def measured(
    f: Subject, which: int, direction: Array, a: Array, limits: Limits, extrapolate: bool = True
) -> Slope:
    """Compare the gradient `a` with the slope of sum(cotangent * result) along a direction."""
    analytic = float(np.sum(direction * np.where(direction, a, 0)))
    curve = f.along(which, direction)

    def judged(value: float) -> Slope:
        return Slope(value, abs(analytic - value), limits.atol + limits.rtol * abs(value))

    rough = judged(f.total(curve.slope(limits.eps)))
    if not extrapolate or rough.agrees and limits.exact:
        return rough
    slopes, errors = f.derivative(which, direction)
    slope, error = judged(f.total(slopes)), f.total(errors, np.linalg.norm)  # independent errors
    if np.isnan(slope.value):
        return Slope(np.inf, np.inf, np.inf, "domain")
    tiny = slope.off <= 1e-6 * sum(map(greatest, f.cotangents))  # not a jump of the gradient
    is_rounding = tiny and slope.off <= 10 * rounding_of(f, which, direction)
    if slope.agrees or is_rounding or hidden(f, curve, analytic, slope.off):
        return slope._replace(allowed=max(slope.allowed, slope.off))
    if np.isinf(error):
        return slope._replace(allowed=np.inf, excuse="kink")
    within = slope.off <= slope.allowed + error
    inaccurate = within and slope.off > max(1e-9, largest_finite(a) / 4)
    if inaccurate or rough.agrees and not within:  # or the two slopes disagree
        return slope._replace(allowed=np.inf, excuse="precision")
    return slope._replace(allowed=slope.allowed + error)


def rounding_of(f: Subject, which: int, direction: Array) -> float:
    """Return how far other rounding errors move the gradient along a direction.

    The inputs move by up to 1000 roundings, because a sum with a larger number hides smaller moves.
    """

    def gradient() -> float:
        a = f.pull(f.cotangents)[which]
        return 0.0 if a is None else float(np.sum(direction * np.where(direction, a, 0)))

    came, errors = gradient(), []
    for _ in range(4):
        move = lambda x: x * (1 + 1000 * ROUNDING * f.rng.uniform(-1, 1, x.shape))
        moved = {id(x): move(x) for x in f.inputs}  # one array may be passed twice
        with f.at([moved[id(x)] for x in f.inputs]):
            errors.append(abs(gradient() - came))
    return max(errors)


def hidden(f: Subject, curve: Curve, analytic: float, off: float) -> bool:
    """Return whether rounding hides the slope at small steps, and a large step shows it.

    It does for a slope of 0, which rounding alone makes seem to differ, as that of a bias of keys,
    and within 20% for a small slope, as in a sigmoid's tail.
    """
    least = 1e-9 * sum(map(greatest, f.cotangents))
    rounding = max(abs(f.total(curve.curvature(k * 1e-9))) for k in (1, 3, 10))
    rounding = min(rounding, least)  # what is larger is a jump
    within = abs(analytic) / 5 if off <= least else 0.0
    steps = [10.0**k for k in range(-5, 0)]
    return any(abs(f.total(curve.slope(h)) - analytic) <= within + 4 * rounding / h for h in steps)


def _elements_of_bad_groups(f: Subject, which: int, entry: Entry, limits: Limits) -> list[int]:
    """Check random projections of groups of elements, and return the worst of the bad groups."""
    x, culprits = f.inputs[which], set[int]()
    signs = f.rng.choice([-1.0, 1.0], x.shape)
    entry.projections, limits = limits.groups, limits._replace(rtol=1e-6)

    def projected(flats, extrapolate: bool) -> Slope:
        direction = np.zeros(x.shape)
        direction.flat[flats] = signs.flat[flats]
        return measured(f, which, direction, entry.analytic, limits, extrapolate)

    error = lambda flats: np.nan_to_num(projected(flats, False).off, nan=np.inf)
    for flats in np.array_split(f.rng.permutation(x.size), limits.groups):
        slope = projected(flats, True)
        if slope.excuse or not slope.agrees:
            culprits.update(flats[:3].tolist())
            while len(flats) > 1:  # follow the half with the larger error
                flats = max(np.array_split(flats, 2), key=error)
            culprits.update(flats.tolist())
        if len(culprits) >= 32:
            break
    return sorted(culprits)
