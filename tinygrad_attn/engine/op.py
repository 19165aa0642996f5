"""An op: a function on arrays and its VJPs, one for each input.

Given arrays, an op simply calls its function. Given tensors, the op also stores a node in its
output. A VJP (vector-Jacobian product) is written once and used in two ways: an ordinary backward
pass calls the VJP with arrays, and a recorded backward pass calls it with tensors. So derivatives
can be differentiated again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, MutableMapping, MutableSequence, MutableSet
from copy import copy
from itertools import repeat
from typing import Any, TypeVar, overload

import numpy as np
from numpy import generic, ndarray

from ..errors import describe, explain
from ..tree import tree_leaves, tree_map
from . import inplace
from .graph import (
    Node,
    Symbolic,
    Variable,
    is_masked,
    next_number,
    read_only,
    tensor_of,
    tracked,
)
from .run import VALUES_ONLY, context

Function = Callable[..., Any]
VJP = TypeVar("VJP", bound=Function)

NUMBERS = frozenset((float, int, bool, type(None)))
CONTAINERS = MutableMapping, MutableSequence, MutableSet
CONSTANTS = NUMBERS | {str, type, type(...)}
FLOATS = frozenset((np.float16, np.float32, np.float64, np.longdouble))
KINDS = frozenset("fiub")
PACKAGE = __name__.partition(".")[0] + "."


class Op:
    """A function on arrays, with one VJP for each input: one link of the chain rule.

    A VJP is called as `vjp(g, y, *inputs, **settings)`, where g is the gradient of the loss with
    respect to the output y. It returns the gradient with respect to one input. Positional arguments
    are inputs; keyword-only arguments are settings, which have no derivative.
    """

    def __init__(
        self, forward, *vjps, broadcasts=False, saves=False, reference=None, stands_for=None
    ):
        is_ufunc = isinstance(forward, np.ufunc)  # which has no signature
        parameters = () if is_ufunc else inspect.signature(forward).parameters.values()
        self.input_names = tuple(p.name for p in parameters if p.kind < p.VAR_POSITIONAL)
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.count = forward.nin if is_ufunc else len(self.input_names)
        settings = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.defaults = {p.name: p.default for p in settings if p.default is not p.empty}
        self.broadcasts = broadcasts or is_ufunc and self.count > 1
        self.forward, self.saves = forward, saves
        self.reference = reference  # a composition of ops, for second derivatives
        self.stands_for = stands_for or self  # the op that it replaces
        self.kernel = None  # runs in place of this op; set by fast/
        self.adds_in_place = None  # (total, g, **settings) -> (); g is added to total
        self.vjps: tuple = ()  # one for each input,
        self.joint_vjp = None  # or one for all of them,
        self.asks_needs = False  # whether the joint VJP has a parameter `needs`
        # Whether each VJP reads y, each input, and what follows the last of these.
        self.read: Iterable[list[bool]] = ()
        self.__name__ = type(forward).__name__  # unless it has a name
        functools.update_wrapper(self, forward, updated=())
        if vjps:
            self.__module__ = vjps[0].__module__  # not NumPy's module
            self.vjp(*vjps)
        # Tests ask all VJPs of the package: they return g, new arrays or views, and read no `_x`.
        self.trusted = str(self.__module__).startswith(PACKAGE)

    def __repr__(self):
        return f"<op {self.__name__}>"

    def __reduce__(self):
        return self.__name__  # copied and pickled by name, like functions

    def vjp(self, *vjps: Function | None) -> Op:
        """Set one VJP for each input, or None for an input without a derivative."""
        if len(vjps) != self.count and not (self.variadic and len(vjps) > self.count):
            raise ValueError(
                f"op {self.__name__!r} has {self.count} positional inputs {self.input_names or ''} "
                f"but .vjp() got {len(vjps)} VJPs. Pass one VJP for each input, or None for an "
                "input without a derivative, and make settings keyword-only (after a *)."
            )
        self.vjps, self.joint_vjp = vjps, None
        expected = ["out" if "y" in self.input_names else "y", *self.input_names]
        values = [_values_of(vjp) if vjp else ["_"] for vjp in vjps]
        self.read = [[name[0] != "_" for name in each] for each in values]
        for each in values:
            names = [name.lstrip("_") for name in each]
            if names != expected and sorted(names) == sorted(expected):
                raise ValueError(
                    f"the VJPs of op {self.__name__!r} are called with (g, {', '.join(expected)}), "
                    f"but one of them takes (g, {', '.join(names)})."
                )
        return self

    def vjp_all(self, vjp: VJP) -> VJP:
        """Set the decorated function as the VJP of all inputs, which can then share work.

        The VJP is called as `vjp(g, y, *inputs, **settings)`, and returns a tuple with a gradient
        or None for each input. If the op saves values, the VJP also gets `saved=`. If the VJP has a
        parameter named `needs`, it also gets a tuple of booleans that say which inputs need a
        gradient.
        """
        self.vjps, self.joint_vjp = (), vjp
        self.read = repeat([name[0] != "_" for name in _values_of(vjp)])
        self.asks_needs = "needs" in inspect.signature(vjp).parameters
        return vjp

    def reads(self, node, place, create_graph=False):
        """Return whether a pass reads y (place 0) or an input (from 1). References read all."""
        op = self.stands_for
        if create_graph and self.reference or not op.trusted:
            return True
        for row, x in zip(op.read, node.inputs):
            if isinstance(x, Variable) and row[place if place < len(row) else -1]:
                return True
        return False

    def __call__(self, *inputs, **settings) -> Any:
        """Compute forward(*inputs, **settings), and return a tensor if any input is a tensor."""
        here = context.__dict__  # one access to the run instead of four
        if self.kernel is not None and not here["plain"]:
            y = self.kernel(*inputs, **settings)
            if y is not NotImplemented:
                return y
        if settings:
            inputs, settings = self._bind(inputs, settings)
        else:
            settings = self.defaults
        arrays = []
        tensors = wanted = any_array = False
        all_wanted = True
        for x in inputs:
            if isinstance(x, Variable):
                tensors = True
                if x._tracked:
                    wanted = True
                else:
                    all_wanted = False
                x = x._data
            elif type(x) not in NUMBERS:
                x, any_array, all_wanted = as_operand(self, x, inputs), True, False
            arrays.append(x)
        # A user's function cannot write to the arrays of Tensors.
        values = arrays if self.trusted or not tensors else map(read_only, arrays)
        try:
            y = self.forward(*values, **settings)
        except Exception as error:
            explained = explain(self.__name__, inputs, error)
            raise explained from (None if explained is error else error)
        saved = None
        if self.saves:
            y, saved = self._pair(y)
        if not tensors:
            return y
        kind = y.dtype.kind if y.__class__ is ndarray else "f" if type(y) in FLOATS else ""
        if kind not in KINDS:
            y = as_output(self, y)
            kind = y.dtype.kind
        node, recording = None, here["recording"]
        if recording and wanted and kind == "f":  # only floats have derivatives
            if recording is VALUES_ONLY:
                node = Node(next_number(), in_checkpoint, (), {}, None, here["scope"])
            else:
                settings = constant(settings) if settings else settings
                kept = (  # tensors only where a gradient is wanted
                    inputs
                    if all_wanted
                    else tuple([x if tracked(x) else a for x, a in zip(inputs, arrays)])
                )
                node = Node(next_number(), self, kept, settings, saved, here["scope"])
                if any_array or inplace.lent:
                    inplace.protect(node, y, inputs)
        output = tensor_of(y, node)
        for listener in here["listeners"]:
            listener.computed(self, inputs, settings, output)
        return output

    def _pair(self, y):
        """Return the pair (y, saved); raise TypeError for anything else."""
        if type(y) is not tuple or len(y) != 2:
            raise TypeError(
                f"op {self.__name__!r} has saves=True, so its function must return (y, saved), but "
                f"the function returned {describe(y)}."
            )
        return y

    def _bind(self, inputs, settings):
        """Move inputs passed by keyword to their positions, and fill in the default settings."""
        for name, value in settings.items():
            if name in self.input_names:
                bound = inspect.signature(self.forward).bind(*inputs, **settings)
                bound.apply_defaults()
                return self._bind(bound.args, bound.kwargs)
            if isinstance(value, Variable):
                raise TypeError(
                    f"{self.__name__} takes {name}= as a plain setting without a derivative, not "
                    f"{describe(value)}. Pass {name}=t.numpy() to use the tensor as a constant."
                )
        return inputs, self.defaults | settings

    def pull(self, y, g, needed=None, create_graph=False):
        """Return (i, contribution of y to the gradient of input i) for each input: g times dy/dx.

        `needed` contains the tensors that need a gradient; None means all.
        """
        node = y._node
        inputs, settings, vjps = node.inputs, node.settings, self.vjps
        if not inputs:
            return node.op.pull()  # released by another thread
        if create_graph and self.stands_for is not self:
            return self.stands_for.pull(y, g, needed, create_graph)
        arguments, wanted = [g, y if create_graph else y._data], []
        for i, x in enumerate(inputs):
            if isinstance(x, Variable):
                if needed is None or x in needed:
                    wanted.append(i)
                if not create_graph:
                    x = x._data
            arguments.append(x)
        if create_graph and self.reference:
            return self._pull_reference(g, node, wanted)
        if not self.trusted:
            arguments = [*map(read_only, arguments)]
        if len(vjps) < len(inputs):
            return self._pull_together(arguments, node, wanted)
        contributions = []
        for i in wanted:
            if vjp := vjps[i]:
                contributions.append((i, vjp(*arguments, **settings)))
        return contributions

    def _pull_together(self, arguments, node, wanted):
        """Return the contributions by the joint VJP."""
        count = len(node.inputs)
        if self.joint_vjp is None:
            raise TypeError(
                f"op {self.__name__!r} has {len(self.vjps)} VJPs for {count} inputs. Add "
                f"{self.__name__}.vjp(...) with one VJP for each input, or call detach() on the "
                "op's output."
            )
        extra = {}
        if self.asks_needs:
            extra["needs"] = tuple([i in wanted for i in range(count)])
        if self.saves:
            extra["saved"] = node.saved if self.trusted else tree_map(read_only, node.saved)
            for value in tree_leaves(node.saved) if isinstance(arguments[0], Variable) else ():
                if np.asarray(value).dtype.kind == "f":
                    raise TypeError(
                        f"op {self.__name__!r} saves {describe(value)}, which its VJP treats as a "
                        "constant, so a second derivative would be wrong. Write @op(saves=True, "
                        "reference=f), where f computes the same output from ops, or recompute "
                        "the value in the VJP."
                    )
        contributions = self.joint_vjp(*arguments, **node.settings, **extra)
        if not isinstance(contributions, (tuple, list)) or len(contributions) != count:
            raise TypeError(
                f"the VJP of op {self.__name__!r} returned {describe(contributions)}; it must "
                f"return a tuple of length {count}, with a gradient or None for each input."
            )
        return [(i, contributions[i]) for i in wanted if contributions[i] is not None]

    def _pull_reference(self, g, node, wanted):
        """Run the reference, a composition of ops, and differentiate it."""
        from .backward import sweep

        first = {node.inputs[i]: i for i in reversed(wanted)}
        function = getattr(self.reference, "function", self.reference)
        output = function(*node.inputs, **node.settings)
        gradients = sweep([output], [g], wanted=first, create_graph=True, inner=True)
        return [(first[x], gradient) for x, gradient in gradients.items()]


def _values_of(vjp):
    """Return the names of a VJP's parameters for y and the inputs."""
    parameters = inspect.signature(vjp).parameters.values()
    return [p.name for p in parameters if p.kind < p.KEYWORD_ONLY][1:]


