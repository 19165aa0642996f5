"""The page of a backward pass: a drawing, a slider, and the numbers of each step."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from . import dot, values
from .page import Page, as_json, page

if TYPE_CHECKING:
    from .steps import Step, Steps

MOST = 1000
"""Steps of a page at most."""


def page_of(steps: Steps) -> Page:
    """The page. Where nothing can draw the graph, it gives the reason."""
    note = f"This page has the first {MOST:,} of {len(steps):,} steps." if len(steps) > MOST else ""
    shown = [_as_dict(steps, step) for step in steps[:MOST]]
    return page(
        "Backward, step by step",
        "steps",
        drawing=dot.drawing(steps.base),
        note=note,
        last=str(len(shown) - 1),
        text=html.escape(note or steps.text()),
        data=as_json(shown),
    )


def _as_dict(steps: Steps, step: Step) -> dict[str, Any]:
    numbers = steps.arrows(step)
    arrows = [steps.base.arrows[i] for i in numbers]
    inputs = [
        c._asdict() | {
            "value": values.cells(c.value), "total": values.cells(c.total),
            "sum": values.gradient(c.total),
            "summed": any("->" in arrow.label for arrow in arrows if arrow.index == c.place),
        }
        for c in step.contributions
    ]  # fmt: skip
    return step._asdict() | {
        "incoming": values.cells(step.incoming), "contributions": inputs, "arrows": numbers,
        "title": steps.base.boxes[step.box].title,
    }  # fmt: skip
