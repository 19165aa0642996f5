"""Every ordered pair of ways to run a model, on three models, equals the run without them."""

import numpy as np
import pytest
from compositions.ways import MODELS, SURE, WAYS, outcome

OTHER_GRADIENTS = {"vjp", "value_and_grad", "jvp", "backward_steps", "create_graph"}
"""Ways to compute gradients, of which the second one of a pair counts."""
WITH_PROGRAM = [("program", way) for way in WAYS if way not in OTHER_GRADIENTS]
WITH_PROGRAM += [(way, "program") for way in WAYS]
REFUSED = {
    (model, *pair): reason
    for model, reason in {"Layer": "draws random numbers", "Shared": "changes a buffer"}.items()
    for pair in WITH_PROGRAM
} | {
    (model, *pair): "was not called inside the block"
    for model in ("Nested", "SureLayer", "SureShared")
    for pair in (("activations", "program"), ("program", "activations"))
}
"""Pairs that raise an error on purpose: (model, way, way): a part of its sentence."""


def differences(a, b, path=""):
    """Describe where two outcomes differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [line for key in a for line in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [
            line for i, (x, y) in enumerate(zip(a, b)) for line in differences(x, y, f"{path}/{i}")
        ]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-11)
        return [] if same else [f"{path} {a.shape} is not as without them {b.shape}"]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a!r:.80} is not {b!r:.80}"]


def wanted(expected, recorded, result):
    """The outcome without the two ways, with activations as often as they were recorded."""
    fills = result["fills_grad"]
    (seen,) = recorded
    seen = {name: (outputs, grad if fills else None) for name, (outputs, grad) in seen.items()}
    return expected | {"activations": [seen] * len(result["activations"]), "fills_grad": fills}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("first", WAYS)
def test_two_ways_together_give_what_the_run_without_them_gives(model, first):
    assert_equal_to_the_run_without(model, [(first, second) for second in WAYS])


@pytest.mark.parametrize("model", SURE, ids=lambda model: model.__name__)
def test_a_program_and_another_way_give_what_the_run_without_them_gives(model):
    assert_equal_to_the_run_without(model, WITH_PROGRAM)


def assert_equal_to_the_run_without(model, pairs):
    expected = outcome(model)
    recorded = outcome(model, WAYS["activations"])["activations"]
    problems = []
    for first, second in pairs:
        case, ways = (model.__name__, first, second), (WAYS[first], WAYS[second])
        if case in REFUSED:
            with pytest.raises(Exception, match=REFUSED[case]):
                outcome(model, *ways)
            continue
        try:
            result = outcome(model, *ways)
        except Exception as error:
            problems.append(f"{case}: {type(error).__name__}: {error}")
            continue
        problems += [
            f"{case}: {line}" for line in differences(result, wanted(expected, recorded, result))
        ]
    assert not problems, "\n".join(problems)
