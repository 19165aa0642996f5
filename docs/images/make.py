"""Makes the pictures of README and documentation by running the package: `python
docs/images/make.py`, about ten seconds.
"""

from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.cli import demo
from tinygrad_attn.cli.demo import digits

HERE = Path(__file__).resolve().parent


def digits_attention() -> None:
    """Plot where the darkest patch (blue) of three digits looks (orange), for every head."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    run = demo.train(digits.load_split(0))  # seed 0 of `make demo`
    split = run.split
    images = split.test_images[[np.argmax(split.test_labels == label) for label in (3, 5, 8)]]
    with ta.record_attention() as seen:
        demo.predict(run.model, images)
    weights = np.concatenate([layer for (layer,) in seen.values()], axis=1)  # (N, heads, 16, 16)
    darkest = digits.patches(images).sum(axis=2).argmax(axis=1)
    heads, n = weights.shape[1], digits.SIDE // digits.PATCH
    figure = Figure((1.05 * (1 + heads), 1.12 * len(images) + 0.35), layout="constrained")
    grid = figure.subplots(len(images), 1 + heads)
    for row, image, patch, looks in zip(grid, images, darkest, weights, strict=True):
        for head, axes in enumerate(row, -1):
            axes.imshow(image, cmap="Greys", vmax=1.0 if head < 0 else 2.2, extent=(0, 8, 0, 8))
            axes.set(xticks=[], yticks=[])
            if head >= 0:
                shown = looks[head, patch].reshape(n, n)
                axes.imshow(
                    np.ones((n, n)),
                    cmap="Oranges",
                    vmin=0,
                    vmax=1.6,
                    extent=(0, 8, 0, 8),
                    alpha=0.85 * shown / shown.max(),
                )
            corner = patch % n * 2, 6 - patch // n * 2
            axes.add_patch(Rectangle(corner, 2, 2, fill=False, color="#0072B2", linewidth=1.8))
    for head, axes in enumerate(grid[0, 1:]):
        axes.set_title(f"layer {head // 4 + 1}\nhead {head % 4 + 1}", fontsize=8)
    figure.savefig(HERE / "digits-attention.png", dpi=110)


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


def first_graph() -> None:
    """The graph that the first page of the documentation shows before it is run."""
    x = Tensor([0.5, -1.0, 2.0], requires_grad=True)
    x.name = "x"
    ta.viz.graph(np.sum(np.tanh(x) * x)).save(HERE / "first-graph.svg")


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
    first_graph()
    encoder_layer()
