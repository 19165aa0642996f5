"""Markers for chapters 8 to 17: training, attention, layers, and models built from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise, several
from _marks_engine import either, random

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim


@exercise(8, "adam", "one step of Adam")
def _(marks: Marks) -> None:
    step, gradients = marks.function("adam_step", may_change=True), random(5, 3)
    lr, beta1, beta2, eps = 0.1, 0.9, 0.99, 0.1  # eps is large, so that its place matters
    start = np.array([1.0, -2.0, 0.5])

    def right(
        steps: int,
        one: float = beta1,
        two: float = beta2,
        of_m: bool = False,
        correction: Callable = lambda beta, t: 1 - beta**t,
        root: Callable = lambda v: np.sqrt(v) + eps,
        rate: float = lr,
    ) -> dict[str, np.ndarray]:
        p, m, v = start, np.zeros(3), np.zeros(3)
        for t, g in enumerate(gradients[:steps], 1):
            m = one * m + (1 - one) * g
            v = two * v + (1 - two) * (m if of_m else g) ** 2
            p = p - rate * m / correction(beta1, t) / root(v / correction(beta2, t))
        return {"p": p, "m": m, "v": v}

    def mine(steps: int) -> dict[str, np.ndarray]:
        p, m, v = start.copy(), np.zeros(3), np.zeros(3)
        for t, g in enumerate(gradients[:steps], 1):
            before = np.array(p)
            found = step(p, g.copy(), m, v, t, lr=lr, beta1=beta1, beta2=beta2, eps=eps)
            p, m, v = several(found, "adam_step", 3, "p, m and v")
        expected = right(steps)
        off = {
            name for name, x in (("p", p), ("m", m), ("v", v)) if not np.allclose(x, expected[name])
        }
        if "p" in off and off & {"m", "v"} and np.any(m) and np.any(v):  # p is judged by these
            with np.errstate(all="ignore"):
                root = np.sqrt(v / (1 - beta2**steps))
                p = p - (before - lr * m / (1 - beta1**steps) / (root + eps)) + expected["p"]
        return {"p": p, "m": m, "v": v}

    def check(steps: int, name: str, mistakes: dict[str, Any]) -> None:
        swapped = {
            f"This is the new {other}. Return p, m and v, in this order.": right(steps)[other]
            for other in "pmv"
            if other != name
        }
        marks.compare(
            f"{name} after {steps} step{'s' * (steps > 1)}",
            lambda: mine(steps)[name],
            right(steps)[name],
            atol=1e-9,
            mistakes=swapped | mistakes,
        )

    corrected = "The factor 1 - beta is missing, or this is the corrected {0}, which is only for the update of p."
    squares = gradients[0] ** 2
    marks.idea("running means of the gradient and of its square", 2)
    exchanged = partial(right, one=1 - beta1, two=1 - beta2)
    turned = "beta and 1 - beta are exchanged: the old mean is multiplied by beta."
    for steps in (1, 5):
        check(steps, "m", {corrected.format("m"): gradients[0], turned: exchanged(steps)["m"]})
        of_v = {
            corrected.format("v"): squares,
            "The gradient is not squared.": (1 - beta2) * gradients[0],
            "v is a mean of the squares of g, not of m.": right(steps, of_m=True)["v"],
            "This has beta1. The mean of the squares has beta2.": right(steps, two=beta1)["v"],
            turned: exchanged(steps)["v"],
        }
        check(steps, "v", of_v)
    marks.idea("a step by the corrected means", 3, main=True)
    corrections: dict[str, Callable] = {
        "The bias correction is missing. m and v begin at 0, so divide them by 1 - beta^t.": (
            lambda beta, t: 1
        ),
        "The correction is the same at each step here. It is 1 - beta^t, with the number of the step.": (
            lambda beta, t: 1 - beta
        ),
        "The correction has the power beta^t, beta**t. This is beta times t.": (
            lambda beta, t: 1 - beta * t
        ),
        "t is counted from 1 already: the correction is 1 - beta^t, not 1 - beta^(t + 1).": (
            lambda beta, t: 1 - beta ** (t + 1)
        ),
    }
    roots: dict[str, Callable] = {
        "eps is under the root. Add it to the root.": lambda v: np.sqrt(v + eps),
        "eps is missing. Add it to the root.": np.sqrt,
        "The square root of v is missing.": lambda v: v + eps,
    }
    for steps in (1, 5):
        with np.errstate(all="ignore"):
            wrong = {
                **{text: right(steps, correction=f)["p"] for text, f in corrections.items()},
                **{text: right(steps, root=f)["p"] for text, f in roots.items()},
                "The learning rate lr is missing.": right(steps, rate=1)["p"],
                "The step goes uphill. Subtract it from p.": right(steps, rate=-lr)["p"],
            }
        check(steps, "p", wrong)
    old = [start.copy(), gradients[0].copy(), gradients[1].copy(), gradients[2] ** 2]
    given = [array.copy() for array in old]
    marks.that(
        "the old arrays do not change",
        lambda: len(step(*given, 1)) == 3 and all(map(np.array_equal, given, old)),
        "p, g, m or v has different values after the call. m = ... makes a new array, but m *= ... "
        "and m[:] = ... change the old one.",
    )


@exercise(
    9,
    "attention",
    "scaled dot-product attention, with a causal mask",
    allowed=("softmax",),
)
def _(marks: Marks) -> None:
    marks.idea("scores, weights and output", 3, main=True)
    attention = marks.function("attention")
    q, k, v = random(4, 3), random(4, 3, seed=1), random(4, 5)
    dots = q @ k.T
    soft = lambda s, axis=-1: F.softmax(s, axis=axis)
    scores, free = dots / np.sqrt(3), np.tril(np.ones((4, 4), bool))
    weights, e = soft(scores), np.exp(scores)
    masked = soft(np.where(free, scores, -np.inf))

    def part(name: str, **settings: bool) -> Callable[[], Any]:
        def look() -> Any:
            found = attention(q, k, v, **settings)
            if not isinstance(found, dict):
                raise Wrong(
                    f"attention returns a {type(found).__name__}, but it should return a dict of "
                    "scores, weights and output."
                )
            if name not in found:
                only = (
                    f"has no {name!r}, only {', '.join(map(repr, found))}" if found else "is empty"
                )
                raise Wrong(f"The dict that attention returns {only}.")
            return found[name]

        return look

    def output(**settings: bool) -> Callable[[], Any]:
        """Return the output, judged by the learner's own weights if they are wrong."""

        def look() -> Any:
            found, right = part("output", **settings)(), masked if settings else weights
            own = part("weights", **settings)()
            fits = np.shape(own) == right.shape and np.any(own)
            if fits and np.allclose(found, np.asarray(own) @ v):
                return right @ v
            return found

        return look

    marks.compare(
        "scores",
        part("scores"),
        scores,
        mistakes={
            "The scores are divided by D. Divide them by its square root.": dots / 3,
            "The scores are divided by sqrt(T), where T is the number of positions. Divide them by sqrt(D), where D is the size of a query.": dots
            / np.sqrt(4),
            "The scores are not scaled. Divide them by sqrt(D).": dots,
            "The scores are transposed. Each row should belong to a query, and each column to a key.": scores.T,
        },
    )
    marks.compare(
        "weights",
        part("weights"),
        weights,
        mistakes={
            "The weights are normalised over the queries, over the first axis. For each query they should sum to 1 over the keys, the last axis.": soft(
                scores, 0
            ),
            "All weights together sum to 1. For each query they should sum to 1 over the keys, the last axis.": soft(
                scores, None
            ),
            "Each column is divided by the sum of a row, because sum() has removed its axis: keepdims=True keeps it.": e
            / e.sum(axis=-1),
        },
    )
    marks.compare("output", output(), weights @ v)
    marks.idea("the causal mask", 1)
    marks.compare(
        "causal scores",
        part("scores", causal=True),
        scores,
        mistakes={
            "These are the scores after masking. Return the scores before masking.": np.where(
                free, scores, -np.inf
            )
        },
    )
    marks.compare(
        "causal weights",
        part("weights", causal=True),
        masked,
        mistakes={
            "Nothing is masked.": weights,
            "A query may look at its own position. Block only the keys after it.": soft(
                np.where(np.tril(free, -1), scores, -np.inf)
            ),
            "The mask is upside down. Block the keys after the query.": soft(
                np.where(free.T, scores, -np.inf)
            ),
            **either(
                "The mask is inverted. np.tri is True where a query may look, so put -inf where it is False. Here the last query has no key left.",
                soft(np.where(free, -np.inf, scores)),
                soft(scores - 1e9 * free),
            ),
            "The mask is applied after the softmax, so the rows no longer sum to 1. Apply it to the scores.": weights
            * free,
            "Blocked scores are 0 here, which still has a weight, because e^0 = 1. A blocked score must be -np.inf.": soft(
                np.where(free, scores, 0)
            ),
        },
    )
    marks.compare("causal output", output(causal=True), masked @ v)
    marks.idea("any number of keys and axes", 1)
    stacked = random(2, 3, 4, 3), random(2, 3, 4, 3, seed=1), random(2, 3, 4, 5)
    marks.compare(
        "more keys than queries",
        lambda: attention(q[:2], k, v)["output"],
        weights[:2] @ v,
        hint="There may be more keys than queries. If q is (T, D) and k is (S, D), the scores are (T, S).",
    )
    for causal in (False, True):
        marks.compare(
            "causal, more axes in front" if causal else "more axes in front",
            lambda causal=causal: attention(*stacked, causal=causal)["output"],
            F.scaled_dot_product_attention(*stacked, is_causal=causal),
            hint="There may be any number of axes before the last two. k.swapaxes(-1, -2) does not touch them, and a mask "
            "has the shape of the last two axes of the scores.",
        )
    of_attention(marks)


