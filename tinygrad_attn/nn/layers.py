"""Linear, embedding and norm layers, positional encodings, activations and losses."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import describe
from ..functional.checks import check_probability, padding_row, real
from ..tensor import Tensor
from ..tensor.convert import as_sizes
from . import init
from .module import Buffer, Module, Parameter


def floating(x, module):
    """Convert integers and booleans to the dtype of the module's parameters."""
    if isinstance(x, (Tensor, np.ndarray)) and x.dtype.kind == "f":
        return x  # fast path for the usual case
    return real(x, "a layer", next(module.parameters()).dtype)


class Identity(Module):
    """y = x"""

    def forward(self, input):
        """input -> input"""
        return input


class Linear(Module):
    """y = x W^T + b with `weight` (out, in) and `bias` (out,).

    Both are initially uniform on [-1/sqrt(in), 1/sqrt(in)). Like torch.nn.Linear.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        self.in_features, self.out_features = in_features, out_features
        empty = Parameter.empty
        self.weight = init.kaiming_uniform_(empty(out_features, in_features), math.sqrt(5))
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        self.bias: Any = init.uniform_(empty(out_features), -bound, bound) if bias else None

    def forward(self, input) -> Tensor:
        """(..., in) -> (..., out). Raises ValueError if the last size differs."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """y = weight[i], with `weight` (num_embeddings, embedding_dim) initially standard normal.

    Row `padding_idx` is initially zero and gets no gradient. Like torch.nn.Embedding.
    """

    _shown = ("num_embeddings", "embedding_dim", "padding_idx")

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_row(padding_idx, num_embeddings, "Embedding")
        self.weight = init.normal_(Parameter.empty(num_embeddings, embedding_dim))
        if self.padding_idx is not None:
            self.weight._data[self.padding_idx] = 0

    def forward(self, input) -> Tensor:
        """(...) integers -> (..., E). Raises TypeError or ValueError for an invalid index."""
        return F.embedding(input, self.weight, self.padding_idx)


class _Norm(Module):
    """The base class of LayerNorm and RMSNorm."""

    _shown = ("normalized_shape", "eps", "elementwise_affine")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ):
        if eps is not None and eps >= 1:
            name = type(self).__name__
            raise ValueError(f"eps={eps} is too large; for several axes, write nn.{name}((m, n)).")
        self.normalized_shape = as_sizes((normalized_shape,))
        self.eps, self.elementwise_affine = eps, elementwise_affine
        empty = Parameter.empty(*self.normalized_shape)
        self.weight = init.ones_(empty) if elementwise_affine else None


class LayerNorm(_Norm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes; var divides by n.

    `weight` is initially 1 and `bias` 0. Ba, Kiros and Hinton, 2016; like torch.nn.LayerNorm.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        super().__init__(normalized_shape, eps, elementwise_affine)
        self.eps: float
        empty = Parameter.empty(*self.normalized_shape)
        self.bias = init.zeros_(empty) if elementwise_affine and bias else None

    def forward(self, input):
        """(..., *normalized_shape) -> same shape. Raises ValueError if the last sizes differ."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_Norm):
    """y = x / sqrt(mean(x^2) + eps) * weight, with the mean over the last axes.

    By default, `eps` is the epsilon of x's dtype. Zhang and Sennrich, 2019; like torch.nn.RMSNorm.
    """

    def forward(self, input):
        """(..., *normalized_shape) -> same shape. Raises ValueError if the last sizes differ."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class Dropout(Module):
    """y = x * keep / (1 - p) in training, else y = x. keep[i] is 1 with probability 1 - p.

    `inplace` is ignored. Srivastava et al., 2014; like torch.nn.Dropout.
    """

    _shown = ("p",)

    def __init__(self, p: float = 0.5, inplace: bool = False):
        check_probability(p, "Dropout")
        self.p = p

    def forward(self, input):
        """input of any shape -> the same shape"""
        return F.dropout(input, self.p, self.training)


class _Elementwise(Module):
    """The base class of elementwise activations. `inplace` is ignored."""

    function: Any  # of F

    def __init__(self, inplace: bool = False):
        pass

    def forward(self, input):
        """input of any shape -> the same shape"""
        return type(self).function(input)


class ReLU(_Elementwise):
    """y = max(x, 0). The derivative at 0 is 0."""

    function = F.relu


class SiLU(_Elementwise):
    """y = x / (1 + exp(-x)), also called swish."""

    function = F.silu


class Sigmoid(_Elementwise):
    """y = 1 / (1 + exp(-x))"""

    function = F.sigmoid


class Tanh(_Elementwise):
    """y = tanh(x)"""

    function = F.tanh


class GELU(Module):
    """y = x P(Z <= x) for Z standard normal, or its approximation "tanh". Like torch.nn.GELU."""

    _shown = ("approximate",)

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, input):
        """input of any shape -> the same shape"""
        return F.gelu(input, self.approximate)


class Softmax(Module):
    """y_i = exp(x_i) / sum_j exp(x_j) along an axis; `dim` is PyTorch's name for `axis`."""

    _shown = ("axis",)

    def __init__(self, axis: int = -1, *, dim: int | None = None):
        self.axis = axis if dim is None else dim

    def forward(self, input):
        """input of any shape -> the same shape"""
        return F.softmax(input, self.axis)


