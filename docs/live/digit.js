// The first page's digit: drawn with the mouse or a finger, read by the demo's model.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("digit"), { make, Output } = Live, SIZE = 192;
  const canvas = make("canvas", { width: SIZE, height: SIZE, role: "img", "aria-label": "Draw a digit here" });
  const pen = canvas.getContext("2d", { willReadFrequently: true }), answer = make("p", { role: "status" });
  const maps = make("div", { class: "maps" }), output = new Output("Errors of the digit");
  const patch = make("input", { type: "range", min: 0, max: 15, value: 5, "aria-label": "Patch that looks", input: () => draw() });
  let last, seen;
  const clear = () => {
    pen.fillStyle = "white";
    pen.fillRect(0, 0, SIZE, SIZE);
    Object.assign(pen, { lineWidth: 24, lineCap: "round", lineJoin: "round" });
    maps.replaceChildren();
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
  canvas.addEventListener("pointerup", () => { last = undefined; read(pixels()); });

  /** 8 x 8 means of the ink, which fills the height as in the images that the model has learnt from. */
  function pixels() {
    const ink = pen.getImageData(0, 0, SIZE, SIZE).data, sums = Array(64).fill(0);
    const dark = [...Array(SIZE * SIZE).keys()].filter(i => ink[4 * i] < 128);
    const xs = dark.map(i => i % SIZE), ys = dark.map(i => Math.floor(i / SIZE));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs) + 1, Math.min(...ys), Math.max(...ys) + 1];
    const scale = 8 / Math.max(right - left, bottom - top), cell = (x, low, high) => Math.floor((x - (low + high) / 2) * scale + 4);
    xs.forEach((x, i) => { sums[8 * cell(ys[i], top, bottom) + cell(x, left, right)] += scale * scale; });
    return JSON.stringify(sums.map(sum => Math.min(1, sum)));
  }
  const read = image => Live.inTurn(() => Live.call("digit", [image], (kind, text) => {
    if (kind !== "digit") return output.show(kind, text);
    seen = JSON.parse(text);
    const order = seen.scores.map((score, digit) => [score, digit]).sort((a, b) => b[0] - a[0]);
    answer.textContent = `A ${order[0][1]}: ${order.slice(0, 3).map(([score, digit]) => `${digit} ${(100 * score).toFixed(1)} %`).join(", ")}`;
    draw();
  }));

  /** The image for each head, with where one patch (blue) looks (orange). */
  function draw() {
    const query = Number(patch.value);
    maps.replaceChildren(...Object.entries(seen?.maps ?? {}).map(([name, weights]) => {
      const map = make("canvas", { width: 96, height: 96, role: "img", "aria-label": name, title: name }), ink = map.getContext("2d");
      const box = (colour, x, y, size) => { ink.fillStyle = colour; ink.fillRect(x * size, y * size, size, size); };
      seen.image.forEach((value, i) => box(`rgb(${Array(3).fill(255 - 200 * value)})`, i % 8, Math.floor(i / 8), 12));
      const most = Math.max(...weights[query]);
      weights[query].forEach((weight, i) => box(`rgba(230, 120, 0, ${0.8 * weight / most})`, i % 4, Math.floor(i / 4), 24));
      Object.assign(ink, { strokeStyle: "#0060c0", lineWidth: 3 });
      ink.strokeRect(query % 4 * 24 + 1, Math.floor(query / 4) * 24 + 1, 22, 22);
      map.addEventListener("click", event => {
        patch.value = Math.floor(event.offsetX * 4 / map.clientWidth) + 4 * Math.floor(event.offsetY * 4 / map.clientHeight);
        draw();
      });
      return make("figure", {}, map, make("figcaption", {}, name));
    }));
  }
  const show = make("button", { type: "button", click: () => { clear(); read(""); } }, "Show me one");
  const buttons = make("p", { class: "live-buttons" }, show, make("button", { type: "button", click: clear }, "Clear"));
  place.append(make("div", {}, canvas, buttons), make("div", {}, answer, maps, make("label", {}, "Patch that looks ", patch), output.box));
  clear();
});
