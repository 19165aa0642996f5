"""`ta.compile`: a function that runs as a flat NumPy program where it can, and as it is elsewhere.

The first call with arguments of some shapes and dtypes traces the function, as `ta.source` does.
Later ones run functions of NumPy calls: one forwards, and for each result one backwards. Between
the two lies an op, whose record holds the inputs and what was kept. What the function reads
beside its arguments is asked for again at each call (`outside`), and if it is not what it was the
function is traced again. Where there can be no program, or it would not be quicker, the function
itself is called, and `report()` says why.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from ... import random
from ...engine import (
    Symbolic,
    Variable,
    Watcher,
    context,
    enable_grad,
    inplace,
    plain,
    sweep,
    tensor_of,
    watching,
)
from ...engine.graph import Node, array_of, tracked
from ...messages.errors import describe, is_module
from ...messages.signatures import check_flags, own_names
from ...tensor import get_default_dtype
from ...transforms.programs import largest_in, same
from ...transforms.programs.expressions import BACKWARD
from ...transforms.programs.symbol import is_symbol
from ...transforms.programs.tracing import Trace, input_symbol, states
from ..engine import QuickOp
from .caching import KeyValueCache, TracedCache, kind_of
from .flat import Changed, Flat
from .outside import VALUES, Outside, Refusal

TRACING = threading.RLock()
"""Held while symbols lie in Tensors."""
RUNNING: dict[object, int] = {}
"""Calls of functions as they are, and in which thread: no other thread traces meanwhile."""
PROGRAMS = 8
"""Signatures of which a function keeps programs."""
MISSES = 16
"""New signatures in a row after which it is not traced any more."""
WORTH, WORTH_OF_LONG, LONG = 0.97, 0.9, 0.1
"""Of the function's time, what a program may take at most; of more than so many seconds, which are
measured twice only and are hardly Python's, less.
"""
RESULTS = 8
"""Tensors of one call that are differentiated, each of which has a backward function of its own."""
SEED = "d_output"
EMPTY = ("a cache without tokens",)
"""What kind of call it is whose cache is empty."""


class Signature(NamedTuple):
    """One line of a report: for which arguments, whether a program runs, of how many lines, and if
    none does, why.
    """

    arguments: str
    compiled: bool
    lines: int
    reason: str

    def __str__(self) -> str:
        said = f"{self.lines} lines of NumPy" if self.compiled else f"not compiled: {self.reason}"
        return f"({self.arguments}): {said}"


@own_names
def compile(f: Any = None, *, fullgraph: bool = False, measure: bool = True) -> Any:
    """f, which from its second call on runs as a flat NumPy program, forwards and backwards.

    f is a function, a method or a module; also a decorator, with or without arguments. What it
    returns is the same up to rounding, and is differentiated as usual: `backward()`, `ta.grad`,
    `retain_graph` and `create_graph`. For other shapes, dtypes, numbers, `training`, globals or
    attributes it is traced again, for up to 8 kinds of call. What cannot be watched or written
    down, such as random numbers, a number that Python reads, or a change of something outside, is
    never frozen: then f itself is called, and `f.report()` has the reason. Of a module it is a
    module of the same class, with the same attributes and parameters.

    Under `ta.no_grad()` a KeyValueCache among the arguments may grow from call to call: one program
    serves all lengths.

    `fullgraph=True` raises TypeError instead. With `measure=False` a program is used even where the
    first call finds it slower than f. While a call is traced, other threads may call compiled
    functions, but must not use the same Tensors otherwise. Warnings of NumPy's (overflow, division
    by 0) are not given. As torch.compile.
    """
    if f is None:
        return functools.partial(compile, fullgraph=fullgraph, measure=measure)
    check_flags("ta.compile", fullgraph=fullgraph, measure=measure)
    if not callable(f):
        raise TypeError(f"ta.compile takes a function or a module, got {describe(f)}.")
    return made(f, fullgraph, measure)


def made(f: Any, fullgraph: bool, measure: bool) -> Compiled:
    """An object with the attributes of f, the very same: what is set here is set there. Of a module
    it is a module of its class.
    """
    module = is_module(f)
    bases: tuple[Any, ...] = (Compiled, type(f)) if module else (Compiled,)
    name = type(f).__name__ if module else "Compiled"
    space = {"__slots__": (), "__doc__": f.__doc__, "__module__": getattr(f, "__module__", None)}
    c: Any = object.__new__(type(bases[-1])(name, bases, space))
    with suppress(AttributeError, TypeError):  # of a bound method, say, there are none
        c.__dict__ = f.__dict__
    object.__setattr__(c, "_programs", Programs(f, fullgraph, measure))
    return c


class Compiled:
    """What `ta.compile` returns; called as the function is."""

    __slots__ = ("_programs", "__dict__", "__weakref__")
    __wrapped__ = property(lambda self: self._programs.f)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs.f, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = instance is not None and not is_module(self)
        return types.MethodType(self, instance) if bound else self

    def __reduce__(self) -> Any:
        """In a copy or a file, a function that is to be compiled."""
        here = self._programs
        named = getattr(sys.modules.get(self.__module__), getattr(here.f, "__name__", ""), None)
        return here.f.__name__ if named is self else (made, (here.f, here.fullgraph, here.measure))

    def __repr__(self) -> str:
        return f"<compiled {self._programs.f!r}>"

    def report(self) -> list[Signature]:
        """For each kind of call: does a program run, and if not, why?"""
        return [e.told() for entries in list(self._programs.entries.values()) for e in entries]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own, here = self._programs, context
        if here.plain or here.watchers:  # somebody wants to see each step
            return as_it_is(own.f, args, kwargs)
        given = Given(args, kwargs)
        for entry in own.entries.get(given.spec, ()):
            data = entry.guard()
            if data is not None:
                own.misses = 0
                return entry.run(given, data)
        if own.misses >= MISSES:
            return as_it_is(own.f, args, kwargs)
        return own.first(given)


class Programs:
    """A function and the programs that have been written for it."""

    def __init__(self, f: Any, fullgraph: bool, measure: bool) -> None:
        self.f, self.fullgraph, self.measure = f, fullgraph, measure
        self.entries: OrderedDict[Any, list[Entry]] = OrderedDict()
        self.misses = 0

    def first(self, given: Given) -> Any:
        """A call of a kind that is not known yet."""
        data = None
        with TRACING:
            given = Given(given.args, given.kwargs)  # not while another thread traces
            if alone():
                entry = self.entry(given)
                if self.fullgraph and entry.reason and given.spec is not EMPTY:
                    raise TypeError(f"ta.compile(fullgraph=True): {entry.reason}.")
                data = entry.guard()
        if data is None:
            return as_it_is(self.f, given.args, given.kwargs)
        return entry.run(given, data)

    def entry(self, given: Given) -> Entry:
        """The entry of this kind of call, a new one unless another thread has made it meanwhile."""
        entries = self.entries.setdefault(given.spec, [])
        self.entries.move_to_end(given.spec)
        for entry in entries:
            if entry.guard() is not None:
                return entry
        self.misses += 1
        entry = Entry(self, given)
        self.entries[given.spec] = [entry, *entries][:PROGRAMS]
        self.forget()
        return entry

    def forget(self) -> None:
        """Keep the latest programs."""
        while sum(map(len, self.entries.values())) > PROGRAMS:
            oldest = next(iter(self.entries))
            self.entries[oldest] = self.entries[oldest][:-1]
            if not self.entries[oldest]:
                del self.entries[oldest]


class Given:
    """The arguments of one call: the Tensors and arrays in them, and of what kind the call is."""

    __slots__ = (
        "args",
        "kwargs",
        "spec",
        "tensors",
        "data",
        "arrays",
        "containers",
        "caches",
        "objects",
    )

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.tensors: list[Any] = []
        self.data: list[Any] = []
        self.arrays: list[Any] = []
        self.containers: list[Any] = []
        self.caches: list[Any] = []
        self.objects: list[Any] = []
        parts: list[Any] = [context.recording, get_default_dtype()]
        for x in args:
            parts.append(self.look(x))
        for name, x in kwargs.items():
            parts += (name, self.look(x))
        self.spec = tuple(parts)
        if not all(cache.length for cache in self.caches):
            self.spec = EMPTY  # whatever the first tokens are

    def look(self, x: Any) -> Any:
        """What has to be the same of an argument."""
        if isinstance(x, Variable):
            known = place(x, self.tensors)
            if known is not None:
                return known
            data = x._data
            self.data.append(data)
            return type(x), type(data), data.shape, data.dtype, x._tracked
        kind = type(x)
        if kind is np.ndarray:
            return place(x, self.arrays) or ("array", x.shape, x.dtype)
        if kind in VALUES:
            return kind, x if kind not in (float, complex, range) else repr(x)
        if isinstance(x, np.generic):
            return kind, repr(x)
        if kind is KeyValueCache:
            return place(x, self.caches) or kind_of(x)
        if kind is tuple:
            return (kind, *map(self.look, x))
        if kind is list:
            return place(x, self.containers) or (kind, *map(self.look, x))
        if kind is dict:
            parts = ((self.look(k), self.look(v)) for k, v in x.items())
            return place(x, self.containers) or (kind, *parts)
        if hasattr(kind, "_fields") and issubclass(kind, tuple):
            self.objects.append(kind)  # which has methods
            return (kind, *map(self.look, x))
        self.objects.append(x)
        return "object", id(x)

    def call(self) -> tuple:
        """The arguments, with lists and dicts as they are now."""
        made: dict[int, Any] = {}
        new = lambda x: self.rebuilt(x, {}, made)
        return tuple(map(new, self.args)), {k: new(x) for k, x in self.kwargs.items()}

    @property
    def states(self) -> list[Any]:
        """The caches, and how many tokens each has."""
        return [x for cache in self.caches for x in (cache, np.int64(cache.length))]

    def again(self) -> Given:
        """The same call, with caches of its own."""
        if not self.caches:
            return self
        copies = {id(cache): copy.copy(cache) for cache in self.caches}
        new = lambda x: self.rebuilt(x, copies, {})
        return Given(tuple(map(new, self.args)), {k: new(x) for k, x in self.kwargs.items()})

    def rebuilt(self, x: Any, others: dict[int, Any], made: dict[int, Any]) -> Any:
        """An argument with others in place of arrays and caches, and with lists and dicts anew."""
        kind = type(x)
        if id(x) in made:
            return made[id(x)][0]
        if kind is list:
            new: Any = [self.rebuilt(v, others, made) for v in x]
        elif kind is dict:
            new = {k: self.rebuilt(v, others, made) for k, v in x.items()}
        elif kind is tuple:
            return tuple(self.rebuilt(v, others, made) for v in x)
        elif hasattr(kind, "_fields") and issubclass(kind, tuple):
            return kind(*(self.rebuilt(v, others, made) for v in x))
        else:
            return others.get(id(x), x)
        made[id(x)] = new, new.copy()
        return new

    def described(self) -> str:
        """The arguments in words."""
        words = [describe(x) for x in self.args]
        words += [f"{k}={describe(x)}" for k, x in self.kwargs.items()]
        return ", ".join(words)


def place(x: Any, known: list[Any]) -> tuple | None:
    """Where it is known already; if it is not, it is from now on."""
    for i, other in enumerate(known):
        if other is x:
            return "again", i
    known.append(x)
    return None


class Entry:
    """One kind of call: a program, or the reason why there is none."""

    def __init__(self, owner: Programs, given: Given) -> None:
        self.f, self.measure = owner.f, owner.measure
        self.__name__ = f"compiled {getattr(self.f, '__name__', type(self.f).__name__)}"
        self.arguments, self.reason = given.described(), ""
        self.lines, self.speculate = 0, True
        self.guard: Callable[[], Any] = lambda: []
        self.objects = list(given.objects)  # kept, so that no other gets the id
        self.modules = [list(cache._kept) for cache in given.caches]  # so are these
        self.before = states()
        try:
            if given.spec is EMPTY:
                raise Refusal("its cache has no tokens yet, so the function itself reads the first")
            if given.caches and context.recording:
                raise Refusal("it has a cache, and is compiled under ta.no_grad() only")
            self.outside = Outside((self.f, self.objects))
            for t in given.tensors:
                if self.outside.tensors.pop(id(t), None):
                    raise Refusal("an argument is also found outside of the arguments")
            self.guard = self.outside.guard()
            self.write(given)
        except Refusal as refusal:
            self.refused(str(refusal))

    def refused(self, reason: str) -> None:
        """From now on the function itself is called."""
        self.reason = reason.replace("ta.source", "ta.compile").rstrip(".")

    def told(self) -> Signature:
        """A line of the report."""
        return Signature(self.arguments, not self.reason, self.lines, self.reason)

    # ---- the program

    def write(self, given: Given) -> None:
        """Trace the function and write the program."""
        keep = random.get_rng_state(), np.random.get_state()
        try:
            found = self.traced(given)
        except Exception as error:
            self.outside.put_back()
            random.set_rng_state(keep[0])
            np.random.set_state(keep[1])
            raise Refusal(str(error) or type(error).__name__) from None
        if states() != self.before:
            random.set_rng_state(keep[0])
            np.random.set_state(keep[1])
            raise Refusal("it draws random numbers")
        if Outside((self.f, self.objects)).key != self.outside.key:
            self.outside.put_back()
            raise Refusal("it changes something outside of itself when it is called")
        try:
            self.flat = Flat(*found, self.speculate)
            if given.caches:
                longer = Flat(*self.traced(given, 1), self.speculate)
                if not self.flat.computes_as(longer):
                    raise Refusal("its program depends on how many tokens the cache has")
            self.lines = self.flat.lines
            self.ops = [Program(self, i) for i in range(self.result.count)]
            self.compare(given)
        except (Refusal, Changed):
            raise
        except Exception as error:
            raise Refusal(f"it could not be written: {error}") from error

    def traced(self, given: Given, which: int = 0) -> tuple[Trace, list[Any], list[Any]]:
        """The function, and a sweep from each of its results, run on symbols."""
        found = Trace()
        outside = [t for t, _ in self.outside.tensors.values()]
        with symbols_in(found, [*given.tensors, *outside]) as symbols, plain():
            arrays = [input_symbol(found, f"a{i}", f"a{i}", x) for i, x in enumerate(given.arrays)]
            symbols_of: dict[int, Any] = {id(a): s for a, s in zip(given.arrays, arrays)}
            for i, cache in enumerate(given.caches):
                symbols_of[id(cache)] = TracedCache(found, cache, i, which)
            made: dict[int, Any] = {}
            args = [given.rebuilt(x, symbols_of, made) for x in given.args]
            kwargs = {k: given.rebuilt(x, symbols_of, made) for k, x in given.kwargs.items()}
            with watching(Found(found)):
                y = self.f(*args, **kwargs)
            for x, before in made.values():
                pairs = x.items() if isinstance(x, dict) else enumerate(x)
                if len(x) != len(before) or any(v is not before[k] for k, v in pairs):
                    raise Refusal("it changes a list or a dict that it is given")
            result = Result(y)
            results = [expression_of(x) for x in (*result.parts, *result.others)]
            shares = [differentiate(found, x, symbols) for x in result.parts]
            for refused in found.listing.refused:  # which the function, or a rule, has caught
                raise refused
            at = {id(t): i for i, t in enumerate([*given.tensors, *given.arrays, *outside])}
            self.leaves = {n: at[id(t)] for n, t in symbols.items()}
            result.forget()
            self.result = result
            self.others = outside  # the Tensors that are inputs beside the arguments
        inputs = [n for n in found.inputs if not n.startswith(SEED)]
        here = len(given.tensors)
        of_arrays = [n for n in inputs if n[0] == "a"]
        of_tensors = [n for n in inputs if n[0] == "x"]
        states = [n for n in inputs if n.startswith(("cache", "length"))]
        ordered = [*of_tensors[:here], *of_arrays, *states, *of_tensors[here:]]
        found.inputs = {n: found.inputs[n] for n in [*ordered, *found.inputs]}
        return found, results, shares

    def compare(self, given: Given) -> None:
        """Raise Refusal unless the program gives what the function gives; see which is quicker."""
        best = [math.inf, math.inf]
        repeats = 1
        while repeats <= 4:
            its, ours = given.again(), given.again()
            start = time.thread_time()
            y = self.f(*its.args, **its.kwargs)
            parts = Result(y).parts
            if repeats == 1:  # before the sweep, which lets go of what the results are made of
                expected = values_of(y)
            draw = np.random.default_rng(repeats).standard_normal
            seeds = [draw(x.shape).astype(x.dtype)[()] for x in parts]
            leaves = [t for t in [*given.tensors, *self.others] if tracked(t)]
            wanted = self.shares_of(parts, seeds, leaves)
            middle = time.thread_time()
            try:
                mine, others = self.called(ours, self.guard())
                shares = []
                for op, g, x in zip(self.ops, seeds, mine):
                    arrays = list(map(array_of, x._node.inputs))
                    shares.append(op.shares(g, x._node, arrays, [True] * len(arrays)))
            except Changed:
                if self.speculate and self.flat.speculates:
                    self.speculate = False
                    return self.write(given)
                raise Refusal("its numbers need another program at each call") from None
            best[0] = min(best[0], middle - start)
            best[1] = min(best[1], time.thread_time() - middle)
            if repeats == 1:
                if not same_values(self.result.built(mine, others), expected):
                    raise Refusal("the program gives other numbers than the function")
                if mine:
                    self.compare_gradients(mine[0]._node.inputs, shares, wanted)
            enough = not self.measure or repeats > 1 and best[0] > 0.05
            repeats = 5 if enough else repeats + 1
        if states() != self.before:
            raise Refusal("it draws random numbers")
        share = WORTH if best[0] < LONG else WORTH_OF_LONG
        if self.measure and best[1] > share * best[0]:
            raise Refusal(
                f"it would save too little: the program takes {1e3 * best[1]:.4g} ms here, the "
                f"function {1e3 * best[0]:.4g}"
            )
        return None

    def compare_gradients(self, inputs: tuple, mine: list[dict[int, Any]], wanted: Any) -> None:
        """Raise Refusal unless their sums are the same, up to the rounding of the largest."""
        size = max((float(np.abs(g).max(initial=0)) for g in wanted.values()), default=0.0)
        for x, expected in wanted.items():
            i = next(i for i, t in enumerate(inputs) if t is x)
            found = sum((g[i] for g in mine if i in g), np.zeros_like(expected))
            # Where all cancel, as with a single class, only rounding errors of the seeds are left.
            least = float(np.cbrt(np.finfo(expected.dtype).eps))
            if not same(found, expected, size=max(size, least)):
                raise Refusal("the program gives other gradients than the function")

    # ---- calls

    def shares_of(self, roots: Any, seeds: Any, wanted: list[Any], again: bool = False) -> Any:
        """The gradients by these Tensors, as usual."""
        here = context
        before, here.recording = here.recording, again
        try:
            return sweep(roots, seeds, wanted=wanted, create_graph=again, stop=True)
        finally:
            here.recording = before

    def known_outside(self, given: Given) -> bool:
        """Is one of the arguments found outside as well? The function may ask whether it is."""
        held = given.tensors
        if given.arrays or given.containers:
            held = [*held, *given.arrays, *given.containers]
        return not self.outside.seen.keys().isdisjoint(map(id, held))

    def run(self, given: Given, data: list[Any]) -> Any:
        """The results, each with a record if it is differentiated."""
        if self.reason or self.known_outside(given):
            return as_it_is(self.f, given.args, given.kwargs)
        try:
            parts, others = self.called(given, data)
        except Changed:
            return self.rewritten(given)
        except Exception as error:
            y = as_it_is(self.f, given.args, given.kwargs)  # which mostly says what is wrong
            self.refused(f"the program failed where the function did not: {error}")
            return y
        return self.result.built(parts, others)

    def called(self, given: Given, data: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results that are differentiated, with their records, and the others."""
        before = [dict(cache._kept) for cache in given.caches]
        try:
            with np.errstate(all="ignore"):
                results, saved = self.flat.forward(*given.data, *given.arrays, *given.states, *data)
        except BaseException:
            for cache, tokens in zip(given.caches, before):
                cache._kept = tokens
            raise
        if not self.ops:
            return [], results
        arrays = (*given.data, *given.arrays, *data)
        inputs = (*given.tensors, *given.arrays, *self.others)
        kept = tuple(
            x if isinstance(x, Variable) and x._tracked else a for x, a in zip(inputs, arrays)
        )
        call = given.call() if given.containers else (given.args, given.kwargs)
        scope, parts = context.scope, []
        for op, result in zip(self.ops, results):
            y = tensor_of(result, Node(op, kept, {}, (saved, call), scope))
            parts.append(y)
            inplace.protect(y._node, None)
        return parts, results[len(parts) :]

    def rewritten(self, given: Given) -> Any:
        """The function's own result, for these numbers need another program: one that expects
        less, which the next call has, or none.
        """
        before = given.again()
        y = as_it_is(self.f, given.args, given.kwargs)  # raises what is wrong with the call
        if self.speculate and self.flat.speculates:
            with TRACING:
                if self.speculate and alone():
                    self.speculate = False
                    try:
                        self.before = states()
                        self.write(before)
                    except Refusal as refusal:
                        self.refused(str(refusal))
        return y

    def again(self, call: tuple, record: Node) -> list[Any]:
        """The results as the function gives them, recorded op by op."""
        if self.guard() is None:
            raise RuntimeError(
                "a compiled function is called once more where its gradient is differentiated "
                "again, and since the first call something that it reads was changed. Call it "
                "again after the change, or use the function without ta.compile."
            )
        with enable_grad():
            return Result(as_it_is(self.f, *call)).parts


