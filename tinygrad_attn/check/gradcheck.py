"""`gradcheck`: compare gradients with finite differences, and find the op that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..engine import tracked
from ..errors import describe
from ..tree import tree_leaves
from . import faults
from .arrays import dtype_name, is_array
from .backend import Array, Backend, backend_of
from .causes import how
from .circumstances import shortened, wrong_elsewhere
from .explain import Finding, of_elements, off_entries, places, wrong_slope
from .faults import accuse, alike, outcome, scaled
from .kernel import Kernel, is_float, reference_of
from .measure import SMALL, Limits, all_entries
from .report import Diagnosis, Report, largest_finite, worst_of, wrong_among
from .rounding import UNIT
from .state import restored
from .subject import GraphSubject, flatten


class GradcheckError(AssertionError):
    """Raised by `gradcheck` for a wrong gradient; `.report` is the Report."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def gradcheck(
    f,
    inputs=(),
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    order: int = 1,
    fast_mode: bool = False,
    params=None,
    seed: int = 0,
    vjp=None,
    reference: Callable[..., Any] | None = None,
    dtype: str | None = None,
) -> Report:
    """Compare the gradient of sum(v * f(inputs)), for random v, with finite differences.

    `f` is a function or a Module that returns a Tensor or a tuple of Tensors. `inputs` is a Tensor,
    or a sequence of Tensors, arrays and other arguments. `params` are other tensors that f depends
    on, by default a Module's parameters. The check covers `params`, float64 arrays, and the Tensors
    that require a gradient. If no Tensor requires a gradient, it covers all floating-point Tensors.
    Given torch tensors or a torch.nn.Module, it checks PyTorch's gradients.

    An element is wrong if |analytic - numeric| > atol + rtol |numeric|, where `atol` is reduced for
    gradients below 1. If an element is wrong at step `eps`, or rounding hides its slope, the
    element is measured again by extrapolation to step 0. Inputs with more than 512 elements are
    measured in 512 random projections. With `fast_mode`, every input is measured in 2 random
    projections. `order=2` also checks the gradient of the gradient.

    The check also requires that f is deterministic, leaves its inputs unchanged and keeps no state.
    VJPs must be linear in g. Infinite outputs are left out.

    For functions on arrays of any library, `vjp` is the backward pass: `backward(g, y, *inputs)`
    returns the gradients. It may also be a pair `(forward, backward)`, where `forward(*inputs)`
    returns (y, residuals) and `backward(residuals, g)` the gradients, or `jax.vjp`. With `dtype`
    ("float32", "float16" or "bfloat16"), f runs in that precision, and its results and gradients
    are compared with those of `reference`, a plain function of NumPy, torch or JAX, as far as
    rounding allows. Without a reference, f itself in float64 is the reference.

    Returns a Report, which is true if all gradients are right. If not, raises GradcheckError unless
    `raise_exception` is False. Raises TypeError for float32.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 (the gradient) or 2 (its gradient too), got {order!r}.")
    limits = Limits(eps, atol, rtol, 2 if fast_mode else SMALL)
    if vjp is None and reference is None and dtype is None:
        report = _check_graph(f, inputs, params, order, limits, seed)
    else:
        report = _check_kernel(f, inputs, vjp, reference, dtype, limits, seed)
    if raise_exception and not report:
        raise GradcheckError(report)
    return report


def _check_graph(f, inputs, params, order: int, limits: Limits, seed: int) -> Report:
    """Check a function of tensors, which are differentiated by their own library."""
    backend = _backend(f, inputs, params)
    arguments, tensors = _collect(f, inputs, params, backend)
    rng = np.random.default_rng([seed, 0x76])  # not the caller's default_rng(seed)
    with restored(backend, f, arguments, tensors), backend.recording(), np.errstate(all="ignore"):
        for t in tensors.values():
            backend.track(t, True)
        subject = GraphSubject(lambda: f(*arguments), tensors, backend, rng)
        report = _check(subject, limits)
        if order == 2 and report:
            report = _check_gradient(subject, limits, report)
    return report


def _check_kernel(
    f, inputs, vjp, reference, dtype: str | None, limits: Limits, seed: int
) -> Report:
    """Check a function on arrays of any library, in any precision."""
    like = [inputs] if is_array(inputs) else list(inputs)
    floats = [dtype_name(x) for x in like if is_float(x)]
    if not floats:
        raise ValueError("there is nothing to check: pass arrays of floats as inputs.")
    dtype = dtype or max(floats, key=lambda name: UNIT[name])
    if dtype not in UNIT:
        raise ValueError(f"dtype must be one of {', '.join(UNIT)}, got {dtype!r}.")
    kernel = partial(Kernel, f, vjp, like, seed=seed)
    with np.errstate(all="ignore"):
        if reference is not None:
            make = reference_of(reference, like, kernel(dtype).values)
            return _check(kernel(dtype, make), limits)
        exact = None
        with suppress(Exception):
            exact = kernel("float64")
        if exact is None or not exact.is_exact:
            raise TypeError(
                f"precision too low: f does not compute in float64, and in {dtype} rounding errors "
                "would hide a wrong gradient. Pass reference=, a plain function of NumPy or torch."
            )
        report = _check(exact, limits)
        if dtype == "float64" or not report:
            return report
        return _check(kernel(dtype, exact.replaced), limits)


def gradgradcheck(f, inputs=(), **options) -> Report:
    """Check the gradient and the gradient of the gradient, like `gradcheck` with order=2."""
    return gradcheck(f, inputs, order=2, **options)


def _backend(f, inputs, params) -> Backend:
    torch: Any = sys.modules.get("torch")
    objects = [f, *tree_leaves([inputs, params])]
    kinds = (torch.Tensor, torch.nn.Module) if torch else ()
    return backend_of(any(isinstance(t, kinds) for t in objects))


def _collect(f, inputs, params, backend: Backend):
    """Return the arguments for f, and a dict from names to the tensors to check.

    These are the inputs that require a gradient (all if none does), and the parameters.
    """
    inputs = [inputs] if isinstance(inputs, (backend.kind, Array)) else inputs
    arguments = [
        backend.leaf(a.copy()) if isinstance(a, Array) and a.dtype.kind in "fc" else a
        for a in inputs
    ]
    leaves = [
        (f"input {i}" + f", leaf {k}" * (t is not a), t)
        for i, a in enumerate(arguments)
        for k, t in enumerate(tree_leaves(a))
        if backend.is_float(t)
    ]
    named = [leaf for leaf in leaves if backend.wants_gradient(leaf[1])] or leaves
    if params is None:
        pairs = f.named_parameters() if hasattr(f, "named_parameters") else []
        params = {name: p for name, p in pairs if p.requires_grad}
    params = [params] if hasattr(params, "shape") else params
    pairs = params.items() if isinstance(params, dict) else enumerate(params)
    named += [(f"parameter {name!r}", p) for name, p in pairs]
    checked: dict[int, tuple[str, Any]] = {}  # a tensor given twice is checked once
    for name, t in named:
        if not isinstance(t, backend.kind):
            raise TypeError(f"{name} must be a Tensor, got {describe(t)}.")
        if backend.dtype(t) != np.float64:
            raise TypeError(
                f"precision too low: {name} is {describe(t)}. Finite differences need float64: "
                f"rounding errors in {t.dtype} would hide a wrong gradient. Write {backend.double}."
            )
        is_complex = "complex" in str(t.dtype)
        checked.setdefault(id(t), (name + " (real, imaginary)" * is_complex, t))
    if not named:
        raise ValueError("there is nothing to check: pass Tensors of floats as inputs or params=.")
    return arguments, dict(checked.values())


def _check(subject, limits: Limits, order: int = 1) -> Report:
    """Check derivatives of one order up to the first fault. May change the tensors' values."""
    report = Report(order=order)
    report.diagnosis = Diagnosis(next(filter(None, _faults(subject, limits, report)), ""))
    return report


