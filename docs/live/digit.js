// The first page's digit: drawn with the mouse or a finger, read by the demo's model.
function readDigits(place) {
  const SIZE = 192, canvas = make("canvas", { width: SIZE, height: SIZE, role: "img", ariaLabel: "Draw a digit here" });
  const pen = canvas.getContext("2d", { willReadFrequently: true }), answer = make("p", { role: "status" });
  const maps = make("div", { className: "maps" }), output = new Live.Output("Errors of the digit"), seen = make("div", { hidden: true });
  const large = svg("svg", { viewBox: "0 0 8 8", tabindex: 0, role: "application", "aria-label": "What the model sees; arrow keys choose the patch that looks" });
  const view = digitView(large, maps);
  let last;
  const clear = () => {
    pen.fillStyle = "white";
    pen.fillRect(0, 0, SIZE, SIZE);
    Object.assign(pen, { lineWidth: 24, lineCap: "round", lineJoin: "round" });
    seen.hidden = true;
    answer.textContent = "Draw a digit with the mouse or a finger.";
  };
  const at = event => [event.offsetX, event.offsetY].map(x => x * SIZE / canvas.clientWidth);
  canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); last = at(event); });
  canvas.addEventListener("pointermove", event => {
    if (!last) return;
    const stroke = new Path2D();
    stroke.moveTo(...last);
    stroke.lineTo(...(last = at(event)));
    pen.stroke(stroke);
  });
  canvas.addEventListener("pointerup", () => { last = undefined; read(pen.getImageData(0, 0, SIZE, SIZE).data.filter((_, i) => i % 4 === 0)); });

  const read = image => Live.inTurn(() => Live.call("digit", [image], (kind, text) => {
    if (kind !== "digit") return output.show(kind, text);
    if (!text) return clear();
    const digit = JSON.parse(text), order = digit.scores.map((score, i) => [score, i]).sort((a, b) => b[0] - a[0]);
    const chances = order.slice(0, 3).map(([score, i]) => `${i}: ${(100 * score).toFixed(1)} %`).join(", ");
    answer.textContent = `The model reads a ${order[0][1]}. Chances: ${chances}. This is what it sees, and where one patch (blue) looks (orange) in each head:`;
    seen.hidden = false;
    view(digit);
  }));

  const show = make("button", { type: "button", onclick: () => { clear(); read(); } }, "Show me one");
  const buttons = make("p", { className: "live-buttons" }, show, make("button", { type: "button", onclick: clear }, "Clear"));
  seen.append(large, maps);
  place.replaceChildren(make("div", {}, canvas, buttons), make("div", {}, answer, seen, output.box));
  clear();
}
