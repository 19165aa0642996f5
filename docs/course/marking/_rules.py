"""Checks of one backward rule: its form, and then its numbers by differences."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from _compare import Line, compare
from _words import RULE, about_shape, equal, in_stub_words, unchanged

import tinygrad_attn as ta

VAGUE = ("VJP", "missed use", "missing sum", "precision", "domain", "")


class WrongForm(Exception):
    """A result of a rule that cannot be a gradient."""

    verdict = "wrong shape"


class Rule(NamedTuple):
    """One rule of an op: which input it belongs to, and the arguments of a call."""

    op: Any
    which: int
    inputs: tuple[np.ndarray, ...]
    settings: Mapping[str, Any]
    names: Sequence[str]

    @property
    def function(self) -> Callable[..., Any]:
        return self.op.vjps[self.which]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", RULE)

    @property
    def alone(self) -> Any:
        """The op with this rule only, so that the other rules have no part in the check."""
        rules = [rule if k == self.which else None for k, rule in enumerate(self.op.vjps)]
        alone = ta.op(self.op.forward, broadcasts=self.op.broadcasts).vjp(*rules)
        alone.__name__ = self.op.__name__
        return alone

    def call(self, f: Callable[..., Any], times: float = 1) -> tuple[Any, dict[str, Any]]:
        """Call a rule with copies of the arrays and a random g; return the result and the arguments."""
        inputs = [x.copy() for x in self.inputs]
        y = self.op.forward(*(x.copy() for x in inputs), **self.settings)
        g = times * np.random.default_rng(1).standard_normal(np.shape(y))
        arguments = g, y, *inputs
        result = f(*arguments, **self.settings)
        parameters = list(inspect.signature(f).parameters.values())
        named = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        names = named if len(named) == len(arguments) else ["g", "y", *self.names]
        return result, dict(zip(names, arguments))

    def check_form(self) -> None:
        """Raise WrongForm if the result has another shape than the input, or is no array of numbers."""
        result, _ = self.call(self.function)
        shape, expected = np.shape(result), self.inputs[self.which].shape
        if np.asarray(result).dtype.kind not in "fiub":
            raise WrongForm(
                f"{self.name} returns a {type(result).__name__}; it should be an array of numbers."
            )
        if shape != expected and not (self.op.broadcasts and sums_to(shape, expected)):
            argument = self.names[self.which]
            raise WrongForm(
                f"{self.name} returns the shape {shape}, but the gradient of {argument} has the "
                f"shape of {argument}, {expected}. {about_shape(shape, expected)}".strip()
            )

    def summed(self, result: Any) -> Any:
        """Return the gradient with the shape of the input, as the engine sums it."""
        shape, result = self.inputs[self.which].shape, np.asarray(result)
        if not self.op.broadcasts or not sums_to(result.shape, shape):
            return result
        added = result.ndim - len(shape)
        ones = [added + k for k, n in enumerate(shape) if n == 1]
        return result.sum(axis=(*range(added), *ones)).reshape(shape)

    def power(self, report: Any) -> str:
        """Name a constant factor that is a power of an input of one number."""
        found = re.search(r"is (\S+) times what it should be", str(report.diagnosis))
        for name, x in zip(self.names, self.inputs) if found else ():
            for power, form in ((1, "{}"), (-1, "1 / {}"), (2, "{}^2"), (-2, "1 / {}^2")):
                if x.size == 1 and np.isclose(float(found[1]), float(x) ** power, 1e-4):
                    form = form.format(name)
                    return f"The gradient is {form} times what it should be."
        return ""

    def mistake(self, mistakes: Mapping[str, Callable[..., Any]]) -> str:
        """Name a mistake whose result is the same, or a result that no computation can have."""
        result, arguments = self.call(self.function)
        summed = self.summed(result)
        for text, wrong in mistakes.items():
            if compare(summed, self.summed(self.call(wrong)[0])):
                return text
        if text := unchanged(self.name, result, arguments):
            return f"{text} A {RULE} multiplies g by the derivative of y."
        if np.any(result) and equal(result, self.call(self.function, times=2)[0]):
            return (
                f"The result of {self.name} does not depend on g. A {RULE} multiplies g, the gradient of the "
                "loss with respect to y, by the derivative of y."
            )
        return ""


def sums_to(shape: tuple[int, ...], smaller: tuple[int, ...]) -> bool:
    """Return whether an array of the smaller shape may have been broadcast to the other."""
    pairs = zip(shape[len(shape) - len(smaller) :], smaller)
    return len(shape) >= len(smaller) and all(m in (n, 1) for n, m in pairs)


def names_of(op: Any, inputs: Any) -> list[str]:
    """Return the names of an op's inputs."""
    if len(op.input_names) == len(inputs):
        return list(op.input_names)
    return [f"input {k}" for k in range(len(inputs))]


def line_of(name: str, report: Any) -> Line:
    """Return the line of a gradcheck report."""
    kind = report.diagnosis.kind.replace("VJP", "wrong numbers")
    line = Line(name, "ok" if report else kind or "gradient off")
    largest = lambda e: np.max(e.error, initial=0)
    measure(line, report.worst or max(report.entries, key=largest, default=None))
    return line


def measure(line: Line, entry: Any) -> None:
    """Give a line the errors of a gradient, or none if it could not be measured."""
    if entry is None:
        line.max_abs = line.max_rel = np.inf
        return
    with np.errstate(all="ignore"):
        relative = np.nan_to_num(entry.error / np.abs(entry.numeric), nan=0, posinf=np.inf)
    line.max_abs, line.max_rel = float(np.max(entry.error, initial=0)), float(np.max(relative))
    line.index = entry.index


def explanation(report: Any, names: list[str], argument: str = "x") -> str:
    """Return gradcheck's diagnosis of the rule of an argument, in the words of the stub."""
    text = in_stub_words(str(report.diagnosis), names).replace(" to x[", f" to {argument}[")
    text = re.sub(r"\bx\b", argument, text) if text.startswith("wrong factor") else text
    text = text.removeprefix(f"{report.diagnosis.kind}: ")  # the verdict has it
    return text[:1].upper() + text[1:]


def numbers(report: Any, names: list[str]) -> str:
    """Say where the gradient is most wrong."""
    texts, worst = [], report.worst
    if worst is not None and not worst.missing:
        argument = in_stub_words(worst.name, names)
        measured = int(np.sum(~np.isnan(worst.numeric)))
        place = f" at index {list(worst.index)}" if worst.index else ""
        texts.append(
            f"The gradient of {argument} is {worst.analytic[worst.index]:.6g}{place}, and should be "
            f"{worst.numeric[worst.index]:.6g}; {worst.wrong.sum()} of {measured} elements are off."
        )
    return "\n".join([*texts, *(in_stub_words(note, names) for note in report.notes)])