def scaled(q: Any, k: Any, v: Any, scale: Any) -> Any:
    return F.softmax(scale * (q @ k.swapaxes(-1, -2))) @ v


def linear(q: Any, k: Any, v: Any) -> Any:
    return (np.tri(len(q)) * (q @ k.swapaxes(-1, -2))) @ v


def of_attention(marks: Marks) -> None:
    """Check the four backward rules of chapter 9."""
    marks.reference(scaled=scaled, linear=linear)
    q, k, v, scale = random(3, 2), random(4, 2, seed=1), random(4, 5), np.array(0.8)

    def rule(g: Any, scale: Any, axis: Any = -1, normalised: Any = -1) -> Any:
        """Return the products of the rule, to be summed; the axes are those of the sum and of softmax."""
        p, by_weights = F.softmax(scale * (q @ k.T), axis=normalised), g @ v.T
        sums = (by_weights * p).sum(axis=axis, keepdims=True)
        return p * (by_weights - sums) * (q @ k.T)

    def scale_rule(g: Any, y: Any, *inputs: Any) -> Any:
        return marks.function("scaled_vjp_scale")(g, y, q, k, v, *inputs)

    learned = ta.op(lambda scale: scaled(q, k, v, scale)).vjp(scale_rule)
    learned.__name__, scale_rule.__name__ = "scaled", "scaled_vjp_scale"
    marks.idea("back through the softmax, to a learned scale", 2)
    p_times = lambda g, scale: g @ v.T * F.softmax(scale * (q @ k.T))
    mistakes = {
        "The dot products are missing: the slope of scale * q k^T with respect to the scale is q k^T.": (
            lambda g, y, scale: rule(g, scale) / (q @ k.T)
        ),
        "This multiplies by the scores. The slope of scale * q k^T with respect to the scale is q k^T, without the "
        "scale.": lambda g, y, scale: scale * rule(g, scale),
        "The softmax is missing: its rule stands between the product with v and the scale.": (
            lambda g, y, scale: g @ v.T * (q @ k.T)
        ),
        "The sum in the rule of softmax is missing. Each weight depends on all scores of its query.": (
            lambda g, y, scale: p_times(g, scale) * (q @ k.T)
        ),
        "Softmax has only its diagonal here, p (1 - p). Each weight depends on all scores of its query.": (
            lambda g, y, scale: p_times(g, scale) * (1 - F.softmax(scale * (q @ k.T))) * (q @ k.T)
        ),
        "The sum in the rule of softmax is over the queries. It is over the keys of each query.": (
            lambda g, y, scale: rule(g, scale, axis=0)
        ),
        "The sum in the rule of softmax is over all elements. It is over the keys of each query, the last axis.": (
            lambda g, y, scale: rule(g, scale, axis=None)
        ),
        **either(
            "The softmax is over all elements. Each query has its own: the sums are over the keys, the last axis.",
            lambda g, y, scale: rule(g, scale, normalised=None),
            lambda g, y, scale: rule(g, scale, axis=None, normalised=None),
        ),
        "The softmax is over the queries. It is over the keys, the last axis.": (
            lambda g, y, scale: rule(g, scale, normalised=0)
        ),
    }
    marks.gradient(
        "rule of scaled: scale",
        learned,
        scale,
        mistakes={
            text: lambda g, y, scale, f=f: f(g, y, scale).sum() for text, f in mistakes.items()
        },
    )

    q, k, v = random(4, 3), random(4, 3, seed=1), random(4, 2, seed=2)
    free = np.tri(4)
    upside = "The mask is upside down: y_t contains the keys s <= t, and np.tri is 1 there."
    forgotten = "The mask is missing: y_t contains only the keys s <= t."
    by_names = {
        "q": lambda mask: lambda g, y, q, k, v: (mask * (g @ v.T)) @ k,
        "k": lambda mask: lambda g, y, q, k, v: (mask * (g @ v.T)).T @ q,
        "v": lambda mask: lambda g, y, q, k, v: (mask * (q @ k.T)).T @ g,
    }
    untransposed = "The matrix of query and key must be transposed here: the rule sums over the queries t that see key s."
    kept = [
        lambda g, y, q, k, v: (free * (g @ v.T)) @ q,
        lambda g, y, q, k, v: (free * (q @ k.T)) @ g,
    ]
    half = (
        "The mask and the matrix of query and key belong together: transpose both, or none of them."
    )
    half_turned = [
        rule
        for mask, turn in ((free.T, lambda a: a), (free, lambda a: a.T))
        for rule in (
            lambda g, y, q, k, v, mask=mask, turn=turn: (mask * turn(g @ v.T)) @ q,
            lambda g, y, q, k, v, mask=mask, turn=turn: (mask * turn(q @ k.T)) @ g,
        )
    ]
    mistakes = {
        **either(upside, *(f(free.T) for f in by_names.values())),
        **either(forgotten, *(f(1) for f in by_names.values())),
        **either(untransposed, *kept),
        **either(half, *half_turned),
    }
    rules = "linear_vjp_q", "linear_vjp_k", "linear_vjp_v"
    marks.idea("the rules of causal attention without a softmax", 3)
    marks.gradient("rules of linear", marks.op("linear", *rules), q, k, v, mistakes=mistakes)


