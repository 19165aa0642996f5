"""Markers for chapters 0 to 7: slopes, graphs, and derivatives by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, exercise, written

from tinygrad_attn import Tensor, op


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def either(text: str, *values: Any) -> dict[str, Any]:
    """Map one help text to several values that the same mistake may give. The keys differ only in
    trailing blanks, which are not printed.
    """
    return {text + " " * i: value for i, value in enumerate(values)}


@exercise(
    0,
    "slope",
    "the gradient of any function by central differences",
)
def _(marks: Marks) -> None:
    slope = marks.function("slope", may_change=True)
    x, eps = np.array([1.0, -2.0, 3.0]), 0.01
    marks.idea("the slope is a difference of two sides", 3, main=True)
    marks.compare(
        "sum of x^2",
        lambda: slope(lambda x: np.sum(x**2), x.copy(), 1e-5),
        2 * x,
        mistakes={
            "This is twice the slope. The two points are 2 eps apart, so divide by 2 eps.": 4 * x,
            "This is the change, not the slope. Divide it by the distance between the two points, 2 eps.": 4e-5
            * x,
            "The sign is wrong. It is f(x + eps) - f(x - eps).": -2 * x,
            **either(
                "All elements are moved at once, so this is the sum of all slopes. Move one element at a time.",
                np.full(3, 2 * x.sum()),
                2 * x.sum(),
            ),
            "The slopes of earlier elements are included, because they are not moved back.": 2
            * x
            * np.arange(1, 4),
        },
    )
    marks.compare(
        "sum of x^3, eps 0.01",
        lambda: slope(lambda x: np.sum(x**3), x.copy(), eps),
        3 * x**2 + eps**2,
        mistakes={
            "This is the one-sided slope (f(x + eps) - f(x)) / eps, whose error is about eps. Nudge x in both directions, and the error is only about eps^2.": 3
            * x**2
            + 3 * x * eps
            + eps**2
        },
    )
    matrix = random(2, 3)
    marks.idea("one element at a time, for any shape", 2)
    marks.compare(
        "a matrix",
        lambda: slope(lambda x: np.sum(np.sin(x) * np.arange(3)), matrix.copy(), 1e-5),
        np.cos(matrix) * np.arange(3),
        mistakes=either(
            "All elements are moved at once, so this is the sum of all slopes. Move one element at a time.",
            np.full((2, 3), (np.cos(matrix) * np.arange(3)).sum()),
            (np.cos(matrix) * np.arange(3)).sum(),
        ),
        hint="Move one element of x at a time. np.ndindex(x.shape) works for any shape of x.",
    )
    marks.compare(
        "a single number", lambda: slope(lambda x: np.exp(x), np.array(0.5), 1e-5), np.exp(0.5)
    )
    kept = matrix.copy()
    marks.that(
        "x is left as it was",
        lambda: slope(lambda x: np.sum(x), kept, 0.25) is not None and np.array_equal(kept, matrix),
        "x has different values after the call. Restore each element exactly (do not subtract eps "
        "again), or work on a copy.",
    )


@exercise(1, "scalar", "numbers that remember: subtraction, division, tanh")
def _(marks: Marks) -> None:
    named = getattr(marks.module, "Scalar", None)
    Scalar = named if isinstance(named, type) else None

    def run(f: Any, *values: float) -> tuple[float, list[float]]:
        if Scalar is None:
            raise NotWritten("the file defines no class Scalar; its name must be exactly that")
        xs = [Scalar(v) for v in values]
        try:
            with marks.watching("Scalar"):
                y = written(f(*xs), "this operation")
        except TypeError as error:
            raise (
                NotWritten("one of the operations returns None")
                if "NoneType" in str(error)
                else error
            ) from error
        if not isinstance(y, Scalar):
            raise Wrong(
                f"One of the operations returns a {type(y).__name__}. Each must return a Scalar, so "
                "that the walk can continue from it."
            )
        y.backward()
        return y.data, [x.grad for x in xs]

    def both(
        name: str, f: Any, *values: float, mistakes: dict[str, Any], weight: float = 2
    ) -> None:
        xs = [Tensor(np.array(v), requires_grad=True) for v in values]
        y = f(*xs)
        y.backward()
        marks.compare(f"{name}: value", lambda: run(f, *values)[0], y, weight=weight / 2)
        marks.compare(
            f"{name}: slopes",
            lambda: run(f, *values)[1],
            [x.grad.item() for x in xs],
            mistakes=mistakes,
            weight=weight,
        )

    tanh = lambda x: x.tanh() if Scalar and isinstance(x, Scalar) else np.tanh(x)
    marks.idea("the slopes of a - b", 2, main=True)
    both(
        "a - b",
        lambda a, b: a - b,
        2.0,
        5.0,
        mistakes={"The slope with respect to b is -1, because a - b falls as b grows.": [1, 1]},
    )
    marks.idea("the slopes of a / b", 2, main=True)
    both(
        "a / b",
        lambda a, b: a / b,
        3.0,
        2.0,
        mistakes={
            "The slope with respect to b is -a / b^2. The minus sign is missing here.": [0.5, 0.75],
            "The slope with respect to b is -a / b^2. The factor a is missing here.": [0.5, -0.25],
            "The slope with respect to b is -a / b^2. The square is missing here.": [0.5, -1.5],
        },
    )
    marks.idea("the slopes of tanh(x)", 2, main=True)
    both(
        "tanh(x)",
        tanh,
        0.7,
        mistakes={
            "This is 1 - x^2. The slope is 1 - y^2, where y = tanh(x).": [1 - 0.7**2],
            "This is the slope at the output, 1 - tanh(y)^2. The slope is 1 - y^2.": [
                1 - np.tanh(np.tanh(0.7)) ** 2
            ],
        },
    )
    together = lambda a, b: tanh((a - b) / (a * b)) * a
    both("all together", together, 1.5, -0.5, mistakes={}, weight=0)


class Node:
    """A node for chapter 2's walk, which counts how often its parents are read."""

    def __init__(self, name: str, *parents: Node, slopes: tuple[float, ...] = ()):
        self.name, self._parents, self.slopes, self.grad, self.looks = (
            name,
            parents,
            slopes or (1.0,) * len(parents),
            0.0,
            0,
        )

    def __repr__(self) -> str:
        return self.name

    @property
    def parents(self) -> tuple[Node, ...]:
        self.looks += 1
        if self.looks > 1000:
            raise RuntimeError(
                f"the parents of one node were read {self.looks} times. Either you walk every path "
                "(there are 2^n of them), or you visit all nodes again for each node. Remember "
                "which nodes you have seen, and count the users of each."
            )
        return self._parents


