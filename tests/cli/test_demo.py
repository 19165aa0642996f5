"""The demo: its data, its training, and the page that it writes."""

import html.parser
import json
import re

import numpy as np
import pytest
from support import installed
from webpage import external

installed("sklearn", "matplotlib")

import tinygrad_attn as ta
from tinygrad_attn import cli
from tinygrad_attn.cli import demo
from tinygrad_attn.cli.demo import digits
from tinygrad_attn.random import Generator


@pytest.fixture
def small(monkeypatch):
    """Splits of a few images."""
    whole = digits.load_split

    def few(seed):
        name, *arrays = whole(seed)
        return digits.Split(name, *(a[:n] for a, n in zip(arrays, (128, 128, 30, 30), strict=True)))

    monkeypatch.setattr(demo, "load_split", few)
    return few(0)


@pytest.mark.parametrize("seed", [0, 1, None])
def test_a_split_has_every_image_once(seed):
    split, whole = digits.load_split(seed), digits.load_split(None)
    assert split.train_images.shape == (1437, 8, 8) and split.test_images.shape == (360, 8, 8)
    assert split.train_images.dtype == np.float32
    assert split.train_images.min() == 0 and split.train_images.max() == 1
    both, file = (
        np.concatenate([s.train_images, s.test_images]).reshape(-1, 64) for s in (split, whole)
    )
    assert sorted(map(bytes, both)) == sorted(map(bytes, file))
    if seed is not None:
        assert np.bincount(split.test_labels).min() >= 34, "every digit in its proportion"


def test_patches_are_the_image_cut_up():
    image = np.arange(64.0).reshape(1, 8, 8)
    tokens = digits.patches(image)
    assert tokens.shape == (1, 16, 4)
    assert tokens[0, 0].tolist() == [0, 1, 8, 9] and tokens[0, 5].tolist() == [18, 19, 26, 27]


def test_wiggle_moves_a_little():
    images = digits.load_split(0).train_images[:20]
    moved = digits.wiggle(images, Generator(0))
    assert moved.shape == images.shape and moved.dtype == np.float32
    assert 0.01 < np.abs(moved - images).mean() < 0.2 and moved.min() >= 0 and moved.max() <= 1


def test_the_model_learns_and_a_wrong_gradient_would_be_seen(small):
    run = demo.train(small, epochs=7)
    assert np.mean(run.losses[-2:]) < 0.9 * run.losses[0] and len(run.accuracies) == 7
    one, other = (demo.train(small, epochs=2).losses for _ in range(2))
    assert one == other, "everything random comes from the seed"
    assert demo.check_gradients(run, images=1)

    @ta.op
    def off(x):
        return x * 1.0

    off.vjp(lambda g, y, x: g * 1.01)
    run.model.embed.register_forward_hook(lambda module, args, y: off(y))
    assert not demo.check_gradients(run, images=1)


class Tags(html.parser.HTMLParser):
    """Collects tags and ids, and checks that tags close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.ids = [], []

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_demo_from_start_to_page(small, tmp_path, capsys):
    folder, threads = tmp_path / "a folder", ta.get_num_threads()
    assert (
        cli.main(["demo", "--epochs", "2", "--runs", "2", "--seed", "5", "--out", str(folder)]) == 0
    )
    ta.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "seed 5: 2 epochs" in out and "seed 6: 2 epochs" in out
    assert "agree with finite differences" in out and "report.html" in out
    page = (folder / "report.html").read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.open and len(tags.ids) == len(set(tags.ids)), "well-formed, and each id once"
    inner = re.sub(r'src="data:image/svg\+xml;base64,[^"]*"|<iframe srcdoc="[^"]*"', "", page)
    assert not [x for x in external(inner) if not x.startswith("xlink")], "needs no network"
    assert "random splits: 2" in page and "encoder.layers.0.self_attn" in page and "agree" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    weights = np.array(list(data[3]["maps"].values()))
    labels = [re.findall(r"\d", image["label"]) for image in data]
    assert [written for written, _ in labels[:10]] == list("0123456789")
    assert len(data) > 10 and all(written != read for written, read in labels[10:])
    assert list(data[3]["maps"])[7] == "layer 2, head 4"
    assert weights.shape == (8, 16, 16) and abs(weights.sum(-1) - 1).max() < 0.01


def test_what_is_missing_is_said_before_any_work(capsys, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 2
    assert 'pip install "tinygrad_attn[examples,viz]"' in capsys.readouterr().err
