const all = dataOf("data"), prompts = byId("prompts"), tokens = byId("tokens"), kind = byId("kind"), metric = byId("metric"), sink = byId("sink");
const layers = all.scores.induction.length, heads = all.scores.induction[0].length;
let d, weights, place, layer = 0, head = 0, at = null;

// ---- small helpers
const shown = text => text.replaceAll("\n", "\u21b5").replace(/^ /, "\u00b7") || "\u2205";
const percent = x => Math.abs(x) < .001 ? "<0.1%" : (100 * x).toFixed(Math.abs(x) < .1 ? 1 : 0) + "%";
const signed = x => (x < 0 ? "\u2212" : "+") + Math.abs(x).toFixed(2);
const sum = xs => xs.reduce((a, b) => a + b, 0);
function tint(element, share) {  // -1 .. 1: blue below zero, orange above
  element.style.setProperty("--much", Math.round(85 * Math.abs(share)) + "%");
  element.style.setProperty("--tint", share < 0 ? "var(--minus)" : "var(--plus)");
  return element;
}
function bars(id, rows) {  // rows of [name, number, text, whether it stands out]
  const most = Math.max(...rows.map(row => Math.max(row[1], 0)), 1e-9);
  byId(id).replaceChildren(...rows.map(([name, number, text, main]) => {
    const bar = make("i", {});
    bar.style.width = (70 * Math.max(number, 0) / most).toFixed(1) + "%";
    return make("div", { className: main ? "bar main" : "bar" }, make("span", { textContent: name }), make("span", {}, bar, text));
  }));
}
function axes(figure, down, across) {  // a heat map with names of its rows and columns
  const names = (className, texts) => make("div", { className }, ...texts.map(text => make("span", { textContent: text })));
  const below = names("across", across);
  for (const name of ["--columns", "--size"]) below.style.setProperty(name, figure.querySelector(".cells").style.getPropertyValue(name));
  return make("div", { className: "axes" }, names("down", down), figure, below);
}
const upwards = [...Array(layers).keys()].reverse();

// ---- tokens, and what comes next
function saliency() {
  const values = d.saliency[kind.value], most = Math.max(...values.map(Math.abs));
  tokens.replaceChildren(...d.tokens.map((text, k) => tint(make("button", { type: "button", textContent: shown(text), title: String(values[k]), onclick: () => choose(k, null) }), values[k] / most)));
  const order = values.map((x, k) => k).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, 3);
  byId("weighs").textContent = "The answer " + shown(d.answer) + " depends most on " + order.map(k => shown(d.tokens[k]) + " (" + (kind.value === "times" ? signed(values[k]) : values[k].toFixed(2)) + ")").join(", ") + ". Choose a token to see what the model expects after it.";
}
function next() {
  const [l, t] = at ?? [layers, place], before = shown(d.tokens[t]);
  bars("next", d.lens[l][t].map(([word, p], i) => [shown(word), p, percent(p), i === 0]));
  byId("next").prepend(make("p", { className: "hint", textContent: "after " + before + (l === layers ? "" : l ? ", if layer " + (l - 1) + " were the last" : ", from the embedding alone") }));
}
function lens() {
  const rows = [...d.lens.keys()].reverse().map(l => make("tr", {}, make("th", { textContent: l ? l - 1 : "in" }), ...d.lens[l].map((top, t) =>
    tint(make("td", { textContent: shown(top[0][0]), title: percent(top[0][1]), onclick: () => choose(t, l) }), top[0][1]))));
  byId("lens").replaceChildren(make("tr", {}, make("th", { textContent: "" }), ...d.tokens.map(text => make("th", { textContent: shown(text) }))), ...rows);
}
function choose(t, l) {  // a token, and perhaps a layer of the lens
  place = t;
  at = l === null ? null : [l, t];
  byId("lens").querySelector(".at")?.classList.remove("at");
  if (at) byId("lens").rows[layers - l + 1].cells[t + 1].classList.add("at");
  [...tokens.children].forEach((button, k) => button.setAttribute("aria-pressed", k === place));
  next();
  row();
}

