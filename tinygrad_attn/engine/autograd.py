"""What a user calls to differentiate: `no_grad`, `enable_grad`, `backward`, `grad`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from ..fast.allocator import keep_freed
from ..messages.errors import describe, missing_from, numbers_of, refuse_mask
from ..messages.signatures import (
    Function as _Function,
)  # under its own name it would be taken for torch.autograd.Function
from ..messages.signatures import NeedsBrackets, check_flags, own_names
from . import Variable, clone, constant, local, sweep
from . import changes as guard


class _Recording(ContextDecorator, metaclass=NeedsBrackets):
    """Sets whether ops are recorded, in this thread, inside a `with` block or a decorated function."""

    _value: bool
    _turn: Any = None  # of the generator in which it was open last, between two turns

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: _Function) -> _Function: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return (
            made if function is None else made(function)
        )  # as a decorator it may go without parentheses

    def _recreate_cm(self) -> Any:  # ContextDecorator's own uses one object for all calls
        return type(self)()

    def __call__(self, function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(
                f"{type(self).__name__} takes nothing but, as a decorator, a function; got {describe(function)}. "
                f"Write `with {type(self).__name__}():`."
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__name__", describe(function))  # a partial has none
            raise TypeError(
                f"{name} is async: it would run after the call that is decorated. Write `with {type(self).__name__}():` "
                "inside, around what does not await."
            )
        return (
            self._between_yields(function)
            if inspect.isgeneratorfunction(function)
            else super().__call__(function)
        )

    def _between_yields(self, function: Any) -> Any:
        """A generator function whose steps run in the setting, and what uses it in between does not."""

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            advance, value = generator.send, None
            turn = _Turn(self._value)
            while True:
                try:
                    with turn:
                        item = advance(value)
                except StopIteration as end:
                    return end.value
                finally:
                    value = None  # of an error the traceback holds this frame: together they would be a cycle
                try:
                    advance, value = generator.send, (yield item)
                except GeneratorExit:
                    with turn:
                        generator.close()
                    raise
                except BaseException as error:
                    advance, value = generator.throw, error

        return steps

    def __enter__(self) -> None:
        here = local.context  # one object may be open in several threads
        # No call in between, since Ctrl-C comes at calls: what stayed in the list would keep those around it from ending.
        here.before, here.recording = [*here.before, (self, here.recording)], self._value

    def __exit__(self, *_: object) -> None:
        here = local.context
        if here.before and here.before[-1][0] is self:  # nearly always; again without a call
            *here.before, (_, here.recording) = here.before
            return
        for place in (
            here,
            self._turn,
        ):  # a generator that a decorated one has begun may go on and end outside it
            at = _last(self, place)
            if at >= 0:
                value = place.before.pop(at)[1]
                if at == len(place.before):
                    place.recording = value
                else:  # those opened after it, in another generator say, stay open
                    place.before[at] = place.before[at][0], value
                return
        raise RuntimeError(
            f"this `with {type(self).__name__}():` was entered in another thread, which is left in it. A generator that "
            f"threads share has @{type(self).__name__}() above its def instead, which holds only while it runs."
        )


def _last(owner: Any, place: Any) -> int:
    """Where in its list the latest `with` of this owner stands that is open in a thread, or in a generator between its turns; else -1."""
    return (
        max((i for i, (opened, _) in enumerate(place.before) if opened is owner), default=-1)
        if place
        else -1
    )


class _Turn:
    """A generator's turn: it finds its own `with` blocks as it left them, and what uses it finds its own again."""

    def __init__(self, value: bool) -> None:
        self.recording, self.before = (
            value,
            list[tuple[Any, bool]](),
        )  # as a thread's Context has them

    def __enter__(self) -> None:
        here = local.context
        here.before += [(self, here.recording), *self.before]
        here.recording = self.recording

    def __exit__(self, *_: object) -> None:
        here = local.context
        at = _last(self, here)
        self.before, self.recording = here.before[at + 1 :], here.recording
        here.recording = here.before[at][1]
        del here.before[at:]
        for opened in self.before:
            opened[0]._turn = self


