"""The page of a backward pass: a drawing, a slider, and the numbers of each step."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from . import dot, values
from .page import as_json, page

if TYPE_CHECKING:
    from .steps import Step, Steps

MOST = 1000
"""Steps of a page at most."""


def page_of(steps: Steps) -> str:
    """The page. Where nothing can draw the graph, it gives the reason."""
    try:
        drawing = dot.svg(steps.base)
    except Exception as error:  # a repr never raises
        drawing = f"<p>{html.escape(str(error))}</p>"
    note = f"This page has the first {MOST:,} of {len(steps):,} steps." if len(steps) > MOST else ""
    shown = [_as_dict(steps, step) for step in steps[:MOST]]
    return page(
        "Backward, step by step",
        "steps",
        drawing=drawing,
        note=note,
        last=str(len(shown) - 1),
        text=html.escape(note or steps.text()),
        data=as_json(shown),
    )


def _as_dict(steps: Steps, step: Step) -> dict[str, Any]:
    inputs = [
        {"index": c.place, "box": c.box, "name": c.name, "value": values.gradient(c.value),
         "total": values.gradient(c.total), "first": c.first}
        for c in step.contributions
    ]  # fmt: skip
    return {"op": step.op, "box": step.box, "incoming": values.gradient(step.incoming),
            "freed": step.freed, "arrows": steps.arrows(step), "inputs": inputs}  # fmt: skip
