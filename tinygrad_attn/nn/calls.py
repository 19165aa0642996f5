"""The scope and the hooks of a module call."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..engine import FunctionCall, Parts, Variable, context, tracked
from ..engine.bundle import bundled
from ..errors import describe, warn
from ..tree import tree_leaves, tree_map


class Scope:
    """One call of a module, the call that encloses it, and what to restore if it fails."""

    __slots__ = ("module", "outer", "undo", "names")

    def __init__(self, module, outer):
        self.module, self.outer = module, outer
        # Maps (object, name of an attribute) to the value before the call. After it, None: nodes
        # refer to the scope, and through a cache in it the graph would refer to itself.
        self.undo: Any = {}


def calls(scope):
    """Iterate over a call of a module or function and the calls around it, innermost first."""
    while scope is not None:
        yield scope
        scope = scope.outer


def enclosing(scope):
    """Iterate over the module calls around a scope, innermost first."""
    return (call for call in calls(scope) if not isinstance(call, FunctionCall))


def dotted_name(scope, root=None):
    """Return the name of a called module relative to `root`, such as `layers.0.self_attn`.

    By default, `root` is the outermost call. A module without a name is named after its class.
    """
    running = [*enclosing(scope)]
    if not running:
        return ""
    chain, outermost = [call.module for call in running], running[-1]
    root = chain[-1] if root is None else root
    names = getattr(outermost, "names", {}).get(root, {})
    if chain[0] not in names:  # the first time, or a module was added during the call
        names = {module: name for name, module in root.named_modules()}
        outermost.names = {root: names}
    tail: list[str] = []
    for module in chain:
        if module in names:
            return ".".join(filter(None, [names[module], *tail])) or type(module).__name__
        tail.insert(0, type(module).__name__)
    return ".".join(tail)


class Hook(AbstractContextManager["Hook"]):
    """Calls a function when a module runs, until `remove()` or the end of a `with` block."""

    def __init__(self, module, when, function, with_kwargs=False):
        self.module, self.when = module, when  # "pre-forward", "forward" or "backward"
        self.function, self.with_kwargs = function, with_kwargs
        self._set_all(*module._hooks, self)

    def __repr__(self):
        name = getattr(self.function, "__name__", repr(self.function))
        return f"the {self.when} hook {name!r} of {type(self.module).__name__}"

    def remove(self) -> None:
        """Remove the hook. A second call has no effect."""
        self._set_all(*(hook for hook in self.module._hooks if hook is not self))

    def _set_all(self, *hooks):
        tell_change(self.module, "_hooks")
        vars(self.module)["_hooks"] = hooks

    def __exit__(self, *_: object) -> None:
        self.remove()


def tell_change(module, name):
    """Tell the listeners that an attribute of a module is about to change."""
    for listener in context.listeners:
        listener.changing(module, name)


def observed_call(module, args, kwargs):
    """Call `module.forward` with all hooks, in PyTorch's order, and then the patches.

    The listeners hear of the call before and after it.
    """
    for listener in context.listeners:
        listener.calling(module)
    hooks = lambda when: [hook for hook in module._hooks if hook.when == when]
    keywords = lambda hook: [kwargs] if hook.with_kwargs else []
    for hook in hooks("pre-forward"):
        result = hook.function(module, args, *keywords(hook))
        if result is not None and hook.with_kwargs:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise ValueError(
                    f"{hook} returned {describe(result)}. With with_kwargs=True, return None, or "
                    "(args, kwargs)."
                )
            args, kwargs = result
        elif result is not None:
            args = result if isinstance(result, tuple) else (result,)
    backward = context.recording and hooks("backward")
    if backward:
        args, keep_gradients = _hooked(module, backward, args)
    output = module.forward(*args, **kwargs)
    for hook in hooks("forward"):
        result = hook.function(module, args, *keywords(hook), output)
        output = output if result is None else result
    if backward:
        if hides_tensors(output):
            warn(
                f"the backward hooks of {type(module).__name__} are not called, because it "
                f"returned {describe(output)}. Return Tensors, also in tuples, lists and dicts."
            )
        leaves = iter(_bundled(tree_leaves(output), keep_gradients))
        output = tree_map(lambda _: next(leaves), output)
    for patched, function in context.patches:
        if patched is module:
            output = function(output)
    for listener in context.listeners:
        listener.returned(module, output)
    return output


def hides_tensors(output):
    """Return whether a module returned an object whose Tensors, if any, will not be found."""
    known = Variable, np.ndarray, np.generic, int, float, str, type(None)
    leaves = tree_leaves(output)
    return not any(map(tracked, leaves)) and not all(isinstance(x, known) for x in leaves)


def _bundled(values, hook):
    """Return the values, with a bundle of the tensors among them.

    In the backward pass, hook(gradients) gets the gradient of each value, or None. It returns None
    or other gradients.
    """
    numbers = {x: i for i, x in enumerate(dict.fromkeys(filter(tracked, values)))}
    places = [numbers[x] if tracked(x) else None for x in values]

    def on_the_way_back(parts):
        left = dict(parts)  # a tensor that is passed twice stays one, at its first place
        new = hook(tuple(left.pop(i, None) for i in places))
        if new is None:
            return None
        pairs = [(i, g) for i, g in zip(places, new) if i is not None and g is not None]
        return sum((Parts({i: g}) for i, g in pairs), Parts())

    new = bundled([*numbers], on_the_way_back) if numbers else []
    return tuple(x if i is None else new[i] for x, i in zip(values, places))


def _hooked(module, hooks, args):
    """Return the arguments of a call with backward hooks, and a hook for its outputs.

    The gradients of the outputs are complete before those of the inputs.
    """
    grad_output = None

    def keep(gradients):
        nonlocal grad_output
        grad_output = gradients
        if not any(map(tracked, args)):
            call_hooks((None,) * len(args))

    def call_hooks(grad_input):
        nonlocal grad_output
        gradients, grad_output = grad_output, None
        if gradients is None:  # no gradient came through the module
            return None
        new = None
        for hook in hooks:
            result = hook.function(module, grad_input if new is None else new, gradients)
            if result is not None:
                new = _checked(hook, result, args)
        return new

    return _bundled(args, call_hooks), keep


def _checked(hook, result, args):
    """Return the gradients that a hook returned, or raise ValueError if they do not fit."""
    new = result if isinstance(result, tuple) else (result,)
    shapes, expected = ([getattr(x, "shape", None) for x in values] for values in (new, args))
    pairs = zip(new, shapes, expected)
    alike = (g is None or shape == there is not None for g, shape, there in pairs)
    if len(new) != len(args) or not all(alike):
        raise ValueError(
            f"{hook} returned gradients of shapes {shapes} for inputs of shapes {expected}. Return "
            "None, or a tuple with one gradient for each input."
        )
    return new
