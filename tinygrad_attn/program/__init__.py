"""Turn a function and its gradients into plain NumPy, to read (`source`) or run (`compile`)."""

from .compile import compile
from .source import Program, source

__all__ = ["Program", "compile", "source"]
