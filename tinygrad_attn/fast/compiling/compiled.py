"""`ta.compile`: a function that runs as a flat NumPy program where it can, and as it is elsewhere.

The first call with arguments of some shapes and dtypes traces the function, as `ta.source` does.
Later ones run two functions of NumPy calls, one forwards and one backwards, between which lies one
op: its record holds the inputs and what the forward function has kept. What the function reads
beside its arguments is asked for again at each call (`outside`), and if it is not what it was the
function is traced again. Where there can be no program, or it would not be quicker, the function
itself is called, and `report()` says why.
"""

from __future__ import annotations

import copy
import functools
import math
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
    Variable,
    Watcher,
    changes,
    constant,
    enable_grad,
    everywhere,
    local,
    plain,
    sweep,
    watching,
)
from ...engine.graph import Record, array_of, clock, tracked
from ...engine.operands import Symbolic
from ...messages.errors import describe
from ...tensor import get_default_dtype
from ...transforms.programs import same
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


def compile(f: Any = None, *, fullgraph: bool = False, measure: bool = True) -> Any:
    """f, which from its second call on runs as a flat NumPy program, forwards and backwards.

    f is a function, a method or a module; also a decorator, with or without arguments. What it
    returns is the same up to rounding, and is differentiated as usual: `backward()`, `ta.grad`,
    `retain_graph` and `create_graph`. For other shapes, dtypes, numbers, `training`, globals or
    attributes it is traced again, for up to 8 kinds of call. What cannot be watched or written
    down, such as random numbers, a number that Python reads, or a change of something outside, is
    never frozen: then f itself is called, and `f.report()` has the reason.

    Under `ta.no_grad()` a KeyValueCache among the arguments may grow from call to call: one program
    serves all lengths.

    `fullgraph=True` raises TypeError instead. With `measure=False` a program is used even where the
    first call finds it slower than f. While a call is traced, other threads may call compiled
    functions, but must not use the same Tensors otherwise. Warnings of NumPy's (overflow, division
    by 0) are not given. As torch.compile.
    """
    if f is None:
        return functools.partial(compile, fullgraph=fullgraph, measure=measure)
    if not callable(f):
        raise TypeError(f"ta.compile takes a function or a module, got {describe(f)}.")
    return Compiled(f, fullgraph, measure)


class Compiled:
    """What `ta.compile` returns; called as the function is."""

    def __init__(self, f: Any, fullgraph: bool, measure: bool) -> None:
        self._f, self._fullgraph, self._measure = f, fullgraph, measure
        self._entries: OrderedDict[Any, list[Entry]] = OrderedDict()
        self._misses = 0
        if isinstance(f, (types.FunctionType, types.MethodType)):
            functools.update_wrapper(self, f, updated=())

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_f"), name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self._f!r}>"

    def report(self) -> list[Signature]:
        """For each kind of call: does a program run, and if not, why?"""
        return [e.told() for entries in list(self._entries.values()) for e in entries]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = local.context
        if here.plain or here.watchers:  # somebody wants to see each step
            return as_it_is(self._f, args, kwargs)
        given = Given(args, kwargs)
        for entry in self._entries.get(given.spec, ()):
            data = entry.guard()
            if data is not None:
                self._misses = 0
                return entry.run(given, data)
        if self._misses >= MISSES:
            return as_it_is(self._f, args, kwargs)
        return self._first(given)

    def _first(self, given: Given) -> Any:
        """A call of a kind that is not known yet."""
        data = None
        with TRACING:
            given = Given(given.args, given.kwargs)  # not while another thread traces
            if alone():
                entry = self._entry(given)
                if self._fullgraph and entry.reason:
                    raise TypeError(f"ta.compile(fullgraph=True): {entry.reason}.")
                data = entry.guard()
        if data is None:
            return as_it_is(self._f, given.args, given.kwargs)
        return entry.run(given, data)

    def _entry(self, given: Given) -> Entry:
        """The entry of this kind of call, a new one unless another thread has made it meanwhile."""
        entries = self._entries.setdefault(given.spec, [])
        self._entries.move_to_end(given.spec)
        for entry in entries:
            if entry.guard() is not None:
                return entry
        self._misses += 1
        entry = Entry(self, given)
        self._entries[given.spec] = [entry, *entries][:PROGRAMS]
        self._forget()
        return entry

    def _forget(self) -> None:
        """Keep the latest programs."""
        while sum(map(len, self._entries.values())) > PROGRAMS:
            oldest = next(iter(self._entries))
            self._entries[oldest] = self._entries[oldest][:-1]
            if not self._entries[oldest]:
                del self._entries[oldest]


