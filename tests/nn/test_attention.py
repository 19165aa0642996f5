"""Attention modules against PyTorch's, against the equation by hand, and where PyTorch has no answer (fully masked
rows)."""

import contextlib
import itertools
import math
import threading
import warnings

import numpy as np
import pytest
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, no_grad
from tinygrad_attn import random as ta_random
from tinygrad_attn.nn.inside import record_attention

B, T, S, E, H = 2, 3, 5, 8, 2


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def masks(kind):
    """attn_mask and key_padding_mask of one kind; no row is fully blocked."""
    draw = np.random.default_rng(7)
    if kind == "none":
        return None, None
    blocked = draw.random((B * H, T, S) if "3" in kind else (T, S)) < 0.4
    blocked[..., 0] = False
    padding = np.array([[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]], bool)
    added = np.where(blocked, -np.inf, draw.normal(size=blocked.shape))
    return {
        "bool": (blocked, None),
        "bool3": (blocked, None),
        "float": (added, None),
        "float3": (added, None),
        "padding": (None, padding),
        "float padding": (None, np.where(padding, -np.inf, 0.5)),
        "bool + padding": (blocked, padding),
        "float3 + padding": (added, np.where(padding, -np.inf, 0.0)),
    }[kind]


KINDS = [
    "none",
    "bool",
    "bool3",
    "float",
    "float3",
    "padding",
    "float padding",
    "bool + padding",
    "float3 + padding",
]
OPTIONS = [
    dict(kdim=4, vdim=6),
    dict(add_bias_kv=True, add_zero_attn=True),
    dict(bias=False),
    dict(kdim=4, add_zero_attn=True),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch_with_every_mask(kind, options):
    torch = require("torch")
    attn_mask, padding = masks(kind)
    for batch_first, weights, average in itertools.product((True, False), repeat=3):
        torch.manual_seed(0)
        theirs = torch.nn.MultiheadAttention(
            E, H, batch_first=batch_first, dtype=torch.float64, **options
        )
        ours = nn.MultiheadAttention(E, H, batch_first=batch_first, **options).astype(np.float64)
        ours.load_state_dict(theirs.state_dict())
        arrays = [
            numbers(B, T, E),
            numbers(B, S, options.get("kdim", E)),
            numbers(B, S, options.get("vdim", E)),
        ]
        arrays = arrays if batch_first else [x.swapaxes(0, 1).copy() for x in arrays]
        a, b = (
            [torch.tensor(x, requires_grad=True) for x in arrays],
            [Tensor(x, requires_grad=True) for x in arrays],
        )
        as_torch = lambda m: None if m is None else torch.tensor(m)
        y, w = theirs(*a, as_torch(padding), weights, as_torch(attn_mask), average)
        z, v = ours(*b, padding, weights, attn_mask, average)
        np.testing.assert_allclose(z.numpy(), y.detach().numpy(), rtol=1e-9, atol=1e-12)
        assert (w is None) == (v is None)
        pull = numbers(*z.shape)
        loss_a, loss_b = (y * torch.tensor(pull)).sum(), (z * pull).sum()
        if w is not None:
            np.testing.assert_allclose(v.numpy(), w.detach().numpy(), rtol=1e-9, atol=1e-12)
            loss_a, loss_b = loss_a + (w * w).sum(), loss_b + (v * v).sum()
        loss_a.backward()
        loss_b.backward()
        for p, q in zip([*a, *theirs.parameters()], [*b, *ours.parameters()], strict=True):
            np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=1e-8, atol=1e-11)


