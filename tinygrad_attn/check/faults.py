"""Faults that no slope shows, and faults between ops whose own VJPs are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..engine import tracked
from .report import Diagnosis, Report, greatest, near, same
from .slopes import OneOp, Program
from .trace import Array, array_of, numeric

Gradients = Sequence[Any]
Found = tuple[str, str] | None
"""A kind of mistake and the text that explains it."""


def differing(names: Sequence[str], first: Gradients, second: Gradients) -> str:
    """The name of the first input whose two gradients differ."""
    for name, a, b in zip(names, first, second):
        if a is not None and b is not None and not same(a, b, 1e-6, 1e-9 * max(1, greatest(a))):
            return name
    return ""


# ---- tests of a function, or of one op


def modified(f: Program) -> Found:
    """An input that was changed in place."""
    for name, now, given in zip(f.names, f.inputs, f.given):
        if not same(now, given):
            return "input modified", (
                f"{name} is changed in place, so its slope cannot be measured and saved values go "
                "wrong. Compute a new tensor (x = x + 1, not x.data += 1), or copy first."
            )
    return None


def unrepeatable(f: Program) -> Found:
    """Other outputs for the same inputs."""
    again = list(map(f.backend.value, f.run()))
    if len(again) == len(f.values) and all(map(same, again, f.values)):
        return None
    return "not deterministic", (
        "other results for the same inputs, so there is no slope. Switch dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls."
    )


def backward_fails(f: Program) -> Found:
    """A backward pass that raises an error."""
    try:
        f.pull(f.cotangents)
    except Exception as failure:
        text = f"{type(failure).__name__}: {failure}"
        if "returned shape" in text or "invalid gradient" in text:
            return "wrong shape", f"{text} Is a sum over a broadcast axis missing, or one too many?"
        if "changed in place" in text:
            return "result modified", text
        if isinstance(failure, TypeError) and "argument" in text:
            text += (
                ". A VJP is called as vjp(g, y, *inputs, **settings): write lambda g, y, x, axis: "
                "... for an op with the setting axis, and name all of the op's inputs."
            )
        return "backward fails", text
    return None


def unreached(f: Program) -> Found:
    """No gradient for any input."""
    if any(g is not None for g in f.pull(f.cotangents)):
        return None
    return "gradient missing", (
        "no output is connected to any input. Look for detach(), .data, .numpy(), .item(), "
        "Tensor(...) of a result, no_grad(), or a gradient taken without create_graph=True inside "
        "f; or f does not use its inputs."
    )


def shared_state(f: Program) -> Found:
    """Another gradient if f runs at other values between the forward and the backward pass."""
    first, outputs = f.pull(f.cotangents), f.run()
    before = [f.backend.value(t).copy() for t in outputs]
    for least in (0.8, -1.5):  # f may refuse values that are far away
        moved = [scaled(x, f.rng.uniform(least, 1.2, x.shape)) for x in f.inputs]
        with suppress(Exception), f.at(moved):
            f.run()
    if not all(map(same, map(f.backend.value, outputs), before)):
        return "reused memory", REUSED
    if name := differing(f.names, first, f.pull(f.cotangents, outputs)):
        return "shared state", (
            f"{name}: one more call before backward() changes the gradient of the first call. "
            "Something the VJP needs is kept on the layer, or in a variable outside, where the "
            "second call overwrites it."
        )
    return None


def through_infinity(f: Program) -> Found:
    """A gradient that comes back from outputs that stay infinite."""
    rng = np.random.default_rng(4)
    reached = zip(f.names, f.pull([np.isinf(y) * rng.standard_normal(y.shape) for y in f.values]))
    names = " and ".join(name for name, g in reached if g is not None and g.any())
    return None if not names else (
        "infinite result",
        f"outputs that stay infinite when the inputs move pass a gradient on to {names}. A VJP "
        "that fills in -inf gives zero there: g times the mask. Where -inf was added no slope can "
        "be measured: check what comes behind it, such as the softmax.",
    )  # fmt: skip


def scaled(x: Array, by: Array) -> Array:
    """Each element times its factor; zeros move as ones would."""
    return np.where(x == 0, by - 1, x * by)


# ---- single ops


def single_ops(steps: Sequence[Any], backend: Any) -> Iterator[OneOp]:
    """The ops that ran, each by itself; of many that are the same with the same shapes only one."""
    seen = set[Any]()
    for step in steps:
        shapes = [getattr(x, "shape", ()) for x in step.inputs]
        key = step.op, repr((shapes, step.settings))
        if step.differentiable and (len(steps) <= 400 or key not in seen):
            seen.add(key)
            with suppress(Exception):
                yield OneOp(step, backend)


def accuse(
    report: Report, steps: Sequence[Any], backend: Any, test: Callable[[Any], Found]
) -> Diagnosis | None:
    """Point at the first op that a test finds something in, and return what it is."""
    for f in single_ops(steps, backend):
        if found := test(f):
            report.point_at(f.step)
            report.culprits = [f.step.name]
            return Diagnosis(found[0], f"op {f.step.name!r}: {found[1]}")
    return None


def inconsistent(f: OneOp) -> Found:
    """A VJP that changes arrays, is not linear in g, or depends on more than the numbers."""
    with suppress(Exception):  # what fails here need not fail in the program
        return written(f) or failed_trial(f)
    return None


CHANGES, LAYOUT = "VJP changes its operands", "memory layout"
REUSED = (
    "overwrites what it has returned when it is called again, for it returns the same array each "
    "time. Return a new array."
)


def written(f: OneOp) -> Found:
    """An array that the VJP writes into."""
    g, value = f.cotangents, f.backend.value
    arrays = [value(t) if isinstance(t, f.backend.kind) else t for t in f.leaves]
    given = {f"operand {i}": a for i, a in enumerate(arrays) if isinstance(a, Array)}
    given |= {"its output": value(f.outputs[0]), "the incoming gradient g": g[0]}
    before = [a.copy() for a in given.values()]
    f.gradient(f.outputs, g)
    for (name, a), old in zip(given.items(), before):
        if not same(a, old):
            return CHANGES, f"writes into {name} in place. Compute a new array: others use it."
    return None


def trials(f: OneOp) -> Iterator[tuple[str, str, float, Callable[[], Gradients]]]:
    """A kind, a text, and a call that must return a multiple of the first gradients."""
    g = f.cotangents
    text = (
        "gives another gradient when it is called again: its VJP keeps state between calls, or "
        "draws random numbers. Draw them once, in the forward pass, and save them."
    )
    for _ in range(2):  # state may alternate
        yield CHANGES, text, 1, partial(f.pull, g)
    text = (
        "has a VJP that is not linear in the incoming gradient g. Every term is multiplied by g "
        "exactly once; a VJP does not square, clip, normalise, compare or divide by g."
    )
    for k in (-(2.0**60), -(2.0**-60), 0.0):  # powers of two add no rounding
        yield "incoming gradient", text, k, partial(f.pull, [k * c for c in g])
    twin = OneOp(f.step, f.backend)

    def both() -> Gradients:
        outputs, tensors = f.run() + twin.run(), f.tensors + twin.tensors
        return f.arrays(f.backend.vjp(outputs, tensors, [*g, *(-c for c in g)]))[len(f.tensors) :]

    yield "reused memory", REUSED, -1, both  # what the twin returned first is overwritten
    text = "gives another gradient where one operand alone needs it. Look at its use of needs."
    alone = lambda: [f.arrays(f.backend.vjp(f.run(), [t], g))[0] for t in f.tensors]
    yield "needs", text, 1, alone
    text = (
        "gives another gradient where the same numbers are in another order in memory, as those of "
        "x.T are. reshape(-1) and ravel() of these are copies: what is written into them is lost."
    )
    yield LAYOUT, text, 1, partial(f.pull, [c.copy(order="F") for c in g])
    with suppress(Exception), f.at([x.copy(order="F") for x in f.inputs]):
        yield LAYOUT, text, 1, partial(f.pull, g, f.run())


def failed_trial(f: OneOp) -> Found:
    """The first trial that does not return the right arrays."""
    first, size = f.pull(f.cotangents), greatest(f.cotangents[0])
    for kind, text, k, ask in trials(f):
        try:
            found = ask()
        except Exception as failure:
            return kind, f"{text} (It raises {type(failure).__name__}: {failure})"
        for a, b in zip(first, found):
            if a is None:
                continue
            b, finite = 0 * a if b is None else b, np.isfinite(a)
            allowed = abs(k) * (1e-6 * greatest(a[finite]) + 1e-12 * size) + 1e-300
            if near(b, k * a, 0, allowed)[finite].all():
                continue
            if kind == "incoming gradient" and same(b, a, 1e-9):
                return "incoming gradient ignored", (
                    "returns the same for any incoming gradient g: multiply its own derivative by "
                    "g (the chain rule). A g of ones would hide this."
                )
            return kind, text
    return None


# ---- every VJP is right: what joins them?


def outside_the_graph(program: Program, which: int) -> Any:
    """The first op with a value that moves with an input and is a constant to the graph."""

    def values(step: Any) -> list[Any]:
        return list(filter(numeric, (*step.inputs, *step.settings.values(), step.result)))

    steps, moved = program.traced(), list(program.inputs)
    noise = np.random.default_rng(3).standard_normal(moved[which].shape)
    moved[which] = moved[which] + 1e-5 * noise
    with suppress(Exception), program.at(moved):
        for step, again in zip(steps, program.traced()):
            for p, q in zip(values(step), values(again)):
                if not tracked(p) and not same(array_of(p), array_of(q)):
                    return step
    return None
