"use strict";
// The demo's report and the first page of the documentation show digits by this.
const SIDE = 4;
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const square = (x, y, size, look) => svg("rect", { x, y, width: size, height: size, ...look });
/** 8 x 8 pixels, from 0 to 1, as squares on white. */
const inked = (pixels, strength = 1) => [square(0, 0, 8, { fill: "#fff" }), ...pixels.map((ink, i) => square(i % 8, Math.floor(i / 8), 1.02, { "fill-opacity": strength * ink }))];
/** A square over the patch p of 2 x 2 pixels. */
const over = (p, edge, look) => square(p % SIDE * 2 + edge, Math.floor(p / SIDE) * 2 + edge, 2 - 2 * edge, look);

/** Returns show({ pixels, start, maps: { name: weights } }): a large picture, and where its chosen patch (blue) looks (orange) in each map. */
function digitView(large, maps) {
  let digit, patch;
  const mark = () => over(patch, .06, { fill: "none", stroke: "#0072B2", "stroke-width": .22 });
  function look(from) {
    patch = from;
    large.replaceChildren(...inked(digit.pixels), mark());
    maps.replaceChildren(...Object.entries(digit.maps).map(([name, weights]) => {
      const row = weights[patch], top = Math.max(...row);
      const picture = svg("svg", { viewBox: "0 0 8 8", role: "img", "aria-label": name }, ...inked(digit.pixels, .35),
        ...row.map((weight, p) => over(p, 0, { fill: "#E69F00", "fill-opacity": .9 * weight / top })), mark());
      return make("figure", {}, picture, make("figcaption", { textContent: `${name}: ${top.toFixed(2)}` }));
    }));
  }
  large.addEventListener("pointermove", event => {
    const box = large.getBoundingClientRect(), at = (v, from, size) => Math.min(SIDE - 1, Math.max(0, Math.floor(SIDE * (v - from) / size)));
    if (digit) look(at(event.clientY, box.top, box.height) * SIDE + at(event.clientX, box.left, box.width));
  });
  large.addEventListener("keydown", event => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -SIDE, ArrowDown: SIDE }[event.key], next = patch + move;
    if (move === undefined || !digit) return;
    event.preventDefault();
    if (next >= 0 && next < SIDE * SIDE && (Math.abs(move) === SIDE || Math.floor(next / SIDE) === Math.floor(patch / SIDE))) look(next);
  });
  return next => { digit = next; look(next.start); };
}
