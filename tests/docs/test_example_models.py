"""The examples that train: a language model with its cache, its checkpoints and Ctrl-C, and an encoder-decoder that sorts."""

import math
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT, installed, require

sys.path.insert(0, str(ROOT / "examples"))

import _manual
import language_model
import sort_sequences

import tinygrad_attn as ta
from tinygrad_attn import nn
from tinygrad_attn.files import load_with_metadata


def run(script, *arguments, folder, quick=True, output="utf-8", **more):
    """An example as a process of its own."""
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": output,
        "MPLBACKEND": "Agg",
    }
    variables.pop("TINYGRAD_ATTN_QUICK", None)
    if quick:
        variables["TINYGRAD_ATTN_QUICK"] = "1"
    return subprocess.run(
        [sys.executable, ROOT / "examples" / script, *map(str, arguments)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        **more,
    )


# ---- the language model: its text and its baselines


@pytest.fixture(scope="module")
def manual():
    return _manual.Manual(tail_multiple=language_model.HALF)


def test_manual_is_split_without_loss(manual):
    assert len(manual.head) + len(manual.tail) == len(manual.all) > 400_000
    assert (
        len(manual.tail) % language_model.HALF == 0
        and 0 <= len(manual.all) // 10 - len(manual.tail) < language_model.HALF
    )
    assert manual.decode(manual.encode("for i in x:\n")) == "for i in x:\n"
    with pytest.raises(ValueError, match="the manual has no '\u4e00'"):
        manual.encode("for \u4e00")


# ---- the language model: the model


def small_model(vocabulary, seed=0):
    ta.manual_seed(seed)
    return language_model.LanguageModel(vocabulary, d_model=16, heads=2, layers=2)


def test_tail_loss_guesses_each_character_of_the_tail_once(manual):
    """With a model that looks only at the character itself, the loss is a table looked up for the characters before each."""
    table = (
        np.random.default_rng(0)
        .normal(size=(manual.vocabulary, manual.vocabulary))
        .astype(np.float32)
    )
    windows = 5
    start, end = manual.start, manual.start + windows * language_model.HALF
    rows = table[manual.all[start - 1 : end - 1]].astype(float)
    expected = np.log(np.exp(rows).sum(axis=-1)) - rows[np.arange(len(rows)), manual.all[start:end]]
    loss = language_model.tail_loss(lambda x: ta.Tensor(table[x]), manual, windows=windows)
    assert math.isclose(loss, expected.mean(), rel_tol=1e-5)


def test_model_is_causal(manual):
    model, text = small_model(manual.vocabulary), manual.all[:40].copy()
    with ta.no_grad():
        before = model(text[None]).numpy()[0]
        text[25] = (text[25] + 1) % manual.vocabulary
        after = model(text[None]).numpy()[0]
    assert np.array_equal(before[:25], after[:25]) and not np.allclose(before[25:], after[25:])


@pytest.mark.parametrize("prompt", [1, 128, 300])
def test_writing_with_the_cache_is_writing_without(manual, prompt):
    """Beyond the end of the context, and with prompts longer than it, too."""
    model = small_model(manual.vocabulary)
    for p in model.parameters():
        p.data[...] *= 8  # far from even, so that a wrong position would show
    start = manual.all[:prompt]
    numbers, scores = language_model.write(
        model, start, 150, language_model.sampler(1.0, 20, seed=3)
    )
    replay = iter(numbers)
    same, plain = language_model.write(model, start, 150, lambda scores: next(replay), cached=False)
    assert same == numbers and len(numbers) == 150
    assert np.allclose(scores, plain, rtol=1e-3, atol=1e-3) and np.ptp(scores) > 5


def test_sampler():
    scores = np.array([0.0, 2.0, 1.0, -1.0], np.float32)
    draw = language_model.sampler(temperature=0.5, top_k=3, seed=1)
    drawn = np.bincount([draw(scores) for _ in range(4000)], minlength=4) / 4000
    p = np.exp(scores[:3] / 0.5)
    assert drawn[3] == 0 and np.allclose(drawn[:3], p / p.sum(), atol=0.03)
    again = (
        language_model.sampler(temperature=0.5, top_k=3, seed=1),
        language_model.sampler(temperature=0.5, top_k=3, seed=1),
    )
    assert [again[0](scores) for _ in range(20)] == [again[1](scores) for _ in range(20)]
    assert all(
        language_model.sampler(1.0, 1, seed)(scores) == 1 == language_model.greedy(scores)
        for seed in range(5)
    )
    assert language_model.sampler(1.0, 99, 0)(scores) in range(4)


# ---- the language model: stopping and going on

SETTINGS = {"steps": 30, "batch": 2, "lr": 3e-3, "d_model": 16, "heads": 2, "layers": 1}


def fresh(manual):
    ta.manual_seed(0)
    return language_model.LanguageModel(manual.vocabulary, 16, 2, 1)


class CtrlC(language_model.Progress):
    """Presses Ctrl-C in the fifth step."""

    def show(self, step, loss):
        if step == 5:
            signal.raise_signal(signal.SIGINT)


def test_stopped_and_resumed_is_the_same_as_never_stopped(manual, tmp_path, monkeypatch, capsys):
    require("safetensors")
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    model = fresh(manual)
    assert language_model.train(model, manual, SETTINGS, whole, resume=False)

    handler, other = signal.getsignal(signal.SIGINT), fresh(manual)
    with monkeypatch.context() as patched:
        patched.setattr(language_model, "Progress", CtrlC)
        assert not language_model.train(other, manual, SETTINGS, cut, resume=False)
    assert signal.getsignal(signal.SIGINT) is handler
    assert load_with_metadata(cut)[1]["step"] == "5", "what was learned up to Ctrl-C is kept"
    resumed = fresh(manual)
    assert language_model.train(resumed, manual, SETTINGS, cut, resume=True)
    for (name, a), b in zip(model.named_parameters(), resumed.parameters()):
        assert np.array_equal(a.numpy(), b.numpy()), name
    assert "step    30 of 30" in capsys.readouterr().out


def test_finished_model_only_writes(tmp_path):
    require("safetensors")
    learned = run(
        "language_model.py", "--steps", 29, "--length", 30, folder=tmp_path
    )  # no multiple of a tenth
    assert learned.returncode == 0, learned.stdout + learned.stderr
    for expected in (
        "^true +before training",
        "^true +the key/value cache",
        r"^  3\.2\d  counting single characters",
        "step +29 of 29",
    ):
        assert re.search(expected, learned.stdout, re.MULTILINE), expected
    written = run("language_model.py", "--resume", "--length", 30, folder=tmp_path)
    assert written.returncode == 0 and "step" not in written.stdout
    assert written.stdout.split("----")[1:] == learned.stdout.split("----")[1:]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--prompt", "\u4e00"], "the manual has no"),
        (["--resume"], "nothing to resume"),
    ],
)
def test_wrong_options(arguments, message, tmp_path):
    require("safetensors")
    (tmp_path / "file").touch()
    done = run("language_model.py", *arguments, folder=tmp_path)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout, "before the training"


