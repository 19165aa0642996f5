"""Neural-network layers with PyTorch's names, arguments, masks and initial values, on NumPy."""

from typing import TYPE_CHECKING

from ..errors import missing_names
from . import init
from .attention import AdditiveAttention, MultiheadAttention, SelfAttention
from .cache import KeyValueCache
from .containers import ModuleDict, ModuleList, Sequential
from .grouped import GroupedQueryAttention
from .layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    LearnedPositionalEncoding,
    Linear,
    LogSoftmax,
    MSELoss,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    SinusoidalPositionalEncoding,
    Softmax,
    Tanh,
)
from .module import Buffer, Module, Parameter
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
    "GroupedQueryAttention",
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


if not TYPE_CHECKING:  # otherwise a type checker would accept misspelt names
    __getattr__ = missing_names(__name__, globals())
