"""Chapter 21: a backward pass in which one line is wrong.

ta.source generated PROGRAM, below: attention with one head, a residual connection, layer norm, a feed-forward net with another
residual connection, and the mean of the squared differences from y. Then one line of its backward part was changed. Such a
program takes arrays by name, and returns the loss and a dict of gradients with the same names:

    loss, gradients = program(x=x, y=y, Wq=Wq, ...)        # gradients["x"] has the shape of x

Write two functions:

    wrong_gradients   calls any such program, and says which of its gradients are not the slopes of its loss
    mended            says which line of PROGRAM was changed, and what it was before

Find the line with the first function and a pencil. `run(PROGRAM)` turns the text into a function.

Hints for the first: nudge one array at a time, moving all its elements at once along a random direction u. The loss must change by
sum(gradient * u) times the step. Do not use ones for u, because they miss some mistakes: a matrix and its transpose have the same sum.
Central differences with a step of 1e-6 are accurate to about 1e-8 here. Work on a copy: the given arrays must not change.

Hints for the second: see chapter 21, "One line wrong". Look for the lines that all wrong gradients depend on, and no right
gradient. There are only a few such lines. Derive each from the lines of the forward part.
"""

import numpy as np

PROGRAM = '''
import numpy as np


def forward_backward(x, y, *, Wq, Wk, Wv, weight, bias, W1, W2):
    """loss and its gradients, for x (3, 4) float64, y (3, 4) float64."""
    if (x.shape, y.shape) != ((3, 4), (3, 4)):
        raise ValueError("written for other shapes")
    q = x @ Wq                                                            # (3, 4)
    k = x @ Wk                                                            # (3, 4)
    v = x @ Wv                                                            # (3, 4)
    scores = q @ k.T / 2.0                                                # (3, 3)
    e = np.exp(scores - scores.max(-1, keepdims=True))                    # (3, 3)
    totals = e.sum(-1, keepdims=True)                                     # (3, 1)
    weights = e / totals                                                  # (3, 3)
    h1 = x + weights @ v                                                  # (3, 4)
    centred = h1 - h1.mean(-1, keepdims=True)                             # (3, 4)
    centred = centred - centred.mean(-1, keepdims=True)                   # (3, 4)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-05)  # (3, 1)
    normalised = centred / deviation                                      # (3, 4)
    norm = normalised * weight + bias                                     # (3, 4)
    hidden = np.maximum(norm @ W1, 0)                                     # (3, 6)
    result = norm + hidden @ W2                                           # (3, 4)
    difference = result - y                                               # (3, 4)
    loss = (difference * difference).mean()
    # ---- backward
    d_result = 1 / 6 * difference                                         # (3, 4)
    d_y = -d_result                                                       # (3, 4)
    d_hidden = d_result @ W2.T                                            # (3, 6)
    d_W2 = hidden.T @ d_result                                            # (6, 4)
    g1 = np.where(hidden != 0, d_hidden, 0)                               # (3, 6)
    d_W1 = norm.T @ g1                                                    # (4, 6)
    d_norm = d_result + g1 @ W1.T                                         # (3, 4)
    d_bias = d_norm.sum(0)                                                # (4,)
    d_normalised = d_norm * weight                                        # (3, 4)
    d_weight = (d_norm * normalised).sum(0)                               # (4,)
    mean = (d_norm * normalised).mean(-1, keepdims=True)                  # (3, 1)
    d_centred = (d_normalised - mean * normalised) / deviation            # (3, 4)
    d_h1 = d_centred - d_centred.mean(-1, keepdims=True)                  # (3, 4)
    d_weights = d_h1 @ v.T                                                # (3, 3)
    d_v = weights.T @ d_h1                                                # (3, 4)
    d_scores = (d_weights - (d_weights * weights).sum(-1, keepdims=True)) * weights  # (3, 3)
    g1 = d_scores / 2.0                                                   # (3, 3)
    d_q = g1 @ k                                                          # (3, 4)
    d_k = g1.T @ q                                                        # (3, 4)
    d_Wv = x.T @ d_v                                                      # (4, 4)
    d_Wk = x.T @ d_k                                                      # (4, 4)
    d_Wq = x.T @ d_q                                                      # (4, 4)
    d_x = d_h1 + d_v @ Wv.T + d_k @ Wk.T + d_q @ Wq.T                     # (3, 4)
    return loss, {"x": d_x, "y": d_y, "Wq": d_Wq, "Wk": d_Wk, "Wv": d_Wv, "weight": d_weight,
                  "bias": d_bias, "W1": d_W1, "W2": d_W2}
'''


def run(text):
    """Return the function that a program defines."""
    names = {}
    exec(text, names)
    return names["forward_backward"]


def wrong_gradients(program, arrays):
    """program: a function as above; arrays: {name: float64 array}, all its arguments. Returns a list of names."""
    return None


def mended():
    """Return two lines of text: (the line of PROGRAM that was changed, the line as it was before)."""
    return None
