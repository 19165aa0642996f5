"""Module: names and order as PyTorch's, values in and out, and errors that say what to write."""

import copy
import itertools
import operator
import pickle
import sys
from collections import OrderedDict, defaultdict, deque

import numpy as np
import pytest
from support import require

from tinygrad_attn import Tensor, enable_grad, nn, no_grad, op
from tinygrad_attn.engine import context


class Net(nn.Module):
    """No super().__init__(), a shared weight, a child defined before a parameter of its own."""

    def __init__(self):
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(np.ones(4, np.float32))
        self.body = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.tied = nn.Linear(3, 4)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.body(self.first(x) * self.scale))


def torch_net(torch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(3, 4)
            self.scale = torch.nn.Parameter(torch.ones(4))
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
            self.tied = torch.nn.Linear(3, 4)
            self.tied.weight = self.first.weight

    return Net()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_of_torchs_takes_our_state_dict_as_it_is(dtype):
    torch = require("torch")
    ours, theirs = Net(), torch_net(torch).to(getattr(torch, dtype))
    ours.table, theirs.table = nn.Buffer(np.array(2.0)), torch.nn.Buffer(torch.zeros(()))
    theirs.load_state_dict(ours.state_dict())
    for value, taken in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert np.array_equal(value.numpy(), taken) and not np.shares_memory(value.numpy(), taken)
    assert str(theirs.first.weight.dtype) == f"torch.{dtype}"
    with pytest.raises(TypeError, match="PyTorch's add takes PyTorch's tensors"):
        torch.add(ours.state_dict()["scale"], 1)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        torch.nn.Linear(4, 3).load_state_dict(nn.Linear(3, 4).state_dict())


def test_names_and_order_are_torchs():
    torch = require("torch")
    theirs, ours = torch_net(torch), Net()
    theirs.table, ours.table = torch.nn.Buffer(torch.ones(2)), nn.Buffer(np.ones(2))
    theirs.shift, ours.shift = (
        torch.nn.Parameter(torch.ones(2)),
        nn.Parameter(np.ones(2)),
    )  # after a buffer, and yet before it
    theirs.again, ours.again = theirs.first, ours.first  # one module under two names
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.first.table, ours.first.table = torch.nn.Buffer(torch.ones(3)), nn.Buffer(np.ones(3))
    for walk in ("named_parameters", "named_buffers"):
        for asked in itertools.product(
            ("", "net"), (True, False), (True, False)
        ):  # prefix, recurse, remove_duplicate
            assert [n for n, _ in getattr(ours, walk)(*asked)] == [
                n for n, _ in getattr(theirs, walk)(*asked)
            ], (walk, asked)
    for walk, recurse in itertools.product(("parameters", "buffers"), (True, False)):
        assert [x.shape for x in getattr(ours, walk)(recurse)] == [
            tuple(x.shape) for x in getattr(theirs, walk)(recurse)
        ], (walk, recurse)
    for once in (True, False):
        assert [n for n, _ in ours.named_modules(remove_duplicate=once)] == [
            n for n, _ in theirs.named_modules(remove_duplicate=once)
        ]
    assert [n for n, _ in ours.named_children()] == [n for n, _ in theirs.named_children()]
    assert list(ours.modules()) == [m for _, m in ours.named_modules()]


def test_a_shared_parameter_is_one_parameter_under_two_names():
    net = Net()
    assert sum(p is net.first.weight for p in net.parameters()) == 1
    assert {"first.weight", "tied.weight"} <= set(net.state_dict())
    twin = copy.deepcopy(net)
    assert twin.tied.weight is twin.first.weight is not net.first.weight
    assert isinstance(twin.scale, nn.Parameter) and twin.scale.requires_grad


def test_a_typo_names_the_nearest_attribute():
    with pytest.raises(
        AttributeError, match="'Linear' object has no attribute 'wieght'.*mean 'weight'"
    ):
        nn.Linear(2, 2).wieght
    assert not hasattr(nn.Linear(2, 2), "nothing_like_it")


def test_what_would_silently_not_be_trained_is_an_error():
    net = Net()
    net.layers = [nn.Linear(2, 2)]
    with pytest.raises(TypeError, match="Net.layers is a plain list .* nn.ModuleList"):
        list(net.parameters())
    for holder in (
        OrderedDict(a=nn.ReLU()),
        defaultdict(list, a=[nn.ReLU()]),
        deque([nn.ReLU()]),
        {nn.ReLU()},
        [nn.Buffer([1.0])],
    ):
        net.layers = holder
        for walk in (net.parameters, net.state_dict):
            with pytest.raises(
                TypeError, match=f"Net.layers is a plain {type(holder).__name__} of modules"
            ):
                list(walk())
    net.layers = [nn.Parameter([1.0])]  # for which a ModuleList would be no home
    with pytest.raises(
        TypeError,
        match=r"plain list .*; for a parameter or buffer setattr\(self, f'layers_\{i\}', p\)",
    ):
        list(net.parameters())
    net.layers = (nn.Linear(2, 2),)  # on purpose
    assert len(list(net.parameters())) == 6
    with pytest.raises(TypeError, match=r"'scale' is a Parameter of Net.*nn.Parameter\(value\)"):
        net.scale = Tensor([1.0])
    with pytest.raises(TypeError, match="Module defines no forward"):
        nn.Module()(1)


ASSIGNMENTS = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
]


