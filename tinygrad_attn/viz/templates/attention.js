const page = dataOf("data"), heads = byId("heads"), calls = byId("calls"), tokens = byId("tokens");
let d, head = 0, query = 0;
const text = (id, value) => { byId(id).textContent = value; };
const n = x => x === null ? "-inf" : (Math.abs(x) >= 1e4 || x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : x.toFixed(4);
const vector = xs => "[" + xs.slice(0, xs.length > 6 ? 4 : 6).map(n).join(", ") + (xs.length > 6 ? ", ... (" + xs.length + ")" : "") + "]";
function row(cells, name) {
  const tr = make("tr", { className: name || "" });
  for (const cell of cells) {
    const td = make("td", {});
    if (typeof cell === "object") {
      td.className = "bar";
      const bar = make("span", {});
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
function head_row(names) { byId("columns").replaceChildren(...names.map(name => make("th", { className: name === "weight" ? "bar" : "", textContent: name }))); }
function show() {
  const weight = d.weights[head][query], most = Math.max(...weight);
  [...tokens.children].forEach((b, i) => b.setAttribute("aria-pressed", i === query));
  text("said", "query " + d.queries[query] + ", head " + head);
  if (!d.q) {
    head_row(["key", "weight"]);
    return byId("scores").replaceChildren(...d.keys.map((key, j) => row([key, { share: weight[j] }], weight[j] === most ? "most" : "")));
  }
  const q = d.q[head][query], score = d.score[head][query], mask = d.mask && d.mask[head][query];
  text("q", vector(q));
  const added = score.map((s, j) => mask ? (mask[j] === null ? null : s * d.scale + mask[j]) : s * d.scale);
  const open = added.filter(x => x !== null), top = open.length ? Math.max(...open) : 0;
  const powers = added.map(x => x === null ? 0 : Math.exp(x - top)), total = powers.reduce((a, b) => a + b, 0);
  head_row(["key", "score q \u00b7 k", "\u00d7 scale", ...(mask ? ["mask", "+ mask"] : []), "exp(\u00b7 \u2212 max)", "weight", "k"]);
  const rows = d.keys.map((key, j) => row(
    [key, n(score[j]), n(score[j] * d.scale), ...(mask ? [mask[j] === null ? "blocked" : n(mask[j]), n(added[j])] : []),
     n(powers[j]), { share: weight[j] }, vector(d.k[head][j])], added[j] === null ? "blocked" : weight[j] === most ? "most" : ""));
  rows.push(row(["sum", "", "", ...(mask ? ["", ""] : []), n(total), { share: weight.reduce((a, b) => a + b, 0) }, ""], "sum"));
  byId("scores").replaceChildren(...rows);
  const parts = d.keys.map((key, j) => row([key, n(weight[j]), vector(d.v[head][j]), vector(d.v[head][j].map(x => weight[j] * x))],
                                           weight[j] === most && most > 0 ? "most" : added[j] === null ? "blocked" : ""));
  parts.push(row(["output = sum", "", "", vector(d.output[head][query])], "sum"));
  byId("sums").replaceChildren(...parts);
  text("note", open.length ? "" : "Every key is blocked for this query: all weights are zero, and so is the output.");
}
function choose(i) { query = i; show(); }
function map() {
  const rows = d.weights[head];
  byId("map").replaceChildren(...(rows.length * rows[0].length > 2500 ? [] : [heat({ shape: "(" + rows.length + ", " + rows[0].length + ")", part: "", rows }, "weight", choose)]));
}
function call(i) {
  d = page.calls[i];
  head = Math.min(head, d.weights.length - 1);
  query = Math.min(query, d.queries.length - 1);
  heads.replaceChildren(...d.weights.map((_, h) => new Option(h, h, false, h === head)));
  byId("choose").hidden = d.weights.length === 1;
  byId("vector").hidden = byId("second").hidden = !d.q;
  text("formula", d.q ? "output = softmax(q k\u1d40 \u00d7 scale" + (d.mask ? " + mask" : "") + ") v, with scale = " + +d.scale.toPrecision(6) + " and D = " + d.k[0][0].length + "." : "The weights that were recorded: softmax(q k\u1d40 \u00d7 scale + mask).");
  tokens.replaceChildren(...d.queries.map((name, k) => make("button", { type: "button", textContent: name, onclick: () => choose(k) })));
  map();
  show();
}
page.calls.forEach((c, i) => {
  const same = page.calls.filter(other => other.name === c.name);
  calls.append(new Option(c.name + (same.length > 1 ? ", call " + (same.indexOf(c) + 1) : ""), i));
});
byId("which").hidden = page.calls.length === 1;
calls.addEventListener("change", () => call(Number(calls.value)));
heads.addEventListener("change", () => { head = Number(heads.value); map(); show(); });
document.addEventListener("keydown", event => {
  if (taken(event)) return;
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  choose((query + step + d.queries.length) % d.queries.length);
  tokens.children[query].focus();
});
query = page.chosen;
call(0);
