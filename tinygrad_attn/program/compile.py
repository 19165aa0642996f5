"""`ta.compile`: a function that runs as flat NumPy functions, forwards and backwards.

The first call with arguments of some shapes and dtypes runs the function, traces it as `ta.source`
does, and compares the two. Later calls run the program. Between its forward and its backward
function lies an op, whose node holds the inputs and what the backward function needs.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ..engine import (
    Node,
    Op,
    Variable,
    Watcher,
    array_of,
    context,
    enable_grad,
    inplace,
    no_grad,
    plain,
    sweep,
    tensor_of,
    tracked,
    watching,
)
from ..errors import describe
from ..nn.cache import KeyValueCache
from ..nn.module import Module
from ..tensor import get_default_dtype
from .flat import Changed, Flat
from .ir import BACKWARD, reached, rewrite
from .lower import Lowering
from .simplify import simplified
from .source import largest_in, same
from .symbol import Symbol, is_symbol
from .trace import (
    Trace,
    expressed,
    input_symbol,
    only,
    parameters_as_symbols,
    random_states,
)

PROGRAMS = 8
"""Kinds of call for which a function has programs. Calls of further kinds run as they are."""
VALUES = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type, slice, np.dtype)
"""Types whose values are part of the program."""
TRACING = threading.RLock()
"""Held while symbols are the arrays of Tensors."""


class Signature(NamedTuple):
    """A line of a report: the arguments, whether a program runs, its number of lines, and if none
    runs, the reason.
    """

    arguments: str
    compiled: bool
    lines: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.lines} lines of NumPy" if self.compiled else f"not compiled: {self.reason}"
        return f"({self.arguments}): {what}"


def compile(f: Any = None, *, check: bool = False) -> Any:
    """Return f as a callable that runs as a flat NumPy program from its second call on.

    Outputs and gradients agree with those of f up to rounding. Whatever f reads beside its
    arguments, parameters and buffers is read once, when it is traced, as with jax.jit.

    f is a function, a method or a module; also a decorator. A module becomes a module of the same
    class with the same attributes. Gradients flow as usual: `backward()`, `ta.grad`,
    `retain_graph`, and `create_graph`, for which f itself is differentiated.

    A program is for one kind of call: shapes and dtypes of arrays, values of other arguments, which
    Tensors require gradients, `no_grad`, the default dtype, and of the modules that f calls the
    identity of their parameters and `training`. f has up to 8 programs. At the first call of a kind
    f runs twice, and its outputs and gradients are compared with the program's. With `check=True`
    this is done at every call, and a difference raises RuntimeError.

    f runs as it is, and `.report()` gives the reason, where it draws random numbers, reads a number
    of an array in Python, leaves NumPy, or was called in more than 8 ways. It also does in plain
    mode and under watchers such as `ta.detect_anomaly()`. Where the package itself chooses between
    formulas by the numbers, f runs as it is for those that call for another choice.

    While a call is traced other threads must not compute with the same Tensors, except by compiled
    functions. NumPy's warnings are not given.
    """
    if f is None:
        return functools.partial(compile, check=check)
    if not callable(f):
        raise TypeError(f"ta.compile takes a function or a module, got {describe(f)}.")
    return wrapped(f, check)


def wrapped(f: Any, check: bool) -> Compiled:
    """An object with the attributes of f; of a module it is a module of the same class."""
    bases: tuple[Any, ...] = (Compiled, type(f)) if isinstance(f, Module) else (Compiled,)
    name = type(f).__name__ if len(bases) > 1 else "Compiled"
    space = {"__slots__": (), "__doc__": f.__doc__, "__module__": getattr(f, "__module__", None)}
    made: Any = object.__new__(type(bases[-1])(name, bases, space))
    with suppress(AttributeError, TypeError):  # a bound method has none
        made.__dict__ = f.__dict__
    object.__setattr__(made, "_programs", Programs(f, check))
    return made


class Compiled:
    """What `ta.compile` returns; called as the function is."""

    __slots__ = ("_programs", "__dict__", "__weakref__")
    __wrapped__ = property(lambda self: self._programs.f)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs.f, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = instance is not None and not isinstance(self, Module)
        return types.MethodType(self, instance) if bound else self

    def __reduce__(self) -> Any:
        own = self._programs
        named = getattr(sys.modules.get(self.__module__), getattr(own.f, "__name__", ""), None)
        return own.f.__name__ if named is self else (wrapped, (own.f, own.check))

    def __repr__(self) -> str:
        return f"<compiled {self._programs.f!r}>"

    def report(self) -> list[Signature]:
        """For each kind of call whether a program runs, and if not, the reason."""
        return self._programs.report()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own: Programs = self._programs
        if context.plain or context.watchers:
            return own.f(*args, **kwargs)
        call = Call(args, kwargs)
        entry = own.entry(call)
        return own.first(call) if entry is None else entry.answer(call)


class Programs:
    """A function and its programs."""

    def __init__(self, f: Any, check: bool) -> None:
        self.f, self.check, self.too_many = f, check, False
        self.entries: dict[Any, list[Entry]] = {}  # by the signature of the arguments

    def entry(self, call: Call) -> Entry | None:
        """The entry of this kind of call."""
        return next((e for e in self.entries.get(call.spec, ()) if e.fits()), None)

    def first(self, call: Call) -> Any:
        """The output of a call of a new kind."""
        with TRACING:
            call = Call(call.args, call.kwargs)  # without symbols of another thread
            entry = self.entry(call)
            if entry is not None:
                return entry.answer(call)
            if sum(map(len, self.entries.values())) < PROGRAMS:
                entry = Entry(self, call)
                y = entry.first(call)
                self.entries.setdefault(call.spec, []).append(entry)
                return y
        self.too_many = True
        return call.of(self.f)

    def report(self) -> list[Signature]:
        """A line for each kind of call."""
        every = [e for entries in list(self.entries.values()) for e in entries]
        found = [Signature(e.arguments, not e.reason, e.lines, e.reason) for e in every]
        reason = f"it is called in more than {PROGRAMS} ways"
        return found + [Signature("other arguments", False, 0, reason)] * self.too_many


class Call:
    """The arguments of one call, and their signature."""

    __slots__ = ("args", "kwargs", "spec", "tensors", "arrays", "objects", "containers")

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs, self.containers = args, kwargs, False
        self.tensors: list[Any] = []
        self.arrays: list[Any] = []
        self.objects: list[Any] = []
        self.spec = (
            *(context.recording, get_default_dtype()),
            *map(self.look, args),
            *((name, self.look(x)) for name, x in kwargs.items()),
        )

    def look(self, x: Any) -> Any:
        """What has to be the same of an argument."""
        kind = type(x)
        if isinstance(x, Variable):
            data = x._data
            return place(x, self.tensors) or (data.shape, data.dtype, x._tracked)
        if kind is np.ndarray:
            return place(x, self.arrays) or ("array", x.shape, x.dtype)
        if isinstance(x, (*VALUES, np.generic)):
            exact = kind in (float, complex, slice) or isinstance(x, np.generic)
            return kind, repr(x) if exact else x
        if kind in (tuple, list, dict) or hasattr(x, "_fields"):
            self.containers = True
            return (kind, *map(self.look, x.items() if kind is dict else x))
        self.objects.append(x)
        return kind, id(x)

    def of(self, f: Any) -> Any:
        """What f returns for these arguments."""
        return f(*self.args, **self.kwargs)

    def copied(self) -> Call:
        """The same call, with lists and dicts as they are now."""
        if self.containers:
            self.args, self.kwargs = nested((self.args, self.kwargs), lambda x: x)
        return self


def place(x: Any, known: list[Any]) -> Any:
    """Where x is known already, else None; it is from now on."""
    for i, other in enumerate(known):
        if other is x:
            return "again", i
    known.append(x)
    return None


def nested(a: Any, f: Callable[[Any], Any]) -> Any:
    """f of each value in nested tuples, named tuples, lists and dicts."""
    kind = type(a)
    if kind is dict:
        return {k: nested(v, f) for k, v in a.items()}
    if kind not in (tuple, list) and not hasattr(kind, "_fields"):
        return f(a)
    parts = [nested(x, f) for x in a]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


class Output:
    """The structure of what a function returns, and the Tensors and arrays in it."""

    def __init__(self, y: Any) -> None:
        self.values: list[Any] = []
        self.structure = nested(y, self.look)

    def look(self, x: Any) -> Any:
        """A place in `values`, or the value itself."""
        if isinstance(x, (Variable, np.ndarray, np.generic)):
            self.values.append(x)
            return Place(len(self.values) - 1)
        if isinstance(x, VALUES):
            return x
        raise TypeError(f"it returns {describe(x)}")

    def kinds(self) -> list[tuple[bool, bool]]:
        """Of each value, whether it is a Tensor and is differentiated."""
        return [(isinstance(x, Variable), tracked(x)) for x in self.values]

    def parts(self) -> list[Any]:
        """The Tensors that are differentiated."""
        return [x for x in self.values if tracked(x)]

    def built(self, values: list[Any]) -> Any:
        """The same structure of other values."""
        if type(self.structure) is Place:
            return values[0]
        return nested(self.structure, lambda x: values[x] if type(x) is Place else x)


class Place(int):
    """Stands for a Tensor or an array in the structure of an output."""


class Seen(Watcher):
    """Collects the modules that are called, and the Tensors from outside that ops differentiate."""

    def __init__(self) -> None:
        self.modules: dict[int, Module] = {}
        self.tensors: dict[int, Any] = {}
        self.outer = context.scope
        self.begin = Node(None, (), {}, None, None).number

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Note the modules that run and the inputs that were there before."""
        scope = context.scope
        while scope is not self.outer:
            self.modules[id(scope.module)] = scope.module
            scope = scope.outer
        for x in inputs:
            if tracked(x) and (x._node is None or x._node.number < self.begin):
                self.tensors[id(x)] = x


