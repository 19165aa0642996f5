"""What every rule of a program is asked besides its answer: is it one that a sweep may rely on?

A rule computes new arrays from what it is given, and the same ones each time; its answer is linear
in the incoming gradient, does not depend on what else is asked for, nor on how numbers lie in
memory. No slope shows whether it does: each op is asked for itself, with the gradient that reaches
it, so the op is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import tracked
from .measuring import Problem, last_digits
from .records import array_of, as_given, ask_rules
from .report import Diagnosis, Report
from .second_sweep import second_opinion


class Asked:
    """One op as it ran, and the gradient that reached its result."""

    def __init__(self, t: Any, g: np.ndarray) -> None:
        made = t._record
        self.op, self.settings, self.g = made.op, made.settings, g
        self.y, self.saved, self.args = t._data, made.saved, as_given(made.inputs)
        self.needs = [tracked(x) for x in made.inputs]
        self.rule = f"the rule of op {self.op.__name__!r}"

    def answers(self, g: Any, needs: Sequence[bool] | None = None) -> list[Any]:
        """What the rules answer, None where nothing is asked."""
        needs = self.needs if needs is None else needs
        with np.errstate(all="ignore"):
            found = ask_rules(self.op, g, self.y, self.args, self.settings, needs, self.saved)
        return [None if a is None else np.asarray(array_of(a)) for a in found]

    def given(self, change: Callable[[np.ndarray], np.ndarray]) -> Asked | None:
        """The same with changed operands; None where the function refuses them."""
        again = object.__new__(Asked)
        vars(again).update(vars(self))
        float_ = lambda a: isinstance(a, np.ndarray) and a.dtype.kind == "f"
        again.args = [change(a) if float_(a) else a for a in self.args]
        with suppress(Exception), np.errstate(all="ignore"):
            y = self.op.forward(*again.args, **self.settings)
            again.y, again.saved = y if self.op.saves else (y, None)
            return again if np.shape(again.y) == np.shape(self.y) else None
        return None


def fault(
    problem: Problem, report: Report, questions: Sequence[Callable[[Asked], Diagnosis | None]]
) -> Diagnosis | None:
    """Of the ops that answer a question badly, the one that ran first."""
    outputs, trace = problem.traced()
    roots = [(t, c.copy()) for t, c in zip(outputs, problem.cotangents) if t._tracked]
    found: list[tuple[Any, Diagnosis]] = []

    def ask(t: Any, g: Any) -> None:
        told = (question(Asked(t, g)) for question in questions)
        found.extend([(t, one) for one in told if one is not None][:1])

    second_opinion([t for t, _ in roots], [c for _, c in roots], ask)
    for result, diagnosis in found[-1:]:
        report.point_at(next((step for step in trace.steps if step.result is result), None))
        return diagnosis
    return None


# ---- memory, asked before anything is measured


def memory(it: Asked) -> Diagnosis | None:
    """Nothing that was given is written to, nothing that was returned changes, nor does the
    answer."""
    arrays = [a for a in (it.g, it.y, *it.args) if isinstance(a, np.ndarray)]
    before = [a.copy() for a in arrays]
    answers = it.answers(it.g)
    first = [None if a is None else a.copy() for a in answers]
    if any(a.tobytes() != b.tobytes() for a, b in zip(arrays, before)):
        return Diagnosis(
            "rule changes its operands",
            f"{it.rule} writes into the incoming gradient g, its result or an operand in place. "
            "Others share these arrays: compute a new one.",
        )
    it.answers(-it.g)  # asked only for what it does to the first answer
    if not _close(first, answers):
        return Diagnosis(
            "reused memory",
            f"{it.rule} returns the same array at every call and overwrites what it returned "
            "before, which is still needed where the op is used twice. Compute a new array each "
            "time.",
        )
    if not _close(first, it.answers(it.g)):
        return Diagnosis(
            "rule changes its operands",
            f"{it.rule} gives another answer each time it is asked, so a second backward pass "
            "gives another gradient. It keeps state between calls, or draws random numbers: draw "
            "them once, in the forward pass, and save them.",
        )
    return None


# ---- asked where the gradient agrees with the slopes, or where no other fault explains that not


def not_linear(it: Asked) -> Diagnosis | None:
    """None of g gives none, a thousandfold a thousandfold; by powers of two, without rounding."""
    in_rows = np.array(it.g, order="C")  # as a product lies, so that only the numbers differ
    answers = it.answers(in_rows)
    for k in (0.0, -(2.0**10), -(2.0**-10)):
        try:
            with np.errstate(all="ignore"):
                g = k * in_rows
            scaled = it.answers(g)
        except Exception as failure:
            said = f"fails where the incoming gradient g is {k:g} times as large: {_told(failure)}"
            return Diagnosis("incoming gradient", f"{it.rule} {said}")
        for a, b in zip(answers, scaled):
            if a is not None and b is not None and (how := _not_multiplied(a, b, k)):
                return Diagnosis(
                    "incoming gradient",
                    f"{it.rule} is not linear in the incoming gradient g: where g is {k:g} times "
                    f"as large, its answer is {how}. Every term of a rule is multiplied by g, "
                    "exactly once: a rule does not clip, normalise, compare or divide by g.",
                )
    return None


def _not_multiplied(a: np.ndarray, b: np.ndarray, k: float) -> str:
    """Is b not k times a?  What overflows says nothing about the rule."""
    with np.errstate(all="ignore"):
        there = np.isfinite(k * a) & ~np.isinf(b)
        limit = 1e-9 * abs(k) * np.abs(a[there]).max(initial=0) + np.finfo(np.float64).tiny
        if (np.abs(k * a[there] - b[there]) <= limit).all():
            return ""
    return "NaN" if np.isnan(b[there]).any() else "not"


def needs_others(it: Asked) -> Diagnosis | None:
    """An input's gradient is the same whether or not those of the others are asked for."""
    answers = it.answers(it.g)
    for i in np.flatnonzero(it.needs) if sum(it.needs) > 1 else ():
        hint = "Look at what the rule {} where not all of `needs` are true."
        try:
            (alone,) = it.answers(it.g, [k == i for k in range(len(it.needs))])[i : i + 1]
        except Exception as failure:
            return Diagnosis(
                "needs",
                f"{it.rule} fails where the gradient of operand {i} alone is asked for: "
                f"{_told(failure)}. {hint.format('does')}",
            )
        if not _close([answers[i]], [alone]):
            return Diagnosis(
                "needs",
                f"{it.rule} gives operand {i} another gradient where it alone is asked for. "
                f"{hint.format('returns')}",
            )
    return None


