"""Run a function and its backward pass on symbols, in plain mode, to list their expressions."""

import copy
import inspect
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import NamedTuple

import numpy as np

from ..engine.backward import sweep
from ..engine.graph import Variable, array_of, tracked
from ..engine.op import constant
from ..engine.run import Listener, context, no_grad
from ..errors import describe, quoted, user_frame
from ..tensor import Tensor
from ..tree import tree_leaves, tree_map
from .ir import Expression, Listing
from .names import USER, Names, identifier
from .symbol import Symbol


class TracedFunction(Listing, Listener):
    """The listing of a traced function, with its inputs, outputs and gradients."""

    def __init__(self, root=None):
        super().__init__()
        self.thread: int | None = get_ident()  # the thread that may use the symbols
        self.names = Names(self, root)
        self.inputs: dict = {}  # identifier: Expression
        self.arguments: dict = {}  # name: Kind of the array, or a value of another type
        self.parameters: dict = {}  # the name that the user knows: identifier
        self.tensors: dict = {}  # identifier of a parameter: the Tensor
        self.leaves: dict = {}  # a Tensor among the arguments and parameters: identifier
        self.outputs = None
        self.gradients: dict = {}  # identifier: Expression
        self.seed = None  # the gradient with respect to the output
        self.checks: list[Expression] = []  # of the numbers that the package has read
        self.facts: dict = {}  # expressions whose elements are known after a check: constants
        self.generator = None  # the random numbers of the function, if it has asked for some
        self.before = np.random.get_state()
        self.refused: list[Exception] = []  # raised after tracing, even if f has caught them
        self.origins: dict = {}  # by id: an array, and its constant

    def once(self, key, *parts):
        if not self.backward:
            self.scope = self.names.of_scope(context.scope)
        return super().once(key, *parts)

    def operand(self, a):
        a = array_of(a)
        if isinstance(a, Symbol):
            a = self.facts.get(a.expression, a.expression)
        return super().operand(a)

    def constant(self, array):
        e = super().constant(array)
        self.origins[id(array)] = array, e
        return e

    def input(self, name, array):
        """Return the symbol of a new input."""
        name = identifier(name)
        while name in self.inputs:
            name += "_"
        self.inputs[name] = expression = self.leaf("input", name, np.array(array))
        expression.names = {USER: name}
        return Symbol(expression, self)

    def check(self, asked, answer, function):
        """Add a check that this value is the same in later calls."""
        self.checks.append(self.make("check", function, asked.value, asked, answer))
        of_all = asked.name in ("any", "all") and not asked.settings and asked.operands
        if of_all and answer is (asked.name == "all") and asked.args[0].dtype == bool:
            array = asked.args[0]
            self.facts[array] = self.constant(np.full(array.shape, answer))

    def refusal(self, what, instead):
        """Return a TypeError that quotes the user's line."""
        frame = user_frame()
        line = quoted(frame.f_code.co_filename, frame.f_lineno)
        self.refused.append(TypeError(f"ta.source cannot write {line}, which {what}. {instead}"))
        return self.refused[-1]

    def run(self, *listeners):
        """Return a block in which the function runs: plain, recorded, with numbers of its own."""
        return context.entered(
            recording=True, plain=True, listeners=listeners, noted_draws=self.stream
        )

    def stream(self, generator):
        """Return a copy of the default generator, so that its numbers are left for others."""
        self.generator = self.generator or copy.deepcopy(generator)
        return self.generator

    def computed(self, op, inputs, settings, output):
        """Reject parameters that would become constants."""
        for x in inputs:
            if tracked(x) and x._node is None and not isinstance(x._data, Symbol):
                raise self.refusal(
                    f"reads {describe(x)}, a parameter that is neither an argument nor in params=",
                    "Pass params=model, or params={'w': w}.",
                )


