"""Checks that say what is wrong: gradients, modules beside PyTorch's, NaN; and the bug zoo.

One call of `gradcheck` (gradients.py) goes through these files, and ends at the first fault:

    arguments      which tensors are checked, and what they are called
    measuring      a Problem: a function whose gradient the rules give, and small steps as well
    side_effects   does f give the same twice, leave its inputs alone, keep nothing between calls?
    questions      does each rule return new arrays, and write into none that it was given?
    judging        the gradient by each input beside its slope: an Entry of the report
    consistency    where all agrees: does it, too, for another cotangent, layout, result, value?
    second_order   with order=2: the gradient as a function, which goes through the same again

    diagnose/      where an entry is off: why?  explain.py asks, in this order,
      measurement    is it the check itself?  A Trial (judging.py) has measured with other steps.
      suspects       which op is wrong if it is checked alone, as the whole was?
      program        every op is right: has a value left the graph, was one overwritten?
      table          what does the wrong gradient look like?  Its rows are tried one after another,
                     with tests in places, values and experiments, which run the forward_text.

report.py says what was found. records.py, trace.py and second_sweep.py look at the engine's work
from outside. anomaly.py (with reasons.py), torch/ and zoo/ stand by themselves.
"""

from typing import TYPE_CHECKING, Any

from ..messages.errors import missing_names
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
    __getattr__ = missing_names(__name__, globals())
