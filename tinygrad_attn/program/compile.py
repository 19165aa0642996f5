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
from collections.abc import Callable, Iterator
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
from .ir import BACKWARD, FORWARD, Expression, reached, rewrite
from .lower import Lowering
from .simplify import simplified
from .source import largest_in, same
from .symbol import Symbol, is_symbol
from .trace import Trace, input_symbol, only, parameters_as_symbols, random_states

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
        for entry in own.entries.get(call.spec, ()):
            if entry.fits():
                return entry.answer(call)
        return own.first(call)


class Programs:
    """A function and its programs."""

    def __init__(self, f: Any, check: bool) -> None:
        self.f, self.check, self.too_many = f, check, False
        self.entries: dict[Any, list[Entry]] = {}  # by the signature of the arguments

    def first(self, call: Call) -> Any:
        """The output of a call of a new kind."""
        if sum(map(len, self.entries.values())) >= PROGRAMS:
            self.too_many = True
            return self.f(*call.args, **call.kwargs)
        with TRACING:
            call = Call(call.args, call.kwargs)  # not while another thread traces
            for entry in self.entries.get(call.spec, ()):
                if entry.fits():
                    return entry.answer(call)
            entry = Entry(self, call)
            y = entry.first(call)
            self.entries.setdefault(call.spec, []).append(entry)
        return y

    def report(self) -> list[Signature]:
        """A line for each kind of call."""
        found = [
            Signature(e.arguments, not e.reason, e.lines, e.reason)
            for entries in list(self.entries.values())
            for e in entries
        ]
        if self.too_many:
            reason = f"it is called in more than {PROGRAMS} ways"
            found.append(Signature("other arguments", False, 0, reason))
        return found


class Call:
    """The arguments of one call, and their signature."""

    __slots__ = ("args", "kwargs", "spec", "tensors", "arrays", "objects", "containers")

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.tensors: list[Any] = []
        self.arrays: list[Any] = []
        self.objects: list[Any] = []
        self.containers = False
        spec: list[Any] = [context.recording, get_default_dtype()]
        spec += [self.look(x) for x in args]
        for name, x in kwargs.items():
            spec += (name, self.look(x))
        self.spec = tuple(spec)

    def look(self, x: Any) -> Any:
        """What has to be the same of an argument."""
        if isinstance(x, Variable):
            data = x._data
            return place(x, self.tensors) or (data.shape, data.dtype, x._tracked)
        kind = type(x)
        if kind is np.ndarray:
            return place(x, self.arrays) or ("array", x.shape, x.dtype)
        if isinstance(x, VALUES):
            return kind, repr(x) if kind in (float, complex, slice) else x
        if isinstance(x, np.generic):
            return kind, repr(x)
        if kind in (tuple, list) or hasattr(x, "_fields"):
            self.containers = True
            return (kind, *map(self.look, x))
        if kind is dict:
            self.containers = True
            return (kind, *((self.look(k), self.look(v)) for k, v in x.items()))
        if kind is not KeyValueCache:
            self.objects.append(x)
        return (kind, id(x)) if kind is not KeyValueCache else kind

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
    if isinstance(a, tuple) and hasattr(a, "_fields"):
        return kind(*(nested(x, f) for x in a))
    if kind in (tuple, list):
        return kind(nested(x, f) for x in a)
    if kind is dict:
        return {k: nested(v, f) for k, v in a.items()}
    return f(a)


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

    def built(self, values: list[Any]) -> Any:
        """The same structure of other values."""
        if type(self.structure) is Place:
            return values[0]
        return nested(self.structure, lambda x: values[x] if type(x) is Place else x)


class Place(int):
    """Stands for a Tensor or an array in the structure of an output."""


# ---- what a function reads beside its arguments


