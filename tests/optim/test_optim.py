"""Optimisers, clipping and schedules: PyTorch's numbers, and errors that say what to write."""

import contextlib
import copy
import math
import pickle
import warnings
from collections import defaultdict

import numpy as np
import pytest
from enumeration import asserted, public, unmet
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, optim

torch = require("torch")


@pytest.fixture(params=["kernel", "plain"])
def walk(request):
    """Once by the kernel of fast/, once by the optimiser's own loop."""
    with ta.plain() if request.param == "plain" else contextlib.nullcontext():
        yield


SHAPES = [
    (3, 4),
    (5,),
    (),
    (200, 100),
    (1, 1, 7),
]  # four small ones, gathered, and a large one, updated where it is
SETTINGS = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}),
    ("Adam", {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.03, "amsgrad": True, "maximize": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.03, "weight_decay": 0.3, "maximize": True}),
    ("AdamW", {"lr": 0.03, "amsgrad": True, "weight_decay": 0.0}),
    ("AdamW", {"betas": (0.5, 0.7), "eps": 1e-2}),
]


def twins(dtype="float64", shapes=SHAPES, seed=0):
    """The same parameters, ours and torch's."""
    generator = np.random.default_rng(seed)
    arrays = [np.asarray(generator.standard_normal(s), dtype) for s in shapes]
    return [Tensor(a, requires_grad=True) for a in arrays], [
        torch.tensor(a, requires_grad=True) for a in arrays
    ]


X = np.linspace(-1, 1, 12, dtype="f").reshape(4, 3)


def leaf():
    return Tensor([1.0, 2.0], requires_grad=True)


def give_gradients(ours, theirs, seed, missing=()):
    generator = np.random.default_rng(seed)
    for i, (p, q) in enumerate(zip(ours, theirs)):
        g = np.asarray(
            generator.standard_normal(p.shape) * 10.0 ** generator.integers(-3, 2), p.dtype
        )
        p.grad = None if i in missing else Tensor(g)
        q.grad = None if i in missing else torch.tensor(g)


def assert_same(ours, theirs, tolerance):
    for p, q in zip(ours, theirs):
        assert p.dtype == q.detach().numpy().dtype
        np.testing.assert_allclose(p._data, q.detach().numpy(), rtol=tolerance, atol=tolerance)


def steps(ours, theirs, *pairs, seeds=range(3), tolerance=1e-12):
    """Take steps with every pair of optimisers, and compare all parameters after each."""
    for step in seeds:
        give_gradients(ours, theirs, step)
        for pair in pairs:
            for optimizer in pair:
                optimizer.step()
        assert_same(ours, theirs, tolerance)


@pytest.mark.parametrize("name, settings", SETTINGS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float64", 1e-12)])
def test_ten_steps_as_torch(walk, name, settings, dtype, tolerance):
    ours, theirs = twins(dtype)
    pair = getattr(optim, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)
    steps(ours, theirs, pair, seeds=range(10), tolerance=tolerance)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.999)])
def test_adam_takes_gradients_as_large_as_torch_does(walk, betas):
    """(1 - b2) g comes first: g^2 would overflow, where (1 - b2) g^2 does not."""
    p, q = Tensor(np.zeros(2, np.float32), requires_grad=True), torch.zeros(2, requires_grad=True)
    p.grad, q.grad = Tensor(np.array([5e20, 1], np.float32)), torch.tensor([5e20, 1])
    optim.Adam([p], betas=betas).step()
    torch.optim.Adam([q], betas=betas).step()
    assert_same([p], [q], 1e-7)


