"""`compare_with_torch`: the same weights and inputs, forward and backward, module by module.

Each side runs on a float64 copy of its module (`_run`) and tells what it saw: a value and a
gradient by name, for each submodule in calling order, each result, parameter and input. Two runs
make a table; if they differ, variations of the torch module are tried until one explains it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...engine import enable_grad
from ...engine.backward import backward
from ...messages.errors import describe, is_module, unmade
from ...messages.signatures import own_names
from ...random import get_rng_state, set_rng_state
from ...tensor import Tensor
from ..report import Verdict, deviation, greatest
from .variations import split, variations

TOLERANCE = 1e-8
"""Relative to the largest element; both sides compute in float64."""

NO_GRADIENT = "no gradient here"
"""The kind of a row whose tensor gets a gradient in torch and none in ours."""

WHOLE = "(whole)"
"""What the results of the module itself are called, before their place in a tuple, list or dict."""


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
    """The result of `compare_with_torch`: true if all agrees; prints a table by dotted name."""

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
    import torch

    partners = _copy_weights(module, torch_module, report)
    mine = Side(
        Tensor,
        Tensor._kind,
        backward,
        enable_grad,
        lambda module: module.astype(np.float64),
        {},
    )
    reference = Side(
        torch.Tensor,
        torch.tensor,
        torch.backward.backward,
        _drawing_alike,
        lambda module: module.double(),
        partners,
    )
    ours = partial(_run, mine, inputs, keywords)
    theirs = partial(_run, reference, inputs, keywords)
    who = "the torch module"
    try:
        expected = theirs(torch_module)
        who = "ours"
        found = ours(module)
    except Exception as failure:
        report.failure = f"{who} raised {type(failure).__name__}: {failure}"
        return
    shared = _results(found).keys() & _results(expected).keys()
    for side, others, run in (("ours", "torch", found), ("torch", "ours", expected)):
        paths = [name.removeprefix(WHOLE) for name in _results(run) if name not in shared]
        report.notes += [
            f"{side} returns a tensor{' at ' * bool(path)}{path} where {others} returns none; it "
            "was not compared."
            for path in paths
        ]
    if not shared:
        report.failure = "no tensor stands at the same place of both results."
        return
    if len(shared) < max(len(_results(found)), len(_results(expected))):
        ours, theirs = partial(ours, only=shared), partial(theirs, only=shared)
        found, expected = ours(module), theirs(torch_module)
    _tabulate(report, found, expected)
    if not report.ok and not report.failure:
        wrong = [row.name for row in report.rows if row.value > TOLERANCE]
        report.first = [*wrong, *(row.name for row in report.rows if not row.ok)][0]
        report.explanation = (
            _dropout_left_on(ours, theirs, module, torch_module, found, expected)
            or _by_trying(found, expected, theirs, torch_module)
            or _in_the_gradients(report, found, expected)
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


class Side(NamedTuple):
    """How the modules of one side are run."""

    kind: Any  # the class of its tensors
    tensor: Callable[..., Any]
    backward: Callable[..., Any]
    recording: Callable[[], Any]  # the context in which it runs
    double: Callable[[Any], Any]  # makes a module float64
    partners: dict[str, tuple[str, bool]]  # our names of its weights, and whether transposed


class Seen(NamedTuple):
    """A value and its gradient, as far as they are compared."""

    kind: str
    value: np.ndarray
    gradient: np.ndarray | None


Run = dict[str, Seen]


@contextmanager
def _drawing_alike() -> Iterator[None]:
    """Each run of torch's draws the same random numbers, and the caller's stand still."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        yield


