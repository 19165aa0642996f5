"""Module: names and order as PyTorch's, values in and out, and errors that say what to write."""

import copy
import itertools
import operator
import pickle
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import each, require

from tinygrad_attn import Tensor, activations, checkpoint, enable_grad, nn, no_grad, op
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
    for walk, recurse in itertools.product(("named_parameters", "named_buffers"), (True, False)):
        assert [n for n, _ in getattr(ours, walk)(recurse=recurse)] == [
            n for n, _ in getattr(theirs, walk)(recurse=recurse)
        ], (walk, recurse)
    for recurse in (True, False):
        assert [x.shape for x in ours.parameters(recurse)] == [
            tuple(x.shape) for x in theirs.parameters(recurse)
        ]
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
            TypeError, match=r"leave Parameter \(2, 2\) float32 unchanged.*p\.data -= x\.data"
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
            TypeError, match=r"leave Tensor \(2,\) float32 unchanged.*p\.data -= x\.data"
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


def test_a_permuted_state_dict_loads_the_values_from_before():
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    first, second = (layer.weight.numpy().copy() for layer in net)
    state = net.state_dict()
    state["0.weight"], state["1.weight"] = state["1.weight"].numpy().T, state["0.weight"]
    net.load_state_dict(state)
    assert np.array_equal(net[0].weight.numpy(), second.T)
    assert np.array_equal(net[1].weight.numpy(), first)


def test_loading_between_forward_and_backward_is_found_out():
    net = Net()
    loss = net(Tensor(np.ones((2, 3), np.float32))).sum()
    net.load_state_dict(Net().state_dict())
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_buffers_are_saved_as_torchs():
    torch = require("torch")
    theirs, ours = torch.nn.Module(), nn.Module()
    for module, make in ((theirs, torch.ones), (ours, np.ones)):
        module.register_buffer("kept", make(2))
        module.register_buffer("left", make(3), persistent=False)
        module.register_buffer("none", None)
        layers = torch.nn if module is theirs else nn
        module.add_module("inner", layers.Linear(1, 1))
        module.own = layers.Parameter(make(1))
    assert (
        list(ours.state_dict())
        == list(theirs.state_dict())
        == ["own", "kept", "inner.weight", "inner.bias"]
    )
    assert [n for n, _ in ours.named_buffers()] == [n for n, _ in theirs.named_buffers()]
    assert not copy.deepcopy(ours).left.persistent and "kept" not in dict(ours.named_parameters())
    ours.left, ours.kept = np.zeros(3), np.zeros(2)  # stay what they are
    assert not ours.left.persistent and ours.kept.persistent and "left" not in ours.state_dict()
    ours.astype(np.float32)
    assert ours.left.dtype == np.float32


def test_a_call_is_a_scope_and_an_error_says_where():
    class Look(nn.Module):
        def forward(self, x):
            scope = context.scope
            return scope.module, scope.outer.module

    look = Look()
    row = nn.Sequential(look)
    assert row(0) == (look, row) and context.scope is None
    deep = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="the last axis of the input must have") as error:
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
                match=r"leave StateValue \(2, 2\) float32 unchanged.*Write p\.data -= x\.data",
            ):
                change(net.state_dict()["weight"], 0.5)
    net.state_dict()["weight"].data *= 0.5
    assert np.array_equal(net.weight.numpy(), before / 2)
    kept = copy.deepcopy(net.state_dict())
    kept["weight"].data += 1
    assert np.array_equal(kept["weight"].numpy(), before / 2 + 1)
    assert type(net.state_dict()["weight"] * 2) is Tensor and np.array_equal(
        net.weight.numpy(), before / 2
    )


def test_a_graph_recorded_before_astype_is_told_of_it():
    net, x = nn.Linear(3, 2).astype(np.float64), Tensor(np.ones((1, 3)), requires_grad=True)
    loss = net(x).sum()
    net.astype(np.float32)
    with pytest.raises(ValueError, match="changed in place after it was used"):
        loss.backward()
    net.astype(np.float64)(x).sum().backward()