class Given:
    """The arguments of one call: the Tensors and arrays in them, and of what kind the call is."""

    __slots__ = ("args", "kwargs", "spec", "tensors", "data", "arrays", "caches", "objects")

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.tensors: list[Any] = []
        self.data: list[Any] = []
        self.arrays: list[Any] = []
        self.caches: list[Any] = []
        self.objects: list[Any] = []
        parts: list[Any] = [local.context.recording, get_default_dtype()]
        for x in args:
            parts.append(self.look(x))
        for name in sorted(kwargs) if kwargs else ():
            parts += (name, self.look(kwargs[name]))
        self.spec = tuple(parts)
        if not all(cache.length for cache in self.caches):
            self.spec = EMPTY  # whatever the first tokens are

    def look(self, x: Any) -> Any:
        """What has to be the same of an argument."""
        if isinstance(x, Variable):
            for i, t in enumerate(self.tensors):
                if t is x:
                    return "again", i
            data = x._data
            self.tensors.append(x)
            self.data.append(data)
            return type(x), type(data), data.shape, data.dtype, x._tracked
        kind = type(x)
        if kind is np.ndarray:
            self.arrays.append(x)
            return "array", x.shape, x.dtype
        if kind in VALUES:
            return kind, repr(x) if kind in (float, complex) else x
        if isinstance(x, np.generic):
            return kind, repr(x)
        if kind is KeyValueCache:
            if x in self.caches:
                return "again", self.caches.index(x)
            self.caches.append(x)
            return kind_of(x)
        if isinstance(x, (tuple, list)):
            return (kind, *map(self.look, x))
        if kind is dict:
            return (dict, *((self.look(k), self.look(v)) for k, v in x.items()))
        self.objects.append(x)
        return "object", id(x)

    @property
    def states(self) -> list[Any]:
        """The caches, and how many tokens each has."""
        return [x for cache in self.caches for x in (cache, np.int64(cache.length))]

    def again(self) -> Given:
        """The same call, with caches of its own."""
        if not self.caches:
            return self
        copies = {id(cache): copy.copy(cache) for cache in self.caches}
        new = lambda x: self.rebuilt(x, lambda a: copies.get(id(a), a), [])
        return Given(tuple(map(new, self.args)), {k: new(x) for k, x in self.kwargs.items()})

    def rebuilt(self, x: Any, symbol: Callable[[Any], Any], made: list[Any]) -> Any:
        """An argument with symbols in place of arrays and caches."""
        kind = type(x)
        if kind is np.ndarray or kind is KeyValueCache:
            return symbol(x)
        if kind in (list, dict) or isinstance(x, tuple):
            if kind is dict:
                new: Any = {k: self.rebuilt(v, symbol, made) for k, v in x.items()}
            else:
                parts = [self.rebuilt(v, symbol, made) for v in x]
                new = kind(*parts) if hasattr(x, "_fields") else kind(parts)
            if kind in (list, dict):
                made.append((new, new.copy()))
            return new
        return x

    def described(self) -> str:
        """The arguments in words."""
        words = [describe(x) for x in self.args]
        words += [f"{k}={describe(x)}" for k, x in self.kwargs.items()]
        return ", ".join(words)


