"use strict";
const byId = id => document.getElementById(id);
const dataOf = id => JSON.parse(byId(id).textContent);
const fill = (id, ...children) => byId(id).replaceChildren(...children);
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
/** Fill an element with radio buttons, among which the arrow keys move. */
function choices(id, labels, choose) {
  const button = i => make("input", { type: "radio", name: id, onchange: () => choose(i) });
  fill(id, ...labels.map((label, i) => make("label", {}, button(i), label)));
}
/** Press one of them, or a cell of a heat map. */
const press = (id, i) => byId(id).querySelectorAll("input, .cells > span")[i].click();
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
  const columns = rows[0]?.length ?? 0, title = shape === "()" ? name : `${name} ${shape}${part}`;
  const top = Math.max(1e-30, ...rows.flat().filter(Number.isFinite).map(Math.abs));
  const small = columns <= 6 && rows.length <= 8;
  const written = texts?.flat() ?? (small ? rows.flat().map(x => brief(x)) : []);
  const cells = rows.flat().map((x, k) => {
    const share = Number.isFinite(x) ? x / top : { "-inf": -1, inf: 1 }[x];
    const className = share < 0 ? "minus" : share >= 0 ? "plus" : "", style = `--much: ${100 * Math.abs(share ?? 1)}%`;
    return make("span", { className, style, tabIndex: k ? -1 : 0 }, written[k] ?? "");
  });
  const named = (className, texts) => texts.map(text => make("b", { className }, text));
  const line = i => [...named("down", down ? [down[i]] : []), ...cells.slice(i * columns, (i + 1) * columns)];
  const lines = [...named("across", across ? ["", ...across] : []), ...rows.flatMap((_, i) => line(i))];
  const look = { className: written.length ? "cells written" : "cells", style: `--columns: ${columns}` };
  const grid = make("div", { ...look, role: "group", ariaLabel: title }, ...lines);
  const caption = make("figcaption", {}, title);

  const placed = use => ({ target }) => {
    const k = cells.indexOf(target);
    if (k >= 0) use(Math.floor(k / columns), k % columns, target);
  };
  const index = (i, j) => shape === "()" ? "" : rows.length > 1 ? `[${i}, ${j}]` : `[${j}]`;
  said ??= (i, j) => `${name}${index(i, j)} = ${rows[i][j]}`;
  const point = placed((i, j, cell) => { cell.ariaLabel = caption.textContent = said(i, j); });
  grid.addEventListener("pointerover", point);
  grid.addEventListener("focusin", point);
  grid.addEventListener("pointerleave", () => { caption.textContent = title; });
  if (choose) grid.addEventListener("click", placed((i, j, chosen) => {
    choose(i, j);
    for (const cell of cells) cell.classList.toggle("chosen", cell === chosen);
  }));
  grid.addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (event.key === "Enter") event.target.click();
    if (move) event.preventDefault();
    cells[cells.indexOf(event.target) + move]?.focus();
  });
  return make("figure", { className: "heat" }, caption, grid);
}
