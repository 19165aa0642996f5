"""The rules of `transforms/programs/simplify.py`: each fires where it should and nowhere else, and changes no number.

A rule is a line of a table: what the tracer writes down, and what is to be read instead. Both are computed here, step
by step, at numbers other than those that they were written for. Whether the tables meet every rule is not believed
but asked of the module: each of its statements has to run.
"""

import numpy as np
import pytest
from written import (
    assert_equal,
    computed,
    constant,
    lines_run,
    numbers,
    one_at,
    spelled,
    statements_but,
    written_down,
)

from tinygrad_attn.transforms.programs import simplify
from tinygrad_attn.transforms.programs.expressions import BACKWARD, reached
from tinygrad_attn.transforms.programs.symbol import Symbol, Writing


@np.errstate(divide="ignore", invalid="ignore")
def check(f, text, backward=False):
    """f is simplified to this text, and both are the same numbers, in each step and at other numbers."""
    wordy = written_down(f, backward)
    plain, _ = simplify.simplified(wordy, [], {})
    for seed in range(3):
        assert_equal(computed(plain, numbers(seed)), computed(wordy, numbers(seed)))
    for step in reached([plain]):
        if isinstance(step.value, (tuple, list)):
            continue
        assert_equal(step.value, computed(step, numbers(0)))
    assert spelled(plain) == text


def full(number, *shape, dtype=np.float64):
    return np.full(shape or (3, 4), number, dtype)


def flipped(x, y, **settings):
    """The mean of y - x, which x - y is followed by in the rule of a norm."""
    return (y - x).mean(**{"axis": -1, "keepdims": True, **settings})