class Entry:
    """One kind of call: a program, or the reason why there is none."""

    def __init__(self, owner: Compiled, given: Given) -> None:
        self.f, self.measure = owner._f, owner._measure
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
            if given.caches and local.context.recording:
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
            found, results = self.traced(given)
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
            self.flat = Flat(found, results, SEED, self.speculate)
            if given.caches:
                longer = Flat(*self.traced(given, 1), SEED, self.speculate)
                if not self.flat.computes_as(longer):
                    raise Refusal("its program depends on how many tokens the cache has")
            self.lines = self.flat.lines
            self.op = Program(self)
            self.compare(given)
        except (Refusal, Changed):
            raise
        except Exception as error:
            raise Refusal(f"it could not be written: {error}") from error

    def traced(self, given: Given, which: int = 0) -> tuple[Trace, list[Any]]:
        """The function, and the sweep after it, run on symbols."""
        found = Trace()
        watcher = Found()
        outside = [t for t, _ in self.outside.tensors.values()]
        with symbols_in(found, [*given.tensors, *outside]) as symbols, plain():
            arrays = [input_symbol(found, f"a{i}", f"a{i}", x) for i, x in enumerate(given.arrays)]
            waiting, made = iter(arrays), list[Any]()
            caches = {id(c): TracedCache(found, c, i, which) for i, c in enumerate(given.caches)}
            symbol = lambda x: caches.get(id(x)) or next(waiting)
            args = [given.rebuilt(x, symbol, made) for x in given.args]
            names = sorted(given.kwargs)
            kwargs = {k: given.rebuilt(given.kwargs[k], symbol, made) for k in names}
            with watching(watcher):
                y = self.f(*args, **kwargs)
            for x, before in made:
                pairs = x.items() if isinstance(x, dict) else enumerate(x)
                if len(x) != len(before) or any(v is not before[k] for k, v in pairs):
                    raise Refusal("it changes a list or a dict that it is given")
            self.result = Result(y)
            root = self.result.root(y)
            results = [expression_of(x) for x in (root, *self.result.others) if x is not None]
            self.leaves: dict[str, int] = {}
            order = [*given.tensors, *given.arrays, *outside]
            if root is not None:
                differentiate(found, root, symbols)
                at = {id(t): i for i, t in enumerate(order)}
                self.leaves = {n: at[id(t)] for n, t in symbols.items() if n in found.gradients}
            self.others = outside  # the Tensors that are inputs beside the arguments
        inputs = [n for n in found.inputs if n != SEED]
        here = len(given.tensors)
        of_arrays = [n for n in inputs if n[0] == "a"]
        of_tensors = [n for n in inputs if n[0] == "x"]
        states = [n for n in inputs if n.startswith(("cache", "length"))]
        ordered = [*of_tensors[:here], *of_arrays, *states, *of_tensors[here:]]
        found.inputs = {n: found.inputs[n] for n in [*ordered, *found.inputs]}
        return found, results

    def compare(self, given: Given) -> None:
        """Raise Refusal unless the program gives what the function gives; see which is quicker."""
        best = [math.inf, math.inf]
        repeats = 1
        while repeats <= 4:
            its, ours = given.again(), given.again()
            start = time.thread_time()
            y = self.f(*its.args, **its.kwargs)
            root = Result(y).root(y)
            g = None
            if root is not None:
                draw = np.random.default_rng(repeats).standard_normal(root.shape)
                g = draw.astype(root.dtype)[()]
                leaves = [t for t in [*given.tensors, *self.others] if tracked(t)]
                wanted = self.shares_of(root, g, leaves)
            middle = time.thread_time()
            try:
                mine, others = self.called(ours, self.guard())
                if mine is not None:
                    record = mine._record
                    shares = self.op.shares(g, record, list(map(array_of, record.inputs)))
            except Changed:
                if self.speculate and self.flat.speculates:
                    self.speculate = False
                    return self.write(given)
                raise Refusal("its numbers need another program at each call") from None
            best[0] = min(best[0], middle - start)
            best[1] = min(best[1], time.thread_time() - middle)
            if repeats == 1:
                if not same(plain_values(self.result.built(mine, others)), plain_values(y)):
                    raise Refusal("the program gives other numbers than the function")
                if root is not None:
                    self.compare_gradients(mine._record.inputs, shares, wanted)
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

    def compare_gradients(self, inputs: tuple, mine: dict[int, Any], wanted: Any) -> None:
        """Raise Refusal unless they are the same, up to the rounding of the largest."""
        size = max((float(np.abs(g).max(initial=0)) for g in wanted.values()), default=0.0)
        for x, expected in wanted.items():
            i = next(i for i, t in enumerate(inputs) if t is x)
            if not same(mine.get(i, np.zeros_like(expected)), expected, size=size):
                raise Refusal("the program gives other gradients than the function")

    # ---- calls

    def shares_of(self, root: Any, g: Any, wanted: list[Any], again: bool = False) -> Any:
        """The gradients by these Tensors, as usual."""
        here = local.context
        before, here.recording = here.recording, again
        try:
            return sweep([root], [g], wanted=wanted, create_graph=again, stop=True)
        finally:
            here.recording = before

    def run(self, given: Given, data: list[Any]) -> Any:
        """The results, around one record."""
        if self.reason:
            return as_it_is(self.f, given.args, given.kwargs)
        try:
            root, others = self.called(given, data)
        except Changed:
            return self.rewritten(given)
        except Exception as error:
            y = as_it_is(self.f, given.args, given.kwargs)  # which mostly says what is wrong
            self.refused(f"the program failed where the function did not: {error}")
            return y
        return self.result.built(root, others)

    def called(self, given: Given, data: list[Any]) -> tuple[Any, list[Any]]:
        """The result that is differentiated, with its record, and the others."""
        before = [dict(cache._kept) for cache in given.caches]
        try:
            with np.errstate(all="ignore"):
                results, saved = self.flat.forward(*given.data, *given.arrays, *given.states, *data)
        except BaseException:
            for cache, tokens in zip(given.caches, before):
                cache._kept = tokens
            raise
        if self.result.whole is None:
            return None, results
        arrays = (*given.data, *given.arrays, *data)
        inputs = (*given.tensors, *given.arrays, *self.others)
        kept = tuple(
            x if isinstance(x, Variable) and x._tracked else a for x, a in zip(inputs, arrays)
        )
        record = Record(clock(), self.op, kept, {}, (saved, given), local.context.scope)
        root = constant(results[0], record)
        if changes.handed_out or given.arrays:
            for watcher in everywhere:
                watcher.computed(self.op, inputs, {}, root)
        return root, results[1:]

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

    def again(self, given: Given) -> Any:
        """The result as the function gives it, recorded op by op."""
        if self.guard() is None:
            raise RuntimeError(
                "a compiled function is called once more where its gradient is differentiated "
                "again, and since the first call something that it reads was changed. Call it "
                "again after the change, or use the function without ta.compile."
            )
        with enable_grad():
            y = as_it_is(self.f, given.args, given.kwargs)
            return Result(y).root(y)


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
    """The op whose function and rule are the two functions of a program."""

    def __init__(self, entry: Entry) -> None:
        forward, self.backward = entry.flat.forward, entry.flat.backward
        super().__init__(entry, lambda *inputs: forward(*inputs)[0][0])
        self.fresh = True
        self.entry, self.leaves, self.of = entry, entry.leaves, entry.flat.names

    def shares(self, g: Any, record: Record, arrays: list[Any]) -> dict[int, Any]:
        """{i: the gradient by input i}, by the backward function."""
        if any(isinstance(a, Symbolic) for a in arrays):  # another thread traces
            with TRACING:
                arrays = [array_of(x) for x in record.inputs]
        with np.errstate(all="ignore"):
            found = self.backward(g, record.saved[0], arrays)  # type: ignore[misc]
        return {self.leaves[name]: share for name, share in zip(self.of, found)}

    def pull(
        self, g: Any, y: Any, record: Record, inputs: list, needs: list[bool]
    ) -> dict[int, Any]:
        """The gradients by the inputs that need one."""
        again = isinstance(g, Variable)
        if not again:
            with suppress(Changed):
                shares = self.shares(g, record, inputs)
                return {i: share for i, share in shares.items() if needs[i]}
        wanted = {i: x for i, (x, need) in enumerate(zip(record.inputs, needs)) if need}
        root = self.entry.again(record.saved[1])
        found = self.entry.shares_of(root, g, list(wanted.values()), again)
        return {i: found[x] for i, x in wanted.items() if x in found}


