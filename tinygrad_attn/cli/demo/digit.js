// The demo's report and the first page of the documentation show digits by this.

/** Show where a patch of a digit looks in each head, over its picture. A click on another patch chooses it. */
function showDigit(digit, place, patch = digit.start) {
  place.replaceChildren(...Object.entries(digit.maps).map(([name, { [patch]: weights }]) => {
    const rows = [0, 4, 8, 12].map(i => weights.slice(i, i + 4)), title = `${name}: ${Math.max(...weights).toFixed(2)}`;
    const said = (i, j) => `${name}: ${rows[i][j].toFixed(2)}`;
    const figure = heat({ rows, texts: [], said }, title, (i, j) => showDigit(digit, place, 4 * i + j));
    figure.querySelectorAll(".cells > span")[patch].classList.add("chosen");
    figure.classList.add("digit");
    figure.append(make("img", { src: digit.picture, alt: name }));
    return figure;
  }));
}
