"""Walk through nested tuples, lists, deques, dicts and slices, whose other values are leaves.

Of subclasses, only named tuples and dicts count as nested values.
"""

import copy
from collections import deque
from typing import Any


def tree_map(f, tree):
    """Return the same structure with f applied to each leaf."""
    kind = type(tree)
    if isinstance(tree, dict):
        new = copy.copy(tree)  # which keeps the class and the order of the keys
        new.update((key, tree_map(f, value)) for key, value in tree.items())
        return new
    if kind is slice:
        return slice(*tree_map(f, (tree.start, tree.stop, tree.step)))
    if hasattr(kind, "_make"):  # a named tuple
        return kind._make(tree_map(f, value) for value in tree)
    nested = kind in (tuple, list, deque)
    return kind(tree_map(f, value) for value in tree) if nested else f(tree)


def tree_leaves(tree):
    """Return the leaves, in order."""
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves
