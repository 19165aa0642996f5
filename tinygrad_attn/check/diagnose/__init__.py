"""From a wrong gradient to the op whose rule is wrong, and to what is wrong with it."""

from .explain import explain, explain_elsewhere, explain_hidden
from .suspects import accuse, answers_twice, leaves_the_graph, raises, search

__all__ = [
    "accuse",
    "answers_twice",
    "explain",
    "explain_elsewhere",
    "explain_hidden",
    "leaves_the_graph",
    "raises",
    "search",
]
