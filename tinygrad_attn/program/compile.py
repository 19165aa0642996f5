"""`ta.compile`: run a function and its backward pass as flat NumPy code.

The first call with given shapes and dtypes runs the function, traces it as `ta.source` does, and
compares the results. Later calls run the program, which adds one node for each tracked output.
"""

from __future__ import annotations

import functools
import threading
import types
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import inplace
from ..engine.backward import sweep
from ..engine.graph import Node, Variable, array_of, next_number, tensor_of, tracked
from ..engine.op import Op
from ..engine.run import Listener, context, enable_grad, listening
from ..errors import describe
from ..nn.cache import KeyValueCache
from ..nn.module import Module
from ..tensor import get_default_dtype
from .flat import Changed, Flat, Lowering
from .ir import reached, replaced, rewrite
from .simplify import simplified
from .source import agree, gradients_of, largest_in
from .trace import Trace, gradients, seed_of, stand_in, tracing

PROGRAMS = 8
"""The maximum number of programs for each function. Further kinds of calls run uncompiled."""
INPUTS, RESULTS = (Variable, np.ndarray), (Variable, np.ndarray, np.generic)
VALUES = (bool, int, float, str, type(None), type(...), np.generic)
"""Types whose values are built into the program."""
LEAST = 0.005
"""Smaller numbers are compared with the tolerance for numbers of this size."""
TRACING = threading.RLock()
"""A lock that is held while Tensors contain symbols instead of arrays."""


def compile(f: Any = None, *, check: bool = False) -> Any:
    """Return a version of f that runs as a flat NumPy program from its second call on.

    Its outputs and gradients of every order equal those of f up to rounding. As with jax.jit,
    values other than arguments, parameters and buffers are read only once, during tracing.

    f is a function, a method or a module. For a module, `compile` returns a module of the same
    class with the same attributes. `compile` also works as a decorator.

    Each program handles one kind of call. The kind of a call depends on the shapes and dtypes of
    arrays, the values of other arguments, which Tensors require gradients, `no_grad`, the default
    dtype, and the parameters and `training` flags of the modules that f calls. f can have up to 8
    programs. On the first call of each kind, f runs twice, and its outputs and gradients are
    compared with the program's. With `check=True`, every call is compared, and a difference raises
    RuntimeError.

    f runs uncompiled if it draws random numbers, reads a number from an array in Python, uses a
    library other than NumPy, or already has 8 programs. `.report()` gives the reason. f also runs
    uncompiled in plain mode, under watchers such as `ta.detect_anomaly()`, and when a VJP needs a
    different formula for the given values.

    While a call is being traced, other threads may use the same Tensors only through compiled
    functions. A program never issues NumPy warnings.
    """
    if f is None:
        return functools.partial(compile, check=check)
    if isinstance(f, types.MethodType):  # so that a copy of the object keeps a compiled method
        return types.MethodType(compile(f.__func__, check=check), f.__self__)
    programs = Programs(f, check)
    if isinstance(f, Module):
        anew = functools.partial(compile, check=check), (f,)  # for copies and pickles
        space = {"__call__": programs.call, "report": programs.report, "__reduce__": lambda _: anew}
        made: Any = object.__new__(type(type(f).__name__, (type(f),), space))
        made.__dict__ = f.__dict__
        return made

    @functools.wraps(f)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return programs.call(*args, **kwargs)

    compiled.report = programs.report  # type: ignore[attr-defined]
    return compiled


