"""The pages in a real browser: clicks, keys, both colour schemes, a telephone's width and a desktop's."""

import base64
import os
import re
import sys

import numpy as np
import pytest
from support import ROOT

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, viz
from tinygrad_attn.cli import demo, main
from tinygrad_attn.cli.demo.digits import Split, load_split
from tinygrad_attn.viz.page import as_json, page

UNNAMED = """[...document.querySelectorAll("button, select, input, [role=button], [role=region], [role=img]")]
  .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""
RATIO = """(() => {
  const light = c => c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
  const style = getComputedStyle(document.body), [a, b] = [light(style.color), light(style.backgroundColor)];
  return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), b];
})()"""


def inside():
    """What examples/inside.py tells the page about a model of 3 layers of 2 heads, made of random numbers."""
    rng = np.random.default_rng(0)
    table = lambda *shape: rng.standard_normal(shape).round(3).tolist()
    words, causal = [" <b>", "\u672c", " to"], np.tri(3) / np.arange(1, 4)[:, None]
    weights = np.tile(np.round(255 * causal[np.tril_indices(3)]).astype(np.uint8), (3, 2, 1))
    prompt = lambda answer: {
        "tokens": words,
        "answer": answer,
        "lens": [
            [[[f" {answer}{n}{t}{i}", 0.3] for i in range(5)] for t in range(3)] for n in range(4)
        ],
        "saliency": {"gradient": [0.1, 2.0, 1.0], "times": [0.5, -0.25, 0.125]},
        "head": [1, 1],
        "effects": {"mean": table(3, 2), "zero": [[0, 0], [0, -2.5], [0, 0]]},
        "weights": base64.b64encode(weights.tobytes()).decode(),
    }
    test = {"heads": [[1, 1], [2, 0]], "whole": 2.0, "without": -1.0, "controls": [1.5, 2.5]}
    names = {"sentences": [["Mary", " and"], ["John", " and"]], "names": ["Mary", "John"]}
    names["places"] = ["John from Mary", "and"]
    data = {
        "scores": {
            name: rng.random((3, 2)).round(3).tolist()
            for name in ("induction", "names", "previous", "first")
        },
        "tests": dict.fromkeys(("repeated", "text", "names"), test),
        "patching": names | {"ends": [3.0, -3.0], "effects": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]},
        "prompts": [prompt("one"), prompt("two")],
    }
    sys.path.insert(0, str(ROOT / "examples"))
    from inside import sentences_of

    sys.path.remove(str(ROOT / "examples"))
    return page("Inside", "inside", data=as_json(data), **sentences_of(data))


def few_digits(seed):
    """A split of a few images, enough for a report."""
    name, *arrays = load_split(seed)
    return Split(name, *(a[:n] for a, n in zip(arrays, (128, 128, 60, 60), strict=True)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    ta.manual_seed(0)
    x, w = (Tensor(ta.randn(3, 3).numpy(), requires_grad=True) for _ in "xw")
    loss = lambda: F.cross_entropy(np.tanh(x @ w) * x, np.array([0, 1, 2]))
    ta.backward_steps(loss).save(path / "steps.html")
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    tokens = ta.randn(1, 4, 8)
    viz.attention_html(model, tokens, queries="ab<本").save(path / "attention.html")
    inside().save(path / "inside.html")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "load_split", few_digits)
        main(["demo", "--epochs", "1", "--runs", "1", "--out", str(path)])
    return path


def drive_steps(page):
    count, inputs = lambda: page.inner_text("#count"), lambda: page.inner_text("#inputs")
    assert count() == "1 / 4" and "fast/layers.py" in inputs()
    page.keyboard.press("ArrowRight")
    assert count() == "2 / 4"
    assert "∂L/∂a = g * b" in inputs() and "multiply.vjp" in inputs()
    page.click("g.node:has-text('matmul') text >> nth=0")
    assert count() == "4 / 4" and "_matmul_by_left" in inputs()
    assert "sum so far" in inputs() and page.locator("g.node.now").count() == 1
    page.hover("#output .cells > :nth-child(5)")
    assert re.fullmatch(r"y\[1, 1\] = -?\d\.\d+", page.inner_text("#output figcaption >> nth=0"))
    page.focus("#output .cells >> nth=1 >> span >> nth=0")
    page.keyboard.press("ArrowRight")  # a cell, not a step
    assert count() == "4 / 4" and "g[0, 1] = " in page.inner_text("#output")
    page.click("#back")
    page.keyboard.press("Home")
    assert count() == "1 / 4" and page.locator("g.node.later").count() == 4
    height = lambda: page.locator("#drawing svg").bounding_box()["height"]
    whole = height()
    assert whole > 250, "it fills its pane"
    page.fill("#zoom", "2")
    assert height() == pytest.approx(2 * whole, rel=0.05)


def drive_attention(page):
    page.click("#map .cells > :nth-child(9)")  # the third row
    assert page.inner_text("#said") == "query <, head 0"
    page.focus("#tokens input >> nth=2")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#said") == "query 本, head 0"
    page.click("#heads label >> nth=1")
    page.click("#calls label >> nth=1")
    assert page.inner_text("#said") == "query 本, head 1"
    weights = [float(x) for x in page.locator("#scores td:last-child").all_inner_texts()[1:]]
    assert sum(weights[:-1]) == pytest.approx(1, abs=1e-3) and weights[-1] == 1
    assert page.locator("#sums figure >> nth=1 >> b").last.inner_text() == "output = sum"


def drive_inside(page):
    said, next_ = lambda: page.inner_text("#said"), lambda: page.inner_text("#next")
    assert "3 layers of 2 heads" in page.inner_text("body") and "one320 30%" in next_()
    assert "The answer one depends on" in page.inner_text("#tokens")
    page.select_option("#kind", "times")
    page.hover("#tokens span >> nth=1")
    assert page.inner_text("#tokens figcaption") == "\u672c: \u22120.25"
    page.click("#lens span >> nth=3")  # below the last layer
    assert "if layer 1 were the last" in next_() and "one200" in next_()
    page.select_option("#metric", "zero")
    page.hover("#grid span >> nth=3")
    assert page.inner_text("#grid figcaption") == "layer 1, head 1: \u22122.50 nats"
    page.click("#grid span >> nth=3")
    assert said().startswith("Layer 1, head 1: ") and "zero \u22122.50" in said()
    page.click("#map span >> nth=3")  # the second row
    looks = lambda: [
        cell.get_attribute("style").rstrip(";") for cell in page.locator("#row span").all()
    ]
    assert "\u672c looks at" in page.inner_text("#row")
    assert looks() == ["--much: 100%", "--much: 100%", "--much: 0%"]
    page.check("#sink")
    assert looks() == ["--much: 0%", "--much: 100%", "--much: 0%"]
    page.focus("#grid span >> nth=3")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert said().startswith("Layer 0, head 0: ")  # the cell after the one that was clicked
    page.select_option("#metric", "induction")
    assert "after the last occurrence" in page.inner_text("#meaning")
    assert "Heads 1.1, 2.0 carry" in page.inner_text("body")
    page.hover("#patching span >> nth=2")
    assert page.inner_text("#patching figcaption") == "layer 1, at John from Mary: 0.30"
    page.click("#prompts label >> nth=1")
    assert "two320" in next_() and "The answer two" in page.inner_text("#tokens")


def drive_report(page):
    page.click("#choose label >> nth=3")
    page.focus("#maps figure:nth-child(2) span >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#maps figure").count() > 3
    assert "chosen" in page.locator("#maps figure:nth-child(3) span >> nth=4").get_attribute(
        "class"
    )
    page.click("summary >> nth=0")


@pytest.mark.parametrize("drive", [drive_steps, drive_attention, drive_inside, drive_report])
@pytest.mark.parametrize("width, scheme", [(420, "dark"), (1300, "light")])
def test_a_page_does_what_it_says(browser, folder, drive, width, scheme):
    name = drive.__name__.removeprefix("drive_")
    shots = os.environ.get("TINYGRAD_ATTN_SCREENSHOTS")  # a folder, for a look at them
    picture = lambda what: shots and page.screenshot(path=f"{shots}/{name}_{width}_{what}.png")
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_default_timeout(5000)
    said, asked, url = [], [], (folder / f"{name}.html").as_uri()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    for colours in ("light", "dark", scheme):
        page.emulate_media(color_scheme=colours)
        ratio, paper = page.evaluate(RATIO)
        assert ratio > 7 and (paper < 0.05) == (colours == "dark")
        picture(colours)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert page.evaluate(UNNAMED) == [] and page.locator("h1").count() == 1
    drive(page)
    picture("driven")
    assert said == [] and asked == [url]
    page.close()
