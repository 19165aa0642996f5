"""What most often sets two implementations of a layer apart, as changes to a torch module."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

Change = Callable[[Any, dict[Any, Any]], Any]
"""Changes a module and its arguments, by place or name, in place; what it returns is done to the
output."""


def split(given: dict[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that are given by their place, and those by name."""
    named = {key: x for key, x in given.items() if isinstance(key, str)}
    return [x for key, x in given.items() if key not in named], named


def _on(kinds: tuple[str, ...], act: Callable[[Any], None]) -> Change:
    """Do something to every submodule of these classes."""

    def change(module: Any, given: dict[Any, Any]) -> None:
        for part in module.modules():
            if any(c.__name__ in kinds for c in type(part).__mro__):
                act(part)

    return change


ATTENTION = ("MultiheadAttention",)
LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")


def _setting(name: str, value: Any) -> Callable[[Any], None]:
    return lambda part: setattr(part, name, value)


def _with_forward(make: Callable[[Any, str], Callable], how: str) -> Callable[[Any], None]:
    return lambda part: setattr(part, "forward", make(part, how))


def variations(torch_module: Any) -> Iterator[tuple[str, Change]]:
    """(what it means, the change), the simplest first."""
    yield from _modes()
    yield from _norms()
    yield from _activations()
    yield from _attention()
    yield from _weights(torch_module)


def _modes() -> Iterator[tuple[str, Change]]:
    meaning = "In torch.nn True means blocked; in scaled_dot_product_attention True means allowed."
    yield (
        f"mask inverted: ours reads the boolean masks the other way round. {meaning}",
        _masks(operator.invert),
    )
    yield (
        "mask inverted: ours reads the boolean masks of its attention the other way round. "
        f"{meaning}",
        _on(ATTENTION, _invert_here),
    )
    for k in range(3):
        yield (
            f"mask inverted: ours reads the boolean mask number {k} the other way round. {meaning}",
            _masks(operator.invert, k),
        )
    yield (
        "batch and sequence swapped: torch has batch_first set the other way. Give both the same "
        "batch_first.",
        _batch_first,
    )
    yield (
        "batch and sequence swapped: ours takes the first two axes of the input in the other "
        "order.",
        _swap_inputs,
    )
    yield "the mask is not applied: ours gives what torch gives without any mask.", _without_masks
    yield (
        "the boolean mask is added to the scores as 0 and 1; blocked scores must become -inf.",
        _masks(lambda mask: mask.double()),
    )
    yield (
        "norm_first differs: one is pre-norm, the other post-norm.",
        _on(LAYERS, _toggle_norm_first),
    )


def _masks(change: Callable[[Any], Any], which: int | None = None) -> Change:
    """Change one boolean mask among the arguments, or all of them."""

    def act(module: Any, given: dict[Any, Any]) -> None:
        masks = [key for key, x in given.items() if str(getattr(x, "dtype", "")) == "torch.bool"]
        for key in masks if which is None else [masks[which]]:
            given[key] = change(given[key])

    return act


def _invert_here(part: Any) -> None:
    """The masks that reach this submodule, wherever they are made."""

    def flipped(_: Any, args: tuple, named: dict[str, Any]) -> Any:
        given = dict(enumerate(args)) | named
        _masks(operator.invert)(part, given)
        return split(given)

    part.register_forward_pre_hook(flipped, with_kwargs=True)


def _without_masks(module: Any, given: dict[Any, Any]) -> None:
    _masks(lambda mask: None)(module, given)
    for key in [key for key in given if "mask" in str(key) or key == "is_causal"]:
        del given[key]


def _batch_first(module: Any, given: dict[Any, Any]) -> None:
    for part in module.modules():
        if hasattr(part, "batch_first"):
            part.batch_first = not part.batch_first


def _swap_inputs(module: Any, given: dict[Any, Any]) -> Any:
    for key, x in given.items():
        if isinstance(key, int) and getattr(x, "ndim", 0) == 3:
            given[key] = x.detach().swapaxes(0, 1).requires_grad_()
    return lambda out: out.swapaxes(0, 1)


def _toggle_norm_first(part: Any) -> None:
    part.norm_first = not part.norm_first


def _norms() -> Iterator[tuple[str, Change]]:
    norms = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d")
    for eps in (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 1e-7, 1e-9, 0.0, 1e-4, 1e-2):
        yield (
            f"eps: ours behaves as with eps={eps:g} in the norm. Give both the same eps.",
            _on(norms, _setting("eps", eps)),
        )
    texts = {
        "unbiased": (
            "biased variance: ours divides the variance in layer norm by n - 1 (unbiased); "
            "torch's LayerNorm divides by n (biased). Use var(ddof=0)."
        ),
        "outside": (
            "eps: ours adds eps to the standard deviation, outside the root; torch's LayerNorm "
            "has sqrt(var + eps)."
        ),
        "unbiased, outside": (
            "biased variance and eps: ours computes (x - mean) / (std + eps) with the unbiased "
            "std (n - 1); torch's LayerNorm has sqrt(biased var + eps)."
        ),
        "over": (
            "layer norm over the wrong axes: ours takes mean and variance over all axes together."
        ),
        "first": (
            "layer norm over the wrong axis: ours takes mean and variance along axis 0 (the "
            "batch), not along the features."
        ),
        "rms": (
            "layer norm without its mean: ours divides by the root mean square and subtracts no "
            "mean, as RMSNorm does."
        ),
        "square": "layer norm divides by the variance: the square root is missing in ours.",
        "centre": "layer norm without its variance: ours subtracts the mean only.",
    }
    for how, text in texts.items():
        yield text, _on(("LayerNorm",), _with_forward(_odd_norm, how))
    yield (
        "layer norm without its weight and bias: ours leaves them out.",
        _on(("LayerNorm",), _forget_affine),
    )


