"""Modules that contain other modules: Sequential, ModuleList and ModuleDict."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self

from .module import Module


class _Numbered(Module):
    """A container that stores its children as attributes "0", "1" and so on."""

    _slices_keep_names = False

    def __len__(self):
        return len(self._attributes(Module))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._attributes(Module).values())

    def __getitem__(self, index: int | slice):
        selected = [*self._attributes(Module).items()][index]
        if isinstance(selected, tuple):
            return selected[1]
        new = type(self).__new__(type(self))  # a subclass may have its own __init__
        for number, (name, module) in enumerate(selected):
            new.add_module(name if self._slices_keep_names else str(number), module)
        return new

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module([*self._attributes(Module)][index], module)

    def append(self, module: Module) -> Self:
        """Append a module. Returns the container."""
        number = len(self)
        while str(number) in vars(self):  # a slice of a Sequential keeps the original names
            number += 1
        self.add_module(str(number), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Append several modules. Returns the container."""
        for module in list(modules):
            self.append(module)
        return self

    __iadd__ = extend


class ModuleList(_Numbered):
    """A list of registered submodules. Like torch.nn.ModuleList."""

    def __init__(self, modules: Iterable[Module] | None = None):
        self.extend(modules or ())


class Sequential(_Numbered):
    """y = f_n(... f_2(f_1(x))) for Sequential(f_1, f_2, ...) or Sequential({"name": f_1, ...}).

    Like torch.nn.Sequential.
    """

    _slices_keep_names = True

    def __init__(self, *modules) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def forward(self, input):
        """input -> f_n(... f_1(input))"""
        for module in self:
            input = module(input)
        return input


class ModuleDict(Module, MutableMapping[str, Module]):
    """A dictionary of registered submodules, from a mapping or pairs. Like torch.nn.ModuleDict."""

    __eq__, __hash__ = Module.__eq__, Module.__hash__

    def __init__(self, modules=None) -> None:
        self.update(modules or {})

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str):
        return self._attributes(Module)[name]

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes(Module))

    def __len__(self):
        return len(self._attributes(Module))