def diamond(mirrored: bool = False) -> list[Node]:
    """Return the nodes x, a, b and y. A walk that takes the first parent first finds the right order
    by luck; if `mirrored`, one that takes the last parent first.
    """
    x = Node("x")
    a = Node("a", x, slopes=(2.0,))
    b = Node("b", a, slopes=(5.0,))
    return [
        x,
        a,
        b,
        Node("y", a, b, slopes=(3.0, 1.0)) if mirrored else Node("y", b, a, slopes=(1.0, 3.0)),
    ]


def doublings(n: int) -> list[Node]:
    nodes = [Node("x0")]
    for i in range(n):
        nodes.append(Node(f"x{i + 1}", nodes[-1], nodes[-1]))
    return nodes


def chain(n: int) -> list[Node]:
    nodes = [Node("x0")]
    for i in range(n):
        nodes.append(Node(f"x{i + 1}", nodes[-1]))
    return nodes


def users_first(last: Node) -> list[Node]:
    """List every node that leads to `last`, each user before the nodes that it uses."""
    users, waiting = {id(last): 0}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if id(parent) not in users:
                users[id(parent)] = 0
                waiting.append(parent)
            users[id(parent)] += 1
    found, ready = list[Node](), [last]
    while ready:
        found.append(ready.pop())
        for parent in found[-1].parents:
            users[id(parent)] -= 1
            if not users[id(parent)]:
                ready.append(parent)
    return found


