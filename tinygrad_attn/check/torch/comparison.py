"""`compare_with_torch`: the same weights and inputs, forward and backward, module by module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import numpy as np

from ...engine.autograd import backward, enable_grad
from ...messages.errors import describe, is_module, unmade
from ...messages.signatures import own_names
from ...random import get_rng_state, set_rng_state
from ...tensor import Tensor
from .variations import variations

TOLERANCE = 1e-8
"""Relative to the largest element; both sides compute in float64."""

NO_GRADIENT = "no gradient here"
"""The kind of a row whose tensor gets a gradient in torch and none in ours."""


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


@dataclass
class TorchComparison:
    """The result of `compare_with_torch`: true if all agrees; prints a table by dotted name."""

    rows: list[Row] = field(default_factory=list)
    first: str | None = None
    explanation: str = ""
    notes: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure and bool(self.rows) and all(row.ok for row in self.rows)

    def __bool__(self) -> bool:
        return self.ok

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

    __repr__ = __str__  # at a prompt, where the fields would be pages of arrays

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass
class Run:
    """What one side computed: outputs by module in calling order, then gradients."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)  # of the module outputs
    leaves: dict[str, np.ndarray] = field(default_factory=dict)  # of parameters and inputs
    parameters: set[str] = field(default_factory=set)  # the names of those that ask for a gradient
    # Of the whole, by their place in a tuple, list or dict.
    results: dict[str, np.ndarray] = field(default_factory=dict)


@own_names
def compare_with_torch(
    module: Any, torch_module: Any, *inputs: Any, verbose: bool = True, **keywords: Any
) -> TorchComparison:
    """Run both modules on the same weights and inputs; compare every output and every gradient.

    The weights of `torch_module` are copied into `module` (by name, or where the names differ by
    order and shape).  `inputs` and `keywords` are arrays, Tensors, torch tensors or plain values;
    both sides get them.  Of a module that returns a tuple, list or dict every tensor is compared.
    The comparison runs on float64 copies, the gradient from a random cotangent for each result.
    Prints a table by dotted name unless `verbose=False`, and returns a TorchComparison, true if all
    agree: `.rows`, `.first` (the first module to differ, in calling order), `.explanation` (the
    difference that would account for it, found by trying).  Raises ImportError without torch,
    TypeError for anything but a Module and a torch.nn.Module.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            "compare_with_torch needs torch, which is not installed: pip install "
            '"tinygrad_attn[torch]". '
            "ta.gradcheck checks a module without it."
        ) from None
    if isinstance(module, torch.nn.Module) and hasattr(torch_module, "named_modules"):
        raise TypeError(
            "compare_with_torch takes one of our modules and then a torch.nn.Module; they are the "
            "other way round here."
        )
    if not isinstance(torch_module, torch.nn.Module) or not is_module(module):
        raise TypeError(
            "compare_with_torch(module, torch_module, *inputs) takes one of our modules and then "
            f"a torch.nn.Module, got {describe(module)} and "
            f"{describe(torch_module)}.{unmade(module) or unmade(torch_module)}"
        )
    report = TorchComparison()
    state = get_rng_state()
    try:
        _compare(report, module, torch_module, inputs, keywords)
    finally:
        # A dropout that was left on must not shift the caller's random numbers.
        set_rng_state(state)
    if verbose:
        print(report)
    return report


def _compare(
    report: TorchComparison, module: Any, torch_module: Any, inputs: tuple, keywords: dict[str, Any]
) -> None:
    partners = _copy_weights(module, torch_module, report)
    ours = partial(_run, Ours, module, inputs, keywords, {})
    theirs = partial(_run, Theirs(), torch_module, inputs, keywords, partners)
    try:
        reference = theirs()
    except Exception as failure:
        report.failure = f"the torch module raised {type(failure).__name__}: {failure}"
        return
    try:
        mine = ours()
    except Exception as failure:
        report.failure = f"ours raised {type(failure).__name__}: {failure}"
        return
    shared = mine.results.keys() & reference.results.keys()
    for side, others, run in (("ours", "torch", mine), ("torch", "ours", reference)):
        report.notes += [
            f"{side} returns a tensor{' at ' * bool(path)}{path} where {others} returns none; it "
            "was not compared."
            for path in run.results
            if path not in shared
        ]
    if not shared:
        report.failure = "no tensor stands at the same place of both results."
        return
    if len(shared) < max(len(mine.results), len(reference.results)):
        mine, reference = ours(only=shared), theirs(only=shared)
        theirs = partial(theirs, only=shared)
    _tabulate(report, mine, reference)
    if not report.ok and not report.failure:
        report.first = next((row.name for row in report.rows if row.value > TOLERANCE), None)
        report.first = report.first or next((row.name for row in report.rows if not row.ok), None)
        calm = copy.deepcopy(module).eval(), copy.deepcopy(torch_module).eval()
        evaluated = (
            partial(_run, Ours, calm[0], inputs, keywords, {}, only=shared),
            partial(_run, Theirs(), calm[1], inputs, keywords, partners, only=shared),
        )
        report.explanation = (
            _dropout_left_on(*evaluated, mine, reference, torch_module)
            or _by_trying(mine, reference, theirs, torch_module)
            or _in_the_gradients(report, mine, reference)
        )


# ---- weights


def _copy_weights(
    module: Any, torch_module: Any, report: TorchComparison
) -> dict[str, tuple[str, bool]]:
    """Also returns which weight of ours each of torch's went into, and whether transposed."""
    partners: dict[str, tuple[str, bool]] = {}
    left = {name: t.detach().cpu().numpy() for name, t in torch_module.state_dict().items()}
    own, state = {name: p._data.shape for name, p in module._state()}, {}
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


