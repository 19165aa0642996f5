"""Checks of one op's own rule, on the very operands it had: finds the op to blame when a composite gradient is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable, sum_to
from ..engine.misuse import takes_needs
from ..engine.autograd import enable_grad, grad
from .byhand import second_opinion
from .problem import Problem
from .report import Diagnosis
from .trace import Step, array_of, as_given

MOST = 96
"""Elements of one operand measured one by one; a larger operand is measured in so many groups, and the worst of them are looked into."""


class Suspect(NamedTuple):
    """An op whose rule for one input disagrees with central differences."""

    step: Step
    problem: Problem
    which: int  # number among the differentiable inputs of the problem
    position: int  # number among all operands of the op
    analytic: np.ndarray
    error: float  # relative to the largest slope
    failure: Diagnosis | None = None  # known without looking at numbers


def local_problem(step: Step, rng: np.random.Generator) -> tuple[Problem, list[int]] | None:
    """The op alone, as a function of copies of its operands, and which operands its inputs are.

    None if there are none, or if the op cannot be repeated: a checkpoint gives its value once.
    """
    operands: list[Any] = []
    inputs: list[Any] = []
    positions: list[int] = []
    copies: dict[int, Any] = {}  # an operand that is used twice stays one tensor
    for i, x in enumerate(step.inputs):
        if isinstance(x, Variable):
            checked = x._tracked and x._data.dtype.newbyteorder("=") == np.float64
            if checked and id(x) not in copies:
                positions.append(i)
            copy = copies[id(x)] = (
                copies[id(x)] if id(x) in copies else Variable._kind._of(x._data.copy(), checked)
            )
            if checked and len(inputs) < len(positions):
                inputs.append(copy)
            x = copy
        operands.append(x)
    if not inputs or step.op.__name__ == "checkpoint":
        return None
    call = lambda: step.op(*operands, **step.static)
    return Problem(call, inputs, [f"operand {i}" for i in positions], rng), positions


def suspects(steps: Sequence[Step], rng: np.random.Generator) -> list[Suspect]:
    """The ops among the steps whose own rule is wrong, the worst first; each op once."""
    return _suspects(steps, rng, fine=False) or _suspects(steps, rng, fine=True)


def _suspects(steps: Sequence[Step], rng: np.random.Generator, fine: bool) -> list[Suspect]:
    found: dict[int, Suspect] = {}
    seen: set[Any] = set()
    for step in steps:
        if not step.result._tracked or not (step.op.rules or step.op.joint):
            continue
        key = (id(step.op), tuple(array_of(x).shape for x in step.inputs), repr(step.static))
        if key in seen and id(step.op) not in found and len(steps) > 400:
            continue  # a long program of the same small ops: one look at each shape is enough
        seen.add(key)
        suspect = examine(step, rng, fine)
        if suspect is not None and (
            id(step.op) not in found or suspect.error > 10 * found[id(step.op)].error
        ):
            found[id(step.op)] = suspect
    return sorted(found.values(), key=lambda s: -s.error)


def examine(step: Step, rng: np.random.Generator, fine: bool = False) -> Suspect | None:
    """The input for which this op's rule is off the most, or None where it is right.

    `fine` judges each element by its own slope, so that a wrong one shows beside others that are a million times as large.
    """
    if (alone := local_problem(step, rng)) is None:
        return None
    problem, positions = alone
    again = problem.values()
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(problem.values(), again)):
        return None  # an op that draws random numbers
    try:
        gradients = problem.gradients()
    except Exception as failure:
        return Suspect(
            step,
            problem,
            0,
            positions[0],
            np.zeros(()),
            np.inf,
            Diagnosis("rule raises", f"the rule itself fails: {failure}"),
        )
    if problem.spoiled:
        return Suspect(
            step,
            problem,
            0,
            positions[0],
            np.zeros(()),
            np.inf,
            Diagnosis(
                "rule changes its operands",
                "the rule writes into the incoming gradient g in place. Others share that array: compute a "
                "new one.",
            ),
        )
    worst: Suspect | None = None
    for which, x in enumerate(problem.inputs):
        found = gradients[which]
        analytic = np.zeros(x.shape) if found is None else found
        error = _relative_error(problem, which, analytic, rng, fine)
        if (
            error > 1e-4
            and (worst is None or error > worst.error)
            and not _rules_are_right(problem, which, rng, fine)
        ):
            worst = Suspect(step, problem, which, positions[which], analytic, error)
    return worst


def examine_again(step: Step, rng: np.random.Generator) -> Suspect | None:
    """Can this op's rule be differentiated in its turn?  It is given Tensors, and what it answers is checked like any function of them."""
    if (alone := local_problem(step, rng)) is None:
        return None
    problem, positions = alone
    weight = Variable._kind(problem.cotangents[0], requires_grad=True)

    def rule() -> list[Any]:
        with enable_grad():
            found = grad(
                problem.outputs(), problem.inputs, [weight], create_graph=True, allow_unused=True
            )
        return [g for g in found if g is not None]

    why = ""
    try:
        second = Problem(
            rule, [*problem.inputs, weight], [*(f"operand {i}" for i in positions), "g"], rng
        )
        for which, (name, x, g) in enumerate(zip(second.names, second.inputs, second.gradients())):
            if _relative_error(second, which, np.zeros(x.shape) if g is None else g, rng) > 1e-4:
                why = f"what it returns depends on {name} in a way that is not recorded"
    except Exception as failure:
        why = f"given Tensors it raises {type(failure).__name__}: {failure}"
    return (
        Suspect(
            step,
            problem,
            0,
            positions[0],
            np.zeros(()),
            np.inf,
            Diagnosis(
                "second order",
                f"the rule of op {step.op.__name__!r} cannot be differentiated again: {why.rstrip('.')}. Write it with operators, "
                "methods and np.* functions on g, y and the inputs, which stay in the graph; .numpy(), .data, .item(), float() and "
                "filling an array made by np.zeros or np.full leave it.",
            ),
        )
        if why
        else None
    )