@exercise(2, "order", "every node once, after all its users, without recursion")
def _(marks: Marks) -> None:
    marks.reference(users_first=users_first)
    order, backward = marks.function("users_first"), marks.function("backward")

    def listed(nodes: list[Node]) -> bool:
        found = list(order(nodes[-1]))
        if len(found) != len(set(map(id, found))):
            raise Wrong(f"A node is listed twice: {found[:9]}")
        if set(map(id, found)) != set(map(id, nodes)):
            raise Wrong(
                f"{len(found)} nodes are listed, but {len(nodes)} lead to the result: {found[:9]}"
            )
        place = {id(node): i for i, node in enumerate(found)}
        for node in nodes:
            for parent in node._parents:
                if place[id(parent)] < place[id(node)]:
                    raise Wrong(
                        f"{parent} comes before its user {node}, so its gradient is still incomplete "
                        f"when it is passed on: {found[:9]}"
                    )
        return True

    def gradients(nodes: list[Node]) -> list[float]:
        backward(nodes[-1])
        return [node.grad for node in nodes]

    both_ways = False, True
    marks.idea("every user comes before what it uses", 4, main=True)
    marks.that(
        "a diamond, both ways",
        lambda: all(listed(diamond(mirrored)) for mirrored in both_ways),
        "",
    )
    marks.idea("each node once, however often it is used", 2)
    marks.that("a + a", lambda: listed(doublings(1)), "")
    marks.that("200 doublings", lambda: listed(doublings(200)), "")
    marks.idea("a loop needs no recursion", 1)
    marks.that("a chain of 20,000", lambda: listed(chain(20_000)), "")
    marks.idea("the contributions of all users add up", 3, main=True)
    marks.compare(
        "gradients of a diamond, both ways",
        lambda: [gradients(diamond(mirrored)) for mirrored in both_ways],
        [[16, 8, 1, 1], [16, 8, 1, 1]],
        mistakes={
            **either(
                "Node a passes its gradient on before the contributions of all its users have arrived (8 = 1 x 5 + 3 in all).",
                [[10, 8, 1, 1], [16, 8, 1, 1]],
                [[16, 8, 1, 1], [6, 8, 1, 1]],
                [[10, 8, 1, 1], [6, 8, 1, 1]],
            ),
            **either(
                "Node a keeps only one of its contributions. Add up all of them.",
                [[6, 3, 1, 1], [10, 5, 1, 1]],
                [[10, 5, 1, 1], [6, 3, 1, 1]],
                [[6, 3, 1, 1], [6, 3, 1, 1]],
                [[10, 5, 1, 1], [10, 5, 1, 1]],
            ),
        },
    )
    marks.compare(
        "gradients of a + a",
        lambda: gradients(doublings(1)),
        [2, 1],
        mistakes={"a is used twice, so it gets two contributions. Add them up.": [1, 1]},
    )
    marks.compare("gradient of ten doublings", lambda: gradients(doublings(10))[0], 1024)
    marks.compare("gradient of a chain of 20,000", lambda: gradients(chain(20_000))[0], 1)


@exercise(
    3,
    "vjp",
    "the backward rules of softplus and of the running sum",
)
def _(marks: Marks) -> None:
    marks.reference(
        softplus=lambda x: np.logaddexp(x, 0), running_sum=lambda x: np.cumsum(x, axis=-1)
    )
    marks.gradient(
        "softplus",
        marks.op("softplus", "softplus_vjp"),
        random(3, 4),
        mistakes={
            "This is g / (1 + e^x). Check the sign of the exponent.": lambda g, y, x: (
                g / (1 + np.exp(x))
            )
        },
    )
    marks.gradient(
        "running sum of a row",
        marks.op("running_sum", "running_sum_vjp"),
        random(2, 5),
        mistakes={
            "The rule sums in the same direction as the function. x[i] is part of y[i], y[i + 1] "
            "and all later outputs, so its\ngradient is the sum of g from i to the end. This is "
            "the product with the transposed matrix, a running sum from the end.": lambda g, y, x: (
                np.cumsum(g, axis=-1)
            ),
            "This is g times the output. The Jacobian of a linear function does not depend on y.": lambda g, y, x: (
                g * y
            ),
        },
    )


