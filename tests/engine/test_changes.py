"""A value that the backward pass needs and that was changed in place is found out: by every way of changing it."""

import linecache
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, no_grad, ops, optim, parallel
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


def test_the_message_names_the_line_that_reached_the_memory():
    x = rand(3)
    y = np.exp(x)
    y.data[0] = 2.0  # here
    with pytest.raises(ValueError, match=r"exp needs its own result.*test_changes\.py:\d+"):
        y.sum().backward()


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


@pytest.mark.parametrize(
    "f",
    [
        lambda x, c: x - c,
        lambda x, c: c + x,
        lambda x, c: F.mse_loss(x, c),
        ops.subtract,
        lambda x, c: ops.add(b=c, a=x),
    ],
)
def test_an_array_that_is_only_added_or_subtracted_is_not_watched(f):
    x, target = rand(3), np.ones(3)
    y = f(x, target)
    assert id(target) not in guard.watched
    z = y + x * target  # a product reads it
    assert id(target) in guard.handed_out
    target += 1
    with pytest.raises(ValueError, match="multiply needs its input 1"):
        np.sum(z).backward()


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
    "roll": {"shift": 1},
    "swapaxes": {"a": 0, "b": 1},
    "windows": {"sizes": (2,), "axes": (1,)},
    "overlapped": {"sizes": (3,), "axes": (0,), "shape": (5,)},
}


assert parallel.DataParallel  # a room that is loaded late, and has such ops too


@pytest.mark.parametrize(
    "op", sorted(guard.reads_nothing, key=lambda op: op.__name__), ids=lambda op: op.__name__
)
def test_no_rule_of_an_op_that_says_so_reads_values(op):
    x = np.arange(9.0).reshape(3, 3)
    inputs, unknown = (
        [a] * (2 if op.parameters.variadic else len(op.parameters.inputs))
        for a in (x, np.full((3, 3), np.nan))
    )
    settings = {**op.parameters.defaults, **SETTINGS.get(op.__name__, {})}
    y = op(*inputs, **settings)
    g = 1 + np.arange(float(y.size)).reshape(y.shape)

    def gradients(y, inputs):
        if op.joint_vjp is not None:
            return op.joint_vjp(g, y, *inputs, needs=(True,) * len(inputs), **settings)
        return [rule(g, y, *inputs, **settings) for rule in op.vjps]

    for blind, found in zip(
        gradients(np.full(y.shape, np.nan), unknown), gradients(y, inputs), strict=True
    ):
        assert not np.isnan(blind).any()
        np.testing.assert_array_equal(blind, found)


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
        with pytest.raises(ValueError, match="its own result"):
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
    count = len(guard.watched)
    x = rand(100)
    x.numpy()
    assert len(guard.watched) == count + 1
    del x
    assert len(guard.watched) == count


def test_memory_that_another_thread_takes_back_while_it_is_looked_at_has_not_changed(monkeypatch):
    w, checksum = rand(3), guard._checksum
    w.numpy()

    def meanwhile(array):
        guard.watched[id(w._data)].checksum = None  # as take_back ends
        return checksum(array)

    monkeypatch.setattr(guard, "_checksum", meanwhile)
    assert guard.last_change(w._data) == 0


def test_what_was_computed_from_a_change_that_two_threads_find_at_once_is_newer_than_it(
    monkeypatch,
):
    w, checksum, losses = rand(3), guard._checksum, []
    array = w.data
    array += 1

    def meanwhile(memory):
        now = checksum(memory)
        monkeypatch.setattr(guard, "_checksum", checksum)
        losses.append((w * w).sum())  # as the other thread does, which has found the change sooner
        return now

    monkeypatch.setattr(guard, "_checksum", meanwhile)
    losses.append((w * w).sum())
    for loss in losses:
        loss.backward()
    assert len(losses) == 2 and np.array_equal(w.grad.numpy(), 4 * array)


def test_two_threads_that_come_to_an_array_at_once_know_the_same_of_it(monkeypatch):
    array, watch, others = np.ones(3), guard.Watch, []

    def meanwhile(memory):
        made = watch(memory)
        monkeypatch.setattr(guard, "Watch", watch)
        others.append(guard._watch(memory))
        return made

    monkeypatch.setattr(guard, "Watch", meanwhile)
    assert guard._watch(array) is others[0] is guard.watched[id(array)]


