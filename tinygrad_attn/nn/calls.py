"""The scope and the hooks of a module call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..engine import Op, Variable, array_of, tensor_of, tracked


class Scope:
    """One call of a module, the call that encloses it, and whether it raised an exception."""

    __slots__ = ("module", "outer", "failed")

    def __init__(self, module: Any, outer: Scope | None) -> None:
        self.module, self.outer, self.failed = module, outer, False


def enclosing(scope: Any) -> Iterator[Any]:
    """Iterate over a module call and the calls around it, innermost first."""
    while scope is not None:
        yield scope
        scope = scope.outer


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """Return the name of a called module relative to `root`, such as `layers.0.self_attn`.

    By default, `root` is the outermost call. A module without a name is named after its class.
    """
    chain = [call.module for call in enclosing(scope)]
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


class Hook(AbstractContextManager["Hook"]):
    """Calls a function when a module runs, until `remove()` or the end of a `with` block."""

    def __init__(
        self, module: Any, when: str, function: Callable[..., Any], with_kwargs: bool = False
    ) -> None:
        self.module, self.when = module, when  # "before", "after" or "backward"
        self.function, self.with_kwargs = function, with_kwargs
        module._hooks = (*module._hooks, self)

    def remove(self) -> None:
        """Remove the hook. A second call has no effect."""
        self.module._hooks = tuple(hook for hook in self.module._hooks if hook is not self)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, module: Any, args: tuple, kwargs: dict[str, Any], *output: Any) -> Any:
        given = (args, kwargs) if self.with_kwargs else (args,)
        return self.function(module, *given, *output)


def call_with_hooks(module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call `module.forward` and all hooks, in PyTorch's order."""
    before, after, backward = (
        [hook for hook in module._hooks if hook.when == when]
        for when in ("before", "after", "backward")
    )
    for hook in before:
        found = hook.run(module, args, kwargs)
        if found is not None:
            args, kwargs = found if hook.with_kwargs else (_as_tuple(found), kwargs)
    if backward:
        seen_in, seen_out = _gradient_watchers(module, backward, args)
        args = _through("module_input", args, seen_in)
    output = module.forward(*args, **kwargs)
    for hook in after:
        found = hook.run(module, args, kwargs, output)
        output = output if found is None else found
    if not backward:
        return output
    passed = _through("module_output", _as_tuple(output), seen_out)
    return passed if isinstance(output, tuple) else passed[0]


def _as_tuple(x: Any) -> tuple:
    return x if isinstance(x, tuple) else (x,)


def _gradient_watchers(module: Any, hooks: list[Hook], args: tuple) -> Any:
    """Return two callbacks: one for the input gradients, and one for the output gradients.

    The output gradients arrive first. The hooks run when the input gradients are complete.
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
        if not any(map(tracked, args)):  # no input will get a gradient, so run the hooks now
            of_inputs((None,) * len(args))
        return gradients

    return of_inputs, of_outputs


def _through(name: str, values: tuple, seen: Callable[[tuple], tuple]) -> tuple:
    """Pass all tracked tensors among the values through one node.

    Its VJP replaces their gradients with seen(gradients). Untracked values have the gradient None.
    """
    tensors = {i: x for i, x in enumerate(values) if tracked(x)}
    if not tensors:
        return values
    ends = np.cumsum([x.size for x in tensors.values()])[:-1]

    def parted(flat: Any, others: Any) -> tuple:
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