class no_grad(_Recording):
    """Inside, ops compute and remember nothing; a context manager, and a decorator of functions and of generators; per thread."""

    _value = False


class enable_grad(_Recording):
    """Inside, ops are recorded even within `no_grad`; a context manager, and a decorator of functions and of generators; per thread."""

    _value = True


def _seed(
    output: Any,
    gradient: Any,
    create_graph: bool,
    caller: str = "backward()",
    keyword: str = "gradient",
) -> Any:
    """The gradient to start from, of the output's shape and dtype; a Tensor only where the pass itself is recorded."""
    if not isinstance(output, Variable):
        raise TypeError(
            f"only a Tensor can be differentiated, got {describe(output)}."
            + (
                " Call the function first: grad(f(x), x), or write ta.value_and_grad(f)(x)."
                if callable(output)
                else ""
            )
        )
    if not output._tracked:
        recording = local.context.recording
        in_checkpoint = (
            not recording and recording is not False
        )  # 0, see transforms._recorded_later
        raise ValueError(
            f"{describe(output)} does not depend on anything that requires a gradient. Create the inputs with "
            "requires_grad=True, and check for no_grad(), detach() or .numpy() on the way; a gradient can be differentiated "
            "again only if create_graph=True was passed where it was taken."
            + (
                " Inside ta.checkpoint take it with ta.value_and_grad or ta.vjp: nothing else is recorded there at first."
                if in_checkpoint
                else ""
                if recording
                else " Right here nothing is recorded, since a no_grad() block is open, "
                "or a backward pass goes on. An interrupt at the very end of a block can leave it open: then ta.enable_grad() "
                "records again."
            )
        )
    shape, dtype = output._data.shape, output._data.dtype
    if gradient is None:
        if output._data.size != 1:
            raise ValueError(
                f"{caller} without {keyword}= needs a single number, but this is {describe(output)}. Reduce it first, for "
                f"example with .sum() or .mean(), or pass {keyword}= of shape {shape}."
            )
        gradient = np.ones(shape, dtype) if output._data.__class__ is np.ndarray else dtype.type(1)
    elif not isinstance(gradient, Variable):
        refuse_mask(caller, gradient)
        given, gradient = gradient, np.asarray(gradient)
        if gradient.dtype.kind not in "fiub" or isinstance(given, bool):
            hint = (
                " Write retain_graph=True to keep the graph for another pass."
                if given is True
                else numbers_of(given)
            )
            raise TypeError(
                f"{caller} takes real numbers as {keyword}=, got {describe(given)}.{hint}"
            )
    if gradient.shape != shape:
        raise ValueError(
            f"the gradient has shape {gradient.shape} but the output has shape {shape}; they must be the same."
        )
    if gradient.dtype != dtype:
        gradient = gradient.astype(dtype)
    if create_graph:
        return gradient if isinstance(gradient, Variable) else constant(np.array(gradient))
    array = gradient._data if isinstance(gradient, Variable) else gradient
    return (
        array if output._data.__class__ is np.ndarray else array[()]
    )  # a NumPy scalar for a NumPy scalar


def _unshared(g: Any, x: Variable, own: set[Variable]) -> Any:
    """The gradient of x in memory of its own, and in x's byte order, which an elementwise op does not keep."""
    if isinstance(g, Variable):
        return clone(g)
    return (
        g
        if g.__class__ is not np.ndarray or x in own and g.dtype == x._data.dtype
        else g.astype(x._data.dtype)
    )


