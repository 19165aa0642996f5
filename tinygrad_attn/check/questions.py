"""What every rule of a program is asked besides its answer: is it one that a sweep may rely on?

A rule computes new arrays from what it is given, and the same ones each time; its answer is linear
in the incoming gradient, does not depend on what else is asked for, nor on how numbers lie in
memory. No slope shows whether it does: each op is asked for itself, with the gradient that reaches
it, so the op is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .measuring import Problem, last_digits
from .records import Answers, Call, call_of
from .report import Diagnosis, Report, deviation, greatest
from .second_sweep import second_opinion

Question = Callable[[Call, np.ndarray], Diagnosis | None]
"""Of an op as it was called, and the gradient that reached its result."""


def fault(problem: Problem, report: Report, questions: Sequence[Question]) -> Diagnosis | None:
    """Of the ops that answer a question badly, the one that ran first."""
    outputs, trace = problem.traced()
    roots = [(t, c.copy()) for t, c in zip(outputs, problem.cotangents) if t._tracked]
    found: list[tuple[Any, Diagnosis]] = []

    def ask(t: Any, g: Any) -> None:
        call = call_of(t)
        told = (question(call, g) for question in questions)
        found.extend([(t, one) for one in told if one is not None][:1])

    second_opinion([t for t, _ in roots], [c for _, c in roots], ask)
    for result, diagnosis in found[-1:]:
        report.point_at(next((step for step in trace.steps if step.result is result), None))
        return diagnosis
    return None


def _with_operands(call: Call, change: Callable[[np.ndarray], np.ndarray]) -> Call | None:
    """The same with changed operands; None where the function refuses them."""
    float_ = lambda a: isinstance(a, np.ndarray) and a.dtype.kind == "f"
    with suppress(Exception):
        new = call.again(args=[change(a) if float_(a) else a for a in call.args])
        return new if np.shape(new.y) == np.shape(call.y) else None
    return None


def _told(call: Call, kind: str, text: str) -> Diagnosis:
    return Diagnosis(kind, f"the rule of op {call.op.__name__!r} {text}")


def _failed(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


# ---- memory, asked before anything is measured


def memory(call: Call, g: np.ndarray) -> Diagnosis | None:
    """Nothing that was given is written to, nothing that was returned changes, nor does the
    answer."""
    given = {"the incoming gradient g": g, "the result y": call.y}
    given |= {f"operand {i}": a for i, a in enumerate(call.args)}
    arrays = {name: a for name, a in given.items() if isinstance(a, np.ndarray)}
    before = [a.tobytes() for a in arrays.values()]
    answers = call.answers(g)
    first = {i: a.copy() for i, a in answers.items()}
    written = [name for (name, a), b in zip(arrays.items(), before) if a.tobytes() != b]
    if written:
        return _told(
            call,
            "rule changes its operands",
            f"writes into {' and '.join(written)} in place. Others share such arrays: compute a "
            "new one.",
        )
    call.answers(-g)  # asked only for what it does to the first answer
    if not _close(first, answers):
        return _told(
            call,
            "reused memory",
            "returns the same array at every call and overwrites what it returned before, which is "
            "still needed where the op is used twice. Compute a new array each time.",
        )
    if not all(_close(first, call.answers(g)) for _ in range(2)):  # state may go to and fro
        return _told(
            call,
            "rule changes its operands",
            "gives another answer each time it is asked, so a second backward pass gives another "
            "gradient. It keeps state between calls, or draws random numbers: draw them once, in "
            "the forward pass, and save them.",
        )
    return None


# ---- asked where the gradient agrees with the slopes, or where no other fault explains that not


def not_linear(call: Call, g: np.ndarray) -> Diagnosis | None:
    """None of g gives none, a multiple a multiple; by powers of two, without rounding."""
    found = nonlinearity(call, g)
    return None if found is None else _told(call, found["kind"], f"{found['how']}.")


def nonlinearity(call: Call, g: np.ndarray) -> dict[str, str] | None:
    """The kind, and how the rule answers where g is a multiple of what it was."""
    in_rows = np.array(g, order="C")  # as a product lies, so that only the numbers differ
    gs, multiples = (in_rows, np.ones_like(in_rows)), (-(2.0**60), -(2.0**-60), 0.0)
    for given, k in itertools.product(gs, multiples):
        answers = call.answers(given)
        try:
            scaled = call.answers(k * given)
        except Exception as failure:
            how = f"fails where the incoming gradient g is {k:g} times as large: {_failed(failure)}"
            return {"kind": "incoming gradient", "how": how}
        for i, b in scaled.items():
            if i in answers and not _multiplied(answers[i], b, k):
                return _in_which_way(call, in_rows, answers[i], b, k)
    return None


def _multiplied(a: np.ndarray, b: np.ndarray, k: float) -> bool:
    """Is b k times a?  What overflows says nothing about the rule."""
    there = np.isfinite(k * a) & ~np.isinf(b)
    limit = 1e-9 * abs(k) * greatest(a[there]) + np.finfo(np.float64).tiny
    return bool((np.abs(k * a[there] - b[there]) <= limit).all())


def _in_which_way(
    call: Call, g: np.ndarray, a: np.ndarray, b: np.ndarray, k: float
) -> dict[str, str]:
    kind, once = "incoming gradient", "Every term of a rule is multiplied by g, exactly once"
    if k and a.any() and _multiplied(np.abs(a), np.abs(b), 1.0):
        other = call.answers(np.random.default_rng(8).standard_normal(g.shape))
        if any(_close({0: a}, {0: c}) for c in other.values()):
            how = (
                "gives an answer that does not depend on the incoming gradient g: multiply the "
                "op's own derivative by g (the chain rule). An all-ones g would hide this"
            )
            return {"kind": "incoming gradient ignored", "how": how}
        how = "answers the same where g is larger, though not for another g: it normalises g, or "
        return {"kind": kind, "how": f"{how}divides by its size. {once}, and g is left as it comes"}
    where = f"where g is {k:.3g} times as large"
    ways = {
        "it uses the size of g without its sign": lambda: k and _multiplied(a, b, -k),
        "it uses g squared": lambda: k and _multiplied(a, b, k * k),
        f"{where}, its answer is NaN": lambda: np.isnan(b).any(),
    }
    way = next((way for way, fits in ways.items() if fits()), f"{where}, its answer is not")
    more = "a rule does not clip, normalise, compare or divide by g"
    return {"kind": kind, "how": f"is not linear in the incoming gradient g; {way}. {once}: {more}"}


def needs_others(call: Call, g: np.ndarray) -> Diagnosis | None:
    """An input's gradient is the same whether or not those of the others are asked for."""
    for i, answer in call.answers(g).items():
        said = f"gives operand {i} another gradient where it alone is asked for."
        try:
            if _close({i: answer}, call.answers(g, [k == i for k in range(len(call.needs))])):
                continue
        except Exception as failure:
            said = (
                f"fails where the gradient of operand {i} alone is asked for: {_failed(failure)}."
            )
        hint = "Look at what the rule does where not all of `needs` are true."
        return _told(call, "needs", f"{said} {hint}")
    return None


