"""More wrong calls, each answered with what to write; and random programs that share their parts."""

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, op, optim

torch = require("torch")

V, T, I, A = ValueError, TypeError, IndexError, AttributeError


def t(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


def shared_part(reuse):
    a = np.sin(t(2, 3))
    b = np.cos(a)
    (a * b).sum().backward(retain_graph=reuse)
    (b + a * 2 + np.exp(a)).sum().backward()


CALLS = [
    (lambda: t(2, 3).sum(1, 2), T, r"write axis=\(1, 2\)"),
    (
        lambda: np.einsum("ij,jk", t(2, 3), t(2, 3)),
        V,
        r"Every letter stands for one size.*\(2, 3\), \(2, 3\)",
    ),
    (lambda: np.concatenate(t(2), t(2)), T, r"np\.concatenate\(\[a, b\]"),
    (lambda: np.concatenate([t(2, 3), t(2, 3)], axis=2), I, r"lies in \[-2, 2\)"),
    (lambda: np.split(t(5), 2), V, r"np\.split of Tensor \(5,\).*equal division"),
    (lambda: np.where(t(3) > 0, t(3)), T, r"np\.where\(mask, a, b\) takes both"),
    (lambda: np.sort(t(3), axis=2), I, r"np\.sort of Tensor \(3,\).*\[-1, 1\)"),
    (lambda: np.expand_dims(t(3), 5), I, r"np\.expand_dims of Tensor \(3,\)"),
    (lambda: f"{t(3):.2f}", V, r"item\(\) needs exactly one element"),
    (lambda: t(3) == t(4), V, r"cannot be compared.*sizes 3 and 4 differ"),
    (lambda: t(3) < "a", T, r"Compare with numbers"),
    (lambda: ~t(3), T, r"~ works on masks.*~\(t > 0\)"),
    (lambda: t(3) & t(3), T, r"\(t > 0\) & \(t < 1\), with brackets"),
    (lambda: grad(lambda x: x, t(3)), T, r"ta\.value_and_grad\(f\)\(x\)"),
    (lambda: ta.value_and_grad(t(3)), T, r"takes a function and then the values"),
    (lambda: ta.jacobian(t(3), t(3)), T, r"takes a function and then the values"),
    (
        lambda: ta.value_and_grad(lambda x: x.sum().item())(t(3)),
        T,
        r"does not remember how it was computed.*\.item\(\)",
    ),
    (lambda: ta.jacobian(lambda x: (x * 2).numpy(), t(3)), T, r"leave the graph"),
    (lambda: op(lambda x: None)(t(3)), T, r"returned None.*end with return"),
    (lambda: op(lambda x: ["a"])(t(3)), T, r"returns an array"),
    (lambda: op(lambda x: x * 2).vjp(5), T, r"a function \(g, y, \*inputs\)"),
    (
        lambda: op(lambda a, b: a * b).vjp(lambda g, a, b: g * b, lambda g, a, b: g * a),
        V,
        r"Write lambda g, y, a, b",
    ),
    (lambda: F.dropout(t(3), p="a"), V, r"lies in \[0, 1\]"),
    (lambda: nn.Dropout("a"), V, r"lies in \[0, 1\]"),
    (lambda: F.cross_entropy(t(2, 3), ["cat", "dog"]), T, r"classes\.index\(name\)"),
    (lambda: F.cross_entropy(t(2, 3), None), T, r"class numbers or probabilities, got None"),
    (lambda: F.sinusoidal_positions(5.5, 4), V, r"whole numbers.*5\.5"),
    (lambda: nn.LayerNorm("a"), T, r"x\.shape\[-1\]"),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), "2"),
        T,
        r"whole number such as 6",
    ),
    (lambda: nn.ModuleList(nn.Linear(2, 2)), T, r"in \[brackets\]"),
    (lambda: nn.Linear(2, 2).to("cuda"), A, r"Write module\.astype"),
    (lambda: nn.Linear(2, 2).double(), A, r"Write module\.astype\(np\.float64\)"),
    (lambda: optim.SGD([t(3)], lr="a"), V, r"lr must be 0 or more, got 'a'"),
    (lambda: optim.Adam([t(3)], betas=0.9), V, r"two numbers in \[0, 1\)"),
    (
        lambda: optim.Adam([t(3)]).load_state_dict(optim.SGD([t(3)], lr=0.1).state_dict()),
        V,
        r"another kind of optimiser",
    ),
    (lambda: optim.clip_grad_norm_(3, 1.0), T, r"list\(model\.parameters\(\)\)"),
    (lambda: optim.clip_grad_norm_([3], 1.0), T, r"got 3"),
    (lambda: ta.record_attention(5).__enter__(), T, r"the module that names are seen from"),
    (
        lambda: ta.record_attention(nn.Linear).__enter__(),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.viz.graph(t(3), model=nn.Linear),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.compare_with_torch(nn.Linear, torch.nn.Linear(2, 2)),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.compare_with_torch(nn.Linear(2, 2), torch.nn.Linear),
        T,
        r"Make an object of the class first",
    ),
    (
        lambda: ta.save_checkpoint("run", model=nn.Linear),
        T,
        r"always the model\. Make an object of the class first",
    ),
    (lambda: ta.save_checkpoint("run", nn.Linear(2, 2)), T, r"save_checkpoint\(path, model=model"),
    (lambda: ta.save_checkpoint("run"), T, r"save_checkpoint\(path, model=model"),
    (
        lambda: ta.save_checkpoint(nn.Linear(2, 2), model=nn.Linear(2, 2)),
        T,
        r"save_checkpoint\(path, model=model",
    ),
    (
        lambda: ta.load_checkpoint(nn.Linear(2, 2), "run"),
        T,
        r"the path first, everything else by name",
    ),
    (
        lambda: ta.load_checkpoint("run", optimizer=optim.SGD([t(3)], lr=0.1)),
        T,
        r"and always the model",
    ),
    (lambda: ta.set_default_dtype("float31"), T, r"np\.float32 or np\.float64"),
    (lambda: ta.gradcheck(np.exp, [t(3)], eps=0), V, r"a positive number such as 1e-06"),
    (lambda: ta.gradcheck(np.exp, 3), T, r"gradcheck\(f, \[x, y\]\)"),
    (lambda: ta.gradcheck(np.exp, t(3), params=3), T, r"a list of Tensors"),
    (
        lambda: ta.compare_with_torch(torch.nn.Linear(2, 2), nn.Linear(2, 2)),
        T,
        r"the other way round",
    ),
    (lambda: shared_part(False), RuntimeError, r"retain_graph=True"),
]


