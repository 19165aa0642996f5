"""Real weights in our layers: the embeddings are torch's, the tokeniser is the library's, and the model card's numbers come out."""

import hashlib
import math
import os
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from support import ROOT, require

sys.path.insert(0, str(ROOT / "examples"))

import _wordpiece
import sentence_embeddings

import tinygrad_attn as ta

SENTENCES = [
    "The weather is lovely today.",
    "",
    " \t\n",
    "Café crème brûlée, naïve façade Ångström İstanbul ΟΔΟΣ",
    "我爱北京天安门, 東京都 and こんにちは 안녕",
    "\U0001f600 ☃ ᚠᚢ \ufffd zero\u200bwidth soft\u00adhyphen",
    "unaffable antidisestablishmentarianism $5.99+tax (50%)",
    "a" * 100,
    "a" * 101,
    "x" * 99 + "中",
    "[CLS] a [MASK]b[SEP] [sep]",
    "word " * 300,
    "no\x00nul\x07bell\u3000wide\u2028line",
    "Привет мир, γειά σου κόσμε",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
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

    x = (
        w["embeddings.word_embeddings.weight"][numbers]
        + w["embeddings.position_embeddings.weight"][: len(numbers)]
    )
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")  # (S, E)
    for i in range(6):
        here = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{here}.attention.self.{part}").view(-1, 12, 32).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        heads = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(32), dim=-1) @ v  # (H, S, D)
        heads = linear(heads.transpose(0, 1).reshape(-1, 384), f"{here}.attention.output.dense")
        x = norm(x + heads, f"{here}.attention.output.LayerNorm")
        x = norm(
            x + linear(f.gelu(linear(x, f"{here}.intermediate.dense")), f"{here}.output.dense"),
            f"{here}.output.LayerNorm",
        )
    return f.normalize(x.mean(dim=0), dim=0).numpy()


@pytest.fixture(scope="module")
def reference(folder):
    """Torch's vector of a sentence; the two tokenisers give the same numbers, so each is computed once."""
    weights = ta.load(folder / "model.safetensors")
    return cache(lambda *numbers: torch_embedding(weights, [*numbers]))


@pytest.mark.parametrize("own", [False, True])
def test_embeddings_are_those_of_torch(folder, model, reference, own):
    if not own:
        require("tokenizers")
    tokenize = sentence_embeddings.load_tokenizer(folder, own=own)
    ours = sentence_embeddings.embed(
        model, tokenize, SENTENCES, batch=5
    )  # padded to the longest of five
    assert ours.shape == (len(SENTENCES), 384) and ours.dtype == np.float32
    for sentence, vector in zip(SENTENCES, ours):
        numbers = tokenize(sentence)
        assert 2 <= len(numbers) <= 256
        assert np.abs(vector - reference(*numbers)).max() < 1e-5, sentence
    assert len(tokenize("word " * 300)) == 256


def test_padding_does_not_matter(folder, model):
    tokenize = sentence_embeddings.load_tokenizer(folder, own=True)
    alone = np.concatenate([sentence_embeddings.embed(model, tokenize, [s]) for s in SENTENCES[:4]])
    together = sentence_embeddings.embed(model, tokenize, [*SENTENCES[:4], "word " * 60])[:4]
    assert np.abs(alone - together).max() < 1e-5 and np.allclose(
        np.linalg.norm(alone, axis=1), 1, atol=1e-6
    )


def test_similarities_of_the_model_card(folder, model):
    vectors = sentence_embeddings.embed(
        model, sentence_embeddings.load_tokenizer(folder), sentence_embeddings.CARD
    )
    found = [f"{vectors[i] @ vectors[j]:.4f}" for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found == ["0.6660", "0.1046", "0.1411"]


def test_only_the_published_file_is_loaded(tmp_path):
    require("safetensors")
    ta.save({"words.weight": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=f"{digest}.*--force-reinstall"):
        sentence_embeddings.load_model(tmp_path)


def run(*arguments, folder, encoding="utf-8"):
    """The example as a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "sentence_embeddings.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding=encoding,
        timeout=300,
        env=variables,
    )


def test_search_finds_by_meaning(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("The dog sleeps.\n\nStocks fell sharply.\n", "utf-8")
    done = run(
        "a tired animal",
        "financial markets",
        "--sentences",
        "notes.txt",
        "--top",
        "1",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("a tired animal")[1].split("financial markets")
    assert (
        "The dog sleeps." in answers[0]
        and "Stocks fell sharply." in answers[1]
        and "Stocks" not in answers[0]
    )
    missing = run("--sentences", "none.txt", folder=tmp_path)
    assert missing.returncode == 1 and "could not read 'none.txt'" in missing.stderr


# ---- our tokeniser


def test_words():
    assert _wordpiece.words("O\u00f9 est-il?\tNa\u00efve!") == [
        "ou",
        "est",
        "-",
        "il",
        "?",
        "naive",
        "!",
    ]
    assert _wordpiece.words("\u5317\u4eac2008") == ["\u5317", "\u4eac", "2008"]


def test_pieces():
    cut = _wordpiece.WordPiece(
        ["[UNK]", "[CLS]", "[SEP]", "una", "##ffa", "##ble", "un", "!"], max_length=5
    )
    assert cut.pieces("Unaffable! un") == ["una", "##ffa", "##ble", "!", "un"]
    assert cut.pieces("unaffableness") == ["[UNK]"] and cut.pieces("") == []
    assert cut("Unaffable!") == [1, 3, 4, 5, 2], "cut off after three pieces"


def test_our_tokeniser_agrees_with_the_library(folder):
    require("tokenizers")
    library, own = (sentence_embeddings.load_tokenizer(folder, own=own) for own in (False, True))
    draw, blocks = random.Random(0), [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x530), (0x5D0, 0x5EB)]
    blocks += [
        (0x621, 0x64B),
        (0x3041, 0x3097),
        (0x4E00, 0x4F00),
        (0xAC00, 0xAD00),
        (0x1F600, 0x1F640),
    ]
    letters = [letter for block in blocks for letter in range(*block)]
    made = ["".join(map(chr, draw.choices(letters, k=draw.randrange(25)))) for _ in range(1500)]
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()[1000:]
    words = [word.removeprefix("##") for word in lines]
    made += ["".join(draw.choices(words, k=draw.randrange(1, 4))) for _ in range(1500)]
    for sentence in [*SENTENCES, *made]:
        assert library(sentence) == own(sentence), repr(sentence)
