"""Every bug in the zoo is caught by a check, and nothing is flagged without one.

Each entry of CHECKS is true for the engine as it is, and false, or an exception, with its bug switched on.
"""

import weakref

import numpy as np
import pytest

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, ops
from tinygrad_attn.check import gradcheck, zoo


def rand(*shape, seed=0, dtype=np.float64):
    return Tensor(
        np.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True
    )


def passes(f, *inputs, **options):
    return bool(gradcheck(f, list(inputs), raise_exception=False, **options))


def close(a, b):
    return np.allclose(getattr(a, "_data", a), b, rtol=1e-6, atol=1e-9)


def attended(mask):
    q, k, v = (rand(1, 2, 4, 3, seed=s) for s in range(3))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).numpy()


def blocked_row_is_zero():
    mask = np.ones((4, 4), bool)
    mask[1] = False
    return close(attended(mask)[:, :, 1], 0)


def used_twice(layer, size):
    """A layer called on two inputs before backward has the gradient of both calls."""
    a, b = rand(4, size), rand(4, size, seed=1)
    return passes(lambda a, b: layer(a) * layer(b), a, b)


def shared_linear():
    weight = rand(3, 3, seed=2)
    return passes(
        lambda a, b: F.linear(a, weight) * np.tanh(F.linear(b, weight)),
        rand(4, 3),
        rand(4, 3, seed=1),
        params=[weight],
    )


def dropout_masks_belong_to_their_calls():
    x = Tensor(np.ones((50,)), requires_grad=True)
    first = F.dropout(x, 0.5, True)
    F.dropout(x, 0.5, True)
    first.backward(np.ones(50))
    return close(x.grad, first.numpy())


def order_of_parameters():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(20)))
    return [id(p) for p in model.parameters()] == [
        id(p) for layer in model for p in (layer.weight, layer.bias)
    ]


def a_doubling_is_one_step():
    calls = []
    right = ops.add.vjps
    ops.add.vjps = (lambda g, y, a, b: calls.append(1) or g, lambda g, y, a, b: g)
    try:
        x = y = rand(2)
        for _ in range(10):
            y = y + y
        grad(y.sum(), x)
    finally:
        ops.add.vjps = right
    return len(calls) == 10