# ---- running


class Ours:
    """How a module of ours is run."""

    kind: Any = Tensor
    tensor: Any = staticmethod(Tensor._kind)
    backward = staticmethod(backward)

    @staticmethod
    def own_copy(module: Any) -> Any:
        return copy.deepcopy(module).astype(np.float64)

    @staticmethod
    def array(t: Any) -> np.ndarray:
        return np.array(t._data)

    @staticmethod
    @contextmanager
    def looking_on(module: Any, see: Callable[[Any, str, Any], None]) -> Iterator[None]:
        """`see(part, name, result)` for every call of a part; a call gives what it gave."""

        def seeing(part: Any, name: str) -> Callable:
            forward = part.forward

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                found = forward(*args, **kwargs)
                see(part, name, found)
                return found

            return wrapped

        parts = dict(module.named_modules())
        for name, part in parts.items():
            part.forward = seeing(part, name)
        with enable_grad(), np.errstate(all="ignore"):
            try:
                yield
            finally:
                for part in parts.values():
                    del part.forward  # it holds its module: a cycle, and that may be large


class Theirs:
    """How a module of torch's is run."""

    def __init__(self) -> None:
        import torch

        self.torch, self.kind, self.tensor = torch, torch.Tensor, torch.tensor

    def own_copy(self, module: Any) -> Any:
        return copy.deepcopy(module).double()

    def array(self, t: Any) -> np.ndarray:
        return t.detach().numpy().copy()

    def backward(self, roots: list[Any], cotangents: list[np.ndarray]) -> None:
        self.torch.autograd.backward(roots, [self.torch.tensor(c) for c in cotangents])

    @contextmanager
    def looking_on(self, module: Any, see: Callable[[Any, str, Any], None]) -> Iterator[None]:
        def seeing(name: str) -> Callable:
            return lambda part, _, found: see(part, name, found)

        for name, part in module.named_modules():
            part.register_forward_hook(seeing(name))
        with self.torch.random.fork_rng(devices=[]), self.torch.enable_grad():
            yield


