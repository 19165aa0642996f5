"""`compare_with_torch`: the same weights and inputs, forward and backward, module by module.

Each side runs on a float64 copy of its module and gives a value and a gradient for each submodule,
result, parameter and input. If they differ, variations of the torch module are tried until one
gives our numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import describe
from ..random import get_rng_state, set_rng_state
from .report import Verdict, deviation, greatest
from .trace import Array, Backend, nested

TOLERANCE = 1e-8
"""Relative to the largest element; both sides compute in float64."""

WHOLE = "(whole)"
"""The name of the results of the module itself, before their place in a tuple, list or dict."""


@dataclass
class Row:
    """The largest error of a value and of its gradient, over the largest element."""

    name: str
    kind: str
    value: float = 0.0
    gradient: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether both agree."""
        return self.value <= TOLERANCE and self.gradient <= TOLERANCE


@dataclass(repr=False)
class TorchComparison(Verdict):
    """The result of `compare_with_torch`: true if all agrees; prints a table by dotted name.

    `rows` are the lines of the table, `first` the first module that differs, in calling order, and
    `explanation` a change of the torch module that makes it give our numbers.
    """

    rows: list[Row] = field(default_factory=list)
    first: str | None = None
    explanation: str = ""
    notes: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether all rows agree."""
        return not self.failure and bool(self.rows) and all(row.ok for row in self.rows)

    def __str__(self) -> str:
        width = max([4, *(len(row.name) for row in self.rows)])
        lines = [f"{'name':{width}}  {'what':24}  value     gradient"]
        lines += [
            f"{row.name:{width}}  {row.kind:24}  {row.value:8.1e}  {row.gradient:8.1e}  "
            f"{'ok' if row.ok else 'DIFFERS'}"
            for row in self.rows
        ]
        if self.failure:
            lines.append(f"could not be compared: {self.failure}")
        where = f"; the first to differ: {self.first}" if self.first else ""
        lines.append("the same as torch" if self.ok else f"NOT the same as torch{where}")
        if self.explanation:
            lines.append(f"explanation: {self.explanation}")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


def compare_with_torch(
    module: Any, torch_module: Any, *inputs: Any, verbose: bool = True, **keywords: Any
) -> TorchComparison:
    """Run both modules on the same weights and inputs; compare every output and every gradient.

    The weights of `torch_module` are copied into `module`, by name, or by order and shape where the
    names differ. `inputs` and `keywords` are arrays, Tensors, torch tensors or plain values. Of a
    module that returns a tuple, list or dict every tensor is compared. The gradients start from a
    random cotangent for each result.

    Prints a table by dotted name unless `verbose=False`, and returns a TorchComparison, true if all
    agree. Raises ImportError without torch, TypeError for anything but a Module and a
    torch.nn.Module.
    """
    try:
        import torch

        from .torch_ops import TorchBackend
    except ImportError:
        raise ImportError(
            'compare_with_torch needs torch: pip install "tinygrad_attn[torch]". ta.gradcheck '
            "checks a module without it."
        ) from None
    kinds = [isinstance(m, torch.nn.Module) for m in (module, torch_module)]
    if kinds != [False, True]:
        raise TypeError(
            "compare_with_torch(module, torch_module, *inputs) takes one of our modules and then "
            f"a torch.nn.Module, got {describe(module)} and {describe(torch_module)}."
        )
    report, state = TorchComparison(), get_rng_state()
    partners = _copy_weights(module, torch_module, report)
    given: dict[Any, Any] = {**dict(enumerate(inputs)), **keywords}
    ours = Side(Backend(), lambda m: m.astype(np.float64), module, given)
    theirs = Side(TorchBackend(), lambda m: m.double(), torch_module, given, partners)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), np.errstate(all="ignore"):
        _compare(report, ours, theirs)
    set_rng_state(state)
    if verbose:
        print(report)
    return report


def _copy_weights(module: Any, torch_module: Any, report: TorchComparison) -> dict[str, Any]:
    """Also return which weight of ours each of torch's went into, and whether transposed."""
    left = {name: t.detach().cpu().numpy() for name, t in torch_module.state_dict().items()}
    own = {name: v.shape for name, v in module.state_dict().items()}
    partners, state = {}, {}
    for name, shape in own.items():
        fits = (n for n, v in left.items() if n not in own and v.shape in (shape, shape[::-1]))
        partner = name if name in left else next(fits, None)
        if partner is None:
            report.notes.append(f"{name!r} has no counterpart in torch and keeps its value.")
            continue
        value = left.pop(partner)
        if partner != name:
            report.notes.append(f"torch's {partner!r} was copied into {name!r}, by its shape.")
        if turned := value.shape == shape[::-1] != shape:
            report.notes.append(
                f"weight transposed: {name!r} is {shape} here and {value.shape} in torch; it was "
                "copied transposed. A torch Linear weight is (out, in)."
            )
        state[name], partners[partner] = value.T if turned else value, (name, turned)
    report.notes += [f"torch's {name!r} has no counterpart here." for name in left]
    module.load_state_dict(state, strict=False)
    return partners