def constant(settings):
    """Return settings that do not change: arrays, lists, sets and so on among them are copied."""
    for value in settings.values():
        if value.__class__ not in CONSTANTS and _changes(value):
            return tree_map(_copied, settings)
    return settings


def _changes(setting):
    """Return whether a setting is, or contains, a value that can change and so has no hash."""
    if setting.__class__ is slice:
        setting = setting.start, setting.stop, setting.step
    if isinstance(setting, tuple):
        for part in setting:  # noqa: SIM110
            if part.__class__ not in CONSTANTS and _changes(part):  # any() takes twice as long
                return True
        return False
    if isinstance(setting, ndarray):
        return inplace.is_writeable(setting)
    return setting.__hash__ is None or isinstance(setting, Variable)


def _copied(value):
    """Return a copy of an array, a Tensor, a container or an object without a hash.

    Any other value is returned as it is, such as MPI's communicators, which are resources.
    """
    if isinstance(value, Variable):
        return tensor_of(_copied(value._data))
    if isinstance(value, ndarray):
        return np.array(value) if inplace.is_writeable(value) else value
    is_data = isinstance(value, CONTAINERS) or hasattr(value, "__dict__")
    return copy(value) if value.__hash__ is None and is_data else value


class Gone(Op):
    """The op of a node whose inputs are not kept."""

    def __init__(self, name, reason):
        super().__init__(lambda: None)
        self.__name__, self.reason = name, reason

    def pull(self, *_):
        """Raise RuntimeError with the reason."""
        raise RuntimeError(self.reason)


