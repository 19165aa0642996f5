"""Random programs written out by `ta.source`: right at the numbers they were written for, and at others.

    SOURCE_FUZZ_N=2000 python -m pytest tests/program/test_source_fuzz.py     # many
    SOURCE_FUZZ_SEED=37 SOURCE_FUZZ_N=1 python -m pytest tests/program/test_source_fuzz.py     # one again

The ops and their arguments are drawn as in tests/ops/test_fuzz.py; one program in eight has a gradient in it.
"""

import importlib.util
import os
import warnings

import numpy as np
from support import ROOT, require

import tinygrad_attn as ta
from tinygrad_attn import Tensor

require("torch")
spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tests" / "ops" / "test_fuzz.py")
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)

SEED = int(os.environ.get("SOURCE_FUZZ_SEED", "0"))
N = int(os.environ.get("SOURCE_FUZZ_N", "40"))


def drawn(seed):
    """A function of some arrays, and the arrays."""
    r = np.random.default_rng([seed, 20_000])
    leaves = [
        r.standard_normal(fuzz.SHAPES[r.integers(len(fuzz.SHAPES))])
        for _ in range(r.integers(1, 4))
    ]
    pool, steps = [Tensor(a, requires_grad=True) for a in leaves], []
    for _ in range(r.integers(2, 10)):
        name = list(fuzz.OPS)[r.integers(len(fuzz.OPS))]
        i, j = r.integers(0, len(pool), 2)
        j = j if fuzz.broadcastable(pool[i], pool[j]) else i
        one, _ = fuzz.OPS[name](r, pool[i], pool[j])
        x = one(pool[i], pool[j])
        wild = x.size > 600 or not abs(x.numpy()).max(initial=0) <= 1e3
        steps.append((one, i, j, wild))
        pool.append(np.tanh(x.mean()) if wild else x)
    weights = [r.standard_normal(p.shape) for p in pool]
    second = bool(r.integers(8) == 0)

    def program(*leaves):
        pool = list(leaves)
        for one, i, j, wild in steps:
            x = one(pool[i], pool[j])
            pool.append(np.tanh(x.mean()) if wild else x)
        loss = sum((p * w).sum() for p, w in zip(pool, weights))
        if second:
            loss = loss + sum((g * g).sum() for g in ta.grad(loss, leaves, create_graph=True))
        return loss

    return program, leaves


def wrong(seed):
    """What is wrong with the text of one program, or None."""
    function, leaves = drawn(seed)
    program = ta.source(function, *leaves)
    if max(map(len, program.text.splitlines())) > 100:
        return "a line is too long"
    noise = np.random.default_rng(seed)
    others = [np.asarray(a + 0.1 * noise.standard_normal(a.shape)) for a in leaves]
    for arrays in (leaves, others):
        try:
            value, gradients = program(*arrays)
        except ValueError as error:  # only at others may it say so
            if arrays is others and "need another program" in str(error):
                return None
            raise
        tensors = [Tensor(a, requires_grad=True) for a in arrays]
        y = function(*tensors)
        expected = ta.grad(y, tensors, allow_unused=True)
        pairs = [(value, y.numpy())]
        for name, t, g in zip(program._arguments, tensors, expected, strict=True):
            zero = np.zeros(t.shape)
            pairs.append((gradients.get(name, zero), zero if g is None else g.numpy()))
        for a, b in pairs:
            size = max(1, np.abs(b).max(initial=0))
            if not np.allclose(a, b, rtol=1e-10, atol=1e-10 * size, equal_nan=True):
                return f"off by {np.abs(a - b).max():.3g}"
    return None


FOUND = (83,)  # seeds that have found a fault


def test_random_programs_are_written_right():
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (*FOUND, *range(SEED, SEED + N)):
            complaint = wrong(seed)
            if complaint:
                found[seed] = complaint
    assert not found, found
