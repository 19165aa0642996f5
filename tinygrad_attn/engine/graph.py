"""The graph: how a computation is remembered while it runs.

An **op** is a plain function on NumPy arrays with its partial derivatives under it.  Given arrays it is that function and nothing more.
Given tensors it also leaves a record on its result: which op, of which inputs, at which tick of the clock.  Records point back at the op's
inputs and never at its result, so there is no cycle, and a graph goes away with the last reference to its end.

A rule is written once and used twice: on plain arrays in an ordinary backward pass, and on tensors when that pass is itself
recorded, which is how derivatives have derivatives.  What is done with the records stands in engine.py.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, overload

from numpy import asarray, dtype, generic, ndarray, ufunc

from ..messages.errors import as_operand, describe, explain, listed, nearest, no_setting
from ..messages.signatures import Function
from . import changes as guard
from .changes import handed_out, tick


class Context:
    """What is true for one thread: are ops recorded, inside which module call, and who looks on."""

    __slots__ = ("recording", "before", "scope", "observers")

    def __init__(self) -> None:
        self.recording = True
        self.before: list[
            tuple[Any, bool]
        ] = []  # each open `with no_grad():`, and what it was outside
        self.scope: Any = None
        self.observers: tuple[Any, ...] = ()


class _Local(threading.local):
    def __init__(self) -> None:
        self.context = Context()


local = _Local()


class Node(NamedTuple):
    """How a tensor was made.  It points back at the op's inputs and never at its output, so there is no cycle to collect."""

    tick: int
    op: Any  # None once the graph has been released
    inputs: tuple[Any, ...]  # Tensors and constants, as given
    static: dict[str, Any]  # keyword arguments
    saved: Any  # what the forward pass kept for its rule
    scope: Any  # the module call it happened in
    retain: bool = False  # the user wants .grad here although this is not a leaf


_new_tensor: Any = object.__new__
NO_SETTINGS: dict[str, Any] = {}
PLAIN, SPECIAL, RETAINED, WATCHED = 0, 1, 2, 4
"""The kind of a recorded op: PLAIN has one or two inputs and no settings.  Else these bits are set: SPECIAL for any other op, RETAINED if
the user wants its .grad, WATCHED if the user can reach the memory of its inputs."""


class Variable:
    """The part of a Tensor that the engine knows: an array, its gradient, and how it came about."""

    __slots__ = ("_data", "_grad", "_record", "_tracked", "name", "__weakref__")
    _kind: type[Any]  # the class ops produce; tensor.py sets it
    _data: Any  # an ndarray; a single number may be a NumPy scalar, which is ten times as fast as a 0-d array
    _grad: Any  # an array; a Tensor once somebody has asked for it, if it was assigned, or with create_graph
    _record: (
        tuple[Any, ...] | None
    )  # a Node in half the space and time: (tick, op, static, saved, scope, PLAIN or what, *inputs)
    _tracked: bool
    name: str | None

    def _array(self) -> ndarray:
        """The values as an ndarray that can be changed in place."""
        if self._data.__class__ is not ndarray:
            self._data = asarray(self._data)
        return self._data

    def _gradient(self) -> Any:
        """The gradient as a tensor, always the same one, or None."""
        found = made = self._grad
        if found is not None and not isinstance(found, Variable):
            made = constant(found)
            if (
                self._grad is not found
            ):  # another thread has asked too, or a backward pass there has added to it
                return self._gradient()
            self._grad = made
        return made

    @property
    def _node(self) -> Node | None:
        """How this tensor was made, or None for a leaf."""
        if self._record is None:
            return None
        tick, op, static, saved, scope, special, *inputs = self._record
        return Node(tick, op, tuple(inputs), static, saved, scope, bool(special & RETAINED))


def constant(array: Any) -> Any:
    """A tensor around this array, without a history."""
    t = _new_tensor(Variable._kind)
    t._data = array
    t._grad = t._record = t.name = None
    t._tracked = False
    return t