@pytest.mark.parametrize("recording", [no_grad, enable_grad])
@pytest.mark.parametrize("assign", [*ASSIGNMENTS, operator.imatmul])
def test_an_augmented_assignment_to_a_parameter_is_an_error(assign, recording):
    """`for p in net.parameters(): p -= rate * p.grad` changes them in PyTorch, and would only rename p here."""
    net = nn.Linear(2, 2)
    with (
        recording(),
        pytest.raises(
            TypeError, match=r"leave Parameter \(2, 2\) float32 as it is.*p\.data -= x\.data"
        ),
    ):
        for p in net.parameters():
            assign(p, Tensor(np.ones((2, 2), np.float32)))
    y = net.weight * 1
    y += net.weight  # a result may be given a new value
    assert np.array_equal(y.numpy(), 2 * net.weight.numpy())


@pytest.mark.parametrize("assign", ASSIGNMENTS)
def test_an_augmented_assignment_to_a_trained_tensor_is_an_error_under_no_grad(assign):
    """There PyTorch's loops update in place; while ops are recorded, `x -= x.mean()` on an argument is plain NumPy code."""
    w, step = Tensor([1.0, 2.0], requires_grad=True), Tensor([0.5, 0.5])
    with no_grad():
        with pytest.raises(
            TypeError, match=r"leave Tensor \(2,\) float32 as it is.*p\.data -= x\.data"
        ):
            for p in [w]:
                assign(p, step)
        assert np.array_equal(assign(w * 1, step).numpy(), assign(w.numpy().copy(), step.numpy()))
        assert np.array_equal(
            assign(w.detach(), step).numpy(), assign(w.numpy().copy(), step.numpy())
        )
    y = assign(w, step)
    assert y is not w and y.requires_grad and np.array_equal(w.numpy(), [1, 2])
    total = 0.0
    total += w.sum()
    assert total.item() == 3


@pytest.mark.parametrize(
    "value",
    [
        [[nn.Linear(2, 2)]],
        {"a": [nn.Linear(2, 2)]},
        [{"a": nn.Linear(2, 2)}],
        [[1.0], [nn.Parameter(np.ones(2))]],
    ],
    ids=["lists", "lists by name", "dicts", "parameters"],
)
def test_modules_in_a_list_of_lists_are_an_error_too(value):
    net = Net()
    net.layers = value
    for walk in (net.parameters, net.modules, net.state_dict):
        with pytest.raises(TypeError, match="Net.layers is a plain (list|dict) .* nn.ModuleList"):
            list(walk())
    net.layers = [["names"], {"sizes": [1, 2]}, (nn.Linear(2, 2),)]  # the tuple is on purpose
    assert len(list(net.parameters())) == 6


def test_names_are_guessed_for_the_first_that_do_not_fit_and_all_are_listed():
    """A guess compares a name with all others: with a few thousand of both that took as many minutes as there is patience."""
    net = nn.Sequential(*[nn.Linear(1, 1) for _ in range(30)])
    with pytest.raises(ValueError) as error:
        net.load_state_dict(
            {name.replace("weight", "weigth"): value for name, value in net.state_dict().items()}
        )
    lines = [line for line in str(error.value).splitlines() if "unexpected: " in line]
    assert (
        lines[0] == "  unexpected: '0.weigth'. Did you mean '0.weight'?"
        and lines[-1] == "  unexpected: '29.weigth'."
    )
    assert len(lines) == 30 and sum("Did you mean" in line for line in lines) == 20


def test_an_interrupt_at_any_line_of_loading_leaves_all_old_values_or_all_new_ones():
    net, (old, new) = Net(), (Net().state_dict() for _ in range(2))
    code, line, came = nn.Module.load_state_dict.__code__, 0, True

    def trace(frame, event, arg):
        nonlocal left
        left -= frame.f_code is code and event == "line"
        if left == 0:
            left = -1
            raise KeyboardInterrupt
        return trace if frame.f_code is code else None

    while came:
        net.load_state_dict(old)
        line, came, before = line + 1, False, sys.gettrace()
        left = line
        sys.settrace(trace)
        try:
            net.load_state_dict(new)
        except KeyboardInterrupt:
            came = True
        finally:
            sys.settrace(before)
        fits = [
            all(np.array_equal(value, state[name]) for name, value in net.state_dict().items())
            for state in (old, new)
        ]
        assert any(fits), line
    assert line > 20