def _plain(x: Any) -> Any:
    if isinstance(x, Tensor):
        x = x._data
    elif hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def _tensors(found: Any, kind: type, path: str = "") -> dict[str, Any]:
    """The tensors of a result by their place in it, such as [1] or ['loss']; the first has none."""
    if isinstance(found, kind):
        return {"" if set(path) <= set("[0]") else path: found}
    several = isinstance(found, (tuple, list))
    parts = found.items() if isinstance(found, dict) else enumerate(found) if several else ()
    below = (_tensors(part, kind, f"{path}[{key!r}]") for key, part in parts)
    return {place: t for one in below for place, t in one.items()}


def _cotangent(path: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([7, 0x76, *path.encode()]).standard_normal(shape)


def _run(
    side: Any,
    original: Any,
    inputs: tuple,
    keywords: dict[str, Any],
    partners: dict[str, tuple[str, bool]],
    change: Callable | None = None,
    only: Collection[str] | None = None,
) -> Run:
    """One side, on a copy of the module that `change` may vary first."""
    module, run, held = side.own_copy(original), Run(), dict[str, Any]()

    def given(x: Any) -> Any:
        x = _plain(x)
        arrays = isinstance(x, np.ndarray)
        return side.tensor(x, requires_grad=x.dtype.kind == "f") if arrays else x

    def remember(part: Any, name: str, found: Any) -> None:
        """What a module gave at its first call."""
        name = name or "(whole)"
        if name not in run.kinds:
            run.kinds[name] = type(part).__name__
            for path, out in _tensors(found, side.kind).items():
                if out.requires_grad:
                    out.retain_grad()
                held[name + path], run.kinds[name + path] = out, type(part).__name__

    ours, named = [given(x) for x in inputs], {name: given(x) for name, x in keywords.items()}
    turn = None if change is None else change(module, ours, named)
    with side.looking_on(module, remember):
        found = module(*ours, **named)
        results = {
            path: t if path or turn is None else turn(t)
            for path, t in _tensors(found, side.kind).items()
            if only is None or path in only
        }
        if not results and side is Ours:
            raise TypeError(
                f"forward() returned {describe(found)}, and no Tensor. It must end with return, "
                "and compute with tensor methods or np.* functions; .numpy() and .data leave the "
                "graph."
            )
        run.results = {path: side.array(t) for path, t in results.items()}
        roots = {path: t for path, t in results.items() if t.requires_grad}
        if roots:
            cotangents = [_cotangent(path, tuple(t.shape)) for path, t in roots.items()]
            side.backward(list(roots.values()), cotangents)
    run.values = {name: side.array(t) for name, t in held.items()}
    run.gradients = {name: side.array(t.grad) for name, t in held.items() if t.grad is not None}
    for name, p in module.named_parameters():
        own, turned = partners.get(name, (name, False))
        run.parameters |= {own} if p.requires_grad else set()
        if p.grad is not None:
            run.leaves[own] = side.array(p.grad).T if turned else side.array(p.grad)
    for i, x in enumerate(ours):
        if isinstance(x, side.kind) and x.grad is not None:
            run.leaves[f"input {i}"] = side.array(x.grad)
    return run


# ---- judging


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest error relative to the largest element; NaN on both sides agrees."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    with np.errstate(all="ignore"):
        error = np.where((a == b) | np.isnan(a) & np.isnan(b), 0, np.abs(a - b))
    finite = np.abs(b[np.isfinite(b)])
    return float(np.nan_to_num(error, nan=np.inf).max() / max(1e-6, float(finite.max(initial=0))))


def _tabulate(report: TorchComparison, mine: Run, reference: Run) -> None:
    for name, value in reference.values.items():
        if name in mine.values and not name.startswith("(whole)"):
            row = Row(name, mine.kinds[name], difference(mine.values[name], value))
            if name in mine.gradients and name in reference.gradients:
                row.gradient = difference(mine.gradients[name], reference.gradients[name])
            report.rows.append(row)
    for path, value in reference.results.items():
        report.rows.append(
            Row(f"(whole){path}", mine.kinds["(whole)"], difference(mine.results[path], value))
        )
        unknown = (
            int(np.sum(np.isnan(value) & np.isnan(mine.results[path])))
            if value.shape == mine.results[path].shape
            else 0
        )
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
    for name, gradient in reference.leaves.items():
        if name in mine.leaves:
            report.rows.append(Row(name, "gradient", 0.0, difference(mine.leaves[name], gradient)))
        elif np.abs(gradient).max(initial=0) > 1e-12 and (
            name.startswith("input") or name in mine.parameters
        ):
            report.rows.append(Row(name, NO_GRADIENT, 0.0, float("inf")))


def _dropout_left_on(
    ours: Callable[[], Run],
    theirs: Callable[..., Run],
    mine: Run,
    reference: Run,
    torch_module: Any,
) -> str:
    """Do the two agree once dropout is off, where that changes anything; and if not, why?"""
    try:
        calm, torch_calm, again = ours(), theirs(), ours()
    except Exception:
        return ""
    if _apart(calm, again) > TOLERANCE:
        return (
            "dropout left on in our module, even in evaluation mode: two calls of it differ. Give "
            "F.dropout training=self.training, or use nn.Dropout, and draw no random numbers in "
            "forward()."
        )
    pairs = {"our module": (mine, calm), "the torch module": (reference, torch_calm)}
    sides = [name for name, (loud, silent) in pairs.items() if _apart(loud, silent) > TOLERANCE]
    if not sides:
        return ""
    agree = _apart(calm, torch_calm) <= TOLERANCE
    left = "" if agree else _by_trying(calm, torch_calm, theirs, torch_module)
    rest = "" if agree else f" What is left: {left or 'compare again then.'}"
    return (
        f"dropout left on in {' and '.join(sides)}: in evaluation mode both "
        f"{'agree' if agree else 'differ too'}. Call .eval() on both before comparing; two random "
        f"masks never agree.{rest}"
    )


def _apart(one: Run, other: Run) -> float:
    """The largest difference of results that both have."""
    return max(
        (
            difference(value, other.results[path])
            for path, value in one.results.items()
            if path in other.results
        ),
        default=np.inf,
    )


def _agree_where_finite(a: np.ndarray, b: np.ndarray) -> bool:
    """Torch gives NaN for a row with every key blocked, so the other rows decide."""
    finite = np.isfinite(b)
    return (
        a.shape == b.shape
        and finite.mean() > 0.25
        and difference(a[finite], b[finite]) <= TOLERANCE
    )


def _by_trying(mine: Run, reference: Run, theirs: Callable[..., Run], torch_module: Any) -> str:
    """The variation of the torch module that makes it give our numbers."""
    best = ""
    for text, change in variations(torch_module):
        try:
            varied = theirs(change)
        except Exception:
            continue
        if _apart(varied, reference) <= TOLERANCE:
            continue  # this changes nothing here, so it explains nothing
        if all(
            _agree_where_finite(mine.results[path], value)
            for path, value in varied.results.items()
            if path in mine.results
        ):
            return text
        if not best:
            first = next(
                (
                    n
                    for n, value in reference.values.items()
                    if n in mine.values and difference(mine.values[n], value) > TOLERANCE
                ),
                None,
            )
            if (
                first
                and first in varied.values
                and difference(mine.values[first], varied.values[first]) <= TOLERANCE
            ):
                best = f"in {first!r}: {text}; something further on differs as well"
    return best


def _in_the_gradients(report: TorchComparison, mine: Run, reference: Run) -> str:
    """The values are the same: then a tensor has left the graph, or a rule is wrong."""
    if _apart(mine, reference) > TOLERANCE:
        return ""
    lost = ", ".join(row.name for row in report.rows if row.kind == NO_GRADIENT)
    return "the values agree and the gradients do not: " + (
        f"none reaches {lost}, which leaves the graph on its way through ours. Look for detach(), "
        ".data, .numpy(), .item(), Tensor(...) and no_grad()."
        if lost
        else (
            "run gradcheck on this module, which names the op whose rule is wrong, or the use "
            "that leaves the graph."
        )
    )
