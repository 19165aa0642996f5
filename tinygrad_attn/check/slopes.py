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
        self, call: Callable[[], Any], tensors: dict[str, Any], backend: Any,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.call, self.names, self.tensors = call, list(tensors), list(tensors.values())
        self.backend, self.rng = backend, rng
        self.inputs = [backend.value(t).copy() for t in self.tensors]
        self.given = [x.copy() for x in self.inputs]  # f may write into its inputs
        with self.at(self.inputs):
            self.outputs = self.run()
        self.values = [np.array(backend.value(t)) for t in self.outputs]
        self.cotangents = [of_both_signs(rng.standard_normal(y.shape)) for y in self.values]
        for c, y in zip(self.cotangents, self.values):
            c[np.isinf(y)] = 0  # what stays infinite, such as blocked scores, has no slope

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
        """The gradients as tensors, by a backward pass from these outputs."""
        wants = self.backend.wants_gradient
        pairs = [(t, c) for t, c in zip(outputs, cotangents) if wants(t)]
        if not pairs:
            return [None] * len(self.tensors)
        tensors, seeds = map(list, zip(*pairs))
        return list(self.backend.vjp(tensors, self.tensors, seeds, **options))

    def pull(
        self, cotangents: Sequence[Array], outputs: Any = None, **options: Any
    ) -> list[Array | None]:
        """The gradients as arrays, from these outputs or from those of another call."""
        seeds = [c.copy(order="K") for c in cotangents]  # a VJP may write into them
        found = self.gradient(outputs or self.run(), seeds, **options)
        return [None if g is None else np.array(self.backend.value(g), float) for g in found]

    def traced(self) -> list[Any]:
        """Every op that runs."""
        with self.backend.watch() as trace:
            self.run()
        return trace.steps

    # ---- slopes; results are flattened and joined

    def moved(self, which: int, step: Array) -> Array:
        """The results with one input a step away; NaN where the function does not accept it."""
        size = sum(c.size for c in self.cotangents)
        inputs = [x + step if k == which else x for k, x in enumerate(self.inputs)]
        with suppress(Exception), self.at(inputs):
            found = flatten([self.backend.value(t) for t in self.run()])
            if found.size == size:
                return found
        return np.full(size, np.nan)

    def total(self, values: Array, norm: Callable[[Array], Any] = np.sum) -> float:
        """The sum of cotangent * value, or another norm of these."""
        c = flatten(self.cotangents)
        return float(norm(np.where(c == 0, 0, c * values)))

    def slope(self, which: int, direction: Array, h: float | None = None) -> tuple[float, float]:
        """The slope of sum(cotangent * result) at a step or by extrapolation, and its error."""
        if h is None:
            slopes, errors = self.derivative(which, direction)
        else:
            slopes, errors = self.difference(which, direction, h)
            errors = np.where(slopes == 0, 0, errors)
        return self.total(slopes), self.total(errors, np.linalg.norm)  # independent errors

    def difference(self, which: int, direction: Array, h: float) -> tuple[Array, Array]:
        """The central difference of each result along a direction, and the rounding in it."""
        above, below = self.moved(which, h * direction), self.moved(which, -h * direction)
        same = above == below  # infinite results too
        return np.where(same, 0, above - below) / (2 * h), ROUNDING * np.abs(above) / h

    def typical(self, which: int) -> float:
        """The median size of an input's elements, from which steps are taken."""
        sizes = np.abs(self.inputs[which])
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        return float(np.median(sizes)) if sizes.size else 1.0

    def derivative(self, which: int, direction: Array) -> tuple[Array, Array]:
        """The slope of each result by Ridders' extrapolation to step 0, and its error.

        Source: C. J. F. Ridders, Accurate computation of F'(x) and F'(x) F''(x), Advances in
        Engineering Software 4 (1982).
        """
        typical = self.typical(which)
        own = greatest(self.inputs[which] * (direction != 0)) or typical
        best: Any = np.nan
        error: Any = np.inf
        moves: Any = False
        done: Any = False
        for size in (own, typical):  # steps of the element's own size may be too small
            h, last = 0.1 * size / (greatest(direction) or 1.0), list[Array]()
            for _ in range(14):
                d, rounding = self.difference(which, direction, h)
                moves |= d != 0
                rounding, nearest = np.where(moves | ~np.any(moves), rounding, 0), np.inf
                row = [d]
                for j, p in enumerate(last, 1):
                    row.append((16**j * row[-1] - p) / (16**j - 1))
                    e = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - p)) + rounding
                    better, nearest = (e < error) & ~done, np.fmin(nearest, e)
                    best, error = np.where(better, row[j], best), np.where(better, e, error)
                last, h = row[:6], h / 4
                done |= error <= 1e-8 * greatest(np.nan_to_num(best))
                done |= (4 * error < nearest) & (error < 1e-4 * np.abs(best))  # rounding grows
                if np.all(done):
                    break
            if np.sum(error) < 1e-3 * np.sum(np.abs(best)):
                break
        return np.broadcast_to(best, d.shape), np.broadcast_to(error, d.shape)

    def near_kink(self, which: int, flat: int, a: float, scale: float) -> str:
        """Compare the slopes to the left and to the right.

        Return "kink" if they differ at every step. Return "near" if they differ at large steps only
        and a is the slope at small ones. Otherwise return an empty string.
        """
        unit, slopes = self.unit(which, flat), []
        for h in (1e-6, 1e-9):
            y = [self.moved(which, k * h * unit) for k in (-1, 0, 1)]
            slopes.append([self.total(np.where(p == q, 0, q - p)) / h for p, q in zip(y, y[1:])])
        steep, apart = np.abs(slopes).max(axis=1), np.abs(np.diff(slopes)[:, 0])
        if steep[0] > 1e-2 * scale and 900 < steep[1] / steep[0] < 1100:
            return "kink"  # a jump
        if not apart[0] > 1e-2 * scale:
            return ""
        if 0.25 < apart[1] / apart[0] < 300:
            return "kink"
        rounding = 1e10 * ROUNDING * self.total(y[1], np.linalg.norm)
        return "near" if np.isclose(a, np.mean(slopes[1]), 1e-3, rounding) else ""

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
        rows, outputs, zeros = [], self.run(), [np.zeros(c.shape) for c in self.cotangents]
        for c in zeros:
            for flat in range(c.size):
                c.flat[flat] = 1
                row = self.pull(zeros, outputs)[which]
                rows.append(self.unit(which, 0) * 0 if row is None else row)
                c.flat[flat] = 0
        return np.stack(rows).reshape(len(rows), -1)