def test_dtypes_groups_and_optimisers_that_share_parameters(walk):
    (ours, theirs), more = twins("float32"), twins("float64", seed=1)
    ours, theirs = ours + more[0], theirs + more[1]  # both dtypes in one group
    steps(ours, theirs, (optim.Adam(ours), torch.optim.Adam(theirs)), tolerance=1e-6)
    ours, theirs = twins()
    pairs = [
        (optim.SGD(ours, momentum=0.9), torch.optim.SGD(theirs, momentum=0.9)),
        (optim.Adam(ours[1:]), torch.optim.Adam(theirs[1:])),
    ]
    steps(ours, theirs, *pairs)
    pair = [
        library.AdamW(
            [
                {"params": p[:2], "lr": 0.1, "betas": (0.5, 0.9)},
                {"params": p[2:4], "amsgrad": True},
            ],
            weight_decay=0.1,
        )
        for library, p in ((optim, ours), (torch.optim, theirs))
    ]
    steps(ours[:4], theirs[:4], pair)
    for optimizer, p in zip(pair, (ours, theirs)):  # more parameters and another rate
        optimizer.add_param_group({"params": p[4], "lr": 0.2})
        optimizer.param_groups[0]["lr"] = 0.05
    steps(ours, theirs, pair, seeds=range(3, 8))
    assert [g["lr"] for g in pair[0].param_groups] == [0.05, 1e-3, 0.2]


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_that_are_frozen_for_a_time_stay_as_they_are_as_torchs(name):
    pairs = []
    for library, module, convert in ((optim, nn, Tensor), (torch.optim, torch.nn, torch.tensor)):
        model = module.Linear(3, 3)
        model.load_state_dict({"weight": convert(np.eye(3, dtype="f")), "bias": convert(X[0])})
        optimizer = getattr(library, name)(model.parameters(), lr=0.1, weight_decay=0.1)
        found = []
        for step in range(6):
            model.weight.requires_grad_(step >= 3)
            optimizer.zero_grad()
            (model(convert(X)) ** 2).sum().backward()
            optimizer.step()
            found.append(model.weight.detach().numpy().copy())
        pairs.append(found)
    np.testing.assert_allclose(*pairs, rtol=1e-5, atol=1e-6)
    assert np.array_equal(pairs[0][2], np.eye(3)) and not np.array_equal(pairs[0][3], np.eye(3))


def test_zero_grad():
    p = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([p])
    for create_graph in (True, False):
        (p * p).sum().backward(create_graph=create_graph)
    assert p.grad.requires_grad
    optimizer.zero_grad(set_to_none=False)  # no graph: each step's would hang on the one before it
    assert p.grad.is_leaf and not p.grad.requires_grad and p.grad.tolist() == [0]
    kept = p.grad = Tensor([3.0])
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0] and kept.tolist() == [3]
    optimizer.zero_grad()
    assert p.grad is None
    optimizer.zero_grad(set_to_none=False)


