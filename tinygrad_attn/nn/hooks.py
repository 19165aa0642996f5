"""Hooks: functions that see, and may replace, what goes into a module and what comes out of it.

As in PyTorch, pre-hooks run first, then `forward`, then forward hooks. A backward hook runs when
the gradients of the module's inputs are complete. A module without hooks calls `forward` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine import Op, Variable, array_of, tensor_of, tracked
from ..errors import describe


class Hook(NamedTuple):
    """A function and the flags with which it was registered."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


class RemovableHandle:
    """A handle that removes a hook: by `remove()`, or at the end of a `with` block."""

    def __init__(self, hooks: list[Hook], hook: Hook) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks[:] = [hook for hook in self._hooks if hook is not self._hook]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, each kind in the order in which they run."""

    def __init__(self) -> None:
        self.before: list[Hook] = []
        self.after: list[Hook] = []
        self.backward: list[Hook] = []

    @staticmethod
    def add(hooks: list[Hook], hook: Hook, prepend: bool) -> RemovableHandle:
        """Add a hook at the end of the list, or with `prepend` at its beginning."""
        if not callable(hook.function):
            raise TypeError(f"a hook is a function, got {describe(hook.function)}.")
        hooks.insert(0 if prepend else len(hooks), hook)
        return RemovableHandle(hooks, hook)

    def call(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call `module.forward` with all hooks around it."""
        waiting = [hook for hook in self.after if hook.always_call]
        output = None
        try:
            for hook in tuple(self.before):
                args, kwargs = _before(hook, module, args, kwargs)
            pass_back = _Backward(module, tuple(self.backward)) if self.backward else None
            if pass_back:
                args = pass_back.inputs(args)
            output = module.forward(*args, **kwargs)
            for hook in tuple(self.after):
                waiting = [other for other in waiting if other is not hook]
                output = _after(hook, module, args, kwargs, output)
            return pass_back.outputs(output) if pass_back else output
        except BaseException:
            for hook in waiting:
                _after(hook, module, args, kwargs, output)
            raise


def _before(hook: Hook, module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the arguments, which a pre-hook may replace."""
    if hook.with_kwargs:
        found = hook.function(module, args, kwargs)
        if found is None:
            return args, kwargs
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                f"a pre-hook with_kwargs returns None or (args, kwargs), got {describe(found)}."
            )
        return found
    found = hook.function(module, args)
    if found is None:
        return args, kwargs
    return found if isinstance(found, tuple) else (found,), kwargs


def _after(hook: Hook, module: Any, args: tuple, kwargs: dict, output: Any) -> Any:
    """Return the output, which a forward hook may replace."""
    given = (module, args, kwargs, output) if hook.with_kwargs else (module, args, output)
    found = hook.function(*given)
    return output if found is None else found


class _Backward:
    """One call of a module with backward hooks.

    All inputs pass through one node and all outputs through another. The VJP of the latter stores
    the gradients of the outputs. That of the former runs last and calls the hooks.
    """

    def __init__(self, module: Any, hooks: tuple[Hook, ...]) -> None:
        self.module, self.hooks = module, hooks
        self.places: list[int] = []  # of the inputs that require a gradient
        self.count = 0
        self.gradients: Any = None  # of the outputs, as the hooks get them

    def inputs(self, args: tuple) -> tuple:
        """Return the positional arguments, the tensors among them behind a node."""
        self.count = len(args)
        self.places = [i for i, x in enumerate(args) if tracked(x)]
        passed = _through("module_input", [args[i] for i in self.places], self._finished)
        replaced = list(args)
        for i, x in zip(self.places, passed):
            replaced[i] = x
        return tuple(replaced)

    def outputs(self, output: Any) -> Any:
        """Return the output, a tensor or a tuple, with its tensors behind a node."""
        parts = list(output) if isinstance(output, tuple) else [output]
        places = [i for i, x in enumerate(parts) if tracked(x)]

        def store(gradients: list[Any]) -> list[Any]:
            filled: list[Any] = [None] * len(parts)
            for i, g in zip(places, gradients):
                filled[i] = g
            self.gradients = tuple(filled)
            if not self.places:  # no input has a gradient that could be waited for
                self._finished([])
            return gradients

        for i, x in zip(places, _through("module_output", [parts[i] for i in places], store)):
            parts[i] = x
        return tuple(parts) if isinstance(output, tuple) else parts[0]

    def _finished(self, gradients: list[Any]) -> list[Any]:
        """Call the hooks; return the gradients of the inputs, which they may replace."""
        if self.gradients is None:  # they did not pass through the module's output
            return gradients
        filled: list[Any] = [None] * self.count
        for i, g in zip(self.places, gradients):
            filled[i] = g
        current = tuple(filled)
        for hook in self.hooks:
            found = hook.function(self.module, current, self.gradients)
            if found is not None:
                current = found if isinstance(found, tuple) else (found,)
                if len(current) != self.count:
                    raise ValueError(
                        f"a backward hook of {type(self.module).__name__} returned {len(current)} "
                        f"gradients for {self.count} positional inputs."
                    )
        self.gradients = None
        return [current[i] for i in self.places]


def _through(
    name: str, tensors: Sequence[Any], seen: Callable[[list[Any]], list[Any]]
) -> Sequence[Any]:
    """Return the same tensors behind one node, which passes their gradients to `seen`."""
    if not tensors:
        return tensors
    ends = np.cumsum([x.size for x in tensors])[:-1]

    def vjp(g: Any, _y: Any, _x: Any) -> Any:
        parts = [g] if len(tensors) == 1 else np.split(g, ends)
        parts = [part.reshape(x.shape).astype(x.dtype) for part, x in zip(parts, tensors)]
        wrap = [part if isinstance(part, Variable) else tensor_of(part) for part in parts]
        found = seen(wrap)
        if not isinstance(g, Variable):
            found = [np.asarray(array_of(part)) for part in found]
        return found[0] if len(tensors) == 1 else np.concatenate([p.reshape(-1) for p in found])

    node = Op(lambda x: x).vjp(vjp)
    node.__name__ = name
    if len(tensors) == 1:
        return [node(tensors[0])]
    flat = node(np.concatenate([x.reshape(-1) for x in tensors]))
    parts = np.split(flat, ends)
    return [part.reshape(x.shape).astype(x.dtype) for part, x in zip(parts, tensors)]