class Seen(Watcher):
    """Collects the modules that are called, and the Tensors that ops differentiate."""

    def __init__(self) -> None:
        self.modules: dict[int, Module] = {}
        self.tensors: dict[int, Any] = {}
        self.outer = context.scope
        self.begin = Node(None, (), {}, None, None).number

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Note the outermost module of this call and the tensors from outside."""
        scope = context.scope
        while scope is not self.outer:
            self.modules[id(scope.module)] = scope.module
            scope = scope.outer
        for x in inputs:
            if tracked(x) and (x._node is None or x._node.number < self.begin):
                self.tensors[id(x)] = x


class Frozen(Watcher):
    """Raises where a Tensor that requires a gradient would become a constant."""

    def __init__(self, found: Trace) -> None:
        self.found = found

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Check the inputs of an op."""
        for x in inputs:
            if tracked(x) and x._node is None and not is_symbol(x._data):
                error = TypeError(f"it makes {describe(x)}, which requires a gradient")
                self.found.listing.refused.append(error)
                raise error


def modules_of(f: Any) -> Iterator[Module]:
    """The modules that a function is, belongs to or refers to by name."""
    found = [f, getattr(f, "__self__", None)]
    if isinstance(f, functools.partial):
        found += [*f.args, *f.keywords.values()]
        yield from modules_of(f.func)
    with suppress(TypeError, ValueError):  # no function of Python's, or a name without a value yet
        outside = inspect.getclosurevars(f)
        found += [*outside.nonlocals.values(), *outside.globals.values()]
    yield from (x for x in found if isinstance(x, Module))


# ---- a kind of call


