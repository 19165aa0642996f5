"""Markers for chapters 18 and 19: rotary positions with grouped queries, and attention in linear
memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise, several
from _marks_engine import random
from numpy import ndarray

import tinygrad_attn as ta
import tinygrad_attn.functional as F


@exercise(
    18,
    "rotary",
    "rotary positions with their backward rule, and attention with grouped queries",
    allowed=("scaled_dot_product_attention", "softmax"),
)
def _(marks: Marks) -> None:
    rotate, rule, attention = map(marks.function, ("rotate", "rotate_vjp", "rotary_attention"))
    x, t = random(1, 2, 5, 6), np.arange(5)

    def turned(x: Any, t: Any, speed: Any = None, halves: bool = False, apart: bool = False) -> Any:
        """Rotate the pairs, as a product of complex numbers. `speed` holds the angles at position 1."""
        x, pairs = np.asarray(x), x.shape[-1] // 2
        speed = 10000.0 ** (-np.arange(pairs) / pairs) if speed is None else speed
        a, b = (x[..., :pairs], x[..., pairs:]) if halves else (x[..., 0::2], x[..., 1::2])
        z = (a + 1j * b) * np.exp(1j * np.asarray(t)[:, None] * speed)
        return (
            np.concatenate([z.real, z.imag], axis=-1)
            if halves or apart
            else np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
        )

    right = lambda x, *, positions: turned(x, positions).astype(x.dtype)
    back = lambda g, y, x, *, positions: turned(g, -positions).astype(g.dtype)
    marks.reference(rotate=right, rotate_vjp=back, turn=ta.op(right).vjp(back))

    def combined(first: Callable, second: Callable) -> Any:
        """Return what a wrong combination of a, b, cosines and sines gives."""
        angles = t[:, None] * 10000.0 ** (-np.arange(3) / 3)
        given = x[..., 0::2], x[..., 1::2], np.cos(angles), np.sin(angles)
        one = first(*given)
        return np.stack([one, second(one, *given)], axis=-1).reshape(x.shape)

    marks.idea("pairs turn by an angle that grows with the position", 3, main=True)
    marks.compare(
        "rotate, positions 0 to 4",
        lambda: rotate(x, positions=t),
        turned(x, t),
        mistakes={
            "The pairs are rotated in the opposite direction: (a, b) becomes (a cos - b sin, a sin + b cos).": turned(
                x, -t
            ),
            "The pairs are (x[i], x[i + D / 2]), as in some libraries. In this exercise they are neighbours, (x[2i], x[2i + 1]).": turned(
                x, t, halves=True
            ),
            "The pairs are right, but the output has all first numbers in one half and all second numbers in the other. Put the two numbers of each pair side by side.": turned(
                x, t, apart=True
            ),
            "The angles do not depend on the position. Multiply them by t.": turned(x, np.ones(5)),
            "Nothing is rotated.": x,
            "The positions are counted from 1. The scores would be the same, because they "
            "depend only on distances, but rotate should use the positions that it is "
            "given.": turned(x, t + 1),
            "The exponent for pair i should be -2i / D.": turned(
                x, t, 10000.0 ** (-np.arange(3) / 6)
            ),
            "The exponent should be negative, so that later pairs turn more slowly.": turned(
                x, t, 10000.0 ** (np.arange(3) / 3)
            ),
            "All pairs turn equally fast, but each should have its own angle.": turned(x, t, 1.0),
            "The second number of each pair is computed from the new first number. Use the old one.": combined(
                lambda a, b, c, s: a * c - b * s, lambda new, a, b, c, s: new * s + b * c
            ),
            "Sine and cosine are swapped.": combined(
                lambda a, b, c, s: a * s - b * c, lambda _, a, b, c, s: a * c + b * s
            ),
            "The minus sign is missing: (a, b) becomes (a cos - b sin, a sin + b cos).": combined(
                lambda a, b, c, s: a * c + b * s, lambda _, a, b, c, s: a * s + b * c
            ),
        },
    )
    some = np.array([7, 8, 20, 21, 3])
    marks.compare(
        "rotate, positions 7, 8, 20, 21, 3",
        lambda: rotate(x, positions=some),
        turned(x, some),
        mistakes={
            "The given positions are ignored, and counted from 0 instead. With a cache, new queries and keys do not begin at 0.": turned(
                x, t
            ),
            "The positions are counted up from the first one. Use each position as given.": turned(
                x, 7 + t
            ),
        },
    )

    def single() -> dict[str, Any]:
        y, g = x.astype(np.float32), random(*x.shape, seed=1).astype(np.float32)
        return {"rotate": rotate(y, positions=some), "rotate_vjp": rule(g, y, y, positions=some)}

    marks.single(
        "float32 stays float32",
        single,
        "The cosines and sines are float64, and a product has the wider type. Convert them to x.dtype "
        "first (astype).",
    )

    marks.idea("the rule turns back", 2)
    marks.gradient(
        "rule of rotate",
        marks.op("rotate", "rotate_vjp"),
        random(2, 3, 5, 6),
        positions=some,
        mistakes={
            "g is rotated by the same angle as x. The rule multiplies g by the transposed matrix, which rotates by the opposite angle.": lambda g, y, x, positions: (
                turned(g, positions)
            ),
            "g is returned unchanged. Rotate it by the opposite angle.": lambda g, y, x, positions: (
                g
            ),
            "The rule pairs x[i] with x[i + D / 2], but rotate pairs neighbours.": lambda g, y, x, positions: (
                turned(g, -positions, halves=True)
            ),
            "The rule counts positions from 0. Use the positions given to rotate.": lambda g, y, x, positions: (
                turned(g, -t)
            ),
        },
    )

    def attended(
        q: Any,
        k: Any,
        v: Any,
        at: Any = None,
        turn_k: bool = True,
        late: int | None = None,
        share: Any = np.repeat,
    ) -> Any:
        """Compute the attention. `at` holds the positions of the queries, and `late` is the last key
        that the first query may look at.
        """
        past = k.shape[2] - q.shape[2]
        at = past + np.arange(q.shape[2]) if at is None else at
        q, k = turned(q, at), turned(k, np.arange(k.shape[2])) if turn_k else k
        k, v = (share(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
        allowed = np.tri(q.shape[2], k.shape[2], past if late is None else late, dtype=bool)
        return (
            F.softmax(np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)) @ v
        )

    def tile(x: np.ndarray, times: int, axis: int) -> np.ndarray:
        return np.concatenate([x] * times, axis=axis)

    q, k, v = random(1, 4, 5, 6), random(1, 4, 5, 6, seed=1), random(1, 4, 5, 6, seed=2)
    still = np.zeros(5)
    marks.idea("scores depend on distances, and heads share keys", 3)
    marks.compare(
        "rotary_attention, 4 heads each",
        lambda: attention(q, k, v),
        attended(q, k, v),
        mistakes={
            "The values are rotated too. Only the scores should depend on positions, so leave the values as they are.": attended(
                q, k, turned(v, t)
            ),
            "Nothing is rotated.": attended(q, k, v, at=still, turn_k=False),
            "Only the queries are rotated, so a score depends on the position of the query and not on the distance. Rotate the keys too.": attended(
                q, k, v, turn_k=False
            ),
            "Only the keys are rotated, so a score depends on the position of the key and not on the distance. Rotate the queries too.": attended(
                q, k, v, at=still
            ),
            "Nothing is masked, so a query sees later positions.": attended(q, k, v, late=5),
        },
    )
    fewer = q, k[:, :2], v[:, :2]
    marks.compare(
        "4 query heads, 2 of keys",
        lambda: attention(*fewer),
        attended(*fewer),
        mistakes={
            "The query heads use the key heads in the order 0 1 0 1. The first H / G query heads should share the first key head: 0 0 1 1, as np.repeat arranges them.": attended(
                *fewer, share=tile
            )
        },
        hint="k and v have G heads and q has H. Share the heads with enable_gqa, or repeat them with np.repeat along the head axis.",
    )
    last = q[:, :, 3:], *fewer[1:]
    marks.compare(
        "the last 2 queries, 5 keys",
        lambda: attention(*last),
        attended(*last),
        mistakes={
            "The positions of the queries start at 0. The queries are the last T of S positions, so they should start at S - T.": attended(
                *last, at=np.arange(2)
            ),
            "The mask is shifted. The first query is at position S - T and may look at all keys up to there, as in np.tri(T, S, S - T).": attended(
                *last, late=0
            ),
            "Both the queries and the mask start at position 0. The queries are the last T of S positions, so both should start at S - T.": attended(
                *last, at=np.arange(2), late=0
            ),
        },
        hint="There may be more keys than queries: S keys, and T queries at the last T positions.",
    )
    marks.gradient(
        "its gradient",
        lambda q, k, v: attention(q, k, v),
        *(one[..., :4] for one in last),
        weight=0,
    )


TRIPLE = "maximum", "total", "result"
COLUMN = (
    "maximum and total have the shape (T, 1), with one number for each query. Use keepdims=True."
)
BLOCKS = 12
"""How many arrays of T x block numbers an answer may keep at a time. The solution keeps 4."""


quiet = partial(
    np.errstate, all="ignore"
)  # mistakes may overflow, but a learner's own warnings are shown


def _exp(x: Any) -> Any:
    """Return e^x, or 0 where x is NaN, which is -inf - -inf for a masked score."""
    return np.exp(np.where(np.isnan(x), -np.inf, x))


def _scores(q: ndarray, k: ndarray, causal: bool, scale: float = 1) -> ndarray:
    scores = q @ k.T * (scale / np.sqrt(q.shape[-1]))
    return np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf) if causal else scores


@quiet()
def _parts(scores: ndarray, v: ndarray, common: bool = False) -> dict[str, ndarray]:
    """Return a partial result. `common` makes the mistake of one maximum for the whole block."""
    m = np.full((len(scores), 1), scores.max()) if common else scores.max(axis=-1, keepdims=True)
    e = _exp(scores - m)
    return {"maximum": m, "total": e.sum(axis=-1, keepdims=True), "result": e @ v}


@quiet()
def _online(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    block: int,
    causal: bool = False,
    scale: float = 1,
    mistake: str = "",
) -> dict[str, ndarray]:
    """Compute y and lse with a running maximum, sum and result, and perhaps a mistake."""
    m, total, y, means = (
        np.full((len(q), 1), -np.inf),
        np.zeros((len(q), 1)),
        np.zeros((len(q), v.shape[-1])),
        [],
    )
    scores = _scores(q, k, causal, scale)
    stop = len(k) // block * block if mistake == "last" else len(k)
    for start in range(0, stop, block):
        s = scores[:, start : start + block]
        if mistake == "mask":  # np.tri without the offset of the block
            s = _scores(q, k[start : start + block], causal, scale)
        new = np.maximum(m, s.max() if mistake == "common" else s.max(axis=-1, keepdims=True))
        old = np.where(m == -np.inf, 0, _exp(new - m if mistake == "upside down" else m - new))
        e = _exp(s - new)
        own = _exp(s - s.max(axis=-1, keepdims=True))
        means.append(own / own.sum(axis=-1, keepdims=True) @ v[start : start + block])
        total = (1 if mistake in ("total", "neither") else old) * total + e.sum(
            axis=-1, keepdims=True
        )
        y = (1 if mistake in ("result", "neither") else old) * y + e @ v[start : start + block]
        m = new
    return {
        "y": np.mean(means, axis=0) if mistake == "average" else y / np.where(total == 0, 1, total),
        "lse": (m + np.log(total))[:, 0],
    }


@quiet()
def _backward(
    g: ndarray,
    y: ndarray,
    lse: ndarray,
    q: ndarray,
    k: ndarray,
    v: ndarray,
    block: int,
    causal: bool = False,
    mistake: str = "",
) -> dict[str, ndarray]:
    """Compute dq, dk and dv, perhaps with a mistake."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scores = _scores(q, k, causal and mistake != "unmasked")
    for start in range(0, len(k) // block * block if mistake == "last" else len(k), block):
        at = slice(start, start + block)
        s, dp = scores[:, at], g @ v[at].T
        p = _exp(s - lse[:, None])
        if mistake in ("local", "softmax"):
            p = _exp(s - s.max(axis=-1, keepdims=True))
            p = p / p.sum(axis=-1, keepdims=True) if mistake == "softmax" else p
        delta = (g * y).sum(axis=-1, keepdims=True)
        if mistake == "block":
            delta = (p * dp).sum(axis=-1, keepdims=True)
        elif mistake == "keys":
            delta = (p * dp).sum(axis=0)
        elif mistake in ("no delta", "one delta", "mean delta", "plus delta"):
            delta = {
                "no delta": 0,
                "one delta": (g * y).sum(),
                "mean delta": (g * y).mean(axis=-1, keepdims=True),
                "plus delta": -delta,
            }[mistake]
        ds = (
            p
            * (dp - delta)
            / (
                1
                if mistake == "unscaled"
                else q.shape[-1]
                if mistake == "twice"
                else np.sqrt(q.shape[-1])
            )
        )
        dq = ds @ k[at] + (0 if mistake == "overwritten" else dq)
        rows = slice((len(q) - 1) // block * block if mistake == "rows" else 0, None)
        dk[at], dv[at] = ds[rows].T @ q[rows], p[rows].T @ g[rows]
    return {"dq": dq, "dk": dk, "dv": dv}


def _several(
    f: Callable, name: str, names: tuple[str, ...], shapes: str
) -> Callable[..., dict[str, Any]]:
    """Wrap f so that it returns its arrays as a dict with these names."""

    def called(*args: Any, **settings: Any) -> dict[str, Any]:
        found = f(*args, **settings)
        several(found, name, len(names), shapes)
        return dict(zip(names, found))

    return called


def _peak(f: Callable[[], Any]) -> int:
    """Return how many bytes f allocates at its peak. NumPy reports its arrays to tracemalloc."""
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        f()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not already:
            tracemalloc.stop()


def _mb(size: float) -> str:
    return f"{size / 1e6:.2g} MB"


def right_part(scores: ndarray, v: ndarray) -> tuple[ndarray, ...]:
    return tuple(_parts(scores, v).values())


@quiet()
def right_merge(one: tuple[ndarray, ...], two: tuple[ndarray, ...]) -> tuple[ndarray, ...]:
    maximum = np.maximum(one[0], two[0])
    a, b = (_exp(each[0] - maximum) for each in (one, two))
    return maximum, a * one[1] + b * two[1], a * one[2] + b * two[2]


@exercise(
    19,
    "online",
    "attention over blocks of keys, in memory that grows linearly with T, with its backward rule",
)
def _(marks: Marks) -> None:
    marks.reference(part=right_part, merge=right_merge)
    part = _several(marks.function("part"), "part", TRIPLE, "maximum, total and result")
    merge = _several(marks.function("merge"), "merge", TRIPLE, "maximum, total and result")
    attention = _several(marks.function("attention"), "attention", ("y", "lse"), "y and lse")
    rule = _several(
        marks.function("attention_vjp"), "attention_vjp", ("dq", "dk", "dv"), "dq, dk and dv"
    )

    def compare(
        title: str,
        f: Callable[[], Mapping[str, Any]],
        expected: Mapping[str, Any],
        mistakes: Mapping[str, Mapping[str, Any]],
        hint: str = "",
    ) -> None:
        """Add a line for each array."""
        for name, value in expected.items():
            marks.compare(
                f"{title}: {name}",
                lambda name=name: f()[name],
                value,
                hint=hint,
                of=name,
                mistakes={text: wrong[name] for text, wrong in mistakes.items() if name in wrong},
            )

    # ---- a block of keys

    marks.idea("a block of keys gives a maximum, a total and a result", 2)
    scores, v = 2 * random(4, 6), random(6, 3)
    scores[1] -= 3
    right, plain = _parts(scores, v), np.exp(scores)
    compare(
        "part",
        lambda: part(scores, v),
        right,
        {
            "The whole block has a single maximum. Each query needs its own, because the exponentials of a query far below a common maximum are all 0.": _parts(
                scores, v, common=True
            ),
            "This is the maximum for each key. Take the maximum for each query over its keys, along the last axis, with keepdims=True.": {
                "maximum": scores.max(axis=0, keepdims=True)
            },
            "The result is already divided by the total. An average of such averages is not a softmax. Divide once, at the end.": {
                "result": right["result"] / right["total"]
            },
            "The maximum is not subtracted. Without that, e^1000 overflows.": {
                "total": plain.sum(axis=-1, keepdims=True),
                "result": plain @ v,
            },
            "This is the log-sum-exp, but total should be a plain sum. The maximum is returned separately.": {
                "total": np.log(right["total"])
            },
        },
        COLUMN,
    )
    masked = scores.copy()
    masked[0, 3:] = masked[1] = masked[2, :5] = -np.inf
    masked[3] *= 1000
    right = _parts(masked, v)
    unseen = right["maximum"] == -np.inf
    compare(
        "part, masked and huge",
        lambda: part(masked, v),
        right,
        {
            "The result is NaN where a query sees none of the keys, because -inf - -inf is NaN. Subtract 0 where the maximum is -inf.": {
                name: np.where(unseen, np.nan, value) for name, value in right.items()
            },
            "The maximum should be -inf for a query that sees none of the keys. Any other number would "
            "count as a score when two parts are merged, and would hide smaller scores.": {
                "maximum": np.where(unseen, 0, right["maximum"])
            },
        },
        COLUMN,
    )

    # ---- two partial results

    marks.idea("two parts are rescaled to one maximum", 3)
    one, two = right, _parts(8 * random(4, 5, seed=1), random(5, 3))
    m = np.maximum(one["maximum"], two["maximum"])
    sums = lambda a, b: {name: a * one[name] + b * two[name] for name in ("total", "result")}
    with quiet():
        a, b = _exp(one["maximum"] - m), _exp(two["maximum"] - m)
        upside_down = sums(_exp(m - one["maximum"]), _exp(m - two["maximum"]))
    both = dict(zip(TRIPLE, right_merge(*(tuple(each.values()) for each in (one, two)))))
    averages = [
        each["result"] / np.where(each["total"] == 0, 1, each["total"]) for each in (one, two)
    ]

    def merged(*given: Mapping[str, ndarray]) -> dict[str, Any]:
        return merge(*(tuple(each[name].copy() for name in TRIPLE) for each in given))

    compare(
        "merge",
        lambda: merged(one, two),
        both,
        {
            "The parts are not rescaled, but their sums have different maxima. Multiply each by e^(its own maximum - the new maximum).": sums(
                1, 1
            ),
            "The factor is upside down. It should be e^(old maximum - new maximum), which is at most 1.": upside_down,
            "Only the first part is rescaled, but the maximum of the second may be the smaller one.": sums(
                a, 1
            ),
            "Only the second part is rescaled, but the maximum of the first may be the smaller one.": sums(
                1, b
            ),
            "The merged result is already divided by the total. Divide once, at the end.": {
                "result": both["result"] / both["total"]
            },
            "Each part is divided by its own total, but an average of averages is not a softmax. Divide once, at the end.": {
                "result": sum(averages) / 2
            },
            "The two maxima are added. The new maximum should be the larger of the two.": {
                "maximum": one["maximum"] + two["maximum"]
            },
        },
        COLUMN,
    )
    nothing = _parts(np.full((4, 2), -np.inf), random(2, 3))
    compare(
        "merge, no keys seen",
        lambda: merged(nothing, nothing),
        nothing,
        {
            "The result is NaN where neither part has seen a key, because -inf - -inf is NaN. Subtract 0 where the new maximum is -inf.": {
                name: np.full_like(value, np.nan) for name, value in nothing.items()
            }
        },
        COLUMN,
    )

    # ---- forward

    q, k, v, block = random(6, 3), random(10, 3) * 2, random(10, 4), 4
    q[1] *= 3
    square = random(10, 3, seed=3), k, v
    texts = {
        "result": "The running result is not rescaled when the maximum grows. Multiply it by e^(old - new), like the running sum.",
        "total": "The running sum is not rescaled when the maximum grows. Multiply it by e^(old - new), like the running result.",
        "neither": "Neither the running sum nor the running result is rescaled when the maximum grows.",
        "upside down": "The running values are rescaled by e^(new - old). The factor should be e^(old - new), which is at most 1.",
        "average": "Each block is normalised separately, so this is a mean of softmaxes. Divide once, at the end, by the total.",
        "last": "The last block is left out, because the number of keys is not a multiple of `block`. A slice may extend past the end of an array.",
        "common": "The whole block has a single maximum. The exponentials of a query far below it are all 0, so each query needs its own maximum.",
    }

    def forward(title: str, *given: ndarray, size: int = block, causal: bool = False) -> None:
        wrong = partial(_online, *given, size, causal)
        scores = _scores(*given[:2], causal)
        largest = scores.max(axis=-1)
        right = {
            "y": F.scaled_dot_product_attention(*given, is_causal=causal),
            "lse": np.logaddexp.reduce(scores, axis=-1),
        }
        unmasked = (
            {
                "Nothing is masked, so a query sees later keys.": _online(*given, size),
                "The mask starts again in each block. Query t should see key j of a block if start + j <= t.": wrong(
                    mistake="mask"
                ),
            }
            if causal
            else {}
        )
        compare(
            title,
            lambda: attention(*given, size, causal=True) if causal else attention(*given, size),
            right,
            unmasked
            | {text: wrong(mistake=mistake) for mistake, text in texts.items()}
            | {
                "Everything is NaN. The running maximum starts at -inf, so e^(new - old) is infinite, and 0 times infinity is NaN. The factor should be e^(old - new).": {
                    "y": np.full_like(right["y"], np.nan)
                },
                "The scores are not scaled. Divide them by sqrt(D).": wrong(scale=np.sqrt(3)),
                "The scores are scaled twice, so they are divided by D instead of sqrt(D).": wrong(
                    scale=1 / np.sqrt(3)
                ),
                "This is only the maximum. lse = maximum + log(total).": {"lse": largest},
                "This is log(total). Add the maximum back: lse = maximum + log(total).": {
                    "lse": right["lse"] - largest
                },
                "This is the total. lse = maximum + log(total).": {
                    "lse": np.exp(right["lse"] - largest)
                },
            },
            "The maximum of a query that sees no key of a block is -inf, and -inf - -inf is NaN."
            if causal
            else "The scores of a block are q @ k[start:start + block].T / sqrt(D). Their shape is (T, block), or smaller for the last block. y has the shape (T, E), and lse (T,).",
        )

    marks.idea("one block after another gives the attention", 3, main=True)
    forward("attention", q, k, v)
    marks.compare(
        "no keys at all: y",
        lambda: attention(q, k[:0], v[:0], block)["y"],
        np.zeros((6, 4)),
        mistakes={
            "The output of a query that sees no key should be 0, but here it is 0 / 0. Divide by 1 where the total is 0.": np.full(
                (6, 4), np.nan
            )
        },
    )
    forward("blocks of 1", q, k, v, size=1)
    forward("a block larger than S", q, k, v, size=12)
    forward("scores of thousands", q * np.array([1000, -1000, 1000, 1, 0, 300.0])[:, None], k, v)
    forward("causal", *square, causal=True)

    # ---- backward

    of_rule = {
        "no delta": "delta is missing: ds = p * (g v^T - delta), where delta = rowsum(g * y).",
        "plus delta": "delta is added, but it should be subtracted.",
        "one delta": "delta is a single number for all queries, but each query should have its own: (g * y).sum(axis=-1, keepdims=True).",
        "mean delta": "delta is a mean, but it should be a sum over the numbers of each output: (g * y).sum(axis=-1, keepdims=True).",
        "block": "The sum in the softmax rule covers only the keys of the block. Sum over all keys instead, which gives (g * y).sum(axis=-1).",
        "keys": "The sum in the softmax rule is over the queries. Sum over the keys of each query instead, which gives (g * y).sum(axis=-1).",
        "local": "The weights are computed with the maximum of the block. They must be e^(score - lse), with the lse over all keys.",
        "softmax": "The weights are the softmax of the block alone. They must be e^(score - lse), with the lse over all keys.",
        "unscaled": "The scale is missing from the gradients. dq and dk must be divided by sqrt(D) too.",
        "twice": "The scale is applied twice. Divide dq and dk by sqrt(D) only once.",
        "overwritten": "dq contains only the contribution of the last block of keys. Add up the contributions of all blocks: dq += ...",
        "rows": "This is only the contribution of the last block of queries. Every query contributes to dk and dv, so add up all contributions.",
        "last": "The last block is left out, because the number of keys is not a multiple of `block`.",
        "unmasked": "Later keys are not masked here, but the weights must be the same as in the forward pass.",
    }

    def backward(title: str, *given: ndarray, causal: bool = False) -> None:
        y, pullback = ta.vjp(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *given
        )
        y, g, lse = (
            y,
            random(*y.shape, seed=4),
            np.logaddexp.reduce(_scores(*given[:2], causal), axis=-1),
        )
        whole = g, y, lse, *given, block
        right = {f"d{name}": x for name, x in zip("qkv", pullback(g))}
        wrong = {text: _backward(*whole, causal, mistake) for mistake, text in of_rule.items()}
        changed = {
            text: {name: x for name, x in each.items() if not np.allclose(x, right[name])}
            for text, each in wrong.items()
        }
        compare(
            title,
            lambda: rule(*whole, causal=True) if causal else rule(*whole),
            right,
            changed,
            "The shapes are (T, D) for dq, (S, D) for dk and (S, E) for dv. delta has one number for "
            "each query, (g * y).sum(axis=-1, keepdims=True), and is the same for every block.",
        )

    marks.idea("the rule recomputes each block from lse", 4)
    backward("attention_vjp", q, k, v)
    backward("vjp, scores of hundreds", 100 * q, k, v)
    backward("vjp, causal", *square, causal=True)

    # ---- types and memory

    def single() -> dict[str, Any]:
        few, made = [x.astype(np.float32) for x in square], {}
        for settings in ({}, {"causal": True}):
            found = attention(*few, block, **settings)
            y, lse = (np.asarray(found[name], np.float32) for name in ("y", "lse"))
            made |= found | rule(few[2], y, lse, *few, block, **settings)
        return made

    def frugal(name: str, backward: bool) -> bool:
        for T, S, size, causal in (
            (128, 4096, 16, False),
            (1024, 1024, 8, True),
        ):  # a wide case for rows of S scores, and one for a mask
            q, k, v, g = (
                random(T, 1),
                random(S, 1, seed=1),
                random(S, 1, seed=2),
                random(T, 1, seed=3),
            )
            given, settings = (q, k, v, size), {"causal": True} if causal else {}
            if backward:
                given = (g, *_online(q, k, v, S, causal).values(), *given)
            took = _peak(
                lambda given=given, settings=settings: (rule if backward else attention)(
                    *given, **settings
                )
            )
            one, each = T * size * 8, T * S * 8
            if took > BLOCKS * one + 4 * sum(x.nbytes for x in (q, k, v)):
                how = (
                    "That is enough for an array of T x S numbers."
                    if took > 0.9 * each
                    else "Part of it grows with T x S."
                )
                raise Wrong(
                    f"{name} uses {_mb(took)} at its peak, for T = {T:,}, S = {S:,}, block = "
                    f"{size}{', causal' if causal else ''}.\nT x {size} scores take {_mb(one)}, and a "
                    f"few such blocks are enough. All T x S scores take {_mb(each)}.\n"
                    f"{how}\n\nCompute the scores of a block inside the loop, use them, and do "
                    "not keep them. Do not store the scores or a mask for\nall keys, rows with "
                    "one number per key, or a list of block results."
                )
        return True

    marks.idea("the memory grows with T + S, not with T x S", 2, main=True)
    marks.that("memory of attention", lambda: frugal("attention", False), "")
    marks.that("memory of attention_vjp", lambda: frugal("attention_vjp", True), "")
    marks.single(
        "float32 stays float32",
        single,
        "np.zeros and np.full return float64 unless you pass dtype=q.dtype. np.sqrt(3) is a NumPy float64 and "
        "turns float32 into float64, but math.sqrt(3) does not.",
        weight=0,
    )