@contextmanager
def _looking_on(module: Any, see: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """`see(part, name, result)` for every call of a submodule; a call gives what it gave."""

    def seeing(part: Any, name: str) -> Callable:
        forward = part.forward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            see(part, name, found)
            return found

        return wrapped

    parts = {name: part for name, part in module.named_modules() if name}
    for name, part in parts.items():
        part.forward = seeing(part, name)
    try:
        yield
    finally:
        for part in parts.values():
            del part.forward  # it holds its module: a cycle, and that may be large


def _array(t: Any) -> np.ndarray:
    return np.array(t._data if isinstance(t, Tensor) else t.detach().cpu().numpy())


def _given(side: Side, x: Any) -> Any:
    """An input or keyword as this side takes it."""
    x = _array(x) if hasattr(x, "detach") else x
    if not isinstance(x, np.ndarray):
        return x
    floating = x.dtype.kind == "f"
    return side.tensor(x.astype(np.float64) if floating else x, requires_grad=floating)


def _tensors(found: Any, kind: type, path: str = "") -> dict[str, Any]:
    """The tensors of a result by their place in it, such as [1] or ['loss']; the first has none."""
    if isinstance(found, kind):
        return {"" if set(path) <= set("[0]") else path: found}
    several = isinstance(found, (tuple, list))
    parts = found.items() if isinstance(found, dict) else enumerate(found) if several else ()
    below = (_tensors(part, kind, f"{path}[{key!r}]") for key, part in parts)
    return {place: t for one in below for place, t in one.items()}


def _run(
    side: Side,
    inputs: tuple,
    keywords: dict[str, Any],
    original: Any,
    change: Callable | None = None,
    only: Collection[str] | None = None,
) -> Run:
    """One side, on a copy of the module that `change` may vary first."""
    module, seen = side.double(copy.deepcopy(original)), dict[str, tuple[str, Any]]()

    def remember(part: Any, name: str, found: Any) -> None:
        """What a submodule gave at its first call."""
        for path, out in _tensors(found, side.kind).items():
            if name + path not in seen:
                if out.requires_grad:
                    out.retain_grad()
                seen[name + path] = type(part).__name__, out

    given = {key: _given(side, x) for key, x in [*enumerate(inputs), *keywords.items()]}
    turn = None if change is None else change(module, given)
    ours, named = split(given)
    with side.recording(), np.errstate(all="ignore"):
        with _looking_on(module, remember):
            found = module(*ours, **named)
        results = {
            WHOLE + path: t if path or turn is None else turn(t)
            for path, t in _tensors(found, side.kind).items()
            if only is None or WHOLE + path in only
        }
        if not results and side.kind is Tensor:
            raise TypeError(
                f"forward() returned {describe(found)}, and no Tensor. It must end with return, "
                "and compute with tensor methods or np.* functions; .numpy() and .data leave the "
                "graph."
            )
        if roots := {name: t for name, t in results.items() if t.requires_grad}:
            cotangents = [side.tensor(_cotangent(name, t.shape)) for name, t in roots.items()]
            side.backward(list(roots.values()), cotangents)
    slope = lambda t: None if t.grad is None else _array(t.grad)
    run = {name: Seen(kind, _array(t), slope(t)) for name, (kind, t) in seen.items()}
    kind, no_value = type(module).__name__, np.zeros(0)
    run |= {name: Seen(kind, _array(t), None) for name, t in results.items()}
    for name, p in module.named_parameters():
        own, turned = side.partners.get(name, (name, False))
        g = slope(p)
        if p.requires_grad:
            run[own] = Seen("gradient", no_value, g if g is None or not turned else g.T)
    return run | {
        f"input {i}": Seen("gradient", no_value, slope(x))
        for i, x in enumerate(ours)
        if isinstance(x, side.kind) and x.requires_grad
    }


def _cotangent(name: str, shape: Any) -> np.ndarray:
    rng = np.random.default_rng([7, 0x76, *name.removeprefix(WHOLE).encode()])
    return rng.standard_normal(tuple(shape))


def _results(run: Run) -> dict[str, np.ndarray]:
    return {name: seen.value for name, seen in run.items() if name.startswith(WHOLE)}


# ---- judging


def difference(a: np.ndarray | None, b: np.ndarray | None) -> float:
    """The largest error relative to the largest element; NaN on both sides agrees."""
    if a is None or b is None:
        return 0.0
    if a.shape != b.shape:
        return float("inf")
    return greatest(deviation(a, b)) / max(1e-6, greatest(b[np.isfinite(b)]))


def _tabulate(report: TorchComparison, mine: Run, reference: Run) -> None:
    for name, (kind, value, gradient) in reference.items():
        if (ours := mine.get(name)) is None:
            continue
        row = Row(name, ours.kind, difference(ours.value, value))
        row.gradient = difference(ours.gradient, gradient)
        if kind == "gradient" and gradient is not None and ours.gradient is None:
            if greatest(gradient) > 1e-12:
                row.kind, row.gradient = NO_GRADIENT, float("inf")
        report.rows.append(row)
    for name, value in _results(reference).items():
        ours_, path = mine[name].value, name.removeprefix(WHOLE)
        unknown = int(np.isnan(value + ours_).sum()) if value.shape == ours_.shape else 0
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
    ours: Callable[..., Run],
    theirs: Callable[..., Run],
    module: Any,
    torch_module: Any,
    mine: Run,
    reference: Run,
) -> str:
    """Do the two agree once dropout is off, where that changes anything; and if not, why?"""
    own, other = copy.deepcopy(module).eval(), copy.deepcopy(torch_module).eval()
    try:
        calm, torch_calm, again = ours(own), theirs(other), ours(own)
    except Exception:
        return ""
    if _apart(calm, again):
        return (
            "dropout left on in our module, even in evaluation mode: two calls of it differ. Give "
            "F.dropout training=self.training, or use nn.Dropout, and draw no random numbers in "
            "forward()."
        )
    pairs = {"our module": (mine, calm), "the torch module": (reference, torch_calm)}
    sides = [name for name, (loud, silent) in pairs.items() if _apart(loud, silent)]
    if not sides:
        return ""
    text = f"dropout left on in {' and '.join(sides)}: in evaluation mode both "
    advice = "Call .eval() on both before comparing; two random masks never agree."
    if not _apart(calm, torch_calm):
        return f"{text}agree. {advice}"
    left = _by_trying(calm, torch_calm, theirs, other) or "compare again then."
    return f"{text}differ too. {advice} What is left: {left}"


