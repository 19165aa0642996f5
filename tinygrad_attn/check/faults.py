"""Faults that no slope shows, and faults between ops whose own VJPs are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import Variable, tracked
from .report import Diagnosis, Report, deviation, greatest
from .slopes import Program, floor_of, of_both_signs
from .trace import Answers, Array, array_of, plain_sweep

Gradients = Sequence[Array | None]


def equal(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def differing(names: Sequence[str], first: Gradients, second: Gradients) -> str | None:
    """The name of the first input whose two gradients differ."""
    for name, a, b in zip(names, first, second):
        if a is not None and b is not None:
            if not np.allclose(a, b, 1e-6, 1e-9 * max(1.0, greatest(a)), equal_nan=True):
                return name
    return None


# ---- the function


def modified(program: Program, who: str) -> Diagnosis | None:
    for name, now, given in zip(program.names, program.inputs, program.given):
        if not equal(now, given):
            return Diagnosis(
                "input modified",
                f"{who} changes {name} in place, so its slope cannot be measured and saved values "
                "go wrong. Compute a new tensor (x = x + 1, not x.data += 1), or copy first.",
            )
    return None


def unrepeatable(program: Program, steps: list[Any], report: Report) -> Diagnosis | None:
    again, second = program.traced()
    value = program.backend.value
    if len(again) == len(program.values) and all(map(equal, map(value, again), program.values)):
        return None
    pairs = zip(steps, second)
    report.point_at(
        next((a for a, b in pairs if not equal(value(a.result), value(b.result))), None)
    )
    return Diagnosis(
        "not deterministic",
        "f gives different results for the same inputs, so it has no slope. Switch dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls.",
    )


def unreached(gradients: Gradients, order: int) -> Diagnosis | None:
    if order == 2 or any(g is not None for g in gradients):
        return None
    return Diagnosis(
        "gradient missing",
        "no result is connected to any input: nothing was recorded from the inputs to the "
        "results. Look for detach(), .data, .numpy(), .item(), Tensor(...) of a result, "
        "no_grad(), or a gradient taken without create_graph=True inside f; or f does not use its "
        "inputs.",
    )


def shared_state(program: Program, first: Gradients, report: Report) -> Diagnosis | None:
    """Run f at other values between the forward and the backward pass."""
    outputs, steps = program.traced()
    names, value = program.names, program.backend.value
    if name := differing(names, first, program.pull(program.cotangents, outputs)):
        return Diagnosis(
            "rule changes its operands",
            f"{name}: a second backward pass gives another gradient. Some VJP keeps state between "
            "calls, or draws random numbers (draw them once, in the forward pass, and save them).",
        )
    results = [(step, value(step.result).copy()) for step in steps]
    plain = [not name.startswith("parameter") for name in names]
    # State may be kept by parameter, and f may refuse values that are far away.
    for chosen, least in itertools.product((plain, [True] * len(plain)), (0.8, -1.5)):
        moved = [
            scaled(x, program.rng.uniform(least, 1.2, x.shape)) if c else x
            for x, c in zip(program.inputs, chosen)
        ]
        with suppress(Exception), program.at(moved):
            program.run()
    for step, before in results:
        if not equal(value(step.result), before):
            report.point_at(step)
            return Diagnosis(
                "reused memory",
                f"the result of op {step.name!r} changes when f is called again: its function "
                "returns the same array at every call (out=, or an array kept outside). Return a "
                "new array each time.",
            )
    name = differing(names, first, program.pull(program.cotangents, outputs))
    return name and Diagnosis(  # type: ignore[return-value]
        "shared state",
        f"{name}: calling f once more before backward() changes the gradient of the first call. "
        "Something the VJP needs is kept on the layer, or in a variable outside, instead of in "
        "the call; the second call overwrites it.",
    )


def through_infinity(program: Program) -> Diagnosis | None:
    """Where results stay infinite they do not depend on the inputs: no gradient may come back."""
    if not any(at.any() for at in program.infinite):
        return None
    rng = np.random.default_rng(4)
    only_there = [at * rng.standard_normal(at.shape) for at in program.infinite]
    reached = zip(program.names, program.pull(only_there))
    names = " and ".join(name for name, g in reached if g is not None and g.any())
    text = (
        "results that are infinite, and stay so when the inputs move, pass a gradient on to "
        f"{names}. A VJP that fills in -inf gives zero there: g times the mask. Where -inf was "
        "added, or a number overflows, no slope can be measured: check what comes behind it, such "
        "as the softmax."
    )
    return Diagnosis("infinite result", text) if names else None


def scaled(x: Array, by: Array) -> Array:
    """Each element times its factor; zeros move as ones would."""
    return np.where(x == 0, by - 1, x * by)


# ---- single ops: a VJP returns new arrays, is linear in g, and minds nothing else


def calls(steps: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each differentiable step and its call on copies; of a long program each shape once."""
    seen = set[Any]()
    for step in steps:
        if not step.differentiable:
            continue
        key: Any = (step.op, tuple(np.shape(array_of(x)) for x in step.inputs if tracked(x)))
        key = (*key, repr(step.settings))
        if len(steps) <= 400 or key not in seen:
            seen.add(key)
            with suppress(Exception):
                yield step, step.call()


