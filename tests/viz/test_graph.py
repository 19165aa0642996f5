"""viz.graph: what a picture says, that its DOT text never changes, and that it copes with any graph and any machine."""

import builtins
import gc
import re
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from support import require
from webpage import external

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, no_grad, viz
from tinygrad_attn.viz import labels

require("graphviz")

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
    "stack": stack,
    "stack-expanded": lambda: stack(expand=["blocks.1.inner"]),
    "stack-rollup": lambda: stack(depth=2, rollup=True, legend=True),
    "stack-limit": lambda: stack(depth=9, limit=12),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_dot_text_is_the_golden_one(name):
    dot = PICTURES[name]().dot
    assert PICTURES[name]().dot == dot, "two runs, two texts"
    assert dot == (GOLDEN / f"{name}.dot").read_text("utf-8")


def test_every_operand_has_its_edge_and_a_reused_tensor_says_so():
    picture = twice().picture
    assert [(a.source, a.target, a.index) for a in picture.arrows] == [(0, 1, 0), (0, 1, 1)]
    assert "used 2 times: grad = sum of 2" in picture.boxes[0].lines


def test_broadcast_operands_say_to_what():
    x, w, b, s = leaf(np.ones((2, 5, 4))), leaf(np.ones((4, 3))), leaf(np.ones(3)), leaf(2.0)
    labels = [a.label for a in viz.graph((x @ w + b) * s * 3.0).picture.arrows]
    assert labels == [
        "0",
        "1: (4, 3) -> (2, 4, 3)",
        "0",
        "1: (3,) -> (2, 5, 3)",
        "0",
        "1: () -> (2, 5, 3)",
        "0",
        "1",
    ]


def test_small_values_show_their_numbers_and_large_ones_their_statistics():
    a = leaf([1.0, 2.0], "a")
    big = leaf(np.arange(8.0), "big")
    loss = (a.sum() * big).sum()
    loss.backward(retain_graph=True)
    boxes = {box.title: box.lines for box in viz.graph(loss).picture.boxes}
    assert "data 1 2 | grad 28 28" in boxes["a"]
    assert boxes["big"] == ["(8,) float64", "mean 3.5  std 2.29", "|grad| 8.49"]


def test_numbers_and_settings_in_words():
    assert (
        labels.numbers(np.array([[1, 2], [3, 4]])) == "1 2; 3 4"
        and labels.numbers(np.zeros((0, 2))) == ""
    )
    for x, words in (
        (slice(1, None), "1:"),
        (slice(None, 4, 2), ":4:2"),
        (..., "..."),
        ((1,), "(1,)"),
        (np.exp, "exp"),
        (1 / 3, "0.3333"),
        (tuple(range(9)), "(0, 1, 2, 3, 4, 5, 6, 7, ...)"),
        (np.array([1, 2]), "[1 2]"),
        ("a" * 39, repr("a" * 39)[:37] + "..."),
    ):
        assert labels.setting(x) == words
    assert labels.setting("a" * 38) == repr("a" * 38)

    class Mute:
        def __repr__(self):
            raise OSError("gone")

    assert labels.setting(Mute()) == "<Mute>"
    numbered = leaf([1.0])
    numbered.name = 5
    assert (
        viz.graph(numbered * 2.0).picture.boxes[0].title == "5"
        and "5 (n0)" in ta.backward_steps(numbered * 2.0).text()
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(tensor=[]), "an empty list"),
        (dict(limit=3), "4 or more"),
        (dict(depth=-1), "0 or more"),
    ],
)
def test_a_graph_that_cannot_be_drawn_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        viz.graph(**{"tensor": leaf([1.0]) * 2} | arguments)


def test_an_array_kept_on_a_module_has_its_name():
    class Shift(nn.Module):
        def __init__(self):
            self.by = np.arange(3.0)

        def forward(self, x):
            return x + self.by

    model = nn.Sequential(Shift())
    boxes = viz.graph(model(leaf(np.ones(3))), model, depth=9).picture.boxes
    assert "0.by" in [box.title for box in boxes]


