"""Let gradcheck check torch functions and modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from .trace import Array, Backend, Step, Trace, user_place

LIBRARY = os.path.dirname(torch.__file__) + os.sep


class TorchBackend(Backend):
    """Access to torch tensors and torch.autograd.grad."""

    kind = torch.Tensor
    double = "x.double(), or module.double()"
    recording = staticmethod(torch.enable_grad)

    def leaf(self, array: Array) -> Any:
        return torch.tensor(array, requires_grad=array.dtype.kind == "f")

    def dtype(self, t: Any) -> np.dtype:
        kind = "f" if t.is_floating_point() else "c" if t.is_complex() else "i"
        return np.dtype(f"{kind}{t.element_size()}")

    def wants_gradient(self, t: Any) -> bool:
        return bool(getattr(t, "requires_grad", False))

    @staticmethod
    def value(t: Any) -> Array:
        return np.asarray(t.detach().cpu().numpy())

    def put(self, t: Any, array: Array) -> None:
        t.data = torch.as_tensor(np.asarray(array)).to(t.device)

    def track(self, t: Any, wants: bool) -> None:
        with suppress(RuntimeError):  # only a leaf can change its flag
            t.requires_grad_(wants)

    def vjp(self, outputs: Any, inputs: Any, cotangents: Any, create_graph: bool = False) -> Any:
        pairs = zip(cotangents, outputs)
        seeds = [torch.as_tensor(c, dtype=y.dtype, device=y.device) for c, y in pairs]
        flags = dict(retain_graph=True, create_graph=create_graph, allow_unused=True)
        return torch.autograd.grad(outputs, inputs, seeds, **flags)

    @contextmanager
    def watch(self) -> Iterator[Any]:
        """List every call of a torch.autograd.Function."""
        trace, before = Trace(), sys.getprofile()
        code = torch.autograd.Function.apply.__func__.__code__

        def look(frame: Any, event: str, result: Any) -> None:
            if frame.f_code is code and event == "return" and result is not None:
                function, args = frame.f_locals["cls"], frame.f_locals["args"]
                first = result[0] if isinstance(result, tuple) else result
                place, name = user_place(LIBRARY), function.__name__
                trace.steps.append(Step(name, function.apply, args, {}, first, None, place))

        sys.setprofile(look)
        try:
            yield trace
        finally:
            sys.setprofile(before)