@pytest.mark.parametrize(
    "module, head",
    [
        (nn.Embedding(5, 3, padding_idx=-1), "num_embeddings=5, embedding_dim=3, padding_idx=4"),
        (nn.LayerNorm((2, 8), 0.1), "normalized_shape=(2, 8), eps=0.1, elementwise_affine=True"),
        (nn.RMSNorm(8), "normalized_shape=(8,), eps=None, elementwise_affine=True"),
        (nn.Dropout(0.1), "p=0.1"),
        (nn.GELU("tanh"), "approximate='tanh'"),
        (nn.LogSoftmax(1), "axis=1"),
        (nn.MSELoss("sum"), "reduction='sum'"),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            "ignore_index=-100, reduction='mean', label_smoothing=0.1",
        ),
        (
            nn.MultiheadAttention(8, 2, dropout=0.1, value_head_dim=3),
            "embed_dim=8, num_heads=2, head_dim=4, value_head_dim=3, dropout=0.1, batch_first=False",
        ),
        (nn.SelfAttention(3, 4, causal=True), "causal=True"),
        (nn.SinusoidalPositionalEncoding(6, 9), "max_len=9, d_model=6, batch_first=True"),
        (nn.TransformerEncoderLayer(4, 2, 4, norm_first=True), "norm_first=True"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_repr_shows_the_settings(module, head):
    assert (
        repr(module).splitlines()[0].removeprefix(f"{type(module).__name__}(").removesuffix(")")
        == head
    )


HIDING: dict[str, Callable[[Any], Any]] = {
    "list": lambda part: [part],
    "dict": lambda part: {"a": part},
    "tuple": lambda part: (part,),
    "set": lambda part: {part},
    "frozenset": lambda part: frozenset([part]),
    "ordered dict": lambda part: OrderedDict(a=part),
    "deque": lambda part: deque([part]),
    "user list": lambda part: UserList([part]),
    "user dict": lambda part: UserDict(a=part),
    "named tuple": lambda part: namedtuple("Pair", "first second")(1.0, part),
}


@each("part", [nn.ReLU(), nn.Parameter([1.0]), nn.Buffer([1.0])])
@each("outer", [None, *HIDING])
@pytest.mark.parametrize("inner", HIDING)
def test_a_plain_collection_of_parts_is_refused(inner, outer, part):
    """However deep the parts are, and when they are added."""
    value = HIDING[inner](part)
    if outer is not None:
        try:
            value = HIDING[outer](value)
        except TypeError:
            pytest.skip("not hashable")
    net = Net()
    net.layers = value
    for walk in (net.parameters, net.modules, net.state_dict, net.eval):
        with pytest.raises(TypeError, match="Net.layers is a plain .* nn.ModuleList or nn.Module"):
            list(walk())
    net.layers = [[0] * 100] * 12
    assert len(list(net.parameters())) == 6
    net.layers.append(value)
    with pytest.raises(TypeError, match="Net.layers is a plain list of"):
        list(net.parameters())


def test_a_slice_keeps_its_names_and_a_new_module_gets_the_next_one():
    part = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU())[1:].append(nn.Tanh())
    assert [name for name, _ in part.named_modules()] == ["", "1", "2", "3"]


@pytest.mark.parametrize("kind", [list, dict])
def test_a_vocabulary_is_not_searched_to_its_end(kind):
    """A walk through the model would otherwise take as long as the vocabulary is."""
    read = []

    class Words(kind):
        def __iter__(self):
            return (read.append(word) or word for word in kind.__iter__(self))

        def values(self):
            return iter(self)

    net = nn.Module()
    net.words = Words(dict.fromkeys(map(str, range(5000))))
    assert not list(net.parameters()) and 0 < len(read) <= 100


def test_a_plain_collection_of_anything_else_is_allowed():
    net = Net()
    net.layers = [["names"], {"sizes": [1, 2]}, ("text", np.ones(2), Tensor([1.0])), {1, 2}, None]
    assert len(list(net.parameters())) == 6


class Scaled(nn.Parameter):
    """A subclass with an attribute of its own."""

    def __init__(self, data, scale):
        super().__init__(data)
        self.scale = scale


class Sharded(nn.Parameter):
    """A subclass with a slot of its own."""

    __slots__ = ("rank",)

    def __init__(self, data, rank):
        super().__init__(data, requires_grad=False)
        self.rank = rank


class Counted(nn.Buffer):
    def __init__(self, data, counts):
        super().__init__(data, persistent=False)
        self.counts = counts


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_subclasses_of_parts_survive_copies(copied):
    net = nn.Module()
    net.scaled, net.sharded = Scaled([1.0, 2.0], {"by": [3]}), Sharded(3.0, 1)
    net.counted, net.again = Counted([4.0], [5]), net.scaled
    net.scaled.name = "w"
    twin = copied(net)
    for name, part in vars(net).items():
        if name not in ("_names", "_not_persistent"):
            other = getattr(twin, name)
            assert type(other) is type(part) and other is not part, name
            assert other.requires_grad == part.requires_grad and other.name == part.name
            np.testing.assert_array_equal(other.numpy(), part.numpy())
            assert not np.shares_memory(other.numpy(), part.numpy())
    assert twin.again is twin.scaled and twin.scaled.scale == {"by": [3]} and twin.sharded.rank == 1
    assert twin.counted.counts == [5] and not twin.counted.persistent
    assert twin.scaled.scale is not net.scaled.scale
    assert [n for n, _ in twin.named_parameters()] == ["scaled", "sharded"]
    assert list(twin.state_dict()) == ["scaled", "sharded", "again"]
    (twin.scaled * twin.scaled.scale["by"][0]).sum().backward()
    assert twin.scaled.grad.tolist() == [3, 3] and net.scaled.grad is None


def test_an_unpickled_model_computes_the_same_bits():
    """Its arrays have another dtype object than NumPy's, so a kernel must not ask with `is`."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    twin = pickle.loads(pickle.dumps(layer))
    assert twin.norm1.weight.dtype is not layer.norm1.weight.dtype
    x, results = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32), []
    for model in (layer, twin):
        loss = (model(x) ** 2).sum()
        loss.backward()
        results.append([loss.numpy(), *(p.grad.numpy() for p in model.parameters())])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda net: setattr(net, "scale", Tensor([1.0])), TypeError, "would not be trained"),
        (lambda net: setattr(net, "requires_grad", False), AttributeError, "requires_grad_"),
        (lambda net: net.add_module("layer", 3), TypeError, "must be a Module, got 3"),
        (lambda net: net.add_module("a.b", nn.ReLU()), ValueError, "contains a dot"),
        (lambda net: net.cuda(), AttributeError, "everything is on the CPU"),
        (
            lambda net: net.astype(int),
            TypeError,
            "dtype of a module must be a floating-point dtype",
        ),
        (lambda net: nn.Module()(1), TypeError, "Module does not define forward"),
        (lambda net: net.load_state_dict([1]), TypeError, r"a mapping like ta.load\(path\)"),
        (lambda net: nn.Sequential(nn.ReLU(), np.tanh), TypeError, "'1' of a Sequential must be"),
        (lambda net: nn.Sequential([nn.ReLU()]), TypeError, r"nn.Sequential\(\*layers\)"),
        (lambda net: nn.ModuleList([nn.ReLU]), TypeError, r"nn.ReLU\(\) for a class"),
        (
            lambda net: nn.ModuleList()(1),
            TypeError,
            "ModuleList does not define forward.*Loop over a ModuleList",
        ),
        (lambda net: nn.ModuleList()[0], IndexError, "out of range"),
        (
            lambda net: nn.ModuleDict({"forward": nn.ReLU()}),
            ValueError,
            "an attribute of the class",
        ),
        (lambda net: nn.ModuleDict()["a"], KeyError, "a"),
    ],
)
def test_mistakes_are_named(call, kind, text):
    with pytest.raises(kind, match=text):
        call(Net())


def test_a_tensor_that_is_no_parameter_is_warned_of():
    with pytest.warns(UserWarning, match="Net.shift is a Tensor, not a Parameter"):
        Net().shift = Tensor([1.0], requires_grad=True)


def test_settings_reach_every_module():
    net = Net()
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    net(Tensor(np.ones((2, 3), np.float32))).sum().backward()
    net.astype(np.float64)
    assert all(p.dtype == p.grad.dtype == np.float64 for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert not any(p.grad.data.any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(np.ones((2, 3))).requires_grad
    assert net.requires_grad_() is net and all(p.requires_grad for p in net.parameters())
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "ReLU", "Sequential", "Linear", "Net"]


def named(there):
    return there.Sequential(OrderedDict(fc=there.Linear(2, 3), act=there.ReLU()))


CONTAINERS = {
    "list": lambda nn: nn.ModuleList(nn.Linear(i, i) for i in (1, 2, 3)),
    "slice of a list": lambda nn: nn.ModuleList([nn.Linear(i, i) for i in (1, 2, 3)])[1:],
    "append": lambda nn: named(nn).append(nn.Linear(3, 1)).extend([nn.Tanh(), nn.Linear(1, 1)]),
    "slice": lambda nn: nn.Sequential(nn.Tanh(), nn.Linear(1, 2), nn.Linear(2, 3))[1:],
    "slice by name": lambda nn: named(nn)[1:],
    "dict": lambda nn: nn.ModuleDict([("a", nn.Linear(1, 1)), ("b", nn.ReLU())]),
    "one module twice": lambda nn: nn.Sequential(*[nn.Tanh()] * 2, nn.Linear(1, 1)),
    "nested": lambda nn: nn.ModuleList(nn.ModuleList([named(nn), nn.ModuleDict()])),
}


def changed(there):
    layers = there.ModuleList([there.Linear(1, 1), there.Tanh()])
    layers[0] = there.Linear(2, 2)
    layers += [there.Linear(3, 3)]
    return layers


def changed_by_name(there):
    table = there.ModuleDict({"a": there.ReLU(), "b": there.ReLU()})
    table.update({"c": there.Linear(1, 1), "b": there.Tanh()})
    table["d"] = table.pop("a")
    del table["b"]
    assert "b" not in table and list(table.keys()) == ["c", "d"] == list(table) and len(table) == 2
    return table


CONTAINERS |= {"changed": changed, "changed by name": changed_by_name}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_are_pytorchs(kind):
    torch = require("torch")
    ours, theirs = CONTAINERS[kind](nn), CONTAINERS[kind](torch.nn)
    assert repr(ours) == repr(theirs) and type(ours).__name__ == type(theirs).__name__
    shapes = [{n: tuple(v.shape) for n, v in m.state_dict().items()} for m in (ours, theirs)]
    assert [*shapes[0].items()] == [*shapes[1].items()]


def test_containers_beyond_pytorchs():
    part = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.GELU())[1:].append(nn.SiLU())
    assert [type(m) for m in part] == [nn.Tanh, nn.GELU, nn.SiLU]  # PyTorch's would lose one

    class Mine(nn.Sequential):
        def __init__(self):
            self.extend([nn.ReLU()] * 3)

    mine = Mine()
    assert type(mine[1:]) is type(mine) and len(mine[1:]) == 2
    table = nn.ModuleDict({"a": nn.ReLU()})
    assert table != nn.ModuleDict({"a": table["a"]}) and table in {table}


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
        "shape: 'body.0.weight' is (3, 4) in the module but (4, 3) in the mapping. Transpose the value.",
    ):
        assert part in str(error.value)
    with pytest.raises(ValueError, match="shape: 'body.0.weight'"):
        net.load_state_dict(bad, strict=False)
    with pytest.raises(TypeError, match="only real numbers or booleans; got 'four ones'"):
        net.load_state_dict({**before, "scale": "four ones"})
    with pytest.raises(ValueError, match="unexpected: '29.w'"):  # names of many are listed too
        nn.Module().load_state_dict({f"{i}.w": 0 for i in range(30)})
    assert all(np.array_equal(v.numpy(), before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("name", ["body", "scale", "training", "label"])
def test_what_is_deleted_is_gone(name):
    net = Net().eval()
    net.label = "a plain attribute"
    kept = {n: p for n, p in net.named_parameters() if n.partition(".")[0] != name}
    delattr(net, name)
    assert name not in vars(net) and dict(net.named_parameters()) == kept
    with pytest.raises(AttributeError, match=name):
        delattr(net, name)
    assert net.training == (name == "training")  # as the class has it


def test_a_checkpoint_repeats_what_a_module_deletes():
    class Once(nn.Module):
        def __init__(self):
            self.factor = 3.0

        def forward(self, x):
            y = x * self.factor
            del self.factor
            return y

    model, x = Once(), Tensor([1.0, 2.0], requires_grad=True)
    checkpoint(model, x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0] and "factor" not in vars(model)


def test_a_hint_is_one_of_the_first_twenty_missing_names():
    """To look through all of them would take long where nothing matches."""
    many = nn.Module()
    for letter in "abcdefghijklmnopqrstu":
        setattr(many, 4 * letter, nn.Parameter(np.ones(1)))
    with pytest.raises(ValueError) as error:
        many.load_state_dict({"ttt": np.ones(1), "uuu": np.ones(1)})
    assert str(error.value).splitlines()[-2:] == [
        "  unexpected: 'ttt'. Did you mean 'tttt'?",
        "  unexpected: 'uuu'.",
    ]


def test_pytorch_takes_a_state_dict_as_it_is():
    torch = require("torch")
    ours = nn.TransformerEncoderLayer(8, 2, 16)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), ours.state_dict()[name].numpy())


@pytest.mark.parametrize(
    "copied", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_stays_persistent_or_not_while_it_is_none(copied, persistent):
    net = nn.Module()
    net.register_buffer("late", None, persistent=persistent)
    net.register_buffer("early", np.ones(3), persistent=persistent)
    net.assigned = nn.Buffer(np.ones(3), persistent=persistent)
    names = ["late", "early", "assigned"]
    for _ in range(2):
        for name in names:
            setattr(net, name, None)
        net = copied(net)
        for name in names:
            setattr(net, name, np.zeros(3))
            assert getattr(net, name).persistent is persistent
        assert list(net.state_dict()) == names * persistent
    net.register_buffer("late", np.ones(3), persistent=not persistent)
    assert ("late" in net.state_dict()) is not persistent


class Parent(nn.Module):
    """Its child knows it, directly and through a list."""

    def __init__(self):
        self.child, self.twice = nn.Linear(2, 2), nn.ModuleList()
        self.child.parent, self.again = self, self.child
        self.twice.append(self)


def test_a_child_may_know_its_parent():
    model = Parent()
    names = ["child.weight", "child.bias", "again.weight", "again.bias"]
    assert list(model.state_dict()) == names
    walked = [name for name, _ in model.named_modules(remove_duplicate=False)]
    assert walked == ["", "child", "twice", "again"]
    with activations(model) as seen:
        model.child(np.ones(2))
    assert list(seen) == walked and seen["child"].outputs == seen["again"].outputs


def test_a_property_says_what_it_lacks():
    class Net(nn.Module):
        width = property(lambda self: self.missing)

    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        Net().width  # noqa: B018


def test_deeply_nested_lists_are_searched_once():
    """And not a hundred elements of each list in a list."""
    read, net = [], nn.Module()

    class Row(list):
        def __iter__(self):
            return (read.append(x) or x for x in list.__iter__(self))

    net.table = Row([Row([Row([0] * 100)] * 100)] * 100)
    net.zero_grad()
    assert len(read) < 2000
