"""The engine: what is recorded, how it is swept, when it is let go, and what is refused."""

import copy
import functools
import gc
import operator
import pickle
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, op, ops
from tinygrad_attn.engine import Listener, history, listening
from tinygrad_attn.engine.bundle import bundle, members


def leaf(*shape, dtype=np.float64, seed=0):
    return Tensor(
        np.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True
    )


def test_each_use_of_a_tensor_adds_to_its_gradient():
    x = Tensor(2.0, requires_grad=True)
    (x * x + x * x + x * x).backward()
    assert x.grad.item() == 12
    x.zero_grad()
    (x + x).backward()
    assert x.grad.item() == 2


class Told(ta.engine.Listener):
    """Notes all events of a computation."""

    def __init__(self):
        self.events = []

    def computed(self, op, inputs, settings, output):
        self.events.append(("computed", op, inputs, settings, output))

    def pulling(self, y, g):
        self.events.append(("pulling", y, float(g)))

    def pulled(self, y, node, g, i, x, contribution, total):
        numbers = float(g), float(contribution), float(total)
        self.events.append(("pulled", y, node, i, x, *numbers))

    def replaced(self, x, before, after):
        self.events.append(("replaced", x, float(before), float(after)))


def test_a_listener_hears_of_each_step():
    told, x, w = Told(), Tensor(3.0, requires_grad=True), Tensor(5.0, requires_grad=True)
    with ta.engine.listening(told):
        y = x.sum(keepdims=True)
        z = y * w + x
        y.register_hook(lambda g: g.numpy() + 4)
        z.backward(retain_graph=True)
    product = z._node.inputs[0]
    assert told.events == [
        ("computed", y._node.op, (x,), y._node.settings, y),
        ("computed", product._node.op, (y, w), {}, product),
        ("computed", z._node.op, (product, x), {}, z),
        ("pulling", z, 1),
        ("pulled", z, z._node, 0, product, 1, 1, 1),
        ("pulled", z, z._node, 1, x, 1, 1, 1),
        ("pulling", product, 1),
        ("pulled", product, product._node, 0, y, 1, 5, 5),
        ("pulled", product, product._node, 1, w, 1, 3, 3),
        ("replaced", y, 5, 9),
        ("pulling", y, 9),
        ("pulled", y, y._node, 0, x, 9, 9, 10),
    ]


def test_backward_twice_adds_up_and_needs_retain_graph():
    x = leaf(3)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    once = x.grad.numpy().copy()
    loss.backward()
    assert np.allclose(x.grad.numpy(), 2 * once)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


@pytest.mark.parametrize("settings", [{}, {"allow_unused": True}, {"create_graph": True}])
def test_a_gradient_by_what_may_lie_behind_a_released_part_is_refused(settings):
    x, w = leaf(3), leaf(3)
    y = x * x
    y.sum().backward()
    loss = lambda: (y * w + x).sum()
    with pytest.raises(RuntimeError, match=r"has been released.*detach\(\)"):
        ta.grad(loss(), x, **settings)  # 2 x w + 1, of which only the 1 is left
    assert np.array_equal(ta.grad(loss(), y, **settings)[0].numpy(), w.numpy())
    z = w * 2  # y is older than this, so it has no part in y
    assert np.array_equal(ta.grad((y * z).sum(), z, **settings)[0].numpy(), y.numpy())


def test_of_a_pass_that_failed_nobody_knows_what_it_would_have_reached():
    @ta.op
    def fails(x):
        return x * 1.0

    fails.vjp(lambda g, y, x: 1 / 0)
    x, w = leaf(3), leaf(3)
    y = fails(x) * w
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="has been released"):
        ta.grad((y * x).sum(), x)


def test_what_create_graph_left_in_grad_can_be_differentiated_after_more_was_added():
    x = leaf(3)
    (x**3).sum().backward(create_graph=True)
    (x * 5).sum().backward()
    assert np.allclose(ta.grad(x.grad.sum(), x)[0].numpy(), 6 * x.numpy())
    x.zero_grad()


def test_the_sweep_lets_go_with_the_collector_off():
    gc.disable()
    try:
        hidden = leaf(3) * 2.0
        alive = weakref.ref(hidden)
        loss = ops.exp(hidden).sum()
        del hidden
        assert alive() is not None
        loss.backward()
        assert alive() is None
    finally:
        gc.enable()


def test_a_leafs_gradient_shares_memory_with_nothing():
    a, b = leaf(4), leaf(4)
    seed = Tensor(np.ones(4))
    (a + b).backward(seed)
    arrays = [a.grad.numpy(), b.grad.numpy(), seed.numpy(), a.numpy()]
    assert not any(np.shares_memory(p, q) for i, p in enumerate(arrays) for q in arrays[:i])
    for create_graph in (False, True):
        g, h = ta.grad(a + b, [a, b], Tensor(np.ones(4)), create_graph=create_graph)
        assert not np.shares_memory(g.numpy(), h.numpy())


