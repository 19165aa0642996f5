"use strict";
const byId = id => document.getElementById(id);
const dataOf = id => JSON.parse(byId(id).textContent);
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
// Whether a key that was pressed has a meaning of its own where the focus is.
const taken = event => event.altKey || event.ctrlKey || event.metaKey || event.target.closest(".cells, .wide, select, summary");
const brief = x => typeof x !== "number" ? x : x === 0 ? "0" : Math.abs(x) >= 1e4 || Math.abs(x) < 1e-3 ? x.toExponential(1) : String(+x.toPrecision(3));

// A matrix as a grid of colours. Pointing, or the arrow keys, show a number, or matrix.said(row, column);
// choose(row, column) is called for a click.
function heat(matrix, name, choose) {
  const rows = matrix.rows, finite = rows.flat().filter(Number.isFinite);
  const top = Math.max(...finite.map(Math.abs), 1e-30), columns = rows.length ? rows[0].length : 0, written = columns <= 6 && rows.length <= 8;
  const caption = name + (matrix.shape === "()" ? "" : " " + matrix.shape + matrix.part), said = make("figcaption", { textContent: caption });
  const grid = make("div", { className: "cells", tabIndex: 0 });
  grid.setAttribute("role", "img");
  grid.setAttribute("aria-label", caption + (finite.length ? ", from " + brief(Math.min(...finite)) + " to " + brief(Math.max(...finite)) : ""));
  grid.style.setProperty("--columns", columns);
  grid.style.setProperty("--size", written ? "4.1em" : "1.2em");
  rows.flat().forEach(x => {
    const cell = make("span", { textContent: written ? brief(x) : "" }), much = Number.isFinite(x) ? Math.abs(x) / top : 1;
    cell.style.setProperty("--tint", x < 0 || x === "-inf" ? "var(--minus)" : Number.isFinite(x) ? "var(--plus)" : "var(--line)");
    cell.style.setProperty("--much", (written ? 60 : 100) * much + "%");
    grid.append(cell);
  });
  let at = -1;
  const point = k => {
    grid.querySelector(".at")?.classList.remove("at");
    if (k >= 0 && k < grid.children.length) {
      at = k;
      grid.children[k].classList.add("at");
      said.textContent = matrix.said ? matrix.said(Math.floor(k / columns), k % columns) : matrix.shape === "()" ? name + " = " + rows[0][0] : name + "[" + (rows.length > 1 ? Math.floor(k / columns) + ", " : "") + k % columns + "] = " + rows[Math.floor(k / columns)][k % columns];
    } else said.textContent = caption;
  };
  grid.addEventListener("pointermove", event => point([...grid.children].indexOf(event.target)));
  grid.addEventListener("pointerleave", () => point(-1));
  grid.addEventListener("click", event => { const k = [...grid.children].indexOf(event.target); point(k); if (choose && k >= 0) choose(Math.floor(k / columns), k % columns); });
  grid.addEventListener("keydown", event => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at < 0 ? 0 : at + columns, ArrowUp: at - columns }[event.key];
    if (event.key === "Enter" && choose && at >= 0) choose(Math.floor(at / columns), at % columns);
    if (to === undefined) return;
    event.preventDefault();
    if (to >= 0 && to < grid.children.length) point(to);
  });
  return make("figure", { className: "heat" }, said, grid);
}

// Buttons, and the keys + - 0, that zoom the drawing in a box that scrolls. At first the drawing is as wide as the box (page.css).
function pane(box, buttons) {
  const drawing = box.querySelector("svg");
  let scale = 1;
  if (drawing) box.style.setProperty("--natural", `${drawing.viewBox.baseVal.width}px`);
  function zoom(to) {
    const before = scale, x = box.scrollLeft + box.clientWidth / 2, y = box.scrollTop + box.clientHeight / 2;
    scale = Math.max(.1, Math.min(8, to));
    box.style.setProperty("--zoom", scale);
    box.scrollTo(x * scale / before - box.clientWidth / 2, y * scale / before - box.clientHeight / 2);
  }
  const actions = { "-": () => zoom(scale / 1.25), "0": () => zoom(1), "+": () => zoom(scale * 1.25) };
  for (const [key, sign, label] of [["-", "\u2212", "zoom out"], ["0", "fit", "fit the drawing"], ["+", "+", "zoom in"]]) {
    buttons.append(make("button", { type: "button", textContent: sign, ariaLabel: label, onclick: actions[key] }), " ");
  }
  document.addEventListener("keydown", event => { if (!taken(event) && actions[event.key]) actions[event.key](); });
}
function centre(element, box) {
  const at = element.getBoundingClientRect(), frame = box.getBoundingClientRect();
  box.scrollBy({ left: at.left + at.width / 2 - frame.left - frame.width / 2, top: at.top + at.height / 2 - frame.top - frame.height / 2 });
}
