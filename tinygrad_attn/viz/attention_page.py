"""Attention as a page with all its numbers: scores, mask, softmax, and the weighted sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine import array_of, no_grad
from ..functional import scaled_dot_product_attention
from ..tensor import Tensor
from .attention import labels, with_heads
from .opened import run_plainly
from .page import Page, as_json, page


def attention_html(
    q: Any,
    k: Any = None,
    v: Any = None,
    mask: Any = None,
    *,
    queries: Sequence[Any] | str | None = None,
    keys: Sequence[Any] | str | None = None,
    scale: float | None = None,
    chosen: int = 0,
) -> Page:
    """Show softmax(q k^T * scale + mask) v for a query that the reader chooses, number by number.

    Three calls: `attention_html(q, k, v, mask)` with q (T, D) or (H, T, D), k (S, D), v (S, Dv) of
    the same heads, Tensors or arrays. `attention_html(model, x)` calls a module or function with
    one to three inputs and shows each attention inside, of the first element of a batch.
    `attention_html(seen)` shows the weights that `ta.record_attention` has recorded.

    `mask` broadcasts to (H, T, S), as in `functional.scaled_dot_product_attention`: True where a
    query may look, or floats that are added. `queries` and `keys` are labels of the positions,
    `chosen` the query that is shown first.

    Returns a `Page`: `.save("attention.html")`, `str(page)`. Raises ValueError where shapes or
    labels disagree, numbers are not finite or no attention was called, TypeError for a mask of
    integers.
    """
    if not callable(q) and not isinstance(q, Mapping):
        q, k, v = with_heads(q, "q"), with_heads(k, "k"), with_heads(v, "v")
        same = len({len(q), len(k), len(v)}) == 1
        if not same or q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
            raise ValueError(
                f"q {q.shape}, k {k.shape} and v {v.shape} need the same heads; q and k the same "
                "last axis D, k and v the same number of keys (the middle axis)."
            )
        if not 0 <= chosen < q.shape[1]:
            raise ValueError(f"chosen={chosen}: the queries are 0 to {q.shape[1] - 1}.")
        calls = [_numbers("attention", q, k, v, mask, scale)]
        names = labels(queries, q.shape[1], "queries"), labels(keys, k.shape[1], "keys")
        calls[0] |= {"queries": names[0], "keys": names[1]}
    else:
        found = _recorded(q) if isinstance(q, Mapping) else _called(q, (k, v, mask))
        calls = [call | _fitting(call["weight"][0], queries, keys) for call in found]
    if not calls:
        raise ValueError(
            "no attention was called that computes softmax(q k^T) v. Give a model with attention "
            "and its input, or q, k and v."
        )
    repeats, seen = Counter(call["name"] for call in calls), Counter[str]()
    for call in calls:
        seen[call["name"]] += 1
        if repeats[call["name"]] > 1:
            call["name"] += f", call {seen[call['name']]}"
    data = as_json({"calls": calls, "chosen": int(chosen)})
    return Page(page("Attention, number by number", "attention", data=data), height=900)


def _numbers(
    name: str, q: Any, k: Any, v: Any, mask: Any, scale: Any, is_causal: bool = False
) -> dict[str, Any]:
    """All numbers of one call: q (H, T, D), k (H, S, D), v (H, S, Dv)."""
    q, k, v = _finite(q, "q"), _finite(k, "k"), _finite(v, "v")
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else float(scale)
    with no_grad():
        output, weights = scaled_dot_product_attention(
            Tensor(q), Tensor(k), Tensor(v), mask, 0.0, is_causal, scale, need_weights=True
        )
    numbers = {"q": q, "k": k, "v": v, "score": q @ k.swapaxes(1, 2), "weight": weights.numpy()}
    if mask is not None or is_causal:
        numbers["mask"] = _added(True if mask is None else mask, weights.shape, is_causal)
    lists = {key: _lists(x) for key, x in (numbers | {"output": output.numpy()}).items()}
    return {"name": name, "scale": scale, "width": q.shape[2], **lists}


def _called(function: Any, inputs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The numbers of each attention that a function calls."""
    with no_grad():
        run = run_plainly(function, *(x for x in inputs if x is not None))
    for name, given in run.attended:
        if given["keep"] is not None:
            raise ValueError(f"{name} drops weights at random; call model.eval() before.")
        q, k, v = (np.asarray(array_of(given[x])) for x in "qkv")
        mask = None if given["mask"] is None else np.asarray(array_of(given["mask"]))
        if mask is not None:
            mask = _first(np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2])))
        yield _numbers(
            name, _first(q), _first(k), _first(v), mask, given["scale"], given["is_causal"]
        )


def _recorded(seen: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The weights of each call that was recorded."""
    for name, weights in seen.items():
        yield from ({"name": name, "weight": _lists(_first(each))} for each in weights)


def _first(x: Any) -> np.ndarray:
    """(..., H, T, D) -> (H, T, D), the first element of a batch; (T, D) is one head."""
    return x.reshape(-1, *x.shape[-3:])[0] if x.ndim > 2 else x[None]


def _fitting(weights: Sequence[Any], queries: Any, keys: Any) -> dict[str, list[str]]:
    """Labels of a call of a model, whose attentions may differ in length."""
    rows, columns = len(weights), len(weights[0])
    keys = queries if keys is None else keys
    return {
        "queries": labels(queries if queries and len(queries) == rows else None, rows, "queries"),
        "keys": labels(keys if keys and len(keys) == columns else None, columns, "keys"),
    }


def _finite(x: Any, what: str) -> np.ndarray:
    array = x.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{what} holds NaN or Inf; ta.detect_anomaly() finds where it began.")
    return array


def _added(mask: Any, shape: tuple[int, ...], is_causal: bool) -> np.ndarray:
    """What a mask adds to the scores: a boolean one 0 where it is True and -inf elsewhere."""
    array = np.asarray(array_of(mask))
    array = np.where(array, 0.0, -np.inf) if array.dtype == bool else array
    causal = np.tri(*shape[-2:], dtype=bool) if is_causal else True
    return np.broadcast_to(np.where(causal, array, -np.inf), shape)


def _lists(array: np.ndarray) -> Any:
    """Nested lists for JSON, rounded to seven digits; -inf becomes null."""
    rounded = np.array([float(f"{x:.7g}") for x in array.flat]).reshape(array.shape)
    return np.where(np.isfinite(rounded), rounded, np.array(None)).tolist()
