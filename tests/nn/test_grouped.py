"""GroupedQueryAttention against an independent implementation in PyTorch."""

import contextlib
import tracemalloc

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn

torch = require("torch")


def rotated(x, base):
    """Rotate pairs D/2 apart, as complex numbers; x is (..., T, D)."""
    half = x.shape[-1] // 2
    omega = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * omega
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], dim=-1)


def expected(w, x, layer, bias=0.0, causal=True):
    """The output and the weights of each head, one loop at a time; `bias` is added to scores."""
    batch, length, d = x.shape[0], x.shape[1], layer.head_dim
    project = lambda name: torch.nn.functional.linear(
        x, w[f"{name}_proj.weight"], w.get(f"{name}_proj.bias")
    ).reshape(batch, length, -1, d)
    q, k, v = map(project, "qkv")
    if causal:
        later = torch.arange(length) > torch.arange(length)[:, None]
        bias = bias + torch.where(later, -torch.inf, 0.0).to(x.dtype)
    bias = torch.as_tensor(bias, dtype=x.dtype).expand(batch, layer.num_heads, length, length)
    heads, weights = [], []
    for h in range(layer.num_heads):
        group = h * layer.num_kv_heads // layer.num_heads
        queries, keys = q[:, :, h], k[:, :, group]
        if layer.rotary_base is not None:
            queries, keys = (rotated(y, layer.rotary_base) for y in (queries, keys))
        scores = torch.einsum("btd,bsd->bts", queries, keys) / d**0.5
        weights.append(torch.softmax(scores + bias[:, h], dim=-1))
        heads.append(weights[-1] @ v[:, :, group])
    return torch.cat(heads, dim=-1) @ w["o_proj.weight"].T, torch.stack(weights, dim=1)


CASES = {  # (B, T, E), then the arguments
    "llama": ((2, 5, 12), (12, 6, 2), {"rotary_base": 10000.0}),
    "qwen2": ((1, 7, 10), (10, 5, 1), {"rotary_base": 1e6, "bias": True}),
    "mistral": ((3, 4, 7), (7, 4, 2), {"head_dim": 6, "rotary_base": 500.0}),
    "no positions": ((2, 3, 9), (9, 3, 3), {}),
    "one token": ((2, 1, 8), (8, 4, 2), {"rotary_base": 10000.0}),
}
each_case = pytest.mark.parametrize("case", CASES)


def made(case, dtype=np.float64):
    """The layer, PyTorch's copies of its parameters, and an input."""
    shape, sizes, settings = CASES[case]
    ta.manual_seed(1)
    layer = nn.GroupedQueryAttention(*sizes, **settings).astype(dtype)
    state = layer.state_dict().items()
    w = {name: torch.tensor(value.numpy(), requires_grad=True) for name, value in state}
    return layer, w, np.random.default_rng(2).standard_normal(shape).astype(dtype)


def masks(shape, heads):
    """(our arguments, what they add to the scores, is_causal) for each kind of mask."""
    b, t, _ = shape
    rng = np.random.default_rng(3)
    padding = np.zeros((b, t), bool)
    padding[:, 1:] = rng.random((b, t - 1)) < 0.5
    blocked, bias = ~np.tri(t, k=1, dtype=bool), rng.standard_normal((b * heads, t, t))
    added = lambda mask: torch.from_numpy(np.where(mask, -np.inf, 0.0))
    each_head = torch.from_numpy(bias).reshape(b, heads, t, t)
    return [
        ({}, 0.0, True),
        ({"is_causal": False}, 0.0, False),
        ({"key_padding_mask": padding}, added(padding)[:, None, None], True),
        ({"attn_mask": blocked, "is_causal": False}, added(blocked), False),
        ({"attn_mask": bias}, each_head, True),
        ({"attn_mask": bias, "key_padding_mask": padding, "is_causal": False},
         each_head + added(padding)[:, None, None], False),
    ]  # fmt: skip