def modules_of(f: Any) -> list[Module]:
    """The modules that a function is, belongs to or refers to by name."""
    found = [f, getattr(f, "__self__", None)]
    with suppress(TypeError, ValueError):  # no function of Python's, or a name without a value yet
        outside = inspect.getclosurevars(f)
        found += [*outside.nonlocals.values(), *outside.globals.values()]
    return [x for x in found if isinstance(x, Module)]


class Entry:
    """One kind of call: a program, or the reason why there is none."""

    def __init__(self, owner: Programs, call: Call) -> None:
        self.f, self.check = owner.f, owner.check
        self.name = getattr(self.f, "__name__", type(self.f).__name__)
        words = [*map(describe, call.args), *(f"{k}={describe(x)}" for k, x in call.kwargs.items())]
        self.arguments, self.lines, self.reason = ", ".join(words), 0, ""
        self.objects: list[Any] = []  # kept, so that no other object gets the id
        self.attributes: list[Any] = []  # parameters, buffers, modules and `training`
        self.params: list[Any] = []  # Tensors that f reads beside its arguments
        self.kinds: list[Any] = []

    def fits(self) -> bool:
        """Whether parameters, buffers and `training` are as they were."""
        return all(space.get(name) is x for space, name, x in self.attributes) and self.kinds == [
            (t._tracked, t._data.shape, t._data.dtype) for t in self.params
        ]

    def first(self, call: Call) -> Any:
        """The output of the first call, from which the program is made."""
        if any(isinstance(x, KeyValueCache) for x in call.objects):
            self.reason = "its key/value cache grows, so that no two calls have the same shapes"
            return call.of(self.f)
        self.objects = call.objects
        seen, before = Seen(), random_states()
        with watching(seen):
            y = call.of(self.f)
        params = self.outside(seen)
        try:
            if random_states() != before:
                raise TypeError("it draws random numbers")
            self.write(call, params)
            mine = self.run(call)
            self.compare(y, mine)
            return mine
        except Exception as error:
            reason = str(error) or type(error).__name__
            self.reason = reason.replace("ta.source", "ta.compile").rstrip(".")
            return y
        finally:
            self.kinds = [(t._tracked, t._data.shape, t._data.dtype) for t in self.params]

    def outside(self, seen: Seen) -> list[Any]:
        """The Tensors that f may read beside its arguments, and the attributes that hold them."""
        roots = [*modules_of(self.f), *seen.modules.values()]
        roots += [x for x in self.objects if isinstance(x, Module)]
        params = dict(seen.tensors)
        for module in {id(m): m for root in roots for m in root.modules()}.values():
            for name, x in vars(module).items():
                if name == "training" or x is None or isinstance(x, (Module, Variable)):
                    self.attributes.append((vars(module), name, x))
            params |= {id(t): t for t in [*module.parameters(False), *module.buffers(False)]}
        return list(params.values())

    # ---- the program

    def write(self, call: Call, params: list[Any]) -> None:
        """Trace the function and write the program."""
        found, outputs, gradients = self.traced(call, params)
        self.sizes = [
            max((largest_in(x.value) for x in getattr(e, "operands", ())), default=0.0)
            for e in outputs
        ]
        made = simplified([outputs, gradients, found.checks])
        made[2] = [e for e in made[2] if e.args[0].kind not in ("constant", "number")]
        made = rewrite(made, Lowering())
        used = {e.name for e in reached(made) if e.kind == "input"}
        names = [n for n in found.inputs if n in used and n[0] != "d"]
        self.leaf = {n: i for i, n in enumerate(names)}
        self.params = [params[int(n[1:])] for n in names if n[0] == "p"]
        self.given = [(n[0], int(n[1:])) for n in names if n[0] != "p"]
        self.flat = Flat(names, *made)
        self.lines = "".join(self.flat.texts).count("\n    ")
        self.ops = [Program(self, i) for i in range(len(gradients))]

    def traced(self, call: Call, params: list[Any]) -> tuple[Trace, list[Any], list[Any]]:
        """Run the function on symbols: its trace, outputs, and gradients by each output."""
        found, seen, symbols, gradients = Trace(), Seen(), {}, []
        leaves: dict[str, Any] = {}
        for i, t in enumerate(call.tensors):
            symbol = input_symbol(found, f"x{i}", np.asarray(t._data))
            leaves[f"x{i}"] = symbols[id(t)] = tensor_of(symbol)
            symbols[id(t)]._tracked = t._tracked
        for i, a in enumerate(call.arrays):
            symbols[id(a)] = input_symbol(found, f"a{i}", a)
        args, kwargs = nested((call.args, call.kwargs), lambda x: symbols.get(id(x), x))
        named = {f"p{i}": t for i, t in enumerate(params)}
        with parameters_as_symbols(found, named), only(seen), plain():
            y = Output(self.f(*args, **kwargs))
            for x in seen.tensors.values():
                if not is_symbol(x._data):
                    raise TypeError(f"it makes {describe(x)}, which requires a gradient")
            outputs = expressed(found, y.values)
            leaves = {n: t for n, t in (leaves | named).items() if t._tracked}
            found.listing.phase = BACKWARD
            for i, part in enumerate(y.parts()):
                example = np.random.default_rng(i).standard_normal(part.shape)
                seed = input_symbol(found, f"d_output{i}", np.asarray(example, part.dtype))
                with no_grad():
                    every = list(leaves.values())
                    by = sweep([part], [seed], wanted=every, retain_graph=True, stop=True)
                gradients.append(expressed(found, {n: by[t] for n, t in leaves.items() if t in by}))
            self.kinds_of_output, y.values, self.output = y.kinds(), [], y
        for refused in found.listing.refused:  # which the function, or a VJP, has caught
            raise refused
        return found, outputs, gradients

    def compare(self, y: Any, mine: Any) -> None:
        """Raise RuntimeError unless outputs and gradients are those of the function itself."""
        theirs, ours = Output(y), Output(mine)
        pairs = zip(ours.values, theirs.values, self.sizes)
        if theirs.kinds() != ours.kinds() or not all(
            same(array_of(a), array_of(b), size) for a, b, size in pairs
        ):
            raise RuntimeError(
                "the program gives other numbers than the function. Does the function draw random "
                "numbers, or keep something between calls?"
            )
        draw = np.random.default_rng(0).standard_normal
        seeds = [draw(x.shape).astype(x.dtype)[()] for x in theirs.parts()]
        leaves = {id(x): x for part in ours.parts() for x in part._node.inputs if tracked(x)}
        wanted = list(leaves.values())
        with no_grad(), np.errstate(all="ignore"):
            expected, found = (
                sweep(output.parts(), seeds, wanted=wanted, retain_graph=True, stop=True)
                for output in (theirs, ours)
            )
        size = max(map(largest_in, expected.values()), default=0.0)
        for x in wanted:
            zero = np.zeros(x.shape, x.dtype)
            a, b = (np.asarray(by.get(x, zero)) for by in (found, expected))
            # Where all contributions cancel, only the rounding errors of the seeds are left.
            if not same(a, b, max(size, float(np.cbrt(np.finfo(x.dtype).eps)))):
                raise RuntimeError("the program gives other gradients than the function")

    # ---- calls

    def answer(self, call: Call) -> Any:
        """The output of a later call."""
        if self.reason:
            return call.of(self.f)
        try:
            mine = self.run(call)
        except Changed:
            return call.of(self.f)
        if self.check:
            with TRACING:
                self.compare(call.of(self.f), mine)
        return mine

    def run(self, call: Call) -> Any:
        """The output of the program, in which each differentiated Tensor has a node."""
        inputs = [(call.tensors if kind == "x" else call.arrays)[i] for kind, i in self.given]
        inputs += self.params
        arrays = settled(inputs, list(map(array_of, inputs)))
        with np.errstate(all="ignore"):
            values, saved = self.flat.forward(*arrays)
        if self.ops:
            kept = tuple(x if tracked(x) else a for x, a in zip(inputs, arrays))
            saved = saved, call.copied()
        ops = iter(self.ops)
        for i, (is_tensor, is_part) in enumerate(self.kinds_of_output):
            if is_part:
                node = Node(next(ops), kept, {}, saved, context.scope)
                inplace.protect(node, None)
                values[i] = tensor_of(values[i], node)
            elif is_tensor:
                values[i] = tensor_of(values[i])
        return self.output.built(values)

    def again(self, call: Call) -> list[Any]:
        """The outputs of the function itself that are differentiated."""
        if not self.fits():
            raise RuntimeError(
                "a compiled function is called again to differentiate its gradient, and its "
                "parameters or training have been replaced since the first call. Do it before."
            )
        with TRACING, enable_grad():
            return Output(call.of(self.f)).parts()