def backward(
    outputs: Sequence[Any],
    gradients: Sequence[Any],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Add the gradients of the outputs to the `.grad` of every leaf they depend on; see `Tensor.backward`."""
    check_flags("backward", retain_graph=retain_graph, create_graph=create_graph)
    seeds = [_seed(t, g, create_graph) for t, g in zip(outputs, gradients, strict=True)]
    keep_freed()
    here = local.context
    before, here.recording = here.recording, create_graph
    try:
        found, own = sweep(outputs, seeds, create_graph=create_graph, retain_graph=retain_graph)
        here.recording = (
            True  # what create_graph left in .grad stays part of its graph when more is added
        )
        for t, g in found.items():
            if t._tracked:  # it may have been frozen after the forward pass
                if not isinstance(g, np.generic):  # single numbers are many and cannot change
                    g = _unshared(g, t, own)
                while True:
                    old = None if t._grad is None else t._gradient()
                    total = (
                        g if old is None else old + (g if isinstance(g, Variable) else constant(g))
                    )
                    if t._grad is old:  # else another thread has added its gradient meanwhile
                        t._grad = total  # Python changes threads at calls and jumps backwards, so not between these two lines
                        break
    finally:
        here.recording = before
    guard.take_back(found)


@own_names
def grad(
    outputs: Any,
    inputs: Any = None,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients d(sum of outputs)/d(inputs) as a tuple, one for each input; no `.grad` is touched.

    `outputs`, `inputs` and `grad_outputs` are a Tensor or a sequence of them.  `grad_outputs` weighs the outputs and may be left out for
    single numbers.  `retain_graph` keeps the graph for another pass (default: as `create_graph`).  With `create_graph=True`
    the results can be differentiated again.  An input the outputs do not depend on is a ValueError, or None with `allow_unused`;
    a released part that may lead to one is a RuntimeError.  Only the partial derivatives on the way to these inputs are
    computed.  As torch.autograd.grad.
    """
    check_flags(
        "grad", retain_graph=retain_graph, create_graph=create_graph, allow_unused=allow_unused
    )
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    inputs = (
        list(inputs)
        if isinstance(inputs, Iterable) and not isinstance(inputs, (Variable, np.ndarray))
        else [inputs]
    )
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    elif not isinstance(grad_outputs, (list, tuple)):
        grad_outputs = [grad_outputs]
    if len(grad_outputs) != len(outputs):
        raise ValueError(
            f"grad() got {len(outputs)} outputs but {len(grad_outputs)} grad_outputs; give one for each, or None."
        )
    # first, for a function in place of a result is refused there
    seeds = [
        _seed(t, g, create_graph, "grad()", "grad_outputs")
        for t, g in zip(outputs, grad_outputs, strict=True)
    ]
    for i, x in enumerate(inputs):
        if not isinstance(x, Variable) or not x._tracked:
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, does not require a gradient. "
                + (
                    "For a module write list(model.parameters())."
                    if hasattr(x, "parameters")
                    else "Leave the names out: write list(model.parameters()), of a dict list(params.values())."
                    if isinstance(x, (str, tuple))
                    else "Write grad(y, x) for the gradient by a tensor x."
                    if x is None
                    else "Create it with requires_grad=True."
                )
            )
    retain = create_graph if retain_graph is None else retain_graph
    keep_freed()
    here = local.context  # not a `with`, at the end of which Ctrl-C may come
    before, here.recording = here.recording, bool(create_graph)
    try:
        found, own = sweep(
            outputs, seeds, wanted=inputs, create_graph=create_graph, retain_graph=retain
        )
        results = []
        for i, x in enumerate(inputs):
            if x in found:
                g = _unshared(found[x], x, own)
                results.append(g if isinstance(g, Variable) else constant(g))
                own.discard(x)
            elif allow_unused:
                results.append(None)
            else:
                raise ValueError(
                    f"input {i} of grad(), {describe(x)}, was not used to compute the outputs. "
                    "Pass allow_unused=True to get None for it."
                )
    finally:
        here.recording = before
    guard.take_back(inputs)
    return tuple(results)


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here

    def __getattr__(name: str) -> Any:
        raise missing_from("tinygrad_attn.engine.autograd", name, globals())
