"""Marker for chapter 22: three experiments, on a small random model of the same kind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from _marking import Marks, exercise

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.self_attn = nn.GroupedQueryAttention(size, heads, heads // 2, rotary_base=100.0)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Any) -> Any:
        x = x + self.self_attn(self.norm1(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(
        self, vocabulary: int = 23, size: int = 16, heads: int = 4, layers: int = 3
    ) -> None:
        self.embed_tokens = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList([Block(size, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(size)

    def forward(self, tokens: Any) -> Any:
        return self.after(self.embed_tokens(tokens))

    def after(self, x: Any) -> Any:
        """Return the scores of the next token from the embeddings. (B, T, E) -> (B, T, V)"""
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def small_model() -> Model:
    """Return a model of float64 whose heads differ, and whose weights are large enough to matter."""
    state = ta.random.default_generator().get_state()
    ta.manual_seed(22)
    model = Model().astype(np.float64)
    ta.random.default_generator().set_state(state)
    for p in model.parameters():
        if p.ndim == 2:
            p.data *= 2.5
    return model.eval()


def log_p(model: Model, tokens: list[int]) -> np.ndarray:
    """Return log p (V,) of the next token."""
    with ta.no_grad():
        return F.log_softmax(model([tokens])[0, -1]).numpy()


def slopes(model: Model, tokens: list[int]) -> np.ndarray:
    """Return the change of log p with the size of each embedding, measured by differences, (T,)."""
    x, answer = model.embed_tokens([tokens]).numpy(), int(log_p(model, tokens).argmax())

    def changed(t: int, h: float) -> float:
        moved = x.copy()
        moved[0, t] *= 1 + h
        with ta.no_grad():
            return F.log_softmax(model.after(moved)[0, -1])[answer].item()

    return np.array([(changed(t, 1e-4) - changed(t, -1e-4)) / 2e-4 for t in range(len(tokens))])


def gradients(model: Model, tokens: list[int], of: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of `of` the scores (V,), and the embeddings, both (T, E)."""
    x = ta.Tensor(model.embed_tokens([tokens]).numpy(), requires_grad=True)
    scores = model.after(x)[0, -1]
    of(scores)[int(scores.numpy().argmax())].backward()
    return x.grad.numpy()[0], x.numpy()[0]


def mixed(model: Model, layer: int, rows: dict[int, list[int]]) -> Model:
    """Return a model whose o_proj reads, in place of head h, the sum of the heads rows[h]."""
    other = copy.deepcopy(model)
    projection = other.layers[layer].self_attn.o_proj.weight
    size, old = other.layers[layer].self_attn.head_dim, projection.numpy().copy()
    columns = lambda h: slice(size * h, size * h + size)
    for h, readers in rows.items():  # head h is read by the columns of these heads
        projection.data[:, columns(h)] = sum(old[:, columns(reader)] for reader in readers)
    return other


@exercise(22, "opened", "three experiments inside a language model", allowed=None)
def _(marks: Marks) -> None:
    saliency, induction, exchanged = map(marks.function, ("saliency", "induction", "exchanged"))
    model, tokens = small_model(), [3, 14, 15, 9, 2, 6]
    g, x = gradients(model, tokens, F.log_softmax)
    of_p, of_score = (gradients(model, tokens, of)[0] for of in (F.softmax, lambda scores: scores))
    marks.idea("the gradient says which token decided", 3)
    marks.compare(
        "saliency: which token decided?",
        lambda: saliency(model, tokens),
        slopes(model, tokens),
        mistakes={
            "These are the lengths of the gradients. Multiply each gradient by the embedding and sum.": np.linalg.norm(g, axis=-1),
            "This is the gradient of p. Use log p.": (of_p * x).sum(-1),
            "This is the gradient of the token's score. log p also depends on the other scores.": (of_score * x).sum(-1),
            "These are sums of the gradients, without the embeddings.": g.sum(-1),
            "These are absolute values. A token can also make the answer less likely.": abs((g * x).sum(-1)),
        },
        hint="The expected numbers are measured: each embedding is made a little longer, and log p changes.",
    )  # fmt: skip

    repeated = [5, 1, 20, 8, 12, 3, 17] * 2
    with ta.no_grad(), ta.record_attention(model) as seen:
        model([repeated])
    weights = np.stack([calls[0][0] for calls in seen.values()])  # (L, H, T, T)
    pairs = [(q, q - 6) for q in range(7, 14)]
    back = lambda k, n=7: np.diagonal(weights, -k, -2, -1)[..., -n:].mean(-1)
    marks.idea("a head that copies looks behind the last occurrence", 3)
    marks.compare(
        "induction: which head copies?",
        lambda: induction(model, repeated),
        np.mean([weights[..., q, k] for q, k in pairs], axis=0),
        mistakes={
            "This is the weight of the same token, n places back. The token that followed it is one place later.": back(7),
            "This is the weight of the previous token.": back(1),
            "The keys are right, but the mean includes queries of the first half.": back(6, 8),
            "The keys are one too far back.": back(8, 6),
            "Queries and keys are exchanged: no key is later than its query.": np.diagonal(weights, 6, -2, -1)[..., -7:].mean(-1),
        },
    )  # fmt: skip

    before = [p.numpy().copy() for p in model.parameters()]
    layer, a, b = 1, 0, 3
    in_order = log_p(model, tokens)
    marks.idea("an output that is replaced, and nothing else", 3)
    marks.compare(
        "exchanged: two heads of a layer",
        lambda: exchanged(model, tokens, layer, a, b),
        log_p(mixed(model, layer, {a: [b], b: [a]}), tokens),
        mistakes={
            "No head was exchanged.": in_order,
            "Head b has the output of head a, but head a still has its own. The first assignment was lost.": log_p(mixed(model, layer, {a: [a, b], b: []}), tokens),
            "Head a has the output of head b, but head b still has its own. The first assignment was lost.": log_p(mixed(model, layer, {b: [a, b], a: []}), tokens),
            "Both heads are set to zero.": log_p(mixed(model, layer, {a: [], b: []}), tokens),
            "The heads of another layer were exchanged: layers count from 0.": log_p(mixed(model, 0, {a: [b], b: [a]}), tokens),
        },
        hint="The expected numbers come from a copy of the model in which the columns of o_proj are exchanged.",
    )  # fmt: skip
    marks.compare(
        "exchanged: a head with itself",
        lambda: exchanged(model, tokens, 2, 1, 1),
        in_order,
    )
    marks.that(
        "the model is as it was",
        lambda: (
            exchanged(model, tokens, layer, a, b) is not None
            and all(map(np.array_equal, before, (p.numpy() for p in model.parameters())))
            and np.array_equal(log_p(model, tokens), in_order)
        ),
        "After your experiment, the model computes something else. Replace outputs inside a with block.",
    )