def test_a_value_that_numpy_refuses_on_the_way_changes_nothing():
    net = nn.Linear(2, 2)
    before = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        net.load_state_dict({"weight": np.zeros((2, 2)), "bias": np.full(2, 1e300)})
    assert all(np.array_equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("kind", ["array", "tensor", "torch", "bfloat16"])
def test_load_state_dict_copies_in_place(kind):
    net, other = Net(), Net()
    values = {k: v.numpy().copy() for k, v in other.state_dict().items()}
    if kind == "tensor":
        values = {k: Tensor(v) for k, v in values.items()}
    elif kind in ("torch", "bfloat16"):
        torch = require("torch")
        values = {
            k: torch.tensor(v).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
            for k, v in values.items()
        }
    arrays = [p._data for p in net.parameters()]
    assert net.load_state_dict(values) == ([], [])
    assert all(p._data is a for p, a in zip(net.parameters(), arrays))
    tolerance = 1e-2 if kind == "bfloat16" else 0
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=tolerance, atol=tolerance)
    partial = net.load_state_dict({"scale": np.zeros(4), "foreign": np.zeros(1)}, strict=False)
    assert partial.unexpected_keys == ["foreign"] and "first.weight" in partial.missing_keys
    assert not net.scale.numpy().any()


def test_loading_between_forward_and_backward_is_found_out():
    net = Net()
    loss = net(Tensor(np.ones((2, 3), np.float32))).sum()
    net.load_state_dict(Net().state_dict())
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_settings_reach_every_module():
    net = Net()
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    with pytest.raises(ValueError, match="True or False"):
        net.train("yes")
    net(Tensor(np.ones((2, 3), np.float32))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.astype(np.float64)
    assert all(p.dtype == p.grad.dtype == np.float64 for p in net.parameters())
    kept = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none=False)
    assert all(
        p.grad is g and not g.data.any() for p, g in zip(net.parameters(), kept, strict=True)
    )
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(np.ones((2, 3))).requires_grad
    assert net.requires_grad_() is net and all(p.requires_grad for p in net.parameters())
    with pytest.raises(TypeError, match="dtype of a module is a floating one"):
        net.astype(int)
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "ReLU", "Sequential", "Linear", "Net"]


def test_buffers_are_saved_as_torchs():
    torch = require("torch")
    theirs, ours = torch.nn.Module(), nn.Module()
    for module, make in ((theirs, torch.ones), (ours, np.ones)):
        module.register_buffer("kept", make(2))
        module.register_buffer("left", make(3), persistent=False)
        module.register_buffer("none", None)
        layers = torch.nn if module is theirs else nn
        module.add_module("inner", layers.Linear(1, 1))
        module.register_parameter("own", layers.Parameter(make(1)))
    assert (
        list(ours.state_dict())
        == list(theirs.state_dict())
        == ["own", "kept", "inner.weight", "inner.bias"]
    )
    assert [n for n, _ in ours.named_buffers()] == [n for n, _ in theirs.named_buffers()]
    assert not copy.deepcopy(ours).left.persistent and "kept" not in dict(ours.named_parameters())
    ours.astype(np.float32)
    assert ours.left.dtype == np.float32


def test_an_array_given_to_a_buffer_becomes_its_value():
    torch = require("torch")
    theirs, ours = torch.nn.Module(), nn.Module()
    for module, ones in ((theirs, torch.ones), (ours, np.ones)):
        module.register_buffer("mean", ones(2))
        module.register_buffer("left", ones(3), persistent=False)
        module.mean = module.mean * 0.9 + ones(2)
        module.left = ones(4)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["mean"]
    np.testing.assert_allclose(ours.mean.numpy(), theirs.mean.numpy(), rtol=1e-6)
    assert {n: b.shape for n, b in ours.named_buffers()} == {
        "mean": (2,),
        "left": (4,),
    } and not ours.left.persistent
    ours.mean = Tensor(np.ones(2, np.float32), requires_grad=True) * 2
    assert (
        type(ours.mean) is nn.Buffer
        and not ours.mean.requires_grad
        and ours.mean.dtype == np.float32
    )
    ours.mean = ours.mean._data.sum()  # a NumPy number
    assert type(ours.mean) is nn.Buffer and ours.mean.shape == ()
    with pytest.raises(
        TypeError, match=r"'mean' is a Buffer of Module, and 0.5 is not.*nn.Buffer\(value\)"
    ):
        ours.mean = 0.5
    buffer = ours.mean = nn.Buffer(np.ones(1), persistent=False)
    assert ours.mean is buffer and not ours.state_dict()
    ours.mean = None
    ours.left = nn.Parameter(np.ones(1))
    assert not list(ours.buffers()) and list(ours.state_dict()) == ["left"]


