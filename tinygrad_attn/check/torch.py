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
from .trace import Array, Backend

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
    if not isinstance(torch_module, torch.nn.Module) or not hasattr(module, "load_state_dict"):
        raise TypeError(
            "compare_with_torch(module, torch_module, *inputs) takes one of our modules and then "
            f"a torch.nn.Module, got {describe(module)} and {describe(torch_module)}."
        )
    if isinstance(module, torch.nn.Module):
        raise TypeError("compare_with_torch takes one of our modules and then a torch.nn.Module.")
    report, state = TorchComparison(), get_rng_state()
    partners = _copy_weights(module, torch_module, report)
    ours = Side(Backend(), lambda m: m.astype(np.float64), {})
    theirs = Side(TorchBackend(), lambda m: m.double(), partners)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        _compare(
            report, partial(ours.run, inputs, keywords), partial(theirs.run, inputs, keywords),
            module, torch_module,
        )  # fmt: skip
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
            report.notes.append(
                f"torch's {partner!r} was copied into {name!r}: the names differ, the shapes agree."
            )
        turned = value.shape != shape and value.shape == shape[::-1]
        if turned:
            report.notes.append(
                f"weight transposed: {name!r} is {shape} here and {value.shape} in torch; it was "
                "copied transposed. A torch Linear weight is (out, in)."
            )
        state[name], partners[partner] = value.T if turned else value, (name, turned)
    report.notes += [f"torch's {name!r} has no counterpart here." for name in left]
    module.load_state_dict(state, strict=False)
    return partners


# ---- running one side


class Seen(NamedTuple):
    """A value and its gradient."""

    kind: str
    value: Array
    gradient: Array | None


Run = dict[str, Seen]


class Side(NamedTuple):
    """How modules of one library are run."""

    backend: Any
    double: Callable[[Any], Any]
    partners: dict[str, Any]  # our names of its weights, and whether they are transposed

    def run(
        self, inputs: tuple, keywords: dict, original: Any, change: Any = None, only: Any = None
    ) -> Run:
        """Values and gradients of a copy of the module, which `change` may vary first."""
        backend, module = self.backend, self.double(copy.deepcopy(original))
        seen: dict[str, tuple[str, Any]] = {}

        def watched(part: Any, name: str, forward: Callable) -> Callable:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                found = forward(*args, **kwargs)
                for path, t in self.tensors(found).items():
                    seen.setdefault(name + path, (type(part).__name__, t))  # the first call's
                return found

            return wrapped

        given = {k: self.given(x) for k, x in [*enumerate(inputs), *keywords.items()]}
        turn = (change and change(module, given)) or (lambda t: t)
        for name, part in list(module.named_modules()):
            if name:
                part.forward = watched(part, name, part.forward)
        args = [x for k, x in given.items() if isinstance(k, int)]
        with np.errstate(all="ignore"):
            found = module(*args, **{k: x for k, x in given.items() if isinstance(k, str)})
        for name, part in module.named_modules():
            if name:
                del part.forward  # it holds its module: a cycle, and that may be large
        results = {WHOLE + path: turn(t) for path, t in self.tensors(found).items()}
        results = {name: t for name, t in results.items() if only is None or name in only}
        if not results:
            raise TypeError(
                f"forward() returned {describe(found)}, and no Tensor. It must end with return, "
                "and compute with tensor methods or np.* functions; .numpy() and .data leave the "
                "graph."
            )
        seen |= {name: (type(module).__name__, t) for name, t in results.items()}
        named = dict(module.named_parameters())
        weights = {self.partners.get(n, (n, False))[0]: ("gradient", p) for n, p in named.items()}
        arguments = {f"input {i}": ("gradient", x) for i, x in enumerate(args)}
        wanted = {k: (kind, t) for k, (kind, t) in (seen | weights | arguments).items()
                  if isinstance(t, backend.kind) and backend.wants_gradient(t)}  # fmt: skip
        roots = {name: t for name, t in results.items() if backend.wants_gradient(t)}
        slopes: dict[str, Any] = {}
        if roots:
            cotangents = [_cotangent(name, tuple(t.shape)) for name, t in roots.items()]
            tensors = [t for _, t in wanted.values()]
            slopes = dict(zip(wanted, backend.vjp(list(roots.values()), tensors, cotangents)))
        run: Run = {}
        turned = {own for own, transposed in self.partners.values() if transposed}
        for name, (kind, t) in {**seen, **wanted}.items():
            g = slopes.get(name)
            g = None if g is None else np.array(backend.value(g))
            value = np.zeros(0) if kind == "gradient" else np.array(backend.value(t))
            run[name] = Seen(kind, value, g.T if g is not None and name in turned else g)
        return run

    def given(self, x: Any) -> Any:
        """An input or keyword as this side takes it."""
        x = x.detach().cpu() if hasattr(x, "cpu") else x
        x = np.array(x.numpy()) if hasattr(x, "numpy") else x
        if not isinstance(x, Array):
            return x
        floating = x.dtype.kind == "f"
        leaf = self.backend.leaf(x.astype(np.float64) if floating else x, floating)
        return leaf

    def tensors(self, found: Any, path: str = "") -> dict[str, Any]:
        """The tensors of a result by their place in it, such as [1] or ['loss']; the first has
        none."""
        if isinstance(found, self.backend.kind):
            return {"" if set(path) <= set("[0]") else path: found}
        several = isinstance(found, (tuple, list))
        parts = found.items() if isinstance(found, dict) else enumerate(found) if several else ()
        below = (self.tensors(part, f"{path}[{key!r}]") for key, part in parts)
        return {place: t for one in below for place, t in one.items()}


