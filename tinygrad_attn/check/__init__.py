"""Check gradients, compare modules with PyTorch, and find where NaN comes from.

gradcheck uses these modules:

    slopes     compare a gradient with finite differences
    trace      record the ops that run
    faults     find shared state, changes in place, VJPs not linear in g, and the op at fault
    explain    name the likely mistake in a VJP from its Jacobian
    report     print what was found
    torch_ops  run the same check on functions and modules of PyTorch
"""

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