def test_what_wants_no_gradient_is_known_by_its_array():
    """A record holds the plain array of such an input, so that nothing else tells whose it is."""
    model = Stack(2, 3)
    frozen = model.blocks[1].inner.weight
    frozen.requires_grad = False
    x, mask = Tensor(np.ones((2, 3))), np.array([1.0, 0.0, 1.0])
    y = model(x) * mask + model(x) * mask
    boxes = viz.graph(y, model, depth=9).picture.boxes
    assert [box.kind for box in boxes if box.title == "blocks.1.inner.weight"] == ["parameter"]
    assert sum(box.title == "constant" for box in boxes) == 1, "two uses of one array"
    assert [box.title for box in boxes].count("input") == 1
    picture = viz.graph([model(x), frozen, x], model, depth=0).picture
    assert [(box.title, box.output) for box in picture.boxes] == [
        ("blocks.1.inner.weight", True),
        ("input", True),
        ("Stack", True),
    ]


def test_a_mask_made_inside_a_module_stays_inside_its_box():
    class Masked(nn.Module):
        def __init__(self):
            self.inner = Affine(3, 3)

        def forward(self, x):
            return self.inner(x) * np.tri(3)

    model = Masked()
    boxes = viz.graph(model(Tensor(np.ones((3, 3)))), model, depth=0).picture.boxes
    assert [box.title for box in boxes] == ["input", "Masked"]


def test_parameters_have_dotted_names_and_the_norm_of_their_gradient():
    model = Stack(2, 3)
    loss = model(leaf(np.ones((2, 3)))).sum()
    loss.backward(retain_graph=True)
    boxes = {box.title: box for box in viz.graph(loss, depth=9).picture.boxes}
    weight = boxes["blocks.1.inner.weight"]
    norm = np.sqrt((model.blocks[1].inner.weight.grad.data ** 2).sum())
    assert weight.kind == "parameter" and weight.lines == ["(3, 3) float64", f"|grad| {norm:.3g}"]
    assert {title for title in boxes if title.startswith("blocks")} == {
        name for name, _ in model.named_parameters()
    }


def test_depth_folds_modules_and_expand_opens_them():
    def titles(**how):
        return [box.title for box in stack(**how).picture.boxes]

    assert titles(depth=0) == ["x", "Stack"]
    assert (
        titles()
        == titles(depth=np.int64(1), limit=np.int64(150))
        == ["x", "blocks.0", "blocks.1", "blocks.2"]
    )
    assert titles(expand=["blocks.1"]) == [
        "x",
        "blocks.0",
        "blocks.1.inner",
        "tanh",
        "blocks.1.outer",
        "add",
        "blocks.2",
    ]
    module = stack(depth=0).picture.boxes[1]
    assert module.lines == ["72 parameters", "-> (2, 3)"] and module.kind == "module"
    with pytest.raises(
        ValueError, match=r"blocks.1.iner.*no module here.*Did you mean 'blocks.1.inner'"
    ):
        stack(expand=["blocks.1.iner"])
    with pytest.raises(TypeError, match="expand names modules to open.*got 3"):
        stack(expand=3)
    with pytest.raises(ValueError, match="depth counts"):
        stack(depth=-1)


def test_without_modules_every_op_is_drawn_and_without_a_model_the_outermost_call_names():
    model = Stack(2, 3)
    y = model(leaf(np.ones((2, 3))))
    assert [box.title for box in viz.graph(y).picture.boxes] == ["input", "blocks.0", "blocks.1"]
    outside = Affine(3, 3)
    boxes = viz.graph(
        outside(y), model
    ).picture.boxes  # called outside the model: its own name, not the model's
    assert [box.title for box in boxes] == [
        "input",
        "blocks.0",
        "blocks.1",
        "weight",
        "matmul",
        "bias",
        "add",
    ]