class Entry:
    """One kind of call: a program, or the reason why there is none."""

    def __init__(self, owner: Programs, call: Call) -> None:
        self.f, self.check = owner.f, owner.check
        self.name = getattr(self.f, "__name__", type(self.f).__name__)
        words = [*map(describe, call.args), *(f"{k}={describe(x)}" for k, x in call.kwargs.items())]
        self.arguments, self.lines, self.reason = ", ".join(words), 0, ""
        self.objects = call.objects  # kept, so that no other object gets the id
        self.params: list[Any] = []  # Tensors that the function reads beside its arguments
        self.kinds: list[Any] = []
        self.attributes: list[tuple[dict[str, Any], str]] = []
        self.held: list[Any] = []  # their values
        self.ids: list[int] = []

    def fits(self) -> bool:
        """Whether parameters, buffers and `training` are as they were."""
        return [id(space.get(name)) for space, name in self.attributes] == self.ids and [
            kind_of(t) for t in self.params
        ] == self.kinds

    def first(self, call: Call) -> Any:
        """The output of the first call, from which the program is made."""
        if KeyValueCache in map(type, [*call.args, *call.kwargs.values()]):
            self.reason = "its key/value cache grows, so that no two calls have the same shapes"
            return self.f(*call.args, **call.kwargs)
        seen, before = Seen(), random_states()
        with watching(seen):
            y = self.f(*call.args, **call.kwargs)
        self.watch(seen, call)
        try:
            if random_states() != before:
                raise TypeError("it draws random numbers")
            self.write(call)
            mine = self.run(call)
            self.compare(y, mine)
            return mine
        except Exception as error:
            self.reason = str(error).replace("ta.source", "ta.compile").rstrip(".")
            self.reason = self.reason or type(error).__name__
            return y

    def watch(self, seen: Seen, call: Call) -> None:
        """Note what belongs to the signature beside the arguments."""
        roots = [*modules_of(self.f), *seen.modules.values()]
        roots += [x for x in call.objects if isinstance(x, Module)]
        modules = {id(m): m for root in roots for m in root.modules()}
        params = {id(t): t for t in seen.tensors.values()}
        for module in modules.values():
            for name, x in vars(module).items():
                if name == "training" or x is None or isinstance(x, (Module, Variable)):
                    self.attributes.append((vars(module), name))
            params |= {id(t): t for t in [*module.parameters(False), *module.buffers(False)]}
        self.params = list(params.values())
        self.held = [space[name] for space, name in self.attributes]
        self.ids = list(map(id, self.held))
        self.kinds = [kind_of(t) for t in self.params]

    # ---- the program

    def write(self, call: Call) -> None:
        """Trace the function and write the program."""
        found, outputs, gradients = self.traced(call)
        checks = [e for e in found.checks if e.args[0].kind not in ("constant", "number")]
        made = rewrite(simplified([outputs, gradients, checks]), Lowering())
        self.sizes = [max((largest_in(x.value) for x in e.operands), default=0.0) for e in outputs]
        names = [n for n in found.inputs if not n.startswith("d_output")]
        used = {e.name for e in reached_inputs(made)}
        here = len(call.tensors) + len(call.arrays)
        params = [t for i, t in enumerate(self.params, here) if names[i] in used]
        places = {id(t): i for i, t in enumerate(params, here)}
        at = [
            i if i < here else places.get(id(self.params[i - here]), -1) for i in range(len(names))
        ]
        self.places = [i for i, n in zip(at, names) if n in used]
        self.params, self.kinds = params, [kind_of(t) for t in params]
        inputs = [n for n in names if n in used]
        self.leaf = {n: i for i, n in enumerate(inputs)}
        self.flat = Flat(inputs, *made)
        self.lines = "".join(self.flat.texts).count("\n    ")
        self.ops = [Program(self, i) for i in range(len(gradients))]

    def traced(self, call: Call) -> tuple[Trace, list[Any], list[dict[str, Any]]]:
        """Run the function on symbols: its trace, outputs, and gradients by each output."""
        found = Trace()
        symbols: dict[int, Any] = {}
        leaves: dict[str, Any] = {}
        for i, t in enumerate(call.tensors):
            leaves[f"x{i}"] = symbols[id(t)] = tensor_of(
                input_symbol(found, f"x{i}", np.asarray(t._data))
            )
            symbols[id(t)]._tracked = t._tracked
        for i, a in enumerate(call.arrays):
            symbols[id(a)] = input_symbol(found, f"a{i}", a)
        args, kwargs = nested((call.args, call.kwargs), lambda x: symbols.get(id(x), x))
        params = {f"p{i}": t for i, t in enumerate(self.params)}
        with parameters_as_symbols(found, params), only(Frozen(found)), plain():
            leaves |= params
            self.output = Output(self.f(*args, **kwargs))
            outputs = [expression_of(found, x) for x in self.output.values]
            self.kinds_of_output = [
                (isinstance(x, Variable), tracked(x)) for x in self.output.values
            ]
            roots = [x for x in self.output.values if tracked(x)]
            wanted = {n: t for n, t in leaves.items() if t._tracked}
            gradients = [differentiate(found, i, y, wanted) for i, y in enumerate(roots)]
            self.output.values = []
        for refused in found.listing.refused:  # which the function, or a VJP, has caught
            raise refused
        return found, outputs, gradients

    def compare(self, y: Any, mine: Any) -> None:
        """Raise unless outputs and gradients are those of the function itself."""
        theirs, ours = Output(y).values, Output(mine).values
        kinds = [(isinstance(x, Variable), tracked(x)) for x in theirs]
        if kinds != self.kinds_of_output or not all(
            same(array_of(a), array_of(b), size) for a, b, size in zip(ours, theirs, self.sizes)
        ):
            raise RuntimeError(
                "the program gives other numbers than the function. Does the function draw random "
                "numbers, or keep something between calls?"
            )
        draw = np.random.default_rng(0).standard_normal
        roots = [x for x in theirs if tracked(x)]
        seeds = [draw(x.shape).astype(x.dtype)[()] for x in roots]
        mine = [x for x in ours if tracked(x)]
        leaves = list({id(x): x for part in mine for x in part._node.inputs if tracked(x)}.values())
        with no_grad(), np.errstate(all="ignore"):
            expected, found = (
                sweep(parts, seeds, wanted=leaves, retain_graph=True, stop=True)
                for parts in (roots, mine)
            )
        size = max(map(largest_in, expected.values()), default=0.0)
        for x in leaves:
            zero = np.zeros(x.shape, x.dtype)
            # Where all contributions cancel, only the rounding errors of the seeds are left.
            least = max(size, float(np.cbrt(np.finfo(x.dtype).eps)))
            if not same(np.asarray(found.get(x, zero)), np.asarray(expected.get(x, zero)), least):
                raise RuntimeError("the program gives other gradients than the function")

    # ---- calls

    def answer(self, call: Call) -> Any:
        """The output of a later call."""
        if self.reason:
            return self.f(*call.args, **call.kwargs)
        try:
            mine = self.run(call)
        except Changed:
            return self.f(*call.args, **call.kwargs)
        if self.check:
            with TRACING:
                self.compare(self.f(*call.args, **call.kwargs), mine)
        return mine

    def run(self, call: Call) -> Any:
        """The output of the program, each Tensor that is differentiated with a node."""
        every = [*call.tensors, *call.arrays, *self.params]
        inputs = [every[i] for i in self.places]
        arrays = settled(inputs, [x._data if isinstance(x, Variable) else x for x in inputs])
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
            return [x for x in Output(self.f(*call.args, **call.kwargs)).values if tracked(x)]


