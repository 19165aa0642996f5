"""Look inside a model: attention weights, outputs, and calls with parts replaced."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import filter as matching
from functools import partial
from typing import Any

import numpy as np

from ..engine import Listener, Variable, context, heard, listening, tracked
from ..errors import describe, nearest
from ..tensor import Tensor
from ..tree import tree_leaves, tree_map
from .calls import dotted_name, tell_change
from .module import Buffer, Module, Parameter

# ---- attention weights


class _Weights(Listener):
    """Records the weights of attention modules by dotted name, relative to `root`."""

    def __init__(self, root):
        self.root, self.seen = root, {}

    def attended(self, scope, weights):
        name = dotted_name(scope, self.root) or "attention"  # forward() was called
        self.seen.setdefault(name, []).append(weights)


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
    with listening(_Weights(root)) as weights:
        yield weights.seen


def record(weights):
    """Pass a copy of the running module's attention weights (B, H, T, S) to all who listen."""
    for hear in heard("attended"):
        hear(context.scope, weights._data.copy())


# ---- outputs of modules


@dataclass(eq=False)
class Activation:
    """The outputs of one module, one for each call."""

    name: str
    outputs: list[Any] = field(default_factory=list, repr=False)  # as the module returned them
    all_weights: list[np.ndarray] = field(default_factory=list, repr=False)  # (B, H, T, S) each

    @property
    def output(self) -> Any:
        """The output of the last call, or the first tensor of a tuple, list or dict."""
        if not self.outputs:
            raise AttributeError(f"the module {self.name!r} was not called inside the block.")
        return first(self.outputs[-1])

    @property
    def grad(self) -> Any:
        """The gradient of `output`, or None before the backward pass."""
        return _tensor_of(self.name, self.output).grad

    @property
    def weights(self) -> np.ndarray:
        """The attention weights of the last call, (B, H, T, S)."""
        if not self.all_weights:
            raise AttributeError(
                f"{self.name!r} has no weights: it is not an attention module, or was not called "
                "inside the block."
            )
        return self.all_weights[-1]


def first(output):
    """Return the first Tensor of a module's output, or the output if there is none."""
    return next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)), output)


def _tensor_of(name, output, *kinds):
    """Return the first Tensor of an output, or the output if it is of one of these kinds."""
    if isinstance(found := first(output), (Tensor, *kinds)):
        return found
    raise ValueError(f"{name!r} returned {describe(output)}, which contains no Tensor.")


def _selected(model, patterns):
    """Return {dotted name: module} for the names that match any of the patterns."""
    modules, found = dict(model.named_modules(remove_duplicate=False)), dict[str, Module]()
    for pattern in patterns:
        names = [pattern] if pattern in modules else matching(modules, pattern)
        if not names:
            hint = nearest(pattern, modules)
            raise ValueError(f"no module of {type(model).__name__} matches {pattern!r}.{hint}")
        found |= {name: modules[name] for name in names}
    return found


class _Outputs(Listener):
    """Adds the outputs and weights of modules to their activations."""

    def __init__(self, activations):
        self.activations = activations  # by module

    def returned(self, module, output):
        if module in self.activations:
            self.activations[module].outputs.append(output)
            if tracked(y := first(output)):
                y.retain_grad()

    def attended(self, scope, weights):
        if scope and scope.module in self.activations:
            self.activations[scope.module].all_weights.append(weights)

    def repeated(self):
        entries = self.activations.items()
        return partial(_Repeat, {module: (a.outputs, len(a.outputs)) for module, a in entries})


class _Repeat(Listener):
    """Passes gradients from the second run of a checkpoint on to the outputs of the first run."""

    def __init__(self, twins):
        self.twins = dict(twins)  # the outputs of each module, and the place of the next one

    def returned(self, module, output):
        if module in self.twins:
            outputs, place = self.twins[module]
            self.twins[module] = outputs, place + 1
            if tracked(y := first(output)):
                y._keep_gradient_for(first(outputs[place]))

    def repeated(self):
        return partial(_Repeat, dict(self.twins))


@contextmanager
def activations(model: Module, *patterns: str) -> Iterator[dict[str, Activation]]:
    """Record the outputs of modules called in the block, by dotted name.

        with ta.activations(model, "layers.*.self_attn") as seen:
            loss(model(x)).backward()
        seen["layers.0.self_attn"].output       # and .grad, and .weights (B, H, T, S)

    `*` in a pattern matches any part of a name, including dots. By default, all modules are
    recorded; a shared module has an entry under each of its names. Outputs are recorded after all
    hooks and patches. Calls from other threads are not recorded. Raises ValueError for a pattern
    that matches no module.
    """
    modules = _selected(model, patterns or ("*",))
    entries: dict[Module, Activation] = {}
    for name, module in modules.items():
        entries.setdefault(module, Activation(name))
    with listening(_Outputs(entries)):
        yield {name: entries[module] for name, module in modules.items()}


