"""Markers for chapters 0 to 7: slopes, graphs, and derivatives by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, exercise
from _probe import Probe
from _right import users_first

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
    marks.compare(
        "sum of x^2",
        lambda: slope(lambda x: np.sum(x**2), x.copy(), 1e-5),
        2 * x,
        mistakes={
            "This is twice the slope. The two points are 2 eps apart, so divide by 2 eps.": 4 * x,
            "This is the change, not the slope. Divide it by the distance between the two points, 2 eps.": 4e-5
            * x,
            "The sign is wrong. It is f(x + eps) - f(x - eps).": -2 * x,
            "Both calls of f get the same numbers. a = x does not copy: both names stand for one array. Write "
            "x + step, or x.copy().": 0 * x,
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
        "a single number",
        lambda: slope(lambda x: np.exp(x), np.array(0.5), 1e-5),
        np.exp(0.5),
        hint="x may have no axes at all. np.ndindex(x.shape) works for any shape of x.",
    )
    kept = matrix.copy()
    marks.that(
        "x is left as it was",
        lambda: slope(lambda x: np.sum(x), kept, 0.25) is not None and np.array_equal(kept, matrix),
        "x has different values after the call. Restore each element exactly (do not subtract eps "
        "again), or work on a copy.",
    )


class Scalars(Probe):
    name = "Scalar"


@exercise(1, "scalar", "numbers that remember: subtraction, division, tanh")
def _(marks: Marks) -> None:
    mine = Scalars(marks)

    def slopes(name: str, f: Any, *values: float) -> list[float]:
        xs = [mine.made(v) for v in values]
        mine.result(name, f, *xs).backward()
        return [x.grad for x in xs]

    def both(
        name: str, f: Any, *values: float, mistakes: dict[str, Any], weight: float = 2
    ) -> None:
        xs = [Tensor(np.array(v), requires_grad=True) for v in values]
        y = f(*xs)
        y.backward()
        marks.compare(
            f"{name}: value",
            lambda: mine.result(name, f, *map(mine.made, values)).data,
            y,
            weight=weight / 2,
        )
        marks.compare(
            f"{name}: slopes",
            lambda: slopes(name, f, *values),
            [x.grad.item() for x in xs],
            mistakes=mistakes
            | {
                "The result remembers no parents, so the walk ends there. Scalar takes them, and a slope for each.": [
                    0.0
                ]
                * len(xs)
            },
            weight=weight,
        )

    tanh = lambda x: x.tanh() if isinstance(x, mine.kind or ()) else np.tanh(x)
    marks.idea("the slopes of a - b", 2)
    both(
        "a - b",
        lambda a, b: a - b,
        2.0,
        5.0,
        mistakes={"The slope with respect to b is -1, because a - b falls as b grows.": [1, 1]},
    )
    marks.idea("the slopes of a / b", 2)
    both(
        "a / b",
        lambda a, b: a / b,
        3.0,
        2.0,
        mistakes={
            "The slope with respect to b is -a / b^2. The minus sign is missing here.": [0.5, 0.75],
            "The slope with respect to b is -a / b^2. The factor a is missing here.": [0.5, -0.25],
            "The slope with respect to b is -a / b^2. The square is missing here.": [0.5, -1.5],
            "The slope with respect to b is -a / b^2. The minus sign and the square are missing here.": [
                0.5,
                1.5,
            ],
            "The slope with respect to a is 1 / b.": [2.0, -0.75],
        },
    )
    marks.idea("the slopes of tanh(x)", 2)
    both(
        "tanh(x)",
        tanh,
        0.7,
        mistakes={
            "This is 1 - x^2. The slope is 1 - y^2, where y = tanh(x).": [1 - 0.7**2],
            "This is 1 - y. The slope is 1 - y^2.": [1 - np.tanh(0.7)],
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


def diamond(node: Callable[..., Any], mirrored: bool = False) -> list[Any]:
    """Return x, a, b and y, where dy/dx = (1 * 5 + 3) * 2. A walk that takes the first parent first
    finds the right order by luck; if `mirrored`, one that takes the last parent first.
    """
    x = node("x")
    a = node("a", x, slopes=(2.0,))
    b = node("b", a, slopes=(5.0,))
    parents, slopes = ((a, b), (3.0, 1.0)) if mirrored else ((b, a), (1.0, 3.0))
    return [x, a, b, node("y", *parents, slopes=slopes)]


def repeated(node: Callable[..., Any], n: int, slopes: tuple[float, ...] = (1.0, 1.0)) -> list[Any]:
    """Return a chain of n + 1 nodes, each of which uses the one before once for each slope."""
    nodes = [node("x0")]
    for i in range(n):
        nodes.append(node(f"x{i + 1}", *[nodes[-1]] * len(slopes), slopes=slopes))
    return nodes


@exercise(2, "order", "every node once, after all its users, without recursion")
def _(marks: Marks) -> None:
    marks.reference(users_first=users_first)
    order, backward = marks.function("users_first"), marks.function("backward")

    def listed(nodes: list[Node]) -> list[Node]:
        """Return the learner's list, if it has each node once."""
        found = list(order(nodes[-1]))
        if len(found) != len(set(map(id, found))):
            raise Wrong(f"A node is listed twice: {found[:9]}")
        if set(map(id, found)) != set(map(id, nodes)):
            raise Wrong(
                f"{len(found)} nodes are listed, but {len(nodes)} lead to the result: {found[:9]}"
            )
        return found

    def early(found: list[Node]) -> list[tuple[Node, Node]]:
        """Return the nodes that come before one of their users, with this user."""
        place = {id(node): i for i, node in enumerate(found)}
        pairs = [(parent, node) for node in found for parent in node._parents]
        return [pair for pair in pairs if place[id(pair[0])] < place[id(pair[1])]]

    def ordered(nodes: list[Node]) -> bool:
        found = listed(nodes)
        for parent, node in early(found):
            if not early(found[::-1]):
                raise Wrong(
                    f"The list is reversed: {found[:9]}. It begins with `last`, and each node comes "
                    "before its parents."
                )
            raise Wrong(
                f"{parent} comes before its user {node}, so its gradient is still incomplete "
                f"when it is passed on: {found[:9]}"
            )
        return True

    def gradients(nodes: list[Node]) -> list[float]:
        try:
            backward(nodes[-1])
        except NotWritten:  # it returns nothing; the gradients count
            if not any(node.grad for node in nodes):
                raise
        return [node.grad for node in nodes]

    both_ways = False, True
    marks.idea("every user comes before what it uses", 4, main=True)
    marks.that(
        "a diamond, both ways",
        lambda: all(ordered(diamond(Node, mirrored)) for mirrored in both_ways),
        "",
    )
    marks.idea("each node once, however often it is used", 2)
    marks.that("a + a", lambda: listed(repeated(Node, 1)), "")
    marks.that("200 doublings", lambda: listed(repeated(Node, 200)), "")
    marks.idea("a loop needs no recursion", 1)
    marks.that("a chain of 20,000", lambda: listed(repeated(Node, 20_000, (1.0,))), "")
    marks.idea("the contributions of all users add up", 3)
    marks.compare(
        "gradients of a diamond, both ways",
        lambda: [gradients(diamond(Node, mirrored)) for mirrored in both_ways],
        [[16, 8, 1, 1], [16, 8, 1, 1]],
        mistakes={
            **either(
                "Node a passes its gradient on before the contributions of all its users have arrived (8 = 1 x 5 + 3 in all).",
                [[10, 8, 1, 1], [16, 8, 1, 1]],
                [[16, 8, 1, 1], [6, 8, 1, 1]],
                [[10, 8, 1, 1], [6, 8, 1, 1]],
            ),
            "All gradients are 0. That of `last` with respect to itself is 1: set it first.": [
                [0] * 4
            ]
            * 2,
            **either(
                "The slopes are added without the gradient of the node. A contribution is node.grad * slope.",
                [[2, 8, 1, 1], [2, 8, 1, 1]],
            ),
            "Nothing is passed on to the parents. A node adds to them: parent.grad += node.grad * slope.": [
                [0, 0, 0, 1]
            ]
            * 2,
            "The gradients are passed on before there are any. Begin with `last`, and go from users to parents.": [
                [0, 3, 1, 1]
            ]
            * 2,
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
        lambda: gradients(repeated(Node, 1)),
        [2, 1],
        mistakes={"a is used twice, so it gets two contributions. Add them up.": [1, 1]},
    )
    marks.compare("gradient of ten doublings", lambda: gradients(repeated(Node, 10))[0], 1024)
    marks.compare(
        "gradient of a chain of 20,000", lambda: gradients(repeated(Node, 20_000, (1.0,)))[0], 1
    )


@exercise(
    3,
    "vjp",
    "the backward rules of softplus and of the running sum",
)
def _(marks: Marks) -> None:
    marks.reference(
        softplus=lambda x: np.logaddexp(x, 0), running_sum=lambda x: np.cumsum(x, axis=-1)
    )
    marks.idea("a function of each element: g times its derivative", 2)
    marks.gradient(
        "softplus",
        marks.op("softplus", "softplus_vjp"),
        random(3, 4),
        mistakes={
            "This is the slope of the sigmoid, s (1 - s). The derivative of softplus is the sigmoid itself.": (
                lambda g, y, x: g / (1 + np.exp(-x)) / (1 + np.exp(x))
            ),
            "This is the slope of e^x. The derivative of log(1 + e^x) is e^x / (1 + e^x), by the chain rule.": (
                lambda g, y, x: g * np.exp(x)
            ),
            "y (1 - y) is the slope of the sigmoid at its output y, but this function is not the sigmoid. The derivative of "
            "log(1 + e^x) is e^x / (1 + e^x), by the chain rule.": lambda g, y, x: g * y * (1 - y),
            "The chain rule is missing: the slope of log(z) is 1 / z at z = 1 + e^x, times the slope of z, e^x.": (
                lambda g, y, x: g / (1 + x)
            ),
            "This is g / (1 + e^x). Check the sign of the exponent, or the factor e^x of the chain rule.": lambda g, y, x: (
                g / (1 + np.exp(x))
            ),
        },
    )
    marks.idea("an element that is used often: the sum over its uses", 3, main=True)
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
            "This is the sum of g over the whole row. x[i] is part of y[i] and of all later outputs, but not of the earlier "
            "ones.": lambda g, y, x: np.broadcast_to(g.sum(axis=-1, keepdims=True), g.shape),
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
        matched = {
            "The axes are matched from the left. Broadcasting matches them from the right, so the axes that were added are the first ones.": g.sum(
                axis=from_left
            )
        }
        marks.compare(
            f"{g.shape} to {shape}",
            lambda: unbroadcast(g, shape),
            g.sum(axis=over).reshape(shape),
            mistakes={
                "This is a mean. It should be a sum, because every copy contributes its whole gradient.": g.mean(
                    axis=over
                ).reshape(shape),
                "The copies are not added up: this is one of them, or a slice of g.": g[
                    tuple(slice(1) if i in over else slice(None) for i in range(g.ndim))
                ].reshape(shape),
            }
            | (matched if from_left != over else {}),
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


def gram(a: Any) -> Any:
    return a.mT @ a


def quadratic(x: Any, A: Any) -> Any:
    return np.sum(x @ A * x, axis=-1)


@exercise(5, "matmul", "the backward rules of products in which an array is used more than once")
def _(marks: Marks) -> None:
    marks.reference(gram=gram, quadratic=quadratic)
    one_use = (
        "This is the rule for one of the two uses of a. Each element of a occurs in a and in a^T, so its "
        "partial derivative has two terms."
    )
    of_gram = {
        "This is 2 a g, which is right only where g is symmetric. g is not, so the two uses of a give two "
        "different terms.": lambda g, y, a: 2 * a @ g,
        "This is 2 a g^T, which is right only where g is symmetric. g is not, so the two uses of a give two "
        "different terms.": lambda g, y, a: 2 * a @ g.mT,
        f"{one_use} ": lambda g, y, a: a @ g,
        one_use: lambda g, y, a: a @ g.mT,
    }
    of_gram_square = of_gram | {
        "The factors are in the wrong order: g multiplies from the left. The shapes fit only because a is "
        "square.": lambda g, y, a: (g + g.mT) @ a,
    }
    marks.idea("a factor that is used twice", 3, main=True)
    marks.gradient("gram, (4, 3)", marks.op("gram", "gram_vjp"), random(4, 3), mistakes=of_gram)
    marks.gradient(
        "gram, square", marks.op("gram", "gram_vjp"), random(3, 3), mistakes=of_gram_square
    )
    marks.gradient("gram, a stack", marks.op("gram", "gram_vjp"), random(2, 4, 3), mistakes=of_gram)
    of_quadratic = {
        "This is right only where A is symmetric. x_n is used twice, once with A and once with A^T, so "
        "there are two different terms.": lambda g, y, x, A: 2 * g[..., None] * (x @ A),
        "This is right only where A is symmetric: x_n is used twice, once with A and once with A^T, so "
        "there are two different terms.": lambda g, y, x, A: 2 * g[..., None] * (x @ A.T),
        "This is the rule for one use of x_n, the one on the right. x_n also stands on the left of "
        "A.": lambda g, y, x, A: g[..., None] * (x @ A),
        "This is the rule for one use of x_n, the one on the left. x_n also stands on the right of "
        "A.": lambda g, y, x, A: g[..., None] * (x @ A.T),
        "g is missing. Each row has its own g_n, which multiplies the partial derivatives of y_n.": (
            lambda g, y, x, A: _products(np.ones_like(g), x)
        ),
        "The sum of g multiplies the sum over the rows. Each row has its own g_n, so multiply first, and "
        "then sum.": lambda g, y, x, A: g.sum() * _products(np.ones_like(g), x),
        "This is a mean over the rows. A is used once for each row, and the contributions are "
        "added.": lambda g, y, x, A: _products(g, x) / g.size,
    }
    rules = "quadratic_vjp_x", "quadratic_vjp_A"
    marks.idea("a matrix that all rows share", 3)
    for title, x in (
        ("quadratic, 4 rows", random(4, 3)),
        ("quadratic, one row", random(1, 3)),
        ("quadratic, a stack", random(2, 4, 3)),
    ):
        marks.gradient(
            title,
            marks.op("quadratic", *rules, broadcasts=False),
            x,
            random(3, 3, seed=1),
            mistakes=of_quadratic,
        )


def _products(g: Any, x: Any) -> Any:
    """Return the sum over all rows of g_n x_n^T x_n."""
    rows = x.reshape(-1, x.shape[-1])
    return rows.T @ (g.reshape(-1, 1) * rows)


def softmax(x: Any, temperature: Any = 1.0) -> Any:
    e = np.exp((x - x.max(axis=-1, keepdims=True)) / temperature)
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x: Any, *, allowed: Any) -> Any:
    p = softmax(np.where(allowed, x, -np.inf))
    return np.log(np.where(allowed, p, 1))


def shares(x: Any) -> Any:
    return x / np.abs(x).sum(axis=-1, keepdims=True)


def row_sum(x: Any) -> Any:
    return x.sum(axis=-1, keepdims=True)


@exercise(
    6,
    "softmax",
    "a softmax with a learned temperature, a masked log-softmax and shares, with their rules",
)
def _(marks: Marks) -> None:
    marks.reference(softmax=softmax, log_softmax=log_softmax, shares=shares)
    my_softmax, my_log, my_shares = map(marks.function, ("softmax", "log_softmax", "shares"))
    x, temperature = random(3, 4), np.array(0.7)
    e = np.exp(x / 0.7)
    quiet = lambda f, *args, **settings: np.errstate(all="ignore")(f)(*args, **settings)
    stable = (
        "e^1000 is Inf. Subtract the largest element of each row first (keepdims=True), which changes "
        "neither softmax nor log-softmax.\nThe largest element of the whole array does not "
        "work, because rows far below it underflow to 0 / 0."
    )
    far = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]])
    marks.idea("a softmax that does not overflow", 1)
    marks.compare(
        "softmax",
        lambda: my_softmax(x, temperature),
        e / row_sum(e),
        mistakes={
            **either(
                "The sum is over axis 0. Sum over each row: axis=-1.",
                e / e.sum(axis=0),
                (e / e.max(axis=-1, keepdims=True))
                / (e / e.max(axis=-1, keepdims=True)).sum(axis=0),
            ),
            "The whole array sums to 1. Normalise each row separately.": e / e.sum(),
            "The temperature is not used. Divide the scores by it.": softmax(x),
            "The scores are multiplied by the temperature. Divide them by it.": softmax(x * 0.7),
        },
    )
    marks.compare(
        "softmax of large numbers",
        lambda: quiet(my_softmax, far, np.array(0.5)),
        np.full((2, 2), 0.5),
        hint=stable,
    )
    right = lambda g, y, x, t: y * (g - row_sum(g * y)) / t
    sigmoid = (
        "g y (1 - y) is the rule of the sigmoid, where an output depends on one number. Here each output "
        "depends on every score of its row, so the rule has a sum over the row."
    )
    plain = "The slope of x / temperature with respect to x is missing: 1 / temperature."
    late = "The rule of softmax with the partial derivatives of log-softmax: delta_ij - p_j. For softmax they are p_i (delta_ij - p_j)."
    of_scores = {
        f"{sigmoid} The slope of x / temperature is missing, too.": lambda g, y, x, t: (
            g * y * (1 - y)
        ),
        sigmoid: lambda g, y, x, t: g * y * (1 - y) / t,
        plain: lambda g, y, x, t: t * right(g, y, x, t),
        "The sum is over axis 0. Each row is a softmax of its own, so sum over axis -1, with keepdims=True.": (
            lambda g, y, x, t: y * (g - (g * y).sum(axis=0)) / t
        ),
        "The sum is over the whole array. Each row is a softmax of its own, so sum over axis -1, with "
        "keepdims=True.": lambda g, y, x, t: y * (g - (g * y).sum()) / t,
        late: lambda g, y, x, t: (g - y * row_sum(g)) / t,
        "The sum is over g alone. It is over g times y, because the partial derivatives are p_i (delta_ij - p_j).": (
            lambda g, y, x, t: y * (g - row_sum(g)) / t
        ),
    }
    whole = lambda g, y, x, t: (right(g, y, x, t) * x).sum()
    of_temperature = {
        "The slope of x / t with respect to t is -x / t^2. The minus sign is missing here.": (
            lambda g, y, x, t: whole(g, y, x, t) / t
        ),
        "The slope of x / t with respect to t is -x / t^2. The square is missing here.": (
            lambda g, y, x, t: -whole(g, y, x, t)
        ),
        "The scores x are missing: the slope of x_j / t with respect to t is -x_j / t^2.": (
            lambda g, y, x, t: -right(g, y, x, t).sum() / t
        ),
        "Softmax is missing: here g multiplies the slope of x / t directly. First go back through softmax.": (
            lambda g, y, x, t: -(g * x).sum() / t**2
        ),
        "Softmax has only its diagonal here, y (1 - y). Each output depends on every score of its row.": (
            lambda g, y, x, t: -(g * y * (1 - y) * x).sum() / t**2
        ),
        "Softmax has only its first term here, g y. The term with the sum over the row is missing.": (
            lambda g, y, x, t: -(g * y * x).sum() / t**2
        ),
    }
    marks.idea("every output depends on every score", 3, main=True)
    by_x, by_temperature = map(marks.function, ("softmax_vjp_x", "softmax_vjp_temperature"))
    of_x, of_t = op(softmax).vjp(by_x, None), op(softmax).vjp(None, by_temperature)
    marks.gradient("rule of softmax: x", of_x, x, temperature, mistakes=of_scores)
    marks.idea("a number that all outputs share", 1)
    marks.gradient("rule of softmax: temperature", of_t, x, temperature, mistakes=of_temperature)

    allowed = np.array([[True, True, False, True], [False, True, False, False], [True] * 4])
    logs = log_softmax(x, allowed=allowed)
    marks.idea("a masked log-softmax", 1)
    marks.compare(
        "log_softmax",
        lambda: quiet(my_log, x, allowed=allowed),
        logs,
        mistakes={
            "Nothing is masked: the sum covers the whole row.": log_softmax(
                x, allowed=allowed | True
            ),
            "The sum covers the whole row. It should cover only what is allowed.": np.where(
                allowed, log_softmax(x, allowed=allowed | True), 0
            ),
            "The result is -inf where an element is not allowed, but it should be 0 there.": np.where(
                allowed, logs, -np.inf
            ),
            "The result is NaN where an element is not allowed, because 0 * -inf is NaN. Choose with np.where instead.": np.where(
                allowed, logs, np.nan
            ),
            "The sum is right, but the result should be 0 where an element is not allowed.": x
            - np.log(row_sum(np.exp(x) * allowed)),
            "The mask is upside down. It is True where an element is allowed.": np.where(
                allowed, 0, x - np.log(np.maximum(row_sum(np.exp(x) * ~allowed), 1e-300))
            ),
            "Elements that are not allowed count as 0 here, and e^0 is 1. Use -np.inf, or leave them out of "
            "the sum.": np.where(allowed, x - np.log(row_sum(np.exp(np.where(allowed, x, 0)))), 0),
        },
    )
    marks.compare(
        "log_softmax, scores far apart",
        lambda: quiet(
            my_log, np.array([[0.0, 1000.0, 9.0]]), allowed=np.array([[True, True, False]])
        ),
        [[-1000.0, 0.0, 0.0]],
        mistakes={
            **either(
                "A softmax of 0 has no logarithm, so do not compute the softmax and then its logarithm. Subtract "
                "the largest allowed score, and then the logarithm of the sum.",
                *([[-np.inf, 0.0, last]] for last in (0.0, -np.inf, np.nan)),
            ),
            "The result is -inf where an element is not allowed, but it should be 0 there.": [
                [-1000.0, 0.0, -np.inf]
            ],
            "The result is NaN where an element is not allowed, because 0 * -inf is NaN. Choose with np.where instead.": [
                [-1000.0, 0.0, np.nan]
            ],
        },
        hint="e^1000 is Inf. First subtract the largest allowed score of each row (keepdims=True).",
    )
    seen = lambda g, allowed: np.where(allowed, g, 0)
    marks.idea("what is masked has no gradient and no weight", 1)
    marks.gradient(
        "rule of log_softmax",
        marks.op("log_softmax", "log_softmax_vjp"),
        x,
        allowed=allowed,
        mistakes={
            "The sum of g covers the whole row. Where an element is not allowed, y is always 0, so its g has no "
            "effect.": lambda g, y, x, allowed: seen(
                g - softmax(np.where(allowed, x, -np.inf)) * row_sum(g), allowed
            ),
            "The sum of g covers the whole row, and g is passed on where an element is not allowed. y is always 0 there, "
            "so its g has no effect.": lambda g, y, x, allowed: (
                g - softmax(np.where(allowed, x, -np.inf)) * row_sum(g)
            ),
            "e^y is 1 where an element is not allowed, because y is 0 there. The probability is "
            "0.": lambda g, y, x, allowed: seen(g, allowed) - np.exp(y) * row_sum(seen(g, allowed)),
            "This is the rule without the mask.": lambda g, y, x, allowed: (
                g - softmax(x) * row_sum(g)
            ),
            "This is the rule of softmax. The partial derivatives of log-softmax are delta_ij - p_j.": (
                lambda g, y, x, allowed: (
                    (p := softmax(np.where(allowed, x, -np.inf))) * (g - row_sum(g * p))
                )
            ),
            "The probabilities are missing: each score takes its share p_j of the sum of g.": (
                lambda g, y, x, allowed: seen(g - row_sum(seen(g, allowed)), allowed)
            ),
        },
    )

    marks.idea("dividing by a sum that depends on every element", 2)
    marks.compare(
        "shares",
        lambda: my_shares(x),
        shares(x),
        mistakes={
            "The sum is over x, not over |x|.": x / row_sum(x),
            "The sum is over axis 0. Sum over each row: axis=-1.": x / np.abs(x).sum(axis=0),
            "The whole array is divided by one sum. Each row has its own.": x / np.abs(x).sum(),
            "Each element is made positive. Divide x itself by the sum of |x|.": np.abs(shares(x)),
        },
    )
    size = lambda x: row_sum(np.abs(x))
    marks.gradient(
        "rule of shares",
        marks.op("shares", "shares_vjp"),
        x,
        mistakes={
            "The sum of |x| is treated as a constant, but it depends on every element of the row.": (
                lambda g, y, x: g / size(x)
            ),
            "The sign of x_j is missing: the slope of |x_j| is 1 or -1.": lambda g, y, x: (
                (g - row_sum(g * y)) / size(x)
            ),
            "Only the diagonal is there. Every output depends on every element of its row, so the rule has a sum "
            "over the row.": lambda g, y, x: g * (1 - np.abs(y)) / size(x),
            "g stands outside the sum: the sum is over i of g_i y_i.": lambda g, y, x: (
                g * (1 - np.sign(x) * row_sum(y)) / size(x)
            ),
            "The rule has x_j and the sign of x_i in its second term. The partial derivative of y_i with respect to "
            "x_j has x_i and the sign of x_j.": lambda g, y, x: (
                (g - y * row_sum(g * np.sign(x))) / size(x)
            ),
            "This has x where its sign belongs: the slope of |x_j| is 1 or -1.": lambda g, y, x: (
                g / size(x) - x * row_sum(g * x) / size(x) ** 2
            ),
            "The result is not divided by the sum of |x|.": lambda g, y, x: (
                g - np.sign(x) * row_sum(g * y)
            ),
            "This is the rule of a division by the sum of x^2's root. Here the length is the sum of |x|, whose slope is "
            "the sign.": lambda g, y, x: (g - y * row_sum(g * y)) / size(x),
        },
    )


