"""Which op is wrong when a composite gradient is?  Each is checked on the operands it had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...engine import Variable, sum_to
from ...engine.autograd import enable_grad, grad
from ..measuring import GROUPS, Problem, step_sizes
from ..records import array_of, as_given, ask_rules
from ..report import Diagnosis
from ..second_sweep import second_opinion
from ..trace import Step

OFF = 1e-4
"""Error, over the largest slope, from which a rule counts as wrong."""


class Suspect(NamedTuple):
    """An op whose rule for one input disagrees with central differences."""

    step: Step
    problem: Problem
    which: int  # number among the differentiable inputs of the problem
    position: int  # number among all operands of the op
    analytic: np.ndarray
    error: float  # relative to the largest slope
    failure: Diagnosis | None = None  # known without looking at numbers


@dataclass
class Search:
    """What was found among the ops, the worst first, and whether every op could be asked."""

    found: list[Suspect] = field(default_factory=list)
    complete: bool = True


class Alone(NamedTuple):
    """One op, as a function of copies of its operands, and which operands the inputs are."""

    step: Step
    problem: Problem
    positions: list[int]

    def fails(self, kind: str, text: str) -> Suspect:
        """A fault that no number shows."""
        told = Diagnosis(kind, text)
        return Suspect(self.step, self.problem, 0, self.positions[0], np.zeros(()), np.inf, told)


def alone(step: Step, rng: np.random.Generator) -> Alone | None:
    """The op alone; None if nothing can be measured, or if it gives its value once, as a
    checkpoint."""
    operands: list[Any] = []
    positions: list[int] = []
    copies: dict[int, Any] = {}  # an operand that is used twice stays one tensor
    for i, x in enumerate(step.inputs):
        if isinstance(x, Variable):
            checked = x._tracked and x._data.dtype.newbyteorder("=") == np.float64
            if id(x) not in copies:
                copies[id(x)] = Variable._kind._of(x._data.copy(), checked)
                positions += [i] if checked else []
            x = copies[id(x)]
        operands.append(x)
    if not positions or step.name == "checkpoint":
        return None
    call = lambda: step.op(*operands, **step.settings)
    names = [f"operand {i}" for i in positions]
    return Alone(step, Problem(call, [operands[i] for i in positions], names, rng), positions)


def search(
    steps: Sequence[Step],
    rng: np.random.Generator,
    rtol: float = 1e-3,
    arrived: Mapping[int, Any] | None = None,
) -> Search:
    """The ops among the steps whose own rule is wrong; each op once.

    First coarsely, beside the largest slope; then each element by its own size, as the check itself
    judges; at last with the gradients that `arrived` at the ops' results, by id, as they lay in
    memory.
    """
    for fine, given in ((0.0, None), (min(rtol, 1e-3), None), (min(rtol, 1e-3), arrived)):
        found = _search(steps, rng, fine, given)
        if found.found:
            break
    return found


def _search(
    steps: Sequence[Step], rng: np.random.Generator, fine: float, arrived: Mapping[int, Any] | None
) -> Search:
    worst: dict[int, Suspect] = {}
    seen: set[Any] = set()
    complete = True
    for step in (s for s in steps if s.differentiable):
        key = (id(step.op), tuple(array_of(x).shape for x in step.inputs), repr(step.settings))
        if key in seen and id(step.op) not in worst and len(steps) > 400:
            complete = False
            continue  # a long program of the same small ops: one look at each shape is enough
        seen.add(key)
        op_alone = alone(step, rng)
        if op_alone is None or not _repeats(op_alone.problem):
            complete = False
            continue
        g = None if arrived is None else arrived.get(id(step.result))
        suspect = _examined(op_alone, rng, fine, g)
        known = worst.get(id(step.op))
        if suspect is not None and (known is None or suspect.error > 10 * known.error):
            worst[id(step.op)] = suspect
    return Search(sorted(worst.values(), key=lambda s: -s.error), complete)


def _repeats(problem: Problem) -> bool:
    """Not of an op that draws random numbers."""
    pairs = zip(problem.values(), problem.values())
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _examined(it: Alone, rng: np.random.Generator, fine: float, g: Any = None) -> Suspect | None:
    """The input for which this op's rule is off the most, or None where it is right."""
    problem = it.problem
    try:
        if g is not None:
            problem.cotangents = [np.array(g)]
        gradients = problem.gradients()
        if g is not None and (fault := _minds_layout(it, gradients, g)) is not None:
            return fault
    except Exception as failure:
        return it.fails("rule raises", f"the rule itself fails: {failure}")
    if problem.spoiled:
        return it.fails(
            "rule changes its operands",
            "the rule writes into the incoming gradient g in place. Others share that array: "
            "compute a new one.",
        )
    worst: Suspect | None = None
    for which, (x, found) in enumerate(zip(problem.inputs, gradients)):
        analytic = np.zeros(x.shape) if found is None else found
        error = _error(problem, which, analytic, rng, fine)
        least = OFF if worst is None else worst.error
        if error > least and not _engine_is_wrong(problem, which, rng, fine):
            worst = Suspect(it.step, problem, which, it.positions[which], analytic, error)
    return worst


LAYOUT = (
    "the answer is another one where the incoming gradient g holds the same numbers in another "
    "order in memory, transposed, broadcast or with gaps, as it did here. Of such an array "
    "reshape(-1) and ravel() may be copies; look, too, for strides, view() and np.frombuffer."
)


def _minds_layout(it: Alone, gradients: list[Any], g: Any) -> Suspect | None:
    """Does the rule answer differently for g as it lay when it arrived?"""
    pairs = zip(gradients, it.problem.gradients(cotangents=[g]))
    if all(a is None or b is None or np.allclose(a, b, 1e-9, 1e-12, True) for a, b in pairs):
        return None
    return it.fails("memory layout", LAYOUT)


