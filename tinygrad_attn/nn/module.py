"""class Module: a tree of plain attributes that knows its parameters and their names.

Nothing is registered. Whatever attribute holds a `Parameter`, a `Buffer` or another `Module`
belongs to the module: parameters, then buffers, then modules, each in the order in which they were
first assigned, as in PyTorch's `state_dict`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine import context, inplace
from ..errors import describe, nearest, warn
from ..tensor import Tensor
from ..tensor.convert import as_value, floating_dtype
from .parameter import Buffer, Parameter, StateValue, zero_gradients
from .scopes import Scope, dotted_name


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(..., strict=False)` passed over."""

    missing_keys: list[str]
    unexpected_keys: list[str]


ELSEWHERE = {
    "to": "module.astype(np.float64) for another dtype; everything is on the CPU",
    "cuda": "nothing: there is only the CPU",
    "cpu": "nothing: everything is on the CPU",
    "device": "nothing: everything is on the CPU",
    "float": "module.astype(np.float32)",
    "double": "module.astype(np.float64)",
    "half": "module.astype(np.float32): half precision is not trained in",
    "backward": "loss.backward() on the result",
    "register_forward_hook": "a Module of your own around this one, whose forward looks at what "
    "comes in and goes out",
    "register_full_backward_hook": "t.retain_grad() on the tensor in question, and look at t.grad "
    "after backward()",
    "register_forward_pre_hook": "a Module of your own around this one, whose forward changes what "
    "comes in",
    "get_submodule": "dict(module.named_modules())[name]",
    "get_parameter": "dict(module.named_parameters())[name]",
    "get_buffer": "dict(module.named_buffers())[name]",
    "compile": "ta.compile(module)",
    "register_module": "module.add_module(name, child)",
    "save": "ta.save(module.state_dict(), path)",
    "weights": "module.state_dict(), or dict(module.named_parameters())",
    "fit": "a loop: loss.backward(), optimizer.step()",
}
"""What PyTorch's users look for on a module, and what it is called here."""

_PLAIN = {bool, int, float, str, type(None)}
_HOLDERS = {list, dict, set, OrderedDict, defaultdict, deque}
"""In one of these parameters and modules would not be found."""

replaced: dict[tuple[int, str], Any] = {}
"""The parameters and buffers in whose place functional_call has put other tensors for now.

By the id of the module and the name of the attribute.
"""