def unit(x: Any) -> Any:
    return x / np.sqrt(row_sum(x * x))


def normalized(x: Any, groups: int, eps: float = 1e-5) -> tuple[Any, Any]:
    """Return n and the deviations of each element's group."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    centred = parts - parts.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    whole = np.broadcast_to(deviation, parts.shape)
    return (centred / deviation).reshape(x.shape), whole.reshape(x.shape)


def group_norm(x: Any, weight: Any, *, groups: int, eps: float = 1e-5) -> Any:
    return normalized(x, groups, eps)[0] * weight


def group_mean(x: Any, groups: int) -> Any:
    parts = x.reshape(*x.shape[:-1], groups, -1)
    return np.broadcast_to(parts.mean(axis=-1, keepdims=True), parts.shape).reshape(x.shape)


@exercise(
    7,
    "layer_norm",
    "the backward rules of x / |x| and of group norm",
)
def _(marks: Marks) -> None:
    marks.reference(unit=unit, group_norm=group_norm)
    length = lambda x: np.sqrt(row_sum(x * x))
    of_unit = {
        "The length is treated as a constant, but it depends on every element of the row.": (
            lambda g, y, x: g / length(x)
        ),
        "The result is not divided by the length.": lambda g, y, x: g - y * row_sum(g * y),
        "This uses x where the normalised y belongs: y has length 1, x has not.": lambda g, y, x: (
            (g - x * row_sum(g * x)) / length(x)
        ),
        "This uses x where the normalised y belongs, so a division by |x| is missing. The sum over g y is right.": lambda g, y, x: (
            (g - x * row_sum(g * y)) / length(x)
        ),
        "This is a mean, as in layer norm. |x| has a sum under its root, so the rule has a sum, too.": (
            lambda g, y, x: (g - y * (g * y).mean(axis=-1, keepdims=True)) / length(x)
        ),
        "A mean is subtracted, as in layer norm. Adding the same number to all elements of x does change x / |x|, so that "
        "term does not belong here.": lambda g, y, x: (
            (g - g.mean(axis=-1, keepdims=True) - y * row_sum(g * y)) / length(x)
        ),
        "Only the diagonal is there. Every output depends on every element of its row, so the rule has a sum over the "
        "row.": lambda g, y, x: g * (1 - y * y) / length(x),
        "The term with the sum is half of what it should be: the 2 of the square and the 1/2 of the root cancel.": (
            lambda g, y, x: (g - y * row_sum(g * y) / 2) / length(x)
        ),
        "The result is divided by the square of the length. Once is enough.": lambda g, y, x: (
            (g - y * row_sum(g * y)) / length(x) ** 2
        ),
    }
    of_unit |= {
        "There is one length for the whole array. Each row has its own: axis=-1, keepdims=True.": (
            lambda g, y, x: (g - y * row_sum(g * y)) / np.sqrt((x * x).sum())
        ),
        "The sum is over the whole array. Each row is normalised by itself: axis=-1, keepdims=True.": (
            lambda g, y, x: (g - y * (g * y).sum()) / length(x)
        ),
    }
    marks.idea("no gradient along x", 3, main=True)
    marks.gradient("rule of unit", marks.op("unit", "unit_vjp"), random(3, 4) * 2, mistakes=of_unit)
    marks.gradient(
        "rule of unit, a batch of sequences",
        marks.op("unit", "unit_vjp"),
        random(2, 3, 4),
        mistakes=of_unit,
    )

    mine = marks.function("group_norm")
    x, weight = random(3, 6) * 3 + 1, random(6)
    centred = x - group_mean(x, 2)
    variance = group_mean(centred**2, 2)
    n = centred / np.sqrt(variance + 1e-5)
    apart = x.reshape(3, 3, 2).swapaxes(-1, -2).reshape(3, 6)  # every second element
    other = normalized(apart, 2)[0].reshape(3, 2, 3).swapaxes(-1, -2).reshape(3, 6)
    marks.idea("a mean and a variance for each group", 1)
    marks.compare(
        "group_norm, 2 groups of 3",
        lambda: mine(x, weight, groups=2),
        n * weight,
        atol=1e-9,
        rtol=1e-9,
        mistakes={
            "There is a single mean and variance for all groups, as in layer norm. Each group has its own.": group_norm(
                x, weight, groups=1
            ),
            "The groups are every second element. They should be neighbours: reshape to (..., groups, size).": other
            * weight,
            "There are 3 groups of 2, but there should be 2 groups of 3: reshape to (..., groups, size).": group_norm(
                x, weight, groups=3
            ),
            "All rows together are cut into 2 groups. Cut each row: reshape to (..., groups, size).": normalized(
                x.reshape(-1), 2
            )[0].reshape(x.shape)
            * weight,
            "The variance is divided by n - 1. It should be the mean of the squares, with n.": centred
            / np.sqrt(variance * 3 / 2 + 1e-5)
            * weight,
            "eps is added to the root. Add it to the variance, under the root.": centred
            / (np.sqrt(variance) + 1e-5)
            * weight,
            "eps is missing.": centred / np.sqrt(variance) * weight,
            "The deviations are divided by the variance. Divide them by its square root.": centred
            / (variance + 1e-5)
            * weight,
            "The weight is missing.": n,
        },
    )

    def rule(h: Any, x: Any, groups: int, minus: Any) -> Any:
        return (h - minus) / normalized(x, groups)[1]

    def projected(h: Any, x: Any, groups: int) -> Any:
        """Return the parts of h that do not change the output."""
        n = normalized(x, groups)[0]
        return group_mean(h, groups) + n * group_mean(h * n, groups)

    mistakes = {
        "The weight is outside the means. h = g * weight first, and then the means of h.": (
            lambda g, y, x, w, groups: w * rule(g, x, groups, projected(g, x, groups))
        ),
        "The weight is missing. The gradient with respect to n is g * weight.": lambda g, y, x, w, groups: (
            rule(g, x, groups, projected(g, x, groups))
        ),
        "The means are over the whole last axis, as in layer norm. Each group has its own.": lambda g, y, x, w, groups: (
            rule(g * w, x, 1, projected(g * w, x, 1))
        ),
        "This uses y where the normalised n belongs.": lambda g, y, x, w, groups: rule(
            g * w, x, groups, group_mean(g * w, groups) + y * group_mean(g * w * y, groups)
        ),
        "This uses x where the normalised n belongs.": lambda g, y, x, w, groups: rule(
            g * w, x, groups, group_mean(g * w, groups) + x * group_mean(g * w * x, groups)
        ),
        "The term of the mean is missing. Adding the same number to a group does not change n.": lambda g, y, x, w, groups: (
            rule(
                g * w,
                x,
                groups,
                (n := normalized(x, groups)[0]) * group_mean(g * w * n, groups),
            )
        ),
        "The last term has the mean of h here. It is n times the mean of h * n.": lambda g, y, x, w, groups: (
            rule(g * w, x, groups, (1 + normalized(x, groups)[0]) * group_mean(g * w, groups))
        ),
        "The term of the variance is missing. Scaling a group does not change n.": lambda g, y, x, w, groups: (
            rule(g * w, x, groups, group_mean(g * w, groups))
        ),
        "The mean and the variance are treated as constants, but both depend on x.": lambda g, y, x, w, groups: (
            rule(g * w, x, groups, 0)
        ),
        "The result is not divided by the deviation.": lambda g, y, x, w, groups: (
            g * w - projected(g * w, x, groups)
        ),
        "The result is divided by the variance. Divide it by the deviation, its square root.": lambda g, y, x, w, groups: (
            rule(g * w, x, groups, projected(g * w, x, groups)) / normalized(x, groups)[1]
        ),
    }
    of_weight = {
        "This is g * x. The weight multiplies the normalised n.": lambda g, y, x, w, groups: g * x,
        "This is g * weight. The slope with respect to weight is n.": lambda g, y, x, w, groups: (
            g * w
        ),
        "This is g * y. The slope with respect to weight is n, without the weight.": (
            lambda g, y, x, w, groups: g * y
        ),
        "This is the sum of g. The weight multiplies the normalised n, so g is multiplied by n first.": (
            lambda g, y, x, w, groups: g.reshape(-1, x.shape[-1]).sum(axis=0)
        ),
    }
    mistakes = {"x": mistakes, "weight": of_weight}
    rules = [f"group_norm_vjp_{name}" for name in ("x", "weight")]
    op = marks.op("group_norm", *rules)
    marks.idea("the rules of group norm", 3)
    marks.gradient("rules of group_norm", op, x, weight, groups=2, mistakes=mistakes)
    marks.gradient(
        "rules of group_norm, a batch of sequences",
        op,
        random(2, 3, 6),
        weight,
        groups=3,
        mistakes=mistakes,
    )
