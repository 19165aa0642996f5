"""The Transformer family: the documents' printed numbers, PyTorch's numbers in training, and weights that go both
ways."""

import numpy as np
import pytest
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, no_grad
from tinygrad_attn import random as ta_random

ENCODER_ROWS = [
    [-1.0328, -0.9185, 0.6710, 1.2804],
    [-1.4175, -0.1948, 1.3775, 0.2347],
    [-1.0022, -0.8035, 0.3029, 1.5028],
]
DECODER_ROWS = [
    [-0.1402, -0.7298, -0.8038, 1.6738],
    [-0.7154, 1.6404, -0.8922, -0.0327],
    [0.0890, 0.6641, -1.6547, 0.9016],
    [0.2811, -1.0920, 1.5008, -0.6900],
    [-0.4675, 1.5222, -1.2012, 0.1465],
]


def encoder_layer():
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)


def decoder_layer():
    return nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0)


def test_the_documents_encoder_layer():
    ta_random.manual_seed(42)
    x = ta_random.randn(3, 1, 4)
    np.testing.assert_allclose(x.numpy()[0, 0], [0.3367, 0.1288, 0.2345, 0.2303], atol=6e-5)
    layer = encoder_layer()
    np.testing.assert_allclose(layer(x).numpy()[:, 0], ENCODER_ROWS, atol=6e-5)
    first_norm = layer.norm1(x + layer.self_attn(x, x, x)[0])
    np.testing.assert_allclose(
        first_norm.numpy()[0, 0], [-0.9493, -1.0434, 1.1045, 0.8881], atol=6e-5
    )


def test_the_documents_decoder_layer():
    ta_random.manual_seed(42)
    ta_random.randn(3, 1, 4)
    encoder_layer(), encoder_layer(), decoder_layer()
    source, target = ta_random.randn(3, 1, 4), ta_random.randn(5, 1, 4)
    encoder_layer(), decoder_layer()
    encoder, decoder = encoder_layer(), decoder_layer()
    np.testing.assert_allclose(
        decoder(target, encoder(source)).numpy()[:, 0], DECODER_ROWS, atol=6e-5
    )


def test_weights_of_manual_seed_42_are_torchs():
    torch = require("torch")
    torch.manual_seed(42)
    ta_random.manual_seed(42)
    theirs, ours = (
        torch.nn.TransformerEncoderLayer(4, 2, 8).state_dict(),
        nn.TransformerEncoderLayer(4, 2, 8).state_dict(),
    )
    assert list(theirs) == list(ours)
    assert sum(v.size for k, v in ours.items() if "norm" not in k) == 16 + 4 + 48 + 12 + 40 + 36
    for name in theirs:
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), rtol=0, atol=6e-8)


def family(nn, kind, **options):
    """The same model of torch's or of ours."""
    options = {"dim_feedforward": 16, **options}
    if kind == "transformer":
        return nn.Transformer(8, 2, 2, 2, **options)
    if kind == "encoder":
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **options), 2)
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **options), 2)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("batch_first", [False], ids=["TBE"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
def test_training_with_dropout_is_torchs_number_for_number(kind, batch_first, norm_first):
    torch = require("torch")
    options = dict(dropout=0.3, batch_first=batch_first, norm_first=norm_first)
    torch.manual_seed(1)
    ta_random.manual_seed(1)
    theirs, ours = family(torch.nn, kind, **options), family(nn, kind, **options)
    inputs = [torch.randn(3, 5, 8) for _ in range(1 if kind == "encoder" else 2)]
    torch.manual_seed(5)
    ta_random.manual_seed(5)
    y, z = theirs(*inputs), ours(*[Tensor(x.numpy()) for x in inputs])
    np.testing.assert_allclose(z.numpy(), y.detach().numpy(), rtol=1e-4, atol=1e-5)
    (y * y).sum().backward()
    (z * z).sum().backward()
    for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        np.testing.assert_allclose(
            q.grad.numpy(), p.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=name
        )


def test_layers_of_an_encoder_start_equal_and_are_their_own():
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    encoder = nn.TransformerEncoder(layer, 2)
    a, b = encoder.layers
    assert np.array_equal(a.linear1.weight.numpy(), b.linear1.weight.numpy())
    assert len({id(x.linear1.weight) for x in (a, b, layer)}) == 3
    assert len(nn.TransformerEncoder(encoder_layer(), np.int64(2)).layers) == 2


def test_a_layer_of_ones_own_need_not_know_of_caches():
    class Twice(nn.Module):
        def forward(self, x, memory=None, **masks):
            assert "cache" not in masks
            return 2 * x

    x = ta_random.randn(2, 3, 4)
    for stack, inputs in (
        (nn.TransformerEncoder(Twice(), 3), (x,)),
        (nn.TransformerDecoder(Twice(), 3), (x, x)),
    ):
        np.testing.assert_array_equal(stack(*inputs).numpy(), 8 * x.numpy())


def test_an_attention_of_ones_own_in_a_layer_need_not_know_of_caches():
    class Attention(nn.Module):
        def forward(
            self,
            query,
            key,
            value,
            key_padding_mask=None,
            need_weights=True,
            attn_mask=None,
            is_causal=False,
        ):
            return 2 * value, None

    layer, x = (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        ta_random.randn(2, 5, 8),
    )
    layer.self_attn = Attention()
    expected = layer.norm1(3 * x)
    np.testing.assert_allclose(
        layer(x).numpy(),
        layer.norm2(expected + layer.linear2(F.relu(layer.linear1(expected)))).numpy(),
        rtol=1e-6,
    )


@pytest.mark.parametrize("hint", [None, True, False])
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_causal_hints_change_no_number(hint, dtype):
    model = family(nn, "transformer", batch_first=True, dropout=0.0)
    src, tgt = ta_random.randn(2, 4, 8), ta_random.randn(2, 3, 8)
    mask = lambda n: (
        F.causal_mask(n) if dtype is bool else nn.Transformer.generate_square_subsequent_mask(n)
    )
    plain = model(src, tgt, F.causal_mask(4) | False, F.causal_mask(3)).numpy()
    hinted = model(src, tgt, mask(4), mask(3), src_is_causal=hint, tgt_is_causal=hint).numpy()
    np.testing.assert_allclose(hinted, plain, rtol=1e-4, atol=1e-5)
    without = model(src, tgt, src_is_causal=True, tgt_is_causal=True).numpy()
    np.testing.assert_allclose(without, plain, rtol=1e-4, atol=1e-5)
    tgt.numpy()[:, 2] = 5
    np.testing.assert_allclose(
        model(src, tgt, mask(4), mask(3)).numpy()[:, :2], plain[:, :2], rtol=1e-4, atol=1e-5
    )


def test_the_float_causal_mask():
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    np.testing.assert_array_equal(mask.numpy(), [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]])
    assert mask.dtype == np.float32


@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", F.silu, np.tanh, nn.GELU("tanh")],
    ids=["relu", "gelu", "F.silu", "np.tanh", "GELU tanh"],
)
def test_any_activation(activation):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, activation=activation).astype(
        np.float64
    )
    x = ta_random.randn(3, 1, 4, dtype=np.float64)
    h = layer.norm1(x + layer.self_attn(x, x, x)[0])
    inner = layer.linear1(h)
    inner = (getattr(F, activation) if isinstance(activation, str) else activation)(inner)
    np.testing.assert_allclose(
        layer(x).numpy(), layer.norm2(h + layer.linear2(inner)).numpy(), rtol=1e-9
    )