def test_a_history_stops_at_its_ends():
    """Otherwise each inner pass, as a checkpoint's, would walk through the whole graph before it."""
    first = leaf(2) * 2.0
    middle = first * 2.0
    last = middle + first
    assert history([last]) == [first, middle, last]
    assert history([last], [middle]) == [first, last]
    assert history([last], [first]) == [middle, last]


@pytest.mark.parametrize("returns", [lambda g: None, lambda g: g, lambda g: RETURNED])
def test_what_a_hook_saw_or_returned_is_not_the_gradients_memory(returns):
    a, seen = leaf(4), []
    a.register_hook(lambda g: seen.append(g) or returns(g))
    (a * 2.0).sum().backward()
    for other in (*seen, RETURNED):
        assert not np.shares_memory(a.grad.numpy(), other.numpy())


RETURNED = Tensor(np.ones(4))


def test_a_listener_hears_of_every_slice_that_is_added_in_place():
    heard = []

    class Hears(Listener):
        def pulled(self, y, node, g, i, x, contribution, total):
            heard.append((node.op, total.sum()))

    x = leaf(3, 4)
    for listener in (None, Hears()):
        y = x * 1.0
        loss = (y[0] + y[1] * 2 + y[2] * 3).sum()
        with listening(listener) if listener else nullcontext():
            x.grad = None
            loss.backward()
        assert x.grad.numpy()[:, 0].tolist() == [1, 2, 3]
    assert sorted(total for op, total in heard if op is ops.getitem) == [12, 20, 24]


@pytest.mark.parametrize(
    "use, arrays", [(lambda x: x + 1.0, 2), (lambda x: x * 2.0, 1)], ids=["g itself", "new arrays"]
)
def test_a_sum_that_no_one_else_sees_changes_in_place(use, arrays):
    """Otherwise each use of a parameter would take another array of its size."""
    totals = []

    class Hears(Listener):
        def pulled(self, y, node, g, i, of, contribution, total):
            totals.extend([total] if of is x else [])

    x = leaf(4)
    with listening(Hears()):
        (use(x) + use(x) + use(x) + use(x)).sum().backward()
    assert len(totals) == 4 and len({*map(id, totals)}) == arrays
    assert np.shares_memory(x.grad.numpy(), totals[-1])


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_a_gradient_is_held_as_the_values_of_its_tensor_are(shape):
    """A single number is a NumPy scalar, whether it came from a rule, a hook or a seed."""
    ones = np.ones(shape)
    same = ta.op(lambda x: x * 1.0, lambda g, y, x: np.array(g))
    x, hooked = Tensor(ones, requires_grad=True), Tensor(ones, requires_grad=True)
    hooked.register_hook(lambda g: np.array(ones))
    for y, of in ((same(x), x), (x.clone(), x), (hooked * 1.0, hooked)):
        y.retain_grad()
        y.backward(ones)
        assert type(y.grad._data) is type(of.grad._data) is type(x._data)


class Sums(nn.Module):
    def forward(self, a, b):
        return a + b


def hooked(a, b):
    module = Sums()
    module.register_full_backward_hook(lambda *_: None)
    return module(a, b)


def returns_a_gradient(shared):
    def sums(a, b):
        a.register_hook(lambda g: shared)
        b.register_hook(lambda g: shared)
        return a + b

    return sums


KEPT = np.ones(4)
SUMS = {  # functions a + b in which g is the gradient of both terms
    "a sum": Sums(),
    "a checkpoint": lambda a, b: ta.checkpoint(Sums(), a, b),
    "checkpoints": lambda a, b: ta.checkpoint(lambda a: ta.checkpoint(Sums(), a, b), a),
    "a checkpoint of two": lambda a, b: sum(ta.checkpoint(lambda a, b: (a + b, a - b), a, b)) + b,
    "a hooked module": hooked,
    "a hooked module in a checkpoint": lambda a, b: ta.checkpoint(hooked, a, b),
    "hooks": returns_a_gradient(KEPT),
    "an op of the user's": ta.op(np.add, lambda g, y, a, b: g, lambda g, y, a, b: g),
    "an op that keeps an array": ta.op(
        np.add, lambda g, y, a, b: KEPT, lambda g, y, a, b: KEPT[::-1]
    ),
}


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "outputs"])
@pytest.mark.parametrize("name", SUMS)
def test_no_gradient_shares_memory_with_another_however_it_was_computed(name, leaves):
    """Otherwise an optimiser or clip_grad_norm_ that scales them in place would do so twice."""
    a, b, seed = leaf(4), leaf(4), np.ones(4)
    x, y = (a, b) if leaves else (a * 1.0, b + 0.0)
    x.retain_grad()
    y.retain_grad()
    SUMS[name](x, y).backward(seed)
    kept = {id(t): t.grad.numpy() for t in (a, b, x, y)}
    arrays = [*kept.values(), seed, KEPT]
    assert not any(np.shares_memory(p, q) for i, p in enumerate(arrays) for q in arrays[:i])
    assert all(p.flags.writeable for p in arrays)


