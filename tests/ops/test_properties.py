"""Properties that hold for every op and every function of `functional`, run from the one table in optable.py.

Derivatives are checked twice: against PyTorch, and, to second order, against differences of values taken here, by code
that shares nothing with the package's own checker.  Cotangents and directions are random: softmax and layer norm would
pass a test with ones.
"""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import BY_CONVENTION, TABLE, torch

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, manual_seed, ops, plain, rand

quick = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
TOLERANCE = {np.float64: 1e-9, np.float32: 3e-4}


def layouts(array):
    """The same numbers, differently placed in memory."""
    return [
        array,
        array.T.copy().T,
        np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
        array[..., ::-1].copy()[..., ::-1] if array.ndim else array,
    ]


def leaf(array):
    return Tensor._of(array, requires_grad=True)  # without the copy that would put it in order


def gradients(y, inputs, cotangent, **settings):
    """All gradients as arrays; zeros where there is none."""
    none = [None] * len(inputs)
    found = grad(y, inputs, cotangent, allow_unused=True, **settings) if y.requires_grad else none
    pairs = zip(found, inputs, strict=True)
    return [np.zeros(x.shape, x.dtype) if g is None else g.numpy() for g, x in pairs]


def random_like(shape, seed, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- against PyTorch, and with good manners


@pytest.mark.parametrize("name", TABLE)
@quick
@given(data=st.data())
def test_values_and_gradients_are_pytorchs_and_nothing_given_is_changed(name, data):
    sample, where = TABLE[name](data.draw), data.draw(st.integers(0, 3), label="layout")
    for dtype, tolerance in TOLERANCE.items():
        arrays = [layouts(x.astype(dtype))[where] for x in sample.inputs]
        before = [x.copy() for x in arrays]
        mine, theirs = [leaf(x) for x in arrays], [torch.tensor(x.copy()) for x in arrays]
        expected = sample.theirs(*(x.requires_grad_() for x in theirs))
        value = sample.ours(*mine)
        cotangent = random_like(value.shape, 1, dtype)
        kept = cotangent.copy()
        assert_close(value.numpy(), expected.detach().numpy(), dtype, tolerance, "value")
        if expected.requires_grad:  # else the slope is 0 everywhere, in the shape of each input
            expected.backward(torch.from_numpy(kept))
        slopes = [np.zeros(x.shape, dtype) if x.grad is None else x.grad.numpy() for x in theirs]
        for create_graph in (False, True):
            y = sample.ours(*mine)
            found = gradients(y, mine, cotangent, create_graph=create_graph)
            for i, (g, slope) in enumerate(zip(found, slopes, strict=True)):
                assert_close(g, slope, dtype, tolerance, f"gradient {i}")
                others = [*found[:i], *found[i + 1 :], *arrays, cotangent, y.numpy()]
                assert not g.size or not any(np.shares_memory(g, other) for other in others)
        assert np.array_equal(cotangent, kept)
        assert all(np.array_equal(x, b, equal_nan=True) for x, b in zip(arrays, before))


def assert_close(a, b, dtype, tolerance, what):
    assert a.dtype == dtype and a.shape == b.shape, (
        f"{what}: {a.shape} {a.dtype}, not {b.shape} {np.dtype(dtype)}"
    )
    atol = tolerance * max(1, np.abs(b[np.isfinite(b)]).max(initial=0))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=atol, err_msg=what)


# ---- against differences of values


STEP = 1e-5


def slope(f, inputs, direction):
    """The derivative of the number f(*inputs) along a direction, from values to either side."""
    ahead, behind = (
        [x + sign * STEP * v for x, v in zip(inputs, direction, strict=True)] for sign in (1, -1)
    )
    return (f(*ahead) - f(*behind)) / (2 * STEP)


def assert_agree(gradient, direction, measured, what):
    products = [g * v for g, v in zip(gradient, direction, strict=True)]
    predicted = sum(float(p.sum()) for p in products)
    size = 1 + sum(float(np.abs(p).sum()) for p in products)
    assert abs(predicted - measured) <= 1e-6 * size, (
        f"{what}: the rule says {predicted}, differences of values say {measured}"
    )