def _faults(subject, limits: Limits, report: Report) -> Iterator[Finding]:
    """Run the tests one after another."""

    probe = shortened(subject) if isinstance(subject, Kernel) else subject

    def tested(test: faults.Test) -> Finding:
        """Test the whole function; if it fails, look for the op that fails."""
        finding = outcome(test, probe)
        return finding and (accuse(report, probe, test) or finding)

    yield tested(faults.modified)
    yield tested(faults.unrepeatable)
    # This comes first, because a VJP may write into its arguments.
    yield accuse(report, probe, faults.inconsistent)
    yield tested(faults.shared_state)
    # An op that the backend does not list is tested only here.
    yield tested(lambda f: faults.unlike(f, faults.layouts_of_g(f)))
    yield tested(faults.modified)  # by a VJP
    report.entries = all_entries(subject, limits)
    _note(report, subject)
    yield _explanation(report, subject, probe, limits)
    if all(e.missing for e in report.entries):
        yield "gradient missing: the result is not connected to any input, and depends on none."
    yield faults.through_infinity(subject)
    if isinstance(subject, Kernel):
        yield wrong_elsewhere(subject, limits, report)
        if coarse := subject.precision > UNIT["float32"] and probe.coarse():
            report.notes.append(COARSE.format(" and ".join(coarse), subject.dtype))
    else:
        yield _wrong_elsewhere(subject, limits, report)


def _explanation(report: Report, subject, probe, limits: Limits) -> Finding:
    """Explain why a gradient is wrong or cannot be measured, if any.

    `probe` is the subject, or a kernel with shorter axes, for which mistakes are explained faster.
    """
    if report:
        return None
    both = subject.values, [e.analytic for e in report.entries]
    if not any(np.isfinite(flatten(arrays)).all() for arrays in both):
        return (
            "domain: the result is NaN or Inf at these inputs, so no slope can be measured. Choose "
            "other inputs, or find the op with ta.detect_anomaly()."
        )
    if off := isinstance(subject, Kernel) and wrong_among(report.entries):
        off_probe = wrong_among(all_entries(probe, limits))
        return how(probe, off_probe, limits) if off_probe else how(subject, off, limits)
    if not wrong_among(report.entries):
        e = next(e for e in report.entries if e.excuse)
        return f"{e.excuse}: at {places(np.isinf(e.tolerance))} of {e.name}, {EXCUSES[e.excuse]}"
    worst: Any = report.worst
    if finding := accuse(report, subject, partial(wrong_slope, suspect=worst.name)):
        return finding
    if report.order == 2:
        return UNRECORDED.format(f"how a VJP depends on {worst.name} is not recorded")
    cause = HOOK if subject.hooked() else UNCOUNTED
    return f"{of_elements(worst, 'missed use')} Every op's own VJP {cause}"