class OneOp(Program):
    """An op by itself, on leaves of its own; `args` are the values of its operands."""

    def __init__(self, step: Any, backend: Any, args: Sequence[Any] | None = None) -> None:
        is_tensor = lambda x: isinstance(x, backend.kind)
        given = [backend.value(x) if is_tensor(x) else x for x in step.inputs]
        given = given if args is None else list(args)
        self.step, self.args = step, [a.copy() if isinstance(a, Array) else a for a in given]
        pairs = zip(self.args, step.inputs)
        self.leaves = [backend.leaf(a) if is_tensor(x) else a for a, x in pairs]
        wants = lambda x: backend.wants_gradient(x) and backend.dtype(x) == np.float64
        wanted = {
            f"operand {i}": leaf
            for i, (x, leaf) in enumerate(zip(step.inputs, self.leaves))
            if is_tensor(x) and wants(x)
        }
        super().__init__(lambda: step.run(self.leaves), wanted, backend, np.random.default_rng(9))

    def on(self, args: Sequence[Any]) -> OneOp:
        """The same op on other operands."""
        return OneOp(self.step, self.backend, args)


def flatten(arrays: Sequence[Array]) -> Array:
    """All elements in one row."""
    return np.concatenate([np.ravel(a) for a in arrays])


def of_both_signs(c: Array) -> Array:
    """Cotangents of one sign would hide that a VJP uses their size."""
    if c.size > 1 and (np.sign(c) == np.sign(c.flat[0])).all():
        c.flat[0] *= -1
    return c


# ---- a gradient beside its slope


