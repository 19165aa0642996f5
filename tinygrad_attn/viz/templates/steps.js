const steps = dataOf("steps"), slider = byId("slider"), zoom = byId("zoom"), box = byId("drawing");
box.style.setProperty("--natural", `${box.querySelector("svg")?.viewBox.baseVal.width}px`);

function input(c) {
  const [code, place] = c.code;
  const maps = [heat(c.operand, c.letter), heat(c.value, c.first ? "contribution" : "contribution, added")];
  if (!c.first) maps.push(heat(c.total, "sum so far"));
  const source = [make("summary", {}, place), make("pre", { tabIndex: 0 }, code)];
  return make("div", { className: "input" },
    make("h3", {}, `input ${c.place}: ${c.name} (n${c.box})`),
    make("p", { className: "formula" }, c.formula),
    make("div", { className: "maps" }, ...maps),
    make("details", { open: code.length < 400 }, ...source));
}
/** Scroll the drawing, and not the page, so that an element is in its middle. */
function centre(element) {
  const at = element.getBoundingClientRect(), frame = box.getBoundingClientRect();
  const left = at.left - frame.left + (at.width - frame.width) / 2;
  box.scrollBy({ left, top: at.top - frame.top + (at.height - frame.height) / 2 });
}
function show() {
  const k = slider.valueAsNumber, step = steps[k], done = steps.slice(0, k + 1);
  const added = done.flatMap(s => s.contributions), last = new Map(added.map(c => [c.box, c]));
  const sums = added.filter(c => last.get(c.box) === c);
  const row = c => tableRow([`${c.name} (n${c.box})`, c.sum], step.contributions.includes(c) ? "new" : "");
  slider.ariaValueText = `step ${k + 1}: ${step.op}`;
  fill("count", `${k + 1} / ${steps.length}`);
  fill("title", `${step.title}  (n${step.box})`);
  fill("equation", step.equation);
  fill("output", heat(step.output, "y"), heat(step.incoming, "g"));
  fill("inputs", ...step.contributions.map(input));
  fill("sums", ...sums.reverse().map(row));
  const reached = new Set(done.flatMap(s => [...s.now, ...s.contributions.map(c => `n${c.box}`)]));
  for (const element of box.querySelectorAll("g.node, g.edge")) {
    element.classList.toggle("later", !reached.has(element.id));
    element.classList.toggle("now", step.now.includes(element.id));
  }
  box.querySelectorAll("g.node.now").forEach(centre);
  byId("side").scrollTop = 0;
}
function go(k) {
  slider.value = k;
  slider.focus({ preventScroll: true }); // its arrow keys move on
  show();
}
slider.addEventListener("input", show);
zoom.addEventListener("input", () => { box.style.setProperty("--zoom", zoom.value); show(); });
byId("back").addEventListener("click", () => go(slider.valueAsNumber - 1));
byId("on").addEventListener("click", () => go(slider.valueAsNumber + 1));
box.addEventListener("click", event => { // a box's own step, or the last one that adds to a leaf
  const n = Number(event.target.closest("g.node")?.id.slice(1));
  const k = steps.findLastIndex(s => s.box === n || s.contributions.some(c => c.box === n));
  if (k >= 0) go(k);
});
show();
