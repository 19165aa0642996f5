"""A value that the backward pass needs and that was changed in place is found out: by every way of changing it."""

import array
import functools
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, no_grad, optim
from tinygrad_attn.engine import inplace as guard


def rand(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def through_an_optimiser(x):
    x.grad = np.ones(x.shape)
    optim.SGD([x], lr=0.1).step()


def through_a_new_array(x):
    x.data = np.zeros(x.shape)


def without_recording(change):
    def call(x):
        with no_grad():
            change(x)

    return call


WAYS = {
    "data +=": lambda x: x.data.__iadd__(1),
    "an element": lambda x: x.data.__setitem__(0, 5),
    "numpy": lambda x: x.numpy().__setitem__(slice(None), 0),
    "detach": without_recording(lambda x: x.detach().__setitem__(0, 3.0)),
    "setitem": without_recording(lambda x: x.__setitem__(0, 7.0)),
    "asarray": without_recording(lambda x: np.asarray(x).__setitem__(0, 5)),
    "a view": lambda x: x.data[1:][:1].fill(9),
    "a transposed view": lambda x: x.data.T.__setitem__(0, 9),
    "out": lambda x: np.add(x.data, 1, out=x.data),
    "a new array": through_a_new_array,
    "an optimiser": through_an_optimiser,
    "sort": lambda x: x.data[::-1].sort(),
}
CHANGES = pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)


@CHANGES
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


def test_second_order_is_guarded_too():
    x = rand(3)
    (first,) = grad((x**3).sum(), x, create_graph=True)
    x.data[0] = 9.0
    with pytest.raises(ValueError, match="changed in place"):
        first.sum().backward()


@CHANGES
def test_a_change_before_use_or_after_backward_is_fine(change):
    x, w = rand(4), rand(4, seed=1)
    change(x)
    before = x.numpy().copy()
    (x * w).sum().backward()
    change(x)
    assert np.array_equal(w.grad.numpy(), before)


