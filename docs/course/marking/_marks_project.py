"""Marker for the project after chapter 7: an engine of your own, step by step."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from itertools import combinations
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise, written
from _marks_engine import diamond, either, random, repeated
from _probe import COPIES, Engine, at_most

import tinygrad_attn as ta

CHAIN = 20_000
PATHS = (
    "This walk takes more than 200,000 steps for 61 tensors because it follows every path, and "
    "there are 2^60 paths. Remember the ids of the tensors that you have seen, and pass on the "
    "gradient of each tensor once."
)
SUM = "sum removed the axis, so g lacks it. Put the axis back with length 1 (np.expand_dims) before you broadcast g along it."


@exercise(
    7,
    "engine",
    "a project: an engine of your own, and a network trained with it",
    part="b",
)
def _(marks: Marks) -> None:
    mine = Engine(marks)
    with np.errstate(all="ignore"):  # a mistake may diverge to infinity
        for idea, points, main, step in STEPS:
            marks.idea(idea, points, main, each=not main)
            step(marks, mine)


def remembering(marks: Marks, mine: Engine) -> None:
    a, b, g = random(2, 3), random(2, 3, seed=1), random(2, 3, seed=2)
    for sign, f, rules in (
        ("+", lambda a, b: a + b, [g, g]),
        ("*", lambda a, b: a * b, [g * b, g * a]),
    ):
        text = f"a {sign} b"

        def made(f: Callable = f, text: str = text) -> Any:
            operands = mine.tensor(a), mine.tensor(b)
            y = mine.result(text, f, *operands)
            parents = tuple(y.parents)
            if len(parents) != 2 or any(p is not t for p, t in zip(parents, operands)):
                raise Wrong(
                    f"The parents of {text} should be the Tensors a and b themselves, in this order."
                )
            if len(y.vjps) != 2:
                raise Wrong(
                    f"{text} has two parents, and each needs one rule, but there are {len(y.vjps)} rules."
                )
            return y

        marks.compare(f"1 {text}", lambda made=made: made().data, f(a, b))
        marks.compare(
            f"1 {text}, its rules",
            lambda made=made: [written(rule(g), "a rule") for rule in made().vjps],
            rules,
            mistakes={
                **either(
                    "g is missing. A rule takes g, the gradient of the loss with respect to the result, and multiplies it by the slope.",
                    [np.ones_like(a)] * 2 if sign == "+" else [b, a],
                    [1, 1],
                ),
                "The factors of the two rules are swapped. The slope of a * b with respect to a is b.": [
                    g * a,
                    g * b,
                ],
            },
        )


def walking(marks: Marks, mine: Engine) -> None:
    node = lambda name, *parents, slopes=(): mine.node(*parents, slopes=slopes)

    def gradients(nodes: list[Any], count: int = 1) -> list[Any]:
        """Return the gradients of the first nodes."""
        nodes[-1].backward()
        return [mine.gradient(t, "an intermediate result", tuple(nodes)) for t in nodes[:count]]

    def sixty() -> list[Any]:
        with at_most(200_000, PATHS):
            return gradients(repeated(node, 60))

    early = (
        "A tensor passes its gradient on before all its users have contributed. Visit it after "
        "everything that uses it: newest first,\nor in the order of chapter 2's users_first."
    )
    marks.compare(
        "2 a diamond, both ways",
        lambda: [gradients(diamond(node, mirrored))[0] for mirrored in (False, True)],
        [16.0, 16.0],
        mistakes={
            "The gradient of the result with respect to itself is 1, so begin with ones.": [
                0.0,
                0.0,
            ],
            **either(
                "a is used twice, so it gets two contributions. Add them up.",
                [10.0, 10.0],
                [6.0, 6.0],
                [6.0, 10.0],
            ),
            **either(early, [10.0, 16.0], [16.0, 6.0], [10.0, 6.0]),
            **either(
                "A tensor passes on its whole .grad each time that it receives a "
                "contribution. It should do so once, when all contributions have arrived.",
                [26.0, 22.0],
                [26.0, 26.0],
                [22.0, 22.0],
            ),
        },
        weight=4,
    )
    marks.compare(
        "2 one parent",
        lambda: gradients(repeated(node, 1, (3.0,))),
        [3.0],
        mistakes={
            "The gradient of the result with respect to itself is 1, so begin with ones.": [0.0]
        },
    )
    marks.compare(
        "2 a + a",
        lambda: gradients(repeated(node, 1)),
        [2.0],
        mistakes={"a is used twice, so it gets two contributions. Add them up.": [1.0]},
    )
    marks.compare("2 intermediate results", lambda: gradients(diamond(node), 3)[1:], [8.0, 1.0])
    marks.compare(
        f"2 a chain of {CHAIN:,}", lambda: gradients(repeated(node, CHAIN, (1.0,))), [1.0]
    )
    marks.compare("2 60 doublings", sixty, [2.0**60])


def adding_up(marks: Marks, mine: Engine) -> None:
    g = random(2, 3)

    def twice(shared: bool) -> list[Any]:
        """Run backward for two losses, 3 h and 5 h, where h is 2 a (if `shared`) or a itself."""
        a = mine.node()
        h = mine.node(a, slopes=(2.0,)) if shared else a
        for slope in (3.0, 5.0):
            mine.node(h, slopes=(slope,)).backward()
        return [mine.gradient(a, "a", (h,))]

    def given() -> Any:
        a, b = mine.tensor(random(2, 3)), mine.tensor(random(2, 3, seed=1))
        y = mine.tensor(a.data, (a, b), (lambda g: g, lambda g: g))
        y.backward(incoming := g.copy())
        return (
            mine.gradient(a, "a", (b, y)),
            mine.gradient(b, "b", (a, y)),
            mine.gradient(y, "the result", (a, b)),
            incoming,
        )

    def alone() -> np.ndarray:
        y = mine.tensor(g)
        y.backward()
        return mine.gradient(
            y,
            "the result",
            why="Without an argument g, backward begins with an array of ones that has the shape of data.",
        )

    def again(mirrored: bool) -> list[Any]:
        """Compute y = (a + b) + a with rules that return the same array that they receive."""
        a, b = mine.tensor(g), mine.tensor(g)
        add = lambda *parents: mine.tensor(g, parents, (lambda g: g,) * len(parents))
        k = add(a)
        y = add(k, add(b, a)) if mirrored else add(add(a, b), k)
        y.backward(g.copy())
        return [mine.gradient(a, "a", (b, y)), mine.gradient(b, "b", (a, y))]

    def apart() -> bool:
        return not any(np.shares_memory(x, y) for x, y in combinations(given(), 2))

    ones = np.ones_like(g)
    kept = "backward() of a second loss should add to .grad, because the gradient of a sum is the sum of the gradients. "
    marks.compare("2 backward()", alone, ones)
    marks.compare(
        "2 backward(g)",
        lambda: list(given()[:3]),
        [g, g, g],
        mistakes={"backward ignores its argument g.": [ones] * 3},
    )
    marks.compare(
        "2 two losses",
        lambda: twice(False),
        [8.0],
        mistakes={kept + "Here .grad is overwritten.": [5.0]},
    )
    marks.compare(
        "2 two losses share a result",
        lambda: twice(True),
        [16.0],
        mistakes={
            kept + "Here .grad is overwritten.": [10.0],
            "The second walk also passes on what the first walk left in .grad of the shared "
            "result: 6 + (3 + 5) * 2. Collect the gradients\nof each walk separately, in a dict by "
            "id, and add each to .grad when it is complete.": [22.0],
            "The second walk stops at the shared result. Each loss needs its own complete walk.": [
                6.0
            ],
        },
    )
    for name, mirrored in (("2 (a + b) + a", False), ("2 a + (b + a)", True)):
        marks.compare(
            name,
            lambda mirrored=mirrored: again(mirrored),
            [2 * g, g],
            mistakes={
                "b received a contribution that was meant for a. Both started as the same array, "
                "the g that a + b passes on, and then it\nwas changed in place. Write x = x + g, "
                "not x += g.": [2 * g, 2 * g]
            },
        )
    marks.that(
        "2 each .grad is its own array",
        apart,
        (
            "y = a + b passes the same g on to a and b, and now two of the .grad arrays, or one of "
            "them and the given g, are the same array.\nIf one changes in place, so does the "
            "other. Store a copy, and write x = x + g, not x += g."
        ),
    )


def broadcasting(marks: Marks, mine: Engine) -> None:
    for first, second in (
        ((3, 4), (4,)),
        ((3, 3), (3,)),
        ((3, 4), (3, 1)),
        ((3, 1), (1, 4)),
        ((), (2, 3)),
    ):
        x, y = random(*first), random(*second, seed=1)
        sign = "+" if second in ((4,), (3,)) else "*"

        def f(a: Any, b: Any, sign: str = sign) -> Any:
            """Make the result with the marker's rules, so that only backward is judged."""
            if not isinstance(a, mine.kind or ()):  # the package's Tensors
                return a + b if sign == "+" else a * b
            add = (lambda g: g, lambda g: g)
            multiply = (lambda g: g * b.data, lambda g: g * a.data)
            data = a.data + b.data if sign == "+" else a.data * b.data
            return mine.tensor(data, (a, b), add if sign == "+" else multiply)

        f.__signature__ = signature(lambda a, b: None)  # type: ignore[attr-defined]
        mine.check(f"3 {first} {sign} {second}", f, x, y, own="backward", value=False)


