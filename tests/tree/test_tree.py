"""Nested tuples, named tuples, lists, deques, dicts and slices keep their classes and order."""

from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np

from tinygrad_attn.tree import tree_leaves, tree_map

Pair = namedtuple("Pair", "first second")


class Shape(tuple):
    """A subclass of tuple, such as torch.Size, which is a leaf."""


TREES = [
    1,
    None,
    (),
    [],
    {},
    (1, [2, (3,)], {"b": 4, "a": Pair(5, [6])}),
    OrderedDict(b=1, a=[2]),
    defaultdict(list, x=[1], y=(2, 3)),
    deque([1, (2,)]),
    slice(1, 2, None),
    (slice(None, 1), ..., 3),
    Pair([1], {"x": Pair(2, 3)}),
]


def classes(tree):
    """The classes of nested values, in order."""
    inner = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    )
    return type(tree), [classes(value) for value in inner]


def test_a_map_with_the_identity_is_a_copy():
    for tree in TREES:
        new = tree_map(lambda x: x, tree)
        assert new == tree and classes(new) == classes(tree)
        assert not isinstance(tree, (list, dict)) or new is not tree


def test_a_map_changes_the_leaves_and_not_the_original():
    tree = {"b": [1, (2,)], "a": Pair(3, slice(4, None))}
    double = lambda x: x if x is None else 2 * x
    assert tree_map(double, tree) == {"b": [2, (4,)], "a": Pair(6, slice(8, None))}
    assert tree == {"b": [1, (2,)], "a": Pair(3, slice(4, None))}
    assert list(tree_map(double, tree)) == ["b", "a"]
    assert tree_map(double, defaultdict(list, x=1)).default_factory is list


def test_leaves_come_in_order_and_subclasses_of_tuple_are_leaves():
    assert tree_leaves({"b": [1, (2,)], "a": Pair(3, slice(4, None))}) == [1, 2, 3, 4, None, None]
    shape, array = Shape((1, 2)), np.ones((2, 3))
    assert tree_leaves([shape, array])[0] is shape and tree_leaves(array)[0] is array
