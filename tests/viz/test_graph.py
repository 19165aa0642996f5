"""viz.graph: what a picture says, that its DOT text never changes, and that it copes with any graph."""

import gc
import re
import shutil
import sys
import weakref
from collections import namedtuple
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, viz
from tinygrad_attn.viz import values

GOLDEN = Path(__file__).parent / "golden"


def leaf(data, name=None, requires_grad=True):
    t = Tensor(np.asarray(data, np.float64), requires_grad=requires_grad)
    t.name = name
    return t


class Affine(nn.Module):
    def __init__(self, rows, columns):
        self.weight = nn.Parameter(np.arange(rows * columns).reshape(rows, columns) / 10)
        self.bias = nn.Parameter(np.ones(columns))

    def forward(self, x):
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self, size):
        self.inner, self.outer = Affine(size, size), Affine(size, size)

    def forward(self, x):
        return x + self.outer(np.tanh(self.inner(x)))


class Stack(nn.Module):
    def __init__(self, count, size):
        self.blocks = nn.ModuleList([Block(size) for _ in range(count)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def twice():
    a = leaf(2.0, "a")
    return viz.graph(a + a)


def diamond():
    x, b = leaf(np.arange(12.0).reshape(4, 3), "x", False), leaf([0.5, 1.0, 1.5], "b")
    shared = x * b
    loss = (np.exp(shared / 10.0) * shared).sum(axis=-1, keepdims=True).mean()
    loss.backward(retain_graph=True)
    return viz.graph(loss)


def stack(**how):
    model = Stack(3, 3)
    return viz.graph(model(leaf(np.ones((2, 3)), "x")), model, **how)


PICTURES = {
    "twice": twice,
    "diamond": diamond,
    "stack-expanded": lambda: stack(expand=["blocks.1.inner"]),
}


def titles(graph):
    return [box.title for box in graph.boxes]


@pytest.mark.parametrize("name", PICTURES)
def test_the_dot_text_is_the_golden_one(name):
    text = PICTURES[name]().dot
    assert PICTURES[name]().dot == text, "two runs, two texts"
    assert text == (GOLDEN / f"{name}.dot").read_text("utf-8")


def test_every_operand_has_its_edge_and_a_reused_tensor_says_so():
    picture = twice()
    assert [(a.source, a.target, a.index) for a in picture.arrows] == [(0, 1, 0), (0, 1, 1)]
    assert "used 2 times: grad = sum of 2" in picture.boxes[0].lines


def test_broadcast_operands_say_to_what():
    x, w, b, s = leaf(np.ones((2, 5, 4))), leaf(np.ones((4, 3))), leaf(np.ones(3)), leaf(2.0)
    labels = [a.label for a in viz.graph((x @ w + b) * s * 3.0).arrows]
    shapes = ["(4, 3) -> (2, 4, 3)", "(3,) -> (2, 5, 3)", "() -> (2, 5, 3)"]
    assert labels == [x for text in shapes for x in ("0", f"1: {text}")] + ["0", "1"]


def test_small_values_show_their_numbers_and_large_ones_their_statistics():
    a, big = leaf([1.0, 2.0], "a"), leaf(np.arange(8.0), "big")
    loss = (a.sum() * big).sum()
    loss.backward(retain_graph=True)
    boxes = {box.title: box.lines for box in viz.graph(loss).boxes}
    assert "data 1 2 | grad 28 28" in boxes["a"]
    assert boxes["big"] == ["(8,) float64", "mean 3.5  std 2.29", "|grad| 8.49"]
    assert values.numbers(np.array([[1, 2], [3, 4]])) == "1 2; 3 4"


@pytest.mark.parametrize(
    "x, text",
    [
        (slice(1, None), "1:"),
        (slice(None, 4, 2), ":4:2"),
        (..., "..."),
        ((1,), "(1,)"),
        (np.exp, "exp"),
        (1 / 3, "0.3333"),
        (np.array([1, 2]), "[1 2]"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11..."),
    ],
)
def test_settings_in_words(x, text):
    assert values.setting(x) == text


def test_leaves_have_the_names_of_parameters_and_of_arrays_that_modules_keep():
    class Shift(nn.Module):
        def __init__(self):
            self.by = np.arange(6.0)
            self.scale = nn.Parameter(np.ones(3))

        def forward(self, x):
            return x * self.scale + self.by[:3]

    model = nn.Sequential(Shift())
    graph = viz.graph(model(leaf(np.ones(3))), model, depth=9)
    assert titles(graph) == ["input", "0.scale", "multiply", "0.by", "add"]
    assert [box.kind for box in graph.boxes][1] == "parameter"


def test_an_input_without_a_gradient_is_drawn_and_a_mask_made_inside_is_not():
    class Masked(nn.Module):
        def __init__(self):
            self.inner = Affine(3, 3)

        def forward(self, x):
            return self.inner(x) * np.tri(3)

    model, x = Masked(), Tensor(np.ones((3, 3)))
    assert titles(viz.graph(model(x), model, depth=0)) == ["input", "Masked"]
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    for context in (ta.enable_grad, ta.plain):
        with context():
            y = layer(ta.randn(2, 3, 8))
        assert titles(viz.graph(y, layer, depth=0)) == ["input", "TransformerEncoderLayer"]
        assert len(viz.graph(y, layer).boxes) == 9


def test_frozen_parameters_keep_their_names():
    model = Stack(2, 3)
    model.blocks[1].inner.weight.requires_grad = False
    boxes = viz.graph(model(leaf(np.ones((2, 3)))), model, depth=9).boxes
    names = {box.title for box in boxes if box.kind == "parameter"}
    assert names == {name for name, _ in model.named_parameters()}


def test_depth_folds_modules_and_expand_opens_them():
    assert titles(stack(depth=0)) == titles(stack(depth=-3)) == ["x", "Stack"]
    assert titles(stack()) == ["x", "blocks.0", "blocks.1", "blocks.2"]
    inside = ["blocks.1.inner", "tanh", "blocks.1.outer", "add"]
    assert titles(stack(expand=["blocks.1"])) == ["x", "blocks.0", *inside, "blocks.2"]
    names = (name for name in ["blocks.1"])  # a generator can be read only once
    assert titles(stack(expand=names)) == ["x", "blocks.0", *inside, "blocks.2"]
    module = stack(depth=0).boxes[1]
    assert module.lines == ["72 parameters", "-> (2, 3)"] and module.kind == "module"
    with pytest.raises(ValueError, match=r"blocks.1.iner.*Did you mean 'blocks.1.inner'"):
        stack(expand=["blocks.1.iner"])
    y = Stack(2, 3)(leaf(np.ones((2, 3))))
    assert titles(viz.graph(y)) == ["input", "blocks.0", "blocks.1"], "names without a model"


def test_a_picture_of_thousands_of_boxes_is_text_only():
    y = leaf(1.0, "x")
    for _ in range(3000):
        y = y * 1.001
    chain = viz.graph(y)
    assert chain._repr_html_() is None and chain.text().count("\n") > 6000, "drawing takes hours"
    with pytest.raises(ValueError, match="6,001 boxes are too many to draw"):
        chain.svg()
    assert max(map(len, chain.text().splitlines())) < 200, "a deep tree begins again at the margin"


def test_a_shared_parameter_is_one_box_with_two_arrows():
    model = Stack(2, 3)
    model.blocks[1] = model.blocks[0]
    picture = viz.graph(model(leaf(np.ones((2, 3)))), model)
    (shared,) = [box for box in picture.boxes if box.title == "blocks.0.inner.weight"]
    assert sum(a.source == shared.number for a in picture.arrows) == 2
    assert "used 2 times: grad = sum of 2" in shared.lines


def test_nan_and_inf_have_a_red_border_also_inside_a_folded_module():
    with np.errstate(all="ignore"):
        graph = viz.graph(np.log(leaf([1.0, -1.0, 0.0])))
        model = Stack(1, 3)
        model.blocks[0].inner.weight.data[0, 0] = np.nan
        folded = viz.graph(model(leaf(np.ones((2, 3)))), model, depth=0)
    assert graph.boxes[1].not_finite == "1 NaN, 1 Inf"
    assert "#CC0000" in graph.dot and "NOT FINITE" in graph.text()
    assert folded.boxes[1].not_finite == "2 NaN in matmul" and "#CC0000" in folded.dot
    x = leaf([1.0])
    x.grad = Tensor(np.array([np.inf]))
    assert viz.graph(x * 2.0).boxes[0].not_finite == "1 Inf in the gradient"


def test_masked_scores_are_no_mistake_but_the_logarithm_of_zero_is():
    layer = nn.SelfAttention(2, 2, causal=True).astype(np.float64)
    boxes = viz.graph(layer(leaf(np.ones((1, 3, 2)))), layer, depth=9).boxes
    assert not any(box.not_finite for box in boxes)
    assert any("3 of 9 are -inf, as in an operand" in box.lines for box in boxes)
    picture = viz.graph(np.log(leaf([1.0, 0.0])) + 1.0)
    assert [box.not_finite for box in picture.boxes] == ["", "1 Inf", "", ""]


def test_no_tensor_is_kept_alive_and_a_released_graph_says_so():
    x = leaf(np.ones(3))
    y = np.exp(x)
    loss = y.sum()
    graph, ref = viz.graph(loss), weakref.ref(y)
    loss.backward()
    assert "released" in viz.graph(loss).text()
    del loss, y
    gc.collect()
    assert ref() is None and "exp" in graph.text()


def test_several_outputs_and_leaves_as_outputs():
    x, free = leaf([1.0], "x"), Tensor(np.ones(2))
    y = np.exp(x)
    boxes = viz.graph([y, y * 2.0, x, free, y]).boxes
    assert [box.title for box in boxes if box.output] == ["x", "input", "exp", "multiply"]
    for wrong in ("text", [x, 3], nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="shows how a Tensor was computed"):
            viz.graph(wrong)


def test_a_folded_call_lists_the_shapes_of_all_outputs_that_are_used():
    class Two(nn.Module):
        def __init__(self):
            self.scale = nn.Parameter(np.ones(3))

        def forward(self, x):
            y = x * self.scale
            return y, y.sum()

    a, b = Two()(leaf(np.ones((2, 3))))
    boxes = viz.graph((a * b).sum(), depth=0).boxes
    assert boxes[1].lines[-1] == "-> (2, 3), ()"


@pytest.mark.parametrize("name", ['"quoted"', r"\N \l", "<b>&amp;", "a\nb\0", "]"])
def test_any_name_is_only_text(name):
    graph = viz.graph(leaf([1.0, 2.0], name) * 2.0)
    root = ElementTree.fromstring(graph.svg())
    shown = "".join(root.itertext()).replace("\N{ZERO WIDTH SPACE}", "")
    expected = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    assert expected in shown
    assert "\0" not in graph.text() and len(graph.text().splitlines()) == 3


def test_each_suffix_is_written(tmp_path):
    graph = twice()
    starts = {
        ".svg": b"<?xml",
        ".png": b"\x89PNG",
        ".pdf": b"%PDF",
        ".dot": b"digraph",
        ".txt": b"add",
    }
    for suffix, start in starts.items():
        graph.save(tmp_path / f"graph{suffix}")
        assert (tmp_path / f"graph{suffix}").read_bytes().startswith(start)
    with pytest.raises(ValueError, match=r"the file name must end in \.svg"):
        graph.save(tmp_path / "graph.jpeg")
    assert re.match("<svg", graph._repr_html_())


def test_without_a_renderer_the_text_remains_and_the_error_names_both_remedies(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert twice().svg().startswith("<svg"), "pygraphviz draws without the program"
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    graph = twice()
    with pytest.raises(RuntimeError, match=r"apt install graphviz.*tinygrad_attn\[viz\]"):
        graph.svg()
    assert graph._repr_html_() is None and repr(graph).startswith("add") and "digraph" in graph.dot
    assert "no Graphviz was found" in ta.backward_steps(leaf(2.0) * 3.0).html()


def test_the_text_tree():
    a = leaf([1.0, 2.0], "a")
    shared = a * 2.0
    assert viz.graph(np.sum(shared * shared, axis=0)).text().splitlines() == [
        "sum(axis=0)  data 20  output  [n4]",
        "└─ multiply  (2,)  data 4 16  [n3]",
        "   ├─ 0: multiply  (2,)  data 2 4  used 2 times: grad = sum of 2  [n2]",
        "   │  ├─ 0: a  (2,)  data 1 2  [n0]",
        "   │  └─ 1: 2  [n1]",
        "   └─ 1: multiply  [n2, see there]",
    ]


def test_an_opened_function_has_frames_with_its_equation():
    q, k, v = (leaf(np.random.default_rng(i).normal(size=(2, 3, 4)), "qkv"[i]) for i in range(3))
    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    picture = viz.graph(attend, plain=True)
    assert [(frame.title, frame.equation) for frame in picture.frames] == [
        ("attention", "softmax(q k^T scale + mask) v"),
        ("attention_weights", "softmax(q k^T scale + mask) over the keys"),
        ("softmax", "softmax(x)_i = e^x_i / sum_j e^x_j along the axis"),
    ]
    ops = [box.title for box in picture.boxes if box.kind == "op"]
    scores = ["swapaxes(a=-1, b=-2)", "matmul", "multiply", "where"]
    assert ops == [*scores, "subtract", "exp", "sum(axis=-1, keepdims=True)", "divide", "matmul"]
    masked = next(box for box in picture.boxes if box.title == "where")
    assert (
        masked.lines == ["(2, 3, 3) float64", "6 of 18 are -inf, as in an operand"]
        and not masked.not_finite
    )
    assert len(viz.graph(attend).boxes) == 4 and not ta.is_plain()
    folded = titles(viz.graph(attend, plain=True, depth=0))
    assert sorted(folded) == ["attention", "k", "q", "v"]
    with pytest.raises(TypeError, match="Write lambda"):
        viz.graph(attend(), plain=True)
    with pytest.raises(ZeroDivisionError):
        viz.graph(lambda: F.softmax(1 / 0), plain=True)
    assert not ta.is_plain() and ta.engine.context.scope is None


def test_a_function_without_its_kernel_is_one_box_as_with_it():
    """Of GELU in float64 there is no kernel; plain mode outside of graph() has the same frames."""
    x = leaf(np.ones((2, 3)), "x")
    assert titles(viz.graph(F.gelu(x) * 2.0, depth=0)) == ["x", "gelu", "2", "multiply"]
    with ta.plain():
        y = F.softmax(x)
    assert [frame.title for frame in viz.graph(y).frames] == ["softmax"]


def test_modules_that_only_call_a_function_show_its_equation():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    picture = viz.graph(lambda: layer(ta.randn(1, 3, 8)), layer, plain=True)
    frames = {frame.title: frame.equation for frame in picture.frames}
    assert frames["norm1 LayerNorm"].startswith("y = (x - mean) / sqrt(var + eps)")
    assert {"gelu", "softmax", "packed_attention", "self_attn MultiheadAttention"} <= frames.keys()
    assert {"getitem(index=0)", "getitem(index=1)"} <= {box.title for box in picture.boxes}


# ---- where features meet


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self):
        self.first = Affine(3, 3)
        self.second = self.first

    def forward(self, x):
        return self.second(np.tanh(self.first(x)))


Output = namedtuple("Output", "hidden weights")


class Outputs(nn.Module):
    """A module that returns a named tuple, or a dict with a list."""

    def __init__(self, as_dict):
        self.inner, self.as_dict = Affine(3, 3), as_dict

    def forward(self, x):
        y = self.inner(x)
        return {"y": y, "more": [y * 2.0, None]} if self.as_dict else Output(y, None)


def test_both_names_of_a_shared_module_open_it():
    model = Shared()
    y = model(leaf(np.ones((2, 3)), "x"))
    expected = viz.graph(y, model, expand=["first"])
    assert titles(viz.graph(y, model, expand="second")) == titles(expected)
    assert titles(expected).count("matmul") == 2


def test_two_models_with_the_same_names_inside_are_told_apart():
    a, b = nn.Sequential(Affine(3, 3)), nn.Sequential(Affine(3, 3))
    x = leaf(np.ones((2, 3)), "x")
    assert titles(viz.graph(b(a(x)))) == ["x", "0", "Sequential#2.0"]
    assert titles(viz.graph(b(a(x)), b, depth=1)) == ["x", "Sequential#2.0", "0"]
    names = [c.name for step in ta.backward_steps(b(a(x)).sum()) for c in step.contributions]
    assert {"0.weight", "0.bias", "Sequential#2.0.weight", "Sequential#2.0.bias"} <= {*names}
    loss = nn.MSELoss()(a(x), np.ones((2, 3)))
    assert "0" in titles(viz.graph(loss)), "a loss module has no names that collide"


@pytest.mark.parametrize("as_dict, outputs", [(False, ["inner"]), (True, ["inner", "multiply"])])
def test_named_tuples_and_dicts_are_outputs(as_dict, outputs):
    y = Outputs(as_dict)(leaf(np.ones((2, 3)), "x"))
    assert [box.title for box in viz.graph(y).boxes if box.output] == outputs
    for empty in ((), {"y": None}, None):
        with pytest.raises(TypeError, match="shows how a Tensor was computed"):
            viz.graph(empty)


@pytest.mark.parametrize("depth", [0, 1, 9])
def test_a_released_part_says_so_folded_or_not(depth):
    model = Stack(2, 3)
    y = model(leaf(np.ones((2, 3)), "x"))
    y.sum().backward()
    for picture in (viz.graph(y, model, depth=depth), viz.graph(y * 2.0, model, depth=depth)):
        assert picture.text().count("released by backward()") == 1


LOOKS = {
    "hook": lambda model: model.register_forward_hook(lambda *_: None),
    "activations": ta.activations,
    "record_attention": ta.record_attention,
    "detect_anomaly": lambda model: ta.detect_anomaly(),
    "patch": lambda model: ta.patch(model, {"blocks.0.inner": lambda y: y}),
}


@pytest.mark.parametrize("name", LOOKS)
def test_who_only_looks_at_a_run_is_not_in_its_picture(name):
    model, x = Stack(2, 3), leaf(np.ones((2, 3)), "x")
    expected = viz.graph(model(x), model, depth=9)
    with LOOKS[name](model):
        y = model(x)
    assert viz.graph(y, model, depth=9).dot == expected.dot


def test_a_patch_is_drawn_in_the_module_that_it_patches():
    model, x = Stack(2, 3), leaf(np.ones((2, 3)), "x")
    with ta.patch(model, {"blocks.0.inner": lambda y: y * 0.0}):
        y = model(x)
    patched = next(box for box in viz.graph(y, model, depth=9).boxes if box.title == "multiply")
    picture = viz.graph(y, model, depth=9)
    assert picture.frames[patched.frame].title == "blocks.0.inner Affine"


def test_data_parallel_and_checkpoint_keep_the_names():
    from tinygrad_attn.parallel import DataParallel

    model, x = Stack(2, 3), leaf(np.ones((2, 3)), "x")
    expected = titles(viz.graph(model(x), model))
    assert titles(viz.graph(DataParallel(model)(x), model, depth=2)) == expected
    assert titles(viz.graph(DataParallel(model)(x), depth=2))[1:] == [
        f"module.{name}" for name in expected[1:]
    ]
    picture = viz.graph(ta.checkpoint(model, x), model)
    assert {box.title for box in picture.boxes if box.kind == "parameter"} == {
        name for name, _ in model.named_parameters()
    }
    assert " at 0x" not in picture.dot, "the same text on every run"
    steps = ta.backward_steps(ta.checkpoint(model, x).sum(), model=model)
    assert [step.op for step in steps] == ["sum", "checkpoint"], "the second run has no steps"
    (again,) = steps[1:]
    model.zero_grad()
    model(x).sum().backward()
    found = {c.name: c.total for c in again.contributions}
    for name, p in model.named_parameters():
        np.testing.assert_allclose(found[name], p.grad.numpy())
