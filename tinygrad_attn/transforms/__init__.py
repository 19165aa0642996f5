"""Transforms of functions: derivatives and gradient checkpointing."""

from .checkpointing import checkpoint
from .derivatives import hessian, hvp, jacobian, jvp, value_and_grad, vjp

__all__ = ["checkpoint", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp"]
