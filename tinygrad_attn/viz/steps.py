"""A backward pass to step through: `backward_steps(loss)` runs it and keeps what each op did."""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple

import numpy as np

from ..engine import Watcher, array_of, history, watching
from . import rules, steps_page, values
from .build import Source
from .nodes import computed, op_name
from .picture import Picture


class Contribution(NamedTuple):
    """What one op added to the gradient of one of its inputs."""

    place: int  # which input of the op
    box: int  # the number of that input's box
    name: str
    value: np.ndarray
    total: np.ndarray  # the sum of the contributions so far
    first: bool  # whether it is the first one; later ones are added
    operand: dict[str, Any]  # the values of the input, as `values.cells` has them
    letter: str  # what the rule calls this input
    rule: str  # the contribution in mathematics, by g (incoming), y (output) and the inputs
    code: tuple[str, str]  # the source of the VJP, and its file and line


class Step(NamedTuple):
    """The backward pass through one op."""

    op: str
    box: int
    incoming: np.ndarray  # the gradient of the loss by the op's output, complete by now
    contributions: list[Contribution]
    freed: list[str]  # outputs whose memory was freed until the next step
    equation: str
    output: dict[str, Any]  # its values, as `values.cells` has them


class _Recorder(Watcher):
    """Copies what the backward pass computes, and keeps no tensor alive."""

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
        """Add a contribution; those of one op follow one another and are one step."""
        if node.number not in self.boxes:
            return  # the VJP of some op differentiates a graph of its own
        if node.number != self.last:
            self.last = node.number
            incoming, output = np.array(array_of(g)), values.cells(y._data)
            step = Step(
                node.op.__name__, self.boxes[self.last], incoming, [], [],
                rules.equation(node.op), output,
            )  # fmt: skip
            self.steps.append(step)
        number = self.numbers[id(x)]
        name = x.name or (op_name(x) if computed(x) else self.picture.boxes[number].title)
        first = number not in self.seen
        self.seen.add(number)
        self.steps[-1].contributions.append(
            Contribution(
                i,
                number,
                name,
                np.array(array_of(contribution)),
                np.array(array_of(total)),
                first,
                values.cells(x._data),
                rules.letter(node.op, i),
                rules.rule(node.op, i),
                rules.code(node.op, i),
            )  # fmt: skip
        )


class Steps(list[Step]):
    """A backward pass that was run: a list of `Step`, as text or a page."""

    def __init__(self, base: Picture, steps: list[Step]) -> None:
        super().__init__(steps)
        self.base = base

    def text(self) -> str:
        """One line for each step, and under it one for each input."""
        lines = []
        for k, step in enumerate(self, 1):
            lines.append(f"{k:3}. n{step.box} {step.op}: incoming {values.gradient(step.incoming)}")
            for c in step.contributions:
                sign = "= " if c.first else "+="
                total = "" if c.first else f"   sum so far {values.gradient(c.total)}"
                text = f"grad {sign} {values.gradient(c.value)}{total}"
                lines.append(f"       input {c.place}, {c.name} (n{c.box}): {text}")
            if step.freed:
                lines.append("       freed: " + ", ".join(step.freed))
        return "\n".join(lines)

    def arrows(self, step: Step) -> list[int]:
        """The numbers of the arrows along which this step sends contributions."""
        indices = {(c.box, c.place) for c in step.contributions}
        return [
            i for i, arrow in enumerate(self.base.arrows)
            if arrow.target == step.box and (arrow.source, arrow.index) in indices
        ]  # fmt: skip

    def html(self) -> str:
        """A self-contained page with a slider, to step through by the arrow keys."""
        return str(steps_page.page_of(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        steps_page.page_of(self).save(path)

    __repr__ = __str__ = text

    def _repr_html_(self) -> str:
        return steps_page.page_of(self)._repr_html_()


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
    the contribution and the sum so far. See them by `.text()`, `.html()` and
    `.save("steps.html")`. The pass is a real one: leaves receive their
    `.grad`, and the graph is released unless `retain_graph`. `model` gives parameters their dotted
    names. `loss` may be a function that returns the Tensor. With `plain=True` it is run in plain
    mode: softmax, attention, layer norm and GELU are then steps through their formulas.

    Raises TypeError for something that is no Tensor, and what `backward` raises.
    """
    root, picture, numbers = _drawn(loss, model, plain)
    with watching(_Recorder(picture, numbers, history([root]))) as recorder:
        root.backward(gradient, retain_graph=retain_graph)
    recorder.references.clear()  # what is freed from now on belongs to no step
    return Steps(picture, recorder.steps)


def _drawn(loss: Any, model: Any, plain: bool) -> tuple[Any, Picture, dict[Any, int]]:
    """The tensor, its picture, and the box of each tensor; nothing else keeps the graph alive."""
    source = Source(loss, model, plain)
    drawn = source.drawn(lambda *_: True)
    (root,) = source.roots
    return root, drawn.result, drawn.numbers