def test_the_latest_change_is_not_forgotten_for_one_that_another_thread_reports_late(monkeypatch):
    early, late, place = np.ones(3), np.ones(3), guard._place

    def meanwhile():
        monkeypatch.setattr(guard, "_place", place)
        guard.changed(late)
        return place()

    monkeypatch.setattr(guard, "_place", meanwhile)
    guard.changed(early)
    assert guard.last_change(early) < guard.last_change(late) == guard.latest


@pytest.mark.parametrize("function", ["hand_out", "changed"])
def test_what_is_reported_late_hides_no_later_change_of_what_was_used_meanwhile(
    monkeypatch, function
):
    """The step of another thread went unnoticed, and its backward pass took the new values for the old."""
    w, tick, losses = rand(3), guard.clock, []

    def meanwhile():
        now = tick()
        monkeypatch.setattr(guard, "clock", tick)
        losses.append((w * w).sum())
        with ta.no_grad():
            w[0] = 5.0
        return now

    monkeypatch.setattr(guard, "clock", meanwhile)
    getattr(guard, function)(w._data if function == "changed" else np.ones(3))
    with pytest.raises(ValueError, match="changed"):
        losses[0].backward()


def test_what_is_used_while_it_is_handed_out_to_another_thread_is_watched(monkeypatch):
    w, tick, losses = rand(3), guard.clock, []

    def meanwhile():
        now = tick()
        monkeypatch.setattr(guard, "clock", tick)
        losses.append((w * w).sum())
        return now

    monkeypatch.setattr(guard, "clock", meanwhile)
    w.data[0] = 5.0
    with pytest.raises(ValueError, match="changed"):
        losses[0].backward()


def test_an_interrupt_while_memory_is_handed_out_leaves_no_op_unwatched(monkeypatch):
    w, place = rand(3), guard._place
    loss = (w * w).sum()

    def interrupted():
        monkeypatch.setattr(guard, "_place", place)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard, "_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _ = w.data
    array = w.data
    array += 1
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_an_interrupt_while_watched_memory_goes_is_not_lost_nor_is_its_id_kept(monkeypatch):
    """The next array may get the same id, and would be said to have changed."""
    array, lost = np.ones(3), []
    guard.lend(array)
    key = id(array)
    assert key in guard.watched and key in guard.handed_out
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def trace(frame, event, arg):
        if frame.f_code.co_filename == guard.__file__:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    del array
    sys.settrace(before)
    assert not lost and key not in guard.watched and key not in guard.handed_out


def test_a_tensor_nobody_reached_into_is_not_watched():
    count = len(guard.watched)
    x, w = rand(3), rand(3, seed=1)
    loss = (x * w).sum()
    assert len(guard.watched) == count
    loss.backward()


def test_an_optimiser_takes_back_what_nobody_holds_any_more_and_only_that():
    w = nn.Parameter(np.ones(4, np.float32))
    step = optim.SGD([w], lr=0.1)

    def loss():
        return (w * w).sum()

    seen = w.numpy()[1:]  # a view holds all of it
    loss().backward()
    step.step()
    assert id(w._data) in guard.handed_out
    late = loss()
    seen += 1
    with pytest.raises(ValueError, match="changed in place"):
        late.backward()
    del seen
    step.step()
    assert id(w._data) not in guard.handed_out
    late = loss()
    w.data += 1  # handed out once more
    with pytest.raises(ValueError, match="changed in place"):
        late.backward()


@pytest.mark.parametrize(
    "differentiate", [lambda y, w: y.backward(), lambda y, w: grad(y, w)], ids=["backward", "grad"]
)
def test_a_backward_pass_takes_back_what_nobody_holds_any_more_and_only_that(differentiate):
    w, held = rand(4), rand(4, seed=1)

    def loss():
        return (w * w * held).sum()

    w.numpy()[0] = 2.0
    seen = held.numpy()[1:]
    differentiate(loss(), [w, held])
    assert id(w._data) not in guard.handed_out and id(held._data) in guard.handed_out
    late = loss()
    seen += 1
    with pytest.raises(ValueError, match="changed in place"):
        differentiate(late, [w, held])
    late = loss()
    w.numpy()[0] = 3.0  # handed out once more
    with pytest.raises(ValueError, match="changed in place"):
        differentiate(late, [w, held])