CHANGES = {
    "a step": lambda p: optim.SGD([p]).step(),
    "clipping by norm": lambda p: optim.clip_grad_norm_([p], 1.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_computed_before_is_not_differentiated_after(name):
    p, w = leaf(), leaf()
    p.grad = Tensor([3.0, 4.0])
    y = ((p if name == "a step" else p.grad) * w).sum()
    CHANGES[name](p)
    with pytest.raises(ValueError, match="changed in place after it was used"):
        y.backward()


CLIPS = {
    "clip_grad_norm_": [(0.5,), (0.5, 1.0), (3.0, math.inf), (1e6,)],
}
"""By the name of a function that clips, what it is called with besides the parameters; PyTorch has all of them."""

SCHEDULES = {
    "Schedule": ((lambda t: 0.9**t,), lambda t: 0.9**t),
    "noam": ((64, 5), lambda t: min((t + 1) ** -0.5, (t + 1) * 5**-1.5) / 8),
    "warmup_cosine": (
        (4, 12, 0.1),
        lambda t: (
            (t + 1) / 4 if t < 4 else 0.1 + 0.45 * (1 + math.cos(math.pi * min(t - 4, 8) / 8))
        ),
    ),
}
"""By the name of a schedule, what it is called with besides an optimiser of rate 1, and the rate at step t."""

ADVICE = "give {name!r} a line in SETTINGS, CLIPS or SCHEDULES in tests/optim/test_optim.py"


def trains():
    """All public names of `optim` but the class that the optimisers are made from."""
    return public(optim, lambda value: callable(value) and value is not optim.Optimizer)


def test_no_optimiser_clipping_or_schedule_is_missing_from_the_tables():
    asserted(unmet(trains(), {name for name, _ in SETTINGS} | {*CLIPS} | {*SCHEDULES}, ADVICE))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_of_a_schedule_are_those_of_its_equation(name):
    arguments, rate = SCHEDULES[name]
    optimizer = optim.SGD(twins()[0], lr=1.0)
    schedule = getattr(optim, name)(optimizer, *arguments)
    for t in range(15):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate(t), rel=1e-12)
        schedule.step()


@pytest.mark.filterwarnings("ignore:step.. changed nothing")
@pytest.mark.parametrize("name, settings", SETTINGS)
def test_missing_gradients_keep_their_own_count(walk, name, settings):
    """A parameter without a gradient stands still, and its bias correction and first momentum come later."""
    ours, theirs = twins()
    a, b = getattr(optim, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)
    for step, missing in enumerate([(0, 3), (), (1,), (0, 1, 2, 3, 4), (), ()]):
        give_gradients(ours, theirs, step, missing)
        a.step()
        b.step()
        assert_same(ours, theirs, 1e-12)


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_quick_and_plain_walk_agree(name, settings):
    """Also where the steps are taken by turns, so that each finds the state as the other left it."""
    (ours, theirs), others = twins("float32"), twins("float32")[0]
    a, b = (getattr(optim, name)(params, **settings) for params in (ours, others))
    for step in range(6):
        give_gradients(ours, theirs, step, missing=(step,))
        for p, q in zip(ours, others):
            q.grad = p.grad
        with ta.plain():
            b.step()
            if step % 3 == 2:
                a.step()
        if step % 3 != 2:
            a.step()
    for p, q in zip(ours, others):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-6, atol=1e-7)


def joined(optimizer, params):
    optimizer.param_groups[0]["params"].append(params[4])


def replaced(optimizer, params):
    optimizer.param_groups[0]["params"] = [params[4], params[0]]


def moved(optimizer, params):
    first, second = optimizer.param_groups
    first["params"].append(second["params"].pop(0))


def group_appended(optimizer, params):
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [params[4]], "lr": 0.2})


def group_removed(optimizer, params):
    del optimizer.param_groups[0]


@pytest.mark.parametrize(
    "change", [joined, replaced, moved, group_appended, group_removed], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    "name, settings", [("SGD", {"momentum": 0.9}), ("AdamW", {"amsgrad": True})]
)
@pytest.mark.parametrize("saved", [3, 5])
def test_groups_that_are_changed_by_hand(walk, name, settings, change, saved):
    """What comes is trained, what goes is left alone, what stays keeps its history: also in a saved state."""
    ours, theirs = twins()
    a, b = (
        getattr(kind, name)(
            [{"params": p[:2], "lr": 0.1}, {"params": p[2:4], "lr": 0.02}], **settings
        )
        for kind, p in ((optim, ours), (torch.optim, theirs))
    )
    for step in range(7):
        give_gradients(ours, theirs, step)
        if step == 3:
            change(a, ours)
            change(b, theirs)
        if step == saved:
            fresh = getattr(optim, name)(a.param_groups, **settings)
            fresh.load_state_dict(a.state_dict())
            a = fresh
        a.step()
        b.step()
        assert_same(ours, theirs, 1e-12)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("tied", [lambda a: a, lambda a: a.T, lambda a: a[:, 1:]])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_tied_by_their_data_both_move_the_memory_they_share(walk, name, tied, groups):
    ours, theirs = twins(shapes=[(3, 4), (), (2,), (5,)])
    ours[1].data, theirs[1].data = tied(ours[0].data), tied(theirs[0].data)
    settings = (
        [{"params": params[:1]}, {"params": params[1:]}] if groups else params
        for params in (ours, theirs)
    )
    a, b = (
        getattr(module, name)(params, lr=0.1)
        for module, params in zip((optim, torch.optim), settings)
    )
    steps(ours, theirs, (a, b), seeds=range(3))
    assert np.array_equal(ours[1].numpy(), tied(ours[0].numpy()))


