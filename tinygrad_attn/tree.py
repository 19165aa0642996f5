"""Nested tuples, lists, deques, dicts and slices: walk through them, and restore their content.

Other values are leaves. Of subclasses, only named tuples and dicts count as nested values.
"""

import copy
from collections import OrderedDict, deque
from typing import Any


def tree_map(f, tree):
    """Return the same structure with f applied to each leaf."""
    kind, is_dict = type(tree), isinstance(tree, dict)
    if is_dict or kind in (list, deque):
        new = copy.copy(tree)  # which keeps the class, its settings and the order of the keys
        for key, value in tree.items() if is_dict else enumerate(tree):
            new[key] = tree_map(f, value)
        if getattr(tree, "__dict__", None) is tree:  # the idiom self.__dict__ = self
            new.__dict__ = new
        return new
    if kind is slice:
        return slice(*tree_map(f, (tree.start, tree.stop, tree.step)))
    if hasattr(kind, "_make"):  # a named tuple
        return kind._make(tree_map(f, value) for value in tree)
    return tuple(tree_map(f, value) for value in tree) if kind is tuple else f(tree)


def tree_leaves(tree):
    """Return the leaves, in order."""
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves


def copied(x):
    """Return a copy of a list, dict or array, without the methods of a subclass of dict."""
    return dict.copy(x) if isinstance(x, dict) else x.copy()


def refill(x, content):
    """Give a list, dict or array its elements back."""
    if isinstance(x, dict):
        kind = OrderedDict if isinstance(x, OrderedDict) else dict  # not, say, Counter
        for key in x.keys() - content.keys():
            kind.__delitem__(x, key)
        kind.update(x, content)
    else:
        x[:] = content
