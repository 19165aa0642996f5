"""Draw the computation graph as a picture (`graph`) or as a page (`graph_html`)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from ..errors import nearest
from .build import Builder
from .page import Page, as_json, page
from .picture import Graph
from .source import Source

LIMIT = 150  # boxes in a readable picture
MOST_BOXES, MOST_PICTURES = 200, 60  # boxes in each picture of a page; pictures on a page


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
    source = Source(tensor, model, plain)
    expand = (expand,) if isinstance(expand, str) else expand
    called = {source.module(scope) for scope in source.chains if scope} - {""}
    for name in expand:
        if name not in called:
            raise ValueError(
                f"expand={name!r}: no module of this name was called.{nearest(name, called)} "
                f"Modules in this picture: {', '.join(sorted(called)) or 'none'}."
            )
    top = source.opened if depth is None else depth

    def is_open(place: int, scope: Any) -> bool:
        name = source.module(scope)
        inside = (f"{path}.".startswith(f"{name}.") or not name for path in expand)
        return place < level or any(inside)

    notes = []
    for level in range(min(top, source.deepest), -1, -1):
        picture = Builder(source, is_open).graph
        count = len(picture.boxes)
        if limit is None or count <= limit:
            break
        then = f": folded to depth={level - 1}" if level else ", and no module is left to fold"
        notes.append(f"{count:,} boxes, more than limit={limit}{then}.")
    picture.notes = notes
    return picture


def graph_html(tensor: Any, model: Any = None, *, plain: bool = False) -> Page:
    """Return the picture of `graph` as a page in which modules open with a click.

    Write it with `graph_html(loss).save("graph.html")`. A slider sets the depth, and a click on the
    title of a frame closes it. A module does not open if its picture would have more than 200
    boxes, or if the page already has 60 pictures.
    """
    source = Source(tensor, model, plain)
    chains = sorted(dict.fromkeys(source.chains.values()), key=len)
    plans: list[tuple[int, tuple[Any, ...]]] = [(depth, ()) for depth in range(source.deepest + 1)]
    plans += [(1, chain) for chain in chains if len(chain) > 1]  # a chain: only its calls are open
    states: dict[Any, Builder] = {}
    for depth, opened in plans[:MOST_PICTURES]:
        drawn = Builder(source, lambda level, scope: level < depth or scope in opened)  # noqa: B023
        if depth == 0 or len(drawn.graph.boxes) <= MOST_BOXES:
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
    drawings = [f"<template>{x.graph.drawing()}</template>" for x in states.values()]
    return page(
        "The computation graph",
        "graph",
        drawings="\n".join(drawings),
        deepest=str(source.deepest),
        text=html.escape(states[start].graph.text()),
        data=as_json({"states": shown, "start": numbers[start]}),
    )
