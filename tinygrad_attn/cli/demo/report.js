const digits = dataOf("data");
const pictures = digits.map(({ picture, label }) => make("img", { src: picture, alt: label }));
choices("choose", pictures, i => {
  showDigit(digits[i], byId("maps"));
  byId("label").textContent = digits[i].label;
});
press("choose", 0);