def numbers(marks: Marks, mine: Engine) -> None:
    a, b = np.abs(random(2, 3)) + 0.5, np.abs(random(2, 3, seed=1)) + 0.5
    mine.check(
        "4 -a",
        lambda a: -a,
        a,
        wrong_rules={"The slope of -a is -1. The minus sign is missing here.": lambda g, y, a: g},
        own="__neg__",
    )
    mine.check(
        "4 a - b", lambda a, b: a - b, a, b, wrong_values={"This is b - a.": b - a}, own="__sub__"
    )
    mine.check(
        "4 a ** 3",
        lambda a: a**3,
        a,
        wrong_rules={
            "The slope of a^n is n a^(n - 1). The exponent is not reduced by one here.": lambda g, y, a: (
                g * 3 * y
            ),
            "The slope of a^n is n a^(n - 1). The factor n is missing here.": lambda g, y, a: (
                g * a**2
            ),
            "This is the slope of a^2.": lambda g, y, a: g * 2 * a,
        },
        own="__pow__",
    )
    mine.check(
        "4 a ** 0",
        lambda a: a**0,
        np.array([0.0, 2.0]),
        value=False,
        wrong_rules={
            "a^0 is 1 everywhere, so its slope is 0. But 0 * 0^(-1) is 0 times infinity, which is NaN.": lambda g, y, a: (
                g * 0 * a**-1.0
            )
        },
        own="__pow__",
    )
    mine.check(
        "4 a / b",
        lambda a, b: a / b,
        a,
        b,
        wrong_values={"This is b / a.": b / a},
        own="__truediv__",
    )
    for sign in "+*-/":
        for name, other in (("2", 2.0), ("array", b)):
            full = np.broadcast_to(np.asarray(other, float), a.shape)
            marks.that(
                f"4 a {sign} {name}, {name} {sign} a",
                lambda sign=sign, other=other, full=full: all(
                    mine.beside(sign, (a,), other, (full,), left) for left in (False, True)
                ),
                "",
            )

    def single() -> dict[str, Any]:
        x = mine.tensor(a.astype(np.float32))
        y = mine.result("(a * 2 - 0.5) / 3 + a ** 2", lambda x: (x * 2 - 0.5) / 3 + x**2, x)
        y.backward()
        return {"the result": y.data, ".grad of a": mine.gradient(x, "a", (y,))}

    marks.single(
        "4 float32 stays float32",
        single,
        "Unlike a Python number, np.asarray(2.0) and np.float64(2) turn float32 into float64. Convert a number "
        "to the dtype of the tensor, and begin backward with np.ones_like.",
    )


