"""A function whose gradient can be had two ways: by the rules, and by moving its inputs a little.

Central differences, (F(x + h) - F(x - h)) / 2h, are right to about h^2 and are limited below by
rounding, about 1e-16 |F| / h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..engine import Variable, watching
from ..engine.backward import grad
from ..messages.errors import describe
from .report import greatest
from .trace import Trace


class How(NamedTuple):
    """How gradients are measured and judged."""

    eps: float
    atol: float
    rtol: float
    groups: int  # an input of more elements is measured in so many random projections
    rng: np.random.Generator


class Problem:
    """The results of `call()`, which depend on the values of `inputs`, and cotangents to weigh
    them."""

    def __init__(
        self,
        call: Callable[[], Any],
        inputs: Sequence[Any],
        names: Sequence[str],
        rng: np.random.Generator,
    ) -> None:
        self.call, self.inputs, self.names = call, list(inputs), list(names)
        self.given = [t._data.copy() for t in inputs]  # before f may write into them
        # For each result where it is infinite whatever the inputs; empty if nothing is.
        self.infinite: list[np.ndarray] = []
        first = self.values()
        self.cotangents = [of_both_signs(rng.standard_normal(y.shape)) for y in first]
        if any(np.isinf(y).any() for y in first):
            self._leave_out(first)

    def anew(self, rng: np.random.Generator) -> Problem:
        """The same with other cotangents."""
        return Problem(self.call, self.inputs, self.names, rng)

    def _leave_out(self, first: list[np.ndarray]) -> None:
        """Zeros take the place of results that stay infinite when the inputs move, as blocked
        scores do.

        Not if the gradient is no finite number then, for then it is the function that overflows.
        """
        self.infinite = [np.isinf(y) & (y == z) for y, z in zip(first, self.nearby(1e-6))]
        overflows = False
        with suppress(Exception):  # what a rule raises is told later
            overflows = any(g is not None and not np.isfinite(g).all() for g in self.gradients())
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
                "the function must return a floating-point Tensor, or a tuple with some, but it "
                f"returned {describe(found)}. Compute with tensor methods or np.* functions, "
                "which keep the graph; .numpy(), .item() and .data leave it."
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
        return [np.array(t._data) for t in self.outputs()]

    def traced(self) -> tuple[list[Any], Trace]:
        """The results, and every op that ran."""
        with watching(Trace()) as trace:
            return self.outputs(), trace

    # ---- by the rules

    def gradients(
        self,
        outputs: list[Any] | None = None,
        cotangents: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray | None]:
        """d(sum of cotangent * output) / d(input); None where no path leads there."""
        given = [c.copy() for c in self.cotangents] if cotangents is None else cotangents
        outputs = self.outputs() if outputs is None else outputs
        pairs = [(t, c) for t, c in zip(outputs, given) if t._tracked]
        if not pairs:
            return [None] * len(self.inputs)
        tensors, seeds = zip(*pairs)
        found = grad(tensors, self.inputs, seeds, retain_graph=True, allow_unused=True)
        return [None if g is None else np.array(g._data) for g in found]

    def differing(
        self, first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None]
    ) -> str | None:
        """The name of the first input whose two gradients are not the same."""
        for name, a, b in zip(self.names, first, second):
            if a is not None and b is not None:
                atol = 1e-9 * max(1.0, greatest(a))
                if not np.allclose(a, b, 1e-6, atol, equal_nan=True):
                    return name
        return None

    def shaken(self, gradients: Sequence[np.ndarray | None]) -> list[float]:
        """How much each gradient changes with the last digits of all values: so much is
        rounding."""
        most = [0.0] * len(gradients)
        for seed in range(3):
            # A function may mind its domain.
            with suppress(Exception), values_put_back(self.inputs):
                for x in self.inputs:
                    x._data = last_digits(x._data, seed)
                now = self.gradients(cotangents=[last_digits(c, seed) for c in self.cotangents])
                for k, (a, b) in enumerate(zip(gradients, now)):
                    if a is not None and b is not None:
                        most[k] = max(most[k], greatest(a - b))
        return most

    def jacobian_by_rules(self, which: int) -> np.ndarray:
        """d(all results, flattened) / d(one input, flattened), a row at a time."""
        outputs, rows = self.outputs(), []
        for k, y in enumerate(outputs):
            for o in range(y.size):
                cotangents = [np.zeros(t.shape) for t in outputs]
                cotangents[k].flat[o] = 1
                g = self.gradients(outputs, cotangents)[which]
                rows.append(np.zeros(self.inputs[which].size) if g is None else g.ravel())
        return np.stack(rows)

    # ---- by moving the inputs

    def moved(self, which: int, step: np.ndarray) -> list[np.ndarray]:
        """The results with one input a step away; NaN if the function does not accept it there."""
        x = self.inputs[which]
        found = self._with_values([x], [x._data + step])
        return found or [np.full(c.shape, np.nan) for c in self.cotangents]

    def _with_values(
        self, tensors: Sequence[Any], values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """The results where these tensors have these values; none if the function refuses them."""
        found = list[np.ndarray]()
        with suppress(Exception), values_put_back(tensors):
            for t, value in zip(tensors, values):
                t._data = value
            found = self.values()
        # Another shape than before has no difference to take.
        return found if [y.shape for y in found] == [c.shape for c in self.cotangents] else []

    def along(self, which: int, direction: np.ndarray, eps: float) -> list[np.ndarray]:
        """For each result, its change for each unit of step along a direction of one input."""
        above, below = self.moved(which, eps * direction), self.moved(which, -eps * direction)
        return [(a - b) / (2 * eps) for a, b in zip(above, below)]

    def weighed(self, results: Sequence[np.ndarray]) -> float:
        return float(sum(np.sum(c * r) for c, r in zip(self.cotangents, results)))

    def slope(self, which: int, direction: np.ndarray, eps: float) -> float:
        """The change of the weighted sum of all results for each unit of step along a direction."""
        return self.weighed(self.along(which, direction, eps))

    def element(self, which: int, flat: int, eps: float) -> float:
        """The numeric derivative by one element."""
        return self.slope(which, self.unit(which, flat), eps)

    def unit(self, which: int, flat: int) -> np.ndarray:
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def sides(self, which: int, flat: int, eps: float) -> tuple[float, float]:
        """The slopes to the left and to the right of one element."""
        middle, unit = self.values(), eps * self.unit(which, flat)
        change = lambda sign: [
            sign * (a - b) / eps for a, b in zip(self.moved(which, sign * unit), middle)
        ]
        return self.weighed(change(-1)), self.weighed(change(1))

    def numeric(self, which: int, eps: float, flats: Sequence[int] | None = None) -> np.ndarray:
        """The derivative by each element, or by those listed: else NaN, and Inf where there is
        none."""
        found = np.full(self.inputs[which].shape, np.nan)
        for flat in range(found.size) if flats is None else flats:
            slope = self.element(which, flat, eps)
            found.flat[flat] = np.inf if np.isnan(slope) else slope
        return found

    def jacobian(self, which: int, eps: float) -> np.ndarray:
        """d(all results, flattened) / d(one input, flattened)."""
        columns = [
            np.concatenate([d.ravel() for d in self.along(which, self.unit(which, i), eps)])
            for i in range(self.inputs[which].size)
        ]
        return np.stack(columns, axis=1)

    def nearby(self, eps: float) -> list[np.ndarray]:
        """The results a random step away from all inputs; none if the function refuses it there."""
        rng = np.random.default_rng(4)
        values = [x._data + eps * rng.uniform(0.5, 1, x.shape) for x in self.inputs]
        return self._with_values(self.inputs, values)

    # ---- many elements together

    def projected(
        self, which: int, flats: np.ndarray, signs: np.ndarray, analytic: np.ndarray, eps: float
    ) -> tuple[float, float, float]:
        """Elements that move together, each by its sign: slope, what the gradient says, error."""
        direction = np.zeros(analytic.shape)
        direction.flat[flats] = signs[flats]
        n, a = self.slope(which, direction, eps), float(np.sum(signs[flats] * analytic.flat[flats]))
        return n, a, np.inf if np.isnan(n - a) else abs(n - a)

    def culprit(
        self, which: int, flats: np.ndarray, signs: np.ndarray, analytic: np.ndarray, eps: float
    ) -> int:
        """One of these elements whose gradient is off: follow the half that is off more."""
        error = lambda half: self.projected(which, half, signs, analytic, eps)[2]
        while len(flats) > 1:
            flats = max(np.array_split(flats, 2), key=error)
        return int(flats[0])

    # ---- what rounding does, and where there is no slope

    def noise(self, eps: float) -> float:
        """What rounding alone may make of a central difference; differences below it mean nothing.

        Results that stand still when the inputs move, such as the -1e9 of a mask, cancel exactly
        and count for 1 at most.
        """
        still = self.values()
        moved = self.nearby(eps) or [y + 1 for y in still]  # if there are none, every result counts
        finite = (np.nan_to_num(y, posinf=0, neginf=0) for y in still)
        sizes = (
            np.abs(c * np.where(y == z, np.clip(y, -1, 1), y))
            for c, y, z in zip(self.cotangents, finite, moved)
        )
        return rounding(sizes, eps)

    def at_kink(self, which: int, flat: int, eps: float, scale: float) -> bool:
        """Do the slopes left and right differ at every step, or grow as 1/step, as at a jump?

        Much nearer a smooth function that is steep has one slope, and rounding, which also grows as
        1/step, has no steady ratio.
        """
        sides = [self.sides(which, flat, h) for h in (eps, eps / 8, eps / 1024)]
        apart, nearer, nearest = (abs(left - right) for left, right in sides)
        steep, steeper, steepest = (max(abs(left), abs(right)) for left, right in sides)
        grows = lambda: abs(steeper / steep - 8) < 0.5 and abs(steepest / steep - 1024) < 64
        if steep > max(1e-2 * scale, self.noise(eps)) and grows():
            return True
        visible = 0.25 * apart < nearest < 300 * apart or self.noise(eps / 1024) > 0.1 * apart
        return apart > 1e-2 * scale and nearer > 0.5 * apart and visible

    def steady_step(self, which: int) -> float:
        """The first step with which the slopes do not change; without one, the usual step."""
        x = self.inputs[which]
        some = np.random.default_rng(5).permutation(x.size)[:8].tolist()
        for eps in (steps := step_sizes(x._data)):
            here, nearer = (self.numeric(which, h, some).flat[some] for h in (eps, eps / 8))
            if not np.isfinite([here, nearer]).all():
                continue
            if greatest(here - nearer) <= 1e-3 * greatest(here):
                return eps
        return steps[0]


def rounding(sizes: Any, eps: float) -> float:
    """What rounding of numbers of these sizes makes of a difference over a step."""
    return 2e-8 * float(sum(np.sum(size) for size in sizes)) * (1e-6 / eps)


def step_sizes(x: np.ndarray) -> list[float]:
    """The step that mostly suits; one for steep bends; one in units of the values."""
    finite = np.abs(x[np.isfinite(x)])
    size = float(finite.mean()) if finite.any() else 1.0
    usual = 1e-6 * float(np.clip(size, 1, 1e3))
    return [usual, 1e-3 * usual, 1e-6 * size]


def of_both_signs(c: np.ndarray) -> np.ndarray:
    """Cotangents of one sign would hide that a rule takes their size."""
    if c.size > 1 and (np.sign(c) == np.sign(c.flat[0])).all():
        c.flat[0] *= -1
    return c


def leaves(nested: Any) -> list[Any]:
    """What lies in tuples, lists and dicts, however deep, such as the (y, (h, c)) of an LSTM."""
    if not isinstance(nested, (dict, tuple, list)):
        return [nested]
    parts = nested.values() if isinstance(nested, dict) else nested
    return [leaf for part in parts for leaf in leaves(part)]


def scaled(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Each element times its factor; a zero, which no factor moves, by as much as a one."""
    return np.where(x == 0, by - 1, x * by)


def last_digits(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """The same up to rounding."""
    signs = np.random.default_rng([6, seed]).choice([-1.0, 1.0], np.shape(x))
    return scaled(x, 1 + 4 * np.finfo(np.float64).eps * signs)


@contextmanager
def values_put_back(tensors: Sequence[Any]) -> Iterator[None]:
    """Whatever the block makes of the tensors, afterwards they are what they were."""
    before = [(t, t._data, t._tracked) for t in tensors]
    try:
        yield
    finally:
        for t, data, tracked in before:
            t._data, t._tracked = data, tracked
