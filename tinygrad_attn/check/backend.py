"""Access to the tensors of one library: their values, their gradients, and the ops that run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..engine import Listener, Variable, context, enable_grad, grad, listening, tensor_of
from ..engine.bundle import Bundling
from ..errors import user_frame
from ..tree import tree_leaves
from .report import Array, agree

Place = tuple[str, int]  # a file of the user's program, and the number of a line


def user_place(*libraries: str) -> Place:
    """Return the place of the innermost stack frame outside library code."""
    frame = user_frame(*libraries)
    return frame.f_code.co_filename, frame.f_lineno


def array_of(x) -> Array:
    """Return the values of a tensor, or x as an array."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


class Call(NamedTuple):
    """One call of an op."""

    name: str
    op: Callable[..., Any]
    inputs: tuple
    settings: dict[str, Any]
    result: Any
    scope: Any
    place: Place


class Backend:
    """Access to this package's Tensors. `TorchBackend` gives the same access to torch tensors."""

    kind: Any = Variable
    double = "x.astype(np.float64), or module.astype(np.float64)"
    recording, value = staticmethod(enable_grad), staticmethod(array_of)

    def leaf(self, array: Array, like=None):
        """Return a tensor, which requires a gradient if its dtype is floating-point."""
        t = tensor_of(array)
        self.is_float(array)  # refuses complex numbers
        t._tracked = array.dtype.kind == "f"
        return t

    def dtype(self, t) -> np.dtype:
        return t._data.dtype.newbyteorder("=")

    def wants_gradient(self, t) -> bool:
        return getattr(t, "_tracked", False)

    def is_float(self, x) -> bool:
        """Return whether x is a tensor of floating-point numbers. Raise TypeError if complex."""
        if isinstance(x, (Array, np.generic, complex)) and np.iscomplexobj(x):
            raise TypeError(
                f"complex numbers are not checked, but the function takes or returns a complex "
                f"array {np.shape(x)}: Tensors hold real numbers. Pass and return the real and "
                "the imaginary part as two Tensors, or pass torch tensors, whose complex numbers "
                "are checked."
            )
        return isinstance(x, self.kind) and self.dtype(x).kind == "f"

    def put(self, t, array: Array) -> None:
        t._data = array

    def track(self, t, wants: bool) -> None:
        if bool(t._tracked) != wants:  # it may hold the hooks of the tensor
            t._tracked = wants

    def keep(self, t) -> Callable[[], None]:
        """Return a function that restores the tensor's present values, gradient and flag."""
        data, before, wants, gradient = t._data, np.array(t._data), t._tracked, t._grad

        def restore() -> None:
            t._data, t._tracked, t._grad = data, wants, gradient
            rewrite(data, before)

        return restore

    def gradient(self, outputs, inputs, cotangents, pull=None):
        """Return the gradients as tensors, or what pull(outputs, inputs, cotangents) returns."""
        pairs = [(t, c) for t, c in zip(outputs, cotangents) if self.wants_gradient(t)]
        if not pairs:
            return [None] * len(inputs)
        roots, seeds = map(list, zip(*pairs))
        return (pull or self.vjp)(roots, inputs, seeds)

    def vjp(self, outputs, inputs, cotangents, create_graph: bool = False):
        """Return the gradient for each input, or None for an input that no output depends on."""
        flags = dict(retain_graph=True, create_graph=create_graph, allow_unused=True)
        return grad(outputs, inputs, cotangents, **flags)

    def reading(self, change: Callable[[Any], Any]):
        """Return a context in which the backward pass reads what `change` makes of saved values."""
        return nullcontext()

    @contextmanager
    def watch(self) -> Iterator[list[Call]]:
        """List every call of an op."""
        with listening(Calls()) as listener:
            yield listener.calls

    def hooked(self, outputs, inputs, cotangents) -> bool:
        """Return whether hooks change gradients."""
        with listening(Replaced()) as listener:
            self.vjp(outputs, inputs, cotangents)
        return listener.changed


def backend_of(torch: bool) -> Backend:
    """Return the access to the tensors of torch, or of this package."""
    if torch:
        from .torch_backend import TorchBackend

        return TorchBackend()
    return Backend()


def rewrite(array, before: Array) -> None:
    """Restore the values of an array if they have changed."""
    if isinstance(array, Array) and array.tobytes() != before.tobytes():
        array[...] = before


class Calls(Listener):
    """Lists every call of an op."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def computed(self, op, inputs: tuple, settings, output) -> None:
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
        call = Call(op.__name__, op, inputs, settings, output, context.scope, user_place())
        self.calls.append(call)


class Replaced(Listener):
    """Hears of hooks that change gradients."""

    changed = False

    def replaced(self, x, before, after) -> None:
        old, new = ([*map(array_of, tree_leaves(gradients))] for gradients in (before, after))
        self.changed |= len(old) != len(new) or not all(map(partial(agree, rtol=1e-9), old, new))
