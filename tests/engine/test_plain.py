"""Plain mode: the code that runs is the code that teaches."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from support import ROOT

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import history


def files_of(f):
    """The files of the package whose functions are called."""
    seen, before = set(), sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename))
    try:
        f()
    finally:
        sys.setprofile(before)
    return {name for name in seen if os.sep + "tinygrad_attn" + os.sep in name}


def step():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    x = Tensor(np.ones((2, 3, 8)), requires_grad=True, dtype=np.float32)
    loss = F.cross_entropy(layer(x)[:, 0], np.array([1, 2])) + (x * 2).sum() / 3
    loss.backward()


def test_nothing_of_fast_runs_inside():
    fast = os.sep + "fast" + os.sep
    assert any(fast in name for name in files_of(step))
    with ta.plain():
        inside = files_of(step)
    assert inside and not any(fast in name for name in inside)
    assert any(fast in name for name in files_of(step)), "afterwards it is as before"


def test_attention_records_its_scores_its_softmax_and_its_product():
    q = Tensor(np.random.default_rng(0).standard_normal((2, 4, 8)), requires_grad=True)
    names = lambda y: [t._node.op.__name__ for t in history([y])]
    quick = names(F.scaled_dot_product_attention(q, q, q))
    with ta.plain():
        plainly = names(F.scaled_dot_product_attention(q, q, q))
    assert quick == ["attention"] and plainly.count("matmul") == 2
    assert {"exp", "sum", "divide"} <= {*plainly}


def test_it_is_a_block_a_decorator_and_belongs_to_its_thread():
    told = []
    with ta.plain():
        assert ta.is_plain()
        thread = threading.Thread(target=lambda: told.append(ta.is_plain()))
        thread.start()
        thread.join()
        with ta.no_grad():
            assert ta.is_plain() and not (Tensor([1.0], requires_grad=True) * 2).requires_grad
    assert not ta.is_plain() and told == [False]
    assert ta.plain(ta.is_plain)() and not ta.is_plain()


def test_the_environment_makes_a_whole_process_plain():
    code = "import tinygrad_attn as ta; print(ta.is_plain())"
    for value, expected in (("1", "True"), ("0", "False"), ("", "False")):
        environment = {**os.environ, "TINYGRAD_ATTN_PLAIN": value, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr


def test_a_graph_made_in_one_mode_is_swept_in_the_other():
    x = Tensor(np.linspace(-1, 1, 12).reshape(3, 4), requires_grad=True)
    (expected,) = ta.grad((F.softmax(x) * x).sum(), x)
    with ta.plain():
        y = (F.softmax(x) * x).sum()
    np.testing.assert_allclose(ta.grad(y, x)[0].numpy(), expected.numpy(), rtol=1e-12)
    z = (F.softmax(x) * x).sum()
    with ta.plain():
        np.testing.assert_allclose(ta.grad(z, x)[0].numpy(), expected.numpy(), rtol=1e-12)


def test_a_call_of_a_reference_is_a_scope_while_the_function_runs_and_no_longer():
    context = ta.engine.context
    seen = []

    @ta.engine.reference
    def outer(x, fail=False):
        seen.append(context.scope)
        return inner(x) / (0 if fail else 1)

    @ta.engine.reference
    def inner(x):
        seen.append(context.scope)
        return x * 2.0

    x = Tensor(np.ones(2), requires_grad=True)
    y = outer(x)
    around, within = seen
    assert (around.function.__name__, around.outer) == ("outer", None)
    assert (within.function.__name__, within.outer) == ("inner", around)
    assert y._node.scope is around and y._node.inputs[0]._node.scope is within
    with pytest.raises(TypeError):
        outer(3.0, fail=None, more=1)
    with pytest.raises(ZeroDivisionError):
        outer(3.0, fail=True)
    assert context.scope is None and (x * 2.0)._node.scope is None

    inner.kernel = lambda x: x * 3.0
    seen.clear()
    assert outer(x)._node.inputs[0]._node.scope is seen[0] and len(seen) == 1, "a kernel opens none"


def test_names_of_modules_do_not_speak_of_functions():
    with ta.plain(), np.errstate(all="ignore"):
        with pytest.raises(FloatingPointError) as error, ta.detect_anomaly():
            F.softmax(Tensor(np.array([np.inf, 1.0]), requires_grad=True) * 1.0)
        assert "in the module" not in str(error.value)
        layer = nn.Sequential(nn.Softmax(-1))
        with pytest.raises(FloatingPointError, match="in the module '0'"), ta.detect_anomaly():
            layer(Tensor(np.array([np.inf, 1.0]), requires_grad=True) * 1.0)
    row = nn.Linear(3, 2).summary(np.ones((4, 3), np.float32)).rows[0]
    assert row.forward == 2 * 4 * 3 * 2, "counted for the module once, not for F.linear too"