def test_an_old_gradient_held_by_the_user_does_not_change():
    x = leaf(3)
    (x * 2).sum().backward()
    held = x.grad
    (x * 2).sum().backward()
    assert (held.numpy() == 2).all() and (x.grad.numpy() == 4).all()


def test_only_wanted_partials_are_computed():
    called = []

    @ta.op
    def product(a, b):
        return a * b

    product.vjp(
        lambda g, y, a, b: called.append("a") or g * b,
        lambda g, y, a, b: called.append("b") or g * a,
    )
    a, b = leaf(3), leaf(3)
    product(a, Tensor(np.ones(3))).sum().backward()
    assert called == ["a"]
    called.clear()
    ta.grad(product(a, b).sum(), b)
    assert called == ["b"]


def test_grad_as_torch_returns_a_tuple_and_touches_no_grad():
    x, unused = leaf(3), leaf(2)
    y = (x**3).sum()
    (g,) = ta.grad(y, x, retain_graph=True)
    assert np.allclose(g.numpy(), 3 * x.numpy() ** 2) and x.grad is None
    with pytest.raises(ValueError, match="was not used"):
        ta.grad(y, [x, unused], retain_graph=True)
    assert ta.grad(y, [x, unused], allow_unused=True)[1] is None


def test_grad_by_an_intermediate_and_by_what_it_came_from():
    x = leaf(3)
    h = x * 2
    y = (h * h + x).sum()
    gh, gx = ta.grad(y, [h, x])
    assert np.allclose(gh.numpy(), 2 * h.numpy())
    assert np.allclose(gx.numpy(), 8 * x.numpy() + 1)


def test_derivatives_of_derivatives():
    x = Tensor(np.array([0.5, -1.5]), requires_grad=True)
    y = (x**4).sum()
    for expected in (
        lambda v: 4 * v**3,
        lambda v: 12 * v**2,
        lambda v: 24 * v,
        lambda v: 24 + 0 * v,
    ):
        (g,) = ta.grad(y, x, create_graph=True)
        assert np.allclose(g.numpy(), expected(x.numpy()))
        y = g.sum()


def test_retain_grad_and_the_warning_without_it():
    x = leaf(2)
    kept, lost = x * 2, x * 3
    kept.retain_grad()
    (kept * lost).sum().backward(retain_graph=True)
    assert np.allclose(kept.grad.numpy(), lost.numpy())
    with pytest.warns(UserWarning, match="retain_grad"):
        assert lost.grad is None
    lost.grad = np.ones(2)
    with warnings.catch_warnings(action="error"):  # what was put there is there: nothing was lost
        assert lost.grad.numpy().tolist() == [1, 1]


def test_what_backward_refuses():
    x = leaf(2, 3)
    with pytest.raises(TypeError, match=r"real numbers, got array \(2, 3\) complex128"):
        (x * 2).backward(np.ones((2, 3)) * 1j)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\.sum\(\)"):
        (x * 2).backward()
    with pytest.raises(
        ValueError, match=r"gradient has shape \(3,\) but the output has shape \(2, 3\)"
    ):
        (x * 2).backward(np.ones(3))
    for outputs, weights in (([x.sum(), x.sum()], [1.0]), ([x.sum()], [1.0, 1.0])):
        with pytest.raises(ValueError, match="argument 2 is"):  # one weight for each output
            ta.grad(outputs, [x], weights)
    with pytest.raises(ValueError, match="requires_grad=True"):
        Tensor([1.0]).backward()
    with pytest.raises(TypeError, match="floating-point"):
        Tensor(np.arange(3), requires_grad=True)
    with pytest.raises(TypeError, match="floating-point"):
        Tensor(np.array([True]), requires_grad=True)


def test_an_op_may_have_inputs_without_a_derivative_optional_ones_and_settings():
    @ta.op
    def step(x):
        return np.sign(x)

    step.vjp(None)

    @ta.op
    def line(x, slope, shift=None, *, scale=1.0):
        return scale * (x * slope if shift is None else x * slope + shift)

    line.vjp(
        lambda g, y, x, slope, shift=None, *, scale: g * slope * scale,
        lambda g, y, x, slope, shift=None, *, scale: g * x * scale,
        lambda g, y, x, slope, shift=None, *, scale: g * scale,
    )
    x, slope, shift = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    step(x).sum().backward()
    assert x.grad is None
    for inputs, scale in (((x, slope), 1.0), ((x, slope, shift), 1.0), ((x, slope, shift), 2.0)):
        x.grad = slope.grad = shift.grad = None
        line(*inputs, scale=scale).sum().backward()
        assert np.allclose(x.grad.numpy(), slope.numpy() * scale) and np.allclose(
            slope.grad.numpy(), x.numpy() * scale
        )
        assert (shift.grad is None) == (len(inputs) == 2)
        assert [
            g is not None
            for g in ta.grad(line(*inputs, scale=scale).sum(), [slope, shift], allow_unused=True)
        ] == [True, len(inputs) == 3]