released = Gone(
    "released",
    "this graph has been released by an earlier backward pass. To use the graph twice, pass "
    "retain_graph=True to the first pass. Otherwise, compute the loss again, or call detach() "
    "on the released part if it is a constant.",
)
in_checkpoint = Gone(
    "in a checkpoint",
    "this tensor was computed inside a checkpoint, which keeps no graph, so its gradient is not "
    "known here. Return the tensor from the checkpointed function. Inside the function, take "
    "gradients with value_and_grad or vjp.",
)


def as_operand(op, x, inputs):
    """Convert an operand that is neither a Tensor nor a Python number to an array.

    If another operand is a Tensor, NumPy scalars and lists of numbers take the Tensor's dtype, as
    Python numbers do. So for a float32 Tensor x, `x / np.sqrt(8)` stays float32.
    """
    is_real = isinstance(x, (generic, ndarray)) and x.dtype.kind in KINDS
    # Masked arrays and matrices have operators of their own.
    if is_real and type(x).__mul__ is ndarray.__mul__:
        return x
    if isinstance(x, Symbolic):
        return x.as_it_is()
    like = next((t._data.dtype for t in inputs if isinstance(t, Variable)), None)
    if isinstance(x, (list, tuple)):
        x = np.asarray(x)
        if like is not None and like.kind == "f" and x.dtype.kind in "iuf":
            return x.astype(like)
        return as_operand(op, x, inputs)
    if is_real and isinstance(x, generic) and like is not None:
        return x.item()
    if like is None or isinstance(x, (int, float, str)):
        return x
    raise TypeError(
        f"{op.__name__} cannot take {describe(x)}. An operand must be a Tensor, a NumPy array of "
        "real numbers or booleans, or a number. Convert the operand first, for example with "
        "np.asarray(x), or with np.where(mask, ..., ...) for a masked array."
    )