def as_it_is(f: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the function itself returns, called while no other thread traces."""
    call = object()
    try:
        with TRACING:
            RUNNING[call] = threading.get_ident()
        return f(*args, **kwargs)
    finally:
        RUNNING.pop(call, None)


def alone() -> bool:
    """Does no other thread run a function as it is?"""
    return set(RUNNING.copy().values()) <= {threading.get_ident()}


class Program(QuickOp):
    """The op whose function gives one of the results, and whose rule is the backward function."""

    def __init__(self, entry: Entry, which: int) -> None:
        forward = entry.flat.forward
        super().__init__(entry, lambda *inputs: forward(*inputs)[0][which])
        self.entry, self.leaves, self.which = entry, entry.leaves, which
        self.passes = entry.flat.passes[which]

    def shares(self, g: Any, record: Node, arrays: list[Any], needs: Any) -> dict[int, Any]:
        """{i: the gradient by input i}, for those that need one, by the backward function."""
        wanted = tuple(name for name in self.passes.shares if needs[self.leaves[name]])
        _, backward = self.passes.to(wanted)
        if any(isinstance(a, Symbolic) for a in arrays):  # another thread traces
            with TRACING:
                arrays = [array_of(x) for x in record.inputs]
        with np.errstate(all="ignore"):
            found = backward(g, record.saved[0], arrays)
        return {self.leaves[name]: share for name, share in zip(wanted, found)}

    def pull(self, g: Any, y: Any, record: Node, inputs: list, needs: list[bool]) -> Any:
        """The gradients by the inputs that need one."""
        again = isinstance(g, Variable)
        if not again:
            with suppress(Changed):
                found = self.shares(g, record, inputs, needs)
                return [found.get(i) for i in range(len(inputs))]
        wanted = {i: x for i, (x, need) in enumerate(zip(record.inputs, needs)) if need}
        root = self.entry.again(record.saved[1], record)[self.which]
        found = self.entry.shares_of([root], [g], list(wanted.values()), again)
        return [found.get(x) if need else None for x, need in zip(record.inputs, needs)]


class Found(Watcher):
    """Sees to it that no Tensor is frozen."""

    def __init__(self, found: Trace) -> None:
        self.found = found

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """Raise for a Tensor that requires a gradient and is no input."""
        for x in inputs:
            free = isinstance(x, Variable) and x._tracked and x._node is None
            if free and not is_symbol(x._data):
                refusal = Refusal(f"it makes {describe(x)}, which requires a gradient")
                raise self.found.listing.refusing(refusal)


@contextmanager
def symbols_in(found: Trace, tensors: list[Any]) -> Iterator[dict[str, Any]]:
    """Symbols in the Tensors while the block runs, by name."""
    before = [(t, t._data, t._grad, t._node, t._tracked) for t in tensors]
    named = {}
    try:
        for i, t in enumerate(tensors):
            named[f"x{i}"] = t
            t._data = input_symbol(found, f"x{i}", f"x{i}", np.asarray(t._data))
            t._node = None
        yield named
    finally:
        for t, data, gradient, record, wanted in before:
            t._data, t._grad, t._node, t._tracked = data, gradient, record, wanted


def differentiate(found: Trace, y: Any, leaves: dict[str, Any]) -> dict[str, Any]:
    """{name: the gradient by it}, by a sweep on symbols, from a gradient by y that is an input."""
    found.listing.phase = BACKWARD
    example = np.asarray(np.random.default_rng(0).standard_normal(y.shape).astype(y._data.dtype))
    seed = input_symbol(found, SEED, SEED, example)
    here = context
    before, here.recording = here.recording, False
    try:
        gradients = sweep([y], [seed], retain_graph=True)
    finally:
        here.recording = before
    made = {name: gradients[leaf] for name, leaf in leaves.items() if leaf in gradients}
    return {
        name: g.expression if is_symbol(g) else found.listing.constant(g)
        for name, g in made.items()
    }


class Result:
    """How a result is made of Tensors that are differentiated, and of other arrays."""

    def __init__(self, y: Any) -> None:
        self.parts: list[Any] = []  # Tensors that are part of the graph
        self.others: list[Any] = []
        self.shape = self.look(y)
        self.count = len(self.parts)
        if self.count > RESULTS:
            raise Refusal(f"it returns more than {RESULTS} tensors that are differentiated")

    def forget(self) -> None:
        """Keep the structure alone, without the graph that hangs on the Tensors."""
        self.parts, self.others = [], []

    def look(self, y: Any) -> Any:
        """The structure, with a place for each array."""
        if isinstance(y, Variable):
            if y._tracked:
                self.parts.append(y)
                return "part", len(self.parts) - 1
            self.others.append(y)
            return "tensor", len(self.others) - 1
        kind = type(y)
        if is_symbol(y) or isinstance(y, (np.ndarray, np.generic)):
            self.others.append(y)
            return "array", len(self.others) - 1
        if kind in VALUES:
            return "value", y
        if kind is dict:
            return dict, [(k, self.look(v)) for k, v in y.items()]
        if kind in (tuple, list) or isinstance(y, tuple) and hasattr(y, "_fields"):
            return kind, list(map(self.look, y))
        raise Refusal(f"it returns {describe(y)}")

    def built(self, parts: list[Any], others: list[Any]) -> Any:
        """What the function returns."""
        if self.shape == ("part", 0):
            return parts[0]

        def build(shape: Any) -> Any:
            kind, what = shape
            if kind == "part":
                return parts[what]
            if kind == "tensor":
                return tensor_of(others[what])
            if kind == "array":
                return others[what]
            if kind == "value":
                return what
            if kind is dict:
                return {k: build(v) for k, v in what}
            made = map(build, what)
            return kind(*made) if hasattr(kind, "_fields") else kind(made)

        return build(self.shape)


def expression_of(x: Any) -> Any:
    """The expression of a result; of a constant one its numbers."""
    array = x._data if isinstance(x, Variable) else x
    if is_symbol(array):
        if array.owes:
            raise Refusal("it returns an array of which a part was changed")
        return array.expression
    raise Refusal("it returns an array that is not made of what it is given")


def values_of(y: Any) -> list[tuple[Any, float]]:
    """The arrays in a result, and how large the numbers are that each was made of."""
    found = Result(y)
    return [(array_of(x), largest_input(x)) for x in (*found.parts, *found.others)]


def same_values(y: Any, expected: list[tuple[Any, float]]) -> bool:
    """The same arrays, up to the rounding of what they were made of?"""
    pairs = zip(values_of(y), expected, strict=True)
    return all(same(mine, array, size=size) for (mine, _), (array, size) in pairs)


def largest_input(y: Any) -> float:
    """The largest number that the op was given which has made y."""
    record = getattr(y, "_node", None)
    return (
        0.0 if record is None else max(map(largest_in, map(array_of, record.inputs)), default=0.0)
    )


__all__ = ["Compiled", "Signature", "compile"]
