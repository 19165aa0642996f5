"""The rules of `fast/compiling/lowering.py`: each fires where it should and nowhere else, and changes no number.

What a lowered expression computes is compared here without the check of ta.compile's own, which runs the function as it
is where a program gives other numbers: a mistake would only be slow.
"""

import inspect

import numpy as np
import pytest
from written import (
    SINGLE,
    assert_equal,
    computed,
    constant,
    lines_run,
    numbers,
    one_at,
    statements_but,
    written_down,
)

from tinygrad_attn.fast.compiling import lowering
from tinygrad_attn.ops import elementwise
from tinygrad_attn.transforms.programs.expressions import reached
from tinygrad_attn.transforms.programs.simplify import simplified


def lowered(f, speculate=False):
    """The expression before and after, and the questions that were added."""
    wordy = written_down(f)
    low = lowering.Lowering([wordy], speculate)
    return wordy, low.of(wordy), low.guards


def steps(e):
    """What is done, one after the other."""
    return " ".join(
        x.name or x.kind for x in reached([e]) if x.kind not in ("input", "constant", "number")
    )


def check(f, text, speculate=False):
    """These are the steps of f, and the numbers are the same in each of them."""
    wordy, plain, guards = lowered(f, speculate)
    simple, _ = simplified(wordy, [], {})
    digits = 1e-12 if SINGLE.keys().isdisjoint(inspect.signature(f).parameters) else 1e-5
    for low in (plain, lowering.Lowering([simple], speculate).of(simple)):
        for seed in range(3):
            assert_equal(computed(low, numbers(seed)), computed(wordy, numbers(seed)), digits)
    for step in reached([plain]):
        if isinstance(step.value, (tuple, list)):
            continue
        assert step.shape == np.shape(computed(step, numbers(0))), step
        assert step.dtype == np.asarray(computed(step, numbers(0))).dtype, step
    assert steps(plain) == text
    return guards


LAST = {"axis": -1, "keepdims": True}


def shifted(x):
    return np.exp(x - x.max(**LAST))


def softmax(x):
    return shifted(x) / shifted(x).sum(**LAST)


def erf(x):
    return elementwise._erf(x)


