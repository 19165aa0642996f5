// The first page's digit: drawn with the mouse or a finger, read by the demo's model.
function readDigits(place) {
  const SIZE = 192, { t, button, row } = Live, output = Live.output(t("digit"));
  const look = { width: SIZE, height: SIZE, role: "img", ariaLabel: t("Draw a digit here") }, canvas = make("canvas", look);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const answer = make("p", { role: "status" }), maps = make("div", { className: "maps" });
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    pen.beginPath();
    pen.moveTo(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointermove", event => {
    if (!event.buttons) return;
    pen.lineTo(event.offsetX, event.offsetY);
    pen.stroke();
  });
  canvas.addEventListener("pointerup", () => read(pen.getImageData(0, 0, SIZE, SIZE).data));
  function clear() {
    Object.assign(pen, { fillStyle: "white", lineWidth: 24, lineCap: "round", lineJoin: "round" });
    pen.fillRect(0, 0, SIZE, SIZE);
    maps.replaceChildren();
    answer.textContent = t("Draw a digit with the mouse or a finger.");
  }
  const read = image => Live.inTurn(() => Live.call("digit", [image], output, { digit(text) {
    if (!text) return clear();
    const digit = JSON.parse(text);
    answer.textContent = t("The model reads a {}. Chances: {}. In each head, one patch (blue) looks where it is orange; click another:", digit.best, digit.chances);
    showDigit(digit, maps);
  } }));
  const buttons = row(button("Show me one", () => { clear(); read(); }), button("Clear", clear));
  place.replaceChildren(make("div", {}, canvas, buttons), make("div", {}, answer, maps, output.box));
  clear();
}