def by_hand(layer, query, key, value, allowed):
    """The equation, head by head, in plain NumPy."""
    wide = layer.num_heads * layer.head_dim
    cuts = [wide, 2 * wide]
    wq, wk, wv = np.split(layer.in_proj_weight.numpy(), cuts)
    bq, bk, bv = np.split(layer.in_proj_bias.numpy(), cuts)
    heads = []
    for h in range(layer.num_heads):
        d, v = (
            slice(h * layer.head_dim, (h + 1) * layer.head_dim),
            slice(h * layer.value_head_dim, (h + 1) * layer.value_head_dim),
        )
        scores = (
            (query @ wq[d].T + bq[d])
            @ (key @ wk[d].T + bk[d]).swapaxes(-1, -2)
            / math.sqrt(layer.head_dim)
        )
        e = np.exp(scores) * allowed
        heads.append(e / e.sum(-1, keepdims=True) @ (value @ wv[v].T + bv[v]))
    return np.concatenate(heads, -1) @ layer.out_proj.weight.numpy().T + layer.out_proj.bias.numpy()


def test_head_sizes_are_free():
    layer = nn.MultiheadAttention(35, 4, batch_first=True, head_dim=6, value_head_dim=3).astype(
        np.float64
    )
    assert layer.in_proj_weight.shape == (
        4 * 6 * 2 + 4 * 3,
        35,
    ) and layer.out_proj.weight.shape == (35, 12)
    for p in layer.parameters():
        p._data[...] = numbers(*p.shape) / 3
    x, m = numbers(2, 3, 35), numbers(2, 5, 35)
    np.testing.assert_allclose(layer(x, m, m)[0].numpy(), by_hand(layer, x, m, m, 1.0), rtol=1e-9)
    np.testing.assert_allclose(
        layer(x, x, x, is_causal=True)[0].numpy(), by_hand(layer, x, x, x, np.tri(3)), rtol=1e-9
    )
    more = nn.MultiheadAttention(8, 2, add_bias_kv=True, head_dim=3, value_head_dim=5)
    assert more.bias_k.shape == (1, 1, 6) and more.bias_v.shape == (1, 1, 10)
    with pytest.raises(
        ValueError, match="embed_dim=35 cannot be divided into num_heads=4.*head_dim="
    ):
        nn.MultiheadAttention(35, 4)


@pytest.mark.parametrize("options", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}], ids=str)
def test_is_causal_needs_no_mask_and_adds_to_one(options):
    layer = nn.MultiheadAttention(E, H, batch_first=True, **options)
    x = ta_random.randn(B, 4, E)
    blocked = F.causal_mask(4)
    expected = layer(x, x, x, attn_mask=blocked)
    for mask in (None, blocked, np.where(blocked, -np.inf, 0.0), np.zeros((4, 4), bool)):
        out, weights = layer(x, x, x, attn_mask=mask, is_causal=True)
        np.testing.assert_allclose(out.numpy(), expected[0].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(weights.numpy(), expected[1].numpy(), rtol=1e-5, atol=1e-6)
    other = np.zeros((4, 4), bool)
    other[2, 0] = True
    both = layer(x, x, x, attn_mask=other, is_causal=True)[0].numpy()
    np.testing.assert_allclose(
        both, layer(x, x, x, attn_mask=other | blocked)[0].numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(4, 3), (4, 4, 3)], ids=["(T, S)", "(B*H, T, S)"])
def test_is_causal_adds_to_a_mask_that_is_not_square(shape):
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    x, memory = ta_random.randn(B, 4, E), ta_random.randn(B, 3, E)
    blocked = np.zeros(shape, bool)
    blocked[..., 2, 0] = True
    both = layer(x, memory, memory, attn_mask=blocked, is_causal=True)[0].numpy()
    expected = layer(x, memory, memory, attn_mask=blocked | ~np.tri(4, 3, dtype=bool))[0].numpy()
    np.testing.assert_allclose(both, expected, rtol=1e-5, atol=1e-6)


