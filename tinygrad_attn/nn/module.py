"""The Module class, and its parts: Parameter, Buffer and Module attributes.

As in PyTorch, parameters come first, then buffers, then modules, each in the order of assignment.
"""

from __future__ import annotations

from collections import UserDict, UserList, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import numpy as np

from ..engine import context, inplace
from ..errors import WRITE, describe, nearest, warn
from ..tensor import Tensor, get_default_dtype
from ..tensor.convert import as_array, floating_dtype
from .calls import Hook, Scope, dotted_name, observed_call, tell_change


class StateValue(Tensor):
    """A Tensor that shares memory with a module. `p -= x` raises TypeError."""

    __slots__ = ()
    _of_a_module = True

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Let PyTorch's `load_state_dict` copy the value into a PyTorch parameter."""
        if function.__name__ != "copy_":
            return super().__torch_function__(function, types, args, kwargs)
        return args[0].copy_(args[0].new_tensor(args[1].numpy()))


class Parameter(StateValue):
    """A Tensor that is trained as part of a Module. The data is copied."""

    __slots__ = ()

    def __init__(self, data, requires_grad: bool = True, dtype=None):
        super().__init__(data, requires_grad, dtype)

    @classmethod
    def empty(cls, *shape: int) -> Parameter:
        """Return an uninitialised parameter of the default dtype."""
        return cls._of(np.empty(shape, get_default_dtype()), True)


class Buffer(Tensor):
    """A Tensor that belongs to a Module and is not trained, such as a table of positions.

    A persistent buffer is part of the `state_dict`. A value later assigned to the attribute is
    copied into a new Buffer and detached from its graph. Like torch.nn.Buffer.
    """

    __slots__ = ("persistent",)

    def __init__(self, data, *, persistent: bool = True):
        super().__init__(data)
        self.persistent = persistent


def zero_gradients(parameters, set_to_none):
    """Set the gradients to None, or to zeros."""
    for p in parameters:
        g = None if set_to_none else p.grad
        p._grad = None if g is None else Tensor(np.zeros_like(g._array()))


IncompatibleKeys = namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])


def _hides_parts(value):
    """Return whether a collection contains modules, parameters or buffers, also in another one."""
    found = [value]
    for x in found:
        if isinstance(x, (Parameter, Buffer, Module)):
            return True
        if isinstance(x, COLLECTIONS) and len(found) < 1000:  # larger ones are data
            items = islice(x.values() if isinstance(x, Mapping) else x, 100)
            found += (item for item in items if isinstance(item, KINDS))
    return False


