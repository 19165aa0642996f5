"""Every op of the package stands in a table, and the tables' samples ask every one of its rules.

The ops of `ops` are drawn from helpers/optable.py. Those of other rooms (NumPy's names, `clone`,
`checkpoint`) are reached through what a user calls: the functions of `F`, NumPy's functions on
tensors, and the classes of `nn`. All of it in plain mode; the quick ways of `fast/` are asked by
tests/fast/test_registry.py.
"""

from contextlib import nullcontext

import numpy as np
import pytest
from enumeration import asserted, calls, code_of, ops_in, uncalled, unmet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moduletable import TABLE as MODULES
from numpytable import CASES
from optable import TABLE

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, op, ops, plain

ADVICE = "put an entry with the key {name!r} into TABLE in tests/helpers/optable.py"
OTHERS = sorted(
    name
    for name, one in ops_in().items()
    if one not in ops_in(ops).values() and ".fast." not in name and not name.endswith(".released")
)


def named():
    """What the table's keys name: the first word of each, where it is an op and not a function."""
    return {name.split()[0] for name in TABLE if name.split()[0] in vars(ops)}


def test_no_op_is_missing_from_the_table():
    asserted(unmet(ops_in(ops), named(), ADVICE))


def sample(draw, key, seen):
    """Draws one sample of an entry, forwards and backwards, and notes what was called."""
    drawn = TABLE[key](draw)
    with calls() as called:
        for mode in (plain, nullcontext):
            leaves = [Tensor(x, requires_grad=True) for x in drawn.inputs]
            with mode():
                y = drawn.ours(*leaves)
                if y.requires_grad:
                    y.backward(np.ones(y.shape))
    seen.update(called)


def several(keys, examples=25):
    """The code that runs when some samples of each of these entries are computed."""
    seen = set()

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(data=st.data())
    def run(data):
        for key in keys:
            sample(data.draw, key, seen)

    run()
    return seen


@pytest.mark.parametrize("name", sorted(ops_in(ops)))
def test_every_rule_of_an_op_is_asked_by_its_entries(name):
    keys, one = [key for key in TABLE if key.split()[0] == name], ops_in(ops)[name]
    seen = several(keys, 3)
    seen = several(keys) if uncalled(one, seen) else seen
    asserted(
        [
            f"no entry whose key begins with {name!r} in tests/helpers/optable.py asks {rule}"
            for rule in uncalled(one, seen)
        ]
    )


def test_a_rule_that_nobody_asks_is_seen():
    product = op(lambda x, y: x * y)
    product.vjp(lambda g, z, x, y: g * y, lambda g, z, x, y: g * x)
    with calls() as seen:
        product(Tensor(2.0, requires_grad=True), 3.0).backward()
    (missed,) = uncalled(product, seen)
    assert missed.startswith(__file__)


def differentiable(tree):
    if isinstance(tree, dict):
        return {key: differentiable(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(differentiable(part) for part in tree)
    if isinstance(tree, np.ndarray) and tree.dtype.kind == "f":
        return Tensor(tree, requires_grad=True)
    return tree


def pulled(y):
    """Everything that is in a result, backwards."""
    parts = [one for one in (y if isinstance(y, (list, tuple)) else [y]) if isinstance(one, Tensor)]
    loss = sum((one * one).sum() for one in parts if one.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()


@pytest.fixture(scope="module")
def reached():
    """The code that runs when each case of NumPy's functions, each function of `F` and each class of `nn` is used."""
    with ta.plain(), np.errstate(all="ignore"), calls() as seen:
        for _, function, args, kwargs in CASES:
            pulled(function(*differentiable(args), **differentiable(kwargs)))
        for example in MODULES.values():
            inputs = example.inputs
            floats = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in inputs]
            pulled(example.make(nn)(*differentiable(floats)))
    x = Tensor(np.ones(3), requires_grad=True)
    with ta.plain(), calls() as more:
        ta.checkpoint(np.exp, x).sum().backward()
        hooked = ta.nn.ReLU()
        hooked.register_full_backward_hook(lambda module, grad_input, grad_output: None)
        hooked(x).sum().backward()
        pulled(x.astype(np.float64) * 1.0)
    return seen | more | several([key for key in TABLE if key.startswith("F.")])


@pytest.mark.parametrize("name", OTHERS)
def test_every_rule_of_an_op_of_another_room_is_asked(name, reached):
    one = ops_in()[name]
    advice = "give one of the tables in tests/helpers a case that calls it"
    assert code_of(one.forward) in reached or code_of(one.forward) is None, f"{name}: {advice}"
    asserted([f"{name}: {advice}, so that {rule} is asked" for rule in uncalled(one, reached)])