def test_a_state_dict_shares_the_memory_of_every_shape():
    class Scale(nn.Module):
        def __init__(self):
            self.number, self.row, self.count = (
                nn.Parameter(2.0),
                nn.Parameter([1.0, 1.0]),
                nn.Buffer(np.array(1)),
            )

    scale = Scale()
    state = scale.state_dict()
    for p in (scale.number, scale.row, scale.count):
        p._array()[...] = 5
    assert [float(state[name].numpy().max()) for name in ("number", "row", "count")] == [5, 5, 5]
    state["number"].data[...] = 3
    assert scale.number.item() == 3


def test_a_call_is_a_scope_and_an_error_says_where():
    class Look(nn.Module):
        def forward(self, x):
            scope = context.scope
            return scope.module, scope.outer.module

    look = Look()
    row = nn.Sequential(look)
    assert row(0) == (look, row) and context.scope is None
    deep = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="whose last axis is not 4 long") as error:
        deep(np.ones((1, 2)))
    assert error.value.__notes__ == ["in the module '1.1'"] and context.scope is None
    noting = op(lambda x: x[0] // 0)

    class Divide(nn.Module):
        def forward(self, x):
            return noting(x)

    with pytest.raises(ZeroDivisionError) as error:
        nn.Sequential(nn.Identity(), nn.Sequential(Divide()))(np.array([1], object))
    of_the_op, of_the_module = error.value.__notes__
    assert of_the_op.startswith("in <lambda> of") and of_the_module == "in the module '1.0'"

    class Refuse(nn.Module):
        def forward(self, x):
            error = KeyError("weights")
            error.add_note("look in the module docs")
            raise error

    with pytest.raises(KeyError) as error:
        nn.Sequential(nn.Sequential(Refuse()))(np.ones(1))
    assert error.value.__notes__ == ["look in the module docs", "in the module '0.0'"]


def test_values_of_a_state_dict_are_not_changed_in_vain():
    """A running average of weights, written as for PyTorch, would stay at its first values; a copy is a Tensor like any other."""
    net = nn.Linear(2, 2)
    before = net.weight.numpy().copy()
    with no_grad():
        for change in (operator.imul, operator.iadd, operator.imatmul):
            with pytest.raises(
                TypeError,
                match=r"would leave StateValue \(2, 2\) float32 as it is.*Write p\.data -= x\.data",
            ):
                change(net.state_dict()["weight"], 0.5)
    net.state_dict()["weight"].data *= 0.5
    assert np.array_equal(net.weight.numpy(), before / 2)
    for kept in (copy.deepcopy(net.state_dict()), pickle.loads(pickle.dumps(net.state_dict()))):
        kept["weight"] += 1
        assert type(kept["weight"]) is type(kept["bias"]) is Tensor and np.array_equal(
            kept["weight"].numpy(), before / 2 + 1
        )
    assert type(net.state_dict()["weight"] * 2) is Tensor and np.array_equal(
        net.weight.numpy(), before / 2
    )


def test_a_graph_recorded_before_astype_is_told_of_it():
    net, x = nn.Linear(3, 2, dtype=np.float64), Tensor(np.ones((1, 3)), requires_grad=True)
    loss = net(x).sum()
    net.astype(np.float16)
    with pytest.raises(ValueError, match="changed in place after it was used"):
        loss.backward()
    net.astype(np.float64)(x).sum().backward()


def test_a_property_that_fails_says_its_own_reason():
    class Net(nn.Module):
        def __init__(self):
            self.inner = nn.Linear(1, 1)

        @property
        def width(self):
            return self.inner.out_featuers

    with pytest.raises(
        AttributeError, match="no attribute 'out_featuers'. Did you mean 'out_features'"
    ):
        _ = Net().width


def test_containers():
    layers = nn.ModuleList(nn.Linear(i, i) for i in (1, 2, 3))
    assert (
        len(layers) == 3
        and layers[-1].in_features == 3
        and [m.in_features for m in layers[1:]] == [2, 3]
    )
    layers.insert(0, nn.ReLU()).append(nn.GELU()).extend([nn.SiLU()])
    del layers[1]
    layers[0] = nn.Tanh()
    assert [type(m).__name__ for m in layers] == ["Tanh", "Linear", "Linear", "GELU", "SiLU"]
    assert [n for n, _ in layers.named_children()] == list("01234")
    named = nn.Sequential({"up": nn.Linear(2, 3), "act": nn.ReLU()})
    assert list(named.state_dict()) == ["up.weight", "up.bias"] and isinstance(named[1], nn.ReLU)
    table = nn.ModuleDict({"a": nn.ReLU()})
    table["b"] = nn.GELU()
    assert (
        list(table) == ["a", "b"]
        and "a" in table
        and len(table) == 2
        and isinstance(table["b"], nn.GELU)
    )
    del table["a"]
    assert table.keys() == ["b"] and [type(m) for m in table.values()] == [nn.GELU]
    table.update({"c": nn.ReLU(), "b": nn.Tanh()})
    assert (
        table.keys() == ["b", "c"] and isinstance(table.pop("b"), nn.Tanh) and table.keys() == ["c"]
    )
    with pytest.raises(TypeError, match="'e' of a ModuleDict must be a Module"):
        table.update([("d", nn.ReLU()), ("e", np.tanh)])
    for name in ("b", "training"):
        for take in (table.pop, table.__delitem__):
            with pytest.raises(KeyError, match=name):
                take(name)
    assert table.keys() == ["c"]
    table.clear()
    assert len(table) == 0
    with pytest.raises(ValueError, match="own attributes"):
        table["forward"] = nn.ReLU()
    with pytest.raises(TypeError, match="item 1 of a Sequential must be a Module"):
        nn.Sequential(nn.ReLU(), np.tanh)
    for wrong in (np.tanh, None, [nn.ReLU()], nn.ReLU):
        for make in (nn.Sequential, nn.ModuleDict, nn.ModuleDict().__setitem__):
            with pytest.raises(
                TypeError, match="'act' of a (Sequential|ModuleDict) must be a Module, got"
            ):
                make(
                    *("act", wrong)
                    if make not in (nn.Sequential, nn.ModuleDict)
                    else ({"act": wrong},)
                )
    with pytest.raises(
        ValueError, match="Sequential cannot hold 'forward', which is one of its own attributes"
    ):
        nn.Sequential({"forward": nn.ReLU()})
    twice = nn.ReLU()
    assert len(nn.Sequential(twice, nn.Linear(1, 1), twice)) == 3


def test_a_module_dict_is_made_of_pairs_too():
    relu = nn.ReLU()
    assert (
        nn.ModuleDict([("a", relu), ("b", nn.GELU())])["a"]
        is nn.ModuleDict(nn.ModuleDict({"a": relu}))["a"]
        is relu
    )
    for wrong in ([relu], relu, 3):
        with pytest.raises(
            TypeError, match="a ModuleDict takes a dictionary of Modules, got .*write nn.ModuleList"
        ):
            nn.ModuleDict(wrong)


@pytest.mark.parametrize(
    "put",
    [
        lambda name: nn.ModuleDict({name: nn.ReLU()}),
        lambda name: nn.Sequential({name: nn.ReLU()}),
        lambda name: nn.Module().add_module(name, nn.ReLU()),
        lambda name: nn.Module().register_buffer(name, np.ones(1)),
        lambda name: nn.Module().register_parameter(name, nn.Parameter(1.0)),
        lambda name: nn.Module().register_buffer(name, None),
        lambda name: nn.Module().register_parameter(name, None),
    ],
    ids=["dict", "sequential", "module", "buffer", "parameter", "no buffer", "no parameter"],
)
def test_a_name_that_a_state_dict_could_not_tell_apart_is_refused(put):
    for name in ("a.b", ""):
        with pytest.raises(
            ValueError, match=f"{name!r} is no name.* at least one character and no dot"
        ):
            put(name)
    with pytest.raises(TypeError, match="a name is a string, got 1"):
        put(1)


def test_what_would_not_be_trained_is_not_registered():
    module = nn.Module()
    with pytest.raises(
        TypeError, match=r"register_parameter takes a Parameter, got Tensor .*nn.Parameter\(value\)"
    ):
        module.register_parameter("weight", Tensor([1.0]))
    with pytest.raises(TypeError, match="add_module takes a Module, got 3"):
        module.add_module("layer", 3)
    module.register_parameter("weight", None)
    module.add_module("layer", None)
    assert module.weight is None and module.layer is None


def test_names_of_a_sequential_stay_when_more_is_added():
    torch = require("torch")
    theirs = (
        torch.nn.Sequential(dict_of(torch.nn))
        .append(torch.nn.Linear(3, 1))
        .extend([torch.nn.Tanh(), torch.nn.Linear(1, 1)])
    )
    ours = nn.Sequential(dict_of(nn)).append(nn.Linear(3, 1)).extend([nn.Tanh(), nn.Linear(1, 1)])
    theirs[0], ours[0] = torch.nn.Linear(2, 3, bias=False), nn.Linear(2, 3, bias=False)
    theirs[-1], ours[-1] = torch.nn.Linear(1, 2), nn.Linear(1, 2)
    assert (
        list(ours.state_dict())
        == list(theirs.state_dict())
        == ["fc.weight", "2.weight", "2.bias", "4.weight", "4.bias"]
    )
    numbered = nn.Sequential({"1": nn.ReLU()}).append(nn.Tanh())  # PyTorch's would lose one
    assert [type(m) for m in numbered] == [nn.ReLU, nn.Tanh]
    some = nn.Sequential({"0": nn.ReLU(), "3": nn.ReLU(), "2": nn.ReLU()})
    names = [name for name, _ in some.extend([nn.Tanh(), nn.Tanh()]).named_children()]
    assert names == ["0", "3", "2", "4", "5"]
    before = dict(numbered.named_children())
    with pytest.raises(TypeError, match="item 3 of a Sequential must be a Module"):
        numbered.extend([nn.GELU(), np.tanh])
    with pytest.raises(TypeError, match="item 0 of a Sequential must be a Module"):
        numbered[0] = np.tanh
    assert dict(numbered.named_children()) == before
    with pytest.raises(IndexError):
        numbered[2] = nn.ReLU()
    assert list(nn.ModuleList(None)) == list(nn.ModuleList()) == []
    layers = nn.ModuleList([nn.ReLU(), nn.ReLU()])
    layers[:1] = [nn.Tanh(), nn.GELU()]
    assert [type(m) for m in layers] == [nn.Tanh, nn.GELU, nn.ReLU]


def test_a_list_is_made_and_extended_by_another():
    torch = require("torch")
    for there in (torch.nn, nn):
        first, rows = there.Linear(1, 2), there.Sequential(there.Linear(2, 2), there.ReLU())
        layers = there.ModuleList(there.ModuleList([first])).extend(rows)
        assert (
            list(layers) == [first, *rows]
            and layers[0] is first
            and len(there.Sequential(first).extend(layers)) == 4
        )
    with pytest.raises(
        TypeError, match=r"(?s)takes a list of Modules, got .*; write it in \[brackets\]"
    ):
        nn.ModuleList(nn.ModuleDict({"a": nn.ReLU()}))


@pytest.mark.parametrize("kind", ["ModuleList", "Sequential"])
def test_containers_are_joined_and_taken_from_as_pytorchs(kind):
    torch = require("torch")

    def shapes(there):
        make = getattr(there, kind)
        one, two = (
            make(there.Linear(i, i) for i in (1, 2))
            if kind == "ModuleList"
            else make(there.Linear(1, 1), there.Linear(2, 2)),
            make([there.Linear(3, 3)]) if kind == "ModuleList" else make(there.Linear(3, 3)),
        )
        both = one + two
        assert type(both) is make and len(one) == 2 and both[0] is one[0]
        same = one
        one += two
        assert one is same
        last = one.pop(0)
        return [
            [(name, tuple(p.shape)) for name, p in part.named_parameters()]
            for part in (both, one, last)
        ]

    assert shapes(nn) == shapes(torch.nn)
    with pytest.raises(TypeError, match=r"takes a list of Modules, got .*write it in \[brackets\]"):
        getattr(nn, kind)() + nn.ReLU()


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None, None, 2), slice(-1, None), slice(4, None)]
)
@pytest.mark.parametrize("names", ["0123", "abcd"])
def test_part_of_a_sequential_keeps_its_names(names, part):
    """As PyTorch's, so that its state dict fits; a part of a ModuleList is numbered anew in both."""
    torch = require("torch")
    for there in (torch.nn, nn):
        whole = there.Sequential(
            OrderedDict((name, there.Linear(i + 1, 1)) for i, name in enumerate(names))
        )
        assert [(name, m.in_features) for name, m in whole[part].named_children()] == [
            (n, i + 1) for i, n in enumerate(names)
        ][part]
        assert [name for name, _ in there.ModuleList(whole)[part].named_children()] == list("0123")[
            : len(whole[part])
        ]
    kind = type("Mine", (nn.Sequential,), {})
    assert type(kind(nn.ReLU(), nn.ReLU())[part]) is kind
    fills = type(
        "Fills",
        (nn.Sequential,),
        {"__init__": lambda self: nn.Sequential.__init__(self, *[nn.ReLU() for _ in range(4)])},
    )()
    assert list(fills[part]) == list(fills)[part]


