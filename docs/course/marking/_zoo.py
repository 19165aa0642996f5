"""The bug zoo as exercises: find the op that makes the gradient of a small function wrong.

exercise zoo               the list
exercise zoo 3             the symptom of bug 3
exercise zoo 3 hint        what gradcheck says about the kind of mistake
exercise zoo 3 softmax     your answer
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import _bugs
import numpy as np
from _exam_cases import Formula

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor

SWEEP = "sweep"
"""The answer if all VJPs are right, but the engine combines their results wrongly."""


class Case(NamedTuple):
    """A bug, the text of a function that shows it, the op with the bug, and the shapes of the inputs."""

    bug: str
    text: str
    answer: str
    shapes: dict[str, tuple[int, ...]]

    @property
    def f(self) -> Callable[..., Any]:
        formula = Formula("", self.text, {}, self.text, self.inputs, {"F": F})
        return formula.on(partial(getattr, np))

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(len(self.text))
        return {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}


CASES = (
    Case("tanh-zero", "np.tanh(x) * np.exp(x)", "tanh", dict(x=(4,))),
    Case("sum-axis-zero", "np.tanh(x) * np.sum(x, axis=0)", "sum", dict(x=(3, 3))),
    Case(
        "transpose-same-axes",
        "np.exp(np.transpose(x, (1, 2, 0))) * x",
        "transpose",
        dict(x=(2, 2, 2)),
    ),
    Case("getitem-overwrite", "np.sin(x[[0, 0, 2]]) * 2", "getitem", dict(x=(3,))),
    Case("softmax-twice", "F.softmax(x) * np.tanh(x)", "softmax", dict(x=(2, 3))),
    Case("matmul-transpose-all", "np.tanh(a @ b) + a", "matmul", dict(a=(2, 2, 2), b=(2, 2, 2))),
    Case("minus-same-operand", "(x - x) * 3 + np.exp(x)", "subtract", dict(x=(3,))),
    Case("gradient-overwritten", "np.sin(x) + np.exp(x)", SWEEP, dict(x=(3,))),
    Case(
        "layer-norm-weight",
        "np.tanh(F.layer_norm(x, 4, w) * x)",
        "layer_norm",
        dict(x=(2, 4), w=(4,)),
    ),
    Case("mean-tuple", "np.exp(x) - np.mean(x, axis=(0, 1))", "mean", dict(x=(2, 3))),
    Case(
        "concatenate-zero",
        "np.concatenate([np.sin(a), b]) * 2",
        "concatenate",
        dict(a=(2,), b=(3,)),
    ),
    Case("maximum-tie", "np.maximum(x, x) * np.cos(x)", "maximum", dict(x=(3,))),
    Case(
        "where-in-place",
        "np.where([True, False, True], np.tanh(a), 0.0) + b",
        "where",
        dict(a=(3,), b=(3,)),
    ),
    Case("log-softmax-batch", "np.tanh(F.log_softmax(x))", "log_softmax", dict(x=(3, 4))),
    Case("depth-first", "a = x * 2;  np.exp(a) * a", SWEEP, dict(x=(3,))),
    Case(
        "embedding-overwrite",
        "np.sin(F.embedding([[1, 1], [0, 2]], w))",
        "embedding",
        dict(w=(3, 2)),
    ),
    Case("gradient-aliased", "early = np.exp(a);  (a + b) + early", SWEEP, dict(a=(3,), b=(3,))),
    Case("rms-norm-weight", "F.rms_norm(x, 4, w) + np.exp(x)", "rms_norm", dict(x=(2, 4), w=(4,))),
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


def ops(case: Case) -> list[str]:
    """List the ops of the function, which has the bug, in the order in which they run."""
    with _bugs.bug(case.bug):
        y = case.f(*(Tensor(x, requires_grad=True) for x in case.inputs.values()))
    found, waiting = {}, [y]
    while waiting:
        t = waiting.pop()
        if isinstance(t, Tensor) and t._node is not None and t._node.number not in found:
            found[t._node.number] = t._node.op.__name__
            waiting += t._node.inputs
    return list(dict.fromkeys(found[tick] for tick in sorted(found)))


def check(case: Case) -> Any:
    with np.errstate(all="ignore"):
        return ta.gradcheck(case.f, [*case.inputs.values()], raise_exception=False)


def symptom(case: Case, number: int) -> str:
    """Describe what a user of the engine would see: the value, and each gradient next to the slope."""
    plain = lambda: np.asarray(case.f(*map(Tensor, case.inputs.values())).numpy())
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
    found = re.match(r"input (\d+)", entry)
    return [*case.shapes][int(found[1])] if found else entry
