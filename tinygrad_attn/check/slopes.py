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


class Function:
    """Arrays as a function of arrays, with a gradient that is to be checked."""

    inputs: list[Array]
    names: list[str]
    values: list[Array]  # the results at the inputs
    cotangents: list[Array]

    def results(self, inputs: Sequence[Array]) -> list[Array]:
        raise NotImplementedError

    def pull(self, cotangents: Sequence[Array]) -> list[Array | None]:
        """d(sum of cotangent * result) / d(input) for each input."""
        raise NotImplementedError

    def pull_at(self, inputs: Sequence[Array]) -> list[Array | None]:
        """The gradients at other inputs."""
        raise NotImplementedError

    def moved(self, which: int, step: Array) -> list[Array]:
        """The results with one input a step away; NaN where the function refuses it."""
        with suppress(Exception):
            inputs = list(self.inputs)
            inputs[which] = inputs[which] + step
            found = self.results(inputs)
            if [y.shape for y in found] == [c.shape for c in self.cotangents]:
                return found
        return [np.full(c.shape, np.nan) for c in self.cotangents]

    def change(self, above: list[Array], below: list[Array]) -> float:
        """The weighted sum of the differences of results; what is infinite stays so."""
        pairs = zip(self.cotangents, above, below)
        return sum(float(np.sum(c * np.where(a == b, 0, a - b))) for c, a, b in pairs)

    def difference(self, which: int, direction: Array, h: float) -> tuple[float, float]:
        """The slope of sum(cotangent * result) along a direction, and the rounding in it."""
        above, below = self.moved(which, h * direction), self.moved(which, -h * direction)
        moving = still = 0.0
        for c, a, b in zip(self.cotangents, above, below):
            moving += float(np.sum(np.abs(c * np.where(a != b, a, 0))))
            still += float(np.sum(np.abs(c * np.where(np.isfinite(a), a, 0))))
        return self.change(above, below) / (2 * h), ROUNDING * (moving or still) / h

    def unit(self, which: int, flat: int) -> Array:
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def slope(self, which: int, direction: Array, typical: float) -> tuple[float, float]:
        """The slope along a direction by extrapolation, and its error."""
        own, noise = greatest(self.inputs[which] * direction), 0.0
        for side in (-1, 1):  # within so few units of rounding the function does not change
            steps = [side * k * ROUNDING * (own or typical) * direction for k in (2, 5, 9)]
            first, *others = (self.moved(which, step) for step in steps)
            noise = max(noise, *(abs(self.change(one, first)) for one in others))

        def sample(h: float) -> tuple[float, float]:
            d, rounding = self.difference(which, direction, h)
            return d, rounding + noise / h

        best, error = ridders(sample, own or typical)
        if own and not error <= 1e-3 * abs(best):  # too small a step for what this element does
            best, error = min((best, error), ridders(sample, typical), key=lambda one: one[1])
        return float(best), float(error)

    def near_kink(self, which: int, flat: int, a: float, scale: float) -> str:
        """ "kink" if the slopes left and right differ at every step, "near" if only at large ones
        and a is the slope at small ones; else nothing."""
        unit, apart, steep, central = self.unit(which, flat), [], [], 0.0
        for h in (1e-6, 1e-6 / 8, 1e-6 / 1024):
            above, below = self.moved(which, h * unit), self.moved(which, -h * unit)
            left, right = self.change(self.values, below) / h, self.change(above, self.values) / h
            apart.append(abs(left - right))
            steep.append(max(abs(left), abs(right)))
            central = (left + right) / 2
        if steep[0] > 1e-2 * scale and abs(steep[1] / steep[0] - 8) < 0.5:
            if abs(steep[2] / steep[0] - 1024) < 64:
                return "kink"  # a jump
        if not apart[0] > 1e-2 * scale:
            return ""
        if apart[1] > 0.5 * apart[0] and 0.25 * apart[0] < apart[2] < 300 * apart[0]:
            return "kink"
        rounding = (
            1e10 * ROUNDING * sum(greatest(c * y) for c, y in zip(self.cotangents, self.values))
        )
        return "near" if abs(central - a) <= 1e-3 * max(abs(central), abs(a)) + rounding else ""

    def typical(self, which: int) -> float:
        """The size of an input's elements, from which steps are taken."""
        sizes = np.abs(self.inputs[which])
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        return float(np.median(sizes)) if sizes.size else 1.0

    def jacobian(self, which: int) -> Array:
        """d(all results, flattened) / d(one input, flattened), from slopes."""
        columns = []
        for flat in range(self.inputs[which].size):
            unit = self.unit(which, flat)

            def sample(h: float, unit: Any = unit) -> tuple[Array, Array]:
                a, b = (flatten(self.moved(which, s * h * unit)) for s in (1, -1))
                moves = a != b
                size = np.abs(np.where(moves, a, 0))
                return np.where(moves, a - b, 0) / (2 * h), ROUNDING * size / h

            own = abs(float(self.inputs[which].flat[flat]))
            columns.append(ridders(sample, own or self.typical(which))[0])
        return np.stack(columns, axis=-1)

    def jacobian_by_rules(self, which: int, pull: Callable[..., Any] | None = None) -> Array:
        """The same from the VJP, a unit of g at a time."""
        pull, rows = pull or self.pull, []
        for k, c in enumerate(self.cotangents):
            for flat in range(c.size):
                g = [np.zeros(each.shape) for each in self.cotangents]
                g[k].flat[flat] = 1
                row = pull(g)[which]
                rows.append(np.zeros(self.inputs[which].size) if row is None else row.ravel())
        return np.stack(rows).astype(float)