class Found(Watcher):
    """Sees to it that no Tensor is frozen."""

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """Raise for a Tensor that requires a gradient and is no input."""
        for x in inputs:
            free = isinstance(x, Variable) and x._tracked and x._record is None
            if free and not is_symbol(x._data):
                raise Refusal(f"it makes {describe(x)}, which requires a gradient")


@contextmanager
def symbols_in(found: Trace, tensors: list[Any]) -> Iterator[dict[str, Any]]:
    """Symbols in the Tensors while the block runs, by name."""
    before = [(t, t._data, t._grad, t._record, t._tracked) for t in tensors]
    named = {}
    try:
        for i, t in enumerate(tensors):
            named[f"x{i}"] = t
            t._data = input_symbol(found, f"x{i}", f"x{i}", np.asarray(t._data))
            t._record = None
        yield named
    finally:
        for t, data, gradient, record, wanted in before:
            t._data, t._grad, t._record, t._tracked = data, gradient, record, wanted


def differentiate(found: Trace, y: Any, leaves: dict[str, Any]) -> None:
    """The sweep, run on symbols, from a gradient by y that is an input as well."""
    found.listing.phase = BACKWARD
    example = np.asarray(np.random.default_rng(0).standard_normal(y.shape).astype(y._data.dtype))
    seed = input_symbol(found, SEED, SEED, example)
    here = local.context
    before, here.recording = here.recording, False
    try:
        gradients = sweep([y], [seed])
    finally:
        here.recording = before
    for name, leaf in leaves.items():
        if leaf in gradients:
            g = gradients[leaf]
            found.gradients[name] = g.expression if is_symbol(g) else found.listing.constant(g)