@each_case
@pytest.mark.parametrize("plain", [False, True], ids=["kernels", "plain"])
def test_outputs_weights_and_every_gradient(case, plain):
    layer, w, x = made(case)
    for given, bias, causal in masks(x.shape, layer.num_heads):
        theirs_x = torch.tensor(x, requires_grad=True)
        theirs, weights = expected(w, theirs_x, layer, bias, causal)
        g = np.random.default_rng(4).standard_normal(x.shape)
        gradients = torch.autograd.grad(theirs, [theirs_x, *w.values()], torch.from_numpy(g))
        ours_x = ta.Tensor(x, requires_grad=True)
        with ta.plain() if plain else contextlib.nullcontext(), ta.record_attention() as seen:
            ours = layer(ours_x, **given)
            found = ta.grad(ours, [ours_x, *layer.parameters()], g)
        np.testing.assert_allclose(ours.numpy(), theirs.detach(), atol=1e-12)
        np.testing.assert_allclose(seen["GroupedQueryAttention"][0], weights.detach(), atol=1e-12)
        for one, other in zip(found, gradients, strict=True):
            np.testing.assert_allclose(one.numpy(), other, atol=1e-12)


@each_case
def test_gradients_are_slopes(case):
    layer, _, x = made(case)
    assert ta.gradcheck(layer, [x[:1, :3]], fast_mode=True)


@each_case
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_step_with_a_cache_gives_the_rows_of_the_whole(case, dtype):
    layer, w, _ = made(case, dtype)
    x = np.random.default_rng(5).standard_normal((2, 9, layer.embed_dim)).astype(dtype)
    padding = np.zeros((2, 9), bool)
    padding[1, :2] = True
    with torch.no_grad():
        bias = torch.from_numpy(np.where(padding, -np.inf, 0.0).astype(dtype))[:, None, None]
        whole, weights = expected(w, torch.from_numpy(x), layer, bias)
    cache = nn.KeyValueCache()
    for start, stop in [(0, 4), (4, 5), (5, 6), (6, 8), (8, 9)]:
        step = {"cache": cache, "key_padding_mask": padding[:, :stop]}
        with ta.no_grad(), ta.record_attention() as seen:
            y = layer(x[:, start:stop], **step).numpy()
        assert y.dtype == dtype and cache.length == stop
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        shown = weights[1, :, start:stop, :stop] if start >= 2 else None
        np.testing.assert_allclose(y[0], whole[0, start:stop], atol=tolerance)
        if shown is not None:  # earlier rows of the second sequence see nothing
            np.testing.assert_allclose(y[1], whole[1, start:stop], atol=tolerance)
            found = seen["GroupedQueryAttention"][0][1]
            np.testing.assert_allclose(found, shown, atol=tolerance)
    heads = 2 * layer.num_kv_heads * 9 * layer.head_dim
    assert cache.nbytes == 2 * heads * x.itemsize


def test_a_step_copies_no_keys():
    layer = nn.GroupedQueryAttention(32, 16, 1, rotary_base=10000.0)
    cache, x = nn.KeyValueCache(), ta.randn(1, 4096, 32)
    with ta.no_grad():
        layer(x, cache=cache)
        layer(x[:, :1], cache=cache)  # makes room for more tokens
        tracemalloc.start()
        layer(x[:, :1], cache=cache)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    scores = 16 * 4096 * 4
    assert peak < 2 * scores and cache.nbytes * 16 > 3 * peak


@pytest.mark.parametrize("given", ["(T, S)", "(B*H, T, S)"])
def test_gradient_of_a_mask(given):
    layer, w, x = made("llama")
    b, t, h = *x.shape[:2], layer.num_heads
    shape = (t, t) if given == "(T, S)" else (b * h, t, t)
    bias = np.random.default_rng(6).standard_normal(shape)
    theirs, ours = torch.tensor(bias, requires_grad=True), ta.Tensor(bias, requires_grad=True)
    added = theirs if theirs.ndim == 2 else theirs.reshape(b, h, t, t)
    expected(w, torch.from_numpy(x), layer, added)[0].square().sum().backward()
    (layer(x, attn_mask=ours) ** 2).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad, atol=1e-12)


