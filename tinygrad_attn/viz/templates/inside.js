const all = dataOf("data"), kind = byId("kind"), metric = byId("metric"), sink = byId("sink");
const heads = all.scores.induction[0].length, upwards = [...all.scores.induction.keys()].reverse();
let d, words, weights, token, layer, head; // the prompt, and what is chosen

const shown = text => text.replaceAll("\n", "↵").replace(/^ /, "·") || "∅";
const signed = x => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
const percent = x => Math.abs(x) < 0.001 ? "<0.1%" : `${(100 * x).toFixed(Math.abs(x) < 0.1 ? 1 : 0)}%`;
function strip(id, name, texts, values, text, choose) {
  const said = (_, k) => `${texts[k]}: ${text(values[k])}`;
  fill(id, heat({ rows: [values], texts: [texts], said }, name, choose));
}

// ---- tokens, and what comes next
function saliency() {
  strip("tokens", `The answer ${shown(d.answer)} depends on`, words, d.saliency[kind.value], signed, (_, k) => {
    token = k;
    byId("lens").querySelector(".chosen")?.classList.remove("chosen");
    next(upwards.length);
    looks();
  });
  press("tokens", token);
}
function next(state) {
  const where = state ? `, if layer ${state - 1} were the last` : ", from the embedding alone";
  const name = `after ${words[token]}${state === upwards.length ? "" : where}`, top = d.lens[state][token];
  const texts = top.map(([word, p]) => `${shown(word)} ${percent(p)}`);
  strip("next", name, texts, top.map(([, p]) => p), percent);
}
function lens() {
  const states = [...upwards.map(l => l + 1), 0], tops = states.map(l => d.lens[l].map(top => top[0]));
  const rows = tops.map(row => row.map(([, p]) => p)), texts = tops.map(row => row.map(([word]) => shown(word)));
  const down = states.map(l => l ? l - 1 : "in"), said = (i, t) => `${texts[i][t]}: ${percent(rows[i][t])}`;
  fill("lens", heat({ rows, texts, down, across: words, said }, "point at a cell", (i, t) => {
    press("tokens", t);
    next(states[i]);
  }));
}

// ---- heads
function weight(q, k) {
  const map = layer * heads + head, n = words.length, before = (q * (q + 1)) / 2;
  return k > q || (sink.checked && !k) ? 0 : weights[(map * n * (n + 1)) / 2 + before + k] / 255;
}
function grid() {
  const effects = d.effects[metric.value], text = effects ? x => `${signed(x)} nats` : percent;
  const rows = upwards.map(l => (effects ?? all.scores[metric.value])[l]), across = [...Array(heads).keys()];
  const said = (i, j) => `layer ${upwards[i]}, head ${j}: ${text(rows[i][j])}`;
  fill("grid", heat({ rows, down: upwards, across, said }, "point at a head", (i, j) => {
    [layer, head] = [upwards[i], j];
    map();
  }));
  fill("meaning", metric.selectedOptions[0].title);
}
function map() {
  const of = (tables, text) => Object.entries(tables).map(([name, table]) => `${name} ${text(table[layer][head])}`);
  const numbers = [...of(d.effects, signed), ...of(all.scores, percent)].join(", ");
  fill("said", `Layer ${layer}, head ${head}: ${numbers}.`);
  const rows = words.map((_, q) => words.map((_, k) => weight(q, k)));
  const said = (q, k) => `${words[q]} looks ${percent(rows[q][k])} at ${words[k]}`, matrix = { rows, said };
  fill("map", heat({ ...matrix, down: words, across: words }, "rows: queries, columns: keys", q => press("tokens", q)));
  looks();
}
const looks = () => strip("row", `${words[token]} looks at`, words, words.map((_, k) => weight(token, k)), percent);

function patching() {
  const { sentences: [, other], places, effects } = all.patching, rows = upwards.map(l => effects[l]);
  const said = (i, j) => `layer ${upwards[i]}, at ${places[j]}: ${rows[i][j].toFixed(2)}`;
  const look = { rows, down: upwards, across: other.map(shown), said };
  fill("patching", heat(look, "point at a cell"));
}
function prompt(i) {
  d = all.prompts[i];
  words = d.tokens.map(shown);
  weights = Uint8Array.from(atob(d.weights), c => c.charCodeAt(0));
  [[layer, head], token] = [d.head, words.length - 1];
  lens();
  grid();
  saliency();
  map();
}
patching();
choices("prompts", all.prompts.map(p => `${p.tokens.join("")} …${p.answer}`), prompt);
kind.addEventListener("change", saliency);
metric.addEventListener("change", grid);
sink.addEventListener("change", map);
press("prompts", 0);
