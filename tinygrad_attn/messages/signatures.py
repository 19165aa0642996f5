"""What is said when a function is called wrongly.

With a keyword that it does not have, a flag that is neither True nor False, a class for an object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np

from .errors import describe, nearest

Function = TypeVar("Function", bound=Callable[..., Any])

_DDOF = (
    "speaks NumPy here: write ddof=1 for unbiased=True or correction=1, which PyTorch takes "
    "unless told otherwise, and ddof=0 for unbiased=False or correction=0, as it is here"
)
TORCH_ONLY = dict.fromkeys(
    ("dim", "keepdim"), "speaks NumPy here: write axis= for dim=, and keepdims= for keepdim="
) | {
    "unbiased": _DDOF,
    "correction": _DDOF,
    "dtype": "has no dtype= here: write .astype(dtype) on what goes in or comes out",
    "device": "has no device=: leave it out, everything is on the CPU",
    "inplace": "has no inplace=: leave it out, the result is a new Tensor",
    "out": "has no out=: leave it out, and use what is returned",
    "generator": "has no generator=: leave it out, ta.manual_seed(n) sets what is drawn from",
    **dict.fromkeys(
        ("reduce", "size_average"),
        "has neither reduce= nor size_average=: write reduction='mean', 'sum' or 'none'",
    ),
    **dict.fromkeys(
        ("where", "initial"),
        "has neither where= nor initial=, which NumPy's reductions have: write "
        "np.sum(t, where=mask), np.max(t, initial=0.0) and the like",
    ),
    "start_dim": "has no start_dim=: write t.reshape(len(t), -1) for start_dim=1",
    "inputs": "has no inputs=: write ta.grad(loss, inputs), which returns the gradients by them",
}
TORCH_ONLY |= {
    "epoch": "has no epoch=: write step= for a number that counts, extra={'epoch': epoch} beside",
    "has_aux": "has no has_aux=: call f, keep what else it returns, and write ta.grad(loss, xs)",
}
TORCH_ONLY |= {
    name: f"has no {name}=: leave it out"
    for name in (
        "only_inputs",
        "map_location",
        "weights_only",
        "fused",
        "foreach",
        "capturable",
        "differentiable",
        "pin_memory",
        "sparse",
        "layout",
        "scale_grad_by_freq",
        "last_epoch",
        "verbose",
        "mmap",
        "mode",
        "backend",
        "dynamic",
        "options",
        "device_ids",
        "output_device",
        "find_unused_parameters",
        "gradient_as_bucket_view",
    )
}


def called_as(function: Callable[..., Any], title: str) -> str:
    """`title(x, axis=-1)`: how a function is called, without the kinds of its arguments."""
    signature = inspect.signature(function)
    plain = [
        p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"
    ]
    return f"{title}{signature.replace(parameters=plain, return_annotation=signature.empty)}"


def strange_keyword(function: Callable[..., Any], title: str, kwargs: Iterable[str]) -> TypeError:
    """The error for a keyword that a function does not have, of PyTorch's or of nobody's."""
    known = inspect.signature(function).parameters.keys()
    strange = [name for name in kwargs if name not in known]
    for name in TORCH_ONLY:
        if name in strange:
            return TypeError(f"{title}() {TORCH_ONLY[name]}.")
    return TypeError(
        f"{title}() got an unexpected keyword argument {strange[0]!r}.{nearest(strange[0], known)} "
        f"It is {called_as(function, title)}."
    )


def wrong_number(function: Callable[..., Any], title: str, error: TypeError) -> TypeError | None:
    """Python's error for a call with too few or too many arguments, and how it is called.

    None for an error from inside of the function, whose traceback goes on beyond the call.
    """
    text = str(error)
    if not of_the_call(error) or "()" not in text:
        return None
    said = text[text.index("()") :].removesuffix(".")
    return TypeError(f"{title}{said}. It is {called_as(function, title)}.")


def of_the_call(error: TypeError) -> bool:
    """Did the call itself fail, before the function began?"""
    trace = error.__traceback__
    return trace is None or trace.tb_next is None


def several_axes(title: str, args: tuple) -> TypeError:
    """The error for f(x, 0, 1), where the axes go into a tuple."""
    return TypeError(
        f"{title}() takes one axis, or several as a tuple: write axis={args[1:]}, and what else "
        "there is by name."
    )


def own_names(function: Function) -> Function:
    """A function that says what to write when it is called with a keyword that it does not have, of
    PyTorch's or of nobody's.
    """
    names = inspect.signature(function).parameters
    known, one_axis = names.keys(), "axis" in names
    any_name = any(p.kind is p.VAR_KEYWORD for p in names.values())
    title = (
        function.__qualname__.removesuffix(".__init__")
        if function.__name__ == "__init__"
        else function.__name__
    )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not (kwargs.keys() <= known or any_name):
            raise strange_keyword(function, title, kwargs)
        if one_axis and len(args) > 2 and args[-1].__class__ is int:
            raise several_axes(title, args)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if (told := wrong_number(function, title, error)) is None:
                raise
            raise told from None

    return cast(Function, call)


def check_flags(function: str, **flags: Any) -> None:
    """Each True or False, or None for False; a text would count as True, whatever it says."""
    for name, value in flags.items():
        if (
            value is not True
            and value is not False
            and not (isinstance(value, (np.bool_, int, type(None))) and value in (None, 0, 1))
        ):
            raise TypeError(f"{function}: {name} is True or False, got {describe(value)}.")


def not_made_yet(call: str, value: Any, name: str) -> TypeError:
    """The error for `nn.ReLU(x)`, where the layer's input is given to its class."""
    made = call.partition("(")[0]
    return TypeError(
        f"{made}(...) makes the layer, which is called then: write {call}(x), or layer(x) for one "
        f"that is made; got {describe(value)} as {name}."
    )


def as_layer(init: Function) -> Function:
    """A layer's __init__, but the layer's input or a flag not boolean is an error that helps."""
    parameters, named = inspect.signature(init).parameters, own_names(init)
    made = init.__qualname__.removesuffix(".__init__")
    flags = {name for name, p in parameters.items() if p.annotation == "bool"}
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind != 2][1:]
    making = f"nn.{made}({', '.join(needed)})"

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, value in (*zip([*parameters][1:], args), *kwargs.items()):
            # The class is asked, since a module that is asked itself would look for a hint.
            if hasattr(type(value), "_node") and value.ndim > (name == "weight"):
                raise not_made_yet(making, value, name)
            if name in flags:
                check_flags(made, **{name: value})
        named(self, *args, **kwargs)

    return cast(Function, call)


class NeedsBrackets(type):
    """What `with no_grad:` finds is the class, which opens no block."""

    def __enter__(cls) -> None:
        raise TypeError(
            f"{cls.__name__} is a class, and a block takes an object. Write `with "
            f"{cls.__name__}():`, with brackets."
        )

    def __exit__(cls, *_: object) -> None:  # asked for before the other is called
        ...
