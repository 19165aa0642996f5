"""class Tensor: what it is made from, its attributes, operators and methods, copies, and what it refuses."""

import copy
import math
import operator
import pickle
import random

import numpy as np
import pytest
from numpytable import P, R
from support import each, require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import history


def t(*shape, dtype=np.float64):
    return Tensor(R(*shape).astype(dtype), requires_grad=True)


def test_numbers_and_lists_take_the_default_dtype_and_arrays_keep_theirs():
    assert [Tensor(x).dtype for x in (1, 2.0, [1, 2], [[0.5]])] == [np.float32] * 4
    assert [Tensor(x).dtype for x in (True, [True], np.arange(2), np.float64(1))] == [
        *(bool, bool, np.int64, np.float64)
    ]
    ta.set_default_dtype(np.float64)
    try:
        assert Tensor(1).dtype == np.float64
    finally:
        ta.set_default_dtype(np.float32)
    array = np.ones(2)
    Tensor(array).data[0] = 5
    assert array[0] == 1  # The data are copied.


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: Tensor("abc"), TypeError, "real numbers or booleans"),
        (lambda: Tensor(None), TypeError, "forget to return its result"),
        (lambda: Tensor([[1, 2], [3]]), ValueError, "differ in length"),
        (lambda: Tensor([t(3), t(3)]), TypeError, "np.stack or np.concatenate"),
        (lambda: Tensor([1], dtype=int, requires_grad=True), TypeError, "floating-point"),
        (
            lambda: Tensor(np.ones(2, np.float16), requires_grad=True),
            TypeError,
            r"single precision or more.*\.astype\(np\.float32\)",
        ),
        (lambda: setattr(t(3), "data", np.ones(3, np.float16)), TypeError, "cannot be float16"),
        (lambda: nn.Linear(2, 2).astype(np.float16), TypeError, "or np.float64, got <class 'num"),
        (lambda: ta.set_default_dtype("float16"), TypeError, "or np.float64, got 'float16'"),
        (lambda: ta.tensor([1.0]), TypeError, r"Write ta\.Tensor"),
        (lambda: setattr(t(3), "data", np.ones(3, int)), TypeError, "its dtype cannot be int64"),
        (lambda: setattr(t(3), "grad", np.ones(4)), ValueError, "its tensor's shape"),
        (lambda: setattr(t(3) * 2, "requires_grad", False), ValueError, r"use detach\(\)"),
        (lambda: t(3).__setitem__(0, 1.0), TypeError, r"np\.where\(mask, value, t\)"),
        (lambda: bool(t(3)), ValueError, r"\.all\(\) or .*np\.where"),
        (lambda: math.sin(t(3)), ValueError, r"Write np\.sin\(t\) instead of math\.sin\(t\)"),
        (lambda: t(3).mT, ValueError, "last two axes"),
        (lambda: t(2, 2).sum(dim=1), TypeError, r"sum\(\) got .*'dim'\. Write axis=, as in NumPy"),
        (lambda: t(2, 2).max(0, keepdim=True), TypeError, "Write keepdims="),
        (lambda: t(2).repeat(2, 1), TypeError, r"np\.tile\(t, \(2, 1\)\)"),
        (lambda: t(2, 4).reshape(2, 4 / 2), TypeError, "divide with // instead of /"),
        (lambda: t(3)[np.array([0.0])], IndexError, r"index\.astype\(int\)"),
        (lambda: copy.deepcopy(t(3) * 2), TypeError, r"call \.detach\(\) first"),
        (lambda: copy.copy(t(3) * 2), TypeError, r"call \.detach\(\) first"),
        (lambda: pickle.dumps(t(3) * 2), TypeError, "only leaf tensors"),
        (lambda: len(Tensor(1.0)), TypeError, r"single number.*no length.*t\.item\(\)"),
        (lambda: list(t(2).sum()), TypeError, "cannot be iterated"),
        (lambda: iter(t()), TypeError, "cannot be iterated"),
    ],
)
def test_what_is_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_attributes():
    x = t(2, 3)
    assert (x.shape, x.ndim, x.size, x.dtype, x.is_leaf) == ((2, 3), 2, 6, np.float64, True)
    assert x.T.shape == x.mT.shape == (3, 2) and len(x) == 2 and not (x * 1).is_leaf
    assert x.grad is None and x.name is None and x.requires_grad
    assert not Tensor([1.0]).requires_grad_(False).requires_grad
    with pytest.warns(UserWarning, match=r"retain_grad\(\)"):
        assert (x * 2).grad is None


def test_repr_and_format():
    x = Tensor([1.5, 2.0], requires_grad=True)
    assert repr(x) == "Tensor([1.5, 2. ], requires_grad=True)"
    assert "op=multiply" in repr(x * 2) and "dtype=float64" in repr(Tensor(np.ones(1)))
    x.name = "w"
    assert repr(x).endswith("name='w')") and f"{x[0]:.2f}" == "1.50" and "Tensor(" in f"{x}"
    assert "unsqueeze" not in dir(x) and "reshape" in dir(x)


