"""Checks that say what is wrong: gradients, comparison with PyTorch, NaN; and the bug zoo.

gradcheck (gradcheck.py) runs through these files and stops at the first fault:

    slopes     the slopes of a function by finite differences, compared with its gradient
    trace      the ops that ran, and their VJPs one at a time
    faults     what no slope shows: state, writing in place, a VJP that is not linear in g
    suspects   which op is wrong, by checking each alone; or what joins ops that are right
    explain    the likely mistake, from the Jacobian of a wrong VJP and the right one
    report     the printed report
    torch_ops  the same for functions and modules of PyTorch

anomaly.py finds where NaN comes from, torch.py compares a module with PyTorch's, and zoo.py holds
published bugs of small autograd engines.
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