def _odd_norm(part: Any, how: str) -> Callable:
    """Layer norm with a mistake, or another convention."""

    def forward(x: Any) -> Any:
        axes = {"over": tuple(range(x.ndim)), "first": (0,)}.get(
            how, tuple(range(-len(part.normalized_shape), 0))
        )
        centred = x if how == "rms" else x - x.mean(dim=axes, keepdim=True)
        square = (
            (x * x).mean(dim=axes, keepdim=True)
            if how == "rms"
            else x.var(dim=axes, keepdim=True, correction=int("unbiased" in how))
        )
        scale = square.sqrt() + part.eps if "outside" in how else (square + part.eps).sqrt()
        y = centred / {"square": square + part.eps, "centre": 1}.get(how, scale)
        y = y if part.weight is None else y * part.weight
        return y if part.bias is None else y + part.bias

    return forward


def _forget_affine(part: Any) -> None:
    part.weight = part.bias = None


def _activations() -> Iterator[tuple[str, Change]]:
    import torch

    gelu = torch.nn.functional.gelu
    variants = {
        "GELU variant: ours is the tanh approximation of GELU. Set approximate, or the "
        "activation, to the same.": lambda x: gelu(x, approximate="tanh"),
        "GELU variant: ours is the exact GELU (erf). Set approximate, or the activation, to the "
        "same.": gelu,
        "GELU variant: ours is x sigmoid(1.702 x).": lambda x: x * torch.sigmoid(1.702 * x),
        "another activation: ours is relu.": torch.relu,
        "another activation: ours is silu.": torch.nn.functional.silu,
        "another activation: ours is tanh.": torch.tanh,
        "another activation: ours is sigmoid.": torch.sigmoid,
        "another activation: ours is leaky relu with slope 0.01.": torch.nn.functional.leaky_relu,
        "another activation: ours is elu.": torch.nn.functional.elu,
        "the activation is left out: ours passes its input on.": lambda x: x,
    }
    for text, f in variants.items():
        yield text, _activation(f)
    for axis in (-1, 0, 1, 2):
        yield (
            f"softmax axis: ours normalises along axis {axis}.",
            _on(("Softmax", "LogSoftmax"), _setting("dim", axis)),
        )


def _activation(f: Callable) -> Change:
    def act(part: Any) -> None:
        setattr(part, "activation" if hasattr(part, "activation") else "forward", f)

    kinds = ("GELU", "ReLU", "SiLU", "Tanh", "Sigmoid", "LeakyReLU", "ELU", *LAYERS)
    return _on(kinds, act)


def _attention() -> Iterator[tuple[str, Change]]:
    yield (
        "scale by embed instead of head: ours divides the scores by sqrt(embed_dim) instead of "
        "sqrt(head_dim).",
        _on(
            ATTENTION, lambda part: _scale_queries(part, math.sqrt(part.head_dim / part.embed_dim))
        ),
    )
    yield (
        "no scale: ours does not divide the scores by sqrt(head_dim).",
        _on(ATTENTION, lambda part: _scale_queries(part, math.sqrt(part.head_dim))),
    )
    yield (
        "scale: ours divides the scores by head_dim instead of its square root (or twice by the "
        "root).",
        _on(ATTENTION, lambda part: _scale_queries(part, 1 / math.sqrt(part.head_dim))),
    )
    yield (
        "heads split in the other order: ours reshapes the width to (head_dim, num_heads) instead "
        "of (num_heads, head_dim).",
        _on(ATTENTION, _heads_inside_out),
    )
    yield "number of heads: ours computes with one head.", _on(ATTENTION, partial(_heads, heads=1))
    for heads in (2, 4, 8, 16, 3, 6, 12):
        yield (
            f"number of heads: ours computes with {heads} heads.",
            _on(ATTENTION, partial(_heads, heads=heads)),
        )
    for order, words in {
        (1, 0, 2): "query and key",
        (0, 2, 1): "key and value",
        (2, 1, 0): "query and value",
    }.items():
        yield (
            f"projections exchanged: ours takes the weights of {words} for one another. "
            "in_proj_weight holds query, key, value in this order.",
            _on(ATTENTION, partial(_reorder, order=order)),
        )
    yield "causal mask: ours looks at earlier positions only; torch got no such mask.", _causal(0)
    yield "causal mask off by one: ours also looks at the next position.", _causal(1)
    yield "causal mask off by one: ours does not look at the position itself.", _causal(-1)
    texts = {
        "axis": (
            "softmax axis: ours normalises the weights over the queries (axis -2), not over the "
            "keys (axis -1)."
        ),
        "turned": (
            "weights transposed: ours multiplies the values by the transposed attention weights."
        ),
        "merge": (
            "heads joined in the wrong order: ours reshapes (H, T, D) to (T, E) without "
            "exchanging heads and positions first."
        ),
        "none": "no softmax: ours multiplies the values by the bare scores.",
    }
    for how, text in texts.items():
        yield text, _on(ATTENTION, _with_forward(_odd_attention, how))


