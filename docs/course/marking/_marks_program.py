"""Marker for chapter 21: find the wrong gradients of a program, and repair the line behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise

RIGHT = '''
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
    mean = (d_normalised * normalised).mean(-1, keepdims=True)            # (3, 1)
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

CHANGED = (
    "mean = (d_norm * normalised).mean(-1, keepdims=True)",
    "mean = (d_normalised * normalised).mean(-1, keepdims=True)",
)
"""The wrong line in the exercise and the right line that it replaced."""

PROGRAM = RIGHT.replace(CHANGED[1], CHANGED[0] + " " * 6)

RIGHT_TOO = "Central differences with a step of 1e-6 agree to six digits here. Have you divided by twice the step, and multiplied the gradient by the same u?"
CASES = (
    (
        "a sign",
        "d_y = -d_result",
        "d_y = d_result",
        "The slope has the opposite sign. Do you compare absolute values?",
    ),
    (
        "a program that is right",
        "",
        "",
        RIGHT_TOO,
    ),
    (
        "a factor of 2",
        "d_W2 = hidden.T @ d_result",
        "d_W2 = 2 * hidden.T @ d_result",
        "The gradient has the right direction but is twice as long. Compare sum(gradient * u) itself with the difference quotient.",
    ),
    (
        "one element",
        "d_bias = d_norm.sum(0)",
        "d_bias = d_norm.sum(0) * (np.arange(4) < 3)",
        "Only its last element is wrong, so nudge all of them.",
    ),
    (
        "a matrix transposed",
        "d_Wv = x.T @ d_v",
        "d_Wv = d_v.T @ x",
        "The sum of its elements is right. Nudge along a random direction, because a direction of ones tests only the sum.",
    ),
    (
        "a thousandth",
        "d_weight = (d_norm * normalised).sum(0)",
        "d_weight = 1.001 * (d_norm * normalised).sum(0)",
        "It is off by a thousandth. Central differences with a step of 1e-6 are much more accurate than that, so use a smaller tolerance.",
    ),
    (
        "not a number",
        "d_W1 = norm.T @ g1",
        "d_W1 = norm.T @ g1 * np.nan",
        "It is NaN, and NaN > 1e-5 is false, like every comparison with NaN. Test whether the difference is small, not whether it is large.",
    ),
    (
        "a sum over the other axis",
        "(d_weights * weights).sum(-1, keepdims=True)",
        "(d_weights * weights).sum(0)",
        "All of these depend on the wrong line.",
    ),
    ("PROGRAM", CHANGED[1], CHANGED[0], "All of these depend on the wrong line."),
)
"""For each check: its name, a piece of the program, the replacement, and help for a student who does
not find the wrong gradient.
"""


@exercise(
    21,
    "written",
    "find the wrong gradients of a program, and the line that causes them",
)
def _(marks: Marks) -> None:
    wrong_gradients, mended = marks.function("wrong_gradients"), marks.function("mended")
    marks.idea("a slope along a random direction judges each gradient", 4, main=True, each=True)
    for name, old, new, about in CASES:
        marks.that(
            f"wrong_gradients: {name}",
            lambda old=old, new=new, about=about: finds(
                wrong_gradients, RIGHT.replace(old, new) if old else RIGHT, about
            ),
            "",
            weight=float(bool(old)),
        )
    marks.that(
        "wrong_gradients: the given arrays do not change",
        lambda: unchanged(wrong_gradients),
        "x += step * u changes the given array, so all later nudges start from other numbers. Write x + step * u.",
        weight=0,
    )
    marks.idea("the wrong line, by what depends on it", 2)
    marks.that("mended: the line that was changed", lambda: chosen(mended()), "")
    marks.that("mended: all gradients are right", lambda: repaired(*pair(mended())), "")


def arrays() -> dict[str, np.ndarray]:
    """Return all arguments of the program."""
    rng = np.random.default_rng(21)
    shapes = dict.fromkeys(["x", "y"], (3, 4)) | dict.fromkeys(["Wq", "Wk", "Wv"], (4, 4))
    shapes |= {"weight": (4,), "bias": (4,), "W1": (4, 6), "W2": (6, 4)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def run(text: str) -> Callable[..., Any]:
    """Return the function that the program defines."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["forward_backward"]


def wrong_in(text: str) -> list[str]:
    """List the gradients that differ from those of the right program, which has the same loss."""
    (_, right), (_, found) = (run(one)(**arrays()) for one in (RIGHT, text))
    same = lambda name: (
        np.shape(found[name]) == np.shape(right[name])
        and np.allclose(found[name], right[name], rtol=1e-9, atol=1e-12)
    )
    return [name for name in right if not same(name)]