CHANGED = {  # what is changed, what uses it, and the op and operand that are named
    "a constant": (lambda a, x: x * a, "multiply needs its input 1, array .3, 3. float64"),
    "a whole, by its part": (lambda a, x: x * a[:1], "multiply needs its input 1"),
    "a reshaped one": (lambda a, x: x.reshape(9) * a.reshape(9), "multiply needs its input 1"),
    "a mask": (lambda a, x: np.where(a == a, x, 0.0) * a, "needs its input"),
    "a matrix": (
        lambda a, x: np.linalg.solve(a + 9 * np.eye(3), x) @ a,
        "matmul needs its input 1",
    ),
    "a weight of a norm": (lambda a, x: F.layer_norm(x, 3, a[0]), "layer_norm needs"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_whatever_is_read_again_is_watched(name):
    f, text = CHANGED[name]
    a, x = np.arange(1.0, 10).reshape(3, 3), rand(3, 3)
    f(a, x).sum().backward()
    a *= 2  # nobody needs the old values any more
    y = f(a, x).sum()
    a[0] += 1
    with pytest.raises(ValueError, match=text):
        y.backward()


def test_a_model_that_changes_between_forward_and_backward():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    x, step = Tensor(np.ones((2, 3), np.float32)), optim.Adam(model.parameters(), lr=0.1)
    model(x).sum().backward()
    state = {k: v.numpy() + 1 for k, v in model.state_dict().items()}
    for change in (step.step, lambda: model.load_state_dict(state)):
        loss = model(x).sum()
        change()
        with pytest.raises(ValueError, match="linear needs its input 1"):
            loss.backward()


def test_the_result_of_an_op_that_keeps_its_result():
    for f in (np.exp, np.tanh, np.sqrt, F.sigmoid, F.softmax):
        x = Tensor(np.array([[0.5, 1.0]]), requires_grad=True)
        y = f(x)
        y.data *= 2
        with pytest.raises(ValueError, match="its own output"):
            y.sum().backward()


def test_watching_costs_nothing_once_the_memory_is_gone():
    lent, written = len(guard.lent), len(guard.written)
    x = rand(100)
    x.numpy()[0] = 1
    assert len(guard.lent) == lent and len(guard.written) == written + 1
    del x
    assert len(guard.written) == written


def test_a_tensor_nobody_reached_into_is_not_watched():
    known = len(guard.lent), len(guard.written)
    x, w = rand(3), rand(3, seed=1)
    loss = (x * w).sum()
    assert (len(guard.lent), len(guard.written)) == known
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


def windows(a):
    return np.lib.stride_tricks.sliding_window_view(a, 3)


def read_only_bytes(a):
    view = np.frombuffer(a)
    view.flags.writeable = False
    return view


VIEWS = {  # how memory is made and changed, and a view of it that is read
    "windows": (lambda: np.arange(5.0), lambda a: a.fill(9), windows),
    "a stretched view": (
        lambda: np.arange(3.0),
        lambda a: a.fill(9),
        lambda a: np.broadcast_to(a, (3, 3)),
    ),
    "a read-only memoryview": (
        lambda: np.arange(3.0),
        lambda a: a.fill(9),
        lambda a: np.asarray(memoryview(a).toreadonly()),
    ),
    "read-only bytes": (
        lambda: bytearray(np.arange(3.0).tobytes()),
        lambda a: a.__setitem__(slice(8), b"12345678"),
        read_only_bytes,
    ),
    "windows of a Tensor": (lambda: rand(5), lambda a: a.data.fill(9), lambda a: windows(a) * 1.0),
}


@pytest.mark.parametrize("make, change, view", VIEWS.values(), ids=VIEWS)
def test_memory_may_be_read_through_views_that_numpy_does_not_trace(make, change, view):
    memory, x = make(), rand(3, seed=1)
    y = (x * view(memory)).sum() if not isinstance(memory, Tensor) else (windows(memory) ** 2).sum()
    change(memory)
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


def test_what_no_vjp_reads_for_a_tensor_may_change():
    """As in PyTorch: the gradient of w * 3 does not depend on w."""
    for f, slope in ((lambda w: w * 3, 3), (lambda w: np.ones((1, 2)) @ w, 1)):
        w = rand(2)
        loss = f(w).sum()
        with ta.no_grad():
            w[...] = 0
        loss.backward()
        assert np.array_equal(w.grad.numpy(), [slope, slope])


def test_a_part_that_is_lent_is_watched_alone():
    """The checksum of a row does not take longer in a larger tensor."""
    x = rand(4, 3)
    rows = [x[i].numpy() for i in range(4)]
    loss, again = (x * x).sum(), (x * x).sum()
    assert sum(loan.array.size for loan in [*guard.lent.values()][-1].values()) == 12
    loss.backward()
    rows[2][0] = 7
    del rows
    with pytest.raises(ValueError, match="changed in place"):
        again.backward()


def test_memory_handed_out_between_forward_and_backward():
    x, w = rand(3), rand(3, seed=1)
    y = x * w  # recorded before anybody could reach its operands
    other = rand(3).numpy()
    z = y * 2.0
    w.numpy()[0] = 1.0
    with pytest.raises(ValueError, match="multiply needs its input 1"):
        z.sum().backward()
    assert other.size == 3


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


# ---- what a VJP reads, however it is written


class Rules:
    """VJPs that are methods, whose first parameter is self."""

    def __init__(self, factor):
        self.factor = factor

    def of_first(self, g, y, a, b):
        return g * b * self.factor

    def of_second(self, g, y, a, b):
        return g * a * self.factor


def partial_rule(factor, g, y, a, b):
    return g * b * factor


RULES = {
    "bound methods": (Rules(1.0).of_first, Rules(1.0).of_second),
    "callable objects": (functools.partial(partial_rule, 1.0), lambda g, y, a, b: g * a),
    "an underscore before a value that is read": (
        lambda g, y, a, _b: g * _b,
        lambda g, y, _a, b: g * _a,
    ),
    "read in a function inside": (lambda g, y, a, _b: (lambda: g * _b)(), lambda g, y, a, b: g * a),
    "read beside its shape": (
        lambda g, y, a, _b: g.reshape(_b.shape) * _b,
        lambda g, y, a, b: g * a,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_vjp_reads_is_found_however_it_is_written(name):
    product = ta.op(lambda a, b: a * b).vjp(*RULES[name])
    a, b = rand(3), rand(3, seed=1)
    expected = b.numpy().copy()
    product(a, b).sum().backward()
    assert np.array_equal(a.grad.numpy(), expected)
    y = product(a, b).sum()
    b.data[...] = 100
    with pytest.raises(ValueError, match="changed in place after it was used"):
        y.backward()


SCALED = ta.op(lambda x, *, by: x * by).vjp(lambda g, y, x, *, by: g * by)
NESTED = ta.op(lambda x, *, by: x * by[0][0]).vjp(lambda g, y, x, *, by: g * by[0][0])
SETTINGS = {  # functions of x (3, 2) and an array [0, 2] that is not differentiated
    "alone": lambda x, a: SCALED(x, by=a),
    "a part": lambda x, a: SCALED(x, by=a[:1]),
    "in a dict": lambda x, a: NESTED(x, by={0: [a]}),
    "in a tuple in a tuple": lambda x, a: NESTED(x, by=((a, None),)),
    "an index": lambda x, a: x[a],
    "a part of an index": lambda x, a: x[a, None],
    "places along an axis": lambda x, a: np.take_along_axis(x, a[:, None], 0),
    "rows of a table": lambda x, a: F.embedding(a, x),
    "places to add to": lambda x, a: ta.ops.scatter(x, index=(a[[0, 1, 1]],), shape=(4, 2)) * x[0],
    "an index of an op": lambda x, a: ta.ops.getitem(x, index=(a, slice(None))),
}


@pytest.mark.parametrize("f", SETTINGS.values(), ids=SETTINGS)
def test_an_array_among_the_settings_may_change(f):
    """The node has a copy. An array that is part of a larger one, or in a list, is copied too."""
    x, array = rand(3, 2), np.array([0, 2])
    (expected,) = grad(f(x, array).sum(), x)
    y = f(x, array).sum()
    array[:] = 1
    assert np.array_equal(grad(y, x)[0].numpy(), expected.numpy())


class Rows(list):
    """A subclass of list."""


@dataclass
class Chosen:
    """An object whose attributes change. As it is compared by them, it has no hash."""

    rows: list

    def __iter__(self):
        return iter(self.rows)


ROWS = {  # containers of the rows 0 and 1, and a change of them
    "list": (list, lambda s: s.append(3)),
    "a subclass of list": (Rows, lambda s: s.append(3)),
    "dict": (dict.fromkeys, lambda s: s.update({3: None})),
    "set": (set, lambda s: s.add(3)),
    "deque": (deque, lambda s: s.append(3)),
    "bytearray": (bytearray, lambda s: s.append(3)),
    "array.array": (lambda rows: array.array("i", rows), lambda s: s.append(3)),
    "slice": (lambda rows: slice(np.array(0), np.array(2)), lambda s: s.stop.fill(3)),
    "tuple": (lambda rows: ([*rows],), lambda s: s[0].append(3)),
    "dataclass": (Chosen, lambda s: setattr(s, "rows", [3])),
    "a Tensor in a tuple": (lambda rows: (Tensor(rows, dtype=int),), lambda s: s[0].data.fill(3)),
}


@pytest.mark.parametrize("make, change", ROWS.values(), ids=ROWS)
def test_a_container_among_the_settings_may_change(make, change):
    def mask(n, rows):
        rows = rows[0] if isinstance(rows, tuple) else rows
        rows = rows.tolist() if isinstance(rows, Tensor) else rows
        return np.isin(np.arange(n), np.arange(n)[rows] if isinstance(rows, slice) else [*rows])

    kept = ta.op(lambda x, *, rows: x * mask(len(x), rows))
    kept.vjp(lambda g, y, x, *, rows: g * mask(len(x), rows))
    x, rows = rand(4), make([0, 1])
    y = kept(x, rows=rows).sum()
    change(rows)
    assert np.array_equal(grad(y, x)[0].numpy(), [1, 1, 0, 0])


class Resource:
    """As a communicator of MPI: it has no hash, and cannot be copied."""

    __slots__ = ()

    def __eq__(self, other):
        return self is other

    def __reduce__(self):
        raise ValueError("cannot serialize")


def test_a_resource_among_the_settings_is_kept_as_it_is():
    resource, seen = Resource(), []
    through = ta.op(lambda x, *, by: x * 1)
    through.vjp(lambda g, y, x, *, by: seen.append(by) or g)
    through(rand(3), by=resource).sum().backward()
    assert seen[0] is resource


@pytest.mark.parametrize("kind", [np.array, lambda n: Tensor(n, dtype=int)])
def test_the_bounds_of_an_index_may_change(kind):
    x, start, stop = rand(4, 4), kind(0), kind(2)
    ys = x[start:stop], x[start:stop, :1]
    expected = [grad(y.sum(), x, retain_graph=True)[0].numpy() for y in ys]
    for bound in start, stop:
        np.asarray(bound)[...] += 1
    for y, g in zip(ys, expected, strict=True):
        assert np.array_equal(grad(y.sum(), x)[0].numpy(), g)


def test_axes_among_the_settings_may_change():
    x, axes = rand(2, 2, 2), [1, 2, 0]
    y = ta.ops.transpose(x, axes=axes)
    seed = np.arange(8.0).reshape(2, 2, 2)
    axes.clear()
    assert np.array_equal(grad(y, x, seed)[0].numpy(), seed.transpose(2, 0, 1))


def test_a_vjp_cannot_write_to_what_its_op_saved():
    """Another backward pass through the same graph would use the changed values."""
    doubled = ta.op(lambda x: (x * 2, [x > 0]), saves=True)
    doubled.vjp_all(lambda g, y, x, *, saved: (g * np.logical_not(saved[0], out=saved[0]),))
    with pytest.raises(ValueError, match="read-only"):
        doubled(rand(3)).sum().backward()


def test_an_output_that_is_a_view_of_lent_memory_is_watched():
    identity = ta.op(lambda x: x).vjp(lambda g, y, x: g * y)
    x = rand(3)
    held = x.data
    y = identity(x * 1.0).sum() + identity(x).sum()
    held[...] = 5
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


# ---- memory that the user held for a while


def test_what_was_only_read_costs_nothing_later():
    w, others = rand(200, 200), set(guard.lent)
    for read in (
        lambda: w.data,
        lambda: w.numpy(),
        lambda: np.asarray(w.detach()),
        lambda: w.data[3:, ::2],
    ):
        held = read()
        assert guard.lent.keys() - others, "as long as it is held"
        del held
        assert not guard.lent.keys() - others
    y = (w * w).sum()
    assert y._node.inputs[0]._node.checksums is None
    y.backward()


def test_a_change_while_the_memory_was_held_is_found_after_it_was_given_back():
    w, others = rand(3), {*guard.lent}
    y = (w * w).sum()
    part = w.data[1:]
    part[0] = 7
    del part
    assert {*guard.lent} == others
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()
    (w * w).sum().backward()
    assert np.array_equal(w.grad.numpy(), 2 * w.numpy())


@pytest.mark.parametrize("n", [3, 4096, 2**15, 2**17 + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, bool])
def test_the_checksum_sees_each_change(n, dtype):
    rng = np.random.default_rng(0)
    a = (rng.standard_normal(n) * 100).astype(dtype)
    before = guard.checksum_of(a)
    assert guard.checksum_of(a.copy()) == before == guard.checksum_of(np.stack([a, a])[1])
    for i in (0, n // 2, n - 1):
        b = a.copy()
        b[i] = not b[i] if dtype is bool else b[i] + 1
        assert guard.checksum_of(b) != before
    if a[0] != a[-1]:
        b = a.copy()
        b[[0, -1]] = b[[-1, 0]]
        assert guard.checksum_of(b) != before, "an exchange"


def test_a_new_array_as_data_is_copied_and_costs_nothing_later():
    w, array, others = rand(3), np.ones(3), {*guard.lent}
    w.data = array
    array[...] = 7
    assert {*guard.lent} == others and w.numpy().tolist() == [1, 1, 1]
    other = rand(3)
    other.data = w.data[::-1]  # but two tensors can be tied
    other.data[0] = 5
    assert w.numpy().tolist() == [1, 1, 5]


UNREAD = {  # functions of w (3,) whose VJPs read no value of w, but its shape
    "a sum": lambda w: w.sum() + w.sum(),
    "a sum with another": lambda w: (w + rand(3)).sum(),
    "a broadcast sum": lambda w: (w + rand(2, 3)).sum(),
    "a part": lambda w: w[0] * 1.0,
    "another shape": lambda w: w.reshape(3, 1).sum(),
    "a join": lambda w: np.concatenate([w, w]).sum(),
}
TYPES = {
    "longer": lambda: np.ones(4),
    "a single element": lambda: np.ones(1),
    "a row": lambda: np.ones((1, 3)),
    "a number": lambda: np.float64(1),
    "float32": lambda: np.ones(3, np.float32),
}


@pytest.mark.parametrize("make", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("f", UNREAD.values(), ids=UNREAD)
def test_an_array_of_another_shape_or_dtype_after_use_is_refused(f, make):
    """The gradient would have the new shape, but belong to the old values: [1, 1, 1, 1] for 4."""
    w = rand(3)
    y = f(w)
    w.data = w.numpy() + 1
    y.backward()  # the same shape: no value is read
    assert w.grad.shape == (3,)
    y = f(w)
    w.data = make()
    with pytest.raises(ValueError, match="changed in place after it was used"):
        y.backward()
    again = Tensor(np.ones(3), requires_grad=True)
    out = again * 1.0
    out.data = np.ones(4)
    with pytest.raises(ValueError, match="its own output"):
        out.backward(np.ones(4))
    again.grad = np.ones(3)
    again.data = np.ones(1)
    with pytest.raises(ValueError, match=r"cannot be added to its .grad, .*\(3,\)"):
        again.sum().backward()


def test_a_tensor_that_is_tied_to_another_changes_no_value_of_it():
    w, tied = rand(3), rand(3, seed=1)
    y = (w * w).sum()
    tied.data = w.data
    y.backward()
    assert np.array_equal(w.grad.numpy(), 2 * w.numpy())
    y = (w * tied).sum()
    tied.data = rand(3, seed=2).data  # of which the old values are needed
    with pytest.raises(ValueError, match="multiply needs its input 1"):
        y.backward()
    tied.data = w
    y = (w * w).sum()
    tied.data += 1
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize("kept", [True, False])
def test_a_second_look_at_the_values_hides_no_change_by_the_first(kept):
    x = rand(4)
    y = (x * x).sum()
    first = x.data
    first[0] += 1
    second = x.data
    if not kept:
        del first, second
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


def scales(x):
    x *= 2
    return x


WRITING = {  # an op of the user's that changes an array which it was given
    "g": lambda: ta.op(lambda a, b: a + b).vjp(lambda g, y, a, b: scales(g), lambda g, y, a, b: g),
    "an input": lambda: ta.op(lambda a, b: a + b).vjp(
        lambda g, y, a, b: g + 0 * scales(a), lambda g, y, a, b: g
    ),
    "its output": lambda: ta.op(lambda a, b: a + b).vjp(
        lambda g, y, a, b: g, lambda g, y, a, b: g + 0 * scales(y)
    ),
    "an input in its forward function": lambda: ta.op(lambda a, b: scales(a) + b).vjp(
        lambda g, y, a, b: g, lambda g, y, a, b: g
    ),
}


def jointly(op):
    """Return an op whose VJPs are one function."""
    vjps = op.vjps
    op.vjp_all(lambda g, y, a, b: tuple(vjp(g, y, a, b) for vjp in vjps))
    return op


@pytest.mark.parametrize("convert", [lambda op: op, jointly])
@pytest.mark.parametrize("make", WRITING.values(), ids=WRITING)
def test_an_op_cannot_write_to_what_it_was_given(make, convert):
    """g may also be the gradient of another tensor, and x a value that another op needs."""
    adds, (a, b, c) = convert(make()), (rand(3, seed=i) for i in range(3))
    before = a.numpy().copy()
    with pytest.raises(ValueError, match="read-only"):
        (adds(a, b) + c).backward(np.ones(3))
    assert np.array_equal(a.numpy(), before) and a.grad is b.grad is c.grad is None
    assert adds(np.ones(3), np.ones(3)).shape == (3,), "on arrays it is a function like others"


def test_a_recorded_pass_reads_what_the_reference_reads():
    """The joint VJP reads neither x nor y, but the reference computes from x again."""
    saving = ta.op(lambda x: (np.exp(x), np.exp(x)), saves=True, reference=lambda x: np.exp(x))
    saving.trusted = True  # as in the package, whose underscores are believed
    saving.vjp_all(lambda g, _y, _x, *, saved: (g * saved,))
    x = rand(4)
    before, y = np.exp(x.numpy()), saving(x).sum()
    x.data[0] += 1
    np.testing.assert_array_equal(grad(y, x, retain_graph=True)[0].numpy(), before)
    with pytest.raises(ValueError, match="changed in place"):
        grad(y, x, create_graph=True)
