"""class Module: a tree of attributes that knows its parameters and their names.

An attribute that holds a `Parameter`, a `Buffer` or another `Module` belongs to the module. Like
PyTorch's `state_dict`, the parameters come first, then buffers, then modules, each in the order of
assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine import context, inplace
from ..errors import WRITE, describe, nearest, warn
from ..tensor import Tensor
from ..tensor.convert import as_value, floating_dtype
from .hooks import Hook, Hooks, RemovableHandle
from .parameter import Buffer, Parameter, StateValue, zero_gradients
from .scopes import Scope, dotted_name


class IncompatibleKeys(NamedTuple):
    """The names that `load_state_dict(..., strict=False)` passed over."""

    missing_keys: list[str]
    unexpected_keys: list[str]


INSTEAD = {
    "backward": "loss.backward() on the result",
    "compile": "ta.compile(module)",
    "fit": "a loop: loss.backward(), optimizer.step()",
    "get_buffer": "dict(module.named_buffers())[name]",
    "get_parameter": "dict(module.named_parameters())[name]",
    "get_submodule": "dict(module.named_modules())[name]",
    "register_module": "module.add_module(name, child)",
    "save": "ta.save(module.state_dict(), path)",
    "weights": "module.state_dict(), or dict(module.named_parameters())",
}
"""What to write for names that PyTorch's users look for on a module; see errors.WRITE too."""

HOLDERS = {list, dict}