RULES = [
    # Shapes.
    (lambda x: x.reshape(3, 4), ""),
    (lambda x: x.reshape(2, 6), "reshape"),
    (lambda x: x.reshape(2, 6).reshape(4, 3), "reshape"),
    (lambda x: x.reshape(2, 6).reshape(3, 4), ""),
    # Products: a stack of matrices times one matrix is one product.
    (lambda x, w: x @ w, "dot"),
    (lambda t, w: t @ w, "reshape dot reshape"),
    (lambda t, k: t @ k, "@"),
    (lambda r, w: r @ w, "@"),
    (lambda none, w: none @ w, "@"),
    (lambda x, r: x @ r, "@"),
    # Sums are products with ones.
    (lambda x: x.sum(axis=-1), "dot"),
    (lambda x: x.sum(axis=1), "dot"),
    (lambda x: x.sum(axis=0), "dot"),
    (lambda x: x.sum(**LAST), "dot reshape"),
    (lambda t: t.sum(axis=-1), "reshape dot reshape"),
    (lambda t: t.sum(axis=(1, 0)), "reshape dot"),
    (lambda t: t.sum(axis=(0, 1), keepdims=True), "reshape dot reshape"),
    (lambda t: t.sum(axis=(-1,)), "reshape dot reshape"),
    (lambda t: t.sum(axis=1), "sum"),
    (lambda t: t.sum(axis=(1, 2)), "sum"),
    (lambda x: x.sum(), "sum"),
    (lambda r: r.sum(axis=0), "sum"),
    (lambda i: i.sum(axis=0), "sum"),
    (lambda x: x.astype(np.float16).sum(axis=0), "astype sum"),
    (lambda e: e.sum(axis=0), "sum"),
    (lambda f: f.sum(axis=0), "dot"),
    (lambda f: f.sum(axis=0, dtype=np.float64), "sum"),
    (lambda x: x.sum(axis=0, dtype=np.float32), "sum"),
    (lambda tokens: tokens.sum(axis=-1), "sum"),
    (lambda single: single.sum(axis=-1), "dot"),
    (lambda longer: longer.sum(axis=-1), "sum"),
    (lambda wide: wide.sum(axis=-1), "dot"),
    (lambda long: long.reshape(5, 205).sum(axis=-1), "reshape dot"),
    (lambda x: x.mean(axis=-1), "dot"),
    (lambda x: x.mean(axis=0), "dot"),
    (lambda t: t.mean(axis=(0, 1)), "reshape dot"),
    (lambda x: x.mean(), "mean"),
    (lambda e: e.mean(axis=1), "mean"),
    # Sums of products.
    (lambda x, y: (x * y).sum(axis=-1), "vecdot"),
    (lambda x, y: (x * y).sum(**LAST), "vecdot reshape"),
    (lambda x, y: (x * y).mean(axis=-1), "vecdot *"),
    (lambda f, g: (f * g).mean(axis=-1), "vecdot *"),
    (lambda t, u: (t * u).sum(axis=-1), "vecdot"),
    (lambda x, r: (x * r).sum(axis=-1), "* dot"),
    (lambda x, f: (x * f).sum(axis=-1), "* dot"),
    (lambda x, y: (x * y).sum(axis=0), "* dot"),
    (lambda x, y: (x + y).sum(axis=-1), "+ dot"),
    (lambda x: (x * 2.0).sum(axis=-1), "* dot"),
    (lambda t, w, k: ((t @ w) * (t @ w)).sum(axis=-1), "reshape dot vecdot reshape"),
    (lambda t, w, k: ((t @ w) * (t @ k)).sum(axis=-1), "reshape dot @ reshape vecdot reshape"),
    # Element by element, on the matrix that a product is made as.
    (lambda t, w: np.exp(t @ w), "reshape dot exp reshape"),
    (lambda t, w: 2.0 * (t @ w), "reshape dot * reshape"),
    (lambda t, w, heads: (t @ w) * heads, "reshape dot reshape * reshape"),
    (lambda t, w: (t @ w) - (t @ w).sum(**LAST), "reshape dot dot reshape - reshape"),
    (lambda t, w, c: (t @ w) * c, "reshape dot reshape *"),
    (lambda t, w, u, k: (t @ w) * np.sin(u @ k), "reshape dot reshape @ sin *"),
    (lambda x, w: np.exp(x @ w), "dot exp"),
    (lambda t, w, v: (t @ w) * v[:, 0], "reshape dot item * reshape"),
    (lambda t, w: np.exp(t @ w, dtype=np.float64), "reshape dot reshape exp"),
    (lambda t, w: np.sin(t @ w), "reshape dot reshape sin"),
    (lambda t, h: h * t.sum(**LAST), "reshape dot reshape *"),
    (lambda t, heads: heads * t.sum(**LAST), "reshape dot reshape reshape * reshape"),
    (lambda t, u, w: (t @ w) * (t * u).sum(**LAST), "reshape dot vecdot reshape * reshape"),
    (lambda t, u, w: np.maximum((t @ w), (t * u).sum(**LAST)), "reshape dot vecdot reshape maximum reshape"),
    (
        lambda f, w: np.maximum(
            f.reshape(3, 1, 4) @ w.astype(np.float32), np.float32(0), dtype=np.float64
        ),
        "astype dot reshape maximum",
    ),
    (lambda p, q: (p[..., 0] @ q) * (p * p).sum(axis=-1), "item reshape dot vecdot reshape * reshape"),
    # Constants.
    (lambda x: x * np.sqrt(constant(x, 4.0)), "*"),
    (lambda x: x * (constant(x, np.arange(4.0)) * 2.0), "*"),
    (lambda n: one_at(n, 1, (2,)) * n, "add.at *"),
    (lambda q: q * np.linalg.eigh(constant(q, np.eye(3)))[0], "linalg.eigh part *"),
    # erf has Python's numbers in the ops.
    (lambda x: erf(x), "erf"),
    (lambda f: erf(f), "astype erf"),
    (lambda f: erf(f).astype(np.float32), "erf"),
    (lambda x: erf(x).astype(np.float32), "erf astype"),
    (lambda i: erf(i.astype(np.float16)).astype(np.float16), "astype astype erf astype"),
    # ReLU.
    (lambda x: np.maximum(x, 0.0), "maximum"),
    (lambda x: np.maximum(x, 1.0), "maximum"),
    (lambda f: np.maximum(f, 0.0, dtype=np.float64), "maximum"),
    (lambda n: np.maximum(n, 0.0), "maximum"),
    (lambda f: np.maximum(f, np.float64(0)), "maximum"),
    (lambda t, w: np.maximum(t @ w, 0.0), "reshape dot maximum reshape"),
]  # fmt: skip


@pytest.mark.parametrize("f, text", RULES, ids=[f"{text}-{i}" for i, (_, text) in enumerate(RULES)])
def test_what_is_computed_instead(f, text):
    check(f, text)


