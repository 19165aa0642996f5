"""Layers: PyTorch's names, arguments, parameters, masks and initial values, on NumPy."""

from typing import TYPE_CHECKING, Any

from ..errors import missing_from
from . import init
from .attention import AdditiveAttention, MultiheadAttention, SelfAttention
from .cache import KeyValueCache
from .containers import ModuleDict, ModuleList, Sequential
from .layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    MSELoss,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from .module import Module
from .parameter import Buffer, Parameter
from .position import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from .transformer import (
    FeedForward,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "AdditiveAttention",
    "Buffer",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "FeedForward",
    "GELU",
    "Identity",
    "KeyValueCache",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "SelfAttention",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalPositionalEncoding",
    "Softmax",
    "Tanh",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "init",
]


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here

    def __getattr__(name: str) -> Any:
        """A misspelt name gets the nearest one, and one that PyTorch has here its place."""
        elsewhere = {
            "functional": "import tinygrad_attn.functional as F",
            "utils": "optim.clip_grad_norm_ or optim.clip_grad_value_, or "
            "np.concatenate([p.ravel() for p in model.parameters()]) for parameters_to_vector; "
            "spectral_norm is not here",
        }
        if name in elsewhere:
            raise AttributeError(f"tinygrad_attn.nn has no {name!r}. Write {elsewhere[name]}.")
        raise missing_from("tinygrad_attn.nn", name, globals())