X = R(2, 3)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod]
ARITHMETIC += [operator.floordiv, operator.pow]
COMPARED = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("f", [*ARITHMETIC, *COMPARED], ids=lambda f: f.__name__)
@each("other", [2.0, 3, np.abs(R(3)), np.float64(0.5), Tensor(P(2, 3))])
def test_operators_of_both_sides_are_numpys(f, other):
    plain, x = other.numpy() if isinstance(other, Tensor) else other, Tensor(np.abs(X))
    for mine, numpys in ((f(x, other), f(np.abs(X), plain)), (f(other, x), f(plain, np.abs(X)))):
        assert isinstance(mine, Tensor if f in ARITHMETIC else np.ndarray)
        np.testing.assert_allclose(np.asarray(mine), numpys, rtol=1e-15, strict=True)


METHODS = [
    lambda a: a.argmax(0, keepdims=True),
    lambda a: a.argmin(1),
    lambda a: a.argsort(0),
    lambda a: a.any(0, keepdims=True),
    lambda a: a.all(1),
    lambda a: a.dot(X.T),
    lambda a: a.trace(1),
    lambda a: a.take([0, 0, 2], 1),
    lambda a: a.diagonal(1),
    lambda a: a.flatten(),
    lambda a: a.transpose(None),
    lambda a: a.transpose(1, 0),
    lambda a: a.repeat(2, axis=1),
    lambda a: a.cumsum(1),
    lambda a: a.cumprod(0),
    lambda a: a.clip(-1, 0.5),
    lambda a: a.round(1),
    lambda a: a.swapaxes(0, 1),
    lambda a: a.sum((0, 1)),
    lambda a: a.mean(0, keepdims=True),
    lambda a: a.prod(1),
    lambda a: a.var(0, ddof=1),
    lambda a: a.std(1),
    lambda a: a.min(0, keepdims=True),
    lambda a: a.max(axis=1),
    lambda a: a.reshape(3, -1),
    lambda a: a[:, None].squeeze(1),
    lambda a: a @ X.T,
    lambda a: X.T @ a,
    lambda a: -a,
    lambda a: +a,
    lambda a: abs(a),
    lambda a: a[[]],
    lambda a: a[1, ::2],
    lambda a: a[a > 0],
    lambda a: a[..., [2, 0]],
    lambda a: a.astype(np.float32),
    lambda a: a.copy(),
]


@pytest.mark.parametrize("call", METHODS, ids=range(len(METHODS)))
def test_methods_are_those_of_arrays(call):
    found, expected = call(Tensor(X, requires_grad=True)), call(X)
    with ta.no_grad():
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-14, strict=True)


def test_masks_and_single_numbers():
    mask = Tensor([True, False])
    assert (mask & [True, True]).tolist() == [True, False] and (~mask).tolist() == [False, True]
    one = Tensor(2.5)
    assert (float(one), int(one), round(one).item(), math.exp(one)) == (2.5, 2, 2.0, math.exp(2.5))
    assert [1, 2, 3][Tensor(1, dtype=int)] == 2 and 2.5 in one.reshape(1) and bool(one)
    assert one.tolist() == one.item() == 2.5


def test_values_are_written_in_place():
    x = Tensor(np.zeros(3))
    x[1:], x.data[0] = [1, 2], 5
    assert x.tolist() == [5, 1, 2]
    with pytest.raises(IndexError, match="setitem of Tensor"):
        x[7] = 1
    y = t(3)
    square = y * y
    with ta.no_grad():
        y[0] = 9.0
    with pytest.raises(ValueError, match="changed in place"):
        square.sum().backward()


IN_PLACE = {  # functions that change their argument, of NumPy, of Python and of the user
    "Generator.shuffle": lambda t: np.random.default_rng(1).shuffle(t),
    "np.random.shuffle": np.random.shuffle,
    "random.shuffle": random.Random(1).shuffle,
    "swap": lambda t: operator.setitem(t, 0, t[1]),
    "swap of columns": lambda t: operator.setitem(t, np.s_[:, 0], t[:, 1]),
    "Generator.permuted": lambda t: np.random.default_rng(1).permuted(t, out=t),
    "copyto": lambda t: np.copyto(t, 1),
    "place": lambda t: np.place(t, np.ones((6, 2), bool), [1]),
    "put": lambda t: np.put(t, [0], [1]),
    "putmask": lambda t: np.putmask(t, np.ones((6, 2), bool), 1),
    "put_along_axis": lambda t: np.put_along_axis(t, np.zeros((1, 2), int), 1, 0),
    "fill_diagonal": lambda t: np.fill_diagonal(t, 1),
    "at": lambda t: np.add.at(t, [0], 1),
    "out": lambda t: np.add(np.ones((6, 2), t.dtype), 1, out=t),
    "sum with out": lambda t: np.sum(np.ones((3, 6, 2), t.dtype), axis=0, out=t),
    "sum with out by position": lambda t: np.sum(np.ones((3, 6, 2), t.dtype), 0, None, t),
    "clip with out": lambda t: np.clip(t, 0, 1, out=t),
    "partition": lambda t: t.partition(1),
    "sort": lambda t: t.sort(),
}