def test_parts_of_a_model_called_alone_have_the_names_of_the_model():
    model = Stack(2, 3)
    y = model.blocks[1].inner(model.blocks[0](leaf(np.ones((2, 3)))))
    assert [box.title for box in viz.graph(y, model).picture.boxes] == [
        "input",
        "blocks.0",
        "blocks.1.inner",
    ]


def test_rollup_draws_alike_siblings_once():
    picture = stack(depth=2, rollup=True).picture
    assert [g.title for g in picture.groups] == [
        "Stack",
        "blocks.0 .. blocks.2 Block x3, the first is drawn",
    ]
    assert [box.title for box in picture.boxes] == [
        "x",
        "blocks.0.inner",
        "tanh",
        "blocks.0.outer",
        "add",
    ]
    model = Stack(2, 3)
    model.blocks[1].inner = Affine(3, 3)
    model.blocks[1].forward = lambda x: x * 2.0
    assert len(viz.graph(model(leaf(np.ones((2, 3)))), model, rollup=True).picture.boxes) == 3, (
        "these two are not alike"
    )


def test_rollup_inside_rollup():
    def pair():
        return nn.Sequential(Affine(3, 3), Affine(3, 3))

    model = nn.Sequential(pair(), pair(), pair())
    picture = viz.graph(model(leaf(np.ones((2, 3)), "x")), model, depth=3, rollup=True).picture
    assert [g.title for g in picture.groups] == [
        "Sequential",
        "0 .. 2 Sequential x3, the first is drawn",
        "0.0 .. 0.1 Affine x2, the first is drawn",
    ]
    assert [box.title for box in picture.boxes] == ["x", "0.0.weight", "matmul", "0.0.bias", "add"]


def test_a_shared_parameter_is_one_box_with_two_arrows():
    model = Stack(2, 3)
    model.blocks[1] = model.blocks[0]
    picture = viz.graph(model(leaf(np.ones((2, 3)))), model).picture
    shared = [box for box in picture.boxes if box.title == "blocks.0.inner.weight"]
    assert len(shared) == 1 and sum(a.source == shared[0].number for a in picture.arrows) == 2
    assert "used 2 times: grad = sum of 2" in shared[0].lines


def test_nan_and_inf_have_a_red_border_also_inside_a_folded_module():
    with np.errstate(all="ignore"):
        y = np.log(leaf([1.0, -1.0, 0.0]))
    graph = viz.graph(y)
    assert (
        graph.picture.boxes[1].alarm == "1 NaN, 1 Inf"
        and "#CC0000" in graph.dot
        and "NOT FINITE" in graph.text()
    )
    model = Stack(2, 3)
    model.blocks[1].inner.bias.data[1] = np.nan
    boxes = viz.graph(model(leaf(np.ones((2, 3)))), model).picture.boxes
    assert [box.alarm for box in boxes] == [None, None, "1 NaN in blocks.1.inner.bias"]
    model.blocks[0].outer.bias.data[:] = 0.0
    model.blocks[1].inner.bias.data[1] = 1.0
    with np.errstate(all="ignore"):
        y = model.blocks[1](leaf([[1e308, 0.0, 1e308]] * 2, "x") * 10.0)
    assert viz.graph(y, model).picture.boxes[-1].alarm.endswith("in matmul")
    assert viz.graph(leaf([np.inf, 1.0]) * 2.0).picture.boxes[-1].alarm == "1 Inf"
    assert viz.graph(leaf([np.nan, 1.0]).sum()).picture.boxes[-1].alarm == "1 NaN", (
        "a single number is a NumPy scalar"
    )

    class Bounded(nn.Module):
        def forward(self, x):
            return np.minimum(x, np.inf)

    bounded = Bounded()
    boxes = viz.graph(np.exp(bounded(leaf([1.0, 2.0]))), nn.ModuleList([bounded])).picture.boxes
    assert [box.kind for box in boxes] == ["input", "module", "op"] and not any(
        box.alarm for box in boxes
    ), "inf is meant so"
    assert "#CC0000" not in twice().dot


