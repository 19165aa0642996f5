"""Random programs: value and gradient against PyTorch, to second order in one of eight.

    FUZZ_N=20000 python -m pytest tests/ops/test_fuzz.py          # many programs
    FUZZ_SEED=1234 FUZZ_N=1 python -m pytest tests/ops/test_fuzz.py     # one again: a failure prints this line

A program is a list of steps on a growing pool of tensors, drawn from one seed. A step is one text for both libraries.
"""

import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from support import require
from support import zoo as bug_zoo

torch = require("torch")

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad

SEED, N = int(os.environ.get("FUZZ_SEED", "0")), int(os.environ.get("FUZZ_N", "200"))


class Way(NamedTuple):
    np: Any  # the functions of arrays
    F: Any
    constant: Any  # what an array is passed on as


OURS, TORCHS = Way(np, F, lambda x: x), Way(torch, torch.nn.functional, torch.tensor)


def same(w, x, y):
    return x


def an_axis(r, a):
    return int(r.integers(-a.ndim, a.ndim))


def reduction(name, several=True):
    def draw(r, a):
        axes = tuple(int(i) for i in r.permutation(a.ndim)[: r.integers(1, a.ndim + 1)])
        axes = axes if several and r.integers(2) else an_axis(r, a)
        keep = bool(r.integers(2))
        return lambda w, x, y: getattr(w.np, name)(x, axis=axes, keepdims=keep)

    return draw


def along(function):
    def draw(r, a):
        axis = an_axis(r, a)
        return lambda w, x, y: function(w, x, axis)

    return draw


def choose(r, a):
    mask = r.random(a.shape) < 0.5
    return lambda w, x, y: w.np.where(w.constant(mask), x, x * y.mean())


def clamp(r, a):
    low, high = sorted(r.standard_normal(2).tolist())
    return lambda w, x, y: w.np.clip(x, low, high)


def power(r, a):
    n = float(r.choice([2, 3, -1, 0.5, 1.7, 1, 0]))
    return lambda w, x, y: (x * x + 0.5) ** n


def reshape(r, a):
    sizes, rest = [], a.size
    for d in (2, 3):
        if rest % d == 0:
            sizes, rest = [*sizes, d], rest // d
    shape = tuple(int(s) for s in r.permutation([*sizes, rest]))
    return lambda w, x, y: x.reshape(shape)


def turn(r, a):
    axis, shift, kind = an_axis(r, a), int(r.integers(-3, 4)), r.integers(5)
    order = tuple(int(i) for i in r.permutation(a.ndim))
    return [
        lambda w, x, y: w.np.moveaxis(x, tuple(range(x.ndim)), order),
        lambda w, x, y: w.np.swapaxes(x, axis, 0),
        lambda w, x, y: w.np.flip(x, (axis,)),
        lambda w, x, y: w.np.roll(x, shift, axis),
        lambda w, x, y: w.np.broadcast_to(x, (2, *x.shape)),
    ][kind]


def join(r, a):
    axis = an_axis(r, a)
    if r.integers(2):
        return lambda w, x, y: w.np.stack([x, x * 2.0, x], axis=axis)
    return lambda w, x, y: w.np.concatenate([x, -x], axis=axis)


def index(r, a):
    n, kind = a.shape[0], r.integers(6)
    if kind == 0:
        which = r.integers(-n, n, int(r.integers(1, 5)))  # repeated and negative
    elif kind == 1:
        which = r.random(n) < 0.6
        which[0] = True
    elif kind == 2:
        which = (Ellipsis, slice(None, None, 2))
    elif kind == 3:
        which = (int(r.integers(-n, n)), None)
    elif kind == 4 and a.ndim > 1:
        which = (slice(None), r.integers(0, a.shape[1], 3))
    else:
        which = tuple(r.integers(0, s, 4) for s in a.shape)
    return lambda w, x, y: x[which]


def matrices(r, a):
    """x times a matrix that fits, made from y; on either side, 1-D operands too."""
    k, batch = a.shape[-1], (2,) if a.ndim < 3 or a.shape[-3] in (1, 2) else ()
    if a.ndim > 1 and r.integers(2):
        m = a.shape[-2]
        left = r.standard_normal([(m,), (3, m), (*batch, 2, m)][int(r.integers(3))])
        return lambda w, x, y: (y.mean() * w.constant(left)) @ x
    right = r.standard_normal([(k,), (k, 3), (*batch, k, 2)][int(r.integers(3))])
    return lambda w, x, y: x @ (y.mean() * w.constant(right))


