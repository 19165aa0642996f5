"""A value that the backward pass needs and that was changed in place is found out: by every way of changing it."""

from types import SimpleNamespace

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, no_grad, optim, parallel
from tinygrad_attn.engine import inplace as guard


def rand(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def through_data(x):
    x.data += 1


def through_an_element(x):
    x.data[0] = 5


def through_numpy(x):
    x.numpy()[:] = 0


def through_detach(x):
    with no_grad():
        x.detach()[0] = 3.0


def through_a_view(x):
    x.data[1:][:1] = 9


def through_a_transposed_view(x):
    x.data.T[0] = 9


def through_out(x):
    np.add(x.data, 1, out=x.data)


def through_a_new_array(x):
    x.data = np.zeros(x.shape)


def through_setitem(x):
    with no_grad():
        x[0] = 7.0


def through_an_optimiser(x):
    x.grad = np.ones(x.shape)
    optim.SGD([x], lr=0.1).step()


def through_fill(x):
    x.data.fill(3)


def through_sort(x):
    x.data[::-1].sort()
    x.data[0] += 1


def through_asarray(x):
    with no_grad():
        np.asarray(x)[0] = 5


WAYS = [
    through_data,
    through_an_element,
    through_numpy,
    through_detach,
    through_a_view,
    through_a_transposed_view,
    through_out,
    through_a_new_array,
    through_setitem,
    through_an_optimiser,
    through_fill,
    through_sort,
    through_asarray,
]


@pytest.mark.parametrize("change", WAYS, ids=lambda f: f.__name__)
def test_an_operand_changed_after_use(change):
    x, w = rand(4), rand(4, seed=1)
    x.name = "my_input"
    loss = (x * w).sum()
    change(x)
    with pytest.raises(
        ValueError,
        match=r"multiply needs its input 0, .*my_input.*changed in place after it was used.*Compute a new "
        r"tensor instead",
    ):
        loss.backward()


@pytest.mark.parametrize("change", WAYS, ids=lambda f: f.__name__)
def test_a_change_before_use_is_fine(change):
    x, w = rand(4), rand(4, seed=1)
    change(x)
    (x * w).sum().backward()
    assert np.array_equal(w.grad.numpy(), x.numpy())


@pytest.mark.parametrize("change", WAYS, ids=lambda f: f.__name__)
def test_a_change_after_backward_is_fine(change):
    x, w = rand(4), rand(4, seed=1)
    (x * w).sum().backward()
    before = x.numpy().copy()
    change(x)
    assert np.array_equal(w.grad.numpy(), before)


def test_memory_handed_out_before_the_op_is_watched():
    x, w = rand(3), rand(3, seed=1)
    array = x.numpy()
    loss = (x * w).sum()
    array *= 2
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_a_view_made_by_an_op_shares_its_memory_with_its_source():
    x, w = rand(4), rand(2, seed=1)
    loss = (x[1:3] * w).sum()
    x.data[1] = 5.0
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()
    x = rand(2, 3)
    loss = (x.reshape(6) ** 2).sum()
    x.data[0, 0] = 5.0
    with pytest.raises(ValueError, match="power needs its input 0"):
        loss.backward()


def test_a_constant_array_that_changes():
    x, scale = rand(3), np.array([1.0, 2.0, 3.0])
    loss = (x * scale).sum()
    scale *= 0
    with pytest.raises(ValueError, match=r"multiply needs its input 1, array \(3,\) float64"):
        loss.backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda w, i: F.embedding(i, w),
        lambda w, i: w[i],
        lambda w, i: np.take_along_axis(w, i[:, None], 0),
        lambda w, i: np.take(w, i, axis=0),
        lambda w, i: F.cross_entropy(w, i, reduction="sum"),
        lambda w, i: np.where(i[:, None] == 1, w, 0.0),
        lambda w, i: F.scaled_dot_product_attention(w, w, w, attn_mask=i[:, None] >= 0),
        lambda w, i: w.repeat(i, axis=0),
        lambda w, i: np.roll(w, i[:1], axis=0),
    ],
    ids=[
        "embedding",
        "getitem",
        "take_along_axis",
        "take",
        "cross_entropy",
        "where",
        "attention",
        "repeat",
        "roll",
    ],
)
def test_indices_that_change_are_found_out_or_do_not_matter(f):
    w, index = rand(4, 4), np.array([1, 2, 0, 1])
    (expected,) = grad((f(w, index.copy()) ** 2).sum(), w)
    loss = (f(w, index) ** 2).sum()
    index[:] = 3
    try:
        (found,) = grad(loss, w)
    except ValueError as error:
        assert "changed in place" in str(error)
    else:
        assert np.allclose(found.numpy(), expected.numpy())


