"""The report: one HTML file that opens in any browser and fetches nothing."""

from __future__ import annotations

import base64
import html
import json
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...nn.scopes import record_attention
from ...viz import graph
from ...viz.page import write
from . import figures
from .digits import patches
from .training import DigitClassifier, Run, loss_of, predict

SHOWN = 10
"""How many digits can be looked at: one of each kind."""


def image(fig: Any, words: str) -> str:
    """A matplotlib figure as an image inside the page; `words` for those who cannot see it."""
    data = base64.b64encode(figures.svg(fig).encode()).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return f'<div class="wide"><img alt="{html.escape(words)}" src="{source}"></div>'


def attention_weights(model: DigitClassifier, images: NDArray[Any]) -> list[NDArray[Any]]:
    """What every head of every layer looks at: a list of (N, H, 16, 16), one a layer."""
    with record_attention() as seen:
        predict(model, images)
    return [seen[f"encoder.layers.{i}.self_attn"][0] for i in range(len(model.encoder.layers))]


def one_of_each(run: Run) -> NDArray[Any]:
    """The numbers of the first test images of each digit."""
    return np.array([int(np.argmax(run.split.test_labels == digit)) for digit in range(SHOWN)])


def looking_data(run: Run) -> str:
    """What the script on the page needs, as JSON: pixels, and attention weights in thousandths."""
    which = one_of_each(run)
    images = run.split.test_images[which]
    layers = attention_weights(run.model, images)
    digits = [
        {
            "label": int(run.split.test_labels[which[i]]),
            "pixels": np.rint(images[i] * 16).astype(int).ravel().tolist(),
            "start": figures.brightest_patch(patches(images[i : i + 1])[0]),
            "weights": [np.rint(weights[i] * 1000).astype(int).tolist() for weights in layers],
        }
        for i in range(len(which))
    ]
    return json.dumps(
        {"layers": len(layers), "heads": layers[0].shape[1], "digits": digits},
        separators=(",", ":"),
    )


def attention_figure(run: Run, digits: Sequence[int] = (0, 2, 3, 5, 8)) -> Any:
    """The attention of the darkest patch, for one image of each of these digits."""
    images = run.split.test_images[one_of_each(run)[list(digits)]]
    queries = [figures.brightest_patch(tokens) for tokens in patches(images)]
    return figures.attention_maps(images, attention_weights(run.model, images), queries)


def accuracy_table(
    runs: Sequence[Run], baselines: Sequence[Mapping[str, float]]
) -> list[tuple[str, list[float]]]:
    """(name, per cent for each run), the Transformer first."""
    rows = [("Transformer (this program)", [run.accuracy for run in runs])]
    return rows + [(name, [b[name] for b in baselines]) for name in baselines[0]]


def table_html(runs: Sequence[Run], rows: Sequence[tuple[str, list[float]]]) -> str:
    """The table of right answers, a column for each run."""
    several = len(runs) > 1
    head = "".join(f"<th>{html.escape(run.split.name)}</th>" for run in runs) + (
        "<th>mean</th>" if several else ""
    )
    body = ""
    for i, (name, values) in enumerate(rows):
        cells = "".join(f"<td>{value:.2f} %</td>" for value in values)
        cells += f'<td class="mean">{np.mean(values):.2f} %</td>' if several else ""
        body += f"<tr{' class=ours' if i == 0 else ''}><td>{html.escape(name)}</td>{cells}</tr>\n"
    table = f"<thead><tr><th></th>{head}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="wide"><table>{table}</table></div>'


def graphs(run: Run) -> tuple[str, str]:
    """As HTML: the graph of a loss with the model folded, and that of its first layer opened."""
    run.model.train()
    loss = loss_of(
        run.model,
        run.split.train_images[:8],
        run.split.train_labels[:8],
        run.settings.label_smoothing,
    )
    run.model.eval()
    folded = graph(loss, model=run.model, depth=1)
    layer = run.model.encoder.layers[0]
    inside = graph(
        layer(run.model.positions(run.model.embed(patches(run.split.train_images[:8])))),
        model=run.model,
        depth=1,
        expand=["encoder.layers.0", "encoder.layers.0.self_attn"],
    )
    return _picture(folded), _picture(inside)


def _picture(drawn: Any) -> str:
    """The SVG, or where no Graphviz is there to draw it, the tree as text.

    It has no ids, since a page holds several pictures.
    """
    return re.sub(
        r'(<\w+) id="[^"]*"',
        r"\1",
        drawn._repr_html_() or f"<pre>{html.escape(drawn.text())}</pre>",
    )


