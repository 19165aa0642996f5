"""Show attention weights as heat maps, or as a page with every number of the computation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine import Listener, Variable, array_of, context, listening, no_grad, plain
from ..errors import describe
from ..functional import scaled_dot_product_attention
from ..functional.attention import attention as reference
from ..nn.calls import calls, dotted_name
from ..tensor import Tensor
from .page import Page, as_json, page
from .picture import printable

Labels = Sequence[Any] | str | None
EQUATION = reference.function  # type: ignore[attr-defined]


def _labels(labels, count, what):
    """Return one label per position, by default its number, with visible blanks."""
    tokens = [str(x) for x in (range(count) if labels is None else labels)]
    if len(tokens) != count:
        raise ValueError(f"{len(tokens)} labels for {count} {what}; pass one label for each.")
    return [printable(token.replace(" ", "\u2423")) or "''" for token in tokens]


def _with_heads(x, what):
    """Return (T, S), (H, T, S) or (1, H, T, S) as (H, T, S)."""
    array = np.asarray(array_of(x))
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"{what} must be a matrix, or one matrix for each head, got {describe(x)}. For a "
            f"batch, choose one element, {what}[0]."
        )
    return array


def attention(weights, queries: Labels = None, keys: Labels = None, ax=None):
    """Draw the weights softmax(q k^T / sqrt(D)) of each head as a heat map.

    `weights` has the shape (T, S) or (H, T, S), with a row for each query and a column per key.
    `queries` and `keys` are T and S labels, by default numbers. `ax` is one matplotlib Axes, or a
    sequence of H; by default, a new figure is created. Returns the Axes, as an array if H > 1.
    Raises ValueError for a wrong number of labels or Axes, and ImportError without matplotlib.
    """
    heads = _with_heads(weights, "weights")  # (H, T, S)
    rows = _labels(queries, heads.shape[1], "queries")
    columns = _labels(keys, heads.shape[2], "keys")
    axes = np.array(_new_axes(heads) if ax is None else ax, dtype=object).reshape(-1)
    if len(axes) != len(heads):
        raise ValueError(f"{len(heads)} heads and {len(axes)} Axes; pass one Axes for each head.")
    top = max(float(heads.max()), 1e-12)
    look = {"fontsize": 8, "parse_math": False}
    long = max(map(len, columns)) > 2
    slant = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
    for h, (axis, head) in enumerate(zip(axes, heads, strict=True)):
        image = axis.imshow(head, cmap="cividis", vmin=0.0, vmax=top)
        axis.set_yticks(range(len(rows)), rows, **look)
        axis.set_xticks(range(len(columns)), columns, **look, **slant)
        axis.set(xlabel="key", ylabel="query")
        if len(heads) > 1:
            axis.set_title(f"head {h}", fontsize=10)
        for (i, j), weight in np.ndenumerate(head) if head.size <= 100 else ():
            color = "white" if weight < 0.6 * top else "black"
            axis.text(j, i, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=color)
    if ax is None:
        axes[0].figure.colorbar(image, ax=axes.tolist(), shrink=0.8, label="weight")
    return axes if len(heads) > 1 else axes[0]


def _new_axes(heads):
    """Create a figure with four heads per row, and return its Axes."""
    try:
        import matplotlib.pyplot as plt  # optional
    except ImportError:
        raise ImportError(
            'heat maps need matplotlib: pip install "tinygrad_attn[viz]". '
            "ta.viz.attention_html works without matplotlib."
        ) from None
    across, down = min(len(heads), 4), -(-len(heads) // 4)
    inches = 0.42 if heads[0].size <= 100 else 0.2  # per row or column
    size = min(12.0, max(2.6, max(heads.shape[1:]) * inches))
    figure = plt.figure(figsize=(size * across + 1.2, size * down + 0.6), layout="constrained")
    return [figure.add_subplot(down, across, place) for place in range(1, len(heads) + 1)]


def attention_html(
    q,
    k=None,
    v=None,
    mask=None,
    *,
    queries: Labels = None,
    keys: Labels = None,
    scale: float | None = None,
) -> Page:
    """Return a page with every number of softmax(q k^T * scale + mask) v, one query at a time.

    - `attention_html(q, k, v, mask)` takes q (T, D), k (S, D) and v (S, Dv). All three may have a
      leading axis of H heads. A boolean `mask` is True where attention is allowed; a float mask is
      added.
    - `attention_html(model, x)` calls a module or function with one to three inputs. The page shows
      every attention call, for the first element of the batch.
    - `attention_html(seen)` shows the weights that `ta.record_attention` recorded in `seen`.

    `queries` and `keys` are labels of the positions. Raises ValueError for shapes or labels that do
    not fit, for NaN or infinity, and if attention is never called. Raises TypeError for an integer
    mask.
    """
    if isinstance(q, Mapping):
        pictures = [
            {"name": name, "weights": _lists(_one(weights, name))}
            for name, recorded in q.items() for weights in recorded
        ]  # fmt: skip
    elif callable(q):
        keys = queries if keys is None else keys
        inputs = [x for x in (k, v, mask) if x is not None]
        pictures = list(_called(q, *inputs, batched=True))
    else:
        attend = lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, scale=scale)
        pictures = list(_called(attend, q, k, v, batched=False))
    if not pictures:
        raise ValueError(
            "the model never called attention. Pass a model with scaled dot-product attention and "
            "its input, or pass q, k and v."
        )
    names = [picture["name"] for picture in pictures]
    for place, picture in enumerate(pictures):
        if before := names[:place].count(picture["name"]):
            picture["name"] += f", call {before + 1}"
        sides = ("queries", queries), ("keys", keys)
        for count, (side, labels) in zip(np.shape(picture["weights"])[1:], sides, strict=True):
            other = len(pictures) > 1 and labels is not None and len(labels) != count
            picture[side] = _labels(None if other else labels, count, side)
    data = as_json({"calls": pictures})
    return page("Attention, number by number", "attention", data=data)


class _AttentionOps(Listener):
    """Lists the ops of each call of the function `attention` as (name, inputs, output)."""

    def __init__(self):
        self.calls: dict = {}

    def computed(self, op, inputs, settings, output):
        for call in calls(context.scope):
            if getattr(call, "function", None) is EQUATION:
                self.calls.setdefault(call, []).append((op.__name__, inputs, output))


def _called(function, *inputs, batched):
    """Yield the numbers of each attention call, for the first element of the batch.

    The ops of softmax(q k^T scale + mask) v are a product, the scaling, the mask, the softmax,
    which first subtracts the maximum, perhaps dropout, and a product.
    """
    with no_grad(), plain(), listening(_AttentionOps()) as listener:
        function(*map(_as_tensor, inputs))
    for call, ops in listener.calls.items():
        name = dotted_name(call) or "attention"
        if ops[-2][0] == "multiply":
            raise ValueError(f"{name} applies dropout; call model.eval() first.")
        products = [(inputs, output) for op, inputs, output in ops if op == "matmul"]
        ((q, k_transposed), score), *_, ((weights, v), output) = products
        found = {op: (inputs, output) for op, inputs, output in ops}
        (_, scale), scaled = found["multiply"]
        values = dict(q=q, k=k_transposed.mT, v=v, score=score, scaled=scaled)
        values |= dict(powers=found["exp"][1], weights=weights, output=output)
        numbers = {key: _one(x, key, batched) for key, x in values.items()}
        for key in "qkv":
            if not np.isfinite(numbers[key]).all():
                raise ValueError(f"{key} contains NaN or Inf; ta.detect_anomaly() finds the op.")
        if {"where", "add"} & found.keys():
            masked = _one(found["subtract"][0][0], "scores", batched)
            numbers |= {"mask": np.round(masked - numbers["scaled"], 5) + 0.0, "masked": masked}
        added = " + mask" if "mask" in numbers else ""
        formula = (
            f"output = softmax(q kᵀ × scale{added}) v, with scale = {scale:.6g} and "
            f"D = {numbers['q'].shape[-1]}."
        )
        lists = {key: _lists(x) for key, x in numbers.items()}
        yield {"name": name, "formula": formula, "scale": float(scale), **lists}


def _as_tensor(x):
    """Return numbers that are not integers as a Tensor, because listeners hear no ops on arrays."""
    return x if isinstance(x, Variable) or np.asarray(x).dtype.kind != "f" else Tensor(x)


def _one(x, what, batched=False):
    """Return the first element of a batch as (H, T, D). If `batched`, (B, T, D) has one head."""
    array = np.asarray(array_of(x), np.float64)
    return _with_heads(array[:1] if array.ndim == 4 or batched and array.ndim == 3 else array, what)


def _lists(array):
    """Return nested lists for JSON, rounded to seven digits. An infinity becomes null."""
    rounded = np.array([float(f"{x:.7g}") for x in array.flat]).reshape(array.shape)
    return np.where(np.isfinite(rounded), rounded, np.array(None)).tolist()