MEAN = ".mean(-1, keepdims=True)"
ARITHMETIC = [
    # What broadcasting does by itself.
    (lambda x, r: np.broadcast_to(r, (3, 4)) + x, "r + x"),
    (lambda x, r: x + np.broadcast_to(r, (3, 4)), "x + r"),
    (lambda x, r: x - np.broadcast_to(r, (3, 4)), "x - r"),
    (lambda x, r: x * np.broadcast_to(r, (3, 4)), "x * r"),
    (lambda x, r: np.broadcast_to(r, (3, 4)) / x, "r / x"),
    (lambda r, c: np.broadcast_to(r, (3, 4)) + c, "r + c"),
    (lambda r: np.broadcast_to(r, (3, 4)) + r, "np.broadcast_to(r, (3, 4)) + r"),
    (lambda x: x + full(2), "x + 2.0"),
    (lambda x: x + full(2, 1, 1), "x + 2.0"),
    (lambda e: e + full(2, 0, 4), "e + np.zeros((0, 4))"),
    (lambda x: full(2) - x, "2.0 - x"),
    (lambda x: x * full(2), "2.0 * x"),
    (lambda x: full(2) / x, "2.0 / x"),
    (lambda r: r + full(2), "r + np.full((3, 4), 2.0)"),
    (lambda f: f + full(2), "f + np.float64(2.0)"),
    (lambda x: x + full(2, dtype=np.float32), "x + np.full((3, 4), 2.0, np.float32)"),
    (lambda x: x + full(np.pi), "x + np.full((3, 4), 3.141592653589793)"),
    # Nothing that is true, added: the dtype stays.
    (lambda x: x + full(0, dtype=bool), "x"),
    (lambda f: f + full(0, dtype=bool), "f"),
    (lambda i: i + full(0, dtype=bool), "i"),
    (lambda b: b + full(0, dtype=bool), "b"),
    (lambda x: x + full(0, 1, 1, dtype=bool), "x"),
    (lambda e: e + full(0, 0, 4, dtype=bool), "e"),
    (lambda r: r + full(0, dtype=bool), "r + np.zeros((3, 4), bool)"),
    (lambda x: x + full(1, dtype=bool), "x + np.ones((3, 4), bool)"),
    (lambda r: r + np.array([0, 0, 1, 0], bool), "r + np.array([False, False, True, False])"),
    (lambda f: f + full(0), "f + np.float64(0.0)"),
    (lambda r: r + full(0, 3, 4), "r + np.zeros((3, 4))"),
    (lambda x, b: x + b, "x + b"),
    (lambda x: x + (np.pi + constant(x, False)), "x + (3.141592653589793 + False)"),
    # Sums and differences.
    (lambda x, y: x + -y, "x - y"),
    (lambda x, y: -x + y, "y - x"),
    (lambda x: -x + 1.0, "-x + 1.0"),
    (lambda x: x + x, "2.0 * x"),
    (lambda f: f + f, "2.0 * f"),
    (lambda x, y: (x + y) + y, "x + 2.0 * y"),
    (lambda x, y: (x + y) + x, "x + y + x"),
    (lambda x: 1.0 + x + 1.0, "1.0 + x + 1.0"),
    (lambda x: x + 1.0 + 1.0, "x + 1.0 + 1.0"),
    (lambda x, y: (x - y) + flipped(x, y), f"x - y - (x - y){MEAN}"),
    (lambda x, y: (x - y) + flipped(y, x), f"x - y + (x - y){MEAN}"),
    (lambda x, y: (x - y) + flipped(x, y, axis=0), "x - y - (x - y).mean(0, keepdims=True)"),
    (lambda x, y: (x - y) + (y + x).mean(axis=-1, keepdims=True), f"x - y + (y + x){MEAN}"),
    (lambda x, y: (x + y) + flipped(x, y), f"x + y + (y - x){MEAN}"),
    (
        lambda x, y: (x - y) + (y - x).max(axis=-1, keepdims=True),
        "x - y + (y - x).max(-1, keepdims=True)",
    ),
    (lambda x, y: (x - y) + (x * y).mean(axis=-1, keepdims=True), f"x - y + (x * y){MEAN}"),
    (lambda x, y, z: z + (x - y) + flipped(x, y), f"z + (x - y) + (y - x){MEAN}"),
    (lambda x: np.negative(-x), "x"),
    (lambda x, y: -(x - y), "y - x"),
    (lambda x, y: -(x + y), "-(x + y)"),
    (lambda x, y: x - -y, "x + y"),
    (lambda x, y: -x - y, "-(x + y)"),
    (lambda x: -x - 1.0, "-x - 1.0"),
    (lambda x, y: (x - y) - y, "x - 2.0 * y"),
    (lambda x, y: (x - y) - x, "x - y - x"),
    (lambda x, y: (x + y) - y, "x + y - y"),
    (lambda x: x - 1.0 - 1.0, "x - 1.0 - 1.0"),
    (lambda x: centred(centred(x)), f"x - x{MEAN} - (x - x{MEAN}){MEAN}"),
    (lambda x, y: (y + x) - x.mean(axis=-1, keepdims=True), f"y + x - x{MEAN}"),
    # Products and quotients.
    (lambda x: x * 2.0, "2.0 * x"),
    (lambda x: 1.0 * x, "x"),
    (lambda x: -1.0 * x, "-x"),
    (lambda f: np.float64(1) * f, "np.float64(1.0) * f"),
    (lambda f: np.float64(-1) * f, "np.float64(-1.0) * f"),
    (lambda i: 1.0 * i, "1.0 * i"),
    (lambda x: 3.0 * (2.0 * x), "6.0 * x"),
    (lambda x: 0.5 * (2.0 * x), "x"),
    (lambda x: (x * 3.0) * 0.1, "3 / 10 * x"),
    (lambda x: np.pi * (2.0 * x), "6.283185307179586 * x"),
    (lambda x: 2.0 * (np.pi * x), "6.283185307179586 * x"),
    (lambda f: np.pi * (2.0 * f), "3.141592653589793 * (2.0 * f)"),
    (lambda x, y: 2.0 * (x * y), "2.0 * (x * y)"),
    (lambda x, y: np.pi * (x * y), "3.141592653589793 * (x * y)"),
    (lambda x: 2.0 * (x / 4.0), "0.5 * x"),
    (lambda x: 4.0 * (x / 4.0), "x"),
    (lambda x, y: 2.0 * (x / y), "2.0 * (x / y)"),
    (lambda x: np.pi * (x / 4.0), "3.141592653589793 * (x / 4.0)"),
    (lambda x, y: -x * y, "-(x * y)"),
    (lambda x, y: x * -y, "-(x * y)"),
    (lambda x, y: -x * -y, "x * y"),
    (lambda x: x / 1.0, "x"),
    (lambda i: i / 1, "i / 1"),
    (lambda x: 1.0 / x, "1.0 / x"),
    (lambda x: x * (np.pi / constant(x, 1.0)), "x * (3.141592653589793 / np.float64(1.0))"),
    (
        lambda x: x * (np.sqrt(constant(x, 4.0)) * np.pi),
        "x * (np.float64(2.0) * 3.141592653589793)",
    ),
    (
        lambda x: x * (np.sqrt(constant(x, 1.0)) * np.pi),
        "x * (np.float64(1.0) * 3.141592653589793)",
    ),
    (
        lambda x: x * (np.pi / np.sqrt(constant(x, 1.0))),
        "x * (3.141592653589793 / np.float64(1.0))",
    ),
    (lambda x, y: -x / y, "-(x / y)"),
    (lambda x, y: x / -y, "x / -y"),
    # Sums that are means.
    (lambda x: x.sum() / 12.0, "x.mean()"),
    (lambda x: x.sum(axis=-1) / 4.0, "x.mean(-1)"),
    (lambda x: x.sum(axis=0, keepdims=True) / 3.0, "x.mean(0, keepdims=True)"),
    (lambda x: x.sum(axis=0) / 4.0, "x.sum(0) / 4.0"),
    (lambda x, r: x.sum(axis=0) / r, "x.sum(0) / r"),
    (lambda x, r: x.sum(axis=0) / r / 3.0, "x.mean(0) / r"),
    (lambda x, r: x.sum(axis=0) / r / 4.0, "x.sum(0) / r / 4.0"),
    (lambda i: i.sum() / 12.0, "i.mean()"),
    (lambda f: f.sum(dtype=np.float64) / 12.0, "f.sum(dtype=np.float64) / 12.0"),
    (lambda e: e.sum(axis=0) / 1.0, "e.sum(0)"),
    (lambda x: x.max(axis=0) / 3.0, "x.max(0) / 3.0"),
    (lambda e: e.sum(axis=1) / 4.0, "e.sum(-1) / 4.0"),
    # Twice a quotient by twice something, as of a root.
    (lambda x, y: x / (2.0 * y) + x / (2.0 * y), "x / y"),
    (lambda x, y: x / (3.0 * y) + x / (3.0 * y), "2.0 * (x / (3.0 * y))"),
    (lambda x, y: x / (y + 2.0) + x / (y + 2.0), "2.0 * (x / (y + 2.0))"),
    (lambda x, y, z: x / (2.0 * y) * z + x / (2.0 * y) * z, "x / y * z"),
    (lambda x, y, z: z * (x / (2.0 * y)) + z * (x / (2.0 * y)), "z * (x / y)"),
    (lambda x, y, z: x / (2.0 * y) / z + x / (2.0 * y) / z, "x / y / z"),
    (lambda x, y, z: z / (x / (2.0 * y)) + z / (x / (2.0 * y)), "2.0 * (z / (x / (2.0 * y)))"),
    (lambda x, y, z: x / (2.0 * y) + z + (x / (2.0 * y) + z), "2.0 * (x / (2.0 * y) + z)"),
    (lambda x, y: x * (2.0 * y) + x * (2.0 * y), "2.0 * (x * (2.0 * y))"),
    (lambda x: np.exp(x) + np.exp(x), "2.0 * np.exp(x)"),
    (lambda x, y: np.less(x, y) * x + np.less(x, y) * x, "2.0 * ((x < y) * x)"),
    # Products of matrices.
    (lambda x, w: -x @ w, "-(x @ w)"),
    (lambda x, w: x @ -w, "-(x @ w)"),
]
SHAPES_OF = [
    # Transposes.
    (lambda x: x.T.T, "x"),
    (lambda x: x.mT.mT, "x"),
    (lambda x: x.mT.T, "x"),
    (lambda x: x.T.mT, "x"),
    (lambda t: t.T.T, "t"),
    (lambda t: t.T.mT, "t.T.swapaxes(-1, -2)"),
    (lambda t: t.mT.T, "t.swapaxes(-1, -2).T"),
    (lambda t: t.mT.swapaxes(1, 2), "t"),
    (lambda t: t.swapaxes(-1, -2).mT, "t"),
    (lambda x: x.mT, "x.T"),
    (lambda t: t.mT, "t.swapaxes(-1, -2)"),
    (lambda x: (-x).T, "-x.T"),
    (lambda t: (-t).mT, "-t.swapaxes(-1, -2)"),
    (lambda t: (-t).T, "(-t).T"),
    (lambda t: t.swapaxes(0, 1).mT, "t.swapaxes(0, 1).swapaxes(-1, -2)"),
    (lambda t, u: (t + u).swapaxes(0, 1), "(t + u).swapaxes(0, 1)"),
    (
        lambda r: np.broadcast_to(r, (2, 3, 4)).swapaxes(0, 1),
        "np.broadcast_to(r, (2, 3, 4)).swapaxes(0, 1)",
    ),
    (lambda x, q: from_here_on_backwards(x.T @ q).T, "(x.T @ q).T"),
    (lambda x, w: (x.T @ x).T, "x.T @ x"),
    (lambda x, w: (x @ w).T, "(x @ w).T"),
    (lambda t, k: (t.mT @ t).mT, "t.swapaxes(-1, -2) @ t"),
    (lambda x, q: (x.T @ q).T, "q.T @ x"),
    (lambda x, t: (x.T @ t).mT, "(x.T @ t).swapaxes(-1, -2)"),
    (lambda t, c: (t.mT @ c).mT, "(t.swapaxes(-1, -2) @ c).swapaxes(-1, -2)"),
    (lambda t: t.swapaxes(0, 1).swapaxes(0, 1), "t"),
    (lambda t: t.swapaxes(0, 1).swapaxes(1, 0), "t"),
    (lambda t: t.swapaxes(0, 1).swapaxes(0, 2), "t.swapaxes(0, 1).swapaxes(0, 2)"),
    (lambda t: t.swapaxes(0, -3), "t"),
    (lambda p: p.swapaxes(-3, -2), "p.swapaxes(1, 2)"),
    (lambda p: p.swapaxes(-1, -2), "p.swapaxes(-1, -2)"),
    (lambda t: t.swapaxes(-3, -2), "t.swapaxes(-3, -2)"),
    (lambda t: t.swapaxes(0, 2), "t.swapaxes(0, 2)"),
    (lambda t: t.transpose(0, 1, 2), "t"),
    (lambda t: t.transpose(0, 2, 1), "t.swapaxes(-1, -2)"),
    (lambda t: t.transpose(2, 1, 0), "t.swapaxes(0, 2)"),
    (lambda t: t.transpose(1, 2, 0), "t.transpose(1, 2, 0)"),
    (lambda t: t.transpose(1, 2, 0).transpose(1, 2, 0), "t.transpose(2, 0, 1)"),
    (lambda t: t.transpose(1, 2, 0).transpose(2, 0, 1), "t"),
    (lambda x, y: np.stack([x, y]).transpose(1, 0, 2), "np.stack([x, y], axis=1)"),
    (lambda x, y: np.stack([x, y]).transpose(2, 1, 0), "np.stack([x.T, y.T], axis=2)"),
    (lambda x, y: np.stack([x, y], axis=0).transpose(1, 2, 0), "np.stack([x, y], axis=2)"),
    (lambda x, y: np.stack([x, y]).transpose(0, 2, 1), "np.stack([x, y]).swapaxes(-1, -2)"),
    (
        lambda x, y: np.stack([x, y], axis=1).transpose(1, 0, 2),
        "np.stack([x, y], axis=1).swapaxes(0, 1)",
    ),
    (
        lambda t, u: np.stack([t, u]).transpose(1, 0, 3, 2),
        "np.stack([t.swapaxes(-1, -2), u.swapaxes(-1, -2)], axis=1)",
    ),
    # Shapes.
    (lambda x: x.reshape(3, 4), "x"),
    (lambda x: x.reshape(2, 6).reshape(4, 3), "x.reshape(4, 3)"),
    (lambda x: x.reshape(2, 6).reshape(3, 4), "x"),
    (lambda x: x.reshape(4, 3), "x.reshape(4, 3)"),
    (lambda x: x.sum(axis=0, keepdims=True).reshape(4), "x.sum(0)"),
    (lambda x: x.sum(axis=0, keepdims=True).reshape(2, 2), "x.sum(0, keepdims=True).reshape(2, 2)"),
    (lambda x: x.sum(keepdims=True).reshape(()), "x.sum()"),
    (lambda x: x.sum(axis=0).reshape(2, 2), "x.sum(0).reshape(2, 2)"),
    (lambda x: x.mean(axis=0, keepdims=True).reshape(4), "x.mean(0, keepdims=True).reshape(4)"),
    (lambda x: x.copy(), "x"),
    (lambda x: np.broadcast_to(x, (3, 4)), "x"),
    (lambda r: np.broadcast_to(-r, (3, 4)), "-np.broadcast_to(r, (3, 4))"),
    (
        lambda r: np.broadcast_to(np.broadcast_to(r, (3, 4)), (2, 3, 4)),
        "np.broadcast_to(r, (2, 3, 4))",
    ),
    (lambda r: np.broadcast_to(r, (3, 4)), "np.broadcast_to(r, (3, 4))"),
    # Reductions.
    (lambda x: x.sum(axis=(0, 1)), "x.sum()"),
    (lambda x: x.sum(axis=(1,)), "x.sum(-1)"),
    (lambda x: x.sum(axis=(0, 1), keepdims=True), "x.sum((0, 1), keepdims=True)"),
    (lambda t: t.sum(axis=(0, 1)), "t.sum((0, 1))"),
    (lambda t: t.sum(axis=1), "t.sum(1)"),
    (lambda t: t.max(axis=2), "t.max(-1)"),
    (lambda t: t.min(axis=2), "t.min(-1)"),
    (lambda t: t.mean(axis=2), "t.mean(-1)"),
    (lambda r: r.sum(axis=0), "r.sum(0)"),
    (lambda x: x.reshape(2, 6).sum(), "x.sum()"),
    (lambda x: x.reshape(2, 6).mean(), "x.mean()"),
    (lambda x: x.reshape(2, 6).max(), "x.max()"),
    (lambda x: x.reshape(2, 6).min(), "x.min()"),
    (lambda x: x.reshape(2, 6).sum(axis=0), "x.reshape(2, 6).sum(0)"),
    (lambda x: x.reshape(2, 6).sum(keepdims=True), "x.reshape(2, 6).sum(keepdims=True)"),
    (lambda x: x.reshape(2, 6).prod(), "x.reshape(2, 6).prod()"),
    (lambda x: np.sin(x).sum(), "np.sin(x).sum()"),
    (lambda x: called(x.reshape(2, 6)).sum(), "x.reshape(2, 6).sum()"),
    (lambda x: called(x.reshape(2, 6)).reshape(4, 3), "x.reshape(2, 6).reshape(4, 3)"),
    (lambda x: (-x).sum(axis=1), "-x.sum(-1)"),
    (lambda x: (-x).mean(axis=0), "-x.mean(0)"),
    (lambda x: (-x).max(axis=0), "(-x).max(0)"),
    (lambda x: (-x).min(axis=0), "(-x).min(0)"),
    (lambda x: x.sum(axis=0, dtype=np.float64), "x.sum(0)"),
    (lambda f: f.sum(axis=0, dtype=np.float64), "f.sum(0, dtype=np.float64)"),
    # Few numbers of float32 may be added in float32.
    (lambda f: f.sum(axis=0, dtype=np.float64).astype(np.float32), "f.sum(0)"),
    (lambda single: single.sum(axis=1, dtype=np.float64).astype(np.float32), "single.sum(-1)"),
    (
        lambda longer: longer.sum(axis=1, dtype=np.float64).astype(np.float32),
        "longer.sum(-1, dtype=np.float64).astype(np.float32)",
    ),
    (lambda x: x.sum(axis=0).astype(np.float32), "x.sum(0).astype(np.float32)"),
    (lambda f: f.sum(axis=0).astype(np.float64), "f.sum(0).astype(np.float64)"),
    (
        lambda f: f.prod(axis=0, dtype=np.float64).astype(np.float32),
        "f.prod(0, dtype=np.float64).astype(np.float32)",
    ),
    (lambda x: (-x).astype(np.float32), "-x.astype(np.float32)"),
    (lambda f: (-f).astype(np.float64), "(-f).astype(np.float64)"),
    (lambda x: (-x).astype(np.int64), "(-x).astype(np.int64)"),
    (lambda i: (-i).astype(np.float32), "(-i).astype(np.float32)"),
    (lambda x: x.astype(np.float32), "x.astype(np.float32)"),
    # Choices.
    (lambda b, x: np.where(b, 0.0, -x), "-np.where(b, 0.0, x)"),
    (lambda b, x: np.where(b, -x, 0.0), "-np.where(b, x, 0.0)"),
    (lambda b, x: np.where(b, 1.0, -x), "np.where(b, 1.0, -x)"),
    (lambda b, x: np.where(b, -x, 1.0), "np.where(b, -x, 1.0)"),
    (lambda b, x, y: np.where(b, -x, y), "np.where(b, -x, y)"),
    (lambda b, x, r: np.where(b, x, np.broadcast_to(r, (3, 4))), "np.where(b, x, r)"),
    (lambda b, x, r: np.where(b, np.broadcast_to(r, (3, 4)), x), "np.where(b, r, x)"),
    (
        lambda c, r: np.where(np.less(r, 0), np.broadcast_to(r, (3, 4)), r),
        "np.where(r < 0, np.broadcast_to(r, (3, 4)), r)",
    ),
    (lambda x, y: np.where(full(1, dtype=bool), x, y), "x"),
    (lambda x, y: np.where(full(0, dtype=bool), x, y), "y"),
    (lambda x, y: np.where(full(1, 1, 1, dtype=bool), x, y), "x"),
    (lambda x, r: np.where(full(1, dtype=bool), r, x), "np.where(np.ones((3, 4), bool), r, x)"),
    (lambda x, f: np.where(full(1, dtype=bool), f, x), "np.where(np.ones((3, 4), bool), f, x)"),
    (lambda x: np.where(full(1, dtype=bool), 1.0, x), "np.where(np.ones((3, 4), bool), 1.0, x)"),
    (lambda x: np.where(np.less(x, 0))[0], "np.where(x < 0)[0]"),
]
BACKWARDS = [
    (lambda x, y, z: (x + y) + z, "x + y + z"),
    (lambda x, y: centred(x) - y.mean(axis=-1, keepdims=True), f"x - x{MEAN} - y{MEAN}"),
    (lambda x: centred(x + x.mean(axis=-1, keepdims=True)), f"x + x{MEAN} - (x + x{MEAN}){MEAN}"),
    (lambda x, y, z: z + (x - y) + flipped(x, y), f"z + (x - y - (x - y){MEAN})"),
    (lambda x, y, z: z - (x - y) + flipped(x, y), f"z - (x - y) + (y - x){MEAN}"),
    (lambda x, y: y + x - x.mean(axis=-1, keepdims=True), f"y + (x - x{MEAN})"),
    (lambda x, y: y * x - x.mean(axis=-1, keepdims=True), f"y * x - x{MEAN}"),
    (lambda x, y: y + x - y.mean(axis=-1, keepdims=True), f"y + x - y{MEAN}"),
    (lambda x, y: y + x - x.mean(), "y + x - x.mean()"),
    (lambda x: centred(centred(x)), f"x - x{MEAN}"),
    (lambda x: centred(centred(x), axis=0), f"x - x{MEAN} - (x - x{MEAN}).mean(0, keepdims=True)"),
    (lambda x, y: centred(x - y), f"x - y - (x - y){MEAN}"),
    (lambda x: centred(-x), f"x{MEAN} - x"),
    (lambda x: centred(x * x), f"x * x - (x * x){MEAN}"),
]


