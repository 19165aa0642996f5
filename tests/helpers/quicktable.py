"""One table of examples for which the quick ways of `fast/` are taken, keyed by what they replace.

The tests compute each twice, quickly and under `ta.plain()`, to second order. A key is "F.name" for a function of
`F`, "equations.name", "ops.name", or "engine.name". Registering a quick way means adding a line here: arrays for
which it fits, by which all derivatives are taken, and a function of them; each branch of it wants an example.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinygrad_attn.functional as F
from tinygrad_attn import ops
from tinygrad_attn.functional import equations


class Quick(NamedTuple):
    function: Callable[..., Any]
    shapes: list[tuple[int, ...]]
    prepare: Callable[[np.ndarray], np.ndarray] = lambda x: x

    def arrays(self, dtype: Any) -> list[np.ndarray]:
        rng = np.random.default_rng(4)
        return [self.prepare(rng.standard_normal(shape)).astype(dtype) for shape in self.shapes]


def whole(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, high, shape)


def chance(*shape: int, p: float = 0.5) -> np.ndarray:
    return np.random.default_rng(6).random(shape) < p


def along(function: Callable[..., Any], **settings: Any) -> list[Quick]:
    """A reduction over rows, columns, several axes; narrow and wide."""
    shapes = {1: (3, 5), -1: (70, 130), 0: (130, 70), (0, 2): (20, 30, 40), None: (9, 7)}
    return [
        Quick(lambda x, a=axis, k=keep: function(x, axis=a, keepdims=k, **settings), [shape])
        for axis, shape in shapes.items()
        for keep in (False, True)
    ]


def attends(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> list[Quick]:
    q, k = shapes[:2]
    scores = (*q[:-1], k[-2])
    return [
        Quick(lambda *x: function(*x, scale=0.3), shapes),
        Quick(lambda *x: function(*x, scale=0.3, is_causal=True), shapes),
        Quick(lambda *x: function(*x, chance(*scores, p=0.8), scale=0.3), shapes),
        Quick(lambda *x: function(*x, scale=0.3), [*shapes, scores]),  # a mask that is learned
    ]


KEPT = chance(2, 3, 5, 7, p=0.7)
HEADS = [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)]  # (B, H, T, D), (B, H, S, D), (B, H, S, V)
LONG = [(2, 300, 8), (2, 310, 8), (2, 310, 5)]

TABLE: dict[str, list[Quick]] = {
    "F.gelu": [
        Quick(lambda x, how=how: F.gelu(x, how), [shape])
        for how in ("none", "tanh")
        for shape in [(1,), (3, 7), (300, 130)]
    ],
    "F.softmax": [
        Quick(lambda x, a=axis: F.softmax(x, a), [shape])
        for axis, shape in [(-1, (3, 7)), (0, (5, 4)), (1, (2, 5, 3)), (1, (20, 700))]
    ],
    "F.log_softmax": [
        Quick(lambda x, a=axis: F.log_softmax(x, a), [shape])
        for axis, shape in [(-1, (3, 7)), (0, (5, 4)), (1, (2, 5, 3))]
    ],
    "F.logsumexp": [
        Quick(lambda x, a=axis, k=keep: F.logsumexp(x, a, keepdims=k), [(2, 5, 3)])
        for axis in (0, -1)
        for keep in (False, True)
    ],
    "F.layer_norm": [
        Quick(lambda x: F.layer_norm(x, 7), [(3, 7)]),
        Quick(lambda x, w: F.layer_norm(x, 7, w), [(3, 7), (7,)]),
        Quick(lambda x, w, b: F.layer_norm(x, (5, 7), w, b), [(3, 5, 7), (5, 7), (5, 7)]),
        Quick(lambda x, w, b: F.layer_norm(x + 9.0, 40, w, b), [(300, 40), (40,), (40,)]),
    ],
    "F.rms_norm": [
        Quick(lambda x: F.rms_norm(x, 7), [(3, 7)]),
        Quick(lambda x, w: F.rms_norm(x, (5, 7), w, 1e-3), [(3, 5, 7), (5, 7)]),
    ],
    "F.linear": [
        Quick(F.linear, [(7,), (3, 7)]),
        Quick(F.linear, [(5, 7), (3, 7), (3,)]),
        Quick(F.linear, [(2, 5, 7), (3, 7), (3,)]),
        Quick(F.linear, [(300, 70), (130, 70), (130,)]),
    ],
    "equations.dropout": [
        Quick(lambda x: equations.dropout(x, keep=chance(5, 7), p=0.5), [(5, 7)])
    ],
    "equations.cross_entropy": [
        Quick(lambda x, s=settings, t=target: equations.cross_entropy(x, target=t, **s), [shape])
        for settings in (
            {},
            {"reduction": "sum", "label_smoothing": 0.2},
            {"reduction": "none", "ignore_index": 1},
        )
        for shape, target in [((6, 5), whole(5, 6)), ((4, 5, 3), whole(5, 4, 3))]
    ]
    + [
        Quick(
            lambda x: equations.cross_entropy(
                x, np.linspace(0.5, 2, 5).astype(x.dtype), target=whole(5, 6), label_smoothing=0.1
            ),
            [(6, 5)],
        )
    ],
    "equations.scaled_dot_product_attention": [
        *attends(equations.scaled_dot_product_attention, HEADS),
        *attends(equations.scaled_dot_product_attention, LONG),
        Quick(
            lambda q, k, v: equations.scaled_dot_product_attention(
                q, k, v, scale=0.3, keep=KEPT, keep_scale=1 / 0.7
            ),
            HEADS,
        ),
    ],
    "equations.attention_weights": attends(equations.attention_weights, HEADS[:2]),
    "equations.packed_attention": [
        Quick(
            lambda x, s=s: equations.packed_attention(x, num_heads=2, scale=0.3, **s), [(2, 5, 24)]
        )
        for s in (
            {},
            {"is_causal": True},
            {"keep": chance(2, 2, 5, 5, p=0.7), "keep_scale": 1 / 0.7},
        )
    ],
    "engine.sum_to": [
        Quick(lambda x, b: x * b, shapes)
        for shapes in [
            [(3, 4), (4,)],
            [(3, 4), (3, 1)],
            [(300, 13), (13,)],
            [(300, 13), (300, 1)],
            [(30, 20, 13), (20, 13)],
        ]
    ],
    "engine.sweep": [Quick(lambda x: (x * x + np.exp(x)) @ x.T, [(3, 3)])],
    "ops.maximum": [
        Quick(ops.maximum, [(3, 4), (4,)]),
        Quick(lambda x: ops.maximum(x, 0.0), [(3, 4)]),
    ],
    "ops.minimum": [
        Quick(ops.minimum, [(3, 4), (4,)]),
        Quick(lambda x: ops.minimum(x, 0.0), [(3, 4)]),
    ],
    "ops.clip": [Quick(lambda x: ops.clip(x, -0.5, 0.7), [(3, 4)])],
    "ops.where": [
        Quick(lambda a, b: ops.where(chance(130, 70), a, b), [(130, 70), (130, 70)]),
        Quick(lambda a, b: ops.where(chance(130, 1), a, b), [(130, 70), (70,)]),
    ],
    "ops.relu": [Quick(ops.relu, [(3, 4)]), Quick(ops.relu, [()]), Quick(ops.relu, [(130, 70)])],
    "ops.erf": [Quick(ops.erf, [(3, 4)]), Quick(ops.erf, [(300, 130)])],
    "ops.logaddexp": [
        Quick(ops.logaddexp, [(30, 40), (40,)]),
        Quick(lambda a, b: ops.logaddexp(a, 80 * b), [(30, 40), (30, 40)]),
    ],
    "ops.sum": along(ops.sum),
    "ops.mean": along(ops.mean),
    "ops.matmul": [
        Quick(ops.matmul, shapes)
        for shapes in [
            [(3, 4), (4, 5)],
            [(2, 3, 4), (4, 5)],
            [(2, 3, 4), (2, 4, 5)],
            [(3, 4), (2, 4, 5)],
            [(2, 1, 3, 4), (6, 4, 5)],
            [(130, 200), (200, 70)],
        ]
    ],
    "ops.getitem": [
        Quick(lambda x: x[1:, ::2], [(4, 6)]),
        Quick(lambda x: x[whole(4, 9)], [(4, 6)]),
        Quick(lambda x: x[whole(4, 3, 5), whole(6, 5)], [(4, 6)]),
        Quick(lambda x: x[chance(4, 6)], [(4, 6)]),
        Quick(lambda x: x[:, whole(6, 400)], [(50, 6)]),
        Quick(lambda x: x[..., None, -1], [(4, 6)]),
    ],
    "ops.embedding": [
        Quick(lambda w: ops.embedding(w, indices=whole(5, 2, 7)), [(5, 3)]),
        Quick(lambda w: ops.embedding(w, indices=whole(40, 600)), [(40, 30)]),
    ],
    "ops.scatter": [
        Quick(lambda g: ops.scatter(g, index=(whole(4, 9),), shape=(4, 6)), [(9, 6)]),
        Quick(lambda g: ops.scatter(g, index=(slice(1, 4),), shape=(4, 6)), [(3, 6)]),
    ],
    "ops.embedding_backward": [
        Quick(lambda g: ops.embedding_backward(g, indices=whole(5, 2, 7), rows=5), [(2, 7, 3)])
    ],
    "ops.take_along_axis": [
        Quick(lambda x: ops.take_along_axis(x, indices=whole(4, 9, 6), axis=0), [(4, 6)]),
        Quick(lambda x: ops.take_along_axis(x, indices=whole(6, 4, 2), axis=1), [(4, 6)]),
        Quick(lambda x: ops.take_along_axis(x, indices=whole(24, 9), axis=None), [(4, 6)]),
    ],
}

# Where a branch is decided by the numbers themselves: ties, bounds, what leaves the range of an exponential, places
# counted from the end, one place used by two ops (whose shares are added in place), one head for many.


def ties(x: np.ndarray) -> np.ndarray:
    return np.round(2 * x) / 2


def far(x: np.ndarray) -> np.ndarray:
    return 30 * x


def behind(high: int, *shape: int) -> np.ndarray:
    """Places from both ends, -high to high - 1."""
    return whole(2 * high, *shape) - high


def twice(picks: Callable[..., Any], first: Any, second: Any, shape: tuple[int, ...]) -> Quick:
    return Quick(lambda x: np.sin(picks(x, first)) * np.cos(picks(x, second)), [shape])


def add(key: str, *examples: Quick) -> None:
    TABLE[key] += examples


for f in (ops.maximum, ops.minimum):
    add(f"ops.{f.__name__}", Quick(f, [(5, 4), (4,)], ties), Quick(f, [(70, 130), (130,)], ties))
add("ops.clip", Quick(lambda x: ops.clip(x, -0.5, 1), [(70, 130)], ties))
add("ops.relu", Quick(ops.relu, [(70, 130)], ties))
add("F.gelu", Quick(F.gelu, [(5, 7)], far), Quick(F.gelu, [(200, 170)], far))
add("F.gelu", Quick(lambda x: F.gelu(x, "tanh"), [(5, 7)], far))
add("ops.erf", Quick(ops.erf, [(5, 7)], lambda x: 4 * x))
for key, f in [("F.softmax", F.softmax), ("F.log_softmax", F.log_softmax)]:
    add(
        key,
        *[
            Quick(lambda x, f=f, a=axis: f(x, a), [shape], far)
            for axis, shape in [(-1, (9, 7)), (-1, (9, 300)), (0, (5, 4)), (1, (2, 5, 300))]
        ],
    )
add("ops.logaddexp", Quick(ops.logaddexp, [(30, 40), (40,)], far))
add("F.logsumexp", Quick(lambda x: F.logsumexp(x, (0, 2)), [(2, 5, 3)], far))
add(
    "equations.cross_entropy",
    *[
        Quick(
            lambda x, k=kept, how=how: equations.cross_entropy(
                x,
                np.linspace(0.5, 2, x.shape[1]).astype(x.dtype) if k else None,
                target=whole(5, 4, 3),
                ignore_index=1,
                reduction=how,
                label_smoothing=0.3,
            ),
            [(4, 5, 3)],
            far,
        )
        for kept in (True, False)
        for how in ("none", "mean", "sum")
    ],
)
add(
    "F.layer_norm",
    Quick(lambda x, w, b: F.layer_norm(x + 100.0, (5, 7), w, b, 0.1), [(3, 5, 7), (5, 7), (5, 7)]),
    Quick(lambda x, b: F.layer_norm(x, 7, None, b), [(2, 3, 7), (7,)]),
)
add("F.rms_norm", Quick(lambda x, w: F.rms_norm(x, 40, w), [(300, 40), (40,)]))
for shape in [(2, 7), (6, 7), (20, 7), (1, 7)]:
    add("F.linear", Quick(F.linear, [shape, (30, 7), (30,)]), Quick(F.linear, [shape, (30, 7)]))
add(
    "equations.scaled_dot_product_attention",
    *attends(equations.scaled_dot_product_attention, [(2, 3, 5, 4), (2, 1, 7, 4), (1, 7, 6)]),
    Quick(
        lambda q, k, v, m: equations.scaled_dot_product_attention(q, k, v, m, scale=0.3),
        [*HEADS, (3, 1, 7)],
    ),
    Quick(
        lambda q, k, v: equations.scaled_dot_product_attention(
            q, k, v, chance(2, 1, 1, 7, p=0.8), scale=0.1, is_causal=True, keep=KEPT, keep_scale=1.2
        ),
        HEADS,
        lambda x: 10 * x,
    ),
)
picked = [
    (behind(4, 9), behind(4, 9)[::-1].copy()),
    ((slice(None), behind(6, 3, 5)), (slice(None), behind(6, 3, 5)[:, ::-1].copy())),
    ((behind(4, 3, 5), behind(6, 5)), (behind(4, 3, 5)[::-1].copy(), behind(6, 5))),
    ((behind(4, 5), slice(1, 4)), (slice(1, 3), behind(6, 4))),
    (chance(4, 6), (slice(1, 3), -2)),
]
for first, second in picked:
    for index in (first, second):
        add("ops.getitem", Quick(lambda x, i=index: x[i], [(4, 6)]))
    add("ops.getitem", Quick(lambda x, i=first, j=second: x[i].sum() * np.sin(x[j]), [(4, 6)]))
add("ops.getitem", Quick(lambda x: x[:, :, behind(50, 6)], [(3, 4, 50)]))
add(
    "ops.embedding",
    Quick(lambda w: ops.embedding(w, indices=behind(5, 2, 7)), [(5, 3)]),
    Quick(lambda w: ops.embedding(w, indices=behind(40, 600)), [(40, 60)]),
    twice(lambda w, i: ops.embedding(w, indices=i), whole(5, 9), behind(5, 9), (5, 3)),
)
for axis, (shape, first, second) in {
    0: ((4, 60), behind(4, 9, 60), behind(4, 9, 60)[::-1].copy()),
    1: ((40, 6), behind(6, 40, 8), behind(6, 40, 8)[:, ::-1].copy()),
    -2: ((3, 5, 40), behind(5, 3, 4, 40), behind(5, 3, 4, 40)[:, ::-1].copy()),
}.items():
    picks = lambda x, i, a=axis: ops.take_along_axis(x, indices=i, axis=a)  # noqa: E731
    add("ops.take_along_axis", Quick(lambda x, p=picks, i=first: p(x, i), [shape]))
    add("ops.take_along_axis", twice(picks, first, second, shape))
add("ops.scatter", Quick(lambda g: ops.scatter(g, index=(behind(4, 9),), shape=(4, 6)), [(9, 6)]))
add(
    "ops.embedding_backward",
    Quick(lambda g: ops.embedding_backward(g, indices=behind(9, 400), rows=9), [(400, 60)]),
)
