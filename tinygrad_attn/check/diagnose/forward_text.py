"""The forward text: what an op's own function does when it is run on Tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...engine import watching
from ..report import greatest
from ..second_sweep import second_opinion
from ..trace import Trace
from .suspects import Suspect, copies


class ForwardText:
    """Its ops, its result, the input in question, and the gradients of all on the way."""

    def __init__(self, s: Suspect) -> None:
        inputs = copies(s.step.inputs)
        self.x, self.g = inputs[s.position], s.problem.cotangents[0]
        with watching(Trace()) as self.trace:
            out = s.step.op.forward(*inputs, **s.step.settings)
            self.out = out[0] if s.step.op.saves else out
            self.grads, self.uses = second_opinion([self.out], [self.g])
            # What is taken away and cancels, as a row's maximum, is a constant on the way.
            least = 1e-12 * greatest(self.g)
            for result in (s.result for s in self.trace.steps if s.result in self.grads):
                result._tracked = greatest(self.grads[result]) > least
            self.grads, self.uses = second_opinion([self.out], [self.g])

    def values(self) -> Iterator[tuple[str, Any]]:
        """(what it is, the value) for the input and whatever is computed from it on the way."""
        yield "the input", self.x
        for s in self.trace.steps:
            known = s.result in self.grads and s.result is not self.out
            if known and self.pulled_back(s.result, self.grads[s.result]) is not None:
                yield f"what {s.name} gives on the way", s.result

    def pulled_back(self, result: Any, g: np.ndarray) -> np.ndarray | None:
        """The gradient of the input, if this were the gradient of a value on the way."""
        return second_opinion([result], [g]).grads.get(self.x)
