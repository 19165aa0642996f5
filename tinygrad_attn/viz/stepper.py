"""The page of a backward pass: one drawing, a slider, and what each step did.  Everything is inside the one file."""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np

from . import labels, render, tree
from .dot import NOW, to_dot

STYLE = """
:root { color-scheme: light; }
body { margin: 0; font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; display: flex; flex-direction: column; height: 100vh; }
header { padding: .6em 1em; border-bottom: 1px solid #ccc; display: flex; gap: .8em; align-items: center; flex-wrap: wrap; }
h1 { font-size: 1.05em; margin: 0; }
button { font: inherit; padding: .2em .9em; }
input[type=range] { flex: 1; min-width: 10em; }
button:focus-visible, input:focus-visible, #drawing:focus-visible { outline: 3px solid #0072B2; outline-offset: 2px; }
main { flex: 1; min-height: 0; display: flex; }
#drawing { flex: 1; overflow: auto; padding: 1em; }
#side { width: 26em; overflow: auto; padding: .4em 1em 1em; border-left: 1px solid #ccc; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .15em .5em .15em 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.n { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
h2 { font-size: 1em; margin: 1em 0 .3em; }
tr.new td { background: #FCF1DA; font-weight: 600; }
.hint { color: #555; }
@media (max-width: 800px) { main { flex-direction: column; } #side { width: auto; border-left: 0; border-top: 1px solid #ccc; } }
g.node.later, g.edge.later { opacity: .45; }
g.node.now polygon, g.node.now path, g.node.now polyline { stroke: NOW; stroke-width: 4; }
g.edge.part path { stroke: NOW; stroke-width: 3.5; }
g.edge.part polygon { stroke: NOW; fill: NOW; }
span.now { outline: 3px solid NOW; font-weight: bold; }
""".replace("NOW", NOW)

SCRIPT = """
"use strict";
const steps = JSON.parse(document.getElementById("steps").textContent);
const slider = document.getElementById("slider"), drawing = document.getElementById("drawing");
const boxes = n => document.querySelectorAll("#n" + n + ", .n" + n);
const fill = (id, rows) => {
  const body = document.getElementById(id);
  body.replaceChildren(...rows.map(([cells, fresh]) => {
    const row = document.createElement("tr");
    if (fresh) row.className = "new";
    for (const cell of cells) {
      const td = document.createElement("td");
      td.className = "n";
      td.textContent = cell;
      row.append(td);
    }
    return row;
  }));
};
function show(k) {
  k = Math.max(0, Math.min(steps.length - 1, k));
  slider.value = k;
  const step = steps[k];
  slider.setAttribute("aria-valuetext", "step " + step.number + ": " + step.op);
  document.getElementById("count").textContent = step.number + " / " + steps[steps.length - 1].number;
  document.getElementById("title").textContent = step.op + "  (n" + step.box + ")";
  document.getElementById("incoming").textContent = step.incoming;
  document.getElementById("freed").textContent = step.freed.join(", ") || "nothing";
  fill("shares", step.shares.map(s => [[s.index, s.name, (s.first ? "= " : "+= ") + s.part], false]));
  const sums = new Map(), reached = new Set([step.box]);
  steps.slice(0, k + 1).forEach((s, i) => {
    reached.add(s.box);
    s.shares.forEach(c => { reached.add(c.box); sums.delete(c.key); sums.set(c.key, [[c.name, c.total], i === k]); });
  });
  fill("sums", [...sums.values()].reverse());
  document.querySelectorAll(".now, .part").forEach(e => e.classList.remove("now", "part"));
  document.querySelectorAll("g.node").forEach(e => e.classList.toggle("later", !reached.has(Number(e.id.slice(1)))));
  const done = new Set(steps.slice(0, k + 1).flatMap(s => s.arrows));
  document.querySelectorAll("g.edge").forEach(e => e.classList.toggle("later", !done.has(Number(e.id.slice(1)))));
  boxes(step.box).forEach(e => e.classList.add("now"));
  step.arrows.forEach(i => { const e = document.getElementById("e" + i); if (e) e.classList.add("part"); });
  const current = boxes(step.box)[0];
  if (current) {
    const at = current.getBoundingClientRect(), frame = drawing.getBoundingClientRect();
    drawing.scrollBy({ left: at.left + at.width / 2 - frame.left - frame.width / 2, top: at.top + at.height / 2 - frame.top - frame.height / 2 });
  }
}
const now = () => Number(slider.value);
slider.addEventListener("input", () => show(now()));
document.getElementById("back").addEventListener("click", () => show(now() - 1));
document.getElementById("on").addEventListener("click", () => show(now() + 1));
document.addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const to = { ArrowRight: now() + 1, ArrowDown: now() + 1, ArrowLeft: now() - 1, ArrowUp: now() - 1, Home: 0, End: steps.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  show(to);
});
show(0);
"""


MOST = 1000
"""So many steps go onto a page."""


def _words(array: np.ndarray) -> str:
    """A gradient for the table: all numbers when few, otherwise shape, norm and the first few."""
    shape = f"{labels.shape(array)}  " if array.ndim else ""
    if array.size <= 12:
        return shape + labels.numbers(array)
    return f"{shape}{labels.size_of(array)[0].replace('grad', 'g')}  {labels.numbers(array.reshape(-1)[:4])} ..."


def as_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page(steps: Any) -> str:
    """The page; where nothing can draw, the tree of text takes the drawing's place and is marked in the same way."""
    try:
        drawing = render.svg(to_dot(steps.base))
    except (ImportError, RuntimeError):
        drawing = tree.to_html(steps.base)
    shown = list(enumerate(steps, 1))
    left_out = ""
    if len(shown) > MOST:
        left_out = f"Steps {MOST // 2 + 1:,} to {len(shown) - MOST // 2:,} of {len(shown):,} are left out of this page; .text() has them all."
        shown = [*shown[:MOST // 2], *shown[len(shown) - MOST // 2:]]
    records = [{"number": number, "op": s.op, "box": s.box, "incoming": _words(s.incoming), "freed": s.freed, "arrows": steps.arrows(s),
                "shares": [{"index": c.index, "box": c.box, "key": f"{c.box} {c.name}", "name": c.name, "part": _words(c.part),
                            "total": _words(c.total), "first": c.first} for c in s.contributions]} for number, s in shown]
    body = f"""<header>
<h1>Backward, step by step</h1>
<button id="back" type="button" aria-label="one step back">&#9664;</button>
<input id="slider" type="range" min="0" max="{len(records) - 1}" value="0" aria-label="step">
<button id="on" type="button" aria-label="one step on">&#9654;</button>
<span id="count"></span> <span class="hint">arrow keys, Home, End</span>
</header>
<main>
<div id="drawing" tabindex="0" aria-label="the computation graph">
{drawing}
</div>
<section id="side" aria-live="polite">
{f"<p>{left_out}</p>" if left_out else ""}
<h2 id="title"></h2>
<p>Incoming gradient: <span id="incoming"></span></p>
<h2>Shares it gives</h2>
<table><thead><tr><th>input</th><th>of</th><th>gradient</th></tr></thead><tbody id="shares"></tbody></table>
<p>Freed: <span id="freed"></span></p>
<h2>Gradients so far, newest first</h2>
<table><thead><tr><th>of</th><th>sum of the shares</th></tr></thead><tbody id="sums"></tbody></table>
</section>
</main>
<noscript><pre>{html.escape(steps.text())}</pre></noscript>
<script type="application/json" id="steps">{as_json(records)}</script>"""
    return render.page("Backward, step by step", body, STYLE, SCRIPT)