def two_passes_double():
    x = rand(3)
    loss = (x * 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return close(x.grad, 4)


def a_long_chain():
    x = y = rand(2)
    for _ in range(3000):
        y = y + 1.0
    return close(grad(y.sum(), x)[0], 1)


def shared_gradient_arrays():
    def f(a, b):
        older = a * 3
        return (a + b) + older

    return passes(f, rand(3), rand(3, seed=1))


def masked_gradient_shared():
    mask = np.array([True, False, True])
    return passes(lambda a, b: np.where(mask, a, 0.0) + b, rand(3), rand(3, seed=1))


def no_checker_of_ones():
    with zoo.bug("softmax-twice"):
        return not passes(F.softmax, rand(3, 4))


CHECKS = {
    "sum-axis-zero": lambda: passes(lambda x: x.sum(axis=0), rand(4, 4)),
    "transpose-same-axes": lambda: passes(lambda x: x.transpose(1, 2, 0), rand(3, 3, 3)),
    "matmul-transpose-all": lambda: passes(
        lambda a, b: a @ b, rand(3, 3, 3), rand(3, 3, 3, seed=1)
    ),
    "matmul-outer": lambda: passes(lambda a, b: a @ b, rand(2, 3, 4), rand(4, seed=1)),
    "mean-tuple": lambda: close(
        rand(2, 3, 4).mean(axis=(1, 2)), rand(2, 3, 4).numpy().mean(axis=(1, 2))
    ),
    "getitem-zero": lambda: passes(lambda x: x[1:], rand(4)),
    "tanh-zero": lambda: passes(np.tanh, rand(4)),
    "concatenate-zero": lambda: passes(
        lambda a, b: np.concatenate([a, b]), rand(3), rand(2, seed=1)
    ),
    "getitem-overwrite": lambda: passes(lambda x: x[np.array([0, 0, 2])], rand(4)),
    "embedding-overwrite": lambda: passes(
        lambda w: F.embedding(np.array([[1, 1], [0, 2]]), w), rand(3, 2)
    ),
    "minus-same-operand": lambda: passes(lambda x: x - x + x**2, rand(3)),
    "maximum-tie": lambda: passes(lambda x: np.maximum(x, x), rand(3)),
    "max-tie": lambda: passes(lambda x: np.stack([x, x]).max(axis=0), rand(3)),
    "softmax-batch": lambda: passes(F.softmax, rand(3, 4)),
    "log-softmax-batch": lambda: passes(F.log_softmax, rand(3, 4)),
    "softmax-twice": lambda: passes(F.softmax, rand(3, 4)),
    "softmax-global-max": lambda: close(
        F.softmax(Tensor(np.array([[1000.0, 1000.0], [-1000.0, -1000.0]]))), 0.5
    ),
    "log-of-softmax": lambda: close(F.log_softmax(Tensor(np.array([0.0, 1000.0]))), [-1000, 0]),
    "layer-norm-weight": lambda: passes(
        lambda x, w, b: F.layer_norm(x, 4, w, b), rand(3, 4), rand(4, seed=1), rand(4, seed=2)
    ),
    "rms-norm-weight": lambda: passes(
        lambda x, w: F.rms_norm(x, 4, w, eps=1e-5), rand(3, 4), rand(4, seed=1)
    ),
    "masked-row-nan": blocked_row_is_zero,
    "masked-row-uniform": blocked_row_is_zero,
    "activation-singleton": lambda: used_twice(F.relu, 3),
    "linear-layer-state": shared_linear,
    "dropout-layer-state": dropout_masks_belong_to_their_calls,
    "parameters-in-a-set": order_of_parameters,
    "log-hidden-eps": lambda: passes(
        np.log, Tensor(np.array([1e-7, 2e-7]), requires_grad=True), eps=1e-11
    ),
    "add-float32": lambda: (
        (rand(3) + rand(3)).dtype == np.float64 and passes(lambda a: a + 1.0, rand(3))
    ),
    "sqrt-promotes": lambda: (rand(3, dtype=np.float32) / 2.0).dtype == np.float32,
    "where-in-place": masked_gradient_shared,
    "gradient-overwritten": lambda: passes(lambda x: x + x, rand(3)),
    "depth-first": lambda: passes(lambda x: (lambda a: np.exp(a) * a)(x * 2.0), rand(3)),
    "once-for-each-path": a_doubling_is_one_step,
    "recursive": a_long_chain,
    "gradient-aliased": shared_gradient_arrays,
    "second-backward-stale": two_passes_double,
    "checker-all-ones": no_checker_of_ones,
}


def test_a_bug_that_keeps_gradients_gives_them_back_at_its_end():
    x = rand(3)
    with zoo.bug("second-backward-stale"):
        np.sin(x * 2.0).sum().backward()
    alive = weakref.ref(x)
    del x
    assert alive() is None


def caught(name):
    with zoo.bug(name), np.errstate(all="ignore"):
        try:
            return not CHECKS[name]()
        except (ValueError, TypeError, RecursionError):
            return True


def test_there_is_a_check_for_each_bug():
    assert {b.name for b in zoo.list()} == set(CHECKS) and len(CHECKS) >= 24


@pytest.mark.parametrize("name", CHECKS)
def test_nothing_is_flagged_without_a_bug(name):
    assert CHECKS[name]()


def test_every_bug_is_caught(capsys):
    missed = [name for name in CHECKS if not caught(name)]
    with capsys.disabled():
        print(f"\nbug zoo: {len(CHECKS) - len(missed)} of {len(CHECKS)} caught")
    assert not missed
    assert all(CHECKS[name]() for name in CHECKS), "a bug was left behind"


def test_the_catalogue_tells_what_where_and_how_it_shows():
    text = repr(zoo.list())
    for entry in zoo.list():
        assert entry.what and entry.where and entry.symptom and entry.name in text


def test_an_unknown_bug_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="softmax-global-max"), zoo.bug("nonsense"):
        pass


@pytest.mark.parametrize(
    "name, kind",
    [
        ("sum-axis-zero", ("wrong axis", "transposed")),
        ("transpose-same-axes", ("transposed",)),
        ("getitem-zero", ("zero",)),
        ("getitem-overwrite", ("repeated index",)),
        ("embedding-overwrite", ("repeated index",)),
        ("softmax-batch", ("constant factor",)),
        ("softmax-twice", ("constant factor",)),
        ("activation-singleton", ("shared state",)),
        ("linear-layer-state", ("shared state",)),
        ("gradient-overwritten", ("missed use",)),
        ("depth-first", ("missed use",)),
        ("gradient-aliased", ("missed use",)),
        ("layer-norm-weight", ("operand misplaced",)),
        ("rms-norm-weight", ("operand misplaced",)),
        ("log-hidden-eps", ("hidden eps",)),
        ("matmul-transpose-all", ("transposed",)),
        ("where-in-place", ("rule changes its operands",)),
        ("maximum-tie", ("constant factor",)),
    ],
)
def test_the_diagnosis_names_the_bug(name, kind, monkeypatch):
    """The same inputs as above, through the report."""
    reports = []
    real = gradcheck
    monkeypatch.setitem(
        globals(), "gradcheck", lambda *a, **k: reports.append(real(*a, **k)) or reports[-1]
    )
    with zoo.bug(name):
        assert not CHECKS[name]()
    assert reports[-1].diagnosis.kind in kind, reports[-1]