class Programs:
    """A function and its programs, one for each kind of call."""

    def __init__(self, f: Any, check: bool) -> None:
        self.f, self.check = f, check
        self.entries: list[Entry] = []

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of f, computed by a program if possible."""
        if context.plain or context.listeners:
            return self.f(*args, **kwargs)
        call = Nested((args, kwargs), INPUTS)
        with TRACING:
            entry = next((e for e in self.entries if e.form == call.form and e.fits()), None)
            if entry is None and len(self.entries) < PROGRAMS:
                entry = Entry(self.f, call)
                y = entry.first(call, args, kwargs)
                self.entries.append(entry)
                return y
        with suppress(Changed):
            if entry is not None and not entry.reason:
                y = entry.run(call)
                if self.check:
                    with TRACING:
                        entry.compare(call, self.f(*args, **kwargs), y)
                return y
        return self.f(*args, **kwargs)

    def report(self) -> list[str]:
        """Return one line per kind of call, with the size of its program or why it has none."""
        other = [f"(other arguments): not compiled: f already has {PROGRAMS} programs"]
        return [*map(str, self.entries)] + (other if len(self.entries) == PROGRAMS else [])


class Nested:
    """Nested values, split into leaves and a form (structure, shapes, dtypes, other values)."""

    def __init__(self, value: Any, arrays: tuple[type, ...]) -> None:
        self.arrays = arrays
        self.leaves: list[Any] = []
        self.kinds: list[Any] = []
        self.places = replaced(value, self.place)
        self.form = repr(self.places), self.kinds, context.recording, get_default_dtype()

    def place(self, x: Any) -> int:
        """Add x to the leaves and return its index."""
        self.leaves.append(x)
        if isinstance(x, self.arrays):
            array = array_of(x)
            self.kinds.append((isinstance(x, Variable), array.shape, array.dtype, tracked(x)))
        else:
            self.kinds.append((type(x), repr(x) if isinstance(x, VALUES) else id(x)))
        return len(self.leaves) - 1

    def filled(self, leaves: list[Any]) -> Any:
        return replaced(self.places, leaves.__getitem__)

    def applied(self, f: Any, leaves: list[Any]) -> Nested:
        """Call f with these leaves as its arguments, and return its output as a Nested."""
        args, kwargs = self.filled(leaves)
        return Nested(f(*args, **kwargs), RESULTS)


class Entry(Listener):
    """One kind of call, with its program or the reason why it has none."""

    def __init__(self, f: Any, call: Nested) -> None:
        self.f, self.form, self.reason = f, call.form, ""
        # Forms contain the ids of these objects, which are therefore kept alive.
        self.roots = [f, *(x for x in call.leaves if not isinstance(x, INPUTS))]
        self.tensors: dict[Any, None] = {}  # tracked Tensors from outside f
        self.outer, self.begin = context.scope, next_number()

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Record the modules that run, and the tracked inputs that existed before the call."""
        scope = context.scope
        while scope is not self.outer:
            self.roots.append(scope.module)
            scope = scope.outer
        for x in inputs:
            if tracked(x) and (x._node is None or x._node.number < self.begin):
                self.tensors[x] = None

    def fits(self) -> bool:
        """Return whether all parameters, buffers and `training` flags are unchanged."""
        same = all(space.get(name) is x for space, name, x in self.attributes)
        return same and self.kinds == self.kinds_now()

    def kinds_now(self) -> list[Any]:
        """Return the kinds of the Tensors that f reads besides its arguments."""
        return [(t._tracked, t._data.shape, t._data.dtype) for t in self.params]

    def __str__(self) -> str:
        n = not self.reason and self.flat.text.count("\n    ")
        what = f"{n} lines of NumPy" if n else f"not compiled: {self.reason}"
        return f"({self.arguments}): {what}"

    def first(self, call: Nested, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the first call, write the program, and return the output."""
        self.arguments = ", ".join(map(describe, (*args, *kwargs.values())))
        with listening(self):
            y = self.f(*args, **kwargs)
        modules = {m: None for x in self.roots if isinstance(x, Module) for m in x.modules()}
        self.attributes = [
            (vars(m), name, x)
            for m in modules
            for name, x in vars(m).items()
            if name == "training" or x is None or isinstance(x, (Module, Variable))
        ]
        held = [x for *_, x in self.attributes if isinstance(x, Variable)]
        self.params = [*dict.fromkeys([*self.tensors, *held])]
        try:
            if any(isinstance(x, KeyValueCache) for x in self.roots):
                raise TypeError("its key/value cache grows, so shapes differ from call to call")
            self.write(call)
            mine = self.run(call)
            self.compare(call, y, mine)
            y = mine
        except Exception as error:
            reason = (str(error) or repr(error)).replace("ta.source", "ta.compile")
            self.reason = reason.rstrip(".")
        self.kinds = self.kinds_now()
        return y

    def write(self, call: Nested) -> None:
        """Trace the function, and write a program for its outputs and gradients."""
        found, given = Trace(), [*call.leaves]
        for i, x in enumerate(given):
            if isinstance(x, INPUTS):
                given[i] = stand_in(found, f"x{i}", x)
        tensors = {f"x{i}": t for i, t in enumerate(given + self.params) if isinstance(t, Variable)}
        leaves = {t: n for n, t in tensors.items() if t._tracked}
        by: list[Any] = []
        with tracing(found, tensors):
            self.result = call.applied(self.f, given)
            outputs = list(map(found.operand, self.result.leaves))
            for i, y in enumerate(self.result.leaves):
                if not isinstance(y, (*RESULTS, *VALUES)):
                    raise TypeError(f"it returns {describe(y)}")
                op, each = None, {}
                if tracked(y):
                    op = Program(self, i)
                    each = gradients(found, y, seed_of(found, f"d_output{i}", y), leaves)
                by.append(each)
                self.result.leaves[i] = isinstance(y, Variable), op
        made = rewrite(simplified([outputs, by, found.checks]), Lowering())
        used = {e.name for e in reached(made)}.union(*made[1])
        names = [n for n in found.inputs if n in used and n[0] == "x"]
        count, places = len(given), [int(n[1:]) for n in names]
        self.given = [i for i in places if i < count]
        self.params = [self.params[i - count] for i in places if i >= count]
        self.plain_given = not all(isinstance(x, Variable) for x in self.inputs(call))
        self.flat = Flat(names, *made)

    def inputs(self, call: Nested) -> list[Any]:
        """Return the inputs of the program: arguments, and Tensors from outside f."""
        return [call.leaves[i] for i in self.given] + self.params

    def run(self, call: Nested) -> Any:
        """Run the program, and attach a node to each differentiable output."""
        with TRACING:  # wait until no other thread has symbols in these Tensors
            inputs = self.inputs(call)
            arrays = list(map(array_of, inputs))
        with np.errstate(all="ignore"):
            values, saved = self.flat.forward(arrays)
        kept = tuple(x if tracked(x) else a for x, a in zip(inputs, arrays))
        for i, (is_tensor, op) in enumerate(self.result.leaves):
            node = op and Node(op, kept, {}, (saved, arrays, call), context.scope)
            if node and (self.plain_given or inplace.exposed):
                inplace.protect(node, None)
            if is_tensor:
                values[i] = tensor_of(values[i], node)
        return self.result.filled(values)

    def compare(self, call: Nested, y: Any, mine: Any) -> None:
        """Raise RuntimeError if outputs or gradients differ from those of the function."""
        theirs, ours = Nested(y, RESULTS), Nested(mine, RESULTS)
        alike = theirs.form == ours.form
        if alike:
            inputs = [*dict.fromkeys(filter(tracked, self.inputs(call)))]
            ends = [[*filter(tracked, each.leaves)] for each in (ours, theirs)]
            draw = np.random.default_rng(0).standard_normal
            seeds = [draw(x.shape).astype(x.dtype) for x in ends[0]]
            found, expected = (gradients_of(each, inputs, seeds) for each in ends)
            # If all terms of a gradient cancel, only rounding error is left.
            size = max(map(largest_in, expected), default=0.0) + LEAST
            a, b = ([*map(array_of, each.leaves)] for each in (ours, theirs))
            alike = agree(a, b, LEAST) and agree(found, expected, size)
        if not alike:
            raise RuntimeError(
                "the program and the function return different numbers. If the function draws "
                "random numbers or keeps state between calls, pass these as arguments."
            )


class Program(Op):
    """The op that computes one output of a program."""

    def __init__(self, entry: Entry, place: int) -> None:
        super().__init__(lambda *inputs: entry.flat.forward(inputs)[0][place])
        self.__name__ = f"compiled {getattr(entry.f, '__name__', type(entry.f).__name__)}"
        self.entry, self.place = entry, place

    def pull(self, g: Any, y: Any, node: Node, inputs: Any, needs: Any) -> Any:
        """Return the contribution to each input that needs a gradient, and None for the others."""
        saved, arrays, call = node.saved
        if isinstance(g, Variable):  # for a second derivative, run the function itself again
            if not self.entry.fits():
                raise RuntimeError(
                    "a second derivative runs the compiled function again, but its parameters or "
                    "`training` flags were replaced. Compute the derivative before replacing them."
                )
            with TRACING, enable_grad():
                y = call.applied(self.entry.f, call.leaves).leaves[self.place]
            leaves = [x for x, need in zip(inputs, needs) if need]
            by = sweep([y], [g], wanted=leaves, create_graph=True, stop=True)
            return [by.pop(x, None) if need else None for x, need in zip(inputs, needs)]
        with np.errstate(all="ignore"):
            found = self.entry.flat.backward[self.place](arrays, saved, g)
        return [d if need else None for d, need in zip(found, needs)]
