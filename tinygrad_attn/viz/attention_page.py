"""Attention as a page with all its numbers: scores, mask, softmax, and the weighted sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine import array_of, no_grad
from ..functional import scaled_dot_product_attention
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

    `attention_html(q, k, v, mask)` takes Tensors or arrays q (T, D) or (H, T, D), k (S, D) and
    v (S, Dv) of the same heads. `attention_html(model, x)` calls a module or function with
    one to three inputs and shows each attention inside, of the first element of a batch.
    `attention_html(seen)` shows the weights that `ta.record_attention` has recorded.

    `mask` broadcasts to (H, T, S), as in `functional.scaled_dot_product_attention`: True where a
    query may look, or floats that are added. `queries` and `keys` are labels of the positions,
    `chosen` the query that is shown first.

    Returns a `Page`: `.save("attention.html")`, `str(page)`. Raises ValueError where shapes or
    labels disagree, numbers are not finite or no attention was called, TypeError for a mask of
    integers.
    """
    if isinstance(q, Mapping):
        calls = [
            {"name": name, "weights": _lists(_one(weights, name))}
            for name, recorded in q.items() for weights in recorded
        ]  # fmt: skip
    elif callable(q):
        keys = queries if keys is None else keys
        calls = list(_called(q, *(x for x in (k, v, mask) if x is not None)))
    else:
        calls = list(_called(lambda: scaled_dot_product_attention(q, k, v, mask, scale=scale)))
    if not calls:
        raise ValueError(
            "no attention was called that computes softmax(q k^T) v. Give a model with attention "
            "and its input, or q, k and v."
        )
    for call in calls:
        rows, columns = np.shape(call["weights"])[1:]
        sides: Any = (("queries", queries, rows), ("keys", keys, columns))
        for side, given, count in sides:
            other = len(calls) > 1 and given is not None and len(given) != count
            call[side] = labels(None if other else given, count, side)
    data = as_json({"calls": calls, "chosen": int(chosen)})
    return page("Attention, number by number", "attention", data=data)


def _called(function: Any, *inputs: Any) -> Iterator[dict[str, Any]]:
    """The numbers of each attention that a function calls, for the first element of a batch."""
    with no_grad():
        run = run_plainly(function, *inputs)
    for given in run.attended:
        if given["keep"] is not None:
            raise ValueError(f"{given['name']} drops weights at random; call model.eval() before.")
        numbers = {x: _one(given[x], x) for x in ("q", "k", "v", "weights", "scores", "output")}
        for name in "qkv":
            if not np.isfinite(numbers[name]).all():
                raise ValueError(
                    f"{name} holds NaN or Inf; ta.detect_anomaly() finds where it began."
                )
        numbers["score"] = numbers["q"] @ numbers["k"].swapaxes(1, 2)
        if given["mask"] is not None or given["is_causal"]:  # what it added
            numbers["mask"] = numbers["scores"] - numbers["score"] * given["scale"]
            numbers["mask"] = np.round(numbers["mask"], 5) + 0.0
        lists = {key: _lists(x) for key, x in numbers.items() if key != "scores"}
        yield {"name": given["name"], "scale": given["scale"], **lists}


def _one(x: Any, what: str) -> np.ndarray:
    """(H, T, D) of the first element of a batch."""
    array = np.asarray(array_of(x), np.float64)
    return with_heads(array[:1] if array.ndim == 4 else array, what)


def _lists(array: np.ndarray) -> Any:
    """Nested lists for JSON, rounded to seven digits; -inf becomes null."""
    rounded = np.array([float(f"{x:.7g}") for x in array.flat]).reshape(array.shape)
    return np.where(np.isfinite(rounded), rounded, np.array(None)).tolist()
