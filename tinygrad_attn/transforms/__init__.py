"""Transforms: derivatives of a function, checkpoints, and both passes as a program."""

from .checkpointing import checkpoint
from .derivatives import hessian, hvp, jacobian, jvp, value_and_grad, vjp
from .programs import Program, source

__all__ = [
    "Program",
    "checkpoint",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "source",
    "value_and_grad",
    "vjp",
]
