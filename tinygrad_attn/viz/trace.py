"""What lies behind a tensor: the ops in forward order, the module calls they ran in, and everybody's dotted name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.changes import owner
from ..messages.errors import describe, is_module, nearest, unmade


def forward_order(roots: Sequence[Variable]) -> list[Variable]:
    """The results of all ops that the roots were computed with, oldest first."""
    found, seen = [], set()
    for root in roots:
        if id(root) not in seen:
            seen.add(id(root))
            found.append(root)
    for t in found:
        for x in t._record.inputs if t._record is not None else ():
            if isinstance(x, Variable) and x._record is not None and id(x) not in seen:
                seen.add(id(x))
                found.append(x)
    return sorted((t for t in found if t._record is not None), key=lambda t: t._record.time)  # type: ignore[union-attr]


def operands(t: Variable) -> list[tuple[int, Any]]:
    """The operands of the op that made t, with their places; what is no number (None, a function) is left out."""
    return [
        (i, x)
        for i, x in enumerate(t._record.inputs)  # type: ignore[union-attr]
        if isinstance(x, (Variable, np.ndarray, float, int))
    ]


def key_of(t: Variable, index: int, x: Any) -> Any:
    """What makes an operand one box: a tensor or array is itself wherever it is used, a number is new at each use."""
    return id(x) if isinstance(x, (Variable, np.ndarray)) else (id(t), index)


class Names:
    """Dotted names of modules, parameters and arrays kept on modules, seen from the model or the outermost calls."""

    def __init__(self, model: Any, ops: Iterable[Variable]) -> None:
        if model is not None and not (is_module(model) and hasattr(model, "named_parameters")):
            raise TypeError(
                f"model= is the Module whose dotted names the picture shows, got {describe(model)}.{unmade(model)}"
            )
        self.model = model
        self.chains: dict[int, tuple[Any, ...]] = {}
        self.modules: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self.memory: dict[
            int, str
        ] = {}  # by the array that owns it, so that a slice of a table has the table's name
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
                array = getattr(value, "_data", value)
                if isinstance(array, np.ndarray):
                    self.memory.setdefault(
                        id(owner(array)), f"{name}.{attribute}" if name else attribute
                    )
        for name, parameter in root.named_parameters():
            self.tensors.setdefault(id(parameter), name)

    def chain(self, t: Variable) -> tuple[Any, ...]:
        """The module calls around the op that made t, outermost first."""
        scope = t._record.scope  # type: ignore[union-attr]
        if scope is None:
            return ()
        known = self.chains.get(id(scope))
        if known is None:
            inward, outer = [], scope
            while outer is not None:
                inward.append(outer)
                outer = outer.outer
            known = self.chains[id(scope)] = tuple(reversed(inward))
        return known

    def level(self, chain: tuple[Any, ...]) -> int:
        """How deep the outermost call of a chain lies: 1 where a part of the model was called, not the model itself."""
        module = chain[0].module
        return int(
            self.model is not None and module is not self.model and id(module) in self.inside_model
        )

    def module(self, scope: Any) -> str:
        """The dotted name of a call's module; empty for a root."""
        return self.modules.get(id(scope.module), "")

    def leaf(self, x: Any) -> str | None:
        """The dotted name of a parameter or of an array kept on a module."""
        array = getattr(x, "_data", x)
        named = self.tensors.get(id(x))
        return named or (
            self.memory.get(id(owner(array))) if isinstance(array, np.ndarray) else None
        )

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
                    f"expand={name!r}: it {reason}.{nearest(name, called)} Modules in this picture: "
                    f"{', '.join(sorted(called)) or 'none'}."
                )