def centred(x, axis=-1):
    return x - x.mean(axis=axis, keepdims=True)


def from_here_on_backwards(y):
    """y, which belongs to the forward pass, while what is made of it belongs to the backward pass."""
    y.listing.phase = BACKWARD
    return y


def put(x, *at, shape=(3, 4), dtype=None, into=None):
    """The gradient of array[at] for an array of this shape, of the gradient x."""
    array = np.zeros_like(x, shape=shape, dtype=dtype) if into is None else into
    np.add.at(array, at if len(at) > 1 else at[0], x)
    return array


SPREAD = "np.sqrt((y * y).mean(-1, keepdims=True) + 1e-05)"


def spread(x):
    return np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def positive(x):
    return x * x + 1.0


def along(x, **settings):
    return x.sum(axis=-1, keepdims=True, **settings)


def top(x, axis=-1):
    return x.max(axis=axis, keepdims=True)


def again(y, r, x, turned=False):
    """y / r forwards, and x / r * y backwards."""
    known = from_here_on_backwards(y / r)
    return (y * (x / r) if turned else x / r * y) + known


def called(x):
    """An array that has a name."""
    x.expression.hint = (4, "name")
    return x


def blind_softmax(x, blind, other=None):
    """The sum of a softmax, some rows of which have nothing to look at."""
    return along(np.exp(x - np.where(blind, 0, top(x)))) + (blind if other is None else other)