def test_each_head_can_be_patched_and_hooked():
    layer, w, x = made("llama")
    without = np.ones(layer.num_heads * layer.head_dim)
    without[2:4] = 0  # head 1
    with ta.patch(layer, {"heads": lambda y: y * without}), ta.activations(layer) as seen:
        y = layer(x)
    with torch.no_grad():
        w["o_proj.weight"] *= torch.from_numpy(without)
        theirs, weights = expected(w, torch.from_numpy(x), layer)
    np.testing.assert_allclose(y.numpy(), theirs, atol=1e-12)
    np.testing.assert_allclose(seen[""].weights, weights, atol=1e-12)
    with layer.register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 2,)):
        inputs = ta.Tensor(x, requires_grad=True)
        doubled = ta.grad(layer(inputs).sum(), inputs)
    inputs = ta.Tensor(x, requires_grad=True)
    once = ta.grad(layer(inputs).sum(), inputs)
    np.testing.assert_allclose(np.asarray(doubled), 2 * np.asarray(once), atol=1e-12)


each_kind = pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mistral"])


def layer_of(kind):
    return nn.GroupedQueryAttention(16, 4, 2, 6, rotary_base=10000.0, bias=kind == "Qwen2")


@each_kind
def test_loads_strictly_by_hugging_faces_names(kind):
    # (out, in) of each weight: 4 heads of 6, 2 for keys
    shapes = {"q_proj": (24, 16), "k_proj": (12, 16), "v_proj": (12, 16), "o_proj": (16, 24)}
    names = {f"{name}.weight": shape for name, shape in shapes.items()}
    if kind == "Qwen2":
        names |= {f"{name}.bias": shapes[name][:1] for name in ("q_proj", "k_proj", "v_proj")}
    values = {name: np.ones(shape) for name, shape in names.items()}
    layer_of(kind).load_state_dict(values, strict=True)


@each_kind
def test_agrees_with_transformers(kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=5,
        intermediate_size=7, num_hidden_layers=1,
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").double()
    theirs, layer = model.layers[0].self_attn, layer_of(kind)
    layer.astype(np.float64).load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    positions = model.rotary_emb(x, torch.arange(5)[None])
    later = torch.where(torch.tril(torch.ones(5, 5)) == 1, 0.0, -torch.inf).double()
    y = theirs(x, positions, later[None, None])[0].detach()
    np.testing.assert_allclose(layer(x.numpy()).numpy(), y, atol=1e-6)  # their angles are float32


def test_rotary_of_any_shape_and_positions():
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    theirs = rotated(torch.from_numpy(x), 10000.0)
    np.testing.assert_allclose(F.rotary(x, np.arange(5)), theirs, atol=1e-14)
    np.testing.assert_allclose(F.rotary(ta.Tensor(x[0, 0]), range(5)).numpy(), theirs[0, 0])
    apart = np.array([[0, 1, 2, 3, 4], [2, 0, 3, 4, 1]])[:, None]  # (B, 1, T)
    np.testing.assert_allclose(F.rotary(x, apart)[1, :, 0], F.rotary(x, 2)[1, :, 0])
    assert F.rotary(x.astype(np.float32), np.arange(5)).dtype == np.float32
    assert ta.gradcheck(lambda x: F.rotary(x, np.arange(5)), [x], fast_mode=True)


@pytest.mark.parametrize("padding", [None, np.zeros((2, 0), bool)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_no_tokens_have_no_output(padding, is_causal):
    layer, x = nn.GroupedQueryAttention(8, 4, 2), ta.Tensor(np.ones((2, 0, 8)), requires_grad=True)
    y = layer(x, padding, is_causal=is_causal)
    y.sum().backward()
    assert y.shape == x.grad.shape == (2, 0, 8)
