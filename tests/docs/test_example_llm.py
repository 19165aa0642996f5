"""The language model in examples/: loader and chat, with a small random model and, if it is installed, with the real one.

The reference is tests/helpers/tinyllama.py, which computes the scores with PyTorch's plain functions.
"""

import base64
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from pages import blocks
from support import ROOT, require

require("gguf")
require("tokenizers")
require("torch")
sys.path.insert(0, str(ROOT / "examples"))

import _smollm
import chat
import inside
import lora
import tinyllama

import tinygrad_attn as ta
from tinygrad_attn import nn

SMALL = {"heads": 4, "kv_heads": 2, "base": 100.0, "eps": 1e-5}
REAL = {"heads": 9, "kv_heads": 3, "base": 100000.0, "eps": 1e-5}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    return path, tinyllama.write(path)


@pytest.fixture(scope="module")
def small(file):
    return _smollm.load(file[0])


@pytest.fixture(scope="module")
def real():
    if _smollm.missing():
        pytest.skip(_smollm.missing())
    return _smollm.load()


def run(script, *arguments, folder, typed=""):
    """An example as a process of its own."""
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.run(
        [sys.executable, ROOT / "examples" / script, *map(str, arguments)],
        **{"cwd": folder, "env": variables, "input": typed, "timeout": 300},
        **{"capture_output": True, "text": True, "encoding": "utf-8"},
    )


# ---- the loader


def test_the_file_is_read_exactly(file, small):
    """Queries and keys are arranged for pairs D/2 apart, and tall matrices are contiguous by column."""
    weights, (model, _) = file[1], small
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, parameter in parameters.items():
        array = parameter.numpy()
        assert np.array_equal(array, weights[name]) and array.dtype == np.float32, name
        assert array.flags.writeable and not parameter.requires_grad, name
        if array.ndim == 2:
            assert array.flags.f_contiguous == (array.shape[0] >= array.shape[1]), name


def test_initial_values_are_drawn_again_after_the_file_is_read(small):
    ta.manual_seed(0)
    assert np.ptp(nn.Linear(3, 4).weight.numpy()) > 0 and (nn.RMSNorm(3).weight.numpy() == 1).all()


def test_a_file_without_a_tensor_is_refused(tmp_path):
    tinyllama.write(tmp_path / "cut.gguf", leave_out=["blk.1.ffn_up.weight"])
    with pytest.raises(ValueError, match=r"differs from the model.*layers\.1\.mlp\.up_proj"):
        _smollm.load(tmp_path / "cut.gguf")


@pytest.mark.parametrize("length", [1, 2, 37])
def test_scores_are_those_of_torch(file, small, length):
    tokens = np.random.default_rng(length).integers(0, 250, length)
    expected = tinyllama.scores(file[1], tokens, **SMALL)
    with ta.no_grad():
        ours = small[0]([tokens])[0].numpy()
        last = small[0]([tokens], last=1)[0].numpy()
    assert np.ptp(expected) > 5 and np.abs(ours - expected).max() < 1e-3
    assert np.allclose(last, ours[-1:], atol=1e-5)


def test_the_decoder_is_the_model(small):
    model, cache, other = small[0], nn.KeyValueCache(), nn.KeyValueCache()
    decoder = _smollm.Decoder(model)
    with ta.no_grad():
        for new in ([3, 14, 15], [9], [2], [6, 5], [35]):
            theirs = model([new], cache)[0].numpy()
            ours = [decoder(token, other) for token in new]
            assert np.abs(theirs - ours).max() < 1e-4 and ours[0].dtype == np.float32
    assert cache.length == other.length == 8


