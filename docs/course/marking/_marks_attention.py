"""Markers of chapters 18 and 19: rotary positions with grouped queries, and attention in linear
memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise
from _marks_layers import random
from numpy import ndarray

import tinygrad_attn as ta
import tinygrad_attn.functional as F


@exercise(18, "rotary", "rotary positions with their rule, and attention with grouped queries")
def _(marks: Marks) -> None:
    rotate, rule, attention = map(marks.function, ("rotate", "rotate_vjp", "rotary_attention"))
    x, t = random(1, 2, 5, 6), np.arange(5)

    def turned(x: Any, t: Any, speed: Any = None, halves: bool = False, apart: bool = False) -> Any:
        """Pairs are complex numbers, and rotating them is multiplying. `speed`: the angles at
        position 1.
        """
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
        """What other combinations of a, b, cosines and sines give."""
        angles = t[:, None] * 10000.0 ** (-np.arange(3) / 3)
        given = x[..., 0::2], x[..., 1::2], np.cos(angles), np.sin(angles)
        one = first(*given)
        return np.stack([one, second(one, *given)], axis=-1).reshape(x.shape)

    marks.compare(
        "rotate, positions 0 to 4",
        lambda: rotate(x, positions=t),
        turned(x, t),
        mistakes={
            "Rotated the other way: (a, b) becomes (a cos - b sin, a sin + b cos).": turned(x, -t),
            "The pairs are halves, (x[i], x[i + D / 2]), as in some libraries; here they are neighbours, (x[2i], x[2i + 1]).": turned(
                x, t, halves=True
            ),
            "The pairs are right, but the outputs form two halves: first numbers, then second ones. Put them side by side.": turned(
                x, t, apart=True
            ),
            "The angles do not depend on the position: multiply by t.": turned(x, np.ones(5)),
            "Nothing is rotated.": x,
            "Counted from 1. The scores would be the same, for they depend on distances; but "
            "rotate is given the positions: take them as\n"
            "they are.": turned(x, t + 1),
            "The exponent is -2i / D for the i-th pair.": turned(
                x, t, 10000.0 ** (-np.arange(3) / 6)
            ),
            "The exponent is negative: later pairs turn slower.": turned(
                x, t, 10000.0 ** (np.arange(3) / 3)
            ),
            "All pairs turn equally fast; each has an angle of its own.": turned(x, t, 1.0),
            "The second number of a pair is made with the new first one; it needs the old one.": combined(
                lambda a, b, c, s: a * c - b * s, lambda new, a, b, c, s: new * s + b * c
            ),
            "Sine and cosine have changed places.": combined(
                lambda a, b, c, s: a * s - b * c, lambda _, a, b, c, s: a * c + b * s
            ),
            "The minus is missing: (a, b) becomes (a cos - b sin, a sin + b cos).": combined(
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
            "Counted from 0: the given positions are ignored. With a cache, the new queries and keys do not begin at 0.": turned(
                x, t
            ),
            "Counted on from the first position; take each position as given.": turned(x, 7 + t),
        },
    )
    marks.gradient(
        "rule of rotate",
        marks.op("rotate", "rotate_vjp"),
        random(2, 3, 5, 6),
        positions=some,
        mistakes={
            "g is rotated by the same angle as x. The rule multiplies by the transposed matrix, the rotation by the opposite angle.": lambda g, y, x, positions: (
                turned(g, positions)
            ),
            "g is passed on unchanged. Rotate it as well, by the opposite angle.": lambda g, y, x, positions: (
                g
            ),
            "The rule pairs halves, where rotate pairs neighbours.": lambda g, y, x, positions: (
                turned(g, -positions, halves=True)
            ),
            "The rule counts from 0; it needs the positions that rotate was given.": lambda g, y, x, positions: (
                turned(g, -t)
            ),
        },
    )

    def single() -> bool:
        y, g = x.astype(np.float32), random(*x.shape, seed=1).astype(np.float32)
        for name, found in (
            ("rotate", rotate(y, positions=some)),
            ("rotate_vjp", rule(g, y, y, positions=some)),
        ):
            if (dtype := np.asarray(getattr(found, "_data", found)).dtype) != np.float32:
                raise Wrong(
                    f"{name} makes {dtype} of float32. The cosines and sines are {dtype}, and a "
                    "product takes the wider type: give them x.dtype first (astype)."
                )
        return True

    marks.that("float32 stays float32", single, "")

    def attended(
        q: Any,
        k: Any,
        v: Any,
        at: Any = None,
        turn_k: bool = True,
        late: int | None = None,
        share: Any = np.repeat,
    ) -> Any:
        """`at`: the positions of the queries; `late`: the last key that the first query may look
        at.
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
    marks.compare(
        "rotary_attention, 4 heads each",
        lambda: attention(q, k, v),
        attended(q, k, v),
        mistakes={
            "The values are rotated, too. Positions belong in the scores; leave the values as they are.": attended(
                q, k, turned(v, t)
            ),
            "Nothing is rotated.": attended(q, k, v, at=still, turn_k=False),
            "Only the queries are rotated: a score then depends on the query's position, not on the distance.": attended(
                q, k, v, turn_k=False
            ),
            "Only the keys are rotated: a score then depends on the key's position, not on the distance.": attended(
                q, k, v, at=still
            ),
            "Nothing is masked: a query sees later positions.": attended(q, k, v, late=5),
        },
    )
    fewer = q, k[:, :2], v[:, :2]
    marks.compare(
        "4 query heads, 2 of keys",
        lambda: attention(*fewer),
        attended(*fewer),
        mistakes={
            "The heads alternate, 0 1 0 1. The first H / G query heads share the first head of the keys: 0 0 1 1, as np.repeat gives it.": attended(
                *fewer, share=tile
            )
        },
        hint="k and v have G heads, q has H. enable_gqa shares them, or np.repeat along the axis of the heads.",
    )
    last = q[:, :, 3:], *fewer[1:]
    marks.compare(
        "the last 2 queries, 5 keys",
        lambda: attention(*last),
        attended(*last),
        mistakes={
            "The queries are counted from 0; they are the last T of S positions, and begin at S - T.": attended(
                *last, at=np.arange(2)
            ),
            "The mask begins at the wrong key: the first query is at S - T and may look at all keys up to there. np.tri(T, S, S - T).": attended(
                *last, late=0
            ),
            "Queries and mask are counted from 0; the queries are the last T of S positions, and begin at S - T.": attended(
                *last, at=np.arange(2), late=0
            ),
        },
        hint="There may be more keys than queries: S keys, and queries for the last T of them.",
    )
    marks.gradient(
        "its gradient", lambda q, k, v: attention(q, k, v), *(one[..., :4] for one in last)
    )