def test_a_setting_that_is_a_tensor_is_refused():
    @ta.op
    def scaled(x, *, by):
        return x * by

    with pytest.raises(TypeError, match="scaled takes by= as a plain setting"):
        scaled(leaf(2), by=leaf(2))


def test_an_input_given_by_keyword_lands_where_python_puts_it():
    @op
    def f(a, b=1.0, c=2.0):
        return a + 10 * b + 100 * c

    f.vjp(
        lambda g, y, a, b=1.0, c=2.0: g,
        lambda g, y, a, b=1.0, c=2.0: 10 * g,
        lambda g, y, a, b=1.0, c=2.0: 100 * g,
    )
    x = Tensor(5.0, requires_grad=True)
    for y in (f(0.0, c=x), f(a=0.0, c=x), f(c=x, b=1.0, a=0.0)):  # b is skipped, and c still c
        assert y.item() == 510 and ta.grad(y, x)[0].item() == 100
    assert f(0.0, b=x).item() == 250  # and what comes after the last is left to the function
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        f(x, a=x)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        f(b=x)


def test_the_record_names_the_module_call():
    class Scope:
        pass

    here, scope = ta.engine.context, Scope()
    here.scope = scope
    try:
        y = leaf(2) * 2
    finally:
        here.scope = None
    assert y._node.scope is scope and (leaf(2) * 2)._node.scope is None


def test_an_error_of_another_kind_keeps_its_cause_and_says_where():
    @ta.op
    def fails(x):
        raise KeyError("missing")

    with pytest.raises(KeyError) as caught:
        fails(leaf(3))
    assert caught.value.__cause__ is None and caught.value.__notes__ == [
        "in fails of Tensor (3,) float64"
    ]


@pytest.mark.parametrize("apply", [lambda h: h * h, ta.functional.gelu, ta.functional.softmax])
def test_a_result_is_let_go_when_its_rule_has_run_however_its_gradient_was_made(apply):
    alive = []

    @ta.op
    def look(x):
        return x + 0

    def rule(g, y, x):
        alive.extend(ref() is not None for ref in refs)
        return g

    look.vjp(rule)
    h, refs = look(leaf(2)), []
    for _ in range(3):
        h = apply(h)
        refs.append(weakref.ref(h))
    h = h.sum()
    h.backward()
    assert alive == [False] * 3


@pytest.mark.parametrize("mode", [nullcontext, ta.plain])
def test_what_was_frozen_after_its_use_gets_no_gradient_nor_what_was_made_of_it(mode):
    with mode():
        x, w = leaf(3), leaf(3)
        h = x * 2
        loss = (h * w).sum()
        x.requires_grad_(False)
        loss.backward()
        assert x.grad is None and h.grad is None and np.array_equal(w.grad.numpy(), h.numpy())


@pytest.mark.parametrize("mode", [nullcontext, ta.plain])
def test_saved_floats_are_no_constants_to_a_rule_that_is_differentiated(mode):
    @ta.op(saves=True)
    def square(x):
        return x * x, {"twice": (2 * x,)}

    @square.vjp_all
    def _(g, y, x, *, saved):
        return (g * saved["twice"][0],)

    @ta.op(saves=True)
    def kept(x):
        mask = x > 0
        return np.where(mask, x * x, 0), mask

    @kept.vjp_all
    def _(g, y, x, *, saved):
        return (g * 2 * x * saved,)

    x = leaf(3)
    with mode():
        assert np.allclose(ta.grad(square(x).sum(), x)[0].numpy(), 2 * x.numpy())
        with pytest.raises(TypeError, match="'square' saves array .*reference"):
            ta.grad(square(x).sum(), x, create_graph=True)
        (g,) = ta.grad(kept(x).sum(), x, create_graph=True)
        assert np.allclose(ta.grad(g.sum(), x)[0].numpy(), 2 * (x.numpy() > 0))