def test_a_step_that_changes_nothing_says_so():
    """Backward was forgotten, or zero_grad came between it and the step; the warning names the line of the step."""
    p, frozen = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.AdamW([p, frozen])
    (p * 2).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # one that has a gradient is enough
    optimizer.zero_grad()
    before = p.tolist()
    with pytest.warns(
        UserWarning,
        match="changed nothing: no parameter has a gradient. Call loss.backward",
    ) as caught:
        optimizer.step()
    assert caught[0].filename == __file__ and p.tolist() == before


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, settings", SETTINGS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_and_loaded_goes_on_bit_for_bit(walk, name, settings, dtype):
    (ours, theirs), copies = twins(dtype), twins(dtype)[0]
    a, b = getattr(optim, name)(ours, **settings), getattr(optim, name)(copies, lr=9.0)
    for step in range(6):
        give_gradients(ours, theirs, step, missing=(step,))
        if step == 3:
            for p, q in zip(ours, copies):
                q._data = p._data.copy()
            b.load_state_dict(a.state_dict())
        if step >= 3:
            for p, q in zip(ours, copies):
                q.grad = p.grad
            b.step()
        a.step()
    for p, q in zip(ours, copies):
        np.testing.assert_array_equal(p._data, q._data)


def test_state_is_a_copy_and_a_refused_one_changes_nothing():
    ours, theirs = twins()
    a = optim.Adam(ours, lr=0.1)
    give_gradients(ours, theirs, 0)
    a.step()
    state = a.state_dict()
    entries, group, kept = state["state"], state["param_groups"][0], state["state"][0]["exp_avg"]
    before = kept.copy()
    a.step()
    np.testing.assert_array_equal(kept, before)
    now = a.state_dict()
    for wrong, text in (
        (
            {"state": {1: entries[1] | {"exp_avg": np.zeros(6)}}},
            r"exp_avg of Tensor \(5,\) float64 was saved as array \(6,\)",
        ),
        ({"param_groups": [group | {"lr": -1}]}, "lr must be a number >= 0, got -1"),
        (
            optim.Adam(ours[:2]).state_dict(),
            r"groups have \[2\] parameters, the optimiser's \[5\]",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            a.load_state_dict(state | wrong)
    for index, entry in now["state"].items():
        np.testing.assert_array_equal(a.state_dict()["state"][index]["exp_avg"], entry["exp_avg"])


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_of_parameters_and_optimiser_goes_on_alone(name, copied):
    """As for a search that tries two rates from here on: the small parameters share a flat array, and the copy has one of its own."""
    ours, theirs = twins()
    optimizer = getattr(optim, name)(ours, lr=0.1)
    give_gradients(ours, theirs, 0)
    optimizer.step()
    before = [p.numpy().copy() for p in ours]
    twin, its_optimizer = copied((ours, optimizer))
    for step in range(1, 4):
        give_gradients(twin, theirs, step)
        its_optimizer.step()
    assert all(np.array_equal(p.numpy(), kept) for p, kept in zip(ours, before))
    for step in range(1, 4):
        give_gradients(ours, theirs, step)
        optimizer.step()
    for p, q, kept in zip(ours, twin, before):
        assert np.array_equal(p.numpy(), q.numpy()) and not np.array_equal(p.numpy(), kept)


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_state_is_torchs(name, settings):
    """Names, meaning and numbering: torch's state goes on in ours."""
    ours, theirs = twins()
    a, b = getattr(optim, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)
    steps(ours, theirs, (a, b))
    mine, its = a.state_dict(), b.state_dict()
    for index, entry in its["state"].items():
        for key, value in entry.items():
            if value is not None and key != "step":
                np.testing.assert_allclose(
                    mine["state"][index][key], value.numpy(), rtol=1e-12, atol=1e-15
                )
    assert [g["params"] for g in mine["param_groups"]] == [g["params"] for g in its["param_groups"]]
    fresh = getattr(optim, name)(ours, lr=9.0)
    if name != "SGD":  # torch's SGD keeps no count of steps
        fresh.load_state_dict(its)
        give_gradients(ours, theirs, 9)
        fresh.step()
        b.step()
        assert_same(ours, theirs, 1e-12)


@pytest.mark.parametrize(
    "name, settings",
    [("AdamW", {}), ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.1})],
)
def test_a_state_with_decoupled_decay_is_not_gone_on_with_as_plain_adam(name, settings):
    """PyTorch would go on decoupled; what ours cannot do, it says, and without decay there is no difference."""
    ours, theirs = twins()
    b = getattr(torch.optim, name)(theirs, **settings)
    with pytest.raises(ValueError, match="another kind of optimiser"):
        optim.Adam(ours).load_state_dict(b.state_dict())
    for made, decay in ((optim.AdamW(ours), 0.1), (optim.Adam(ours), 0.0)):
        b.param_groups[0]["weight_decay"] = decay
        made.load_state_dict(b.state_dict())
        for step in range(3):
            give_gradients(ours, theirs, step)
            for p, q in zip(ours, theirs):
                p.data = q.detach().numpy().copy()
            made.step()
            b.step()
            assert_same(ours, theirs, 1e-12)