def layer(r, a):
    n = a.shape[-1]
    weight, v = r.standard_normal((3, n)), r.standard_normal((2, n))
    three = r.standard_normal(3)
    return [
        lambda w, x, y: w.F.linear(x, w.constant(weight) * y.mean(), w.constant(three) * y.sum()),
        lambda w, x, y: w.F.rms_norm(x, (n,), y.mean() * w.constant(v[0]), 0.1),
        lambda w, x, y: w.F.layer_norm(
            x, (n,), y.mean() * w.constant(v[0]), y.sum() * w.constant(v[1]), 0.1
        ),
    ][r.integers(3 if n > 1 else 1)]


def attention(r, a):
    mask = r.random((a.shape[-2],) * 2) < 0.7
    np.fill_diagonal(mask, True)
    causal = bool(r.integers(2))

    def attend(w, x, y):
        chosen = {"is_causal": True} if causal else {"attn_mask": w.constant(mask)}
        return w.F.scaled_dot_product_attention(x, w.np.sin(x), x * y.mean(), **chosen)

    return attend


def classify(r, a):
    target, smoothing = r.integers(0, a.shape[1], a.shape[0]), float(r.choice([0.0, 0.2]))
    return lambda w, x, y: w.F.cross_entropy(x, w.constant(target), label_smoothing=smoothing)


def look_up(r, a):
    which = r.integers(0, a.shape[0], (2, 3))
    return lambda w, x, y: w.F.embedding(w.constant(which), x)


FIXED = {
    "add": lambda w, x, y: x + y,
    "subtract": lambda w, x, y: x - y,
    "multiply": lambda w, x, y: x * y,
    "divide": lambda w, x, y: x / (y * y + 0.5),
    "maximum": lambda w, x, y: w.np.maximum(x, y),
    "minimum": lambda w, x, y: w.np.minimum(x, y),
    "arctan2": lambda w, x, y: w.np.arctan2(x, y * y + 0.5),
    "hypot": lambda w, x, y: w.np.hypot(x, y * y + 0.5),
    "logaddexp": lambda w, x, y: w.np.logaddexp(x, y),
    "power of": lambda w, x, y: (x * x + 0.5) ** w.np.tanh(y),
    "exp": lambda w, x, y: w.np.exp(w.np.tanh(x)),
    "log": lambda w, x, y: w.np.log(x * x + 0.5),
    "sqrt": lambda w, x, y: w.np.sqrt(x * x + 0.5),
    "square": lambda w, x, y: w.np.square(x),
    "reciprocal": lambda w, x, y: 1.0 / (x * x + 1.0),
    "reflected": lambda w, x, y: 2.0 - x,
    "sin": lambda w, x, y: w.np.sin(x),
    "abs": lambda w, x, y: abs(x),
    "negative": lambda w, x, y: -x,
    "relu": lambda w, x, y: w.F.relu(x),
    "sigmoid": lambda w, x, y: w.F.sigmoid(x),
    "gelu": lambda w, x, y: w.F.gelu(x),
    "gelu tanh": lambda w, x, y: w.F.gelu(x, approximate="tanh"),
    "silu": lambda w, x, y: w.F.silu(x),
    "detach": lambda w, x, y: x * x.detach(),
}
DRAWN = {  # how many axes it needs, and what draws it
    "sum": (1, reduction("sum")),
    "mean": (1, reduction("mean")),
    "amax": (1, reduction("amax")),
    "amin": (1, reduction("amin")),
    "prod": (1, reduction("prod", several=False)),
    "cumsum": (1, along(lambda w, x, axis: w.np.cumsum(x, axis=axis))),
    "softmax": (1, along(lambda w, x, axis: w.F.softmax(x, axis))),
    "log_softmax": (1, along(lambda w, x, axis: w.F.log_softmax(x, axis))),
    "where": (0, choose),
    "clip": (0, clamp),
    "power": (0, power),
    "reshape": (0, reshape),
    "turn": (1, turn),
    "join": (1, join),
    "index": (1, index),
    "matmul": (1, matrices),
    "layer": (1, layer),
    "gram": (2, lambda r, a: lambda w, x, y: x @ x.mT),
    "einsum": (
        2,
        lambda r, a: lambda w, x, y: w.np.einsum("...ij,...kj->...ik", x, w.np.tanh(x)),
    ),
    "triangle": (2, lambda r, a: lambda w, x, y: w.np.tril(x, 1) - w.np.triu(x, 0)),
    "attention": (2, attention),
    "cross_entropy": (2, classify),
    "embedding": (2, look_up),
}
ONLY_2D = ("cross_entropy", "embedding")