def test_no_tensor_is_kept_alive_and_a_released_graph_says_so():
    a = leaf([1.0, 2.0])
    y = np.exp(a)
    loss = y.sum()
    graph, gone = viz.graph(loss), weakref.ref(y)
    gc.disable()
    try:
        del y
        loss.backward()
        assert gone() is None
    finally:
        gc.enable()
    assert "exp" in graph.dot
    assert "backward() released this graph" in viz.graph(loss).text()
    with no_grad():
        assert len(viz.graph(a * 2).picture.boxes) == 1


def test_several_outputs():
    a = leaf(2.0, "a")
    picture = viz.graph([a * 2.0, np.exp(a), a]).picture
    assert [box.title for box in picture.boxes if box.output] == ["a", "multiply", "exp"]
    model = Stack(1, 3)
    weight = model.blocks[0].inner.weight
    picture = viz.graph([model(leaf(np.ones((2, 3)))), weight], model).picture
    assert [(box.title, box.output) for box in picture.boxes] == [
        ("blocks.0.inner.weight", True),
        ("input", False),
        ("blocks.0", True),
    ]
    assert (0, 2) in [(a.source, a.target) for a in picture.arrows]
    with pytest.raises(TypeError, match="what lies behind a Tensor, got 3.0"):
        viz.graph(3.0)
    with pytest.raises(TypeError, match="model= is the Module"):
        viz.graph(a, model="net")


def test_an_output_that_is_a_leaf_is_one_box_with_its_arrows():
    a, b = leaf(2.0, "a"), leaf(3.0, "b")
    assert [(box.title, box.output) for box in viz.graph([a, a]).picture.boxes] == [("a", True)]
    y = b * 1.5
    for _ in range(20):
        y = y + 1.0
    y = y * a
    for _ in range(20):
        y = y + 1.0
    picture = viz.graph([a, y], limit=12).picture
    (fold,) = (box for box in picture.boxes if box.kind == "folded")
    assert picture.boxes[0].output and (0, fold.number) in [
        (arrow.source, arrow.target) for arrow in picture.arrows
    ]


class InThreads(nn.Module):
    def forward(self, x):
        h = x * 2.0
        with ThreadPoolExecutor(2) as pool:
            return np.add(*pool.map(lambda f: f(h), [np.tanh, np.exp]))


def test_a_folded_call_that_other_threads_calculate_for_has_arrows_both_ways():
    y = nn.Sequential(InThreads(), nn.Linear(2, 2))(leaf([1.0, 2.0], "x")).sum()
    picture = viz.graph(y).picture
    titles = [box.title for box in picture.boxes]
    seen = [(titles[a.source], titles[a.target]) for a in picture.arrows]
    assert sorted(seen) == sorted(
        [
            ("x", "0"),
            ("0", "tanh"),
            ("0", "exp"),
            ("tanh", "0"),
            ("exp", "0"),
            ("0", "1"),
            ("1", "sum"),
        ]
    )
    text = str(viz.graph(y))
    assert "tanh" in text and "exp" in text and "digraph" in viz.graph(y).dot


