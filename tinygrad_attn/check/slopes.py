"""Measure slopes of a function by finite differences, and compare its gradients with them.

The central difference (F(x + h) - F(x - h)) / 2h has an error of about h^2, and rounding adds about
1e-16 |F| / h. Where the difference disagrees with the gradient, Ridders' extrapolation shrinks h
and estimates the slope and its error. A gradient is wrong if it differs from the slope by more than
this error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from .report import Entry, greatest
from .trace import Array, nested

ROUNDING = 2.0**-52
SMALL = 512
"""Larger inputs are split into this many groups, and one random projection measures each group."""


class Limits(NamedTuple):
    """Settings for measuring a gradient and judging it."""

    eps: float
    atol: float
    rtol: float
    groups: int
    exact: bool = True  # whether rounding at the step eps is small compared with the gradient


STRICT = Limits(1e-6, 1e-6, 1e-4, 96)
"""Limits for a single op, whose error has no contribution from other ops."""


class Program:
    """A function of tensors whose gradients are checked.

    Its methods change the values of the tensors in place and restore them.
    """

    def __init__(self, call: Any, tensors: dict[str, Any], backend: Any, rng: Any) -> None:
        self.call, self.names, self.tensors = call, list(tensors), list(tensors.values())
        self.backend, self.rng = backend, rng
        self.inputs = [backend.value(t).copy() for t in self.tensors]
        self.given = [x.copy() for x in self.inputs]  # f may write into its inputs
        with self.at(self.inputs):
            self.outputs = self.run()
        self.values = [np.array(backend.value(t)) for t in self.outputs]
        self.cotangents = [random_like(y, rng) for y in self.values]
        for c, y in zip(self.cotangents, self.values):
            c[np.isinf(y)] = 0  # infinite outputs, such as blocked scores, have no slope

    def run(self) -> list[Any]:
        """Run the function, and return its floating-point tensors."""
        found, backend = self.call(), self.backend
        tensors = [
            t for t in nested(found) if isinstance(t, backend.kind) and backend.dtype(t).kind == "f"
        ]
        if not tensors:
            text = "the function must return a floating-point tensor, or a tuple with one, not "
            raise TypeError(f"{text}{describe(found)}. Do not leave the graph with .numpy().")
        return tensors

    @contextmanager
    def at(self, inputs: Sequence[Array]) -> Iterator[None]:
        """Give the inputs other values inside the block."""
        before = self.inputs
        try:
            self._put(inputs)
            yield
        finally:
            self._put(before)

    def _put(self, inputs: Sequence[Array]) -> None:
        self.inputs = list(inputs)
        for t, x in zip(self.tensors, inputs):
            self.backend.put(t, x)

    def gradient(self, outputs: list[Any], cotangents: Sequence[Any], **options: Any) -> list[Any]:
        """Run a backward pass from these outputs, and return the gradients as tensors."""
        wants = self.backend.wants_gradient
        pairs = [(t, c) for t, c in zip(outputs, cotangents) if wants(t)]
        if not pairs:
            return [None] * len(self.tensors)
        tensors, seeds = map(list, zip(*pairs))
        return list(self.backend.vjp(tensors, self.tensors, seeds, **options))

    def pull(self, cotangents: Sequence[Array], outputs: Any = None) -> list[Array | None]:
        """Return the gradients as arrays, from these outputs or from those of a new call."""
        seeds = [c.copy(order="K") for c in cotangents]  # a VJP may write into them
        return self.arrays(self.gradient(outputs or self.run(), seeds))

    def arrays(self, tensors: Sequence[Any]) -> list[Array | None]:
        return [None if t is None else np.array(self.backend.value(t), float) for t in tensors]

    def traced(self) -> list[Any]:
        """Run the function, and return a list of the ops that run."""
        with self.backend.watch() as trace:
            self.run()
        return trace.steps

    # ---- slopes; results are flattened and concatenated

    def moved(self, which: int, step: Any) -> Array:
        """Return the results with one input moved by a step, or NaN if the function rejects it."""
        size = sum(c.size for c in self.cotangents)
        inputs = [x + step if k == which else x for k, x in enumerate(self.inputs)]
        with suppress(Exception), self.at(inputs):
            found = flatten([self.backend.value(t) for t in self.run()])
            if found.size == size:
                return found
        return np.full(size, np.nan)

    def total(self, values: Array, norm: Callable[[Array], Any] = np.sum) -> float:
        """Return the sum of cotangent * value, or another norm of these products."""
        c = flatten(self.cotangents)
        return float(norm(np.where(c == 0, 0, c * values)))

    def sides(self, which: int, direction: Array, h: float) -> tuple[Array, Array, Array]:
        """Return the results on both sides along a direction, and their central differences."""
        above, below = self.moved(which, h * direction), self.moved(which, -h * direction)
        slope = np.where(above == below, 0, above - below) / (2 * h)  # infinite results too
        return above, below, slope

    def derivative(self, which: int, direction: Array) -> tuple[Array, Array]:
        """Return the slope of each result by Ridders' extrapolation to step 0, and its error.

        The error is infinite where the slopes to the left and to the right differ at every step.
        The slope is NaN where the left or the right slope does not exist.

        Source: C. J. F. Ridders, Accurate computation of F'(x) and F'(x) F''(x), Advances in
        Engineering Software 4 (1982).
        """
        sizes = np.abs(self.inputs[which])
        known = sizes[np.isfinite(sizes) & (sizes > 0)]
        typical = float(np.median(known)) if known.size else 1.0
        own = greatest(sizes * (direction != 0)) or typical
        h = 2.0 ** np.floor(np.log2(0.2 * max(own, typical, 1e-3)))  # keeps x + h exact
        last, middle = list[Array](), self.moved(which, 0)
        best, error, score, bend = (np.full(middle.shape, v) for v in (np.nan, *3 * [np.inf]))
        d = curve = rough = middle * np.nan
        moves = np.zeros(middle.shape, bool)
        while h > min(1e-9 * min(own, typical), 1e-3):
            before, (above, below, d) = d, self.sides(which, direction, h)
            # If F is smooth, `curve` is 16 times smaller at each step. The rest is rounding.
            curve, former = above - 2 * middle + below, curve
            last_rough, rough = rough, np.abs(curve - former / 16)
            noise = np.fmax(rough, last_rough / 16) / h
            bend, less = np.fmax(np.abs(curve) / (2 * h), np.abs(d - before)), bend / 2
            moves |= d != 0
            rounding = np.where(moves | ~moves.any(), ROUNDING * np.abs(middle) / h, 0)
            kink = (bend > less) & (bend > 1e-3 * np.abs(d) + 8 * rounding)
            row = [np.where(kink, np.nan, d)]
            for j, p in enumerate(last, 1):
                row.append((16**j * row[-1] - p) / (16**j - 1))
                e = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - p)) + rounding + noise
                relative = e / (np.abs(row[j]) + rounding + 1e-300)
                better, score = relative < score, np.fmin(relative, score)
                best, error = np.where(better, row[j], best), np.where(better, e, error)
            last, h = row[:6], h / 4
            if np.all(error <= np.maximum(1e-8 * greatest(np.nan_to_num(best)), 2 * rounding)):
                break
        return np.where(np.isinf(error), d, best), error

    # ---- Jacobians

    def unit(self, which: int, flat: int) -> Array:
        """Return the unit vector for one element of an input."""
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def jacobian(self, which: int) -> Array:
        """Return d(all results) / d(one flattened input), from finite differences."""
        units = (self.unit(which, flat) for flat in range(self.inputs[which].size))
        return np.stack([self.derivative(which, unit)[0] for unit in units], axis=-1)

    def jacobian_by_vjps(self, which: int) -> Array:
        """Return the same Jacobian from the VJPs, with one unit vector g at a time."""
        rows, outputs, zeros = [], self.run(), [np.zeros(c.shape) for c in self.cotangents]
        for c in zeros:
            for flat in range(c.size):
                c.flat[flat] = 1
                row = self.pull(zeros, outputs)[which]
                rows.append(np.zeros_like(self.inputs[which]) if row is None else row)
                c.flat[flat] = 0
        return np.stack(rows).reshape(len(rows), -1)


class OneOp(Program):
    """A single op on its own leaves; `args` are the values of its operands."""

    def __init__(self, step: Any, backend: Any, args: Sequence[Any] | None = None) -> None:
        value = lambda a: backend.value(a) if isinstance(a, backend.kind) else a
        self.step, self.args = step, [copy(value(a)) for a in args or step.inputs]
        self.leaves, wanted = list(self.args), {}
        for i, x in enumerate(step.inputs):
            if isinstance(x, backend.kind):
                leaf = self.leaves[i] = backend.leaf(self.args[i])
                if backend.wants_gradient(x) and backend.dtype(x) == np.float64:
                    wanted[f"operand {i}"] = leaf
        call = lambda: step.op(*self.leaves, **step.settings)
        super().__init__(call, wanted, backend, np.random.default_rng(9))


def flatten(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.ravel(a) for a in arrays])


def random_like(y: Array, rng: np.random.Generator) -> Array:
    return rng.standard_normal(y.shape)


# ---- a gradient and its slope


def entry_of(f: Program, which: int, analytic: Array | None, limits: Limits) -> Entry:
    """Check all elements of one input, or, if it is large, groups and the worst elements."""
    x = f.inputs[which]
    a = np.zeros(x.shape) if analytic is None else analytic
    entry = Entry(f.names[which], a, np.full(x.shape, np.nan), np.zeros(x.shape), analytic is None)
    size, scale = f.total(flatten(f.values), np.linalg.norm), greatest(a[np.isfinite(a)])
    atol = 1e-10 * min(1.0, size) + limits.atol * min(1.0, scale)
    exact = ROUNDING * size / limits.eps <= 1e-3 * (scale or 1.0)
    limits = limits._replace(atol=atol, exact=exact)
    large, confirmed = x.size > limits.groups, 0
    chosen = _elements_of_bad_groups(f, which, entry, limits) if large else range(x.size)
    for flat in chosen:
        unit = f.unit(which, flat)
        slope, off, allowed, excuse = measured(f, which, unit, a, limits, extrapolate=confirmed < 4)
        entry.numeric.flat[flat], entry.tolerance.flat[flat] = slope, allowed
        entry.excuse = entry.excuse or excuse
        confirmed += not off <= allowed
    return entry


def measured(
    f: Program, which: int, direction: Array, a: Array, limits: Limits, extrapolate: bool = True
) -> tuple[float, float, float, str]:
    """Return the slope, the error of the gradient, the allowed error, and an excuse or ''."""
    analytic = float(np.sum(direction * np.where(direction, a, 0)))
    slope = f.total(f.sides(which, direction, limits.eps)[2])
    off, allowed = abs(analytic - slope), limits.atol + limits.rtol * abs(slope)
    agrees = off <= allowed
    if not extrapolate or agrees and limits.exact:
        return slope, off, allowed, ""
    slopes, errors = f.derivative(which, direction)
    slope, error = f.total(slopes), f.total(errors, np.linalg.norm)  # the errors are independent
    off, allowed = abs(analytic - slope), limits.atol + limits.rtol * abs(slope)
    if np.isnan(slope):
        return np.inf, np.inf, np.inf, "domain"
    # Rounding near 1 hides a small slope, as in a sigmoid's tail; large steps show it within 20%.
    shown = lambda h: abs(f.total(f.sides(which, direction, h)[2]) - analytic) <= abs(analytic) / 5
    tiny = off <= 1e-9 * sum(map(greatest, f.cotangents))
    if off <= allowed or tiny and any(shown(10.0**k) for k in range(-5, 0)):
        return slope, off, max(allowed, off), ""
    if np.isinf(error):
        return slope, off, np.inf, "kink"
    within, large = off <= allowed + error, off > max(1e-9, greatest(a[np.isfinite(a)]) / 4)
    # The slope is too inaccurate, or the two slopes disagree.
    if within and large or agrees and not within:
        return slope, off, np.inf, "precision"
    return slope, off, allowed + error, ""


def _elements_of_bad_groups(f: Program, which: int, entry: Entry, limits: Limits) -> list[int]:
    """Check random projections of groups of elements, and return the worst of the bad groups."""
    x, culprits = f.inputs[which], set[int]()
    signs = f.rng.choice([-1.0, 1.0], x.shape)
    entry.projections, limits = limits.groups, limits._replace(rtol=1e-6)

    def compared(flats: Array, extrapolate: bool = False) -> tuple[float, float, str]:
        direction = np.zeros(x.shape)
        direction.flat[flats] = signs.flat[flats]
        return measured(f, which, direction, entry.analytic, limits, extrapolate)[1:]

    error = lambda flats: np.nan_to_num(compared(flats)[0], nan=np.inf)
    for flats in np.array_split(f.rng.permutation(x.size), limits.groups):
        off, allowed, excuse = compared(flats, extrapolate=True)
        if excuse or not off <= allowed:
            culprits.update(flats[:3].tolist())
            while len(flats) > 1:  # follow the half with the larger error
                flats = max(np.array_split(flats, 2), key=error)
            culprits.update(flats.tolist())
        if len(culprits) >= 32:
            break
    return sorted(culprits)