SPECULATED = [
    (softmax, True),
    (lambda x, y: softmax(x) * y, True),
    (lambda x, c: softmax(x) * c / 2.0, True),
    (lambda x: shifted(x) / shifted(x).sum(**LAST) + shifted(x) / shifted(x).sum(**LAST), True),
    (lambda x: shifted(x) * shifted(x) / shifted(x).sum(**LAST) / shifted(x).sum(**LAST), True),
    (lambda x, y: (shifted(x) + shifted(x) * y) / shifted(x).sum(**LAST), True),
    (lambda x, y: (shifted(x) - y * shifted(x)) / shifted(x).sum(**LAST), True),
    (lambda x, r: softmax(x) * r, True),
    (lambda x, r: shifted(x) * r / shifted(x).sum(**LAST), False),
    (lambda f: softmax(f), True),
    (
        lambda x, y: (
            shifted(x) / shifted(x).sum(**LAST) + shifted(x) * y / (shifted(x) * y).sum(**LAST)
        ),
        True,
    ),
    (lambda x: shifted(x) / shifted(x).prod(**LAST), False),
    (lambda x: shifted(x) / shifted(x).sum(), False),
    (lambda x: shifted(x) ** 2.0 / shifted(x).sum(**LAST), False),
    (lambda x: shifted(x) / (shifted(x).sum(**LAST) * 2.0), False),
    (lambda x: (shifted(x) + 1.0) / shifted(x).sum(**LAST), False),
    (lambda x: (1.0 + shifted(x)) / shifted(x).sum(**LAST), False),
    (lambda x: np.exp(-x) / np.exp(-x).sum(**LAST), False),
    (
        lambda f: (
            np.exp(f - f.max(**LAST), dtype=np.float64)
            / np.exp(f - f.max(**LAST), dtype=np.float64).sum(**LAST)
        ),
        False,
    ),
    (shifted, False),
    (lambda q: shifted(q) / shifted(q).sum(axis=-1), False),
    (lambda x: np.log(shifted(x).sum(**LAST)), False),
    (lambda x: shifted(x) + shifted(x) / shifted(x).sum(**LAST), False),
    (lambda x: shifted(x) * shifted(x).sum(**LAST), False),
    (lambda x: shifted(x) / (1.0 + shifted(x).sum(**LAST)), False),
    (lambda x: shifted(x) / shifted(x), False),
    (
        lambda x: (
            np.exp(x - x.max(axis=0, keepdims=True))
            / np.exp(x - x.max(axis=0, keepdims=True)).sum(**LAST)
        ),
        False,
    ),
    (lambda x, y: np.exp(x - y.max(**LAST)) / np.exp(x - y.max(**LAST)).sum(**LAST), False),
    (lambda x: np.exp(x - x.min(**LAST)) / np.exp(x - x.min(**LAST)).sum(**LAST), False),
    (lambda x: np.exp(x + x.max(**LAST)) / np.exp(x + x.max(**LAST)).sum(**LAST), False),
    (lambda x: shifted(x) / shifted(x).sum(axis=0, keepdims=True), False),
    (lambda x: softmax(x.astype(np.float16)), False),
    (lambda x: softmax(x) @ np.ones((4, 2)), True),
    (lambda q: np.sqrt(shifted(q)) / shifted(q).sum(**LAST), False),
    (lambda x: np.stack([shifted(x), shifted(x).sum(**LAST) * np.ones((3, 4))]), False),
]


@pytest.mark.parametrize("f, free", SPECULATED, ids=range(len(SPECULATED)))
def test_the_largest_score_is_left_out_only_where_no_result_depends_on_it(f, free):
    wordy, plain, guards = lowered(f, speculate=True)
    digits = 1e-2 if wordy.dtype == np.float16 else 1e-12
    for seed in range(3):
        assert_equal(computed(plain, numbers(seed)), computed(wordy, numbers(seed)), digits)
    usual, none = lowered(f)[1:]
    assert (len(guards), len(none)) == (int(free), 0)
    assert ("max" in steps(usual) and "max" not in steps(plain)) == free
    for guard in guards:
        assert guard.answer == "in range"
        sums = computed(guard.asked, numbers(1))
        assert sums.shape == guard.asked.shape == (*wordy.shape[:-1], 1)


def test_every_rule_fires():
    """Each statement of the module runs for one of the tables above; if not, add what its rule is for to one of them."""

    def run():
        for f, text in RULES:
            check(f, text)
        for f, _ in SPECULATED:
            lowered(f, speculate=True)

    assert not statements_but(lowering, lines_run(lowering, run))
