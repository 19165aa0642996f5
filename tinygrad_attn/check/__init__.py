"""Checks that say what is wrong: gradients, modules beside PyTorch's, NaN; and the bug zoo.

gradcheck (gradcheck.py) runs through these files and stops at the first fault:

    slopes     a function, its slopes by finite differences, and the gradient beside them
    trace      the ops that ran, and their VJPs one at a time
    faults     what no slope shows: state, writing in place, a VJP that is not linear in g
    suspects   which op is wrong, each as a program of its own; what joins ops that are right
    explain    what a wrong VJP looks like: its Jacobian beside the right one
    report     what is printed
    torch_ops  the same for functions and modules of PyTorch

anomaly.py finds where NaN comes from, torch.py compares a module with PyTorch's, and zoo.py holds
published bugs of small engines.
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