def test_a_single_query_that_is_causal_looks_at_the_first_key_and_the_added_ones():
    layer = nn.MultiheadAttention(E, H, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    x, memory = ta_random.randn(B, 1, E), ta_random.randn(B, 4, E)
    weights = layer(x, memory, memory, is_causal=True)[1].numpy()
    assert (weights[..., 1:4] == 0).all() and (weights[..., [0, 4, 5]] > 0).all()


@pytest.mark.parametrize("options", [{"add_zero_attn": True}, {"add_bias_kv": True}], ids=str)
def test_without_any_key_the_added_one_is_looked_at_as_in_torch(options):
    torch = require("torch")
    theirs, ours = (m.MultiheadAttention(E, H, batch_first=True, **options) for m in (torch.nn, nn))
    ours.load_state_dict(theirs.state_dict())
    x, none = numbers(B, T, E).astype(np.float32), np.ones((B, 0, E), np.float32)
    for a, b in zip(theirs(*map(torch.tensor, (x, none, none))), ours(x, none, none)):
        np.testing.assert_allclose(b.numpy(), a.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_same_numbers_whether_or_not_weights_are_asked_for(training):
    layer = nn.MultiheadAttention(E, H, dropout=0.3, batch_first=True).train(training)
    x = ta_random.randn(B, T, E)
    results = []
    for need_weights, recording in itertools.product((True, False), repeat=2):
        ta_random.manual_seed(5)
        if recording:
            with record_attention():
                results.append(layer(x, x, x, need_weights=need_weights)[0].numpy())
        else:
            results.append(layer(x, x, x, need_weights=need_weights)[0].numpy())
    assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize("options", [{}, dict(kdim=4), dict(add_zero_attn=True)], ids=str)
def test_recording_changes_no_bit_of_a_gradient(options):
    layer = nn.MultiheadAttention(E, H, dropout=0.3, batch_first=True, **options)
    x, memory = numbers(B, T, E).astype("f"), numbers(B, T, options.get("kdim", E)).astype("f")
    gradients = []
    for recording in (contextlib.nullcontext, record_attention):
        ta_random.manual_seed(5)
        layer.zero_grad()
        with recording():
            inputs = (x, memory, x) if options else (x, x, x)
            layer(*inputs, need_weights=False)[0].sum().backward()
        gradients.append([p.grad.numpy() for p in layer.parameters()])
    for plain, recorded in zip(*gradients, strict=True):
        np.testing.assert_array_equal(recorded, plain)


def test_dropout_on_the_weights_is_torchs():
    torch = require("torch")
    theirs, ours = (
        torch.nn.MultiheadAttention(E, H, dropout=0.4),
        nn.MultiheadAttention(E, H, dropout=0.4),
    )
    ours.load_state_dict(theirs.state_dict())
    x = numbers(T, B, E).astype(np.float32)
    torch.manual_seed(1)
    ta_random.manual_seed(1)
    (y, w), (z, v) = (
        theirs(*[torch.tensor(x)] * 3, average_attn_weights=False),
        ours(*[x] * 3, average_attn_weights=False),
    )
    np.testing.assert_allclose(v.numpy(), w.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z.numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_fully_masked_row_is_zero_and_has_no_gradient(need_weights, as_float):
    layer = nn.MultiheadAttention(E, H, batch_first=True).astype(np.float64)
    layer.out_proj.bias._data[...] = 3.0
    x = Tensor(numbers(B, T, E), requires_grad=True)
    padding = np.array([[False] * 3, [True] * 3])
    mask = np.zeros((T, T), bool)
    mask[1] = True
    if as_float:
        padding, mask = (np.where(m, -np.inf, 0.0) for m in (padding, mask))
    out, weights = layer(x, x, x, padding, need_weights, mask)
    np.testing.assert_array_equal(out.numpy()[1], 3.0)
    np.testing.assert_array_equal(out.numpy()[0, 1], 3.0)
    if need_weights:
        assert not weights.numpy()[1].any() and not weights.numpy()[0, 1].any()
        np.testing.assert_allclose(weights.numpy()[0, [0, 2]].sum(-1), 1)
    (out * numbers(*out.shape)).sum().backward()
    assert (
        not x.grad.numpy()[1].any()
        and np.isfinite(x.grad.numpy()).all()
        and x.grad.numpy()[0].any()
    )
    assert all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_unbatched_is_a_batch_of_one():
    layer = nn.MultiheadAttention(E, H, add_bias_kv=True)
    x, m = ta_random.randn(T, E), ta_random.randn(S, E)
    padding, mask = (
        np.array([0, 0, 0, 1, 1], bool),
        np.random.default_rng(0).random((H, T, S)) < 0.3,
    )
    out, weights = layer(x, m, m, padding, attn_mask=mask)
    expected = layer(x[:, None], m[:, None], m[:, None], padding[None], attn_mask=mask)
    np.testing.assert_array_equal(out.numpy(), expected[0].numpy()[:, 0])
    np.testing.assert_array_equal(weights.numpy(), expected[1].numpy()[0])


def test_a_float_mask_is_differentiated():
    layer = nn.MultiheadAttention(E, H, batch_first=True).astype(np.float64)
    mask, x = Tensor(np.zeros((T, T)), requires_grad=True), numbers(B, T, E)
    layer(x, x, x, attn_mask=mask, is_causal=True)[0].sum().backward()
    assert mask.grad.numpy()[2].any() and not np.triu(mask.grad.numpy(), 1).any()


def test_masked_keys_change_nothing():
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    x, m = ta_random.randn(B, T, E), ta_random.randn(B, S, E).numpy()
    padding = F.padding_mask([3, 5], S)
    before = layer(x, m, m, padding)[0].numpy()
    m[0, 3:] = 1e3
    np.testing.assert_allclose(layer(x, m, m, padding)[0].numpy(), before, rtol=1e-5, atol=1e-6)


BATCH = np.ones((2, 3, 8))
TAKES = r"with batch_first=True, .* query \(B, T, 8\), key \(B, S, kdim=8\) and value \(B, S, vdim=8\), or"


@pytest.mark.parametrize(
    "arguments, named, error, text",
    [
        ((BATCH, BATCH[0], BATCH[0]), {}, ValueError, TAKES),
        ((BATCH[..., :4],) * 3, {}, ValueError, TAKES),
        ((BATCH, BATCH[..., :4], BATCH), {}, ValueError, TAKES),
        ((BATCH, np.ones((5, 3, 8)), np.ones((5, 3, 8))), {}, ValueError, TAKES),
        ((BATCH, BATCH, BATCH[:, :2]), {}, ValueError, TAKES),
        ((BATCH,) * 3, {"attn_mask": np.ones((3, 3), int)}, TypeError, "True = blocked.*mask == 0"),
        ((BATCH,) * 3, {"attn_mask": np.ones((4, 4), bool)}, ValueError, r"\(T, S\) = \(3, 3\)"),
        ((BATCH,) * 3, {"attn_mask": np.ones((2, 3, 3), bool)}, ValueError, r"np.repeat\(mask, 2"),
        (
            (BATCH,) * 3,
            {"attn_mask": F.causal_mask(4), "is_causal": True},
            ValueError,
            r"\(T, S\) = \(3, 3\)",
        ),
        (
            (BATCH,) * 3,
            {"key_padding_mask": np.ones((3, 2), bool)},
            ValueError,
            r"expected \(2, 3\), got array \(3, 2\)",
        ),
        ((BATCH[0],) * 3, {"key_padding_mask": np.ones((1, 3), bool)}, ValueError, r"\(S,\)"),
    ],
)
def test_errors_say_what_to_do(arguments, named, error, text):
    with pytest.raises(error, match=text):
        nn.MultiheadAttention(8, 2, batch_first=True)(*arguments, **named)


def test_masks_may_be_lists_and_torchs():
    torch = require("torch")
    layer, blocked = nn.MultiheadAttention(8, 2, batch_first=True), np.eye(3, dtype=bool)
    padding = np.array([[False, False, False], [False, False, True]])
    expected = layer(BATCH, BATCH, BATCH, padding, attn_mask=blocked)[0].numpy()
    for form in (np.ndarray.tolist, torch.from_numpy, Tensor):
        np.testing.assert_array_equal(
            layer(BATCH, BATCH, BATCH, form(padding), attn_mask=form(blocked))[0].numpy(), expected
        )


@pytest.mark.parametrize("length", [2, 3])
def test_a_causal_mask_upside_down_is_warned_about(length):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), BATCH[:, :length]
    for call in (
        lambda: layer(x, x, x, attn_mask=np.tri(length, dtype=bool)),
        lambda: F.scaled_dot_product_attention(x, x, x, np.array(F.causal_mask(length))),
    ):
        with pytest.warns(
            UserWarning, match="True means blocked in nn, but allowed in F.* Write ~mask"
        ) as caught:
            call()
        assert caught[0].filename == __file__  # the caller's line, not one of the package
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x, x, x, attn_mask=F.causal_mask(length))
        F.scaled_dot_product_attention(x, x, x, ~F.causal_mask(length))


def test_record_attention_by_dotted_name():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 16, batch_first=True), 2).eval()
    x = ta_random.randn(B, T, E)
    with record_attention() as seen, no_grad():
        model(x)
        model(x[0])
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    first, unbatched = seen["layers.0.self_attn"]
    assert (
        type(first) is np.ndarray
        and first.shape == (B, H, T, T)
        and unbatched.shape == (1, H, T, T)
    )
    np.testing.assert_allclose(
        first, model.layers[0].self_attn(x, x, x, average_attn_weights=False)[1].numpy(), rtol=1e-6
    )
    with record_attention() as outer, record_attention(model) as inner:
        attention = model.layers[1].self_attn
        attention(x, x, x)
    assert list(outer) == ["MultiheadAttention"] and list(inner) == ["layers.1.self_attn"]
    attention(x, x, x)
    assert len(outer["MultiheadAttention"]) == 1
    with record_attention() as outer:
        with record_attention() as inner:
            pass
        attention(x, x, x)  # the one that is left was the second's only
    assert list(outer) == ["MultiheadAttention"] and not inner
    with record_attention() as outer:
        _, weights = F.scaled_dot_product_attention(x, x, x, need_weights=True)
    assert (
        not outer and weights.shape == (B, T, T) and "Direct calls to" in record_attention.__doc__
    )