@exercise(10, "heads", "split the embedding into heads, and join them again")
def _(marks: Marks) -> None:
    split, merge = marks.function("split_heads"), marks.function("merge_heads")
    x = random(2, 5, 12)
    heads = x.reshape(2, 5, 4, 3).swapaxes(1, 2)
    marks.idea("each head is a block of columns", 2, main=True)
    marks.compare(
        "split_heads, 4 heads of 3",
        lambda: split(x, 4),
        heads,
        mistakes={
            "A reshape alone gives each head some of the time steps. Reshape to (B, T, H, D), then swap T and H.": x.reshape(
                2, 4, 5, 3
            ),
            "The head index varies fastest here. Each head should be a block of neighbouring columns.": x.reshape(
                2, 5, 3, 4
            ).transpose(0, 3, 1, 2),
            "Heads and time are exchanged: this is (B, T, H, D). Swap the axes T and H.": x.reshape(
                2, 5, 4, 3
            ),
            "The number of heads and the size of a head are exchanged. Reshape to (B, T, heads, E // heads).": x.reshape(
                2, 5, 3, 4
            ).swapaxes(1, 2),
        },
    )
    marks.idea("joined, the columns are back in their places", 2, main=True)
    marks.compare(
        "merge_heads",
        lambda: merge(heads),
        x,
        mistakes={
            "A reshape alone is not enough. Swap back to (B, T, H, D) first.": heads.reshape(
                x.shape
            ),
            "The numbers of a head are spread over the columns. Join the axes H and D, in this order.": heads.transpose(
                0, 2, 3, 1
            ).reshape(x.shape),
        },
    )
    wide = random(2, 5, 7, 3)
    marks.compare(
        "merge_heads, 5 heads of 3", lambda: merge(wide), wide.swapaxes(1, 2).reshape(2, 7, 15)
    )
    marks.gradient("gradient of both", lambda x: merge(np.tanh(split(x, 2))), x, weight=0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gated(x: Any, W: Any, V: Any) -> Any:
    return sigmoid(x @ W) * (x @ V)


@exercise(
    11,
    "encoder_layer",
    "the encoder layer, pre-norm and post-norm, and the rules of a feed-forward net with a gate",
    allowed=("Module",),
)
def _(marks: Marks) -> None:
    marks.idea("the order of norm, sublayer and sum", 2, main=True)
    encoder_layer = marks.function("encoder_layer")
    ta.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).astype(np.float64)
    for norm, seed in ((layer.norm1, 0), (layer.norm2, 1)):
        norm.weight.data[:], norm.bias.data[:] = random(6, seed=seed), random(6, seed=seed + 2)
    attend = lambda x: layer.self_attn(x, x, x, need_weights=False)[0]
    feed_forward = lambda x: layer.linear2(F.relu(layer.linear1(x)))
    pieces = attend, feed_forward, layer.norm1, layer.norm2
    x = random(2, 3, 6)

    def right(norm_first: bool) -> np.ndarray:
        layer.norm_first = norm_first
        return layer(Tensor(x)).numpy()

    one, two = layer.norm1, layer.norm2
    mine = lambda norm_first: lambda: encoder_layer(Tensor(x), *pieces, norm_first=norm_first)
    t = Tensor(x)
    no_residual = two(feed_forward(one(attend(t))))
    half, after = t + attend(one(t)), one(t + attend(t))
    inside = t + one(attend(t))
    normed = one(t) + attend(one(t))
    twice = "norm1 is used in both sublayers. The second needs norm2."
    marks.compare(
        "post-norm",
        mine(False),
        right(False),
        mistakes={
            "This is the pre-norm form. In the post-norm form, the norm comes after the sum.": right(
                True
            ),
            "The residual connections are missing, such as x + attend(x).": no_residual,
            "The first sublayer has no residual connection.": two(
                (first := one(attend(t))) + feed_forward(first)
            ),
            "The second sublayer has no residual connection.": two(feed_forward(after)),
            "The norm is applied only to the output of the sublayer. Apply it to the sum.": inside
            + two(feed_forward(inside)),
            "The norm is applied before the sum. In the post-norm form it is applied to the sum, norm(x + sublayer(x)).": two(
                first := one(t) + attend(t)
            )
            + feed_forward(first),
            twice: one(after + feed_forward(after)),
        },
    )
    marks.compare(
        "pre-norm",
        mine(True),
        right(True),
        mistakes={
            "This is the post-norm form. In the pre-norm form, the norm comes before the sublayer, and the sum is not normalised.": right(
                False
            ),
            "The residual connection of the feed-forward net adds the input after the norm. Add the input before the norm.": two(
                half
            )
            + feed_forward(two(half)),
            "The residual connection of the attention adds the input after the norm. Add the input before the norm.": normed
            + feed_forward(two(normed)),
            "The residual connections of both sublayers add the input after the norm. Add the input before the norm.": two(
                normed
            )
            + feed_forward(two(normed)),
            twice: half + feed_forward(one(half)),
            "The result is normalised once more. In the pre-norm form, only the inputs of the sublayers are.": two(
                half + feed_forward(two(half))
            ),
            "The norm is applied to the output of the sublayer. In the pre-norm form it is applied to its input.": inside
            + two(feed_forward(inside)),
            "The residual connections are missing, such as x + attend(norm(x)).": feed_forward(
                two(attend(one(t)))
            ),
            "The first sublayer has no residual connection.": attend(one(t))
            + feed_forward(two(attend(one(t)))),
            "The second sublayer has no residual connection.": feed_forward(two(half)),
            "Both sublayers get the same x. The second one should get the result of the first.": t
            + attend(one(t))
            + feed_forward(two(t)),
        },
    )
    marks.idea("the rules of a net with a gate", 3)
    marks.reference(gated=gated)
    rules = "gated_vjp_x", "gated_vjp_W", "gated_vjp_V"
    both = lambda x, W, V: (sigmoid(x @ W), x @ V)
    whole = lambda x, d: x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1])
    of_gate = lambda g, s, u: g * u * s * (1 - s)
    slope = "The slope of the sigmoid is missing: s (1 - s)."
    mistakes = {
        "This is the path through the gate alone. x is used twice, so add the path through x V.": (
            lambda g, y, x, W, V: of_gate(g, *both(x, W, V)) @ W.T
        ),
        "This is the path through x V alone. x is used twice, so add the path through the gate.": (
            lambda g, y, x, W, V: (g * both(x, W, V)[0]) @ V.T
        ),
        "The path through the gate lacks the factor x V.": lambda g, y, x, W, V: (
            of_gate(g, both(x, W, V)[0], 1) @ W.T + (g * both(x, W, V)[0]) @ V.T
        ),
        "W and V are exchanged: each product goes back through its own matrix.": lambda g, y, x, W, V: (
            of_gate(g, *both(x, W, V)) @ V.T + (g * both(x, W, V)[0]) @ W.T
        ),
        slope: lambda g, y, x, W, V: (g * both(x, W, V)[1]) @ W.T + (g * both(x, W, V)[0]) @ V.T,
        f"{slope} ": lambda g, y, x, W, V: whole(x, g * both(x, W, V)[1]),
        "The slope of the sigmoid is s (1 - s). The factor 1 - s is missing.": lambda g, y, x, W, V: (
            whole(x, g * both(x, W, V)[1] * both(x, W, V)[0])
        ),
        "The slope of the sigmoid is s (1 - s), at its output s. This is z (1 - z), with z = x W.": (
            lambda g, y, x, W, V: whole(x, g * (x @ V) * (x @ W) * (1 - x @ W))
        ),
        "x V is missing: the slope of the product with respect to the gate is x V.": (
            lambda g, y, x, W, V: whole(x, of_gate(g, both(x, W, V)[0], 1))
        ),
        "The gate is missing: the slope of the product with respect to x V is the gate.": (
            lambda g, y, x, W, V: whole(x, g)
        ),
        "This is x W where the gate belongs, which is sigmoid(x W).": lambda g, y, x, W, V: whole(
            x, g * (x @ W)
        ),
    }
    W, V = random(3, 4), random(3, 4, seed=1)
    marks.gradient(
        "rules of gated",
        marks.op("gated", *rules, broadcasts=False),
        random(5, 3),
        W,
        V,
        mistakes=mistakes,
    )
    marks.gradient(
        "rules of gated, a stack",
        marks.op("gated", *rules, broadcasts=False),
        random(2, 5, 3),
        W,
        V,
        mistakes=mistakes,
    )


