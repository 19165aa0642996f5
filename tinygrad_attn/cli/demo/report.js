const digits = dataOf("data"), pictures = digits.map(digit => inked(digit.pixels, `a written ${digit.label}`));
choices("choose", pictures, i => showDigit(digits[i], byId("maps")));
press("choose", 0);
