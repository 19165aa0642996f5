"""Run a function and its backward pass on symbols, which gives a listing of expressions.

It runs in plain mode, so the listing has the functions of F, the ops' functions and their VJPs.
Values get the names of variables in the user's functions, the layers and F. A module's output gets
the module's name.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

import numpy as np

from .. import random
from ..engine import (
    Variable,
    Watcher,
    array_of,
    context,
    enable_grad,
    no_grad,
    plain,
    sweep,
    tensor_of,
    tracked,
    watching,
)
from ..errors import describe
from ..nn.calls import dotted_name
from .ir import BACKWARD, LEAVES, Expression, replaced
from .symbol import FUNCTIONS, PACKAGE, Symbol, Writing, frames, is_in, is_public, is_symbol

NAMED_BY_USER, NAMED_BY_MODULE, NAMED_BY_PACKAGE, NAMED_BY_OP, NAMED_BY_USE = 4, 3, 2, 1, 0.5
"""Whose names come first. A name of the last two kinds gives no line of its own."""
NAMING_FILES = (FUNCTIONS, f"{PACKAGE}/nn/transformer.py", f"{PACKAGE}/nn/attention.py")
"""The files of the package whose names for their values a reader would choose."""
GENERAL = (
    "x y z a b g t n out input inputs output outputs args arg kwargs result self value array "
    "part parts total weight bias query key target src tgt memory given found made losses wide "
    "tensor operands"
)
"""Names that say nothing of a value."""
NAMES_OF_OPS = ("relu", "sigmoid", "tanh")
LONGEST = 13
"""A longer name of a function, such as scaled_dot_product_attention, is none for a value."""


class Trace:
    """The result of one run: the expressions of its outputs, and of what the package read."""

    def __init__(self, root: Any = None) -> None:
        self.listing = Writing()
        self.inputs: dict[str, Expression] = {}  # by identifier
        self.outputs: Any = None
        self.gradients: dict[str, Expression] = {}  # by identifier
        self.originals: dict[str, str] = {}  # identifier: the name as the user knows it
        self.root = root  # the module from which others have their dotted names
        self.letters: dict[str, int] = {}  # the size of an axis, 0 for one of several sizes
        self.kinds: dict[str, str] = {}  # by a module call's name: ` (Linear)` for a number
        self.parameters: dict[str, Any] = {}  # identifier: the Tensor
        self.arguments: dict[str, Any] = {}  # name: (shape, dtype), or None for what is no array
        self.seed: Any = None  # the identifier of the gradient by the output, if it is an input
        self.dotted_name = functools.cache(lambda scope: dotted_name(scope, root))

    def scope_name(self, scope: Any) -> str:
        """The dotted name of a module call, seen from the root or from the outermost module."""
        if scope is None or scope.outer is None and self.root is None or scope.module is self.root:
            return ""
        return self.dotted_name(scope)


def identifier(name: str) -> str:
    """A name as Python allows it: `layers.0.weight` as `layers_0_weight`."""
    made = "".join(c if c.isalnum() else "_" for c in name)
    if not made or made[0].isdigit():
        made = "layer" + made
    return made + "_" if iskeyword(made) or made in ("l", "O", "I", "np", "erf") else made


def trace(
    function: Callable[..., Any],
    args: tuple,
    params: Mapping[str, Any],
    buffers: Mapping[str, Any],
    backward: bool,
    root: Any = None,
) -> Trace:
    """Run the function on symbols in place of the arguments and parameters."""
    found = Trace(root)
    listing = found.listing
    given = arguments(found, function, args)
    listing.called = {id(b._data): identifier(n) for n, b in buffers.items()}
    names = Names(found)
    listing.names, listing.where = names.look, lambda: found.scope_name(context.scope)
    before = random_states()
    with parameters_as_symbols(found, params), only(names), plain():
        with enable_grad():
            y = function(*given)
            names.returned(None)
            names.left(None)
        found.outputs = expressed(found, y)
        if random_states() != before:
            raise TypeError(
                "ta.source: the function draws random numbers (dropout in training mode, say), and "
                "a program would drop the same elements each time. Call model.eval() before, or "
                "draw outside and pass what was drawn as an argument."
            )
        if backward:
            leaves = [x for x in (*given, *found.parameters.values()) if tracked(x)]
            differentiate(found, y, {x: x._data.expression.name for x in leaves})
    return found


@contextmanager
def only(watcher: Watcher) -> Iterator[None]:
    """Only this watcher sees what runs in the block."""
    before, context.watchers = context.watchers, ()
    try:
        with watching(watcher):
            yield
    finally:
        context.watchers = before


# ---- inputs


def arguments(found: Trace, function: Callable[..., Any], args: tuple) -> list[Any]:
    """The arguments, with symbols in place of arrays."""
    given: list[Any] = []
    for name, x in zip(names_of(function, len(args)), args, strict=True):
        array = array_of(x)
        is_array = isinstance(array, (np.ndarray, np.generic))
        found.arguments[name] = (array.shape, array.dtype) if is_array else None
        if is_array and array.dtype.kind not in "fiub":
            raise TypeError(f"ta.source: {name} holds no real numbers, it is {describe(x)}.")
        given.append(stand_in(found, name, x) if is_array else x)
    return given


def stand_in(found: Trace, name: str, x: Any) -> Any:
    """A symbol in place of an array, or a Tensor of it in place of a Tensor."""
    symbol = input_symbol(found, name, np.asarray(array_of(x)))
    if not isinstance(x, Variable):
        return symbol
    tensor = tensor_of(symbol)
    tensor._tracked = x._tracked
    return tensor


def names_of(function: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its positional arguments."""
    every = inspect.signature(getattr(function, "forward", function)).parameters.values()
    names = [p.name for p in every if p.kind <= p.POSITIONAL_OR_KEYWORD]
    return (names + [f"x{i}" for i in range(len(names), count)])[:count]


