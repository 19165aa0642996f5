"""Write the report, one HTML file with numbers, curves, attention and mistakes."""

import base64
import html
import io
from importlib import resources

import numpy as np
from matplotlib.figure import Figure  # not known to pyplot, so no window opens

from ... import viz
from ...viz.page import as_json, page
from . import loss_of, predict, views
from .digits import CLASSES, patches

MISTAKES = 10  # on the page


def accuracy_table(runs, baselines):
    """Return the accuracy of each method on each split, in %, as lines of text."""
    rows = {"Transformer (this program)": [run.accuracies[-1] for run in runs]}
    rows |= {name: [each[name] for each in baselines] for name in baselines[0]}
    lines = [f"{'':27}" + "".join(f"{run.split.name:>9}" for run in runs)]
    lines += [f"{name:27}" + "".join(f"{x:9.2f}" for x in values) for name, values in rows.items()]
    return "\n".join(lines)


def write_report(path, runs, baselines, check):
    """Write a page about the first run; `check` is the report of gradcheck."""
    first, model, split = runs[0], runs[0].model, runs[0].split
    loss = lambda: loss_of(model, split.train_images[:8], split.train_labels[:8])
    labels, probabilities = split.test_labels, predict(model, split.test_images)
    answers = probabilities.argmax(axis=1)
    wrong = sorted(np.flatnonzero(answers != labels), key=lambda i: -probabilities[i].max())
    shown = [*(np.argmax(labels == digit) for digit in range(CLASSES)), *wrong[:MISTAKES]]
    images = split.test_images[shown]
    seeds = [run.accuracies[-1] for run in runs if run.split.name != "ordered"]
    nearest = [each["1-nearest neighbour"] for each in baselines[: len(seeds)]]
    page(
        "A Transformer reads digits",
        "report",
        resources.files(__package__),
        accuracy=f"{np.mean(seeds):.2f} %",
        seeds=str(len(seeds)),
        nearest=f"{np.mean(nearest):.2f} %",
        verdict="agree" if check else "DISAGREE",
        seconds=f"{first.seconds:.0f} s",
        parameters=f"{sum(p.size for p in model.parameters()):,}",
        table=accuracy_table(runs, baselines),
        curves=learning_curves(runs, baselines),
        wrong=str(len(wrong)),
        graph=viz.graph(loss, model, depth=2).drawing(),
        head=viz.attention_html(model, patches(images[:1]))._repr_html_(),
        check=html.escape(str(check)),
        digit=resources.files(__package__).joinpath("digit.js").read_text("utf-8"),
        data=as_json(
            [
                {"label": f"a written {labels[i]}, read as {answers[i]}", **view}
                for i, view in zip(shown, views(model, images))
            ]
        ),
    ).save(path)


def learning_curves(runs, baselines):
    """Plot the mean loss of each epoch on the left, and the accuracy on the right, as HTML."""
    figure = Figure((9.6, 3.6), layout="constrained")
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
    figure.savefig(file := io.BytesIO(), format="svg")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="loss and accuracy" src="data:image/svg+xml;base64,{data}">'
