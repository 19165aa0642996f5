"""Slopes of a function by finite differences, and gradients beside them.

The central difference (F(x + h) - F(x - h)) / 2h is right to about h^2, and rounding adds about
1e-16 |F| / h. Where it disagrees with the gradient, Ridders' extrapolation shrinks h and gives the
slope together with its error. A gradient is wrong if it is off by more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from .report import Entry, greatest
from .trace import Array, nested

ROUNDING = 2.0**-52
SMALL = 512
"""Inputs of more elements are measured in this many groups, a random projection of each."""


class Limits(NamedTuple):
    """How a gradient is measured and judged."""

    eps: float
    atol: float
    rtol: float
    groups: int


STRICT = Limits(1e-6, 1e-6, 1e-4, 96)
"""For a single op: no error of other ops adds to its own."""


class Program:
    """A function of tensors with gradients that are to be checked.

    The values of the tensors are moved in place and put back.
    """

    def __init__(
        self, call: Callable[[], Any], tensors: Sequence[Any], names: Sequence[str], backend: Any,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.call, self.tensors, self.names = call, list(tensors), list(names)
        self.backend, self.rng = backend, rng
        self.inputs = [backend.value(t).copy() for t in tensors]
        self.given = [x.copy() for x in self.inputs]  # f may write into its inputs
        for t, x in zip(self.tensors, self.inputs):
            backend.put(t, x)
        self.values = [np.array(backend.value(t)) for t in self.run()]
        self.cotangents = [of_both_signs(rng.standard_normal(y.shape)) for y in self.values]
        self.infinite = [np.isinf(y) for y in self.values]
        for c, infinite in zip(self.cotangents, self.infinite):
            c[infinite] = 0  # what stays infinite, such as blocked scores, has no slope

    def run(self) -> list[Any]:
        """The differentiable tensors that the function returns."""
        found, backend = self.call(), self.backend
        tensors = [t for t in nested(found) if isinstance(t, backend.kind)]
        tensors = [t for t in tensors if backend.dtype(t).kind == "f"]
        if not tensors:
            raise TypeError(
                "the function must return a floating-point tensor, or a tuple with some, but it "
                f"returned {describe(found)}. {backend.returns(found)}"
            )
        return tensors

    @contextmanager
    def at(self, inputs: Sequence[Array]) -> Iterator[None]:
        """Other values of the inputs inside the block."""
        before = self.inputs
        moved = [k for k, (a, b) in enumerate(zip(before, inputs)) if a is not b]
        self.inputs = [b.copy() if a is not b else a for a, b in zip(before, inputs)]
        try:
            for k in moved:
                self.backend.put(self.tensors[k], self.inputs[k])
            yield
        finally:
            self.inputs = before
            for k in moved:
                self.backend.put(self.tensors[k], before[k])

    def pull(
        self, cotangents: Sequence[Array], outputs: list[Any] | None = None
    ) -> list[Array | None]:
        """The gradients by a backward pass, from these outputs or from those of another call."""
        found = self.gradient(self.run() if outputs is None else outputs, cotangents)
        value = lambda g: np.array(self.backend.value(g), dtype=np.float64)
        return [None if g is None else value(g) for g in found]

    def gradient(self, outputs: list[Any], cotangents: Sequence[Any], **options: Any) -> list[Any]:
        """The gradients as tensors."""
        wants = self.backend.wants_gradient
        pairs = [(t, c) for t, c in zip(outputs, cotangents) if wants(t)]
        if not pairs:
            return [None] * len(self.tensors)
        tensors, given = zip(*pairs)
        seeds = [c.copy() if isinstance(c, Array) else c for c in given]
        return list(self.backend.vjp(list(tensors), self.tensors, seeds, **options))

    def traced(self) -> tuple[list[Any], list[Any]]:
        """The outputs, and every op that ran."""
        with self.backend.watch() as trace:
            outputs = self.run()
        return outputs, trace.steps

    # ---- slopes; results are flattened and joined

    def moved(self, which: int, step: Array) -> Array:
        """The results with one input a step away; NaN where the function does not accept it."""
        size = sum(c.size for c in self.cotangents)
        inputs = [x + step if k == which else x for k, x in enumerate(self.inputs)]
        with suppress(Exception), self.at(inputs):
            found = flatten([np.array(self.backend.value(t)) for t in self.run()])
            if found.size == size:
                return found
        return np.full(size, np.nan)

    def difference(self, which: int, direction: Array, h: float) -> tuple[Array, Array]:
        """The central difference of each result along a direction, and the rounding in it."""
        above, below = self.moved(which, h * direction), self.moved(which, -h * direction)
        same = above == below  # infinite results too
        return np.where(same, 0, above - below) / (2 * h), ROUNDING * np.abs(above) / h

    def total(self, values: Array, norm: Callable[[Array], Any] = np.sum) -> float:
        """The sum of cotangent * value, or another norm of these."""
        c = flatten(self.cotangents)
        return float(norm(np.where(c == 0, 0, c * values)))

    def slope(self, which: int, direction: Array) -> tuple[float, float]:
        """The slope of sum(cotangent * result) along a direction by extrapolation, its error."""
        slopes, errors = self.derivative(which, direction)
        return self.total(slopes), self.total(errors, np.linalg.norm)  # independent errors

    def typical(self, which: int) -> float:
        """The median size of an input's elements, from which steps are taken."""
        sizes = np.abs(self.inputs[which])
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        return float(np.median(sizes)) if sizes.size else 1.0

    def derivative(self, which: int, direction: Array) -> tuple[Array, Array]:
        """The slope of each result by extrapolation, and its error.

        The first step is a tenth of the elements that move; where that is too small to change the
        results, a tenth of the typical element.
        """
        typical = self.typical(which)
        own = greatest(self.inputs[which] * (direction != 0)) or typical
        best, error = self.ridders(which, direction, own)
        if own != typical and not np.sum(error) < 1e-3 * np.sum(np.abs(best)):
            other, its_error = self.ridders(which, direction, typical)
            better = its_error < error
            best, error = np.where(better, other, best), np.where(better, its_error, error)
        return best, error

    def ridders(self, which: int, direction: Array, size: float) -> tuple[Array, Array]:
        """Central differences at shrinking steps, extrapolated to step 0, and their errors.

        Source: C. J. F. Ridders, Accurate computation of F'(x) and F'(x) F''(x), Advances in
        Engineering Software 4 (1982).
        """
        h, last = 0.1 * size / (greatest(direction) or 1.0), list[Array]()
        best: Any = np.nan
        error: Any = np.inf
        moves: Any = False
        done: Any = False
        for k in range(14):
            d, rounding = self.difference(which, direction, h)
            moves |= d != 0
            done |= moves & (d == 0) & (k > 5)  # h is too small to move what larger steps moved
            row, nearest = [d], np.full(d.shape, np.inf)
            for j, p in enumerate(last, 1):
                row.append((16**j * row[-1] - p) / (16**j - 1))
                e = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - p))
                e += np.where(moves | ~np.any(moves), rounding, 0)
                better, nearest = (e < error) & ~done, np.fmin(nearest, e)
                best, error = np.where(better, row[j], best), np.where(better, e, error)
            last, h = row[:6], h / 4
            done |= error <= 1e-8 * greatest(np.nan_to_num(best))
            done |= (4 * error < nearest) & (error < 1e-4 * np.abs(best))  # rounding takes over
            if np.all(done):
                break
        return np.broadcast_to(best, d.shape), np.broadcast_to(error, d.shape)

    def near_kink(self, which: int, flat: int, a: float, scale: float) -> str:
        """Compare the slopes to the left and to the right.

        Return "kink" if they differ at every step, "near" if they differ at large steps only and
        a is the slope at small ones; else an empty string.
        """
        unit, apart, steep = self.unit(which, flat), list[float](), list[float]()
        for h in (1e-6, 1e-9):
            below, here, above = (self.moved(which, k * h * unit) for k in (-1, 0, 1))
            left, right = (
                self.total(np.where(p == q, 0, q - p)) / h
                for p, q in ((below, here), (here, above))
            )
            apart.append(abs(left - right))
            steep.append(max(abs(left), abs(right)))
        jump = steep[0] > 1e-2 * scale and 900 < steep[1] / steep[0] < 1100
        if jump or 1e-2 * scale < apart[0] and 0.25 < apart[1] / apart[0] < 300:
            return "kink"
        rounding = 1e10 * ROUNDING * self.total(here, np.linalg.norm)
        central = (left + right) / 2
        close = abs(central - a) <= 1e-3 * max(abs(central), abs(a)) + rounding
        return "near" if close and apart[0] > 1e-2 * scale else ""

    # ---- Jacobians

    def unit(self, which: int, flat: int) -> Array:
        """The direction of one element of an input."""
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def jacobian(self, which: int) -> Array:
        """d(all results) / d(one input, flattened), from slopes."""
        units = (self.unit(which, flat) for flat in range(self.inputs[which].size))
        return np.stack([self.derivative(which, unit)[0] for unit in units], axis=-1)

    def jacobian_by_vjps(self, which: int) -> Array:
        """The same from the VJPs, a unit of g at a time."""
        rows = []
        for k, c in enumerate(self.cotangents):
            for flat in range(c.size):
                g = [np.zeros(each.shape) for each in self.cotangents]
                g[k].flat[flat] = 1
                row = self.pull(g)[which]
                rows.append(np.zeros(self.inputs[which].size) if row is None else row.ravel())
        return np.stack(rows)