def over_one(divisor):
    """x and y, divided by what is made of y."""
    return lambda x, y: x / divisor(y) - y / divisor(y)


def tiny(x):
    """With an epsilon that float32 does not have."""
    return along(x * x) + 1e-60


def partly(x):
    """Blind is not a whole row, but an element of it: perhaps the largest."""
    return blind_softmax(x, np.less(x, 0))


def across(x):
    """Here the largest number of each row is taken from each column."""
    return np.exp(x - x.max(axis=-1)).sum(axis=-1).mean(keepdims=True)


def low(x):
    return np.less(top(x), 1)


ALONG, LARGEST = ".sum(-1, keepdims=True)", "y.max(-1, keepdims=True)"
PARTLY = "np.exp(t[:1] - np.where(t[:1] < 0, 0, t[:1].max(-1, keepdims=True))).sum(-1, keepdims=True) + (t[:1] < 0)"
ACROSS = "np.exp(q - q.max(-1)).sum(-1).mean(keepdims=True)"
SHIFTED = f"np.exp(y - np.where({LARGEST} < 1, 0, {LARGEST})){ALONG}"
POSITIVE = [
    (lambda y: along(np.exp(y - top(y))), f"np.exp(y - {LARGEST}){ALONG}"),
    (lambda y: np.exp(y - y.max(keepdims=True)).sum(keepdims=True), "np.exp(y - y.max(keepdims=True)).sum(keepdims=True)"),
    (lambda y: along(y * y) + 1.0, f"((y * y){ALONG} + 1.0)"),
    (lambda y: 1.0 + along(y * y), f"(1.0 + (y * y){ALONG})"),
    (lambda y: (y * y).mean(axis=-1, keepdims=True) + 1, f"((y * y){MEAN} + 1)"),
    (lambda y: np.sqrt(along(y * y + 1.0)), f"np.sqrt((y * y + 1.0){ALONG})"),
    (lambda y: (y * y + 1.0).mean(axis=-1, keepdims=True), f"(y * y + 1.0){MEAN}"),
    (lambda y: along(np.exp(y)) + 1.0, f"(np.exp(y){ALONG} + 1.0)"),
    (lambda y: along(y * y + 1.0) + along(y * y), f"((y * y + 1.0){ALONG} + (y * y){ALONG})"),
    (lambda y: along(y * y) + along(y * y + 1.0), f"((y * y){ALONG} + (y * y + 1.0){ALONG})"),
    (lambda y: along(np.less(y, 0)) + 1.0, f"((y < 0){ALONG} + 1.0)"),
    (lambda y: low(y) + np.sqrt(along(y * y + 1.0)), f"(({LARGEST} < 1) + np.sqrt((y * y + 1.0){ALONG}))"),
    (lambda y: np.sqrt(along(y * y + 1.0)) + 1.0, f"(np.sqrt((y * y + 1.0){ALONG}) + 1.0)"),
    (lambda y: 1.0 + np.sqrt(along(y * y + 1.0)), f"(1.0 + np.sqrt((y * y + 1.0){ALONG}))"),
    (lambda y: blind_softmax(y, low(y)), f"({SHIFTED} + ({LARGEST} < 1))"),
    (lambda y: low(y) + along(np.exp(y - np.where(low(y), 0, top(y)))), f"(({LARGEST} < 1) + {SHIFTED})"),
]  # fmt: skip
"""What is never 0, by its form: what it is of y, and as it is read below a line."""
NOT_SURE = [
    (lambda y: along(np.exp(y)), f"np.exp(y){ALONG}"),
    (lambda y: np.exp(top(y)), f"np.exp({LARGEST})"),
    (lambda y: np.sqrt(along(np.exp(y))), f"np.sqrt(np.exp(y){ALONG})"),
    (lambda y: np.exp(along(y * y + 1.0)), f"np.exp((y * y + 1.0){ALONG})"),
    (lambda y: along(np.exp(-y)), f"np.exp(-y){ALONG}"),
    (lambda y: along(np.exp(y - 1.0)), f"np.exp(y - 1.0){ALONG}"),
    (lambda y: along(np.exp(y + top(y))), f"np.exp(y + {LARGEST}){ALONG}"),
    (lambda y: along(np.exp(y - top(y, 0))), f"np.exp(y - y.max(0, keepdims=True)){ALONG}"),
    (lambda y: along(np.exp(y - top(y * y))), f"np.exp(y - (y * y).max(-1, keepdims=True)){ALONG}"),
    (lambda y: along(np.exp(y - y.min(axis=-1, keepdims=True))), f"np.exp(y - y.min(-1, keepdims=True)){ALONG}"),
    (lambda y: along(np.sin(y - top(y))), f"np.sin(y - {LARGEST}){ALONG}"),
    (lambda y: np.exp(y - top(y)).min(axis=-1, keepdims=True), f"np.exp(y - {LARGEST}).min(-1, keepdims=True)"),
    (lambda y: along(y * y), f"(y * y){ALONG}"),
    (lambda y: along(y * y) + 0.0, f"((y * y){ALONG} + 0.0)"),
    (lambda y: along(y * y) + -1.0, f"((y * y){ALONG} + -1.0)"),
    (lambda y: (along(y * y) + 1.0) * -1.0, f"-((y * y){ALONG} + 1.0)"),
    (lambda y: along(y * y) - 1.0, f"((y * y){ALONG} - 1.0)"),
    (lambda y: along(y * y) * 2.0, f"(2.0 * (y * y){ALONG})"),
    (lambda y: along(y) + 1.0, f"(y{ALONG} + 1.0)"),
    (lambda y: along(y * np.sin(y)) + 1.0, f"((y * np.sin(y)){ALONG} + 1.0)"),
    (lambda y: along(y + y * y) + 1.0, f"((y + y * y){ALONG} + 1.0)"),
    (lambda y: along(y * y) + along(y * y), f"(2.0 * (y * y){ALONG})"),
    (lambda y: top(y * y + 1.0), "(y * y + 1.0).max(-1, keepdims=True)"),
    (lambda y: np.cbrt(along(y * y + 1.0)), f"np.cbrt((y * y + 1.0){ALONG})"),
    (lambda y: along(y * y, initial=-9.0) + 1.0, "((y * y).sum(-1, keepdims=True, initial=-9.0) + 1.0)"),
    (lambda y: along(y * y + 1.0, initial=-9.0), "(y * y + 1.0).sum(-1, keepdims=True, initial=-9.0)"),
    (lambda y: along(np.less(y, 0)) + 1, f"((y < 0){ALONG} + 1)"),
    (lambda y: along(y.astype(np.int64) * y.astype(np.int64)) + 1.0, f"((y.astype(np.int64) * y.astype(np.int64)){ALONG} + 1.0)"),
    (lambda y: along(y[:, :0] * y[:, :0] + 1.0), f"(y[:, :0] * y[:, :0] + 1.0){ALONG}"),
    (lambda y: along(np.exp(y - top(y))) + -1.0, f"(np.exp(y - {LARGEST}){ALONG} + -1.0)"),
    (lambda y: along(np.exp(y - np.where(low(y), 0, top(y)))), SHIFTED),
    (lambda y: blind_softmax(y, low(y), low(-y)), f"({SHIFTED} + ((-y).max(-1, keepdims=True) < 1))"),
    (lambda y: along(np.exp(y - np.where(low(y), top(y), 0))) + low(y), f"(np.exp(y - np.where({LARGEST} < 1, {LARGEST}, 0)){ALONG} + ({LARGEST} < 1))"),
    (lambda y: along(np.exp(y - y.max(axis=-1, keepdims=True, initial=-9.0)), initial=-9.0) + low(y), f"(np.exp(y - y.max(-1, keepdims=True, initial=-9.0)).sum(-1, keepdims=True, initial=-9.0) + ({LARGEST} < 1))"),
]  # fmt: skip