def pair(name, r, a, b):
    """The step for us and for PyTorch; where it needs another number of axes, nothing is done."""
    axes, draw = DRAWN.get(name, (0, lambda r, a: FIXED[name]))
    fits = a.ndim == axes if name in ONLY_2D else a.ndim >= axes
    step = draw(r, a) if fits else same
    return partial(step, OURS), partial(step, TORCHS)


OPS = {name: partial(pair, name) for name in (*FIXED, *DRAWN)}
SHAPES = [(), (3,), (1,), (2, 3), (2, 1), (1, 3), (4, 2, 3), (4, 1, 3), (1, 2, 1)]


def broadcastable(a, b):
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


def run(seed):
    """One program; returns what went wrong, or None."""
    r = np.random.default_rng([seed, 20_000])
    leaves = [r.standard_normal(SHAPES[r.integers(len(SHAPES))]) for _ in range(r.integers(1, 4))]
    mine = [Tensor(a, requires_grad=True) for a in leaves]
    theirs = [torch.tensor(a, requires_grad=True) for a in leaves]
    pool, other, told = list(mine), list(theirs), [f"leaf {a.shape}" for a in leaves]
    for _ in range(r.integers(2, 10)):
        name = list(OPS)[r.integers(len(OPS))]
        i, j = r.integers(0, len(pool), 2)
        if not broadcastable(pool[i], pool[j]):
            j = i
        ours, torchs = OPS[name](r, pool[i], pool[j])
        told.append(f"{name}({i}, {j})")
        x, y = ours(pool[i], pool[j]), torchs(other[i], other[j])
        if x.size > 600 or not np.isfinite(x.numpy()).all() or abs(x.numpy()).max(initial=0) > 1e3:
            x, y = np.tanh(x.mean()), y.mean().tanh()
        if x.shape != tuple(y.shape) or x.dtype != np.float64:
            return f"shape {x.shape} {x.dtype} instead of {tuple(y.shape)}: {told}"
        pool.append(x)
        other.append(y)
    weights = [r.standard_normal(p.shape) for p in pool]
    loss = sum((p * w).sum() for p, w in zip(pool, weights))
    torch_loss = sum((p * torch.tensor(w)).sum() for p, w in zip(other, weights))
    second = bool(r.integers(8) == 0)
    found = grad(loss, mine, create_graph=second)
    expected = torch.autograd.grad(torch_loss, theirs, create_graph=second)
    pairs = [("value", loss, torch_loss), *(("gradient", *both) for both in zip(found, expected))]
    if second:  # with each leaf once more, for the gradient may be a constant
        squares, torch_squares = (
            sum((g * g).sum() + 0 * x.sum() for g, x in zip(gradients, inputs))
            for gradients, inputs in ((found, mine), (expected, theirs))
        )
        both = zip(grad(squares, mine), torch.autograd.grad(torch_squares, theirs))
        pairs += [("second gradient", *two) for two in both]
    for what, a, b in pairs:
        a, b = a.detach().numpy(), b.detach().numpy()
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        if a.shape != b.shape or not np.allclose(a, b, 1e-8, 1e-9 * scale, equal_nan=True):
            return f"{what} off by {np.abs(a - b).max():.3g}: {told}"
    return None


def outcome(seed):
    try:
        return run(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_random_programs_agree_with_torch():
    failures = []
    for seed in range(SEED, SEED + N):
        if wrong := outcome(seed):
            again = f"FUZZ_SEED={seed} FUZZ_N=1 python -m pytest tests/ops/test_fuzz.py"
            failures.append(f"{again}    # {wrong}")
            if len(failures) == 10:
                break
    assert not failures, "\n" + "\n".join(failures)


def test_every_step_is_the_same_in_both_libraries():
    for name, draw in OPS.items():
        for shape in SHAPES:
            ours, torchs = draw(np.random.default_rng(5), np.ones(shape), np.ones(shape))
            x = np.random.default_rng(6).standard_normal(shape)
            a, b = ours(Tensor(x), Tensor(x)), torchs(torch.tensor(x), torch.tensor(x))
            assert np.allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12), (name, shape)


def test_a_wrong_rule_is_found_and_replayable():
    zoo = bug_zoo()
    with zoo.bug("max-tie"), zoo.bug("getitem-overwrite"):
        seeds = [seed for seed in range(200) if outcome(seed)]
        assert seeds and outcome(seeds[0])
    assert outcome(seeds[0]) is None