def test_a_mask_of_attention_that_changes():
    x, mask = rand(4, 4), np.tri(4).astype(bool)
    (expected,) = grad(
        (F.scaled_dot_product_attention(x, x, x, attn_mask=mask.copy()) ** 2).sum(), x
    )
    loss = (F.scaled_dot_product_attention(x, x, x, attn_mask=mask) ** 2).sum()
    mask[:] = True
    with pytest.raises(ValueError, match="changed in place"):
        grad(loss, x)
    assert np.isfinite(expected.numpy()).all()


def test_a_mask_that_changes():
    x, mask = rand(3), np.array([True, False, True])
    loss = np.where(mask, x, 0.0).sum()
    mask[:] = False
    with pytest.raises(ValueError, match="where needs its input 0"):
        loss.backward()


def test_a_constant_used_before_and_changed_between_two_uses():
    x, scale = rand(3), np.ones(3)
    first = (x * scale).sum()
    first.backward()
    scale *= 2  # nobody needs the old values any more
    x.grad = None
    (x * scale).sum().backward()
    assert np.array_equal(x.grad.numpy(), [2, 2, 2])


def test_what_no_rule_reads_may_change():
    x = rand(3)
    loss = (x + 1.0).sum()  # add's rule reads nothing
    x.data[:] = 0
    loss.backward()
    assert np.array_equal(x.grad.numpy(), [1, 1, 1])


# An exchange between ranks, all of which have the same gradient.
EXCHANGE = SimpleNamespace(
    buckets=SimpleNamespace(get=lambda i: np.ones((3, 3))),
    complete=lambda i, g: None,
    begin=lambda: None,
    finish=lambda: None,
)

SETTINGS = {
    **dict.fromkeys(("arrive", "depart"), {"exchange": EXCHANGE, "i": 0}),
    **dict.fromkeys(("finish", "begin"), {"exchange": EXCHANGE}),
    "pad": {"width": ((1, 0), (2, 1))},
    "scatter": {"index": np.array([3, 1, 3]), "shape": (4, 3)},
    "getitem": {"index": (slice(1, 3), 0)},
    "embedding": {"indices": np.array([0, 2, 0])},
    "embedding_backward": {"indices": np.array([0, 2, 0]), "rows": 4},
    "take_along_axis": {"indices": np.array([[0, 0, 2]]), "axis": 0},
    "cumsum": {"axis": 1},
    "astype": {"dtype": np.float32},
    "broadcast_to": {"shape": (2, 3, 3)},
    "reshape": {"shape": (9,)},
    "swapaxes": {"a": 0, "b": 1},
    "windows": {"sizes": (2,), "axes": (1,)},
    "overlapped": {"sizes": (3,), "axes": (0,), "shape": (5,)},
}


assert parallel.DataParallel  # a room that is loaded late, and has such ops too


def test_an_optimiser_step_between_forward_and_backward():
    model, x = (
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)),
        Tensor(np.ones((2, 3), np.float32)),
    )
    step = optim.Adam(model.parameters(), lr=0.1)
    model(x).sum().backward()
    loss = model(x).sum()
    step.step()
    with pytest.raises(
        ValueError, match="linear needs its input 1.*weight|linear needs its input 1"
    ):
        loss.backward()


def test_a_training_loop_in_the_right_order_raises_nothing():
    model, x = nn.TransformerEncoderLayer(8, 2, 16, 0.1), np.ones((4, 2, 8), np.float32)
    step = optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        step.zero_grad()
        loss = (model(Tensor(x)) ** 2).mean()
        loss.item(), loss.numpy(), model.state_dict()["linear1.weight"].numpy()
        loss.backward()
        step.step()