def input_symbol(found: Trace, original: str, array: np.ndarray) -> Symbol:
    """A symbol for an argument or a parameter."""
    name = identifier(original)
    while name in found.inputs:
        name += "_"
    array = array.view()
    found.inputs[name] = expression = found.listing.leaf("input", name, array)
    expression.hint = (NAMED_BY_USER, name)
    found.originals[name] = name if original in found.originals.values() else original
    return Symbol(expression, array, found.listing)


@contextmanager
def parameters_as_symbols(found: Trace, params: Mapping[str, Any]) -> Iterator[None]:
    """Symbols in the parameters while the block runs."""
    before = [(p, p._data, p._grad, p._tracked) for p in params.values()]
    try:
        for name, p in params.items():
            if not is_symbol(p._data):  # else one tensor under two names
                p._data = input_symbol(found, name, np.asarray(p._data))
                found.parameters[p._data.expression.name] = p
        yield
        for error in found.listing.refused:  # which the function, or a VJP, has caught
            raise error
    finally:
        for p, *values in before:
            p._data, p._grad, p._tracked = values


def random_states() -> bytes:
    """The states of the global streams of random numbers."""
    return pickle.dumps((np.random.get_state(), random.get_rng_state()))


# ---- outputs


def expressed(found: Trace, y: Any) -> Any:
    """Expressions in place of tensors, symbols and arrays, in tuples, lists and dicts too."""

    def one(x: Any) -> Any:
        array = array_of(x)
        if is_symbol(array):
            return array.expression
        return found.listing.constant(array) if isinstance(array, np.ndarray) else array

    return replaced(y, one)


def differentiate(found: Trace, y: Any, leaves: dict[Any, str]) -> None:
    """The backward pass, run on symbols."""
    if not is_symbol(array_of(y)) or array_of(y) is y:
        raise TypeError(
            "ta.source differentiates a function that returns one Tensor made from its arguments, "
            f"got {describe(y)}. Return the loss alone, or write ta.source(..., backward=False)."
        )
    if not y._tracked:
        raise ValueError(
            "ta.source: the result does not depend on anything that requires a gradient. Pass a "
            "floating array, Tensor(..., requires_grad=True) or params=; or write backward=False."
        )
    if y.shape == ():
        one = y.dtype.type(1)
        seed = Symbol(found.listing.leaf("number", "1.0", one), one, found.listing)
    else:
        seed = seed_of(found, "d_output", y)
        found.seed = seed.expression.name
        found.arguments[found.seed] = y.shape, y.dtype
    found.gradients = gradients(found, y, seed, leaves)


def seed_of(found: Trace, name: str, y: Any) -> Symbol:
    """The gradient by y as an input; of its numbers it matters only that no two are alike."""
    example = np.random.default_rng(0).standard_normal(y.shape)
    return input_symbol(found, name, np.asarray(example, y.dtype))


def gradients(found: Trace, y: Any, seed: Symbol, leaves: dict[Any, str]) -> dict[str, Expression]:
    """The gradients by the leaves, by their identifiers."""
    found.listing.phase = BACKWARD
    with no_grad():
        by = sweep([y], [seed], wanted=[*leaves], retain_graph=True, stop=True)
    return {name: expressed(found, by[x]) for x, name in leaves.items() if x in by}


# ---- names


