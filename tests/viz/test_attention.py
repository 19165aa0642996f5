"""viz.attention and viz.attention_html: the right labels in the right places, and only text."""

import json
import re

import numpy as np
import pytest
from support import require
from webpage import external

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, viz

plt = require("matplotlib.pyplot")

TOKENS = ["The", " cat", "$x^2$", "<b>"]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def weights(*shape):
    raw = np.random.default_rng(0).random(shape)
    return raw / raw.sum(axis=-1, keepdims=True)


def test_rows_are_queries_and_columns_are_keys():
    w = weights(4, 3)
    ax = viz.attention(Tensor(w), TOKENS, ["a", "b", "c"])
    np.testing.assert_array_equal(ax.images[0].get_array(), w)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["The", "␣cat", "$x^2$", "<b>"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b", "c"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    shown = {
        (round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in ax.texts
    }
    assert shown == {index: f"{x:.2f}" for index, x in np.ndenumerate(w)}
    ax.figure.canvas.draw()  # mathematics or bad text would show here
    assert len(ax.figure.axes) == 2 and not viz.attention(weights(11, 10)).texts, (
        "a colour bar; numbers in small maps only"
    )


def test_a_map_for_each_head():
    w = weights(5, 2, 3)
    axes = viz.attention(w, ["p", "q"], None)
    assert len(axes) == 5 and [ax.get_title() for ax in axes] == [f"head {h}" for h in range(5)]
    for ax, head in zip(axes, w, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), head)
    assert (
        len({ax.figure for ax in axes}) == 1 and len({ax.images[0].norm.vmax for ax in axes}) == 1
    ), "one scale for all"
    assert len(viz.attention(w[None])) == 5


def test_it_draws_on_the_axes_it_is_given():
    figure, (left, right) = plt.subplots(1, 2)
    assert viz.attention(weights(2, 2), ax=left) is left
    assert list(viz.attention(weights(2, 3, 3), ax=[left, right])) == [left, right]
    with pytest.raises(ValueError, match="2 heads and 1 Axes"):
        viz.attention(weights(2, 3, 3), ax=left)
    assert plt.get_fignums() == [figure.number] and len(figure.axes) == 2, (
        "no figure and no colour bar of its own"
    )