def functions(marks: Marks, mine: Engine) -> None:
    x = np.abs(random(2, 3)) + 0.5
    mine.check(
        "5 a.exp()",
        lambda a: a.exp(),
        x,
        wrong_rules={"The slope of e^a is e^a, the output, not a.": lambda g, y, x: g * x},
        own="exp",
    )
    mine.check(
        "5 a.log()",
        lambda a: a.log(),
        x,
        wrong_rules={
            "The slope of log(a) is 1 / a, but this is 1 / log(a).": lambda g, y, x: g / y
        },
        own="log",
    )
    mine.check(
        "5 a.tanh()",
        lambda a: a.tanh(),
        x,
        wrong_rules={
            "This is 1 - a^2. The slope is 1 - y^2, where y is the result.": lambda g, y, x: (
                g * (1 - x**2)
            ),
            "The slope is 1 - y^2, but this is 1 - y.": lambda g, y, x: g * (1 - y),
        },
        own="tanh",
    )


def reductions(marks: Marks, mine: Engine) -> None:
    x, stack = random(3, 4), random(2, 3, 4)
    mean = {
        "Each element contributes only 1/N to a mean of N elements, so divide g by N.": lambda g, y, x: (
            np.broadcast_to(g if np.ndim(g) in (0, x.ndim) else np.expand_dims(g, 1), x.shape)
        )
    }
    mine.check("6 a.sum()", lambda a: a.sum(), x, hint=SUM, own="sum")
    mine.check("6 a.sum(axis=0)", lambda a: a.sum(axis=0), x, hint=SUM, own="sum")
    mine.check("6 a.sum(axis=1)", lambda a: a.sum(axis=1), x, hint=SUM, own="sum")
    mine.check(
        "6 a.sum(axis=-1)",
        lambda a: a.sum(axis=-1),
        random(3, 3),
        name="6 the same, 3 x 3",
        hint=SUM,
        wrong_rules={
            SUM + " For a square matrix the shapes fit all the same.": lambda g, y, x: (
                np.broadcast_to(g, x.shape)
            )
        },
        own="sum",
    )
    mine.check("6 a.sum(axis=(0, 2))", lambda a: a.sum(axis=(0, 2)), stack, hint=SUM, own="sum")
    mine.check(
        "6 a.sum(axis=1, keepdims=True)",
        lambda a: a.sum(axis=1, keepdims=True),
        x,
        name="6 with keepdims",
        hint="With keepdims=True, g still has the axis, with length 1, so there is nothing to put back.",
        own="sum",
    )
    mine.check("6 a.mean()", lambda a: a.mean(), x, hint=SUM, wrong_rules=mean, own="mean")
    mine.check(
        "6 a.mean(axis=1)",
        lambda a: a.mean(axis=1),
        x,
        hint=SUM,
        wrong_rules=mean
        | {
            "g is divided by the number of all elements. Divide it by the number of elements in one mean.": lambda g, y, x: (
                np.broadcast_to(g[:, None] / x.size, x.shape)
            )
        },
        own="mean",
    )
    mine.check(
        "6 a.reshape(2, 6)",
        lambda a: a.reshape(2, 6),
        x,
        hint="g has the new shape. Reshape it to the old one.",
        own="reshape",
    )
    mine.check("6 a.T", lambda a: a.T, x, hint="Transpose g as well: g.T.", own="T")
    mine.check(
        "6 a.T",
        lambda a: a.T,
        random(3, 3),
        name="6 a.T, 3 x 3",
        value=False,
        wrong_rules={
            "Transpose g as well: g.T. For a square matrix the shapes fit without it.": lambda g, y, x: (
                g
            )
        },
        own="T",
    )

    def single() -> dict[str, Any]:
        y = mine.result("a.mean(axis=0)", lambda a: a.mean(axis=0), mine.tensor(np.float32(x)))
        if np.shape(y.data) != (4,):
            raise Wrong(f"a.mean(axis=0) has the shape {np.shape(y.data)}, expected (4,).")
        return {"the mean": y.data}

    marks.single(
        "6 float32 stays float32",
        single,
        "np.prod(shape) is a NumPy integer, which turns float32 into float64. A Python integer does not, so "
        "use int(...) or data.size.",
    )