# ---- sorting


@pytest.mark.parametrize(
    "task, answer",
    [("sort", [0, 1, 3, 9, 9]), ("reverse", [1, 9, 0, 3, 9]), ("copy", [9, 3, 0, 9, 1])],
)
def test_tasks(task, answer):
    data = sort_sequences.Data(task, 5, seed=0)
    assert data.answer(np.array([[9, 3, 0, 9, 1]])).tolist() == [answer]


def test_nothing_in_training_is_in_the_test():
    data = sort_sequences.Data("sort", 4, seed=0)
    kept = {tuple(s) for s in data.unseen.tolist()}
    assert 900 < len(kept) == len(data.unseen)
    seen = {tuple(s) for _ in range(400) for s in data.batch(512)[0].tolist()}
    assert not seen & kept and len(seen | kept) > 9900, "all the others do come"


def test_the_decoder_is_causal_and_the_cache_changes_nothing():
    ta.manual_seed(0)
    model, rng = sort_sequences.Seq2Seq(6, d_model=16, heads=2), np.random.default_rng(0)
    digits, symbols = (
        rng.integers(0, 10, (3, 6)),
        sort_sequences.shifted(rng.integers(0, 10, (3, 6))),
    )
    assert symbols[:, 0].tolist() == [sort_sequences.START] * 3
    with ta.no_grad():
        whole, memory, cache = (
            model(digits, symbols).numpy(),
            model.read(digits),
            nn.KeyValueCache(),
        )
        steps = np.concatenate(
            [model.write(symbols[:, t : t + 1], memory, cache).numpy() for t in range(6)], axis=1
        )
        later = symbols.copy()
        later[:, 4:] = 5
        other = model(digits, later).numpy()
    assert np.allclose(whole, steps, atol=1e-5)
    assert np.allclose(whole[:, :4], other[:, :4], atol=1e-6) and not np.allclose(
        whole[:, 4:], other[:, 4:], atol=1e-3
    )
    answer = sort_sequences.solve(model, digits)
    with ta.no_grad():
        again = model(digits, sort_sequences.shifted(answer)).numpy().argmax(axis=-1)
    assert np.array_equal(again, answer), "each digit is the likeliest after those before it"


def test_learns_to_sort_and_draws_where_it_looked(tmp_path):
    installed("matplotlib")
    settings = ["--length", 4, "--steps", 100, "--out", "n\u00e9w/where.png"]
    done = run("sort_sequences.py", *settings, folder=tmp_path, output="ascii")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = float(re.search(r"^true +([\d.]+) %", done.stdout, re.MULTILINE)[1])
    assert reached >= 90
    for digits, answer in re.findall(r"^  ([\d ]+)  ->  ([\d ]+)$", done.stdout, re.MULTILINE):
        assert len(digits.split()) == len(answer.split()) == 4
    picture = tmp_path / "n\u00e9w" / "where.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and list(picture.parent.iterdir()) == [
        picture
    ]