HOOK = (
    "looks right, but a gradient changes between the ops: a backward hook returns another one, or "
    "the sweep adds contributions wrongly. Remove the hook to check the function."
)
UNCOUNTED = (
    "looks right, so look at the code between the ops for a use that is not counted (detach(), "
    ".data, .numpy(), .item(), Tensor(...), no_grad()) or is counted twice. If you use "
    "checkpoint(), check the checkpointed function directly."
)
COARSE = (
    "{}: the error is larger than one rounding of the result, so a value inside, such as a mean, a "
    "probability or a saved result, is kept in {}, not in float32, as in some of PyTorch's kernels."
)
EXCUSES = {
    "domain": "the function is infinite or raises an error on one side: the input is on the edge "
    "of the domain (sqrt, log, arcsin). Check the gradient at interior points.",
    "kink": "the slopes to the left and to the right differ: the input is at a kink or a jump, so "
    "the VJP may be right. Move the input away from that point.",
    "precision": "the slope cannot be measured: large numbers cancel inside the function, or the "
    "function is not smooth. Check the gradient at inputs of moderate size.",
}
UNRECORDED = (
    "second order: {}. Write the VJP with differentiable functions of its arguments; .numpy(), "
    ".data, .item(), float() and filling a new array of zeros leave the graph."
)


def _note(report: Report, subject) -> None:
    """Add notes about what the check did not cover."""
    if np.isinf(flatten(subject.values)).any():
        report.notes.append("results that stay infinite, such as masked scores, were left out.")
    if faults.changes_bits(subject):
        report.notes.append("two runs differ in their last bits, as sums in another order do.")
    if report and not any(e.analytic.any() for e in report.entries):
        report.notes.append("every gradient is zero here; try other inputs for a better check.")
    if isinstance(subject, Kernel):
        return
    leaves = {x for call in subject.traced() for x in call.inputs if tracked(x) and x._node is None}
    if others := sorted(str(x.shape) for x in leaves.difference(subject.tensors)):
        text = f"f also uses Tensors that were not checked, of shape {', '.join(others)}"
        report.notes.append(f"{text}: pass these Tensors in params=[...].")
    missing = [e.name for e in report.entries if e.missing]
    report.notes += [f"{name}: no result depends on this input." for name in missing]


def _wrong_elsewhere(subject: GraphSubject, limits: Limits, report: Report) -> Finding:
    """Find a gradient that is wrong only near the inputs, or only for a small result."""
    sizes = [*map(largest_finite, subject.values)]
    for c, size in zip(subject.cotangents, sizes):  # so that no error looks like rounding
        c *= min(max(sizes) / size, 1e12) if size else 1.0
    for by in (0.0, 0.1, 0.1, 0.1):  # a single trial might miss it
        moved = [scaled(x, subject.rng.uniform(1 - by, 1 + by, x.shape)) for x in subject.inputs]
        with suppress(Exception), subject.at(moved):  # f may refuse them
            if off := worst_of(off_entries(subject, limits._replace(groups=1))):
                op = accuse(report, subject, wrong_slope) or ""
                return (
                    f"wrong nearby: {off.name}: the gradient looks right at these "
                    "inputs, but is wrong at nearby inputs, or for a result that is much smaller "
                    "than the others. Try random inputs, because these may be special (a weight of "
                    f"ones, zeros). Or the VJP uses a value from an earlier call. {op}"
                )
    return None


def _check_gradient(subject: GraphSubject, limits: Limits, first: Report) -> Report:
    """Check the gradient as a function of the inputs and the cotangents."""
    backend = subject.backend
    weights = [backend.leaf(c) for c in subject.cotangents]
    named = dict(zip(subject.names, subject.tensors))
    named |= {f"cotangent of result {k}": w for k, w in enumerate(weights)}
    recorded = partial(backend.vjp, create_graph=True)

    def gradient():
        return backend.gradient(subject.outputs(), subject.tensors, weights, recorded)

    finding = (
        "two answers: the gradient with create_graph=True differs from the ordinary gradient: "
        "either an op's reference is wrong, or a VJP treats arrays and Tensors differently."
    )
    try:
        second = GraphSubject(gradient, named, backend, subject.rng)
        gradients = subject.arrays(gradient())
    except Exception as failure:
        finding = UNRECORDED.format(f"the gradient cannot be differentiated: {failure}".rstrip("."))
    else:
        if alike(subject, subject.pull(subject.cotangents), gradients):
            return _check(second, limits, order=2)
    return Report(first.entries, Diagnosis(finding), order=2)
