"""The graph as a page whose modules open and close by a click; all pictures are drawn before."""

from __future__ import annotations

import html
from itertools import islice
from typing import Any

from . import dot, tree
from .build import Builder, Source
from .page import Page, as_json, page

MOST_BOXES, MOST_PICTURES = 200, 60
"""What a page holds at most: boxes of a picture, and pictures."""


def graph_html(tensor: Any, model: Any = None, *, plain: bool = False) -> Page:
    """Draw how a tensor was computed as a page: `graph_html(loss).save("graph.html")`.

    A slider opens the modules of all levels up to one. A click on a module opens it, and a click on
    the title of its frame closes it. The arguments are those of `graph`. The page is one file and
    needs no network. It leaves out pictures of more than 200 boxes, and those after the first 60.
    """
    source = Source(tensor, model, plain)
    chains = sorted(set(source.names.chains.values()), key=len)
    calls = {id(c[i]): c[: i + 1] for c in chains for i in range(len(c))}  # outer ones first
    plans = {
        depth: {key for key, chain in calls.items() if len(chain) <= depth}
        for depth in range(source.deepest + 1)
    }
    plans |= {key: plans[1] | set(map(id, chain)) for key, chain in calls.items() if chain[1:]}
    states: dict[int, Builder] = {}  # by a depth, or by the id of the call that is opened
    for key, opened in islice(plans.items(), MOST_PICTURES):
        drawn = source.drawn(lambda _, scope: id(scope) in opened)  # noqa: B023
        if key == 0 or len(drawn.result.boxes) <= MOST_BOXES:
            states[key] = drawn
    numbers = {key: i for i, key in enumerate(states)}
    start = max(key for key in states if key <= source.opened)
    shown = []
    for key, drawn in states.items():
        boxes = {f"n{number}": calls[scope] for scope, number in drawn.folded.items()}
        frames = {f"f{number}": calls[scope][:-1] for scope, number in drawn.frames.items()}
        targets = {name: numbers.get(_opening(chain)) for name, chain in (boxes | frames).items()}
        shown.append({"depth": key if key <= source.deepest else None, "targets": targets})
    drawings = [f"<template>{dot.drawing(x.result)}</template>" for x in states.values()]
    return page(
        "The computation graph",
        "graph",
        drawings="\n".join(drawings),
        deepest=str(source.deepest),
        text=html.escape(tree.to_text(states[start].result)),
        data=as_json({"states": shown, "start": numbers[start]}),
    )


def _opening(chain: tuple[Any, ...]) -> int:
    """The key of the picture in which the last call of a chain is open."""
    return id(chain[-1]) if len(chain) > 1 else len(chain)
