"""A backward pass to walk through.

`backward_steps(loss)` runs it once and writes down what happened at each op.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable, Watcher, history, watching
from ..messages.errors import describe
from ..messages.signatures import own_names
from . import labels, stepper
from .build import build
from .graph import Graph
from .model import Box, Picture
from .render import Page, write
from .trace import is_made, is_released, op_name, saved_bytes


class Contribution(NamedTuple):
    """What one op gave to one of its inputs."""

    place: int  # which operand of the op
    box: int  # that input's box in the picture
    name: str
    part: np.ndarray  # this op's share of the input's gradient
    total: np.ndarray  # the sum of the shares so far
    first: bool  # it was the first share; later ones are added to it


class Step(NamedTuple):
    """One op undone: its result's gradient came in, its inputs' gradients got their shares."""

    op: str
    box: int
    incoming: np.ndarray  # the gradient of the loss by the op's result, complete by now
    contributions: list[Contribution]
    freed: list[str]  # what this step let go


class _Shares(Watcher):
    """Is told of each share during the pass. It copies the gradients and keeps no tensor alive."""

    def __init__(self, picture: Picture, tensors: Sequence[Variable]) -> None:
        self.picture = picture
        self.steps: list[Step] = []
        self.given: set[int] = set()  # ids of the tensors that have got a share
        self.gone: list[_Result] = []  # results that nobody holds any more, since the last look
        self.by_id: dict[int, _Result] = {}
        for t in tensors:
            box = picture.boxes[picture.where[id(t)]]
            self.by_id[id(t)] = _Result(t, box, self.gone)
        self.current: _Result | None = None

    def pulled(
        self, tensor: Variable, node: Any, g: Any, index: int, x: Variable, part: Any, total: Any
    ) -> None:
        """One share of one gradient; several in a row from the same tensor belong to one step."""
        result = self.by_id.get(id(tensor))
        if result is None or result.ref() is not tensor:
            return  # a rule that differentiates something itself
        if result is not self.current:
            self.settle()
            self.current = result
            self.steps.append(Step(op_name(tensor), result.box.number, np.array(g), [], []))
        box = self.picture.boxes[self.picture.where[id(x)]]
        own = f"{op_name(x)} n{box.number}" if is_made(x) else box.title
        first = id(x) not in self.given
        self.given.add(id(x))
        self.steps[-1].contributions.append(
            Contribution(
                index, box.number, str(x.name or "") or own, np.array(part), np.array(total), first
            )
        )

    def settle(self) -> None:
        """Note at the last step what has gone since: saved buffers, and results nobody holds."""
        if self.current is None:
            return
        freed = self.steps[-1].freed
        t, name = self.current.ref(), self.current.box.title
        if self.current.saved and (t is None or is_released(t)):
            freed.append(f"saved buffers of {name} ({_bytes(self.current.saved)})")
        freed.extend(
            f"{gone.box.title} n{gone.box.number} ({_bytes(gone.size)})" for gone in self.gone
        )
        self.gone.clear()


class _Result:
    """A tensor of the graph, held weakly: when it ends it is put on the list `gone`."""

    def __init__(self, t: Variable, box: Box, gone: list[_Result]) -> None:
        self.box, self.size, self.saved = box, t._data.nbytes, saved_bytes(t)
        self.ref = weakref.ref(t, lambda _: gone.append(self))


def _bytes(count: int) -> str:
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1000:,.0f} kB" if count < 10_000_000 else f"{count / 1e6:,.0f} MB"


def short(array: np.ndarray) -> str:
    """A gradient in a few words: its numbers, or its shape and norm."""
    if array.size <= labels.SMALL:
        return labels.numbers(array) + (f"  {labels.shape(array)}" if array.ndim else "")
    return f"{labels.shape(array)}  |g| {labels.norm(array)}"


class Steps:
    """A backward pass that has been run: a sequence of `Step`, as text, pictures, or one page."""

    def __init__(self, base: Picture, steps: list[Step], root: int) -> None:
        self.base, self.steps, self.root = base, steps, root

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, k: int) -> Step:
        return self.steps[k]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def text(self) -> str:
        """A line a step, and under it a line for each input."""
        out = []
        for k, step in enumerate(self.steps):
            out.append(f"{k + 1:3}. n{step.box} {step.op}: incoming {short(step.incoming)}")
            for c in step.contributions:
                verb = "= " if c.first else "+="
                total = "" if c.first else f"   sum so far {short(c.total)}"
                who = c.name if c.name.endswith(f" n{c.box}") else f"{c.name} (n{c.box})"
                out.append(f"       input {c.place}, {who}: grad {verb} {short(c.part)}{total}")
            if step.freed:
                out.append("       freed: " + ", ".join(step.freed))
        return "\n".join(out)

    def picture(self, k: int) -> Graph:
        """The graph at step k, from 0.

        The op of the step is bold, its shares are bold arrows, and the boxes have the gradients so
        far. Raises IndexError where there is no such step.
        """
        if not hasattr(k, "__index__") or not -len(self.steps) <= k < len(self.steps):
            steps = (
                f"are {len(self.steps)} steps, 0 to {len(self.steps) - 1}"
                if len(self.steps) > 1
                else "is one step, 0"
            )
            raise IndexError(f"there {steps}; got {describe(k)}.")
        k %= len(self.steps)
        picture = copy.deepcopy(self.base)
        known = {self.root: self.steps[0].incoming}
        for step in self.steps[: k + 1]:
            known.update((c.box, c.total) for c in step.contributions)
        for number, total in known.items():
            if picture.boxes[number].kind in ("op", "parameter", "input"):
                picture.boxes[number].lines.append(f"grad so far: {short(total)}")
        step = self.steps[k]
        picture.boxes[step.box].now = True
        for i in self.arrows(step):
            picture.arrows[i].now = True
        return Graph(picture)

    def arrows(self, step: Step) -> list[int]:
        """The arrows along which a step's shares go, by number."""
        along = {(c.box, c.place) for c in step.contributions}
        sources = {c.box for c in step.contributions}
        return [
            i
            for i, a in enumerate(self.base.arrows)
            if a.target == step.box
            and ((a.source, a.index) in along or a.index is None and a.source in sources)
        ]

    def html(self) -> str:
        """One self-contained page: the graph, a slider, the numbers of each step."""
        return stepper.page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write .html (the page) or .txt (the lines); raises ValueError for another suffix."""
        suffix = os.path.splitext(os.fsdecode(path))[1].lower()
        if suffix not in (".html", ".txt"):
            raise ValueError(
                f"steps are saved as .html or .txt, got {os.fsdecode(path)!r}; "
                "one step's picture is .picture(k).save(path)."
            )
        write(path, self.html() if suffix == ".html" else self.text() + "\n")

    def __repr__(self) -> str:
        try:
            return self.text()
        except Exception as error:  # a repr never raises
            return (
                f"<{len(self.steps)} steps that could not be told: {type(error).__name__}: {error}>"
            )

    def _repr_html_(self) -> str | None:
        try:
            return str(Page(self.html())._repr_html_())
        except Exception:  # a repr never raises
            return None


@own_names
def backward_steps(
    loss: Any,
    gradient: Any = None,
    *,
    model: Any = None,
    retain_graph: bool = False,
    limit: int | None = 150,
) -> Steps:
    """Run `loss.backward(gradient, retain_graph)` once, and keep what happened at each op.

    Each step is an op: the incoming gradient, its share of each input's gradient, the sum so far,
    first share or added (+=), and what was freed. `.text()`, `.picture(k)`, `.html()`,
    `.save("steps.html")`. The pass is a real one: leaves get their `.grad`, and the graph is
    released unless `retain_graph`. `model` gives parameters their dotted names; `limit` is
    `viz.graph`'s.

    Raises TypeError for something that is no Tensor, and what `backward` raises.
    """
    if not isinstance(loss, Variable):
        raise TypeError(f"backward_steps() needs the Tensor to start from, got {describe(loss)}.")
    every_level = 1_000_000  # each op is a step, so no module is folded
    picture = build(loss, model, every_level, limit=limit)
    with watching(_Shares(picture, history([loss]))) as watcher:
        loss.backward(gradient, retain_graph=retain_graph)  # type: ignore[attr-defined]
    watcher.settle()
    root = picture.where[id(loss)]
    picture.where = {}  # the tensors go, and their ids may be used again
    return Steps(picture, watcher.steps, root)
