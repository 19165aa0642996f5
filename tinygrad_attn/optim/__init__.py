"""Optimisers, learning-rate schedules and gradient clipping, with the same results as PyTorch."""

from typing import TYPE_CHECKING

from ..engine.kernels import with_optim
from ..errors import missing_names
from .optimizer import SGD, Adam, AdamW, Optimizer
from .training import Schedule, clip_grad_norm_, noam, warmup_cosine

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "Schedule",
    "clip_grad_norm_",
    "noam",
    "warmup_cosine",
]

for register in with_optim:
    register()

if not TYPE_CHECKING:  # otherwise a type checker would accept misspelt names
    __getattr__ = missing_names(__name__, globals())
