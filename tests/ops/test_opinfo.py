"""PyTorch's own samples for its operators, put to ours: value, dtype and gradient agree on every sample in scope.

`torch.testing._internal` keeps, for each operator, inputs its authors thought worth testing: empty and 0-d tensors, every axis,
broadcasting both ways, NaN-prone domains, grouped heads.  The table in helpers/opinfo.py says which function of ours an operator is,
with PyTorch's argument names, so that a sample can be bound to it.  A sample is out of scope only for a reason that
is written down: an argument we do not have, or a rule where `Tensor` follows NumPy instead.  Reasons are counted and printed
(`pytest -s`), and the number for each operator is held in LEFT_OUT, so that nothing drops out silently.
"""

import inspect
from collections import Counter

import numpy as np
import pytest
from opinfo import TABLE, OutOfScope, leaves, operators, ours, samples, torch
from support import each

from tinygrad_attn import Tensor, grad, manual_seed

DTYPES = {"float64": (torch.float64, 1e-10), "float32": (torch.float32, 2e-5)}


def check(op, function, sample, tolerance):
    """One sample: the same values, the same gradients for random cotangents.  None stands for a result that is not compared."""
    arguments = [sample.input, *sample.args]
    mine, settings = [ours(a) for a in arguments], ours(sample.kwargs)
    try:
        inspect.signature(function).bind(*mine, **settings)
    except TypeError as error:
        raise OutOfScope(str(error)) from None
    manual_seed(42)  # PyTorch's samples of random operators seed with 42: masks are equal
    with np.errstate(all="ignore"):
        y = function(*mine, **settings)
    expected = op(*arguments, **sample.kwargs)
    results, wanted = ([*t] if isinstance(t, (list, tuple)) else [t] for t in (y, expected))
    assert len(results) == len(wanted), f"{len(results)} results, not {len(wanted)}"
    random, pairs = np.random.default_rng(1), []
    for y, expected in zip(results, wanted, strict=True):
        if y is None:
            continue
        value = y.numpy() if isinstance(y, Tensor) else np.asarray(y)
        assert_close(value, expected.detach().numpy(), tolerance, "value")
        if expected.requires_grad:
            pairs.append((y, expected, random.standard_normal(value.shape).astype(value.dtype)))
    inputs = leaves([arguments, sample.kwargs], torch.Tensor)
    if not pairs or not inputs:
        return
    theirs = torch.autograd.grad(
        [e for _, e, _ in pairs],
        inputs,
        [torch.from_numpy(np.asarray(g)) for *_, g in pairs],
        allow_unused=True,
    )
    reached = [
        (y, Tensor(g)) for y, _, g in pairs if isinstance(y, Tensor) and y.requires_grad
    ]  # a plain array is constant
    with np.errstate(all="ignore"):
        found = grad(
            [y for y, _ in reached],
            leaves([mine, settings], Tensor),
            [g for _, g in reached],
            allow_unused=True,
        )
    for i, (g, x, h) in enumerate(zip(found, inputs, theirs, strict=True)):
        g = np.zeros(x.shape, x.detach().numpy().dtype) if g is None else g.numpy()
        h = np.zeros(x.shape, x.detach().numpy().dtype) if h is None else h.numpy()
        assert_close(g, h, 10 * tolerance, f"gradient {i}")


def assert_close(a, b, tolerance, what):
    assert a.dtype == b.dtype, f"{what}: dtype {a.dtype}, not {b.dtype}"
    assert a.shape == b.shape, f"{what}: shape {a.shape}, not {b.shape}"
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(
        a, b, rtol=tolerance, atol=tolerance * (1 + finite.max(initial=0)), err_msg=what
    )


LEFT_OUT = {
    "add": 2,
    "sub": 2,
    "rsub": 2,
    "clamp": 2,
    "sum": 3,
    "mean": 3,
    "amax": 3,
    "amin": 3,
    "prod": 6,
    "cumsum": 1,
    "max/reduction_with_dim": 4,
    "min/reduction_with_dim": 4,
    "squeeze": 3,
    "squeeze/multiple": 3,
    "flip": 2,
    "cat": 1,
    "gather": 3,
    "index_select": 1,
    "cumprod": 1,
    "aminmax": 2,
    "tensordot": 1,
    "einsum": 1,
    "nn.functional.pad/constant": 4,
    "nn.functional.pad/reflect": 1,
    "nn.functional.pad/replicate": 1,
    "nn.functional.pad/circular": 1,
    "linalg.pinv": 16,
    "linalg.solve": 6,
    "linalg.vector_norm": 27,
    "gradient": 3,
}
"""Samples out of scope, for each dtype."""


@pytest.fixture(scope="module")
def tally():
    """Counts over the whole table, told at the end."""
    passed, left = [], Counter()
    yield passed, left
    print(f"\n{sum(passed)} samples of PyTorch's agree; out of scope: {left.total()}")
    for reason, count in left.most_common():
        print(f"{count:6}  {reason}")


@each("dtype", DTYPES)
@pytest.mark.parametrize("name", TABLE)
def test_pytorchs_samples(name, dtype, tally):
    op, (kind, tolerance) = operators()[name], DTYPES[dtype]
    failures, left, passed = [], Counter(), 0
    for i, sample in enumerate(samples(name, kind)):
        try:
            check(op, TABLE[name], sample, tolerance)
            passed += 1
        except OutOfScope as reason:
            left[f"{name}: {reason}"] += 1
        except Exception as error:
            failures.append(f"sample {i}: {sample.summary()}\n    {type(error).__name__}: {error}")
    tally[0].append(passed)
    tally[1].update(left)
    assert not failures, (
        f"{len(failures)} of {len(failures) + passed} samples differ\n" + "\n".join(failures[:6])
    )
    assert left.total() == LEFT_OUT.get(name, 0), f"left out: {left}"
