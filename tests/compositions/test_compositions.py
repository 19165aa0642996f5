"""Every ordered pair of ways to run a model, on three models, equals the run without them."""

import pytest
from compositions.ways import MODELS, WAYS, differences, outcome, wanted

REFUSED = {}
"""Pairs that raise an error on purpose: (model, way, way): a part of its sentence."""


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("first", WAYS)
def test_two_ways_together_give_what_the_run_without_them_gives(model, first):
    expected = outcome(model)
    recorded = outcome(model, WAYS["activations"])["activations"]
    problems = []
    for second in WAYS:
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