def of_angles(found: Any, expected: Any) -> str:
    """Say by which angles the pairs of a table turn from one position to the next, if they are wrong."""
    table = np.asarray(found)
    if table.shape != expected.shape:
        return ""
    right = 10000.0 ** (-np.arange(0, table.shape[1], 2) / table.shape[1])
    angles = np.arctan2(table[:, 0::2], table[:, 1::2])
    turns = np.diff(np.unwrap(angles, axis=0), axis=0)
    turn = turns.mean(axis=0)
    lengths = table[:, 0::2] ** 2 + table[:, 1::2] ** 2
    if not np.allclose(lengths, 1, atol=1e-4) or not np.allclose(turns, turn, atol=1e-4):
        return ""  # these are no angles that grow evenly
    ratio = turn / right
    if np.allclose(ratio, ratio[0], rtol=1e-3):
        return f"All angles are {ratio[0]:.4g} times what they should be. The angle of pair 0 is the position t itself."
    numbers = [", ".join(f"{x:.4g}" for x in each) for each in (turn, right)]
    return (
        f"From one position to the next, the pairs turn by the angles {numbers[0]}. They should turn by {numbers[1]}, "
        "which is 1 / 10000^(2i / d_model) for pair i."
    )


@exercise(
    12,
    "positions",
    "the table of sines and cosines",
)
def _(marks: Marks) -> None:
    positions = marks.function("sinusoidal")
    right = lambda length, size: F.sinusoidal_positions(length, size).numpy()

    powers = np.arange(3) * 2 / 6

    def paired(angles: np.ndarray) -> np.ndarray:
        return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(7, 6)

    t = np.arange(7)[:, None]
    a, own = t / 10000**powers, t / 10000 ** (np.arange(6) / 6)
    mistakes = {
        "All sines come before all cosines. Alternate them: sin, cos, sin, cos.": np.concatenate(
            [np.sin(a), np.cos(a)], axis=1
        ),
        "Sine and cosine are swapped.": paired(np.pi / 2 - a),
        "The exponent for pair i should be 2i / d_model.": paired(t / 10000 ** (powers / 2)),
        "The exponent is doubled twice, because 2i is already the number of the column.": paired(
            t / 10000 ** (powers * 2)
        ),
        "t is multiplied by 10000^(2i / d_model). Divide by it, so that later pairs turn more slowly.": paired(
            t * 10000**powers
        ),
        "The sine and cosine of a pair must have the same angle, as given by column 2i.": np.where(
            np.arange(6) % 2, np.cos(own), np.sin(own)
        ),
        "The positions are counted from 1. Count from 0.": paired((t + 1) / 10000**powers),
        "np.sin and np.cos take the angle itself, in radians, not in degrees.": paired(
            np.degrees(a)
        ),
    }

    marks.idea("pairs of sine and cosine that turn more and more slowly", 3, main=True)
    marks.compare(
        "7 positions, 6 numbers",
        lambda: positions(7, 6),
        right(7, 6),
        atol=1e-5,
        mistakes=mistakes,
        about=of_angles,
    )
    marks.compare("50 positions, 16 numbers", lambda: positions(50, 16), right(50, 16), atol=1e-5)
    marks.compare(
        "each pair has length 1",
        lambda: np.square(np.asarray(positions(9, 4))).reshape(9, 2, 2).sum(axis=-1),
        np.ones((9, 2)),
        atol=1e-5,
    )