def flatten(arrays: Sequence[Array]) -> Array:
    return np.concatenate([a.ravel() for a in arrays])


def ridders(sample: Callable[[float], tuple[Any, Any]], size: float) -> tuple[Any, Any]:
    """Slopes at shrinking steps, extrapolated to step 0, and their errors.

    `sample(h)` is a central difference and its rounding. Source: C. J. F. Ridders, Accurate
    computation of F'(x) and F'(x) F''(x), Advances in Engineering Software 4 (1982).
    """
    best: Any = np.nan
    error: Any = np.inf
    before, h = list[Any](), 0.1 * size
    for _ in range(14):
        d, rounding = sample(h)
        best, error = (np.broadcast_to(v, np.shape(d)) for v in (best, error))
        if h < 1e-4 * size and before and not np.any(d) and np.any(before[0]):
            break  # h is too small to move anything
        row, nearest = [d], np.inf
        for j, p in enumerate(before, 1):
            row.append((16**j * row[-1] - p) / (16**j - 1))
            e = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - p)) + rounding
            nearest, better = min(nearest, np.min(e, initial=np.inf)), e < error
            best, error = np.where(better, row[j], best), np.where(better, e, error)
        before, h = row[:6], h / 4
        largest = np.max(np.abs(best), initial=1e-300)
        enough = min(nearest, 1e-4 * largest) if len(row) > 1 else 0.0
        if np.all(error <= 1e-8 * largest) or np.all(4 * error < enough):
            break  # it is good, or rounding has taken over
    return best, error


class Program(Function):
    """A function of tensors; their values are moved in place and put back."""

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
        self.values = values = [np.array(backend.value(t)) for t in self.run()]
        self.cotangents = [of_both_signs(rng.standard_normal(y.shape)) for y in values]
        self.infinite = [np.isinf(y) for y in values]
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

    def results(self, inputs: Sequence[Array]) -> list[Array]:
        with self.at(inputs):
            return [np.array(self.backend.value(t)) for t in self.run()]

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
        found = self.gradient(self.run() if outputs is None else outputs, cotangents)
        value = lambda g: np.array(self.backend.value(g), dtype=np.float64)
        return [None if g is None else value(g) for g in found]

    def pull_at(self, inputs: Sequence[Array]) -> list[Array | None]:
        with self.at(inputs):
            return self.pull(self.cotangents)

    def gradient(self, outputs: list[Any], cotangents: Sequence[Any], **options: Any) -> list[Any]:
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


