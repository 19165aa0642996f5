"""Every function of `F` stands in helpers/optable.py: among what is differentiated, or among what gives constants."""

import inspect

import numpy as np
import pytest
from enumeration import asserted, calls, code_of, public, unmet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import CONSTANTS, TABLE
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F

torch = require("torch")
ADVICE = (
    "put an entry with the key 'F.{name}' into TABLE in tests/helpers/optable.py, "
    "or one into CONSTANTS there if nothing is differentiated"
)


def functions():
    return public(F, inspect.isfunction)


def in_the_table():
    names = (key.split()[0] for key in TABLE if key.startswith("F."))
    return {name.removeprefix("F.") for name in names}


def differentiated():
    return in_the_table() & {*F.__all__}


def test_no_function_is_missing_from_the_tables():
    have = functions().keys()
    asserted(unmet(have, in_the_table() | {*CONSTANTS}, ADVICE))


@pytest.mark.parametrize("name", sorted(in_the_table()))
def test_an_entry_calls_the_function_of_its_key(name):
    seen = set()

    @settings(max_examples=3, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(data=st.data())
    def run(data):
        for key in (key for key in TABLE if key.split()[0] == f"F.{name}"):
            drawn = TABLE[key](data.draw)
            with calls() as called, ta.plain():
                drawn.ours(*drawn.inputs)
            seen.update(called)

    run()
    assert code_of(getattr(F, name)) in seen


@pytest.mark.parametrize(
    "name, arguments, equation",
    [(name, *one) for name, some in CONSTANTS.items() for one in some],
)
def test_constants_are_those_of_the_equation(name, arguments, equation):
    found = np.asarray(getattr(F, name)(*arguments))
    expected = equation(*arguments)
    assert found.shape == expected.shape and (found.dtype == bool) == (expected.dtype == bool)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("name", sorted(differentiated()))
def test_a_tensor_of_another_library_is_refused_since_its_gradient_would_be_lost(name):
    @settings(max_examples=3, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(data=st.data())
    def run(data):
        key = data.draw(st.sampled_from([key for key in TABLE if key.split()[0] == f"F.{name}"]))
        drawn = TABLE[key](data.draw)
        for i, x in enumerate(drawn.inputs):
            if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
                continue
            theirs = torch.tensor(x, requires_grad=True)
            try:
                given = drawn.ours(*drawn.inputs[:i], theirs, *drawn.inputs[i + 1 :])
            except (TypeError, RuntimeError) as error:
                assert "Tensor" in str(error)  # not NumPy's words
            else:  # PyTorch's own methods, or dropout that drops nothing
                assert isinstance(given, torch.Tensor) and given.requires_grad

    run()


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize("name", sorted(functions()))
def test_what_an_argument_is_when_it_is_left_out_is_pytorchs(name):
    theirs = getattr(torch.nn.functional, name, None)
    try:
        expected = defaults(theirs)
    except (TypeError, ValueError):  # PyTorch has none of this name, or does not show its signature
        return
    own = defaults(functions()[name])
    shared = own.keys() & expected.keys()
    assert {k: own[k] for k in shared} == {k: expected[k] for k in shared}