@pytest.mark.parametrize(
    "name, first, later",
    [
        ("SGD", {}, {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9}, {"momentum": 0.0}),
        ("Adam", {}, {"amsgrad": True}),
        ("Adam", {"amsgrad": True}, {"amsgrad": False}),
        ("SGD", {}, {"momentum": 0.9, "nesterov": True}),
        ("SGD", {"dampening": 0.5}, {"momentum": 0.9}),
    ],
)
def test_settings_that_are_switched_on_or_off_later(walk, name, first, later):
    """Also the state saved in between, and one that more parameters were added to."""
    ours, theirs = twins()
    a, b = (
        getattr(optim, name)(ours[:4], lr=0.1, **first),
        getattr(torch.optim, name)(theirs[:4], lr=0.1, **first),
    )
    for step in range(8):
        if step == 3:
            for optimizer in (a, b):
                optimizer.param_groups[0].update(later)
            for p in theirs[:4] if later.get("amsgrad") else ():
                b.state[p]["max_exp_avg_sq"] = torch.zeros_like(
                    p
                )  # PyTorch does not get so far by itself
            copied = getattr(optim, name)(ours[:4], lr=0.1, **first)
            copied.load_state_dict(a.state_dict())
            a = copied
            for optimizer, more in ((a, ours), (b, theirs)):
                optimizer.add_param_group({"params": more[4]})
        give_gradients(ours, theirs, step)
        a.step()
        b.step()
        assert_same(ours, theirs, 1e-12)


@pytest.mark.parametrize("refused", [1, 3])
def test_a_step_that_is_refused_counts_for_nobody(refused):
    ours, theirs = twins()
    a, b = optim.Adam(ours), torch.optim.Adam(theirs)
    for step in range(3):
        give_gradients(ours, theirs, step)
        if step == 1:
            array = ours[refused]._data
            ours[refused]._data = array.astype(np.float32)
            with pytest.raises(ValueError, match="float32 .*optimiser state .* float64"):
                a.step()
            ours[refused]._data = array
        a.step()
        b.step()
    assert_same(ours, theirs, 1e-12)