class Alone(Function):
    """One op as it was called, by itself, on arrays."""

    def __init__(self, call: Any, seed: int = 5) -> None:
        self.call = call
        self.positions = [i for i, need in enumerate(call.needs) if need]
        self.inputs, self.values = [call.args[i] for i in self.positions], [call.y]
        self.names = [f"operand {i}" for i in self.positions]
        rng = np.random.default_rng(seed)
        self.cotangents = [of_both_signs(rng.standard_normal(call.y.shape))]
        self.cotangents[0][np.isinf(call.y)] = 0

    def results(self, inputs: Sequence[Array]) -> list[Array]:
        return [self.call.forward(self._args(inputs))[0]]

    def _args(self, inputs: Sequence[Array]) -> list[Any]:
        args = list(self.call.args)
        for i, value in zip(self.positions, inputs):
            args[i] = value
        return args

    def pull_at(self, inputs: Sequence[Array]) -> list[Array | None]:
        answers = self.call.with_args(self._args(inputs)).pull(self.cotangents[0])
        return [answers.get(i) for i in self.positions]

    def pull(self, cotangents: Sequence[Array], **change: Any) -> list[Array | None]:
        answers = self.call.pull(cotangents[0], **change)
        return [answers.get(i) for i in self.positions]


def of_both_signs(c: Array) -> Array:
    """Cotangents of one sign would hide that a VJP uses their size."""
    if c.size > 1 and (np.sign(c) == np.sign(c.flat[0])).all():
        c.flat[0] *= -1
    return c


# ---- a gradient beside its slope


def entry_of(
    f: Function, which: int, analytic: Array | None, limits: Limits, rng: Any = None
) -> Entry:
    """One input: each element if it is small, else groups, and the elements of bad ones."""
    x, missing = f.inputs[which], analytic is None
    a = np.zeros(x.shape) if analytic is None else analytic
    entry = Entry(f.names[which], a, np.full(x.shape, np.nan), np.zeros(x.shape), missing)
    chosen: Any = range(x.size)
    if x.size > limits.groups:
        rng = np.random.default_rng(9) if rng is None else rng
        chosen = _elements_of_bad_groups(f, which, entry, limits, rng)
    rounding = 0.0
    for flat in chosen:
        slope, noise = f.difference(which, f.unit(which, flat), limits.eps)
        entry.numeric.flat[flat] = np.inf if np.isnan(slope) else slope
        rounding = max(rounding, noise)
    entry.floor = floor_of(f)
    _set_tolerance(entry, limits)
    if not entry.ok and greatest(np.nan_to_num(entry.analytic)) < 1e-7:
        entry.floor = max(entry.floor, shaken(f, which, entry.analytic))
        _set_tolerance(entry, limits)
    if not entry.ok:
        _refine(f, which, entry, limits)
    return entry


def floor_of(f: Function) -> float:
    """Slopes below this size cannot be told from rounding."""
    pairs = zip(f.cotangents, f.values)
    sizes = (np.sum(np.abs(c * y)[np.abs(y) < 1e8]) for c, y in pairs)
    return 1e-10 * min(1.0, float(sum(sizes)))


def shaken(f: Function, which: int, a: Array) -> float:
    """How much a gradient changes with the last digits of the inputs: so much is rounding."""
    most = 0.0
    for seed in range(3):
        signs = np.random.default_rng([6, seed])
        moved = [x * (1 + 4 * ROUNDING * signs.choice([-1.0, 1.0], x.shape)) for x in f.inputs]
        with suppress(Exception):
            g = f.pull_at(moved)[which]
            most = max(most, 0.0 if g is None else greatest(g - a))
    return min(20 * most, 1e-8)


def _set_tolerance(entry: Entry, limits: Limits) -> None:
    """atol + rtol |n|, where atol shrinks with slopes that are all smaller than 1."""
    slopes = np.abs(np.nan_to_num(entry.numeric, posinf=0))
    scale = max(greatest(slopes), greatest(np.nan_to_num(entry.analytic, posinf=0, neginf=0)))
    least = max(limits.atol * min(1.0, scale), entry.floor)
    entry.tolerance = least + limits.rtol * slopes


