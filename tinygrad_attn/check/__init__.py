"""Check gradients, compare modules with PyTorch, and find where NaN comes from."""

from .anomaly import detect_anomaly
from .gradcheck import GradcheckError, gradcheck, gradgradcheck
from .report import Diagnosis, Report
from .torch import TorchComparison, compare_with_torch

__all__ = [
    "Diagnosis",
    "GradcheckError",
    "Report",
    "TorchComparison",
    "compare_with_torch",
    "detect_anomaly",
    "gradcheck",
    "gradgradcheck",
]
