"""Makes the pictures of README and documentation by running the package: `python
docs/images/make.py`, about ten seconds.
"""

import tempfile
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.cli.demo import digits, report, training

HERE = Path(__file__).resolve().parent


def digits_attention() -> None:
    """Where the trained digit classifier looks: seed 0 of `make demo`."""
    with tempfile.TemporaryDirectory() as folder:
        run = training.train(
            training.Settings(), digits.load_split(0), Path(folder) / "c.safetensors"
        )
    report.attention_figure(run, (3, 5, 8)).savefig(HERE / "digits-attention.png", dpi=110)


def reversing() -> None:
    """What the README's first program learns."""

    class Reverser(nn.Module):
        def __init__(self) -> None:
            self.embed = nn.Embedding(10, 32)
            self.positions = nn.LearnedPositionalEncoding(6, 32)
            self.layer = nn.TransformerEncoderLayer(32, 1, 64, dropout=0.0, batch_first=True)
            self.out = nn.Linear(32, 10)

        def forward(self, x):
            return self.out(self.layer(self.positions(self.embed(x)))).mT

    ta.manual_seed(0)
    rng = np.random.default_rng(0)
    model = Reverser()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(200):
        sequences = rng.integers(0, 10, (64, 6))
        loss = F.cross_entropy(model(sequences), sequences[:, ::-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    question = np.array([[3, 1, 4, 1, 5, 9]])
    with ta.record_attention() as seen:
        answer = model(question).argmax(axis=1)
    axes = ta.viz.attention(
        seen["layer.self_attn"][0][0, 0], [str(n) for n in answer[0]], [str(n) for n in question[0]]
    )
    axes.set_xlabel("input")
    axes.set_ylabel("output")
    axes.figure.savefig(HERE / "reverse-attention.png", dpi=110, bbox_inches="tight")


def graph() -> None:
    """The graph of an expression with a tensor that is used twice."""
    w = Tensor([0.5, -1.0, 2.0], requires_grad=True)
    x = Tensor([1.0, 2.0, 3.0])
    w.name, x.name = "w", "x"
    y = np.tanh(w * x)
    loss = np.sum(y * y)
    loss.backward(retain_graph=True)
    ta.viz.graph(loss).save(HERE / "graph.svg")


def encoder_layer() -> None:
    """An encoder layer with its attention opened."""
    ta.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    y = layer(ta.randn(2, 5, 16))
    ta.viz.graph(y, model=layer, depth=1).save(HERE / "encoder-layer.svg")


if __name__ == "__main__":
    digits_attention()
    reversing()
    graph()
    encoder_layer()