def _refine(f: Function, which: int, entry: Entry, limits: Limits) -> None:
    """Measure what is off again by extrapolation, the worst first, until enough stays wrong."""
    typical, confirmed = f.typical(which), 0
    errors = np.nan_to_num(entry.error, nan=np.inf)
    order = np.argsort(-np.where(entry.wrong, errors, -1), axis=None, kind="stable")
    for flat in order[: int(entry.wrong.sum())].tolist():
        a = float(entry.analytic.flat[flat])
        slope, error = f.slope(which, f.unit(which, flat), typical)
        if np.isnan(slope):  # the element lies on the edge of the domain, or beyond
            confirmed += 1
            continue
        entry.numeric.flat[flat] = slope
        allowed = entry.floor + limits.rtol * abs(slope) + limits.atol * min(1.0, abs(slope))
        off = abs(a - slope)
        if (
            np.isfinite(a)
            and allowed < off <= allowed + error
            and off > max(1e-9, 0.25 * abs(a), 0.25 * abs(slope))
        ):
            entry.unmeasurable.append(flat)
        if off > allowed + error and _hidden(f, which, flat, a, off):
            error = off
        entry.tolerance.flat[flat] = allowed + error
        confirmed += not off <= allowed + error
        if confirmed >= 4:
            break


def _hidden(f: Function, which: int, flat: int, a: float, off: float) -> bool:
    """Whether rounding of numbers near 1 hides the slope, which larger steps show to a fifth.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding.
    """
    if off > 1e-9 * sum(map(greatest, f.cotangents)):
        return False
    larger = (f.difference(which, f.unit(which, flat), 10.0**k)[0] for k in range(-5, 0))
    return any(abs(d - a) <= 0.2 * abs(a) for d in larger)


def _elements_of_bad_groups(
    f: Function, which: int, entry: Entry, limits: Limits, rng: Any
) -> Sequence[int]:
    """Compare random projections of groups of elements; return those to look at one by one."""
    a, size = entry.analytic, entry.analytic.size
    member, signs = rng.permutation(np.arange(size) % limits.groups), rng.choice([-1.0, 1.0], size)
    entry.projections = limits.groups

    def error(flats: Array) -> tuple[float, float]:
        direction = np.zeros(a.shape)
        direction.flat[flats] = signs[flats]
        slope, rounding = f.difference(which, direction, limits.eps)
        e = abs(slope - float(np.sum(signs[flats] * a.flat[flats])))
        allowed = max(limits.atol * min(1, abs(slope)), 1e-10) + 1e-6 * abs(slope) + 100 * rounding
        return (np.inf if np.isnan(e) else e), allowed

    suspicious: list[int] = []
    culprits: set[int] = set()
    for k in range(limits.groups):
        flats = np.flatnonzero(member == k)
        e, allowed = error(flats)
        entry.projected_error = max(entry.projected_error, e)
        if e > allowed:
            suspicious += flats.tolist()
            if len(culprits) < 8:  # follow the half that is off more
                while len(flats) > 1:
                    flats = max(np.array_split(flats, 2), key=lambda half: error(half)[0])
                culprits.add(int(flats[0]))
    some = rng.permutation(suspicious)[: SMALL // 4] if suspicious else []
    return sorted(culprits.union(int(i) for i in some))


def wrong_along(f: Function, cotangents: list[Array], rng: Any) -> str | None:
    """The name of an input whose gradient is off along a random direction."""
    before, f.cotangents = f.cotangents, cotangents
    try:
        gradients = f.pull(cotangents)
        for which, (x, g) in enumerate(zip(f.inputs, gradients)):
            least = 1e-3 * f.typical(which)
            direction = rng.choice([-1.0, 1.0], x.shape) * np.maximum(np.abs(x), least)
            a = 0.0 if g is None else float(np.sum(g * direction))
            size = 0.0 if g is None else float(np.sum(np.abs(g * direction)))
            allowed = 1e-6 * size + 100 * floor_of(f)
            allowed += 1e-9 * sum(map(greatest, cotangents)) * greatest(direction)
            slope, _ = f.difference(which, direction, 1e-6)
            if abs(a - slope) <= 5e-3 * max(abs(a), abs(slope)) + allowed:
                continue
            slope, error = f.slope(which, direction, 0.1 * greatest(direction))
            size = max(abs(a), abs(slope))
            if error < 1e-2 * size and abs(a - slope) > 5e-3 * size + allowed + 4 * error:
                return f.names[which]
    except Exception:  # f does not accept these values: nothing is learnt then
        return None
    finally:
        f.cotangents = before
    return None