def test_repr_of_a_sequential_shows_its_names():
    torch = require("torch")
    for there in (torch.nn, nn):
        assert (
            repr(there.Sequential(dict_of(there))[1:].append(there.Tanh()))
            == "Sequential(\n  (act): ReLU()\n  (1): Tanh()\n)"
        )
    assert "(a): ReLU()\n  (b): ReLU()" in repr(nn.Sequential({"a": nn.ReLU(), "b": nn.ReLU()}))
    several = nn.Sequential(*[nn.ReLU() for _ in range(6)])
    assert "(2-4): 3 x ReLU()" in repr(several[2:5]) and "(0): ReLU()\n  (3): ReLU()" in repr(
        several[::3]
    )


def dict_of(nn):
    return OrderedDict(fc=nn.Linear(2, 3), act=nn.ReLU())


def test_repr_is_a_tree():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU())) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): ReLU()\n)"
    )
    assert "(0-2): 3 x ReLU()" in repr(nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.ReLU()]))


@pytest.mark.parametrize(
    "module, head",
    [
        (nn.Embedding(5, 3), "5, 3"),
        (nn.Embedding(5, 3, padding_idx=-1), "5, 3, padding_idx=4"),
        (nn.LayerNorm(8), "(8,), eps=1e-05, elementwise_affine=True"),
        (
            nn.LayerNorm((2, 8), 0.1, bias=False),
            "(2, 8), eps=0.1, elementwise_affine=True, bias=False",
        ),
        (nn.LayerNorm(8, elementwise_affine=False), "(8,), eps=1e-05, elementwise_affine=False"),
        (nn.RMSNorm(8), "(8,), eps=None, elementwise_affine=True"),
        (nn.Dropout(0.1), "p=0.1"),
        (nn.GELU("tanh"), "approximate='tanh'"),
        (nn.LogSoftmax(1), "axis=1"),
        (nn.MSELoss("sum"), "reduction='sum'"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "reduction='mean', label_smoothing=0.1"),
        (nn.MultiheadAttention(8, 2), "embed_dim=8, num_heads=2"),
        (
            nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True),
            "embed_dim=8, num_heads=2, dropout=0.1, batch_first=True",
        ),
        (
            nn.MultiheadAttention(8, 3, head_dim=4),
            "embed_dim=8, num_heads=3, head_dim=4, value_head_dim=4",
        ),
        (
            nn.MultiheadAttention(8, 2, value_head_dim=3),
            "embed_dim=8, num_heads=2, head_dim=4, value_head_dim=3",
        ),
        (nn.SelfAttention(3, 4, causal=True), "causal=True"),
        (nn.SinusoidalPositionalEncoding(6, 9), "d_model=6, max_len=9"),
        (nn.LearnedPositionalEncoding(9, 6), "max_len=9, d_model=6"),
        (nn.TransformerEncoderLayer(4, 2, 4, norm_first=True), "norm_first=True"),
        (nn.TransformerDecoderLayer(4, 2, 4), ""),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_repr_shows_the_settings(module, head):
    assert (
        repr(module).splitlines()[0].removeprefix(f"{type(module).__name__}(").removesuffix(")")
        == head
    )


def test_a_name_that_is_no_text_is_refused_like_any_other():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"does not fit Linear.*\n.*unexpected: 0\.$"):
        model.load_state_dict({**model.state_dict(), 0: np.ones(1)})


