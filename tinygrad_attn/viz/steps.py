"""A backward pass to step through: `backward_steps(loss)` runs it and keeps every step."""

from __future__ import annotations

import html
import os
import weakref
from typing import Any, NamedTuple

import numpy as np

from ..engine import Watcher, array_of, history, watching
from . import dot, rules, values
from .build import Builder, Source
from .nodes import computed, op_name
from .page import Page, as_json, page
from .picture import Picture

MOST = 1000
"""The most steps on a page."""


class Contribution(NamedTuple):
    """What one op added to the gradient of one of its inputs."""

    place: int  # which input of the op
    box: int  # the number of that input's box
    name: str
    value: np.ndarray
    total: np.ndarray  # the sum of contributions so far
    first: bool  # whether it is the first one; later ones are added to it
    operand: dict[str, Any]  # the values of the input, as `values.cells` has them
    letter: str  # the name of this input in the rule
    rule: str  # the contribution as a formula of g (incoming), y (output) and inputs
    code: tuple[str, str]  # the source of the VJP, and its file and line


class Step(NamedTuple):
    """The backward pass through one op."""

    op: str
    box: int
    incoming: np.ndarray  # the gradient with respect to the op's output, complete by now
    contributions: list[Contribution]
    freed: list[str]  # outputs whose memory was freed before the next step
    equation: str
    output: dict[str, Any]  # its values, as `values.cells` has them


class _Recorder(Watcher):
    """Copies what the backward pass computes, without keeping tensors alive."""

    def __init__(self, picture: Picture, numbers: dict[int, int], ops: list[Any]) -> None:
        self.picture, self.numbers = picture, numbers
        self.boxes = {t._node.number: numbers[id(t)] for t in ops}  # by sequence number
        self.steps: list[Step] = []
        self.seen: set[int] = set()  # boxes that have received a contribution
        self.last = 0
        steps = self.steps  # not self, so that no cycle keeps the references alive
        self.references = []
        for t in ops:
            text = f"{op_name(t)} n{numbers[id(t)]} ({t._data.nbytes:,} B)"
            freed = lambda _, text=text: steps[-1].freed.append(text) if steps else None
            self.references.append(weakref.ref(t, freed))

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        """Add a contribution; consecutive ones from the same op form one step."""
        if node.number not in self.boxes:
            return  # a VJP that differentiates a graph of its own
        op, copy = node.op, lambda x: np.array(array_of(x))
        if node.number != self.last:
            self.last = node.number
            box, output = self.boxes[self.last], values.cells(y._data)
            self.steps.append(Step(op.__name__, box, copy(g), [], [], rules.equation(op), output))
        number = self.numbers[id(x)]
        name = x.name or (op_name(x) if computed(x) else self.picture.boxes[number].title)
        first = number not in self.seen
        self.seen.add(number)
        said = rules.letter(op, i), rules.rule(op, i), rules.code(op, i)
        added = copy(contribution), copy(total), first, values.cells(x._data)
        self.steps[-1].contributions.append(Contribution(i, number, name, *added, *said))


class Steps(list[Step]):
    """A recorded backward pass: a list of `Step`, shown as text or a page."""

    def __init__(self, base: Picture, steps: list[Step]) -> None:
        super().__init__(steps)
        self.base = base

    def text(self) -> str:
        """One line for each step, followed by one for each input."""
        lines = []
        for k, step in enumerate(self, 1):
            lines.append(f"{k:3}. n{step.box} {step.op}: incoming {values.gradient(step.incoming)}")
            for c in step.contributions:
                text = f"grad {'= ' if c.first else '+='} {values.gradient(c.value)}"
                text += "" if c.first else f"   sum so far {values.gradient(c.total)}"
                lines.append(f"       input {c.place}, {c.name} (n{c.box}): {text}")
            if step.freed:
                lines.append("       freed: " + ", ".join(step.freed))
        return "\n".join(lines)

    def html(self) -> str:
        """A self-contained page with a slider; the arrow keys step through it."""
        return self._page().text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        self._page().save(path)

    __repr__ = __str__ = text

    def _repr_html_(self) -> str:
        return self._page()._repr_html_()

    def _page(self) -> Page:
        """The page; if the graph cannot be drawn, it gives the reason."""
        many = f"This page has the first {MOST:,} of {len(self):,} steps."
        note = many if len(self) > MOST else ""
        shown = [self._as_dict(step) for step in self[:MOST]]
        return page(
            "Backward, step by step",
            "steps",
            drawing=dot.drawing(self.base),
            note=note,
            last=str(len(shown) - 1),
            text=html.escape(note or self.text()),
            data=as_json(shown),
        )

    def _as_dict(self, step: Step) -> dict[str, Any]:
        """What the page's script reads of a step: matrices, and the numbers of its arrows."""
        places = {(c.box, c.place) for c in step.contributions}
        arrows = {
            i: arrow for i, arrow in enumerate(self.base.arrows)
            if arrow.target == step.box and (arrow.source, arrow.index) in places
        }  # fmt: skip
        summed = {arrow.index for arrow in arrows.values() if "->" in arrow.label}
        inputs = [
            c._asdict() | {
                "value": values.cells(c.value), "total": values.cells(c.total),
                "sum": values.gradient(c.total), "summed": c.place in summed,
            }
            for c in step.contributions
        ]  # fmt: skip
        return step._asdict() | {
            "incoming": values.cells(step.incoming), "contributions": inputs,
            "arrows": list(arrows), "title": self.base.boxes[step.box].title,
        }  # fmt: skip


def backward_steps(
    loss: Any,
    gradient: Any = None,
    *,
    model: Any = None,
    retain_graph: bool = False,
    plain: bool = False,
) -> Steps:
    """Run `loss.backward(gradient, retain_graph)` and keep what each op did.

    Each `Step` has the op's equation, the incoming gradient, and for each input the backward rule,
    the contribution and the sum so far. View them with `.text()`, `.html()` and
    `.save("steps.html")`. The pass is a real one: leaves receive their `.grad`, and the graph is
    released unless `retain_graph` is true. `model` gives parameters their dotted names. `loss` may
    be a function that returns the Tensor. With `plain=True` it runs in plain mode, so the steps go
    through the formulas of softmax, attention, layer norm and GELU.

    Raises TypeError if `loss` is not a Tensor, and whatever `backward` raises.
    """
    root, picture, numbers = _drawn(loss, model, plain)
    with watching(_Recorder(picture, numbers, history([root]))) as recorder:
        root.backward(gradient, retain_graph=retain_graph)
    recorder.references.clear()  # memory freed from now on belongs to no step
    return Steps(picture, recorder.steps)


def _drawn(loss: Any, model: Any, plain: bool) -> tuple[Any, Picture, dict[Any, int]]:
    """The tensor, its picture, and the box of each tensor, without keeping the graph alive."""
    source = Source(loss, model, plain)
    drawn = Builder(source, lambda *_: True)
    (root,) = source.roots
    return root, drawn.result, drawn.numbers
