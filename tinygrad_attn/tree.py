"""Nested tuples, lists, deques, dicts and slices: walk through them, and restore their content.

Other values are leaves. Of subclasses, only named tuples and dicts count as nested values.
"""

import copy
from collections import OrderedDict, deque
from typing import Any


def tree_map(f, tree):
    """Return the same structure with f applied to each leaf."""
    kind = type(tree)
    if isinstance(tree, dict):
        new = copy.copy(tree)  # which keeps the class and the order of the keys
        for key, value in tree.items():
            dict_of(tree).__setitem__(new, key, tree_map(f, value))
        if kind.__dictoffset__:  # it has attributes, which may be its elements
            if vars(tree) is tree:
                new.__dict__ = new
            for name, value in vars(tree).items():
                if value is tree.get(name):
                    vars(new)[name] = new[name]
        return new
    if kind in (list, deque):
        new = copy.copy(tree)  # which keeps a deque's length
        for i, value in enumerate(tree):
            new[i] = tree_map(f, value)
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
        in_order = list(x) == list(content)
        for key in [] if in_order else list(x):
            dict_of(x).__delitem__(x, key)
        dict_of(x).update(x, content)
    else:
        x[:] = content


def dict_of(x):
    """Return the class with the methods that change a dict, and not, say, add to a Counter."""
    return OrderedDict if isinstance(x, OrderedDict) else dict
