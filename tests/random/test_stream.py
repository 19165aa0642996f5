"""The stream of random numbers is PyTorch's, whatever is drawn in whatever order."""

import copy
import math
import pickle

import numpy as np
import pytest
from support import each, require

from tinygrad_attn import Tensor, nn, random
from tinygrad_attn.random import Generator

torch = require("torch")

# name: (draw with torch, draw with ours, largest difference allowed)
DRAWS = {
    "rand 1": (lambda: torch.rand(1), lambda: random.rand(1), 0),
    "rand 2x3x5": (lambda: torch.rand(2, 3, 5), lambda: random.rand(2, 3, 5), 0),
    "rand 700": (lambda: torch.rand(700), lambda: random.rand(700), 0),
    "rand float64": (
        lambda: torch.rand(7, dtype=torch.float64),
        lambda: random.rand(7, dtype=np.float64),
        0,
    ),
    "rand none": (lambda: torch.rand(0, 3), lambda: random.rand(0, 3), 0),
    "randn 1": (lambda: torch.randn(1), lambda: random.randn(1), 0),
    "randn scalar": (lambda: torch.randn(()), lambda: random.randn(()), 0),
    "randn 3x1x4": (lambda: torch.randn(3, 1, 4), lambda: random.randn(3, 1, 4), 0),
    "randn 15": (lambda: torch.randn(15), lambda: random.randn(15), 0),
    "randn 16": (lambda: torch.randn(16), lambda: random.randn(16), 1.1e-6),
    "randn 17": (lambda: torch.randn(17), lambda: random.randn(17), 1.1e-6),
    "randn 40x25": (lambda: torch.randn(40, 25), lambda: random.randn(40, 25), 1.1e-6),
    "randn float64 5": (
        lambda: torch.randn(5, dtype=torch.float64),
        lambda: random.randn(5, dtype=np.float64),
        0,
    ),
    "randn float64 37": (
        lambda: torch.randn(37, dtype=torch.float64),
        lambda: random.randn(37, dtype=np.float64),
        2e-15,
    ),
    "randint": (lambda: torch.randint(7, (9,)), lambda: random.randint(7, (9,)), 0),
    "randint from": (
        lambda: torch.randint(-5, 9, (2, 3)),
        lambda: random.randint(-5, 9, (2, 3)),
        0,
    ),
    "randint size=": (lambda: torch.randint(7, size=(9,)), lambda: random.randint(7, size=(9,)), 0),
    "randint high=": (
        lambda: torch.randint(high=7, size=(9,)),
        lambda: random.randint(high=7, size=(9,)),
        0,
    ),
    "randint below 2^28": (
        lambda: torch.randint(2**28 - 1, (5,)),
        lambda: random.randint(2**28 - 1, (5,)),
        0,
    ),
    "randint 2^28": (lambda: torch.randint(2**28, (5,)), lambda: random.randint(2**28, (5,)), 0),
    "randint 2^40": (lambda: torch.randint(2**40, (5,)), lambda: random.randint(2**40, (5,)), 0),
    "randperm 0": (lambda: torch.randperm(0), lambda: random.randperm(0), 0),
    "randperm 1": (lambda: torch.randperm(1), lambda: random.randperm(1), 0),
    "randperm 50": (lambda: torch.randperm(50), lambda: random.randperm(50), 0),
}


def assert_equal(name: str) -> None:
    theirs, ours, tolerance = DRAWS[name]
    theirs, ours = theirs().numpy(), ours()._data
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", DRAWS)
@each("seed", [0, 42, 2**32 - 1])
def test_each_draw_after_a_seed(name, seed):
    torch.manual_seed(seed)
    random.manual_seed(seed)
    assert_equal(name)
    assert_equal("rand 2x3x5")  # as many words were consumed


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_draws(seed):
    order = np.random.default_rng(seed).choice(list(DRAWS), 40)
    torch.manual_seed(seed)
    random.manual_seed(seed)
    for name in order:
        assert_equal(name)


def test_the_spare_normal_survives_other_draws_but_not_a_seed():
    torch.manual_seed(3)
    random.manual_seed(3)
    for name in (
        "randn 1",
        "rand 1",
        "randn 17",
        "randn float64 5",
        "randperm 50",
        "randn 1",
        "randn 1",
    ):
        assert_equal(name)
    assert_equal("randn 1")
    torch.manual_seed(3)
    random.manual_seed(3)
    assert_equal("randn 1")


