"""Look inside a model: attention weights, outputs, and calls with parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import filter as matching
from functools import partial
from typing import Any

import numpy as np

from ..engine import Variable, Watcher, context, tracked, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .calls import dotted_name
from .module import Buffer, Module, Parameter

# ---- attention weights


class _Recorder(Watcher):
    """Calls keep(scope, weights) after each call of an attention module."""

    def __init__(self, keep: Callable[[Any, np.ndarray], Any]) -> None:
        self.keep = keep


@contextmanager
def record_attention(root: Module | None = None) -> Iterator[dict[str, list[np.ndarray]]]:
    """Record the weights of every attention module that is called in the block.

        with ta.record_attention() as seen:
            model(x)
        seen["layers.0.self_attn"][0]    # the first call's weights, an array (B, H, T, S)

    Names are relative to the outermost module that is called, or to `root`. Each call adds one
    array, with dropout applied. An unbatched call counts as a batch of one. Direct calls to
    `F.scaled_dot_product_attention` and calls from other threads are not recorded.
    """
    seen: dict[str, list[np.ndarray]] = {}
    keep = lambda scope, weights: seen.setdefault(dotted_name(scope, root), []).append(weights)
    with watching(_Recorder(keep)):
        yield seen


def recorders() -> list[Any]:
    """Return the attention recorders of this thread."""
    return [watcher for watcher in context.watchers if isinstance(watcher, _Recorder)]


def record(weights: Any) -> None:
    """Pass a copy of the running module's attention weights (B, H, T, S) to every recorder."""
    for recorder in recorders():
        recorder.keep(context.scope, weights._data.copy())


# ---- outputs of modules


@dataclass(eq=False)
class Activation:
    """The outputs of one module, one for each call."""

    name: str
    outputs: list[Any] = field(default_factory=list, repr=False)  # as the module returned them
    all_weights: list[np.ndarray] = field(default_factory=list, repr=False)  # (B, H, T, S) each

    @property
    def output(self) -> Any:
        """The output of the last call, or its first element if it is a tuple."""
        return first(self.outputs[-1])

    @property
    def grad(self) -> Any:
        """The gradient of `output`, or None before the backward pass."""
        return self.output.grad

    @property
    def weights(self) -> np.ndarray:
        """The attention weights of the last call, (B, H, T, S)."""
        if not self.all_weights:
            raise AttributeError(f"{self.name!r} is not an attention module, so it has no weights.")
        return self.all_weights[-1]


def first(output: Any) -> Any:
    """Return a module's output, or its first element if it is a tuple."""
    return output[0] if isinstance(output, tuple) else output


def _selected(model: Module, patterns: Iterable[str]) -> dict[str, Module]:
    """Return {dotted name: module} for the names that match any of the patterns."""
    modules, found = dict(model.named_modules()), dict[str, Module]()
    for pattern in patterns:
        names = matching(modules, pattern)
        if not names:
            hint = nearest(pattern, modules)
            raise ValueError(f"no module of {type(model).__name__} matches {pattern!r}.{hint}")
        found |= {name: modules[name] for name in names}
    return found


@contextmanager
def hooked(modules: Iterable[Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Call hook(module, args, output) after each call of these modules inside the block."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(hook))
        yield


@contextmanager
def activations(model: Module, *patterns: str) -> Iterator[dict[str, Activation]]:
    """Record the outputs of modules called in the block, by dotted name.

        with ta.activations(model, "layers.*.self_attn") as seen:
            loss(model(x)).backward()
        seen["layers.0.self_attn"].output       # and .grad, and .weights (B, H, T, S)

    `*` in a pattern matches any part of a name, including dots. By default, all modules are
    recorded. Raises ValueError for a pattern that matches no module.
    """
    modules = _selected(model, patterns or ("*",))
    seen = {name: Activation(name) for name in modules}
    of_module = dict(zip(map(id, modules.values()), seen.values()))

    def keep(module: Module, _: tuple, output: Any) -> None:
        of_module[id(module)].outputs.append(output)
        if tracked(first(output)):
            first(output).retain_grad()

    def keep_weights(scope: Any, weights: np.ndarray) -> None:
        if id(scope.module) in of_module:
            of_module[id(scope.module)].all_weights.append(weights)

    with hooked(modules.values(), keep), watching(_Recorder(keep_weights)):
        yield seen


@contextmanager
def patch(model: Module, replacements: Mapping[str, Any]) -> Iterator[None]:
    """Replace the outputs of modules called in the block.

        with ta.patch(model, {"layers.0.self_attn": lambda y: y * 0, "norm": saved}):
            model(x)

    The keys are dotted names or patterns. Each value is a function of the output, or an array of
    its shape that replaces it. If the output is a tuple, only its first element is replaced.
    """
    with ExitStack() as stack:
        for pattern, new in replacements.items():
            hook = partial(_replaced, pattern, new)
            stack.enter_context(hooked(_selected(model, [pattern]).values(), hook))
        yield


def _replaced(pattern: str, new: Any, _module: Module, _args: tuple, output: Any) -> Any:
    old = first(output)
    y = new(old) if callable(new) else new
    y = y if isinstance(y, Tensor) else Tensor(y, dtype=old.dtype)
    if y.shape != old.shape:
        raise ValueError(f"{pattern!r} gave shape {old.shape}, but the new value has {y.shape}.")
    return (y, *output[1:]) if isinstance(output, tuple) else y


# ---- parameters


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call module(*args, **kwargs) with other tensors in place of its parameters and buffers.

        names, weights = zip(*model.named_parameters())
        gradients = ta.grad(loss(model(x)), weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients)}
        loss(ta.functional_call(model, stepped, x)).backward()       # through the step too

    The mapping's keys are dotted names. Parameters that the mapping omits are not replaced. A
    shared parameter is replaced under all its names. `args` is a tuple or a single argument. The
    replacement is also visible to other threads, so each thread needs its own copy of the module.
    Raises ValueError for an unknown name or a wrong shape. Like torch.func.functional_call.
    """
    parts = {path: part for path, *part in module._named_parts(Parameter, Buffer, once=False)}
    values: dict[Tensor, Any] = {}  # maps each replaced tensor to the new one
    for path, value in parameters_and_buffers.items():
        if path not in parts:
            raise ValueError(f"no parameter or buffer {path!r}.{nearest(str(path), parts)}")
        own = parts[path][-1]
        tensor: Any = value if isinstance(value, Variable) else Tensor(value, dtype=own.dtype)
        if tensor.shape != own.shape:
            raise ValueError(f"{path!r} must have the shape {own.shape}, got {describe(value)}.")
        if values.setdefault(own, tensor) is not tensor:
            raise ValueError(f"{path!r} is a shared parameter and was given two values.")
    rows = [(vars(owner), name, p, values.get(p, p)) for owner, name, p in parts.values()]
    others = _Others(rows)
    args = args if isinstance(args, tuple) else () if args is None else (args,)
    with watching(others), others.in_place():
        return module(*args, **(kwargs or {}))


class _Others(Watcher):
    """Replaces a module's tensors. A checkpoint enters `in_place` again for its recomputation."""

    def __init__(self, rows: list[tuple[dict[str, Any], str, Any, Any]]) -> None:
        self.rows = rows

    @contextmanager
    def in_place(self) -> Iterator[None]:
        try:
            for attributes, name, _, other in self.rows:
                attributes[name] = other
            yield
        finally:
            for attributes, name, own, _ in self.rows:
                attributes[name] = own