def as_output(op, y):
    """Return an op's output as an array of real numbers or booleans, or raise TypeError."""
    array = np.asarray(y if isinstance(y, (int, float, ndarray, generic)) else None)
    if array.dtype.kind not in KINDS or is_masked(y):
        raise TypeError(
            f"op {op.__name__!r} returned {describe(y)}; an op must return one array of real "
            "numbers or booleans. To save other values for the VJP, write @op(saves=True) and "
            "return (y, saved)."
        )
    return array


@overload
def op(forward: Function, *vjps: Function | None, **flags: Any) -> Op: ...
@overload
def op(
    *, broadcasts: bool = False, saves: bool = False, reference: Function | None = None
) -> Callable[[Function], Op]: ...
def op(forward: Function | None = None, *vjps: Function | None, **flags):
    """Turn a function on arrays into an op, whose derivatives are defined with `.vjp`.

        @op
        def cube(x):
            return x * x * x
        cube.vjp(lambda g, y, x: g * 3 * x * x)

    For a NumPy function, pass its VJPs in the same call, one for each input:

        sine = op(np.sin, lambda g, y, x: g * np.cos(x))

    Positional arguments are differentiable inputs; keyword-only arguments are settings. Each VJP
    gets g, the gradient of the loss with respect to the output y, then y and the inputs. It returns
    the gradient with respect to its input, in the input's shape. Its arguments are read-only.
    A VJP written with operators, methods and NumPy functions can be differentiated again.

    Flags: with `broadcasts=True`, inputs broadcast as in NumPy, and gradients are summed back to
    the inputs' shapes. With `saves=True`, the function returns `(y, saved)`, and the joint VJP (see
    `vjp_all`) gets `saved=`. With `reference=f`, f computes the same output using other ops; second
    derivatives differentiate f. An op that saves real numbers needs a reference.
    """
    if forward is None:
        return lambda f: Op(f, **flags)
    return Op(forward, *vjps, **flags)