def listed(names: Any) -> str:
    return ", ".join(names) or "none"


def finds(wrong_gradients: Callable[..., Any], text: str, about: str) -> bool:
    found, wrong = wrong_gradients(run(text), arrays()), wrong_in(text)
    if isinstance(found, str) or not all(isinstance(name, str) for name in found):
        raise Wrong(
            f"wrong_gradients returns {found!r}, but it should return a list of names such as ['x', 'Wq']."
        )
    if unknown := [name for name in found if name not in arrays()]:
        raise Wrong(
            f"wrong_gradients names {listed(unknown)}, but the arrays are {listed(arrays())}."
        )
    missed = [name for name in wrong if name not in found]
    if missed:
        raise Wrong(
            f"The wrong gradients are: {listed(wrong)}. You did not find: {listed(missed)}.\n{about}"
        )
    if more := [name for name in found if name not in wrong]:
        raise Wrong(
            f"The wrong gradients are: {listed(wrong)}. You also list: {listed(more)}, but these are right.\n"
            + (RIGHT_TOO if wrong else about)
        )
    return True


def unchanged(wrong_gradients: Callable[..., Any]) -> bool:
    """Check the arrays at every call of the program, because they may be restored later."""
    given, program, same = arrays(), run(RIGHT), []

    def watched(**used: Any) -> Any:
        same.append(all(np.array_equal(given[name], x) for name, x in arrays().items()))
        return program(**used)

    wrong_gradients(watched, given)
    return all(same) and all(np.array_equal(given[name], x) for name, x in arrays().items())


# ---- the line


def pair(answer: Any) -> tuple[str, str]:
    if not (
        isinstance(answer, (tuple, list))
        and len(answer) == 2
        and all(isinstance(line, str) for line in answer)
    ):
        raise Wrong(
            "mended should return two lines of text: the line that was changed and the right one."
        )
    old, new = (bare(line) for line in answer)
    if old not in map(bare, PROGRAM.splitlines()):
        raise Wrong(
            f"PROGRAM has no line {old!r}. Copy the line from PROGRAM; you may leave out the comment with the shape."
        )
    return old, new


def bare(line: str) -> str:
    """Return the line without its comment and surrounding space."""
    return line.split("#")[0].strip()


def with_line(old: str, new: str) -> str:
    """Return PROGRAM with the line `old` replaced by `new`."""
    lines = PROGRAM.splitlines()
    return "\n".join("    " + new if bare(line) == old else line for line in lines)


def repaired(old: str, new: str) -> bool:
    """Raise Wrong unless PROGRAM is right with the new line."""
    text = with_line(old, new)
    try:
        with np.errstate(all="ignore"):
            loss, wrong = run(text)(**arrays())[0], wrong_in(text)
    except Exception as error:
        raise Wrong(
            f"PROGRAM does not run with your line: {type(error).__name__}: {error}"
        ) from error
    if not np.isclose(loss, run(RIGHT)(**arrays())[0], rtol=1e-9):
        raise Wrong("Your line changes the loss, but the forward part is right.")
    if wrong:
        raise Wrong(f"With your line, the gradients with respect to {listed(wrong)} are wrong.")
    return True


def chosen(answer: Any) -> bool:
    """Check that the right line was chosen; if not, say which gradients that line affects."""
    old, new = pair(answer)
    if old == CHANGED[0]:
        return True
    if old not in map(bare, PROGRAM.split("# ---- backward")[1].splitlines()):
        raise Wrong("This line is in the forward part, which is right. Look in the backward part.")
    try:  # if two lines belong together, either can be repaired
        return repaired(old, new)
    except Wrong:
        raise Wrong(innocent(old)) from None


def innocent(line: str) -> str:
    """Compare the gradients that this line affects (found by doubling its value) with the wrong ones."""
    wrong, assignment = wrong_in(PROGRAM), re.fullmatch(r"(\w+) = (.+)", line)
    if assignment is None:
        return "This line computes nothing."
    doubled = RIGHT.replace(line, f"{assignment[1]} = 2 * ({assignment[2]})")
    reached = wrong_in(doubled)
    said = f"This line affects the gradients with respect to {listed(reached)}. The gradients with respect to {listed(wrong)} are wrong."
    if more := [name for name in reached if name not in wrong]:
        return f"{said} If the line were wrong, {listed(more)} would be wrong as well."
    if missed := [name for name in wrong if name not in reached]:
        return f"{said} The line does not affect {listed(missed)}."
    return f"{said} So it is one of the few candidates, but it is right. Derive it from the matching line in the forward part to see why."