def test_the_tokeniser_cuts_bytes_digits_and_marks(small):
    tokenizer, (tokens, _) = small[1], tinyllama.vocabulary()
    cut = lambda text: [tokens[i] for i in tokenizer.encode(text).ids]
    assert cut("the store gave 12") == [
        "t",
        "h",
        "e",
        "\u0120store",
        "\u0120gave",
        "\u0120",
        "1",
        "2",
    ]
    assert cut("<|im_start|>user\n") == ["<|im_start|>", "user", "\u010a"]
    for text in ("the caf\u00e9, \U0001f600\n", "  and 2026"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


# ---- the conversation


def test_a_conversation_with_the_cache_is_one_without(small):
    """Two questions, one answer cut short: every score is that of the whole text so far, read at once."""
    model, tokenizer = small
    talk = chat.Conversation(model, tokenizer, chat.chooser(1.0, 0.9, seed=3))
    encode = lambda text: tokenizer.encode(text).ids
    ids = encode(chat.message("system", chat.SYSTEM))
    for question, longest in (("the store", 3), ("and 12?", 9)):
        ids += encode(chat.message("user", question) + "<|im_start|>assistant\n")
        before = len(ids)
        for token, scores in talk.answer(question, longest):
            with ta.no_grad():
                assert np.allclose(scores, model([ids], last=1)[0, -1].numpy(), atol=1e-3)
            ids.append(token)
        assert len(ids) - before == longest or token == talk.end
        ids += encode("\n" if token == talk.end else f"{chat.END}\n")
    with pytest.raises(chat.Full, match="at most 128 tokens"):
        for _ in talk.answer("the " * 60):
            pass


def test_nucleus_sampling():
    scores = np.log(np.array([0.1, 0.5, 0.05, 0.3, 0.05], np.float32))

    def draw(*settings):
        choose = chat.chooser(*settings, 0)
        return np.bincount([choose(scores) for _ in range(1000)], minlength=5)

    assert np.allclose(draw(1.0, 0.75) / 1000, [0, 0.625, 0, 0.375, 0], atol=0.05)
    assert (draw(1.0, 0.81) > 0).tolist() == [True, True, False, True, False]
    assert chat.chooser(0, 1.0, 0)(scores) == 1 and draw(0.2, 1.0).argmax() == 1
    same = [[chat.chooser(1.0, 1.0, seed)(scores) for _ in range(3)] for seed in (5, 5)]
    assert same[0] == same[1]


def test_letters_of_several_tokens_are_shown_whole(small):
    ids = small[1].encode("a caf\u00e9 \U0001f600!").ids
    pieces = list(chat.shown(small[1], ((token, None) for token in ids)))
    assert (
        "".join(pieces) == "a caf\u00e9 \U0001f600!"
        and "\ufffd" not in "".join(pieces)
        and "" in pieces
    )


def test_chat_in_a_terminal(file, tmp_path):
    arguments = ["--model", file[0], "--longest", 5, "--temperature", 1, "--seed", 1]
    first, again = (
        run("chat.py", *arguments, folder=tmp_path, typed="Hello\nand?\n") for _ in range(2)
    )
    assert first.returncode == 0 and first.stdout.count("tokens per second") == 2, first.stderr
    strip = lambda done: [
        line for line in done.stdout.splitlines() if "second" not in line and "read in" not in line
    ]
    assert strip(first) == strip(again), "the seed decides"
    table = run("chat.py", *arguments, "--top", 3, "Hello", folder=tmp_path)
    lines = [line for line in table.stdout.splitlines() if " from  " in line]
    assert 1 <= len(lines) <= 5 and all(line.count("%") >= 3 for line in lines), table.stdout


@pytest.mark.parametrize("name", _smollm.PACKAGES)
def test_what_to_install_is_said_in_one_sentence(name, monkeypatch, capsys):
    monkeypatch.setattr(_smollm, "find_spec", lambda other: None if other == name else other)
    monkeypatch.setattr(sys, "argv", ["chat.py", "Hello"])
    chat.main()
    said = capsys.readouterr().out
    assert said == f"skipped: {name} is not installed ({_smollm.PACKAGES[name]})\n"
    assert (_smollm.missing("a file") is None) == (name == _smollm.WEIGHTS)


# ---- the page: ablations and patches are computed again by the reference, without ta.patch

PROMPT = "the store gave 12"


def log_p(weights, tokens, change=lambda what, n, y: y):
    """The reference's log p (V,) of the next token."""
    last = tinyllama.scores(weights, tokens, **SMALL, change=change)[-1].astype(float)
    return last - np.log(np.exp(last).sum())


@pytest.fixture(scope="module")
def page(small, tmp_path_factory):
    made = inside.inside(*small, [PROMPT, "Hello"])
    path = tmp_path_factory.mktemp("page") / "inside.html"
    made.save(path)
    return path, json.loads(re.search(r'id="data">(.*?)</script>', made, re.DOTALL)[1])


@pytest.mark.parametrize("kind", ["mean", "zero"])
def test_ablations_by_hand(file, small, page, kind):
    import torch

    (model, tokenizer), weights = small, file[1]
    tokens = tokenizer.encode(PROMPT).ids
    text = tokenizer.encode(inside.topics["class"]).ids[:256]
    means = []  # of each layer, (H D,)
    keep = lambda what, n, y: (means.append(y[1:].mean(0)), y)[1] if what == "heads" else y
    tinyllama.scores(weights, text, **SMALL, change=keep)
    whole = log_p(weights, tokens)
    effects = np.zeros((3, 4))
    for layer, head in np.ndindex(effects.shape):
        columns = slice(16 * head, 16 * head + 16)

        def ablated(what, n, y):
            if (what, n) == ("heads", layer):
                y[:, columns] = means[n][columns] if kind == "mean" else torch.zeros(16)
            return y

        changed = log_p(weights, tokens, ablated)
        effects[layer, head] = (changed - whole)[whole.argmax()]
    assert page[1]["prompts"][0]["answer"] == tokenizer.decode([int(whole.argmax())])
    assert np.abs(effects).max() > 1
    assert np.allclose(page[1]["prompts"][0]["effects"][kind], effects, atol=2e-3)


def test_patches_by_hand(file, small, page):
    weights, encode = file[1], lambda text: small[1].encode(text).ids
    given, other = (
        encode(inside.SENTENCE.format(*names)) for names in (("Mary", "John"), ("John", "Mary"))
    )
    right, wrong = (encode(f" {name}")[-1] for name in ("Mary", "John"))
    states = []
    keep = lambda what, n, y: (states.append(y.clone()), y)[1] if what == "layer" else y
    score = lambda p: p[right] - p[wrong]
    high, low = score(log_p(weights, given, keep)), score(log_p(weights, other))
    effects = np.array(page[1]["patching"]["effects"])
    assert effects.shape == (3, len(given)) and np.allclose(
        page[1]["patching"]["ends"], [high, low], atol=2e-3
    )
    for layer, place in (0, 5), (0, len(given) - 1), (1, 7), (1, 20), (2, 3), (2, len(given) - 1):

        def patched(what, n, y):
            if (what, n) == ("layer", layer):
                y[place] = states[layer][place]
            return y

        changed = score(log_p(weights, other, patched))
        assert np.isclose(effects[layer, place], (changed - low) / (high - low), atol=3e-3)
    columns, heads = slice(16, 32), []  # head 1 of layer 1, at all tokens
    log_p(
        weights, given, lambda what, n, y: (heads.append(y.clone()), y)[1] if what == "heads" else y
    )

    def carried(what, n, y):
        if (what, n) == ("heads", 1):
            y[:, columns] = heads[1][:, columns]
        return y

    share = (score(log_p(weights, other, carried)) - low) / (high - low)
    assert np.isclose(page[1]["scores"]["names"][1][1], share, atol=3e-3) and share != 0
    assert (effects[2, :-1] == 0).all() and effects[2, -1] == 1, (
        "the last layer's last state is all"
    )


def test_saliency_is_a_slope(small, page):
    """Both kinds are compared with differences of log p, along each token and along each axis of one."""
    model, tokenizer = small
    tokens = tokenizer.encode(PROMPT).ids
    with ta.no_grad():
        x = model.embed_tokens([tokens]).numpy()
        answer = int(inside.next_log_p(model, x).numpy().argmax())
        value = lambda moved: inside.next_log_p(model, x + moved.astype(np.float32))[
            0, answer
        ].item()

        def slope(direction):
            return (value(direction / 100) - value(-direction / 100)) * 50

        rows, axes = np.eye(len(tokens))[..., None], np.eye(64)
        along = [slope(x[0] * row) for row in rows]
        gradient = [slope(rows[-1] * axis) for axis in axes]
    saliency = page[1]["prompts"][0]["saliency"]
    assert np.ptp(along) > 0.1 and np.allclose(saliency["times"], along, atol=0.01)
    assert np.isclose(saliency["gradient"][-1], np.linalg.norm(gradient), rtol=0.02)


def test_lens_and_weights_of_the_page(file, small, page):
    data, (model, tokenizer) = page[1]["prompts"][0], small
    tokens = tokenizer.encode(PROMPT).ids
    p = np.exp(log_p(file[1], tokens))
    best = [[tokenizer.decode([i]), round(float(p[i]), 3)] for i in np.argsort(-p)[:5]]
    assert data["lens"][-1][-1] == best and len(data["lens"]) == 4
    with ta.no_grad(), ta.record_attention(model) as seen:
        model([tokens])
    packed = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(3, 4, -1)
    for layer, (weights,) in enumerate(seen.values()):
        expected = weights[0][:, *np.tril_indices(len(tokens))]
        assert np.abs(packed[layer] / 255 - expected).max() < 1 / 255


def test_controls_are_other_heads_of_the_same_layers(small, monkeypatch):
    sets, replaced = [], inside.replaced
    keep = lambda model, heads, values: (sets.append(heads[0]), replaced(model, heads, values))[1]
    monkeypatch.setattr(inside, "replaced", keep)
    score = np.array([[5, 4, 0, 0], [0, 0, 0, 3], [0, 0, 0, 0]])
    found = inside.compare(
        small[0], score, 3, np.zeros((3, 1, 64), np.float32), lambda: len(sets), draws=30
    )
    assert found == {
        "heads": [[0, 0], [0, 1], [1, 3]],
        "whole": 1,
        "without": 2,
        "controls": [*range(3, 33)],
    }
    assert not sets[0].any() and sets[1].sum() == 3
    for control in sets[2:]:
        assert control.sum(axis=1).tolist() == [2, 1, 0] and not (control & sets[1]).any()
    assert len({control.tobytes() for control in sets[2:]}) == 3


def test_a_prompt_that_does_not_fit_is_refused(small):
    with pytest.raises(ValueError, match="has 2 to 60 tokens"):
        inside.inside(*small, ["the " * 80])


# ---- adapters


def test_adapters_learn_and_change_nothing_else(file, capsys):
    """With checkpoints, the gradients are the same; before the first step, so are the scores."""
    model, tokenizer = _smollm.load(file[0])
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    tokens = tokenizer.encode("the store gave and to 12, " * 3).ids
    without = lora.loss(model, tokens).item()
    ta.manual_seed(0)
    adapters = lora.add_adapters(model.layers[-2:], rank=2)
    assert lora.loss(model, tokens).item() == without
    gradients = []
    for checkpoint in (False, True):
        adapters.zero_grad()
        lora.loss(model, tokens, trained=2, checkpoint=checkpoint).backward()
        gradients.append([p.grad.numpy() for p in adapters.parameters()])
    assert all(map(np.array_equal, *gradients)) and any(g.any() for g in gradients[0])
    losses = []
    lora.fine_tune(
        model, adapters, tokens, 12, 0.02, lambda step, value: losses.append(value), trained=2
    )
    assert losses[-1] < losses[0] - 0.5
    assert sum(p.size for p in adapters.parameters()) == 2 * 2 * (64 + 64 + 64 + 32)
    for name, p in model.named_parameters():
        assert np.array_equal(p.numpy(), before[name]) and p.grad is None, name


def test_fine_tuning_from_the_command_line(file, tmp_path):
    done = run("lora.py", "--model", file[0], "--topic", "truth", "--steps", 3, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("before: loss", "after: loss", "MB with checkpoints", "step   3 of 3", "held out"):
        assert said in done.stdout, said


# ---- the real model

QUESTIONS = "Why is the sky blue?", "Translate 'good morning' to French."


def test_real_answers_are_those_of_torch(real):
    """Greedy tokens of two prompts with the cache; every score is that of PyTorch for the whole text."""
    model, tokenizer = real
    weights = {name: p.numpy() for name, p in model.named_parameters()}
    decoder = _smollm.Decoder(model)
    for question in QUESTIONS:
        ids = tokenizer.encode(chat.message("user", question) + "<|im_start|>assistant\n").ids
        cache, start = nn.KeyValueCache(), len(ids)
        with ta.no_grad():
            ours = [model([ids], cache, last=1)[0, -1].numpy()]
        ids.append(int(ours[0].argmax()))
        for _ in range(3):
            ours.append(decoder(ids[-1], cache))
            ids.append(int(ours[-1].argmax()))
        theirs = tinyllama.scores(weights, ids[:-1], **REAL)[start - 1 :]
        assert np.abs(np.stack(ours) - theirs).max() < 1e-3
        assert theirs.argmax(-1).tolist() == ids[start:], question


def test_the_chapter_s_numbers_of_the_real_model(real, monkeypatch):
    """All blocks of chapter 22, with the one that needs the weights."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(_smollm, "load", lambda: real)
    page = ROOT / "docs" / "course" / "22-a-language-model-opened.md"
    namespace, found = {}, blocks(page.read_text("utf-8"))
    for block in found:
        exec(compile(block.code, f"{page.name}, line {block.line}", "exec"), namespace)
    assert [bool(block.skip) for block in found] == [False] * 5 + [True]


def test_heads_of_the_real_model_matter_beside_random_ones(real):
    """The heads that were chosen on other random tokens, and the head that carries most of the name."""
    model, tokenizer = real
    means = np.zeros((30, 1, 576), np.float32)
    with ta.no_grad():
        tokens = np.random.default_rng(5).integers(1000, 20000, 32).tolist() * 2
        score = np.zeros((30, 9))
        score[[17, 17, 17, 18, 18, 20, 23, 23], [3, 4, 5, 6, 7, 6, 2, 7]] = 1
        found = inside.compare(
            model, score, 8, means, lambda: inside.loss(model, tokens, 33), draws=2
        )
        assert found["whole"] < 3 < max(found["controls"]) + 1 and max(found["controls"]) < 4
        assert found["without"] > 8
        pair, score = inside.sentences(tokenizer, ["Mary", "John"], ["John", "Mary"])
        (given, _), (old, _) = (inside.watch(model, tokens) for tokens in pair)
        one = np.zeros((1, 30, 9), bool)
        one[0, 23, 3] = True
        values = inside.head_outputs(model, pair[0])
        with inside.replaced(model, one, values):
            moved = inside.next_log_p(model, old[:1])[0].numpy()
        ends = [inside.next_log_p(model, x[:1])[0].numpy() for x in (given, old)]
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    high, low, middle = (p[mary] - p[john] for p in (*ends, moved))
    assert ends[0].argmax() == mary and abs((middle - low) / (high - low) - 0.578) < 0.01
