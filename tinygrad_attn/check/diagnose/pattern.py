"""One wrong gradient beside its slope, and the arithmetic that compares the two."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..judging import SMALL, Trial
from ..measuring import values_put_back
from ..report import greatest
from .forward_text import ForwardText
from .suspects import Suspect

Found = dict[str, Any] | None
"""What an explanation's test answers: what its text needs to know, or None."""

FIT = 2e-4
"""Relative residual up to which two patterns count as the same."""


@dataclass
class Pattern:
    """One wrong gradient, and means to ask further."""

    a: np.ndarray  # the gradient by the rules
    n: np.ndarray  # the slope, by central differences
    x: np.ndarray
    g: Any  # cotangent, an array where there is one result; else None
    y: Any  # that result
    tolerance: float  # errors up to here mean nothing
    # Of a large input: the indices of the elements that a, n and x list.  None: all elements.
    at: list[tuple[int, ...]] | None
    trial: Trial  # the function, and by which input it is differentiated
    h: float  # the step with which it is measured

    @property
    def suspect(self) -> Any:
        """The op whose own rule gave `a`, where it can be asked again."""
        return self.trial if isinstance(self.trial, Suspect) else None

    @cached_property
    def text(self) -> Any:
        """The forward text; None where it leaves the graph, as with math.erf or out=."""
        with suppress(Exception):
            text = ForwardText(self.suspect)
            return text if same(self.n, text.grads[text.x]) else None
        return None

    @cached_property
    def jacobians(self) -> tuple[np.ndarray, np.ndarray] | None:
        """By the rules and by moving the input, (result, input) flattened; None for large ones."""
        problem, which = self.trial.problem, self.trial.which
        results = sum(c.size for c in problem.cotangents)
        if self.at is not None or self.x.size > SMALL or results > 4 * SMALL:
            return None
        return problem.jacobian_by_rules(which), problem.jacobian(which, self.h)

    @cached_property
    def elsewhere(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(a, n) at fresh values of the input, since few elements may look proportional by
        accident."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        if self.at is not None or self.x.size > SMALL:
            return found
        problem, which, x = self.trial.problem, self.trial.which, self.trial.x
        rng = np.random.default_rng(1)
        with suppress(Exception), values_put_back([x]):  # the function may mind its domain
            for _ in range(3 if x.size < 8 else 1):
                x._data = self.x * (1 + 0.05 * rng.uniform(-1, 1, x.shape))
                g = problem.gradients()[which]
                a = np.zeros(x.shape) if g is None else g
                found.append((a, problem.numeric(which, self.h)))
        return found

    def offers(self, need: str) -> bool:
        """Is what an explanation needs at hand?"""
        return {
            "neighbours": lambda: self.at is None,
            "rule": lambda: self.suspect is not None,
            "text": lambda: self.text is not None,
            "result": lambda: self.g is not None,
            "like x": lambda: self.g is not None and self.g.shape == self.a.shape,
            "jacobians": lambda: self.jacobians is not None,
        }[need]()

    def fits(self, other: Any) -> bool:
        """Do the rules give this, to the smallest element?"""
        return other is not None and alike(self.a, other, self.tolerance)

    def right(self, answer: Any) -> bool:
        """Is this answer of the rule's the slope?"""
        return answer is not None and alike(answer, self.n, self.tolerance)

    def factor(self, wrong: np.ndarray, right: np.ndarray) -> float | None:
        return fit_factor(wrong, right, self.tolerance)

    @cached_property
    def off(self) -> np.ndarray:
        """Where rule and slope differ by more than may be."""
        return apart(self.a, self.n, self.tolerance)

    @cached_property
    def per_result(self) -> np.ndarray:
        """What each element of the result contributes to the slope: (result, input), flattened."""
        return self.jacobians[1] * self.g.reshape(-1, 1)  # type: ignore

    @property
    def everywhere(self) -> str:
        return "everywhere" if self.at is None else f"at all {self.measured} that were measured"

    @property
    def measured(self) -> str:
        return "elements" if self.at is None else f"{len(self.at)} elements"

    @property
    def rest(self) -> str:
        """The elements that are not spoken of."""
        return (
            "the others"
            if self.at is None
            else f"the others of the {self.measured} that were measured"
        )

    def where(self, mask: np.ndarray) -> str:
        """The elements of a mask in words."""
        if self.at is None and (words := region(mask)) is not None:
            return words
        found = np.argwhere(mask) if self.at is None else np.array(self.at)[mask]
        listed = list(map(tuple, found.tolist()))
        flat = all(len(index) == 1 for index in listed)
        told = numbers([index[0] for index in listed]) if flat else numbers(listed, 4)
        return told + self._branch(mask)

    def _branch(self, mask: np.ndarray) -> str:
        """The condition of a branch that these elements have in common, and the others not."""
        if min(mask.sum(), (~mask).sum()) < 3:
            return ""
        for name, v in (("x", self.x), ("|x|", np.abs(self.x))):
            for sign, low, high in (("<", v[mask], v[~mask]), (">", v[~mask], v[mask])):
                if low.max() < high.min():
                    between = 0.0 if low.max() <= 0 <= high.min() else (low.max() + high.min()) / 2
                    return f" (where {name} {sign} {between:.2g})"
        return ""


def same(p: np.ndarray, q: np.ndarray) -> bool:
    """Equal to FIT of the larger norm."""
    if p.shape != q.shape or not (np.isfinite(p).all() and np.isfinite(q).all()):
        return False
    return bool(np.linalg.norm(p - q) <= FIT * max(np.linalg.norm(p), np.linalg.norm(q)))


def apart(p: np.ndarray, q: np.ndarray, tolerance: Any = 0.0) -> np.ndarray:
    """Where the two differ.

    A small element is judged by its own size, as the check itself does: beside a large one any
    number would pass.
    """
    size = greatest(q)
    allowed = np.minimum(FIT * size, 1e-3 * np.abs(q) + 1e-5 * min(1, size))
    return np.abs(p - q) > allowed + tolerance


def alike(p: np.ndarray, q: np.ndarray, tolerance: Any = 0.0) -> bool:
    """The same, and no element apart."""
    return same(p, q) and not apart(p, q, tolerance).any()


def nearest(v: np.ndarray, of: np.ndarray) -> float:
    """The c with which `c * of` comes nearest to v."""
    return float(np.sum(v * of) / np.sum(of * of)) if of.any() else 0.0


def fit_factor(v: np.ndarray, of: np.ndarray, tolerance: Any) -> float | None:
    """c with v = c of, also at the small elements, if there is one that is not 0."""
    c = nearest(v, of)
    return c if c and alike(v, c * of, abs(c) * tolerance) else None


def even(v: np.ndarray, within: float = FIT) -> bool:
    """One number everywhere?"""
    return bool(np.ptp(v) <= within * np.abs(v).max())


def depends(matrix: np.ndarray) -> np.ndarray:
    """Which entries of a Jacobian are not zero."""
    return np.abs(matrix) > 1e-6 * np.abs(matrix).max()


def mixed_axes(matrix: np.ndarray, shape: tuple[int, ...]) -> set[int]:
    """Along which axes do results depend on other elements than their own?"""
    results, inputs = np.nonzero(depends(matrix))
    differ = np.array(np.unravel_index(results, shape)) != np.array(np.unravel_index(inputs, shape))
    return {axis for axis in range(len(shape)) if differ[axis].any()}


# ---- words for numbers and places


def listed(axes: Any) -> str:
    """`0, 2` for a set of axes."""
    return ", ".join(map(str, sorted(axes)))


def numbers(which: Any, most: int = 6) -> str:
    """`indices 1, 4, ...`, of which at most so many are told."""
    some = ", ".join(map(str, which[:most])) + (", ..." if len(which) > most else "")
    return f"{'index' if len(which) == 1 else 'indices'} {some}"


def times(c: float) -> str:
    """A factor that comes on top of something else."""
    return "" if abs(c - 1) < 1e-3 else f" (and is {c:.6g} times what it should be besides)"


def region(mask: np.ndarray) -> str | None:
    """Words for a set of elements that is a band across one axis, a triangle or the diagonal."""
    for axis in range(mask.ndim if mask.ndim > 1 else 0):
        others = tuple(k for k in range(mask.ndim) if k != axis)
        some, every = np.asarray(mask.any(axis=others)), np.asarray(mask.all(axis=others))
        if np.array_equal(some, every) and 0 < some.sum() < len(some):
            return f"{numbers(np.flatnonzero(some))} along axis {axis}"
    if mask.ndim != 2 or len(mask) < 3:  # a triangle of 2 x 2 is a single element
        return None
    lower = np.tri(len(mask), dtype=bool)
    regions = {
        "the diagonal": [lower & lower.T],
        "the upper triangle": [lower.T, ~lower],
        "the lower triangle": [lower, ~lower.T],
    }
    hits = (w for w, masks in regions.items() if any(np.array_equal(mask, m) for m in masks))
    return next(hits, None)
