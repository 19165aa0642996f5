"""Attention weights as heat maps: `attention(weights, queries, keys)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..engine import array_of
from ..errors import describe, warn
from .tree import printable


def labels(given: Sequence[Any] | str | None, count: int, what: str) -> list[str]:
    """One label for each position, with visible blanks; numbers where none are given."""
    tokens = [str(x) for x in (range(count) if given is None else given)]
    if len(tokens) != count:
        raise ValueError(f"{len(tokens)} labels for {count} {what}; give one label for each.")
    return [printable(token.replace(" ", "\u2423")) or "''" for token in tokens]


def with_heads(x: Any, what: str) -> np.ndarray:
    """Return one head (T, S) or a batch of one (1, H, T, S) as (H, T, S)."""
    array = np.asarray(array_of(x))
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"{what} must be a matrix, or one for each head, got {describe(x)}. Of a batch choose "
            f"one element, {what}[0]."
        )
    return array


def attention(
    weights: Any,
    queries: Sequence[Any] | str | None = None,
    keys: Sequence[Any] | str | None = None,
    ax: Any = None,
) -> Any:
    """Draw a heat map for each head of softmax(q k^T / sqrt(D)): a row per query, a column per key.

    `weights` (T, S) or (H, T, S), a Tensor or an array. `queries` are T labels and `keys` S labels,
    numbers by default. `ax` is a matplotlib Axes, or a sequence of H of them; by default a new
    figure is made. Returns the Axes of one head, an array of H Axes for several. Raises ValueError
    where the numbers of labels, heads and Axes differ, ImportError without matplotlib.
    """
    heads = with_heads(weights, "weights")  # (H, T, S)
    rows, columns = labels(queries, heads.shape[1], "queries"), labels(keys, heads.shape[2], "keys")
    axes = np.array(_new_axes(heads) if ax is None else ax, dtype=object).reshape(-1)
    if len(axes) != len(heads):
        raise ValueError(f"{len(heads)} heads and {len(axes)} Axes; give one Axes for each head.")
    top = max(float(heads.max()), 1e-12)
    for h, (one, head) in enumerate(zip(axes, heads, strict=True)):
        image = one.imshow(head, cmap="cividis", vmin=0.0, vmax=top)
        _write_labels(one, rows, columns)
        if len(heads) > 1:
            one.set_title(f"head {h}", fontsize=10)
        for (i, j), weight in np.ndenumerate(head) if head.size <= 100 else ():
            look = {"fontsize": 7, "color": "white" if weight < 0.6 * top else "black"}
            one.text(j, i, f"{weight:.2f}", ha="center", va="center", **look)
    if ax is None:
        axes[0].figure.colorbar(image, ax=axes.tolist(), shrink=0.8, label="weight")
    return axes if len(heads) > 1 else axes[0]


def _write_labels(ax: Any, rows: list[str], columns: list[str]) -> None:
    look: Any = {"fontsize": 8, "parse_math": False, "family": fonts("".join(rows + columns))}
    ax.set_yticks(range(len(rows)), rows, **look)
    if max(map(len, columns)) > 2:
        look |= {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(columns)), columns, **look)
    ax.set(xlabel="key", ylabel="query")


@cache
def fonts(text: str) -> list[str]:
    """Fonts that have the characters of a text: matplotlib's usual one, and another if needed."""
    from matplotlib import font_manager

    def known(path: str) -> Any:
        return font_manager.get_font(path).get_charmap().keys()

    usual = font_manager.findfont(font_manager.FontProperties())
    needed = set(map(ord, text)) - known(usual)
    for path in sorted(font_manager.findSystemFonts()) if needed else ():
        if needed <= known(path):
            font_manager.fontManager.addfont(path)
            return ["sans-serif", font_manager.FontProperties(fname=path).get_name()]
    if needed:
        warn(
            f"no installed font has {''.join(map(chr, sorted(needed)))!r}. Install one, such as "
            "Noto Sans CJK (apt install fonts-noto-cjk)."
        )
    return ["sans-serif"]


def _new_axes(heads: np.ndarray) -> list[Any]:
    """The Axes of a new figure, four heads in a row."""
    try:
        import matplotlib.pyplot as plt  # optional
    except ImportError:
        raise ImportError(
            'heat maps need matplotlib: pip install "tinygrad_attn[viz]". The page of '
            "ta.viz.attention_html needs nothing."
        ) from None
    across, down = min(len(heads), 4), -(-len(heads) // 4)
    inches = 0.42 if heads[0].size <= 100 else 0.2  # of a row or column
    size = min(12.0, max(2.6, max(heads.shape[1:]) * inches))
    figure, grid = plt.subplots(
        down, across, figsize=(size * across + 1.2, size * down + 0.6), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for unused in grid.flat[len(heads) :]:
        unused.remove()
    return grid.flat[: len(heads)]