class Result:
    """How what a function returns is made of a root, which is differentiated, and other arrays."""

    def __init__(self, y: Any) -> None:
        self.parts: list[Any] = []  # Tensors that are part of the graph
        self.others: list[Any] = []
        self.shape = self.look(y)
        self.whole: Any = None
        if self.parts:
            self.whole = len(self.parts)
            self.sizes = [t.shape for t in self.parts]
            if len({t.dtype for t in self.parts}) > 1:
                raise Refusal("it returns tensors of several dtypes")

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

    def root(self, y: Any) -> Any:
        """The one Tensor of which all parts are made."""
        if not self.parts:
            return None
        if len(self.parts) == 1:
            return self.parts[0]
        return np.concatenate([t.reshape(-1) for t in self.parts])

    def built(self, root: Any, others: list[Any]) -> Any:
        """What the function returns."""
        if self.whole == 1 and self.shape == ("part", 0):
            return root
        parts = [root]
        if self.whole is not None and self.whole > 1:
            ends = np.cumsum([math.prod(s) for s in self.sizes]).tolist()
            starts = [0, *ends[:-1]]
            parts = [root[a:b].reshape(s) for a, b, s in zip(starts, ends, self.sizes, strict=True)]

        def build(shape: Any) -> Any:
            kind, what = shape
            if kind == "part":
                return parts[what]
            if kind == "tensor":
                return constant(others[what])
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


def plain_values(y: Any) -> list[Any]:
    """The arrays in a result."""
    found = Result(y)
    return [array_of(x) for x in (*found.parts, *found.others)]


__all__ = ["Compiled", "Signature", "compile"]
