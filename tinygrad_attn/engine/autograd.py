"""What a user calls to differentiate: `backward` and `grad`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..messages.errors import describe, missing_names, numbers_of, refuse_mask
from ..messages.signatures import check_flags, own_names
from .graph import Variable, tensor_of
from .modes import context, everywhere, rehearsing
from .recording import enable_grad, no_grad  # noqa: F401  where PyTorch has them
from .sweep import sweep


def backward(
    outputs: Sequence[Any],
    gradients: Sequence[Any],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Add the gradients of the outputs to the `.grad` of every leaf they depend on; see
    `Tensor.backward`.
    """
    check_flags("backward", retain_graph=retain_graph, create_graph=create_graph)
    seeds = [_seed(t, g, create_graph) for t, g in zip(outputs, gradients, strict=True)]
    # Not `with no_grad()`: Ctrl-C could come before its end and leave recording switched off.
    here = context
    before, here.recording = here.recording, create_graph
    try:
        found = sweep(outputs, seeds, create_graph=create_graph, retain_graph=retain_graph)
        here.recording = True  # a .grad that create_graph has left is part of a graph, its sum too
        for t, g in found.items():
            if t._tracked:  # it may have been frozen since the forward pass
                _accumulate(t, g)
    finally:
        here.recording = before
    for watcher in (*everywhere, *here.watchers):
        watcher.finished(found)


def _accumulate(t: Variable, g: Any) -> None:
    """t.grad += g, also where another thread does the same at the same time."""
    while True:
        old = None if t._grad is None else gradient_of(t)
        total = g if old is None else old + (g if isinstance(g, Variable) else tensor_of(g))
        # Python changes threads only at calls, and between this line and the next there is none.
        if t._grad is old:
            t._grad = total
            return


def gradient_of(t: Variable) -> Any:
    """The gradient as a tensor, always the same one, or None."""
    found = t._grad
    if found is None or isinstance(found, Variable):
        return found
    made = tensor_of(found)
    if t._grad is not found:  # another thread has changed it meanwhile
        return gradient_of(t)
    t._grad = made
    return made


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
    """The gradients d(sum of outputs)/d(inputs) as a tuple, one for each input; no `.grad` is
    touched.

    `outputs`, `inputs` and `grad_outputs` are a Tensor or a sequence of them. `grad_outputs` weighs
    the outputs and may be left out for single numbers. `retain_graph` keeps the graph for another
    pass (default: as `create_graph`). With `create_graph=True` the results can be differentiated
    again. An input the outputs do not depend on is a ValueError, or None with `allow_unused`; a
    released part that may lead to one is a RuntimeError. Only the rules on the way to these inputs
    are called. As torch.autograd.grad.
    """
    check_flags(
        "grad", retain_graph=retain_graph, create_graph=create_graph, allow_unused=allow_unused
    )
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    seeds = _seeds(outputs, grad_outputs, create_graph)
    inputs = _inputs(inputs)
    retain = create_graph if retain_graph is None else retain_graph
    here = context
    before, here.recording = here.recording, bool(create_graph)
    try:
        found = sweep(outputs, seeds, wanted=inputs, create_graph=create_graph, retain_graph=retain)
    finally:
        here.recording = before
    results = []
    for i, x in enumerate(inputs):
        if x not in found and not allow_unused:
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, was not used to compute the outputs. "
                "Pass allow_unused=True to get None for it."
            )
        g = found.get(x)
        if g is not None and any(x is other for other in inputs[:i]):  # listed twice
            g = g.copy()
        results.append(g if g is None or isinstance(g, Variable) else tensor_of(g))
    for watcher in (*everywhere, *here.watchers):
        watcher.finished(inputs)
    return tuple(results)


def _seeds(outputs: list[Any], grad_outputs: Any, create_graph: bool) -> list[Any]:
    """The gradients that `grad` starts from."""
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    elif not isinstance(grad_outputs, (list, tuple)):
        grad_outputs = [grad_outputs]
    if len(grad_outputs) != len(outputs):
        raise ValueError(
            f"grad() got {len(outputs)} outputs but {len(grad_outputs)} grad_outputs; "
            "give one for each, or None."
        )
    return [
        _seed(t, g, create_graph, "grad()", "grad_outputs")
        for t, g in zip(outputs, grad_outputs, strict=True)
    ]


