"""`ta.compile` of a decoding step: one program for all lengths of a key/value cache, and the cache as without it."""

import copy

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn

pytestmark = pytest.mark.usefixtures("in_float64")


class Model(nn.Module):
    """Scores of the next token, from the new tokens and the cache."""

    def __init__(self, positions=nn.LearnedPositionalEncoding, longest=40):
        self.embed, self.positions = nn.Embedding(7, 8), positions(longest, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens, cache=None):
        x = self.positions(self.embed(tokens), offset=0 if cache is None else cache.length)
        return self.layers(x, is_causal=True, cache=cache) @ self.embed.weight.mT


TEXT = np.random.default_rng(0).integers(0, 7, (3, 40))


def written(f, prompt, end, cache, text=TEXT):
    """What f gives for the prompt, and for each token after it, with this cache."""
    with ta.no_grad():
        found = [f(text[:, :prompt], cache).numpy()[:, -1:]] if prompt else []
        start = prompt or cache.length
        found += [f(text[:, i : i + 1], cache).numpy() for i in range(start, end)]
    return np.concatenate(found, 1)


def programs(c):
    return [signature for signature in c.report() if signature.compiled]


def sinusoidal(longest, width):
    return nn.SinusoidalPositionalEncoding(width, longest)


@pytest.mark.parametrize("positions", [nn.LearnedPositionalEncoding, sinusoidal])
def test_one_program_for_all_lengths_and_all_caches(positions):
    model = Model(positions)
    c = ta.compile(model, measure=False, fullgraph=True)
    for prompt, end in ((4, 30), (1, 5), (11, 40)):
        cache = nn.KeyValueCache()
        expected = model(TEXT[:, :end]).numpy()[:, prompt - 1 :]
        np.testing.assert_allclose(written(c, prompt, end, cache), expected, rtol=1e-12, atol=1e-12)
        assert cache.length == end
    assert len(programs(c)) == 1
    assert {s.reason for s in c.report() if not s.compiled} == {
        "its cache has no tokens yet, so the function itself reads the first"
    }
    short = TEXT[:1]  # another batch is another program
    expected = model(short[:, :9]).numpy()[:, 1:]
    mine = written(c, 2, 9, nn.KeyValueCache(), short)
    np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)
    assert len(programs(c)) == 2


def test_a_decoder_and_its_memory():
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    decoder, rng = nn.TransformerDecoder(layer, 2), np.random.default_rng(1)
    x, memory = ta.Tensor(rng.standard_normal((2, 9, 8))), ta.Tensor(rng.standard_normal((2, 5, 8)))

    @ta.compile(measure=False)
    def step(new, memory, *, cache):
        return decoder(new, memory, tgt_is_causal=True, cache=cache)

    expected = decoder(x, memory, tgt_is_causal=True).numpy()
    for _ in range(2):
        cache = nn.KeyValueCache()
        with ta.no_grad():
            for i in range(9):
                mine = step(x[:, i : i + 1], memory, cache=cache).numpy()
                np.testing.assert_allclose(mine, expected[:, i : i + 1], rtol=1e-12, atol=1e-12)
    assert len(programs(step)) == 1
    with ta.no_grad(), pytest.raises(ValueError, match="memory must stay the same"):
        step(x[:, :1], memory * 2, cache=cache)


def test_copies_beams_and_parameters_that_change():
    model = Model()
    c = ta.compile(model, measure=False)
    cache, other = nn.KeyValueCache(), nn.KeyValueCache()
    for f, given in ((c, cache), (model, other)):
        written(f, 3, 6, given)
        branch = copy.copy(given)
        given.reorder([2, 0, 0])
        model.embed.weight.data[0] += 1
        given.results = [written(f, 0, 9, given), written(f, 0, 12, branch)]
        model.embed.weight.data[0] -= 1
    for mine, expected in zip(cache.results, other.results, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)
    assert len(programs(c)) == 1


def test_a_call_that_fails_leaves_the_cache_as_it_was():
    model = Model(longest=6)
    c = ta.compile(model, measure=False)
    for _ in range(2):
        cache = nn.KeyValueCache()
        written(c, 3, 6, cache)
        with pytest.raises(ValueError, match="max_len=6"):
            written(c, 0, 7, cache)
        assert cache.length == 6
    assert len(programs(c)) == 1


