"""Layers: PyTorch's initial values in its drawing order, shapes, dtypes and errors. (Numbers: test_moduleinfo.)"""

import inspect
from functools import partial

import numpy as np
import pytest
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim, set_default_dtype
from tinygrad_attn import random as ta_random

MAKERS = {
    "linear": lambda nn: nn.Linear(5, 3),
    "linear without bias": lambda nn: nn.Linear(5, 3, bias=False),
    "linear of nothing": lambda nn: nn.Linear(0, 3),
    "embedding": lambda nn: nn.Embedding(7, 4, padding_idx=2),
    "layer norm": lambda nn: nn.LayerNorm(4, bias=False),
    "rms norm": lambda nn: nn.RMSNorm((3, 4)),
    "attention": lambda nn: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "attention of other widths": lambda nn: nn.MultiheadAttention(8, 2, kdim=3, vdim=5, bias=False),
    "encoder": lambda nn: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8), 2, nn.LayerNorm(4)
    ),
    "decoder": lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, bias=False), 2),
    "transformer": lambda nn: nn.Transformer(4, 2, 1, 2, 8),
}


@pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor", "ignore:.*initiali.ing", "ignore:Initializing"
)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())
def test_initial_values_are_torchs_draws(maker):
    torch = require("torch")
    torch.manual_seed(42)
    ta_random.manual_seed(42)
    theirs, ours = maker(torch.nn).state_dict(), maker(nn).state_dict()
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(
            ours[name].numpy(), value.numpy(), rtol=0, atol=1e-6, err_msg=name
        )
    assert (
        ta_random.rand(1).item() == torch.rand(1).item()
    )  # and the stream stands at the same place


def test_arguments_of_the_same_names_stand_in_torchs_order_and_have_its_defaults():
    torch, compared = require("torch"), 0
    for ours, theirs in (
        (nn, torch.nn),
        (F, torch.nn.functional),
        (nn.init, torch.nn.init),
        (optim, torch.optim),
    ):
        for name in sorted({*dir(ours)} & {*dir(theirs)}):
            try:
                mine, other = (
                    inspect.signature(getattr(module, name)).parameters for module in (ours, theirs)
                )
            except (TypeError, ValueError):  # no function, or one that does not tell
                continue
            shared = [key for key in mine if key in other]
            assert shared == [key for key in other if key in mine], name
            for key in shared:
                a, b = mine[key].default, other[key].default
                if isinstance(a, (int, float, tuple)) or a is None:
                    assert a == b or name == "ModuleList", (name, key)  # whose () stands for None
                    compared += 1
    assert compared > 80


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 2),
        nn.LayerNorm(3),
        nn.RMSNorm(3),
        nn.GELU(),
        nn.SiLU(),
        nn.Softmax(dim=-1),
        nn.LogSoftmax(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.FeedForward(3, 5),
        nn.SinusoidalPositionalEncoding(3),
        nn.LearnedPositionalEncoding(9, 3),
        nn.SelfAttention(3, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_integers_are_promoted_and_floats_keep_their_dtype(layer):
    numbers = np.eye(3, dtype=int)
    whole, single = layer(Tensor(numbers)), layer(Tensor(numbers.astype(np.float32)))
    assert whole.dtype == single.dtype == np.float32 and np.allclose(whole.numpy(), single.numpy())
    layer.astype(np.float64)
    assert layer(Tensor(numbers.astype(np.float64))).dtype == np.float64


def test_integers_become_a_transformers_own_dtype():
    model = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, norm_first=True).astype(np.float64)
    numbers = np.arange(12).reshape(3, 1, 4) ** 2
    whole, floating = (model(x, x).numpy() for x in (numbers, numbers.astype(np.float64)))
    np.testing.assert_array_equal(whole, floating)


def test_layers_are_made_in_the_default_dtype():
    set_default_dtype(np.float64)
    try:
        models = nn.Transformer(4, 2, 1, 1, 8), nn.Embedding(2, 2), nn.SelfAttention(3, 2)
        positions = nn.SinusoidalPositionalEncoding(2).pe
    finally:
        set_default_dtype(np.float32)
    dtypes = {p.dtype for model in models for p in model.parameters()}
    assert dtypes == {positions.dtype} == {np.dtype(np.float64)}


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4)])
def test_dropout_draws_torchs_mask(shape):
    torch = require("torch")
    torch.manual_seed(3)
    ta_random.manual_seed(3)
    theirs, ours = torch.nn.Dropout(0.4), nn.Dropout(0.4)
    np.testing.assert_allclose(
        ours(Tensor(np.ones(shape, np.float32))).numpy(),
        theirs(torch.ones(shape)).numpy(),
        rtol=1e-6,
    )
    x = Tensor([1.0, 2.0])
    assert ours.eval()(x) is x and nn.Dropout(0.0)(x) is x


def test_a_probability_may_be_a_numpy_number():
    x = ta_random.randn(4, 4)
    results = []
    for p in (0.5, np.float32(0.5)):
        ta_random.manual_seed(1)
        results.append(nn.Dropout(p)(x).numpy())
    assert (
        np.array_equal(*results)
        and nn.MultiheadAttention(4, 2, dropout=np.float32(0.5)).dropout == 0.5
    )


