"""The gradient as a function in its turn: of the inputs, and of the cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.autograd import enable_grad, grad
from .measuring import Problem

Gradient = Callable[[], list[Any]]


def differentiable_gradient(problem: Problem) -> tuple[Gradient, list[Any]]:
    """The gradient by each input (None where no path leads there), and the cotangents."""
    tracked = [k for k, t in enumerate(problem.outputs()) if t._tracked]
    weights = [Variable._kind(problem.cotangents[k], requires_grad=True) for k in tracked]

    def gradient() -> list[Any]:
        with enable_grad():
            outputs = problem.outputs()
            roots, extra = [outputs[k] for k in tracked], dict(create_graph=True, allow_unused=True)
            return list(grad(roots, problem.inputs, weights, **extra))

    return gradient, weights


def two_answers(problem: Problem, recorded: list[Any]) -> str | None:
    """The input whose gradient that can be differentiated is not the ordinary one."""
    for name, a, b in zip(problem.names, problem.gradients(), recorded):
        if a is not None and b is not None:
            atol = 1e-9 * max(1.0, float(np.abs(a).max(initial=0)))
            if not np.allclose(a, b._data, rtol=1e-6, atol=atol):
                return name
    return None
