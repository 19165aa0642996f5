"""The explanations of a wrong gradient in the order in which they are tried, the simplest first."""

from __future__ import annotations

from .diagnosis import (
    Pattern,
    constant,
    coupling,
    lost_contributions,
    missing_factor,
    missing_term,
    not_finite,
    numeric_zero,
    opposite_axis,
    reshaped,
    some_elements,
    sums_over_axes,
    transposed,
    zero,
)
from .factors import constant_factor
from .placement import (
    adjoint,
    mask_missing,
    mask_upside_down,
    off_by_one,
    one_along_an_axis,
    permuted,
)
from .report import Diagnosis
from .terms import divisor, inverted, leftover, row_factor

EXPLANATIONS = (
    not_finite,
    zero,
    numeric_zero,
    constant_factor,
    mask_missing,
    opposite_axis,
    reshaped,
    transposed,
    adjoint,
    sums_over_axes,
    constant,
    mask_upside_down,
    permuted,
    off_by_one,
    row_factor,
    coupling,
    lost_contributions,
    one_along_an_axis,
    missing_term,
    some_elements,
    missing_factor,
    inverted,
    leftover,
    divisor,
)


BY_ELEMENT = (
    not_finite,
    zero,
    numeric_zero,
    constant_factor,
    constant,
    some_elements,
    missing_factor,
    inverted,
    leftover,
    divisor,
)
"""Those that ask nothing about neighbours, and so can judge a sample of a large input."""


def from_pattern(p: Pattern) -> Diagnosis | None:
    """The first explanation that fits."""
    explanations = EXPLANATIONS if p.at is None else BY_ELEMENT
    return next(
        (found for explanation in explanations if (found := explanation(p)) is not None), None
    )