def _inputs(inputs: Any) -> list[Variable]:
    """The tensors that `grad` differentiates by."""
    several = isinstance(inputs, Iterable) and not isinstance(inputs, (Variable, np.ndarray))
    inputs = list(inputs) if several else [inputs]
    for i, x in enumerate(inputs):
        if isinstance(x, Variable) and x._tracked:
            continue
        if hasattr(x, "parameters"):
            hint = "For a module write list(model.parameters())."
        elif isinstance(x, (str, tuple)):
            hint = (
                "Leave the names out: write list(model.parameters()), of a dict "
                "list(params.values())."
            )
        elif x is None:
            hint = "Write grad(y, x) for the gradient by a tensor x."
        else:
            hint = "Create it with requires_grad=True."
        raise ValueError(f"input {i} of grad(), {describe(x)}, does not require a gradient. {hint}")
    return inputs


def _seed(
    output: Any,
    gradient: Any,
    create_graph: bool,
    caller: str = "backward()",
    keyword: str = "gradient",
) -> Any:
    """The gradient to start from, of the output's shape and dtype; a Tensor only where the pass is
    recorded.
    """
    if not isinstance(output, Variable) or not output._tracked:
        raise _no_graph(output)
    shape, dtype = output._data.shape, output._data.dtype
    if gradient is None:
        if output._data.size != 1:
            raise ValueError(
                f"{caller} without {keyword}= needs a single number, but this is "
                f"{describe(output)}. Reduce it first, for example with .sum() or .mean(), or pass "
                f"{keyword}= of shape {shape}."
            )
        gradient = np.ones(shape, dtype) if shape else dtype.type(1)
    elif not isinstance(gradient, Variable):
        gradient = _numbers(gradient, caller, keyword)
    if gradient.shape != shape:
        hint = "" if shape or caller != "grad()" else " Several inputs are a list: grad(y, [a, b])."
        raise ValueError(
            f"the gradient has shape {gradient.shape} but the output has shape {shape}; they must "
            f"be the same.{hint}"
        )
    if gradient.dtype != dtype:
        gradient = gradient.astype(dtype)
    if create_graph:
        return gradient if isinstance(gradient, Variable) else tensor_of(np.array(gradient))
    array = gradient._data if isinstance(gradient, Variable) else gradient
    return array[()] if isinstance(output._data, np.generic) else array


def _numbers(gradient: Any, caller: str, keyword: str) -> np.ndarray:
    """A gradient that was given as an array or numbers."""
    refuse_mask(caller, gradient)
    array = np.asarray(gradient)
    if array.dtype.kind not in "fiub" or isinstance(gradient, bool):
        hint = (
            " Write retain_graph=True to keep the graph for another pass."
            if gradient is True
            else numbers_of(gradient)
        )
        raise TypeError(
            f"{caller} takes real numbers as {keyword}=, got {describe(gradient)}.{hint}"
        )
    return array


def _no_graph(output: Any) -> Exception:
    """The error for what cannot be differentiated."""
    if not isinstance(output, Variable):
        hint = " Call the function first: grad(f(x), x), or write ta.value_and_grad(f)(x)."
        return TypeError(
            f"only a Tensor can be differentiated, got {describe(output)}."
            + (hint if callable(output) else "")
        )
    hint = ""
    if rehearsing():
        hint = (
            " Inside ta.checkpoint take it with ta.value_and_grad or ta.vjp: nothing else is "
            "recorded there at first."
        )
    elif not context.recording:
        hint = (
            " Right here nothing is recorded, since a no_grad() block is open, or a backward pass "
            "goes on. An interrupt at the very end of a block can leave it open: then "
            "ta.enable_grad() records again."
        )
    return ValueError(
        f"{describe(output)} does not depend on anything that requires a gradient. Create the "
        "inputs with requires_grad=True, and check for no_grad(), detach() or .numpy() on the "
        "way; a gradient can be "
        "differentiated again only if create_graph=True was passed where it was taken." + hint
    )


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here
    __getattr__ = missing_names(__name__, globals())
