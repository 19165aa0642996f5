"""What a picture reads of the engine's records, and what the modules around the ops are called.

No other module of `viz` looks into a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..engine import Variable, array_of
from ..engine.inplace import owner
from ..messages.errors import describe, is_module, nearest, unmade
from ..nn.module import Parameter


def is_made(x: Any) -> bool:
    """Did an op make this tensor? A leaf, a plain array and a number were made by none."""
    return isinstance(x, Variable) and x._node is not None


def gradient_of(x: Any) -> np.ndarray | None:
    """The values of a tensor's `.grad`, or None."""
    return array_of(x._grad) if isinstance(x, Variable) else None


def op_of(t: Any) -> Any:
    """The op that made t, or what stands for it where backward() has released the record."""
    return t._node.op


def op_name(t: Any) -> str:
    """The name of the op that made t."""
    return getattr(op_of(t), "__name__", "released")


def is_released(t: Any) -> bool:
    """Has a backward pass used the record of t and let its contents go?"""
    return op_name(t) == "released"


def settings_of(t: Any) -> dict[str, Any]:
    """The settings of the op that made t, without those that have their default value."""
    defaults = op_of(t).stands_for.parameters.defaults if not is_released(t) else {}
    return {
        name: value
        for name, value in t._node.settings.items()
        if not (name in defaults and _is_same(value, defaults[name]))
    }


def _is_same(x: Any, default: Any) -> bool:
    comparable = isinstance(x, (bool, int, float, str, tuple)) and type(x) is type(default)
    return x is default or comparable and repr(x) == repr(default)


def saved_bytes(t: Any) -> int:
    """The size of the arrays that the op kept for its rule."""
    saved = t._node.saved
    held = saved if isinstance(saved, (tuple, list)) else (saved,)
    return sum(x.nbytes for x in held if isinstance(x, np.ndarray))


def shown(x: Any) -> Any:
    """What a box stands for: a tensor where a gradient by it is wanted, else its plain array."""
    return x if not isinstance(x, Variable) or x._tracked else x._data


def operands(t: Any) -> list[tuple[int, Any]]:
    """The operands of the op that made t, with their places; None and functions are left out."""
    kinds = (Variable, np.ndarray, np.generic, float, int)
    return [(i, shown(x)) for i, x in enumerate(t._node.inputs) if isinstance(x, kinds)]


def key_of(t: Variable, index: int, x: Any) -> Any:
    """What makes an operand one box: a tensor or array has one, a number has one at each use."""
    return id(x) if isinstance(x, (Variable, np.ndarray, np.generic)) else (id(t), index)


class Names:
    """Dotted names of modules, parameters and arrays kept on modules.

    They are seen from the model, or without one from the outermost modules that were called.
    """

    def __init__(self, model: Any, ops: Iterable[Variable]) -> None:
        if model is not None and not (is_module(model) and hasattr(model, "named_parameters")):
            raise TypeError(
                "model= is the Module whose dotted names the picture shows, "
                f"got {describe(model)}.{unmade(model)}"
            )
        self.model = model
        self.chains: dict[int, tuple[Any, ...]] = {}  # by the id of a call
        self.modules: dict[int, str] = {}
        # A parameter is known by its id and by that of its array, for a record holds the array of
        # a frozen one.
        self.parameters: dict[int, str] = {}
        # Any other array is known by the array that owns its memory, so that a slice of a table
        # has the table's name.
        self.memory: dict[int, str] = {}
        self._add(model)
        self.inside_model = set(self.modules)
        for t in ops:
            chain = self.chain(t)
            if chain and id(chain[0].module) not in self.modules:
                self._add(chain[0].module)

    def _add(self, root: Any) -> None:
        if root is None:
            return
        for name, module in root.named_modules():
            self.modules.setdefault(id(module), name)
            for attribute, value in getattr(module, "__dict__", {}).items():
                array = array_of(value)
                if isinstance(array, np.ndarray):
                    dotted = f"{name}.{attribute}" if name else attribute
                    self.memory.setdefault(id(owner(array)), dotted)
        for name, parameter in root.named_parameters():
            for x in (parameter, parameter._data):
                self.parameters.setdefault(id(x), name)

    def chain(self, t: Any) -> tuple[Any, ...]:
        """The module calls around the op that made t, outermost first."""
        scope = t._node.scope
        if scope is None:
            return ()
        if id(scope) not in self.chains:
            inward, outer = [], scope
            while outer is not None:
                inward.append(outer)
                outer = outer.outer
            self.chains[id(scope)] = tuple(reversed(inward))
        return self.chains[id(scope)]

    def level(self, chain: tuple[Any, ...]) -> int:
        """How deep the outermost call of a chain lies in the model.

        1 for a part of the model that was called by itself, else 0.
        """
        module = chain[0].module
        return int(
            self.model is not None and module is not self.model and id(module) in self.inside_model
        )

    def module(self, scope: Any) -> str:
        """The dotted name of a call's module; empty for a root."""
        return self.modules.get(id(scope.module), "")

    def is_parameter(self, x: Any) -> bool:
        """Is this operand a parameter, or the array of one that is frozen?"""
        return isinstance(x, Parameter) or id(x) in self.parameters

    def leaf(self, x: Any) -> str | None:
        """The dotted name of a parameter or of an array kept on a module."""
        if id(x) in self.parameters:
            return self.parameters[id(x)]
        array = array_of(x)
        return self.memory.get(id(owner(array))) if isinstance(array, np.ndarray) else None

    def inputs(self, ops: Iterable[Variable]) -> set[int]:
        """The ids of the nameless leaves that modules were given from outside.

        That is every tensor that wants a gradient, and every array that an op combines with
        parameters alone. An array beside a computed tensor, such as a mask, is taken for a constant
        that the module made itself.
        """
        found: set[int] = set()
        for t in ops:
            leaves = {id(x): x for _, x in operands(t) if not (is_made(x) or self.leaf(x))}
            tensors = {key for key, x in leaves.items() if isinstance(x, Variable)}
            arrays = {key for key, x in leaves.items() if isinstance(x, np.ndarray)}
            others = [x for _, x in operands(t) if id(x) not in arrays]
            found |= tensors
            if others and all(map(self.is_parameter, others)):
                found |= arrays
        return found

    def check(self, expand: Sequence[str]) -> None:
        """Every name to expand must be that of a module that was called."""
        called = {self.module(scope) for chain in self.chains.values() for scope in chain} - {""}
        for name in expand:
            if name not in called:
                reason = (
                    "was not called on the way to this tensor"
                    if name in self.modules.values()
                    else "is no module here"
                )
                raise ValueError(
                    f"expand={name!r}: it {reason}.{nearest(name, called)} "
                    f"Modules in this picture: {', '.join(sorted(called)) or 'none'}."
                )
