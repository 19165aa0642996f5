"""A trained model as one NumPy file, which classifies handwritten digits without this package.

The digits model is trained for a few epochs. `ta.source` writes its forward pass as plain NumPy,
and `ta.save` writes its weights in safetensors. Then a new Python that cannot import the package
loads both and classifies the test images. Its answers are the same, and you can read the file from
top to bottom.

You need scikit-learn for the images, and safetensors: `pip install 'tinygrad_attn[examples]'`.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim

for package, name in (("sklearn", "scikit-learn"), ("safetensors", "safetensors")):
    if find_spec(package) is None:
        print(f"skipped: {name} is not installed (pip install {name})")
        sys.exit()

from sklearn.datasets import load_digits

EPOCHS = 1 if "TINYGRAD_ATTN_QUICK" in os.environ else 10
BATCH, PATCH, TRAINED_ON = 64, 2, 1437


class Digits(nn.Module):
    """(B, 16, 4), sixteen patches of 2 x 2 pixels, -> (B, 10)"""

    def __init__(self, width=32, heads=4, layers=2):
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.positions = nn.LearnedPositionalEncoding(16, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width))
        self.classify = nn.Linear(16 * width, 10)

    def forward(self, patches):
        hidden = self.encoder(self.positions(self.embed(patches)))  # (B, 16, E)
        return self.classify(hidden.reshape(len(hidden), -1))  # (B, 10)


def load():
    """Return patches (N, 16, 4) and digits (N,)."""
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 4, PATCH, 4, PATCH)
    return images.swapaxes(2, 3).reshape(-1, 16, PATCH * PATCH), digits


def train(model, x, y):
    """Train for a few epochs."""
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    order = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for batch in np.array_split(order.permutation(len(x)), len(x) // BATCH):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1:2d}  loss of the last batch {loss.item():.3f}")


# Code for a machine with NumPy and safetensors but without this package.
ELSEWHERE = """
import sys
sys.modules["tinygrad_attn"] = None  # from here on, importing it is an error
import numpy as np
from safetensors.numpy import load_file
sys.path.insert(0, ".")
from digits import forward

patches = np.load("patches.npy")
scores = forward(patches, **load_file("digits.safetensors"))
np.save("answers.npy", scores.argmax(axis=-1))
"""


def main():
    x, y = load()
    test_x, test_y = x[TRAINED_ON:], y[TRAINED_ON:]
    ta.manual_seed(0)
    model = Digits()
    train(model, x[:TRAINED_ON], y[:TRAINED_ON])
    model.eval()
    with ta.no_grad():
        answers = model(test_x).numpy().argmax(axis=-1)

    program = ta.source(model, test_x, backward=False)
    lines = program.text.count("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        program.save(path / "digits.py")
        ta.save(program.arrays(), path / "digits.safetensors")
        np.save(path / "patches.npy", test_x)
        sizes = [(path / f"digits.{end}").stat().st_size // 1024 for end in ("py", "safetensors")]
        print(f"digits.py: {lines} lines, {sizes[0]} KB; digits.safetensors: {sizes[1]} KB")
        done = subprocess.run([sys.executable, "-I", "-c", ELSEWHERE], cwd=path)
        if done.returncode:
            return done.returncode
        elsewhere = np.load(path / "answers.npy")

    print("\nIts last lines:\n" + "\n".join(program.text.splitlines()[-6:]))
    same = np.array_equal(answers, elsewhere)
    print(f"\nright: {(elsewhere == test_y).mean():.1%} of {len(test_y)} images")
    print(f"{'true ' if same else 'false'}      the file gives the same answers as the model")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