class LogSoftmax(Softmax):
    """y_i = x_i - log sum_j exp(x_j) along an axis"""

    def forward(self, input):
        """input of any shape -> the same shape"""
        return F.log_softmax(input, self.axis)


class MSELoss(Module):
    """(x - y)^2, reduced by "mean", "sum" or "none"; see `F.mse_loss`."""

    _shown = ("reduction",)

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, input, target):
        """Two tensors of the same shape -> (), or their shape with reduction="none"."""
        return F.mse_loss(input, target, self.reduction)


class CrossEntropyLoss(Module):
    """-log softmax(x)[target], by default averaged over all targets; see `F.cross_entropy`.

    `weight` (C,) contains one weight per class. Like torch.nn.CrossEntropyLoss.
    """

    _shown = ("ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight=None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input, target):
        """Logits (B, C, ...), and class indices (B, ...) or probabilities (B, C, ...) -> ()"""
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class _Positions(Module):
    """The base class of positional encodings: y_t = x_t + table[t]."""

    _table: str
    _shown = ("max_len", "d_model", "batch_first")

    def __init__(self, max_len, d_model, batch_first):
        self.max_len, self.d_model, self.batch_first = max_len, d_model, batch_first

    def forward(self, x, offset: int = 0) -> Tensor:
        """(B, T, E), or (T, B, E) with batch_first=False, or (T, E) -> the same shape.

        `offset` is the position of the first token. Raises ValueError for positions past max_len.
        """
        table = getattr(self, self._table)
        x = real(x, "a layer", table.dtype)
        if x.ndim not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(
                "positional encodings need an input of shape (T, E), (B, T, E) or (T, B, E), "
                f"with E = d_model = {self.d_model}, got {describe(x)}."
            )
        time_first = x.ndim == 2 or not self.batch_first
        end = offset + x.shape[0 if time_first else 1]
        if offset < 0 or end > self.max_len:
            raise ValueError(f"positions {offset} to {end - 1} exceed max_len={self.max_len}.")
        rows = table[offset:end]
        return x + (rows[:, None] if x.ndim == 3 and time_first else rows)


class SinusoidalPositionalEncoding(_Positions):
    """y_t = dropout(x_t + p_t), p[t, 2i] = sin(t / 10000^(2i/E)), p[t, 2i+1] = cos(...).

    The table is neither trained nor saved. Vaswani et al., 2017.
    """

    _table = "pe"

    def __init__(
        self, d_model: int, max_len: int = 5000, dropout: float = 0.0, *, batch_first: bool = True
    ):
        super().__init__(max_len, d_model, batch_first)
        self.pe = Buffer(F.sinusoidal_positions(max_len, d_model), persistent=False)
        self.dropout = Dropout(dropout)

    def forward(self, x, offset: int = 0) -> Tensor:
        """Add the positions, with dropout. Shapes are as in LearnedPositionalEncoding."""
        return self.dropout(super().forward(x, offset))


class LearnedPositionalEncoding(_Positions):
    """y_t = x_t + weight[t]. `weight` (max_len, d_model) is trained, with initial std 0.02."""

    _table = "weight"

    def __init__(self, max_len: int, d_model: int, *, batch_first: bool = True):
        super().__init__(max_len, d_model, batch_first)
        self.weight = init.normal_(Parameter.empty(max_len, d_model), std=0.02)
