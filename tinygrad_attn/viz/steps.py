"""`backward_steps`: run a backward pass and record every step."""

import functools
import html
import os
from typing import NamedTuple

import numpy as np

from ..engine import Listener, array_of, listening
from . import rules, values
from .graph import Builder
from .page import Page, as_json, page
from .subject import Subject, computed, op_name

MOST = 1000  # steps on a page


class Contribution(NamedTuple):
    """The contribution of one op to the gradient of one of its inputs."""

    place: int  # index of the input
    box: int  # number of the input's box
    name: str
    value: np.ndarray
    total: np.ndarray  # the sum of contributions so far
    first: bool  # whether it is the first contribution to this input
    operand: dict  # values of the input, from `values.cells`
    letter: str  # name of the input in the rule
    rule: str  # the expression in the VJP, such as `g * b`, or "" if it is a longer function
    code: tuple[str, str]  # source of the VJP, and its file and line


class Step(NamedTuple):
    """The backward pass through one op."""

    op: str
    box: int
    incoming: np.ndarray  # gradient of the output
    contributions: list[Contribution]
    equation: str
    output: dict  # values of the output, from `values.cells`


class _StepListener(Listener):
    """A listener that copies the values of a backward pass and keeps no tensor alive."""

    def __init__(self, drawn):
        self.picture, self.numbers = drawn.graph, drawn.numbers
        self.boxes = {t._node.number: self.numbers[id(t)] for t in drawn.subject.ops}
        self.steps: list[Step] = []
        self.seen: set[int] = set()  # boxes that have received a contribution
        self.code_of = functools.cache(rules.code)  # reads a file, the same for every call of an op

    def pulled(self, y, node, g, i, x, contribution, total):
        """Add a contribution to the step for the op that produced it."""
        if node.number not in self.boxes:
            return  # from a graph inside a VJP
        op, box, copy = node.op, self.boxes[node.number], lambda x: np.array(array_of(x))
        if not self.steps or self.steps[-1].box != box:
            output = values.cells(y._data)
            self.steps.append(Step(op.__name__, box, copy(g), [], rules.equation(op), output))
        number = self.numbers[id(x)]
        name = x.name or (op_name(x) if computed(x) else self.picture.boxes[number].title)
        first = number not in self.seen
        self.seen.add(number)
        said = rules.letter(op, i), rules.rule(op, i), self.code_of(op, i)
        added = copy(contribution), copy(total), first, values.cells(x._data)
        self.steps[-1].contributions.append(Contribution(i, number, name, *added, *said))


class Steps(list[Step]):
    """A recorded backward pass: a list of `Step` that can be shown as text or as a page."""

    def __init__(self, picture, steps):
        super().__init__(steps)
        self.picture = picture

    def text(self) -> str:
        """Return one line for each step, followed by one line for each of its inputs."""
        lines = []
        for k, step in enumerate(self, 1):
            lines.append(f"{k:3}. n{step.box} {step.op}: incoming {values.gradient(step.incoming)}")
            for c in step.contributions:
                text = f"grad {'= ' if c.first else '+='} {values.gradient(c.value)}"
                text += "" if c.first else f"   sum so far {values.gradient(c.total)}"
                lines.append(f"       input {c.place}, {c.name} (n{c.box}): {text}")
        return "\n".join(lines)

    __repr__ = __str__ = text

    def html(self) -> Page:
        """Return a page that steps through the backward pass, or through its first 1,000 steps."""
        note = f"This page has the first {MOST:,} of {len(self):,} steps." * (len(self) > MOST)
        arrows = {(a.source, a.target, a.index): i for i, a in enumerate(self.picture.arrows)}
        shown = [self._as_dict(step, arrows) for step in self[:MOST]]
        return page(
            "Backward, step by step",
            "steps",
            drawing=self.picture.drawing(),
            note=note,
            last=str(len(shown) - 1),
            text=html.escape(note or self.text()),
            data=as_json(shown),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        self.html().save(path)

    def _repr_html_(self):
        return self.html()._repr_html_()

    def _as_dict(self, step, arrows):
        """Return the data of a step for the page's script. `arrows` numbers them by their ends."""
        drawn = [arrows[c.box, step.box, c.place] for c in step.contributions]
        inputs = [
            c._asdict() | {
                "value": values.cells(c.value), "total": values.cells(c.total),
                "sum": values.gradient(c.total),
                "formula": _formula(c, "->" in self.picture.arrows[i].label),
            }
            for c, i in zip(step.contributions, drawn)
        ]  # fmt: skip
        return step._asdict() | {
            "incoming": values.cells(step.incoming), "contributions": inputs,
            "now": [f"n{step.box}", *(f"e{i}" for i in drawn)],
            "title": self.picture.boxes[step.box].title,
        }  # fmt: skip


def _formula(c, summed):
    """Return the rule of a contribution as an equation, or nothing if it is a longer function."""
    added = "=" if c.first else "+="
    to = f", summed to {c.operand['shape']}" if summed else ""
    return c.rule and f"∂L/∂{c.letter} {added} {c.rule}{to}"


def backward_steps(
    loss, gradient=None, *, model=None, retain_graph: bool = False, plain: bool = False
) -> Steps:
    """Run `loss.backward(gradient, retain_graph)` and record each op as a step.

    Each `Step` has the op's equation and its incoming gradient. For each input, the `Step` also has
    the source of the VJP, the contribution and the sum so far. View the steps with `.text()`, or
    write a page with `.save("steps.html")`. Dotted names of parameters are relative to `model`.

    `loss` is a Tensor, or a function that returns one. With `plain=True`, the function runs in
    plain mode, and the steps show the formulas of softmax, attention, layer norm and GELU.

    Raises TypeError if `loss` is not a Tensor, and the same errors as `backward`.
    """
    drawn = Builder(Subject(loss, model, plain), lambda *_: True)
    (root,) = drawn.subject.roots
    recorder = _StepListener(drawn)
    del drawn  # it keeps the graph alive
    with listening(recorder):
        root.backward(gradient, retain_graph=retain_graph)
    return Steps(recorder.picture, recorder.steps)
