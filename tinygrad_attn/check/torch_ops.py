"""PyTorch's functions and modules as gradcheck sees them: the same check, on torch tensors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from .trace import Answers, Array, Backend, Place, user_place

LIBRARY = os.path.dirname(torch.__file__) + os.sep


class TorchBackend(Backend):
    """torch tensors, and torch.autograd.grad for VJPs."""

    ours = False
    kind = torch.Tensor
    double = "x.double()"
    double_module = "module.double()"
    writes = "torch functions of the saved tensors and the incoming gradient"
    recording = staticmethod(torch.enable_grad)

    def leaf(self, array: Array, tracked: bool = True) -> Any:
        return torch.tensor(array, requires_grad=tracked)

    def dtype(self, t: Any) -> np.dtype:
        kind = "f" if t.is_floating_point() else "c" if t.is_complex() else "i"
        return np.dtype(f"{kind}{t.element_size()}")

    def wants_gradient(self, t: Any) -> bool:
        return bool(t.requires_grad)

    def value(self, t: Any) -> Array:
        return np.asarray(t.detach().cpu().numpy())

    def put(self, t: Any, array: Array) -> None:
        t.data = torch.as_tensor(np.asarray(array)).to(t.device)

    def name(self, t: Any) -> None:
        return None

    def keep(self, t: Any) -> Any:
        before = t.data, t.requires_grad
        t.requires_grad_(True)
        return before

    def give_back(self, t: Any, kept: Any) -> None:
        t.data = kept[0]
        with suppress(RuntimeError):  # a tensor that is no leaf keeps its flag
            t.requires_grad_(kept[1])

    def returns(self, found: Any) -> str:
        return "Compute with torch functions; .numpy(), .item() and .detach() leave the graph."

    def vjp(self, outputs: Any, inputs: Any, cotangents: Any, create_graph: bool = False) -> Any:
        pairs = zip(cotangents, outputs)
        seeds = [torch.as_tensor(c, dtype=y.dtype, device=y.device) for c, y in pairs]
        return torch.autograd.grad(
            outputs, inputs, seeds, retain_graph=True, create_graph=create_graph,
            allow_unused=True,
        )  # fmt: skip

    @contextmanager
    def watch(self) -> Iterator[Any]:
        """List each call of a torch.autograd.Function; others have the VJPs of PyTorch itself."""
        trace, running = TorchTrace(), list[Any]()
        code = torch.autograd.Function.apply.__func__.__code__

        def look(frame: Any, event: str, result: Any) -> None:
            if frame.f_code is code and event == "call":
                running.append((frame.f_locals["cls"], frame.f_locals["args"]))
            elif frame.f_code is code and event == "return" and running:
                function, args = running.pop()
                if result is not None:
                    trace.steps.append(TorchStep(function, args, result, user_place(LIBRARY)))

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            yield trace
        finally:
            sys.setprofile(before)


class TorchTrace:
    def __init__(self) -> None:
        self.steps: list[TorchStep] = []


class TorchStep:
    """One call of a torch.autograd.Function."""

    settings: dict[str, Any] = {}
    module = ""

    def __init__(self, op: Any, inputs: tuple, found: Any, place: Place | None) -> None:
        self.op, self.inputs, self.place, self.name = op, inputs, place, op.__name__
        self.result = found[0] if isinstance(found, tuple) else found

    @property
    def differentiable(self) -> bool:
        return bool(getattr(self.result, "requires_grad", False))

    def call(self) -> TorchCall:
        return TorchCall(self)

    def run(self, operands: Sequence[Any]) -> Any:
        return self.op.apply(*operands)


class TorchCall:
    """A torch.autograd.Function as a function of arrays, with its backward()."""

    def __init__(self, step: TorchStep, args: Sequence[Any] | None = None) -> None:
        self.step, self.name, self.settings = step, step.name, step.settings
        self.tensors = [isinstance(x, torch.Tensor) for x in step.inputs]
        self.needs = [
            tensor and x.requires_grad and x.dtype == torch.float64
            for x, tensor in zip(step.inputs, self.tensors)
        ]
        given = [x.detach().cpu().numpy().copy() if tensor else x
                 for x, tensor in zip(step.inputs, self.tensors)]  # fmt: skip
        self.args = given if args is None else list(args)
        self.y, self.saved = self.forward(self.args)

    def forward(self, args: Sequence[Any]) -> tuple[Array, Any]:
        with torch.no_grad():
            outputs = _several(self.step.run(self._operands(args)))
        return _joined([np.asarray(t.numpy()) for t in outputs]), None

    def pull(self, g: Any, y: Any = None, needs: Sequence[bool] | None = None) -> Answers:
        needs = self.needs if needs is None else needs
        operands = self._operands(self.args)
        leaves = {i: operands[i].requires_grad_() for i, need in enumerate(needs) if need}
        outputs, seeds, at = _several(self.step.run(operands)), [], 0
        for t in outputs:
            part = g if len(outputs) == 1 else np.ravel(g)[at : at + t.numel()].reshape(t.shape)
            at += t.numel()
            seeds.append(_tensor(part))
        found = torch.autograd.grad(outputs, list(leaves.values()), seeds, allow_unused=True)
        return {i: np.asarray(a.detach().numpy()) for i, a in zip(leaves, found) if a is not None}

    def with_args(self, args: Sequence[Any], **settings: Any) -> TorchCall:
        new = TorchCall(self.step, args)
        new.needs = self.needs
        return new

    def _operands(self, args: Sequence[Any]) -> list[Any]:
        return [_tensor(a) if tensor else a for a, tensor in zip(args, self.tensors)]


def _tensor(a: Any) -> Any:
    """A tensor in the array's own memory, so that what is written into it shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that are broadcast may not be written to
        return torch.as_tensor(np.asarray(a))


def _several(found: Any) -> list[Any]:
    tensors = found if isinstance(found, tuple) else (found,)
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate([a.ravel() for a in arrays])