def entry_of(f: Program, which: int, analytic: Array | None, limits: Limits) -> Entry:
    """One input: each element if it is small, else groups, and one element of each bad group."""
    x = f.inputs[which]
    a = np.zeros(x.shape) if analytic is None else analytic
    entry = Entry(f.names[which], a, np.full(x.shape, np.nan), np.zeros(x.shape), analytic is None)
    floor = 1e-10 * min(1.0, f.total(flatten(f.values), np.linalg.norm))  # rounding
    chosen: Any = range(x.size)
    if x.size > limits.groups:
        chosen = _elements_of_bad_groups(f, which, entry, limits)
    for flat in chosen:
        slope, _ = f.slope(which, f.unit(which, flat), limits.eps)
        entry.numeric.flat[flat] = np.inf if np.isnan(slope) else slope
    slopes = np.abs(np.nan_to_num(entry.numeric, posinf=0))
    scale = max(greatest(slopes), greatest(np.nan_to_num(a, posinf=0, neginf=0)))
    entry.tolerance = floor + limits.atol * min(1.0, scale) + limits.rtol * slopes
    errors, confirmed = np.where(entry.wrong, entry.error, -1), 0
    for flat in np.argsort(-errors, axis=None, kind="stable")[: np.sum(errors >= 0)].tolist():
        _extrapolate(f, which, flat, entry, limits, floor)
        confirmed += bool(entry.wrong.flat[flat])
        if confirmed >= 4:
            break
    return entry


def _extrapolate(
    f: Program, which: int, flat: int, entry: Entry, limits: Limits, floor: float
) -> None:
    """Measure one element again; its tolerance is the limits and the error of the slope."""
    a = float(entry.analytic.flat[flat])
    slope, error = f.slope(which, f.unit(which, flat))
    if np.isnan(slope):  # the element is on the edge of the domain, or beyond
        return
    off, size = abs(a - slope), abs(slope)
    tiny = off <= 1e-9 * sum(map(greatest, f.cotangents))
    if tiny and (slope == 0 or _hidden(f, which, flat, a)):
        error = off
    allowed = floor + limits.rtol * size + limits.atol * min(1.0, size)
    if max(allowed, 1e-9, 0.25 * abs(a), 0.25 * size) < off <= allowed + error:
        entry.unmeasurable = True
    entry.numeric.flat[flat], entry.tolerance.flat[flat] = slope, allowed + error


def _hidden(f: Program, which: int, flat: int, a: float) -> bool:
    """Whether rounding of numbers near 1 hides the slope, which larger steps show to a fifth.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding.
    """
    slopes = (f.slope(which, f.unit(which, flat), 10.0**k)[0] for k in range(-5, 0))
    return any(abs(slope - a) <= 0.2 * abs(a) for slope in slopes)


def _elements_of_bad_groups(f: Program, which: int, entry: Entry, limits: Limits) -> list[int]:
    """Compare random projections of groups of elements; return the worst elements of bad ones."""
    x, culprits = f.inputs[which], set[int]()
    weight = f.rng.choice([-1.0, 1.0], x.shape) * np.clip(np.abs(x) / f.typical(which), 0.3, 10)
    entry.projections = limits.groups

    def compared(flats: Array, h: float | None = limits.eps) -> tuple[float, float, float]:
        """The distance of gradient and slope, what is allowed, and the slope's own error."""
        direction = np.zeros(x.shape)
        direction.flat[flats] = weight.flat[flats]
        slope, error = f.slope(which, direction, h)
        e = abs(slope - float(np.sum(direction * entry.analytic)))
        allowed = max(limits.atol * min(1, abs(slope)), 1e-10) + 1e-6 * abs(slope)
        return np.inf if np.isnan(e) else e, allowed, error

    for flats in np.array_split(f.rng.permutation(x.size), limits.groups):
        e, allowed, error = compared(flats)
        if not (first := e) <= allowed + error:
            e, allowed, error = compared(flats, None)
            if not e <= allowed + min(4 * error, 0.5 * first):
                culprits.update(flats[:3].tolist())
                while len(flats) > 1:  # follow the half that is off more
                    flats = max(np.array_split(flats, 2), key=lambda half: compared(half)[0])
                culprits.update(flats.tolist())
                if len(culprits) >= 32:
                    break
        entry.projected_error = max(entry.projected_error, e)
    return sorted(culprits)
