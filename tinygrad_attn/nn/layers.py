"""The layers a Transformer is made of, and the activations and losses as modules.

The mathematics is in functional/; here are the parameters, their initial values in PyTorch's
drawing order, and the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import functional as F
from ..errors import describe
from ..functional.checks import (
    check_number,
    check_probability,
    padding_row,
    real,
    sizes_of,
)
from ..tensor import Tensor
from . import init
from .module import Module
from .parameter import Buffer, Parameter


def floating(x: Any, like: Any) -> Any:
    """Promote integers and booleans to the dtype of `like`, of a module its first parameter's."""
    if isinstance(x, Tensor) and x._data.dtype.kind == "f":
        return x  # the usual case, first and quickly
    if isinstance(like, Module):
        like = next(like.parameters(), None)
    return real(x, "a layer", None if like is None else like.dtype)


class Identity(Module):
    """y = x, whatever the arguments it was made with."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def forward(self, input: Any) -> Any:
        """input -> input"""
        return input


class Linear(Module):
    """y = x W^T + b: `weight` (out, in), `bias` (out,).  (..., in) -> (..., out)

    Initial values: both uniform on [-1/sqrt(in), 1/sqrt(in)). As torch.nn.Linear.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter.empty(out_features, in_features, dtype=dtype)
        self.bias: Any = Parameter.empty(out_features, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight, then the bias."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Any) -> Tensor:
        """(..., in) -> (..., out). Raises ValueError for another last axis of input."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """y = weight[i], a row of the table `weight` (num_embeddings, embedding_dim) for each index.
    (...) -> (..., E)

    Initial values: normal, with the row `padding_idx` zero; that row gets no gradient. Raises
    ValueError for a `padding_idx` outside the table. As torch.nn.Embedding.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
    ) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter.empty(num_embeddings, embedding_dim, dtype=dtype)
        self.padding_idx = padding_row(padding_idx, num_embeddings, "Embedding")
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """An Embedding with this table (V, E), not trained further unless freeze=False."""
        table = Parameter(embeddings, requires_grad=not freeze)
        new = cls.__new__(cls)
        new.num_embeddings, new.embedding_dim = table.shape
        new.padding_idx, new.weight = padding_row(padding_idx, len(table), "Embedding"), table
        return new

    def reset_parameters(self) -> None:
        """Draw the table and clear the padding row."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight._data[self.padding_idx] = 0

    def forward(self, input: Any) -> Tensor:
        """Integers (...) -> (..., E). TypeError for other dtypes, ValueError for an index outside
        the table.
        """
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class _Norm(Module):
    """What LayerNorm and RMSNorm share: the parameters, of the shape that is normalised."""

    def __init__(self, shape: Any, eps: Any, affine: bool, bias: bool, dtype: Any) -> None:
        name = type(self).__name__
        if eps is not None and check_number(eps, name, "eps") >= 1:
            raise ValueError(
                f"{name}: eps is a small number such as 1e-5, got {eps}. Several sizes are one "
                f"tuple: nn.{name}((rows, columns))."
            )
        self.eps, self.elementwise_affine = eps, affine
        self.normalized_shape = sizes_of(shape)
        empty = lambda: Parameter.empty(*self.normalized_shape, dtype=dtype)
        self.weight = empty() if affine else None
        self.bias = empty() if affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def extra_repr(self) -> str:
        affine = f"elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class LayerNorm(_Norm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the
    last axes.

    `weight` starts at 1, `bias` at 0, both of `normalized_shape`. Ba, Kiros and Hinton, 2016; as
    torch.nn.LayerNorm.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, dtype)

    def forward(self, input: Any) -> Any:
        """(..., *normalized_shape) -> the same shape.  Raises ValueError for other last sizes."""
        x = floating(input, self.weight)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        without = self.weight is not None and self.bias is None
        return super().extra_repr() + ", bias=False" * without


class RMSNorm(_Norm):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last axes.  (..., E) -> (..., E)

    `eps` None is the machine epsilon of x's dtype, of float32 for float16. `weight` starts at 1.
    Zhang and Sennrich, 2019; as torch.nn.RMSNorm.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, False, dtype)

    def forward(self, input: Any) -> Any:
        """(..., *normalized_shape) -> the same shape.  Raises ValueError for other last sizes."""
        x = floating(input, self.weight)
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class Dropout(Module):
    """y = x * keep / (1 - p) in training, else y = x; each keep is 1 with probability 1 - p.

    `inplace` is accepted for PyTorch's sake; x is never written over. Raises ValueError for p
    outside [0, 1]. Srivastava et al., 2014; as torch.nn.Dropout.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability(p, "Dropout")
        self.p = p

    def forward(self, input: Any) -> Any:
        """input of any shape -> the same shape"""
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Elementwise(Module):
    """A function of one tensor, of any shape. `inplace` is accepted and changes nothing."""

    function: Callable[[Any], Any]

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, input: Any) -> Any:
        """input of any shape -> the same shape"""
        return type(self).function(input)


class ReLU(_Elementwise):
    """y = max(x, 0), any shape; the derivative at 0 is 0."""

    function = staticmethod(F.relu)


