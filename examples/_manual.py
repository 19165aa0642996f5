"""Python's own manual as a sequence of numbers, and a model that predicts the next character by
counting.

The text is the help that comes with every Python (`pydoc_data.topics`, which help("for") prints),
so nothing is downloaded.
"""

from pydoc_data.topics import topics

import numpy as np


class Manual:
    """The text as numbers, one for each character. `head`, nine tenths of it, is for training, and
    `tail`, the rest, for evaluation.
    """

    def __init__(self, tail_multiple=1):
        """Make the length of the tail a multiple of `tail_multiple`."""
        text = "\n".join(topics.values())
        self.characters = sorted(set(text))
        self.number = {c: i for i, c in enumerate(self.characters)}
        self.all = self.encode(text)  # (N,)
        self.start = (
            len(text) - len(text) // 10 // tail_multiple * tail_multiple
        )  # where the tail begins
        self.head, self.tail = self.all[: self.start], self.all[self.start :]

    def encode(self, text):
        """ "if" -> the numbers of "i" and "f". Raises ValueError for a character that is not
        in the manual.
        """
        if unknown := sorted(set(text) - set(self.number)):
            raise ValueError(
                f"the manual has no {', '.join(map(repr, unknown))}, so the model cannot read this "
                "text"
            )
        return np.array([self.number[c] for c in text])

    def decode(self, numbers):
        return "".join(self.characters[i] for i in numbers)

    @property
    def vocabulary(self):
        """The number of different characters, V."""
        return len(self.characters)


def n_gram_losses(manual, longest=5, trust=4.0):
    """Return the nats per character of the tail when each character is predicted from the 0, 1, 2,
    ..., `longest` - 1 characters before it.

    p_n(c | h) = (count(h c) + trust p_{n-1}(c | h')) / (count(h) + trust), where h' is h without
    its first character. All counts come from the head. The shorter history weighs as much as
    `trust` observations. p_0 = 1 / V.
    """
    V, text, start = manual.vocabulary, manual.all, manual.start
    history = np.zeros(
        len(text), dtype=np.int64
    )  # the n characters before each one, as one integer in base V
    p, losses = 1 / V, []
    for n in range(longest):
        if n:
            history[n:] += text[:-n] * V ** (n - 1)
        together = history * V + text
        p = (count(together[n:start], together[start:]) + trust * p) / (
            count(history[n:start], history[start:]) + trust
        )
        losses.append(float(-np.log(p).mean()))
    return losses


def count(codes, wanted):
    """Count how often each of `wanted` occurs among `codes`."""
    codes = np.sort(codes)
    return np.searchsorted(codes, wanted, "right") - np.searchsorted(codes, wanted, "left")