def write_report(
    path: Path,
    runs: Sequence[Run],
    baselines: Sequence[Mapping[str, float]],
    check: Any,
    *,
    ordered: tuple[Run, Mapping[str, float]] | None = None,
) -> None:
    """Write the page.

    `runs` are those on random splits, of which the first is shown; `check` is gradcheck's report.
    """
    fields = _numbers(runs, baselines, check) | _pictures(runs, baselines)
    fields["ordered"] = _ordered(ordered)
    write(path, re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template()))


def _numbers(
    runs: Sequence[Run], baselines: Sequence[Mapping[str, float]], check: Any
) -> dict[str, str]:
    """The fields of the page that are words and numbers."""
    first, several = runs[0], len(runs) > 1
    rows = accuracy_table(runs, baselines)
    mean = {name: float(np.mean(values)) for name, values in rows}
    settings = {name: value for name, value in vars(first.settings).items() if name != "split"}
    return {
        "accuracy": f"{mean[rows[0][0]]:.2f} %",
        "tested": f"{len(first.split.test_labels)}",
        "over": f", mean of {len(runs)} seeds" if several else ", one seed",
        "nearest": f"{mean['1-nearest neighbour']:.2f} %",
        "verdict": "agree" if check else "DISAGREE",
        "verdict_class": "verdict" if check else "verdict bad",
        "seconds": f"{np.mean([run.seconds for run in runs]):.0f} s",
        "epochs": str(first.settings.epochs),
        "parameters": f"{sum(p.size for p in first.model.parameters()):,}",
        "split_text": "The split is random, with every digit in its share; all three methods get "
        "the same images" + (", and each seed splits and trains anew." if several else "."),
        "table": table_html(runs, rows),
        "check": html.escape(str(check)),
        "check_text": "They agree." if check else "<b>They do not agree:</b> see below.",
        "footer": f"tinygrad_attn on Python {platform.python_version()}, NumPy {np.__version__}. "
        "Settings: " + html.escape(", ".join(f"{name} {x}" for name, x in settings.items())),
    }


def _pictures(runs: Sequence[Run], baselines: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """The fields of the page that are pictures, and what goes with them."""
    first = runs[0]
    labels = np.concatenate([run.split.test_labels for run in runs])
    images = np.concatenate([run.split.test_images for run in runs])
    beliefs = np.concatenate([run.probabilities() for run in runs])
    said = beliefs.argmax(axis=1)
    wrong = np.flatnonzero(said != labels)
    wrong = wrong[np.argsort(-beliefs[wrong, said[wrong]], kind="stable")]
    others = {name: float(np.mean([b[name] for b in baselines])) for name in baselines[0]}
    folded, inside = graphs(first)
    mistakes = (
        figures.mistakes(images[wrong], labels[wrong], beliefs[wrong]) if len(wrong) else None
    )
    return {
        "curves": image(
            figures.learning_curves(runs, others),
            "loss falling and accuracy rising over the epochs",
        ),
        "attention": image(
            attention_figure(first), "attention of the darkest patch of five digits, for every head"
        ),
        "errors_text": _errors_text(len(wrong), len(labels)),
        "mistakes": image(mistakes, "images read wrongly") if mistakes else "",
        "confusion": image(figures.confusion(labels, said), "confusion matrix"),
        "graph": folded,
        "detail": inside,
        "data": looking_data(first),
    }


def template() -> str:
    """The page with {{names}} where the fields go."""
    return resources.files("tinygrad_attn.cli.demo").joinpath("page.html").read_text("utf-8")


def _ordered(ordered: tuple[Run, Mapping[str, float]] | None) -> str:
    if ordered is None:
        return ""
    run, others = ordered
    listed = ", ".join(f"{name} {value:.2f} %" for name, value in others.items())
    return (
        "<p>Harder: learn from the first 1,437 images of the file and be judged by the last 360, "
        "which other people wrote. There the Transformer gets "
        f"<b>{run.accuracy:.2f} %</b>, {html.escape(listed)} (one seed).</p>"
    )


def _errors_text(wrong: int, total: int) -> str:
    if not wrong:
        return f"None of {total:,} test images was read wrongly."
    return (
        f"{wrong} of {total:,} test images {'was' if wrong == 1 else 'were'} read wrongly; those "
        "the model was surest of come first. "
        "Many are hard for people too."
    )