def test_a_folded_call_tells_the_shape_of_everything_that_is_used_of_it():
    class Two(nn.Module):
        def forward(self, x):
            y = np.tanh(x)
            return y, (y * y).sum()

    two = Two()
    y, penalty = two(leaf(np.ones((2, 3)), "x"))
    (box,) = (
        box
        for box in viz.graph(y.sum() + penalty, nn.ModuleList([two])).picture.boxes
        if box.kind == "module"
    )
    assert box.lines == ["Two", "-> (2, 3), ()"]
    (box,) = (
        box
        for box in viz.graph([y, y.sum()], nn.ModuleList([two])).picture.boxes
        if box.kind == "module"
    )
    assert box.lines == ["Two", "-> (2, 3)"]

    several, y, penalties = nn.ModuleList([Two() for _ in range(3)]), leaf(np.ones((2, 3)), "x"), []
    for two in several:
        y, penalty = two(y)
        penalties.append(penalty)
    picture = viz.graph([y.sum(), *penalties], several, rollup=True, depth=0).picture
    assert [box.lines for box in picture.boxes if box.kind == "module"] == [
        ["Two x3", "-> (2, 3), ()"]
    ]


def test_a_folded_run_tells_the_shape_of_everything_that_is_used_of_it():
    x = leaf(np.ones((2, 3)), "x")
    y = np.tanh(np.sin(np.cos(x)))
    total = np.tanh(np.sin(y.sum()))
    picture = viz.graph([np.sin(y + 1.0), np.sin(total)], limit=4).picture
    (box,) = (box for box in picture.boxes if box.kind == "folded")
    assert box.lines[-1] == "-> (), (2, 3)"


def test_rollup_keeps_what_the_others_took_from_before():
    class Join(nn.Module):
        def forward(self, x, skip):
            return np.tanh(x + skip)

    joins, x = nn.ModuleList([Join() for _ in range(3)]), leaf([1.0, 2.0], "x")
    skips = [np.exp(x), np.sin(x), np.cos(x)]
    y = x
    for join, skip in zip(joins, skips, strict=True):
        y = join(y, skip)
    picture = viz.graph(y, joins, rollup=True, depth=0).picture
    assert [box.title for box in picture.boxes] == ["x", "exp", "sin", "cos", "0 .. 2"]
    assert [(a.source, a.label) for a in picture.arrows if a.target == 4] == [
        (0, ""),
        (1, ""),
        (2, ""),
        (3, ""),
    ]
    opened = viz.graph(y, joins, rollup=True, depth=9).picture
    assert [(a.source, a.label) for a in opened.arrows if a.target == 4] == [
        (0, "0"),
        (1, "1"),
        (2, "1"),
        (3, "1"),
    ]


def test_a_chain_of_100_000_ops_folds():
    x = y = leaf(1.0, "x")
    for _ in range(100_000):
        y = y + x
    graph = viz.graph(y)
    assert len(graph.picture.boxes) <= 150
    (fold,) = (box for box in graph.picture.boxes if box.kind == "folded")
    assert "ops in the middle are folded" in graph.picture.notes[0] and "add x" in fold.lines[0]
    assert "folded" in graph.dot and len(graph.text().splitlines()) > 100
    kept = sum(box.kind == "op" for box in graph.picture.boxes)
    assert fold.title == f"{100_000 - kept:,} ops"
    assert "used 100,001 times" in graph.text()
    del y


def test_a_thousand_leaves_fold_and_modules_fold_before_ops():
    joined = np.stack([leaf([1.0]) for _ in range(1000)])
    graph = viz.graph(joined)
    assert (
        len(graph.picture.boxes) <= 151
        and "leaves are folded into one box" in graph.picture.notes[-1]
    )
    model = Stack(20, 2)
    picture = viz.graph(model(leaf(np.ones((2, 2)))), model, limit=10).picture
    assert [box.title for box in picture.boxes] == [
        "input",
        "Stack",
    ] and "depth=0" in picture.notes[0]
    picture = viz.graph(model(leaf(np.ones((2, 2)))), model, depth=1, limit=10).picture
    (fold,) = (box for box in picture.boxes if box.kind == "folded")
    kept = sum(box.kind == "module" for box in picture.boxes)
    assert fold.title == f"{6 * (20 - kept)} ops", (
        "a block is six ops: two products, three sums, one tanh"
    )


