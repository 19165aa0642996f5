"""Try a kernel with the inputs and incoming gradients that come up in life, and say where it fails.

These are axes of other lengths, smaller numbers, incoming gradients that are zero, tiny,
huge or one-hot, and one array passed for two inputs. What the reference or the kernel refuses is
not offered, and is no failure.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import combinations
from typing import NamedTuple

import numpy as np

from .causes import how, widened
from .explain import Finding
from .faults import refuses
from .kernel import Kernel, of_jax
from .measure import Limits, all_entries
from .report import Array, Entry, Report, wrong_among

MOST, LONGEST = 2**15, 2**12  # elements of all arrays, and of an axis, in a long run
SLOW = 0.5  # seconds that a long run may take, so that no kernel is tried for minutes
EXCESS = 8.0  # times what rounding explains: less is no fault of a kernel that is right in float64
SHORT = 48  # the length to which axes are cut, for all circumstances but long axes


class Trial(NamedTuple):
    """A circumstance, and what came of it."""

    group: str
    name: str
    kernel: Kernel
    entries: list[Entry]
    off: list[Entry]  # those that are wrong


Change = Callable[[Array], Array]


def resized(kernel: Kernel, new: dict):
    """Return the operands with other lengths for all axes of some lengths, and no equal numbers."""
    rng, operands = np.random.default_rng(sum([*new, *new.values()])), list(kernel.operands)
    for i, x in enumerate(operands):
        if isinstance(x, Array) and any(n in new for n in x.shape):
            for axis, n in enumerate(x.shape):
                x = x.take(np.arange(new.get(n, n)) % max(1, n), axis)
            operands[i] = x * rng.uniform(0.5, 1.5, x.shape) if x.dtype.kind == "f" else x
    return operands


def is_small(kernel: Kernel, new: dict) -> bool:
    """Return whether operands and results of other lengths have few elements."""
    shapes = [x.shape for x in [*kernel.operands, *kernel.values] if isinstance(x, Array)]
    return sum(math.prod(new.get(n, n) for n in shape) for shape in shapes) < MOST


def lengths(kernel: Kernel) -> list[int]:
    """Return the lengths of all axes."""
    return sorted({n for x in kernel.operands if isinstance(x, Array) for n in x.shape})


def shortened(kernel: Kernel) -> Kernel:
    """Return the kernel with axes of at most SHORT elements, where it takes them."""
    for n in lengths(kernel):
        if n > SHORT:
            with suppress(Exception):
                kernel = kernel.replaced(resized(kernel, {n: SHORT}))
    return kernel


def long(kernel: Kernel, n: int, report: Report) -> int:
    """Return the largest multiple of a length that the kernel takes and that few elements allow."""
    longest = n
    for by in (4**e for e in range(1, 6)):  # few, as JAX compiles each op again for each shape
        if n * by > LONGEST or not is_small(kernel, {n: n * by}):
            break
        started = time.process_time()
        with suppress(Exception):
            kernel.replaced(resized(kernel, {n: n * by}))
            longest = n * by
        if (seconds := time.process_time() - started) > SLOW:
            text = f"not tried: axes of more than {n * by} elements, as a run took {seconds:.1f} s."
            report.notes.append(text)
            break
    return longest


def others(n: int) -> list[int]:
    """Return other lengths of an axis: odd ones, the next multiple of a block and beyond."""
    new = n - 1, n + 1, 2 * n + 1, n // 16 * 16 + 16, n // 16 * 16 + 17, 3
    # With 0 or 1 element, even the functions of large libraries give NaN or rounding errors.
    return [max(m, 2) for m in new]


def circumstances(kernel: Kernel, report: Report, trials: list[Trial], wrong: list[Trial]):
    """Yield (group, name, operands, change of the incoming gradient).

    Single axes get other lengths only if a trial fails in which all axes get them. Long axes take
    time, so they come last, and only if no trial has been wrong.
    """
    same: Change = lambda g: g
    large = 2.0**8 if kernel.dtype == "float16" else 2.0**30
    gradients: dict[str, Change] = {
        "zero": lambda g: 0 * g,
        "tiny": lambda g: g / large,
        "huge": lambda g: g * large,
        "one-hot, with a 1 at the last element": lambda g: (
            1.0 * (np.arange(g.size) == g.size - 1).reshape(g.shape)
        ),
    }
    for name, change in gradients.items() if kernel.reference else ():
        yield "incoming gradient", f"the incoming gradient is {name}", kernel.operands, change
    own = getattr(kernel.reference, "f", kernel) is kernel.f  # and may have an eps of its dtype
    for n in (16,) if own else (16, 256, 4096):
        operands = [x / n if i in kernel.checked else x for i, x in enumerate(kernel.operands)]
        yield "inputs", f"the inputs are {n} times smaller", operands, same
    come_apart = kernel.vjp is not None and not of_jax(kernel.vjp)  # the gradients of one array
    for i, j in combinations(kernel.checked if come_apart else (), 2):
        operands = list(kernel.operands)
        if operands[i].shape == operands[j].shape:
            operands[j] = operands[i]
            yield "same array", f"inputs {i} and {j} are the same array", operands, same
    given = lengths(kernel)
    first = next((x.shape[0] for x in kernel.inputs if x.ndim), 1)
    if kernel.dtype == "float64" and first > 1:  # less precise libraries have large errors there
        yield "one element", "the first axis has one", resized(kernel, {first: 1}), same
    several = [dict(zip(given, new)) for new in zip(*map(others, given))]
    for new in several:
        if len(new) > 1 and is_small(kernel, new):
            name = f"the axes have {some(new.values())} elements"
            yield "length", name, resized(kernel, new), same
    if sum(t.group == "length" and not t.off for t in trials) < len(several):  # which axis is it?
        for n in given:
            for m in dict.fromkeys(others(n)):
                yield f"length {n}", str(m), resized(kernel, {n: m}), same
    for n in given:
        if not wrong and (m := long(kernel, n, report)) > n:
            operands = resized(kernel, {n: m})
            yield f"length {n}", str(m), operands, np.abs
            # Sums of positive numbers stop growing in low precision.
            positive = [np.abs(x) if i in kernel.checked else x for i, x in enumerate(operands)]
            yield f"length {n}", str(m), positive, np.abs


def wrong_elsewhere(kernel: Kernel, limits: Limits, report: Report) -> Finding:
    """Find circumstances in which a kernel is wrong that is right for the given inputs."""
    trials, wrong, short = list[Trial](), list[Trial](), shortened(kernel)
    failed: Finding = None
    for group, name, operands, change in circumstances(short, report, trials, wrong):
        try:
            with warnings.catch_warnings(action="ignore"):
                subject = short.replaced(list(operands))
                gs = [change(c) for c in subject.cotangents]
                subject.cotangents = list(map(subject.representable, gs, subject.results))
                entries = all_entries(subject, limits._replace(groups=1))
                trials.append(trial := Trial(group, name, subject, entries, wrong_among(entries)))
                wrong += [trial] if trial.off and not is_rounding(trial, limits) else []
        except OverflowError:
            continue
        except Exception as failure:
            text = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]:.80}"
            if short.is_offered(operands) and not refuses(failure):
                failed = f"{group}: fails at {name}: {text}"
            elif group.startswith("length "):
                report.notes.append(f"not offered: axes of {name} elements ({text})")
    if not wrong:
        return failed
    wrong = [trial for trial in wrong if trial.group != "length"] or wrong
    first = min(wrong, key=lambda trial: sum(x.size for x in trial.kernel.inputs))
    report.entries = first.entries
    elsewhere = first.group in ("inputs", "incoming gradient")  # else zeros are elements left out
    return f"{where(trials, wrong)} {how(first.kernel, first.off, limits, elsewhere)}"


def is_rounding(trial: Trial, limits: Limits) -> bool:
    """Return whether a small error may be the rounding of another formula than the reference's.

    In lower precisions than float32, kernels are expected to compute in float32.
    """
    if trial.kernel.dtype != "float32" or any(
        (e.error > EXCESS * e.tolerance).any() for e in trial.entries
    ):
        return False
    wide = widened(trial.kernel)
    return wide is not None and not wrong_among(all_entries(wide, limits))


def where(trials: list[Trial], wrong: list[Trial]) -> str:
    """Say in which circumstances the kernel is wrong."""
    group = wrong[0].group
    if not group.startswith("length "):
        names = ", or ".join(trial.name for trial in wrong if trial.group == group)
        return f"{group}: right for the given inputs, and wrong when {names}."
    n = int(group.split()[1])
    bad = {int(t.name) for t in wrong if t.group == group}
    right = {n} | {int(t.name) for t in trials if t.group == group} - bad
    text = (
        f"length: axes that have {n} elements in the given inputs are right with {some(right)}, "
        f"and wrong with {some(bad)}"
    )
    block = math.gcd(*right)
    if block > 1 and all(m % block for m in bad):
        return (
            f"{text}: right where the length is a multiple of {block}, so look at the last, "
            "partial block."
        )
    return f"{text}: wrong beyond a length." if min(bad) > max(right) else f"{text}."


def some(numbers: Iterable[int]) -> str:
    """Write different numbers in order."""
    return ", ".join(map(str, sorted(set(numbers))))
