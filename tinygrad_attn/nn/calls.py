"""The scope of a module call, and its hooks.

Hooks are functions that see, and may replace, the inputs and outputs of a module. As in PyTorch,
pre-hooks run first, then `forward`, then forward hooks. A backward hook runs when the gradients of
the module's inputs are complete. A module without hooks only calls `forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine import Op, Variable, array_of, tensor_of, tracked


class Scope:
    """One call of a module, and the call that encloses it."""

    __slots__ = ("module", "outer")

    def __init__(self, module: Any, outer: Scope | None) -> None:
        self.module, self.outer = module, outer


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """Return the name of a called module as seen from `root`: `layers.0.self_attn`.

    Without a root, the name is relative to the outermost module that was called. The root itself,
    and a module that is not an attribute of its caller, get their class names.
    """
    chain: list[Any] = []  # from the inside out
    while scope is not None:
        chain.append(scope.module)
        scope = scope.outer
    if not chain:
        return "attention"
    root = chain[-1] if root is None else root
    names = {id(module): name for name, module in root.named_modules()}
    tail: list[str] = []
    for module in chain:
        if id(module) in names:
            return ".".join(filter(None, [names[id(module)], *tail])) or type(module).__name__
        tail.insert(0, type(module).__name__)
    return ".".join(tail)


class Hook(NamedTuple):
    """A function, when to call it, and the flags it was registered with."""

    when: str  # "before", "after" or "backward"
    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False

    def run(self, module: Any, args: tuple, kwargs: dict[str, Any], *output: Any) -> Any:
        """Call the function with the arguments that it takes."""
        given = (args, kwargs) if self.with_kwargs else (args,)
        return self.function(module, *given, *output)


class RemovableHandle:
    """A handle that removes a hook: by `remove()`, or at the end of a `with` block."""

    def __init__(self, module: Any, hook: Hook, prepend: bool) -> None:
        self._module, self._hook = module, hook
        module._hooks = (hook, *module._hooks) if prepend else (*module._hooks, hook)

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        hooks = self._module._hooks
        self._module._hooks = tuple(hook for hook in hooks if hook is not self._hook)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def call_with_hooks(module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call `module.forward` with all hooks around it."""
    before, after, backward = (
        [hook for hook in module._hooks if hook.when == when]
        for when in ("before", "after", "backward")
    )
    output = None
    try:
        for hook in before:
            found = hook.run(module, args, kwargs)
            if found is not None:
                args, kwargs = found if hook.with_kwargs else (_as_tuple(found), kwargs)
        if backward:
            seen_in, seen_out = _gradient_watchers(module, backward, args)
            args = _through("module_input", args, seen_in)
        output = module.forward(*args, **kwargs)
        while after:
            found = after.pop(0).run(module, args, kwargs, output)
            output = output if found is None else found
        if not backward:
            return output
        passed = _through("module_output", _as_tuple(output), seen_out)
        return passed if isinstance(output, tuple) else passed[0]
    except BaseException:
        for hook in after:
            if hook.always_call:
                hook.run(module, args, kwargs, output)
        raise


def _as_tuple(x: Any) -> tuple:
    return x if isinstance(x, tuple) else (x,)


def _gradient_watchers(module: Any, hooks: list[Hook], args: tuple) -> Any:
    """Return two functions that get the gradients of the inputs and of the outputs of one call.

    All inputs pass through one node and all outputs through another. The VJP of the output node
    stores the gradients of the outputs. The VJP of the input node runs last and calls the hooks.
    """
    grad_output = None

    def of_inputs(grad_input: tuple) -> tuple:
        nonlocal grad_output
        if grad_output is not None:  # None: no gradient passed through the module's output
            for hook in hooks:
                found = hook.function(module, grad_input, grad_output)
                grad_input = grad_input if found is None else _as_tuple(found)
        grad_output = None
        return grad_input

    def of_outputs(gradients: tuple) -> tuple:
        nonlocal grad_output
        grad_output = gradients
        if not any(map(tracked, args)):  # no input will get a gradient, so do not wait for one
            of_inputs((None,) * len(args))
        return gradients

    return of_inputs, of_outputs


def _through(name: str, values: tuple, seen: Callable[[tuple], tuple]) -> tuple:
    """Return the values after passing the tracked tensors among them through one node.

    Its VJP replaces their gradients by seen(gradients), where untracked values have None.
    """
    tensors = {i: x for i, x in enumerate(values) if tracked(x)}
    if not tensors:
        return values
    ends = np.cumsum([x.size for x in tensors.values()])[:-1]

    def parted(flat: Any, others: Any) -> tuple:
        """Split the flat tensor, and put each part in its place among the others."""
        filled = list(others)
        for (i, x), part in zip(tensors.items(), np.split(flat, ends)):
            filled[i] = part.reshape(x.shape).astype(x.dtype)
        return tuple(filled)

    def vjp(g: Any, _y: Any, *_xs: Any) -> tuple:
        gradients = parted(g if isinstance(g, Variable) else tensor_of(g), [None] * len(values))
        replaced = seen(gradients)
        found = [replaced[i] for i in tensors]
        return tuple(found if isinstance(g, Variable) else map(array_of, found))

    node = Op(lambda *xs: np.concatenate([x.reshape(-1) for x in xs]))
    node.__name__ = name
    node.vjp_all(vjp)
    return parted(node(*tensors.values()), values)
