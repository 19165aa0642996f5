"""Marker for the project after chapter 7: an engine of your own, step by step.

A step asks cases of the exam. Each is asked of the methods that it is about, and the marker brings
right ones for the others. What the exam cannot know is checked here: the chapter's own conventions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from _exam import in_numpy, logsumexp, parts, whole
from _exam_cases import CASES, Case, Formula, Procedure
from _marking import Marks, Wrong, exercise
from _marks_engine import random
from _probe import SIGNS
from _project import Project
from _right import FUNCTIONS

import tinygrad_attn as ta


@exercise(
    7,
    "engine",
    "a project: an engine of your own, and a network trained with it",
    part="b",
)
def _(marks: Marks) -> None:
    mine = Project(marks)
    with np.errstate(all="ignore"):  # a mistake may diverge to infinity
        for step in STEPS:
            marks.idea(step.idea, step.points, step.main, each=not step.main)
            step.itself(marks, mine)
            for question in step.questions:
                for case in question.cases():
                    name = f"{step.idea[0]} {text_of(case)}"
                    mine.check(name, case, question.own(), question.hint)


def text_of(case: Case) -> str:
    """Return the name of a case without its group."""
    return case.name.partition(": ")[2]


# ---- what the exam does not ask


def nothing(marks: Marks, mine: Project) -> None:
    """Ask only the cases."""


def remembering(marks: Marks, mine: Project) -> None:
    def remembers(text: str, f: Callable) -> bool:
        operands = mine.tensor(random(2, 3)), mine.tensor(random(2, 3, seed=1))
        y = mine.result(text, f, *operands)
        if len(y.parents) != 2 or any(p is not t for p, t in zip(y.parents, operands)):
            raise Wrong(
                f"The parents of {text} should be the Tensors x and y themselves, in this order."
            )
        if len(y.vjps) != 2:
            raise Wrong(
                f"{text} has two parents, and each needs one rule, but there are {len(y.vjps)} rules."
            )
        return True

    for text, f in (("x + y", operator.add), ("x * y", operator.mul)):
        marks.that(f"1 {text} remembers its parents", partial(remembers, text, f), "")


def adding_up(marks: Marks, mine: Project) -> None:
    x, g = random(2, 3), random(2, 3, seed=1)

    def found(g: Any = None) -> list[np.ndarray]:
        a = mine.tensor(x)
        h = mine.tensor(3 * x, (a,), (lambda g: 3 * g,))
        return mine.gradients(mine.tensor(6 * x, (h,), (lambda g: 2 * g,)), h, a, g=g)

    right = np.array([1.0, 2.0, 6.0])[:, None, None]
    marks.compare("2 backward()", found, right * np.ones_like(g))
    marks.compare(
        "2 backward(g)",
        lambda: found(g),
        right * g,
        mistakes={"backward ignores its argument g.": right * np.ones_like(g)},
    )
    marks.that(
        "2 .grad is not the given g",
        lambda: not any(np.shares_memory(g, gradient) for gradient in found(g)),
        ".grad and the given g are one array. If one changes in place, so does the other. Store a copy, "
        "and write x = x + g, not x += g.",
    )
    marks.single(
        "2 .grad of float32 is float32",
        lambda: {".grad": mine.gradients(mine.tensor(np.float32(x)))[0]},
        "Begin backward with np.ones_like.",
    )


def training(marks: Marks, mine: Project) -> None:
    marks.reference(network=right_network, cross_entropy=right_cross_entropy)
    names = "network", "cross_entropy", "train"
    mine.adapter.network, mine.adapter.cross_entropy, train = map(marks.function, names)
    plain = {"X": random(12, 2), "Y": np.eye(3)[np.arange(12) % 3]}
    start = {"w1": random(2, 5), "b1": random(5), "w2": random(5, 3), "b2": random(3)}
    of = partial(Formula, "", values=plain, words=NUMPY)
    scores = NUMPY["network"](plain["X"], *start.values())
    far = np.where(np.arange(12) % 2, 1000.0, -1000.0)[:, None]  # which changes no loss
    for name, text, mistakes, tensors, hint in (
        ("network", NETWORK, NETWORKS, start, ""),
        ("cross_entropy", "cross_entropy(s, Y)", LOSSES, {"s": scores}, ""),
        ("cross_entropy of large scores", "cross_entropy(s, Y)", {}, {"s": scores + far}, LARGE),
    ):
        case = of(name, mistakes, text, tensors)
        mine.judge(f"8 {name}", parts(case, mine.engine)[""], (), hint)
    case = of("loss", {}, f"cross_entropy({NETWORK}, Y)", start)
    descend(marks, mine, train, case)
    mine.judge("8 all of it together", partial(whole, case, mine.engine), METHODS, weight=0)


def descend(marks: Marks, mine: Project, train: Callable, loss: Formula) -> None:
    """Compare the training with one by the package."""
    f, start = in_numpy(loss), [*loss.tensors.values()]

    def descent(zero: bool = True, lr: float = 0.5) -> tuple[list[float], list[Any]]:
        """Return the losses before each step and the one after all, and the final parameters."""
        parameters, total, losses = start, [0.0] * len(start), []
        for _ in range(20):
            y, pull = ta.vjp(f, *parameters)
            total = [s * (not zero) + np.asarray(g) for s, g in zip(total, pull(np.ones(())))]
            parameters = [p - lr * g for p, g in zip(parameters, total)]
            losses.append(float(y))
        return [*losses, float(f(*parameters))], parameters

    def trained() -> tuple[Any, list[Any]]:
        own = [mine.tensor(p) for p in start]
        with mine.only():
            return train(loss.values["X"], loss.values["Y"], own, 20, 0.5), own

    def trained_losses() -> Any:
        losses, _ = trained()
        if not isinstance(losses, list) or not all(isinstance(loss, float) for loss in losses):
            raise Wrong(
                "train should return a list of plain numbers, loss.data.item(). A list of Tensors keeps "
                "every graph alive."
            )
        return losses

    losses, end = descent()
    marks.compare(
        "8 losses of 20 steps",
        trained_losses,
        losses[:-1],
        atol=1e-10,
        rtol=1e-10,
        mistakes={
            "The gradients of earlier steps are still included, because .grad accumulates. Set .grad to None before each backward().": descent(
                zero=False
            )[0][:-1],
            "Nothing is learned, because the parameters never change.": losses[:1] * 20,
            "Each loss is measured after its step. Measure it before the step.": losses[1:],
            "The steps go uphill. A step goes against the gradient: p - lr * p.grad.": descent(
                lr=-0.5
            )[0][:-1],
            "This is one step too few or too many.": losses[:-2],
        },
    )
    marks.compare(
        "8 parameters afterwards",
        lambda: np.concatenate([np.ravel(p.data) for p in trained()[1]]),
        np.concatenate([np.ravel(p) for p in end]),
        atol=1e-10,
        rtol=1e-10,
        hint="The Tensors in the given list should contain the trained numbers afterwards. Set p.data = ... for each of them.",
    )


def right_network(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return (x @ w1 + b1).tanh() @ w2 + b2


def right_cross_entropy(scores: Any, onehot: Any) -> Any:
    shifted = scores - scores.data.max(axis=1, keepdims=True)
    return (shifted.exp().sum(axis=1).log() - (shifted * onehot).sum(axis=1)).mean()


NUMPY: dict[str, Callable] = {
    "network": lambda x, w1, b1, w2, b2: np.tanh(x @ w1 + b1) @ w2 + b2,
    "cross_entropy": lambda s, y: np.mean(logsumexp(s, 1) - np.sum(s * y, axis=1)),
}
"""The functions of step 8."""
NETWORK = "network(X, w1, b1, w2, b2)"
NETWORKS = {
    "the tanh is missing": "(X @ w1 + b1) @ w2 + b2",
    "there should be no tanh after the second layer": f"tanh({NETWORK})",
}
LOSSES = {
    "this is the sum over the rows, but the loss is the mean": "12 * cross_entropy(s, Y)",
    "the sign is wrong": "-cross_entropy(s, Y)",
    "the score of the target is not subtracted": "mean(logsumexp(s, axis=1))",
    "the exponentials are summed over axis 0. Sum over each row: axis=1": (
        "mean(logsumexp(s, axis=0)) - mean(sum(s * Y, axis=1))"
    ),
}
LARGE = (
    "e^1000 is infinite. First subtract the largest score of each row, "
    "scores.data.max(axis=1, keepdims=True). This can be a plain\narray, because "
    "subtracting a constant changes neither the loss nor its gradient."
)


# ---- the steps


class Question(NamedTuple):
    """Cases of a group of the exam, the methods that they are about, and a hint."""

    methods: tuple[str, ...]
    group: str
    beginnings: tuple[str, ...] = ("",)  # of the formulas
    hint: str = ""

    def own(self) -> tuple[str, ...]:
        """Return the methods, with those that Python calls if the Tensor is on the right."""
        return *self.methods, *(name.replace("__", "__r", 1) for name in self.methods)

    def cases(self) -> Iterator[Case]:
        """Find the cases. In this chapter, .grad adds up over several passes."""
        for case in CASES:
            if case.group != self.group or not text_of(case).startswith(self.beginnings):
                continue
            if isinstance(case, Procedure) and len(case.right) > 1:
                mistakes = {OVERWRITTEN: case.right[1], **case.mistakes}
                yield replace(case, right=case.right[:1], mistakes=mistakes)
            else:
                yield case


class Step(NamedTuple):
    """An idea whose first character is the number of the step, its points, and what is asked."""

    idea: str
    points: float
    itself: Callable[[Marks, Project], None]  # what is checked here
    questions: Iterable[Question] = ()
    main: bool = False


METHODS = (*FUNCTIONS, "backward")
ARITHMETIC = (*(f"__{name}__" for name in SIGNS.values()), "__neg__", "__pow__", "backward")
OVERWRITTEN = (
    "backward() of a second loss should add to .grad, because the gradient of a sum is the sum of "
    "the gradients, but here .grad is overwritten"
)
ORDER = (
    "Visit a tensor after everything that uses it, newest first or in the order of chapter 2's "
    "users_first. Add up what it receives,\nand pass the sum on once."
)
WALKS = (
    "Collect the gradients of each walk separately, in a dict by id, and add each to .grad when it is "
    "complete, with x = x + g, not x += g."
)
RULES = "A rule takes g, the gradient of the loss with respect to the result, and multiplies it by the slope."
SLOPES = {
    "x * y": "The slope of x * y with respect to x is y.",
    "-x": "The slope of -x is -1.",
    "x ** n": "The slope of x ** n is n x ** (n - 1).",
    "exp(x)": "The slope of exp(x) is exp(x), the output, not x.",
    "log(x)": "The slope of log(x) is 1 / x.",
    "tanh(x)": "The slope of tanh(x) is 1 - y ** 2, where y is the output.",
}
COPIES = "Where broadcasting copied an operand, add up the gradients of the copies. Call chapter 4's unbroadcast once, in backward."
PLAIN = (
    "Every operation must first turn an operand that is a number or an array into a Tensor. If the "
    "Tensor is on the right, as in 2 - x, Python calls x.__rsub__(2), which must return 2 - x. With an "
    "array on the left, NumPy comes first, unless the class sets `__array_ufunc__ = None`."
)
SUM = "sum removed the axis, so g lacks it, except with keepdims. Put the axis back with length 1 (np.expand_dims) before you broadcast g along it."
MEAN = "Each element contributes only 1/N to a mean of N elements, so divide g by N, the number of elements in one mean."
MATRICES = (
    "The rules are g b^T and a^T g. Swap only the last two axes, with swapaxes(-1, -2), because .T "
    f"reverses all axes of an array. {COPIES}"
)
RESHAPE = "g has the new shape. Reshape it to the old one."
MATMUL = "matmul(x, y), x {}".format
MATRIX = "(2, 3), y (3, 4)", "(3, 3)", "(2, 2", "(2, 3, 4)", "(3, 4)"
VECTOR = "(2, 3), y (3,)", "(3,)"
VECTORS = (
    "A vector on the left is a matrix with one row, and on the right a matrix with one column. "
    "Reshape it, multiply the\nmatrices, and reshape the result."
)


def beside(sign: str) -> list[Question]:
    """Return the questions with a number or an array on one side."""
    method = (f"__{SIGNS[sign]}__",)
    return [
        Question(method, group, (f"x {sign} {x}", f"{x} {sign} x"), PLAIN)
        for group, x in (("elementwise", "2.0"), ("numpy", "A"))
    ]


STEPS = (
    Step(
        "1 a result remembers its parents and a rule for each",
        2,
        remembering,
        (
            Question(("__add__",), "elementwise", ("x + y",), RULES),
            Question(("__mul__",), "elementwise", ("x * y",), f"{RULES} {SLOPES['x * y']}"),
        ),
    ),
    Step(
        "2 backward passes a gradient on when it is complete",
        5,
        nothing,
        (Question(("backward",), "order", hint=ORDER),),
        main=True,
    ),
    Step(
        "2 gradients add up, in arrays of their own",
        2,
        adding_up,
        (
            Question(("backward",), "passes", hint=WALKS),
            Question(("backward",), "state", ("(x + y) + x", "x + (y + x)", ".grad"), WALKS),
        ),
    ),
    Step(
        "3 what was broadcast is summed",
        2,
        nothing,
        (Question(("backward",), "broadcasting", hint=COPIES),),
    ),
    Step(
        "4 differences, quotients, powers, numbers",
        3,
        nothing,
        (
            Question(("__neg__",), "elementwise", ("-x",), SLOPES["-x"]),
            Question(("__sub__",), "elementwise", ("x - y",)),
            Question(("__pow__",), "elementwise", ("x ** 3", "x ** 0"), SLOPES["x ** n"]),
            Question(("__truediv__",), "elementwise", ("x / y",)),
            *(question for sign in "+*-/" for question in beside(sign)),
            Question(ARITHMETIC, "state", ("(2 x",)),
        ),
    ),
    Step(
        "5 exp, log, tanh",
        2,
        nothing,
        [
            Question((f,), "elementwise", (f"{f}(x), x",), SLOPES[f"{f}(x)"])
            for f in ("exp", "log", "tanh")
        ],
    ),
    Step(
        "6 sums, means and other shapes",
        3,
        nothing,
        (
            Question(("sum",), "reductions", ("sum(x",), SUM),
            Question(("mean",), "reductions", ("mean(x",), MEAN),
            Question(("reshape",), "shapes", ("reshape(x, ",), RESHAPE),
            Question(("T",), "shapes", ("transpose(x, (1, 0))",), "Transpose g as well: g.T."),
            Question(("sum", "mean", "__mul__", "__truediv__", "__pow__"), "state", ("mean(x",)),
        ),
    ),
    Step(
        "7 products of matrices, of stacks, and of vectors",
        3,
        nothing,
        (
            Question(("__matmul__",), "products", tuple(map(MATMUL, MATRIX)), MATRICES),
            Question(("__matmul__",), "products", tuple(map(MATMUL, VECTOR)), VECTORS),
            *beside("@"),
        ),
    ),
    Step("8 a network that learns", 3, training),
)