HOSTILE = [
    "<b>bold</b>",
    '"; bad [shape=star]; "',
    "\\N \\l \\",
    "<",
    "a\nb\x00c\x1b[31m",
    "&amp;",
    "]]>",
    "</script><script>",
    "漢字 é 𝄞",
    "\\" * 100_000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_text(name):
    graph = viz.graph(leaf(1.0, name) * leaf(2.0, "b"))
    svg = graph.svg()
    words = "".join(ElementTree.fromstring(svg).itertext()).replace("\u200b", "")
    shown = "".join(c if c.isprintable() else "\ufffd" for c in name[:297])
    assert shown.replace(" ", "") in words.replace("\xa0", "").replace(" ", "")
    assert svg.count('class="node"') == 3 and svg.count('class="edge"') == 2
    a = leaf(1.0, name)
    for text in (graph.text(), viz.graph(a * a).text()):
        assert "\x1b" not in text and "\x00" not in text and "\nb" not in text
    assert "<script>" not in graph._repr_html_() and "<script>" not in viz.tree.to_html(
        graph.picture
    )


def test_each_suffix_is_written_whole_or_not_at_all(tmp_path):
    graph = twice()
    starts = {
        "svg": b"<?xml",
        "png": b"\x89PNG",
        "pdf": b"%PDF",
        "dot": b"digraph",
        "gv": b"digraph",
        "txt": b"add",
        "html": b"<!DOCTYPE html>",
    }
    for suffix, start in starts.items():
        graph.save(tmp_path / f"g.{suffix}")
        assert (tmp_path / f"g.{suffix}").read_bytes().startswith(start), suffix
    with pytest.raises(ValueError, match="end the name in .svg"):
        graph.save(tmp_path / "g.jpeg")
    page = (tmp_path / "g.html").read_text("utf-8")
    assert "<svg" in page and external(page) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"g.{suffix}" for suffix in starts)


def test_pygraphviz_draws_where_there_is_no_program(monkeypatch):
    require("pygraphviz")
    monkeypatch.setenv("PATH", "")
    assert twice().svg().startswith("<svg")


def test_text_lies_within_its_box():
    """In the widest font that the picture names, where layout can be by that one too."""
    manager, ft2font = require("matplotlib.font_manager"), require("matplotlib.ft2font")
    if not any(Path(path).name == "DejaVuSans.ttf" for path in manager.findSystemFonts()):
        pytest.skip("DejaVu Sans is not installed")
    w = leaf([0.5, -1.0, 2.0], "w")
    loss = (np.tanh(w) ** 2).sum()
    loss.backward(retain_graph=True)
    picture = ElementTree.fromstring(viz.graph(loss).svg())
    seen = 0
    for group in picture.findall(".//{*}g[@class='node']"):
        box = [s for s in (shape.get("points", shape.get("d")) for shape in group.iter()) if s]
        right = max(float(x) for s in box for x in re.findall(r"(-?[\d.]+),", s))
        for text in group.findall(".//{*}text"):
            font = ft2font.FT2Font(
                manager.findfont(
                    manager.FontProperties(
                        family="DejaVu Sans", weight=text.get("font-weight", "normal")
                    )
                )
            )
            font.set_size(float(text.get("font-size")), 72 * 64)  # so fine that nothing is rounded
            font.set_text(text.text)
            seen += 1
            assert float(text.get("x")) + font.get_width_height()[0] / 64 / 64 < right - 2, (
                text.text
            )
    assert seen > 8


@pytest.fixture
def nothing_draws(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "pygraphviz", None)