ROWS = [
    # A row's divisor is taken out of a difference ...
    (lambda x, y: x / spread(y) - y / spread(y), f"(x - y) / {SPREAD}"),
    (lambda x, y, c: x / spread(y) - c / spread(y), f"(x - c) / {SPREAD}"),
    (lambda x, y, z: x / spread(y) - y / spread(y) * z, f"(x - y * z) / {SPREAD}"),
    (lambda x, y, z: x / spread(y) - z * (y / spread(y)), f"(x - y * z) / {SPREAD}"),
    (lambda x, y, c: x / spread(y) - c / spread(y) * 3.0, f"(x - 3.0 * c) / {SPREAD}"),
    (lambda f, g: f / spread(g) - g / spread(g), f"(f - g) / {SPREAD.replace('y', 'g')}"),
    (lambda x, y: x / spread(y) - 1.0 / spread(y), f"(x - 1.0) / {SPREAD}"),
    (lambda x, y: x / spread(y) - y / spread(x), f"x / {SPREAD} - y / {SPREAD.replace('y', 'x')}"),
    (lambda x, y, z: x / spread(y) - y / spread(x) * z, f"x / {SPREAD} - y / {SPREAD.replace('y', 'x')} * z"),
    (lambda x, y: x / spread(y) - y * spread(y), f"x / {SPREAD} - y * {SPREAD}"),
    (lambda x, y: x / spread(y) - y, f"x / {SPREAD} - y"),
    (lambda x, y, z: x / spread(y) - y * z, f"x / {SPREAD} - y * z"),
    (lambda x, y: x * spread(y) - y / spread(y), f"x * {SPREAD} - y / {SPREAD}"),
    # ... if it is one for a row,
    (lambda x, y: x / (y * y + 1.0) - y / (y * y + 1.0), "x / (y * y + 1.0) - y / (y * y + 1.0)"),
    (lambda x, y, r: x / (r * r + 1.0) - y / (r * r + 1.0), "x / (r * r + 1.0) - y / (r * r + 1.0)"),
    (lambda x, y: x / 3.0 - y / 3.0, "x / 3.0 - y / 3.0"),
    (lambda r, c, x: r / positive(c) - x / positive(c), "r / (c * c + 1.0) - x / (c * c + 1.0)"),
    (lambda c, x: c / positive(c) - x / positive(c), "c / (c * c + 1.0) - x / (c * c + 1.0)"),
    (lambda c, x: 1.0 / positive(c) - x / positive(c), "1.0 / (c * c + 1.0) - x / (c * c + 1.0)"),
    # ... and the difference is as exact,
    (lambda f, g, c: f / positive(c) - g / positive(c), "f / (c * c + 1.0) - g / (c * c + 1.0)"),
    (lambda i, c: i / positive(c) - (i * i) / positive(c), "i / (c * c + 1.0) - i * i / (c * c + 1.0)"),
    (lambda x, c, i: x / positive(c) - i / positive(c) * i, "x / (c * c + 1.0) - i / (c * c + 1.0) * i"),
    (lambda x, c, z: x / positive(c) - 1.0 / positive(c) * z, "x / (c * c + 1.0) - 1.0 / (c * c + 1.0) * z"),
    # ... and out of a sum along the rows,
    (lambda x, y, c: along(x / positive(c) * y), "(x * y).sum(-1, keepdims=True) / (c * c + 1.0)"),
    (lambda x, y, c: along(y * (x / positive(c))), "(x * y).sum(-1, keepdims=True) / (c * c + 1.0)"),
    (lambda x, y, c: (x / positive(c) * y).mean(axis=-1, keepdims=True), f"(x * y){MEAN} / (c * c + 1.0)"),
    (lambda x, y, o: (x / positive(o.sum(keepdims=True)) * y).sum(keepdims=True), "(x * y).sum(keepdims=True) / (o.sum(keepdims=True) * o.sum(keepdims=True) + 1.0)"),
    (lambda x, y, c: (x / positive(c) * y).max(axis=-1, keepdims=True), "(x / (c * c + 1.0) * y).max(-1, keepdims=True)"),
    (lambda x, y, c: (x / positive(c) * y).sum(axis=0, keepdims=True), "(x / (c * c + 1.0) * y).sum(0, keepdims=True)"),
    (lambda x, y, c: (x / positive(c) * y).sum(axis=-1), "(x / (c * c + 1.0) * y).sum(-1)"),
    (lambda x, y, c: (x / positive(c) + y).sum(axis=-1, keepdims=True), "(x / (c * c + 1.0) + y).sum(-1, keepdims=True)"),
    (lambda x, y, c: along(x / positive(c) * y, initial=5.0), "(x / (c * c + 1.0) * y).sum(-1, keepdims=True, initial=5.0)"),
    (lambda x, y, c: along(x / c * y), "(x / c * y).sum(-1, keepdims=True)"),
    (lambda f, g, c: along(f / positive(c) * g), "(f / (c * c + 1.0) * g).sum(-1, keepdims=True)"),
    (lambda x, y, c: y / c + x / c * y, "y / c + x / c * y"),
    # What is never 0, by its form.
    *((over_one(d), f"(x - y) / {text}") for d, text in POSITIVE),
    *((over_one(d), f"x / {text} - y / {text}") for d, text in NOT_SURE),
    (lambda f, g: f / tiny(g) - g / tiny(g), "f / ((g * g).sum(-1, keepdims=True) + 1e-60) - g / ((g * g).sum(-1, keepdims=True) + 1e-60)"),
    (lambda t, u: t / partly(t[:1]) - u / partly(t[:1]), f"t / ({PARTLY}) - u / ({PARTLY})"),
    (lambda r, q: r / across(q) - r * r / across(q), f"r / {ACROSS} - r * r / {ACROSS}"),

]  # fmt: skip
FROM_FORWARDS = [
    (lambda x, y, c: from_here_on_backwards(x / positive(c)) - y / positive(c), "x / (c * c + 1.0) - y / (c * c + 1.0)"),
    # A known quotient is used again.
    (lambda x, y, c: again(y, c, x), "x * (y / c) + y / c"),
    (lambda x, y, c: again(y, c, x, turned=True), "x * (y / c) + y / c"),
    (lambda x, y, n: again(y, n, x), "x * (y / n) + y / n"),
    (lambda x, y, z, c: from_here_on_backwards(y / z) + x / c * y, "y / z + x / c * y"),
    (lambda f, g, x: from_here_on_backwards(g / g) + x / g * g, "g / g + x / g * g"),
    (lambda x, y, c: from_here_on_backwards(y / c + x / c * y), "y / c + x / c * y"),
    (lambda x, c: from_here_on_backwards(1.0 / c) + x / c * 1.0, "1.0 / c + x / c"),
]  # fmt: skip
JOINED = [
    (lambda t: put(t[0, 0], 0) + put(t[0, 1], 1) + put(t[0, 2], 2), "np.stack([t[0, 0], t[0, 1], t[0, 2]], axis=0)"),
    (lambda t: put(t[0, 0], 2) + put(t[0, 1], 0) + put(t[0, 2], 1), "np.stack([t[0, 1], t[0, 2], t[0, 0]], axis=0)"),
    (lambda t: put(t[0, 0], -1) + put(t[0, 1], 0) + put(t[0, 2], 1), "np.stack([t[0, 1], t[0, 2], t[0, 0]], axis=0)"),
    (lambda t: put(t[0, 0], 0) + (put(t[0, 1], 1) + put(t[0, 2], 2)), "np.stack([t[0, 0], t[0, 1], t[0, 2]], axis=0)"),
    (lambda t: put(t[0, 0], 0) + put(t[0, 1], 1) + put(t[0, 2], 1), "... + ... + ..."),
    (lambda t: put(t[0, 0], 0) + put(t[0, 1], 1), "... + ..."),
    (lambda t: put(t[0, 0], 0) + put(t[0, 0, 0], 1) + put(t[0, 2], 2), "... + ... + ..."),
    (lambda t: put(t[0, 0], 0) + put(t[0, 1, 0], 1) + put(t[0, 2], 2), "... + ... + ..."),
    (lambda t: put(t[0], 0, shape=(1, 3, 4)) + put(t[1], 0, shape=(1, 3, 4)), "... + ..."),
    (lambda t: put(t[0], 0, shape=(1, 3, 4)) + put(t[1], -1, shape=(1, 3, 4)), "... + ..."),
    (lambda f: put(f[0], 0, shape=(2, 4), dtype=np.float64) + put(f[1], 1, shape=(2, 4), dtype=np.float64), "... + ..."),
    (lambda f: put(f[:2], slice(0, 2), dtype=np.float64) + put(f[2:], slice(2, 3), dtype=np.float64), "... + ..."),
    (lambda x: put(x[0], slice(0, 2)) + put(x[2:], slice(2, 3)), "... + ..."),
    (lambda x: put(x[:2], slice(0, 2)) + put(x[2:, :1], slice(2, 3)), "... + ..."),
    (lambda x: put(x[0], 0, shape=(2, 4)) + put(x[1], 1, shape=(2, 4)) * 1.0, "np.stack([x[0], x[1]], axis=0)"),
    (lambda t, x: put(t[0, 0], 0) + put(t[0, 1], 1) + x, "... + ... + x"),
    (lambda t: put(t[0, 0], 0, shape=(2, 4)) + put(t[0, 1], slice(1, 2), shape=(2, 4)), "... + ..."),
    (lambda x: put(x[:2], slice(0, 2)) + put(x[2:], slice(2, 3)), "np.concatenate([x[:2], x[2:]])"),
    (lambda x: put(x[2:], slice(2, None)) + put(x[:2], slice(None, 2)), "np.concatenate([x[:2], x[2:]])"),
    (lambda x: put(x[:2], slice(-3, -1)) + put(x[2:], slice(-1, None)), "np.concatenate([x[:2], x[2:]])"),
    (lambda x: put(x[:2], slice(0, 2)) + put(x[1:], slice(1, 3)), "... + ..."),
    (lambda x: put(x[:1], slice(0, 1)) + put(x[2:], slice(2, 3)), "... + ..."),
    (lambda x: put(x[:1], slice(0, 1)) + put(x[1:2], slice(1, 2)), "... + ..."),
    (lambda x: put(x[:2], slice(0, 3, 2)) + put(x[2:], slice(1, 2)), "... + ..."),
    (lambda x: put(x[::-1][:2], slice(1, None, -1)) + put(x[2:], slice(2, 3)), "... + ..."),
    (lambda t: put(t[0, 0], 0, into=constant(t, np.eye(2, 4)[::-1]).copy()) + put(t[0, 1], 1, shape=(2, 4)), "... + ..."),
    (lambda t: put(t[0, 0], 0, into=constant(t, np.ones((2, 4))).copy()) + put(t[0, 1], 1, shape=(2, 4)), "... + ..."),
    (lambda t, zero: put(t[0, 0], 0, into=np.sin(zero)) + put(t[0, 1], 1, shape=(2, 4)), "... + ..."),
    (lambda n: put(n, 0, shape=(2,)) + one_at(n, 1, shape=(2,)), "... + ..."),
    (lambda x: put(x[:2], slice(0, 2), slice(None)) + put(x[2:], slice(2, 3)), "... + ..."),
]  # fmt: skip


