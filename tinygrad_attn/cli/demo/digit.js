// The demo's report and the first page of the documentation show digits by this.

/** Draw 8 x 8 pixels, from 0 to 1. */
function inked(pixels, ariaLabel) {
  const canvas = make("canvas", { width: 8, height: 8, role: "img", ariaLabel }), pen = canvas.getContext("2d");
  pixels.forEach((ink, i) => {
    pen.fillStyle = `rgb(0 0 0 / ${ink})`;
    pen.fillRect(i % 8, Math.floor(i / 8), 1, 1);
  });
  return canvas;
}
/** Show where a patch of a digit looks in each head, over its picture. A click on another patch chooses it. */
function showDigit(digit, place, patch = digit.start) {
  place.replaceChildren(...Object.entries(digit.maps).map(([name, { [patch]: weights }]) => {
    const rows = [0, 4, 8, 12].map(i => weights.slice(i, i + 4)), title = `${name}: ${Math.max(...weights).toFixed(2)}`;
    const said = (i, j) => `${name}: ${rows[i][j].toFixed(2)}`;
    const figure = heat({ rows, texts: [], said }, title, (i, j) => showDigit(digit, place, 4 * i + j));
    figure.querySelectorAll(".cells > span")[patch].classList.add("chosen");
    figure.classList.add("digit");
    figure.append(inked(digit.pixels, name));
    return figure;
  }));
}
