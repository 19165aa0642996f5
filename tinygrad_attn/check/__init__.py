"""Checks that say what is wrong: gradients against slopes, modules against PyTorch, NaN at its source, and the bug zoo."""

from .against_torch import TorchComparison, compare_with_torch
from .anomaly import detect_anomaly
from .gradients import GradcheckError, gradcheck, gradgradcheck
from .report import Comparison, Diagnosis, Report, compare

__all__ = ["Comparison", "Diagnosis", "GradcheckError", "Report", "TorchComparison", "compare", "compare_with_torch", "detect_anomaly",
           "gradcheck", "gradgradcheck"]