@exercise(4, "unbroadcast", "the gradient of an operand that was broadcast")
def _(marks: Marks) -> None:
    unbroadcast = marks.function("unbroadcast")
    batch = random(2, 3, 4)

    def check(g: np.ndarray, shape: tuple[int, ...]) -> None:
        full = (1,) * (g.ndim - len(shape)) + shape
        over = tuple(i for i, n in enumerate(full) if n == 1)
        left = shape + (1,) * (g.ndim - len(shape))
        from_left = tuple(i for i, n in enumerate(left) if n == 1)
        marks.compare(
            f"{g.shape} to {shape}",
            lambda: unbroadcast(g, shape),
            g.sum(axis=over).reshape(shape),
            mistakes={
                "This is a mean. It should be a sum, because every copy contributes its whole gradient.": g.mean(
                    axis=over
                ).reshape(shape),
                "The axes are matched from the left. Broadcasting matches them from the right, so the axes that were added are the first ones.": g.sum(
                    axis=from_left
                ),
                "The copies are not added up: this is one of them, or a slice of g.": g[
                    tuple(slice(1) if i in over else slice(None) for i in range(g.ndim))
                ].reshape(shape),
            },
        )

    marks.idea("an axis that broadcasting added is summed away", 2, main=True)
    for shape in ((4,), (), (3, 4)):
        check(random(3, 4), shape)
    check(random(3, 3), (3,))
    marks.idea("an axis of length 1 is summed and kept", 2, main=True)
    for shape in ((3, 1), (1, 4), (1, 1)):
        check(random(3, 4), shape)
    check(batch, (3, 1))
    check(batch, (2, 1, 4))
    product = op(lambda x, w: x * w)
    product.__name__ = "product"
    product.vjp(None, lambda g, y, x, w: unbroadcast(g * x, np.shape(w)))
    marks.idea("the rule of a product uses it", 1)
    for shape in ((3, 1), (3,)):
        marks.gradient(f"x * w, (3, 3) and {shape}", product, random(3, 3), random(*shape))


@exercise(5, "matmul", "the product of two matrices, and of stacks of them")
def _(marks: Marks) -> None:
    marks.reference(matmul=lambda a, b: a @ b)
    matmul = marks.op("matmul", "matmul_vjp_a", "matmul_vjp_b")
    marks.gradient("square, 3 x 3", matmul, random(3, 3), random(3, 3, seed=1))
    marks.gradient("(2, 3) @ (3, 4)", matmul, random(2, 3), random(3, 4))
    marks.gradient("a stack: (3, 3, 3) @ same", matmul, random(3, 3, 3), random(3, 3, 3, seed=1))
    marks.gradient("(2, 3, 4) @ (2, 4, 5)", matmul, random(2, 3, 4), random(2, 4, 5))
    marks.gradient("one weight: (2, 3, 4) @ (4, 5)", matmul, random(2, 3, 4), random(4, 5))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    most = x.max(axis=-1)
    return most + np.log(np.exp(x - most[..., None]).sum(axis=-1))


def cross_entropy(x: Any, *, target: Any) -> Any:
    return (logsumexp(x) - np.take_along_axis(x, target[:, None], axis=1)[:, 0]).mean()


