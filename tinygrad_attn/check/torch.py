"""`compare_with_torch`: compare a module with its PyTorch counterpart."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import describe
from ..nn import Module
from ..tree import tree_leaves, tree_map
from .arrays import is_array, numbers_of
from .backend import Array, Backend
from .faults import unrepeatable
from .report import Verdict, deviation, greatest, largest_finite
from .subject import GraphSubject, results_of

Arrays = dict[str, Array]
TOLERANCE = 1e-8  # relative to the largest element, in float64
WHOLE = "(whole)"  # the name of the module's own outputs, before their index


@dataclass(repr=False)
class TorchComparison(Verdict):
    """The result of `compare_with_torch`, which is true if everything agrees and prints as a table.

    `values` and `gradients` have the largest error of each output and of each gradient, relative to
    the largest element, by dotted name. `explanation` describes the likely cause: a wrong VJP, or
    dropout.
    """

    values: dict[str, float]
    gradients: dict[str, float]
    alone: list[str]  # outputs that only one side has
    explanation: str = ""

    @property
    def first(self) -> str | None:
        """The name of the first difference, or None."""
        errors = [*self.values.items(), *self.gradients.items()]
        return next((name for name, error in errors if error > TOLERANCE), None)

    @property
    def ok(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        width = max(map(len, {**self.values, **self.gradients}))
        lines = [
            f"{name:{width}}  {of}  {error:8.1e}  {'ok' if error <= TOLERANCE else 'DIFFERS'}"
            for of, errors in (("value   ", self.values), ("gradient", self.gradients))
            for name, error in errors.items()
        ]
        differs = f"NOT the same as torch; first difference: {self.first}"
        lines.append("the same as torch" if self.ok else differs)
        lines += [f"not compared, because only one side has it: {name}" for name in self.alone]
        return "\n".join(lines + [f"explanation: {self.explanation}"] * bool(self.explanation))


def compare_with_torch(
    module, torch_module, *inputs, verbose: bool = True, **keywords
) -> TorchComparison:
    """Run both modules with the same weights and inputs, and compare outputs and gradients.

    Copies the weights of `torch_module` into `module` with `load_state_dict`, so the names must
    match. Then runs float64 copies of both modules. `inputs` and `keywords` are arrays, Tensors,
    torch tensors or plain values. Compares the outputs of all submodules, and, for random
    cotangents of the module's own outputs, the gradients of all parameters and inputs.

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
    arguments = tree_map(lambda x: numbers_of(x) if is_array(x) else x, (inputs, keywords))
    ours = Side(Backend(), copy.deepcopy(module).astype(np.float64), *arguments)
    theirs = Side(TorchBackend(), copy.deepcopy(torch_module).double(), *arguments)
    report = compared(ours, theirs)
    if verbose:
        print(report)
    return report


class Side:
    """A module of one library: its outputs by name, and a subject that pulls gradients."""

    def __init__(self, backend: Backend, module, inputs, keywords) -> None:
        self.values: Arrays = {}
        self.results: list[str] = []  # the names of the module's own outputs

        def keep(name: str, part, args, output) -> None:
            for k, t in enumerate(tree_leaves(output)):
                full = (name or WHOLE) + f"[{k}]" * (k > 0)
                if isinstance(t, backend.kind) and full not in self.values:  # of the first call
                    self.values[full] = backend.value(t)
                    self.results += [full] * (not name and backend.is_float(t))

        leaf = lambda x: backend.leaf(x) if isinstance(x, Array) else x
        inputs, keywords = tree_map(leaf, (inputs, keywords))
        tensors = dict(module.named_parameters())
        tensors |= {f"input {k}": x for k, x in [*enumerate(inputs), *keywords.items()]}
        wanted = lambda t: backend.is_float(t) and backend.wants_gradient(t)
        tensors = {name: t for name, t in tensors.items() if wanted(t)}
        for name, part in module.named_modules():
            part.register_forward_hook(partial(keep, name))
        call = lambda: module(*inputs, **keywords)
        self.subject = GraphSubject(call, tensors, backend, np.random.default_rng(0))

    def gradients(self, shared: list[str]) -> Arrays:
        """Return the gradients of parameters and inputs, from random cotangents."""
        rngs = {name: np.random.default_rng(k) for k, name in enumerate(shared)}
        shapes = {name: self.values[name].shape for name in self.results}
        cotangents = [
            rngs[name].standard_normal(shape) if name in rngs else np.zeros(shape)
            for name, shape in shapes.items()
        ]
        gradients = results_of(self.subject, [], self.subject.pull(cotangents))
        return dict(zip(self.subject.names, gradients))


def compared(ours: Side, theirs: Side) -> TorchComparison:
    """Compare the values of all outputs and the gradients of all parameters and inputs."""
    shared = [name for name in theirs.results if name in ours.results]
    if not shared or any(np.isnan(theirs.values[name]).all() for name in shared):
        raise ValueError(
            "nothing was compared: torch returns NaN, or the two outputs have no Tensor at the "
            "same position. Pass finite inputs; .numpy() and .data in forward() leave the graph."
        )
    report = TorchComparison(
        differences(ours.values, theirs.values),
        differences(ours.gradients(shared), theirs.gradients(shared)),
        sorted({*ours.results} ^ {*theirs.results}),
    )
    if not report:
        if all(report.values[name] <= TOLERANCE for name in shared):
            report.explanation = DETACHED
        elif unrepeatable(ours.subject) or unrepeatable(theirs.subject):
            report.explanation = DROPOUT
    return report


def differences(came: Arrays, right: Arrays) -> dict[str, float]:
    """Return the largest errors relative to the largest element. NaN agrees with NaN."""
    pairs = {name: (came[name], b) for name, b in right.items() if name in came}
    return {
        name: greatest(deviation(a, b)) / max(1e-6, largest_finite(b))
        if a.shape == b.shape
        else np.inf
        for name, (a, b) in pairs.items()
    }


DETACHED = (
    "the values agree but the gradients do not. Run gradcheck on this module to find the op whose "
    "VJP is wrong, or the use that leaves the graph (detach(), .data, .numpy(), .item(), "
    "Tensor(...), no_grad())."
)
DROPOUT = (
    "dropout left on: two calls to the same module give different results. Call .eval() on both "
    "modules first; in forward(), pass training=self.training to F.dropout."
)
