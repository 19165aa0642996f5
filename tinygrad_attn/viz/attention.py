"""Attention weights as heat maps: `attention(weights, queries, keys)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..messages.errors import describe


def as_array(x: Any) -> np.ndarray:
    """A Tensor's, list's or array's numbers."""
    return np.asarray(getattr(x, "_data", x))


def token(text: Any) -> str:
    """A token as it can be read in a label: a blank is shown, and so is a line end."""
    shown = str(text).replace(" ", "\u2423")
    return (
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
        or "''"
    )


def tokens(given: Sequence[Any] | str | None, count: int, what: str) -> list[str]:
    """One label for each position; numbers where none are given."""
    if given is None:
        return [str(i) for i in range(count)]
    if not isinstance(given, Iterable):
        raise TypeError(
            f"the labels of the {what} are a list with one for each, or None; got "
            f"{describe(given)}."
        )
    labels = list(given)
    if len(labels) != count:
        raise ValueError(
            f"there are {len(labels)} labels for the {what}, but the weights have {count} of them; "
            "give one label for each, or None."
        )
    return [token(label) for label in labels]


def with_heads(array: np.ndarray) -> np.ndarray:
    """One head (T, S), or a batch of one (1, H, T, S), as (H, T, S); anything else as it is."""
    if array.ndim == 4 and array.shape[0] == 1:
        return array[0]
    return array[None] if array.ndim == 2 else array


def heads_of(weights: Any) -> np.ndarray:
    """(T, S), (H, T, S) or (1, H, T, S) -> (H, T, S)."""
    array = with_heads(as_array(weights))
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            "attention weights are (T, S) or (H, T, S), queries by keys, and not empty; got "
            f"{describe(weights)}."
            + (" Choose one element of the batch: weights[0]." if array.ndim == 4 else "")
        )
    return array


def attention(
    weights: Any,
    queries: Sequence[Any] | str | None = None,
    keys: Sequence[Any] | str | None = None,
    ax: Any = None,
) -> Any:
    """A heat map for each head of softmax(q k^T / sqrt(D)): a row per query, a column per key.

    `weights` (T, S) or (H, T, S), Tensor or array; `queries` (T labels) and `keys` (S labels),
    numbers where left out. `ax` is a matplotlib Axes to draw on, or a sequence of H of them;
    without it a new figure is made. Returns the Axes for one head, an array of H Axes for several;
    their `.figure` has `savefig`. Raises ValueError where the numbers of labels, heads and Axes do
    not agree, ImportError without matplotlib.
    """
    heads = heads_of(weights)  # (H, T, S)
    rows = tokens(queries, heads.shape[1], "queries")
    columns = tokens(keys, heads.shape[2], "keys")
    axes = _axes(ax, heads)
    top = float(np.nanmax(heads)) if np.isfinite(heads).any() else 1.0
    upright = max(map(len, columns)) < 3
    for h, (one, head) in enumerate(zip(axes, heads, strict=True)):
        image = one.imshow(
            head,
            cmap="cividis",
            vmin=0.0,
            vmax=max(top, 1e-12),
            aspect="auto" if max(head.shape) > 40 else "equal",
        )
        one.set_xticks(
            range(len(columns)),
            [_plain(c) for c in columns],
            rotation=0 if upright else 60,
            ha="center" if upright else "right",
            rotation_mode="anchor",
            fontsize=8,
        )
        if upright:
            one.tick_params(axis="x", pad=10)
        one.set_yticks(range(len(rows)), [_plain(r) for r in rows], fontsize=8)
        one.set_xlabel("key")
        if h % 4 == 0 or ax is not None:
            one.set_ylabel("query")
        if len(heads) > 1:
            one.set_title(f"head {h}", fontsize=10)
        if head.size <= 100:
            _write_numbers(one, head, top)
    if ax is None:
        axes[0].figure.colorbar(image, ax=axes.tolist(), shrink=0.8, label="weight")
    return axes if len(heads) > 1 else axes[0]


def _plain(text: str) -> str:
    """Matplotlib reads $...$ as mathematics; a token is not."""
    return text.replace("$", r"\$")


def _write_numbers(ax: Any, head: np.ndarray, top: float) -> None:
    for (i, j), weight in np.ndenumerate(head):
        if np.isfinite(weight):
            ax.text(
                j,
                i,
                f"{weight:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if weight < 0.6 * top else "black",
            )


def _axes(ax: Any, heads: np.ndarray) -> np.ndarray:
    """One Axes a head: those given, or a new figure's."""
    count = len(heads)
    if ax is not None:
        given = np.array(ax, dtype=object).reshape(-1)
        if len(given) != count:
            raise ValueError(
                f"there are {count} heads and {len(given)} Axes; give one Axes for each head, or "
                "one head: weights[0]."
            )
        if strange := [a for a in given if not hasattr(a, "imshow")]:
            raise TypeError(
                f"ax= is a matplotlib Axes, or one for each head, got {describe(strange[0])}; "
                "write ax=plt.gca()."
            )
        return given
    try:
        import matplotlib.pyplot as plt  # lazy: an optional package
    except ImportError:
        raise ImportError(
            "heat maps are drawn with matplotlib, which is not installed: pip install "
            '"tinygrad_attn[viz]". '
            "The page that ta.viz.attention_html makes needs nothing."
        ) from None
    across = min(count, 4)
    down = -(-count // across)
    longest = max(heads.shape[1:])
    size = min(12.0, max(2.6, longest * (0.42 if heads[0].size <= 100 else 0.2)))  # inches a head
    figure, grid = plt.subplots(
        down,
        across,
        figsize=(size * across + 1.2, size * down + 0.6),
        squeeze=False,
        layout="constrained",
    )
    axes = grid.reshape(-1)
    for unused in axes[count:]:
        unused.remove()
    return axes[:count]
