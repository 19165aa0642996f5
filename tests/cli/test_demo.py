"""The demo: its data, that an interrupted training goes on as if nothing had been, and the page it writes."""

import copy
import html.parser
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import ROOT, require

require("sklearn")
require("matplotlib")
require("safetensors")

import tinygrad_attn as ta
from tinygrad_attn.cli import demo
from tinygrad_attn.cli.demo import digits, figures, training
from tinygrad_attn.cli.demo.progress import Progress
from tinygrad_attn.cli.demo.report import template
from tinygrad_attn.random import Generator


@pytest.fixture
def small():
    """A split of a few images."""
    whole = digits.load_split(0)
    return digits.Split(
        "seed 0",
        whole.train_images[:100],
        whole.train_labels[:100],
        whole.test_images[:30],
        whole.test_labels[:30],
    )


SETTINGS = training.Settings(epochs=3, batch=40)


# ---- what is told


def test_a_log_has_a_few_lines_of_how_far_the_training_is(capsys):
    progress, run = (
        Progress("seed 0"),
        SimpleNamespace(
            losses=[9.0] * 30, accuracies=[], settings=training.Settings(epochs=9), seconds=2.6
        ),
    )
    for step in range(19):
        run.losses, run.accuracies = [*run.losses, *[step / 2] * 20], [90.0] * (step // 2)
        progress.on_step(step, 18, run)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"  seed 0: epoch {done:2d} of 9" for done in (2, 4, 6, 8, 9)
    ]
    assert lines[0].endswith(", loss 2.000, test 90.00 %, 3 s")


# ---- data


@pytest.mark.parametrize("seed", [0, 1, None])
def test_a_split_has_every_image_once(seed):
    split = digits.load_split(seed)
    assert split.train_images.shape == (1437, 8, 8) and split.test_images.shape == (360, 8, 8)
    assert (
        split.train_images.dtype == np.float32
        and split.train_images.min() >= 0
        and split.train_images.max() == 1
    )
    assert len(split.train_labels) == 1437 and len(split.test_labels) == 360
    both = np.concatenate([split.train_images, split.test_images]).reshape(-1, 64)
    whole = digits.load_split(None)
    file = np.concatenate([whole.train_images, whole.test_images]).reshape(-1, 64)
    assert sorted(map(bytes, both)) == sorted(map(bytes, file))
    if seed is not None:
        assert np.ptp(np.bincount(split.test_labels)) <= 2, "each digit in its share"


def test_patches_are_the_image_cut_up():
    image = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    tokens = digits.patches(image)
    assert tokens.shape == (1, 16, 4) and tokens.dtype == np.float32
    for number in range(16):
        row, column = divmod(number, 4)
        np.testing.assert_array_equal(
            tokens[0, number], image[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].ravel()
        )


def test_wiggle_without_movement_changes_nothing_and_moves_as_told():
    image = np.zeros((2, 8, 8), np.float32)
    image[:, 3, 4] = 1
    still = digits.wiggle(image, Generator(0), shift=0, degrees=0, zoom=0)
    np.testing.assert_allclose(still, image, atol=1e-6)
    moved = digits.wiggle(np.repeat(image, 200, 0), Generator(0))
    assert moved.shape == (400, 8, 8) and moved.dtype == np.float32
    assert np.ptp(moved.reshape(400, -1), axis=0).max() > 0.3, (
        "the images are moved, each by itself"
    )
    y, x = np.mgrid[:8, :8]
    mass = moved.sum((1, 2))
    centre = np.stack([(moved * y).sum((1, 2)), (moved * x).sum((1, 2))], axis=1) / mass[:, None]
    assert np.abs(centre - [3, 4]).max() < 0.8 and np.abs(centre.mean(0) - [3, 4]).max() < 0.1


# ---- training


def test_the_model_learns_and_its_gradient_is_right(small, tmp_path):
    run = training.train(SETTINGS, small, tmp_path / "c.safetensors")
    assert len(run.losses) == 9 and len(run.accuracies) == 3 and all(np.isfinite(run.losses))
    assert np.mean(run.losses[-3:]) < np.mean(run.losses[:3])
    report = demo.check_gradients(run, images=2)
    assert report, str(report)
    assert {e.name for e in report.entries} == {
        f"parameter {name!r}" for name, _ in run.model.named_parameters()
    }
    assert all(p.dtype == np.float32 for p in run.model.parameters()), "the check works on a copy"


