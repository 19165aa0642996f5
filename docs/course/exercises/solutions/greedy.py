"""Chapter 14: writing one symbol after another.

In training, the decoder receives the right answer, shifted by one, so that each position sees only the symbols before it (teacher
forcing). When it writes, it receives the symbols written so far and adds the likeliest next symbol. Write both.

    shifted(answers, start)                 [[4, 2, 7]] -> [[start, 4, 2]]
    greedy(score, source, length, start)    `length` symbols for each source

score(source, written) returns the scores of the next symbol after each position of `written`: (B, S), (B, T) -> (B, T, V), a
Tensor. `written` begins with start, so it is never empty.
"""

import numpy as np


def shifted(answers, start):
    """(B, T) -> (B, T), integers. Return a new array, because the answers are still the targets."""
    return np.insert(answers[:, :-1], 0, start, axis=1)


def greedy(score, source, length, start):
    """Return the symbols written for each source, without start: an integer array (B, length)."""
    written = np.full((len(source), 1), start)
    for _ in range(length):
        best = score(source, written).numpy()[:, -1].argmax(axis=-1)
        written = np.concatenate([written, best[:, None]], axis=1)
    return written[:, 1:]
