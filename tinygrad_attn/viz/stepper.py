"""The page of a backward pass, all in one file: a drawing, a slider, and what each step did."""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np

from . import labels, render, tree
from .dot import to_dot

MOST = 1000
"""So many steps go onto a page."""


def _words(array: np.ndarray) -> str:
    """A gradient for the table: all numbers when few, otherwise shape, norm and the first few."""
    shape = f"{labels.shape(array)}  " if array.ndim else ""
    if array.size <= 12:
        return shape + labels.numbers(array)
    return f"{shape}|g| {labels.norm(array)}  {labels.numbers(array.reshape(-1)[:4])} ..."


def as_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return (
        json.dumps(value, ensure_ascii=False)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def page(steps: Any) -> str:
    """The page. Where nothing can draw, the tree of text takes the drawing's place."""
    try:
        drawing = render.svg(to_dot(steps.base))
    except (ImportError, RuntimeError):
        drawing = tree.to_html(steps.base)
    shown = list(enumerate(steps, 1))
    left_out = ""
    if len(shown) > MOST:
        left_out = (
            f"Steps {MOST // 2 + 1:,} to {len(shown) - MOST // 2:,} of {len(shown):,} are left out "
            "of this page; "
            ".text() has them all."
        )
        shown = [*shown[: MOST // 2], *shown[len(shown) - MOST // 2 :]]
    records = [_record(steps, number, step) for number, step in shown]
    body = f"""<header>
<h1>Backward, step by step</h1>
<button id="back" type="button" aria-label="one step back">&#9664;</button>
<input id="slider" type="range" min="0" max="{len(records) - 1}" value="0" aria-label="step">
<button id="on" type="button" aria-label="one step on">&#9654;</button>
<span id="count"></span> <span class="hint">arrow keys, Home, End</span>
</header>
<main>
<div id="drawing" tabindex="0" role="region" aria-label="the computation graph">
{drawing}
</div>
<section id="side" aria-live="polite">
{f"<p>{left_out}</p>" if left_out else ""}
<h2 id="title"></h2>
<p>Incoming gradient: <span id="incoming"></span></p>
<h2>Shares it gives</h2>
<table><thead><tr><th>input</th><th>of</th><th>gradient</th></tr></thead>
<tbody id="shares"></tbody></table>
<p>Freed: <span id="freed"></span></p>
<h2>Gradients so far, newest first</h2>
<table><thead><tr><th>of</th><th>sum of the shares</th></tr></thead>
<tbody id="sums"></tbody></table>
</section>
</main>
<noscript><pre>{html.escape(left_out or steps.text())}</pre></noscript>
<script type="application/json" id="steps">{as_json(records)}</script>"""
    return render.page("Backward, step by step", body, "steps")


def _record(steps: Any, number: int, step: Any) -> dict[str, Any]:
    """What the page's script shows of a step."""
    return {
        "number": number,
        "op": step.op,
        "box": step.box,
        "incoming": _words(step.incoming),
        "freed": step.freed,
        "arrows": steps.arrows(step),
        "shares": [
            {
                "index": c.place,
                "box": c.box,
                "key": f"{c.box} {c.name}",
                "name": c.name,
                "part": _words(c.part),
                "total": _words(c.total),
                "first": c.first,
            }
            for c in step.contributions
        ],
    }