def _cotangent(name: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng([7, 0x76, *name.removeprefix(WHOLE).encode()])
    return np.asarray(rng.standard_normal(shape))


# ---- the two runs


def _compare(
    report: TorchComparison, ours: Callable[..., Run], theirs: Callable[..., Run], module: Any,
    torch_module: Any,
) -> None:  # fmt: skip
    who = "the torch module"
    try:
        expected = theirs(torch_module)
        who = "ours"
        found = ours(module)
    except Exception as failure:
        report.failure = f"{who} raised {type(failure).__name__}: {failure}"
        return
    for side, others, a, b in (
        ("ours", "torch", found, expected),
        ("torch", "ours", expected, found),
    ):
        report.notes += [
            f"{side} returns a tensor at {name.removeprefix(WHOLE) or '[0]'} where {others} "
            "returns none; it was not compared."
            for name in results(a).keys() - results(b).keys()
        ]
    shared = results(found).keys() & results(expected).keys()
    if not shared:
        report.failure = "no tensor stands at the same place of both results."
        return
    if report.notes and len(shared) < max(len(results(found)), len(results(expected))):
        ours, theirs = partial(ours, only=shared), partial(theirs, only=shared)
        found, expected = ours(module), theirs(torch_module)
    _tabulate(report, found, expected)
    if report.ok or report.failure:
        return
    wrong = [row.name for row in report.rows if row.value > TOLERANCE]
    report.first = [*wrong, *(row.name for row in report.rows if not row.ok)][0]
    report.explanation = (
        _dropout_left_on(ours, theirs, module, torch_module, found, expected)
        or _by_trying(found, expected, theirs, torch_module)
        or _in_the_gradients(report, found, expected)
    )


def results(run: Run) -> dict[str, Array]:
    return {name: seen.value for name, seen in run.items() if name.startswith(WHOLE)}


def difference(a: Array | None, b: Array | None) -> float:
    """The largest error relative to the largest element; NaN on both sides agrees."""
    if a is None or b is None:
        return 0.0
    if a.shape != b.shape:
        return float("inf")
    return greatest(deviation(a, b)) / max(1e-6, greatest(b[np.isfinite(b)]))


def apart(one: Run, other: Run) -> bool:
    """Whether a result differs that both have."""
    others = results(other)
    pairs = [(value, others[name]) for name, value in results(one).items() if name in others]
    return max((difference(a, b) for a, b in pairs), default=np.inf) > TOLERANCE


def _tabulate(report: TorchComparison, mine: Run, reference: Run) -> None:
    for name, (kind, value, gradient) in reference.items():
        if (ours := mine.get(name)) is None and kind != "gradient":
            continue
        ours = ours or Seen("gradient", value, None)
        row = Row(name, ours.kind, difference(ours.value, value))
        row.gradient = difference(ours.gradient, gradient)
        if kind == "gradient" and gradient is not None and ours.gradient is None:
            if greatest(gradient) > 1e-12:
                row.kind, row.gradient = "no gradient here", float("inf")
        report.rows.append(row)
    for name, value in results(reference).items():
        other = mine[name].value if name in mine else value
        both = value + other if other.shape == value.shape else value * 0
        unknown, path = int(np.isnan(both).sum()), name.removeprefix(WHOLE)
        if unknown == value.size > 0:
            report.failure = (
                f"every element of the result{path} is NaN, here and in torch: nothing was "
                "compared. Give finite inputs."
            )
        elif unknown:
            report.notes.append(
                f"{unknown} of {value.size} elements of the result{path} are NaN, here and in "
                "torch; these tell nothing."
            )


def _dropout_left_on(
    ours: Callable, theirs: Callable, module: Any, torch_module: Any, mine: Run, reference: Run
) -> str:
    """Whether dropout is on in one of them, and whether they agree without it."""
    own, other = copy.deepcopy(module).eval(), copy.deepcopy(torch_module).eval()
    try:
        calm, torch_calm, again = ours(own), theirs(other), ours(own)
    except Exception:
        return ""
    if apart(calm, again):
        return (
            "dropout left on in our module, even in evaluation mode: two calls of it differ. Give "
            "F.dropout training=self.training, or use nn.Dropout."
        )
    if not apart(mine, calm) and not apart(reference, torch_calm):
        return ""
    if not apart(calm, torch_calm):
        return "dropout left on: in evaluation mode both agree. Call .eval() on both first."
    left = _by_trying(calm, torch_calm, theirs, other) or "compare again then."
    return f"dropout left on; call .eval() on both first. What is left: {left}"


def _by_trying(mine: Run, reference: Run, theirs: Callable, torch_module: Any) -> str:
    """The variation of the torch module that makes it give our numbers."""
    for text, change in variations(torch_module):
        try:
            varied = theirs(torch_module, change)
        except Exception:
            continue
        found = {name: v for name, v in results(varied).items() if name in mine}
        if apart(varied, reference) and found:  # else it changes nothing here
            # Torch gives NaN for a row with every key blocked, so the other rows decide.
            finite = {name: np.isfinite(v) for name, v in found.items()}
            if all(
                mine[name].value.shape == v.shape
                and finite[name].mean() > 0.25
                and difference(mine[name].value[finite[name]], v[finite[name]]) <= TOLERANCE
                for name, v in found.items()
            ):
                return text
    return ""


def _in_the_gradients(report: TorchComparison, mine: Run, reference: Run) -> str:
    """The values are the same: then a tensor has left the graph, or a VJP is wrong."""
    if apart(mine, reference):
        return ""
    lost = ", ".join(row.name for row in report.rows if row.kind == "no gradient here")
    why = (
        f"none reaches {lost}, which leaves the graph on its way through ours. Look for detach(), "
        ".data, .numpy(), .item(), Tensor(...) and no_grad()."
        if lost
        else "run gradcheck on this module, which names the op whose rule is wrong, or the use "
        "that leaves the graph."
    )
    return f"the values agree and the gradients do not: {why}"


# ---- what most often sets two implementations of a layer apart, as changes to a torch module

Change = Callable[[Any, dict[Any, Any]], Any]
"""Changes a module and its arguments in place; what it returns is done to the output."""

ATTENTION = ("MultiheadAttention",)
LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")
NORMS = ("LayerNorm", "RMSNorm")


def parts(act: Callable[[Any], Any], *kinds: str) -> Change:
    """Do something to every submodule of these classes."""

    def change(module: Any, given: dict[Any, Any]) -> None:
        for part in module.modules():
            if any(c.__name__ in kinds for c in type(part).__mro__):
                act(part)

    return change


def setting(name: str, value: Any, *kinds: str) -> Change:
    return parts(lambda part: setattr(part, name, value), *kinds)


def variations(torch_module: Any) -> Iterator[tuple[str, Change]]:
    """(what it means, the change), the simplest first."""
    import torch

    yield (
        "mask inverted: ours reads the boolean masks the other way round. In torch.nn True means "
        "blocked; in scaled_dot_product_attention True means allowed.",
        _masks(lambda mask: ~mask),
    )
    yield "the mask is not applied: ours gives what torch gives without any mask.", _masks(None)
    yield (
        "the boolean mask is added to the scores as 0 and 1; blocked scores must become -inf.",
        _masks(lambda mask: mask.double()),
    )
    yield (
        "batch and sequence swapped: torch has batch_first set the other way. Give both the same "
        "batch_first.",
        _toggle("batch_first", *ATTENTION),
    )
    yield (
        "norm_first differs: one is pre-norm, the other post-norm.",
        _toggle("norm_first", *LAYERS),
    )
    for eps in (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0):
        text = f"eps: ours behaves as with eps={eps:g} in the norm. Give both the same eps."
        yield text, setting("eps", eps, *NORMS)
    yield (
        "biased variance: ours divides the variance in layer norm by n - 1 (unbiased); torch's "
        "LayerNorm divides by n (biased). Use var(ddof=0).",
        parts(_unbiased, "LayerNorm"),
    )
    gelu, silu = torch.nn.functional.gelu, torch.nn.functional.silu
    activations = {
        "GELU variant: ours is the tanh approximation of GELU.": partial(gelu, approximate="tanh"),
        "GELU variant: ours is the exact GELU (erf).": gelu,
        "another activation: ours is relu.": torch.relu,
        "another activation: ours is silu.": silu,
        "the activation is left out: ours passes its input on.": lambda x: x,
    }
    for text, f in activations.items():
        yield text, parts(partial(_activate, f=f), "GELU", "ReLU", "SiLU", *LAYERS)
    yield from _attention()
    yield from _weights(torch_module)


def _masks(change: Callable[[Any], Any] | None) -> Change:
    """Change the boolean masks among the arguments, or take all masks away."""

    def act(module: Any, given: dict[Any, Any]) -> None:
        for key, x in list(given.items()):
            if str(getattr(x, "dtype", "")) == "torch.bool":
                given[key] = change and change(x)
            elif change is None and (key == "is_causal" or "mask" in str(key)):
                del given[key]

    return act


def _toggle(name: str, *kinds: str) -> Change:
    return parts(lambda part: setattr(part, name, not getattr(part, name)), *kinds)


def _unbiased(part: Any) -> None:
    def forward(x: Any) -> Any:
        variance = x.var(dim=-1, keepdim=True, correction=1)
        y = (x - x.mean(dim=-1, keepdim=True)) / (variance + part.eps).sqrt()
        return y * part.weight + part.bias

    part.forward = forward


def _activate(part: Any, f: Callable) -> None:
    setattr(part, "activation" if hasattr(part, "activation") else "forward", f)


def _attention() -> Iterator[tuple[str, Change]]:
    scales = {
        "scale by embed instead of head: ours divides the scores by sqrt(embed_dim) instead of "
        "sqrt(head_dim).": lambda part: math.sqrt(part.head_dim / part.embed_dim),
        "no scale: ours does not divide the scores by sqrt(head_dim).": lambda part: math.sqrt(
            part.head_dim
        ),
        "scale: ours divides the scores by head_dim instead of its square root.": lambda part: (
            1 / math.sqrt(part.head_dim)
        ),
    }
    for text, factor in scales.items():
        yield text, parts(partial(_scale_queries, factor=factor), *ATTENTION)
    yield (
        "heads split in the other order: ours reshapes the width to (head_dim, num_heads) instead "
        "of (num_heads, head_dim).",
        parts(_heads_inside_out, *ATTENTION),
    )
    for heads in (1, 2, 4, 8, 3, 6, 12, 16):
        text = f"number of heads: ours computes with {heads} head{'s' * (heads > 1)}."
        yield text, parts(partial(_heads, heads=heads), *ATTENTION)
    orders = {(1, 0, 2): "query and key", (0, 2, 1): "key and value", (2, 1, 0): "query and value"}
    for order, words in orders.items():
        yield (
            f"projections exchanged: ours takes the weights of {words} for one another. "
            "in_proj_weight holds query, key, value in this order.",
            parts(partial(_thirds, order=order), *ATTENTION),
        )
    for further, text in {
        0: "causal mask: ours looks at earlier positions only; torch got no such mask.",
        1: "causal mask off by one: ours also looks at the next position.",
        -1: "causal mask off by one: ours does not look at the position itself.",
    }.items():
        yield text, partial(_causal, further=further)


def _scale_queries(part: Any, factor: Callable[[Any], float]) -> None:
    """Scaling the queries scales the scores."""
    for p in (part.in_proj_weight, part.in_proj_bias):
        if p is not None:
            p.data[: part.embed_dim] *= factor(part)


def _thirds(part: Any, order: tuple[int, ...] = (0, 1, 2), rows: Any = slice(None)) -> None:
    """Reorder the three parts of the projection, or the rows of each, weights and biases alike."""
    import torch

    for p in (part.in_proj_weight, part.in_proj_bias):
        if p is not None:
            thirds = p.data.chunk(3)
            p.data = torch.cat([thirds[i][rows] for i in order])


def _heads_inside_out(part: Any) -> None:
    """Feature d H + h in the place of h D + d."""
    order = np.arange(part.embed_dim).reshape(part.head_dim, part.num_heads).T.reshape(-1)
    _thirds(part, rows=order)
    part.out_proj.weight.data = part.out_proj.weight.data[:, order]


def _heads(part: Any, heads: int) -> None:
    if part.embed_dim % heads or heads == part.num_heads:
        raise ValueError("this number of heads is not another one that fits")
    part.num_heads, part.head_dim = heads, part.embed_dim // heads


def _causal(module: Any, given: dict[Any, Any], further: int) -> None:
    import torch

    first = next(part for part in module.modules() if hasattr(part, "batch_first"))
    t = given[0].shape[1 if first.batch_first else 0]
    name = "attn_mask" if type(module).__name__ in ATTENTION else "src_mask"
    given[name] = ~torch.ones(t, t, dtype=torch.bool).tril(further)


def _weights(torch_module: Any) -> Iterator[tuple[str, Change]]:
    for name, p in list(torch_module.named_parameters())[:80]:
        if p.ndim == 2 and p.shape[0] in (p.shape[1], 3 * p.shape[1]):
            yield (
                f"weight transposed: ours uses {name!r} transposed. A torch Linear weight is (out, "
                "in): y = x @ weight.T.",
                partial(_edit, name=name, f=_squares_transposed),
            )
        if name.endswith("bias"):
            text = f"bias left out: ours does not add {name!r}."
            yield text, partial(_edit, name=name, f=lambda p: p * 0)


def _edit(module: Any, given: dict[Any, Any], name: str, f: Callable[[Any], Any]) -> None:
    p = dict(module.named_parameters())[name]
    p.data = f(p.data)


def _squares_transposed(p: Any) -> Any:
    import torch

    return torch.cat([square.T for square in p.split(p.shape[1])])
