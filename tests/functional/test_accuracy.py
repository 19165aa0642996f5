"""How far float32 is from the truth, beside PyTorch's float32: values and gradients, on rows that are hard.

The truth is PyTorch's own function in float64, of the same numbers. An error is the largest in a row, relative to the
largest true value of that row; what is compared is its mean over the rows and the worst of them. Rows that lie far
from zero lose digits in any float32 sum, rows of one value lose all of them where a mean is not exact.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad

torch = require("torch")
tF = torch.nn.functional

ROWS, LONG_ROWS = 32, 12
LENGTHS = [5, 64, 768, 3000, 20_000]
ALLOWED = 1.5
FLOOR = {
    np.mean: 4 * 2.0**-23,
    np.max: 16 * 2.0**-23,
}  # units in the last place, for what is chance


def rows(kind: str, n: int) -> np.ndarray:
    """Float32 (ROWS, n), or (LONG_ROWS, n) if they are long."""
    rng, many = np.random.default_rng(n), ROWS if n < 20_000 else LONG_ROWS
    normal, place = rng.standard_normal((many, n)), rng.uniform(1, 10, (many, 1))
    return {
        "normal": lambda: normal,
        "offset": lambda: normal + 100 * place,
        "far": lambda: 0.1 * normal - 1000 * place,
        "constant": lambda: place + 0 * normal,
        "almost constant": lambda: place + 1e-6 * normal,
        "huge": lambda: 1e15 * normal,
        "tiny": lambda: 1e-15 * normal,
        "one large": lambda: np.where(np.arange(n) == 0, 1e4 * place, normal),
    }[kind]().astype(np.float32)


KINDS = ["normal", "offset", "far", "constant", "almost constant", "huge", "tiny", "one large"]


def labels(x):
    return np.random.default_rng(0).integers(0, x.shape[1], len(x))


def values(n):
    """(n, 3), of one sign: a mean of them is no difference of larger numbers, which nobody has exactly."""
    return np.random.default_rng(1).uniform(0.5, 1.5, (n, 3)).astype(np.float32)


FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "layer_norm as in BERT": (
        lambda x, a: F.layer_norm(x, a.shape[1], eps=1e-12),
        lambda x, a: tF.layer_norm(x, a.shape[1:], eps=1e-12),
    ),
    "rms_norm": (
        lambda x, a: F.rms_norm(x, a.shape[1]),
        lambda x, a: tF.rms_norm(x, a.shape[1:], eps=float(np.finfo(np.float32).eps)),
    ),
    "softmax": (lambda x, a: F.softmax(x), lambda x, a: tF.softmax(x, -1)),
    "log_softmax": (lambda x, a: F.log_softmax(x), lambda x, a: tF.log_softmax(x, -1)),
    "logsumexp": (lambda x, a: F.logsumexp(x, -1), lambda x, a: torch.logsumexp(x, -1)),
    "var": (lambda x, a: np.var(x, -1), lambda x, a: x.var(-1, correction=0)),
    "std": (lambda x, a: np.std(x, -1), lambda x, a: x.std(-1, correction=0)),
    "cross_entropy": (
        lambda x, a: F.cross_entropy(x, labels(a), reduction="none"),
        lambda x, a: tF.cross_entropy(x, torch.from_numpy(labels(a)), reduction="none"),
    ),
    "attention with such scores": (
        lambda x, a: F.scaled_dot_product_attention(
            x, np.eye(a.shape[1], dtype=a.dtype), values(a.shape[1]), scale=1.0
        ),
        lambda x, a: tF.scaled_dot_product_attention(
            x[None],
            torch.eye(a.shape[1], dtype=x.dtype)[None],
            torch.from_numpy(values(a.shape[1])).to(x.dtype)[None],
            scale=1.0,
        )[0],
    ),
    "attention over such values": (
        lambda x, a: F.scaled_dot_product_attention(values(len(a)), values(a.shape[1]), x.T).T,
        lambda x, a: (
            tF.scaled_dot_product_attention(
                *(torch.from_numpy(values(n)).to(x.dtype)[None] for n in a.shape),
                x.mT[None],
            )[0].mT
        ),
    ),
}
"""By name, ours and PyTorch's: functions of the rows, which may be Tensors, and of the same rows as an array."""


WAYS = {"quick": nullcontext, "plain": ta.plain}  # the equations, too, have lines that keep digits
CASES = [
    (way, name, n)
    for way in WAYS
    for name in FUNCTIONS
    for n in LENGTHS[way == "plain" :]
    # How a plain product adds up 20,000 numbers is the matrix library's affair.
    if n < (2000 if "scores" in name else 20_000 if way == "plain" else 1 << 20)
]


def cotangent(shape):
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def ours(f, a):
    x = Tensor(a, requires_grad=True)
    y = f(x, a)
    (dx,) = grad(y, [x], cotangent(y.shape))
    return y.numpy(), dx.numpy()


def theirs(f, a, dtype):
    x = torch.from_numpy(a).to(dtype).requires_grad_()
    y = f(x, a)
    (dx,) = torch.autograd.grad(y, x, torch.from_numpy(cotangent(y.shape)).to(dtype))
    return y.detach().double().numpy(), dx.double().numpy()


@cache
def of_pytorch(name, kind, n):
    """PyTorch's values and gradients in both precisions, of which each way of ours is compared."""
    a, torchs = rows(kind, n), FUNCTIONS[name][1]
    return theirs(torchs, a, torch.float32), theirs(torchs, a, torch.float64)


def errors(found, truth):
    """The largest error of each row; where the truth is 0 all along a row, the error itself."""
    found, truth = (x.reshape(len(x), -1).astype(np.float64) for x in (found, truth))
    largest = np.abs(truth).max(axis=1)
    return np.abs(found - truth).max(axis=1) / np.where(largest > 0, largest, 1)


@pytest.mark.parametrize("way, name, n", CASES)
def test_no_less_accurate_than_pytorch(way, name, n):
    worse = []
    for kind in KINDS:
        with WAYS[way]():
            found = ours(FUNCTIONS[name][0], rows(kind, n))
        single, truth = of_pytorch(name, kind, n)
        for what, x, y, z in zip(("value", "gradient"), found, single, truth, strict=True):
            assert np.isfinite(x).all() or not np.isfinite(y).all(), (kind, what)
            if not np.isfinite(z).all() or not np.isfinite(y).all():
                continue
            for summary, floor in FLOOR.items():
                own, other = summary(errors(x, z)), summary(errors(y, z))
                if not own <= ALLOWED * other + floor:
                    text = f"{kind}, {what}: {summary.__name__} error {own:.1e}"
                    worse.append(f"{text}, PyTorch's is {other:.1e}")
    assert not worse, "\n".join(worse)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 64, 100, 768, 1000, 4096, 8191, 8192, 20_000])
def test_a_row_of_one_value_is_normalised_to_zero(n, way):
    """The mean of equal numbers is that number: eps alone would divide what a rounded mean leaves over."""
    for value in [3.3, *np.random.default_rng(n).uniform(-100, 100, 20)]:
        row = np.full((2, n), value, np.float32)
        with WAYS[way]():
            assert not F.layer_norm(row, n, eps=1e-12).any(), value