@pytest.mark.parametrize("name", [name for name in TABLE if name not in BY_CONVENTION])
@quick
@given(data=st.data())
def test_first_and_second_derivatives_are_the_slopes_of_values(name, data):
    sample = TABLE[name](data.draw)
    inputs = sample.inputs
    directions = [
        np.where(np.isfinite(x), random_like(x.shape, 10 + i), 0) for i, x in enumerate(inputs)
    ]
    weights = [random_like(x.shape, 20 + i) for i, x in enumerate(inputs)]
    mine = [leaf(x) for x in inputs]
    y = sample.ours(*mine)
    cotangent = random_like(y.shape, 2)

    def value(*arrays):
        return float((cotangent * np.asarray(sample.ours(*map(Tensor._of, arrays)).numpy())).sum())

    def weighed_gradient(*arrays):
        leaves = [leaf(np.asarray(x)) for x in arrays]
        found = gradients(sample.ours(*leaves), leaves, cotangent)
        return sum(float((w * g).sum()) for w, g in zip(weights, found, strict=True))

    first = gradients(y, mine, cotangent, retain_graph=True)
    second = None
    if y.requires_grad:
        slopes = grad(y, mine, Tensor(cotangent), create_graph=True, allow_unused=True)
        pairs = zip(slopes, weights, strict=True)
        zero = Tensor(0.0, dtype=np.float64)
        total = sum(((g * w).sum() for g, w in pairs if g is not None), zero)
        second = gradients(total, mine, np.ones(()))
    for i in range(len(inputs)):
        alone = [v if j == i else np.zeros_like(v) for j, v in enumerate(directions)]
        assert_agree(first, alone, slope(value, inputs, alone), f"gradient {i}")
        if second is not None:
            measured = slope(weighed_gradient, inputs, alone)
            assert_agree(second, alone, measured, f"second derivative {i}")