FOLDED = [
    (lambda same: same + same, "2.0 * same"),
    (lambda r: r * constant(r, np.arange(4.0)) - r * constant(r, np.array([1.0, 0, 0, 2])), "r * np.array([0.0, 1.0, 2.0, 3.0]) - r * np.array([1.0, 0.0, 0.0, 2.0])"),
    (lambda x: x[:, :3] * np.linalg.eigh(constant(x, full(2, 3, 3)))[0], "x[:, :3] * np.linalg.eigh(np.full((3, 3), 2.0))[0]"),
    (lambda e: np.maximum(e, constant(e, full(2, 0, 4)) * 2.0), "np.maximum(e, 2.0 * np.zeros((0, 4)))"),
    (lambda x: np.maximum(x[0], constant(x, np.arange(4.0)) * 0.0), "np.maximum(x[0], np.zeros((4,)))"),
    (lambda x: x * np.sqrt(constant(x, 4.0)), "2.0 * x"),
    (lambda x: x * np.sqrt(constant(x, 3.0)), "x * np.sqrt(np.float64(3.0))"),
    (lambda x: x * (constant(x, 4.0) / 8.0), "0.5 * x"),
    (lambda x: x * np.sqrt(constant(x, full(4))), "2.0 * x"),
    (lambda x: np.maximum(x, constant(x, full(4)) * 2.0), "np.maximum(x, np.full((3, 4), 8.0))"),
    (lambda x: np.maximum(x, constant(x, full(4)).cumsum(axis=0)), "np.maximum(x, np.full((3, 4), 4.0).cumsum(axis=0))"),
    (lambda x: np.maximum(x[0], constant(x, [1.0, 2, 2, 1]) * 2.0), "np.maximum(x[0], 2.0 * np.array([1.0, 2.0, 2.0, 1.0]))"),
    (lambda x: np.maximum(x, constant(x, full(4)) * np.arange(4.0)), "np.maximum(x, np.full((3, 4), 4.0) * np.array([0.0, 1.0, 2.0, 3.0]))"),
    (lambda x: np.maximum(x, np.less(constant(x, full(4)), 5).any()), "np.maximum(x, True)"),
    (lambda x: x * np.modf(constant(x, 3.5))[0], "x * np.modf(np.float64(3.5))[0]"),
]  # fmt: skip
RULES = [
    *((*case, False) for case in ARITHMETIC + SHAPES_OF + JOINED + FOLDED + FROM_FORWARDS),
    *((*case, True) for case in BACKWARDS + ROWS),
]


