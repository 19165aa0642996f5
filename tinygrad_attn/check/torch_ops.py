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

from .trace import Answers, Array, Backend, OpCall, Step, Trace, nested, user_place

LIBRARY = os.path.dirname(torch.__file__) + os.sep


def values_of(x: Any) -> Any:
    """The values of a tensor; anything else as it is."""
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x


class TorchBackend(Backend):
    """torch tensors, and torch.autograd.grad for VJPs."""

    ours = False
    kind = torch.Tensor
    double = "x.double()"
    double_module = "module.double()"
    writes = "torch functions of the saved tensors and the incoming gradient"
    recording = staticmethod(torch.enable_grad)
    value: Any = staticmethod(values_of)

    def leaf(self, array: Array) -> Any:
        """A tensor of these values, which requires a gradient if it can."""
        return torch.tensor(array, requires_grad=array.dtype.kind == "f")

    def dtype(self, t: Any) -> np.dtype:
        """The dtype as NumPy's."""
        return np.dtype(str(t.dtype).removeprefix("torch."))

    def wants_gradient(self, t: Any) -> bool:
        """Whether gradients flow to this tensor."""
        return t.requires_grad

    def put(self, t: Any, array: Array) -> None:
        """Give a tensor other values."""
        t.data = torch.as_tensor(np.asarray(array)).to(t.device)

    def keep(self, t: Any) -> Any:
        """What `give_back` needs; until then the tensor is tracked and its values may change."""
        before = t.data, t.requires_grad
        t.requires_grad_(True)
        return before

    def give_back(self, t: Any, kept: Any) -> None:
        """Undo `keep`."""
        t.data = kept[0]
        with suppress(RuntimeError):  # a tensor that is no leaf keeps its flag
            t.requires_grad_(kept[1])

    def returns(self, found: Any) -> str:
        """What to write in a function that returned no tensor."""
        return "Compute with torch functions; .numpy(), .item() and .detach() leave the graph."

    def vjp(self, outputs: Any, inputs: Any, cotangents: Any, create_graph: bool = False) -> Any:
        """d(sum of cotangent * output)/d(input) for each input, None where no path leads there."""
        pairs = zip(cotangents, outputs)
        seeds = [torch.as_tensor(c, dtype=y.dtype, device=y.device) for c, y in pairs]
        return torch.autograd.grad(
            outputs, inputs, seeds, retain_graph=True, create_graph=create_graph, allow_unused=True
        )

    @contextmanager
    def watch(self) -> Iterator[Any]:
        """List each call of a torch.autograd.Function; others have the VJPs of PyTorch itself."""
        trace = Trace()
        code = torch.autograd.Function.apply.__func__.__code__

        def look(frame: Any, event: str, found: Any) -> None:
            if frame.f_code is code and event == "return" and found is not None:
                here, first = frame.f_locals, found[0] if isinstance(found, tuple) else found
                place = user_place(LIBRARY)
                trace.steps.append(TorchStep(here["cls"], here["args"], {}, first, None, place))

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            yield trace
        finally:
            sys.setprofile(before)


class TorchStep(Step):
    """One call of a torch.autograd.Function; the result is its first output."""

    @property
    def differentiable(self) -> bool:
        """Whether a gradient passes through it."""
        return self.result.requires_grad

    def call(self) -> TorchCall:
        """The call as a function of arrays."""
        return TorchCall(self)

    def run(self, operands: Sequence[Any]) -> Any:
        """The function on other operands."""
        return self.op.apply(*operands)


class TorchCall(OpCall):
    """A torch.autograd.Function on copies of its operands, with its backward()."""

    def wanted(self) -> Iterator[bool]:
        """Whether each input is a float64 tensor that requires a gradient."""
        inputs = self.step.inputs
        return (getattr(x, "requires_grad", False) and x.dtype == torch.float64 for x in inputs)

    plain = staticmethod(values_of)

    def forward(self) -> Array:
        """The output; several in one row."""
        return self._run()[1].detach().numpy()

    def _run(self) -> tuple[list[Any], Any]:
        """The operands, and the output; several that have a gradient in one row."""
        operands = [
            _tensor(a).requires_grad_(need) if isinstance(x, torch.Tensor) else a
            for a, x, need in zip(self.args, self.step.inputs, self.needs)
        ]
        found = nested(self.step.run(operands))
        outputs = [y for y in found if getattr(y, "requires_grad", False)]
        return operands, outputs[0] if len(outputs) == 1 else torch.cat(
            [y.ravel() for y in outputs]
        )

    def pull(self, g: Any, needs: Sequence[bool] | None = None) -> Answers:
        """What backward() returns for g."""
        operands, y = self._run()
        wanted = [i for i, need in enumerate(needs or self.needs) if need]
        leaves = [operands[i] for i in wanted]
        found = zip(wanted, torch.autograd.grad(y, leaves, _tensor(g), allow_unused=True))
        return {i: a.detach().numpy() for i, a in found if a is not None}


def _tensor(a: Any) -> Any:
    """A tensor in the array's own memory, so that what is written into it shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that are broadcast may not be written to
        return torch.as_tensor(np.asarray(a))
