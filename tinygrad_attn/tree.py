"""Nested values: tuples, named tuples, lists and dicts, with anything else as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def tree_leaves(value: Any) -> Iterator[Any]:
    """Iterate over the leaves of a nested value, in order."""
    if isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tree_leaves(part)
    else:
        yield value


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a nested value of the same types with function(leaf) in place of each leaf."""
    if isinstance(value, dict):
        new = {key: tree_map(function, part) for key, part in value.items()}
        return new if type(value) is dict else type(value)(new)
    if isinstance(value, (tuple, list)):
        parts = [tree_map(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return function(value)
