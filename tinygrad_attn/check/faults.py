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
from .trace import Answers, Array, array_of, numeric

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
    again, second = program.traced()
    value = program.backend.value
    if len(again) == len(program.values) and all(map(same, map(value, again), program.values)):
        return None
    pairs = zip(steps, second)
    report.point_at(next((a for a, b in pairs if not same(value(a.result), value(b.result))), None))
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
        return Diagnosis("VJP changes its operands", f"{name}: some VJP {KEEPS_STATE}")
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
            return Diagnosis("reused memory", f"the output of op {step.name!r} {REUSED}")
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


def calls(steps: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each differentiable step and its call on copies; of a long program each shape once."""
    seen = set[Any]()
    for step in steps:
        shapes = [np.shape(array_of(x)) for x in step.inputs if tracked(x)]
        key = step.op, repr((shapes, step.settings))
        if step.differentiable and (len(steps) <= 400 or key not in seen):
            seen.add(key)
            with suppress(Exception):
                yield step, step.call()


def fault(steps: Sequence[Any], report: Report) -> Diagnosis | None:
    """The first op whose VJP is inconsistent."""
    for step, call in calls(steps):
        g = of_both_signs(np.random.default_rng(8).standard_normal(call.y.shape))
        with suppress(Exception):  # a VJP that fails for this g only
            if found := inconsistent(call, np.where(np.isfinite(call.y), g, 0)):
                report.point_at(step)
                return Diagnosis(found[0], f"the VJP of op {step.name!r} {found[1]}")
    return None


KEEPS_STATE = (
    "gives another gradient when called again: it keeps state between calls, or draws random "
    "numbers. Draw them once, in the forward pass, and save them."
)
REUSED = (
    "changes when it is computed again: the same array is returned at every call. Return a new "
    "array each time."
)
LINEAR = (
    "gives another gradient where g is multiplied by a number. Every term of a VJP is multiplied "
    "by g exactly once; it does not square, clip, normalise, compare or divide by g."
)
NEEDS = "gives another gradient where one operand alone needs it. Look at how it uses needs."
LAYOUT = (
    "gives another gradient where the same numbers are in another order in memory, as those of "
    "x.T, x[:, ::2] or a broadcast array are. reshape(-1) and ravel() of these are copies: what is "
    "written into them is lost."
)


def trials(call: Any, g: Array) -> Iterator[tuple[str, str, Answers, Callable[[], Answers]]]:
    """(kind, text, the right answer, a call that must give it)."""
    pull = lambda g: {i: a.copy() for i, a in call.pull(g).items()}
    answers, by_columns = pull(g), call
    for _ in range(2):  # state may alternate
        yield "VJP changes its operands", KEEPS_STATE, answers, partial(call.pull, g)
    for k in (-(2.0**60), -(2.0**-60), 0.0):  # powers of two add no rounding
        multiple = {i: k * a for i, a in answers.items()}
        yield "incoming gradient", LINEAR, multiple, partial(call.pull, k * g)
    for i, a in answers.items():
        needs = [k == i for k in range(len(call.needs))]
        yield "needs", NEEDS, {i: a}, partial(call.pull, g, needs=needs)
    with suppress(Exception):  # the op may refuse them
        by_columns = call.with_args(list(map(turned, call.args)))
    broadcast = partial(call.pull, np.broadcast_to(np.float64(1), g.shape))
    yield "memory layout", LAYOUT, pull(np.ones_like(g)), broadcast
    for asked, given in ((call, turned(g)), (call, np.asfortranarray(g)), (by_columns, g)):
        yield "memory layout", LAYOUT, answers, partial(asked.pull, given)


def inconsistent(call: Any, g: Array) -> Found:
    """A VJP that changes arrays, is not linear in g, or depends on more than numbers."""
    given = {"g": g, "the output y": call.y}
    given |= {f"operand {i}": a for i, a in enumerate(call.args) if isinstance(a, Array)}
    before = [a.tobytes() for a in given.values()]
    answers = call.pull(g)
    first = {i: a.copy() for i, a in answers.items()}
    for (name, a), old in zip(given.items(), before):
        if a.tobytes() != old:
            text = f"writes into {name} in place. Compute a new array: others use it."
            return "VJP changes its operands", text
    other = call.pull(np.random.default_rng(3).standard_normal(g.shape))
    for i, a in first.items():
        if not same(a, answers[i]):
            return "reused memory", REUSED
        if a.dtype.kind == "f" and a.dtype.itemsize < call.args[i].dtype.itemsize:
            return "precision", f"returns {a.dtype} for an operand of {call.args[i].dtype}."
        if a.any() and same(a, other[i], 1e-9):
            return "incoming gradient ignored", (
                "returns a value that does not depend on the incoming gradient g: multiply the "
                "op's own derivative by g (the chain rule). A g of ones would hide this."
            )
    for kind, text, expected, ask in trials(call, g):
        try:
            found = ask()
        except Exception as failure:
            return kind, f"fails ({type(failure).__name__}: {failure}), or {text}"
        for i, a in expected.items():
            b, largest = found.get(i, np.zeros(a.shape)), greatest(a[np.isfinite(a)])
            limit = 1e-4 * largest + 1e-12 * greatest(g)
            if text in (KEEPS_STATE, LINEAR):
                limit = 1e-9 * largest + np.finfo(float).tiny
            if not (near(b, a, 0, limit) | ~np.isfinite(a) | np.isinf(b)).all():
                return kind, text
    return None


def turned(x: Any) -> Any:
    """An equal array, column by column and with gaps."""
    if not isinstance(x, Array):
        return x
    spacious = np.zeros((*x.shape[::-1], 2), x.dtype)[..., 0].T
    spacious[...] = x
    return spacious


# ---- every VJP is right: what joins them?


def precision(steps: Sequence[Any], report: Report) -> Diagnosis | None:
    """The first step whose output has the digits of float32, where its operands have more."""
    short = lambda v: same(v.astype(np.float32), v)
    for step, call in calls(steps):
        y, given = call.y, [a for a, need in zip(call.args, call.needs) if need]
        cancels = greatest(y) <= 1e-3 * max(map(greatest, given), default=0)
        whole = np.sum(y != np.round(y)) < 2
        if short(y) and not (whole or cancels or all(map(short, given))):
            report.point_at(step)
            return Diagnosis(
                "precision",
                f"precision too low: op {step.name!r} makes {y.dtype} with the digits of float32 "
                "of float64, so its slope has hardly a few digits. Compute in float64 while "
                "checking.",
            )
    return None


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