def test_a_name_that_is_registered_as_none_stays_registered():
    class Net(nn.Module):
        def __init__(self):
            self.register_buffer("mask", None)
            self.register_buffer("past", None, persistent=False)
            self.register_buffer("cache", np.zeros(2))
            self.register_parameter("scale", None)

    net = Net()
    assert net.mask is net.past is net.scale is None and list(net.state_dict()) == ["cache"]
    other = copy.copy(net)
    net.cache = None
    net.mask, net.past, net.cache, net.scale = (
        np.ones(2),
        np.ones(2),
        Tensor(np.ones(2)),
        nn.Parameter(np.ones(2)),
    )
    assert list(net.state_dict()) == ["scale", "mask", "cache"] and [
        name for name, _ in net.named_parameters()
    ] == ["scale"]
    assert net.astype(np.float16).past.dtype == np.float16 and other.mask is None
    for unregistered in (other, copy.deepcopy(other), nn.Linear(2, 2, bias=False)):
        with pytest.raises(TypeError, match="is a Parameter of .* would no longer be trained"):
            setattr(
                unregistered,
                "bias" if isinstance(unregistered, nn.Linear) else "scale",
                Tensor(np.ones(2), requires_grad=True),
            )
    with pytest.raises(TypeError, match="is a Buffer of .* delete it first"):
        other.mask = 3
    del other.mask
    other.mask = 3
    assert other.mask == 3