class Program(Op):
    """The op that computes one output, with the backward function as its VJP."""

    def __init__(self, entry: Entry, which: int) -> None:
        super().__init__(lambda *inputs: entry.flat.forward(*inputs)[0][which])
        self.__name__ = f"compiled {entry.name}"
        self.entry, self.which = entry, which

    def pull(self, g: Any, y: Any, node: Node, inputs: Any, needs: Any) -> Any:
        """The contributions to the inputs that need one."""
        entry, (saved, call) = self.entry, node.saved
        if not isinstance(g, Variable):
            leaf = entry.leaf
            wanted = tuple(n for n in entry.flat.gradients[self.which] if needs[leaf[n]])
            with suppress(Changed), np.errstate(all="ignore"):
                backward = entry.flat.backward(self.which, wanted)
                found: Any = backward(g, saved, settled(node.inputs, inputs))
                by = dict(zip([leaf[n] for n in wanted], found))
                return [by.get(i) for i in range(len(inputs))]
        root, recorded = entry.again(call)[self.which], isinstance(g, Variable)
        leaves = [x for x, need in zip(node.inputs, needs) if need]
        found = sweep([root], [g], wanted=leaves, create_graph=recorded, stop=True)
        return [found.pop(x, None) if need else None for x, need in zip(node.inputs, needs)]


def settled(inputs: Any, arrays: list[Any]) -> list[Any]:
    """The arrays, or once another thread has traced, those in the place of its symbols."""
    if Symbol not in map(type, arrays):
        return arrays
    with TRACING:
        return list(map(array_of, inputs))


def kind_of(t: Any) -> Any:
    """What has to be the same of a parameter."""
    return t._tracked, t._data.shape, t._data.dtype


def reached_inputs(ends: Any) -> list[Expression]:
    """The inputs that these need."""
    return [e for e in reached(ends) if e.kind == "input"]


def expression_of(found: Trace, x: Any) -> Any:
    """The expression of an output."""
    array = array_of(x)
    if not is_symbol(array):
        return found.listing.constant(np.asarray(array))
    return array.expression


def differentiate(found: Trace, i: int, y: Any, leaves: dict[str, Any]) -> dict[str, Any]:
    """The gradients of output i by name, by a backward pass on symbols."""
    found.listing.phase = BACKWARD
    example = np.random.default_rng(i).standard_normal(y.shape).astype(y._data.dtype)
    seed = input_symbol(found, f"d_output{i}", np.asarray(example))
    with no_grad():
        wanted = list(leaves.values())
        gradients = sweep([y], [seed], wanted=wanted, retain_graph=True, stop=True)
    found.listing.phase = FORWARD
    constant = found.listing.constant
    return {
        n: gradients[t].expression if is_symbol(gradients[t]) else constant(gradients[t])
        for n, t in leaves.items()
        if t in gradients
    }