OF_TRAIN = {
    "stale": "The gradients of earlier groups are still included, because .grad accumulates. Call optimizer.zero_grad() "
    "once for each group, before its first backward().",
    "still": "Nothing is learned, because the model never changes. Do you call optimizer.step() after the last backward() of a "
    "group, with no zero_grad() between the two?",
    "last": "This is only the gradient of the last part. Call backward() for every part, and optimizer.zero_grad() once "
    "for each group, before the first.",
    **dict.fromkeys(
        ("each", "often", "plain"),
        "There is a step after every part. Take one step for each group, after its last part.",
    ),
    **dict.fromkeys(
        ("last loss", "last share"),
        "This is the loss of the last part of each group. Add up what all parts contribute to the mean over the group.",
    ),
    **dict.fromkeys(
        ("plain_loss", "summed_loss"),
        "The loss of a group is not the mean over its samples: multiply each part's loss by the part's share of the samples.",
    ),
    "sum": "The losses of the parts are added as they are. Each is a mean over its part, so multiply it by the part's share of the "
    "samples, len(y) / samples.",
    "mean": "All parts count the same here, but they differ in length. A part's loss is a mean over its samples, so multiply it by "
    "the part's share of the samples.",
    "samples": "The gradient is that of the sum over the samples. For the mean, divide by the number of samples of the group.",
    "unscaled": "The gradient is that of the sum of the parts' means. Multiply each loss by its share of the "
    "samples before backward().",
    "softmax": "F.cross_entropy applies the softmax itself, so it expects scores. Here it receives probabilities.",
}


