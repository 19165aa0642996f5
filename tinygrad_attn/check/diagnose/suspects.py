"""Which op is wrong when a composite gradient is?  Each is checked on the operands it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ...engine import Variable, sum_to, tracked
from ..judging import Trial, entry_of
from ..measuring import How, Problem
from ..records import array_of
from ..report import Diagnosis, Report
from ..second_order import differentiable_gradient, two_answers
from ..second_sweep import second_opinion
from ..trace import Step, Trace

STRICT = 1e-4
"""Error over the slope from which a rule counts as wrong; over the largest slope a hundredth."""

GROUPS = 96
"""Larger operands are measured in so many random projections."""


class Alone(Problem):
    """One op as a function of copies of its operands; its rules are asked without the engine."""

    def __init__(self, step: Step, rng: np.random.Generator, operands: list[Any]) -> None:
        self.step = step
        self.positions = [i for i, x in enumerate(operands) if tracked(x)]  # of the inputs
        names = [f"operand {i}" for i in self.positions]
        call = lambda: step.op(*operands, **step.settings)
        super().__init__(call, [operands[i] for i in self.positions], names, rng)

    def gradients(
        self, outputs: list[Any] | None = None, cotangents: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray | None]:
        """What the rules say."""
        results = self.outputs() if outputs is None else outputs
        found = second_opinion(results, cotangents or self.cotangents).grads
        return [None if x not in found else np.array(found[x]) for x in self.inputs]


class Suspect(Trial):
    """An op alone whose rule for one input disagrees with central differences."""

    problem: Alone

    @property
    def step(self) -> Step:
        return self.problem.step

    @property
    def position(self) -> int:
        """The place of the input in question among all operands of the op."""
        return self.problem.positions[self.which]


class Search(NamedTuple):
    """What was found among the ops, the worst first, and whether every op could be asked."""

    found: list[Suspect]
    complete: bool


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


def search(steps: Sequence[Step], rng: np.random.Generator) -> Search:
    """The ops among the steps whose own rule is wrong; each op once."""
    worst: dict[Any, Suspect] = {}
    seen: set[Any] = set()
    complete = True
    for step in (s for s in steps if s.differentiable):
        key = (step.op, tuple(array_of(x).shape for x in step.inputs), repr(step.settings))
        if key in seen and step.op not in worst and len(steps) > 400:
            complete = False
            continue  # a long program of the same small ops: one look at each shape is enough
        seen.add(key)
        it = alone(step, rng)
        if it is None:
            complete = False
            continue
        try:
            trials = [judged(it, which, g) for which, g in enumerate(it.gradients())]
        except Exception:  # a rule that fails for these operands alone, which nobody has asked for
            complete = False
            continue
        off = max(filter(None, trials), key=lambda t: t.error, default=None)
        if off and (step.op not in worst or off.error > 10 * worst[step.op].error):
            worst[step.op] = off
    return Search(sorted(worst.values(), key=lambda s: -s.error), complete)


def judged(problem: Problem, which: int, gradient: np.ndarray | None) -> Suspect | None:
    """The gradient by one input on trial, if neither another step nor a kink clears it."""
    how = How(problem.steady_step(which), STRICT / 100, STRICT, GROUPS, np.random.default_rng(9))
    entry = entry_of(problem, which, gradient, how, problem.noise(how.eps))
    if entry.ok or (found := Suspect(problem, which, entry, how)).cleared:
        return None
    return found


def cut_short(s: Suspect) -> Suspect | None:
    """The same suspect on the first few elements along each axis, if it is wrong there too; None
    also where all axes are short.
    """
    arrays = [x for x in map(array_of, s.step.inputs) if x.dtype.kind in "fb"]
    lengths = sorted({n for x in arrays for n in x.shape if n > 6})
    if not lengths:
        return None
    kept = {n: 4 + k for k, n in enumerate(lengths)}  # what differs in length still does

    def short(x: Any) -> Any:
        v = array_of(x)[tuple(slice(kept.get(n)) for n in np.shape(x))].copy()
        return Variable._kind._of(v, x._tracked) if isinstance(x, Variable) else v

    with suppress(Exception):  # a setting may hold a size
        step = s.step._replace(inputs=tuple(map(short, s.step.inputs)))
        it: Any = alone(step, np.random.default_rng(9))
        return judged(it, s.which, it.gradients()[s.which])
    return None


def call_rule(suspect: Suspect, *, g: Any = None, y: Any = None, **change: Any) -> Any:
    """What the rule answers when something it is given is exchanged; None where it fails."""
    i, x = suspect.position, suspect.x
    with suppress(Exception):
        call = suspect.step.again(**change)
        call.y = call.y if y is None else y
        g = suspect.problem.cotangents[0] if g is None else g
        answer = np.asarray(call.answers(g, [k == i for k in range(len(call.args))])[i], float)
        return sum_to(answer, x.shape) if suspect.step.op.broadcasts else answer
    return None


def accuse(
    report: Report,
    trace: Trace,
    rng: np.random.Generator,
    question: Callable[[Alone], Any],
) -> None:
    """Point at the first op that answers a question badly."""
    for step in trace.steps:
        if step.differentiable and (it := alone(step, rng)) and (told := question(it)):
            report.point_at(step)
            report.culprits = [step.name]
            report.diagnosis = told if isinstance(told, Diagnosis) else report.diagnosis
            return


# ---- questions to one op alone


def raises(it: Alone) -> bool:
    """Does a rule of this op raise?"""
    try:
        it.gradients()
    except Exception:
        return True
    return False


def leaves_the_graph(it: Alone) -> str:
    """Can this op's rule be differentiated in its turn?

    It is given Tensors, and what it answers is checked like any function of them.
    """
    gradient, weights = differentiable_gradient(it)
    why, names = "", [*it.names, "g"]
    rng = np.random.default_rng(9)
    try:
        rule = lambda: [g for g in gradient() if g is not None]
        second = Problem(rule, [*it.inputs, *weights], names, rng)
        for which, g in enumerate(second.gradients()):
            if judged(second, which, g):
                why = f"what it returns depends on {names[which]} in a way that is not recorded"
    except Exception as failure:
        why = f"given Tensors it raises {type(failure).__name__}: {failure}"
    return why and Diagnosis(
        "second order",
        f"the rule of op {it.step.name!r} cannot be differentiated again: {why.rstrip('.')}. Write "
        "it with operators, methods and np.* functions on g, y and the inputs, which stay in the "
        "graph; .numpy(), .data, .item(), float() and filling an array made by np.zeros or "
        "np.full leave it.",
    )


def answers_twice(it: Alone) -> bool:
    """Is the gradient that can be differentiated another one than the ordinary?"""
    return two_answers(it, differentiable_gradient(it)[0]()) is not None