def check_name(name: Any) -> str:
    """The name; TypeError or ValueError for one that a `state_dict` could not hold."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a string, got {describe(name)}; write {str(name)!r}.")
    if not name or "." in name:
        raise ValueError(
            f"{name!r} is no name for a module, parameter or buffer: it has at least one character "
            "and no dot, which separates modules in a state dict."
        )
    return name


def _inside_of_another(missing: list[str], unexpected: list[str]) -> str:
    """What to write where the names have what a module around this one puts before them."""
    for own in missing[:1]:
        for name in unexpected:
            if str(name).endswith(f".{own}"):
                before = name[: -len(own)]
                return (
                    f"\nOf the names with {before!r} before them write load_state_dict({{"
                    f"n.removeprefix({before!r}): v for n, v in mapping.items() "
                    f"if n.startswith({before!r})}})."
                )
    return ""


def contains(module: Module, wanted: Module) -> bool:
    """Is this module inside the other one, or the same?"""
    seen, waiting = set[int](), [module]
    while waiting:
        here = waiting.pop()
        if here is wanted:
            return True
        if id(here) not in seen:
            seen.add(id(here))
            waiting += [value for value in vars(here).values() if isinstance(value, Module)]
    return False


class Module:
    """A layer, or a model made of layers: subclass it, assign attributes, define `forward`.

        class Net(nn.Module):
            def __init__(self):
                self.hidden = nn.Linear(4, 8)
                self.out = nn.Linear(8, 1)

            def forward(self, x):                                  # (B, 4) -> (B, 1)
                return self.out(np.tanh(self.hidden(x)))

    `super().__init__()` may be called and need not be. Modules in a list belong to a `ModuleList`.
    As torch.nn.Module.
    """

    training: bool = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)  # makes what a subclass has mixed in
        except TypeError as error:
            if not str(error).startswith("object.__init__() "):
                raise
            raise TypeError(
                f"{type(self).__name__}() takes no arguments, unless its class defines __init__."
            ) from None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass defines it."""
        raise TypeError(
            f"{type(self).__name__} defines no forward(). Write `def forward(self, x): ...` in the "
            "class; module(x) calls it."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = context
        outer = here.scope
        here.scope = scope = Scope()
        scope.module = self
        scope.outer = outer
        try:
            if (y := self.forward(*args, **kwargs)) is None:
                warn(f"{type(self).__name__} returned None: does its forward end with return?")
            return y
        except Exception as error:
            # An op, or the caller's own code, may have left a note; the innermost module says it.
            if outer is not None and "in the module '" not in str(getattr(error, "__notes__", "")):
                error.add_note(f"in the module {dotted_name(here.scope)!r}")
            raise
        finally:
            here.scope = outer

    # ---- attributes

    def __getattr__(self, name: str) -> Any:
        if isinstance(own := getattr(type(self), name, None), property):
            return own.__get__(self)  # a property that raised AttributeError led here: let it
        hint = ""
        if not name.startswith("__"):  # copy and pickle ask for such names, quickly answered
            hint = (
                f" Write {ELSEWHERE[name]}."
                if name in ELSEWHERE
                else f" A Tensor has it: module(x).{name}, if that is meant."
                if hasattr(Tensor, name)
                else nearest(name, dir(self))
            )
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
        )

    def _place(self, name: str) -> tuple[type | None, bool]:
        """What belongs under this name: (Parameter, Buffer or None, does it persist?).

        That is known even of a name under which nothing is yet.
        """
        known = self.__dict__.get(name)
        if isinstance(known, (Parameter, Buffer)):
            return (Parameter, True) if isinstance(known, Parameter) else (Buffer, known.persistent)
        if known is None and name in self.__dict__:  # a deleted name is forgotten
            for empty, kind, persistent in self.__dict__.get("_registered_as_none", ()):
                if empty == name:
                    return kind, persistent
        return None, True

    def _leave_empty(self, name: str, kind: type, persistent: bool = True) -> None:
        """None under a name that is registered; what is assigned later is registered too."""
        others = [row for row in self.__dict__.get("_registered_as_none", ()) if row[0] != name]
        object.__setattr__(self, "_registered_as_none", (*others, (name, kind, persistent)))
        object.__setattr__(self, name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "requires_grad":
            raise AttributeError(
                "a module has no requires_grad, and setting it would change nothing. Write "
                f"module.requires_grad_({value!r}), which sets it for every parameter."
            )
        if isinstance(value, Module) and contains(value, self):
            raise ValueError(
                f"{type(self).__name__}.{name} cannot be {type(value).__name__}, which contains "
                f"this {type(self).__name__} or is it: a module inside itself would be walked "
                "through for ever. Write a tuple, (module,), for one that belongs elsewhere."
            )
        if value.__class__ is Tensor and value._tracked and value._node is None:
            warn(
                f"{type(self).__name__}.{name} is a Tensor and no Parameter, so parameters() "
                "leaves it out: it is neither trained nor saved. Write nn.Parameter(value)."
            )
        kind, persistent = self._place(name)
        if kind is not None and value is None:
            self._leave_empty(name, kind, persistent)
            return
        if kind is Parameter and not isinstance(value, Parameter):
            raise TypeError(
                f"{name!r} is a Parameter of {type(self).__name__}, and {describe(value)} is not, "
                "so it would no longer be trained. Write nn.Parameter(value), or use "
                "load_state_dict."
            )
        if kind is Buffer and not isinstance(value, (Parameter, Buffer)):
            if not isinstance(value, (Tensor, np.ndarray, np.generic)):
                raise TypeError(
                    f"{name!r} is a Buffer of {type(self).__name__}, and {describe(value)} is not, "
                    "so it would no longer be saved. Write nn.Buffer(value), or delete it first."
                )
            value = Buffer(value, persistent=persistent)
        object.__setattr__(self, name, value)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """The same as `self.name = Buffer(tensor, persistent=persistent)`; None keeps a place.

        Raises ValueError for a name with a dot in it.
        """
        if tensor is None:
            self._leave_empty(check_name(name), Buffer, persistent)
        else:
            try:
                buffer = Buffer(tensor, persistent=persistent)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{type(self).__name__}: {name}: {error}") from None
            setattr(self, check_name(name), buffer)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """The same as `self.name = param`; None keeps a place for one.

        Raises TypeError for what would not be trained, ValueError for a name with a dot in it.
        """
        if not (param is None or isinstance(param, Parameter)):
            raise TypeError(
                f"register_parameter takes a Parameter, got {describe(param)}; write "
                "nn.Parameter(value), or register_buffer for what is not trained."
            )
        if param is None:
            self._leave_empty(check_name(name), Parameter)
        else:
            setattr(self, check_name(name), param)

    def add_module(self, name: str, module: Module | None) -> None:
        """The same as `self.name = module`.

        Raises TypeError for what is no Module, ValueError for a name with a dot in it.
        """
        if not (module is None or isinstance(module, Module)):
            raise TypeError(f"add_module takes a Module, got {describe(module)}.")
        setattr(self, check_name(name), module)

    # ---- walking the tree

    def _own(self, kind: type) -> Iterator[tuple[str, Any]]:
        """(name, value) of the attributes of this kind, in the order of their first assignment."""
        for name, value in self.__dict__.items():
            if isinstance(replaced.get((id(self), name), value) if replaced else value, kind):
                yield name, value
            elif value.__class__ in _HOLDERS:
                self._refuse(value)

    def _refuse(self, value: Any) -> None:
        """Raise if a plain list or dict, or one inside it, holds modules, parameters or buffers."""
        items = value.values() if isinstance(value, dict) else value
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in items
            if isinstance(item, (list, dict))
        ]
        if any(
            isinstance(item, (Module, Parameter, Buffer))
            for group in (items, *inner)
            for item in group
        ):
            name = next(name for name, known in self.__dict__.items() if known is value)
            raise TypeError(
                f"{type(self).__name__}.{name} is a plain {type(value).__name__} of modules, "
                "parameters or buffers, which would be neither trained nor saved. Use "
                "nn.ModuleList or nn.ModuleDict; for a parameter or buffer "
                f"setattr(self, f'{name}_{{i}}', p); or a tuple, if they belong elsewhere."
            )

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly inside, each once."""
        return self._named(Module, "", recurse=False, remove_duplicate=True)

    def children(self) -> Iterator[Module]:
        """The modules directly inside, each once."""
        return (child for _, child in self.named_children())

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module, called `prefix`, and all inside, parents first."""
        seen = set() if memo is None else memo
        if remove_duplicate and id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in list(self._own(Module)):  # who walks may add attributes meanwhile
            yield from child.named_modules(
                seen, f"{prefix}.{name}" if prefix else name, remove_duplicate
            )

    def modules(self) -> Iterator[Module]:
        """This module and all inside it, each once, parents first."""
        return (module for _, module in self.named_modules())

    def _named(
        self, kind: type, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        """(dotted name, value) of the attributes of this kind, here and with `recurse` inside."""
        seen: set[int] = set()
        for path, module in (
            self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        ):
            for name, value in module._own(kind):
                if not (remove_duplicate and id(value) in seen):
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter); a shared parameter comes once, under its first name."""
        return self._named(Parameter, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once: what an optimiser takes."""
        if replaced:
            yield from (value for _, value in self.named_parameters("", recurse))
            return
        seen: set[int] = set()
        stack: list[Module] = [self]
        while stack:  # one walk for both kinds: this is called at every training step
            module, inside = stack.pop(), []
            for value in module.__dict__.values():
                kind = value.__class__
                if kind in _PLAIN:
                    continue
                if issubclass(kind, Parameter):
                    if id(value) not in seen:
                        seen.add(id(value))
                        yield value
                elif issubclass(kind, Module):
                    inside.append(value)
                elif kind in _HOLDERS:
                    module._refuse(value)
            if recurse and inside:
                seen.add(id(module))
                stack.extend([child for child in reversed(inside) if id(child) not in seen])

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """(dotted name, buffer), each once."""
        return self._named(Buffer, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    # ---- settings

    def train(self, mode: bool = True) -> Self:
        """Training mode, in which dropout drops, for this module and all inside; returns it.

        Raises ValueError for a mode other than True or False.
        """
        if not isinstance(mode, bool):
            raise ValueError(
                f"train() takes True or False, got {describe(mode)}; to train, call it without "
                "argument."
            )
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Evaluation mode, in which dropout does nothing: train(False)."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze (False) or train (True) all parameters; returns the module."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters (or, with False, fill them with zeros)."""
        zero_gradients(self.parameters(), set_to_none)

    def astype(self, dtype: Any) -> Self:
        """Change floating parameters and buffers to this dtype; returns the module.

        Make the optimiser afterwards. Raises TypeError for a dtype that is not floating.
        """
        dtype = floating_dtype(dtype, "a module")
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.dtype.kind == "f" and tensor.dtype != dtype:
                tensor._data = tensor._data.astype(dtype)
                # A graph that was recorded before has counted on the numbers as they were.
                inplace.changed(tensor._array())
                tensor._grad = None if tensor._grad is None else tensor._grad.astype(dtype)
        return self

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn on every module inside, children first, and on this one; returns the module.

        Raises TypeError for what is no function.
        """
        if not callable(fn):
            raise TypeError(
                f"apply takes a function of one module, got {describe(fn)}; write model.apply(f), "
                "not model.apply(f(...))."
            )
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- values in and out

    def _places(self) -> Iterator[tuple[str, Module, str, Tensor]]:
        """(dotted name, module, attribute, value) of parameters and buffers, under each name."""
        for path, module in self.named_modules(remove_duplicate=False):
            for kind in (Parameter, Buffer):
                for name, tensor in module._own(kind):
                    yield f"{path}.{name}" if path else name, module, name, tensor

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for name, _, _, tensor in self._places():
            if getattr(tensor, "persistent", True):
                yield name, tensor

    def state_dict(self) -> dict[str, Tensor]:
        """{dotted name: value} of all parameters and persistent buffers: PyTorch's names and order.

        The Tensors share memory with the module's and are outside every graph: `value.data *= 0.5`
        changes the module. A shared parameter is listed under each of its names.
        """
        return {name: StateValue._of(tensor._array()) for name, tensor in self._state()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy values of the same names into the parameters and buffers; each keeps its dtype.

        Values may be Tensors, ndarrays or torch tensors. Raises one ValueError that names every
        missing, unexpected and mis-shaped key, and then changes nothing. With `strict=False` only
        shapes must agree; the keys passed over are returned.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                "load_state_dict takes a mapping from names to values, got "
                f"{describe(state_dict)}. Write ta.load(path) for a file, other.state_dict() for a "
                "module."
            )
        own = dict(self._state())
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        values = {name: as_value(name, state_dict[name]) for name in own if name in state_dict}
        lines = []
        if strict:  # a guess looks through all names, so only the first twenty get one
            lines += [f"missing: {name!r} {own[name].shape}" for name in missing]
            lines += [
                f"unexpected: {name!r}.{nearest(str(name), () if i >= 20 else missing or own)}"
                for i, name in enumerate(unexpected)
            ]
        lines += [
            f"shape: {name!r} is {own[name].shape} here but {array.shape} in the mapping."
            + (
                " Transpose it: a Linear weight is (out, in)."
                if array.shape == own[name].shape[::-1]
                else ""
            )
            for name, array in values.items()
            if array.shape != own[name].shape
        ]
        if lines:
            nested = [
                name
                for name in unexpected
                if isinstance(state_dict[name], Mapping) and {*state_dict[name]} & {*own}
            ]
            hint = f"\nDid you mean load_state_dict(mapping[{nested[0]!r}])?" if nested else ""
            hint = hint or _inside_of_another(missing, unexpected)
            text = "\n  ".join(
                [f"this mapping does not fit {type(self).__name__}; nothing was changed.", *lines]
            )
            raise ValueError(text + hint)
        before = [(own[name]._array(), own[name]._array().copy()) for name in values]
        try:
            for (ours, _), array in zip(before, values.values()):
                ours[...] = array
        except BaseException:  # also an interrupt: all of it or nothing
            for ours, old in before:
                ours[...] = old
            raise
        finally:
            inplace.changed(*[ours for ours, _ in before])
        return IncompatibleKeys(missing, unexpected)

    # ---- how it looks

    def extra_repr(self) -> str:
        """What stands between the brackets of the module's line in repr()."""
        return ""

    def _repr_children(self) -> list[tuple[str, str]]:
        return [(name, repr(child)) for name, child in self._own(Module)]

    def __repr__(self) -> str:
        head, extra = type(self).__name__, self.extra_repr()
        lines = [f"({name}): {text}".replace("\n", "\n  ") for name, text in self._repr_children()]
        if not lines:
            return f"{head}({extra})"
        return f"{head}({extra}\n  " + "\n  ".join(lines) + "\n)"
