"use strict";
const d = JSON.parse(document.getElementById("data").textContent);
let head = 0, query = d.chosen;
const text = (id, value) => { document.getElementById(id).textContent = value; };
const n = x => x === null ? "-inf" : (Math.abs(x) >= 1e4 || x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : x.toFixed(4);
const vector = xs => "[" + xs.slice(0, d.shown).map(n).join(", ") + (xs.length > d.shown ? ", ... (" + xs.length + ")" : "") + "]";
function row(cells, name) {
  const tr = document.createElement("tr");
  if (name) tr.className = name;
  for (const cell of cells) {
    const td = document.createElement("td");
    if (typeof cell === "object") {
      td.className = "bar";
      const bar = document.createElement("span");
      bar.style.width = (6 * cell.share).toFixed(3) + "em";
      td.append(bar, n(cell.share));
    } else {
      td.textContent = cell;
      if (String(cell).startsWith("[")) td.className = "vector";
    }
    tr.append(td);
  }
  return tr;
}
function show() {
  const q = d.q[head][query], score = d.score[head][query], weight = d.weight[head][query], mask = d.mask && d.mask[head][query];
  document.querySelectorAll("#tokens button").forEach((b, i) => b.setAttribute("aria-pressed", i === query));
  text("q", vector(q));
  const added = score.map((s, j) => mask ? (mask[j] === null ? null : s * d.scale + mask[j]) : s * d.scale);
  const open = added.filter(x => x !== null), top = open.length ? Math.max(...open) : 0;
  const powers = added.map(x => x === null ? 0 : Math.exp(x - top)), total = powers.reduce((a, b) => a + b, 0);
  const most = Math.max(...weight);
  const rows = d.keys.map((key, j) => row(
    [key, vector(d.k[head][j]), n(score[j]), n(score[j] * d.scale), ...(mask ? [mask[j] === null ? "blocked" : n(mask[j]), n(added[j])] : []),
     n(powers[j]), { share: weight[j] }], added[j] === null ? "blocked" : weight[j] === most ? "most" : ""));
  rows.push(row(["sum", "", "", "", ...(mask ? ["", ""] : []), n(total), { share: weight.reduce((a, b) => a + b, 0) }], "sum"));
  document.getElementById("scores").replaceChildren(...rows);
  const parts = d.keys.map((key, j) => row([key, n(weight[j]), vector(d.v[head][j]), vector(d.v[head][j].map(x => weight[j] * x))],
                                           weight[j] === most && most > 0 ? "most" : added[j] === null ? "blocked" : ""));
  parts.push(row(["output = sum", "", "", vector(d.output[head][query])], "sum"));
  document.getElementById("sums").replaceChildren(...parts);
  text("note", open.length ? "" : "Every key is blocked for this query: all weights are zero, and so is the output.");
  text("said", "query " + d.queries[query] + ", head " + head);
}
d.queries.forEach((name, i) => {
  const b = document.createElement("button");
  b.type = "button"; b.textContent = name;
  b.addEventListener("click", () => { query = i; show(); });
  document.getElementById("tokens").append(b);
});
const heads = document.getElementById("heads");
d.q.forEach((_, h) => heads.append(new Option("head " + h, h)));
heads.addEventListener("change", () => { head = Number(heads.value); show(); });
document.addEventListener("keydown", event => {
  if (event.target === heads || event.target.closest(".wide") || event.altKey || event.ctrlKey || event.metaKey) return;   // these scroll
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  query = (query + step + d.queries.length) % d.queries.length;
  document.querySelectorAll("#tokens button")[query].focus();
  show();
});
show();
