"use strict";
const byId = id => document.getElementById(id);
const dataOf = id => JSON.parse(byId(id).textContent);
const fill = (id, ...children) => byId(id).replaceChildren(...children);
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
const tableRow = (texts, className = "") => make("tr", { className }, ...texts.map(text => make("td", {}, text)));
/** Fill an element with radio buttons, among which the arrow keys move. */
function choices(id, labels, choose) {
  const button = i => make("input", { type: "radio", name: id, onchange: () => choose(i) });
  fill(id, ...labels.map((label, i) => make("label", {}, button(i), label)));
}
/** Press one of them, or a cell of a heat map. */
const press = (id, i) => byId(id).querySelectorAll("input, .cells > span")[i].click();
/** Mark one of the cells in an element, or none. */
function mark(place, cell) {
  for (const one of place.querySelectorAll(".cells > span")) one.classList.toggle("chosen", one === cell);
}
function brief(x, digits = 3) {
  if (typeof x !== "number" || x === 0) return String(x);
  return Math.abs(x) >= 1e4 || Math.abs(x) < 1e-3 ? x.toExponential(digits - 2) : String(+x.toPrecision(digits));
}

/**
 * A matrix as a grid of colours: orange above zero, blue below. `texts` are written into the cells, by default the
 * numbers of a small matrix; `down` and `across` are names of its rows and columns. The cell under the pointer, or with
 * the focus, which the arrow keys move, says its number or said(row, column). A click or Enter calls choose(row, column).
 */
function heat({ rows, shape = "", part = "", texts, down, across, said }, name, choose) {
  const width = rows[0]?.length ?? 0, title = shape === "()" ? name : `${name} ${shape}${part}`;
  const top = Math.max(1e-30, ...rows.flat().filter(Number.isFinite).map(Math.abs));
  const index = (i, j) => shape === "()" ? "" : rows.length > 1 ? `[${i}, ${j}]` : `[${j}]`;
  said ??= (i, j) => `${name}${index(i, j)} = ${rows[i][j]}`;
  if (width <= 6 && rows.length <= 8) texts ??= rows.map(row => row.map(x => brief(x)));
  const caption = make("figcaption", {}, title);
  function cell(x, i, j) {
    const share = Number.isFinite(x) ? x / top : { "-inf": -1, inf: 1 }[x], tabIndex = i || j ? -1 : 0;
    const className = share < 0 ? "minus" : share >= 0 ? "plus" : "", style = `--much: ${100 * Math.abs(share ?? 1)}%`;
    const made = make("span", { className, style, tabIndex }, texts?.[i]?.[j] ?? "");
    made.onpointerover = made.onfocus = () => { made.ariaLabel = caption.textContent = said(i, j); };
    if (choose) made.onclick = () => { choose(i, j); mark(grid.parentElement, made); };
    return made;
  }
  const cells = rows.map((row, i) => row.map((x, j) => cell(x, i, j)));
  const named = (className, texts) => texts.map(text => make("b", { className }, text));
  const lines = cells.flatMap((line, i) => [...named("down", down ? [down[i]] : []), ...line]);
  const look = { className: texts?.length ? "cells written" : "cells", style: `--columns: ${width}` };
  const first = named("across", across ? ["", ...across] : []);
  const grid = make("div", { ...look, role: "group", ariaLabel: title }, ...first, ...lines);
  grid.onpointerleave = () => { caption.textContent = title; };
  grid.onkeydown = event => {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width }[event.key], all = cells.flat();
    if (event.key === "Enter") event.target.click();
    if (move) event.preventDefault();
    all[all.indexOf(event.target) + move]?.focus();
  };
  return make("figure", { className: "heat" }, caption, grid);
}
