const digits = dataOf("data"), pictures = digits.map(digit => inked(digit.pixels, digit.label));
choices("choose", pictures, i => {
  showDigit(digits[i], byId("maps"));
  byId("label").textContent = digits[i].label;
});
press("choose", 0);
