"""Faults that no slope shows, and faults between ops whose own VJPs are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..engine import tracked
from .report import Diagnosis, Report, greatest, near, same
from .slopes import Program, of_both_signs
from .trace import Array, array_of, numeric

Gradients = Sequence[Array | None]
Found = tuple[str, str] | None


def differing(names: Sequence[str], first: Gradients, second: Gradients) -> str | None:
    """The name of the first input whose two gradients differ."""
    for name, a, b in zip(names, first, second):
        if a is not None and b is not None and not same(a, b, 1e-6, 1e-9 * max(1, greatest(a))):
            return name
    return None


# ---- the function


def modified(program: Program, who: str) -> Diagnosis | None:
    """An input that was changed in place."""
    for name, now, given in zip(program.names, program.inputs, program.given):
        if not same(now, given):
            return Diagnosis(
                "input modified",
                f"{who} changes {name} in place, so its slope cannot be measured and saved values "
                "go wrong. Compute a new tensor (x = x + 1, not x.data += 1), or copy first.",
            )
    return None


def unrepeatable(program: Program, steps: list[Any], report: Report) -> Diagnosis | None:
    """Other outputs for the same inputs; the report points at the first op that differs."""
    value, (again, second) = program.backend.value, program.traced()
    if len(again) == len(program.values) and all(map(same, map(value, again), program.values)):
        return None
    for a, b in zip(steps, second):
        if not same(value(a.result), value(b.result)):
            report.point_at(a)
            break
    return Diagnosis(
        "not deterministic",
        "f gives different results for the same inputs, so it has no slope. Switch dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls.",
    )


def unreached(gradients: Gradients, order: int) -> Diagnosis | None:
    """No gradient for any input."""
    if order == 2 or any(g is not None for g in gradients):
        return None
    return Diagnosis(
        "gradient missing",
        "no output is connected to any input. Look for detach(), .data, .numpy(), .item(), "
        "Tensor(...) of a result, no_grad(), or a gradient taken without create_graph=True inside "
        "f; or f does not use its inputs.",
    )


def shared_state(program: Program, first: Gradients, report: Report) -> Diagnosis | None:
    """Another gradient if f runs at other values between the forward and the backward pass."""
    outputs, steps = program.traced()
    names, value = program.names, program.backend.value
    if name := differing(names, first, program.pull(program.cotangents, outputs)):
        return Diagnosis(CHANGES, f"{name}: some op {STATE}")
    before = [value(step.result).copy() for step in steps]
    # State may be kept by parameter, and f may refuse values that are far away.
    for whole, least in itertools.product((False, True), (0.8, -1.5)):
        moved = [
            scaled(x, program.rng.uniform(least, 1.2, x.shape))
            if whole or not name.startswith("parameter")
            else x
            for x, name in zip(program.inputs, names)
        ]
        with suppress(Exception), program.at(moved):
            program.run()
    for step, old in zip(steps, before):
        if not same(value(step.result), old):
            report.point_at(step)
            return Diagnosis("reused memory", f"op {step.name!r} {REUSED}")
    if name := differing(names, first, program.pull(program.cotangents, outputs)):
        return Diagnosis(
            "shared state",
            f"{name}: calling f once more before backward() changes the gradient of the first "
            "call. Something the VJP needs is kept on the layer, or in a variable outside, where "
            "the second call overwrites it.",
        )
    return None


def through_infinity(program: Program) -> Diagnosis | None:
    """A gradient that comes back from outputs that stay infinite."""
    rng = np.random.default_rng(4)
    only_there = [at * rng.standard_normal(at.shape) for at in program.infinite]
    if not any(map(np.any, only_there)):
        return None
    reached = zip(program.names, program.pull(only_there))
    names = " and ".join(name for name, g in reached if g is not None and g.any())
    return Diagnosis(*names and (
        "infinite result",
        f"outputs that stay infinite when the inputs move pass a gradient on to {names}. A VJP "
        "that fills in -inf gives zero there: g times the mask. Where -inf was added no slope can "
        "be measured: check what comes behind it, such as the softmax.",
    ))  # fmt: skip


def scaled(x: Array, by: Array) -> Array:
    """Each element times its factor; zeros move as ones would."""
    return np.where(x == 0, by - 1, x * by)


# ---- single ops: a VJP returns new arrays, is linear in g, and depends on nothing else


def calls(steps: Sequence[Any]) -> Iterator[Any]:
    """Each differentiable step as a call on copies; of a long program each shape once."""
    seen = set[Any]()
    for step in steps:
        shapes = [np.shape(array_of(x)) for x in step.inputs if tracked(x)]
        key = step.op, repr((shapes, step.settings))
        if step.differentiable and (len(steps) <= 400 or key not in seen):
            seen.add(key)
            with suppress(Exception):
                yield step.call()


def fault(steps: Sequence[Any], report: Report) -> Diagnosis | None:
    """The first op that is inconsistent."""
    for call in calls(steps):
        with suppress(Exception):  # what fails here need not fail in the program
            g = of_both_signs(np.random.default_rng(8).standard_normal(call.y.shape))
            if found := low_precision(call) or inconsistent(call, g * np.isfinite(call.y)):
                report.point_at(call.step)
                return Diagnosis(found[0], f"op {call.name!r} {found[1]}")
    return None


CHANGES = "VJP changes its operands"
STATE = (
    "gives another gradient when it is called again: its VJP keeps state between calls, or draws "
    "random numbers. Draw them once, in the forward pass, and save them."
)
REUSED = (
    "overwrites what it has returned when it is called again, for it returns the same array each "
    "time. Return a new array."
)


def low_precision(call: Any) -> Found:
    """An output with the digits of float32, where the operands have more."""
    short = lambda v: same(v.astype(np.float32), v)
    given = [a for a, need in zip(call.args, call.needs) if need]
    cancels = greatest(call.y) <= 1e-3 * max(map(greatest, given), default=0)
    whole = np.sum(call.y != np.round(call.y)) < 2
    if whole or cancels or not short(call.y) or all(map(short, given)):
        return None
    return "precision", (
        "has a precision too low: it returns the digits of float32 for float64. Compute in float64 "
        "while checking."
    )


Trial = tuple[str, str, float, dict[Any, Array], Callable[[], dict[Any, Array]]]
"""A kind, a text, a tolerance, the right arrays, and a call that must return them."""


def trials(call: Any, g: Array) -> Iterator[Trial]:
    """What must leave arrays alone, or must give the same gradients."""
    given = {f"operand {i}": a for i, a in enumerate(call.args) if isinstance(a, Array)}
    given |= {"its output": call.y, "the incoming gradient g": g}
    before, first = copied(given), call.pull(g)
    answers = copied(first)
    for name, a in given.items():
        text = f"writes into {name} in place. Compute a new array: others use it."
        yield CHANGES, text, 0, {name: before[name]}, partial(dict, {name: a})
    yield "reused memory", f"has a VJP that {REUSED}", 0, answers, lambda: call.pull(-g) and first
    for _ in range(2):  # state may alternate
        yield CHANGES, STATE, 1e-9, answers, partial(call.pull, g)
    text = (
        "has a VJP that is not linear in the incoming gradient g. Every term is multiplied by g "
        "exactly once; a VJP does not square, clip, normalise, compare or divide by g."
    )
    for k in (-(2.0**60), -(2.0**-60), 0.0):  # powers of two add no rounding
        multiple = {i: k * a for i, a in answers.items()}
        yield "incoming gradient", text, 1e-9, multiple, partial(call.pull, k * g)
    text = "gives another gradient where one operand alone needs it. Look at its use of needs."
    for i, a in answers.items():
        needs = [k == i for k in range(len(call.needs))]
        yield "needs", text, 1e-9, {i: a}, partial(call.pull, g, needs=needs)
    text = (
        "gives another gradient where the same numbers are in another order in memory, as those of "
        "x.T, x[:, ::2] or a broadcast array are. reshape(-1) and ravel() of these are copies: "
        "what is written into them is lost."
    )
    ones = np.broadcast_to(np.float64(1), g.shape)
    of_ones = copied(call.pull(ones.copy()))
    yield "memory layout", text, 1e-4, of_ones, partial(call.pull, ones)
    for other in (turned(g), np.array(g, order="F")):
        yield "memory layout", text, 1e-4, answers, partial(call.pull, other)
    with suppress(Exception):  # the op may refuse them
        by_columns = call.with_args(list(map(turned, call.args)))
        yield "memory layout", text, 1e-4, answers, partial(by_columns.pull, g)


def inconsistent(call: Any, g: Array) -> Found:
    """A VJP that changes arrays, is not linear in g, or depends on more than the numbers."""
    for kind, text, rtol, expected, ask in trials(call, g):
        try:
            found = ask()
        except Exception as failure:
            return kind, f"{text} (It raises {type(failure).__name__}: {failure})"
        for i, a in expected.items():
            b, largest = found.get(i, np.zeros(a.shape)), greatest(a[np.isfinite(a)])
            rounding = 1e-12 * greatest(g) if kind in ("needs", "memory layout") else 1e-300
            if (near(b, a, 0, rtol * largest + rounding) | ~np.isfinite(a) | np.isinf(b)).all():
                continue
            if kind == "incoming gradient" and same(b, call.pull(g)[i], 1e-9):
                return "incoming gradient ignored", (
                    "returns the same for any incoming gradient g: multiply its own derivative by "
                    "g (the chain rule). A g of ones would hide this."
                )
            return kind, text
    for i, a in call.pull(g).items():
        if a.dtype.kind == "f" and a.dtype.itemsize < call.args[i].dtype.itemsize:
            return "precision", f"returns {a.dtype} for a gradient of {call.args[i].dtype}."
    return None


def copied(arrays: dict[Any, Array]) -> dict[Any, Array]:
    """A copy of each."""
    return {i: a.copy() for i, a in arrays.items()}


def turned(x: Any) -> Any:
    """An equal array, column by column and with gaps."""
    if not isinstance(x, Array):
        return x
    spacious = np.zeros((*x.shape[::-1], 2), x.dtype)[..., 0].T
    spacious[...] = x
    return spacious


# ---- every VJP is right: what joins them?


def _values(outputs: Sequence[Any], steps: Sequence[Any]) -> Iterator[tuple[Any, str, Any]]:
    """(step, name, value) of all that a run has computed with."""
    for step in steps:
        named = {f"operand {i}": x for i, x in enumerate(step.inputs)}
        named |= {f"the setting {k!r}": v for k, v in step.settings.items()}
        if any(map(tracked, step.inputs)):
            named["the output"] = step.result
        yield from ((step, f"{what} of op {step.name!r}", v) for what, v in named.items())
    yield from ((None, f"result {k}", y) for k, y in enumerate(outputs))


def outside_the_graph(program: Program, which: int, steps: Sequence[Any]) -> Any:
    """(step, text) of what moves with an input and is a constant to the graph."""
    x, outputs, name = program.inputs[which], program.run(), program.names[which]
    moved = list(program.inputs)
    moved[which] = x + 1e-5 * np.random.default_rng(3).standard_normal(x.shape)
    with suppress(Exception), program.at(moved):
        then, again = program.traced()
        for (step, what, p), (*_, q) in zip(_values(outputs, steps), _values(then, again)):
            if numeric(p) and not tracked(p) and not same(array_of(p), array_of(q)):
                return step, f"{what} depends on {name} and is a constant"
    return None
