"""A thing to check: a way to run it, and a way to pull gradients back through the run.

A `Subject` takes and returns arrays, so finite differences and explanations do not know whose
function it is. Its subclasses say how it runs: `GraphSubject` is a function of tensors, which are
differentiated by their own library, `OpSubject` is a single call of an op, and `Kernel` is a
function on arrays of any library, in any precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from ..tree import tree_leaves
from .backend import Backend, Call
from .report import Array, Entry, greatest
from .slopes import Curve, ridders

Gradients = Sequence[Array | None]  # None for an input that no result depends on


class Run(NamedTuple):
    """The results of one run, and the function that pulls gradients back through it.

    `pull(cotangents, wanted=None)` returns the gradients of all inputs, or of those with the
    indices `wanted`.
    """

    values: list[Array]
    pull: Callable[..., Gradients]


class Subject:
    """A function whose gradients are checked, with values for its inputs and random cotangents."""

    run: Callable[[], Run]
    replaced: Callable[[list[Any]], Any]  # the same function with other values for all operands
    argument = "operand"  # the word for an argument, in reports
    operands: list[Any]  # all arguments,
    checked: list[int]  # and the positions of those whose gradients are checked
    precision = 2.0**-53  # the rounding error of 1
    entries: Callable[[], list[Entry]]  # compared with the reference, if there is one
    reference: Any = None  # the subject with the right gradients; None: finite differences

    def __init__(self, names: Iterable[str], inputs: Iterable[Array], rng) -> None:
        self.names, self.rng = list(names), rng
        arrays = [*inputs]
        copies = {id(x): x.copy() for x in arrays}  # one array may be passed twice
        self.inputs = [copies[id(x)] for x in arrays]
        self.originals = [x.copy() for x in self.inputs]  # the function may write into its inputs
        with self.at(self.inputs):
            self.values = [np.array(y) for y in self.run().values]
        self.cotangents = [random_like(y, rng) for y in self.values]
        for c, y in zip(self.cotangents, self.values):
            c[np.isinf(y)] = 0  # infinite outputs, such as blocked scores, have no slope

    @contextmanager
    def at(self, inputs: Sequence[Array]) -> Iterator[None]:
        """Give the inputs other values inside the block."""
        before = self.inputs
        try:
            self.put(inputs)
            yield
        finally:
            self.put(before)

    def put(self, inputs: Sequence[Array]) -> None:
        self.inputs = list(inputs)

    def pull(self, cotangents: Sequence[Array], run: Run | None = None, **options):
        """Return the gradients for copies of the cotangents, from this run or from a new one."""
        seeds = [c.copy(order="K") for c in cotangents]  # a VJP may write into them
        return (run or self.run()).pull(seeds, **options)

    def pulled(self, cotangents: Sequence[Array]) -> list[Array]:
        """Return the results and the gradients of one run."""
        run = self.run()
        return results_of(self, run.values, self.pull(cotangents, run))

    # ---- slopes; results are flattened and concatenated

    def moved(self, which: int, step) -> Array:
        """Return the results with one input moved by a step, or NaN if the function rejects it."""
        size = sum(c.size for c in self.cotangents)
        inputs = [x + step if k == which else x for k, x in enumerate(self.inputs)]
        with suppress(Exception), self.at(inputs):
            results = flatten(self.run().values)
            if results.size == size:
                return results
        return np.full(size, np.nan)

    def along(self, which: int, direction: Array) -> Curve:
        """Return the results as a function of a step along a direction of one input."""
        return Curve(lambda step: self.moved(which, step * direction))

    def total(self, values: Array, norm=np.sum) -> float:
        """Return the sum of cotangent * value, or another norm of these products."""
        c = flatten(self.cotangents)
        return float(norm(np.where(c == 0, 0, c * values)))

    def derivative(self, which: int, direction: Array) -> tuple[Array, Array]:
        """Return the slope of each result along a direction, and its error, by extrapolation."""
        sizes = np.abs(self.inputs[which])
        usable = sizes[np.isfinite(sizes) & (sizes > 0)]
        typical = float(np.median(usable)) if usable.size else 1.0
        moving = greatest(sizes * (direction != 0)) or typical
        h = 2.0 ** np.floor(np.log2(0.2 * max(moving, typical, 1e-3)))  # keeps x + h exact
        smallest = min(1e-9 * min(moving, typical), 1e-3)
        return ridders(self.along(which, direction), float(h), smallest)

    # ---- Jacobians

    def unit(self, which: int, flat: int) -> Array:
        """Return the unit vector for one element of an input."""
        direction = np.zeros(self.inputs[which].shape)
        direction.flat[flat] = 1
        return direction

    def jacobian(self, which: int) -> Array:
        """Return d(all results) / d(one flattened input), from the reference or by differences."""
        if self.reference is not None:
            return self.reference.jacobian_by_vjps(which)
        units = (self.unit(which, flat) for flat in range(self.inputs[which].size))
        return np.stack([self.derivative(which, unit)[0] for unit in units], axis=-1)

    def jacobian_by_vjps(self, which: int) -> Array:
        """Return the same Jacobian from the VJPs, with one unit vector g at a time."""
        rows, run, zeros = [], self.run(), [np.zeros(c.shape) for c in self.cotangents]
        for c in zeros:
            for flat in range(c.size):
                c.flat[flat] = 1
                rows.append(results_of(self, [], self.pull(zeros, run))[which])
                c.flat[flat] = 0
        return np.stack(rows).reshape(len(rows), -1)


class GraphSubject(Subject):
    """A function of tensors. Changes the values of the tensors in place, and restores them."""

    def __init__(self, call, tensors, backend: Backend, rng) -> None:
        self.call, self.backend, self.tensors = call, backend, list(tensors.values())
        super().__init__(tensors, map(backend.value, self.tensors), rng)

    def put(self, inputs: Sequence[Array]) -> None:
        super().put(inputs)
        for t, x in zip(self.tensors, inputs):
            self.backend.put(t, x)

    def outputs(self):
        """Run the function, and return its floating-point tensors."""
        result = self.call()
        tensors = [t for t in tree_leaves(result) if self.backend.is_float(t)]
        if not tensors:
            text = "the function must return a floating-point tensor, or a tuple with one, not "
            raise TypeError(f"{text}{describe(result)}. Do not leave the graph with .numpy().")
        return tensors

    def run(self) -> Run:
        outputs = self.outputs()
        return Run([self.backend.value(t) for t in outputs], partial(self._pull, outputs))

    def _pull(self, outputs, cotangents, wanted=None) -> Gradients:
        tensors = self.tensors if wanted is None else [self.tensors[k] for k in wanted]
        return self.arrays(self.backend.gradient(outputs, tensors, cotangents))

    def arrays(self, tensors) -> Gradients:
        return [None if t is None else np.array(self.backend.value(t), float) for t in tensors]

    def hooked(self) -> bool:
        """Return whether a hook changes a gradient in a backward pass."""
        backend, outputs = self.backend, self.outputs()
        return backend.gradient(outputs, self.tensors, self.cotangents, backend.hooked) is True

    def traced(self) -> list[Call]:
        """Run the function, and return a list of the ops that run."""
        with self.backend.watch() as calls:
            self.run()
        return calls


class OpSubject(GraphSubject):
    """A single call of an op, on leaves with the values of its operands, or with other values."""

    def __init__(self, call: Call, backend: Backend, operands=None) -> None:
        value = lambda x: backend.value(x) if isinstance(x, backend.kind) else x
        self.op_call, self.operands = call, [copy(value(x)) for x in operands or call.inputs]
        leaves, self.checked = list(self.operands), []
        for i, x in enumerate(call.inputs):
            if isinstance(x, backend.kind):
                leaves[i] = backend.leaf(self.operands[i], like=x)
                if backend.wants_gradient(x) and backend.dtype(x) == np.float64:
                    self.checked.append(i)
        run = lambda: call.op(*leaves, **call.settings)
        tensors = {f"operand {i}": leaves[i] for i in self.checked}
        super().__init__(run, tensors, backend, np.random.default_rng(9))

    def replaced(self, operands) -> OpSubject:
        return OpSubject(self.op_call, self.backend, operands)


def flatten(arrays: Sequence[Array]) -> Array:
    """Return the elements of all arrays in one."""
    return np.concatenate([np.ravel(a) for a in arrays])


def results_of(f: Subject, values: Sequence[Array], gradients: Gradients) -> list[Array]:
    """Return values and gradients as one list, with zeros for missing gradients."""
    return [*values, *(np.zeros(x.shape) if g is None else g for x, g in zip(f.inputs, gradients))]


def random_like(y: Array, rng: np.random.Generator) -> Array:
    """Return normal random numbers in the shape of y."""
    return rng.standard_normal(y.shape)
