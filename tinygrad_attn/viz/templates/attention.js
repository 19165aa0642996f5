const page = dataOf("data"), sum = xs => xs.reduce((a, b) => a + b, 0);
let d, head = 0, query = 0;

/** Fill the table of scores, whose columns begin with their headings. */
function table(...columns) {
  const number = x => Number.isFinite(x) ? brief(x, 4) : "-inf";
  const text = (x = "") => typeof x === "string" ? x : number(x);
  const row = (_, i) => make("tr", {}, ...columns.map(column => make("td", {}, text(column[i]))));
  fill("scores", ...columns[0].map(row));
}
function show() {
  const keys = d.keys, weight = d.weights[head][query];
  const first = ["key", ...keys, "sum"], last = ["weight", ...weight, sum(weight)];
  fill("said", `query ${d.queries[query]}, head ${head}`);
  if (!d.q) return table(first, last);

  const score = d.score[head][query], mask = d.mask?.[head][query], v = d.v[head];
  const scaled = score.map(x => x * d.scale);
  const added = mask ? scaled.map((x, j) => mask[j] === null ? -Infinity : x + mask[j]) : scaled;
  const top = Math.max(...added), blocked = top === -Infinity;
  const powers = added.map(x => blocked ? 0 : Math.exp(x - top));
  const masked = mask ? [["mask", ...mask], ["+ mask", ...added]] : [];
  const powered = ["exp(· − max)", ...powers, sum(powers)];
  table(first, ["score q · k", ...score], ["× scale", ...scaled], ...masked, powered, last);
  byId("note").hidden = !blocked;
  const parts = v.map((row, j) => row.map(x => weight[j] * x)), down = [...keys, "output = sum"];
  fill("vectors", heat({ rows: [d.q[head][query]] }, "q"), heat({ rows: d.k[head], down: keys }, "k"));
  fill("sums",
    heat({ rows: v, down: keys }, "v"),
    heat({ rows: [...parts, d.output[head][query]], down }, "weight × v"));
}
function chooseHead(h) {
  const rows = d.weights[h], shape = `(${rows.length}, ${rows[0].length})`;
  const small = rows.length * rows[0].length <= 2500;
  head = h;
  fill("map", small ? heat({ rows, shape }, "weight", i => press("tokens", i)) : "");
  show();
}
function chooseCall(i) {
  d = page.calls[i];
  query = Math.min(query, d.queries.length - 1);
  document.body.classList.toggle("recorded", !d.q);
  const numbers = d.q && `scale = ${brief(d.scale, 6)} and D = ${d.k[0][0].length}`;
  fill("formula", `output = softmax(q kᵀ × scale${d.mask ? " + mask" : ""}) v, with ${numbers}.`);
  choices("tokens", d.queries, q => { query = q; show(); });
  choices("heads", d.weights.map((_, h) => h), chooseHead);
  press("heads", Math.min(head, d.weights.length - 1));
  press("tokens", query);
}
choices("calls", page.calls.map(call => call.name), chooseCall);
press("calls", 0);
