"""`compare_with_torch`: compare a module with its PyTorch counterpart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from ..nn import Module
from .report import Verdict, deviation, greatest
from .trace import Array, Backend, nested

Arrays = dict[str, Array]
TOLERANCE = 1e-8  # relative to the largest element, in float64
WHOLE = "(whole)"  # the name of the module's own outputs, before their index


@dataclass
class Row:
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
    `explanation` describes the likely cause, such as an inverted mask.
    """

    rows: list[Row]
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
    If outputs differ, tries common variations of the torch module, such as an inverted mask.

    Returns a TorchComparison, which is true if everything agrees, and prints it if `verbose`.
    Raises ImportError without torch, and ValueError if there is nothing to compare.
    """
    try:
        import torch

        from .torch_ops import TorchBackend
    except ImportError:
        text = 'compare_with_torch needs torch: pip install "tinygrad_attn[torch]"'
        raise ImportError(f"{text}. Without torch, use ta.gradcheck.") from None
    if not isinstance(module, Module) or not isinstance(torch_module, torch.nn.Module):
        raise TypeError(
            "compare_with_torch(module, torch_module, *inputs) needs a module of this package and "
            f"then a torch.nn.Module, got {describe(module)} and {describe(torch_module)}."
        )
    module.load_state_dict(torch_module.state_dict())
    given: dict[Any, Any] = {**dict(enumerate(inputs)), **keywords}
    ours = Side(Backend(), copy.deepcopy(module).astype(np.float64), given)
    theirs = Side(TorchBackend(), copy.deepcopy(torch_module).double(), given)
    report = _compare(ours, theirs)
    if verbose:
        print(report)
    return report


class Side(NamedTuple):
    """A module of one library, its backend and its arguments."""

    backend: Any
    module: Any
    given: dict[Any, Any]  # positional arguments by number, keyword arguments by name

    def run(self, change: Any = None) -> dict[str, Any]:
        """Run a copy of the module, which `change` may modify; return its tensors by name."""
        module = copy.deepcopy(self.module)
        given = {key: self.leaf(x) for key, x in self.given.items()}
        if change:
            change(module, given)
        seen: dict[str, Any] = {}

        def seen_in(name: str, part: Any, args: Any, found: Any) -> None:
            for k, t in enumerate(nested(found)):
                if isinstance(t, self.backend.kind):  # only from the first call
                    seen.setdefault(name + f"[{k}]" * (k > 0), t)

        for name, part in module.named_modules():
            part.register_forward_hook(partial(seen_in, name or WHOLE))
        args = [x for key, x in given.items() if isinstance(key, int)]
        module(*args, **{key: x for key, x in given.items() if isinstance(key, str)})
        inputs = {f"input {key}": x for key, x in given.items() if isinstance(x, self.backend.kind)}
        return {**seen, **dict(module.named_parameters()), **inputs}

    def values(self, run: dict[str, Any]) -> Arrays:
        """Return the values of the outputs of a run."""
        return {n: self.backend.value(t) for n, t in run.items() if n.startswith(WHOLE)}

    def gradients(self, run: dict[str, Any], roots: list[str]) -> Arrays:
        """Return the gradients of all tensors, from random cotangents of the outputs `roots`."""
        wanted = {name: t for name, t in run.items() if self.backend.wants_gradient(t)}
        gradients = {name: np.zeros(tuple(t.shape)) for name, t in run.items()}
        ends, cotangents = [], []
        for k, name in enumerate(roots):
            if name in wanted:
                ends.append(run[name])
                cotangents.append(np.random.default_rng(k).standard_normal(gradients[name].shape))
        if ends:
            found = zip(wanted, self.backend.vjp(ends, [*wanted.values()], cotangents))
            gradients |= {name: self.backend.value(g) for name, g in found if g is not None}
        return gradients

    def leaf(self, x: Any) -> Any:
        """Convert an argument to a tensor of this library if it is an array or a tensor."""
        x = x.detach().numpy() if hasattr(x, "detach") else x
        if not isinstance(x, Array):
            return x
        return self.backend.leaf(x.astype(np.float64 if x.dtype.kind == "f" else x.dtype))


def _compare(ours: Side, theirs: Side) -> TorchComparison:
    reference, mine = theirs.run(), ours.run()
    a, b = ours.values(mine), theirs.values(reference)
    shared = [name for name in b if name in a]
    if not shared or any(np.isnan(b[name]).all() for name in shared):
        raise ValueError(
            "nothing was compared: torch returns NaN, or the two outputs have no Tensor at the "
            "same position. Pass finite inputs; .numpy() and .data in forward() leave the graph."
        )
    gradients, expected = ours.gradients(mine, shared), theirs.gradients(reference, shared)
    report = TorchComparison([], alone=tuple(sorted(a.keys() ^ b.keys())))
    for name in filter(mine.__contains__, reference):
        value, other = ours.backend.value(mine[name]), theirs.backend.value(reference[name])
        errors = difference(value, other), difference(gradients[name], expected[name])
        report.rows.append(Row(name, *errors))
    if not report:
        wrong = [row for row in report.rows if not row.ok]
        report.first = max(wrong, key=lambda row: row.value > TOLERANCE).name
        report.explanation = _explained(a, b, ours, theirs)
    return report


def difference(a: Array, b: Array) -> float:
    """Return the largest error relative to the largest element. NaN agrees with NaN."""
    if a.shape != b.shape:
        return np.inf
    return greatest(deviation(a, b)) / max(1e-6, greatest(b[np.isfinite(b)]))


def apart(a: Arrays, b: Arrays) -> bool:
    """Return whether a shared output differs where b is finite."""
    for name in a.keys() & b.keys():
        x, y, known = a[name], b[name], np.isfinite(b[name])
        if x.shape != y.shape or known.mean() <= 0.25 or difference(x[known], y[known]) > TOLERANCE:
            return True
    return False


def _explained(mine: Arrays, reference: Arrays, ours: Side, theirs: Side) -> str:
    """Describe the likely cause of a difference, or return an empty string."""
    if not apart(mine, reference):
        return (
            "the values agree but the gradients do not. Run gradcheck on this module to find the "
            "op whose VJP is wrong, or the use that leaves the graph (detach(), .data, .numpy(), "
            ".item(), Tensor(...), no_grad())."
        )
    if any(apart(side.values(side.run()), side.values(side.run())) for side in (ours, theirs)):
        return (
            "dropout left on: two calls to the same module give different results. Call .eval() on "
            "both modules first; in forward(), pass training=self.training to F.dropout."
        )
    for text, change in variations(theirs.module):
        with suppress(Exception):
            if not apart(mine, theirs.values(theirs.run(change))):
                return text
    return ""


def variations(torch_module: Any) -> Iterator[tuple[str, Callable]]:
    """Yield (text, change) pairs, where `change` modifies a torch module and its arguments."""
    import torch

    text = (
        "mask inverted: our module reads boolean masks the other way round. True means blocked in "
        "torch.nn, but allowed in scaled_dot_product_attention."
    )
    yield text, masks(lambda mask: ~mask)
    text = "the mask is not applied: our module gives the same result as torch without a mask."
    yield text, masks(lambda mask: None)
    for k in (0, 2):
        text = f"causal mask off by one: our mask is np.triu(ones, {k}), not np.triu(ones, 1)."
        yield text, masks(lambda mask: torch.ones_like(mask).triu(k))  # noqa: B023
    for name in ("batch_first", "norm_first"):
        text = f"{name} is set the opposite way in torch. Use the same {name} in both modules."
        yield text, attribute(name, lambda value: not value)
    for eps in (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0):
        text = f"eps: our norm behaves as with eps={eps:g}. Use the same eps in both modules."
        yield text, attribute("eps", lambda _: eps)  # noqa: B023
    text = (
        "GELU: one module uses the tanh approximation, and the other is exact. Use the same "
        "`approximate` in both modules."
    )
    yield text, attribute("approximate", lambda kind: "none" if kind == "tanh" else "tanh")
    for name, p in torch_module.named_parameters():
        if p.ndim == 2 and p.shape[0] == p.shape[1]:
            text = (
                f"weight transposed: our module uses {name!r} transposed. A torch Linear weight "
                "has shape (out, in): y = x @ weight.T."
            )
            weight = {name: p.mT}
            yield text, lambda module, _: module.load_state_dict(weight, strict=False)  # noqa: B023


def masks(f: Callable[[Any], Any]) -> Callable:
    """Return a change that applies f to boolean arguments and to those named after a mask."""
    return lambda module, given: given.update({
        key: f(x)
        for key, x in given.items()
        if "mask" in str(key) or str(getattr(x, "dtype", "")) == "torch.bool"
    })  # fmt: skip


def attribute(name: str, f: Callable[[Any], Any]) -> Callable:
    """Return a change that applies f to this attribute of every submodule that has it."""
    return lambda module, given: [
        part.__setattr__(name, f(getattr(part, name)))
        for part in module.modules()
        if hasattr(part, name)
    ]