TRIPLE = "maximum", "total", "result"
COLUMN = "maximum and total are (T, 1), one number per query: keepdims=True."
BLOCKS = 12
"""How many arrays of T x block numbers an answer may hold at a time; the solution holds 4."""


quiet = partial(np.errstate, all="ignore")  # mistakes overflow; a learner's own warnings are shown


def _exp(x: Any) -> Any:
    """e^x, and 0 for -inf - -inf: of a score that is masked."""
    return np.exp(np.where(np.isnan(x), -np.inf, x))


def _scores(q: ndarray, k: ndarray, causal: bool, scale: float = 1) -> ndarray:
    scores = q @ k.T * (scale / np.sqrt(q.shape[-1]))
    return np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf) if causal else scores


@quiet()
def _parts(scores: ndarray, v: ndarray, common: bool = False) -> dict[str, ndarray]:
    """A partial result; `common` is the mistake of one maximum for the whole block."""
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
    """y and lse with a mistake, by a running maximum, sum and result."""
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
        if mistake == "mask":  # np.tri without the place of the block
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
    """dq, dk and dv with a mistake."""
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
    """f, and by their names the arrays that it returns."""

    def called(*args: Any, **settings: Any) -> dict[str, Any]:
        found = f(*args, **settings)
        if not isinstance(found, (tuple, list)) or len(found) != len(names):
            many = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
            raise Wrong(
                f"{name} returns a {type(found).__name__}{many}; the task asks for {len(names)} "
                f"arrays, {shapes}."
            )
        return dict(zip(names, found))

    return called


def _peak(f: Callable[[], Any]) -> int:
    """How many more bytes f takes at its peak than are in use before; NumPy tells tracemalloc of
    its arrays.
    """
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
    maximum = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(maximum == -np.inf, 0, maximum))
    return maximum, e.sum(axis=-1, keepdims=True), e @ v


def right_merge(one: tuple[ndarray, ...], two: tuple[ndarray, ...]) -> tuple[ndarray, ...]:
    maximum = np.maximum(one[0], two[0])
    a, b = (np.exp(each[0] - np.where(maximum == -np.inf, 0, maximum)) for each in (one, two))
    return maximum, a * one[1] + b * two[1], a * one[2] + b * two[2]


