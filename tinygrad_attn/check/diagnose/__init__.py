"""From a wrong gradient to the op whose rule is wrong, and to what is wrong with it."""

from .explain import (
    explain,
    explain_elsewhere,
    explain_hidden,
    first_difference,
    point_at_failing_rule,
    point_at_rule_that_leaves,
    point_at_two_answers,
)

__all__ = [
    "explain",
    "explain_elsewhere",
    "explain_hidden",
    "first_difference",
    "point_at_failing_rule",
    "point_at_rule_that_leaves",
    "point_at_two_answers",
]
