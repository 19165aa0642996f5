"""Marker of chapter 21: a program whose gradients are to be checked, and one line of it mended."""

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
"""The line of the exercise, and what it was before."""

PROGRAM = RIGHT.replace(CHANGED[1], CHANGED[0] + " " * 6)

CASES = (
    (
        "a program that is right",
        "",
        "",
        "Central differences with a step of 1e-6 agree to six digits here. Are they divided by twice the step, and is the gradient multiplied by the same u?",
    ),
    (
        "a sign",
        "d_y = -d_result",
        "d_y = d_result",
        "Its slope has the opposite sign: do you compare absolute values?",
    ),
    (
        "a factor of 2",
        "d_W2 = hidden.T @ d_result",
        "d_W2 = 2 * hidden.T @ d_result",
        "It has the right direction and twice the length: compare sum(gradient * u) itself with the difference quotient.",
    ),
    (
        "one element",
        "d_bias = d_norm.sum(0)",
        "d_bias = d_norm.sum(0) * (np.arange(4) < 3)",
        "Only its last element is wrong: nudge all of them.",
    ),
    (
        "a matrix transposed",
        "d_Wv = x.T @ d_v",
        "d_Wv = d_v.T @ x",
        "The sum of its elements is right. Nudge along random numbers: ones see only the sum.",
    ),
    (
        "a thousandth",
        "d_weight = (d_norm * normalised).sum(0)",
        "d_weight = 1.001 * (d_norm * normalised).sum(0)",
        "It is off by a thousandth. Central differences with a step of 1e-6 are much better than that: allow less.",
    ),
    (
        "not a number",
        "d_W1 = norm.T @ g1",
        "d_W1 = norm.T @ g1 * np.nan",
        "It is NaN, and NaN > 1e-5 is false, as is every comparison with it. Ask whether it is close, not whether it is far.",
    ),
    (
        "a sum over the other axis",
        "(d_weights * weights).sum(-1, keepdims=True)",
        "(d_weights * weights).sum(0)",
        "These all depend on the line that is wrong.",
    ),
    ("PROGRAM", CHANGED[1], CHANGED[0], "These all depend on the line that is wrong."),
)
"""Names of checks; a piece of the program and its replacement; help if a wrong gradient is not found."""


@exercise(
    21,
    "written",
    "find wrong gradients of a program, and the line that makes them wrong",
    ready_made=("source", "gradcheck"),
)
def _(marks: Marks) -> None:
    wrong_gradients, mended = marks.function("wrong_gradients"), marks.function("mended")
    marks.that(
        "wrong_gradients: no array that is given changes",
        lambda: unchanged(wrong_gradients),
        "x += step * u changes the given array, so every later check uses other numbers. Write x + step * u.",
    )
    for name, old, new, about in CASES:
        marks.that(
            f"wrong_gradients: {name}",
            lambda old=old, new=new, about=about: finds(
                wrong_gradients, RIGHT.replace(old, new) if old else RIGHT, about
            ),
            "",
        )
    marks.that("mended: the line that was changed", lambda: chosen(mended()), "")
    marks.that("mended: all gradients are right", lambda: repaired(*pair(mended())), "")


def arrays() -> dict[str, np.ndarray]:
    """All that the program takes."""
    rng = np.random.default_rng(21)
    shapes = dict.fromkeys(["x", "y"], (3, 4)) | dict.fromkeys(["Wq", "Wk", "Wv"], (4, 4))
    shapes |= {"weight": (4,), "bias": (4,), "W1": (4, 6), "W2": (6, 4)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def run(text: str) -> Callable[..., Any]:
    """The function that a program defines."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["forward_backward"]


def wrong_in(text: str) -> list[str]:
    """Which gradients differ from those of the right program, which has the same loss."""
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
            f"wrong_gradients returns {found!r}; the task asks for a list of names, as ['x', 'Wq']."
        )
    if unknown := [name for name in found if name not in arrays()]:
        raise Wrong(f"{listed(unknown)}: there is no such array; they are {listed(arrays())}.")
    missed = [name for name in wrong if name not in found]
    if missed:
        raise Wrong(f"wrong are {listed(wrong)}; not found: {listed(missed)}.\n{about}")
    if more := [name for name in found if name not in wrong]:
        raise Wrong(
            f"wrong are {listed(wrong)}; named, and right: {listed(more)}.\n"
            + (CASES[0][-1] if wrong else about)
        )
    return True


def unchanged(wrong_gradients: Callable[..., Any]) -> bool:
    """Each array is looked at whenever the program is called, for it may be put back later."""
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
        raise Wrong("mended returns two lines of text: (the line that was changed, the right one).")
    old, new = (bare(line) for line in answer)
    if old not in map(bare, PROGRAM.splitlines()):
        raise Wrong(
            f"PROGRAM has no line {old!r}. Copy it from there; you may leave out the comment with the shape."
        )
    return old, new


def bare(line: str) -> str:
    """Without its comment and the space around it."""
    return line.split("#")[0].strip()


def with_line(old: str, new: str) -> str:
    """PROGRAM with another line in the place of one."""
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
            f"PROGRAM with your line does not run: {type(error).__name__}: {error}"
        ) from error
    if not np.isclose(loss, run(RIGHT)(**arrays())[0], rtol=1e-9):
        raise Wrong("Your line changes the loss. The forward part is right.")
    if wrong:
        raise Wrong(
            f"With your line in its place, the gradients with respect to {listed(wrong)} are wrong."
        )
    return True


def chosen(answer: Any) -> bool:
    """Check that it is this line; if not, say which gradients it affects."""
    old, new = pair(answer)
    if old == CHANGED[0]:
        return True
    if old not in map(bare, PROGRAM.split("# ---- backward")[1].splitlines()):
        raise Wrong("This line is not in the backward part; the forward part is right.")
    try:  # with two lines that belong together, either can be mended
        return repaired(old, new)
    except Wrong:
        raise Wrong(innocent(old)) from None


def innocent(line: str) -> str:
    """Which gradients would change if this line gave twice as much, and which are wrong."""
    wrong, assignment = wrong_in(PROGRAM), re.fullmatch(r"(\w+) = (.+)", line)
    if assignment is None:
        return "This line computes nothing."
    doubled = RIGHT.replace(line, f"{assignment[1]} = 2 * ({assignment[2]})")
    reached = wrong_in(doubled)
    said = f"This line reaches the gradients with respect to {listed(reached)}; the wrong ones are those with respect to {listed(wrong)}."
    if more := [name for name in reached if name not in wrong]:
        return f"{said} If it were wrong, {listed(more)} would be wrong as well."
    if missed := [name for name in wrong if name not in reached]:
        return f"{said} It has nothing to do with {listed(missed)}."
    return f"{said} So it is one of the few candidates, but it is right. Derive it from its line in the forward part."
