const digits = dataOf("data"), choose = byId("choose"), view = digitView(byId("large"), byId("maps"));
function show(digit) {
  view(digit);
  byId("label").textContent = digit.label;
  [...choose.children].forEach((button, i) => button.setAttribute("aria-pressed", digits[i] === digit));
}
choose.append(...digits.map(digit => make("button", { type: "button", ariaLabel: digit.label, onclick: () => show(digit) },
  svg("svg", { viewBox: "0 0 8 8", width: 44, height: 44 }, ...inked(digit.pixels)))));
show(digits[0]);
