"""Read a graph: its ops and operands, and the names of modules, parameters and arrays."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..engine import FunctionCall, Variable, array_of, history
from ..engine import plain as plain_mode
from ..errors import describe
from ..nn import Module
from ..nn.calls import calls
from ..tree import tree_leaves
from . import rules, values


def computed(x):
    """Return whether an op computed x. Leaves, arrays and numbers give False."""
    return isinstance(x, Variable) and x._node is not None


def gradient_of(x):
    """Return the .grad of a tensor as an array, or None."""
    return array_of(x._grad) if isinstance(x, Variable) else None


def op_name(t):
    """Return the name of the op that computed t, or "released" after a backward pass."""
    return str(t._node.op.__name__)


def settings_of(t):
    """Return the non-default settings of the op that computed t, such as `axis=-1`."""
    usual = {name: repr(x) for name, x in t._node.op.stands_for.defaults.items()}
    given = t._node.settings.items()
    return [f"{name}={values.setting(x)}" for name, x in given if repr(x) != usual.get(name)]


def shown(x):
    """Return x if it is a tensor that requires a gradient, else its array."""
    return x if isinstance(x, Variable) and x._tracked else array_of(x)


def operands(t):
    """Return the tensors, arrays and numbers that the op of t received, with their indices."""
    kinds = (Variable, np.ndarray, np.generic, float, int)
    return [(i, shown(x)) for i, x in enumerate(t._node.inputs) if isinstance(x, kinds)]


def _memory(x):
    """Return the id of the array that owns the memory of x, such as the table behind a slice."""
    array = array_of(x)
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)


class Subject:
    """What a picture shows: outputs, the ops that computed them, and their names.

    Dotted names are relative to a model, or to the outermost module that was called.
    """

    def __init__(self, tensor, model, plain):
        function = callable(tensor) and not isinstance(tensor, Module)
        if plain and not function:
            raise TypeError(
                f"plain=True needs a function, got {describe(tensor)}. Write lambda: before the "
                "expression, as in ta.viz.graph(lambda: model(x), plain=True)."
            )
        with plain_mode() if plain else nullcontext():
            result = tensor() if function else tensor
        self.roots = [root for root in tree_leaves(result) if root is not None]
        wrong = [root for root in self.roots if not isinstance(root, Variable)]
        if wrong or not self.roots:
            raise TypeError(
                "a picture shows how a Tensor was computed, so pass a Tensor or a function "
                f"that returns one; got {describe(wrong[0] if wrong else result)}. For a module, "
                "write ta.viz.graph(module(x), model=module)."
            )
        self.ops = history(self.roots)
        self.named: dict = {}  # maps each dotted name to a module or parameter
        self.modules: dict = {}  # the first name of each module, by its id
        self.parameters: dict = {}  # by the id of the tensor, and of its array
        self.arrays: dict = {}  # by the id of the array that owns the memory
        self.equations: dict = {}  # of functions, and of modules that call only one
        self.chains = self._chains()
        outermost = [scope.module for scope in self.chains if scope and not scope.outer]
        roots = dict.fromkeys(filter(None, [model, *outermost]))
        for number, module in enumerate(roots, 1):
            if id(module) not in self.modules:
                self._name(module, number)
        self.deepest = max(map(len, self.chains.values()))

    def _chains(self):
        """Return, for each call, the call and the enclosing calls, outermost first.

        A function is left out if its module calls nothing else, like layer_norm in LayerNorm.
        """
        sizes: Counter[Any] = Counter()  # the number of ops in each call
        for t in self.ops:
            sizes.update(reversed([*calls(t._node.scope)]))
        chains: dict[Any, tuple] = {None: ()}
        for scope, size in sizes.items():  # outer calls come first
            chains[scope] = (*chains[scope.outer], scope)
            if isinstance(scope, FunctionCall):
                self.equations[scope] = equation = rules.stated(scope.function)
                if size == sizes[scope.outer]:
                    self.equations.setdefault(scope.outer, equation)
                    chains[scope] = chains[scope.outer]
        return chains

    def _name(self, root, number):
        """Add the names of the modules, parameters and arrays inside a module.

        If these names belong to another module, they begin with the root, as in `Linear#2.weight`.
        """
        parts: list[Any] = [*root.named_modules(remove_duplicate=False), *root.named_parameters()]
        taken = any(self.named.get(name, part) is not part for name, part in parts if name)
        prefix = f"{type(root).__name__}#{number}." if taken else ""
        for name, part in parts:
            name = name and prefix + name
            self.named.setdefault(name, part)
            if isinstance(part, Module):
                self.modules.setdefault(id(part), name)
                for attribute, x in vars(part).items():
                    if isinstance(array_of(x), np.ndarray):
                        self.arrays.setdefault(_memory(x), f"{name}.{attribute}".lstrip("."))
            else:
                for x in (part, part._data):
                    self.parameters.setdefault(id(x), name)

    def heading(self, scope):
        """Return the dotted name and class of a module, or the name of a function."""
        if isinstance(scope, FunctionCall):
            return [scope.function.__name__]
        return [*filter(None, [self.module(scope)]), type(scope.module).__name__]

    def module(self, scope):
        """Return the dotted name of the module of a call, which is empty for the model itself."""
        return self.modules.get(id(scope.module), "")

    def leaf(self, x):
        """Return the dotted name of a parameter or of a module's array, else the tensor's name."""
        name = self.parameters.get(id(x)) or self.arrays.get(_memory(x))
        return name or getattr(x, "name", "") or ""

    def inputs(self):
        """Return the ids of tensors and arrays that come from outside the modules.

        An array is an input if an op combines it only with parameters, or with values computed from
        parameters. Other arrays, such as masks, are constants.
        """
        inputs: set[int] = set()
        weights = set(self.parameters)
        for t in self.ops:
            values = {id(x): x for _, x in operands(t) if isinstance(x, (Variable, np.ndarray))}
            leaves = {key for key, x in values.items() if not computed(x)} - weights
            arrays = {key for key in leaves if isinstance(values[key], np.ndarray)}
            inputs |= leaves - arrays
            if values.keys() - arrays <= weights:
                inputs |= arrays
                weights |= set() if leaves else {id(t)}
        return inputs - self.arrays.keys()