def _apart(one: Run, other: Run) -> bool:
    """Does a result differ that both have?"""
    others = _results(other)
    pairs = [(value, others[name]) for name, value in _results(one).items() if name in others]
    return max((difference(a, b) for a, b in pairs), default=np.inf) > TOLERANCE


def _agree_where_finite(a: np.ndarray, b: np.ndarray) -> bool:
    """Torch gives NaN for a row with every key blocked, so the other rows decide."""
    finite = np.isfinite(b)
    same_shape = a.shape == b.shape and finite.mean() > 0.25
    return bool(same_shape and difference(a[finite], b[finite]) <= TOLERANCE)


def _by_trying(mine: Run, reference: Run, theirs: Callable[..., Run], torch_module: Any) -> str:
    """The variation of the torch module that makes it give our numbers."""
    off = (
        n
        for n, r in reference.items()
        if n in mine and difference(mine[n].value, r.value) > TOLERANCE
    )
    best, first = "", next(off, WHOLE)
    for text, change in variations(torch_module):
        try:
            varied = theirs(torch_module, change)
        except Exception:
            continue
        if not _apart(varied, reference):
            continue  # this changes nothing here, so it explains nothing
        results = _results(varied)
        if all(
            _agree_where_finite(mine[name].value, v) for name, v in results.items() if name in mine
        ):
            return text
        if not best and first in varied and first not in results:
            if difference(mine[first].value, varied[first].value) <= TOLERANCE:
                best = f"in {first!r}: {text}; something further on differs as well"
    return best


def _in_the_gradients(report: TorchComparison, mine: Run, reference: Run) -> str:
    """The values are the same: then a tensor has left the graph, or a rule is wrong."""
    if _apart(mine, reference):
        return ""
    lost = ", ".join(row.name for row in report.rows if row.kind == NO_GRADIENT)
    why = (
        f"none reaches {lost}, which leaves the graph on its way through ours. Look for detach(), "
        ".data, .numpy(), .item(), Tensor(...) and no_grad()."
        if lost
        else (
            "run gradcheck on this module, which names the op whose rule is wrong, or the use "
            "that leaves the graph."
        )
    )
    return f"the values agree and the gradients do not: {why}"
