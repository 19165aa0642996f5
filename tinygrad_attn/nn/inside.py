"""Look inside a model while it runs: activations, patches, and what attention looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import filter as matching
from typing import Any

import numpy as np

from ..engine import Watcher, context, tracked, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .module import Module
from .scopes import dotted_name


class Activation:
    """What one module returned, call by call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs: list[Any] = []  # of all calls, as the module returned them
        self.all_weights: list[np.ndarray] = []  # of attention, (B, H, T, S) for each call

    @property
    def output(self) -> Any:
        """The output of the last call: a Tensor, or the first of the tuple that was returned."""
        output = self.outputs[-1]
        return output[0] if isinstance(output, tuple) else output

    @property
    def grad(self) -> Any:
        """The gradient of `output` after a backward pass, else None."""
        return self.output.grad

    @property
    def weights(self) -> np.ndarray:
        """The attention weights of the last call, (B, H, T, S); for attention modules."""
        if not self.all_weights:
            raise AttributeError(f"{self.name!r} is no attention module, so it has no weights.")
        return self.all_weights[-1]

    def __repr__(self) -> str:
        last = f", last {describe(self.output)}" if self.outputs else ""
        return f"Activation({self.name!r}, {len(self.outputs)} calls{last})"


class _Recorder(Watcher):
    """Collects attention weights; `name_of` gives the name for a call, None to leave it out."""

    def __init__(self, name_of: Callable[[Any], str | None]) -> None:
        self.name_of, self.weights = name_of, dict[str, list[np.ndarray]]()


@contextmanager
def record_attention(root: Module | None = None) -> Iterator[dict[str, list[np.ndarray]]]:
    """Collect softmax(q k^T / sqrt(D)) of every attention module called in the block, by its name.

        with ta.record_attention() as seen:
            model(x)
        seen["layers.0.self_attn"][0]    # the first call's weights, an array (B, H, T, S)

    Names are seen from the outermost module that is called, or from `root`. A module called several
    times has several entries in its list, in order. An unbatched call counts as a batch of one.
    Weights are those that were applied, after dropout if there was any. It does not matter whether
    the call asked for weights, and the outputs are the same numbers with and without recording.
    Only calls of this thread are seen, and none that goes to `F.scaled_dot_product_attention`
    itself, which returns its weights with need_weights=True.
    """
    with watching(_Recorder(lambda scope: dotted_name(scope, root))) as recorder:
        yield recorder.weights


def recorders() -> list[Any]:
    """Return the recorders of this thread."""
    return [watcher for watcher in context.watchers if isinstance(watcher, _Recorder)]


def record(weights: Any) -> None:
    """Give a copy of the running module's attention weights (B, H, T, S) to every recorder."""
    for recorder in recorders():
        name = recorder.name_of(context.scope)
        if name is not None:
            recorder.weights.setdefault(name, []).append(weights._data.copy())


def _selected(model: Module, patterns: Any) -> dict[str, Module]:
    """Return the modules whose dotted names match one of the patterns, by name."""
    modules = dict(model.named_modules())
    names: list[str] = []
    for pattern in patterns:
        found = matching(modules, pattern)
        if not found:
            raise ValueError(
                f"no module of {type(model).__name__} matches {pattern!r}."
                f"{nearest(pattern, modules)}"
            )
        names += found
    return {name: modules[name] for name in dict.fromkeys(names)}


@contextmanager
def activations(model: Module, *patterns: str) -> Iterator[dict[str, Activation]]:
    """Collect what modules return inside the block, by dotted name.

        with ta.activations(model, "layers.*.self_attn") as seen:
            loss(model(x)).backward()
        seen["layers.0.self_attn"].output       # and .grad, and .weights (B, H, T, S)

    Patterns are those of the shell: `*` matches any part of a name, dots too. Without patterns
    every module is seen. Raises ValueError for a pattern that matches no module. Looking changes
    no number.
    """
    modules = _selected(model, patterns or ("*",))
    seen = {name: Activation(name) for name in modules}
    names = {id(module): name for name, module in modules.items()}

    def keep(module: Module, _: tuple, output: Any) -> None:
        seen[names[id(module)]].outputs.append(output)
        first = output[0] if isinstance(output, tuple) else output
        if tracked(first):
            first.retain_grad()

    recorder = _Recorder(lambda scope: names.get(id(scope.module)))
    recorder.weights = {name: activation.all_weights for name, activation in seen.items()}
    with ExitStack() as stack:
        for module in modules.values():
            stack.enter_context(module.register_forward_hook(keep))
        stack.enter_context(watching(recorder))
        yield seen


@contextmanager
def patch(model: Module, replacements: Mapping[str, Any]) -> Iterator[None]:
    """Replace what modules return inside the block.

        with ta.patch(model, {"layers.0.self_attn": lambda y: y * 0, "norm": saved}):
            model(x)

    By dotted name or pattern a function of the output, or an array in its place. Where a module
    returns a tuple, as attention does, its first element is replaced. Raises ValueError for a name
    that the model does not have, and for an array of another shape.
    """

    def hook_of(name: str, new: Any) -> Callable[..., Any]:
        def replace(module: Module, _: tuple, output: Any) -> Any:
            first, *rest = output if isinstance(output, tuple) else (output,)
            y = new(first) if callable(new) else new
            y = y if isinstance(y, Tensor) else Tensor(y, dtype=first.dtype)
            if y.shape != first.shape:
                raise ValueError(
                    f"patch of {name!r}: the output has shape {first.shape}, its replacement "
                    f"{y.shape}."
                )
            return (y, *rest) if isinstance(output, tuple) else y

        return replace

    with ExitStack() as stack:
        for pattern, new in replacements.items():
            for name, module in _selected(model, [pattern]).items():
                stack.enter_context(module.register_forward_hook(hook_of(name, new)))
        yield
