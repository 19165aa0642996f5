"""Walk through nested tuples, named tuples, lists, dicts and slices, whose other values are leaves.

Of subclasses, only named tuples and dicts count as nested values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def tree_map(f: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same structure with f applied to each leaf."""
    if isinstance(tree, dict):
        new = copy.copy(tree)  # it keeps the class and the order of the keys
        new.update((key, tree_map(f, value)) for key, value in tree.items())
        return new
    if type(tree) is slice:
        return slice(*tree_map(f, (tree.start, tree.stop, tree.step)))
    if hasattr(type(tree), "_fields") and isinstance(tree, tuple):
        return tree._make(tree_map(f, value) for value in tree)
    if type(tree) in (tuple, list):
        return type(tree)(tree_map(f, value) for value in tree)
    return f(tree)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves, in order."""
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves
