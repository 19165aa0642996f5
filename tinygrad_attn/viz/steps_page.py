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
    arrows = [steps.base.arrows[i] for i in steps.arrows(step)]
    inputs = [
        {"index": c.place, "box": c.box, "name": c.name, "first": c.first, "operand": c.operand,
         "value": values.gradient(c.value), "total": values.gradient(c.total),
         "values": values.cells(c.value), "totals": values.cells(c.total), "rule": c.rule,
         "code": c.code[0], "place": c.code[1], "letter": c.letter,
         "summed": any("->" in arrow.label for arrow in arrows if arrow.index == c.place)}
        for c in step.contributions
    ]  # fmt: skip
    title = steps.base.boxes[step.box].title
    return {"op": step.op, "box": step.box, "title": title, "equation": step.equation,
            "incoming": values.gradient(step.incoming), "gradient": values.cells(step.incoming),
            "output": step.output, "freed": step.freed, "arrows": steps.arrows(step),
            "inputs": inputs}  # fmt: skip
