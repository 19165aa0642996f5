"""The bug zoo as exercises: find the op that makes the gradient of a small function wrong.

exercise zoo               the list
exercise zoo 3             the symptom of bug 3
exercise zoo 3 hint        what gradcheck says about the kind of mistake
exercise zoo 3 softmax     your answer
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import _bugs
import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor

SWEEP = "sweep"
"""The answer if all VJPs are right, but the engine combines their results wrongly."""


class Case(NamedTuple):
    """A bug, a function that shows it, the text of the function, the shapes of its inputs, and the op
    with the bug.
    """

    bug: str
    f: Callable[..., Any]
    text: str
    shapes: tuple[tuple[int, ...], ...]
    answer: str


def _doubled_once(x: Any) -> Any:
    a = x * 2
    return np.exp(a) * a


CASES = (
    Case("tanh-zero", lambda x: np.tanh(x) * np.exp(x), "np.tanh(x) * np.exp(x)", ((4,),), "tanh"),
    Case(
        "sum-axis-zero",
        lambda x: np.tanh(x) * np.sum(x, axis=0),
        "np.tanh(x) * np.sum(x, axis=0)",
        ((3, 3),),
        "sum",
    ),
    Case(
        "transpose-same-axes",
        lambda x: np.exp(np.transpose(x, (1, 2, 0))) * x,
        "np.exp(np.transpose(x, (1, 2, 0))) * x",
        ((2, 2, 2),),
        "transpose",
    ),
    Case(
        "getitem-overwrite",
        lambda x: np.sin(x[np.array([0, 0, 2])]) * 2,
        "np.sin(x[[0, 0, 2]]) * 2",
        ((3,),),
        "getitem",
    ),
    Case(
        "softmax-twice",
        lambda x: F.softmax(x) * np.tanh(x),
        "F.softmax(x) * np.tanh(x)",
        ((2, 3),),
        "softmax",
    ),
    Case(
        "matmul-transpose-all",
        lambda a, b: np.tanh(a @ b) + a,
        "np.tanh(a @ b) + a",
        ((2, 2, 2), (2, 2, 2)),
        "matmul",
    ),
    Case(
        "minus-same-operand",
        lambda x: (x - x) * 3 + np.exp(x),
        "(x - x) * 3 + np.exp(x)",
        ((3,),),
        "subtract",
    ),
    Case(
        "gradient-overwritten",
        lambda x: np.sin(x) + np.exp(x),
        "np.sin(x) + np.exp(x)",
        ((3,),),
        SWEEP,
    ),
    Case(
        "layer-norm-weight",
        lambda x, w: np.tanh(F.layer_norm(x, 4, w) * x),
        "np.tanh(F.layer_norm(x, 4, w) * x)",
        ((2, 4), (4,)),
        "layer_norm",
    ),
    Case(
        "mean-tuple",
        lambda x: np.exp(x) - np.mean(x, axis=(0, 1)),
        "np.exp(x) - np.mean(x, axis=(0, 1))",
        ((2, 3),),
        "mean",
    ),
    Case(
        "concatenate-zero",
        lambda a, b: np.concatenate([np.sin(a), b]) * 2,
        "np.concatenate([np.sin(a), b]) * 2",
        ((2,), (3,)),
        "concatenate",
    ),
    Case(
        "maximum-tie",
        lambda x: np.maximum(x, x) * np.cos(x),
        "np.maximum(x, x) * np.cos(x)",
        ((3,),),
        "maximum",
    ),
    Case(
        "where-in-place",
        lambda a, b: np.where([True, False, True], np.tanh(a), 0.0) + b,
        "np.where([True, False, True], np.tanh(a), 0.0) + b",
        ((3,), (3,)),
        "where",
    ),
    Case(
        "log-softmax-batch",
        lambda x: np.tanh(F.log_softmax(x)),
        "np.tanh(F.log_softmax(x))",
        ((3, 4),),
        "log_softmax",
    ),
    Case("depth-first", _doubled_once, "a = x * 2;  np.exp(a) * a", ((3,),), SWEEP),
    Case(
        "embedding-overwrite",
        lambda w: np.sin(F.embedding(np.array([[1, 1], [0, 2]]), w)),
        "np.sin(F.embedding([[1, 1], [0, 2]], w))",
        ((3, 2),),
        "embedding",
    ),
    Case(
        "gradient-aliased",
        lambda a, b: (lambda early: (a + b) + early)(np.exp(a)),
        "early = np.exp(a);  (a + b) + early",
        ((3,), (3,)),
        SWEEP,
    ),
    Case(
        "rms-norm-weight",
        lambda x, w: F.rms_norm(x, 4, w) + np.exp(x),
        "F.rms_norm(x, 4, w) + np.exp(x)",
        ((2, 4), (4,)),
        "rms_norm",
    ),
)


def main(number: str | None, answer: str | None) -> int:
    """List the bugs, show one, or mark an answer. Return 1 for a wrong answer, else 0. Raises
    ValueError for a number that does not exist.
    """
    if number is None:
        print(
            "The bug zoo as exercises: find the op that makes the gradient of a small function "
            "wrong.\n"
        )
        for i, case in enumerate(CASES, 1):
            print(f"{i:4}  {case.text}")
        print(
            "\nIn each of these, one VJP or the sweep through the VJPs is wrong, and each bug comes from "
            "a published engine. Look at one with\n    python -m tinygrad_attn exercise zoo NUMBER"
        )
        return 0
    if not number.isdecimal() or not 1 <= int(number) <= len(CASES):
        raise ValueError(f"the bugs have numbers from 1 to {len(CASES)}, got {number!r}.")
    case = CASES[int(number) - 1]
    if answer is None:
        print(symptom(case, int(number)))
        return 0
    if answer == "hint":
        print(hint(case))
        return 0
    return judge(case, answer)


def inputs(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(len(case.text))
    return [rng.standard_normal(shape) for shape in case.shapes]


def ops(case: Case) -> list[str]:
    """List the ops of the function in the order in which they run."""
    found, waiting = {}, [case.f(*(Tensor(x, requires_grad=True) for x in inputs(case)))]
    while waiting:
        t = waiting.pop()
        if isinstance(t, Tensor) and t._node is not None and t._node.number not in found:
            found[t._node.number] = t._node.op.__name__
            waiting += t._node.inputs
    return list(dict.fromkeys(found[tick] for tick in sorted(found)))


def check(case: Case) -> Any:
    with np.errstate(all="ignore"):
        return ta.gradcheck(case.f, inputs(case), raise_exception=False)


def symptom(case: Case, number: int) -> str:
    """Describe what a user of the engine would see: the value, and each gradient next to the slope."""
    plain = lambda: np.asarray(case.f(*map(Tensor, inputs(case))).numpy())
    right = plain()
    with _bugs.bug(case.bug):
        wrong, report = plain(), check(case)
    lines = [f"bug {number}:  {case.text}", ""]
    if np.allclose(right, wrong):
        lines.append("The value is right.")
    else:
        lines += ["The value is wrong. Expected", str(right.round(4)), "found", str(wrong.round(4))]
    if any(not entry.ok for entry in report.entries):
        lines.append("Gradients of a random weighted sum of its outputs:")
    for entry in report.entries:
        name = _letter(case, entry.name)
        if entry.ok:
            lines.append(f"The gradient with respect to {name} agrees with the slope of the value.")
        else:
            lines += [
                f"The gradient with respect to {name}: by the VJPs",
                str(entry.analytic.round(4)),
                "by central differences",
                str(entry.numeric.round(4)),
            ]
    if not report.entries:
        lines.append("gradcheck stops before it compares the gradients. See the hint.")
    lines += [
        "",
        f"Which op has the bug: {', '.join(ops(case))}? Or are all VJPs right, but the sweep "
        f"through them is wrong ({SWEEP})?",
        f"    python -m tinygrad_attn exercise zoo {number} hint        what kind of mistake it "
        "looks like",
        f"    python -m tinygrad_attn exercise zoo {number} ANSWER",
    ]
    return "\n".join(lines)


def hint(case: Case) -> str:
    """Return gradcheck's diagnosis without the name of the op."""
    with _bugs.bug(case.bug):
        report = check(case)
    if report:
        return "gradcheck passes, because the gradient agrees with the value. But both are wrong. Compare the value with NumPy's."
    return "gradcheck's diagnosis: " + re.sub(r"\bop '\w+'", "some op", report.diagnosis)


def judge(case: Case, answer: str) -> int:
    """Say whether the answer names the bug."""
    known = [*ops(case), SWEEP]
    if answer not in known:
        raise ValueError(
            f"{answer!r} does not occur in {case.text}; choose one of {', '.join(known)}."
        )
    if answer != case.answer:
        print(
            f"No. {case.text} is not wrong for that reason: "
            + (
                "the sweep is right, and the bug is in an op."
                if answer == SWEEP
                else f"the value and the VJP of {answer} are right."
            )
        )
        return 1
    with _bugs.bug(case.bug) as bug:
        report = check(case)
    report.place = None
    print(f"Yes, {answer}.\n\n{bug}\n\n{report}")
    return 0


def _letter(case: Case, entry: str) -> str:
    """Replace `input 1` by the function's own name for it."""
    names = [name for name in case.f.__code__.co_varnames[: case.f.__code__.co_argcount]]
    found = re.match(r"input (\d+)", entry)
    return names[int(found[1])] if found else entry