@pytest.mark.parametrize(
    "f, text, backward", RULES, ids=[f"{text}-{i}" for i, (_, text, _) in enumerate(RULES)]
)
def test_what_is_written_down_is_read_like_this(f, text, backward):
    check(f, text, backward)


# ---- what was asked, and is known since


def of_facts(answer):
    """np.where(x < 0, y, z) beside x < 0, and what a guard has asked of x < 0, once the answer is known."""
    x, y, z = (numbers(0)[name] for name in "xyz")
    less = written_down(lambda x: np.less(x, 0))
    listing = Writing()
    x, y, z, less = (
        Symbol(listing.make("input", n, (), {}, a, ("input", n)), a, listing)
        for n, a in zip("xyzb", (x, y, z, x < 0))
    )
    less = np.less(x, 0)
    chosen, asked = np.where(less, y, z), [less.any(), (less & np.less(y, 0)).any()]
    outputs = {"chosen": chosen.expression, "beside": [(chosen * 1.0).expression, None]}
    return simplify.simplified(outputs, [a.expression for a in asked], {less.expression.id: answer})


@pytest.mark.parametrize("answer, text", [(True, "y"), (False, "z")])
def test_what_a_guard_has_made_sure_of_is_computed_no_more_but_is_asked_again(answer, text):
    outputs, asked = of_facts(answer)
    assert spelled(outputs["chosen"]) == spelled(outputs["beside"][0]) == text
    assert outputs["beside"][1] is None
    constant = "np.ones((3, 4), bool)" if answer else "np.zeros((3, 4), bool)"
    assert [spelled(a) for a in asked] == ["(x < 0).any()", f"({constant} & (y < 0)).any()"]