@pytest.mark.parametrize(
    "take_back",
    [lambda w, v: grad(v.sum(), w, allow_unused=True), lambda w, v: optim.SGD([w], lr=0.1).step()],
    ids=["grad", "optimiser"],
)
def test_a_change_that_an_older_graph_must_know_of_is_noticed_before_the_memory_is_taken_back(
    take_back,
):
    w, v = rand(4), rand(4, seed=1)
    older = (w * v).sum()
    w.numpy()[0] = 2.0
    take_back(w, v)
    assert id(w._data) not in guard.handed_out
    with pytest.raises(ValueError, match="changed in place"):
        older.backward()


def test_of_an_operand_only_what_was_used_is_looked_at():
    data, w = np.random.default_rng(0).standard_normal((8, 3)), rand(3)
    batch = data[2:4]
    loss = np.exp(batch * w).sum()
    data[:2] = data[4:] = 0.0  # the next batch is read into the same memory
    loss.backward()
    loss = np.exp(batch * w).sum()
    data[3, 1] = 9.0
    with pytest.raises(
        ValueError, match=r"multiply needs its input 0.*last reached at .*test_changes.py"
    ):
        loss.backward()


def test_the_line_that_reached_the_memory_last_is_quoted():
    """In a notebook the file's name says nothing: every cell is one, and their names are numbers."""
    w, x = rand(3), rand(3, seed=1)
    loss = np.exp(w * x).sum()
    cell = "\nheld = x.data  # of this cell\n"
    name = "/tmp/ipykernel_1/2.py"
    linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
    exec(compile(cell, name, "exec"), {"x": x})
    x._data[0] = 9.0
    with pytest.raises(
        ValueError, match=re.escape(f"last reached at {name}:2 `held = x.data  # of this cell`)")
    ):
        loss.backward()


@pytest.mark.parametrize(
    "decorated", [lambda function: function, no_grad()], ids=["plain", "as NumPy 2.0 decorates it"]
)
def test_the_line_that_reached_the_memory_last_is_none_of_numpys(decorated):
    w, x = rand(3), Tensor(np.ones(3))
    loss = np.exp(w * x).sum()
    decorated(np.testing.assert_array_equal)(x, x)  # asks for the numbers from inside NumPy
    x._data[0] = 9.0
    with pytest.raises(ValueError, match=r"last reached at .*test_changes.py"):
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


