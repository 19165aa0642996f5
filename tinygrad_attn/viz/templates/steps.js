const steps = dataOf("steps"), slider = byId("slider"), box = byId("drawing"), play = byId("play");
pane(box, byId("zoom"));
let timer = null;
function input(c) {
  const sign = c.first ? "= " : "+= ", part = make("div", { className: "input" });
  part.append(make("h3", { textContent: "input " + c.place + ": " + c.name + " (n" + c.box + ")" }));
  if (c.rule) part.append(make("p", { className: "formula", textContent: "\u2202L/\u2202" + c.letter + " " + sign + c.rule + (c.summed ? ", summed to " + c.operand.shape : "") }));
  const maps = make("div", { className: "maps" }, heat(c.operand, c.letter), heat(c.value, c.first ? "contribution" : "contribution, added"));
  if (!c.first) maps.append(heat(c.total, "sum so far"));
  part.append(maps);
  const [code, place] = c.code;
  if (code) part.append(make("details", { open: code.length < 400 }, make("summary", { textContent: place }), make("pre", { tabIndex: 0, textContent: code })));
  return part;
}
function row(name, total, fresh) {
  return make("tr", { className: fresh ? "new" : "" }, make("td", { textContent: name }), make("td", { textContent: total }));
}
function show(k) {
  k = Math.max(0, Math.min(steps.length - 1, k));
  slider.value = k;
  const step = steps[k];
  slider.setAttribute("aria-valuetext", "step " + (k + 1) + ": " + step.op);
  byId("count").textContent = (k + 1) + " / " + steps.length;
  byId("title").textContent = step.title + "  (n" + step.box + ")";
  byId("equation").textContent = step.equation;
  byId("output").replaceChildren(heat(step.output, "y"), heat(step.incoming, "g"));
  byId("inputs").replaceChildren(...step.contributions.map(input));
  const sums = new Map(), reached = new Set([step.box]), done = new Set();
  steps.slice(0, k + 1).forEach((s, i) => {
    reached.add(s.box);
    s.arrows.forEach(a => done.add(a));
    s.contributions.forEach(c => { reached.add(c.box); sums.delete(c.box); sums.set(c.box, row(c.name + " (n" + c.box + ")", c.sum, i === k)); });
  });
  byId("sums").replaceChildren(...[...sums.values()].reverse());
  box.querySelectorAll(".now, .part").forEach(e => e.classList.remove("now", "part"));
  box.querySelectorAll("g.node").forEach(e => e.classList.toggle("later", !reached.has(Number(e.id.slice(1)))));
  box.querySelectorAll("g.edge").forEach(e => e.classList.toggle("later", !done.has(Number(e.id.slice(1)))));
  step.arrows.forEach(i => byId("e" + i)?.classList.add("part"));
  const current = byId("n" + step.box);
  if (current) { current.classList.add("now"); centre(current, box); }
  byId("side").scrollTop = 0;
  try { history.replaceState(null, "", "#step=" + (k + 1)); } catch { /* inside a notebook */ }
}
const now = () => Number(slider.value), asked = () => Number(/step=(\d+)/.exec(location.hash)?.[1] ?? 1) - 1;
function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); }
function toggle() {
  if (timer) return stop();
  if (now() === steps.length - 1) show(0);
  play.textContent = "Stop";
  play.setAttribute("aria-pressed", "true");
  timer = setInterval(() => { show(now() + 1); if (now() === steps.length - 1) stop(); }, 1200);
}
const go = k => { stop(); show(k); };
slider.addEventListener("input", () => go(now()));
byId("back").addEventListener("click", () => go(now() - 1));
byId("on").addEventListener("click", () => go(now() + 1));
play.addEventListener("click", toggle);
window.addEventListener("hashchange", () => { if (asked() !== now()) go(asked()); });
box.addEventListener("click", event => {  // a box's own step, or the last one that adds to a leaf
  const node = event.target.closest("g.node"), n = node && Number(node.id.slice(1));
  if (!node) return;
  const own = steps.findIndex(s => s.box === n), last = steps.findLastIndex(s => s.contributions.some(c => c.box === n));
  if (own >= 0 || last >= 0) go(own >= 0 ? own : last);
});
document.addEventListener("keydown", event => {
  if (taken(event)) return;
  if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); return toggle(); }
  const to = { ArrowRight: now() + 1, ArrowDown: now() + 1, ArrowLeft: now() - 1, ArrowUp: now() - 1, Home: 0, End: steps.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  go(to);
});
show(asked());
