"""Find faults that finite differences cannot reveal, and the op that causes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import quoted
from ..nn.calls import dotted_name
from .explain import Found
from .report import Report, greatest, near, same
from .slopes import OneOp, Program
from .trace import Array

Gradients = Sequence[Any]
Test = Callable[[Any], Found]
CHANGES = "VJP changes its operands"


def alike(first: Gradients, second: Gradients) -> bool:
    """Return whether gradients agree where both exist."""
    pairs = [(a, b) for a, b in zip(first, second) if a is not None and b is not None]
    return all(same(a, b, 1e-6, 1e-9 * max(1, greatest(a))) for a, b in pairs)


def modified(f: Program) -> Found:
    """Find an input that was changed in place."""
    for name, now, given in zip(f.names, f.inputs, f.given):
        if not same(now, given):
            return (
                f"input modified: {name} is changed in place, so no slope can be measured. Compute "
                "a new tensor (x = x + 1, not x.data += 1), or copy the input first."
            )
    return None


def unrepeatable(f: Program) -> Found:
    """Find outputs that differ between two runs on the same inputs."""
    again = list(map(f.backend.value, f.run()))
    if len(again) == len(f.values) and all(map(same, again, f.values)):
        return None
    return (
        "not deterministic: different results for the same inputs. Turn dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls."
    )


def shared_state(f: Program) -> Found:
    """Find a gradient that changes if f runs on other values before the backward pass."""
    outputs = f.run()
    values = list(map(f.backend.value, outputs))
    first = [*f.pull(f.cotangents), *(y.copy() for y in values)]
    for least in (0.8, -1.5):  # f may refuse values that are far away
        moved = [scaled(x, f.rng.uniform(least, 1.2, x.shape)) for x in f.inputs]
        with suppress(Exception), f.at(moved):
            f.run()
    if alike(first, [*f.pull(f.cotangents, outputs), *values]):
        return None
    return (
        "shared state: a second call before backward() changes the result or the gradient of the "
        "first call, because it overwrites a value in the layer or in an outside variable. Store "
        "values separately for each call, and return a new array each time."
    )


def through_infinity(f: Program) -> Found:
    """Find a gradient that flows back from infinite outputs."""
    found = f.pull([np.isinf(y) * f.rng.standard_normal(y.shape) for y in f.values])
    names = " and ".join(name for name, g in zip(f.names, found) if g is not None and g.any())
    return names and (
        f"infinite result: infinite outputs pass a gradient on to {names}. If the op fills in "
        "-inf, its VJP must return zero there: g times the mask. If the op adds -inf, no slope can "
        "be measured: check the function that follows, such as the softmax."
    )


def scaled(x: Array, by: Array) -> Array:
    """Multiply x by factors. Where x is 0, add the change that an element of 1 would have."""
    return np.where(x == 0, by - 1, x * by)


def single_ops(steps: Sequence[Any], backend: Any) -> Iterator[OneOp]:
    """Yield each op alone. In long runs, skip repetitions with the same shapes and settings."""
    seen = set[Any]()
    for step in steps:
        shapes = [getattr(x, "shape", ()) for x in step.inputs]
        key = step.op, repr((shapes, step.settings))
        # `checkpoint` is differentiated by the ops inside it.
        wanted = backend.wants_gradient(step.result) and step.name != "checkpoint"
        if wanted and (len(steps) <= 400 or key not in seen):
            seen.add(key)
            with suppress(Exception):
                yield OneOp(step, backend)


def outcome(test: Test, f: Program) -> Found:
    """Return what a test finds in f; an error counts as a finding."""
    try:
        return test(f)
    except Exception as failure:
        return f"backward fails: {type(failure).__name__}: {failure}"


def accuse(report: Report, steps: Sequence[Any], backend: Any, test: Test) -> Found:
    """Find the first op with a fault, and note the op in the report."""
    for f in single_ops(steps, backend):
        if found := outcome(test, f):
            report.op, report.place = f.step.name, quoted(*f.step.place)
            report.scope = dotted_name(f.step.scope)
            kind, _, text = found.partition(": ")
            return f"{kind}: op {report.op!r}: {text}"
    return None


def inconsistent(f: OneOp) -> Found:
    """Find a VJP that changes arrays, is not linear in g, or depends on more than its values."""
    arrays = [f.backend.value(t) for t in (*f.outputs, *f.tensors)]
    arrays += [*f.cotangents, *(a for a in f.leaves if isinstance(a, Array))]
    before = [a.copy() for a in arrays]
    f.gradient(f.outputs, f.cotangents)
    if not all(map(same, arrays, before)):
        return (
            f"{CHANGES}: changes g, its output or an operand in place. Compute a new array instead."
        )
    first, size = f.pull(f.cotangents), greatest(f.cotangents[0])
    for text, k, found in trials(f):
        for a, b in zip(first, found):
            if a is None:
                continue
            b, finite = 0 * a if b is None else b, np.isfinite(a)
            allowed = abs(k) * (1e-6 * greatest(a[finite]) + 1e-12 * size) + 1e-300
            if near(b, k * a, 0, allowed)[finite].all():
                continue
            if text.startswith("incoming gradient") and same(b, a, 1e-9):
                return (
                    "incoming gradient ignored: returns the same gradient for every incoming "
                    "gradient g: multiply the op's own derivative by g (the chain rule)."
                )
            return text
    return None


def trials(f: OneOp) -> Iterator[tuple[str, float, Gradients]]:
    """Yield (fault, k, gradients): without the fault, `gradients` is k times the original ones."""
    g = f.cotangents
    text = (
        f"{CHANGES}: gives a different gradient when called again: its VJP changes a saved value, "
        "keeps state, or draws random numbers. Draw them in the forward pass."
    )
    for _ in range(2):  # state may alternate
        yield text, 1, f.pull(g)
    text = (
        "incoming gradient: has a VJP that is not linear in the incoming gradient g. Multiply each "
        "term by g exactly once; do not square, clip, normalise or compare g, or divide by g."
    )
    for k in (-(2.0**60), -(2.0**-60), 0.0):  # powers of two add no rounding error
        yield text, k, f.pull([k * c for c in g])
    text = "reused memory: overwrites its first gradient in a second call. Return a new array."
    second = OneOp(f.step, f.backend)  # this call overwrites reused memory
    both = f.backend.vjp(f.run() + second.run(), f.tensors + second.tensors, [*g, *(-c for c in g)])
    yield text, -1, f.arrays(both)[len(f.tensors) :]
    text = "needs: its VJP depends on which operands need a gradient. Check its use of `needs`."
    yield text, 1, [f.arrays(f.backend.vjp(f.run(), [t], g))[0] for t in f.tensors]
    text = (
        "memory layout: gives a different gradient for numbers in another memory layout, as in "
        "x.T. There, reshape(-1) and ravel() make copies, and what is written to a copy is lost."
    )
    with suppress(Exception), f.at([x.copy(order="F") for x in f.inputs]):
        yield text, 1, f.pull([c.copy(order="F") for c in g])
