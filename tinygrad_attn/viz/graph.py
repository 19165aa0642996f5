"""Draw the computation graph as a picture (`graph`) or as a page (`graph_html`)."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any

from ..files import write_atomically
from . import dot
from .build import Builder, Source
from .page import Page, as_json, page
from .picture import Picture

LIMIT = 150  # boxes in a readable picture
MOST_BOXES, MOST_PICTURES = 200, 60  # boxes in each picture of a page; pictures on a page


class Graph:
    """A picture of the computation graph. Notebooks display it, and it keeps no tensor alive."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    @property
    def dot(self) -> str:
        """The picture as DOT text, the same on every run."""
        return dot.to_dot(self.picture)

    def svg(self) -> str:
        """Return the picture as an SVG element.

        Raises RuntimeError without Graphviz, and ValueError for more than 1,000 boxes.
        """
        return dot.svg(self.picture)

    def text(self) -> str:
        """Return the graph as a text tree, from the outputs to the inputs."""
        return self.picture.text()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a .svg, .png, .pdf, .dot or .txt file.

        Raises ValueError for any other suffix, and the same errors as `svg`.
        """
        suffix = os.path.splitext(os.fsdecode(path))[1].lower()
        if suffix in (".svg", ".png", ".pdf"):
            write_atomically(dot.render(self.picture, suffix[1:]), path)
        elif suffix in (".dot", ".gv"):
            write_atomically(self.dot, path)
        elif suffix == ".txt":
            write_atomically(self.text() + "\n", path)
        else:
            raise ValueError(
                f"{os.fsdecode(path)!r}: the file name must end in .svg, .png, .pdf, .dot or .txt. "
                "For an HTML page, write ta.viz.graph_html(tensor).save(path)."
            )

    __repr__ = __str__ = text

    def _repr_html_(self) -> str | None:
        try:
            return self.svg()
        except Exception:  # the notebook then shows the text
            return None


def graph(
    tensor: Any,
    model: Any = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    *,
    limit: int | None = LIMIT,
    plain: bool = False,
) -> Graph:
    """Draw the ops that computed a tensor, with their operands and a frame around each module.

    `tensor` is a Tensor, a list of Tensors, or a function without arguments that returns one.
    Dotted names are relative to `model`, by default the outermost module that was called. `depth`
    is the number of levels of modules that are opened, by default 1.
    `expand=["layers.0.self_attn"]` opens single modules. If the picture would have more than
    `limit` boxes, the depth is reduced.

    With `plain=True`, the function runs in plain mode, and all levels are opened. Softmax,
    attention, layer norm and GELU are drawn as formulas, with the variable names from the code.

    Raises TypeError for anything other than Tensors, and ValueError if `expand` names a module that
    was not called.
    """
    return Graph(Source(tensor, model, plain).picture(depth, expand, limit))


def graph_html(tensor: Any, model: Any = None, *, plain: bool = False) -> Page:
    """Return the picture of `graph` as a page in which modules open with a click.

    Write it with `graph_html(loss).save("graph.html")`. A slider sets the depth, and a click on the
    title of a frame closes it. A module does not open if its picture would have more than 200
    boxes, or if the page already has 60 pictures.
    """
    source = Source(tensor, model, plain)
    chains = sorted(dict.fromkeys(source.names.chains.values()), key=len)
    plans: list[tuple[int, tuple[Any, ...]]] = [(depth, ()) for depth in range(source.deepest + 1)]
    plans += [(1, chain) for chain in chains if len(chain) > 1]  # a chain: only its calls are open
    states: dict[Any, Builder] = {}
    for depth, opened in plans[:MOST_PICTURES]:
        drawn = Builder(source, lambda level, scope: level < depth or scope in opened)  # noqa: B023
        if depth == 0 or len(drawn.result.boxes) <= MOST_BOXES:
            states[depth, opened] = drawn
    numbers = {plan: i for i, plan in enumerate(states)}
    start = max(plan for plan in states if plan[0] <= source.opened and not plan[1])
    shown = []
    for (depth, opened), drawn in states.items():
        wanted = {f"n{number}": chain for chain, number in drawn.folded.items()}
        wanted |= {f"f{number}": chain[:-1] for chain, number in drawn.frames.items()}
        plan = lambda chain: (1, chain) if len(chain) > 1 else (len(chain), ())
        targets = {name: numbers.get(plan(chain)) for name, chain in wanted.items()}
        shown.append({"depth": None if opened else depth, "targets": targets})
    drawings = [f"<template>{dot.drawing(x.result)}</template>" for x in states.values()]
    return page(
        "The computation graph",
        "graph",
        drawings="\n".join(drawings),
        deepest=str(source.deepest),
        text=html.escape(states[start].result.text()),
        data=as_json({"states": shown, "start": numbers[start]}),
    )