@pytest.mark.parametrize(
    "low, high", [(-0.04, 0.04), (-1 / 3, 1 / 3), (0.1, 0.9), (-0.5, 1.7), (2, 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_between_bounds(low, high, dtype):
    torch.manual_seed(5)
    theirs = torch.empty(5000, dtype=getattr(torch, dtype)).uniform_(low, high).numpy()
    ours = Generator(5).uniform(5000, low, high, dtype)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=0 if dtype == "float32" else 3e-16)


def test_half_precision_never_reaches_the_open_end():
    torch.manual_seed(5)
    theirs = torch.empty(20000, dtype=torch.float16).uniform_(0, 1).numpy()
    ours = Generator(5).uniform(20000, dtype=np.float16)
    assert ours.dtype == np.float16 and ours.max() < 1
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("size", [5, 100])
@pytest.mark.parametrize("std", [2.5, 0.0])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 3e-6), ("float64", 3e-15)])
def test_normal_with_mean_and_std(size, std, dtype, tolerance):
    torch.manual_seed(5)
    theirs = torch.empty(size, dtype=getattr(torch, dtype)).normal_(1.5, std).numpy()
    np.testing.assert_allclose(
        Generator(5).normal(size, 1.5, std, dtype), theirs, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("shape", [(1,), (6, 6), (4, 5, 70)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_masks_are_torchs(shape, p):
    torch.manual_seed(11)
    random.manual_seed(11)
    theirs = torch.empty(shape).bernoulli_(1 - p).numpy().astype(bool)
    np.testing.assert_array_equal(random.default_generator().bernoulli(shape, 1 - p), theirs)
    assert_equal("rand 1")
    torch.manual_seed(11)
    theirs = torch.nn.functional.dropout(torch.ones(shape), p).numpy() != 0
    np.testing.assert_array_equal(Generator(11).bernoulli(shape, 1 - p), theirs)


@pytest.mark.parametrize("seed", [-1, -5, 2**40 + 3, 2**64 - 1, np.int64(9)])
def test_unusual_seeds(seed):
    torch.manual_seed(int(seed))
    random.manual_seed(seed)
    assert_equal("rand 700")


def test_unseeded_is_torchs_default_seed():
    torch.manual_seed(torch.Generator().initial_seed())
    np.testing.assert_array_equal(Generator().uniform(9), torch.rand(9).numpy())


def test_state_round_trip_goes_on_identically():
    generator = Generator(1)
    generator.normal(3)  # leaves a spare normal
    state = generator.get_state()
    expected = [generator.normal(5), generator.uniform(700), generator.permutation(20)]
    other = Generator(99)
    other.set_state(state)
    for ours, theirs in zip([other.normal(5), other.uniform(700), other.permutation(20)], expected):
        np.testing.assert_array_equal(ours, theirs)
    generator.set_state(state)  # drawing did not change the saved arrays
    np.testing.assert_array_equal(generator.normal(5), expected[0])


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_is_a_stream_of_its_own(copied):
    generator = Generator(1)
    generator.normal(3)  # leaves a spare normal
    other = copied(generator)
    expected = [generator.normal(5), generator.uniform(700)]
    for mine, its in zip([other.normal(5), other.uniform(700)], expected):
        np.testing.assert_array_equal(mine, its)


def test_state_that_is_none_is_refused():
    state = Generator(1).get_state()
    for none in (
        3,
        None,
        [],
        {**state, "position": None},
        {**state, "spare_normal": None},
        {**state, "key": [None]},
        {**state, "key": np.zeros(3)},
        {**state, "position": 700},
    ):
        with pytest.raises((ValueError, TypeError, KeyError)):
            Generator().set_state(none)


@pytest.mark.parametrize("p", [0.0, 0.1, 1 / 3, 0.5, 0.9, 1 - 2**-30, 1.0])
def test_bernoulli_compares_all_53_bits_also_where_the_first_word_ties(p, monkeypatch):
    limit = math.ceil(p * 2.0**53)
    k = np.array(
        [max(limit + step, 0) % 2**53 for step in (-(2**32), -2, -1, 0, 1, 2**32)] + [0, 2**53 - 1],
        np.uint64,
    )
    words = (
        np.stack([k >> np.uint64(32), k & np.uint64(2**32 - 1)], axis=1)
        .reshape(-1)
        .astype(np.uint32)
    )
    words[0::2] |= np.uint32(0xABC) << np.uint32(21)  # the bits above are not looked at
    generator = Generator(3)
    monkeypatch.setattr(generator, "_words", lambda count: words[:count])
    np.testing.assert_array_equal(generator.bernoulli(len(k), p), k < limit)


@pytest.mark.parametrize("count", [1, 999, 1000, 5000])
def test_words_are_the_twisters_however_many_are_drawn(count):
    generator, words = Generator(3), np.random.RandomState(3)._bit_generator
    for _ in range(3):
        np.testing.assert_array_equal(generator._words(count), words.random_raw(count))


def test_default_dtype_and_gradient():
    x = random.rand(2, 3, requires_grad=True)
    assert (
        x.dtype == np.float32 and x.requires_grad and x.shape == random.rand((2, 3)).shape == (2, 3)
    )


@pytest.mark.parametrize(
    "kind",
    [np.uint8, np.asarray, lambda n: Tensor(np.asarray(n))],
    ids=["uint8", "array", "Tensor"],
)
def test_whole_numbers_of_every_kind_are_bounds(kind):
    random.manual_seed(3)
    bounded, mixed = random.randint(kind(3), kind(10), (5,)), random.randperm(kind(7))
    torch.manual_seed(3)
    np.testing.assert_array_equal(bounded, torch.randint(3, 10, (5,)))
    np.testing.assert_array_equal(mixed, torch.randperm(7))


def test_a_whole_encoder_layer_has_torchs_weights():
    torch.manual_seed(42)
    random.manual_seed(42)
    assert_equal("randn 3x1x4")
    theirs = torch.nn.TransformerEncoderLayer(4, 2, 8).state_dict()
    ours = nn.TransformerEncoderLayer(4, 2, 8).state_dict()
    for name, value in theirs.items():
        np.testing.assert_array_equal(np.asarray(ours[name]), value.numpy(), err_msg=name)
    assert_equal("rand 700")
