"""Say why a kernel differs from its reference: rounding, a constant, a threshold or a formula."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import quoted
from .explain import Finding, of_elements, wrong_slope
from .kernel import Kernel, Plain, results_of
from .measure import Limits, all_entries
from .report import Array, Entry, greatest, worst_of
from .rounding import UNIT
from .subject import flatten

MOST_STEPS = 80  # of a reference, that are changed one at a time
MOST_PARTS = 48  # elements of a step whose gradients are changed one at a time
VAGUE = ("VJP", "missing sum", "missed use", "some elements", "mask or index", "wrong axis")
FACTORS = {1: "missing", -1: "counted twice", 2: "of the wrong sign"}


def how(kernel: Kernel, off: list[Entry], limits: Limits, elsewhere: bool = False) -> str:
    """Say what is wrong with a kernel that fails, at the given inputs or elsewhere."""
    entry: Any = worst_of(off)
    if finding := lost(entry, elsewhere):
        return finding
    if wide := widened(kernel):
        if not any(e.wrong.any() for e in all_entries(wide, limits)):
            return imprecise(kernel, entry)
        kernel = wide
    if entry.name.startswith("result"):
        return (
            f"forward: {entry.name} differs from the reference at index {entry.index}: "
            f"{entry.analytic[entry.index]:.6g}, but should be {entry.numeric[entry.index]:.6g}."
        )
    finding = constant(kernel) or wrong_slope(kernel) or of_elements(entry)
    return (finding.startswith(VAGUE) and wrong_term(kernel)) or finding


def lost(entry: Entry, elsewhere: bool) -> Finding:
    """Find gradients that are zero where they should be small."""
    zero = (entry.analytic == 0) & entry.wrong
    least = greatest(entry.numeric[zero])
    small = elsewhere or least < greatest(entry.numeric) / 2
    if zero.any() and (zero == entry.wrong).all() and small:
        return (
            f"small gradients: the gradient is zero where it should be up to {least:.2g}: look for "
            "a threshold, or for a product that underflows."
        )
    return None


def widened(kernel: Kernel) -> Kernel | None:
    """Return the kernel in float64, if it computes in float64."""
    if kernel.dtype == "float64":
        return None
    f, vjp, like, make = kernel.f, kernel.vjp, kernel.like, kernel.make_reference
    with suppress(Exception):
        wide = Kernel(f, vjp, like, "float64", make, list(kernel.operands))
        wide.cotangents = kernel.cotangents
        # Inside, it may compute in float32 for every input.
        wide.rounds_to, wide.precision = "float32", UNIT["float32"]
        return wide if wide.is_exact else None
    return None


def constant(kernel: Kernel) -> Finding:
    """Find an error that vanishes for large inputs, as that of a misplaced constant does."""
    if kernel.reference is None:
        return None
    errors = []
    for scale in (1 / 16, 1.0, 4.0, 16.0):
        with kernel.at([scale * x for x in kernel.inputs]):
            right = kernel.right(kernel.cotangents)[len(kernel.values) :]
            pairs = zip(kernel.gradients(), right)
            errors.append(max(greatest(a - b) / (greatest(b) + 1e-300) for a, b in pairs))
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


def wrong_term(kernel: Kernel) -> Finding:
    """Find the step of the reference whose gradient the kernel leaves out, doubles or negates."""
    plain, cotangents = kernel.reference, kernel.cotangents
    if not isinstance(plain, Plain):
        return None
    with plain.backend.watch() as calls:
        run = plain.run()
    gradients = lambda: flatten(results_of(plain, [], plain.pull(cotangents, run)))
    right = gradients()
    error, best = flatten(kernel.gradients()) - right, max(2e-3, 24 * kernel.precision)
    finding = None
    for call in calls[: -MOST_STEPS - 1 : -1]:  # from the result on
        if call.result._node is None:
            continue
        where = f"{call.name!r}, called at {quoted(*call.place)}"

        def without(part, call=call) -> Array:
            """Return the change of the gradients if the step passes on no gradient, or a part."""
            hook = call.result.register_hook(lambda g: g * (1 - part))
            change = gradients() - right
            hook.remove()
            return change

        change = without(1.0)
        c = float(change @ error) / (float(change @ change) or np.inf)
        rest = float(np.linalg.norm(error - c * change) / np.linalg.norm(error))
        if rest < 0.9 * best and abs(c) > 0.02:
            best, k = rest, min(FACTORS, key=lambda k: abs(c - k))
            how_often = FACTORS[k] if abs(c - k) < 0.02 else f"multiplied by {1 - c:.3g}"
        elif finding is None and 1 < call.result.size <= min(MOST_PARTS, error.size // 2):
            shape, parts = call.result.shape, np.eye(call.result.size)
            changes = np.stack([without(part.reshape(shape)) for part in parts], axis=-1)
            fit = changes @ np.linalg.lstsq(changes, error, rcond=1e-9)[0]
            if np.linalg.norm(error - fit) > best * np.linalg.norm(error):
                continue
            how_often = "wrong"
        else:
            continue
        finding = (
            f"wrong term: the gradient that passes back through {where}, is {how_often}; the rest "
            "is right."
        )
    return finding


def imprecise(kernel: Kernel, entry: Entry) -> str:
    """Explain an error that the kernel does not make in float64."""
    return (
        f"precision: right in float64, but in {kernel.dtype} the error of {entry.name} is larger "
        "than rounding explains. Keep sums and statistics in float32, and look "
        "for numbers that cancel, underflow or overflow."
    )
