"""Say why a kernel differs from its reference: rounding, a constant, a threshold or a formula."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from .explain import Finding, of_elements, wrong_slope
from .kernel import Kernel
from .measure import Limits, all_entries
from .report import Entry, greatest, worst_of, wrong_among
from .rounding import UNIT


def how(kernel: Kernel, off: list[Entry], limits: Limits, elsewhere: bool = False) -> str:
    """Say what is wrong with a kernel that fails, at the given inputs or elsewhere."""
    entry: Any = worst_of(off)
    if finding := lost(entry, elsewhere):
        return finding
    if wide := widened(kernel):
        if not wrong_among(all_entries(wide, limits)):
            return (
                f"precision: right in float64, but in {kernel.dtype} the error of {entry.name} is "
                "larger than rounding explains. Keep sums and statistics in float32, and look for "
                "numbers that cancel, underflow or overflow."
            )
        kernel = wide
    if entry.name.startswith("result"):
        return (
            f"forward: {entry.name} differs from the reference at index {entry.index}: "
            f"{entry.analytic[entry.index]:.6g}, but should be {entry.numeric[entry.index]:.6g}."
        )
    small = greatest(entry.error) < 0.1 * greatest(entry.numeric)
    vanishes = constant(kernel, entry) if elsewhere or small else None
    return vanishes or wrong_slope(kernel, entry.name) or of_elements(entry)


def lost(entry: Entry, elsewhere: bool) -> Finding:
    """Find gradients that are zero where they should be small."""
    zero, right = (entry.analytic == 0) & entry.wrong, np.abs(entry.numeric)
    others = right[~zero & ~np.isnan(right)]
    if zero.any() and (zero == entry.wrong).all():
        least = greatest(entry.numeric[zero])
        if not elsewhere and least > others.min(initial=np.inf if others.size else 0):
            return None
        return (
            f"small gradients: the gradient is zero where it should be up to {least:.2g}: look for "
            "a threshold, or for a product that underflows."
        )
    return None


def widened(kernel: Kernel) -> Kernel | None:
    """Return the kernel in float64, if it computes in float64."""
    if kernel.dtype == "float64":
        return None
    with suppress(Exception):
        wide = kernel.replaced(list(kernel.operands), "float64")
        wide.cotangents = kernel.cotangents
        # Inside, it may compute in float32 for every input.
        wide.rounds_to, wide.precision = "float32", UNIT["float32"]
        return wide if wide.is_exact else None
    return None


def constant(kernel: Kernel, entry: Entry) -> Finding:
    """Find an error that vanishes for large inputs, as that of a misplaced constant does."""
    if kernel.reference is None:
        return None
    both = kernel, kernel.reference
    which, errors = kernel.names.index(entry.name), list[float]()
    for scale in (1 / 16, 1.0, 4.0, 16.0):
        with kernel.at([scale * x for x in kernel.inputs]):
            a, b = (f.pulled(kernel.cotangents)[len(kernel.values) :][which] for f in both)
            errors.append(greatest((a - b)[entry.wrong]) / (greatest(b[entry.wrong]) + 1e-300))
    small, here, large, largest = errors
    # The error falls like a power of the size, if it can still be measured.
    power = math.log(here / (large + 1e-300), 4) if here else 0.0
    expected = here / 16**power
    floor = 100 * kernel.precision
    alike = expected < floor or 0.3 < largest / expected < 3
    if here > floor and small > here and 0.7 < power < 2.3 and alike:
        return (
            f"constant: the relative error is {here:.1g}, {small:.1g} for inputs that are 16 times "
            f"smaller, and {largest:.1g} for 16 times larger ones: a small constant such as eps is "
            "missing, has another value, or stands in another place than in the forward pass, such "
            "as outside the root."
        )
    return None