@pytest.mark.parametrize(
    "expression", ["x * a", "a * x", "x @ a", "x / a", "np.multiply(x, a)", "x ** a"]
)
def test_an_operand_at_the_top_of_a_program_is_found_on_its_line(expression, tmp_path):
    lines = [
        "import numpy as np",
        "from tinygrad_attn import Tensor",
        "x, a = Tensor([1.0, 2.0], requires_grad=True), np.array([3.0, 4.0])",
        f"y = {expression}",
        "a[0] = 5.0",
        "y.sum().backward()",
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    told = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (
        "was changed in place after it was used" in told.stderr
        and f"program.py:4 `y = {expression}`)" in told.stderr
    ), told.stderr


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


def test_an_operand_that_shares_a_tensors_memory_is_told_of_the_packages_own_changes():
    table, w = Tensor(np.ones((4, 3))), rand(3)
    loss = (table.numpy()[1:3] * w).sum()
    table[3] = 5.0
    with pytest.raises(
        ValueError, match="multiply needs its input 0"
    ):  # which row it was, nobody has written down
        loss.backward()


@pytest.mark.parametrize(
    "view",
    [lambda a: np.broadcast_to(a[0], (1000, 3)), lambda a: a.T, lambda a: a[::-1]],
    ids=["repeated", "turned", "reversed"],
)
def test_an_operand_that_is_as_large_as_its_memory_is_known_by_its_memory(view):
    data, scale = np.ones((3, 3)), rand(1)
    loss = (view(data) * scale).sum()
    assert id(data) in guard.handed_out
    data[0, 0] = 2.0
    with pytest.raises(ValueError, match="multiply needs its input 0"):
        loss.backward()


def test_an_operand_out_of_records_with_objects_in_them():
    """Its memory is that of the records, whose objects have no bytes to look at."""
    records, w = np.ones(2 * guard.LARGE // 16, dtype=[("x", float), ("label", object)]), rand()
    (np.broadcast_to(records["x"], (2, len(records))) * w).sum().backward()
    assert id(records) in guard.handed_out and w.grad.item() == 2 * len(records)


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


@pytest.mark.parametrize(
    "shape,dtype",
    [
        ((1 << 18,), np.float32),
        ((1600, 500), np.float32),
        ((3, 50_001, 7), np.int8),
        ((1021, 512), np.float64),
        ((700, 700), np.float16),
        ((1025, 1021), bool),
    ],
)
def test_the_checksum_of_many_numbers_finds_every_kind_of_change(shape, dtype):
    rng = np.random.default_rng(0)
    a = (rng.random(shape) * 2).astype(dtype)
    before = guard._checksum(a)
    assert a.nbytes > guard.LARGE

    def differs(b):
        assert (guard._checksum(b) != before) == (b.tobytes() != a.tobytes())

    differs(a.copy())
    differs(
        np.frombuffer(b"x" + a.tobytes(), dtype, offset=1).reshape(shape)
    )  # where words do not begin at whole addresses
    for _ in range(20):
        i, j = (tuple(rng.integers(shape)) for _ in range(2))
        for change in (1, a[j]):
            b = a.copy()
            b[i], b[j] = change, a[i]
            differs(b)
    (
        differs(np.roll(a, 1, axis=0)),
        differs(a[::-1].copy()),
        differs(rng.permutation(a)),
        differs(np.zeros_like(a)),
    )
    last = a.copy()
    last.reshape(-1).view(np.uint8)[-1] ^= 1
    differs(last)
    words = a.reshape(-1).view(np.uint8)[: a.nbytes // 8 * 8].view(np.uint64)
    for apart in (509, 1021, 2 * 1021, 256 * 509, 256 * 1021, 509 * 1021):
        if words.size > apart:
            b = a.copy()
            b.reshape(-1).view(np.uint8)[: a.nbytes // 8 * 8].view(np.uint64)[[5, 5 + apart]] = (
                words[[5 + apart, 5]]
            )
            differs(b)


def test_the_checksum_finds_that_all_signs_have_turned():
    """The sign is the highest bit of a float64: turned an even number of times it leaves a sum of words as it was."""
    a = np.random.default_rng(0).standard_normal(
        (1018, 1021)
    )  # as many rows of 509 as of 1,021, and nothing over
    for factor in (-1, 2, 2**16):
        assert guard._checksum(a * factor) != guard._checksum(a)


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
        lambda x, c: F.dropout(x, 0.5) + c,
        lambda x, c: F.linear(np.ones((2, 3)), x.reshape(1, 3), c[:1]),
        lambda x, c: np.roll(x, 1) - c,
        lambda x, c: np.where(np.array([True, False, True]), x, c),
        lambda x, c: np.sign(x) + c,
        lambda x, c: F.softmax(x - c),
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


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_what_a_rule_may_ask_without_looking(shape):
    x, w = rand(*shape), rand(*shape, seed=1)
    shapes = ta.op(lambda x: 2.0 * x)
    shapes.vjp(
        lambda g, y, x: (
            len(x) * g * np.ones_like(x) + np.zeros(x.shape, x.dtype) * x.ndim * np.size(x)
        )
    )
    itself = ta.op(lambda x: x * x / 2)
    itself.vjp(lambda g, y, x: x)
    partly = x * w.numpy().copy()  # the rule for the other one is not asked, since nobody wants it
    loss, told = shapes(x).sum() + partly.sum(), itself(x).sum()
    changes(x, 4.0)
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), shape[0] + w.numpy())
    with pytest.raises(ValueError, match="needs its input 0"):
        told.backward()


def test_a_twin_reads_what_the_rule_does_not():
    x = rand(2, 3)
    y = F.softmax(x)
    changes(x, 1.0)
    grad(y[0, 0], x, retain_graph=True)
    with pytest.raises(ValueError, match="softmax needs its input 0"):
        grad(y[0, 0], x, create_graph=True)


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
