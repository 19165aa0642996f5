"""One query's attention as a page with all its numbers: scores, mask, softmax, weighted sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..functional.equations import attention_weights
from ..functional.masks import refuse_blocked
from ..messages.errors import describe
from .attention import as_array, tokens, with_heads
from .render import Page, page
from .stepper import as_json


def _three(x: Any, what: str) -> np.ndarray:
    array = as_array(x)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{what} holds numbers, got {describe(x)}. attention_html takes q, k and v; weights "
            "with their tokens are "
            "drawn by viz.attention(weights, queries, keys)."
        )
    array = with_heads(array.astype(np.float64))
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"{what} is (T, D) or (H, T, D) and not empty, got {describe(x)}.")
    return array


def _numbers(array: np.ndarray) -> Any:
    """Nested lists for JSON, which knows no infinity: -inf becomes null."""
    rounded = np.array([float(f"{x:.7g}") for x in array.reshape(-1).tolist()]).reshape(array.shape)
    return np.where(np.isfinite(rounded), rounded, np.array(None)).tolist()


def attention_html(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    queries: Sequence[Any] | str | None = None,
    keys: Sequence[Any] | str | None = None,
    scale: float | None = None,
    chosen: int = 0,
) -> Page:
    """softmax(q k^T * scale + mask) v for a query the reader chooses, with every number on the way.

    q (T, D) or (H, T, D), k (S, D), v (S, Dv) with the same heads, Tensors or arrays; `mask`
    broadcasts to (H, T, S): True where a query may look, or floats that are added, as in
    `functional.scaled_dot_product_attention`. `scale` is 1/sqrt(D) where left out; `queries` and
    `keys` are token labels, `chosen` the query shown first.

    Returns a `Page`: `.save("attention.html")`, `str(page)`. Raises ValueError where shapes or
    labels disagree, TypeError for a mask of integers.
    """
    q, k, v = _three(q, "q"), _three(k, "k"), _three(v, "v")
    _check_fit(q, k, v)
    if not hasattr(chosen, "__index__") or not 0 <= chosen < q.shape[1]:
        raise ValueError(f"chosen={chosen} is no query: there are {q.shape[1]}, from 0.")
    rows, columns = tokens(queries, q.shape[1], "queries"), tokens(keys, k.shape[1], "keys")
    score, scale = _scores(q, k, scale)  # (H, T, S)
    added = None if mask is None else _added(mask, score.shape)
    # A row whose every key is blocked has weights of zero.
    weight = attention_weights(q, k, added, scale=scale)
    data = {
        "q": _numbers(q),
        "k": _numbers(k),
        "v": _numbers(v),
        "score": _numbers(score),
        "scale": scale,
        "weight": _numbers(weight),
        "mask": None if added is None else _numbers(added),
        "output": _numbers(weight @ v),
        "queries": rows,
        "keys": columns,
        "chosen": int(chosen),
        "shown": 4 if q.shape[2] > 6 or v.shape[2] > 6 else 6,
    }
    return Page(
        page(
            "Attention, number by number", _body(data, q.shape[2], added is not None), "attention"
        ),
        height=900,
    )


def _check_fit(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    if len({len(q), len(k), len(v)}) > 1 or q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"q {q.shape}, k {k.shape}, v {v.shape} do not fit: heads must agree, q and k in D "
            "(the last axis), k and v in the number of keys (the middle axis)."
        )
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} holds NaN or Inf, so there is no attention to show; "
                "ta.detect_anomaly() finds where it began."
            )


def _scores(q: np.ndarray, k: np.ndarray, scale: Any) -> tuple[np.ndarray, float]:
    """q k^T, and what it is multiplied with."""
    if scale is not None and (
        isinstance(scale, str) or not hasattr(scale, "__float__") or np.ndim(scale)
    ):
        raise TypeError(f"scale= is a number, or None for 1 / sqrt(D), got {describe(scale)}.")
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else float(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        score = q @ k.swapaxes(1, 2)  # (H, T, D) @ (H, D, S) -> (H, T, S)
        if not np.isfinite(score * scale).all():
            raise ValueError(
                "the scores q k^T * scale are too large for float64, "
                f"or scale={scale} is not finite."
            )
    return score, scale


def _added(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a mask adds to the scores: a boolean one 0 where it is True and -inf elsewhere."""
    refuse_blocked(mask, "attention_html", "mask")
    array = as_array(mask)
    if array.dtype.kind not in "bf":
        raise TypeError(
            "mask= is boolean (True: may look) or floating (added to the scores), got "
            f"{describe(mask)}."
        )
    array = np.where(array, 0.0, -np.inf) if array.dtype == bool else array.astype(np.float64)
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError(
            "mask= holds NaN or +inf; a float mask holds finite numbers, and -inf where a query "
            "may not look."
        )
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"mask= of shape {array.shape} does not broadcast to the scores' (H, T, S) = {shape}."
        ) from None


def _body(data: dict[str, Any], width: int, masked: bool) -> str:
    heading = "<th>mask</th><th>+ mask</th>" if masked else ""
    hidden = ' style="display:none"' if len(data["q"]) == 1 else ""
    return f"""<h1>Attention, number by number</h1>
<p><code>output = softmax(q k<sup>T</sup> &times; scale{" + mask" if masked else ""}) v</code>,
with scale = {data["scale"]:.6g} and D = {width}.</p>
<p>Choose a query <span class="hint">(or the left and right arrow keys)</span>:
<select id="heads" aria-label="head"{hidden}></select></p>
<div id="tokens" role="group" aria-label="query"></div>
<p id="said" class="hint" aria-live="polite"></p>
<p>q = <code id="q"></code></p>
<h2>1. How well does each key answer the query?</h2>
<div class="wide" tabindex="0" role="region" aria-label="scores and weights">
<table><thead><tr><th>key</th><th>k</th><th>score<br>q &middot; k</th>
<th>&times; scale</th>{heading}
<th>exp(. - max)</th><th class="bar">weight<br>exp / sum</th></tr></thead>
<tbody id="scores"></tbody></table></div>
<p id="note"></p>
<h2>2. The output is the values, weighted and summed</h2>
<div class="wide" tabindex="0" role="region" aria-label="weighted values">
<table><thead><tr><th>key</th><th>weight</th><th>v</th><th>weight &times; v</th></tr></thead>
<tbody id="sums"></tbody></table></div>
<noscript><p>The numbers are shown by a script inside this page; please allow it.</p></noscript>
<script type="application/json" id="data">{as_json(data)}</script>"""
