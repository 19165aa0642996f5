"""A factor that is one number for each row, such as 1/std, or a whole term, that the rule lacks or has too many; and / for *."""

from __future__ import annotations

from typing import Any

import numpy as np

from .diagnosis import FIT, Pattern, apart, same
from .report import Diagnosis


def row_factor(p: Pattern) -> Diagnosis | None:
    """gradient = slope times one number for each row: which number?"""
    scale = np.abs(p.n).max(initial=0)
    for axis in reversed(range(p.a.ndim)):
        rows = np.sum(p.n * p.n, axis=axis, keepdims=True)
        if p.a.shape[axis] < 2 or rows.size < 2 or np.min(rows) <= (FIT * scale) ** 2:
            continue
        factor = np.sum(p.a * p.n, axis=axis, keepdims=True) / rows
        if not factor.all() or np.ptp(factor) <= 1e-3 * np.abs(factor).max():
            continue
        if (
            apart(p.a, factor * p.n, np.abs(factor) * p.tolerance).any()
            or (np.abs(factor - 1) <= 1e-3).any()
        ):
            continue  # a row that is right lacks no factor
        off = f"the gradient is off by one number for each row along axis {axis}"
        for name, q in _of_each_row(p, axis).items():
            if q.shape != factor.shape or not q.all():
                continue
            for written, power in ((name, q), (f"({name})^2", q**2)):
                if _is_one_number(ratio := factor / power):
                    return Diagnosis(
                        "missing factor",
                        f"{off}: it lacks the factor 1/{written}{_besides(ratio)}.",
                    )
                if _is_one_number(ratio := factor * power):
                    return Diagnosis(
                        "extra factor",
                        f"{off}: it has a factor 1/{written} too many{_besides(ratio)}.",
                    )
        if (
            np.count_nonzero(np.abs(p.n) > FIT * scale, axis=axis) >= 2
        ).all():  # one number is always a multiple of another
            return Diagnosis(
                "missing factor",
                f"{off}: a factor that belongs to the whole row (a standard deviation, a norm, a sum, a "
                "count) is missing or too many.",
            )
    return None


def _is_one_number(ratio: np.ndarray) -> bool:
    return bool(np.ptp(ratio) <= 1e-3 * np.abs(ratio).max())


def _besides(ratio: np.ndarray) -> str:
    value = float(ratio.mean())
    return "" if abs(value - 1) < 1e-3 else f" (and is {value:.6g} times too large besides)"


def _of_each_row(p: Pattern, axis: int) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        found = {
            "std(x)": p.x.std(axis, keepdims=True),
            "norm(x)": np.sqrt((p.x * p.x).sum(axis, keepdims=True)),
            "rms(x)": np.sqrt((p.x * p.x).mean(axis, keepdims=True)),
            "sum(x)": p.x.sum(axis, keepdims=True),
            "max(x)": p.x.max(axis, keepdims=True),
            "sum(exp(x))": np.exp(p.x).sum(axis, keepdims=True),
        }
    if p.y is not None and p.y.shape == p.x.shape[:axis] + p.x.shape[axis + 1 :]:
        found = {"y": np.expand_dims(p.y, axis)} | found
    return {name: q for name, q in found.items() if np.isfinite(q).all()}


LEFT_OUT = "is left out, counted too often, or has the wrong sign"


def leftover(p: Pattern) -> Diagnosis | None:
    """What is missing or too many is a multiple of something at hand, element by element."""
    g: Any = p.g
    for words, term in _terms(p).items():
        c = _multiple(p.a - p.n, g * term)
        if c and p.fits(p.n + c * g * term):
            return Diagnosis(
                "missing term",
                f"the gradient is {_amount(c, f'g times {words}' if words else 'g')} at every element: one "
                f"term of the sum, or of the product rule, {LEFT_OUT}.",
            )
    return None


@np.errstate(all="ignore")
def inverted(p: Pattern) -> Diagnosis | None:
    """The rule divides by the op's derivative."""
    if p.g is not None and p.g.shape == p.n.shape and p.n.size > 1 and p.fits(p.g * p.g / p.n):
        return Diagnosis(
            "inverted",
            "the gradient is g divided by the op's own derivative, where it is g times that: a division stands "
            "for a multiplication, or the reverse.",
        )
    return None


@np.errstate(all="ignore")  # roots of what has none
def divisor(p: Pattern) -> Diagnosis | None:
    """Of a slope g / d, or g / sqrt(d), a term of d is wrong: g / (1 - x^2) for arctan's."""
    g: Any = p.g
    for what, power in (
        ("what the rule divides g by", 1),
        ("the square of what the rule divides g by", 2),
    ):
        for words, term in _terms(p).items():
            right = (g / p.n) ** power
            c = _multiple((g / p.a) ** power - right, term)
            if c and p.fits(p.n * (right / (right + c * term)) ** (1 / power)):
                return Diagnosis(
                    "missing term",
                    f"{what} is {_amount(c, words)} at every element: a term of it {LEFT_OUT}.",
                )
    return None


def _terms(p: Pattern) -> dict[str, np.ndarray]:
    """What the terms of a derivative may consist of, where there is a value of each for each element of the input."""
    if (
        p.g is None
        or p.y is None
        or p.a.size < 4
        or not p.a.shape == p.g.shape == p.y.shape
        or not np.ptp(p.x)
    ):
        return {}  # where all elements of x are equal, any would fit
    terms = {
        "": np.ones(p.a.shape),
        "y": p.y,
        "x": p.x,
        "x^2": p.x**2,
        "y^2": p.y**2,
        "x y": p.x * p.y,
        "x^3": p.x**3,
    }
    return {words: term for words, term in terms.items() if not words or np.ptp(term) > 0}


def _multiple(rest: np.ndarray, term: np.ndarray) -> float:
    """c with rest = c term; 0 if there is none."""
    c = float(np.sum(rest * term) / np.sum(term * term))
    return c if same(rest, c * term) else 0.0


def _amount(c: float, what: str) -> str:
    return f"{abs(c):.4g}{f' times {what}' if what else ''} too {'much' if c > 0 else 'little'}"
