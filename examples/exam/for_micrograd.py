"""The adapter for micrograd: an engine of single numbers."""

from micrograd.engine import Value  # noqa: F401  the class is all that the exam needs