# ---- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, 0, -1.0, math.inf, -math.inf, "inf"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-12)])
def test_clip_grad_norm(norm_type, dtype, tolerance):
    for max_norm in (0.5, 1e6):
        ours, theirs = twins(dtype)
        give_gradients(ours, theirs, 1, missing=(1,))
        expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type).item()
        found = optim.clip_grad_norm_(ours, max_norm, norm_type)
        assert found == pytest.approx(expected, rel=tolerance)
        for p, q in zip(ours, theirs):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                assert p.grad.dtype == dtype
                np.testing.assert_allclose(p.grad._data, q.grad.numpy(), rtol=tolerance)


def test_clip_edge_cases():
    p = Tensor([1.0, 2.0], requires_grad=True)
    assert optim.clip_grad_norm_([p], 1.0) == 0.0
    assert optim.clip_grad_norm_([p], 1.0, -math.inf) == 0.0
    p.grad = Tensor([3.0, 4.0])
    with warnings.catch_warnings(action="error"):
        assert optim.clip_grad_norm_(p, 1.0) == 5.0  # one tensor instead of a list
        assert optim.clip_grad_norm_([], 1.0) == 0.0
    p.grad = Tensor([3.0, 4.0])
    assert (
        optim.clip_grad_norm_((x for x in [p, p]), 1.0) == 5.0
    )  # given twice, counted and scaled once
    np.testing.assert_allclose(p.grad._data, [0.6, 0.8], rtol=1e-6)
    q, p.grad = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0])
    q.grad = p.grad  # counted twice and scaled once
    assert optim.clip_grad_norm_([p, q], 1.0) == pytest.approx(50**0.5)
    np.testing.assert_allclose(p.grad._data, np.array([3, 4]) / 50**0.5, rtol=1e-6)
    p.grad = Tensor([np.nan, 4.0])
    with pytest.raises(ValueError, match="norm of the gradients is nan"):
        optim.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert math.isnan(optim.clip_grad_norm_([p], 1.0))


@pytest.mark.parametrize(
    "dtype, shape, value",
    [
        ("float32", (), 1e25),
        ("float32", (1, 1), 1e-30),
        ("float64", (1,), 1e200),
    ],
)
@pytest.mark.parametrize("norm_type", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_powers_of_gradients_overflow_no_sooner_than_torchs(dtype, shape, value, norm_type):
    p, q = (
        Tensor(np.zeros(shape, dtype), requires_grad=True),
        torch.zeros(shape, dtype=getattr(torch, dtype), requires_grad=True),
    )
    gradient = np.full(shape, value, dtype)
    p.grad, q.grad = Tensor(gradient), torch.tensor(gradient)
    expected = torch.nn.utils.clip_grad_norm_([q], 1.0, norm_type)
    assert optim.clip_grad_norm_([p], 1.0, norm_type) == pytest.approx(
        expected.item(), rel=1e-6, abs=0
    )
    np.testing.assert_allclose(p.grad._data, q.grad.numpy(), rtol=1e-6)


def test_clipping_a_spent_generator_is_told():
    parameters = nn.Linear(2, 2).parameters()
    list(parameters)
    with pytest.warns(UserWarning, match=r"write list\(model\.parameters\(\)\)"):
        optim.clip_grad_norm_(parameters, 1.0)


# ---- schedules ------------------------------------------------------------------------------------------------------


def test_a_schedule_as_torchs_lambda_lr_and_resumed():
    ours, theirs = twins()
    a, b = optim.SGD(ours, lr=0.3), torch.optim.SGD(theirs, lr=0.3)
    schedule = optim.Schedule(a, lambda t: 0.9**t)
    reference = torch.optim.lr_scheduler.LambdaLR(b, lambda t: 0.9**t)
    for step in range(10):
        assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(
            reference.get_last_lr()[0], rel=1e-14
        )
        give_gradients(ours, theirs, step)
        a.step()
        b.step()
        schedule.step()
        reference.step()
        if step == 5:  # as a resumed run would: everything made anew, then loaded
            states = a.state_dict(), schedule.state_dict()
            a = optim.SGD(ours, lr=0.3)
            schedule = optim.Schedule(a, lambda t: 0.9**t)
            a.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
    assert_same(ours, theirs, 1e-12)


def test_a_group_added_after_the_schedule_was_made_follows_it():
    a, b = twins()[0][:2]
    optimizer = optim.SGD([a], lr=0.4)
    schedule = optim.Schedule(optimizer, lambda t: 0.5**t)
    schedule.step()
    optimizer.add_param_group({"params": b, "lr": 0.1})
    saved = schedule.state_dict()
    assert saved == {"step_number": 1, "initial_lr": [0.4, 0.1]}
    schedule.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.025]
    schedule.load_state_dict(saved)
    assert [g["lr"] for g in optimizer.param_groups] == [0.2, 0.05]


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_a_parameter_given_twice():
    p = leaf()
    optimizer = optim.SGD([p, p], lr=1.0)
    optimizer.add_param_group({"params": [other := leaf(), other]})
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    p.grad = Tensor([1.0, 1.0])
    optimizer.step()
    assert p._data.tolist() == [0, 1]


