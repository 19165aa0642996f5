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

from ... import record_attention
from ...files.atomic import write_atomically
from ...viz import attention_html, graph
from ...viz.page import as_json, page
from .digits import CLASSES, TOKENS, patches
from .training import DigitClassifier, Run, loss_of, predict


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
    wrong, mistakes = _errors(first)
    folded, opened = _graphs(first)
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
        graph=folded,
        opened=opened,
        heads=_heads(first),
        check=html.escape(str(check)),
        data=_looking_data(first),
    )
    write_atomically(text, path)


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
    """Left the mean loss of each epoch, right the accuracy after it."""
    figure = new_figure(9.6, 3.6)
    left, right = figure.subplots(1, 2)
    for run in runs:
        epochs = np.arange(1, len(run.accuracies) + 1)
        losses = np.reshape(run.losses, (len(epochs), -1)).mean(axis=1)
        for axes, values in ((left, losses), (right, run.accuracies)):
            axes.plot(epochs, values, marker=".", label=run.split.name)
    left.set(xlabel="epoch", ylabel="loss (cross-entropy)", title="Training loss")
    right.set(xlabel="epoch", ylabel="right answers, %", title="Accuracy on unseen images")
    for name, value in baselines[0].items():
        right.axhline(value, color="grey", linestyle="--", label=f"{name} {value:.1f} %")
    right.legend()
    return figure


def attention_weights(model: DigitClassifier, images: np.ndarray) -> np.ndarray:
    """The weights of every layer and head, (layers, N, H, 16, 16)."""
    with record_attention() as seen:
        predict(model, images)
    return np.stack([seen[f"encoder.layers.{i}.self_attn"][0] for i in range(len(seen))])


def one_of_each(run: Run, digits: Sequence[int] = range(CLASSES)) -> np.ndarray:
    """The first test image of each digit."""
    return run.split.test_images[[int(np.argmax(run.split.test_labels == d)) for d in digits]]


def darkest_patch(image: np.ndarray) -> int:
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
    labels, probabilities = run.split.test_labels, predict(run.model, run.split.test_images)
    said, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = sorted(np.flatnonzero(said != labels), key=lambda i: -sure[i])
    figure = new_figure(10.8, 1.8)
    for place, i in enumerate(wrong[:8], 1):
        axes = figure.add_subplot(1, 8, place)
        axes.set_axis_off()
        axes.imshow(run.split.test_images[i], cmap="Greys")
        axes.set_title(f"{labels[i]} read as {said[i]}, {100 * sure[i]:.0f} %", fontsize=9)
    text = f"{len(wrong)} of {len(labels):,} test images were read wrongly"
    return text, _image(figure, "images read wrongly")


def _graphs(run: Run) -> tuple[str, str]:
    """The graph of a loss with each module folded, and with every operation of one head's layer."""
    loss = lambda: loss_of(run.model, run.split.train_images[:8], run.split.train_labels[:8])
    opened = graph(loss, run.model, 0, expand=["encoder.layers.0.self_attn"], plain=True)
    drawn = []
    for picture in (graph(loss(), run.model), opened):
        shown = picture._repr_html_() or f"<pre>{html.escape(picture.text())}</pre>"
        drawn.append(re.sub(r'(<\w+) id="[^"]*"', r"\1", shown))  # an id may be used only once
    return drawn[0], drawn[1]


def _heads(run: Run) -> str:
    """A page for each digit in a frame of its own: one head opened, with every number."""
    frames = []
    for digit, image in enumerate(one_of_each(run)):
        tokens = [str(i) for i in range(TOKENS)]  # the patches
        inside = attention_html(
            run.model, patches(image[None]), queries=tokens, chosen=darkest_patch(image)
        )
        summary = f"<summary>The digit {digit}</summary>"
        frames.append(f"<details>{summary}{inside._repr_html_()}</details>")
    return "\n".join(frames)
