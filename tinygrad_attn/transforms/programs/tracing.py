"""Runs a function on symbols, and the sweep after it: what comes out is the list of expressions.

In plain mode, so that what is written down is the equations, the ops' own functions and their
rules. Names are looked for in the frames of what runs: the user's functions, the layers and the
equations call their values something, and a module's result is called as the module is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from ... import random
from ...engine import Variable, Watcher, context, enable_grad, plain, sweep, tensor_of, watching
from ...messages.errors import describe
from .expressions import BACKWARD, Expression
from .symbol import HERE, NUMPY, PACKAGE, Symbol, Writing, is_symbol

TELL = tuple(
    str(Path(PACKAGE, *place))
    for place in (("nn", "transformer.py"), ("nn", "attention.py"), ("functional",))
)
"""The files of the package whose names for their values a reader would choose."""
CALLS = str(Path(PACKAGE, "nn", "module.py"))
"""Where modules are called."""
FUNCTIONS = str(Path(PACKAGE, "functional", "__init__.py"))
"""Where the functions of F are."""
LONGEST = 13
"""A function's name that is longer, such as scaled_dot_product_attention, is none for a value."""
GENERAL = (
    "x y z a b g t n out input inputs output outputs args arg kwargs result self value array "
    "part parts total weight bias query key target src tgt memory given found made losses wide "
    "tensor operands"
)
TELL_NOTHING = set(GENERAL.split())
"""Names that stand for whatever a function is given."""
NAMES_OF_OPS = ("relu", "sigmoid", "tanh")
"""Ops whose result is called as they are."""
NAMED_BY_USER, NAMED_BY_MODULE, NAMED_BY_PACKAGE, NAMED_BY_OP, NAMED_BY_USE = 4, 3, 2, 1, 0.5
"""Whose names come first. A name of the last two kinds gives no line of its own."""


class Trace:
    """What came of one run: the expressions of its results, and what was asked on the way."""

    def __init__(self) -> None:
        self.listing = Writing()
        self.inputs: dict[str, Expression] = {}  # by identifier
        self.outputs: Any = None
        self.gradients: dict[str, Expression] = {}  # by the names in `originals`
        self.originals: dict[str, str] = {}  # identifier: the name as the user knows it
        self.root: Any = None  # the module from which others have their names
        self.letters: dict[str, int] = {}
        self.scopes: dict[int, tuple[Any, str]] = {}  # a module call, and its name
        self.kinds: dict[str, str] = {}  # by a module call's name: ` (Linear)` for a number
        self.parameters: dict[str, Any] = {}  # identifier: the Tensor
        self.arguments: dict[str, Any] = {}  # name: (shape, dtype), or None for what is no array
        self.seed: Any = None  # the identifier of the gradient that comes in, if it is an input

    def scope_name(self, scope: Any) -> str:
        """The dotted name of a module call, seen from the root, or from the outermost module."""
        if scope is None or scope.outer is None and self.root is None or scope.module is self.root:
            return ""
        if id(scope) not in self.scopes:
            from ...nn.scopes import dotted_name  # lazy: there are calls only where nn is loaded

            self.scopes[id(scope)] = scope, dotted_name(scope, self.root)
        return self.scopes[id(scope)][1]


def identifier(name: str) -> str:
    """A name of Python's: `layers.0.weight` as `layers_0_weight`."""
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
    """Run the function on symbols in place of the arguments and parameters.

    `root` is the module from which names of modules are seen, as those of its parameters are.
    """
    found = Trace()
    found.root = root
    listing = found.listing
    given = arguments(found, function, args)
    tensors = [x for x in given.values() if isinstance(x, Variable) and x._tracked]
    leaves = {x._data.expression.name: x for x in tensors}
    listing.called = {id(b._data): identifier(n) for n, b in buffers.items()}
    watcher = Names(found)
    listing.names, listing.where = watcher.look, lambda: found.scope_name(context.scope)
    with parameters_as_symbols(found, params) as parameters, nothing_random(), plain():
        leaves.update({n: p for n, p in parameters.items() if p._tracked})
        with enable_grad(), watching(watcher):
            y = function(*given.values())
            watcher.left_all()
        found.outputs = checked(found, y, backward)
        if backward:
            differentiate(found, y, leaves, watcher)
    for refused in listing.refused:  # which the function, or a rule, has caught
        raise refused
    return found


