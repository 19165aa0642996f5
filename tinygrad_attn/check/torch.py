"""`compare_with_torch`: compare a module with its PyTorch counterpart."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from ..nn import Module
from .backend import Array, Backend, nested
from .report import Verdict, deviation, greatest

Arrays = dict[str, Array]
TOLERANCE = 1e-8  # relative to the largest element, in float64
WHOLE = "(whole)"  # the name of the module's own outputs, before their index


@dataclass
class Compared:
    """The largest errors of a value and its gradient, each relative to the largest element."""

    name: str
    value: float = 0.0
    gradient: float = 0.0

    @property
    def ok(self) -> bool:
        return max(self.value, self.gradient) <= TOLERANCE


@dataclass(repr=False)
class TorchComparison(Verdict):
    """The result of `compare_with_torch`, which is true if everything agrees and prints as a table.

    `rows` has one row for each dotted name, and `first` is the name of the first difference.
    `explanation` describes the likely cause: a wrong VJP, or dropout.
    """

    rows: list[Compared]
    first: str | None = None
    explanation: str = ""
    alone: tuple[str, ...] = ()  # outputs that only one side has

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'name':{width}}  value     gradient"]
        for row in self.rows:
            errors = f"{row.value:8.1e}  {row.gradient:8.1e}"
            lines.append(f"{row.name:{width}}  {errors}  {'ok' if row.ok else 'DIFFERS'}")
        differs = f"NOT the same as torch; first difference: {self.first}"
        lines.append("the same as torch" if self.ok else differs)
        lines += [f"not compared, because only one side has it: {name}" for name in self.alone]
        return "\n".join(lines + [f"explanation: {self.explanation}"] * bool(self.explanation))


def compare_with_torch(
    module: Any, torch_module: Any, *inputs: Any, verbose: bool = True, **keywords: Any
) -> TorchComparison:
    """Run both modules with the same weights and inputs, and compare all outputs and gradients.

    Copies the weights of `torch_module` into `module` with `load_state_dict`, so the names must
    match. Then runs float64 copies of both modules. `inputs` and `keywords` are arrays, Tensors,
    torch tensors or plain values. Each output tensor gets a random cotangent for the backward pass.

    Returns a TorchComparison, which is true if everything agrees, and prints it if `verbose`.
    Raises ImportError without torch, and ValueError if there is nothing to compare.
    """
    try:
        import torch

        from .torch_backend import TorchBackend
    except ImportError:
        text = 'compare_with_torch needs torch: pip install "tinygrad_attn[torch]"'
        raise ImportError(f"{text}. Without torch, use ta.gradcheck.") from None
    if not isinstance(module, Module) or not isinstance(torch_module, torch.nn.Module):
        raise TypeError(
            "compare_with_torch(module, torch_module, *inputs) needs a module of this package and "
            f"then a torch.nn.Module, got {describe(module)} and {describe(torch_module)}."
        )
    module.load_state_dict(torch_module.state_dict())
    arguments: dict[Any, Any] = {**dict(enumerate(inputs)), **keywords}
    ours = Side(Backend(), copy.deepcopy(module).astype(np.float64), arguments)
    theirs = Side(TorchBackend(), copy.deepcopy(torch_module).double(), arguments)
    report = compared(ours, theirs)
    if verbose:
        print(report)
    return report


class Side(NamedTuple):
    """A module of one library, its backend and its arguments."""

    backend: Backend
    module: Any
    arguments: dict[Any, Any]  # positional arguments by number, keyword arguments by name

    def run(self) -> dict[str, Any]:
        """Run a copy of the module; return outputs, parameters and inputs as tensors by name."""
        module, outputs = copy.deepcopy(self.module), dict[str, Any]()
        leaves = {key: self.leaf(x) for key, x in self.arguments.items()}

        def keep(name: str, part: Any, args: Any, output: Any) -> None:
            for k, t in enumerate(nested(output)):
                if isinstance(t, self.backend.kind):  # only from the first call
                    outputs.setdefault(name + f"[{k}]" * (k > 0), t)

        for name, part in module.named_modules():
            part.register_forward_hook(partial(keep, name or WHOLE))
        args = [x for key, x in leaves.items() if isinstance(key, int)]
        module(*args, **{key: x for key, x in leaves.items() if isinstance(key, str)})
        inputs = {f"input {k}": x for k, x in leaves.items() if isinstance(x, self.backend.kind)}
        return {**outputs, **dict(module.named_parameters()), **inputs}

    def gradients(self, tensors: dict[str, Any], roots: list[str]) -> Arrays:
        """Return the gradients of all tensors, from random cotangents of the outputs `roots`."""
        wanted = {name: t for name, t in tensors.items() if self.backend.wants_gradient(t)}
        gradients = {name: np.zeros(tuple(t.shape)) for name, t in tensors.items()}
        roots = [name for name in roots if name in wanted]
        draw = lambda k, name: np.random.default_rng(k).standard_normal(gradients[name].shape)
        if roots:
            cotangents = [draw(k, name) for k, name in enumerate(roots)]
            pulled = self.backend.vjp([wanted[n] for n in roots], [*wanted.values()], cotangents)
            pairs = zip(wanted, pulled)
            gradients |= {name: self.backend.value(g) for name, g in pairs if g is not None}
        return gradients

    def leaf(self, x: Any) -> Any:
        """Convert an argument to a tensor of this library if it is an array or a tensor."""
        x = x.detach().numpy() if hasattr(x, "detach") else x
        if not isinstance(x, Array):
            return x
        return self.backend.leaf(x.astype(np.float64 if x.dtype.kind == "f" else x.dtype))


def compared(ours: Side, theirs: Side) -> TorchComparison:
    """Compare the values and gradients of all tensors that both sides have."""
    mine, reference = ours.run(), theirs.run()
    outputs = [{n for n in tensors if n.startswith(WHOLE)} for tensors in (mine, reference)]
    shared = [name for name in reference if name in outputs[0] & outputs[1]]
    values = {name: theirs.backend.value(t) for name, t in reference.items()}
    if not shared or any(np.isnan(values[name]).all() for name in shared):
        raise ValueError(
            "nothing was compared: torch returns NaN, or the two outputs have no Tensor at the "
            "same position. Pass finite inputs; .numpy() and .data in forward() leave the graph."
        )
    gradients, expected = ours.gradients(mine, shared), theirs.gradients(reference, shared)
    report = TorchComparison([], alone=tuple(sorted(outputs[0] ^ outputs[1])))
    for name in filter(mine.__contains__, reference):
        value = difference(ours.backend.value(mine[name]), values[name])
        report.rows.append(Compared(name, value, difference(gradients[name], expected[name])))
    wrong = [row for row in report.rows if not row.ok]
    if wrong:
        report.first = max(wrong, key=lambda row: row.value > TOLERANCE).name
        if all(row.value <= TOLERANCE for row in report.rows if row.name in shared):
            report.explanation = DETACHED
        elif not (repeats(ours, mine, shared) and repeats(theirs, reference, shared)):
            report.explanation = DROPOUT
    return report


def difference(a: Array, b: Array) -> float:
    """Return the largest error relative to the largest element. NaN agrees with NaN."""
    if a.shape != b.shape:
        return np.inf
    return greatest(deviation(a, b)) / max(1e-6, greatest(b[np.isfinite(b)]))


def repeats(side: Side, tensors: dict[str, Any], names: list[str]) -> bool:
    """Return whether a second run returns the same outputs."""
    again, value = side.run(), side.backend.value
    return all(difference(value(again[n]), value(tensors[n])) <= TOLERANCE for n in names)


DETACHED = (
    "the values agree but the gradients do not. Run gradcheck on this module to find the op whose "
    "VJP is wrong, or the use that leaves the graph (detach(), .data, .numpy(), .item(), "
    "Tensor(...), no_grad())."
)
DROPOUT = (
    "dropout left on: two calls to the same module give different results. Call .eval() on both "
    "modules first; in forward(), pass training=self.training to F.dropout."
)