def test_without_a_renderer_text_and_tree_remain_and_the_error_names_both_remedies(
    nothing_draws, tmp_path
):
    graph = twice()
    for draw in (
        graph.svg,
        lambda: graph.save(tmp_path / "a.svg"),
        lambda: graph.save(tmp_path / "a.png"),
    ):
        with pytest.raises(
            RuntimeError, match=r'(?s)apt install graphviz.*pip install "tinygrad_attn\[viz\]"'
        ):
            draw()
    assert list(tmp_path.iterdir()) == []
    assert graph.dot.startswith("digraph")
    assert "<details" in graph._repr_html_() and repr(graph) == graph.text()
    bundle = graph._repr_mimebundle_()
    assert "<details" in bundle["text/html"] and bundle["text/plain"].startswith("add")
    graph.save(tmp_path / "a.html")
    assert "<details" in (tmp_path / "a.html").read_text("utf-8")


def test_drawing_without_a_program_keeps_nothing_alive(nothing_draws):
    def draw():
        data = leaf([1.0, 2.0])
        alive.append(weakref.ref(data))
        viz.graph(data * 2)._repr_html_()

    alive = []
    gc.disable()
    try:
        draw()
        assert alive[0]() is None
    finally:
        gc.enable()


def test_the_tree_suits_the_encoding_of_standard_output_where_that_is_known(monkeypatch):
    graph, texts = twice(), []
    for encoding in ("utf-8", None, "made up", "ascii"):
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding=encoding))
        texts.append(graph.text())
    assert texts[0] == texts[1] == texts[2] != texts[3] and texts[3].isascii()


def test_without_the_graphviz_package_the_error_says_how_to_get_it(monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *a, **k: _missing(name) if name == "graphviz" else real(name, *a, **k),
    )
    graph = twice()
    with pytest.raises(ImportError, match=r'pip install "tinygrad_attn\[viz\]"'):
        graph.dot
    assert graph.text().startswith("add") and "<details" in graph._repr_html_()


def _missing(name):
    raise ImportError(f"No module named {name!r}")


def test_a_repr_never_raises(monkeypatch):
    graph = twice()

    def broken(*_, **__):
        raise OSError("the disk is gone")

    monkeypatch.setattr(viz.render, "render", broken)
    assert "<details" in graph._repr_html_()
    monkeypatch.setattr(viz.tree, "lines", broken)
    assert graph._repr_html_() is None
    assert "the disk is gone" in repr(graph) and list(graph._repr_mimebundle_()) == ["text/plain"]


def test_the_text_tree():
    a, b = leaf(2.0, "a"), leaf(3.0, "b")
    c = a * b
    assert viz.graph(c + np.exp(c)).text() == "\n".join(
        [
            "add  data 409.4  output  [n4]",
            "├─ 0: multiply  data 6  used 2 times: grad = sum of 2  [n2]",
            "│  ├─ 0: a  data 2  [n0]",
            "│  └─ 1: b  data 3  [n1]",
            "└─ 1: exp  data 403.4  [n3]",
            "   └─ multiply  [n2, see there]",
        ]
    )


def test_a_deep_tree_begins_again_at_the_margin():
    y = leaf(1.0, "x")
    for _ in range(70):
        y = np.sin(y)
    lines = viz.graph(y).text().splitlines()
    assert max(map(len, lines)) < 130
    assert [line.rpartition("  ")[2] for line in lines if line.startswith("sin")] == [
        "[n70]",
        "[n40]",
        "[n10]",
    ]
    assert {f"[n{k}]" for k in range(71)} == {
        line.rpartition("  ")[2] for line in lines if "see there" not in line
    }


def test_an_encoder_layer_is_a_handful_of_boxes():
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=True
    ).eval()
    y = layer(leaf(np.ones((2, 3, 8)), "x").astype(np.float32))
    titles = [box.title for box in viz.graph(y, layer).picture.boxes]
    for part in ("norm1", "self_attn", "add", "norm2", "linear1", "linear2"):
        assert part in titles
    assert len(titles) <= 14
    opened = viz.graph(y, layer, expand=["self_attn"]).picture
    assert len(opened.boxes) > len(titles) and "self_attn MultiheadAttention" in [
        g.title for g in opened.groups
    ]
    assert "self_attn.in_proj_weight" in [box.title for box in opened.boxes]