def fresh_classifier() -> tuple[Any, Any]:
    ta.manual_seed(0)
    model = nn.Linear(4, 2).astype(np.float64)
    return model, optim.SGD(model.parameters(), lr=0.5)


def train_by_parts(groups: Any, mistake: str = "") -> tuple[list[float], Any]:
    """Return the losses and the weight afterwards, perhaps with a mistake."""
    model, optimizer = fresh_classifier()
    losses = []
    for group in groups:
        samples, total = sum(len(y) for _, y in group), 0.0
        if mistake != "stale":
            optimizer.zero_grad()
        for x, y in group:
            shares = {"sum": 1, "mean": 1 / len(group), "samples": len(y)}
            share = shares.get(mistake, len(y) / samples)
            scores = model(x)
            loss = F.cross_entropy(F.softmax(scores) if mistake == "softmax" else scores, y)
            if mistake in ("last", "each", "plain"):
                optimizer.zero_grad()
            (loss if mistake in ("unscaled", "plain") else share * loss).backward()
            if mistake in ("each", "often", "plain"):
                optimizer.step()
            counted = {"plain_loss": 1 / len(group), "summed_loss": 1}.get(mistake, share)
            total += counted * loss.item()
        if mistake not in ("each", "often", "plain", "still"):
            optimizer.step()
        losses.append(
            {"last loss": loss.item(), "last share": share * loss.item()}.get(mistake, total)
        )
    return losses, model.weight.numpy().copy()


