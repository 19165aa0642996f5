"""Every bug in the zoo is caught by a check, and nothing is flagged without one."""

import numpy as np
import pytest
from support import zoo as bug_zoo

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor
from tinygrad_attn.check import gradcheck

zoo = bug_zoo()


def rand(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def check(f, *shapes):
    inputs = [rand(*shape, seed=i) for i, shape in enumerate(shapes)]
    return gradcheck(f, inputs, raise_exception=False)


def close(a, b):
    return np.allclose(getattr(a, "_data", a), b, rtol=1e-6, atol=1e-9)


def blocked_row_is_zero():
    mask = np.ones((4, 4), bool)
    mask[1] = False
    q, k, v = (rand(1, 2, 4, 3, seed=s) for s in range(3))
    return close(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).numpy()[:, :, 1], 0)


def no_checker_of_ones():
    with zoo.bug("softmax-twice"):
        return not check(F.softmax, (3, 4))


MASK, WORDS = np.array([True, False, True]), np.array([[1, 1], [0, 2]])
CHECKS = {  # what is true without the bug and false, or raises, with it; what the diagnosis says
    "tanh-zero": (lambda: check(np.tanh, (4,)), "zero"),
    "sum-axis-zero": (lambda: check(lambda x: x.sum(axis=0), (4, 4)), "wrong axis"),
    "transpose-same-axes": (lambda: check(lambda x: x.transpose(1, 2, 0), (3, 3, 3)), "transposed"),
    "matmul-transpose-all": (lambda: check(lambda a, b: a @ b, (3, 3, 3), (3, 3, 3)), "transposed"),
    "mean-tuple": (lambda: close(np.mean(rand(2, 3, 4), axis=(1, 2)), rand(2, 3, 4).numpy().mean((1, 2))), ""),
    "getitem-overwrite": (lambda: check(lambda x: x[np.array([0, 0, 2])], (4,)), "missed use"),
    "embedding-overwrite": (lambda: check(lambda w: F.embedding(WORDS, w), (3, 2)), "missed use"),
    "concatenate-zero": (lambda: check(lambda a, b: np.concatenate([a, b]), (3,), (2,)), "zero"),
    "minus-same-operand": (lambda: check(lambda x: x - x + x**2, (3,)), ""),
    "maximum-tie": (lambda: check(lambda x: np.maximum(x, x), (3,)), "constant factor"),
    "max-tie": (lambda: check(lambda x: np.stack([x, x]).max(axis=0), (3,)), "constant factor"),
    "where-in-place": (lambda: check(lambda a, b: np.where(MASK, a, 0.0) + b, (3,), (3,)), "VJP changes its operands"),
    "softmax-twice": (lambda: check(F.softmax, (3, 4)), "constant factor"),
    "log-softmax-batch": (lambda: check(F.log_softmax, (3, 4)), "constant factor"),
    "layer-norm-weight": (lambda: check(lambda x, w, b: F.layer_norm(x, 4, w, b), (3, 4), (4,), (4,)), "operand misplaced"),
    "rms-norm-weight": (lambda: check(lambda x, w: F.rms_norm(x, 4, w, eps=1e-5), (3, 4), (4,)), "operand misplaced"),
    "masked-row-nan": (blocked_row_is_zero, ""),
    "activation-singleton": (lambda: check(lambda a, b: F.relu(a) * F.relu(b), (4, 3), (4, 3)), "shared state"),
    "gradient-overwritten": (lambda: check(lambda x: x + x, (3,)), "constant factor"),
    "gradient-aliased": (lambda: check(lambda a, b: (lambda c: (a + b) + c)(a * 3), (3,), (3,)), "constant factor"),
    "depth-first": (lambda: check(lambda x: (lambda a: np.exp(a) * a)(x * 2.0), (3,)), "missed use"),
    "checker-all-ones": (no_checker_of_ones, ""),
}  # fmt: skip


def test_there_is_a_check_for_each_bug_and_a_text():
    assert {b.name for b in zoo.list()} == set(CHECKS) and len(CHECKS) >= 22
    for entry in zoo.list():
        assert "Found in" in entry.text and "Symptom:" in entry.text
        assert str(entry) == f"{entry.name}: {entry.text}"
    with pytest.raises(ValueError, match="softmax-twice"), zoo.bug("nonsense"):
        pass


@pytest.mark.parametrize("name", CHECKS)
def test_a_bug_is_caught_and_leaves_nothing_behind(name):
    passes, kind = CHECKS[name]
    assert passes()
    with zoo.bug(name), np.errstate(all="ignore"):
        try:
            found = passes()
        except (ValueError, TypeError):
            found = False
    assert not found
    assert not kind or found.diagnosis.kind == kind, found
    assert passes()
