"""A function whose gradient can be had two ways: by the rules, and by moving its inputs a little.

Central differences, (F(x + h) - F(x - h)) / 2h, are right to about h^2 and are limited below by rounding, about 1e-16 |F| / h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..engine import Variable
from ..engine.autograd import enable_grad, grad
from ..messages.errors import describe
from ..engine import watching
from .trace import Trace


class How(NamedTuple):
    """How gradients are measured and judged."""

    eps: float
    atol: float
    rtol: float
    fast: bool  # any input in two random projections
    rng: np.random.Generator


class Problem:
    """`y_0, y_1, ... = call()`, depending on the current values of `inputs`, and cotangents that weigh the results."""

    spoiled = False  # did a rule write into the incoming gradient?

    def __init__(
        self,
        call: Callable[[], Any],
        inputs: Sequence[Any],
        names: Sequence[str],
        rng: np.random.Generator,
    ) -> None:
        self.call, self.inputs, self.names = call, list(inputs), list(names)
        self.infinite: list[
            np.ndarray
        ] = []  # for each result where it is left out; empty if nowhere
        first = self.values()
        self.cotangents = [rng.standard_normal(y.shape) for y in first]
        if any(np.isinf(y).any() for y in first):
            self._leave_out(first)

    def _leave_out(self, first: list[np.ndarray]) -> None:
        """Results that stay infinite when the inputs move, such as blocked scores, have no slope: zeros take their place.

        Not if the gradient is no finite number then, for then it is the function that overflows.
        """
        moved = self.nearby(1e-6)
        self.infinite = [np.isinf(y) & (y == z) for y, z in zip(first, moved)] if moved else []
        try:
            overflows = any(g is not None and not np.isfinite(g).all() for g in self.gradients())
        except Exception:  # which will be told when it counts
            overflows = False
        if overflows or not any(at.any() for at in self.infinite):
            self.infinite = []

    def all_outputs(self) -> list[Any]:
        """The results that are differentiable Tensors."""
        found = self.call()
        tensors = [
            t for t in leaves(found) if isinstance(t, Variable) and t._data.dtype.kind == "f"
        ]
        if not tensors:
            raise TypeError(
                f"the function must return a floating-point Tensor, or a tuple with some, but it returned {describe(found)}. "
                "Compute with tensor methods or np.* functions, which keep the graph; .numpy(), .item() and .data leave it."
            )
        return tensors

    def outputs(self) -> list[Any]:
        """The same, with zeros for what is left out."""
        tensors = self.all_outputs()
        if len(self.infinite) != len(tensors):
            return tensors
        return [
            ops.where(at, 0.0, t) if at.any() and at.shape == t.shape else t
            for at, t in zip(self.infinite, tensors)
        ]

    def values(self) -> list[np.ndarray]:
        """The results as arrays."""
        with (
            enable_grad(),
            np.errstate(all="ignore"),
        ):  # recorded, for a function may itself ask for a gradient
            return [np.array(t._data) for t in self.outputs()]

    def traced(self) -> tuple[list[Any], Trace]:
        """The results, recorded, and every op that ran."""
        with enable_grad(), watching(Trace()) as trace, np.errstate(all="ignore"):
            return self.outputs(), trace

    def gradients(
        self, outputs: list[Any] | None = None, cotangents: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray | None]:
        """By the rules: d(sum of cotangent * output) / d(input), None where no path leads there."""
        with enable_grad(), np.errstate(all="ignore"):
            outputs = self.outputs() if outputs is None else outputs
            given = [np.array(c) for c in (self.cotangents if cotangents is None else cotangents)]
            pairs = [(t, c, c.copy()) for t, c in zip(outputs, given) if t._tracked]
            if not pairs:
                return [None] * len(self.inputs)
            found = grad(
                [t for t, _, _ in pairs],
                self.inputs,
                [c for _, c, _ in pairs],
                retain_graph=True,
                allow_unused=True,
            )
            self.spoiled = any(not np.array_equal(c, before) for _, c, before in pairs)
        return [None if g is None else np.array(g._data) for g in found]

    def shaken(self, gradients: Sequence[np.ndarray | None]) -> list[float]:
        """How much each gradient changes where inputs and cotangents change in their last digits: so much of it is rounding."""
        rng, most = np.random.default_rng(6), [0.0] * len(gradients)
        last_digits = lambda x: scaled(
            x, 1 + rng.choice([-4.0, 4.0], x.shape) * np.finfo(np.float64).eps
        )
        for _ in range(3):
            with suppress(Exception), values_put_back(self.inputs):  # f may mind its domain
                for x in self.inputs:
                    x._data = last_digits(x._data)
                now = self.gradients(cotangents=[last_digits(c) for c in self.cotangents])
                with np.errstate(all="ignore"):
                    pairs = zip(most, gradients, now)
                    most = [
                        m if a is None or b is None else max(m, np.abs(a - b).max(initial=0))
                        for m, a, b in pairs
                    ]
        return most

    # ---- by moving the inputs

    def moved(self, which: int, step: np.ndarray) -> list[np.ndarray]:
        """The results with one input a step away; NaN if the function does not accept it there, for it may mind its domain."""
        x = self.inputs[which]
        return self._with_values([x], [x._data + step]) or [
            np.full(c.shape, np.nan) for c in self.cotangents
        ]

    def _with_values(
        self, tensors: Sequence[Any], values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """The results where these tensors have these values; none if the function does not accept them, or gives other shapes."""
        found = list[np.ndarray]()
        with suppress(Exception), values_put_back(tensors):
            for t, value in zip(tensors, values):
                t._data = value
            found = self.values()
        return found if [y.shape for y in found] == [c.shape for c in self.cotangents] else []

    def along(self, which: int, direction: np.ndarray, eps: float) -> list[np.ndarray]:
        """For each result, its change for each unit of step along a direction of one input."""
        above, below = self.moved(which, eps * direction), self.moved(which, -eps * direction)
        with np.errstate(all="ignore"):
            return [(a - b) / (2 * eps) for a, b in zip(above, below)]

    def slope(self, which: int, direction: np.ndarray, eps: float) -> float:
        """The change of the weighted sum of all results for each unit of step along a direction."""
        return float(
            sum(np.sum(c * d) for c, d in zip(self.cotangents, self.along(which, direction, eps)))
        )

    def element(self, which: int, flat: int, eps: float) -> float:
        """The numeric derivative by one element."""
        return self.slope(which, self.unit(which, flat), eps)

    def noise_of(self, which: int, flat: int, eps: float) -> float:
        """What rounding may make of the difference by one element, judged by the results that move with it."""
        moving = self.along(which, self.unit(which, flat), eps)
        return (
            2e-8
            * float(
                sum(
                    np.sum(np.abs(c * y)[d != 0])
                    for c, y, d in zip(self.cotangents, self.values(), moving)
                )
            )
            * (1e-6 / eps)
        )

    def sides(self, which: int, flat: int, eps: float) -> tuple[float, float]:
        """The slopes to the left and to the right of one element."""
        middle, unit = self.values(), eps * self.unit(which, flat)
        left, right = (
            sign
            * float(
                sum(
                    np.sum(c * (a - b))
                    for c, a, b in zip(self.cotangents, self.moved(which, sign * unit), middle)
                )
            )
            for sign in (-1, 1)
        )
        return left / eps, right / eps

    def unit(self, which: int, flat: int) -> np.ndarray:
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def numeric(self, which: int, eps: float, flats: Sequence[int] | None = None) -> np.ndarray:
        """The numeric derivative by each element, or by the listed ones (NaN elsewhere; Inf where there is none)."""
        found = np.full(self.inputs[which].shape, np.nan)
        for flat in range(found.size) if flats is None else flats:
            slope = self.element(which, flat, eps)
            found.flat[flat] = np.inf if np.isnan(slope) else slope
        return found

    def culprit(
        self, which: int, flats: np.ndarray, signs: np.ndarray, analytic: np.ndarray, eps: float
    ) -> int:
        """Of these elements one whose gradient is off, found by following the half whose projection is off more: log2(n) looks for n."""
        while len(flats) > 1:
            flats = max(
                np.array_split(flats, 2),
                key=lambda half: self.projected(which, half, signs, analytic, eps)[2],
            )
        return int(flats[0])

    def projected(
        self, which: int, flats: np.ndarray, signs: np.ndarray, analytic: np.ndarray, eps: float
    ) -> tuple[float, float, float]:
        """The slope when these elements move together, each by its sign; what the gradient says; the error, Inf outside the domain."""
        direction = np.zeros(analytic.shape)
        direction.flat[flats] = signs[flats]
        n, a = self.slope(which, direction, eps), float(np.sum(signs[flats] * analytic.flat[flats]))
        return n, a, np.inf if np.isnan(n - a) else abs(n - a)

    def jacobian(self, which: int, eps: float) -> np.ndarray:
        """d(all results, flattened) / d(one input, flattened), by moving."""
        columns = [
            np.concatenate([d.ravel() for d in self.along(which, self.unit(which, i), eps)])
            for i in range(self.inputs[which].size)
        ]
        return np.stack(columns, axis=1)

    def jacobian_by_rules(self, which: int) -> np.ndarray:
        """The same matrix, a row at a time, by the rules."""
        outputs, rows = self.traced()[0], []
        for k, y in enumerate(outputs):
            for o in range(y.size):
                cotangents = [np.zeros(t.shape) for t in outputs]
                cotangents[k].flat[o] = 1
                g = self.gradients(outputs, cotangents)[which]
                rows.append(np.zeros(self.inputs[which].size) if g is None else g.ravel())
        return np.stack(rows)

    def nearby(self, eps: float) -> list[np.ndarray]:
        """The results a random step away from all inputs; none if the function does not accept it there."""
        rng = np.random.default_rng(4)
        return self._with_values(
            self.inputs, [x._data + eps * rng.uniform(0.5, 1, x.shape) for x in self.inputs]
        )

    def noise(self, eps: float) -> float:
        """What rounding alone may make of a central difference; differences below it mean nothing.

        Results that stand still when the inputs move, such as the -1e9 of a mask, cancel exactly and count for 1 at most.
        """
        still = self.values()
        moved = self.nearby(eps) or [y + 1 for y in still]  # if there are none, every result counts
        finite = (np.nan_to_num(y, posinf=0, neginf=0) for y in still)
        sizes = (
            np.abs(c * np.where(y == z, np.clip(y, -1, 1), y))
            for c, y, z in zip(self.cotangents, finite, moved)
        )
        return 2e-8 * float(sum(np.sum(size) for size in sizes)) * (1e-6 / eps)


def leaves(nested: Any) -> list[Any]:
    """What lies in tuples, lists and dicts, however deep, such as the (y, (h, c)) of an LSTM."""
    if not isinstance(nested, (dict, tuple, list)):
        return [nested]
    return [
        leaf
        for part in (nested.values() if isinstance(nested, dict) else nested)
        for leaf in leaves(part)
    ]


def scaled(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Each element times its factor; zeros, which that would leave where they are, by as much as a one."""
    return np.where(x == 0, by - 1, x * by)


@contextmanager
def values_put_back(tensors: Sequence[Any]) -> Iterator[None]:
    """Whatever arrays the block gives to the tensors, afterwards they have their own again."""
    before = [(t, t._data) for t in tensors]
    try:
        yield
    finally:
        for t, data in before:
            t._data = data


@contextmanager
def private_values(tensors: Sequence[Any]) -> Iterator[None]:
    """Give the tensors copies of their values to be moved about, tracked; afterwards everything is as it was."""
    before = [(t, t._data, t._tracked) for t in tensors]
    try:
        for t in tensors:
            t._data, t._tracked = t._data.copy(), True
        yield
    finally:
        for t, data, tracked in before:
            t._data, t._tracked = data, tracked