@exercise(
    13,
    "train",
    "a training loop for batches that come in parts",
    allowed=("cross_entropy", "Module", "Optimizer", "SGD", "backward"),
)
def _(marks: Marks) -> None:
    train = marks.function("train")
    rng = np.random.default_rng(0)
    groups = []
    for sizes in ((4, 4), (5, 2, 1), (3,), (1, 6), (2, 2, 4)):
        group = []
        for size in sizes:
            x = rng.standard_normal((size, 4))
            group.append((x, (x @ np.array([1.0, -1.0, 2.0, 0.0]) > 0).astype(int)))
        groups.append(group)

    def mine() -> tuple[Any, Any]:
        model, optimizer = fresh_classifier()
        losses = train(model, optimizer, groups)
        return losses, model.weight

    def mine_losses() -> Any:
        losses, _ = mine()
        if not np.iterable(losses):
            raise Wrong(
                f"train returns a {type(losses).__name__}, but it should return a list with the "
                "loss of each group."
            )
        if strange := [value for value in losses if not isinstance(value, Real)]:
            raise Wrong(
                "The losses should be plain numbers, loss.item(), but one is a "
                f"{type(strange[0]).__name__}. A list of tensors keeps every graph alive."
            )
        return losses

    losses, weight = train_by_parts(groups)
    found = {mistake: train_by_parts(groups, mistake) for mistake in OF_TRAIN}

    def mistakes(which: int) -> dict[str, Any]:
        right = (losses, weight)[which]
        by_text: dict[str, list[Any]] = {}
        for mistake, text in OF_TRAIN.items():
            # The weights are the same whether the losses are added right or not.
            said = mistake != "sum" or which == 0
            if said and not np.allclose(found[mistake][which], right):
                by_text.setdefault(text, []).append(found[mistake][which])
        return {
            key: value
            for text, values in by_text.items()
            for key, value in either(text, *values).items()
        }

    marks.idea("one step by the gradient of the mean over all samples", 3, main=True)
    marks.compare(
        "weights afterwards",
        lambda: mine()[1],
        weight,
        mistakes=mistakes(1),
    )
    marks.idea("the mean loss of each group", 2)
    marks.compare(
        "losses",
        mine_losses,
        losses,
        mistakes=mistakes(0),
    )


@exercise(14, "greedy", "teacher forcing, and writing one symbol after another")
def _(marks: Marks) -> None:
    shifted, greedy = marks.function("shifted", may_change=True), marks.function("greedy")
    answers = np.array([[4, 2, 7], [1, 1, 3]])
    marks.idea("the decoder sees only what comes before", 2)
    marks.compare(
        "shifted",
        lambda: shifted(answers.copy(), 10),
        [[10, 4, 2], [10, 1, 1]],
        mistakes={
            "The digits are shifted the wrong way. Put START in front and drop the last digit.": [
                [2, 7, 10],
                [1, 3, 10],
            ],
            "START is missing in front.": np.roll(answers, 1, axis=1) * [0, 1, 1]
            + answers * [1, 0, 0],
            "The last digit has come to the front. START belongs there, and the last digit is dropped.": np.roll(
                answers, 1, axis=1
            ),
            "The digits are not shifted, so the decoder would see what it should write.": answers,
            "The last digit is still there. Drop it, because nothing is written after it.": np.insert(
                answers, 0, 10, axis=1
            ),
        },
    )
    given = answers.copy()
    marks.that(
        "the answers do not change",
        lambda: shifted(given, 10) is not None and np.array_equal(given, answers),
        "answers has different values after the call. Make a new array, because the answers are "
        "still needed as targets of the loss.",
    )
    source = np.array([[3, 1, 4, 1], [5, 9, 2, 6]])

    def score(source: np.ndarray, written: np.ndarray) -> Tensor:
        """A decoder that writes the running sum of its source modulo 10; START (10) counts as 0.
        (B, S), (B, T) -> (B, T, 10)
        """
        written = np.asarray(written)
        if (
            written.ndim != 2
            or not 1 <= written.shape[1] <= source.shape[1]
            or np.any(written[:, 0] != 10)
        ):
            raise ValueError(
                f"written should be (B, T) with 1 <= T <= {source.shape[1]}, and begin with START, "
                f"here 10; got the shape {written.shape} and {written.tolist()}"
            )
        return Tensor(np.eye(10)[(written + source[:, : written.shape[1]]) % 10])

    right = np.cumsum(source, axis=1) % 10
    marks.idea("each symbol is written from those before it", 3, main=True)
    marks.compare(
        "greedy",
        lambda: greedy(score, source, 4, 10),
        right,
        mistakes={
            **either(
                "The answer should not include START.",
                np.insert(right, 0, 10, axis=1)[:, :4],
                np.insert(right, 0, 10, axis=1),
            ),
            "Each symbol is computed from START alone. Add each symbol to `written`, and take the scores at its last position.": np.repeat(
                right[:, :1], 4, axis=1
            ),
        },
    )
    marks.that(
        "greedy returns whole numbers (B, length)",
        lambda: (
            np.asarray(greedy(score, source, 2, 10)).dtype.kind == "i"
            and np.shape(greedy(score, source, 2, 10)) == (2, 2)
        ),
        "It should return an integer array of shape (B, length).",
    )