@exercise(
    19,
    "online",
    "attention in blocks of keys, in memory that grows with T, with its rule",
    ready_made=("scaled_dot_product_attention", "grad"),
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
        """A line for each array."""
        for name, value in expected.items():
            marks.compare(
                f"{title}: {name}",
                lambda name=name: f()[name],
                value,
                hint=hint,
                mistakes={text: wrong[name] for text, wrong in mistakes.items() if name in wrong},
            )

    # ---- a block of keys

    scores, v = 2 * random(4, 6), random(6, 3)
    scores[1] -= 3
    right, plain = _parts(scores, v), np.exp(scores)
    compare(
        "part",
        lambda: part(scores, v),
        right,
        {
            "One maximum for the whole block. Each query needs its own: far below a common one, all of its exponentials are 0.": _parts(
                scores, v, common=True
            ),
            "This is the maximum of each key. Take each query's maximum over its keys: the last axis, with keepdims=True.": {
                "maximum": scores.max(axis=0, keepdims=True)
            },
            "Already divided by the total: an average of such averages is no softmax. Divide once, at the end.": {
                "result": right["result"] / right["total"]
            },
            "The maximum is not subtracted: e^1000 is infinite.": {
                "total": plain.sum(axis=-1, keepdims=True),
                "result": plain @ v,
            },
            "This is the log-sum-exp; keep the maximum apart, and let total be a plain sum.": {
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
            "NaN where a query sees none of the keys: -inf - -inf. Subtract 0 where the maximum is -inf.": {
                name: np.where(unseen, np.nan, value) for name, value in right.items()
            },
            "A query that sees none of the keys has the maximum -inf. Any number would count as a "
            "score when two parts are merged, and hide\n"
            "smaller ones.": {"maximum": np.where(unseen, 0, right["maximum"])},
        },
        COLUMN,
    )

    # ---- two partial results

    one, two = right, _parts(8 * random(4, 5, seed=1), random(5, 3))
    m = np.maximum(one["maximum"], two["maximum"])
    sums = lambda a, b: {name: a * one[name] + b * two[name] for name in ("total", "result")}
    with quiet():
        a, b = _exp(one["maximum"] - m), _exp(two["maximum"] - m)
        upside_down = sums(_exp(m - one["maximum"]), _exp(m - two["maximum"]))
    both = {"maximum": m, **sums(a, b)}
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
            "Not rescaled. The sums have different maxima: multiply each by e^(its own maximum - the new one).": sums(
                1, 1
            ),
            "Rescaled the wrong way round: the factor is e^(old maximum - new maximum), at most 1.": upside_down,
            "Only the first part is rescaled. The second has its own maximum, which may be the smaller one.": sums(
                a, 1
            ),
            "Only the second part is rescaled. The first has its own maximum, which may be the smaller one.": sums(
                1, b
            ),
            "The result is already divided by the total. Divide once, at the end.": {
                "result": both["result"] / both["total"]
            },
            "Each part is divided by its own total: an average of averages is no softmax.": {
                "result": sum(averages) / 2
            },
            "The maxima are added; the new one is the larger of the two.": {
                "maximum": one["maximum"] + two["maximum"]
            },
        },
        COLUMN,
    )
    nothing = _parts(np.full((4, 2), -np.inf), random(2, 3))
    compare(
        "merge, nothing seen",
        lambda: merged(nothing, nothing),
        nothing,
        {
            "NaN where neither part has seen a key: -inf - -inf. Subtract 0 where the new maximum is -inf.": {
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
        "result": "The running result is not rescaled when the maximum grows: multiply it by e^(old - new), like the running sum.",
        "total": "The running sum is not rescaled when the maximum grows: multiply it by e^(old - new), like the running result.",
        "neither": "Neither the running sum nor the running result is rescaled when the maximum grows.",
        "upside down": "Rescaled with e^(new - old); the factor is e^(old - new), at most 1.",
        "average": "This is the mean of the blocks' softmaxes: each block is normalised by itself. Divide once, at the end, by the total.",
        "last": "The last block is left out: the number of keys is not a multiple of `block`. Slices may reach past the end.",
        "common": "One maximum for the whole block: a query far below it has exponentials of 0 only. Each query needs its own.",
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
                "Nothing is masked: a query sees later keys.": _online(*given, size),
                "The mask starts again in each block: query t sees key `start` + j of a block if start + j <= t.": wrong(
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
                "NaN everywhere: the running maximum is -inf at first, e^(new - old) infinite, and 0 times that is NaN. It is e^(old - new).": {
                    "y": np.full_like(right["y"], np.nan)
                },
                "The scores are not scaled: divide by the root of the size of a query.": wrong(
                    scale=np.sqrt(3)
                ),
                "The scores are scaled twice, so they are divided by D and not by its root.": wrong(
                    scale=1 / np.sqrt(3)
                ),
                "This is the maximum alone; lse = maximum + log(total).": {"lse": largest},
                "This is log(total); add the maximum again.": {"lse": right["lse"] - largest},
                "This is the total; lse is maximum + log(total).": {
                    "lse": np.exp(right["lse"] - largest)
                },
            },
            "A query that sees nothing of a block has a maximum of -inf there, and -inf - -inf is "
            "NaN."
            if causal
            else "The scores of a block are q @ k[start:start + block].T / sqrt(D), (T, block) or fewer. y is (T, E), lse (T,).",
        )

    forward("attention", q, k, v)
    marks.compare(
        "no keys at all: y",
        lambda: attention(q, k[:0], v[:0], block)["y"],
        np.zeros((6, 4)),
        mistakes={
            "A query that sees no key gets 0; here it is 0 / 0. Divide by 1 where the total is 0.": np.full(
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
        "no delta": "delta is forgotten: ds = p * (g v^T - delta), delta = rowsum(g * y).",
        "plus delta": "delta is added; it is subtracted.",
        "one delta": "delta is one number for all queries; each has its own: (g * y).sum(axis=-1, keepdims=True).",
        "mean delta": "delta is a mean; take the sum over the numbers of an output, (g * y).sum(axis=-1, keepdims=True).",
        "block": "The sum in the rule of softmax is over the keys of the block only. Sum over all keys: this is (g * y).sum(axis=-1).",
        "keys": "The sum in the rule of softmax is over the queries. Sum over the keys of each query: this is (g * y).sum(axis=-1).",
        "local": "The weights are made with the maximum of the block. They must be e^(score - lse), with the lse of all keys.",
        "softmax": "The weights are the softmax of the block by itself. They must be e^(score - lse), with the lse of all keys.",
        "unscaled": "The scale is forgotten in the gradient: dq and dk are divided by sqrt(D), too.",
        "twice": "The scale is applied twice: dq and dk are divided by sqrt(D) once.",
        "overwritten": "dq is the contribution of the last block of keys. Every block contributes: add them up, dq += ...",
        "rows": "This is the contribution of the last block of queries. Every query contributes to dk and dv: add them up.",
        "last": "The last block is left out: the number of keys is not a multiple of `block`.",
        "unmasked": "Later keys are not masked here: the weights must be those of the forward pass.",
    }

    def backward(title: str, *given: ndarray, causal: bool = False) -> None:
        y, pullback = ta.vjp(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *given
        )
        y, g, lse = (
            y.numpy(),
            random(*y.shape, seed=4),
            np.logaddexp.reduce(_scores(*given[:2], causal), axis=-1),
        )
        whole = g, y, lse, *given, block
        right = {f"d{name}": x.numpy() for name, x in zip("qkv", pullback(g))}
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
            "dq is (T, D), dk (S, D), dv (S, E). delta has a number for each query, (g * "
            "y).sum(axis=-1, keepdims=True), whichever keys the block\nholds.",
        )

    backward("attention_vjp", q, k, v)
    backward("vjp, scores of hundreds", 100 * q, k, v)
    backward("vjp, causal", *square, causal=True)

    # ---- types and memory

    def single() -> bool:
        few = [x.astype(np.float32) for x in square]
        for settings in ({}, {"causal": True}):
            found = attention(*few, block, **settings)
            y, lse = (np.asarray(found[name], np.float32) for name in ("y", "lse"))
            for name, value in (found | rule(few[2], y, lse, *few, block, **settings)).items():
                if (dtype := np.asarray(value).dtype) != np.float32:
                    raise Wrong(
                        f"{name} is {dtype} where q, k and v are float32. np.zeros and np.full "
                        "make float64 unless told q.dtype, and np.sqrt(3) is a float64 that "
                        "widens what it meets; math.sqrt(3) is not."
                    )
        return True

    marks.that("float32 stays float32", single, "")

    def frugal(name: str, backward: bool) -> bool:
        for T, S, size, causal in (
            (128, 4096, 16, False),
            (1024, 1024, 8, True),
        ):  # wide, for rows of S scores; and for a mask
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
                    "There is room for an array of T x S numbers in that."
                    if took > 0.9 * each
                    else "Something in it grows with T x S."
                )
                raise Wrong(
                    f"{name} takes {_mb(took)} at its peak, for T = {T:,}, S = {S:,}, block = "
                    f"{size}{', causal' if causal else ''}.\nT x {size} scores take {_mb(one)}, "
                    "and a handful of such blocks is enough; all T x S take "
                    f"{_mb(each)}.\n{how}\n\nMake the scores of a block inside the loop, use them, "
                    "and let them go: no scores and no mask of all keys, no rows\nas long as "
                    "there are keys, and no list of what the blocks gave."
                )
        return True

    marks.that("memory of attention", lambda: frugal("attention", False), "")
    marks.that("memory of attention_vjp", lambda: frugal("attention_vjp", True), "")