def test_shapes_and_dtypes_that_changed_under_the_optimiser():
    p, q = leaf(), leaf()
    optimizer = optim.Adam([p, q])
    assert optimizer.state_dict()["state"] == {}
    p._data = p._data.astype(np.float64)  # before the first step this is fine
    q._data = q._data.astype(np.float64)
    p.grad, q.grad = Tensor(np.ones(2)), Tensor(np.ones(2))
    optimizer.step()
    assert p._data.dtype == np.float64
    p._data = p._data.astype(np.float32)
    with pytest.raises(
        ValueError,
        match=r"Tensor \(2,\) float32 .*create the optimiser after calling model.astype.*"
        r"p\.data\[\.\.\.\] = values",
    ):
        optimizer.step()
    p._data, q._data = p._data.astype(np.float64), np.ones((2, 1))
    with pytest.raises(ValueError, match="gradient of shape"):
        optimizer.step()


class SignMomentum(optim.Optimizer):
    """With a step of its own, as PyTorch's users write one."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.state = defaultdict(dict)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"] = 0, np.zeros_like(p.data)
                state["step"] += 1
                state["m"] = 0.9 * state["m"] + p.grad.data / state["step"]
                p.data -= group["lr"] * state["m"]


def test_the_state_of_an_optimiser_of_ones_own_is_saved_and_loaded(tmp_path):
    require("safetensors")

    def train(steps, resume=None):
        ta.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = SignMomentum(model.parameters())
        done = (
            ta.load_checkpoint(tmp_path / "half.st", model=model, optimizer=optimizer).step
            if resume
            else 0
        )
        for _ in range(done, steps):
            optimizer.zero_grad()
            (model(ta.randn(4, 2)) ** 2).sum().backward()
            optimizer.step()
        ta.save_checkpoint(tmp_path / "half.st", model=model, optimizer=optimizer, step=steps)
        return model.weight.numpy().copy(), optimizer

    whole, _ = train(6)
    _, half = train(3)
    again, resumed = train(6, True)
    assert np.array_equal(again, whole) and len(resumed.state) == 2
    saved = half.state_dict()
    half.state.clear()
    assert saved["state"][0]["step"] == 3
    half.load_state_dict(saved)
    half.load_state_dict(saved)
    assert [entry["step"] for entry in half.state.values()] == [3, 3] and {*half.state} == {
        *half.param_groups[0]["params"]
    }


def test_groups_may_have_names_and_keys_of_their_own_as_torchs():
    """PyTorch lists the names under "param_names", and keeps keys that no optimiser reads."""
    made = []
    for layers, optimizers in ((nn, optim), (torch.nn, torch.optim)):
        model = layers.Sequential(layers.Linear(2, 3), layers.Linear(3, 1))
        groups = [
            {"params": model[0].named_parameters(), "lr": 0.5, "tag": "first"},
            {"params": model[1].named_parameters(), "depth": 2},
        ]
        made.append((optimizers.SGD(groups), optimizers.SGD(model.named_parameters())))
    for ours, theirs in zip(*made, strict=True):
        for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert [p.shape for p in a["params"]] == [tuple(p.shape) for p in b["params"]]
            for key in ("param_names", "lr", "tag", "depth"):
                assert a.get(key) == b.get(key)
        for a, b in zip(ours.state_dict()["param_groups"], theirs.state_dict()["param_groups"]):
            assert a["param_names"] == b["param_names"] and a.get("tag") == b.get("tag")


def test_keys_of_ones_own_are_saved_and_loaded(tmp_path):
    model = nn.Linear(2, 1)
    ours = optim.SGD([{"params": model.named_parameters(), "tag": "first"}])
    ta.save_checkpoint(tmp_path / "run.st", model=model, optimizer=ours)
    other = optim.SGD([{"params": model.named_parameters(), "tag": "second"}])
    ta.load_checkpoint(tmp_path / "run.st", model=model, optimizer=other)
    assert other.param_groups[0]["tag"] == "first"
    assert other.param_groups[0]["param_names"] == ["weight", "bias"]
    unnamed = optim.SGD(model.parameters())
    unnamed.load_state_dict(ours.state_dict())
    assert "tag" not in unnamed.param_groups[0]


W = [leaf()]
MISTAKES = {  # what an error says
    r"no parameters.*list\(model.parameters\(\)\)": lambda: optim.SGD([]),
    r"SGD\(model.parameters\(\)\) for a module": lambda: optim.SGD(nn.ReLU()),
    r"got Tensor. .*SGD\(\[p\]\) for one tensor": lambda: optim.SGD(leaf()),
    r"item 0 is \(Tensor|item 0 is a tuple": lambda: optim.SGD([("w", (leaf(),))]),
    "order of parameters in a set": lambda: optim.SGD({leaf()}),
    "set differs from run to run": lambda: optim.SGD([{"params": frozenset({leaf()})}]),
    "item 0 is Parameter": lambda: optim.SGD(torch.nn.Linear(2, 2).parameters()),
    "item 0, Tensor .*never gets": lambda: optim.SGD([leaf() * 2]),
    "Pass leaf tensors with requires_grad=True": lambda: optim.SGD([Tensor([1.0])]),
    "never gets a .grad": lambda: optim.Adam(nn.Linear(2, 2).state_dict().values()),
    "does not read 'weigth_decay'.*'weight_decay'": lambda: optim.SGD(
        [{"params": [leaf()], "weigth_decay": 3}]
    ),
    "in two parameter groups": lambda: optim.SGD([{"params": W}, {"params": W}]),
    "lr must be a number >= 0, got -0.1": lambda: optim.SGD(W, lr=-0.1),
    "lr must be a number >= 0, got None": lambda: optim.SGD(W, lr=None),
    "needs momentum > 0": lambda: optim.SGD(W, nesterov=True),
    r"in \[0, 1\), got \(0.9": lambda: optim.Adam(W, betas=(0.9, 1.0)),
    r"\[0\]\['lr'\] = 1": lambda: setattr(optim.SGD(W), "lr", 1),
    "Write optim.Schedule": lambda: optim.lr_scheduler,
    "mean 'Adam'": lambda: optim.Adaam,
    "max_norm must be a number": lambda: optim.clip_grad_norm_(W, -1),
    "< total_steps": lambda: optim.warmup_cosine(optim.SGD(W), 9, 9),
    "numbers of updates": lambda: optim.warmup_cosine(optim.SGD(W), 0.1, 9),
    "another kind of optimiser": lambda: optim.Adam(W).load_state_dict(optim.SGD(W).state_dict()),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_answered_by_what_to_write(text):
    with pytest.raises((TypeError, ValueError, AttributeError), match=text):
        MISTAKES[text]()