@pytest.mark.parametrize(
    "kind",
    [nn.ReLU, nn.SiLU, nn.Dropout, *(partial(partial, f) for f in (F.relu, F.silu, F.dropout))],
)
def test_inplace_is_taken_and_changes_nothing_in_place(kind):
    x, results = Tensor(np.linspace(-1, 1, 10), requires_grad=True), []
    for inplace in (False, True):
        ta_random.manual_seed(3)
        results.append(kind(inplace=inplace)(x).numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(x.numpy(), np.linspace(-1, 1, 10))


def test_a_layer_called_twice_keeps_its_calls_apart():
    drop = nn.Dropout(0.5)
    x = Tensor(np.ones(64), requires_grad=True)
    once, again = drop(x), drop(x)
    (once * 1.0 + again * 10.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), once.numpy() + 10 * again.numpy())


def test_positions():
    table = nn.SinusoidalPositionalEncoding(6)(np.zeros((1, 4, 6), int)).numpy()[0]
    np.testing.assert_allclose(
        table[1], [0.841471, 0.540302, 0.046399, 0.998923, 0.002154, 0.999998], atol=1e-6
    )
    np.testing.assert_allclose(
        table[3], [0.141120, -0.989992, 0.138798, 0.990321, 0.006463, 0.999979], atol=1e-6
    )
    assert not nn.SinusoidalPositionalEncoding(6).state_dict()
    for layer in (nn.SinusoidalPositionalEncoding(6, 9), nn.LearnedPositionalEncoding(9, 6)):
        x = ta_random.randn(2, 5, 6)
        np.testing.assert_array_equal(layer(x[:, 3:], offset=3).numpy(), layer(x).numpy()[:, 3:])
        np.testing.assert_array_equal(layer(x[0]).numpy(), layer(x).numpy()[0])
        batch_first = layer(x).numpy()
        layer.batch_first = False
        np.testing.assert_array_equal(layer(x.swapaxes(0, 1)).numpy(), batch_first.swapaxes(0, 1))
    learned = nn.LearnedPositionalEncoding(9, 6)
    learned(x).sum().backward()
    np.testing.assert_array_equal(
        learned.weight.grad.numpy(), np.repeat([[2.0], [0.0]], [5, 4], axis=0) * np.ones(6)
    )


def test_feed_forward_is_its_equation():
    layer = nn.FeedForward(3, 5, activation=np.tanh)
    x = ta_random.randn(2, 3).numpy()
    w1, b1, w2, b2 = (p.numpy() for p in layer.parameters())
    np.testing.assert_allclose(
        layer(x).numpy(), np.tanh(x @ w1.T + b1) @ w2.T + b2, rtol=1e-5, atol=1e-6
    )


def test_embedding_padding_gets_no_gradient():
    layer = nn.Embedding(4, 3, padding_idx=-3)
    assert layer.padding_idx == 1 and not layer.weight.numpy()[1].any()
    layer([[1, 2], [2, 0]]).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [1, 0, 2, 0])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: nn.Linear(3, 2)(np.ones((3, 4))),
            ValueError,
            r"array \(3, 4\) float64 and weight",
        ),
        (lambda: nn.Linear(3, 2)("text"), TypeError, "Tensor"),
        (lambda: nn.Linear(3, 2.0), TypeError, "integer"),
        (lambda: nn.Tanh()(require("torch").ones(2)), TypeError, r"Write Tensor\(x\) for"),
        (
            lambda: nn.Embedding(3, 2, padding_idx=3),
            ValueError,
            "padding_idx=3 is out of range for a table with 3 rows",
        ),
        (lambda: nn.Embedding(3, 2)([3]), ValueError, "index 3 is out of range for a table"),
        (lambda: nn.Embedding(3, 2)([0.5]), TypeError, "needs integers"),
        (lambda: nn.LayerNorm(3)(np.ones((2, 4))), ValueError, "normalized_shape"),
        (lambda: nn.LayerNorm(3, 4), ValueError, r"nn.LayerNorm\(\(m, n\)\)"),
        (lambda: nn.RMSNorm(3, 4), ValueError, "eps=4 is too large"),
        (
            lambda: nn.Dropout(1.5),
            ValueError,
            r"Dropout: p must be a number in \[0, 1\], got 1.5",
        ),
        (
            lambda: nn.MultiheadAttention(4, 2, dropout=-1),
            ValueError,
            r"dropout must be a number in \[0, 1\]",
        ),
        (lambda: nn.MultiheadAttention(9, 2), ValueError, "embed_dim=9 cannot be divided"),
        (lambda: nn.GELU("erf")(1.0), ValueError, "'none', 'tanh'"),
        (lambda: nn.FeedForward(2, 2, activation="rleu"), ValueError, "'relu', 'gelu' or a funct"),
        (
            lambda: nn.SinusoidalPositionalEncoding(4, 3)(np.ones((1, 4, 4))),
            ValueError,
            "positions 0 to 3 exceed max_len=3",
        ),
        (
            lambda: nn.LearnedPositionalEncoding(3, 4)(np.ones((2, 5))),
            ValueError,
            "E = d_model = 4",
        ),
        (lambda: nn.Conv2d, AttributeError, "from-pytorch.md"),
        (lambda: nn.Liner, AttributeError, "Did you mean 'Linear'"),
    ],
)
def test_errors_say_what_to_do(call, error, text):
    with pytest.raises(error, match=text):
        call()
