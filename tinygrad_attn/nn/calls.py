"""The scope and the hooks of a module call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..engine import FunctionCall, Parts, context, tracked
from ..engine.bundle import bundled
from ..errors import describe
from ..tree import tree_leaves, tree_map


class Scope:
    """One call of a module, the call that encloses it, and whether it raised an exception."""

    __slots__ = ("module", "outer", "failed")

    def __init__(self, module: Any, outer: Scope | None) -> None:
        self.module, self.outer, self.failed = module, outer, False


def enclosing(scope: Any) -> Iterator[Any]:
    """Iterate over the module calls around a scope, innermost first."""
    while scope is not None:
        if not isinstance(scope, FunctionCall):
            yield scope
        scope = scope.outer


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """Return the name of a called module relative to `root`, such as `layers.0.self_attn`.

    By default, `root` is the outermost call. A module without a name is named after its class.
    """
    chain = [call.module for call in enclosing(scope)]
    if not chain:
        return ""
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
        note_attributes(module, "_hooks")
        vars(module)["_hooks"] = (*module._hooks, self)

    def remove(self) -> None:
        """Remove the hook. A second call has no effect."""
        note_attributes(self.module, "_hooks")
        hooks = tuple(hook for hook in self.module._hooks if hook is not self)
        vars(self.module)["_hooks"] = hooks

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, module: Any, args: tuple, kwargs: dict[str, Any], *output: Any) -> Any:
        arguments = (args, kwargs) if self.with_kwargs else (args,)
        return self.function(module, *arguments, *output)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


def note_attributes(module: Any, name: str | None = None) -> None:
    """Note a module's attributes for a checkpoint, before the one with this name changes."""
    if context.noted_modules is not None:
        context.noted_modules.note(module, name)


def call_with_hooks(module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call `module.forward` and all hooks, in PyTorch's order."""
    before, after, backward = (
        [hook for hook in module._hooks if hook.when == when]
        for when in ("before", "after", "backward")
    )
    for hook in before:
        result = hook.run(module, args, kwargs)
        if result is not None:
            args, kwargs = _arguments(hook, module, result, kwargs)
    gradients = None
    if backward and context.recording:
        gradients = _Gradients(module, backward, args)
        args = gradients.args
    output = module.forward(*args, **kwargs)
    for hook in after:
        result = hook.run(module, args, kwargs, output)
        output = output if result is None else result
    return output if gradients is None else gradients.through(output)


def _arguments(hook: Hook, module: Any, result: Any, kwargs: dict[str, Any]) -> tuple[tuple, Any]:
    """Return the arguments that a hook returned in place of those of the call."""
    if not hook.with_kwargs:
        return result if isinstance(result, tuple) else (result,), kwargs
    if type(result) is not tuple or [type(part) for part in result] != [tuple, dict]:
        raise TypeError(
            f"the hook {hook.name!r} before {type(module).__name__} was registered with "
            f"with_kwargs=True, so it must return None or (args, kwargs), not {describe(result)}."
        )
    return result


class _Gradients:
    """The gradients of one call of a module, for its backward hooks.

    The tensors that go into the module are bundled, so that the hooks get the gradients of all of
    them at once. The gradients of its outputs, which are complete earlier, come from hooks on the
    tensors.
    """

    def __init__(self, module: Any, hooks: Sequence[Hook], args: tuple) -> None:
        self.module, self.hooks = module, hooks
        tensors = list(dict.fromkeys(x for x in args if tracked(x)))  # one passed twice stays one
        self.positions = [next(i for i, x in enumerate(args) if x is t) for t in tensors]
        new = dict(zip(tensors, bundled(tensors, self.of_inputs))) if tensors else {}
        self.args = tuple(new[x] if tracked(x) else x for x in args)
        self.grad_output: list[Any] = []
        self.backward_pass: Any = None  # the one that these gradients belong to

    def through(self, output: Any) -> Any:
        """Return the output, with hooks on its tensors."""
        leaves = tree_leaves(output)
        self.count = len(leaves)
        tensors = list(dict.fromkeys(y for y in leaves if tracked(y)))
        places = [next(i for i, y in enumerate(leaves) if y is t) for t in tensors]
        if not self.positions and len(tensors) > 1:  # then only a bundle knows when all are there
            together = lambda parts: self.of_outputs({places[i]: g for i, g in parts.items()})
            new = dict(zip(tensors, bundled(tensors, together)))
            return tree_map(lambda y: new[y] if tracked(y) else y, output)
        # A leaf outlives the call, so the hook is put on a copy.
        new = {y: y if y._node else y.clone() for y in tensors}
        for place, y in zip(places, new.values()):
            y.register_hook(lambda g, place=place: self.of_outputs({place: g}))
        if all(a is b for a, b in new.items()):
            return output
        return tree_map(lambda y: new[y] if tracked(y) else y, output)

    def of_outputs(self, gradients: dict[int, Any]) -> None:
        """Note the gradients of outputs, by their positions."""
        if not self.grad_output or self.backward_pass is not context.backward_pass:
            self.grad_output, self.backward_pass = [None] * self.count, context.backward_pass
        for place, g in gradients.items():
            self.grad_output[place] = g
        if not self.positions:  # no input gets a gradient
            self.of_inputs(Parts())

    def of_inputs(self, gradients: Parts) -> Parts | None:
        """Call the hooks, and return the gradients that they return."""
        if not self.grad_output or self.backward_pass is not context.backward_pass:
            return None
        grad_input: list[Any] = [None] * len(self.args)
        for i, g in gradients.items():
            grad_input[self.positions[i]] = g
        grad_output, self.grad_output = tuple(self.grad_output), []
        for hook in self.hooks:
            result = hook.function(self.module, tuple(grad_input), grad_output)
            if result is not None:
                grad_input = self._checked(hook, result)
        parts = {i: grad_input[position] for i, position in enumerate(self.positions)}
        return Parts({i: g for i, g in parts.items() if g is not None})

    def _checked(self, hook: Hook, result: Any) -> list[Any]:
        """Return the gradients that a hook returned, or raise ValueError if they do not fit."""
        new = list(result) if isinstance(result, tuple) else [result]
        shapes = [getattr(g, "shape", None) for g in new]
        expected = [getattr(x, "shape", None) for x in self.args]
        pairs = zip(new, shapes, expected)
        alike = (g is None or shape == there is not None for g, shape, there in pairs)
        if len(new) != len(expected) or not all(alike):
            raise ValueError(
                f"the backward hook {hook.name!r} of {type(self.module).__name__} returned "
                f"gradients of shapes {shapes} for inputs of shapes {expected}. Return None, or a "
                "tuple with one gradient for each input."
            )
        return new