# ---- running one side

Run = dict[str, tuple[str, Any]]
"""(kind, tensor) by name: of submodules in calling order, results, weights and inputs."""


class Side(NamedTuple):
    """A module of one library, and how it is run."""

    backend: Any
    double: Callable[[Any], Any]
    original: Any
    given: dict[Any, Any]  # positional arguments by number, keyword arguments by name
    partners: dict[str, Any] = {}  # our names of its weights, and whether they are transposed

    def run(self, change: Any = None) -> Run:
        """Run a copy of the module, which `change` may vary first."""
        module = self.double(copy.deepcopy(self.original))
        given = {key: self.leaf(x) for key, x in self.given.items()}
        if change:
            change(module, given)
        seen: Run = {}

        def watched(name: str, part: Any, forward: Callable, *args: Any, **keywords: Any) -> Any:
            found = forward(*args, **keywords)
            for path, t in self.tensors(found).items():
                seen.setdefault(name + path, (type(part).__name__, t))  # the first call's
            return found

        for name, part in list(module.named_modules()):
            part.forward = partial(watched, name or WHOLE, part, part.forward)
        args = [x for key, x in given.items() if isinstance(key, int)]
        found = module(*args, **{key: x for key, x in given.items() if isinstance(key, str)})
        if not self.tensors(found):
            raise TypeError(
                f"forward() returned {describe(found)}, and no Tensor. It must end with return, "
                "and compute with tensor methods or np.* functions; .numpy() and .data leave the "
                "graph."
            )
        leaves = {self.partners.get(n, (n,))[0]: p for n, p in module.named_parameters()}
        leaves |= {f"input {i}": x for i, x in enumerate(args)}
        return seen | {name: ("gradient", t) for name, t in leaves.items()}

    def values(self, run: Run) -> dict[str, Array]:
        """The values of the results of the whole module."""
        whole = {name: t for name, (_, t) in run.items() if name.startswith(WHOLE)}
        return {name: np.array(self.backend.value(t)) for name, t in whole.items()}

    def gradients(self, run: Run, roots: list[str]) -> dict[str, Array]:
        """The gradients of everything, from random cotangents for these results."""
        wants = lambda t: isinstance(t, self.backend.kind) and self.backend.wants_gradient(t)
        wanted = {name: t for name, (_, t) in run.items() if wants(t)}
        outputs = {name: wanted[name] for name in roots if name in wanted}
        draw = lambda name: np.random.default_rng([7, *name.encode()]).standard_normal
        cotangents = [draw(name)(tuple(t.shape)) for name, t in outputs.items()]
        if not outputs:
            return {}
        found = self.backend.vjp(list(outputs.values()), list(wanted.values()), cotangents)
        turned = {own for own, transposed in self.partners.values() if transposed}
        slopes = {
            n: np.array(self.backend.value(g)) for n, g in zip(wanted, found) if g is not None
        }
        return {name: g.T if name in turned else g for name, g in slopes.items()}

    def leaf(self, x: Any) -> Any:
        """An input or keyword as this side takes it."""
        x = x.detach().cpu() if hasattr(x, "cpu") else x
        x = np.array(x.numpy()) if hasattr(x, "numpy") else x
        if not isinstance(x, Array):
            return x
        return self.backend.leaf(x.astype(np.float64) if x.dtype.kind == "f" else x)

    def tensors(self, found: Any) -> dict[str, Any]:
        """The tensors of a result, by their number such as [1]; the first has none."""
        numbered = enumerate(nested(found))
        return {f"[{k}]" * (k > 0): t for k, t in numbered if isinstance(t, self.backend.kind)}


# ---- the two runs