// ---- heads
const weight = (q, k) => k > q || sink.checked && !k ? 0 : weights[(layer * heads + head) * d.tokens.length * (d.tokens.length + 1) / 2 + q * (q + 1) / 2 + k] / 255;
const effect = () => d.effects[metric.value];
const MEANING = {
  mean: "Blue: without this head the answer is less likely. The mean is over ordinary text, so the head still does what it always does.",
  zero: "Blue: without this head the answer is less likely. Zero also takes away what the head always adds.",
  induction: "On random tokens that are repeated: how much of its attention the head gives to the token after the last occurrence.",
  names: "Alone, with its output from the sentence with exchanged names, the head moves the score by this share of the difference between both sentences: 0 nothing, 1 all.",
  previous: "On random tokens that are repeated: how much of its attention the head gives to the token before.",
  first: "On random tokens that are repeated: how much of its attention the head gives to the first token.",
};
function grid() {
  const values = effect() ?? all.scores[metric.value];
  const said = (i, j) => "layer " + upwards[i] + ", head " + j + ": " + (effect() ? signed(values[upwards[i]][j]) + " nats" : percent(values[upwards[i]][j]));
  const figure = heat({ shape: "", part: "", rows: upwards.map(l => values[l]), said }, "point at a head", (i, j) => { layer = upwards[i]; head = j; map(); });
  byId("grid").replaceChildren(axes(figure, upwards, [...Array(heads).keys()]));
  byId("meaning").textContent = MEANING[metric.value];
}
function map() {
  const score = name => percent(all.scores[name][layer][head]);
  byId("said").textContent = "Layer " + layer + ", head " + head + ". Set to its mean, it changes log p of " + shown(d.answer) + " by " + signed(d.effects.mean[layer][head]) + ", set to zero by " + signed(d.effects.zero[layer][head]) + ". Alone it carries " + percent(all.scores.names[layer][head]) + " of the name in the last picture. On repeated random tokens it gives " + score("induction") + " of its attention to what followed the last time, " + score("previous") + " to the previous token and " + score("first") + " to the first.";
  const rows = d.tokens.map((_, q) => d.tokens.map((_, k) => +weight(q, k).toFixed(2)));
  const said = (q, k) => shown(d.tokens[q]) + " looks " + percent(rows[q][k]) + " at " + shown(d.tokens[k]);
  const figure = heat({ shape: "", part: "", rows, said }, "rows: queries, columns: keys", q => choose(q, null));
  byId("map").replaceChildren(axes(figure, d.tokens.map(shown), d.tokens.map(shown)));
  row();
}
function row() {
  const seen = d.tokens.map((_, k) => weight(place, k)), most = Math.max(...seen, 1e-9);
  byId("row").replaceChildren(...d.tokens.map((text, k) => tint(make("span", { textContent: shown(text), title: percent(seen[k]), className: k === place ? "query" : "" }), seen[k] / most)));
  const order = seen.map((_, k) => k).sort((a, b) => seen[b] - seen[a]).slice(0, 3).filter(k => seen[k] > .01);
  byId("looks").textContent = shown(d.tokens[place]) + " looks at " + order.map(k => shown(d.tokens[k]) + " " + percent(seen[k])).join(", ") + ".";
}

// ---- tests and patching, which are the same for all prompts
const named = pairs => pairs.map(pair => pair.join(".")).join(", ");
function test(id, words) {
  const t = all.tests[id], mean = sum(t.controls) / t.controls.length;
  bars(id, [["all heads", t.whole, t.whole], ["without them", t.without, t.without, true], ...t.controls.map((x, i) => ["control " + (i + 1), x, x])]);
  byId(id + "-said").textContent = words(t, mean.toFixed(2));
}
test("repeated", (t, mean) => "Heads " + named(t.heads) + " (layer.head) have the highest induction scores on random tokens that are repeated. On other random tokens, the loss on the repetition is " + t.whole + " nats per token. Without these heads it is " + t.without + ", without the others " + mean + " on average. On ordinary text the loss goes from " + all.tests.text.whole + " to " + all.tests.text.without + " nats, without others to " + (sum(all.tests.text.controls) / all.tests.text.controls.length).toFixed(2) + ".");
test("names", (t, mean) => "Heads " + named(t.heads) + " carry most of the name in \u201c" + all.patching.sentences[0].join("") + "\u201d: " + t.heads.map(([l, h]) => percent(all.scores.names[l][h])).join(", ") + ", each alone, when its output is taken from the sentence with the names exchanged. In the same sentence with six other pairs of names, log p of the right name minus log p of the other is " + t.whole + " on average. Without these heads it is " + t.without + ", without the others " + mean + " on average. Choose one of these heads above, and see what the last token looks at: the name that it copies, or the repeated name that it suppresses.");
function patching() {
  const p = all.patching, [given, other] = p.sentences, rows = upwards.map(l => p.effects[l]);
  byId("patching-said").textContent = "The model reads \u201c" + other.join("") + "\u201d. In each cell, its state after one layer, at one token, is replaced by the state from \u201c" + given.join("") + "\u201d. The score is log p of " + p.names[0] + " minus log p of " + p.names[1] + ": " + p.ends[1] + " without a patch, and " + p.ends[0] + " in the other sentence. A cell has the share of this difference that its patch brings: 0 nothing, 1 all. Where the colour moves from the names to the last token, heads have carried the name there.";
  const said = (i, j) => "layer " + upwards[i] + ", at " + shown(other[j]) + (other[j] === given[j] ? "" : " from " + shown(given[j])) + ": " + rows[i][j].toFixed(2);
  byId("patching").replaceChildren(axes(heat({ shape: "", part: "", rows, said }, "point at a cell"), upwards, other.map(shown)));
}

// ---- a prompt
function prompt(i) {
  d = all.prompts[i];
  weights = Uint8Array.from(atob(d.weights), c => c.charCodeAt(0));
  const flat = d.effects.mean.flat(), least = flat.indexOf(Math.min(...flat));
  layer = Math.floor(least / heads);
  head = least % heads;
  place = d.tokens.length - 1;
  saliency(); lens(); grid(); map(); choose(place, null);
}
byId("size").textContent = layers + " layers of " + heads + " heads";
all.prompts.forEach((p, i) => prompts.append(new Option(p.tokens.join("") + " \u2026" + p.answer, i)));
prompts.addEventListener("change", () => prompt(Number(prompts.value)));
kind.addEventListener("change", () => { saliency(); choose(place, at && at[0]); });
metric.addEventListener("change", grid);
sink.addEventListener("change", map);
patching();
prompt(0);