def flatten(arrays: Sequence[Array]) -> Array:
    """All elements in one row."""
    return np.concatenate([np.ravel(a) for a in arrays])


def of_both_signs(c: Array) -> Array:
    """Cotangents of one sign would hide that a VJP uses their size."""
    if c.size > 1 and (np.sign(c) == np.sign(c.flat[0])).all():
        c.flat[0] *= -1
    return c


# ---- a gradient beside its slope


def entry_of(
    f: Program, which: int, analytic: Array | None, limits: Limits, rng: Any = None
) -> Entry:
    """One input: each element if it is small, else groups, and the elements of bad ones."""
    x, missing = f.inputs[which], analytic is None
    a = np.zeros(x.shape) if analytic is None else analytic
    entry = Entry(f.names[which], a, np.full(x.shape, np.nan), np.zeros(x.shape), missing)
    chosen: Any = range(x.size)
    if x.size > limits.groups:
        chosen = _elements_of_bad_groups(f, which, entry, limits, rng or np.random.default_rng(9))
    for flat in chosen:
        slope = f.total(f.difference(which, f.unit(which, flat), limits.eps)[0])
        entry.numeric.flat[flat] = np.inf if np.isnan(slope) else slope
    slopes = np.abs(np.nan_to_num(entry.numeric, posinf=0))
    scale = max(greatest(slopes), greatest(np.nan_to_num(a, posinf=0, neginf=0)))
    entry.floor = 1e-10 * min(1.0, f.total(flatten(f.values), np.linalg.norm))  # rounding
    entry.tolerance = entry.floor + limits.atol * min(1.0, scale) + limits.rtol * slopes
    if not entry.ok:
        _refine(f, which, entry, limits)
    return entry