# ---- conventions at single points


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_epsilon_that_rms_norm_takes_by_itself_is_pytorchs(dtype):
    x, g = np.array([[1e-3, -2e-4, 5e-4]], dtype), np.array([[1e-4, 2e-4, 0]], dtype)
    ours, theirs = Tensor(x, requires_grad=True), torch.from_numpy(x.copy()).requires_grad_()
    y, expected = F.rms_norm(ours, 3), torch.nn.functional.rms_norm(theirs, (3,))
    y.backward(g)
    expected.backward(torch.from_numpy(g))
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=2e-3)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=5e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_and_the_softmaxes_are_accurate_where_a_naive_form_overflows(dtype):
    x = np.array([-1e4, -80, -20, 0, 20, 80, 1e4], dtype)
    assert np.allclose(F.sigmoid(x), torch.sigmoid(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=0)
    assert np.array_equal(F.softmax(x), np.array([0, 0, 0, 0, 0, 0, 1], dtype))
    assert np.allclose(F.log_softmax(x), x - 1e4, rtol=1e-6)
    assert F.logsumexp(x, -1) == dtype(1e4) and F.logsumexp(-x, 0) == dtype(1e4)


def test_rows_of_minus_infinity():
    x = np.array([[-math.inf, -math.inf], [0, -math.inf]])
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(F.softmax(x)[0]).all() and np.array_equal(F.softmax(x)[1], [1, 0])
        assert np.array_equal(F.logsumexp(x, 1), [-math.inf, 0])
        assert np.array_equal(F.log_softmax(x)[1], [0, -math.inf])
    assert grad(F.log_softmax(row := leaf(x[1]))[0], row)[0].tolist() == [0, 0]


def test_integers_are_promoted_and_lists_taken():
    assert F.softmax([0, 0]).numpy().tolist() == [0.5, 0.5]
    assert F.softmax(np.array([1, 1])).dtype == np.float32
    assert F.linear(np.array([[1, 2]]), np.array([[3, 4]])).tolist() == [[11]]
    assert F.linear([0.1], np.array([[1.0]])).numpy().tolist() == [0.1]  # in the weight's precision
    assert F.layer_norm(np.array([1, 3]), 2).tolist() == pytest.approx([-1, 1], abs=1e-5)
    for x in ([[1, 2]], np.array([[1, 2]]), Tensor([[1, 2]])):
        y = F.linear(x, Tensor(np.array([[3, 4], [0, 1]], "f")))
        assert y.tolist() == [[11, 2]] and y.dtype == np.float32


def test_what_drops_everything_draws_nothing_as_in_pytorch():
    x = torch.ones(1, 2, 3)
    manual_seed(5)
    torch.manual_seed(5)
    theirs, both = torch.nn.functional, dict(dropout_p=1.0)
    assert F.dropout(t := Tensor(x.numpy()), 0.0) is t and F.dropout(t, 0.5, False) is t
    assert not F.dropout(t, 1.0).numpy().any() and not theirs.dropout(x, 1.0).any()
    assert not F.scaled_dot_product_attention(*[x.numpy()] * 3, **both).any()
    assert not theirs.scaled_dot_product_attention(x, x, x, **both).any()
    assert rand(1).item() == torch.rand(1).item()


# ---- classes


@pytest.mark.parametrize(
    "target",
    [np.ones((3, 0)), np.ones((3, 0, 0)), np.ones((0, 0)), np.zeros((3, 0), int), np.zeros(0, int)],
)
def test_no_classes_to_smooth_over(target):
    """Then all there is to add up is nothing, as in PyTorch."""
    shape = target.shape if target.dtype == float else (len(target), 0, *target.shape[1:])
    x = Tensor(np.ones(shape), requires_grad=True)
    loss = F.cross_entropy(x, target, label_smoothing=0.1, reduction="sum")
    loss.backward()
    assert loss.item() == 0 and x.grad.shape == x.shape


def test_ignored_labels():
    x = Tensor(np.ones((2, 3), np.float32))
    with np.errstate(invalid="ignore"):
        assert math.isnan(F.cross_entropy(x, [-100, -100]).item())
    assert F.cross_entropy(x, [-100, -100], reduction="sum").item() == 0
    for target, ignored in (([0, 7], 7), ([0, 1], None), (np.full((2, 3), 1 / 3), None)):
        loss = F.cross_entropy(x, target, ignore_index=ignored).item()
        assert loss == pytest.approx(math.log(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weight", [None, Tensor(np.ones(3), requires_grad=True)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_an_ignored_row_has_no_gradient_whatever_it_holds(dtype, weight, create_graph):
    rows = [[-math.inf] * 3, [math.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]
    x = Tensor(np.array(rows, dtype), requires_grad=True)
    loss = F.cross_entropy(x, np.array([-100, -100, 1]), weight=weight, label_smoothing=0.1)
    slope = grad(loss, x, create_graph=create_graph)[0].numpy()
    assert math.isfinite(loss.item()) and not slope[:2].any() and np.isfinite(slope).all()


@pytest.mark.parametrize("dtype", ["u1", "u8", "i1", "i4"])
def test_labels_and_indices_are_whole_numbers_of_any_kind(dtype):
    x, labels = leaf(random_like((4, 3), 0)), np.array([2, 0, 1, 2])
    for f in (
        lambda labels: F.cross_entropy(x, labels),
        lambda labels: F.embedding(labels, x).sum() + x[labels].prod(),
        lambda labels: np.take_along_axis(x, labels[:, None], 1).prod(),
        lambda labels: ops.scatter(x, index=labels, shape=(5, 3)).prod(0).sum(),
    ):
        expected, found = (grad(f(one), x)[0].numpy() for one in (labels, labels.astype(dtype)))
        np.testing.assert_array_equal(found, expected)


# ---- what is picked, and added up where it came from

EVERY = slice(None)
PICKED = [  # a shape and an index
    ((5,), np.array([[0, 4], [-5, 0]])),
    ((5,), np.array(3)),
    ((5,), np.zeros((0, 2), int)),
    ((4, 3), (np.array([0, -4, 0]), np.array([2, -1, 2]))),
    ((4, 3), (np.array([[0], [3]]), np.array([1, 1, -2]))),
    ((4, 3), (np.array([0, 0]), 1)),
    ((4, 3), (np.array([3, 3]), None)),
    ((4, 3), (np.array([True, False, True, True]), np.array([0, 2, 0]))),
    ((4, 3), [True, False, False, True]),
    ((4, 0), np.array([1, 1])),
    ((4, 40), (EVERY, np.array([2, -38, 2]))),
    ((4, 5, 8), np.array([[3, 0, -1], [3, 3, 3]])),
    ((4, 5, 8), (np.array([1, 0]), EVERY, np.array([1, 1]))),
    ((4, 5, 8), (slice(1, None), np.array([True, False, True, True, False]))),
    ((300, 20), np.array([255, 0, 255], np.uint8)),
    ((300, 20), np.array([-1, 127], np.int8)),
    ((9, 130), np.arange(500) % 7 - 3),
    ((70_000, 2), np.arange(600) % 5 * 16_000),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape, index", PICKED, ids=str)
def test_the_gradient_of_an_index_adds_up_however_often_an_element_was_picked(shape, index, dtype):
    x = Tensor(np.zeros(shape, dtype), requires_grad=True)
    g = np.random.default_rng(0).integers(-4, 5, x[index].shape).astype(dtype)
    expected = np.zeros(shape, dtype)
    np.add.at(expected, index, g)  # of whole numbers: no order of adding rounds
    for create_graph in (False, True):
        (found,) = grad(x[index], x, g, create_graph=create_graph)
        assert np.array_equal(found.numpy(), expected) and found.dtype == dtype
    v = Tensor(g, requires_grad=True)
    (back,) = grad(ops.scatter(v, index=index, shape=shape), v, expected)
    assert np.array_equal(back.numpy(), expected[index])


@pytest.mark.parametrize(
    "indices",
    [
        np.zeros(400, int),
        np.r_[np.full(300, 7), np.arange(100)],
        np.array([], int),
        np.array([[-1, 9], [9, 0]]),
        np.repeat(np.arange(40), np.arange(40)),
    ],
    ids=["one row", "one often", "none", "negative", "once to 39 times"],
)
@pytest.mark.parametrize("rows, width", [(100, 0), (100, 5), (100, 200), ((1 << 16) + 1, 60)])
def test_the_table_of_an_embedding_sums_all_uses_however_often_a_row_is_used(indices, width, rows):
    """By whichever way: indices of up to 16 bits are sorted another way than longer ones."""
    g, expected = random_like((*indices.shape, width), 0), np.zeros((rows, width))
    np.add.at(expected, indices, g)
    found = ops.scatter(g, index=indices, shape=(rows, width))
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, t: x[t],
        lambda x, t: x[t : t + 3, 1:],
        lambda x, t: x[None, t, ..., ::2],
        lambda x, t: x[np.arange(30) % (t + 2) == 0],
        lambda x, t: x[[t, 0, t]],
        lambda x, t: x[[t, t, 0], [1, 1, 2]],
        lambda x, t: F.embedding(np.array([[t, 0, t]]), x),
        lambda x, t: np.take_along_axis(x, np.full((1, 6), t), 0),
    ],
)
def test_a_loop_that_picks_parts_adds_up_in_one_array(pick):
    x = leaf(random_like((30, 6), 0))
    weights = [random_like(pick(x, t).shape, t) for t in range(5)]
    expected = sum(grad((pick(x, t) * w).sum(), x)[0].numpy() for t, w in enumerate(weights))
    with plain():
        loss = sum((pick(x, t) * w).sum() for t, w in enumerate(weights))
        for options in ({"retain_graph": True}, {"create_graph": True}):
            found = grad(loss, x, **options)[0].numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_scatter_refuses_a_place_that_is_not_there():
    """It would have added to another row, as if the first came after the last."""
    for index in (np.array([0, 3]), np.array([0, -4]), (EVERY, np.array([0, 2]))):
        g = np.ones((3, 2) if isinstance(index, tuple) else (2, 2))
        with pytest.raises(IndexError, match="is out of bounds"):
            ops.scatter(Tensor(g), index=index, shape=(3, 2))


@pytest.mark.parametrize("f, sign", [(np.max, 1), (np.min, -1)])
@pytest.mark.parametrize(
    "rows, expected",
    [
        ([[1, 3, 2], [5, 4, 0]], [[0, 1, 0], [1, 0, 0]]),
        ([[3, 3, 2], [5, 4, 0]], [[0.5, 0.5, 0], [1, 0, 0]]),
        ([[3, 3, 2], [5, np.nan, 0]], [[0.5, 0.5, 0], [0, 1, 0]]),
    ],
    ids=["one each", "a tie", "a tie and as many NaN"],
)
def test_the_largest_takes_the_gradient_and_ties_share_it(f, sign, rows, expected):
    x = Tensor(sign * np.array(rows, float), requires_grad=True)
    f(x, axis=1).backward(np.ones(2))
    assert x.grad.numpy().tolist() == expected


# ---- masks, positions, heads


def test_attention_without_keys_is_zero():
    q, k, v = (leaf(random_like((2, n, 4), n)) for n in (2, 0, 0))
    out = F.scaled_dot_product_attention(q, k, v)
    assert out.shape == (2, 2, 4) and not out.numpy().any()
    dq, dk, dv = grad(out.sum(), [q, k, v])
    assert not dq.numpy().any() and dk.shape == dv.shape == (2, 0, 4)


def test_a_mask_may_be_a_list_or_of_another_float_dtype_and_have_axes_of_its_own():
    q, k, v = (random_like((1, 3, 4), seed).astype(np.float32) for seed in range(3))
    seen = np.random.default_rng(0).random((5, 3, 3)) < 0.7
    for mask in (seen, np.where(seen, random_like(seen.shape, 4), -math.inf)):
        narrow = mask.astype(mask.dtype.char.replace("d", "f"))
        rows = [F.scaled_dot_product_attention(q[0], k[0], v[0], m) for m in narrow]
        for form in (mask, mask.tolist()):
            out = F.scaled_dot_product_attention(q, k, v, form)
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, rows, atol=1e-6)


@pytest.mark.parametrize("of_q, of_k", [((2, 3), (2, 3)), ((1, 3), (2, 1))], ids=str)
def test_dropout_on_attention_weights_is_pytorchs(of_q, of_k):
    q, k, v = (random_like((*lead, 5, 4), seed) for seed, lead in enumerate((of_q, of_k, of_k)))
    manual_seed(5)
    torch.manual_seed(5)
    theirs = torch.nn.functional.scaled_dot_product_attention
    expected = theirs(*map(torch.from_numpy, (q, k, v)), dropout_p=0.4).numpy()
    found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_masks_positions_and_heads():
    """Their numbers are in CONSTANTS and TABLE of helpers/optable.py."""
    assert isinstance(F.causal_mask(3), np.ndarray)
    assert F.sinusoidal_positions(0, 3).shape == (0, 3)
    assert F.sinusoidal_positions(4, 6).dtype == np.float32
    assert F.sinusoidal_positions(4, 6, np.float64).dtype == np.float64


# ---- mistakes that people make

X = np.ones((2, 3), np.float32)
SDPA = F.scaled_dot_product_attention
MISTAKES = {  # what an error says
    "Did you mean 'tanh'": lambda: F.gelu(X, "tan"),
    r"normalized_shape=\(2,\) does not fit array \(2, 3\)": lambda: F.layer_norm(X, 2),
    r"weight must have shape \(3,\)": lambda: F.rms_norm(X, 3, np.ones(2)),
    r"\(out, in\); got input array \(2, 3\)": lambda: F.linear(X, np.ones((3, 4), np.float32)),
    r"bias must have shape \(4,\)": lambda: F.linear(X, np.ones((4, 3)), np.ones(3)),
    "index 5 is out of range for a table with 4 rows": lambda: F.embedding([0, 5], np.ones((4, 2))),
    "index -1 is out of range": lambda: F.embedding([[0, -1]], np.ones((4, 2))),
    r"integers as indices.*astype\(np.int64\)": lambda: F.embedding([0.0], np.ones((4, 2))),
    "padding_idx=4 is out of range for a table with 4 rows": lambda: F.embedding(
        [0], np.ones((4, 2)), 4
    ),
    r"in \[0, 1\], got 1.5": lambda: F.dropout(X, 1.5),
    r"the shapes differ, array \(4, 1\)": lambda: F.mse_loss(np.ones((4, 1)), np.ones(4)),
    "reduction must be one of 'none', 'mean', 'sum'": lambda: F.mse_loss(X, X, "avg"),
    r"class 3 is neither between.*start at 0": lambda: F.cross_entropy(X, [0, 3]),
    r"class -1 is neither between.*ignore_index \(-100\)": lambda: F.cross_entropy(X, [-1, 0]),
    "ignore_index=0 works only with class labels": lambda: F.cross_entropy(X, X, ignore_index=0),
    "contains probabilities.*Class labels must be integers": lambda: F.cross_entropy(X, [0.0, 1.0]),
    r"must have the shape of the scores, \(2, 3\)": lambda: F.cross_entropy(X, np.ones((3, 3))),
    r"need class labels of shape \(2,\)": lambda: F.cross_entropy(X, np.eye(3, dtype=int)[:2]),
    r"weight must be \(3,\), one number per class": lambda: F.cross_entropy(X, [0, 1], np.ones(2)),
    r"needs q \(..., T, D\), k \(..., S, D\)": lambda: SDPA(X, X[:, :2], X),
    r"enable_gqa=True": lambda: SDPA(np.ones((4, 2, 3)), *np.ones((2, 2, 2, 3))),
    r"got q array \(2, 3\) float32, k array \(2, 3\) float32 and v array \(1, 3\)": lambda: SDPA(
        X, X, X[:1]
    ),
    r"may look.*astype\(bool\)": lambda: SDPA(X, X, X, np.ones((2, 2), int)),
    r"not broadcast to the scores \(2, 2\)": lambda: SDPA(X, X, X, np.ones((2, 3), bool)),
    r"lengths must be in \[0, max_length = 2\], got \[1 3\]": lambda: F.padding_mask([1, 3], 2),
    "integers as lengths": lambda: F.padding_mask([1.5]),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_answered_by_what_to_write(text):
    with pytest.raises((TypeError, ValueError, AttributeError), match=text):
        MISTAKES[text]()