def _engine_is_wrong(problem: Problem, which: int, rng: np.random.Generator, fine: float) -> bool:
    """Would the rules alone, summed by hand, be right?

    Then the op is innocent and the sweep is not.
    """
    grads = second_opinion(problem.traced()[0], problem.cotangents).grads
    by_hand = grads.get(id(problem.inputs[which]))
    return by_hand is not None and _error(problem, which, by_hand, rng, fine) <= OFF


def _error(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    rng: np.random.Generator,
    fine: float = 0.0,
) -> float:
    """The largest disagreement, at the step where it is least; elements at a kink do not count."""
    steps = step_sizes(problem.inputs[which]._data)
    # What rounding hides counts as right at the first step, and later as wrong: no rule is cleared
    # there because nothing can be seen.
    least = _error_at(problem, which, analytic, steps[0], rng, fine, doubt=1)
    for eps in steps[1:]:
        if least <= OFF:
            break
        least = min(least, _error_at(problem, which, analytic, eps, rng, fine, doubt=0))
    return least


def _error_at(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    eps: float,
    rng: np.random.Generator,
    fine: float,
    doubt: int,
) -> float:
    x = problem.inputs[which]
    every = x.size <= GROUPS
    flats = list(range(x.size)) if every else problem.suspicious(which, analytic, eps, rng)
    numeric = problem.numeric(which, eps, flats)
    measured = [(numeric.flat[i], analytic.flat[i], i) for i in flats]
    if any(np.isfinite(n) and not np.isfinite(a) for n, a, _ in measured):
        return np.inf
    measured = [m for m in measured if np.isfinite(m[0])]
    kink = lambda i, scale: problem.at_kink(which, i, eps, scale)
    if fine:  # each by its own size, so that a wrong one shows beside others that are much larger
        worst = 0.0
        for n, a, i in measured:
            error, own = abs(n - a), max(abs(n), abs(a))
            if error > max(fine, worst) * own and not kink(i, own):
                hidden = doubt * (problem.noise_of(which, i, eps) or problem.noise(eps))
                worst = error / own if error > fine * own + hidden else worst
        return worst
    scale = max((abs(n) for n, _, _ in measured), default=0.0)
    scale = max(scale, float(np.abs(analytic[np.isfinite(analytic)]).max(initial=0)))
    if scale <= problem.noise(eps):
        return 0.0 if doubt else np.inf
    for n, a, i in sorted(measured, key=lambda m: -abs(m[0] - m[1])):
        if abs(n - a) <= OFF * scale:
            break
        if not kink(i, scale):
            return abs(n - a) / scale
    return 0.0


def cannot_be_differentiated(step: Step, rng: np.random.Generator) -> Suspect | None:
    """Can this op's rule be differentiated in its turn?

    It is given Tensors, and what it answers is checked like any function of them.
    """
    if (it := alone(step, rng)) is None:
        return None
    problem = it.problem
    weight = Variable._kind(problem.cotangents[0], requires_grad=True)

    def rule() -> list[Any]:
        with enable_grad():
            outputs, extra = problem.outputs(), dict(create_graph=True, allow_unused=True)
            found = grad(outputs, problem.inputs, [weight], **extra)
        return [g for g in found if g is not None]

    why, names = "", [*problem.names, "g"]
    try:
        second = Problem(rule, [*problem.inputs, weight], names, rng)
        for which, (x, g) in enumerate(zip(second.inputs, second.gradients())):
            if _error(second, which, np.zeros(x.shape) if g is None else g, rng) > OFF:
                why = f"what it returns depends on {names[which]} in a way that is not recorded"
    except Exception as failure:
        why = f"given Tensors it raises {type(failure).__name__}: {failure}"
    if not why:
        return None
    return it.fails(
        "second order",
        f"the rule of op {step.name!r} cannot be differentiated again: {why.rstrip('.')}. Write "
        "it with operators, methods and np.* functions on g, y and the inputs, which stay in the "
        "graph; .numpy(), .data, .item(), float() and filling an array made by np.zeros or "
        "np.full leave it.",
    )


def two_answers(step: Step, rng: np.random.Generator) -> Suspect | None:
    """Is the gradient that can be differentiated another one than the ordinary?"""
    if not step.differentiable or (it := alone(step, rng)) is None:
        return None
    weight = Variable._kind(it.problem.cotangents[0])
    with enable_grad():
        outputs, extra = it.problem.outputs(), dict(create_graph=True, allow_unused=True)
        recorded = grad(outputs, it.problem.inputs, [weight], **extra)
    for a, b in zip(it.problem.gradients(), recorded):
        if a is not None and b is not None and not np.allclose(a, b._data, 1e-6, 1e-9):
            return it.fails("two answers", "")
    return None


def call_rule(
    suspect: Suspect,
    *,
    g: Any = None,
    y: Any = None,
    operands: Sequence[Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> np.ndarray | None:
    """What the rule answers when something it is given is exchanged; None where it fails."""
    step, problem, i = suspect.step, suspect.problem, suspect.position
    arrays = as_given(step.inputs) if operands is None else list(operands)
    again = step._replace(
        inputs=tuple(arrays), settings=step.settings if settings is None else settings
    )
    try:
        with np.errstate(all="ignore"):
            out, saved = again.again()
            g, y = problem.cotangents[0] if g is None else g, out if y is None else y
            needs = [k == i for k in range(len(arrays))]
            answer = ask_rules(step.op, g, y, arrays, again.settings, needs, saved)[i]
        if answer is None:
            return None
        shape, answer = problem.inputs[suspect.which].shape, np.asarray(answer)
        return sum_to(answer, shape) if step.op.broadcasts and answer.shape != shape else answer
    except Exception:
        return None
