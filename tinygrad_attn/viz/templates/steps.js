"use strict";
const steps = JSON.parse(document.getElementById("steps").textContent);
const slider = document.getElementById("slider"), drawing = document.getElementById("drawing");
const fill = (id, rows) => {
  const body = document.getElementById(id);
  body.replaceChildren(...rows.map(([cells, fresh]) => {
    const row = document.createElement("tr");
    if (fresh) row.className = "new";
    for (const cell of cells) {
      const td = document.createElement("td");
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
  slider.setAttribute("aria-valuetext", "step " + (k + 1) + ": " + step.op);
  document.getElementById("count").textContent = (k + 1) + " / " + steps.length;
  document.getElementById("title").textContent = step.op + "  (n" + step.box + ")";
  document.getElementById("incoming").textContent = step.incoming;
  document.getElementById("freed").textContent = step.freed.join(", ") || "nothing";
  fill("inputs", step.inputs.map(c => [[c.index, c.name, (c.first ? "= " : "+= ") + c.value], false]));
  const sums = new Map(), reached = new Set([step.box]);
  steps.slice(0, k + 1).forEach((s, i) => {
    reached.add(s.box);
    s.inputs.forEach(c => { reached.add(c.box); sums.delete(c.box); sums.set(c.box, [[c.name, c.total], i === k]); });
  });
  fill("sums", [...sums.values()].reverse());
  document.querySelectorAll(".now, .part").forEach(e => e.classList.remove("now", "part"));
  document.querySelectorAll("g.node").forEach(e => e.classList.toggle("later", !reached.has(Number(e.id.slice(1)))));
  const done = new Set(steps.slice(0, k + 1).flatMap(s => s.arrows));
  document.querySelectorAll("g.edge").forEach(e => e.classList.toggle("later", !done.has(Number(e.id.slice(1)))));
  const current = document.getElementById("n" + step.box);
  step.arrows.forEach(i => { const e = document.getElementById("e" + i); if (e) e.classList.add("part"); });
  if (current) {
    current.classList.add("now");
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
