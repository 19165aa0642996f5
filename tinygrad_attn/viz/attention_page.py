"""Attention as a page with all its numbers: scores, mask, softmax, and the weighted sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import array_of, no_grad
from ..functional import scaled_dot_product_attention
from ..tensor import Tensor
from .attention import labels, with_heads
from .page import Page, as_json, page


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
    """Show softmax(q k^T * scale + mask) v for a query that the reader chooses, number by number.

    q (T, D) or (H, T, D), k (S, D), v (S, Dv) with the same heads, Tensors or arrays. `mask`
    broadcasts to (H, T, S), as in `functional.scaled_dot_product_attention`: True where a query
    may look, or floats that are added. `queries` and `keys` are labels of the positions, `chosen`
    the query that is shown first.

    Returns a `Page`: `.save("attention.html")`, `str(page)`. Raises ValueError where shapes or
    labels disagree or numbers are not finite, TypeError for a mask of integers.
    """
    q, k, v = _finite(q, "q"), _finite(k, "k"), _finite(v, "v")
    if len({len(q), len(k), len(v)}) > 1 or q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"q {q.shape}, k {k.shape} and v {v.shape} need the same heads; q and k the same last "
            "axis D, k and v the same number of keys (the middle axis)."
        )
    if not 0 <= chosen < q.shape[1]:
        raise ValueError(f"chosen={chosen}: the queries are 0 to {q.shape[1] - 1}.")
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else float(scale)
    with no_grad():
        output, weights = scaled_dot_product_attention(
            Tensor(q), Tensor(k), Tensor(v), attn_mask=mask, scale=scale, need_weights=True
        )
    data = {
        "q": _lists(q),
        "k": _lists(k),
        "v": _lists(v),
        "score": _lists(q @ k.swapaxes(1, 2)),  # (H, T, D) @ (H, D, S) -> (H, T, S)
        "scale": scale,
        "weight": _lists(weights.numpy()),
        "mask": None if mask is None else _lists(_added(mask, weights.shape)),
        "output": _lists(output.numpy()),
        "queries": labels(queries, q.shape[1], "queries"),
        "keys": labels(keys, k.shape[1], "keys"),
        "chosen": int(chosen),
        "shown": 4 if q.shape[2] > 6 or v.shape[2] > 6 else 6,  # numbers of a vector
    }
    text = page(
        "Attention, number by number",
        "attention",
        plus=" + mask" if mask is not None else "",
        heading="<th>mask</th><th>+ mask</th>" if mask is not None else "",
        hidden="hidden" if len(q) == 1 else "",
        scale=f"{scale:.6g}",
        width=str(q.shape[2]),
        data=as_json(data),
    )
    return Page(text, height=900)


def _finite(x: Any, what: str) -> np.ndarray:
    array = with_heads(x, what).astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{what} holds NaN or Inf; ta.detect_anomaly() finds where it began.")
    return array


def _added(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a mask adds to the scores: a boolean one 0 where it is True and -inf elsewhere."""
    array = np.asarray(array_of(mask))
    array = np.where(array, 0.0, -np.inf) if array.dtype == bool else array
    return np.broadcast_to(array, shape)


def _lists(array: np.ndarray) -> Any:
    """Nested lists for JSON, rounded to seven digits; -inf becomes null."""
    rounded = np.array([float(f"{x:.7g}") for x in array.flat]).reshape(array.shape)
    return np.where(np.isfinite(rounded), rounded, np.array(None)).tolist()