def test_gradients_filled_with_zeros_are_changed_for_a_graph_that_used_them():
    p, x = (Tensor(np.ones(3), requires_grad=True) for _ in range(2))
    (p * 2).sum().backward()
    loss = (x * p.grad).sum()
    optim.SGD([p], lr=0.1).zero_grad(set_to_none=False)
    with pytest.raises(ValueError, match="changed in place after it was used"):
        loss.backward()


def test_the_result_of_an_op_that_keeps_its_result():
    for f in (np.exp, np.tanh, np.sqrt, F.sigmoid, F.softmax):
        x = Tensor(np.array([[0.5, 1.0]]), requires_grad=True)
        y = f(x)
        y.data *= 2
        with pytest.raises(ValueError, match="its own output"):
            y.sum().backward()


def test_a_fused_layer_whose_weight_changes():
    x, weight, bias = rand(2, 4), rand(4, seed=1), rand(4, seed=2)
    loss = (F.layer_norm(x, 4, weight, bias) ** 2).sum()
    weight.data[0] += 1
    with pytest.raises(ValueError, match="layer_norm needs its input 1"):
        loss.backward()


def test_loading_weights_between_forward_and_backward():
    layer, x = nn.Linear(3, 3), Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    loss = (layer(x) ** 2).sum()
    layer.load_state_dict({"weight": np.ones((3, 3), np.float32), "bias": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="linear needs its input 1"):
        loss.backward()


def test_second_order_is_guarded_too():
    x = rand(3)
    (first,) = grad((x**3).sum(), x, create_graph=True)
    x.data[0] = 9.0
    with pytest.raises(ValueError, match="changed in place"):
        first.sum().backward()


def test_setitem_that_would_need_a_gradient_is_refused():
    x = rand(3)
    with pytest.raises(TypeError, match="np.where"):
        x[0] = 1.0
    y = Tensor(np.zeros(3))
    with pytest.raises(TypeError, match="np.where"):
        y[0] = x[0]
    y[0] = 1.0
    assert y.numpy()[0] == 1


def test_watching_costs_nothing_once_the_memory_is_gone():
    count = len(guard.known)
    x = rand(100)
    x.numpy()
    assert len(guard.known) == count + 1
    del x
    assert len(guard.known) == count


def test_a_tensor_nobody_reached_into_is_not_watched():
    count = len(guard.known)
    x, w = rand(3), rand(3, seed=1)
    loss = (x * w).sum()
    assert len(guard.known) == count
    loss.backward()


def test_an_operand_that_is_used_whole_and_in_part():
    data, w = np.random.default_rng(0).standard_normal((8, 3)), rand(3)
    batch = data[2:4]
    whole, part = np.exp(data * w).sum(), np.exp(batch * w).sum()
    data[0] = 0.0
    part.backward()
    with pytest.raises(ValueError, match="multiply needs its input 0"):
        whole.backward()
    part = np.exp(batch * w).sum()
    data[0] = 1.0
    np.exp(data * w)  # notices that the whole has changed
    part.backward()
    part = np.exp(batch * w).sum()
    data[2] = 0.0
    with pytest.raises(ValueError, match="multiply needs its input 0"):
        part.backward()


def test_a_changed_matrix_that_was_solved_with():
    a, b = np.eye(3), rand(3)
    y = np.linalg.solve(Tensor(a), b)
    y = y + np.linalg.solve(a, b)
    a[0, 1] = 1.0
    with pytest.raises(ValueError, match="solve needs its input 0.*changed in place"):
        y.sum().backward()


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(100, 300), (slice(None), slice(None, None, -1))],
    ids=["whole", "rows", "reversed"],
)
def test_a_file_that_is_mapped_into_memory(part, tmp_path):
    data = np.memmap(tmp_path / "numbers", np.float64, "w+", shape=(400, 500))
    operand, w = data[part], rand(500)
    for _ in range(2):
        (operand * w).sum().backward()
        data[:] = 1.0
    loss = (operand * w).sum()
    operand[20, 3] = 5.0
    with pytest.raises(ValueError, match="multiply needs its input 0"):
        loss.backward()


def test_memory_handed_out_between_forward_and_backward():
    x, w = rand(3), rand(3, seed=1)
    y = x * w  # recorded before anybody could reach its operands
    other = rand(3).numpy()
    z = y * 2.0
    w.numpy()[0] = 1.0
    with pytest.raises(ValueError, match="multiply needs its input 1"):
        z.sum().backward()
    assert other.size == 3