def test_record_attention_of_modules_that_are_no_attributes():
    class Passing(nn.Module):
        def forward(self, x):
            return nn.MultiheadAttention(E, H, batch_first=True)(x, x, x)[0]

    x, chain = ta_random.randn(B, T, E), nn.Sequential(nn.Identity(), Passing())
    for module, root, name in (
        (Passing(), None, ""),
        (chain, None, "1."),
        (chain, nn.Identity(), "Sequential.Passing."),
    ):
        with record_attention(root) as seen:
            module(x)
        assert list(seen) == [f"{name}MultiheadAttention"]
    with record_attention() as seen:
        nn.MultiheadAttention(E, H, batch_first=True).forward(x, x, x)
    assert list(seen) == ["attention"]


def test_record_attention_of_the_small_modules_and_per_thread():
    class Pair(nn.Module):
        def __init__(self):
            self.own, self.additive = nn.SelfAttention(4, 3), nn.AdditiveAttention(4, 4, 5)

        def forward(self, x):
            return self.own(x), self.additive(x, x, x)

    pair, x = Pair(), ta_random.randn(B, T, 4)
    with record_attention() as seen:
        thread = threading.Thread(target=pair, args=(x,))
        thread.start()
        thread.join()
        assert not seen
        pair(x)
    assert {name: w[0].shape for name, w in seen.items()} == {
        "own": (B, 1, T, T),
        "additive": (B, 1, T, T),
    }


