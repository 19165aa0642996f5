"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`."""

from .main import main
from .targets import load

__all__ = ["load", "main"]