def test_a_wrong_gradient_would_be_seen(small, tmp_path, monkeypatch):
    run = training.train(training.Settings(epochs=1, batch=50), small, tmp_path / "c.safetensors")
    right = training.loss_of

    def with_a_detached_part(model, *rest):
        model = copy.copy(model)
        model.embed = copy.copy(model.embed)
        model.embed.bias = ta.nn.Parameter(
            model.embed.bias
        )  # the same numbers, out of the graph's sight
        return right(model, *rest)

    monkeypatch.setattr(demo, "loss_of", with_a_detached_part)
    report = demo.check_gradients(run, images=2)
    assert not report and [e.name for e in report.entries if not e.ok] == ["parameter 'embed.bias'"]


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_weights(small, tmp_path):
    whole = training.train(SETTINGS, small, tmp_path / "whole.safetensors")

    def stop(step, steps, run):
        if step == 5:  # in the middle of the second epoch
            raise KeyboardInterrupt

    path = tmp_path / "stopped.safetensors"
    with pytest.raises(KeyboardInterrupt):
        training.train(SETTINGS, small, path, on_step=stop)
    ta.manual_seed(99)  # the generator's place comes from the checkpoint
    told = []
    again = training.train(
        SETTINGS, small, path, resume=True, on_step=lambda step, steps, run: told.append(step)
    )
    assert told[0] == 3, "it goes on after the first epoch"
    assert again.losses == whole.losses and again.accuracies == whole.accuracies
    for (name, a), (_, b) in zip(whole.model.named_parameters(), again.model.named_parameters()):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=name)


def test_a_checkpoint_of_other_settings_is_refused_by_name(small, tmp_path):
    path = tmp_path / "c.safetensors"
    training.train(training.Settings(epochs=1, batch=50), small, path)
    with pytest.raises(ValueError, match="epochs 1, batch 50.*--resume"):
        training.train(SETTINGS, small, path, resume=True)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"extra": "text"},
        {"extra": "null"},
        {"extra": "[1, 2]"},
        {"extra": '{"mine": 1}'},
        {"extra": '{"settings": "mine"}'},
    ],
)
def test_somebody_elses_file_in_the_checkpoints_place_is_told_apart(small, tmp_path, metadata):
    path = tmp_path / "c.safetensors"
    ta.save({"weight": np.ones(3)}, path, metadata)
    with pytest.raises(
        ValueError,
        match="c.safetensors' was not written by the demo. Name another folder with --out",
    ):
        training.train(SETTINGS, small, path, resume=True)


def test_smoothing_is_the_mean_of_what_there_is():
    np.testing.assert_allclose(figures.smoothed([4.0, 2.0, 0.0, 6.0], window=2), [4, 3, 1, 3])


def test_every_run_has_its_curves(small):
    """--runs may ask for more than there are colours."""
    runs = [
        SimpleNamespace(losses=[2.0, 1.0], accuracies=[50.0, 60.0], split=small)
        for _ in range(len(figures.RUN_COLOURS) + 2)
    ]
    left, right = figures.learning_curves(runs, {}).axes
    assert len(left.lines) == 2 * len(runs) and len(right.lines) == len(runs)


# ---- the whole


def start(*arguments: str, **options) -> subprocess.Popen:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tinygrad_attn", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


