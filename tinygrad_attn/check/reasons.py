"""Why an op gives NaN or Inf: ordered tables of (when, what is said), the first that fits.

A reason is guessed from the op's name and from the operands at the element in question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """An op that made NaN or Inf at one element of its result, or of an operand's gradient."""

    name: str
    operands: list[np.ndarray]
    made: np.ndarray  # the result, or the gradient
    at: tuple[int, ...]  # the index of the element
    settings: dict[str, Any]
    g: float | None = None  # the incoming gradient there, in the backward pass
    number: int = 0  # of the operand whose gradient it is

    @property
    def value(self) -> Any:
        return self.made[self.at]

    @property
    def nan(self) -> bool:
        return bool(np.isnan(self.value))

    def operand(self, k: int) -> float | None:
        """An operand's element there, if there is one and the op works element by element."""
        known = k < len(self.operands)
        return element(self.operands[k], self.at, self.made.shape) if known else None

    @property
    def a(self) -> float:
        """Of the first operand; NaN where it is not known, which is neither small nor large."""
        there = self.operand(0)
        return np.nan if there is None else there

    @property
    def b(self) -> float:
        there = self.operand(1)
        return np.nan if there is None else there

    @property
    def infinite(self) -> bool:
        """Does an operand hold infinities?"""
        return any(np.isinf(o).any() for o in self.operands)

    @property
    def overflow(self) -> str:
        """Of an op that grows without end."""
        largest = np.finfo(self.made.dtype).max
        text = f"overflow in {self.name}: the largest {self.made.dtype} is {largest:.3g}"
        if not self.named("exp", "exp2", "expm1"):
            return f"{text}."
        log = np.log2 if self.name == "exp2" else np.log
        top = f"{self.name.removesuffix('m1')}({log(largest):.1f})"
        return f"{text}, reached at {top}. Subtract the maximum first, as softmax and logsumexp do."

    def named(self, *names: str) -> bool:
        return self.name in names


def element(a: np.ndarray, index: tuple[int, ...], shape: tuple[int, ...]) -> float | None:
    """The element of an operand at an index of the result, if the op works element by element."""
    try:
        return float(np.broadcast_to(a, shape)[index])
    except ValueError:
        return None


Reason = tuple[Callable[[Case], Any], str]

ROW_OPS = ("softmax", "logsumexp", "attention", "cross_entropy")
"""Parts of the names of ops that have no result for a row of -inf."""

EDGES = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
"""Where the logarithms end."""

GROWING = ("exp", "exp2", "expm1", "sinh", "cosh", "power", "square", "cube")

VAGUE = ("overflow: ", "an invalid operation")
"""How reasons begin that the op's name and operands alone did not tell."""


def reason(table: Sequence[Reason], case: Case, compute: Callable[[], Any]) -> str:
    """Why an op or a rule gives NaN or Inf; what NumPy complains of in it, if that tells more."""
    text = next(text for when, text in table if when(case)).format(c=case)
    return text.startswith(VAGUE) and complaint(compute) or text


# ---- forward


def _opposite_infinities(c: Case) -> bool:
    return bool(c.named("subtract", "add") and np.isinf(c.a) and np.isinf(c.b))


def _empty_row(c: Case) -> bool:
    """Is a row of scores all -inf?

    The one through this element, of an operand of the result's shape.
    """
    shape = c.made.shape
    for o in c.operands:
        gone, same = np.isneginf(o), o.shape == shape
        if c.named("add", "subtract"):  # no op of rows, but row - row.max(), along any axis
            axes = [d for d, n in enumerate(shape) if n > 1] if same else []
        else:
            axis = c.settings.get("axis", 1 if "cross_entropy" in c.name else -1)
            known = isinstance(axis, int) and -o.ndim <= axis < o.ndim
            axes = [axis if known else -1] if o.ndim else []
        rows = [gone.all(axis=d, keepdims=True) for d in axes]
        if any(np.broadcast_to(row, shape)[c.at] if same else row.any() for row in rows):
            return True
    return False


def _of_rows(c: Case) -> bool:
    """This package's own attention gives zeros for such a row."""
    ours = c.named("scaled_dot_product_attention", "packed_attention", "attention_weights")
    return not ours and any(key in c.name for key in ROW_OPS)


def _no_targets(c: Case) -> bool:
    target, ignored = c.settings.get("target", 0), c.settings.get("ignore_index", -100)
    return "cross_entropy" in c.name and c.nan and bool((np.asarray(target) == ignored).all())


def _no_degrees_of_freedom(c: Case) -> bool:
    return c.operands[0].size <= c.made.size * c.settings.get("ddof", 0)