@pytest.mark.parametrize(
    "call, kind, pattern",
    CALLS,
    ids=[f"{i}: {pattern[:30]}" for i, (_, _, pattern) in enumerate(CALLS)],
)
def test_a_wrong_call_says_what_to_write(call, kind, pattern):
    with pytest.raises(kind, match=pattern):
        call()


def test_what_looks_alike_is_right():
    shared_part(True)
    assert np.array_equal(
        ta.jacobian(lambda x: np.ones(2), t(3)).numpy(), np.zeros((2, 3))
    )  # a constant is no mistake
    mask = Tensor(np.array([True, False]))
    assert (
        (~mask).tolist() == [False, True]
        and (mask & ~mask).any() == 0
        and (mask | ~mask).all()
        and round(Tensor(1.7)).item() == 2
    )


PAIRS = [
    (np.tanh, torch.tanh),
    (np.sin, torch.sin),
    (F.sigmoid, torch.sigmoid),
    (lambda x: x / (x * x + 2), lambda x: x / (x * x + 2)),
    (lambda x: np.cumsum(x, axis=-1), lambda x: torch.cumsum(x, -1)),
    (lambda x: F.softmax(x), lambda x: torch.softmax(x, -1)),
    (lambda x: x.mT @ x, lambda x: x.mT @ x),
    (lambda x: x[::-1], lambda x: x.flip(0)),
    (lambda x: x.T, lambda x: x.mT),
    (lambda x: np.sort(x, axis=0), lambda x: torch.sort(x, 0)[0]),
    (lambda x: F.logsumexp(x, 0, True), lambda x: torch.logsumexp(x, 0, True)),
    (lambda x: ta.checkpoint(lambda z: np.tanh(z * z), x), lambda x: torch.tanh(x * x)),
]


@pytest.mark.parametrize("seed", range(60))
def test_programs_that_reuse_their_parts_agree_with_torch_to_second_order(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 3))
    ours, theirs = [Tensor(x, requires_grad=True)], [torch.tensor(x, requires_grad=True)]
    for _ in range(6):
        i, j, k = rng.integers(len(ours)), rng.integers(len(ours)), rng.integers(len(PAIRS))
        ours.append(PAIRS[k][0](ours[i]) * 0.5 + ours[j])
        theirs.append(PAIRS[k][1](theirs[i]) * 0.5 + theirs[j])
    (g,) = grad(np.cos(ours[-1]).sum() + ours[-2].sum(), ours[0], create_graph=True)
    (h,) = torch.autograd.grad(
        torch.cos(theirs[-1]).sum() + theirs[-2].sum(), theirs[0], create_graph=True
    )
    assert np.allclose(g.numpy(), h.detach().numpy(), rtol=1e-8, atol=1e-9)
    if h.requires_grad:
        (second,) = grad(np.sin(g).sum(), ours[0])
        assert np.allclose(
            second.numpy(),
            torch.autograd.grad(torch.sin(h).sum(), theirs[0])[0].numpy(),
            rtol=1e-7,
            atol=1e-8,
        )
