"""Compare the results of a program with the numbers printed in a document.

A row of a document is a line of text such as "-1.0328 -0.9185 0.6710 1.2804". Each of our numbers
is rounded to as many digits as the document shows, and must then be equal to the number there.
"""

import os
import sys

import numpy as np

QUICK = os.environ.get("TINYGRAD_ATTN_QUICK") == "1"
"""Set by the tests: train only enough to see that it works."""


def rounded(number, like):
    """Write `number` with as many digits as the text `like`: 0.30614 like "0.3061" is "0.3061"."""
    digits, _, exponent = like.partition("e")
    places = len(digits.partition(".")[2])
    return f"{number:.{places}{'e' if exponent else 'f'}}"


class Document:
    """The comparison with one document: `prints` compares numbers with it, and `check` tests other
    statements.
    """

    def __init__(self, title, in_chinese):
        self.equal = self.different = self.false = 0
        print(f"{title}  {in_chinese}")

    def say(self, text, in_chinese):
        """Print a heading in both languages."""
        print(f"\n{text}  {in_chinese}")

    def prints(self, what, found, printed):
        """Compare an array or Tensor with the rows of text `printed`, number by number, and print
        one marked line per row.
        """
        found = np.ravel(found.numpy() if hasattr(found, "numpy") else found)
        rows = [row.split() for row in printed.strip().splitlines()]
        if len(found) != sum(map(len, rows)):
            raise ValueError(
                f"{what}: there are {len(found)} numbers here and {sum(map(len, rows))} in the "
                "document."
            )
        for i, row in enumerate(rows):
            ours, found = [rounded(x, like) for x, like in zip(found, row)], found[len(row) :]
            same = [float(a) for a in ours] == [float(b) for b in row]
            self.equal, self.different = self.equal + same, self.different + (not same)
            name = what if len(rows) == 1 else f"{what}, line {i + 1}"
            print(f"{'equal     ' if same else 'different '} {name}: {' '.join(ours)}")
            if not same:
                print(f"           the document has: {' '.join(row)}")

    def check(self, statement, truth):
        """Check a statement that the document does not print but that must hold."""
        self.false += not truth
        print(f"{'true      ' if truth else 'false     '} {statement}")

    def end(self):
        """Print the result; exit with code 1 if a line differs or a statement is false."""
        wrong = [
            f"{n} {word}" for n, word in ((self.different, "different"), (self.false, "false")) if n
        ]
        print(
            f"\n{self.equal} lines equal"
            + (": all of them." if not wrong else "; " + ", ".join(wrong) + ".")
        )
        if wrong:
            sys.exit(1)
