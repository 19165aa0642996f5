"""Asks cases of the exam of the learner's Tensor, with right methods beside those that are judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from _compare import Line
from _exam import OBJECTS, parts, quietly, whole
from _exam_cases import Case, Formula
from _exam_engine import NUMBERS, Crash, Engine, Missing, Refused
from _marking import Marks, NotWritten, Wrong
from _probe import Probe
from _right import backward, right_methods, tensor_call
from _words import about_shapes


class Project(Probe):
    """The learner's Tensor, as an engine of the exam."""

    name = "Tensor"

    def __init__(self, marks: Marks) -> None:
        super().__init__(marks)
        self.adapter: Any = ModuleType("adapter")
        self.adapter.tensor = self.tensor
        self.adapter.reshape = lambda x, shape: x.reshape(*shape)
        self.engine = Engine(self.adapter)
        self.engine.seed = np.asarray  # y.backward(weights)

    def tensor(self, data: Any, parents: tuple = (), rules: tuple = ()) -> Any:
        return self.made(np.array(data), parents, rules)

    def right(self, kind: type, own: tuple[str, ...]) -> Any:
        return right_methods(kind, tensor_call(kind), own, backward=backward)

    def gradients(self, y: Any, *others: Any, g: Any = None) -> list[np.ndarray]:
        """Run backward, and return .grad of the result and of others, which must be arrays."""
        y.backward() if g is None else y.backward(g)
        if all(t.grad is None for t in (y, *others)):
            raise NotWritten("backward() leaves every .grad None")
        for name, t in zip(("the result", *["an intermediate result"] * len(others)), (y, *others)):
            if not isinstance(t.grad, NUMBERS) or np.shape(t.grad) != np.shape(t.data):
                raise Wrong(
                    f".grad of {name} is {t.grad!r} after backward(), but should be an array with the "
                    f"shape of .data, {np.shape(t.data)}. Without an argument g, backward begins "
                    "with an array of ones that has this shape."
                )
        return [y.grad, *(t.grad for t in others)]

    def check(self, name: str, case: Case, own: tuple[str, ...], hint: str = "") -> None:
        """Make a case a check, or a case of several tensors one for the value and each gradient.

        The value has nothing to do with a backward pass.
        """
        if not isinstance(case, Formula) or len(case.tensors) == 1:
            return self.judge(name, partial(whole, case, self.engine), own, hint)
        for part, judge in parts(case, self.engine).items():
            if part or "backward" not in own:
                self.judge(", ".join(filter(None, [name, part])), judge, own, hint)
        return None

    def judge(
        self,
        name: str,
        judge: Callable[[], Any],
        own: tuple[str, ...],
        hint: str = "",
        weight: float = 1,
    ) -> None:
        """Check a part of a case, with right methods in place of all but its `own`."""
        if self.marks.begin(name, weight):
            return None
        try:
            with self.only(*own), self.marks.watching(name):
                if "backward" in own:
                    self.gradients(self.tensor(1.0))
                verdict, sentence = quietly(judge)
        except (Exception, SystemExit) as error:
            cause = meant(error)
            if type(cause) is not Wrong:
                return self.marks.failed_by(name, cause, hint)
            verdict, sentence = "WRONG", str(cause)
        if verdict == "RIGHT":
            return self.marks.add(Line(name, "ok"))
        named = ": " in re.sub(r"^gradient of \w+: ", "", sentence)
        rank = 4 if named and "No simple mistake" not in sentence else 3
        return self.marks.failed(name, verdict, "\n\n".join(filter(None, [sentence, hint])), rank)


def meant(error: BaseException) -> BaseException:
    """Return the error of the learner's code that the exam has met, or else what the exam says."""
    if error.__cause__ and isinstance(error, (Missing, Crash, Refused)):
        return meant(error.__cause__)
    text = str(error)
    if isinstance(error, TypeError) and re.search("unsupported operand|Concatenation op", text):
        return NotWritten(f"{text}. {about_shapes(text)}".rstrip(". "))
    if isinstance(error, ValueError) and "has 0, gufunc" in text:  # A @ x of a class without @
        return NotWritten(OBJECTS)
    if isinstance(error, Crash) or text == OBJECTS:
        return Wrong(text)
    return NotWritten(text) if isinstance(error, Missing) else error