@pytest.mark.parametrize(
    "args, text",
    [
        ((weights(2, 3), ["a"], None), "1 labels for 2 queries"),
        ((weights(2, 3), None, list("abcd")), "4 labels for 3 keys"),
        ((weights(3),), "weights must be a matrix"),
        ((weights(2, 2, 3, 3),), r"weights\[0\]"),
        ((np.zeros((0, 3)),), "weights must be a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(args, text):
    with pytest.raises(ValueError, match=text):
        viz.attention(*args)


def calls_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', str(page), re.S).group(1))["calls"]


def data_of(page):
    return calls_of(page)[0]


@pytest.mark.parametrize("masked", [False, True])
def test_the_numbers_of_the_page_are_those_of_the_function(masked):
    r = np.random.default_rng(1)
    q, k, v = r.normal(size=(2, 4, 3)), r.normal(size=(2, 5, 3)), r.normal(size=(2, 5, 6))
    mask = np.tril(np.ones((4, 5), bool)) if masked else None
    if masked:
        mask[2] = False  # every key blocked
    page = viz.attention_html(Tensor(q), k, v, mask, queries=TOKENS)
    data = data_of(page)
    expected = F.scaled_dot_product_attention(
        Tensor(q[None]), Tensor(k[None]), Tensor(v[None]), attn_mask=mask
    ).numpy()[0]
    np.testing.assert_allclose(data["output"], expected, atol=1e-6)
    np.testing.assert_allclose(np.array(data["score"]), q @ k.swapaxes(1, 2), rtol=1e-6)
    np.testing.assert_allclose(
        np.sum(data["weights"], axis=-1), [[1, 1, 0 if masked else 1, 1]] * 2, atol=1e-6
    )
    assert (
        data["scale"] == 1 / np.sqrt(3)
        and data["queries"][1] == "␣cat"
        and data["keys"] == list("01234")
    )
    assert ("mask" in data) == masked
    if masked:
        assert data["mask"][0][0] == [0, None, None, None, None]


def test_a_model_shows_each_attention_that_it_calls():
    ta.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x = ta.randn(3, 4, 8)
    with pytest.raises(ValueError, match=r"layers.0.self_attn applies dropout.*model.eval\(\)"):
        viz.attention_html(model, x)
    model.eval()
    with ta.record_attention() as seen:
        y = model(x, is_causal=True, mask=F.causal_mask(4))
    causal = lambda x: model(x, is_causal=True, mask=F.causal_mask(4))
    calls = calls_of(viz.attention_html(causal, x, queries="abcd"))
    recorded = calls_of(viz.attention_html(seen, queries="abcd"))
    assert [call["name"] for call in calls] == [call["name"] for call in recorded] == list(seen)
    for call, weights in zip(calls, recorded, strict=True):
        expected = seen[call["name"]][0][0]
        np.testing.assert_allclose(call["weights"], expected, atol=1e-6)
        np.testing.assert_allclose(weights["weights"], expected, atol=1e-6)
        assert call["mask"][0][1] == [0, 0, None, None] and call["keys"] == list("abcd")
    assert "q" not in recorded[0] and y.shape == (3, 4, 8)


def test_a_batch_of_one_head_is_a_batch_and_arrays_of_a_function_are_heard():
    """(B, T, D) in a model's call was drawn as B heads."""
    r = np.random.default_rng(2)
    q, k, v = r.normal(size=(3, 4, 2)), r.normal(size=(3, 5, 2)), r.normal(size=(3, 5, 2))
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)
    (call,) = calls_of(viz.attention_html(attend, q, k, v))
    assert np.shape(call["weights"]) == (1, 4, 5) and call["name"] == "attention"
    np.testing.assert_allclose(call["output"][0], attend(q, k, v)[0], rtol=1e-5)
    heads = data_of(viz.attention_html(q, k, v))
    assert np.shape(heads["weights"]) == (3, 4, 5), "given directly, the leading axis has heads"


@pytest.mark.parametrize("look", ["hook", "patch", "activations"])
def test_who_looks_at_the_model_changes_no_number_of_the_page(look):
    ta.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = ta.randn(2, 4, 8)
    expected = calls_of(viz.attention_html(layer, x))
    blocks = {
        "hook": lambda: layer.register_forward_hook(lambda *_: None),
        "patch": lambda: ta.patch(layer, {"norm1": lambda y: y}),
        "activations": lambda: ta.activations(layer),
    }
    with blocks[look]():
        assert calls_of(viz.attention_html(layer, x)) == expected


def test_a_float_mask_is_added():
    q = k = v = np.eye(2)
    data = data_of(viz.attention_html(q, k, v, np.array([[0.0, -np.inf], [1.5, 0.0]]), scale=2.0))
    assert data["mask"] == [[[0, None], [1.5, 0]]] and data["weights"][0][0] == [1, 0]
    np.testing.assert_allclose(
        data["weights"][0][1], np.exp([1.5, 2]) / np.exp([1.5, 2]).sum(), rtol=1e-6
    )


def test_the_page_is_self_contained_and_tokens_are_only_text(tmp_path):
    page = viz.attention_html(
        np.eye(2),
        np.eye(2),
        np.eye(2),
        queries=["</script><script>alert(1)</script>", "<img\nsrc=x>"],
    )
    page.save(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert text == str(page) and external(text.replace("src=x", "")) == []
    assert text.count("</script>") == 2 and "<img" not in text
    assert data_of(page)["queries"][0] == "</script><script>alert(1)</script>"
    assert page._repr_html_().startswith("<iframe srcdoc=") and repr(page).startswith(
        "<HTML page of"
    )


@pytest.mark.parametrize(
    "change, text",
    [
        ({"k": np.ones((5, 2))}, "attention needs q"),
        ({"v": np.ones((4, 3))}, "attention needs q"),
        ({"q": np.ones(3)}, "attention needs q"),
        ({"mask": np.ones((3, 3), bool)}, "mask"),
        ({"queries": ["a"]}, "1 labels for 4 queries"),
        ({"q": np.full((4, 3), np.nan)}, "q contains NaN"),
        ({"q": lambda *_: np.ones(3)}, "never called attention"),
    ],
)
def test_pages_refuse_what_does_not_fit(change, text):
    with pytest.raises(ValueError, match=text):
        viz.attention_html(
            **{"q": np.ones((4, 3)), "k": np.ones((5, 3)), "v": np.ones((5, 2))} | change
        )
    with pytest.raises(TypeError, match="mask"):
        viz.attention_html(np.eye(2), np.eye(2), np.eye(2), np.ones((2, 2), int))
