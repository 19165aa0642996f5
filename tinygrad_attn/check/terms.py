"""A factor that is one number for each row, such as 1/std, or a whole term of the sum, that the rule lacks or has too many."""

from __future__ import annotations

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
        if apart(p.a, factor * p.n, np.abs(factor) * p.tolerance).any() or (np.abs(factor - 1) <= 1e-3).any():
            continue                                 # a row that is right lacks no factor
        off = f"the gradient is off by one number for each row along axis {axis}"
        for name, q in _of_each_row(p, axis).items():
            if q.shape != factor.shape or not q.all():
                continue
            for written, power in ((name, q), (f"({name})^2", q ** 2)):
                if _is_one_number(ratio := factor / power):
                    return Diagnosis("missing factor", f"{off}: it lacks the factor 1/{written}{_besides(ratio)}.")
                if _is_one_number(ratio := factor * power):
                    return Diagnosis("extra factor", f"{off}: it has a factor 1/{written} too many{_besides(ratio)}.")
        if (np.count_nonzero(np.abs(p.n) > FIT * scale, axis=axis) >= 2).all():      # one number is always a multiple of another
            return Diagnosis("missing factor", f"{off}: a factor that belongs to the whole row (a standard deviation, a norm, a sum, a "
                                               "count) is missing or too many.")
    return None


def _is_one_number(ratio: np.ndarray) -> bool:
    return bool(np.ptp(ratio) <= 1e-3 * np.abs(ratio).max())


def _besides(ratio: np.ndarray) -> str:
    value = float(ratio.mean())
    return "" if abs(value - 1) < 1e-3 else f" (and is {value:.6g} times too large besides)"


def _of_each_row(p: Pattern, axis: int) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        found = {"std(x)": p.x.std(axis, keepdims=True), "norm(x)": np.sqrt((p.x * p.x).sum(axis, keepdims=True)),
                 "rms(x)": np.sqrt((p.x * p.x).mean(axis, keepdims=True)), "sum(x)": p.x.sum(axis, keepdims=True),
                 "max(x)": p.x.max(axis, keepdims=True), "sum(exp(x))": np.exp(p.x).sum(axis, keepdims=True)}
    if p.y is not None and p.y.shape == p.x.shape[:axis] + p.x.shape[axis + 1:]:
        found = {"y": np.expand_dims(p.y, axis)} | found
    return {name: q for name, q in found.items() if np.isfinite(q).all()}


def leftover(p: Pattern) -> Diagnosis | None:
    """What is missing or too many is a multiple of something at hand, element by element."""
    if p.g is None or p.y is None or p.a.size < 4 or p.g.shape != p.x.shape:
        return None
    rest = p.a - p.n
    for value, words in ((p.g, "g"), (p.g * p.y, "g times y"), (p.g * p.x, "g times x"), (p.g * p.x ** 2, "g times x^2")):
        if not value.any():
            continue
        c = float(np.sum(rest * value) / np.sum(value * value))
        if same(rest, c * value) and p.fits(p.n + c * value):
            verdict = f"{c:.4g} times {words} too much" if c > 0 else f"{-c:.4g} times {words} too little"
            return Diagnosis("missing term", f"the gradient is {verdict} at every element: one term of the sum, or of the product rule, is "
                                             f"{'counted once more than it should' if c > 0 else 'left out'}.")
    return None