def _scale_queries(part: Any, factor: float) -> None:
    """Scaling the queries scales the scores."""
    if part.in_proj_weight is None:
        part.q_proj_weight.data *= factor
    for p in (part.in_proj_weight, part.in_proj_bias):
        if p is not None:
            p.data[: part.embed_dim] *= factor


def _thirds(part: Any, change: Callable[[Any], Any]) -> None:
    """Change the three parts of the projection, as a list, weights and biases alike."""
    import torch

    for p in (part.in_proj_weight, part.in_proj_bias):
        if p is not None:
            p.data = torch.cat(change(p.data.chunk(3)))


def _heads_inside_out(part: Any) -> None:
    """Feature d H + h in the place of h D + d."""
    import torch

    order = torch.arange(part.embed_dim).reshape(part.head_dim, part.num_heads).T.reshape(-1)
    _thirds(part, lambda thirds: [w[order] for w in thirds])
    part.out_proj.weight.data = part.out_proj.weight.data[:, order]


def _heads(part: Any, heads: int) -> None:
    if part.embed_dim % heads or heads == part.num_heads:
        raise ValueError("this number of heads is not another one that fits")
    part.num_heads, part.head_dim = heads, part.embed_dim // heads


def _reorder(part: Any, order: tuple[int, ...]) -> None:
    _thirds(part, lambda thirds: [thirds[i] for i in order])


def _causal(further: int) -> Change:
    def change(module: Any, given: dict[Any, Any]) -> None:
        import torch

        first = next(part for part in module.modules() if hasattr(part, "batch_first"))
        t = given[0].shape[1 if first.batch_first else 0]
        name = "attn_mask" if type(module).__name__ in ATTENTION else "src_mask"
        given[name] = ~torch.ones(t, t, dtype=torch.bool).tril(further)

    return change


def _odd_attention(part: Any, how: str) -> Callable:
    """Attention of batched inputs with a mistake, without masks."""

    def forward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        weights, biases = part.in_proj_weight.chunk(3), part.in_proj_bias.chunk(3)
        first = (lambda x: x) if part.batch_first else (lambda x: x.swapaxes(0, 1))
        q, k, v = (
            (first(x) @ w.T + b).unflatten(-1, (part.num_heads, -1)).swapaxes(1, 2)
            for x, w, b in zip((q, k, v), weights, biases)
        )
        scores = q @ k.mT / math.sqrt(part.head_dim)
        a = scores if how == "none" else torch.softmax(scores, -2 if how == "axis" else -1)
        out = (a.mT if how == "turned" else a) @ v
        joined = (
            out.reshape(out.shape[0], out.shape[2], -1)
            if how == "merge"
            else out.swapaxes(1, 2).flatten(2)
        )
        return first(part.out_proj(joined)), None

    return forward


def _weights(torch_module: Any) -> Iterator[tuple[str, Change]]:
    matrices = [  # an attention's in_proj_weight is three, one above the other
        name
        for name, p in torch_module.named_parameters()
        if p.ndim == 2 and p.shape[0] in (p.shape[1], 3 * p.shape[1])
    ]
    for names in [[name] for name in matrices[:40]] + ([matrices] if len(matrices) > 1 else []):
        listed = ", ".join(map(repr, names))
        yield (
            f"weight transposed: ours uses {listed} transposed. A torch Linear weight is (out, "
            "in): y = x @ weight.T.",
            _edit(names, _squares_transposed),
        )
    biases = [name for name, _ in torch_module.named_parameters() if name.endswith("bias")]
    for names in [[name] for name in biases[:40]] + [biases]:
        listed = ", ".join(map(repr, names))
        yield f"bias left out: ours does not add {listed}.", _edit(names, lambda p: p * 0)
        yield (
            f"bias subtracted: ours has the wrong sign before {listed}.",
            _edit(names, lambda p: -p),
        )
        yield f"bias added twice: ours adds {listed} once too often.", _edit(names, lambda p: 2 * p)


def _edit(names: list[str], f: Callable[[Any], Any]) -> Change:
    def change(module: Any, given: dict[Any, Any]) -> None:
        parameters = dict(module.named_parameters())
        for name in names:
            parameters[name].data = f(parameters[name].data)

    return change


def _squares_transposed(p: Any) -> Any:
    import torch

    return torch.cat([square.T for square in p.split(p.shape[1])])