def trace(function, args, params, backward, root):
    """Run the function on symbols in place of its arguments and parameters."""
    traced, arguments = TracedFunction(root), [*args]
    symbols: dict = {}  # by Tensor
    for i, (name, x) in enumerate(zip(names_of_arguments(function, len(args)), args)):
        # Of lists, sets and so on, a copy is kept, to be compared with those of a later call.
        traced.arguments[name] = kind_of(array_of(x)) or constant({name: x})[name]
        if isinstance(x, Variable):
            symbols[x] = traced.input(name, x._data)
        elif is_array(x):
            arguments[i] = traced.input(name, x)
        elif any(map(is_array, tree_leaves(x))):
            raise TypeError(
                f"ta.source: the argument {name!r} is a {type(x).__name__} with arrays in it. They "
                "would be constants. Pass each array as an argument, as in lambda a, b: f([a, b])."
            )
    for name, p in params.items():
        if name in traced.arguments:
            raise ValueError(
                f"ta.source: {name!r} is a parameter and an argument, but gradients are returned "
                "by name. Rename the argument, as in lambda x: f(x)."
            )
        if p not in symbols:  # else it is one tensor under two names
            symbols[p] = traced.input(name, p._data)
            traced.tensors[symbols[p].expression.name] = p
        traced.parameters[name] = symbols[p].expression.name
    traced.leaves = {x: symbol.expression.name for x, symbol in symbols.items()}
    try:
        with standing_in(symbols), traced.run(traced, traced.names):
            y = function(*arguments)
            traced.names.note_outputs()
            traced.outputs = tree_map(traced.operand, y)
            if backward:
                differentiate(traced, y)
        for error in traced.refused:
            raise error
    finally:
        traced.thread = None
    return traced


# ---- what surrounds the traced function


def stand_in(x, array):
    """Return a leaf with this array and the hooks of x, to which the function may add its own."""
    leaf = Tensor._of(array, tracked(x))
    for hook in getattr(x._tracked, "functions", ()):
        leaf.register_hook(hook)
    return leaf


@contextmanager
def standing_in(arrays):
    """Inside the block, this thread finds a stand-in's state in the tensors with these arrays.

    Other threads find the tensors as they are. So only the class of a tensor changes.
    """
    thread, classes = get_ident(), [(t, type(t)) for t in arrays]
    try:
        for t, array in arrays.items():
            set_class(t, replaced_class(t, stand_in(t, array), thread))
        yield
    finally:
        for t, kind in classes:
            set_class(t, kind)


set_class = vars(object)["__class__"].__set__  # also where `__class__` is a property


def replaced_class(tensor, other, thread):
    """Return a subclass of the tensor's class that reads and writes the other tensor's slots."""

    def redirected(slot):
        in_use = lambda t: other if get_ident() == thread else t
        return property(
            lambda t: slot.__get__(in_use(t)), lambda t, value: slot.__set__(in_use(t), value)
        )

    kind = tensor.__class__
    names = ("_data", "_grad", "_node", "_tracked")
    slots = {name: redirected(vars(Variable)[name]) for name in names}
    # Copies and pickles, which another thread may make, have the class itself.
    of_copies = {
        "__class__": property(lambda t: kind),
        "__reduce__": lambda t: (object.__new__, (kind,), t.__getstate__()),
    }
    return type(kind.__name__, (type(tensor),), {"__slots__": ()} | slots | of_copies)


# ---- arguments


def names_of_arguments(function, count):
    """Return the function's own names of its first arguments, or x0, x1, ..."""
    names: list[str] = []
    with suppress(ValueError):  # ufuncs have no signature in older versions of NumPy
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
        names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    return [*names, *(f"x{i}" for i in range(len(names), count))][:count]


class Kind(NamedTuple):
    """The shape and dtype of an array, for which a program is written."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self):
        return f"{self.shape} {self.dtype}"


def kind_of(array):
    """Return the Kind of an array, or None for other values."""
    return Kind(array.shape, array.dtype) if is_array(array) else None


def is_array(x):
    """Return whether x is a Tensor, an array, or a number of NumPy."""
    return isinstance(x, (Variable, np.ndarray, np.generic))


# ---- the backward pass


def differentiate(traced, y):
    """Run the backward pass on symbols, for gradients with respect to the leaves."""
    if not isinstance(getattr(y, "_data", None), Symbol):
        raise TypeError(
            f"ta.source can differentiate only a function that returns one Tensor, got "
            f"{describe(y)}. Return only the loss, or pass backward=False."
        )
    if not y._tracked:
        raise ValueError(
            "ta.source: the result does not depend on anything that requires a gradient. Pass a "
            "floating-point array, a Tensor(..., requires_grad=True), params= or backward=False."
        )
    traced.seed = Symbol(traced.constant(np.ones((), y.dtype)), traced)
    if y.shape:
        example = np.random.default_rng(0).standard_normal(y.shape)
        traced.seed = traced.input("d_output", np.asarray(example, y.dtype))
        traced.arguments[traced.seed.expression.name] = kind_of(y)
    traced.backward = True
    slopes = gradients_of(y, traced.seed, traced.leaves)
    traced.gradients = {name: traced.operand(g) for name, g in slopes.items()}


def gradients_of(y, seed, leaves):
    """Return the gradients with respect to the leaves that y depends on, by the leaves' names."""
    with no_grad():
        by = sweep([y], [seed], wanted=[*leaves], retain_graph=True)
    return {name: by[x] for x, name in leaves.items() if x in by}
