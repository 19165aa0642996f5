"""Record the ops that run, and give gradcheck access to Tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..engine import Listener, Variable, context, enable_grad, grad, listening, tensor_of
from ..engine.bundle import Bundling
from ..errors import user_frame
from .report import Array

Place = tuple[str, int]  # a file of the user's program, and the number of a line


def user_place(*libraries: str) -> Place:
    """Return the place of the innermost stack frame outside library code."""
    frame = user_frame(*libraries)
    return frame.f_code.co_filename, frame.f_lineno


def array_of(x: Any) -> Array:
    """Return the values of a tensor, or x as an array."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


class Step(NamedTuple):
    """One call of an op."""

    name: str
    op: Callable[..., Any]
    inputs: tuple
    settings: dict[str, Any]
    result: Any
    scope: Any
    place: Place


class Trace(Listener):
    """A watcher that lists every op that runs."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        if isinstance(op, Bundling):
            return
        torch: Any = sys.modules.get("torch")
        frame: Any = sys._getframe(1) if torch else None
        while frame:
            if frame.f_code is torch.autograd.Function.apply.__func__.__code__:
                raise TypeError(  # its backward() would not be checked
                    "PyTorch received Tensors of this package. Pass torch tensors as inputs: "
                    "gradcheck(f, [torch.randn(3, dtype=torch.float64, requires_grad=True)])."
                )
            frame = frame.f_back
        place, name = user_place(), op.__name__
        self.steps.append(Step(name, op, inputs, settings, result, context.scope, place))


class Backend:
    """Access to this package's Tensors. TorchBackend is the counterpart for torch tensors."""

    kind: Any = Variable
    double = "x.astype(np.float64), or module.astype(np.float64)"
    recording, value = staticmethod(enable_grad), staticmethod(array_of)

    def leaf(self, array: Array) -> Any:
        """Return a tensor, which requires a gradient if its dtype is floating-point."""
        t = tensor_of(array)
        t._tracked = array.dtype.kind == "f"
        return t

    def dtype(self, t: Any) -> np.dtype:
        return t._data.dtype.newbyteorder("=")

    def wants_gradient(self, t: Any) -> bool:
        return t._tracked

    def put(self, t: Any, array: Array) -> None:
        t._data = array

    def track(self, t: Any, wants: bool) -> None:
        t._tracked = wants

    def vjp(self, outputs: Any, inputs: Any, cotangents: Any, create_graph: bool = False) -> Any:
        """Return the gradient for each input, or None for an input that no output depends on."""
        flags = dict(retain_graph=True, create_graph=create_graph, allow_unused=True)
        return grad(outputs, inputs, cotangents, **flags)

    def watch(self) -> Any:
        return listening(Trace())


def nested(found: Any) -> Iterator[Any]:
    """Yield the elements of nested tuples, lists and dicts."""
    if isinstance(found, (dict, tuple, list)):
        for part in found.values() if isinstance(found, dict) else found:
            yield from nested(part)
    else:
        yield found
