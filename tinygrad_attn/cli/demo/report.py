"""The report: one HTML file with numbers, curves, attention and mistakes."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import record_attention
from ...viz import graph
from ...viz.page import as_json, page, write
from .digits import CLASSES, patches
from .training import DigitClassifier, Run, loss_of, predict

BLUE, GREY = "#0072B2", "#767676"
COLOURS = (BLUE, "#E69F00", "#CC79A7", "#009E73")
"""The palette of Okabe and Ito, which readers with any colour vision tell apart."""


def accuracy_table(runs: Sequence[Run], baselines: Sequence[Mapping[str, float]]) -> str:
    """The accuracy of each method on each split, in %, as lines of text."""
    rows = {"Transformer (this program)": [run.accuracies[-1] for run in runs]}
    rows |= {name: [each[name] for each in baselines] for name in baselines[0]}
    lines = [f"{'':27}" + "".join(f"{run.split.name:>9}" for run in runs)]
    lines += [f"{name:27}" + "".join(f"{x:9.2f}" for x in values) for name, values in rows.items()]
    return "\n".join(lines)


def write_report(
    path: Path, runs: Sequence[Run], baselines: Sequence[Mapping[str, float]], check: Any
) -> None:
    """Write the page. The first run is shown; `check` is the report of gradcheck."""
    first = runs[0]
    (wrong, mistakes), graphs = _errors(first), _graphs(first)
    seeds = [run.accuracies[-1] for run in runs if run.split.name != "ordered"]
    nearest = [each["1-nearest neighbour"] for each in baselines[: len(seeds)]]
    text = page(
        "A Transformer reads digits",
        "report",
        resources.files(__package__),
        accuracy=f"{np.mean(seeds):.2f} %",
        seeds=str(len(seeds)),
        nearest=f"{np.mean(nearest):.2f} %",
        verdict="agree" if check else "DISAGREE",
        seconds=f"{first.seconds:.0f} s",
        parameters=f"{sum(p.size for p in first.model.parameters()):,}",
        table=accuracy_table(runs, baselines),
        curves=_image(learning_curves(runs, baselines), "loss and accuracy over the epochs"),
        wrong=wrong,
        mistakes=mistakes,
        graph=graphs[0],
        detail=graphs[1],
        check=html.escape(str(check)),
        data=_looking_data(first),
    )
    write(path, text)


def new_figure(width: float, height: float) -> Any:
    """A figure unknown to pyplot, so that no window opens."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _image(figure: Any, words: str) -> str:
    """A figure as an image inside the page, and its description."""
    text = io.BytesIO()
    figure.savefig(text, format="svg")
    data = base64.b64encode(text.getvalue()).decode()
    return f'<div class="picture"><img alt="{words}" src="data:image/svg+xml;base64,{data}"></div>'


def learning_curves(runs: Sequence[Run], baselines: Sequence[Mapping[str, float]]) -> Any:
    """Left the loss of every update and its mean over an epoch, right the accuracies."""
    figure = new_figure(9.6, 3.6)
    left, right = figure.subplots(1, 2)
    for run, colour in zip(runs, COLOURS * len(runs), strict=False):
        epochs = np.arange(1, len(run.accuracies) + 1)
        losses = np.reshape(run.losses, (len(epochs), -1))
        left.plot(np.linspace(0, len(epochs), losses.size), losses.ravel(), color=colour, alpha=0.2)
        left.plot(epochs, losses.mean(axis=1), color=colour, label=run.split.name)
        right.plot(epochs, run.accuracies, color=colour, marker=".", label=run.split.name)
    left.set(xlabel="epoch", ylabel="loss (cross-entropy)", title="Training loss")
    right.set(xlabel="epoch", ylabel="right answers, %", title="Accuracy on unseen images")
    right.set_ylim(min(93.0, *(run.accuracies[-1] - 1 for run in runs)), 100.3)
    for (name, value), style in zip(baselines[0].items(), (":", "--"), strict=True):
        right.axhline(value, color=GREY, linestyle=style, label=f"{name} {value:.1f} %")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure


def attention_weights(model: DigitClassifier, images: NDArray[Any]) -> NDArray[Any]:
    """The weights of every layer and head, (layers, N, H, 16, 16)."""
    with record_attention() as seen:
        predict(model, images)
    return np.stack([seen[f"encoder.layers.{i}.self_attn"][0] for i in range(len(seen))])


def one_of_each(run: Run, digits: Sequence[int] = range(CLASSES)) -> NDArray[Any]:
    """The first test image of each digit."""
    return run.split.test_images[[int(np.argmax(run.split.test_labels == d)) for d in digits]]


def darkest_patch(image: NDArray[Any]) -> int:
    """The patch with the most ink."""
    return int(patches(image[None])[0].sum(axis=1).argmax())


def _looking_data(run: Run) -> str:
    """The data of the page's script: pixels in sixteenths and attention weights in thousandths."""
    images = one_of_each(run)
    weights = np.rint(attention_weights(run.model, images) * 1000).astype(int)
    digits = [
        {"label": i, "pixels": np.rint(image * 16).astype(int).ravel().tolist(),
         "start": darkest_patch(image), "weights": weights[:, i].tolist()}
        for i, image in enumerate(images)
    ]  # fmt: skip
    return as_json({"layers": len(weights), "heads": weights.shape[2], "digits": digits})


def _errors(run: Run) -> tuple[str, str]:
    """How many images are read wrongly, and a picture of them."""
    labels, images = run.split.test_labels, run.split.test_images
    probabilities = predict(run.model, images)
    said, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = sorted(np.flatnonzero(said != labels), key=lambda i: -sure[i])
    figure = new_figure(10.8, 1.8)
    for axes in (grid := figure.subplots(1, 8).ravel()):
        axes.set_axis_off()
    for axes, i in zip(grid, wrong, strict=False):
        axes.imshow(images[i], cmap="Greys")
        axes.set_title(f"{labels[i]} read as {said[i]}, {100 * sure[i]:.0f} %", fontsize=9)
    text = f"{len(wrong)} of {len(labels):,} test images were read wrongly"
    return text, _image(figure, "images read wrongly") if wrong else ""


def _graphs(run: Run) -> tuple[str, str]:
    """The graph of a loss with each module folded, and that of the first layer opened."""
    run.model.train()
    images, labels = run.split.train_images[:8], run.split.train_labels[:8]
    loss = loss_of(run.model, images, labels)
    first = "encoder.layers.0"
    again = lambda: loss_of(run.model, images, labels)
    opened = graph(again, run.model, 0, expand=[f"{first}.self_attn"], plain=True)
    drawn = []
    for picture in (graph(loss, run.model), opened):
        shown = picture._repr_html_() or f"<pre>{html.escape(picture.text())}</pre>"
        drawn.append(re.sub(r'(<\w+) id="[^"]*"', r"\1", shown))  # an id may be used only once
    return drawn[0], drawn[1]