# ---- names


def hints():
    """What each of these expressions is called before and after: by a name, or by what it is the gradient by."""
    given = Symbol(
        (listing := Writing()).make("input", "x", (), {}, (x := numbers(0)["x"]), ("input", "x")),
        x,
        listing,
    )
    named, weaker, number = (
        np.negative(-np.exp(given)),
        np.exp(given) * 1.0,
        np.sqrt(constant(given, 4.0)),
    )
    turned, by, same = np.sin(given), np.cos(given), constant(given, full(2)) * 2.0
    for symbol, hint in (
        (named, (4, "y")),
        (weaker, (2, "z")),
        (number, (4, "two")),
        (same, (4, "c")),
        (by, (0, turned.expression)),
    ):
        symbol.expression.hint = hint
    several = [np.tan(given), np.tan(given) * 1.0, 1.0 * np.tan(given)]
    for symbol, hint in zip(several, ((2, "first"), (3, "second"), (3, "third"))):
        symbol.expression.hint = hint
    buffer = constant(given, np.arange(3.0))
    buffer.expression.hint = (2, "buffer")
    through = [np.cosh(given), np.cosh(given) * 1.0, np.sinh(given), np.sinh(given) * 1.0]
    through += [np.tanh(given), np.tanh(given) * 1.0]
    bys = [(0, by.expression), (0, turned.expression)]
    for symbol, hint in zip(through, (*bys[::-1], *bys, (2, "given"), bys[1])):
        symbol.expression.hint = hint
    made = [named, weaker, number, same, by, turned, *several, buffer, *through]
    plain, _ = simplify.simplified([m.expression for m in made], [], {})
    return plain


def test_the_better_name_is_kept_and_numbers_have_none():
    named, weaker, number, same, by, turned, first, second, third, buffer, *through = hints()
    assert named is weaker and named.hint == (4, "y")
    assert first is second is third and first.hint == (3, "second")
    assert buffer.hint == (2, "buffer")
    assert number.hint is same.hint is turned.hint is None
    assert by.hint == (0, turned)
    assert [e.hint for e in through] == [(0, turned)] * 4 + [
        (2, "given")
    ] * 2  # turned is before by


def test_a_number_of_two_dtypes_is_two_numbers():
    listing, given = Writing(), numbers(0)
    symbols = [
        Symbol(listing.make("input", n, (), {}, given[n], ("input", n)), given[n], listing)
        for n in "xf"
    ]
    plain, _ = simplify.simplified([(s + s).expression for s in symbols], [], {})
    for e, name in zip(plain, "xf"):
        assert spelled(e) == f"2.0 * {name}"
        assert_equal(computed(e, given), 2 * given[name])


# ---- numbers


@pytest.mark.parametrize(
    "number, quotient",
    [
        (3, (3, 1)),
        (3.0, (3, 1)),
        (0.0, (0, 1)),
        (0.1 + 0.2, (3, 10)),
        (1e300, (int(1e300), 1)),
        (0.1, (1, 10)),
        (-0.75, (-3, 4)),
        (1 / 64, (1, 64)),
        (63 / 64, (63, 64)),
        (1 / 65, (1, 65)),
        (2 / 65, (2, 65)),
        (3 / 65, None),
        (1 / 3000, (1, 3000)),
        (np.float32(0.1), (1, 10)),
        (np.float32(1 / 3), (1, 3)),
        (np.float64(np.float32(0.1)), None),
        (np.int64(4), (4, 1)),
        (1 / 3 + 1e-15, None),
        (2.0**-24, (1, 2**24)),
        (2.0**-25, None),
        (np.sqrt(0.5), None),
        (np.inf, None),
        (np.nan, None),
        (True, None),
        (np.bool_(True), None),
        ("1", None),
        (None, None),
    ],
)
def test_which_numbers_are_written_as_quotients(number, quotient):
    found = simplify.fraction(number)
    assert (None if found is None else (found.numerator, found.denominator)) == quotient


@pytest.mark.parametrize(
    "quotient, dtype, text",
    [
        ("3", np.float64, "3.0"),
        ("3", np.int64, "3"),
        ("-1/2", np.float64, "-0.5"),
        ("63/64", np.float64, "0.984375"),
        ("1/128", np.float64, "1 / 128"),
        ("1/3", np.float32, "1 / 3"),
        ("3/10", np.float64, "3 / 10"),
    ],
)
def test_how_a_quotient_is_written(quotient, dtype, text):
    made = simplify.Simplifier({}).number(simplify.Fraction(quotient), np.dtype(dtype))
    assert made.name == text and made.dtype == dtype
    assert made.value == np.dtype(dtype).type(eval(text))


def test_every_rule_fires():
    """Each statement of the module runs for one of the tables above; if not, add what its rule is for to one of them."""

    def run():
        for f, text, backward in RULES:
            check(f, text, backward)
        of_facts(True)
        hints()
        for number in (0.1, np.float32(0.1), np.nan, None):
            simplify.fraction(number)

    assert not statements_but(simplify, lines_run(simplify, run))
