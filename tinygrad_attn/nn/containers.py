"""Modules that hold modules: in a row (Sequential), a list (ModuleList), by name (ModuleDict)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import groupby
from typing import Any, Self

from .module import Module


class _Numbered(Module):
    """Children called "0", "1", ... in the module's own attributes."""

    @classmethod
    def _of(cls, modules: Iterable[Any]) -> Self:
        """A container of these, also of a subclass with an __init__ of its own."""
        return cls.__new__(cls).extend(modules)

    def _hold(self, modules: Iterable[Any]) -> None:
        """Hold these modules, numbered anew, in place of those there are."""
        for name, _ in list(self._own(Module)):
            delattr(self, name)
        self.extend(modules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Any]:
        return (module for _, module in self._own(Module))

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return self._of(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._own(Module))[index][0], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._hold(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns the container."""
        number = len(self)
        while str(number) in self._registered:  # a part of a Sequential keeps its names
            number += 1
        self.add_module(str(number), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end; returns the container."""
        for module in list(modules):
            self.append(module)
        return self

    __iadd__ = extend

    def __add__(self, modules: Iterable[Module]) -> Self:
        """A new container of these modules and those, numbered anew."""
        return self._of([*self, *modules])

    def pop(self, index: int = -1) -> Any:
        """Take the module with this index out, by default the last, and return it."""
        module = self[index]
        del self[index]
        return module

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before the index; returns the container."""
        modules = list(self)
        modules.insert(index, module)
        self._hold(modules)
        return self


class ModuleList(_Numbered):
    """A list of modules that belong to the module that holds it; you call them yourself.

    As torch.nn.ModuleList.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        self.extend(modules or ())

    def forward(self, *_: Any) -> Any:
        """Raise TypeError: a list of modules is not called as one."""
        raise TypeError(
            "a ModuleList does not know in which way to call its modules: loop over it (for layer "
            "in self.layers: x = layer(x)), or use nn.Sequential, which calls one after the other."
        )

    def _repr_children(self) -> list[tuple[str, str]]:
        """Equal neighbours in one line: `(0-5): 6 x Linear(...)`."""
        rows: list[tuple[str, str]] = []
        start = 0
        for text, equal in groupby(map(repr, self)):
            count = len(list(equal))
            end = start + count
            several = f"{start}-{end - 1}", f"{count} x {text}"
            rows.append((str(start), text) if count == 1 else several)
            start = end
        return rows


class Sequential(_Numbered):
    """y = f_n(... f_2(f_1(x))): modules called one after the other.

    `Sequential(f_1, f_2, ...)` or `Sequential({"name": f_1, ...})`.  As torch.nn.Sequential.
    """

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return super().__getitem__(index)
        part = self._of(())
        for name, module in list(self._own(Module))[index]:
            part.add_module(name, module)  # under the name that it has here, as in PyTorch
        return part

    def forward(self, input: Any) -> Any:
        """input -> f_n(... f_1(input))"""
        for module in self:
            input = module(input)
        return input


class ModuleDict(Module, MutableMapping[str, Module]):
    """A dictionary of modules that belong to the module that holds it.  As torch.nn.ModuleDict."""

    __eq__, __hash__ = Module.__eq__, Module.__hash__

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        self.update(modules or {})

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        return dict(self._own(Module))[name]

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._own(Module))

    def __len__(self) -> int:
        return sum(1 for _ in self)
