"""Checks that say what is wrong: gradients against slopes, modules against PyTorch, NaN at its source, and the bug zoo."""

from .gradcheck import GradcheckError, gradcheck, gradgradcheck
from .report import Comparison, Diagnosis, Report, compare

__all__ = ["Comparison", "Diagnosis", "GradcheckError", "Report", "compare", "gradcheck", "gradgradcheck"]
