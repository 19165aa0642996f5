"""KeyValueCache: what it refuses, what a call that failed leaves in it, and copies."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, no_grad
from tinygrad_attn import random as ta_random
from tinygrad_attn.tree import tree_leaves


def attention(**options):
    return nn.MultiheadAttention(8, 2, batch_first=True, **options)


def encoder(layers=2):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), layers
    ).eval()


def step(layer, x, t, cache, **named):
    """The output for token t alone."""
    new = x[:, t : t + 1]
    return layer(new, new, new, is_causal=True, cache=cache, **named)[0].numpy()[:, 0]


@pytest.mark.parametrize(
    "first, second",
    [(slice(0, 3), slice(3, 4)), (slice(0, 1), slice(1, 2))],
    ids=["other length", "same length"],
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_three_slices_are_no_self_attention(first, second, batch_first):
    layer, x, cache = (
        nn.MultiheadAttention(8, 2, batch_first=batch_first),
        ta_random.randn(4, 4, 8),
        nn.KeyValueCache(),
    )
    part = lambda s: x[:, s] if batch_first else x[s]
    layer(part(first), part(first), part(first), cache=cache)
    with pytest.raises(
        ValueError,
        match="pass the same object as query, key and value.*same memory.*a new KeyValueCache",
    ):
        layer(part(second), part(second), part(second), cache=cache)


def test_a_module_has_either_its_own_tokens_or_a_memory_in_the_cache():
    layer, x, memory = attention(), ta_random.randn(2, 1, 8), ta_random.randn(2, 3, 8)
    for calls in ([(x, x), (x, memory)], [(x, memory), (x, x)]):
        cache = nn.KeyValueCache()
        layer(calls[0][0], calls[0][1], calls[0][1], cache=cache)
        with pytest.raises(ValueError, match="pass the same object as query"):
            layer(calls[1][0], calls[1][1], calls[1][1], cache=cache)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_memory_that_stays_the_same_may_be_another_object(batch_first):
    layer, x, memory = (
        nn.MultiheadAttention(8, 2, batch_first=batch_first),
        ta_random.randn(2, 2, 8),
        ta_random.randn(2, 2, 8),
    )
    cache, expected = nn.KeyValueCache(), layer(x, memory, memory)[0].numpy()
    for again in (memory, memory, memory[:], memory.numpy().copy()):
        np.testing.assert_array_equal(layer(x, again, again, cache=cache)[0].numpy(), expected)
    with pytest.raises(ValueError, match="same memory to cross-attention"):
        layer(x, memory, memory * 2, cache=cache)  # other values for the same keys
    with pytest.raises(ValueError, match="same memory to cross-attention"):
        layer(x, memory * 2, memory, cache=cache)


def test_a_mask_of_a_later_token_is_not_taken_for_the_causal_one():
    """np.triu(np.ones((1, 3)), 1) is the mask of the first of three tokens, but here of the last."""
    layer, x, cache = attention(), ta_random.randn(2, 3, 8), nn.KeyValueCache()
    mask = np.array([[False, True, True]] * 3)
    expected = layer(x, x, x, attn_mask=mask)[0].numpy()[:, 2]
    first, last = x[:, :2], x[:, 2:]
    layer(first, first, first, cache=cache)
    found = layer(last, last, last, attn_mask=mask[2:], cache=cache)[0].numpy()[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(key_padding_mask=np.zeros((2, 9), bool)),
        dict(attn_mask=np.zeros((9, 9), bool)),
        dict(attn_mask=np.zeros((1, 4), int)),
    ],
)
def test_a_mask_that_is_refused_leaves_no_token_behind(wrong):
    layer, x, cache = attention(add_zero_attn=True), ta_random.randn(2, 4, 8), nn.KeyValueCache()
    whole = layer(x, x, x, is_causal=True)[0].numpy()
    for t in range(4):
        with pytest.raises((ValueError, TypeError), match="mask"):
            step(layer, x, t, cache, **wrong)
        np.testing.assert_allclose(step(layer, x, t, cache), whole[:, t], rtol=1e-5, atol=1e-6)
    assert cache.length == 4


def test_a_cache_counts_its_tokens_and_bytes_from_none_on():
    layer, x, cache = attention(), ta_random.randn(2, 4, 8), nn.KeyValueCache()
    for t in range(4):
        assert cache.length == cache.past(layer) == t
        assert cache.nbytes == t * 2 * 2 * 8 * 4  # keys and values of two sequences, float32
        step(layer, x, t, cache)
    assert cache.length == copy.copy(cache).length == 4


def test_gradients_flow_through_the_tokens_in_a_cache():
    model, cache = encoder(), nn.KeyValueCache()
    x = Tensor(ta_random.randn(2, 4, 8), requires_grad=True)
    steps = [model(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(4)]
    inputs = [x, *model.parameters()]
    found = ta.grad((np.concatenate(steps, axis=1) ** 3).sum(), inputs)
    expected = ta.grad((model(x, is_causal=True) ** 3).sum(), inputs)
    for ours, of_whole in zip(found, expected):
        np.testing.assert_allclose(ours.numpy(), of_whole.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode, shares", [(no_grad, True), (ta.enable_grad, False)])
def test_only_tokens_without_a_gradient_are_written_to_spare_memory(mode, shares):
    layer, x, cache, arrays = attention(), ta_random.randn(2, 3, 8), nn.KeyValueCache(), []
    with mode():
        for t in range(3):
            step(layer, x, t, cache)
            arrays.append(cache._entries[layer].v._data)
    assert np.shares_memory(arrays[1], arrays[2]) is shares


def test_a_mask_that_an_encoder_refuses_leaves_no_token_behind():
    model, x, cache = encoder(), ta_random.randn(2, 4, 8), nn.KeyValueCache()
    model(x[:, :3], is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="attn_mask must have the shape"):
        model(
            x[:, 3:], np.zeros((1, 1), bool), is_causal=True, cache=cache
        )  # causal, but of new tokens alone
    with pytest.raises(ValueError, match="key_padding_mask must have the shape"):
        model(x[:, 3:], src_key_padding_mask=np.zeros((2, 1), bool), is_causal=True, cache=cache)
    out = model(x[:, 3:], src_key_padding_mask=np.zeros((2, 4), bool), is_causal=True, cache=cache)
    np.testing.assert_allclose(
        out.numpy()[:, 0], model(x, is_causal=True).numpy()[:, 3], rtol=1e-5, atol=1e-6
    )


class Scored(nn.Module):
    """A model around an encoder-decoder that generates: what fails may lie after every attention."""

    def __init__(self):
        self.encoder = encoder()
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2
        )
        self.scores = nn.Linear(8, 5)

    def forward(self, x, cache=None):
        cached = {} if cache is None else {"cache": cache}
        memory = np.ones((2, 3, 8), np.float32)
        x = self.encoder(x, is_causal=True, **cached)
        return self.scores(self.decoder(x, memory, tgt_is_causal=True, **cached))


CALLED = [n for n, m in Scored().named_modules() if not isinstance(m, nn.ModuleList)]


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("when, before", [("forward_pre_hook", 2), ("forward_hook", 0)])
@pytest.mark.parametrize("name", CALLED)
def test_a_call_that_failed_can_be_repeated(name, when, before):
    """Wherever it failed: before, in the middle of or after the layers."""
    model, x, cache = Scored().eval(), ta_random.randn(2, 4, 8), nn.KeyValueCache()
    expected = model(x).numpy()
    if before:
        model(x[:, :before], cache)
    for _ in range(2):
        register = getattr(dict(model.named_modules())[name], f"register_{when}")
        with register(interrupted), pytest.raises(KeyboardInterrupt):
            model(x[:, before : before + 1], cache)
        assert cache.length == copy.copy(cache).length == before
        assert cache.nbytes == (4 * before + 2 * 3 * bool(before)) * 2 * 2 * 8 * 4
    for t in range(before, 4):
        found = model(x[:, t : t + 1], cache).numpy()[:, 0]
        np.testing.assert_allclose(found, expected[:, t], rtol=1e-4, atol=1e-5)
    assert cache.length == 4


def test_a_call_that_goes_on_after_a_failed_part_drops_only_that_part():
    class Fallible(nn.Module):
        def __init__(self):
            self.first, self.second = encoder(1), encoder(1)

        def forward(self, x, cache):
            y = self.first(x, is_causal=True, cache=cache)
            register = self.second.layers[0].linear2.register_forward_pre_hook
            with register(interrupted), pytest.raises(KeyboardInterrupt):
                self.second(y, is_causal=True, cache=cache)
            return self.second(y, is_causal=True, cache=cache)

    model, x, cache = Fallible(), ta_random.randn(2, 3, 8), nn.KeyValueCache()
    expected = model.second(model.first(x, is_causal=True), is_causal=True).numpy()
    for t in range(3):
        out = model(x[:, t : t + 1], cache).numpy()[:, 0]
        np.testing.assert_allclose(out, expected[:, t], rtol=1e-4, atol=1e-5)


def test_a_copy_made_in_a_failed_call_is_not_changed_by_the_next_call():
    model, x, cache, copies = encoder(1), ta_random.randn(2, 6, 8), nn.KeyValueCache(), []
    expected = model(x, is_causal=True).numpy()[:, 5]
    look = lambda *_: copies.append(copy.copy(cache)) or interrupted()
    with no_grad():
        for t in range(4):
            model(x[:, t : t + 1], is_causal=True, cache=cache)
        linear = model.layers[0].linear1
        with linear.register_forward_pre_hook(look), pytest.raises(KeyboardInterrupt):
            model(x[:, 4:5], is_causal=True, cache=cache)
        model(x[:, 4:5] * 9, is_causal=True, cache=cache)
        assert copies[0].length == cache.length == 5
        found = model(x[:, 5:], is_causal=True, cache=copies[0]).numpy()[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_loop_of_tokens_inside_a_module_fails_as_a_whole():
    class Generator(nn.Module):
        def __init__(self):
            self.model, self.fails = encoder(), True

        def forward(self, x, cache):
            for t in range(x.shape[1]):
                y = self.model(x[:, t : t + 1], is_causal=True, cache=cache)
            if self.fails:
                raise ZeroDivisionError
            return y

    generator, x, cache = Generator(), ta_random.randn(2, 7, 8), nn.KeyValueCache()
    generator.model(x[:, :2], is_causal=True, cache=cache)
    with no_grad(), pytest.raises(ZeroDivisionError):
        generator(x[:, 2:], cache)
    generator.fails = False
    assert cache.length == 2
    expected = generator.model(x, is_causal=True).numpy()[:, 6:]
    np.testing.assert_allclose(generator(x[:, 2:], cache).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f, *a, **k: f(*a, **k), ta.checkpoint])
@pytest.mark.parametrize("memory", [False, True])
def test_a_graph_with_a_cache_is_freed_with_its_last_reference(wrap, memory):
    """The collector of cycles has nothing to do: a node of the cached keys does not lead back."""
    x = Tensor(np.ones((1, 2, 8)), requires_grad=True)
    layer, inputs = (
        (attention(), (x, x + 1, x + 1)) if memory else (nn.GroupedQueryAttention(8, 2, 1), (x,))
    )
    gc.disable()
    try:
        cache = nn.KeyValueCache()
        left, y = weakref.ref(cache), wrap(layer, *inputs, cache=cache)
        if wrap is ta.checkpoint:
            (y if type(y) is Tensor else y[0]).sum().backward()
        del cache, y
        assert left() is None
    finally:
        gc.enable()


def test_a_forward_that_was_not_called_as_a_module_is_found_out():
    """Without a call of a module there is nothing that the cache could undo."""
    first, second, x, cache = attention(), attention(), ta_random.randn(2, 1, 8), nn.KeyValueCache()
    for _ in range(2):
        first.forward(x, x, x, cache=cache)
    with pytest.raises(ValueError, match="an earlier call failed, create a new KeyValueCache"):
        second.forward(x, x, x, cache=cache)


@pytest.mark.parametrize("past", [1, 3])
def test_a_model_and_its_cache_are_copied_together(past):
    """With as many tokens again, a cache that names the old modules would pass for a fresh one."""
    model, x, cache = encoder(), ta_random.randn(2, 2 * past, 8), nn.KeyValueCache()
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1
    ).eval()
    with no_grad():
        expected = decoder(model(x, is_causal=True), x, tgt_is_causal=True).numpy()[:, past:]
        decoder(model(x[:, :past], is_causal=True, cache=cache), x, tgt_is_causal=True, cache=cache)
        for a, b, kept in (copy.deepcopy((model, decoder, cache)), (model, decoder, cache)):
            found = b(a(x[:, past:], is_causal=True, cache=kept), x, tgt_is_causal=True, cache=kept)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


class Named(nn.KeyValueCache):
    name = "unknown"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_has_the_attributes_of_a_subclass(copied):
    cache = Named()
    cache.name = "prompt"
    assert copied(cache).name == "prompt" and copied(cache).length == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    "arranged",
    [
        lambda cache, model: (cache, model),
        lambda cache, model: [{"cache": cache}, model],
        lambda cache, model: {"model": model, "cache": cache},
    ],
)
def test_a_cache_may_be_copied_before_its_model(arranged, copied):
    model, x, cache = encoder(1), ta_random.randn(1, 2, 8), nn.KeyValueCache()
    with no_grad():
        expected = model(x, is_causal=True).numpy()[:, 1:]
        model(x[:, :1], is_causal=True, cache=cache)
        whole = copied(arranged(cache, model))
        whole = copied(copy.copy(whole))  # and copied again before its first use
        parts = {type(part): part for part in tree_leaves(whole)}
        found = parts[type(model)](x[:, 1:], is_causal=True, cache=parts[nn.KeyValueCache])
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
        alone = copy.deepcopy(copy.deepcopy({"beam": cache}))["beam"]
        found = model(x[:, 1:], is_causal=True, cache=alone)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
        assert (cache.length, alone.length) == (1, 2)


@pytest.mark.parametrize("tokens", [0, 2])
def test_the_second_run_of_a_checkpoint_begins_with_the_first_ones_cache(tokens):
    layer = nn.GroupedQueryAttention(8, 4, 2, rotary_base=100.0).astype(np.float64)
    random = np.random.default_rng(0)
    earlier, new = (Tensor(random.standard_normal((1, n, 8))) for n in (tokens or 1, 3))
    results = []
    for run in (lambda f, *args, **keywords: f(*args, **keywords), ta.checkpoint):
        cache, x = nn.KeyValueCache(), Tensor(new, requires_grad=True)
        if tokens:
            with ta.no_grad():
                layer(earlier, cache=cache)
        (run(layer, x, cache=cache) ** 2).sum().backward()
        assert cache.length == tokens + 3
        results.append(x.grad.numpy())
    np.testing.assert_allclose(*results)