class Program(Op):
    """The op that computes one output, with the backward function as its VJP."""

    def __init__(self, entry: Entry, which: int) -> None:
        super().__init__(lambda *inputs: entry.flat.forward(*inputs)[0][which])
        self.__name__ = f"compiled {entry.name}"
        self.entry, self.which = entry, which

    def pull(self, g: Any, y: Any, node: Node, inputs: Any, needs: Any) -> Any:
        """The contributions to the inputs that need one."""
        entry, (saved, call) = self.entry, node.saved
        recorded = isinstance(g, Variable)
        if not recorded:
            leaf = entry.leaf
            wanted = tuple(n for n in entry.flat.gradients[self.which] if needs[leaf[n]])
            backward = entry.flat.backward(self.which, wanted)
            with suppress(Changed), np.errstate(all="ignore"):
                gradients = backward(g, saved, settled(node.inputs, inputs))
                by = {leaf[n]: d for n, d in zip(wanted, gradients)}
                return [by.get(i) for i in range(len(inputs))]
        leaves = [x for x, need in zip(node.inputs, needs) if need]
        root = entry.again(call)[self.which]
        found = sweep([root], [g], wanted=leaves, create_graph=recorded, stop=True)
        return [found.pop(x, None) if need else None for x, need in zip(node.inputs, needs)]


def settled(inputs: Any, arrays: list[Any]) -> list[Any]:
    """The arrays, or once another thread has traced, those in the place of its symbols."""
    if Symbol not in map(type, arrays):
        return arrays
    with TRACING:
        return list(map(array_of, inputs))