@pytest.mark.parametrize(
    "layer, names",
    [
        (nn.Linear(2, 2, bias=False), ["bias"]),
        (nn.LayerNorm(2, bias=False), ["bias"]),
        (nn.LayerNorm(2, elementwise_affine=False), ["weight", "bias"]),
        (nn.RMSNorm(2, elementwise_affine=False), ["weight"]),
        (
            nn.MultiheadAttention(2, 1, bias=False),
            ["in_proj_bias", "bias_k", "bias_v", "q_proj_weight", "k_proj_weight", "v_proj_weight"],
        ),
        (nn.MultiheadAttention(2, 1, kdim=3), ["in_proj_weight", "bias_k", "bias_v"]),
    ],
    ids=["linear", "norm-bias", "norm", "rms", "attention", "attention-apart"],
)
def test_what_a_layer_was_made_without_is_still_the_name_of_a_parameter(layer, names):
    before = list(layer.state_dict())
    for name in names:
        assert getattr(layer, name) is None
        with pytest.raises(TypeError, match="would no longer be trained"):
            setattr(layer, name, Tensor(np.zeros(2)))
        setattr(layer, name, nn.Parameter(np.zeros(2)))
    assert sorted(layer.state_dict()) == sorted([*before, *names])


@pytest.mark.parametrize("layer", [nn.LayerNorm((2, 3)), nn.RMSNorm(3)], ids=["layer", "rms"])
def test_norms_can_be_reset(layer):
    before = copy.deepcopy(layer.state_dict())
    with no_grad():
        for parameter in layer.parameters():
            parameter[...] = 7.0
    layer.reset_parameters()
    assert all((value == before[name]).all() for name, value in layer.state_dict().items())