def _hides_parts(value: Any) -> bool:
    """Whether a plain list or dict, or one inside it, holds modules, parameters or buffers."""
    if value.__class__ in HOLDERS:
        return any(map(_hides_parts, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (Module, Parameter, Buffer))


def joined(path: str, name: str) -> str:
    """Return a dotted name."""
    return f"{path}.{name}" if path else name


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
    _hooks: Hooks | None = None
    _registered: Mapping[str, tuple[type, bool]] = MappingProxyType({})
    """By attribute: Parameter, Buffer or Module, and whether the state dict has it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; every subclass defines it."""
        raise TypeError(
            f"{type(self).__name__} defines no forward(). Write `def forward(self, x): ...` in the "
            "class; module(x) calls it."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = context
        outer = here.scope
        here.scope = Scope(self, outer)
        try:
            hooks = self._hooks
            y = self.forward(*args, **kwargs) if hooks is None else hooks.call(self, args, kwargs)
            if y is None:
                warn(f"{type(self).__name__} returned None: does its forward end with return?")
            return y
        except Exception as error:
            # An op, or the caller's own code, may have left a note; the innermost module says it.
            if outer is not None and "in the module '" not in str(getattr(error, "__notes__", "")):
                error.add_note(f"in the module {dotted_name(here.scope)!r}")
            raise
        finally:
            here.scope = outer

    # ---- hooks

    def _own_hooks(self) -> Hooks:
        if self._hooks is None:
            object.__setattr__(self, "_hooks", Hooks())
        return self._hooks  # type: ignore[return-value]

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args) before `forward`; what it returns replaces args.

        With `with_kwargs`, hook(module, args, kwargs), which returns None or (args, kwargs). A
        value that is no tuple becomes the only argument. As in PyTorch.
        """
        return Hooks.add(self._own_hooks().before, Hook(hook, with_kwargs), prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call hook(module, args, output) after `forward`; what it returns replaces the output.

        With `with_kwargs`, hook(module, args, kwargs, output). With `always_call` it is called even
        if `forward` raises, with None as output. As in PyTorch.
        """
        return Hooks.add(self._own_hooks().after, Hook(hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) when the gradients of the inputs are complete.

        Both are tuples, with None for what has no gradient; keyword arguments are not seen. What
        the hook returns replaces grad_input. As in PyTorch.
        """
        return Hooks.add(self._own_hooks().backward, Hook(hook), prepend)

    # ---- attributes

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if not name.startswith("__"):  # copy and pickle look for such names
            write = INSTEAD.get(name) or WRITE.get(name)
            hint = f" Write {write}." if write else nearest(name, dir(self))
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "requires_grad":
            raise AttributeError(
                "a module has no requires_grad, and setting it would change nothing. Write "
                f"module.requires_grad_({value!r}), which sets it for every parameter."
            )
        if value.__class__ is Tensor and value._tracked and value._node is None:
            warn(
                f"{type(self).__name__}.{name} is a Tensor and no Parameter, so parameters() "
                "leaves it out: it is neither trained nor saved. Write nn.Parameter(value)."
            )
        kind, persistent = self._registered.get(name, (None, True))
        if value is not None:
            if kind is Parameter and not isinstance(value, Parameter):
                raise TypeError(
                    f"{name!r} is a Parameter of {type(self).__name__}, and {describe(value)} is "
                    "not, so it would no longer be trained. Write nn.Parameter(value), or use "
                    "load_state_dict."
                )
            if kind is Buffer and not isinstance(value, (Parameter, Buffer)):
                if not isinstance(value, (Tensor, np.ndarray, np.generic)):
                    raise TypeError(
                        f"{name!r} is a Buffer of {type(self).__name__}, and {describe(value)} is "
                        "not, so it would no longer be saved. Write nn.Buffer(value), or delete it "
                        "first."
                    )
                value = Buffer(value, persistent=persistent)
            kind = next((k for k in (Parameter, Buffer, Module) if isinstance(value, k)), None)
            if kind or name in self._registered:
                self._register(name, kind, getattr(value, "persistent", True))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._register(name, None)

    def _register(self, name: str, kind: type | None, persistent: bool = True) -> None:
        """Note what the attribute is, or None for what is no part of the module."""
        known = {**self._registered, name: (kind, persistent)}
        if kind is None:
            del known[name]
        object.__setattr__(self, "_registered", known)  # a shallow copy shares the old one

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Set `self.name = Buffer(tensor, persistent=persistent)`; None keeps a place for one."""
        self._register(name, Buffer, persistent)
        setattr(self, name, None if tensor is None else Buffer(tensor, persistent=persistent))

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set `self.name = param`; None keeps a place for one. TypeError for a plain Tensor."""
        self._register(name, Parameter)
        setattr(self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set `self.name = module`.

        Raises TypeError for what is no Module, and ValueError for a name with a dot or of an
        attribute of the class.
        """
        if not (module is None or isinstance(module, Module)):
            raise TypeError(
                f"{name!r} of a {type(self).__name__} must be a Module, got {describe(module)}. "
                "Layers in a row are nn.Sequential(*layers); a class is called first, as nn.ReLU()."
            )
        if not name or "." in name or hasattr(type(self), name):
            raise ValueError(
                f"a {type(self).__name__} cannot hold {name!r}: a name has no dot, and is none of "
                "its own attributes."
            )
        setattr(self, name, module)

    # ---- walking the tree

    def _own(self, kind: type) -> Iterator[tuple[str, Any]]:
        """(name, value) of the attributes of this kind, in the order of their first assignment."""
        for name, (known, _) in self._registered.items():
            if known is kind and (value := self.__dict__.get(name)) is not None:
                yield name, value

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module, called `prefix`, and all inside, parents first."""
        seen = set() if memo is None else memo
        if remove_duplicate and id(self) in seen:
            return
        seen.add(id(self))
        for name, value in self.__dict__.items():
            if value.__class__ in HOLDERS and name != "_registered" and _hides_parts(value):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a plain {type(value).__name__} of modules, "
                    "parameters or buffers, which would be neither trained nor saved. Use "
                    "nn.ModuleList or nn.ModuleDict; for a parameter or buffer "
                    f"setattr(self, f'{name}_{{i}}', p); or a tuple, if they belong elsewhere."
                )
        yield prefix, self
        for name, child in self._own(Module):
            yield from child.named_modules(seen, joined(prefix, name), remove_duplicate)

    def _named(
        self, kinds: tuple[type, ...], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        """(dotted name, value) of the attributes of these kinds, here and with `recurse` inside."""
        seen: set[int] = set()
        modules = (
            self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in (item for kind in kinds for item in module._own(kind)):
                if not (remove_duplicate and id(value) in seen):
                    seen.add(id(value))
                    yield joined(path, name), value

    def modules(self) -> Iterator[Module]:
        """This module and all inside it, each once, parents first."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly inside, each once."""
        return self._named((Module,), "", False, True)

    def children(self) -> Iterator[Module]:
        """The modules directly inside, each once."""
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter); a shared parameter comes once, under its first name."""
        return self._named((Parameter,), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once: what an optimiser takes."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """(dotted name, buffer), each once."""
        return self._named((Buffer,), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    # ---- settings

    def train(self, mode: bool = True) -> Self:
        """Training mode, in which dropout drops, for this module and all inside; returns it."""
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
                inplace.changed(tensor._array())  # for a graph that was recorded before
                tensor._grad = None if tensor._grad is None else tensor._grad.astype(dtype)
        return self

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn on every module inside, children first, and on this one; returns the module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- values in and out

    def _state(self) -> dict[str, Any]:
        """{dotted name: parameter or buffer}, under each name."""
        return dict(self._named((Parameter, Buffer), "", True, False))

    def state_dict(self) -> dict[str, Tensor]:
        """{dotted name: value} of all parameters and persistent buffers: PyTorch's names and order.

        The Tensors share memory with the module's and are outside every graph: `value.data *= 0.5`
        changes the module. A shared parameter is listed under each of its names.
        """
        return {
            name: StateValue._of(value._array())
            for name, value in self._state().items()
            if getattr(value, "persistent", True)
        }

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
        own = {name: value._array() for name, value in self.state_dict().items()}
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        values = {name: as_value(name, state_dict[name]) for name in own if name in state_dict}
        problems = []
        if strict:
            problems += [f"missing: {name!r} {own[name].shape}" for name in missing]
            for i, name in enumerate(unexpected):  # a guess takes time, so only the first get one
                guess = nearest(str(name), missing or own) if i < 20 else ""
                problems.append(f"unexpected: {name!r}.{guess}")
        turned = " Transpose it: a Linear weight is (out, in)."
        problems += [
            f"shape: {name!r} is {own[name].shape} here but {value.shape} in the mapping."
            + turned * (value.shape == own[name].shape[::-1])
            for name, value in values.items()
            if value.shape != own[name].shape
        ]
        if problems:
            head = f"this mapping does not fit {type(self).__name__}; nothing was changed."
            raise ValueError("\n  ".join([head, *problems]))
        for name, value in values.items():
            own[name][...] = value
        inplace.changed(*[own[name] for name in values])
        return IncompatibleKeys(missing, unexpected)

    # ---- how it looks

    def summary(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module once; return a table of modules, shapes, parameters and FLOPs."""
        from .summary import summary

        return summary(self, *inputs, **kwargs)

    def extra_repr(self) -> str:
        """The settings between the brackets of the module's line in repr()."""
        return ""

    def _repr_children(self) -> list[tuple[str, str]]:
        return [(name, repr(child)) for name, child in self._own(Module)]

    def __repr__(self) -> str:
        head, extra = type(self).__name__, self.extra_repr()
        lines = [f"({name}): {text}".replace("\n", "\n  ") for name, text in self._repr_children()]
        if not lines:
            return f"{head}({extra})"
        return f"{head}({extra}\n  " + "\n  ".join(lines) + "\n)"
