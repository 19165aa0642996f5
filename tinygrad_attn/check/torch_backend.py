"""Let gradcheck check torch functions and modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from ..tree import tree_leaves
from .arrays import torch_tensor
from .backend import Array, Backend, Call, user_place

LIBRARY = os.path.dirname(torch.__file__) + os.sep


class TorchBackend(Backend):
    """Access to torch tensors and torch.autograd.grad.

    Complex numbers are seen as pairs (real, imaginary) along a new last axis. Their gradients are
    pairs too: PyTorch's gradient of a real loss is dL/d(real) + i dL/d(imaginary).
    """

    kind = torch.Tensor
    double = "x.double() (complex: x.to(torch.complex128)), or module.double()"
    recording = staticmethod(torch.enable_grad)

    def leaf(self, array: Array, like=None):
        t = torch.tensor(array)
        t = torch.view_as_complex(t) if like is not None and like.is_complex() else t
        return t.requires_grad_(t.is_floating_point() or t.is_complex())

    def dtype(self, t) -> np.dtype:
        if t.is_complex():
            return np.dtype(f"f{t.element_size() // 2}")
        return np.dtype(f"{'f' if t.is_floating_point() else 'i'}{t.element_size()}")

    def wants_gradient(self, t) -> bool:
        return bool(getattr(t, "requires_grad", False))

    def is_float(self, x) -> bool:
        return isinstance(x, torch.Tensor) and self.dtype(x).kind == "f"

    @staticmethod
    def value(t) -> Array:
        t = t.detach().cpu().resolve_conj().resolve_neg()
        return np.asarray((torch.view_as_real(t) if t.is_complex() else t).numpy())

    def put(self, t, array: Array) -> None:
        t.data = self.like(t, array)

    @staticmethod
    def like(t, numbers):
        """Convert numbers to a tensor on the same device, complex if `t` is complex."""
        is_tensor = isinstance(numbers, torch.Tensor)
        new = numbers if is_tensor else torch_tensor(np.asarray(numbers)).to(t.device)
        return torch.view_as_complex(new.contiguous()) if t.is_complex() else new

    def track(self, t, wants: bool) -> None:
        with suppress(RuntimeError):  # only a leaf can change its flag
            t.requires_grad_(wants)

    def keep(self, t) -> Callable[[], None]:
        data, gradient, wants = t.data, t.grad if t.is_leaf else None, t.requires_grad
        before = [(x, x.detach().clone()) for x in (data, gradient) if x is not None]

        def restore() -> None:
            t.data = data
            for x, values in before:
                x.data.copy_(values)
            self.track(t, wants)
            if t.is_leaf:
                t.grad = gradient

        return restore

    def vjp(self, outputs, inputs, cotangents, create_graph: bool = False):
        seeds = [self.like(y, c).to(y.dtype) for y, c in zip(outputs, cotangents)]
        flags = dict(retain_graph=True, create_graph=create_graph, allow_unused=True)
        return torch.autograd.grad(outputs, inputs, seeds, **flags)

    def reading(self, change):
        return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), change)

    @contextmanager
    def watch(self) -> Iterator[list[Call]]:
        """List every call of a torch.autograd.Function."""
        calls: list[Call] = []
        code = torch.autograd.Function.apply.__func__.__code__

        def look(frame, result) -> None:
            if frame.f_code is code and result is not None:
                function, args = frame.f_locals["cls"], frame.f_locals["args"]
                first = result[0] if isinstance(result, tuple) else result
                place, name = user_place(LIBRARY), function.__name__
                calls.append(Call(name, function.apply, args, {}, first, None, place))

        with returns(look):
            yield calls

    def hooked(self, outputs, inputs, cotangents) -> bool:
        """Return whether a function that autograd calls, other than a backward, replaces g."""
        replaced: list[Any] = []

        def look(frame, result) -> None:
            code, caller = frame.f_code, frame.f_back.f_code.co_name
            if caller == "_engine_run_backward" and code.co_name != "apply":
                arguments = [frame.f_locals.get(n) for n in code.co_varnames[: code.co_argcount]]
                seen = {id(t) for t in tree_leaves(arguments)}
                new = (t for t in tree_leaves(result) if t is not None)
                replaced.extend(t for t in new if id(t) not in seen)

        with returns(look):
            self.vjp(outputs, inputs, cotangents)
        return any(isinstance(t, torch.Tensor) for t in replaced)


@contextmanager
def returns(look) -> Iterator[None]:
    """Call look(frame, result) for each Python function that returns inside the block."""

    def profile(frame, event: str, result) -> None:
        if event == "return":
            look(frame, result)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