class Page(html.parser.HTMLParser):
    """What a page refers to, whether its tags close, and the JSON in it."""

    VOID = {"meta", "img", "br", "link", "input", "hr"}

    def __init__(self, text: str):
        super().__init__()
        self.addresses, self.ids, self.open, self.data, self.images = [], [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.images += tag == "img"
        self.addresses += [
            value
            for name, value in attributes
            if name in ("src", "href", "data", "action") and value
        ]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append((tag, dict(attributes).get("id")))

    def handle_startendtag(self, tag, attributes):
        self.addresses += [
            value for name, value in attributes if name in ("src", "href", "xlink:href") and value
        ]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop()[0] == tag, f"</{tag}> closes nothing"

    def handle_data(self, text):
        if self.open and self.open[-1] == ("script", "data"):
            self.data += text


def test_the_demo_from_start_to_page(tmp_path):
    process = start("--epochs", "1", "--runs", "1", "--out", "a folder/report", cwd=tmp_path)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, out + errors
    assert "one seed (0)" in out and "logistic regression" in out and "1-nearest neighbour" in out
    assert re.search(
        r"all 31 parameter tensors \(78,666 numbers\) agree with finite differences", out
    )
    path = tmp_path / "a folder" / "report" / "report.html"
    assert out.rstrip().endswith(str(path)), "the last line is where the report is"

    text = path.read_text("utf-8")
    page = Page(text)
    assert not page.open and page.images >= 4
    assert all(address.startswith(("data:", "#")) for address in page.addresses), (
        "the page fetches nothing"
    )
    assert "look" in page.ids and len({*page.ids}) == len(page.ids), (
        "two pictures of graphs, and each has a box n0"
    )
    assert "{{" not in text and "@import" not in text and "url(" not in text
    assert '<div class="wide"><table>' in text and ".wide { overflow-x: auto; }" in text, (
        "on a telephone the table scrolls, not the page"
    )
    assert '<div class="wide"><img alt=' in text and ".wide img { min-width: 44em; }" in text, (
        "and the curves, whose letters would be tiny"
    )
    data = json.loads(page.data)
    assert len(data["digits"]) == 10 and [one["label"] for one in data["digits"]] == list(range(10))
    weights = np.array(data["digits"][3]["weights"])
    assert weights.shape == (2, 4, 16, 16)
    np.testing.assert_allclose(weights.sum(-1), 1000, atol=9)


def test_the_page_on_paper_without_a_script_and_by_keyboard():
    text = template()
    assert (
        "@media print { .wide, .scroll { overflow: visible; } .scroll svg { max-width: 100%; }"
        in text
    ), "paper does not scroll"
    assert "<noscript>" in text.partition('<div id="look">')[2].partition("<details>")[0], (
        "or the reader looks for pictures to point at"
    )
    assert "#large:focus-visible { outline: 3px solid var(--blue);" in text, (
        "orange on white is hardly seen"
    )


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT to send")
def test_ctrl_c_keeps_the_last_epoch_and_says_how_to_go_on(tmp_path):
    process = start("--epochs", "40", "--runs", "1", "--out", "out", cwd=tmp_path)
    seen = ""
    while "epoch 10 of 40" not in seen:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        seen += line
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert re.search(r"kept in out.checkpoints.seed-0\.safetensors", errors)
    assert "python -m tinygrad_attn demo --resume --seed 0 --epochs 40 --out out --runs 1" in errors
    assert os.listdir(tmp_path / "out" / "checkpoints") == ["seed-0.safetensors"], (
        "and no half-written file"
    )
    assert len(ta.load(tmp_path / "out" / "checkpoints" / "seed-0.safetensors")) > 31


@pytest.mark.parametrize("system, quoted", [("posix", "'my report'"), ("nt", '"my report"')])
def test_a_folder_with_a_space_is_quoted_as_the_system_does(tmp_path, monkeypatch, system, quoted):
    def stopped(*_):
        (tmp_path / "my report" / "checkpoints" / "seed-0.safetensors").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        demo, "os", SimpleNamespace(name=system, makedirs=os.makedirs, path=os.path)
    )
    monkeypatch.setattr(demo, "_everything", stopped)
    with pytest.raises(KeyboardInterrupt, match=f"--epochs 20 --out {quoted}$"):
        demo.run_demo("my report")


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    theirs, ours = (
        tmp_path / "checkpoints" / name for name in ("mine.safetensors", "seed-3.safetensors")
    )
    theirs.parent.mkdir()
    for path in (theirs, ours):
        path.write_bytes(b"")
    assert demo._saved(theirs.parent) == [ours]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_cannot_be_is_named_before_any_work(tmp_path, seed):
    with pytest.raises(ValueError, match=f"seed must be from 0 to .*, got {seed}"):
        demo.run_demo(tmp_path / "out", seed=seed)
    assert not (tmp_path / "out").exists()


def test_an_empty_name_is_not_the_folder_one_is_in(tmp_path, monkeypatch):
    """As from a shell's variable that was never set."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is empty; write --out DIR, or --out ."):
        demo.run_demo("")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write into .*file.*--out"):
        demo.run_demo(tmp_path / "file")


def test_missing_extras_are_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "NEEDED", {"no_such_module": "no-such-thing", **demo.NEEDED})
    with pytest.raises(
        ImportError,
        match=r'the demo needs no-such-thing: pip install "tinygrad_attn\[examples,viz\]"',
    ):
        demo.run_demo(tmp_path / "out")
    assert not (tmp_path / "out").exists()