@contextmanager
def patch(model: Module, replacements: Mapping[str, Any]) -> Iterator[None]:
    """Replace the outputs of modules called in the block.

        with ta.patch(model, {"layers.0.self_attn": lambda y: y * 0, "norm": saved}):
            model(x)

    The keys are dotted names or patterns. Each value is a function of the output, or an array of
    its shape that replaces it. If the output is a tuple, list or dict, only its first element is
    replaced. Calls from other threads are not patched. Raises ValueError if two replacements are
    for one module.
    """
    chosen: dict[Module, str] = {}
    for pattern, new in replacements.items():
        for module in _selected(model, [pattern]).values():
            other = chosen.setdefault(module, pattern)
            if replacements[other] is not new:
                raise ValueError(
                    f"{other!r} and {pattern!r} are the same {type(module).__name__}. Pass one "
                    "replacement for both."
                )
    patches = [(m, partial(_replaced, name, replacements[name])) for m, name in chosen.items()]
    with context.added("patches", *patches):
        yield


def _replaced(pattern, new, output):
    """Return the output of a module with another first element."""
    old = _tensor_of(pattern, output, np.ndarray)
    y = new(old) if callable(new) else new
    y = y if isinstance(y, Tensor) else Tensor(y, dtype=old.dtype)
    if y.shape != old.shape:
        raise ValueError(f"{pattern!r} gave shape {old.shape}, but the new value has {y.shape}.")
    left = [y]  # the first element may come again, as the state of a recurrent cell
    return tree_map(lambda leaf: left.pop() if leaf is old and left else leaf, output)


# ---- parameters


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args=(),
    kwargs: Mapping[str, Any] | None = None,
):
    """Call module(*args, **kwargs) with other tensors in place of its parameters and buffers.

        names, weights = zip(*model.named_parameters())
        gradients = ta.grad(loss(model(x)), weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients)}
        loss(ta.functional_call(model, stepped, x)).backward()       # through the step too

    The mapping's keys are dotted names. Parameters that the mapping omits are not replaced. A
    shared parameter is replaced under all its names. `args` is a tuple or a single argument. The
    replacement is also visible to other threads, so each thread needs its own copy of the module.
    A buffer that `forward` assigns is replaced in the mapping, if that can change. Raises
    ValueError for an unknown name or a wrong shape. Like torch.func.functional_call.
    """
    parts = dict(module._named_parts(once=False))
    values: dict[Tensor, Any] = {}  # maps each replaced tensor to the new one
    for path, value in parameters_and_buffers.items():
        if path not in parts:
            raise ValueError(f"no parameter or buffer {path!r}.{nearest(str(path), parts)}")
        own = parts[path]
        tensor: Any = value if isinstance(value, Variable) else Tensor(value, dtype=own.dtype)
        if tensor.shape != own.shape:
            raise ValueError(f"{path!r} must have the shape {own.shape}, got {describe(value)}.")
        other = values.setdefault(own, tensor)
        if other is not tensor and (
            tracked(other) or tracked(tensor) or not np.array_equal(other._data, tensor._data)
        ):
            raise ValueError(f"{path!r} is a shared parameter and was given two values.")
    rows = [
        (owner, name, p)
        for owner in module.modules()
        for kind in (Parameter, Buffer)
        for name, p in owner._attributes(kind).items() if p in values
    ]  # fmt: skip
    args = args if isinstance(args, tuple) else () if args is None else (args,)
    replaced = *context.replaced, *(owner for owner, *_ in rows)
    try:
        for owner, name, p in rows:
            tell_change(owner, name)
            vars(owner)[name] = values[p]
        with context.entered(replaced=replaced):
            return module(*args, **(kwargs or {}))
    finally:
        assigned = {p: vars(owner).get(name, values[p]) for owner, name, p in rows}
        for owner, name, p in rows:
            vars(owner)[name] = p
        # The second run of a checkpoint changes no buffer.
        is_second = context.repeated is not None and context.recording is True
        if isinstance(parameters_and_buffers, MutableMapping) and not is_second:
            for path in parameters_and_buffers.keys() & parts.keys():
                if assigned[parts[path]] is not values[parts[path]]:
                    parameters_and_buffers[path] = assigned[parts[path]]