@exercise(15, "sampling", "probabilities with a temperature, among the k best scores")
def _(marks: Marks) -> None:
    probabilities = marks.function("probabilities")
    scores = np.array([[2.0, 0.0, 1.0, -1.0], [0.5, 3.0, -2.0, 0.0]])
    soft = lambda s: np.exp(s) / np.exp(s).sum(axis=-1, keepdims=True)
    marks.idea("the temperature divides the scores", 2, main=True)
    marks.compare(
        "temperature 1",
        lambda: probabilities(scores, 1.0, 4),
        soft(scores),
        mistakes={
            "The k-th best score is left out. Keep it by comparing with >=.": soft(
                np.where(scores > scores.min(axis=-1, keepdims=True), scores, -np.inf)
            ),
            "All rows are divided by the sum of the whole array. Divide each by its own sum: axis=-1, keepdims=True.": soft(
                scores.ravel()
            ).reshape(2, 4),
            **either(
                "The columns sum to 1 here. Each row should: axis=-1, keepdims=True.",
                soft(scores.T).T,
                (e := np.exp(scores - scores.max(axis=-1, keepdims=True))) / e.sum(axis=0),
            ),
            "Only the best score is left, though all four are asked for. np.sort sorts upwards, so the k-th best is at [:, -k].": np.eye(
                4
            )[scores.argmax(axis=-1)],
        },
    )
    marks.compare(
        "temperature 0.5",
        lambda: probabilities(scores, 0.5, 4),
        soft(scores * 2),
        mistakes={
            "The temperature is not used. Divide the scores by it.": soft(scores),
            "The scores are multiplied by the temperature. Divide them by it, because a low temperature should sharpen the distribution.": soft(
                scores / 2
            ),
            "The probabilities are divided by the temperature, which only scales them. Divide the scores.": soft(
                scores
            )
            / 0.5,
        },
    )
    best = np.array([[True, False, True, False], [True, True, False, False]])
    marks.idea("only the k best are left, before the softmax", 2)
    marks.compare(
        "the 2 best",
        lambda: probabilities(scores, 1.0, 2),
        soft(np.where(best, scores, -np.inf)),
        mistakes={
            "The rows no longer sum to 1. Set the other scores to -Inf before the softmax.": soft(
                scores
            )
            * best,
            "The other scores are set to 0, but e^0 = 1 is still a probability above 0. Set them to -Inf.": soft(
                np.where(best, scores, 0)
            ),
        },
    )
    marks.idea("large scores do not overflow", 1)
    marks.compare(
        "the best alone, temperature 0.001",
        lambda: probabilities(scores, 0.001, 1),
        [[1, 0, 0, 0], [0, 1, 0, 0]],
        mistakes={
            "e^2000 is infinite. Subtract the largest score of each row first, as in chapter 6.": [
                [np.nan, 0, 0, 0],
                [0, np.nan, 0, 0],
            ]
        },
    )


@exercise(16, "pooling", "one vector of length 1 for each sentence")
def _(marks: Marks) -> None:
    pool = marks.function("pool")
    tokens, there = (
        random(2, 4, 3),
        np.array([[True, True, False, False], [True, True, True, False]]),
    )
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    mean = (tokens * there[..., None]).sum(axis=1) / there.sum(axis=1, keepdims=True)
    marks.idea("a mean over the tokens alone, of length 1", 3, main=True)
    marks.compare(
        "pooled",
        lambda: pool(tokens, there),
        unit(mean),
        mistakes={
            **either(
                "This is the largest of the tokens, not their mean.",
                unit(np.where(there[..., None], tokens, -np.inf).max(axis=1)),
                unit((tokens * there[..., None]).max(axis=1)),
            ),
            "The padding is included in the mean. Multiply it by 0 before you sum.": unit(
                tokens.mean(axis=1)
            ),
            "The means are right, but their length is not yet 1.": mean,
            "The means are divided by the square of their length. The square root is missing.": mean
            / (mean * mean).sum(axis=-1, keepdims=True),
            **either(
                "All sentences are divided by a single length. Each has its own: axis=-1, keepdims=True.",
                mean / np.linalg.norm(mean),
                (total := (tokens * there[..., None]).sum(axis=1)) / np.linalg.norm(total),
            ),
            "The mask is inverted. It is True where there is a token.": unit(
                (tokens * ~there[..., None]).sum(axis=1) / 4
            ),
        },
    )
    changed = np.where(there[..., None], tokens, 1e3)
    marks.compare("the padding does not matter", lambda: pool(changed, there), unit(mean))
    marks.gradient("its gradient", lambda t: pool(t, there), tokens, weight=0)


@exercise(17, "hvp", "a Hessian times a vector, without the Hessian", allowed=("grad", "Tensor"))
def _(marks: Marks) -> None:
    product = marks.function("hvp")
    x, v = random(4), random(4, seed=1)
    cubes = lambda x: np.sum(x**3)
    marks.idea("the gradient of gradient times v", 3, main=True)
    marks.compare(
        "sum of cubes",
        lambda: product(cubes, x, v),
        6 * x * v,
        mistakes={
            "This is the gradient times v, so only a first derivative.": 3 * x**2 * v,
            "This is the diagonal of the Hessian. Multiply the Hessian by v.": 6 * x,
            "This is the gradient.": 3 * x**2,
            "ta.grad returns a tuple with a gradient for each input. Take the first.": (6 * x * v)[
                None
            ],
        },
    )
    matrix = random(4, 4)
    mixed = lambda x: np.sum(np.tanh(matrix @ x) ** 2)
    hessian = ta.hessian(mixed, x)
    marks.compare(
        "coupled",
        lambda: product(mixed, x, v),
        hessian @ v,
        mistakes={
            "The multiplication by v comes too late. Take the second gradient of sum(gradient * v).": hessian.sum(
                axis=0
            )
            * v
        },
    )
    marks.compare(
        "a matrix",
        lambda: product(lambda x: np.sum(np.exp(x)), random(2, 3), random(2, 3, seed=1)),
        np.exp(random(2, 3)) * random(2, 3, seed=1),
    )