def test_a_tensor_whose_gradient_is_kept_is_watched_all_the_same():
    x, factor = rand(3), np.ones(3)
    y = x * factor
    y.retain_grad()
    assert y._node.retained
    factor[0] = 2.0
    with pytest.raises(ValueError, match="multiply needs its input 1"):
        y.sum().backward()


def changes(rule_input, value):
    rule_input.data[...] = value


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.max(),
        lambda x: x.max(axis=0),
        lambda x: np.maximum(x, 1.5),
        lambda x: np.clip(x, -2, 2),
        np.var,
        np.std,
        np.abs,
        lambda x: np.fmod(7.0, x),
        lambda x: np.minimum(2.0, x),
        lambda x: x * x,
    ],
    ids=["max", "max0", "maximum", "clip", "var", "std", "abs", "fmod", "minimum", "square"],
)
@pytest.mark.parametrize("value", [0.25, -0.5, 5.0, [7.0, 6.0, 5.0]], ids=str)
def test_a_change_after_which_the_rule_says_the_same_for_many_values(f, value):
    """The maximum's rule compares with the old maximum, which no value after the change is equal to."""
    x = rand(3)
    y = f(x).sum()
    changes(x, value)
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda x, c: np.concatenate([x, c]),
        lambda x, c: np.stack([c, x]),
        lambda x, c: np.roll(x, 1) - c,
        lambda x, c: np.where(np.array([True, False, True]), x, c),
        lambda x, c: np.sign(x) + c,
        lambda x, c: np.exp(x) + c,
        lambda x, c: np.cumsum(x).reshape(3, 1) - c,
    ],
)
def test_a_change_of_what_the_rule_looks_at_the_shape_of_is_no_error(f):
    x, c = rand(3), rand(3, seed=1)
    expected = grad(f(x, c).sum(), c, allow_unused=True)
    y = f(x, c).sum()
    changes(x, 9.0), changes(c, 9.0)
    y.backward()
    if expected[0] is not None:
        np.testing.assert_array_equal(c.grad.numpy(), expected[0].numpy())


def test_a_tensor_that_is_thawed_between_forward_and_backward_stays_a_constant_as_pytorchs():
    """Else it had the slope of those ops alone that were recorded for another one's sake: 4 here, where d(w x^3)/dx is 12."""
    torch = require("torch")
    found = []
    for x, w in (
        (Tensor(2.0), Tensor(1.0, requires_grad=True)),
        (torch.tensor(2.0), torch.tensor(1.0, requires_grad=True)),
    ):
        y = x * x * w * x
        x.requires_grad_()
        (y * x).backward()
        found.append([x.grad.item(), w.grad.item()])
        y = x * x * w
        for on in (False, True):  # what it was when it was used counts
            x.requires_grad_(on)
        frozen = w.requires_grad_(False) * x
        w.requires_grad_()
        (y + frozen).backward()
        found[-1] += [x.grad.item(), w.grad.item()]
    assert found[0] == found[1] == [8, 16, 13, 20]


def test_a_layer_frozen_for_one_forward_pass_alone_gets_nothing_of_it():
    made, judged = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 1))
    for run in (judged, lambda x: ta.checkpoint(judged, x)):
        judged.requires_grad_(False)
        y = run(made(np.ones((3, 2), np.float32)))
        judged.requires_grad_()
        with pytest.raises(ValueError, match="was not used"):
            grad(y.sum(), list(judged.parameters()), retain_graph=True)
        y.sum().backward()
        assert all(p.grad is None for p in judged.parameters()) and all(
            p.grad is not None for p in made.parameters()
        )


def test_a_tensor_that_is_frozen_and_thawed_by_turns_is_a_constant_to_every_op_of_a_frozen_time():
    torch = require("torch")
    found = []
    for x, w in (
        (Tensor(2.0, requires_grad=True), Tensor(3.0, requires_grad=True)),
        (torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)),
    ):
        y = 0
        for turn in range(7):
            w.requires_grad_(turn % 2 == 0)
            y = y + 2**turn * x * w
        y.backward()
        found.append([x.grad.item(), w.grad.item()])
    assert found[0] == found[1] == [381, 170]