class Names(Watcher):
    """Finds names for expressions, and letters for the sizes of axes."""

    def __init__(self, found: Trace) -> None:
        self.found = found
        self.scope: Any = None
        self.last: Any = None  # the last output in that scope
        self.call: Any = None  # the frame of the outermost function of F that runs

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Refuse a parameter that would be frozen; note when calls of functions have ended."""
        for x in inputs:
            if tracked(x) and x._node is None and not is_symbol(x._data):
                error = TypeError(
                    f"ta.source: {describe(x)} requires a gradient, but is neither an argument nor "
                    "in params=, and its numbers would be frozen into the program. Pass "
                    "params=model, or params={'w': w}."
                )
                self.found.listing.refused.append(error)
                raise error
        call = next((f for f in reversed([*frames()]) if is_in(f, FUNCTIONS)), None)
        if call is not self.call:
            self.returned(call)
        if context.scope is not self.scope:
            self.left(context.scope)
        self.last = output
        if op.__name__ in NAMES_OF_OPS:
            suggest(output, NAMED_BY_OP, op.__name__)

    def left(self, now: Any) -> None:
        """Name the last output after the modules whose calls have ended since."""
        running, name = open_scopes(now), ""
        for scope in open_scopes(self.scope):
            if scope not in running:
                self.letters_of(vars(scope.module))
                here = self.found.scope_name(scope)
                name = here or name
                if here.rpartition(".")[2].isdigit():
                    self.found.kinds[here] = f" ({type(scope.module).__name__})"
        self.scope = now
        parts = name.split(".")
        if name:
            tail = parts[-2:] if parts[-1].isdigit() else parts[-1:]
            suggest(self.last, NAMED_BY_MODULE, "_".join(tail))

    def returned(self, now: Any) -> None:
        """Name the output of a function of F after the function."""
        if self.call is not None and is_public(self.call):
            name = self.call.f_code.co_name
            if len(name) <= LONGEST:
                suggest(self.last, NAMED_BY_OP, name)
        self.call = now

    def letters_of(self, has: dict[str, Any]) -> None:
        """The sizes that an attention or a feed-forward layer has letters for."""
        heads, width = has.get("num_heads"), has.get("embed_dim")
        if isinstance(heads, int) and isinstance(width, int):
            self.letter(E=width, H=heads, D=has.get("head_dim", width // heads))
            for e in reversed(self.found.listing.expressions):
                if e.hint[1] == "scores" and e.ndim == 4:
                    batch, _, queries, keys = e.shape
                    self.letter(B=batch, T=queries, **({} if keys == queries else {"S": keys}))
                    break
        if "linear1" in has and "self_attn" in has:
            self.letter(F=has["linear1"].out_features)

    def letter(self, **sizes: int) -> None:
        """Letters for sizes; 0 for what has several sizes in one model."""
        letters = self.found.letters
        for letter, size in sizes.items():
            letters[letter] = size if letters.get(letter, size) == size else 0

    def pulling(self, y: Any, g: Any) -> None:
        """Assign the VJPs that follow to the module call in which y was computed."""
        self.found.listing.scope = self.found.scope_name(y._node.scope)

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        """Name a gradient after what it is the gradient by; after the input of an op where it
        passes an op of one input unchanged.
        """
        if not (is_symbol(total) and is_symbol(x._data)):
            return
        e, by = total.expression, x._data.expression
        better = e.nameless
        if not e.hint[0] and e.by is not None and e.by.nameless:
            better = not by.nameless and by.kind != "input"
        if is_symbol(g) and g.expression is e and not by.nameless:
            better |= sum(map(tracked, node.inputs)) == 1
        if better and e.kind not in LEAVES:
            e.hint, e.by = (0, ""), by

    def look(self) -> None:
        """Suggest the names that the running functions have for their values."""
        scope, calls = context.scope, []
        for frame in frames():
            here, ours = frame.f_locals, is_in(frame, PACKAGE)
            if not ours or is_in(frame, *NAMING_FILES):
                self.look_in(here, not ours)
            called = scope is not None and frame.f_code.co_name == "__call__"
            if called and here.get("self") is scope.module:
                calls.append((self.found.scope_name(scope), here.get("args")))
                scope = scope.outer
        for name, args in reversed(calls):
            if name and args:
                suggest(args[0], NAMED_BY_USE, f"{name.rpartition('.')[2]}_input")

    def look_in(self, variables: dict[str, Any], theirs: bool) -> None:
        """Suggest the names of one frame's variables, the user's or the package's."""
        for name, x in variables.items():
            array = array_of(x)
            if is_symbol(array):
                telling = name not in GENERAL.split()
                if telling or theirs and name not in self.found.inputs:
                    suggest(x, NAMED_BY_USER if theirs and telling else NAMED_BY_PACKAGE, name)
            elif isinstance(array, np.ndarray) and array.size > 1:
                _, e = self.found.listing.origins.get(id(array), (None, None))
                if e is not None and e.nameless:
                    e.hint = (NAMED_BY_PACKAGE, identifier(name))


def open_scopes(scope: Any) -> list[Any]:
    """This module call and those around it, from the inside out."""
    found = []
    while scope is not None:
        found.append(scope)
        scope = scope.outer
    return found


def suggest(x: Any, priority: float, name: str) -> None:
    """Call a tensor or a symbol so, unless it has a better name."""
    array = array_of(x)
    if is_symbol(array) and not name.startswith("_"):
        e = array.expression
        if e.kind not in LEAVES and e.hint[0] < priority:
            e.hint = (priority, identifier(name))
