"""The same module here and in PyTorch: `compare_with_torch`."""

from .comparison import TorchComparison, compare_with_torch

__all__ = ["TorchComparison", "compare_with_torch"]