def minds_layout(it: Asked) -> Diagnosis | None:
    """The same numbers in another order in memory: g as it came, in rows, by columns, with gaps."""
    answers = it.answers(np.array(it.g, order="C"))
    near = it.given(last_digits) or it
    rounding = [
        1e3 * np.abs(a - b).max(initial=0) if a is not None and b is not None else 0.0
        for a, b in zip(answers, near.answers(last_digits(it.g)))
    ]
    ones = np.ones(np.shape(it.g), it.g.dtype)
    layouts = [(it, it.g), (it, turned(it.g)), (it, np.array(it.g, order="F"))]
    if (other := it.given(turned)) is not None:
        layouts += [(other, it.g), (other, turned(it.g))]
    trials = [(answers, asked, g) for asked, g in layouts]
    trials += [(it.answers(ones), it, np.broadcast_to(ones.dtype.type(1), ones.shape))]
    for expected, asked, g in trials:
        what = "gives another answer"
        try:
            if _close(expected, asked.answers(g), 1e-4, rounding):
                continue
        except Exception as failure:
            what = f"fails, {_told(failure)},"
        return Diagnosis(
            "memory layout",
            f"{it.rule} {what} where the same numbers lie in another order in memory, as those of "
            "x.T or x[:, ::2] do, or broadcast ones. Of such an array reshape(-1) and ravel() are "
            "copies, so what is written into them is lost; np.zeros_like(x) lies as x does, "
            "np.zeros(x.shape) row by row. Look, too, for strides, view() and memory that is read "
            "as it lies.",
        )
    return None


def loses_digits(it: Asked) -> Diagnosis | None:
    for i, answer in enumerate(it.answers(it.g)):
        operand = it.args[i]
        if answer is not None and answer.dtype.kind == "f" and isinstance(operand, np.ndarray):
            if answer.dtype.itemsize < min(operand.dtype.itemsize, it.g.dtype.itemsize):
                return Diagnosis(
                    "precision",
                    f"{it.rule} answers in {answer.dtype} where g and operand {i} are "
                    f"{operand.dtype}: the digits after the first few are lost. Keep the dtype "
                    "that comes in.",
                )
    return None


OF_THE_ANSWER = (not_linear, needs_others, minds_layout, loses_digits)


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


def _close(
    one: Sequence[Any], other: Sequence[Any], rtol: float = 1e-9, atol: Sequence[float] = ()
) -> bool:
    """Are two answers the same, beside the largest element and what rounding makes?"""
    for a, b, more in zip(one, other, [*atol, *[0.0] * (len(one) - len(atol))]):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        with np.errstate(all="ignore"):
            limit = rtol * np.abs(np.nan_to_num(a)).max(initial=0) + more
            same = (a == b) | np.isnan(a) & np.isnan(b) | (np.abs(a - b) <= limit)
        if a.shape != b.shape or not np.all(same):
            return False
    return True


def turned(x: np.ndarray) -> np.ndarray:
    """An equal array that lies column by column, with gaps."""
    spacious = np.zeros((*x.shape[::-1], 2), x.dtype)[..., 0].T
    spacious[...] = x
    return spacious
