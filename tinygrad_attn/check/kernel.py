"""A kernel: a function on arrays of any library and precision, with its own backward pass.

Its values and gradients are compared with those of a plain reference, as far as rounding allows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np

from ..engine import Op, plain, tensor_of
from ..tree import tree_leaves, tree_map
from .arrays import array_like, dtype_name, is_array, library_of, numbers_of
from .backend import Backend, Call, backend_of
from .report import Array, Entry, agree, deviation, greatest, largest_finite, wrong_among
from .rounding import LARGEST, SAMPLES, TINY, UNIT, Rounding, allowed
from .subject import Gradients, Run, Subject, flatten, results_of


def is_float(x) -> bool:
    """Return whether x is an array of floats of any library."""
    return is_array(x) and dtype_name(x) in UNIT


def floats_in(tree) -> list[Any]:
    """Return the arrays of floats in a tree."""
    return list(filter(is_float, tree_leaves(tree)))


class Kernel(Subject):
    """A function f with the backward pass `vjp`, checked in one precision.

    `like` are the inputs as they were passed: arrays of one library, and other arguments. `vjp` is
    one of the forms that `gradcheck` takes. `reference` is a function of the operands that returns
    the subject with the right gradients.
    """

    argument = "input"
    rounding: Rounding | None = None  # inside `rounded_run`
    storing: Any = None  # the number of a sample, inside `stored_run`

    def __init__(
        self,
        f,
        vjp,
        like,
        dtype: str,
        reference=None,
        operands=None,
        seed: int = 9,
    ) -> None:
        self.f, self.vjp, self.like, self.dtype, self.seed = f, vjp, like, dtype, seed
        self.rounds_to, self.precision, self.make_reference = dtype, UNIT[dtype], reference
        self.checked = [i for i, x in enumerate(like) if is_float(x)]
        self.library = library_of(like[self.checked[0]])
        operands = operands or [numbers_of(x) if is_array(x) else x for x in like]
        nearest = {id(operands[i]): self.representable(operands[i], like[i]) for i in self.checked}
        self.operands = [nearest.get(id(x), x) for x in operands]  # one array may be passed twice
        self.reference = reference(list(self.operands)) if reference else None
        floats = [self.operands[i] for i in self.checked]
        rng = np.random.default_rng([seed, 0x76])  # not the caller's default_rng(seed)
        super().__init__([f"input {i}" for i in self.checked], floats, rng)
        self.cotangents = list(map(self.representable, self.cotangents, self.results))

    def replaced(self, operands, dtype: str = "") -> Kernel:
        make, dtype = self.make_reference, dtype or self.dtype
        return Kernel(self.f, self.vjp, self.like, dtype, make, operands, self.seed)

    def is_offered(self, operands) -> bool:
        """Return whether the reference, or without one the function itself, takes the operands."""
        with suppress(Exception):
            run = self.make_reference or (lambda operands: self.recorded(self.arrays(operands)))
            run(list(operands))
            return True
        return False

    def representable(self, x: Array, like) -> Array:
        """Return the nearest numbers that the kernel's dtype has."""
        return numbers_of(array_like(x, like, self.dtype))

    def put(self, inputs: Sequence[Array]) -> None:
        super().put(inputs)
        if self.reference is not None:
            likes = [self.like[i] for i in self.checked]
            self.reference.put(list(map(self.representable, inputs, likes)))

    def filled(self, operands, floats):
        """Return the operands with others in the places of those that are checked."""
        new = list(operands)
        for i, x in zip(self.checked, floats):
            new[i] = x
        return new

    def arrays(self, operands):
        """Return operands as arrays of the kernel's library, the same one for the same operand."""
        made = {
            id(x): array_like(x, like, self.dtype) if is_array(like) else x
            for x, like in zip(operands, self.like)
        }
        return [made[id(x)] for x in operands]

    # ---- one run

    def run(self) -> Run:
        arrays = self.arrays(self.filled(self.operands, self.inputs))
        if self.rounding:
            moving = [self.rounding.rounded(arrays[i]) for i in self.checked]
            arrays = self.filled(arrays, moving)
        with reporting([arrays[i] for i in self.checked], self.inputs):
            y, pull = self.recorded(arrays)
        y = tree_map(lambda t: np.asarray(t) if isinstance(t, np.floating) else t, y)  # of a sum
        self.results = floats_in(y)
        if not self.results:
            raise TypeError(f"the function must return arrays of floats, not {y!r:.80}")
        values = [numbers_of(t) for t in self.results]
        return Run(values, partial(self._pull, arrays, y, values, pull))

    def _pull(self, arrays, y, values: list[Array], pull, cotangents, **_) -> Gradients:
        outputs = floats_in(y)
        seeds = [array_like(c, t, dtype_name(t)) for c, t in zip(cotangents, outputs)]
        rest = iter(seeds)
        g = tree_map(lambda t: next(rest) if is_float(t) else None, y)
        floats = [arrays[i] for i in self.checked]
        with reporting([*seeds, *outputs, *floats], [*cotangents, *values, *self.inputs]):
            return self.aligned(pull(g))

    def recorded(self, arrays):
        """Run the kernel, and return its result and the function that pulls gradients back."""
        floats = [arrays[i] for i in self.checked]
        of_floats = lambda *floats: self.f(*self.filled(arrays, floats))
        if isinstance(self.vjp, tuple):
            y, residuals = self.vjp[0](*arrays)
            return y, lambda g: self.vjp[1](tree_map(self.stored(y), residuals), g)
        if of_jax(self.vjp) or self.vjp is None and self.library == "jax":
            jax = sys.modules["jax"]
            y, pull = jax.vjp(of_floats, *floats)
            return y, lambda g: jax.tree_util.tree_map(self.stored(y), pull)(g)
        if self.vjp is not None:
            y = self.f(*arrays)
            return y, lambda g: self.vjp(g, tree_map(self.stored(y), y), *arrays)
        if self.library != "torch":
            floats = [tensor_of(x) for x in floats]
        for t in floats:
            self.backend.track(t, True)
        outputs: list[Any] = []
        reads = lambda t: self.stored(outputs)(t)
        with self.backend.reading(reads) if self.storing else nullcontext():
            y = of_floats(*floats)
        outputs += floats_in(y)
        if not any(map(self.backend.wants_gradient, outputs)):
            raise TypeError("the result is no tensor that can be differentiated")
        rounding = self.rounding
        seed = lambda c: tensor_of(rounding.rounded(rounding.moved(c))) if rounding else c
        return y, lambda g: self.backend.gradient(outputs, floats, [*map(seed, tree_leaves(g))])

    @property
    def is_exact(self) -> bool:
        """Whether the kernel computes in float64."""
        return all(dtype_name(t) == "float64" for t in self.results)

    @property
    def backend(self) -> Backend:
        return backend_of(self.library == "torch")

    def aligned(self, gradients) -> Gradients:
        """Return one gradient, or None, for each input that is checked."""
        listed = [*gradients] if isinstance(gradients, (tuple, list)) else [gradients]
        if len(listed) == len(self.like):
            listed = [listed[i] for i in self.checked]
        if len(listed) != len(self.checked):
            raise ValueError(
                f"the backward pass returned {len(listed)} gradients for {len(self.like)} inputs. "
                "Return a tuple with one for each input, or None where there is none."
            )
        numbers = [None if g is None else numbers_of(g) for g in listed]
        for name, x, a in zip(self.names, self.inputs, numbers):
            if a is not None and a.shape != x.shape:
                raise ValueError(f"the gradient of {name} {x.shape} has the shape {a.shape}")
        return numbers

    # ---- comparison with the reference

    def rounded_run(self, rounding: Rounding, cotangents: Sequence[Array], low: bool):
        """Return the results and gradients of a run with random rounding errors.

        Where the errors of single steps cannot be had, those of the inputs stand for them, or, if
        `low`, those of a run in low precision.
        """
        moved, of_steps = rounding.moved, self.library == "numpy"
        move = moved if of_steps else lambda x: moved(moved(x))
        without = self.without_effect
        self.rounding = rounding if of_steps else None
        try:
            with self.at([move(x) for x in self.inputs]), plain():
                run, _ = self.run_in_steps(without)
                seeds = [move(c) for c in cotangents]
                came = results_of(self, run.values, self.pull(seeds, run))
                in_low = low and not of_steps
                return self.in_precision(rounding.dtype, seeds, came) if in_low else came
        finally:
            self.rounding = None

    def in_precision(self, dtype: str, cotangents: list[Array], otherwise: list[Array]):
        """Return the results and gradients of a run in a dtype, or others where it has none."""
        before, self.dtype = self.dtype, dtype
        try:
            low = self.pulled(cotangents)
            return [np.where(np.isfinite(a), a, b) for a, b in zip(low, otherwise)]
        except Exception:  # the function may not offer this dtype
            return otherwise
        finally:
            self.dtype = before

    def run_in_steps(self, without: Sequence[int] = ()) -> tuple[Run, list[Call]]:
        """Return a run and its steps, some of which have no gradient."""
        with plain(), self.backend.watch() as calls:  # no kernel hides a step
            run = self.run()
        for k in without:
            calls[k].result._node.op = Constant(lambda: None)
        return run, calls

    @cached_property
    def without_effect(self) -> list[int]:
        """The numbers of the maxima whose gradients have no effect, as in a stable softmax.

        They would hide that exp(scores - logsumexp) does not add up to 1 for rounded scores.
        """
        found, maxima = list[int](), dict[Any, list[int]]()  # by line: a loop may have thousands
        if self.library == "numpy":
            for k, call in enumerate(self.run_in_steps()[1]):
                if call.name in ("max", "maximum") and call.result._node:
                    maxima.setdefault(call.place, []).append(k)

        def gradients(without: list[int]) -> Array:
            pulled = self.pull(self.cotangents, self.run_in_steps(without)[0])
            return flatten(results_of(self, [], pulled))

        for numbers in maxima.values():
            right = gradients(found)
            if agree(gradients(found + numbers), right, 0, 1e-9 * greatest(right)):
                found += numbers
        return found

    def stored(self, y):
        """Return a function that, inside `stored_run`, moves an array that is a result."""

        def moved(t):
            results = [] if self.storing is None else floats_in(y)
            if is_float(t) and any(agree(numbers_of(t), numbers_of(r)) for r in results):
                signs = np.random.default_rng(self.storing // 2).choice([-1, 1], t.shape)
                signs *= (-1) ** self.storing  # each number moves up in one run, down in another
                return array_like(
                    numbers_of(t) * (1 + signs * UNIT[self.rounds_to]), t, dtype_name(t)
                )
            return t

        return moved

    def stored_run(self, sample: int) -> list[Array]:
        """Return the results and gradients of a run whose backward pass reads moved results.

        Results are rounded when they are stored, and a backward pass may read them.
        """
        self.storing = sample
        try:
            return self.pulled(self.cotangents)
        finally:
            self.storing = None

    def rounded_runs(self, came: list[Array]) -> Iterator[list[list[Array]]]:
        """Yield runs of the reference with rounding errors: none, some, and some with more errors.

        The last also have what rounding of stored results does to this kernel.
        """
        yield []
        rounding = Rounding(self.rounds_to, self.rng)
        run = partial(self.reference.rounded_run, rounding, self.cotangents)
        runs = [run(low=k % 2 == 0) for k in range(SAMPLES)]
        yield runs
        moves = [zip(run, self.stored_run(k), came) for k, run in enumerate(runs)]
        yield [[r + np.where(np.isfinite(m - a), m - a, 0) for r, m, a in row] for row in moves]

    def compared(self, came: list[Array], samples: list[list[Array]]) -> list[Entry]:
        """Compare results and gradients with those of the reference, and say what is allowed."""
        right, results = self.reference.pulled(self.cotangents), len(self.values)
        names = [f"result {k}" for k in range(results)] + self.names
        largest = max(map(largest_finite, right))
        if largest > LARGEST[self.dtype] / 8 and not all(np.isfinite(a).all() for a in came):
            raise OverflowError(
                f"the result or a gradient is {largest:.1g}, too large: {self.dtype}"
            )
        size = sum(greatest(c) * greatest(y) for c, y in zip(self.cotangents, self.values))
        scales = [0.0] * results + [size / (greatest(x) or 1) for x in self.inputs]
        rows = zip(right, zip(*samples) if samples else repeat(()), scales)
        tolerances = [allowed(b, s, self.rounds_to, scale) for b, s, scale in rows]
        return [Entry(*row) for row in zip(names, came, right, tolerances)]

    def entries(self) -> list[Entry]:
        """Compare results and gradients with those of the reference, as far as rounding allows."""
        came = self.pulled(self.cotangents)
        for runs in self.rounded_runs(came):
            entries = self.compared(came, runs)
            if not wrong_among(entries):
                break
        return entries

    @cached_property
    def noise(self) -> list[float]:
        """How far rounding may move each gradient, and each result."""
        came, results = self.pulled(self.cotangents), len(self.values)
        *_, runs = self.rounded_runs(came)
        entries = self.compared(came, runs)
        limits = [largest_finite(e.tolerance) for e in entries]
        return limits[results:] + limits[:results]

    def coarse(self) -> list[str]:
        """Return what is further off than steps in float32 and one rounding of the result."""
        self.rounds_to, unit, tiny = "float32", 2 * UNIT[self.dtype], 4 * TINY[self.dtype]
        try:
            entries = self.entries()
        finally:
            self.rounds_to = self.dtype
        within = lambda e: e.error <= e.tolerance + unit * np.abs(e.numeric) + tiny
        return [e.name for e in entries if not within(e).all()]


class Constant(Op):
    """An op without a gradient."""

    def pull(self, *_):
        return []


@contextmanager
def reporting(arrays, numbers: Sequence[Array]) -> Iterator[None]:
    """Write what a kernel changes in its arrays into their numbers, for the checks."""
    before = list(map(numbers_of, arrays))
    yield
    for t, old, number in zip(arrays, before, numbers):
        now = numbers_of(t)
        if not agree(now, old):
            number.flags.writeable = True
            number[...] = now


def of_jax(vjp) -> bool:
    """Return whether this is jax.vjp."""
    module = str(getattr(vjp, "__module__", "")).partition(".")[0]
    return getattr(vjp, "__name__", "") == "vjp" and module in ("jax", "jaxlib")


def reference_of(f, like, results: Sequence[Array]):
    """Return a function of the operands that makes the subject of a plain reference.

    `results` are those of the kernel: x.var() means something else in NumPy than in torch.
    """
    numbers = lambda: [numbers_of(x) if is_array(x) else x for x in like]
    libraries = [numbers(), like]
    if torch := sys.modules.get("torch"):
        libraries.append([torch.as_tensor(x) if is_array(x) else x for x in numbers()])
    made, failures = list[tuple[Any, Subject]](), []
    for arrays in libraries:
        way = partial(Kernel, f, None, arrays, "float64", None)
        try:
            made.append((way, way(numbers())))
        except Exception as failure:
            failures.append(failure)
    if made:
        values = [flatten(subject.values) for _, subject in made]
        if all(agree(values[0], y, 1e-4, 1e-6 * greatest(y)) for y in values):
            return made[0][0]
        came = flatten(results)
        errors = [greatest(deviation(came, y)) if y.shape == came.shape else np.inf for y in values]
        return made[int(np.argmin(errors))][0]
    raise TypeError(
        "the reference must be a NumPy function that this package can differentiate, or a function "
        f"of torch or JAX: {failures[0]}"
    ) from failures[0]