SENTENCE = np.array(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ],
    np.float32,
)


def test_self_attention_prints_the_documents_numbers():
    layer = nn.SelfAttention(3, 2)
    ta_random.manual_seed(123)
    for linear in layer.children():
        if isinstance(linear, nn.Linear):
            linear.weight = nn.Parameter(ta_random.rand(3, 2).T)  # the document's (in, out)
    rows = [
        [0.2996, 0.8053],
        [0.3061, 0.8210],
        [0.3058, 0.8203],
        [0.2948, 0.7939],
        [0.2927, 0.7891],
        [0.2990, 0.8040],
    ]
    with record_attention() as seen:
        np.testing.assert_allclose(layer(SENTENCE).numpy(), rows, atol=6e-5)
    np.testing.assert_allclose(
        seen["SelfAttention"][0][0, 0, 1],
        [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820],
        atol=6e-5,
    )
    ta_random.manual_seed(789)
    out = nn.SelfAttention(3, 2)(SENTENCE).numpy()
    np.testing.assert_allclose(out[[0, -1]], [[-0.0739, 0.0713], [-0.0754, 0.0693]], atol=6e-5)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (0, 0, 3), (0, 3)], ids=str)
def test_self_attention_of_nothing_is_nothing(shape):
    layer, x = nn.SelfAttention(3, 2), Tensor(np.zeros(shape, np.float32), requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert (
        out.shape == (*shape[:-1], 2)
        and x.grad.shape == shape
        and not layer.W_value.weight.grad.numpy().any()
    )


def test_self_attention_causal_bias_and_dropout():
    layer = nn.SelfAttention(3, 2, qkv_bias=True, causal=True, dropout=0.5).eval()
    x = SENTENCE[None].repeat(2, axis=0)
    q, k, v = (
        x @ m.weight.numpy().T + m.bias.numpy() for m in (layer.W_query, layer.W_key, layer.W_value)
    )
    e = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(2)) * np.tri(6)
    np.testing.assert_allclose(
        layer(x).numpy(), e / e.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-6
    )
    changed = x.copy()
    changed[:, 3:] = 9
    np.testing.assert_array_equal(layer(changed).numpy()[:, :3], layer(x).numpy()[:, :3])
    with record_attention() as seen:
        layer.train()(x)
    assert 0 < (seen["SelfAttention"][0][:, 0][:, np.tri(6, dtype=bool)] == 0).mean() < 1
    layer.dropout.eval()  # it alone
    np.testing.assert_array_equal(layer(x).numpy(), layer.eval()(x).numpy())


