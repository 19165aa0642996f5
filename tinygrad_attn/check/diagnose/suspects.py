"""Which op is wrong when a composite gradient is?  Each is checked on the operands it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...engine import Variable, sum_to, tracked
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
    problem: Alone
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


class Alone(Problem):
    """One op as a function of copies of its operands; its rules are asked without the engine."""

    def __init__(self, step: Step, rng: np.random.Generator, operands: list[Any]) -> None:
        self.step, operands_ = step, list(enumerate(operands))
        self.positions = [i for i, x in operands_ if tracked(x)]  # of the inputs
        names = [f"operand {i}" for i in self.positions]
        call = lambda: step.op(*operands, **step.settings)
        super().__init__(call, [operands[i] for i in self.positions], names, rng)

    def gradients(
        self, outputs: list[Any] | None = None, cotangents: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray | None]:
        """What the rules say."""
        with enable_grad(), np.errstate(all="ignore"):
            results = self.outputs() if outputs is None else outputs
            found = second_opinion(results, cotangents or self.cotangents).grads
        return [None if id(x) not in found else np.array(found[id(x)]) for x in self.inputs]

    def fails(self, kind: str, text: str) -> Suspect:
        """A fault that no number shows."""
        told = Diagnosis(kind, text)
        return Suspect(self.step, self, 0, self.positions[0], np.zeros(()), np.inf, told)


def alone(step: Step, rng: np.random.Generator) -> Alone | None:
    """The op alone; None if nothing can be measured, or if it gives its value once, as a
    checkpoint."""
    operands = copies(step.inputs)
    for x in filter(tracked, operands):
        x._tracked = x._data.dtype.newbyteorder("=") == np.float64
    if not any(map(tracked, operands)) or step.name == "checkpoint":
        return None
    return Alone(step, rng, operands)


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Operands of our own; of a tensor that is used twice one for each use."""
    own = Variable._kind._of
    return [own(x._data.copy(), x._tracked) if isinstance(x, Variable) else x for x in inputs]


def search(steps: Sequence[Step], rng: np.random.Generator, rtol: float = 1e-3) -> Search:
    """The ops among the steps whose own rule is wrong; each op once.

    First coarsely, beside the largest slope; then each element by its own size, as the check itself
    judges.
    """
    found = _search(steps, rng, 0.0)
    return found if found.found else _search(steps, rng, min(rtol, 1e-3))


def _search(steps: Sequence[Step], rng: np.random.Generator, fine: float) -> Search:
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
        if op_alone is None or not _repeats(op_alone):
            complete = False
            continue
        suspect = _examined(op_alone, rng, fine)
        known = worst.get(id(step.op))
        if suspect is not None and (known is None or suspect.error > 10 * known.error):
            worst[id(step.op)] = suspect
    return Search(sorted(worst.values(), key=lambda s: -s.error), complete)


def _repeats(problem: Problem) -> bool:
    """Not of an op that draws random numbers."""
    pairs = zip(problem.values(), problem.values())
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _examined(it: Alone, rng: np.random.Generator, fine: float) -> Suspect | None:
    """The input for which this op's rule is off the most, or None where it is right."""
    try:
        gradients = it.gradients()
    except Exception as failure:
        return it.fails("rule raises", f"the rule itself fails: {failure}")
    worst: Suspect | None = None
    for which, (x, found) in enumerate(zip(it.inputs, gradients)):
        analytic = np.zeros(x.shape) if found is None else found
        error = _error(it, which, analytic, rng, fine)
        if error > (OFF if worst is None else worst.error):
            worst = Suspect(it.step, it, which, it.positions[which], analytic, error)
    return worst


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
    if (problem := alone(step, rng)) is None:
        return None
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
    return problem.fails(
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
    weight = Variable._kind(it.cotangents[0])
    with enable_grad():
        outputs, extra = it.outputs(), dict(create_graph=True, allow_unused=True)
        recorded = grad(outputs, it.inputs, [weight], **extra)
    for a, b in zip(it.gradients(), recorded):
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
