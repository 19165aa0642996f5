const page = dataOf("data"), drawings = document.querySelectorAll("template"), box = byId("drawing"), depth = byId("depth");
const view = pane(box, byId("zoom"));
function show(k, focus, opened) {
  const state = page.states[k];
  box.replaceChildren(drawings[k].content.cloneNode(true));
  for (const [name, to] of Object.entries(state.targets)) {
    const element = byId(name);
    if (to === null || !element) continue;  // that picture would be too large, or nothing can draw
    const open = name[0] === "n", title = element.querySelector("text").textContent;
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    element.setAttribute("aria-expanded", !open);
    element.setAttribute("aria-label", (open ? "open " : "close ") + title);
    const go = event => { event.preventDefault(); event.stopPropagation(); show(to, title, open); };
    // Of a frame the title closes it: its inside is for the boxes.
    (open ? element : element.querySelector("text")).addEventListener("click", go);
    element.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") go(event); });
  }
  if (state.depth !== null) depth.value = state.depth;
  byId("said").textContent = state.depth === null ? focus.split(" ")[0] + (opened ? " open" : " closed") : state.depth + " of " + depth.max;
  view.fit();
  const name = e => e.querySelector("text").textContent.split(" ")[0];  // of a box and of its frame
  const same = focus && [...box.querySelectorAll("[role=button]")].find(e => name(e) === focus.split(" ")[0]);
  if (same) { same.focus({ preventScroll: true }); view.centre(same); }
}
depth.addEventListener("input", () => {
  const known = page.states.map((s, i) => [i, s.depth]).filter(s => s[1] !== null);
  const nearest = known.reduce((a, b) => Math.abs(b[1] - depth.value) < Math.abs(a[1] - depth.value) ? b : a);
  show(nearest[0]);
});
show(page.start);
