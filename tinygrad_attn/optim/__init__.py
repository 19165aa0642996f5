"""Optimisers, schedules and clipping: PyTorch's arguments, PyTorch's numbers."""

from typing import TYPE_CHECKING, Any

from ..engine.kernels import loaded
from ..errors import WRITE, missing_from
from .adam import Adam, AdamW
from .clipping import clip_grad_norm_, clip_grad_value_
from .optimizer import Optimizer
from .schedules import Schedule, noam, warmup_cosine
from .sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "Schedule",
    "clip_grad_norm_",
    "clip_grad_value_",
    "noam",
    "warmup_cosine",
]

loaded("optim")  # fast/ puts a quicker walk in place, if it is there


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here

    class _Schedulers:
        """PyTorch's `optim.lr_scheduler`: each name there says what to write instead."""

        def __getattr__(self, name: str) -> Any:
            raise missing_from(__name__, name if name in WRITE else "lr_scheduler", globals())

    def __getattr__(name: str) -> Any:
        if name == "lr_scheduler":
            return _Schedulers()
        raise missing_from(__name__, name, globals())
