"""Checks that say what is wrong: gradients, modules beside PyTorch's, NaN; and the bug zoo."""

from typing import TYPE_CHECKING, Any

from ..messages.errors import missing_from
from .anomaly import detect_anomaly
from .gradients import GradcheckError, gradcheck, gradgradcheck
from .report import Comparison, Diagnosis, Report, compare
from .torch import TorchComparison, compare_with_torch

__all__ = [
    "Comparison",
    "Diagnosis",
    "GradcheckError",
    "Report",
    "TorchComparison",
    "compare",
    "compare_with_torch",
    "detect_anomaly",
    "gradcheck",
    "gradgradcheck",
]


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here

    def __getattr__(name: str) -> Any:
        raise missing_from("tinygrad_attn.check", name, globals())