def test_additive_attention_prints_the_documents_numbers():
    layer = nn.AdditiveAttention(20, 2, 8, dropout=0.1).eval()
    value = np.arange(40, dtype=np.float32).reshape(1, 10, 4).repeat(2, axis=0)
    out, weights = layer(
        ta_random.randn(2, 1, 20),
        np.ones((2, 10, 2), np.float32),
        value,
        F.padding_mask([2, 6], 10),
    )
    np.testing.assert_allclose(out.numpy(), [[[2, 3, 4, 5]], [[10, 11, 12, 13]]], rtol=1e-5)
    np.testing.assert_allclose(weights.numpy()[1, 0], [1 / 6] * 6 + [0] * 4, rtol=1e-5)


def test_additive_attention_is_its_equation():
    layer = nn.AdditiveAttention(3, 4, 5).astype(np.float64)
    q, k, v = Tensor(numbers(2, 2, 3), requires_grad=True), numbers(2, 6, 4), numbers(2, 6, 7)
    wk, wq, w = (p.numpy() for p in layer.parameters())
    e = np.exp(np.tanh((q.numpy() @ wq.T)[:, :, None] + (k @ wk.T)[:, None]) @ w[0])
    e[0, :, 4:] = 0
    e[1] = 0
    expected = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    for mask in (F.padding_mask([4, 0], 6), np.where(F.padding_mask([4, 0], 6), -np.inf, 0.0)):
        out, weights = layer(q, k, v, mask)
        np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-9)
        np.testing.assert_allclose(out.numpy(), expected @ v, rtol=1e-9)
    out.sum().backward()
    assert q.grad.numpy()[0].any() and not q.grad.numpy()[1].any()
    with pytest.raises(ValueError, match=r"key \(B, S, key_dim\)"):
        layer(q, k[0], v)
