"""Find faults that finite differences cannot reveal, and the op that causes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from ..errors import quoted
from ..nn.calls import dotted_name
from .explain import Finding
from .report import Array, Report, agree, greatest, largest_finite
from .subject import Gradients, GraphSubject, OpSubject, Subject

Test = Callable[[Any], Finding]
CHANGES = "VJP changes its operands"
WRITES = f"{CHANGES}: changes g, its output or an operand in place. Compute a new array instead."


def alike(f, expected: Gradients, came: Gradients) -> bool:
    """Return whether gradients of f agree, up to sums in another order. None stands for zeros.

    Where numbers cancel, such sums differ by more, and the reference measures by how much.
    """
    rtol, atol = max(1e-6, 16 * f.precision), max(1e-9, 16 * f.precision)
    pairs = [(a, 0 * a if b is None else b) for a, b in zip(expected, came) if a is not None]
    sizes = [largest_finite(a) for a, _ in pairs]
    size = 1e-3 * max([*sizes, *map(greatest, f.cotangents)])  # what is 0 is a rest of it
    if all(agree(b, a, rtol, atol * (size + own)) for (a, b), own in zip(pairs, sizes)):
        return True
    limits = [] if f.reference is None else f.noise
    limits = [limit for limit, a in zip(limits, expected) if a is not None]
    return bool(limits) and all(agree(b, a, rtol, t) for (a, b), t in zip(pairs, limits))


def modified(f: Subject) -> Finding:
    """Find an input that was changed in place."""
    for name, now, original in zip(f.names, f.inputs, f.originals):
        if not agree(now, original):
            return (
                f"input modified: {name} is changed in place, so no slope can be measured. Compute "
                "a new tensor (x = x + 1, not x.data += 1), or copy the input first."
            )
    return None


def unrepeatable(f: Subject) -> Finding:
    """Find outputs that differ between two runs on the same inputs by more than rounding."""
    again, u = f.run().values, 64 * f.precision
    if len(again) == len(f.values) and all(
        agree(a, b, u, u * largest_finite(b)) for a, b in zip(again, f.values)
    ):
        return None
    return (
        "not deterministic: different results for the same inputs. Turn dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls."
    )


def changes_bits(f: Subject) -> bool:
    """Return whether two runs on the same inputs differ in their last bits."""
    first, second = ([*run.values, *f.pull(f.cotangents, run)] for run in (f.run(), f.run()))
    return not all(a is b or agree(a, b) for a, b in zip(first, second))


def shared_state(f: Subject) -> Finding:
    """Find a gradient that changes if f runs on other values before the backward pass."""
    run = f.run()
    first = [*f.pull(f.cotangents), *(y.copy() for y in run.values)]
    for least in (0.8, -1.5):  # f may refuse values that are far away
        moved = [scaled(x, f.rng.uniform(least, 1.2, x.shape)) for x in f.inputs]
        with suppress(Exception), f.at(moved):
            f.run()
    if alike(f, first, [*f.pull(f.cotangents, run), *run.values]):
        return None
    return (
        "shared state: a second call before backward() changes the result or the gradient of the "
        "first call, because it overwrites a value in the layer or in an outside variable. Store "
        "values separately for each call, and return a new array each time."
    )


def through_infinity(f: Subject) -> Finding:
    """Find a gradient that flows back from infinite outputs."""
    gradients = f.pull([np.isinf(y) * f.rng.standard_normal(y.shape) for y in f.values])
    names = " and ".join(n for n, g in zip(f.names, gradients) if g is not None and g.any())
    return names and (
        f"infinite result: infinite outputs pass a gradient on to {names}. If the op fills in "
        "-inf, its VJP must return zero there: g times the mask. If the op adds -inf, no slope can "
        "be measured: check the function that follows, such as the softmax."
    )


def scaled(x: Array, by: Array) -> Array:
    """Multiply x by factors. Where x is 0, add the change that an element of 1 would have."""
    return np.where(x == 0, by - 1, x * by)


# ---- the op that causes a fault


def single_ops(f: Subject):
    """Yield f itself if it is a kernel, or each op that f calls.

    In long runs, repetitions with the same shapes and settings are skipped.
    """
    if not isinstance(f, GraphSubject):
        yield f
        return
    seen, calls = set[Any](), f.traced()
    inputs = dict(zip(map(id, f.tensors), f.names))
    for call in calls:
        shapes = [getattr(x, "shape", ()) for x in call.inputs]
        key = call.op, repr((shapes, call.settings))
        # `checkpoint` is differentiated by the ops inside it.
        wanted = f.backend.wants_gradient(call.result) and call.name != "checkpoint"
        if wanted and (len(calls) <= 400 or key not in seen):
            seen.add(key)
            with suppress(Exception):
                op = OpSubject(call, f.backend)
                for k, i in enumerate(op.checked):
                    name = inputs.get(id(call.inputs[i]), f"input {i}")
                    if name != f"input {i}":
                        op.names[k] = f"operand {i}, which is {name}"
                yield op


def outcome(test: Test, f: Subject) -> Finding:
    """Return what a test finds in f; an error counts as a finding."""
    try:
        return test(f)
    except Exception as failure:
        if str(failure).endswith("is read-only"):  # as g and the operands of a user's VJP are
            return WRITES
        return f"backward fails: {type(failure).__name__}: {failure}"


def accuse(report: Report, subject: Subject, test: Test) -> Finding:
    """Find the first op with a fault, and note the op in the report."""
    for f in single_ops(subject):
        if finding := outcome(test, f):
            if not isinstance(f, OpSubject):
                return finding
            call = f.op_call
            report.op, report.place = call.name, quoted(*call.place)
            report.scope = dotted_name(call.scope)
            kind, _, text = finding.partition(": ")
            return f"{kind}: op {report.op!r}: {text}"
    return None


# ---- faults of a VJP


Trial = tuple[str, Gradients, Gradients]  # a fault, and gradients that are alike without it


def inconsistent(f) -> Finding:
    """Find a VJP that changes arrays, is not linear in g, or depends on more than its values."""
    run = f.run()
    arrays = [*run.values, *f.inputs, *f.cotangents]
    arrays += [a for a in f.operands if isinstance(a, Array)]
    before = [a.copy() for a in arrays]
    first = run.pull(f.cotangents)
    if not all(map(agree, arrays, before)):
        return WRITES
    return unlike(f, chain(calls_again(f, first), layouts_of_g(f), layouts_of_inputs(f, first)))


def unlike(f, trials: Iterable[Trial]) -> Finding:
    """Return the fault of the first trial whose gradients differ."""
    return next((text for text, a, b in trials if not alike(f, a, b)), None)


def calls_again(f, first: Gradients) -> Iterator[Trial]:
    """Pull again: the same g, multiples of g, and g for some operands only."""
    g = f.cotangents
    text = (
        f"{CHANGES}: gives a different gradient when called again: its VJP changes a saved value, "
        "keeps state, or draws random numbers. Draw them in the forward pass."
    )
    for _ in range(2):  # state may alternate
        yield text, first, f.pull(g)
    small = f.precision > 1e-9  # huge and tiny numbers are tried with a reference
    for k in (-0.5, 0.0) if small else (-(2.0**60), -(2.0**-60), -2.0, 0.0):  # without rounding
        pulled = f.pull([k * c for c in g])
        for i, a in enumerate(first):
            if a is not None:
                alone = [None] * i
                powers = [n for n in POWERS if k and alike(f, [*alone, k**n * a], pulled)]
                yield POWERS[powers[0]] if powers else NOT_LINEAR, [*alone, k * a], pulled
    if not isinstance(f, OpSubject):
        return
    text = "needs: its VJP depends on which operands need a gradient. Check its use of `needs`."
    yield text, first, [f.pull(g, wanted=[k])[0] for k in range(len(f.names))]


NOT_LINEAR = (
    "incoming gradient: has a VJP that is not linear in the incoming gradient g. Multiply each "
    "term by g exactly once; do not square, clip, normalise or compare g, or divide by g."
)
POWERS = {  # of g in the gradient
    0: "incoming gradient ignored: returns the same gradient for every incoming gradient g, or "
    "keeps the gradient of its first call: multiply the op's own derivative by g (the chain rule), "
    "and keep no state.",
    2: "incoming gradient: used twice: the gradient is multiplied by 4 when g is doubled. Multiply "
    "each term by g exactly once.",
}
STRIDES = (
    "There, reshape(-1) and ravel() make copies, and what is written to a copy is lost. A kernel "
    "that reads memory directly must use the strides, or copy first (np.ascontiguousarray)."
)


def exchanged(c: Array, axis: int) -> Array:
    """Return a copy in whose memory an axis is exchanged with the axis before it."""
    return np.swapaxes(np.swapaxes(c, axis, axis - 1).copy(), axis, axis - 1)


AS = "expanded (stride 0)"
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    f"{AS}, as .sum().backward() makes it": lambda c: np.broadcast_to(1.5, c.shape),
    f"{AS} along axis 0, as .sum(axis=0) makes it": lambda c: np.broadcast_to(c[:1], c.shape),
    f"{AS} along the last axis": lambda c: np.broadcast_to(c[..., :1], c.shape),
    "transposed in memory, as in x.T": lambda c: c.copy(order="F"),
    "transposed in memory, as in x.mT": lambda c: exchanged(c, -1) if c.ndim > 2 else c,
    "transposed in memory, as heads are": lambda c: exchanged(c, -2) if c.ndim > 2 else c,
    "strided, as a part of a larger array": lambda c: np.stack([c, c], axis=-1)[..., 0],
    "reversed (negative strides), as in x[::-1]": lambda c: np.flip(np.flip(c).copy()),
    "read-only": lambda c: np.broadcast_to(c.copy(), c.shape),
}


def layouts_of_g(f: Subject) -> Iterator[Trial]:
    """Compare the gradients for each layout of g with those for a contiguous copy."""
    for layout, change in LAYOUTS.items():
        gs = [change(c) if c.ndim and c.size else c for c in f.cotangents]
        expected = f.pull([np.array(g, order="C") for g in gs])
        text = f"when the incoming gradient is {layout}"
        try:
            yield f"memory layout: wrong {text}. {STRIDES}", expected, f.run().pull(gs)
        except Exception as failure:
            if isinstance(f, GraphSubject) or not refuses(failure):
                text = f"memory layout: fails {text}: {type(failure).__name__}: {failure}"
                yield text, [np.zeros(1)], [np.ones(1)]


def layouts_of_inputs(f: Subject, expected: Gradients) -> Iterator[Trial]:
    """Compare the gradients for each layout of the inputs."""
    for layout, change in LAYOUTS.items():
        inputs = [
            change(x) if x.ndim and x.size and not layout.startswith(AS) else x for x in f.inputs
        ]
        with suppress(Exception), f.at(inputs):  # f may refuse them
            text = f"memory layout: wrong when the operands are {layout}. {STRIDES}"
            yield text, expected, f.pull(f.cotangents)


LIMITS = re.compile("shape|size|length|dim|axis|axes|multiple|divisible|even|block|stride|contigu")


def refuses(failure: Exception) -> bool:
    """Return whether an error says which shapes or strides are not offered."""
    kinds = (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError)
    return isinstance(failure, kinds) and bool(LIMITS.search(str(failure).lower()))