def arguments(found: Trace, function: Callable[..., Any], args: tuple) -> dict[str, Any]:
    """The arguments by name, with symbols in place of arrays."""
    given: dict[str, Any] = {}
    for name, x in zip(names_of(function, len(args)), args, strict=True):
        array = x._data if isinstance(x, Variable) else x
        if not isinstance(array, (np.ndarray, np.generic)):
            given[name], found.arguments[name] = x, None
            continue
        if array.dtype.kind not in "fiub":
            raise TypeError(f"ta.source: {name} holds no real numbers, it is {describe(x)}.")
        found.arguments[name] = array.shape, array.dtype
        symbol = input_symbol(found, name, name, np.asarray(array))
        if isinstance(x, Variable) or array.dtype.kind == "f":
            given[name] = tensor = tensor_of(symbol)
            tensor._tracked = array.dtype.kind == "f" and not (
                isinstance(x, Variable) and not x._tracked
            )
        else:
            given[name] = symbol
    return given


def names_of(function: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its positional arguments."""
    try:
        every = [*inspect.signature(getattr(function, "forward", function)).parameters.values()]
    except (TypeError, ValueError):
        every = []
    positional = [p.name for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (positional + [f"x{i}" for i in range(len(positional), count)])[:count]


def input_symbol(found: Trace, name: str, original: str, array: np.ndarray) -> Symbol:
    """A symbol for an argument or a parameter."""
    name = identifier(name)
    while name in found.inputs:
        name += "_"
    array = array.view()
    expression = found.listing.make("input", name, (), {}, array, ("input", name))
    expression.hint = (NAMED_BY_USER, name)
    found.inputs[name] = expression  # and of a parameter called as an argument the identifier
    found.originals[name] = name if original in found.originals.values() else original
    return Symbol(expression, array, found.listing)


@contextmanager
def parameters_as_symbols(found: Trace, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Symbols in the parameters while the block runs."""
    before = [(p, p._data, p._grad, p._tracked) for p in params.values()]
    held: dict[int, Symbol] = {}
    try:
        named = {}
        for name, p in params.items():
            if id(p) in held:
                continue  # one tensor under two names
            symbol = input_symbol(found, name, name, np.asarray(p._data))
            held[id(p)] = p._data = symbol
            named[symbol.expression.name] = p
            found.parameters[symbol.expression.name] = p
        yield named
    finally:
        for p, data, gradient, tracked in before:
            p._data, p._grad, p._tracked = data, gradient, tracked


@contextmanager
def nothing_random() -> Iterator[None]:
    """Raise at the end of the block if random numbers were drawn inside, by NumPy's or ours."""
    before = states()
    yield
    if states() != before:
        raise TypeError(
            "ta.source: the function draws random numbers (dropout in training mode, say), and a "
            "program would drop the same elements each time. Call model.eval() before, or draw "
            "outside and pass what was drawn as an argument."
        )


def states() -> list[bytes]:
    """Where the two global streams of random numbers stand."""
    numpy_state: Any = np.random.get_state()
    parts = [*random.get_rng_state().values(), *numpy_state[1:]]
    return [np.asarray(part).tobytes() for part in parts]


def checked(found: Trace, y: Any, backward: bool) -> Any:
    """The expressions of what the function returned."""
    if backward and not (isinstance(y, Variable) and is_symbol(y._data)):
        raise TypeError(
            "ta.source differentiates a function that returns one Tensor made from its arguments, "
            f"got {describe(y)}. Return the loss alone, or write ta.source(..., backward=False)."
        )
    if backward and not y._tracked:
        raise ValueError(
            "ta.source: the result does not depend on anything that requires a gradient. Pass a "
            "floating array, Tensor(..., requires_grad=True) or params=; or write backward=False."
        )
    return expressed(found, y)


def expressed(found: Trace, y: Any) -> Any:
    """Expressions in place of tensors, symbols and arrays, in tuples, lists and dicts too."""
    array = y._data if isinstance(y, Variable) else y
    if is_symbol(array):
        if array.owes:
            raise TypeError("ta.source: the result is an array of which a part was changed.")
        return array.expression
    if isinstance(y, dict):
        return {k: expressed(found, v) for k, v in y.items()}
    if isinstance(y, (tuple, list)):
        parts = [expressed(found, v) for v in y]
        return parts if type(y) is list else tuple(parts)
    return found.listing.constant(array) if isinstance(array, np.ndarray) else array


def differentiate(found: Trace, y: Any, leaves: Mapping[str, Any], watcher: Names) -> None:
    """The sweep, run on symbols."""
    listing = found.listing
    listing.phase = BACKWARD
    dtype = y._data.dtype
    if y.shape == ():
        one = dtype.type(1)
        seed = Symbol(listing.number("1.0", one), one, listing)
    else:  # of these numbers only the shape matters, and that no two are alike
        example = np.random.default_rng(0).standard_normal(y.shape).astype(dtype)
        seed = input_symbol(found, "d_output", "d_output", example)
        found.seed = seed.expression.name
        found.arguments[found.seed] = y.shape, dtype
    before = context.recording
    context.recording = False
    try:
        with watching(watcher):
            gradients = sweep([y], [seed])
    finally:
        context.recording = before
    for name, leaf in leaves.items():
        if leaf in gradients:
            g = gradients[leaf]
            found.gradients[name] = g.expression if is_symbol(g) else listing.constant(g)


# ---- names


class Names(Watcher):
    """Finds names for expressions, and for what the arguments' axes are."""

    def __init__(self, found: Trace) -> None:
        self.found = found
        self.scope: Any = None
        self.last: Any = None  # the last result in that scope
        self.call: Any = None  # the frame of the function of F that runs

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """See to it that no parameter is frozen, and give a module's result the module's name."""
        for x in inputs:
            free = isinstance(x, Variable) and x._tracked and x._node is None
            if free and not is_symbol(x._data):
                error = TypeError(
                    f"ta.source: {describe(x)} requires a gradient, but is neither an argument nor "
                    "in params=, and its numbers would be frozen into the program. Pass "
                    "params=model, or params={'w': w}."
                )
                raise self.found.listing.refusing(error)
        call, scope = call_of_functional(), context.scope
        if call is not self.call:
            self.returned(call)
        if scope is not self.scope:
            self.left(scope)
            self.scope = scope
        self.last = result
        if is_symbol(result._data) and op.__name__ in NAMES_OF_OPS:
            suggest(result._data.expression, NAMED_BY_OP, op.__name__)

    def left(self, now: Any) -> None:
        """Name the last result after the modules whose calls have ended since."""
        open_now = []
        while now is not None:
            open_now.append(now)
            now = now.outer
        scope, name = self.scope, None
        while scope is not None and scope not in open_now:
            self.letters_of(scope.module)
            here = self.found.scope_name(scope)
            name = here or name
            if here.rpartition(".")[2].isdigit():
                self.found.kinds[here] = f" ({type(scope.module).__name__})"
            scope = scope.outer
        if name and self.last is not None and is_symbol(self.last._data):
            tail, kind = name.rpartition(".")[2], name.split(".")
            whole = "_".join(kind[-2:]) if tail.isdigit() else tail
            suggest(self.last._data.expression, NAMED_BY_MODULE, identifier(whole))

    def returned(self, now: Any) -> None:
        """What a function of F returns is called as the function is."""
        if self.call is not None and self.last is not None and is_symbol(self.last._data):
            name = self.call.f_code.co_name
            if len(name) <= LONGEST:
                suggest(self.last._data.expression, NAMED_BY_OP, name)
        self.call = now

    def left_all(self) -> None:
        """The function has returned."""
        self.returned(None)
        self.left(None)

    def letters_of(self, module: Any) -> None:
        """The sizes that an attention layer has a letter for."""
        has = vars(module)  # a module's own getattr looks for names that are like a missing one
        heads, width = has.get("num_heads"), has.get("embed_dim")
        if isinstance(heads, int) and isinstance(width, int):
            self.letter(E=width, H=heads, D=has.get("head_dim", width // heads))
            for e in reversed(self.found.listing.expressions):
                if e.hint is not None and e.hint[1] == "scores" and e.ndim == 4:
                    batch, _, queries, keys = e.shape
                    self.letter(B=batch, T=queries, **({} if keys == queries else {"S": keys}))
                    break
        inner = vars(has["linear1"]) if "linear1" in has and "self_attn" in has else {}
        if "out_features" in inner:
            self.letter(F=inner["out_features"])

    def letter(self, **sizes: int) -> None:
        """Letters for sizes; none for what has several sizes in one model."""
        letters = self.found.letters
        for letter, size in sizes.items():
            letters[letter] = size if letters.get(letter, size) == size else 0
        self.found.letters = {k: letters[k] for k in "BTSEHDF" if k in letters}

    def pulling(self, y: Any, g: Any) -> None:
        """The rules that come belong to the module call in which y was made."""
        self.found.listing.scope = self.found.scope_name(y._node.scope)

    def pulled(self, y: Any, record: Any, g: Any, i: int, x: Any, share: Any, total: Any) -> None:
        """A gradient is called after what it is the gradient by; one that goes through an op of one
        input unchanged, after that input.
        """
        if is_symbol(total) and is_symbol(x._data):
            e, by = total.expression, x._data.expression
            better = e.hint is None or (
                is_plain_gradient(e) and by.hint is not None and by.kind != "input"
            )
            if is_symbol(g) and g.expression is e and by.hint is not None:
                better |= sum(isinstance(v, Variable) and v._tracked for v in record.inputs) == 1
            if better and e.kind not in ("number", "constant", "input"):
                e.hint = (0, by)

    def look(self) -> None:
        """Name what the running functions have a name for."""
        frame: Any = sys._getframe(1)
        calls = []
        while frame is not None and frame.f_code is not trace.__code__:
            theirs = whose(frame.f_code.co_filename)
            if theirs is not None and frame.f_code.co_name != "<module>":
                self.look_in(frame, theirs)
            if frame.f_code.co_filename == CALLS and frame.f_code.co_name == "__call__":
                calls.append(frame.f_locals)
            frame = frame.f_back
        for call in reversed(calls):
            self.look_at_call(call.get("scope"), call.get("args"))

    def look_at_call(self, scope: Any, args: Any) -> None:
        """What a module is called with is the module's input, if it has no other name."""
        name = self.found.scope_name(scope)
        if name and args and isinstance(args[0], Variable) and is_symbol(args[0]._data):
            *_, tail = name.split(".")
            suggest(args[0]._data.expression, NAMED_BY_USE, identifier(f"{tail}_input"))

    def look_in(self, frame: Any, theirs: bool) -> None:
        """Name the values of one frame's variables."""
        for name, x in frame.f_locals.items():
            array = x._data if isinstance(x, Variable) else x
            if is_symbol(array):
                telling = name not in TELL_NOTHING
                if telling or theirs and name not in self.found.inputs:
                    priority = NAMED_BY_USER if theirs and telling else NAMED_BY_PACKAGE
                    suggest(array.expression, priority, identifier(name))
            elif isinstance(array, np.ndarray) and array.size > 1:
                _, e = self.found.listing.origins.get(id(array), (None, None))
                if e is not None and e.hint is None:
                    e.hint = (NAMED_BY_PACKAGE, identifier(name))


def call_of_functional() -> Any:
    """The frame of the outermost function of F that runs, or None."""
    frame, found = sys._getframe(2), None
    while frame is not None and frame.f_code is not trace.__code__:
        if frame.f_code.co_filename == FUNCTIONS:
            found = frame
        frame = frame.f_back  # type: ignore[assignment]
    return found


def is_plain_gradient(e: Expression) -> bool:
    """Is it called after what it is the gradient by, and has that no name?"""
    return e.hint is not None and isinstance(e.hint[1], Expression) and e.hint[1].hint is None


def suggest(e: Expression, priority: float, name: str) -> None:
    """Call it so, unless it has a better name."""
    if e.kind in ("input", "constant", "number") or name.startswith("_"):
        return
    if e.hint is None or e.hint[0] < priority:
        e.hint = (priority, name)


@lru_cache(maxsize=4096)
def whose(file: str) -> bool | None:
    """Are the names in this file the user's (True), or the layers' and equations' (False)?

    None for files whose names tell a reader nothing.
    """
    if file.startswith((HERE, NUMPY)):
        return None
    if file.startswith(PACKAGE):
        return False if file.startswith(TELL) else None
    return True