def products(marks: Marks, mine: Engine) -> None:
    f = lambda a, b: a @ b
    forgotten = "This is g b without a transpose. The rules are g b^T and a^T g, but with square matrices every shape fits."
    mine.check(
        "7 (2, 3) @ (3, 4)",
        f,
        random(2, 3),
        random(3, 4),
        hint="The rules are g b^T and a^T g. The shapes fit only this way.",
        own="__matmul__",
    )
    mine.check(
        "7 (3, 3) @ (3, 3)",
        f,
        random(3, 3),
        random(3, 3, seed=1),
        value=False,
        wrong_rules={
            forgotten: lambda g, y, a, b: g @ b,
            "The factors are in the wrong order: this is b^T g, but the rule is g b^T.": lambda g, y, a, b: (
                b.T @ g
            ),
        },
        own="__matmul__",
    )
    stacks = f"In a stack, swap only the last two axes with swapaxes(-1, -2), because .T reverses all axes of an array. {COPIES}"
    mine.check(
        "7 (2, 3, 4) @ (2, 4, 5)",
        f,
        random(2, 3, 4),
        random(2, 4, 5),
        hint=stacks,
        own="__matmul__",
    )
    mine.check(
        "7 (2, 3, 4) @ (4, 5)", f, random(2, 3, 4), random(4, 5), hint=stacks, own="__matmul__"
    )
    mine.check(
        "7 (3, 4) @ (2, 4, 5)",
        f,
        random(3, 4),
        random(2, 4, 5),
        value=False,
        hint=stacks,
        own="__matmul__",
    )
    vectors = (
        "A vector on the left is a matrix with one row, and on the right a matrix with one column. "
        "Reshape it, multiply the\nmatrices, and reshape the result."
    )
    mine.check("7 (2, 3) @ (3,)", f, random(2, 3), random(3), hint=vectors, own="__matmul__")
    mine.check("7 (3,) @ (3, 2)", f, random(3), random(3, 2), hint=vectors, own="__matmul__")
    mine.check("7 (3,) @ (3,)", f, random(3), random(3, seed=1), hint=vectors, own="__matmul__")
    a, b = random(3, 4), random(2, 3)
    marks.that("7 array @ a", lambda: mine.beside("@", (a,), b, (b,), left=True), "")
    marks.that("7 a @ array", lambda: mine.beside("@", (b,), a, (a,), left=False), "")


