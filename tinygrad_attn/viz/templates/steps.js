const steps = dataOf("steps"), slider = byId("slider"), zoom = byId("zoom"), box = byId("drawing");
box.style.setProperty("--natural", `${box.querySelector("svg")?.viewBox.baseVal.width}px`);

function input(c) {
  const [code, place] = c.code, summed = c.summed ? `, summed to ${c.operand.shape}` : "";
  const rule = c.rule && `∂L/∂${c.letter} ${c.first ? "=" : "+="} ${c.rule}${summed}`;
  const maps = [heat(c.operand, c.letter), heat(c.value, c.first ? "contribution" : "contribution, added")];
  if (!c.first) maps.push(heat(c.total, "sum so far"));
  const source = [make("summary", {}, place), make("pre", { tabIndex: 0 }, code)];
  return make("div", { className: "input" },
    make("h3", {}, `input ${c.place}: ${c.name} (n${c.box})`),
    make("p", { className: "formula" }, rule),
    make("div", { className: "maps" }, ...maps),
    make("details", { open: code.length < 400 }, ...source));
}
/** Scroll the drawing, and not the page, so that an element is in its middle. */
function centre(element) {
  const at = element.getBoundingClientRect(), frame = box.getBoundingClientRect();
  const left = at.left - frame.left + (at.width - frame.width) / 2;
  box.scrollBy({ left, top: at.top - frame.top + (at.height - frame.height) / 2 });
}
/** The ids of what a step computes from, and of all that has a gradient after it. */
const now = step => [`n${step.box}`, ...step.arrows.map(i => `e${i}`)];
const reached = step => [...now(step), ...step.contributions.map(c => `n${c.box}`)];
function show() {
  const k = slider.valueAsNumber, step = steps[k], done = steps.slice(0, k + 1), sums = new Map();
  for (const s of done) {
    for (const { box, name, sum } of s.contributions) {
      sums.delete(box); // the newest is the last
      const cells = [`${name} (n${box})`, sum].map(text => make("td", {}, text));
      sums.set(box, make("tr", { className: s === step ? "new" : "" }, ...cells));
    }
  }
  slider.ariaValueText = `step ${k + 1}: ${step.op}`;
  fill("count", `${k + 1} / ${steps.length}`);
  fill("title", `${step.title}  (n${step.box})`);
  fill("equation", step.equation);
  fill("output", heat(step.output, "y"), heat(step.incoming, "g"));
  fill("inputs", ...step.contributions.map(input));
  fill("sums", ...[...sums.values()].reverse());
  const ids = new Set(done.flatMap(reached));
  for (const element of box.querySelectorAll("g.node, g.edge")) {
    element.classList.toggle("later", !ids.has(element.id));
    element.classList.toggle("now", now(step).includes(element.id));
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
  const n = Number(event.target.closest("g.node")?.id.slice(1)), own = steps.findIndex(s => s.box === n);
  const k = own < 0 ? steps.findLastIndex(s => s.contributions.some(c => c.box === n)) : own;
  if (k >= 0) go(k);
});
show();