def _compare(report: TorchComparison, ours: Side, theirs: Side) -> None:
    who = "the torch module"
    try:
        reference = theirs.run()
        who = "ours"
        mine = ours.run()
    except Exception as failure:
        report.failure = f"{who} raised {type(failure).__name__}: {failure}"
        return
    a, b = ours.values(mine), theirs.values(reference)
    for side, other, names in (("ours", "torch", a.keys() - b), ("torch", "ours", b.keys() - a)):
        report.notes += [
            f"{side} returns a tensor at {name.removeprefix(WHOLE) or '[0]'} where {other} "
            "returns none; it was not compared."
            for name in names
        ]
    shared = [name for name in b if name in a]
    if not shared or any(np.isnan(a[name]).all() and np.isnan(b[name]).all() for name in shared):
        report.failure = (
            "nothing was compared: no tensor is at the same place of both results, or one is NaN "
            "everywhere. Give finite inputs."
        )
        return
    slopes, expected = ours.gradients(mine, shared), theirs.gradients(reference, shared)
    for name in filter(mine.__contains__, reference):
        kind, t = reference[name]
        row = Row(name, kind)
        if kind != "gradient":
            row.value = difference(ours.backend.value(mine[name][1]), theirs.backend.value(t))
        if name in slopes and name in expected:
            row.gradient = difference(slopes[name], expected[name])
        elif kind == "gradient" and greatest(expected.get(name, np.zeros(0))) > 1e-12:
            row.kind, row.gradient = "no gradient here", math.inf
        if kind != "gradient" or name in expected:
            report.rows.append(row)
    if not report.ok:
        wrong = [row.name for row in report.rows if row.value > TOLERANCE]
        report.first = [*wrong, *(row.name for row in report.rows if not row.ok)][0]
        if apart(a, b):
            report.explanation = _dropout(ours, theirs) or _by_trying(a, b, theirs)
        else:
            report.explanation = _of_the_gradients(report)


def difference(a: Array, b: Array) -> float:
    """The largest error relative to the largest element; NaN on both sides agrees."""
    if a.shape != b.shape:
        return math.inf
    return greatest(deviation(a, b)) / max(1e-6, greatest(b[np.isfinite(b)]))


