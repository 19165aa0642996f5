"""The gradient as a function in its turn: of the inputs, and of the cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine import Variable
from ..engine.backward import grad
from .measuring import Problem

Gradient = Callable[[], list[Any]]


def differentiable_gradient(problem: Problem) -> tuple[Gradient, list[Any]]:
    """The gradient by each input (None where no path leads there), and the cotangents."""
    tracked = [k for k, t in enumerate(problem.outputs()) if t._tracked]
    weights = [Variable._kind(problem.cotangents[k], requires_grad=True) for k in tracked]

    def gradient() -> list[Any]:
        outputs = problem.outputs()
        roots = [outputs[k] for k in tracked]
        return list(grad(roots, problem.inputs, weights, create_graph=True, allow_unused=True))

    return gradient, weights


def two_answers(problem: Problem, recorded: list[Any]) -> str | None:
    """The input whose gradient that can be differentiated is not the ordinary one."""
    again = [b if b is None else b._data for b in recorded]
    return problem.differing(problem.gradients(), again)