def _refine(f: Program, which: int, entry: Entry, limits: Limits) -> None:
    """Measure what is off again by extrapolation, the worst first, until enough stays wrong."""
    confirmed, errors = 0, np.nan_to_num(entry.error, nan=np.inf)
    tiny = 1e-9 * sum(map(greatest, f.cotangents))
    order = np.argsort(-np.where(entry.wrong, errors, -1), axis=None, kind="stable")
    for flat in order[: int(entry.wrong.sum())].tolist():
        a = float(entry.analytic.flat[flat])
        slope, error = f.slope(which, f.unit(which, flat))
        if np.isnan(slope):  # the element is on the edge of the domain, or beyond
            confirmed += 1
        else:
            entry.numeric.flat[flat], off = slope, abs(a - slope)
            if off <= tiny and (slope == 0 or _hidden(f, which, flat, a)):
                error = off
            allowed = entry.floor + limits.rtol * abs(slope) + limits.atol * min(1.0, abs(slope))
            drowned = allowed < off <= allowed + error
            if drowned and off > max(1e-9, 0.25 * abs(a), 0.25 * abs(slope)):
                entry.unmeasurable.append(flat)
            entry.tolerance.flat[flat] = allowed + error
            confirmed += not off <= allowed + error
        if confirmed >= 4:
            break


def _hidden(f: Program, which: int, flat: int, a: float) -> bool:
    """Whether rounding of numbers near 1 hides the slope, which larger steps show to a fifth.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding.
    """
    steps = 10.0 ** np.arange(-5, 0)
    slopes = (f.total(f.difference(which, f.unit(which, flat), h)[0]) for h in steps)
    return any(abs(slope - a) <= 0.2 * abs(a) for slope in slopes)


def _elements_of_bad_groups(
    f: Program, which: int, entry: Entry, limits: Limits, rng: Any
) -> list[int]:
    """Compare random projections of groups of elements; return the worst elements of bad ones."""
    a, x = entry.analytic, f.inputs[which]
    member = rng.permutation(np.arange(x.size) % limits.groups)
    weight = rng.choice([-1.0, 1.0], x.shape) * np.clip(np.abs(x) / f.typical(which), 0.3, 10)
    entry.projections = limits.groups

    def measured(flats: Array) -> tuple[Array, float, float, float]:
        direction = np.zeros(x.shape)
        direction.flat[flats] = weight.flat[flats]
        slopes, rounding = f.difference(which, direction, limits.eps)
        drowned = f.total(rounding * (slopes != 0), np.linalg.norm)
        return direction, f.total(slopes), float(np.sum(direction * a)), drowned

    def off(slope: float, expected: float, error: float) -> bool:
        allowed = max(limits.atol * min(1, abs(slope)), 1e-10) + 1e-6 * abs(slope) + error
        return not abs(slope - expected) <= allowed

    culprits = set[int]()
    for k in range(limits.groups):
        flats = np.flatnonzero(member == k)
        direction, slope, expected, drowned = measured(flats)
        e = abs(slope - expected)
        if off(slope, expected, drowned) and len(culprits) < 32:
            slope, error = f.slope(which, direction)
            if not off(slope, expected, min(4 * error, 0.5 * e)):
                e = abs(slope - expected)
            else:
                culprits.update(flats[:3].tolist())
                while len(flats) > 1:  # follow the half that is off more
                    halves = [(measured(half), half) for half in np.array_split(flats, 2)]
                    errors = [abs(m[1] - m[2]) for m, _ in halves]
                    flats = halves[int(np.nan_to_num(errors, nan=np.inf).argmax())][1]
                culprits.update(flats.tolist())
        entry.projected_error = max(entry.projected_error, np.inf if np.isnan(e) else e)
    return sorted(culprits)