def _rules_are_right(problem: Problem, which: int, rng: np.random.Generator, fine: bool) -> bool:
    """Would the rules alone, summed by hand, be right?  Then the op is innocent and the sweep is not."""
    by_hand = second_opinion(problem.traced()[0], problem.cotangents).grads.get(
        id(problem.inputs[which])
    )
    return by_hand is not None and _relative_error(problem, which, by_hand, rng, fine) <= 1e-4


def step_size(x: np.ndarray) -> float:
    """A step that suits the size of the values."""
    return step_sizes(x)[0]


def step_sizes(x: np.ndarray) -> list[float]:
    """The step that mostly suits, that of very small or large values themselves, and one for a function that bends within the first."""
    finite = np.abs(x[np.isfinite(x)])
    size = float(finite.mean()) if finite.size else 1.0
    usual = 1e-6 * float(np.clip(size, 1e-3, 1e3))
    return [usual, *([1e-6 * size] if 0 < size < 1e-3 or size > 1e3 else []), 1e-3 * usual]


def steady_step(problem: Problem, which: int) -> float:
    """The first of these steps at which the slopes do not depend on the step; without one, the usual step."""
    x = problem.inputs[which]
    some = np.random.default_rng(5).permutation(x.size)[:8].tolist()
    for eps in (steps := step_sizes(x._data)):
        here, nearer = (problem.numeric(which, h, some).flat[some] for h in (eps, eps / 8))
        if np.isfinite([here, nearer]).all() and np.abs(here - nearer).max(
            initial=0
        ) <= 1e-3 * np.abs(here).max(initial=0):
            return eps
    return steps[0]


def _relative_error(
    problem: Problem, which: int, analytic: np.ndarray, rng: np.random.Generator, fine: bool = False
) -> float:
    """The largest disagreement over the largest slope, at the step where it is the least; elements at a kink do not count."""
    steps = step_sizes(problem.inputs[which]._data)
    least = _disagreement(problem, which, analytic, steps[0], rng, fine, doubt=1)
    for eps in steps[1:]:
        if least <= 1e-4:
            break
        least = min(least, _disagreement(problem, which, analytic, eps, rng, fine, doubt=0))
    return least