def test_scores_that_overflow_half_way_through_the_layers():
    model = Model()
    c, cache, other = ta.compile(model, measure=False), nn.KeyValueCache(), nn.KeyValueCache()
    written(c, 3, 6, cache)
    written(model, 3, 6, other)
    with ta.no_grad():
        model.layers.layers[1].self_attn.in_proj_weight.data[:] *= 1e3
        for i in range(6, 9):
            mine, expected = (f(TEXT[:, i : i + 1], k) for f, k in ((c, cache), (model, other)))
            np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-10, atol=1e-10)
    assert cache.length == 9 and len(programs(c)) == 1


def test_the_length_as_a_number_and_two_caches():
    first, second = Model(), Model(longest=60)

    def f(tokens, a, b):
        before = b.length
        y = first(tokens, a) * (1 + before) + second(tokens, b) / (1 + b.length)
        return y * (a.length - before)

    c = ta.compile(f, measure=False, fullgraph=True)
    with ta.no_grad():
        for length in (1, 3):
            mine, others = ([nn.KeyValueCache(), nn.KeyValueCache()] for _ in range(2))
            for model, cache in zip((first, second) * 2, mine + others):
                model(TEXT[:, : length + (model is second)], cache)  # of different lengths
            for i in range(5, 9):
                y, expected = (
                    g(TEXT[:, i : i + 1], *k).numpy() for g, k in ((c, mine), (f, others))
                )
                np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
            one = nn.KeyValueCache(), nn.KeyValueCache()
            for cache in one:
                first(TEXT[:, :2], cache)
            two = lambda tokens, a, b: (
                first(tokens, a) if a is b else first(tokens, a) - first(tokens, b)
            )
            d, again = ta.compile(two, measure=False), [copy.copy(cache) for cache in one]
            for i, j in ((0, 1), (1, 0), (0, 0), (1, 1), (0, 1)):
                y, expected = (
                    g(TEXT[:, :1], k[i], k[j]).numpy() for g, k in ((d, one), (two, again))
                )
                np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    assert len(programs(c)) == 1 and len(programs(d)) == 2


def refused(f, *args):
    """Why f is not compiled, of a call whose numbers are those of f; args make the arguments."""
    c, cache, other = ta.compile(f, measure=False), nn.KeyValueCache(), nn.KeyValueCache()
    for new in args:
        mine, expected = c(new, cache), f(new, other)
        np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)
    return c.report()[-1].reason


def test_what_depends_on_the_length_is_refused():
    model = Model()
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def branches(x, cache):
        y = model(x, cache)
        return y * 2 if cache.length > 3 else y

    def counts(x, cache):
        return model(x, cache) / len(range(cache.length))

    def weighs(x, cache):
        y = model.embed(x)
        y, weights = attention(y, y, y, is_causal=True, cache=cache)
        return y if weights.shape[-1] > 4 else -y

    def twice(x, cache):
        y = model.embed(x)
        y = attention(y, y, y, need_weights=False, is_causal=True, cache=cache)[0]
        return attention(y, y, y, need_weights=False, is_causal=True, cache=cache)[0]

    def own(x, cache):
        k, v = cache.extend(attention, *[model.embed(x).reshape(3, 1, -1, 8)] * 2)
        return k + v if k.shape[-2] > 4 else k - v

    def size(x, cache):
        return model(x, cache) * cache.nbytes

    one, two = TEXT[:, :1], TEXT[:, 1:2]
    with ta.no_grad():
        assert "reads a number" in refused(branches, one, two)
        assert "as an index or a size" in refused(counts, one, two)
        assert "attention for weights" in refused(weighs, one, two)
        assert "calls an attention module twice" in refused(twice, one, two)
        assert "asks a cache for its keys itself" in refused(own, one, two)
        assert "kept of a cache" in refused(size, one, two)
        several = refused(model, one, TEXT[:, 1:4])  # whose mask grows with the length
        assert several == "its program depends on how many tokens the cache has"
    assert "under ta.no_grad() only" in refused(model, one, two)
    held = nn.KeyValueCache()
    c = ta.compile(lambda x: model(x, held))
    c(one)
    assert "held, a KeyValueCache" in c.report()[0].reason


def test_softmax_is_not_written_twice_for_the_layers_above():
    """What guards ask in the second layer is computed from the first one as the results are."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = ta.Tensor(np.random.default_rng(0).standard_normal((2, 5, 8)), requires_grad=True)
    lines = []
    for count in (1, 2, 3):
        model = nn.TransformerEncoder(layer, count)
        c = ta.compile(lambda x, model=model: F.mse_loss(model(x), 0 * x), measure=False)
        c(x)
        lines.append(c.report()[0].lines)
    assert lines[2] - lines[1] <= lines[1] - lines[0] + 2
