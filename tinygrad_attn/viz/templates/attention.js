const page = dataOf("data"), sum = xs => xs.reduce((a, b) => a + b, 0);
const COLUMNS = {
  score: "score q · k", scaled: "× scale", mask: "mask", masked: "+ mask",
  powers: "exp(· − max)", weights: "weight",
};
let d, head = 0, query = 0;

function show() {
  const at = name => d[name][head][query], { keys } = d, weight = at("weights");
  const columns = Object.keys(COLUMNS).filter(name => d[name]).map(name => [COLUMNS[name], ...at(name)]);
  for (const column of columns.slice(-2)) column.push(sum(column.slice(1))); // the powers and the weights
  const text = (x = "") => x === null ? "-inf" : brief(x, 4);
  const row = (key, i) => tableRow([key, ...columns.map(column => text(column[i]))]);
  fill("scores", ...["key", ...keys, "sum"].map(row));
  fill("said", `query ${d.queries[query]}, head ${head}`);
  if (!d.q) return;

  byId("note").hidden = sum(weight) > 0;
  const v = d.v[head], down = [...keys, "output = sum"];
  const parts = v.map((row, j) => row.map(x => weight[j] * x));
  fill("vectors", heat({ rows: [at("q")] }, "q"), heat({ rows: d.k[head], down: keys }, "k"));
  const sums = heat({ rows: [...parts, at("output")], down }, "weight × v");
  fill("sums", heat({ rows: v, down: keys }, "v"), sums);
}
function chooseHead(h) {
  const rows = d.weights[h], shape = `(${rows.length}, ${rows[0].length})`;
  head = h;
  fill("map", rows.flat().length <= 2500 ? heat({ rows, shape }, "weight", i => press("tokens", i)) : "");
  show();
}
function chooseCall(i) {
  d = page.calls[i];
  query = Math.min(query, d.queries.length - 1);
  document.body.classList.toggle("recorded", !d.q);
  fill("formula", d.formula ?? "");
  choices("tokens", d.queries, q => { query = q; show(); });
  choices("heads", d.weights.map((_, h) => h), chooseHead);
  press("heads", Math.min(head, d.weights.length - 1));
  press("tokens", query);
}
choices("calls", page.calls.map(call => call.name), chooseCall);
press("calls", 0);