def _disagreement(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    eps: float,
    rng: np.random.Generator,
    fine: bool,
    doubt: int,
) -> float:
    """At one step.  What rounding hides counts as right if there is `doubt`, else as wrong: no rule is cleared because nothing is seen."""
    x = problem.inputs[which]
    flats = range(x.size) if x.size <= MOST else suspicious(problem, which, analytic, eps, rng)
    numeric = problem.numeric(which, eps, flats)
    measured = [(numeric.flat[i], analytic.flat[i], i) for i in flats]
    if any(np.isfinite(n) and not np.isfinite(a) for n, a, _ in measured):
        return np.inf
    measured = [m for m in measured if np.isfinite(m[0])]
    if fine:
        return max(
            (
                abs(n - a) / max(abs(n), abs(a))
                for n, a, i in measured
                if abs(n - a)
                > 1e-2 * max(abs(n), abs(a))
                + doubt * (problem.noise_of(which, i, eps) or problem.noise(eps))
                and not at_kink(problem, which, i, eps, max(abs(n), abs(a)))
            ),
            default=0.0,
        )
    scale = max((abs(n) for n, _, _ in measured), default=0.0)
    scale = max(scale, float(np.abs(analytic[np.isfinite(analytic)]).max(initial=0)))
    if scale <= problem.noise(eps):
        return 0.0 if doubt else np.inf
    worst = 0.0
    for n, a, i in sorted(measured, key=lambda m: -abs(m[0] - m[1])):
        error = abs(n - a) / scale
        if error <= max(1e-4, worst):
            break
        if not at_kink(problem, which, i, eps, scale):
            worst = error
            break
    return worst


def suspicious(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    eps: float,
    rng: np.random.Generator,
    most: int = 8,
) -> list[int]:
    """The elements of a large operand to look at: the worst one in each of the groups whose random projection is off the most."""
    x = problem.inputs[which]
    member, signs = rng.permutation(np.arange(x.size) % MOST), rng.choice([-1.0, 1.0], x.size)
    groups = [np.flatnonzero(member == k) for k in range(MOST)]
    errors = [problem.projected(which, flats, signs, analytic, eps)[2] for flats in groups]
    return [
        problem.culprit(which, groups[k], signs, analytic, eps)
        for k in np.argsort(errors)[::-1][:most]
    ]


def at_kink(problem: Problem, which: int, flat: int, eps: float, scale: float) -> bool:
    """Do the slopes left and right of this element differ, however small the step, or grow as 1/step, as those of a jump do?

    Much nearer a smooth function that is steep has one slope, and rounding, which also grows as 1/step, has no steady ratio.
    """
    sides = [problem.sides(which, flat, h) for h in (eps, eps / 8, eps / 1024)]
    apart, nearer, nearest = (abs(left - right) for left, right in sides)
    steep, steeper, steepest = (max(abs(left), abs(right)) for left, right in sides)
    jumps = (
        steep > max(1e-2 * scale, problem.noise(eps))
        and abs(steeper / steep - 8) < 0.5
        and abs(steepest / steep - 1024) < 64
    )
    stays = nearer > 0.5 * apart and (
        0.25 * apart < nearest < 300 * apart or problem.noise(eps / 1024) > 0.1 * apart
    )
    return jumps or apart > 1e-2 * scale and (stays or nearer < 1e-3 * apart)


def call_rule(
    suspect: Suspect,
    *,
    g: np.ndarray | None = None,
    y: np.ndarray | None = None,
    operands: Sequence[Any] | None = None,
    static: dict[str, Any] | None = None,
) -> np.ndarray | None:
    """What the rule answers when one of its operands is exchanged, or None where it cannot take it."""
    op, problem = suspect.step.op, suspect.problem
    arrays = as_given(suspect.step.inputs) if operands is None else list(operands)
    settings = suspect.step.static if static is None else static
    try:
        with np.errstate(all="ignore"):
            out = op.forward(*arrays, **settings)
            out, saved = out if op.saves else (out, None)
            g, y = problem.cotangents[0] if g is None else g, out if y is None else y
            if op.joint is None:
                part = op.rules[suspect.position](g, y, *arrays, **settings)
            else:
                extra: dict[str, Any] = {"saved": saved} if op.saves else {}
                if takes_needs(op.joint):
                    extra["needs"] = tuple(i == suspect.position for i in range(len(arrays)))
                part = op.joint(g, y, *arrays, **settings, **extra)[suspect.position]
        shape = problem.inputs[suspect.which].shape
        part = np.asarray(part)
        return sum_to(part, shape) if op.broadcasts and part.shape != shape else part
    except Exception:
        return None