@pytest.mark.parametrize("mode", [nullcontext, ta.plain], ids=["quick", "plain"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_an_output_that_is_named_several_times_counts_as_often(mode, create_graph):
    with mode():
        x = Tensor([1.0, 2.0], requires_grad=True)
        y, z = x * x, x * 3
        seeds = [np.array(s) for s in ([1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [8.0, 80.0])]
        (g,) = ta.grad([y, z, y, x], [x], seeds, create_graph=create_graph)
    assert g.numpy().tolist() == [2 * 5 + 3 * 2 + 8, 4 * 50 + 3 * 20 + 80]


def test_a_copy_of_an_op_is_the_op_itself():
    layer = ta.nn.TransformerEncoderLayer(4, 2, 8, activation=ops.tanh)
    assert copy.deepcopy(layer).activation is ops.tanh
    assert pickle.loads(pickle.dumps(ops.tanh)) is ops.tanh


@pytest.mark.parametrize("values", [[1, 2], (0.5, 1.5), [True, False], [[1], [2]]])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?"])
def test_lists_are_operands_as_numpy_has_them(dtype, values):
    """Numbers of a list take the dtype of a floating-point Tensor beside them."""
    array, known = np.array([1, 3], dtype), np.array(values)
    for found in (ops.add(Tensor(array), values), ops.add(values, Tensor(array))):
        taken = known.astype(dtype) if "f" in dtype and known.dtype != bool else known
        assert found.dtype == (array + taken).dtype
        np.testing.assert_array_equal(found.numpy(), array + taken)
    np.testing.assert_array_equal(ops.add(values, values), known + known)
    for wrong in ([1j], ["a"], [None]):
        with pytest.raises(TypeError, match="add cannot take"):
            ops.add(Tensor(array), wrong)


# ---- gradients that meet


@pytest.mark.parametrize("turn", [1, -1])
def test_an_output_may_be_computed_from_another(turn):
    x = leaf(3)
    y = x * x
    z = y * y
    ones = np.ones(3)
    by_y, by_x = ta.grad([y, z][::turn], [y, x], [ones, 2 * ones][::turn])
    np.testing.assert_allclose(by_y.numpy(), 1 + 4 * y.numpy())
    np.testing.assert_allclose(by_x.numpy(), 2 * x.numpy() * by_y.numpy())


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_a_hook_computes_is_recorded_with_the_pass(create_graph):
    x, w = leaf(3), leaf(3)
    y = x * x
    for t in x, y:
        t.register_hook(lambda g: g * w)
    (g,) = ta.grad(y.sum(), x, create_graph=create_graph)
    assert g.requires_grad == create_graph
    np.testing.assert_allclose(g.numpy(), 2 * x.numpy() * w.numpy() ** 2)


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_a_leafs_gradient_has_the_leafs_layout_in_memory(uses):
    x, w = leaf(3, 4), leaf(4, 3)
    sum((np.swapaxes(x, 0, 1) * w).sum() for _ in range(uses)).backward()
    np.testing.assert_allclose(x.grad.numpy(), uses * w.numpy().T)
    assert x.grad.numpy().flags.c_contiguous


def test_a_hook_cannot_write_into_a_gradient():
    """It may be that of another tensor, too."""
    x = leaf(3)
    x.register_hook(lambda g: g.data.fill(0))
    with pytest.raises(ValueError, match="read-only"):
        (x * x).sum().backward()


def test_a_listener_hears_of_gradients_that_are_added_to_those_of_before():
    told, x = Told(), Tensor(3.0, requires_grad=True)
    x.sum().backward()
    with listening(told):
        x.sum().backward()
    assert [e[1].__name__ for e in told.events if e[0] == "computed"] == ["sum", "add"]


def test_members_that_are_taken_out_of_a_bundle_twice_add_up():
    x, y = leaf(3), leaf(2)
    token = bundle(x, y)
    (a, b), (c, _) = (members(token, [x._data, y._data]) for _ in range(2))
    ((2 * a).sum() + (5 * b).sum() + (7 * c).sum()).backward()
    assert x.grad.tolist() == [9] * 3 and y.grad.tolist() == [5] * 2


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("recorded", [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_of_several_passes_are_one_tensor(shape, recorded):
    x = leaf(*shape)
    for create_graph in recorded:
        (x**3).sum().backward(create_graph=create_graph)
    assert x.grad is x.grad and isinstance(x.grad, Tensor)
    assert x.grad.requires_grad == any(recorded) and x.grad.dtype == np.float64
    assert np.allclose(x.grad.numpy(), 6 * x.numpy() ** 2)
    if any(recorded):
        (second,) = ta.grad(x.grad.sum(), x)
        assert np.allclose(second.numpy(), 6 * sum(recorded) * x.numpy())
    x.zero_grad()  # or x and the graph of its gradient would hold each other


def test_an_assigned_gradient_takes_the_dtype_of_its_tensor_and_a_sum_the_wider_one():
    for dtype in (np.float32, np.float64):
        for given in ([0.1, 0.2], np.array([0.1, 0.2]), np.array([1, 2])):
            w = Tensor(np.ones(2, dtype), requires_grad=True)
            w.grad = given
            assert w.grad.dtype == dtype
            np.testing.assert_array_equal(w.grad.numpy(), np.asarray(given, dtype))
    x = leaf(3)
    x.grad = Tensor(np.ones(3, np.float32))
    (x / 3).sum().backward()
    assert x.grad.dtype == np.float64 and np.allclose(x.grad.numpy(), 4 / 3, rtol=1e-12)
    x.data = np.ones(4)
    with pytest.raises(ValueError, match=r"cannot be added to its .grad, .*\(3,\)"):
        (x * 2).sum().backward()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "large, small",
    [
        ((5000, 3), (3,)),
        ((40, 60, 7), (60, 7)),
        ((3000, 1, 2), (1, 2)),
        ((300, 20, 4), (20, 1)),
        ((3000, 4), ()),
        ((3000, 0), (0,)),
        ((3000, 2), (3000, 1)),
    ],
    ids=str,
)
def test_the_gradient_of_what_was_broadcast_far_is_summed_back(large, small, dtype):
    b = Tensor(np.zeros(small, dtype), requires_grad=True)
    g = np.random.default_rng(0).integers(-1, 2, large).astype(dtype)
    wide = np.broadcast_to(np.empty(small), large)
    axes = tuple(i for i, step in enumerate(wide.strides) if not step and large[i] > 1)
    expected = g.astype(float).sum(axis=axes).reshape(small)
    for cotangent in (g, np.asfortranarray(g)):
        b.zero_grad()
        (Tensor(np.zeros(large, dtype)) + b).backward(cotangent)
        assert b.grad.dtype == dtype and b.grad.shape == small
        assert np.array_equal(b.grad.numpy(), expected)
        x = Tensor(cotangent, requires_grad=True)
        (again,) = ta.grad((x * b).sum(), b, create_graph=True)  # where it is summed as a tensor
        assert np.array_equal(again.numpy(), expected)
        assert (ta.grad(again.sum(), x)[0].numpy() == 1).all()


@pytest.mark.parametrize("repeated, shape", [((2**18, 3), (3,)), ((2**9, 2**9, 3), (1, 1, 3))])
def test_a_gradient_added_up_over_very_many_rows_keeps_its_digits(repeated, shape):
    g = np.random.default_rng(0).random(repeated, np.float32)
    b = Tensor(np.ones(shape, np.float32), requires_grad=True)
    (Tensor(np.ones(repeated, np.float32)) + b).backward(Tensor(g))
    exact = g.reshape(-1, 3).sum(0, np.float64).reshape(shape)
    assert b.grad.dtype == np.float32
    np.testing.assert_allclose(b.grad.numpy(), exact, rtol=8e-7)


OTHERS = [np.arange(1.0, 4.0), np.arange(1, 4, dtype=np.float32), np.array([True] * 3)]
OTHERS += [np.arange(1.0, 7.0)[::2], np.ones((2, 1), np.float32), np.array(2.0), np.float64(2)]
OTHERS += [np.float16(2), np.int64(2), np.longdouble(2), 2, 2.5, True]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@pytest.mark.parametrize("reflected", [False, True])
def test_an_operator_is_its_op_whatever_stands_on_the_other_side(name, reflected):
    sign = getattr(operator, name)
    names = {"sub": "subtract", "mul": "multiply", "truediv": "divide"}
    one = getattr(ops, names.get(name, name))
    for other in OTHERS:
        results = []
        for function, way in ((sign, nullcontext), (one, nullcontext), (one, ta.plain)):
            x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
            with way():
                y = function(other, x) if reflected else function(x, other)
                y.sum().backward(retain_graph=True)
            kinds = [type(a) for a in y._node.inputs]
            results.append((y.numpy(), x.grad.numpy(), y.dtype, x.grad.dtype, kinds))
        for y, g, *same in results[1:]:
            assert np.array_equal(y, results[0][0]) and np.array_equal(g, results[0][1])
            assert same == [*results[0][2:]], repr(other)


def test_dtypes_promote_as_numpys_and_each_gradient_comes_back_in_its_own():
    x, w = leaf(2, 3, dtype=np.float32), leaf(3)
    y = x * w
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (np.float64, np.float32, np.float64)
    y = ops.exp(x * np.float64(2.0) / np.sqrt(8) + [0.5, 1.0, 1.5]).var(axis=0).sum()
    assert y.dtype == ta.grad(y, x)[0].dtype == np.float32
    for dtype in (np.float64, np.float16, np.int64, bool):
        for data in (2, [2.5], np.float16(2.5)):
            x = Tensor(data, dtype=dtype)
            assert x.dtype == dtype and np.array_equal(x.numpy(), np.array(data, dtype))


# ---- modes


def test_no_grad_is_per_thread_nests_and_decorates():
    x = leaf(2)
    with ta.no_grad():
        assert not (x * 2).requires_grad
        with ta.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
        seen = []
        other = threading.Thread(target=lambda: seen.append((x * 2).requires_grad))
        other.start()
        other.join()
        assert seen == [True]
    assert (x * 2).requires_grad

    @ta.no_grad()
    def evaluate():
        return x * 2

    assert not evaluate().requires_grad and (x * 2).requires_grad
    with pytest.raises(ZeroDivisionError), ta.no_grad():
        1 / 0  # noqa: B018
    assert (x * 2).requires_grad

    def parts():
        yield x * 2

    async def later():
        return x * 2

    for mode in (ta.no_grad, ta.enable_grad, ta.plain):
        for function in (parts, later, functools.partial(parts), nn.Linear):
            with pytest.raises(TypeError, match=rf"{mode.__name__} cannot decorate .*Write `with"):
                mode(function)
    same = ta.no_grad()
    with same:
        with same:
            assert not (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


MODES = ta.no_grad, ta.enable_grad, ta.plain


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_generators_block_may_end_before_a_block_that_began_inside_it(first, second):
    def generator():
        with first():
            yield

    state = lambda: (ta.engine.context.recording, ta.is_plain())
    outside = state()
    with second():
        alone = state()
    for end in (lambda steps: steps.close(), lambda steps: next(steps, None)):
        steps = generator()
        next(steps)
        with second():
            end(steps)
            assert state() == alone
            with ta.no_grad(), ta.enable_grad():
                pass
            assert state() == alone
        assert state() == outside


LAYER = ta.nn.Linear(2, 2)
BLOCKS = {mode.__name__: mode for mode in MODES} | {
    "patch": lambda: ta.patch(LAYER, {"": lambda y: y * 0}),
    "activations": lambda: ta.activations(LAYER),
    "record_attention": ta.record_attention,
}


@pytest.mark.parametrize("mode", BLOCKS.values(), ids=BLOCKS)
def test_a_generators_block_may_end_in_another_thread(mode):
    """It ends in the thread where it began, and changes nothing in the other."""

    def generator():
        with mode():
            yield

    def state():
        here = ta.engine.context
        return here.recording, here.plain, here.patches, here.listeners

    with ThreadPoolExecutor(1) as other, ta.no_grad():
        outside, here = other.submit(state).result(), state()
        steps = generator()
        other.submit(next, steps).result()
        steps.close()
        assert (other.submit(state).result(), state()) == (outside, here)


def test_an_interrupt_just_before_a_pass_begins_leaves_nothing_behind():
    """No call of Python's comes between the change of the run and the block that undoes it."""
    before = ta.engine.context.captured()
    ta.engine.backward.Pass(recorded=False)  # interrupted before `with`
    assert ta.engine.context.captured() == before


def test_a_generators_block_ends_no_other_block_of_the_same_object():
    guard, x = ta.no_grad(), Tensor(np.ones(2), requires_grad=True)

    def batches():
        with guard:
            yield

    def other():
        with guard:
            inside.set()
            closed.wait()
            seen.append((x * 2).requires_grad)

    generator, inside, closed, seen = batches(), threading.Event(), threading.Event(), []
    begins = threading.Thread(target=next, args=(generator,))
    begins.start()
    begins.join()
    another = threading.Thread(target=other)
    another.start()
    inside.wait()
    generator.close()
    closed.set()
    another.join()
    assert seen == [False] and (x * 2).requires_grad


def test_many_threads_may_enter_one_mode():
    """As those of a web server do that call a decorated function."""
    x, seen, before = Tensor(np.ones(2), requires_grad=True), [], sys.getswitchinterval()
    predict = ta.no_grad()(lambda: (x * 2).requires_grad)

    def work():
        seen.extend((predict(), (x * 2).requires_grad) for _ in range(500))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert seen == [(False, True)] * 3000


def test_a_copy_of_a_mode_has_no_blocks():
    """A module may have one, and be copied in its block."""
    with (guard := ta.no_grad()):
        for other in copy.deepcopy(guard), pickle.loads(pickle.dumps(guard)):
            assert type(other) is ta.no_grad and not other._runs


def test_an_array_that_masks_nothing_is_an_array():
    x = Tensor(np.ones(3), requires_grad=True)
    (x * 2).backward(np.ma.ones(3))
    assert x.grad.tolist() == [2.0] * 3


def test_several_threads_differentiate_at_once():
    x, results = leaf(50), {}

    def work(k):
        y = x * float(k)
        for _ in range(200):
            y = y * 1.0 + 0.0
        results[k] = ta.grad(y.sum(), x)[0].numpy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((results[k] == k).all() for k in range(1, 5))


# ---- ops of one's own


def cube_with(vjp):
    return ta.op(lambda x: x * x * x).vjp(vjp)


def test_an_op_of_ones_own():
    @ta.op
    def cube(x):
        return x * x * x

    x = leaf(3)
    with pytest.raises(TypeError, match=r"cube\.vjp"):
        cube(x).sum().backward()
    with pytest.raises(ValueError, match="1 positional inputs"):
        cube.vjp(lambda g, y, x: g, lambda g, y, x: g)
    cube.vjp(lambda g, y, x: g * 3 * x * x)
    (g,) = ta.grad(cube(x).sum(), x, create_graph=True)
    (h,) = ta.grad(g.sum(), x)
    assert np.allclose(g.numpy(), 3 * x.numpy() ** 2) and np.allclose(h.numpy(), 6 * x.numpy())
    assert isinstance(cube(np.ones(2)), np.ndarray)
    total = ta.op(lambda x: float(x.sum()))  # a number of Python's
    total.vjp(lambda g, y, x: g * np.ones_like(x))
    y = total(x)
    assert isinstance(y._data, np.ndarray) and y.item() == x.data.sum()
    assert ta.grad(y, x)[0].tolist() == [1, 1, 1]


def test_a_vjp_with_its_parameters_in_another_order_is_refused():
    cube = ta.op(lambda x: x * x * x)
    with pytest.raises(
        ValueError, match=r"called with \(g, y, x\), but one of them takes \(g, x, y\)"
    ):
        cube.vjp(lambda g, x, y: g * 3 * x * x)


@pytest.mark.parametrize(
    "vjp, text",
    [
        (
            lambda g, y, x: g.sum(),
            r"for input 0 returned .* \(\).*, but a gradient of Tensor \(3,\)",
        ),
        (lambda g, y, x: None, "for input 0 returned None, but a gradient of"),
    ],
)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_rule_that_returns_no_gradient_is_named(vjp, text, create_graph):
    with pytest.raises(ValueError, match=text):
        ta.grad(cube_with(vjp)(x := leaf(3)).sum(), x, create_graph=create_graph)


@pytest.mark.parametrize(
    "returned,named",
    [
        (lambda g, a, b: (g * b,), "a tuple"),
        (lambda g, a, b: (g * b, g * a, g), "a tuple"),
        (lambda g, a, b: None, "None"),
        (lambda g, a, b: g * b, r"array \(2, 2\)"),
    ],
)
def test_one_rule_for_all_returns_a_gradient_for_each_input(returned, named):
    times = ta.op(lambda a, b: a * b, broadcasts=True)
    times.vjp_all(lambda g, y, a, b: returned(g, a, b))
    a, b = leaf(2, 2), leaf(2, 2, seed=1)
    for x, y in ((a, b), (a.detach(), b)):
        with pytest.raises(
            TypeError, match=f"returned {named}.*it must return a tuple of length 2"
        ):
            times(x, y).sum().backward()


def test_what_an_op_that_saves_returns():
    saves, plain = ta.op(lambda x: x * x, saves=True), ta.op(lambda x: (x * x, x))
    with pytest.raises(TypeError, match=r"saves=True.*must return \(y, saved\)"):
        saves(leaf(2))
    with pytest.raises(
        TypeError, match=r"returned a tuple.*@op\(saves=True\) and return \(y, saved\)"
    ):
        plain(leaf(2))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_no_operand_and_what_an_op_or_a_hook_returns_is_an_array():
    """`g * x` in a VJP would be a matrix product."""
    a = np.matrix(np.arange(1.0, 10).reshape(3, 3))
    x = Tensor(np.asarray(a), requires_grad=True)
    for f in (lambda: x * a, lambda: np.multiply(a, x), lambda: ta.ops.divide(x, a)):
        with pytest.raises(TypeError, match=r"cannot take .*Convert the operand"):
            f()
    forward = ta.op(lambda x: np.matrix(x)).vjp(lambda g, y, x: g)
    backward = ta.op(lambda x: x * 1).vjp(lambda g, y, x: np.matrix(g))
    for f in (forward, backward):
        y = f(x**2)
        (got,) = ta.grad((y * y).sum(), x)
        np.testing.assert_allclose(got.numpy(), 4 * x.numpy() ** 3)
    y = x**2
    y.register_hook(lambda g: np.matrix(g.numpy()))
    np.testing.assert_allclose(ta.grad((y * y).sum(), x)[0].numpy(), 4 * x.numpy() ** 3)


def masked(x, **settings):
    return np.ma.masked_array(np.array(x), mask=[True, False, False])


MASKED = {  # where a masked array is returned, or passed as a gradient
    "an op": lambda x: ta.op(masked, lambda g, y, x: g)(x),
    "a VJP": lambda x: ta.op(np.exp, lambda g, y, x: masked(g))(x).sum().backward(),
    "a hook": lambda x: [x.register_hook(lambda g: masked(g.numpy())), x.sum().backward()],
    "a seed": lambda x: (x * 2).backward(masked(np.ones(3))),
    "grad_outputs": lambda x: ta.grad(x * 2, x, masked(np.ones(3)), create_graph=True),
}


@pytest.mark.parametrize("name", MASKED)
def test_no_masked_array_loses_its_mask_on_the_way(name):
    """Its masked values would count."""
    with pytest.raises((TypeError, ValueError), match=r"MaskedArray \(3,\)"):
        MASKED[name](leaf(3))
