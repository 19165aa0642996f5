"""backward_steps: the numbers of a real backward pass, and one page that needs nothing else."""

import dis
import inspect
import json
import re
from importlib import import_module

import numpy as np
import pytest
from support import each
from webpage import external

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, viz
from tinygrad_attn.engine import Op
from tinygrad_attn.viz import rules, values


def leaf(data, name=None):
    t = Tensor(np.asarray(data, np.float64), requires_grad=True)
    t.name = name
    return t


def test_the_contributions_of_each_step_and_their_sums():
    a, b = leaf(2.0, "a"), leaf(3.0, "b")
    c = a * b
    steps = ta.backward_steps((c + a) * c)  # (ab + a) ab
    assert [s.op for s in steps] == ["multiply", "add", "multiply"]
    seen = [
        [(c.place, c.name, float(c.value), float(c.total), c.first) for c in s.contributions]
        for s in steps
    ]
    assert seen == [
        [(0, "add", 6.0, 6.0, True), (1, "multiply", 8.0, 8.0, True)],
        [(0, "multiply", 6.0, 14.0, False), (1, "a", 6.0, 6.0, True)],
        [(0, "a", 42.0, 48.0, False), (1, "b", 28.0, 28.0, True)],
    ]
    assert [float(s.incoming) for s in steps] == [1.0, 6.0, 14.0]
    assert a.grad.item() == 48.0 and b.grad.item() == 28.0, "the pass is a real one"


def test_a_large_gradient_is_described_by_its_shape_and_norm():
    x = leaf(np.ones((20, 5)))
    assert "(20, 5)  |g| 10" in ta.backward_steps(x.sum()).text()


def test_a_tensor_used_often_adds_up():
    a = leaf([1.0, 2.0], "a")
    y = a
    for _ in range(4):
        y = y + a
    found = [c for s in ta.backward_steps(y.sum()) for c in s.contributions if c.name == "a"]
    assert [c.first for c in found] == [True] + [False] * 4
    assert [c.total.tolist() for c in found] == [[float(k)] * 2 for k in range(1, 6)]
    assert all(c.value.tolist() == [1.0, 1.0] for c in found)


def test_the_same_gradients_as_backward_and_no_watcher_afterwards():
    ta.manual_seed(1)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))
    (model(x) ** 2).sum().backward()
    plain = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    model.zero_grad()
    steps = ta.backward_steps((model(x) ** 2).sum(), model=model)
    last = {c.name: c.total for s in steps for c in s.contributions}
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(p.grad.numpy(), plain[name])
        np.testing.assert_array_equal(last[name], plain[name])
    assert ta.engine.context.listeners == ()


def test_a_graph_inside_a_vjp_is_no_step():
    @ta.op
    def double(x):
        return x * 2.0

    def vjp(g, y, x):
        with ta.enable_grad():
            inner = Tensor(np.array(x), requires_grad=True)
            return ta.grad((inner * 2.0 * g).sum(), inner)[0].numpy()

    double.vjp(vjp)
    a = leaf([1.0, 2.0], "a")
    steps = ta.backward_steps((double(a) * 3.0).sum())
    assert [s.op for s in steps] == ["sum", "multiply", "double"] and a.grad.numpy().tolist() == [
        6.0,
        6.0,
    ]
    assert [len(s.contributions) for s in steps] == [1, 1, 1]


def test_the_pass_ends_well_when_it_fails():
    a = leaf([1.0, 2.0])
    with pytest.raises(ValueError, match="must start from a single number"):
        ta.backward_steps(a * 2.0)
    with pytest.raises(TypeError, match="pass a Tensor or a function"):
        ta.backward_steps(3.0)
    assert ta.engine.context.listeners == ()


def test_text_tells_each_step_on_a_line_of_its_own():
    a = leaf(2.0, "a")
    assert ta.backward_steps(a * a).text().splitlines()[:3] == [
        "  1. n1 multiply: incoming 1",
        "       input 0, a (n0): grad =  2",
        "       input 1, a (n0): grad += 2   sum so far 4",
    ]


def test_each_step_has_its_equation_and_the_source_of_its_vjp():
    x, w = leaf(np.ones((2, 3)), "x"), leaf(np.ones((3, 2)), "w")
    steps = ta.backward_steps(lambda: F.cross_entropy(np.tanh(x @ w) * 2.0, np.array([0, 1])))
    said = {s.op: (s.equation, *(f"{c.letter}: {c.rule}" for c in s.contributions)) for s in steps}
    assert said == {
        "cross_entropy": ("-log_softmax(x)_target", "x: "),
        "multiply": ("y = a b", "a: g * b"),
        "tanh": ("y = tanh(x)", "x: g - g * y * y"),
        "matmul": ("y = a @ b", "a: ", "b: "),
    }
    code, place = steps[2].contributions[0].code
    assert code.startswith("tanh = op(np.tanh, lambda") and place.startswith("tinygrad_attn/ops/")
    left, right = (c.code for c in steps[3].contributions)
    assert "def _matmul_by_left(" in left[0] and "def _matmul_by_right(" in right[0]
    assert left[1].startswith("tinygrad_attn/ops/products.py:"), "the op's, not its kernel's"
    assert steps[3].contributions[0].operand == values.cells(x.numpy())
    opened = [s.op for s in ta.backward_steps(lambda: F.softmax(x).sum(), plain=True)]
    assert opened == ["sum", "divide", "sum", "exp", "subtract"]


def done_by(function):
    """The arguments of a function's instructions, such as names, constants and operators."""
    return [
        getattr(step.argval, "co_names", step.argval)
        for step in dis.get_instructions(function)
        if step.opname not in START
    ]