def apart(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Whether a result differs that both have; NaN in b, as torch has for blocked rows, is left
    out.
    """
    for name, value in b.items():
        if name in a:
            known = np.isfinite(value)
            if a[name].shape != value.shape or known.mean() <= 0.25:
                return True
            if difference(a[name][known], value[known]) > TOLERANCE:
                return True
    return False


def _dropout(ours: Side, theirs: Side) -> str:
    """Whether dropout is on in one of them, or cannot be switched off in ours."""
    runs = lambda side: side.values(side.run())
    calm = [side._replace(original=copy.deepcopy(side.original).eval()) for side in (ours, theirs)]
    if apart(runs(calm[0]), runs(calm[0])):
        return (
            "dropout left on in our module, even in evaluation mode: two calls of it differ. Give "
            "F.dropout training=self.training, or use nn.Dropout."
        )
    if any(apart(runs(side), runs(quiet)) for side, quiet in zip((ours, theirs), calm)):
        return "dropout left on. Call .eval() on both first."
    return ""


def _by_trying(mine: dict[str, Array], reference: dict[str, Array], theirs: Side) -> str:
    """The variation of the torch module that makes it give our numbers."""
    for text, change in variations(theirs.original):
        try:
            varied = theirs.values(theirs.run(change))
        except Exception:
            continue
        if apart(varied, reference) and not apart(mine, varied):  # else it changes nothing here
            return text
    return ""


def _of_the_gradients(report: TorchComparison) -> str:
    """The values are the same: then a tensor has left the graph, or a VJP is wrong."""
    lost = ", ".join(row.name for row in report.rows if row.kind == "no gradient here")
    why = (
        f"none reaches {lost}, which leaves the graph on its way through ours. Look for detach(), "
        ".data, .numpy(), .item(), Tensor(...) and no_grad()."
        if lost
        else "run gradcheck on this module, which names the op whose VJP is wrong, or the use "
        "that leaves the graph."
    )
    return f"the values agree and the gradients do not: {why}"


# ---- what most often sets two implementations of a layer apart, as changes to a torch module

Change = Callable[[Any, dict[Any, Any]], Any]
"""Changes a module and its arguments in place."""

ATTENTION = ("MultiheadAttention",)
LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")


def parts(kinds: tuple[str, ...], act: Callable[..., Any], *args: Any) -> Change:
    """Do something to every submodule of these classes."""

    def change(module: Any, given: dict[Any, Any]) -> None:
        for part in module.modules():
            if type(part).__name__ in kinds:
                act(part, *args)

    return change


def variations(torch_module: Any) -> Iterator[tuple[str, Change]]:
    """(what it means, the change), the simplest first."""
    import torch

    yield (
        "mask inverted: ours reads the boolean masks the other way round. In torch.nn True means "
        "blocked; in scaled_dot_product_attention True means allowed.",
        lambda module, given: given.update({k: ~x for k, x in given.items() if _is_mask(x)}),
    )
    yield (
        "the mask is not applied: ours gives what torch gives without any mask.",
        lambda module, given: given.update({
            k: None for k, x in given.items() if _is_mask(x) or "mask" in str(k)
        }),
    )  # fmt: skip
    yield (
        "batch and sequence swapped: torch has batch_first set the other way. Give both the same "
        "batch_first.",
        parts(ATTENTION, _toggle, "batch_first"),
    )
    yield (
        "norm_first differs: one is pre-norm, the other post-norm.",
        parts(LAYERS, _toggle, "norm_first"),
    )
    for eps in (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0):
        text = f"eps: ours behaves as with eps={eps:g} in the norm. Give both the same eps."
        yield text, parts(("LayerNorm", "RMSNorm"), setattr, "eps", eps)
    yield (
        "biased variance: ours divides the variance in layer norm by n - 1 (unbiased); torch's "
        "LayerNorm divides by n (biased). Use var(ddof=0).",
        parts(("LayerNorm",), _unbiased),
    )
    gelu = torch.nn.functional.gelu
    activations = {
        "the tanh approximation of GELU": partial(gelu, approximate="tanh"),
        "the exact GELU (erf)": gelu,
        "relu": torch.relu,
    }
    for name, f in activations.items():
        text = f"another activation: ours is {name}."
        yield text, parts(("GELU", "ReLU"), setattr, "forward", f)
        yield text, parts(LAYERS, setattr, "activation", f)
    yield from _attention()
    for name, p in torch_module.named_parameters():
        if p.ndim == 2 and p.shape[0] in (p.shape[1], 3 * p.shape[1]):
            yield (
                f"weight transposed: ours uses {name!r} transposed. A torch Linear weight is (out, "
                "in): y = x @ weight.T.",
                partial(_transpose, name=name),
            )


def _is_mask(x: Any) -> bool:
    return str(getattr(x, "dtype", "")) == "torch.bool"


def _toggle(part: Any, name: str) -> None:
    setattr(part, name, not getattr(part, name))


def _unbiased(part: Any) -> None:
    def forward(x: Any) -> Any:
        variance = x.var(dim=-1, keepdim=True, correction=1)
        y = (x - x.mean(dim=-1, keepdim=True)) / (variance + part.eps).sqrt()
        return y * part.weight + part.bias

    part.forward = forward


def _transpose(module: Any, given: dict[Any, Any], name: str) -> None:
    p = dict(module.named_parameters())[name]
    p.data = p.data.reshape(-1, p.shape[1], p.shape[1]).mT.reshape(p.shape)


def _attention() -> Iterator[tuple[str, Change]]:
    yield (
        "scale by embed instead of head: ours divides the scores by sqrt(embed_dim) instead of "
        "sqrt(head_dim).",
        parts(ATTENTION, lambda part: _scale(part, part.num_heads**-0.5)),
    )
    yield (
        "no scale: ours does not divide the scores by sqrt(head_dim).",
        parts(ATTENTION, lambda part: _scale(part, part.head_dim**0.5)),
    )
    yield (
        "heads split in the other order: ours reshapes the width to (head_dim, num_heads) instead "
        "of (num_heads, head_dim).",
        parts(ATTENTION, _heads_inside_out),
    )
    orders = {(1, 0, 2): "query and key", (0, 2, 1): "key and value", (2, 1, 0): "query and value"}
    for order, words in orders.items():
        yield (
            f"projections exchanged: ours takes the weights of {words} for one another. "
            "in_proj_weight holds query, key, value in this order.",
            parts(ATTENTION, _thirds, order),
        )
    for further, text in {
        0: "causal mask: ours looks at earlier positions only; torch got no such mask.",
        1: "causal mask off by one: ours also looks at the next position.",
        -1: "causal mask off by one: ours does not look at the position itself.",
    }.items():
        yield text, partial(_causal, further=further)


def _scale(part: Any, factor: float) -> None:
    """Scaling the queries scales the scores."""
    for p in (part.in_proj_weight, part.in_proj_bias):
        p.data[: part.embed_dim] *= factor


def _thirds(part: Any, order: tuple[int, ...], rows: Any = slice(None)) -> None:
    """Reorder the three parts of the projection, or the rows of each, weights and biases alike."""
    for p in (part.in_proj_weight, part.in_proj_bias):
        thirds = p.data.reshape(3, part.embed_dim, *p.shape[1:])
        p.data = thirds[list(order)][:, rows].reshape(p.shape)


def _heads_inside_out(part: Any) -> None:
    """Feature d H + h in the place of h D + d."""
    order = np.arange(part.embed_dim).reshape(part.head_dim, part.num_heads).T.reshape(-1)
    _thirds(part, (0, 1, 2), order)
    part.out_proj.weight.data = part.out_proj.weight.data[:, order]


def _causal(module: Any, given: dict[Any, Any], further: int) -> None:
    first = next(part for part in module.modules() if hasattr(part, "batch_first"))
    t = given[0].shape[1 if first.batch_first else 0]
    name = "attn_mask" if type(module).__name__ in ATTENTION else "src_mask"
    given[name] = ~given[0].new_ones(t, t).bool().tril(further)