class Module:
    """The base class of layers and models, like torch.nn.Module.

        class Net(nn.Module):
            def __init__(self):
                self.hidden = nn.Linear(4, 8)
                self.out = nn.Linear(8, 1)

            def forward(self, x):                                  # (B, 4) -> (B, 1)
                return self.out(np.tanh(self.hidden(x)))

    Calling `super().__init__()` is optional. For a list of modules, use `ModuleList`.
    """

    training: bool = True
    _shown: tuple[str, ...] = ()
    _hooks: tuple[Hook, ...] = ()
    _names: dict[Any, tuple[str, ...]] = {}
    """The attributes of each of KINDS, in the order of assignment. Copies may share the dict."""
    _not_persistent: frozenset[str] = frozenset()
    """The buffers that are not persistent, also while they are None."""

    def forward(self, *args, **kwargs) -> Any:
        """Compute the output. Every subclass defines this method."""
        raise TypeError(f"{type(self).__name__} does not define forward(). Loop over a ModuleList.")

    def __call__(self, *args, **kwargs) -> Any:
        here = context.__dict__
        outer = here["scope"]
        scope = here["scope"] = Scope(self, outer)
        try:
            if self._hooks or here["listeners"] or here["patches"]:
                return observed_call(self, args, kwargs)
            return self.forward(*args, **kwargs)
        except BaseException as error:
            for (changed, name), before in scope.undo.items():
                setattr(changed, name, before)
            # Only the innermost module adds this note.
            if outer is not None and "in the module '" not in str(getattr(error, "__notes__", "")):
                error.add_note(f"in the module {dotted_name(scope)!r}")
            raise
        finally:
            here["scope"], scope.undo = outer, None

    # ---- hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, with_kwargs: bool = False
    ) -> Hook:
        """Call hook(module, args) before `forward`. A result other than None replaces args.

        With `with_kwargs`, call hook(module, args, kwargs), which returns None or (args, kwargs).
        """
        return Hook(self, "pre-forward", hook, with_kwargs)

    def register_forward_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> Hook:
        """Call hook(module, args, output) after `forward`. A result other than None replaces it.

        With `with_kwargs`, call hook(module, args, kwargs, output).
        """
        return Hook(self, "forward", hook, with_kwargs)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> Hook:
        """Call hook(module, grad_input, grad_output) in the backward pass.

        Both gradients are tuples, with None for a value without a gradient. A result other than
        None replaces grad_input. As in PyTorch, arguments and outputs are new Tensors, and the
        gradient of one output contains no contributions of another.
        """
        return Hook(self, "backward", hook)

    # ---- attributes

    def __getattr__(self, name: str):
        if hasattr(type(self), name):  # a property that raised AttributeError: let it do so again
            return object.__getattribute__(self, name)
        hint = ""
        if not name.startswith("__"):  # copy and pickle look for such names
            hint = f" Write {WRITE[name]}." if name in WRITE else nearest(name, dir(self))
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
        )

    def __setattr__(self, name, value):
        tell_change(self, name)
        if name == "requires_grad":
            raise AttributeError(
                f"to set this for all parameters, write requires_grad_({value!r})."
            )
        if value.__class__ is Tensor and value._tracked and value._node is None:
            warn(
                f"{type(self).__name__}.{name} is a Tensor, not a Parameter, so it is neither "
                "trained nor saved. Write nn.Parameter(value)."
            )
        if value is not None:
            kind = self._kind(name)
            if kind is Parameter and not isinstance(value, Parameter):
                raise TypeError(
                    f"{name!r} of {type(self).__name__} is a Parameter, but {describe(value)} "
                    "would not be trained. Write nn.Parameter(value), or use load_state_dict."
                )
            if kind is Buffer and not isinstance(value, (Parameter, Buffer)):
                value = Buffer(value, persistent=name not in self._not_persistent)
            if isinstance(value, Buffer) and value.persistent == (name in self._not_persistent):
                vars(self)["_not_persistent"] = self._not_persistent ^ {name}
            self._set_kind(name, next((k for k in KINDS if isinstance(value, k)), None))
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        tell_change(self, name)
        super().__delattr__(name)
        self._set_kind(name, None)

    def _kind(self, name):
        """Return the kind of an attribute: one of KINDS, or None."""
        return next((kind for kind, names in self._names.items() if name in names), None)

    def _set_kind(self, name, kind):
        """Record the kind of an attribute."""
        if kind is not self._kind(name):
            names = {k: tuple(n for n in old if n != name) for k, old in self._names.items()}
            if kind is not None:
                names[kind] = (*names.get(kind, ()), name)
            vars(self)["_names"] = names

    def register_buffer(self, name: str, tensor, persistent: bool = True) -> None:
        """Set the attribute `name` to Buffer(tensor, persistent=persistent), or to None."""
        self._set_kind(name, Buffer)
        buffer = Buffer(() if tensor is None else tensor, persistent=persistent)
        setattr(self, name, buffer)  # which notes whether the buffer is persistent
        if tensor is None:
            setattr(self, name, None)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a child module. Raises TypeError or ValueError for an invalid module or name."""
        if not (module is None or isinstance(module, Module)):
            raise TypeError(
                f"{name!r} of a {type(self).__name__} must be a Module, got {describe(module)}. "
                "Write nn.Sequential(*layers) for a list, and nn.ReLU() for a class."
            )
        if not name or "." in name or hasattr(type(self), name):
            reason = "is empty, contains a dot or is an attribute of the class"
            raise ValueError(f"{name!r} cannot name a part of {type(self).__name__}: it {reason}.")
        setattr(self, name, module)

    # ---- walking the tree

    def _attributes(self, kind):
        """Return {name: value} for the attributes of this kind that are not None."""
        values, names = self.__dict__, self._names.get(kind, ())
        return {name: values[name] for name in names if values.get(name) is not None}

    def named_modules(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """Iterate over (dotted name, module), parents first. This module's name is "".

        Raises TypeError for a module in a plain list, tuple, set or dict.
        """
        seen = set[Module]()
        pending: list[tuple[str, Module, tuple]] = [("", self, ())]
        while pending:
            path, module, above = pending.pop()
            if module in (seen if remove_duplicate else above):  # a child may know its parent
                continue
            seen.add(module)
            yield path, module
            outer = path and f"{path}."
            if Module in module._names:
                children = reversed(module._attributes(Module).items())
                above = () if remove_duplicate else (*above, module)
                pending += [(outer + name, child, above) for name, child in children]
            for name in module._names.get(COLLECTIONS, ()):
                if _hides_parts(value := vars(module).get(name)):
                    raise TypeError(
                        f"{type(module).__name__}.{name} is a plain {type(value).__name__} of "
                        "modules or parameters, which would be neither trained nor saved. Write "
                        "nn.ModuleList or nn.ModuleDict, and setattr(self, name, p) for parameters."
                    )

    def _named_parts(self, *kinds, recurse=True, once=True):
        """Yield (dotted name, value) for attributes of these kinds, or parameters and buffers."""
        seen = set[Any]()
        for path, module in self.named_modules(once) if recurse else [("", self)]:
            outer, values = path and f"{path}.", module.__dict__
            for kind in kinds or (Parameter, Buffer):
                for name in module._names.get(kind, ()):
                    value = values.get(name)
                    if value is not None and not (once and value in seen):
                        seen.add(value)
                        yield outer + name, value

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all modules inside it, each once, parents first."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Iterate over (name, module) for the direct children, each once."""
        return self._named_parts(Module, recurse=False)

    def children(self) -> Iterator[Module]:
        """Iterate over the direct children, each once."""
        return (child for _, child in self.named_children())

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Iterate over (dotted name, parameter). A shared parameter appears once."""
        return self._named_parts(Parameter, recurse=recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Iterate over the parameters, without repetitions."""
        return (p for _, p in self.named_parameters(recurse))

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Buffer]]:
        """Iterate over pairs (dotted name, buffer), without repetitions."""
        return self._named_parts(Buffer, recurse=recurse)

    def train(self, mode: bool = True) -> Self:
        """Switch this module and all its submodules to training mode, which activates dropout."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to evaluation mode, in which dropout does nothing. Same as train(False)."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Unfreeze (True) or freeze (False) all parameters. Returns the module."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or to zeros."""
        zero_gradients(self.parameters(), set_to_none)

    def astype(self, dtype) -> Self:
        """Convert floating parameters and buffers to a floating dtype. Returns the module.

        Create the optimiser afterwards.
        """
        dtype = floating_dtype(dtype, "a module", trainable=True)
        for _, tensor in self._named_parts():
            if tensor.dtype.kind == "f" and tensor.dtype != dtype:
                inplace.replace(tensor, tensor._data.astype(dtype))
                tensor._grad = None if tensor._grad is None else tensor._grad.astype(dtype)
        return self

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn(module) for every module, children first. Returns the module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- values in and out

    def state_dict(self) -> dict[str, Tensor]:
        """Return {name: value} for parameters and persistent buffers, as in PyTorch.

        The values share memory with the module, so `value.data *= 0.5` changes the module. A shared
        parameter is listed under each of its names.
        """
        return {
            path: StateValue._of(value._array())
            for path, value in self._named_parts(once=False)
            if getattr(value, "persistent", True)
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy values into the parameters and buffers of the same names, converting dtypes.

        Values may be Tensors, ndarrays or torch tensors. On a mismatch, raises a ValueError that
        lists all missing, unexpected and mis-shaped keys, and changes nothing. With `strict=False`,
        only the shapes must match. Returns the missing and unexpected keys.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"load_state_dict takes a mapping like ta.load(path), got {describe(state_dict)}."
            )
        own = self.state_dict()
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        values = {name: as_array(state_dict[name]) for name in own if name in state_dict}
        shapes = {name: (own[name].shape, value.shape) for name, value in values.items()}
        problems = [
            f"shape: {name!r} is {shape} in the module but {other} in the mapping."
            + " Transpose the value." * (other == shape[::-1])
            for name, (shape, other) in shapes.items()
            if other != shape
        ]
        if strict:
            problems += [f"missing: {name!r} {own[name].shape}" for name in missing]
            few = missing[:20]  # nearest() is slow
            problems += [f"unexpected: {name!r}.{nearest(str(name), few)}" for name in unexpected]
        if problems:
            head = f"the mapping does not match {type(self).__name__}; nothing was changed."
            raise ValueError("\n  ".join([head, *problems]))
        memories = {id(inplace.owner(value._data)) for value in own.values()}
        shared = {n for n, value in values.items() if id(inplace.owner(value)) in memories}
        values |= {name: values[name].copy() for name in shared}  # a permuted state dict
        for name, value in values.items():
            own[name][...] = value
        return IncompatibleKeys(missing, unexpected)

    def summary(self, *inputs, **kwargs) -> Any:
        """Run the module once and return a table of modules, shapes, parameters and FLOPs."""
        from .summary import summary  # avoids an import cycle

        return summary(self, *inputs, **kwargs)

    def extra_repr(self) -> str:
        """Return the settings that repr() shows, by default the attributes named in `_shown`."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)

    def __repr__(self):
        head, extra = type(self).__name__, self.extra_repr()
        children = self._attributes(Module).items()
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in children]
        if not lines:
            return f"{head}({extra})"
        return f"{head}({extra}\n  " + "\n  ".join(lines) + "\n)"


COLLECTIONS = (list, tuple, set, frozenset, dict, deque, UserList, UserDict)  # refuse parts
KINDS = (Parameter, Buffer, Module, COLLECTIONS)