FORWARD: list[Reason] = [
    (
        lambda c: (_opposite_infinities(c) or _of_rows(c)) and _empty_row(c),
        "empty softmax row (inf - inf): every score of the row is -inf, as when every key is "
        "blocked. Leave one key open, or use F.scaled_dot_product_attention, which gives zeros for "
        "such a row.",
    ),
    (
        lambda c: c.named("divide") and c.a == c.b == 0,
        "0/0. Where both vanish, choose a value with np.where before dividing.",
    ),
    (
        lambda c: c.named("divide") and c.b == 0 or c.named("reciprocal") and c.a == 0,
        "division by zero. Add a small eps to the divisor, or exclude these elements before "
        "dividing.",
    ),
    (lambda c: c.named("divide", "reciprocal") and c.nan, "inf/inf."),
    (
        lambda c: c.named("divide", "reciprocal"),
        "overflow in a division by a very small number.",
    ),
    (
        _no_targets,
        "0/0: every target is ignore_index, so the mean is taken over no targets. Leave such a "
        "batch out, or use reduction='sum'.",
    ),
    (
        lambda c: "norm" in c.name and c.nan and c.settings.get("eps") == 0,
        "0/0: all elements of the row are equal, so their variance is 0, and eps=0 leaves nothing "
        "to divide by. Give eps, as 1e-5.",
    ),
    (
        lambda c: c.name in EDGES and c.a == EDGES[c.name],
        "{c.name} {c.a:g}. Clip the argument away from it, or compute with log_softmax "
        "instead of log(softmax).",
    ),
    (
        lambda c: c.named("log1p") and c.a < -1,
        "log1p of {c.a:.6g}, below -1.",
    ),
    (
        lambda c: c.name in EDGES and c.a < 0,
        "{c.name} of the negative number {c.a:.6g}.",
    ),
    (
        lambda c: c.named("sqrt") and c.a < 0,
        "sqrt of the negative number {c.a:.6g}, which rounding makes of a small variance, "
        "say; np.maximum(x, 0) first.",
    ),
    (
        lambda c: c.named("power") and c.a == 0,
        "0 to a negative power, a division by zero.",
    ),
    (
        lambda c: c.named("power") and c.a < 0 and c.nan,
        "the negative number {c.a:.6g} to a power that is not whole.",
    ),
    (lambda c: c.named(*GROWING) and np.isinf(c.value), "{c.overflow}"),
    (
        lambda c: c.named("multiply") and c.nan,
        "0 x inf. A masked (zero) factor does not undo an infinite one: replace it with "
        "np.where(mask, x, 0) instead of multiplying by the mask.",
    ),
    (
        lambda c: c.named("matmul", "sum", "mean", "einsum") and c.nan and c.infinite,
        "inf - inf or 0 x inf inside a sum: an operand holds infinities.",
    ),
    (
        lambda c: c.named("matmul", "sum", "mean", "einsum") and c.nan,
        "a sum over no elements.",
    ),
    (
        lambda c: c.named("var", "std") and _no_degrees_of_freedom(c),
        "no degrees of freedom: the number of elements is not larger than ddof.",
    ),
    (
        lambda c: c.named("arcsin", "arccos", "arctanh", "arccosh"),
        "{c.name} of {c.a}, at or outside the edge of its domain.",
    ),
    (
        lambda c: np.isinf(c.value),
        "overflow: the result is larger than the largest {c.made.dtype}.",
    ),
    (
        lambda c: c.infinite,
        "an invalid operation on infinities, which an operand holds.",
    ),
    (lambda c: True, "an invalid operation on finite numbers."),
]


# ---- backward


def _at_an_edge(c: Case) -> bool:
    """Is the slope infinite there?"""
    zero = c.named("sqrt", "power", "cbrt", "reciprocal", "log", "log2", "log10")
    known = {
        "hypot": c.a == c.b == 0,
        "arctan2": c.a == c.b == 0,
        "divide": c.b == 0,
        "log1p": c.a == -1,
        "arcsin": c.a in (1, -1),
        "arccos": c.a in (1, -1),
        "arccosh": c.a == 1,
    }
    return known.get(c.name, zero and c.a == 0)


def _infinite_operand(c: Case) -> bool:
    at = [c.operand(k) for k in range(len(c.operands))]
    infinite = (np.isinf(o).any() if v is None else np.isinf(v) for v, o in zip(at, c.operands))
    return not any(key in c.name for key in ROW_OPS) and any(infinite)


BACKWARD: list[Reason] = [
    (
        lambda c: c.g == 0 and (_at_an_edge(c) or c.nan),
        "0 x inf behind a mask: the incoming gradient is 0 there (np.where or a mask chose the "
        "other branch), but the slope of {c.name} is infinite, and 0 x inf is NaN. Make the "
        "argument safe first: safe = np.where(mask, x, 1); np.where(mask, f(safe), 0).",
    ),
    (
        lambda c: c.named("power") and c.number == 1 and c.a < 0,
        "the slope by an exponent is y log x, and x is the negative number {c.a:.6g} here. "
        "Keep the base positive, or detach the exponent.",
    ),
    (
        lambda c: _at_an_edge(c) and c.a and not c.named("divide"),
        "{c.name} {c.a:g} in the backward pass: its slope is infinite there. Keep the "
        "argument away from it, as np.clip does.",
    ),
    (
        _at_an_edge,
        "{c.name} 0 in the backward pass: its slope is infinite there. Add a small eps "
        "inside, as in sqrt(x + eps).",
    ),
    (
        lambda c: _of_rows(c) and _empty_row(c),
        "empty softmax row: every score of the row is -inf, so there are no weights to "
        "differentiate.",
    ),
    (
        _infinite_operand,
        "an operand is infinite, and the slope infinite or no number. Replace what is infinite "
        "with np.where before the op.",
    ),
    (
        lambda c: np.isinf(c.value),
        "overflow: the slope times the incoming gradient is too large; lower the learning rate, "
        "scale the loss, or normalise.",
    ),
    (lambda c: True, "an invalid operation in the rule."),
]


def complaint(compute: Callable[[], Any]) -> str:
    """What NumPy complains of while it computes this, in words."""
    heard: list[str] = []
    hear = lambda kind, _: heard.append(kind)
    try:
        with np.errstate(all="call", under="ignore"), np.errstate(call=hear):
            compute()
    except Exception:
        return ""
    words = {
        "divide by zero": (
            "a division by zero (or log 0) inside it. Add a small eps to the divisor, or choose "
            "a safe value with np.where before dividing."
        ),
        "invalid value": "0/0, inf - inf, 0 x inf, or a root or logarithm of a negative number "
        "inside it.",
        "overflow": (
            "overflow inside it: numbers too large are multiplied or added there; scale the "
            "loss, or normalise."
        ),
    }
    # What came first is the cause of the rest.
    return next((words[kind] for kind in heard if kind in words), "")