def fault(steps: Sequence[Any], report: Report, questions: Sequence[Callable]) -> Diagnosis | None:
    """The first op that answers a question badly."""
    for step, call in calls(steps):
        g = of_both_signs(np.random.default_rng(8).standard_normal(call.y.shape))
        g = np.where(np.isfinite(call.y), g, 0)
        for question in questions:
            try:
                found = question(call, g)
            except Exception:  # a VJP that fails for this g; a real one is told elsewhere
                continue
            if found is not None:
                report.point_at(step)
                kind, text = found
                return Diagnosis(kind, f"the rule of op {step.name!r} {text}")
    return None


Found = tuple[str, str] | None


def memory(call: Any, g: Array) -> Found:
    given = {"the incoming gradient g": g, "the result y": call.y}
    given |= {f"operand {i}": a for i, a in enumerate(call.args)}
    arrays = {name: a for name, a in given.items() if isinstance(a, Array)}
    before = [a.tobytes() for a in arrays.values()]
    answers = call.pull(g)
    first = {i: a.copy() for i, a in answers.items()}
    written = [name for (name, a), b in zip(arrays.items(), before) if a.tobytes() != b]
    kind = "rule changes its operands"
    if written:
        text = f"writes into {' and '.join(written)} in place. Others use such arrays: compute a "
        return kind, f"{text}new one."
    call.pull(-g)
    if not close(first, answers):
        return "reused memory", (
            "returns the same array at every call and overwrites what it returned before, which is "
            "still needed where the op is used twice. Compute a new array each time."
        )
    if not all(close(first, call.pull(g)) for _ in range(2)):  # state may go to and fro
        return kind, (
            "gives another answer each time it is called, so a second backward pass gives another "
            "gradient. It keeps state between calls, or draws random numbers: draw them once, in "
            "the forward pass, and save them."
        )
    return None


def nonlinear(call: Any, g: Array) -> Found:
    """A multiple of g must give that multiple; powers of two add no rounding."""
    for given, k in itertools.product((g, np.ones_like(g)), (-(2.0**60), -(2.0**-60), 0.0)):
        answers = call.pull(given)
        try:
            found = call.pull(k * given)
        except Exception as failure:
            return "incoming gradient", f"fails where g is {k:g} times as large: {failure}"
        for i, b in found.items():
            if i in answers and not _multiple(answers[i], b, k):
                return _in_which_way(call, answers[i], b, k)
    return None


def _multiple(a: Array, b: Array, k: float) -> bool:
    """Whether b is k times a, as far as nothing overflows."""
    there = np.isfinite(k * a) & ~np.isinf(b)
    limit = 1e-9 * abs(k) * greatest(a[there]) + np.finfo(np.float64).tiny
    return bool((np.abs(k * a[there] - b[there]) <= limit).all())


