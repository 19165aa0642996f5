"""A table of the classes in `nn`, with a model that uses each class, its inputs and its expected values.

`make` takes a namespace, our `nn` or `torch.nn`. If PyTorch has the class, the same code creates both models, and
their values must agree. Otherwise, `equation` computes the values in plain NumPy from the model's state and the inputs.
The tests differentiate with respect to the float arrays among the inputs. For a new class in `nn`, add a line here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tinygrad_attn import no_grad


class Example(NamedTuple):
    make: Callable[[Any], Any]
    inputs: list[np.ndarray]
    equation: Callable[..., Any] | None = None


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


def labels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, shape)


X = numbers(2, 5, 4)  # (B, T, E)
MEMORY = numbers(3, 2, 6, 4)[0]  # (B, S, E)

TABLE: dict[str, Example] = {
    "Linear": Example(lambda nn: nn.Linear(4, 3), [X]),
    "Embedding": Example(lambda nn: nn.Embedding(4, 3), [labels(2, 5)]),
    "LayerNorm": Example(lambda nn: nn.LayerNorm((5, 4)), [X]),
    "RMSNorm": Example(lambda nn: nn.RMSNorm(4), [X]),
    "Dropout": Example(lambda nn: nn.Dropout(0.4), [X]),
    "Identity": Example(lambda nn: nn.Identity(), [X]),
    "ReLU": Example(lambda nn: nn.ReLU(), [X]),
    "GELU": Example(lambda nn: nn.GELU("tanh"), [X]),
    "SiLU": Example(lambda nn: nn.SiLU(), [X]),
    "Sigmoid": Example(lambda nn: nn.Sigmoid(), [X]),
    "Tanh": Example(lambda nn: nn.Tanh(), [X]),
    "Softmax": Example(lambda nn: nn.Softmax(dim=1), [X]),
    "LogSoftmax": Example(lambda nn: nn.LogSoftmax(dim=1), [X]),
    "MSELoss": Example(lambda nn: nn.MSELoss(reduction="sum"), [X, X[::-1].copy()]),
    "CrossEntropyLoss": Example(
        lambda nn: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=3),
        [X[0], labels(5)],
    ),
    "Sequential": Example(lambda nn: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), [X]),
    "MultiheadAttention": Example(
        lambda nn: nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True),
        [X, MEMORY, MEMORY[::-1].copy()],
    ),
    "TransformerEncoderLayer": Example(
        lambda nn: nn.TransformerEncoderLayer(4, 2, 6, 0.3, batch_first=True), [X]
    ),
    "TransformerEncoder": Example(
        lambda nn: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                4, 2, 6, 0.3, activation="gelu", norm_first=True, batch_first=True
            ),
            2,
            nn.LayerNorm(4),
            enable_nested_tensor=False,
        ),
        [X],
    ),
    "TransformerDecoderLayer": Example(
        lambda nn: nn.TransformerDecoderLayer(4, 2, 6, 0.3, batch_first=True), [X, MEMORY]
    ),
    "TransformerDecoder": Example(
        lambda nn: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(4, 2, 6, 0.3, batch_first=True, norm_first=True), 2
        ),
        [X, MEMORY],
    ),
    "Transformer": Example(
        lambda nn: nn.Transformer(4, 2, 1, 1, 6, 0.3, batch_first=True), [MEMORY, X]
    ),
}
"""An example for each class, by name."""


def model(**parts: Callable[[Any], Any]):
    """Decorate a function that becomes `forward(self, *inputs)` of a model with these parts."""

    def made(forward):
        def make(nn):
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    for name, part in parts.items():
                        setattr(self, name, part(nn))

            Model.forward = forward
            return Model()

        return make

    return made


@model(inner=lambda nn: nn.Linear(4, 3))
def inside_another(self, x):
    return self.inner(x) * 2.0


@model(layers=lambda nn: nn.ModuleList([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)]))
def one_after_another(self, x):
    for layer in self.layers:
        x = layer(x)
    return x


@model(layers=lambda nn: nn.ModuleDict({"left": nn.Linear(4, 3), "right": nn.Linear(4, 3)}))
def by_name(self, x):
    return self.layers["left"](x) * self.layers["right"](x)


@model(scale=lambda nn: nn.Parameter(numbers(4)))
def scaled(self, x):
    return self.scale * x


@model(shift=lambda nn: nn.Buffer(numbers(4)))
def shifted(self, x):
    return self.shift + x


def cached(nn):
    """Process a sequence token by token, which must give the same result as the whole sequence."""

    @model(attention=lambda nn: nn.MultiheadAttention(4, 2, batch_first=True))
    def token_by_token(self, x):
        cache, tokens = nn.KeyValueCache(), []
        with no_grad():
            for t in range(x.shape[1]):
                token = x[:, t : t + 1]
                tokens.append(self.attention(token, token, token, cache=cache, is_causal=True)[0])
        return np.concatenate(tokens, axis=1)

    return token_by_token(nn)


# ---- equations in plain NumPy


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def causal(scores):
    return np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)


def attention_of_two_heads(w, x):
    """(B, T, E) -> (B, T, E). Each token attends to itself and to earlier tokens."""
    rows = x @ w["attention.in_proj_weight"].T + w["attention.in_proj_bias"]
    q, k, v = (part.reshape(2, 5, 2, 2).swapaxes(1, 2) for part in np.split(rows, 3, axis=-1))
    y = softmax(causal(q @ k.swapaxes(-1, -2) / np.sqrt(2))) @ v
    y = y.swapaxes(1, 2).reshape(x.shape)
    return y @ w["attention.out_proj.weight"].T + w["attention.out_proj.bias"]


def self_attention(w, x):
    q, k, v = (x @ w[f"W_{part}.weight"].T for part in ("query", "key", "value"))
    return softmax(causal(q @ k.swapaxes(-1, -2) / np.sqrt(3))) @ v


def additive_attention(w, query, key, value):
    q, k = query @ w["W_query.weight"].T, key @ w["W_key.weight"].T
    scores = np.tanh(q[:, :, None] + k[:, None]) @ w["w_score.weight"][0]
    return softmax(scores) @ value, softmax(scores)


def grouped_query_attention(w, x):
    """Two query heads of 4 share one key head; each pair is rotated as a complex number."""
    q = (x @ w["q_proj.weight"].T).reshape(2, 5, 2, 4).swapaxes(1, 2)
    k, v = (x @ w[f"{name}_proj.weight"].T for name in "kv")
    turns = np.exp(1j * np.arange(5)[:, None] * 100.0 ** -np.array([0, 0.5]))
    rotated = lambda y: (y[..., :2] + 1j * y[..., 2:]) * turns  # (..., T, 2), complex
    scores = (rotated(q) @ rotated(k)[:, None].conj().swapaxes(-1, -2)).real / 2
    y = softmax(causal(scores)) @ v[:, None]
    return y.swapaxes(1, 2).reshape(2, 5, 8) @ w["o_proj.weight"].T


def feed_forward(w, x):
    inner = np.maximum(x @ w["linear1.weight"].T + w["linear1.bias"], 0)
    return inner @ w["linear2.weight"].T + w["linear2.bias"]


def sinusoidal(w, x):
    t, i = np.arange(5.0)[:, None], np.arange(2.0)
    angle = t / 10000 ** (2 * i / 4)
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(5, 4)
    return x + table.astype(np.float32)  # the dtype of the layer's table


TABLE |= {
    "Module": Example(inside_another, [X]),
    "ModuleList": Example(one_after_another, [X]),
    "ModuleDict": Example(by_name, [X]),
    "Parameter": Example(scaled, [X], lambda w, x: w["scale"] * x),
    "Buffer": Example(shifted, [X], lambda w, x: w["shift"] + x),
    "KeyValueCache": Example(cached, [X], attention_of_two_heads),
    "SelfAttention": Example(lambda nn: nn.SelfAttention(4, 3, causal=True), [X], self_attention),
    "GroupedQueryAttention": Example(
        lambda nn: nn.GroupedQueryAttention(4, 2, 1, 4, rotary_base=100.0),
        [X],
        grouped_query_attention,
    ),
    "AdditiveAttention": Example(
        lambda nn: nn.AdditiveAttention(4, 4, 3), [X, MEMORY, MEMORY**2], additive_attention
    ),
    "FeedForward": Example(lambda nn: nn.FeedForward(4, 6), [X], feed_forward),
    "SinusoidalPositionalEncoding": Example(
        lambda nn: nn.SinusoidalPositionalEncoding(4, 9), [X], sinusoidal
    ),
    "LearnedPositionalEncoding": Example(
        lambda nn: nn.LearnedPositionalEncoding(9, 4), [X], lambda w, x: x + w["weight"][:5]
    ),
}
