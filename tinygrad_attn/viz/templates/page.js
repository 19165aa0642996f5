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

// Zoom and pan of the drawing in a box that scrolls: buttons, + - 0, the wheel with Ctrl, dragging.
function pane(box, buttons) {
  let scale = 1, dragged = false;
  const drawing = () => box.querySelector("svg"), natural = () => drawing().viewBox.baseVal;
  function zoom(to) {
    if (!drawing()) return;
    const before = scale, x = box.scrollLeft + box.clientWidth / 2, y = box.scrollTop + box.clientHeight / 2;
    scale = Math.max(.1, Math.min(4, to));
    drawing().setAttribute("width", natural().width * scale);
    drawing().setAttribute("height", natural().height * scale);
    box.scrollTo(x * scale / before - box.clientWidth / 2, y * scale / before - box.clientHeight / 2);
  }
  function fit() {  // a small drawing fills the box, a tall one its width
    if (!drawing()) return;
    const wide = (box.clientWidth - 24) / natural().width, high = (box.clientHeight - 24) / natural().height;
    zoom(Math.min(2, Math.max(Math.min(wide, high), Math.min(wide, .8), .45)));
  }
  function centre(element) {
    const at = element.getBoundingClientRect(), frame = box.getBoundingClientRect();
    box.scrollBy({ left: at.left + at.width / 2 - frame.left - frame.width / 2, top: at.top + at.height / 2 - frame.top - frame.height / 2 });
  }
  const actions = { "-": () => zoom(scale / 1.25), "0": fit, "+": () => zoom(scale * 1.25) };
  for (const [key, [sign, label]] of Object.entries({ "-": ["\u2212", "zoom out"], "0": ["fit", "fit the drawing"], "+": ["+", "zoom in"] }).sort((a, b) => "-0+".indexOf(a[0]) - "-0+".indexOf(b[0]))) {
    const button = make("button", { type: "button", textContent: sign, onclick: actions[key] });
    button.setAttribute("aria-label", label);
    buttons.append(button, " ");
  }
  document.addEventListener("keydown", event => { if (!taken(event) && actions[event.key]) actions[event.key](); });
  box.addEventListener("wheel", event => { if (event.ctrlKey) { event.preventDefault(); zoom(scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1)); } }, { passive: false });
  let from = null;
  box.addEventListener("pointerdown", event => { dragged = false; if (event.pointerType === "mouse") from = [event.clientX + box.scrollLeft, event.clientY + box.scrollTop]; });
  window.addEventListener("pointermove", event => {
    if (!from) return;
    const to = [from[0] - event.clientX, from[1] - event.clientY];
    dragged ||= Math.hypot(to[0] - box.scrollLeft, to[1] - box.scrollTop) > 4;
    if (dragged) box.scrollTo(...to);
  });
  window.addEventListener("pointerup", () => { from = null; });
  box.addEventListener("click", event => { if (dragged) event.stopPropagation(); }, true);
  window.addEventListener("resize", fit);
  return { fit, centre };
}