def _in_which_way(call: Any, a: Array, b: Array, k: float) -> Found:
    kind, once = "incoming gradient", "Every term of a VJP is multiplied by g, exactly once."
    if k and a.any() and _multiple(np.abs(a), np.abs(b), 1.0):
        other = call.pull(np.random.default_rng(3).standard_normal(call.y.shape))
        if any(close({0: a}, {0: c}) for c in other.values()):
            return "incoming gradient ignored", (
                "gives an answer that does not depend on the incoming gradient g: multiply the "
                "op's own derivative by g (the chain rule). An all-ones g would hide this."
            )
        return kind, f"answers the same where g is larger: it normalises g. {once}"
    ways = {
        "it uses the size of g without its sign": k and _multiple(a, b, -k),
        "it uses g squared": k and _multiple(a, b, k * k),
        f"where g is {k:.3g} times as large, its answer is NaN": np.isnan(b).any(),
    }
    how = next((way for way, fits in ways.items() if fits), f"where g is {k:.3g} times as large, "
               "its answer is not")  # fmt: skip
    more = "A VJP does not clip, normalise, compare or divide by g."
    return kind, f"is not linear in the incoming gradient g; {how}. {once} {more}"


def needs_others(call: Any, g: Array) -> Found:
    """The gradient of an input is the same whether or not others are wanted."""
    for i, answer in call.pull(g).items():
        said = f"gives operand {i} another gradient where it alone is wanted."
        try:
            alone = call.pull(g, needs=[k == i for k in range(len(call.needs))])
            if close({i: answer}, alone, least=1e-12 * greatest(g)):
                continue
        except Exception as failure:
            said = f"fails where the gradient of operand {i} alone is wanted: {failure}."
        return "needs", f"{said} Look at what it does where not all of `needs` are true."
    return None


def minds_layout(call: Any, g: Array) -> Found:
    """The same numbers in another order in memory, as those of x.T, give the same answer."""
    if not g.ndim:
        return None
    expected = call.pull(g)
    by_columns = [turned(a) if isinstance(a, Array) else a for a in call.args]
    ones = np.ones_like(g)
    trials = [(expected, call, turned(g)), (expected, call, np.asfortranarray(g)),
              (call.pull(ones), call, np.broadcast_to(np.float64(1), g.shape))]  # fmt: skip
    with suppress(Exception):
        trials.append((expected, call.with_args(by_columns), g))
    for answers, asked, lying in trials:
        what = "gives another answer"
        try:
            if close(answers, asked.pull(lying), 1e-4, 1e-12 * greatest(g)):
                continue
        except Exception as failure:
            what = f"fails, {type(failure).__name__}: {failure},"
        return "memory layout", (
            f"{what} where the same numbers lie in another order in memory, as those of x.T or "
            "x[:, ::2] do, or broadcast ones. reshape(-1) and ravel() of such an array are copies, "
            "so what is written into them is lost; np.zeros_like(x) lies as x does, "
            "np.zeros(x.shape) row by row."
        )
    return None


def loses_digits(call: Any, g: Array) -> Found:
    for i, answer in call.pull(g).items():
        if answer.dtype.kind == "f" and answer.dtype.itemsize < call.args[i].dtype.itemsize:
            return "precision", (
                f"answers in {answer.dtype} where g and operand {i} are {call.args[i].dtype}. Keep "
                "the dtype that comes in."
            )
    return None


OF_THE_ANSWER = (loses_digits, nonlinear, needs_others, minds_layout)


def close(one: Answers, other: Answers, rtol: float = 1e-9, least: float = 0.0) -> bool:
    """Whether two answers are the same, beside the largest element and what rounding makes."""
    if one.keys() != other.keys():
        return False
    for i, a in one.items():
        limit = least + rtol * greatest(np.nan_to_num(a, posinf=0, neginf=0))
        if a.shape != other[i].shape or (deviation(a, other[i]) > limit).any():
            return False
    return True


def turned(x: Array) -> Array:
    """An equal array that lies column by column, with gaps."""
    spacious = np.zeros((*x.shape[::-1], 2), x.dtype)[..., 0].T
    spacious[...] = x
    return spacious


# ---- every VJP is right: what joins them?


