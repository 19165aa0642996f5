"""The report's pictures: matplotlib figures as SVG text.

Their colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .digits import CLASSES, PATCH, SIDE
from .training import Run

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#767676",
)
RUN_COLOURS = (BLUE, ORANGE, PURPLE, GREEN)


def figure(width: float, height: float) -> Any:
    """A figure that pyplot does not know of, so that no window opens and none need be closed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def svg(fig: Any) -> str:
    """The figure as SVG, the same text on every run."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "tinygrad_attn"}):
        fig.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def smoothed(values: Sequence[float], window: int = 23) -> NDArray[Any]:
    """The mean of the last `window` values at each place: about one epoch."""
    total = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (total[ends] - total[starts]) / (ends - starts)


def learning_curves(runs: Sequence[Run], baselines: Mapping[str, float]) -> Any:
    """Left the loss of every update and its running mean, right the accuracy after every epoch."""
    fig = figure(9.6, 3.6)
    left, right = fig.subplots(1, 2)
    for run, colour in zip(runs, itertools.cycle(RUN_COLOURS), strict=False):
        per_epoch = len(run.losses) / max(1, len(run.accuracies))
        epochs = np.arange(1, len(run.losses) + 1) / per_epoch
        left.plot(epochs, run.losses, color=colour, alpha=0.18, linewidth=0.8)
        left.plot(epochs, smoothed(run.losses), color=colour, linewidth=1.8, label=run.split.name)
        right.plot(
            np.arange(1, len(run.accuracies) + 1),
            run.accuracies,
            color=colour,
            marker=".",
            linewidth=1.5,
            label=run.split.name,
        )
    left.set(xlabel="epoch", ylabel="loss (cross-entropy)", title="Training loss")
    right.set(xlabel="epoch", ylabel="right answers, %", title="Accuracy on unseen images")
    lowest = min(min(run.accuracies) for run in runs)
    right.set_ylim(
        max(
            0.0,
            min(
                94.0, float(np.median([a for run in runs for a in run.accuracies])) - 3, lowest + 40
            ),
        ),
        100.3,
    )
    for (name, value), style in zip(baselines.items(), (":", "--"), strict=False):
        right.axhline(
            value, color=GREY, linestyle=style, linewidth=1.2, label=f"{name} {value:.1f} %"
        )
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    right.legend(frameon=False, loc="lower right", fontsize=9)
    return fig


def confusion(true: NDArray[Any], said: NDArray[Any]) -> Any:
    """Rows are the digits that were written, columns what the model said.

    Errors have a colour, right answers only a number.
    """
    counts = np.zeros((CLASSES, CLASSES), dtype=int)
    np.add.at(counts, (true, said), 1)
    wrong = np.where(np.eye(CLASSES, dtype=bool), 0, counts)
    fig = figure(4.8, 4.6)
    axes = fig.subplots()
    axes.imshow(wrong, cmap="Oranges", vmin=0, vmax=max(3, wrong.max() * 1.3))
    for i in range(CLASSES):
        for j in range(CLASSES):
            if counts[i, j]:
                axes.text(
                    j,
                    i,
                    str(counts[i, j]),
                    ha="center",
                    va="center",
                    fontsize=10,
                    color=GREY if i == j else "black",
                    fontweight="normal" if i == j else "bold",
                )
    axes.set(
        xticks=range(CLASSES),
        yticks=range(CLASSES),
        xlabel="the model said",
        ylabel="what was written",
    )
    axes.set_xticks(np.arange(-0.5, CLASSES), minor=True)
    axes.set_yticks(np.arange(-0.5, CLASSES), minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.8)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    return fig


def show_digit(axes: Any, image: NDArray[Any], *, faint: bool = False) -> None:
    """One image, dark ink on white paper."""
    axes.imshow(image, cmap="Greys", vmin=0, vmax=2.2 if faint else 1.0, extent=(0, SIDE, SIDE, 0))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color="#bbbbbb", linewidth=0.6)


def brightest_patch(tokens: NDArray[Any]) -> int:
    """The number of the patch with the most ink, of (16, 4): its attention is worth a look."""
    return int(tokens.sum(axis=1).argmax())


def attention_maps(
    images: NDArray[Any], layers: Sequence[NDArray[Any]], queries: Sequence[int]
) -> Any:
    """Where one patch of each image looks, head by head.

    Orange is much attention, and the blue square is the patch that looks.

    images (N, 8, 8), layers a list of weights (N, H, 16, 16), queries the number of the looking
    patch in each image.
    """
    from matplotlib.patches import Rectangle

    heads = layers[0].shape[1]
    columns = 1 + len(layers) * heads
    n = SIDE // PATCH
    fig = figure(1.05 * columns, 1.12 * len(images) + 0.35)
    grid = fig.subplots(len(images), columns, squeeze=False)
    for row, (image, query) in enumerate(zip(images, queries, strict=True)):
        for column, axes in enumerate(grid[row]):
            show_digit(axes, image, faint=column > 0)
            if column:
                layer, head = divmod(column - 1, heads)
                weights = layers[layer][row, head, query].reshape(n, n)
                axes.imshow(
                    np.ones((n, n)),
                    cmap="Oranges",
                    vmin=0,
                    vmax=1.6,
                    alpha=np.clip(weights / weights.max(), 0, 1) * 0.85,
                    extent=(0, SIDE, SIDE, 0),
                )
                if row == 0:
                    axes.set_title(f"layer {layer + 1}\nhead {head + 1}", fontsize=8)
            corner = (query % n * PATCH, query // n * PATCH)
            axes.add_patch(
                Rectangle(corner, PATCH, PATCH, fill=False, edgecolor=BLUE, linewidth=1.8)
            )
    return fig


def mistakes(
    images: NDArray[Any], true: NDArray[Any], probabilities: NDArray[Any], limit: int = 16
) -> Any:
    """The wrongly read images, what was written, and what the model thought of it."""
    columns = min(8, max(1, len(images)))
    rows = max(1, -(-min(limit, len(images)) // columns))
    fig = figure(1.35 * columns, 1.75 * rows)
    for axes in fig.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, image, digit, p in zip(fig.axes, images, true, probabilities, strict=False):
        axes.set_axis_on()
        show_digit(axes, image)
        said = int(p.argmax())
        axes.set_title(f"{digit} read as {said}", fontsize=9, color=RED)
        axes.set_xlabel(f"sure to {100 * p[said]:.0f} %", fontsize=8)
    return fig
