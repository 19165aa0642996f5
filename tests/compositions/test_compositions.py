"""Every ordered pair of ways to run a model, on four models, equals the run without them."""

import threading
from contextlib import ExitStack

import pytest
from compositions.ways import (
    MODELS,
    SURE,
    WAYS,
    arrays,
    by_backward,
    differences,
    new_run,
    nothing_left,
    outcome,
    wanted,
    without,
)

import tinygrad_attn as ta
from tinygrad_attn import nn

OTHER_GRADIENTS = {"vjp", "value_and_grad", "jvp", "backward_steps", "create_graph"}
"""Ways to compute gradients, of which the second one of a pair counts."""
WITH_PROGRAM = [("program", way) for way in WAYS if way not in OTHER_GRADIENTS]
WITH_PROGRAM += [(way, "program") for way in WAYS]
REFUSED = {
    (model, *pair): reason
    for model, reason in {
        "Layer": "draws random numbers",
        "Shared": "changes a buffer",
        "Inside": "draws random numbers|changes a buffer",
    }.items()
    for pair in WITH_PROGRAM
}
"""Pairs that raise an error on purpose: (model, way, way): a part of its sentence."""

every_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
every_way = pytest.mark.parametrize("first", WAYS)


@every_model
@every_way
def test_two_ways_together_give_what_the_run_without_them_gives(make, first):
    assert_equal_to_the_run_without(make, [(first, second) for second in WAYS])


@pytest.mark.parametrize("make", SURE, ids=lambda make: make.__name__)
def test_a_program_and_another_way_give_what_the_run_without_them_gives(make):
    assert_equal_to_the_run_without(make, WITH_PROGRAM)


def assert_equal_to_the_run_without(make, pairs):
    problems = []
    for first, second in pairs:
        case, ways = (make.__name__, first, second), (WAYS[first], WAYS[second])
        if case in REFUSED:
            with pytest.raises(Exception, match=REFUSED[case]):
                outcome(make, *ways)
            continue
        try:
            result = outcome(make, *ways)
        except Exception as error:
            problems.append(f"{case}: {type(error).__name__}: {error}")
            continue
        problems += [f"{case}: {line}" for line in differences(result, wanted(make, result))]
    assert not problems, "\n".join(problems)


@every_model
def test_what_hooks_and_patches_change_can_be_seen(make):
    """Otherwise the table would not see a run that forgets them."""
    expected, _, _ = without(make)
    for change in ("hooks_that_replace", "patch", "functional_call", "tensor_hook"):
        result = outcome(make, WAYS[change])
        assert result["changes"] == [change]
        paths = {line.split("/")[1].split()[0] for line in differences(result, expected)}
        assert "gradients" in paths and ("outputs" in paths or change == "tensor_hook")


@every_model
def test_activations_have_all_names_of_the_modules_that_run(make):
    """Otherwise the table would not see a name that is left out with and without another way."""
    run, ran = new_run(make), set()
    for module in run.model.modules():
        module.register_forward_hook(lambda module, args, output: ran.add(module))
    run.gradients(run)
    names = dict(run.model.named_modules(remove_duplicate=False))
    assert without(make)[1].keys() == {name for name, module in names.items() if module in ran}


class Failure(BaseException):
    """Stops a run as Ctrl-C does: it is no Exception."""


def failing(monkeypatch, place, calls, error):
    """Let each Linear raise in its forward pass, a VJP or a hook, after this number of calls."""
    plain, remaining = nn.Linear.forward, iter(range(calls, -1, -1))

    def count(*_):
        if threading.current_thread() is threading.main_thread() and next(remaining, 0) == 0:
            raise error

    def vjp(g, y, x):
        count()
        return g

    op = ta.op(lambda x: x * 1.0)
    op.vjp(vjp)

    def forward(self, x):
        if place == "forward":
            count()
        y = plain(self, x)
        if place == "hook" and y.requires_grad:
            y.register_hook(count)
        return op(y) if place == "VJP" else y

    monkeypatch.setattr(nn.Linear, "forward", forward)


@every_model
@every_way
def test_an_exception_leaves_nothing_behind(make, first):
    """In the forward pass, a VJP or a hook, early and late: then the model runs as before."""
    expected, _, _ = without(make)
    failed = 0
    for place in ("forward", "VJP", "hook"):
        for calls, error in ((0, Failure()), (2, ValueError())):
            run = new_run(make)
            model, buffers = run.model, {n: b.numpy().copy() for n, b in run.model.named_buffers()}
            with pytest.MonkeyPatch.context() as monkeypatch, nothing_left(model):
                failing(monkeypatch, place, calls, error)
                try:
                    with ExitStack() as stack:
                        stack.enter_context(WAYS[first](run))
                        run.gradients(run)
                except type(error):
                    failed += 1
            for name, buffer in model.named_buffers():
                buffer.data[...] = buffers[name]
            model.zero_grad()
            later = new_run(make)
            later.model = model
            output = by_backward(later)
            problems = differences(arrays(output), expected["outputs"])
            grads = {name: p.grad for name, p in model.named_parameters()}
            grads = {k: None if g is None else g.numpy().copy() for k, g in grads.items()}
            problems += differences(
                grads, {k: g for k, g in expected["gradients"].items() if k != "x"}
            )
            assert not problems, (place, calls, problems)
    assert failed >= 4