class SiLU(_Elementwise):
    """y = x / (1 + exp(-x)), any shape; also called swish."""

    function = staticmethod(F.silu)


class Sigmoid(_Elementwise):
    """y = 1 / (1 + exp(-x)), any shape."""

    function = staticmethod(F.sigmoid)


class Tanh(_Elementwise):
    """y = tanh(x), any shape."""

    function = staticmethod(F.tanh)


class GELU(Module):
    """y = x P(Z <= x), Z standard normal; or with approximate="tanh" the formula of Hendrycks and
    Gimpel, 2016. Any shape.

    As torch.nn.GELU.
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        """input of any shape -> the same shape"""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softmax(Module):
    """y_i = exp(x_i) / sum_j exp(x_j) along an axis, for which `dim` is PyTorch's name."""

    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None:
        self.axis = axis if dim is None else dim

    def forward(self, input: Any) -> Any:
        """input of any shape -> the same shape, each line along the axis sums to 1"""
        return F.softmax(input, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Softmax):
    """y_i = x_i - log sum_j exp(x_j) along an axis.  Any shape."""

    def forward(self, input: Any) -> Any:
        """input of any shape -> the same shape"""
        return F.log_softmax(input, self.axis)


class MSELoss(Module):
    """The mean (or reduction="sum", or with "none" the array) of (x - y)^2. Two tensors of one
    shape -> ()

    Raises as `F.mse_loss` does.  As torch.nn.MSELoss.
    """

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, input: Any, target: Any) -> Any:
        """Two tensors of one shape -> (), or with reduction="none" that shape."""
        return F.mse_loss(input, target, self.reduction)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(Module):
    """-log softmax(x)[target], the mean over all targets; see `F.cross_entropy`. (B, C, ...), (B,
    ...) -> ()

    `weight` (C,) weighs classes.  Raises as `F.cross_entropy` does.  As torch.nn.CrossEntropyLoss.
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Any, target: Any) -> Any:
        """Logits (B, C, ...) or (C,), class indices (B, ...) or () or probabilities -> (), or with
        reduction="none" as the indices.
        """
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, label_smoothing={self.label_smoothing}"


# ---- positions


def _add_positions(x: Any, table: Any, offset: Any, batch_first: bool) -> Any:
    """x + table[offset : offset + T], the same for each sequence of a batch."""
    x = floating(x, table)
    if x.ndim not in (2, 3) or x.shape[-1] != table.shape[1]:
        raise ValueError(
            f"positions are added to (T, E), or to {'(B, T, E)' if batch_first else '(T, B, E)'}, "
            f"with E = {table.shape[1]}; got {describe(x)}."
        )
    time_second = x.ndim == 3 and batch_first
    length = x.shape[1 if time_second else 0]
    if offset < 0 or offset + length > len(table):
        raise ValueError(
            f"there are max_len={len(table)} positions, but this input of length {length} needs "
            f"those from {offset} to {offset + length - 1}; make the layer with a larger max_len."
        )
    rows = table[offset : offset + length]
    return x + (rows if x.ndim == 2 or time_second else rows[:, None])


class SinusoidalPositionalEncoding(Module):
    """y_t = x_t + p_t, then dropout; p[t, 2i] = sin(t / 10000^(2i/E)), p[t, 2i+1] the cosine.

    Not trained and not saved. Vaswani et al., 2017. (B, T, E) -> (B, T, E), with batch_first=False
    (T, B, E); or (T, E).
    """

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        dropout: float = 0.0,
        *,
        batch_first: bool = True,
        dtype: Any = None,
    ) -> None:
        self.pe = Buffer(F.sinusoidal_positions(max_len, d_model, dtype), persistent=False)
        self.dropout, self.batch_first = Dropout(dropout), batch_first

    def forward(self, x: Any, offset: int = 0) -> Tensor:
        """x (B, T, E) -> the same shape; `offset` is the first token's position, as `cache.length`.

        Integer input is promoted. Raises ValueError for another width or beyond max_len positions.
        """
        return self.dropout(_add_positions(x, self.pe, offset, self.batch_first))

    def extra_repr(self) -> str:
        return f"d_model={self.pe.shape[1]}, max_len={self.pe.shape[0]}"


class LearnedPositionalEncoding(Module):
    """y_t = x_t + weight_t, a trained vector for each of `max_len` positions.

    At first they are normal with deviation 0.02.
    (B, T, E) -> (B, T, E), with batch_first=False (T, B, E); or (T, E).
    """

    def __init__(
        self, max_len: int, d_model: int, *, batch_first: bool = True, dtype: Any = None
    ) -> None:
        self.weight = Parameter.empty(max_len, d_model, dtype=dtype)
        self.batch_first = batch_first
        init.normal_(self.weight, std=0.02)

    def forward(self, x: Any, offset: int = 0) -> Tensor:
        """x (B, T, E) -> the same shape; `offset` is the first token's position, as `cache.length`.

        Integer input is promoted. Raises ValueError for another width or beyond max_len positions.
        """
        return _add_positions(x, self.weight, offset, self.batch_first)

    def extra_repr(self) -> str:
        return f"max_len={self.weight.shape[0]}, d_model={self.weight.shape[1]}"
