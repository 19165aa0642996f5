"""Run a function and its backward pass on symbols, in plain mode, to list their expressions.

Values are named after the variables, functions of F and modules that produce them.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from keyword import iskeyword
from typing import Any

import numpy as np

from .. import random
from ..engine.backward import sweep
from ..engine.graph import Variable, array_of, tracked
from ..engine.run import Listener, context, enable_grad, no_grad, plain
from ..errors import describe, quoted, user_frame
from ..nn.calls import dotted_name, enclosing
from ..tensor import Tensor
from .ir import Expression, Listing, replaced
from .symbol import FUNCTIONS, PACKAGE, Symbol, frames, is_in, is_public

NAMED_BY_USER, NAMED_BY_MODULE, NAMED_BY_PACKAGE, NAMED_BY_OP, NAMED_BY_USE = 4, 3, 2, 1, 0.5
"""Priorities of names. A name from an op or a use does not require a separate line."""
NAMING_FILES = (FUNCTIONS, f"{PACKAGE}/nn/transformer.py", f"{PACKAGE}/nn/attention.py")
"""Files of the package whose variable names are good names for values."""
GENERAL = (
    "x y z a b g t n out input inputs output outputs args arg kwargs result self value array "
    "part parts total weight bias query key target src tgt memory given found made losses wide "
    "tensor operands"
)
"""Variable names that do not describe a value."""
NAMES_OF_OPS = ("relu", "sigmoid", "tanh")


class Trace(Listing, Listener):
    """The listing of a traced function, with its inputs, outputs and gradients."""

    def __init__(self, root: Any = None) -> None:
        super().__init__()
        self.inputs: dict[str, Expression] = {}  # by identifier
        self.outputs: Any = None
        self.gradients: dict[str, Expression] = {}  # by identifier
        self.originals: dict[str, str] = {}  # identifier: the name that the user knows
        self.letters: dict[str, set[int]] = {}  # the sizes of an axis
        self.kinds: dict[str, str] = {}  # class names of modules with a number for a name
        self.parameters: dict[str, Any] = {}  # identifier: the Tensor
        self.arguments: dict[str, Any] = {}  # name: shape and dtype, or None if not an array
        self.seed: Any = None  # the gradient with respect to the output
        self.checks: list[Expression] = []  # of the numbers that the package has read
        self.facts: dict[int, Expression] = {}  # arrays whose elements are known after a check
        self.refused: list[Exception] = []  # raised after tracing, even if f has caught them
        self.origins: dict[int, tuple[Any, Expression]] = {}  # by id: an array, and its constant
        self.running: Any = None  # the running module call
        self.last: Any = None  # the last output in it
        self.call: Any = None  # the frame of the outermost running function of F
        self.root = root  # the module from which dotted names start
        self.dotted_name = functools.cache(lambda scope: dotted_name(scope, root))

    def scope_name(self, scope: Any) -> str:
        """Return the dotted name of a module call, or an empty string for the root."""
        return "" if scope is None or scope.module is self.root else self.dotted_name(scope)

    def once(self, key: Any, *parts: Any) -> Expression:
        if not self.backward:
            self.scope = self.scope_name(context.scope)
        return super().once(key, *parts)

    def operand(self, a: Any) -> Any:
        a = array_of(a)
        if isinstance(a, Symbol):
            a = self.facts.get(a.expression.id, a.expression)
        return super().operand(a)

    def constant(self, array: Any) -> Expression:
        found = super().constant(array)
        self.origins[id(array)] = array, found
        return found

    def check(self, asked: Expression, answer: Any, function: str) -> None:
        """Add a check that this value is the same in later calls."""
        self.checks.append(self.make("check", function, asked.value, asked, answer))
        of_all = asked.name in ("any", "all") and not asked.settings
        if of_all and answer is (asked.name == "all") and asked.args[0].dtype == bool:
            array = asked.args[0]
            self.facts[array.id] = self.constant(np.full(array.shape, answer))

    def refusal(self, what: str, instead: str) -> Exception:
        """Return a TypeError that quotes the user's line."""
        frame = user_frame()
        line = quoted(frame.f_code.co_filename, frame.f_lineno)
        self.refused.append(TypeError(f"ta.source cannot write {line}, which {what}. {instead}"))
        return self.refused[-1]

    # ---- names

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        """Reject parameters that would become constants, and name the outputs of ended calls."""
        for x in inputs:
            if tracked(x) and x._node is None and not isinstance(x._data, Symbol):
                raise self.refusal(
                    f"reads {describe(x)}, a parameter that is neither an argument nor in params=",
                    "Pass params=model, or params={'w': w}.",
                )
        call = next((f for f in reversed([*frames()]) if is_in(f, FUNCTIONS)), None)
        if call is not self.call:
            if self.call is not None and is_public(self.call):
                suggest(self.last, NAMED_BY_OP, self.call.f_code.co_name)
            self.call = call
        if context.scope is not self.running:
            self.left(context.scope)
        self.last = output
        if op.__name__ in NAMES_OF_OPS:
            suggest(output, NAMED_BY_OP, op.__name__)

    def left(self, now: Any) -> None:
        """Name the last output after the outermost module call that has just ended."""
        running, name = [*enclosing(now)], ""
        for scope in enclosing(self.running):
            if scope not in running:
                self.letters_of(vars(scope.module))
                here = self.scope_name(scope)
                name = here or name
                if here.rpartition(".")[2].isdigit():
                    self.kinds[here] = f" ({type(scope.module).__name__})"
        self.running = now
        parts = name.split(".")
        if name:
            tail = parts[-2:] if parts[-1].isdigit() else parts[-1:]
            suggest(self.last, NAMED_BY_MODULE, "_".join(tail))

    def letters_of(self, has: dict[str, Any]) -> None:
        """Assign letters to the sizes of an attention or Transformer layer."""
        sizes: dict[str, int] = {}
        if "num_heads" in has and "embed_dim" in has:
            heads, width = has["num_heads"], has["embed_dim"]
            sizes = {"E": width, "H": heads, "D": width // heads}
            for e in reversed(self.expressions):
                if e.hint[1] == "scores" and e.ndim == 4:
                    sizes["B"], _, sizes["T"], keys = e.shape
                    if keys != sizes["T"]:
                        sizes["S"] = keys
                    break
        if "linear1" in has and "self_attn" in has:
            sizes["F"] = has["linear1"].out_features
        for letter, size in sizes.items():
            self.letters.setdefault(letter, set()).add(size)

    def pulling(self, y: Any, g: Any) -> None:
        """Assign the VJPs that follow to the module call in which y was computed."""
        self.scope = self.scope_name(y._node.scope)

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        """Name a gradient after its value, or after the only input that it is passed on to."""
        if not (isinstance(total, Symbol) and isinstance(x._data, Symbol)):
            return
        e, by = total.expression, x._data.expression
        better = e.nameless
        if not e.hint[0] and e.by is not None and e.by.nameless:
            better = not by.nameless and by.kind != "input"
        if isinstance(g, Symbol) and g.expression is e and not by.nameless:
            better |= sum(map(tracked, node.inputs)) == 1
        if better:
            e.hint, e.by = (0, ""), by

    def look(self) -> None:
        """Suggest names for values from the variables of the running functions."""
        scope: Any = next(enclosing(context.scope), None)
        for frame in frames():
            here, theirs = frame.f_locals, not is_in(frame, PACKAGE)
            priority = NAMED_BY_USER if theirs else NAMED_BY_PACKAGE
            gives_names = theirs or is_in(frame, *NAMING_FILES)
            for name, x in here.items() if gives_names else ():
                array = array_of(x)
                if isinstance(array, Symbol):
                    general = name in GENERAL.split()
                    if theirs or not general:
                        suggest(x, NAMED_BY_PACKAGE if general else priority, name)
                elif id(array) in self.origins and self.origins[id(array)][1].nameless:
                    self.origins[id(array)][1].hint = (NAMED_BY_PACKAGE, identifier(name))
            called = scope is not None and frame.f_code.co_name == "__call__"
            if called and here.get("self") is scope.module:
                name = self.scope_name(scope).rpartition(".")[2]
                for x in here.get("args", ())[:1]:
                    suggest(x, NAMED_BY_USE, f"{name}_input")
                scope = scope.outer


def identifier(name: str) -> str:
    """Turn a name such as `layers.0.weight` into an identifier such as `layers_0_weight`."""
    made = "".join(c if c.isalnum() else "_" for c in name)
    if not made or made[0].isdigit():
        made = "layer" + made
    return made + "_" if iskeyword(made) or made in ("np", "erf") else made


def trace(function: Any, args: tuple, params: Any, backward: bool, root: Any) -> Trace:
    """Run the function on symbols for its arguments and parameters."""
    found = Trace(root)
    given = arguments(found, function, args)
    with tracing(found, params, found):
        with enable_grad():
            y = function(*given)
        found.left(None)
        found.outputs = replaced(y, found.operand)
        if backward:
            leaves = [x for x in (*given, *found.parameters.values()) if tracked(x)]
            differentiate(found, y, {x: x._data.expression.name for x in leaves})
    return found


@contextmanager
def tracing(found: Trace, params: Mapping[str, Any], *watchers: Listener) -> Iterator[None]:
    """Inside the block, plain mode is on, parameters hold symbols, and only these watchers run."""
    before = [(p, p._data, p._grad, p._tracked) for p in params.values()]
    watched, context.listeners = context.listeners, watchers
    states = np.random.get_state(), random.get_rng_state()
    try:
        for name, p in params.items():
            if not isinstance(p._data, Symbol):  # else it is one tensor under two names
                p._data = input_symbol(found, name, np.asarray(p._data))
                found.parameters[p._data.expression.name] = p
        with plain():
            yield
        drawn = np.random.get_state(), random.get_rng_state()
        if pickle.dumps(drawn) != pickle.dumps(states):
            raise TypeError(
                "ta.source: the function draws random numbers (for example, for dropout in "
                "training mode), but a program would use the same numbers in every call. Call "
                "model.eval(), or draw the numbers outside the function and pass them to it."
            )
        for error in found.refused:
            raise error
    finally:
        context.listeners = watched
        np.random.set_state(states[0])
        random.set_rng_state(states[1])
        for p, *values in before:
            p._data, p._grad, p._tracked = values


def arguments(found: Trace, function: Callable[..., Any], args: tuple) -> list[Any]:
    """Return the arguments with symbols in place of arrays."""
    names: list[str] = []
    with suppress(ValueError):  # ufuncs have no signature in older versions of NumPy
        every = inspect.signature(getattr(function, "forward", function)).parameters.values()
        names = [p.name for p in every if p.kind <= p.POSITIONAL_OR_KEYWORD]
    names += [f"x{i}" for i in range(len(names), len(args))]
    given: list[Any] = []
    for name, x in zip(names, args):
        array = array_of(x)
        is_array = isinstance(array, (np.ndarray, np.generic))
        found.arguments[name] = kind_of(array) if is_array else None
        given.append(stand_in(found, name, x) if is_array else x)
    return given


def kind_of(array: Any) -> str:
    return f"{array.shape} {array.dtype.name}"


def stand_in(found: Trace, name: str, x: Any) -> Any:
    """Replace an array with a symbol, or a Tensor with a Tensor that contains a symbol."""
    symbol: Any = input_symbol(found, name, np.asarray(array_of(x)))
    return Tensor._of(symbol, tracked(x)) if isinstance(x, Variable) else symbol


def input_symbol(found: Trace, original: str, array: np.ndarray) -> Symbol:
    name = identifier(original)
    while name in found.inputs:
        name += "_"
    found.inputs[name] = expression = found.leaf("input", name, array.view())
    expression.hint = (NAMED_BY_USER, name)
    found.originals[name] = name if original in found.originals.values() else original
    return Symbol(expression, found)


def differentiate(found: Trace, y: Any, leaves: dict[Any, str]) -> None:
    """Run the backward pass on symbols."""
    if not isinstance(array_of(y), Symbol) or array_of(y) is y:
        raise TypeError(
            f"ta.source can differentiate only a function that returns one Tensor, got "
            f"{describe(y)}. Return only the loss, or pass backward=False."
        )
    if not y._tracked:
        raise ValueError(
            "ta.source: the result does not depend on anything that requires a gradient. Pass a "
            "floating-point array, a Tensor(..., requires_grad=True), params= or backward=False."
        )
    found.seed = Symbol(found.constant(np.ones((), y.dtype)), found)
    if y.shape:
        found.seed = seed_of(found, "d_output", y)
        found.arguments[found.seed.expression.name] = kind_of(y)
    found.gradients = gradients(found, y, found.seed, leaves)


def seed_of(found: Trace, name: str, y: Any) -> Symbol:
    """Return an input for the gradient with respect to y, with random example values."""
    example = np.random.default_rng(0).standard_normal(y.shape)
    return input_symbol(found, name, np.asarray(example, y.dtype))


def gradients(found: Trace, y: Any, seed: Symbol, leaves: dict[Any, str]) -> dict[str, Expression]:
    """Return the gradients of y as expressions, by the leaves' names."""
    found.backward = True
    with no_grad():
        by = sweep([y], [seed], wanted=[*leaves], retain_graph=True, stop=True)
    return {name: found.operand(by[x]) for x, name in leaves.items() if x in by}


def suggest(x: Any, priority: float, name: str) -> None:
    """Give this name to a Tensor or a symbol unless it already has a better one."""
    array = array_of(x)
    if isinstance(array, Symbol) and name[0] != "_" and array.expression.hint[0] < priority:
        array.expression.hint = (priority, identifier(name))