@exercise(
    6,
    "softmax",
    "softmax, log-sum-exp and cross-entropy, with their backward rules",
)
def _(marks: Marks) -> None:
    marks.reference(softmax=softmax, logsumexp=logsumexp, cross_entropy=cross_entropy)
    my_softmax, my_logsumexp, my_cross_entropy = map(
        marks.function, ("softmax", "logsumexp", "cross_entropy")
    )
    x, target = random(3, 4), np.array([2, 0, 3])
    e = np.exp(x)
    right = e / e.sum(axis=-1, keepdims=True)
    far = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]])
    quiet = lambda f, *args, **settings: np.errstate(all="ignore")(f)(*args, **settings)
    stable = (
        "e^1000 is Inf. Subtract the largest element of each row first (keepdims=True). It cancels in "
        "softmax; add it back in log-sum-exp.\nThe largest element of the whole array does not "
        "work, because rows far below it underflow to 0 / 0."
    )
    marks.compare(
        "softmax",
        lambda: my_softmax(x),
        right,
        mistakes={
            "The sum is over axis 0. Sum over each row: axis=-1.": e / e.sum(axis=0),
            "The whole array sums to 1. Normalise each row separately.": e / e.sum(),
        },
    )
    marks.compare(
        "softmax of large numbers",
        lambda: quiet(my_softmax, far),
        np.full((2, 2), 0.5),
        hint=stable,
    )
    marks.gradient(
        "rule of softmax",
        marks.op("softmax", "softmax_vjp"),
        x,
        mistakes={
            "This is the rule of log-softmax, g - p sum(g). The rule of softmax is p (g - sum(g p)).": lambda g, y, x: (
                g - y * g.sum(axis=-1, keepdims=True)
            )
        },
    )
    marks.compare(
        "logsumexp",
        lambda: my_logsumexp(x),
        np.log(e.sum(axis=-1)),
        mistakes={
            "The largest element of each row is not added back.": np.log(e.sum(axis=-1))
            - x.max(axis=-1)
        },
    )
    marks.compare(
        "logsumexp of large numbers",
        lambda: quiet(my_logsumexp, far),
        np.array([1000, -1000]) + np.log(2),
        hint=stable,
    )
    marks.gradient("rule of logsumexp", marks.op("logsumexp", "logsumexp_vjp"), x)
    losses = np.log(e.sum(axis=-1)) - x[np.arange(3), target]
    marks.compare(
        "cross_entropy",
        lambda: my_cross_entropy(x, target=target),
        losses.mean(),
        mistakes={
            "This is the sum over the rows, but the loss is the mean.": losses.sum(),
            "The sign is wrong.": -losses.mean(),
            "x[:, target] has the shape (B, B), because it takes all these columns from every row. Each row has one target: x[np.arange(B), target].": (
                np.log(e.sum(axis=-1)) - x[:, target]
            ).mean(),
        },
    )
    apart = np.array([[0.0, 1000.0], [1000.0, 0.0]])
    marks.compare(
        "cross_entropy, scores far apart",
        lambda: quiet(my_cross_entropy, apart, target=np.array([0, 0])),
        500.0,
        hint=(
            "The loss is (1000 + 0) / 2. A softmax of 0 has no logarithm, so do not compute the softmax "
            "and then its logarithm. Compute logsumexp(row) - row[target]."
        ),
    )
    marks.gradient(
        "rule of cross_entropy", marks.op("cross_entropy", "cross_entropy_vjp"), x, target=target
    )


def normalized(x: Any, eps: float = 1e-5) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return normalized(x) * weight + bias


@exercise(
    7,
    "layer_norm",
    "layer normalisation and its three backward rules",
)
def _(marks: Marks) -> None:
    marks.reference(normalized=normalized, layer_norm=layer_norm)
    my_normalized, my_layer_norm = marks.function("normalized"), marks.function("layer_norm")
    x, weight, bias = random(3, 5) * 3 + 1, random(5), random(5, seed=1)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    right = centred / np.sqrt(variance + 1e-5)
    marks.compare(
        "normalized",
        lambda: my_normalized(x),
        right,
        atol=1e-9,
        rtol=1e-9,
        mistakes={
            "The variance is divided by n - 1. It should be the mean of the squares, with n.": centred
            / np.sqrt(variance * 5 / 4 + 1e-5),
            "eps is added to the root. Add it to the variance, under the root.": centred
            / (np.sqrt(variance) + 1e-5),
            "eps is missing.": centred / np.sqrt(variance),
            "The deviations are divided by the variance. Divide them by its square root.": centred
            / (variance + 1e-5),
        },
    )
    marks.compare("layer_norm", lambda: my_layer_norm(x, weight, bias), right * weight + bias)
    rules = [f"layer_norm_vjp_{name}" for name in ("x", "weight", "bias")]
    marks.gradient("rules, weight and bias random", marks.op("layer_norm", *rules), x, weight, bias)
    marks.gradient(
        "a batch of sequences", marks.op("layer_norm", *rules), random(2, 3, 5), weight, bias
    )
    marks.gradient(
        "where eps matters", marks.op("layer_norm", *rules), random(3, 5) * 0.01, weight, bias
    )