START = ("RESUME", "COPY_FREE_VARS", "PUSH_NULL")


def every_op():
    """All ops with VJPs in the package's table of derivatives."""
    names = ("elementwise", "linalg", "products", "reductions", "shapes")
    modules = [import_module(f"tinygrad_attn.ops.{name}") for name in names]
    found = {id(x): x for module in modules for x in vars(module).values()}
    return [x for x in found.values() if isinstance(x, Op) and (x.vjps or x.joint_vjp)]


@each("op", every_op())
def test_the_rule_of_every_op_is_the_text_of_its_vjp(op):
    """Compiled again, the text does what the VJP does, instruction by instruction."""
    for i, vjp in enumerate(op.vjps):
        if vjp is None:
            continue
        source, place = rules.code(op, i)
        assert source and place.startswith("tinygrad_attn/ops/")
        text = rules.rule(op, i)
        assert bool(text) == (vjp.__name__ == "<lambda>")
        if text:
            assert text in " ".join(line.strip() for line in source.splitlines())
            names = inspect.signature(vjp)
            assert done_by(eval(f"lambda {str(names)[1:-1]}: {text}")) == done_by(vjp), text


def test_a_rule_is_whole_and_belongs_to_the_op_that_ran():
    """Not the last return of a VJP, nor ours for an op of the user's that has our op's name."""

    def early(g, y, x):
        if x.ndim:
            return 2 * g
        return 3 * g

    @ta.op
    def gelu(x):
        return 2 * x

    gelu.vjp(early)
    (step,) = ta.backward_steps(gelu(leaf(1.0)))
    assert step.equation == "y = gelu(x)" and step.contributions[0].rule == ""
    assert step.contributions[0].code[0].startswith("def early(g, y, x):")
    relu = ta.op(
        np.abs, lambda g, y, x: g * 1.0 if x.size > 3 else (g + 0.0) * np.sign(x) + 0.0 * y
    )
    relu.__name__ = "relu"
    (step,) = ta.backward_steps(relu(leaf(1.0)))
    rule = "g * 1.0 if x.size > 3 else (g + 0.0) * np.sign(x) + 0.0 * y"
    assert step.equation == "y = relu(x)" and step.contributions[0].rule == rule
    (step,) = ta.backward_steps(LONG(leaf(1.0)))
    assert step.contributions[0].rule == "g * 2.0 * np.ones_like(x) + 0.0 * g"


LONG = ta.op(
    lambda x: 2.0 * x,
    lambda g, y, x: g * 2.0 * np.ones_like(x)
    + 0.0 * g,  # on two lines
)  # fmt: skip


def test_an_op_of_the_users_has_its_rule_and_a_vjp_without_source_none():
    cube = ta.op(lambda x: x**3, lambda g, y, x: 3 * g * x**2)
    a = leaf(2.0, "a")
    (step,) = ta.backward_steps(cube(a))
    assert step.contributions[0].rule == "3 * g * x**2"
    # Not "<string>", under which Python 3.13 keeps the text of `python -c`.
    without_source = lambda text: eval(compile(text, "<nowhere>", "eval"))
    blind = ta.op(without_source("lambda x: 2 * x"), without_source("lambda g, *_: 2 * g"))
    (step,) = ta.backward_steps(blind(a))
    assert step.contributions[0].rule == "" and step.contributions[0].code == ("", "")


def test_heat_maps_show_the_first_matrix_and_what_json_has_no_number_for_as_text():
    array = np.arange(2 * 20 * 3.0).reshape(2, 20, 3)
    array[0, 0, 0] = -np.inf
    cells = values.cells(array)
    assert cells["shape"] == "(2, 20, 3)" and cells["part"] == "[0] 16 x 3 of it"
    assert len(cells["rows"]) == 16 and cells["rows"][0] == ["-inf", 1.0, 2.0]
    assert values.cells(np.zeros((0, 3)))["rows"] == [] and values.cells(2.5)["rows"] == [[2.5]]


def test_the_page_is_one_file_with_everything_in_it(tmp_path):
    a = leaf([1.0, 2.0], "</script><script>alert(1)</script>")
    steps = ta.backward_steps((np.exp(a) * a).sum())
    steps.save(tmp_path / "steps.html")
    page = (tmp_path / "steps.html").read_text("utf-8")
    assert (
        external(page) == [] and external('<img src="x">') and external("a { background: url(x) }")
    )
    assert page.count("</script>") == 2 and "alert(1)</script>" not in page
    data = json.loads(re.search(r'id="steps">(.*?)</script>', page, re.S).group(1))
    assert [r["op"] for r in data] == ["sum", "multiply", "exp"]
    for step in data:
        assert step["now"][0] == f"n{step['box']}" and all(f'id="{i}"' in page for i in step["now"])
    assert data[2]["contributions"][0]["first"] is False and data[2]["now"][1:] == ["e0"]
    assert 'type="range"' in page and "ArrowRight" in page and "aria-live" in page


def test_a_long_chain_has_all_its_steps_and_a_page_of_the_ends():
    y = leaf(1.0, "x")
    for _ in range(3000):
        y = y * 1.001
    steps = ta.backward_steps(y)
    assert len(steps) == 3000 and steps[2999].contributions[0].name == "x"
    page = steps.html()
    assert "the first 1,000 of 3,000 steps" in page and page.count('"incoming": ') == 1000
    assert "boxes are too many to draw" in page


def test_a_released_part_is_the_error_of_backward():
    x = Tensor(np.ones(2), requires_grad=True)
    h = x * x
    h.sum().backward()
    with pytest.raises(RuntimeError, match="this graph has been released"):
        viz.backward_steps((h * 2).sum())