class Op:
    """A function on arrays and its partial derivatives; see `op`."""

    # What each call reads is quicker found in slots; functools.update_wrapper needs the dictionary beside them.
    __slots__ = (
        "forward",
        "partials",
        "joint",
        "broadcasts",
        "saves",
        "twin",
        "fresh",
        "reads",
        "adds",
        "exact",
        "defaults",
        "_special",
        "__dict__",
        "__weakref__",
    )
    __name__: str

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        broadcasts: bool = False,
        saves: bool = False,
        twin: Callable[..., Any] | None = None,
        fresh: bool = False,
        reads: bool | str = True,
    ) -> None:
        if not callable(forward):
            raise TypeError(f"@op stands above a function on arrays, got {describe(forward)}.")
        functools.update_wrapper(self, forward)
        if not hasattr(forward, "__name__"):  # a functools.partial, or an object that can be called
            named = forward.func if isinstance(forward, functools.partial) else forward
            self.__name__ = getattr(named, "__name__", type(named).__name__)
        self.forward, self.broadcasts, self.saves, self.twin, self.fresh, self.reads = (
            forward,
            broadcasts,
            saves,
            twin,
            fresh,
            reads,
        )
        # reads="inputs": only they must be as they were, the result may have changed: checkpoint's rule is one that computes it anew
        self.partials: tuple[Any, ...] = ()  # rules, None where there is none
        self.joint: Callable[..., Any] | None = None
        self._joint_asks_needs = False
        # Adds the first input's gradient to an array that is ours, `(total, g, **static)`, where few of its elements are not 0.
        self.adds: Callable[..., Any] | None = None
        # The rules believed to give what has the operands' shape and dtype where these are all of one; or the joint rule believed to give
        # what has its input's, always.
        self.exact: Any = False
        # A ufunc's signature, where NumPy tells one, lists settings such as `out` that must not be passed on.
        self.signature = (
            inspect.Signature() if isinstance(forward, ufunc) else inspect.signature(forward)
        )
        parameters = tuple(self.signature.parameters.values())
        inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.positional = tuple(p.name for p in inputs)
        self.optional = tuple(p.name for p in inputs if p.default is not p.empty)
        self._special = (
            SPECIAL
            if len(self.positional) < len(parameters) or len(parameters) not in (1, 2)
            else PLAIN
        )
        self.takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.variadic = not parameters or self.takes_any
        self.defaults = {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        }

    def __repr__(self) -> str:
        return f"<op {self.__name__}>"

    def __reduce__(self) -> str:
        """Copied and pickled by name, as a function is: a copy of a model keeps the op, and with it a rule given later."""
        return self.__name__

    def vjp(self, *partials: Callable[..., Any] | None) -> Op:
        """One rule `(g, y, *inputs, **static) -> gradient of that input` for each positional input; None where there is none."""
        count = self.forward.nin if isinstance(self.forward, ufunc) else len(self.positional)
        if len(partials) < count or len(partials) > count and not self.takes_any:
            raise ValueError(
                f"op {self.__name__!r} has {count} positional inputs {self.positional or ''} but .vjp() got "
                f"{len(partials)} rules. Give one rule for each, None where an input has no derivative, and make "
                "settings keyword-only (after a *)."
            )
        for rule in partials:
            self._mind(rule, len(partials))
        self.partials, self.joint, self.adds = partials, None, None
        return self

    def _mind(self, rule: Any, inputs: int) -> None:
        """Refuse what cannot be called as a rule: better now than in the first backward pass."""
        if rule is not None and not callable(rule):
            raise TypeError(
                f"a rule of op {self.__name__!r} is a function (g, y, *inputs) -> gradient, or None; got {describe(rule)}."
            )
        code, names = (
            getattr(rule, "__code__", None),
            ", ".join(["g", "out" if "y" in self.positional else "y", *self.positional]),
        )
        if code is None:
            return
        takes = code.co_argcount
        if takes < inputs + 2 and not (self.variadic or code.co_flags & inspect.CO_VARARGS):
            raise ValueError(
                f"a rule of op {self.__name__!r} is called with {inputs + 2} arguments, ({names}), but one takes only "
                f"{takes}, {code.co_varnames[:takes]}. Write lambda {names}: ..."
            )
        if self.optional and takes - len(rule.__defaults__ or ()) > inputs + 2 - len(self.optional):
            raise ValueError(
                f"op {self.__name__!r} may be called without {self.optional[0]!r}, but one of its rules may not. Give the "
                f"rule the same default (lambda {names}=...: ...), or make {self.optional[0]} a setting, after a *."
            )

    def vjp_all(self, rule: Function) -> Function:
        """One rule that returns all gradients together, for ops whose partials share work; a decorator.

        It is called as `rule(g, y, *inputs, **static)`, plus `saved=` if the op saves and `needs=` (a tuple of booleans) if it asks.
        """
        self.partials, self.joint, self.adds = (), rule, None
        self._joint_asks_needs = "needs" in inspect.signature(rule).parameters
        return rule

    def __call__(self, *inputs: Any, **static: Any) -> Any:
        here = local.context
        quick = self.exact is self.partials and not (static or handed_out or here.observers)
        if quick and len(inputs) == 1 and isinstance(inputs[0], Variable):
            try:  # the usual case of one operand, spelled out, as two are in `operators`
                t = constant(self.forward(inputs[0]._data))
                if inputs[0]._tracked and here.recording:
                    t._record, t._tracked = (
                        (tick(), self, NO_SETTINGS, None, here.scope, PLAIN, inputs[0]),
                        True,
                    )
                return t
            except Exception:  # it fails again below, with an explanation
                pass
        if static or self.defaults:
            inputs, static = self._bind(inputs, static)
        arrays: list[Any] = []
        any_tensor = tracked = constants = False
        for x in inputs:
            if isinstance(x, Variable):
                arrays.append(x._data)
                any_tensor = True
                if x._tracked:
                    tracked = True
            elif x.__class__ in _NUMBERS:
                arrays.append(x)
            else:
                arrays.append(as_operand(self.__name__, x, inputs))
                constants = True
        try:
            out = self.forward(*arrays, **static)
        except Exception as error:
            told = explain(self.__name__, inputs, error)
            if told is error:
                raise
            raise told from error
        if self.saves:
            if out.__class__ is not tuple or len(out) != 2:
                raise TypeError(
                    f"op {self.__name__!r} is made with saves=True, so its function returns two things, (y, what its rule "
                    f"needs); it returned {describe(out)}."
                )
            out, saved = out
        else:
            saved = None
        if not any_tensor:
            return out
        t = _new_tensor(Variable._kind)
        if out.__class__ is not ndarray and not isinstance(out, generic):
            out = self._answer(out)
        t._data = out
        t._grad = t._record = t.name = None
        if tracked and here.recording and out.dtype.kind == "f":
            special = SPECIAL if static else self._special
            if constants:  # as they were used
                inputs = tuple(
                    [
                        x if isinstance(x, Variable) else array
                        for x, array in zip(inputs, arrays, strict=True)
                    ]
                )
            if (constants or handed_out) and self.reads and self._reachable(inputs, arrays):
                special |= WATCHED
            t._record = (tick(), self, static or NO_SETTINGS, saved, here.scope, special) + inputs
            t._tracked = True
        else:
            t._tracked = False
            if out.dtype.kind not in "fiub":
                raise TypeError(
                    f"{self.__name__} of {listed(inputs)} gives {describe(out)}; a Tensor holds real numbers or booleans."
                )
        if here.observers:
            for observer in here.observers:
                observer.forward(self, inputs, static, t)
        return t

    def operators(self) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
        """The methods of Tensor for `a + b` and for its reflection: `self(a, b)`, in half the time for tensors, arrays and numbers."""

        def operator(a: Any, b: Any) -> Any:
            here, array = local.context, None
            if isinstance(b, Variable) and isinstance(a, Variable):
                u, v, tracked = a._data, b._data, a._tracked or b._tracked
            elif b.__class__ in _NUMBERS and isinstance(a, Variable):
                u, v, tracked = a._data, b, a._tracked
            elif a.__class__ in _NUMBERS and isinstance(b, Variable):
                u, v, tracked = a, b._data, b._tracked
            elif b.__class__ in _SCALARS:
                return operator(a, b.item())
            elif a.__class__ in _SCALARS:
                return operator(a.item(), b)
            elif b.__class__ is ndarray and isinstance(a, Variable) and b.dtype.kind in "fiub":
                u, v, tracked, array = a._data, b, a._tracked, b
            elif a.__class__ is ndarray and isinstance(b, Variable) and a.dtype.kind in "fiub":
                u, v, tracked, array = a, b._data, b._tracked, a
            else:
                return self(a, b)
            if here.observers:
                return self(a, b)
            try:
                out = self.forward(u, v)
            except Exception:
                return self(a, b)  # to fail again, with an explanation
            t = _new_tensor(Variable._kind)
            t._data = out
            t._grad = t._record = t.name = None
            if tracked and here.recording:  # so one is of floats, and then the result is
                special = PLAIN
                if (handed_out or array is not None) and self.reads:
                    if guard.look((u, v)) or array is not None:
                        special = WATCHED
                    if array is not None:
                        guard.lend(array)
                t._record = (tick(), self, NO_SETTINGS, None, here.scope, special, a, b)
                t._tracked = True
            else:
                t._tracked = False
            return t

        return operator, lambda a, b: operator(b, a)

    def _answer(self, out: Any) -> ndarray:
        """What forward returned, as an array."""
        if isinstance(out, tuple):
            raise TypeError(
                f"op {self.__name__!r} returned a tuple; an op returns one array. What its rule needs beside that is returned "
                "as (y, saved), with @op(saves=True)."
            )
        array = asarray(out) if out is not None and not isinstance(out, Variable) else None
        if array is None or array.dtype.kind not in "fiub":
            raise TypeError(
                f"op {self.__name__!r} returned {describe(out)}, but an op's function takes arrays and returns an array. Does "
                "it end with return, and compute with np.* on its arguments?"
            )
        return array

    def _reachable(self, inputs: tuple, arrays: list[Any]) -> bool:
        """Can users reach memory of these? Then look at it, so that changes up to here count as older."""
        found = guard.look(arrays)
        for x in inputs:
            if isinstance(x, ndarray):
                guard.lend(x)
                found = True
        return found

    def _bind(self, inputs: tuple, static: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Positional inputs given by keyword take their place; keyword-only arguments get their defaults."""
        if not static.keys().isdisjoint(self.positional):
            try:
                bound = self.signature.bind(*inputs, **static)
            except TypeError as error:  # an input is missing, or given twice
                raise TypeError(f"{self.__name__}: {error}.") from None
            bound.apply_defaults()
            inputs = tuple(bound.arguments[k] for k in self.positional)
            static = {k: v for k, v in static.items() if k not in self.positional}
        for name, value in static.items():
            if isinstance(value, Variable):
                raise no_setting(self.__name__, name, value)
        return inputs, ({**self.defaults, **static} if self.defaults else static)


@overload
def op(forward: Callable[..., Any], **flags: Any) -> Op: ...
@overload
def op(
    *,
    broadcasts: bool = False,
    saves: bool = False,
    twin: Callable[..., Any] | None = None,
    fresh: bool = False,
    reads: bool | str = True,
) -> Callable[[Callable[..., Any]], Op]: ...
def op(forward: Callable[..., Any] | None = None, **flags: Any) -> Any:
    """`@op` makes a function on arrays an op; give it its partial derivatives with `.vjp`.

        @op
        def cube(x):
            return x * x * x
        cube.vjp(lambda g, y, x: g * 3 * x * x)

    Positional arguments are differentiable inputs, keyword-only ones are settings.  Each rule gets `g`, the gradient of the loss by the
    result `y`, then `y` and the inputs, and returns the gradient of its input, of that input's shape.  Write rules with operators,
    methods and NumPy functions and they can be differentiated again.  Flags: `broadcasts=True`, the op follows NumPy broadcasting
    and its gradients are summed back to the inputs' shapes; `saves=True`, forward returns `(y, saved)`; `twin=f`, a composite of ops
    that computes the same and is differentiated instead under `create_graph=True`; `fresh=True`, each array that a rule returns is new
    and nobody else holds it, so that it may be added to and kept without a copy; `reads=False`, no rule looks at the values of the
    inputs or of the result, so that these may change in place before the backward pass.
    """
    known = Op.__init__.__kwdefaults__ or {}
    if strange := next((name for name in flags if name not in known), None):
        raise TypeError(
            f"@op has no flag {strange!r}, only {', '.join(known)}.{nearest(strange, known)}"
        )
    return Op(forward, **flags) if forward is not None else lambda f: Op(f, **flags)


_NUMBERS = {float, int, bool, type(None)}
_SCALARS = {
    dtype(code).type for code in "?bhilqBHILQefd"
}  # NumPy's, that have a number of Python's in them
