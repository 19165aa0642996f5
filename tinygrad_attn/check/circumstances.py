"""Try a kernel with the inputs and incoming gradients that come up in life, and say where it fails.

These are axes of other lengths, larger and smaller numbers, incoming gradients that are zero, tiny,
huge or one-hot, and one array passed for two inputs. What the reference or the kernel refuses is
not offered, and is no failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .explain import Finding, wrong_slope
from .kernel import Kernel
from .measure import Limits, all_entries
from .report import Array, Diagnosis, Entry, Report, greatest
from .rounding import UNIT

MOST = 2**16  # elements of a long input
SHORT = 48  # the length to which axes are cut, for all circumstances but long axes


class Trial(NamedTuple):
    """A circumstance, and what came of it."""

    group: str
    name: str
    kernel: Kernel
    entries: list[Entry]

    @property
    def off(self) -> list[Entry]:
        return [e for e in self.entries if e.wrong.any()]


Change = Callable[[Array], Array]


def one_hot(at: int) -> Change:
    return lambda g: np.eye(1, g.size, at % max(1, g.size)).reshape(g.shape)


def of_gradients(dtype: str) -> dict[str, Change]:
    """Return incoming gradients of other sizes, by name."""
    large = 2.0**8 if dtype == "float16" else 2.0**30
    return {
        "zero": lambda g: 0 * g,
        "tiny": lambda g: g / large,
        "huge": lambda g: g * large,
        "one-hot, with a 1 at the first element": one_hot(0),
        "one-hot, with a 1 at the last element": one_hot(-1),
    }


OF_INPUTS: dict[str, Change] = {
    "16 times smaller": lambda x: x / 16,
    "4 times larger": lambda x: x * 4,
    "larger by 2": lambda x: x + 2,
}


def changed(kernel: Kernel, change: Change) -> list[Any]:
    """Return the operands with a change to those that are checked."""
    operands = list(kernel.operands)
    for i in kernel.checked:
        operands[i] = change(operands[i])
    return operands


def resized(kernel: Kernel, old: int, new: int) -> list[Any]:
    """Return the operands with another length for all axes of one length, and no equal numbers."""
    rng, operands = np.random.default_rng(old + new), list(kernel.operands)
    for i, x in enumerate(operands):
        if isinstance(x, Array) and old in x.shape:
            for axis in [axis for axis, n in enumerate(x.shape) if n == old]:
                x = x.take(np.arange(new) % max(1, old), axis)
            operands[i] = x * rng.uniform(0.5, 1.5, x.shape) if x.dtype.kind == "f" else x
    return operands


def lengths(kernel: Kernel) -> list[int]:
    """Return the lengths of all axes."""
    return sorted({n for x in kernel.operands if isinstance(x, Array) for n in x.shape})


def shortened(kernel: Kernel) -> Kernel:
    """Return the kernel with axes of at most SHORT elements, where it takes them."""
    for n in lengths(kernel):
        if n > SHORT:
            with suppress(Exception):
                kernel = kernel.replaced(resized(kernel, n, SHORT))
    return kernel


def circumstances(kernel: Kernel) -> Iterator[tuple[str, str, list[Any], Change]]:
    """Yield (group, name, operands, change of the incoming gradient)."""
    same: Change = lambda g: g
    if kernel.reference is not None:
        for name, change in of_gradients(kernel.dtype).items():
            yield "incoming gradient", f"the incoming gradient is {name}", kernel.operands, change
    for name, change in OF_INPUTS.items():
        yield "inputs", f"the inputs are {name}", changed(kernel, change), same
    for n in lengths(kernel):
        size = sum(x.size for x in kernel.inputs if n in x.shape)
        long = n << max(0, int(math.log2(MOST / max(1, size)))) if size else 0
        for m in dict.fromkeys(
            (n - 1, n + 1, 2 * n + 1, n // 16 * 16 + 16, n // 16 * 16 + 17, 3, 1, 0, long)
        ):
            if m >= 0 and m != n:
                yield f"length {n}", str(m), resized(kernel, n, m), same


def wrong_elsewhere(kernel: Kernel, limits: Limits, report: Report) -> Finding:
    """Find circumstances in which a kernel is wrong that is right for the given inputs."""
    trials, short = [], shortened(kernel)
    for group, name, operands, change in circumstances(short):
        if short.make_reference is not None:
            with suppress(Exception):
                short.make_reference(list(operands))
        try:
            with np.errstate(all="ignore"):
                subject = short.replaced(list(operands))
                gs = [change(c) for c in subject.cotangents]
                subject.cotangents = list(map(subject.representable, gs, subject.results))
                entries = all_entries(subject, limits._replace(groups=1))
        except Exception as refusal:
            if group.startswith("length"):
                text = f"{type(refusal).__name__}: {str(refusal).partition(chr(10))[0]:.80}"
                report.notes.append(f"not offered: axes of {name} elements ({text})")
            continue
        trials.append(Trial(group, name, subject, entries))
    wrong = [trial for trial in trials if trial.off]
    if not wrong:
        return None
    first = min(wrong, key=lambda trial: sum(x.size for x in trial.kernel.inputs))
    report.entries = first.entries
    return f"{where(trials, wrong)} {how(first.kernel, first.off, limits)}"


def where(trials: list[Trial], wrong: list[Trial]) -> str:
    """Say in which circumstances the kernel is wrong."""
    group = wrong[0].group
    if not group.startswith("length"):
        names = ", or ".join(trial.name for trial in wrong if trial.group == group)
        return f"{group}: right for the given inputs, and wrong when {names}."
    n = int(group.split()[1])
    right = [n, *(int(t.name) for t in trials if t.group == group and not t.off and int(t.name))]
    bad = [int(t.name) for t in wrong if t.group == group]
    text = f"length: axes that have {n} elements in the given inputs are right with {some(right)}, "
    text += f"and wrong with {some(bad)}"
    block = math.gcd(*right)
    if block > 1 and all(m % block for m in bad):
        return f"{text}: right where the length is a multiple of {block}, so look at the last, partial block."
    if min(bad) > max(right):
        return f"{text}: wrong beyond a length."
    return f"{text}."


def some(numbers: list[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def how(kernel: Kernel, off: list[Entry], limits: Limits) -> str:
    """Say what is wrong with a kernel that fails."""
    entry = off[-1]
    if entry.name.startswith("result"):
        return (
            f"forward: {entry.name} differs from the reference at {entry.index}: "
            f"{entry.analytic[entry.index]:.6g}, reference {entry.numeric[entry.index]:.6g}."
        )
    lost = (entry.analytic == 0) & entry.wrong
    if lost.any() and (lost == entry.wrong).all() and not (entry.analytic == 0).all():
        least = greatest(entry.numeric[lost])
        if least < greatest(entry.numeric):
            return f"small gradients: the gradient is zero where it should be up to {least:.2g}: a threshold, or an underflow."
    wide = widened(kernel)
    if wide is not None:
        with suppress(Exception):
            if not any(e.wrong.any() for e in all_entries(wide, limits)):
                return imprecise(kernel, entry)
            kernel = wide
    return str(wrong_slope(kernel) or pattern(entry))


def widened(kernel: Kernel) -> Kernel | None:
    """Return the kernel in float64, if it computes in float64."""
    with suppress(Exception):
        like, make = kernel.like, kernel.make_reference
        wide = Kernel(kernel.f, kernel.vjp, like, "float64", make, list(kernel.operands))
        return wide if wide.is_exact and kernel.dtype != "float64" else None
    return None


def imprecise(kernel: Kernel, entry: Entry) -> str:
    times = greatest(np.nan_to_num(entry.error / entry.tolerance))
    return (
        f"precision: right in float64, but in {kernel.dtype} the error of {entry.name} is up to "
        f"{times:.2g} times what rounding explains. Keep sums and statistics in float32, and "
        "look for numbers that cancel, underflow or overflow."
    )


def pattern(entry: Entry) -> str:
    """Say which elements are wrong."""
    at, count = entry.index, int(entry.wrong.sum())
    text = (
        f"VJP: the gradient is {entry.analytic[at]:.6g} at index {at}, but should be "
        f"{entry.numeric[at]:.6g}; {count} of {entry.wrong.size} elements are wrong"
    )
    for axis in range(entry.wrong.ndim):
        others = tuple(k for k in range(entry.wrong.ndim) if k != axis)
        first = int(np.argmax(entry.wrong.any(axis=others)))
        if first:
            text += f", from index {first} on along axis {axis}"
    return f"{text}."