def minds_layout(call: Call, g: np.ndarray) -> Diagnosis | None:
    """The same numbers in another order in memory: g as it came, in rows, by columns, with gaps."""
    answers = call.answers(np.array(g, order="C"))
    moved = (_with_operands(call, last_digits) or call).answers(last_digits(g))
    rounding = {
        i: 1e3 * greatest(np.nan_to_num(answers[i] - b, posinf=0, neginf=0))
        for i, b in moved.items()
        if i in answers
    }
    calls = filter(None, (call, _with_operands(call, turned)))
    lies = (g, turned(g), np.array(g, order="F"))
    trials = [(answers, asked, lying) for asked, lying in itertools.product(calls, lies)]
    ones = np.ones(np.shape(g), g.dtype)
    trials += [(call.answers(ones), call, np.broadcast_to(ones.dtype.type(1), ones.shape))]
    for expected, asked, lying in trials:
        what = "gives another answer"
        try:
            if _close(expected, asked.answers(lying), 1e-4, rounding):
                continue
        except Exception as failure:
            what = f"fails, {_failed(failure)},"
        return _told(
            call,
            "memory layout",
            f"{what} where the same numbers lie in another order in memory, as those of x.T or "
            "x[:, ::2] do, or broadcast ones. Of such an array reshape(-1) and ravel() are copies, "
            "so what is written into them is lost; np.zeros_like(x) lies as x does, "
            "np.zeros(x.shape) row by row. Look, too, for strides, view() and memory that is read "
            "as it lies.",
        )
    return None


def loses_digits(call: Call, g: np.ndarray) -> Diagnosis | None:
    """An answer of fewer digits than g and the operand have."""
    for i, answer in call.answers(g).items():
        operand = call.args[i]
        fewer = answer.dtype.itemsize < min(operand.dtype.itemsize, g.dtype.itemsize)
        if fewer and answer.dtype.kind == "f":
            return _told(
                call,
                "precision",
                f"answers in {answer.dtype} where g and operand {i} are {operand.dtype}: the "
                "digits after the first few are lost. Keep the dtype that comes in.",
            )
    return None


OF_THE_ANSWER = (loses_digits, not_linear, needs_others, minds_layout)


def _close(
    one: Answers, other: Answers, rtol: float = 1e-9, atol: Mapping[int, float] = {}
) -> bool:
    """Are two answers the same, beside the largest element and what rounding makes?"""
    if one.keys() != other.keys():
        return False
    for i, a in one.items():
        limit = rtol * greatest(np.nan_to_num(a)) + atol.get(i, 0)
        if a.shape != other[i].shape or (deviation(a, other[i]) > limit).any():
            return False
    return True


def turned(x: np.ndarray) -> np.ndarray:
    """An equal array that lies column by column, with gaps."""
    spacious = np.zeros((*x.shape[::-1], 2), x.dtype)[..., 0].T
    spacious[...] = x
    return spacious
