"""Modules that hold modules: in a row (Sequential), a list (ModuleList), by name (ModuleDict)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Self

from ..errors import describe, nearest
from .module import Module, check_name


def _module(container: Module, place: str, module: Any) -> Module:
    """The module, or a TypeError that says what stands at this place of the container instead."""
    if isinstance(module, Module):
        return module
    hint = (
        "for layers in a row write nn.Sequential(*layers)."
        if isinstance(module, (list, tuple))
        else "make an object of the class first, with brackets."
        if isinstance(module, type)
        else "that is PyTorch's; use the one in tinygrad_attn.nn."
        if type(module).__module__.startswith("torch.")
        else "for a function write a Module whose forward calls it, or nn.ReLU(), nn.GELU() ..."
        if callable(module)
        else ""
    )
    raise TypeError(
        f"{place} of a {type(container).__name__} must be a Module, got {describe(module)}"
        + (f": {hint}" if hint else ".")
    )


def _put(container: Module, name: str, module: Any) -> None:
    """container.name = module, unless something is wrong with one of them."""
    if hasattr(type(container), check_name(name)):
        raise ValueError(
            f"a {type(container).__name__} cannot hold {name!r}, which is one of its own "
            "attributes; choose another name."
        )
    setattr(container, name, _module(container, repr(name), module))


class _Numbered(Module):
    """Children called "0", "1", ... in the module's own attributes."""

    def _items(self) -> list[Module]:
        return [child for _, child in self._own(Module)]

    def _checked(self, modules: Iterable[Any], start: int) -> list[Module]:
        """The modules that shall be item `start` and so on."""
        if (
            isinstance(modules, Module)
            and not isinstance(modules, _Numbered)
            or not isinstance(modules, Iterable)
        ):
            raise TypeError(
                f"a {type(self).__name__} takes a list of Modules, got {describe(modules)}; write "
                "it in [brackets]."
            )
        return [_module(self, f"item {i}", module) for i, module in enumerate(modules, start)]

    def _replace(self, modules: Iterable[Any]) -> None:
        modules = self._checked(modules, 0)
        for name, _ in list(self._own(Module)):
            delattr(self, name)
        for i, module in enumerate(modules):
            setattr(self, str(i), module)

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def __getitem__(self, index: int | slice) -> Any:
        items = self._items()
        try:
            return type(self)._of_items(items[index]) if isinstance(index, slice) else items[index]
        except (IndexError, TypeError) as error:
            raise type(error)(
                f"a {type(self).__name__} of {len(items)} modules has none at {describe(index)}: "
                f"it takes whole numbers in [{-len(items)}, {len(items)})."
            ) from None

    @classmethod
    def _of_items(cls, modules: Iterable[Module]) -> Self:
        new = cls()
        new._replace(modules)
        return new

    def __setitem__(self, index: int | slice, module: Any) -> None:
        items = list(self._own(Module))
        if isinstance(index, slice):
            modules = [child for _, child in items]
            modules[index] = module
            self._replace(modules)
        else:
            setattr(self, items[index][0], _module(self, f"item {index}", module))

    def __delitem__(self, index: int | slice) -> None:
        items = self._items()
        del items[index]
        self._replace(items)

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns the container."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end; returns the container."""
        for number, module in enumerate(self._checked(modules, len(self)), len(self)):
            while str(number) in self.__dict__:  # a mapping may have given this name before
                number += 1
            setattr(self, str(number), module)
        return self

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __add__(self, modules: Iterable[Module]) -> Self:
        """A new container of these modules and those, numbered anew."""
        return self._of_items([*self, *self._checked(modules, len(self))])

    def pop(self, index: int = -1) -> Any:
        """Take the module with this index out, by default the last, and return it."""
        module = self[index]
        del self[index]
        return module

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before the index; returns the container."""
        items = self._items()
        items.insert(index, module)
        self._replace(items)
        return self

    def _repr_children(self) -> list[tuple[str, str]]:
        """Equal neighbours with numbers for names in one line: `(0-5): 6 x Linear(...)`."""

        def alike(child: tuple[int, str, str]) -> tuple[str, Any]:
            place, name, text = child
            # Numbers in a row are equally far from their places.
            return text, int(name) - place if name.isdecimal() else name

        rows = []
        children = [
            (place, name, repr(child)) for place, (name, child) in enumerate(self._own(Module))
        ]
        for (text, _), equal in groupby(children, alike):
            names = [name for _, name, _ in equal]
            rows.append(
                (names[0], text)
                if len(names) == 1
                else (f"{names[0]}-{names[-1]}", f"{len(names)} x {text}")
            )
        return rows


class ModuleList(_Numbered):
    """A list of modules that belong to the module that holds it; you call them yourself.

    As torch.nn.ModuleList.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        self._replace(() if modules is None else modules)

    def forward(self, *_: Any) -> Any:
        """A list of modules is not called as one: TypeError."""
        raise TypeError(
            "a ModuleList does not know in which way to call its modules: loop over it (for layer "
            "in self.layers: x = layer(x)), or use nn.Sequential, which calls one after the other."
        )


class Sequential(_Numbered):
    """y = f_n(... f_2(f_1(x))): modules called one after the other.

    `Sequential(f_1, f_2, ...)` or `Sequential({"name": f_1, ...})`.  As torch.nn.Sequential.
    """

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                _put(self, name, module)
        else:
            self._replace(modules)

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return super().__getitem__(index)
        part = self._of_items(())  # emptied, for the __init__ of a subclass may fill it
        for name, module in list(self._own(Module))[index]:
            setattr(part, name, module)  # under the name that it has here, as in PyTorch
        return part

    def forward(self, input: Any) -> Any:
        """input -> f_n(... f_1(input))"""
        for module in self:
            input = module(input)
        return input


class ModuleDict(Module):
    """A dictionary of modules that belong to the module that holds it.  As torch.nn.ModuleDict."""

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        try:
            items = dict(modules or {})
        except (TypeError, ValueError):
            raise TypeError(
                f"a ModuleDict takes a dictionary of Modules, got {describe(modules)}; "
                "for a list write nn.ModuleList."
            ) from None
        for name, module in items.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        _put(self, name, module)

    def __getitem__(self, name: str) -> Any:
        items = dict(self.items())
        if name not in items:
            raise KeyError(
                f"a ModuleDict of {[*items]} has no {name!r}.{nearest(str(name), items)}"
            )
        return items[name]

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add these modules, or put them in place of those of the same names.

        All of them, or none if one is refused.
        """
        for name, module in ModuleDict(modules).items():
            self[name] = module

    def pop(self, name: str) -> Any:
        """Take the module of this name out and return it."""
        module = self[name]
        delattr(self, name)
        return module

    def clear(self) -> None:
        """Take all modules out."""
        for name in self.keys():
            del self[name]

    def keys(self) -> list[str]:
        """The names."""
        return [name for name, _ in self.items()]

    def values(self) -> list[Module]:
        """The modules."""
        return [module for _, module in self.items()]

    def items(self) -> list[tuple[str, Module]]:
        """(name, module) pairs."""
        return list(self._own(Module))
