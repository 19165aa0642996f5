"""A function and its gradients as plain NumPy, to read (`source`) or to run (`compile`)."""

from .compile import compile
from .source import Program, source

__all__ = ["Program", "compile", "source"]
