"""Error texts: how values are named, and hints for the usual mistakes."""

from .messages.errors import describe, explain, is_integer, is_number, listed
from .messages.missing_names import MissingName, missing_from, missing_names, nearest
from .messages.user_line import INNER, quoted, warn

__all__ = [
    "INNER",
    "MissingName",
    "describe",
    "explain",
    "is_integer",
    "is_number",
    "listed",
    "missing_from",
    "missing_names",
    "nearest",
    "quoted",
    "warn",
]