def test_a_module_may_have_an_attribute_called_empty():
    class Own(nn.Module):
        def __init__(self):
            self._empty = []
            self.cache = None
            self.cache = 3
            self.register_parameter("bias", None)

    module = Own()
    module.bias = nn.Parameter(np.ones(2))
    assert module._empty == [] and [name for name, _ in module.named_parameters()] == ["bias"]


def test_a_module_inside_itself_is_refused_where_it_is_put_there():
    """Walks along the names, as for a state dict, would not end."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    for put in (
        lambda: setattr(model[0], "parent", model),
        lambda: setattr(model[1][0], "parent", model),
        lambda: setattr(model, "me", model),
        lambda: model[1].append(model),
        lambda: model[1].add_module("up", model),
    ):
        with pytest.raises(
            ValueError, match=r"contains this .* or is it.*Write a tuple, \(module,\)"
        ):
            put()
    model[0].parent = (model,)
    assert len(model.state_dict()) == 4 and len(list(model.modules())) == 4
    model.again = model[0]  # the same module twice is no circle
    assert len(model.state_dict()) == 6


def test_names_of_a_module_around_this_one_are_taken_off_as_the_error_says():
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    mapping = {f"net.last.{name}": values for name, values in other.state_dict().items()}
    mapping["net.first.weight"] = np.zeros(3)
    with pytest.raises(ValueError, match="does not fit Linear; nothing was changed") as error:
        layer.load_state_dict(mapping)
    advice = str(error.value).partition("write ")[2].rstrip(".")
    eval(f"layer.{advice}", {"layer": layer, "mapping": mapping})
    for name, values in layer.state_dict().items():
        np.testing.assert_array_equal(values, other.state_dict()[name])


def test_load_state_dict_names_everything_wrong_at_once_and_changes_nothing():
    net = Net()
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    bad = {k: np.full(v.shape, 9.0) for k, v in before.items()}
    del bad["scale"]
    bad["sclae"] = np.ones(4)
    bad["body.0.weight"] = bad["body.0.weight"].T
    with pytest.raises(ValueError) as error:
        net.load_state_dict(bad)
    for part in (
        "nothing was changed",
        r"missing: 'scale' (4,)",
        "unexpected: 'sclae'. Did you mean 'scale'?",
        "shape: 'body.0.weight' is (3, 4) here but (4, 3)",
        "Transpose it",
    ):
        assert part in str(error.value)
    assert all(np.array_equal(v.numpy(), before[k]) for k, v in net.state_dict().items())
    with pytest.raises(ValueError, match=r"load_state_dict\(mapping\['model'\]\)"):
        net.load_state_dict({"model": before})
    with pytest.raises(ValueError, match="shape: 'body.0.weight'"):
        net.load_state_dict(bad, strict=False)
    for no_array in ("four ones", [[1.0], [1.0, 2.0]]):
        with pytest.raises(TypeError, match="'scale' must be an array of numbers"):
            net.load_state_dict({**before, "scale": no_array})
    with pytest.raises(ValueError) as error:
        net.load_state_dict({**before, "scale": np.ones(3)})
    assert "shape: 'scale' is (4,) here" in str(error.value) and "Transpose" not in str(error.value)
