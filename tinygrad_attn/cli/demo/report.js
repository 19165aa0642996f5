"use strict";
const d = JSON.parse(document.getElementById("data").textContent), NS = "http://www.w3.org/2000/svg", N = 4;
let digit = 0, patch = d.digits[0].start;
function rect(x, y, size, attributes) {
  const r = document.createElementNS(NS, "rect");
  for (const [k, v] of Object.entries({ x, y, width: size, height: size, ...attributes })) r.setAttribute(k, v);
  return r;
}
function draw(svg, pixels, strength) {
  const ink = pixels.map((v, i) => rect(i % 8, Math.floor(i / 8), 1.02, { fill: "#000", "fill-opacity": strength * v / 16 }));
  svg.replaceChildren(rect(0, 0, 8, { fill: "#fff", stroke: "#bbb", "stroke-width": .08 }), ...ink);
}
const mark = p => rect(p % N * 2 + .06, Math.floor(p / N) * 2 + .06, 1.88, { fill: "none", stroke: "#0072B2", "stroke-width": .22 });
const large = document.getElementById("large"), maps = document.getElementById("maps"), choose = document.getElementById("choose");
const cells = [];
maps.style.gridTemplateColumns = "repeat(" + d.heads + ", auto)";
for (let layer = 0; layer < d.layers; layer++) for (let head = 0; head < d.heads; head++) {
  const f = document.createElement("figure"), svg = document.createElementNS(NS, "svg"), c = document.createElement("figcaption");
  svg.setAttribute("viewBox", "0 0 8 8");
  f.append(svg, c); maps.append(f); cells.push([layer, head, svg, c]);
}
function show() {
  const one = d.digits[digit];
  draw(large, one.pixels, 1);
  large.append(mark(patch));
  for (const [layer, head, svg, caption] of cells) {
    const row = one.weights[layer][head][patch], top = Math.max(...row);
    draw(svg, one.pixels, .35);
    row.forEach((w, p) => svg.append(rect(p % N * 2, Math.floor(p / N) * 2, 2, { fill: "#E69F00", "fill-opacity": .9 * w / top })));
    svg.append(mark(patch));
    caption.textContent = "layer " + (layer + 1) + ", head " + (head + 1) + ": " + (top / 1000).toFixed(2);
  }
  [...choose.children].forEach((b, i) => b.setAttribute("aria-pressed", i === digit));
}
d.digits.forEach((one, i) => {
  const b = document.createElement("button"), svg = document.createElementNS(NS, "svg");
  b.setAttribute("aria-label", "a written " + one.label);
  svg.setAttribute("viewBox", "0 0 8 8"); svg.setAttribute("width", "44"); svg.setAttribute("height", "44");
  draw(svg, one.pixels, 1);
  b.append(svg);
  b.addEventListener("click", () => { digit = i; patch = one.start; show(); });
  choose.append(b);
});
large.addEventListener("pointermove", e => {
  const box = large.getBoundingClientRect(), at = (v, from, size) => Math.min(N - 1, Math.max(0, Math.floor(N * (v - from) / size)));
  patch = at(e.clientY, box.top, box.height) * N + at(e.clientX, box.left, box.width);
  show();
});
large.addEventListener("keydown", e => {
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -N, ArrowDown: N }[e.key];
  if (move === undefined) return;
  e.preventDefault();
  const next = patch + move;
  if (next >= 0 && next < N * N && (Math.abs(move) === N || Math.floor(next / N) === Math.floor(patch / N))) { patch = next; show(); }
});
show();
