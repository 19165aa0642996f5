"""Nested tuples, named tuples, lists, deques, dicts and slices keep their classes and order."""

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np

from tinygrad_attn.tree import tree_leaves, tree_map

Pair = namedtuple("Pair", "first second")


class Shape(tuple):
    """A subclass of tuple, such as torch.Size, which is a leaf."""


class Attributes(dict):
    """A dict whose elements are attributes, too, by the usual idiom."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.__dict__ = self


class Output(OrderedDict):
    """A dict that refuses some methods, as those of large libraries do."""

    def update(self, *args, **named):
        raise TypeError("no update")


class Typed(dict):
    """A dict that checks what is put in."""

    def __setitem__(self, key, value):
        if not isinstance(value, int):
            raise TypeError("only integers")
        super().__setitem__(key, value)


class Slots(dict):
    """A dict whose elements are read as attributes, and that has no attributes of its own."""

    __slots__ = ()
    __getattr__ = dict.__getitem__


class Synchronised(dict):
    """A dict whose elements are also attributes."""

    def __init__(self, **named):
        super().__init__(**named)
        vars(self).update(named, other=0)


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
    deque([1, 2], maxlen=2),
    Counter(a=2, b=1),
    Attributes(a=1, b=[2]),
    Output(a=1),
    Typed(a=1),
    Slots(a=1),
    Synchronised(a=1),
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


def test_what_a_container_has_beside_its_elements_is_kept():
    assert tree_map(lambda x: x, deque([1, 2], maxlen=2)).maxlen == 2
    new = tree_map(lambda x: 2 * x, tree := Attributes(a=1, b=[2]))
    assert (new.a, new.b, tree.a, tree.b) == (2, [4], 1, [2])
    assert tree_map(lambda x: 2 * x, Counter(a=2)) == Counter(a=4)
    new = tree_map(lambda x: 2 * x, Synchronised(a=3))
    assert (new["a"], new.a, new.other) == (6, 6, 0)


def test_leaves_come_in_order_and_subclasses_of_tuple_are_leaves():
    assert tree_leaves({"b": [1, (2,)], "a": Pair(3, slice(4, None))}) == [1, 2, 3, 4, None, None]
    shape, array = Shape((1, 2)), np.ones((2, 3))
    assert tree_leaves([shape, array])[0] is shape and tree_leaves(array)[0] is array