def precision(steps: Sequence[Any], report: Report) -> Diagnosis | None:
    """The first step that makes float32 of float64, or float64 with the digits of float32."""
    short = lambda v: bool((v.astype(np.float32) == v).all())
    for step, call in calls(steps):
        y, given = call.y, [a for a, need in zip(call.args, call.needs) if need] or [np.zeros(1)]
        what = ""
        if y.dtype.kind == "f" and y.dtype.itemsize < 8 <= max(x.dtype.itemsize for x in given):
            what = f"makes {y.dtype} of float64"
        elif (
            np.sum(y != np.round(y)) > 1
            and short(y)
            and not all(map(short, given))
            and greatest(y) > 1e-3 * max(map(greatest, given))  # else large numbers cancel
        ):
            what = "gives float64 with the digits of float32 only"
        if what:
            report.point_at(step)
            return Diagnosis(
                "precision",
                f"precision too low: op {step.name!r} {what}, so its slope has hardly a few "
                "digits. Compute in float64 while checking.",
            )
    return None


def outside_the_graph(program: Program, which: int, steps: Sequence[Any]) -> Any:
    """(step, text) of what moves with an input and is a constant to the graph."""
    x, name = program.inputs[which], program.names[which]
    moved = list(program.inputs)
    moved[which] = x + 1e-5 * np.random.default_rng(3).standard_normal(x.shape)
    now = program.run()
    try:
        with program.at(moved):
            outputs, then = program.traced()
    except Exception:
        return None
    if [s.op for s in steps] != [s.op for s in then] or any(s.name == "checkpoint" for s in steps):
        return None
    for a, b in zip(steps, then):
        if what := _constant_that_moves(a, b, program.tensors):
            how = " (computed under no_grad())" if what == "the result of" else ""
            return a, f"{what} op {a.name!r} depends on {name}, but is a constant to the graph{how}"
    for k, (p, q) in enumerate(zip(now, outputs)):
        if not program.backend.wants_gradient(p) and _differs(p, q):
            return None, f"result {k} depends on {name}, but is a constant to the graph"
    return None


def _constant_that_moves(now: Any, then: Any, inside: Sequence[Any]) -> str | None:
    for i, (p, q) in enumerate(zip(now.inputs, then.inputs)):
        known = tracked(p) or any(p is t for t in inside)
        if not known and _differs(p, q):
            return f"operand {i} of"
    for name, value in now.settings.items():
        if _differs(value, then.settings.get(name)):
            return f"the setting {name!r} of"
    unrecorded = not tracked(now.result) and any(tracked(p) for p in now.inputs)
    return "the result of" if unrecorded and _differs(now.result, then.result) else None


def _differs(p: Any, q: Any) -> bool:
    with suppress(ValueError, TypeError):
        p, q = (np.asarray(x.detach() if hasattr(x, "detach") and not isinstance(x, Variable)
                           else array_of(x)) for x in (p, q))  # fmt: skip
        return p.dtype.kind == "f" and p.shape == q.shape and not equal(p, q)
    return False


def lost_in_the_sweep(program: Program, which: int, numeric: Array) -> str | None:
    """A plain sweep through the same VJPs agrees with the slopes: the engine's sweep is wrong."""
    outputs, t = program.run(), program.tensors[which]
    try:
        grads, uses = plain_sweep(outputs, program.cotangents)
    except Exception:
        return None
    measured = np.isfinite(numeric)
    limit = 1e-3 * np.abs(numeric) + 1e-5 * max(1, greatest(numeric[measured])) + floor_of(program)
    if t not in grads or not (np.abs(grads[t] - numeric) <= limit)[measured].all():
        return None
    most = max(map(len, uses.values()))
    return (
        "adding up what the ops' own VJPs say gives the right gradient, so the sweep through "
        "them is wrong: it missed a use, counted one twice, or went on before all were in. It "
        "must add, not overwrite, into memory of its own, and visit a tensor only when all "
        f"its uses are done. ({program.names[which]} is used by {' and '.join(uses[t])}; the "
        f"tensor that is used most is used {most} time{'s' * (most != 1)}.)"
    )