@pytest.mark.filterwarnings("ignore:you are shuffling")
@pytest.mark.parametrize("dtype", [float, int])
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_would_change_a_tensor_in_place_is_refused(name, dtype):
    before = np.arange(12).reshape(6, 2).astype(dtype)
    x = Tensor(before)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        IN_PLACE[name](x)
    assert np.array_equal(x.numpy(), before)


def test_a_shuffle_is_told_what_to_write():
    x, rng = Tensor(np.arange(12.0).reshape(6, 2)), np.random.default_rng(1)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="as shuffle does") as refused:
        rng.shuffle(x)
    assert "t[rng.permutation(len(t))]" in str(refused.value)
    assert sorted(x[rng.permutation(len(x))].tolist()) == x.tolist()
    x[0], x[1] = x[1].copy(), x[0].copy()
    assert x[:2].tolist() == [[2, 3], [0, 1]]
    one = Tensor(np.arange(6.0))  # NumPy reads its elements as numbers, which no write changes
    with pytest.warns(UserWarning):
        rng.shuffle(one)
    assert sorted(one.tolist()) == [0, 1, 2, 3, 4, 5]


def test_an_update_under_no_grad_that_only_renames_is_refused():
    p = t(2)
    with ta.no_grad(), pytest.raises(TypeError, match=r"Write p\.data -= x\.data"):
        p -= 1
    q = p
    q += 1  # While recording it is q + 1, as in NumPy code.
    assert q is not p and p.is_leaf and not q.is_leaf


class Scaled(nn.Parameter):
    """A subclass with a constructor and an attribute of its own."""

    def __init__(self, scale):
        super().__init__(scale * np.ones(2))
        self.scale = scale


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
LEAVES = {
    "Tensor": lambda: Tensor(np.ones(2), requires_grad=True),
    "constant": lambda: Tensor([1, 2], dtype=int),
    "number": lambda: Tensor(2.5, requires_grad=True),
    "view": lambda: Tensor(np.ones((3, 2))).detach()[1],
    "Parameter": lambda: nn.Parameter([1.0, 2.0]),
    "Buffer": lambda: nn.Buffer([1.0], persistent=False),
    "subclass": lambda: Scaled(3),
}


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("copied", COPIES)
def test_leaves_are_copied_and_pickled(copied, leaf):
    """The copy is another tensor of the same class, with memory of its own and no gradient yet."""
    x = LEAVES[leaf]()
    x.name = "w"
    if x.requires_grad:
        x.grad = np.ones(x.shape)
    y = COPIES[copied](x)
    assert y is not x and type(y) is type(x) and y.is_leaf and y._grad is None
    same = ("dtype", "shape", "requires_grad", "name", "persistent", "scale")
    assert all(getattr(y, name, None) == getattr(x, name, None) for name in same)
    before = x.tolist()
    assert y.tolist() == before
    y.data[...] = 7
    y.name, y.requires_grad = "changed", False
    assert x.tolist() == before and x.name == "w" and (x.grad is not None or not x.requires_grad)


def test_copies_keep_what_is_one_object_one_object():
    x = Scaled(2.0)
    for one, other in (copy.deepcopy([x, x]), pickle.loads(pickle.dumps([x, x]))):
        assert one is other
    module = nn.Linear(2, 2)
    module.weight = Scaled(2.0)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin.weight) is Scaled and twin.weight.scale == 2.0


def test_a_pickled_model_runs_in_its_kernels():
    """Unpickled arrays have dtypes that are equal to, but not the same object as, NumPy's own."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    twin, x = pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(Tensor(np.ones((3, 8)))))
    x = x.astype(np.float32)
    names = lambda y: [t._node.op.__name__ for t in history([y])]
    assert names(twin(x)) == names(model(x))


def test_arrays_of_tensors_and_masked_arrays():
    x = Tensor(np.ones(2))
    assert np.asarray(x).tolist() == [1, 1] and np.array([x[0], 2.0]).tolist() == [1, 2]
    assert (np.ma.array([1.0, 2.0]) + x).tolist() == [2, 3]
    with ta.no_grad():
        assert np.asarray(t(3)).shape == (3,)


def test_torch_and_tensors():
    torch = require("torch")
    x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert Tensor(x).dtype == np.float32 and Tensor(torch.ones(2).double()).dtype == np.float64
    for make in (torch.tensor, torch.as_tensor, torch.asarray):
        for shape in ((), (2,), (2, 2)):
            with pytest.raises(TypeError, match=r"torch\.from_numpy\(t\.numpy\(\)\)"):
                make(Tensor(np.ones(shape)))
    with pytest.raises(TypeError, match=r"PyTorch's softmax accepts only .*Write F\.softmax"):
        torch.softmax(Tensor([1.0]), -1)