def test_a_sequence_of_nothing_but_padding_gives_no_nan():
    model = family(nn, "transformer", batch_first=True, dropout=0.0)
    src, tgt = (
        Tensor(ta_random.randn(2, 4, 8).numpy(), requires_grad=True),
        ta_random.randn(2, 3, 8),
    )
    empty = F.padding_mask([4, 0], 4)
    out = model(src, tgt, src_key_padding_mask=empty, memory_key_padding_mask=empty)
    (out * ta_random.randn(*out.shape)).sum().backward()
    assert (
        np.isfinite(out.numpy()).all()
        and np.isfinite(src.grad.numpy()).all()
        and not src.grad.numpy()[1].any()
    )
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters())


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2]], ids=str)
def test_a_cache_gives_the_same_numbers_as_the_whole_sequence(steps, batch_first):
    encoder = family(nn, "encoder", batch_first=batch_first, norm_first=True).eval()
    decoder = family(nn, "decoder", batch_first=batch_first).eval()
    axis = 1 if batch_first else 0
    x, memory = ta_random.randn(6, 6, 8)[:, :6], ta_random.randn(6, 6, 8)
    with no_grad():
        whole = encoder(x, is_causal=True).numpy(), decoder(x, memory, tgt_is_causal=True).numpy()
        caches, parts, start = (nn.KeyValueCache(), nn.KeyValueCache()), ([], []), 0
        for n in steps:
            assert caches[0].length == start
            new = x[(slice(None),) * axis + (slice(start, start + n),)]
            parts[0].append(encoder(new, is_causal=True, cache=caches[0]).numpy())
            parts[1].append(decoder(new, memory, tgt_is_causal=True, cache=caches[1]).numpy())
            start += n
    for pieces, expected in zip(parts, whole):
        np.testing.assert_allclose(np.concatenate(pieces, axis), expected, rtol=1e-5, atol=1e-6)
    assert caches[0].length == caches[1].length == 6
    with pytest.raises(ValueError, match="batch size 6, .* batch size 1;.*new KeyValueCache"):
        encoder(x[:1, :1], cache=caches[0])


def test_a_cache_with_padding_and_bias_kv():
    layer = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    x, padding = ta_random.randn(2, 5, 8), np.array([[0] * 5, [1, 1, 0, 0, 0]], bool)
    whole = layer(x, x, x, padding, is_causal=True)[0].numpy()
    cache = nn.KeyValueCache()
    for t in range(5):
        new = x[:, t : t + 1]
        out, weights = layer(new, new, new, padding[:, : t + 1], is_causal=True, cache=cache)
        np.testing.assert_allclose(out.numpy()[:, 0], whole[:, t], rtol=1e-4, atol=1e-6)
        assert weights.shape == (2, 1, t + 3)


def test_a_trained_mask_that_begins_as_the_causal_one_gets_its_gradient():
    encoder, x = nn.TransformerEncoder(encoder_layer(), 1), ta_random.randn(3, 2, 4)
    mask = Tensor(nn.Transformer.generate_square_subsequent_mask(3).numpy(), requires_grad=True)
    for is_causal in (None, True):
        mask.grad = None
        (encoder(x, mask, is_causal=is_causal) ** 3).sum().backward()
        assert np.array_equal(
            abs(mask.grad.numpy()) > 1e-6, ~F.causal_mask(3) & [[False], [True], [True]]
        )