def right_network(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return (x @ w1 + b1).tanh() @ w2 + b2


def right_cross_entropy(scores: Any, onehot: Any) -> Any:
    shifted = scores - scores.data.max(axis=1, keepdims=True)
    return (shifted.exp().sum(axis=1).log() - (shifted * onehot).sum(axis=1)).mean()


def training(marks: Marks, mine: Engine) -> None:
    marks.reference(network=right_network, cross_entropy=right_cross_entropy)
    network, cross_entropy, train = map(marks.function, ("network", "cross_entropy", "train"))
    x = random(12, 2)
    onehot = np.eye(3)[np.arange(12) % 3]
    start = [random(2, 5), random(5), random(5, 3), random(3)]
    scores = np.tanh(x @ start[0] + start[1]) @ start[2] + start[3]
    e = np.exp(scores)
    far = np.where(np.arange(12) % 2, 1000.0, -1000.0)[:, None]  # which changes no loss
    right, picked = np.log(e.sum(axis=1)), (scores * onehot).sum(axis=1)
    tensors = lambda: [mine.tensor(p) for p in start]

    def package(parameters: list[ta.Tensor]) -> ta.Tensor:
        scores = np.tanh(x @ parameters[0] + parameters[1]) @ parameters[2] + parameters[3]
        return np.mean(np.log(np.sum(np.exp(scores), axis=1)) - np.sum(scores * onehot, axis=1))

    def descent(
        zero: bool = True, lr: float = 0.5
    ) -> tuple[list[float], list[float], list[np.ndarray]]:
        """Train with the package. Return the losses before and after each step, and the final parameters."""
        parameters = [ta.Tensor(p.copy(), requires_grad=True) for p in start]
        losses, after = [], []
        for _ in range(20):
            loss = package(parameters)
            if zero:
                for p in parameters:
                    p.grad = None
            loss.backward()
            for p in parameters:
                p.data -= lr * p.grad.numpy()
            losses.append(loss.item())
            after.append(package(parameters).item())
        return losses, after, [p.numpy() for p in parameters]

    def gradients() -> list[Any]:
        own = tensors()
        loss = mine.result("cross_entropy", lambda *p: cross_entropy(network(x, *p), onehot), *own)
        loss.backward()
        return [mine.gradient(p, name, (loss,)) for p, name in zip(own, ("w1", "b1", "w2", "b2"))]

    def trained() -> tuple[Any, list[Any]]:
        own = tensors()
        with mine.only():
            return train(x, onehot, own, 20, 0.5), own

    def trained_losses() -> Any:
        losses, _ = trained()
        if not isinstance(losses, list) or not all(isinstance(loss, float) for loss in losses):
            raise Wrong(
                "train should return a list of plain numbers, loss.data.item(). A list of Tensors keeps "
                "every graph alive."
            )
        return losses

    wanted = [ta.Tensor(p, requires_grad=True) for p in start]
    package(wanted).backward()
    losses, after, end = descent()

    def by_itself(text: str, f: Callable, *tensors: Any) -> Any:
        """Return the value of one function, with right methods."""
        with mine.only():
            return mine.result(text, f, *tensors).data

    marks.compare(
        "8 network",
        lambda: by_itself("network", lambda *p: network(x, *p), *tensors()),
        scores,
        mistakes={
            "The tanh is missing.": (x @ start[0] + start[1]) @ start[2] + start[3],
            "There should be no tanh after the second layer.": np.tanh(scores),
        },
    )
    marks.compare(
        "8 cross_entropy",
        lambda: by_itself("cross_entropy", lambda s: cross_entropy(s, onehot), mine.tensor(scores)),
        (right - picked).mean(),
        mistakes={
            "This is the sum over the rows, but the loss is the mean.": (right - picked).sum(),
            "The sign is wrong.": (picked - right).mean(),
            "The score of the target is not subtracted.": right.mean(),
            "The exponentials are summed over axis 0. Sum over each row: axis=1.": np.log(
                e.sum(axis=0)
            ).mean()
            - picked.mean(),
        },
    )
    marks.compare(
        "8 cross_entropy of large scores",
        lambda: by_itself(
            "cross_entropy", lambda s: cross_entropy(s, onehot), mine.tensor(scores + far)
        ),
        (right - picked).mean(),
        hint=(
            "e^1000 is infinite. First subtract the largest score of each row, "
            "scores.data.max(axis=1, keepdims=True). This can be a plain\narray, because "
            "subtracting a constant changes neither the loss nor its gradient."
        ),
    )
    marks.compare(
        "8 losses of 20 steps",
        trained_losses,
        losses,
        atol=1e-10,
        rtol=1e-10,
        mistakes={
            "The gradients of earlier steps are still included, because .grad accumulates. Set .grad to None before each backward().": descent(
                zero=False
            )[0],
            "Nothing is learned, because the parameters never change.": descent(lr=0.0)[0],
            "Each loss is measured after its step. Measure it before the step.": after,
            "The steps go uphill. A step goes against the gradient: p - lr * p.grad.": descent(
                lr=-0.5
            )[0],
            "This is one step too few or too many.": losses[:-1],
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
    marks.compare(
        "8 all of it together: the package's gradients",
        lambda: np.concatenate([np.ravel(g) for g in gradients()]),
        np.concatenate([np.ravel(p.grad.numpy()) for p in wanted]),
        atol=1e-12,
        rtol=1e-12,
        weight=0,
    )


STEPS: list[tuple[str, float, bool, Callable[[Marks, Engine], None]]] = [
    ("1 a result remembers its parents and a rule for each", 2, False, remembering),
    ("2 backward passes a gradient on when it is complete", 5, True, walking),
    ("2 gradients add up, in arrays of their own", 2, False, adding_up),
    ("3 what was broadcast is summed", 2, False, broadcasting),
    ("4 differences, quotients, powers, numbers", 3, False, numbers),
    ("5 exp, log, tanh", 2, False, functions),
    ("6 sums, means and other shapes", 3, False, reductions),
    ("7 products of matrices, of stacks, and of vectors", 3, False, products),
    ("8 a network that learns", 3, False, training),
]
"""Each idea with its points, whether it is a main idea, and its checks. The number is that of the step."""
