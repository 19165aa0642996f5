"""tinygrad_attn: reverse-mode automatic differentiation on NumPy, and attention layers
interchangeable with PyTorch's.

    import tinygrad_attn as ta
    from tinygrad_attn import Tensor, nn, optim
    import tinygrad_attn.functional as F

Importing the package loads only the engine, Tensors and random numbers. Everything else is loaded
on first use, so the import takes little longer than NumPy's.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import engine, errors
from .engine import enable_grad, grad, is_plain, no_grad, op, plain
from .random import manual_seed, rand, randn
from .tensor import Tensor, get_default_dtype, set_default_dtype

if TYPE_CHECKING:
    from . import check, functional, nn, ops, optim, viz
    from .check import (  # type: ignore[no-redef]
        compare_with_torch,
        detect_anomaly,
        gradcheck,
        gradgradcheck,
    )
    from .fast.threads import get_num_threads, reuse_memory, set_num_threads
    from .files import load, load_checkpoint, save, save_checkpoint
    from .nn.inside import activations, functional_call, patch, record_attention
    from .program.source import Program, source
    from .transforms import checkpoint, hessian, hvp, jacobian, jvp, value_and_grad, vjp
    from .viz import backward_steps

try:
    import_module(f"{__name__}.fast")
except ModuleNotFoundError as missing:  # the folder can be deleted: everything works, slower
    if missing.name != f"{__name__}.fast":
        raise

__version__ = "0.1.0"

_HOMES = {
    "transforms": ("checkpoint", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp"),
    "program.source": ("Program", "source"),
    "check": ("compare_with_torch", "detect_anomaly", "gradcheck", "gradgradcheck"),
    "files": ("load", "load_checkpoint", "save", "save_checkpoint"),
    "nn.inside": ("activations", "functional_call", "patch", "record_attention"),
    "fast.threads": ("get_num_threads", "reuse_memory", "set_num_threads"),
    "viz": ("backward_steps",),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("check", "functional", "nn", "optim", "viz")

__all__ = [
    "Program",
    "Tensor",
    "activations",
    "backward_steps",
    "check",
    "checkpoint",
    "compare_with_torch",
    "detect_anomaly",
    "enable_grad",
    "engine",
    "functional",
    "functional_call",
    "get_default_dtype",
    "get_num_threads",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hvp",
    "is_plain",
    "jacobian",
    "jvp",
    "load",
    "load_checkpoint",
    "manual_seed",
    "nn",
    "no_grad",
    "op",
    "optim",
    "patch",
    "plain",
    "rand",
    "randn",
    "record_attention",
    "reuse_memory",
    "save",
    "save_checkpoint",
    "set_default_dtype",
    "set_num_threads",
    "source",
    "value_and_grad",
    "viz",
    "vjp",
]


def _without_fast(name):
    """Return a stub for a function of fast/, used if that folder has been deleted."""

    def nothing(*_):
        errors.warn(f"ta.{name}() has no effect because tinygrad_attn/fast/ is missing.")
        return {"get_num_threads": 1, "reuse_memory": False}.get(name)

    return nothing


class _NoFunction(ModuleType):
    """The type of the module `ta.tensor`. Calling the module, as in PyTorch, raises an error."""

    def __call__(self, *_, **__):
        raise TypeError(
            "ta.tensor is a module of this package. Write ta.Tensor(data, requires_grad=True)."
        )


sys.modules[f"{__name__}.tensor"].__class__ = _NoFunction


if not TYPE_CHECKING:  # else a type checker would accept misspelt names

    def __getattr__(name: str):
        """Load a name on first use."""
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _LAZY:
            return errors.missing_names(__name__, globals())(name)
        try:
            home = import_module(f"{__name__}.{_LAZY[name]}")
        except ModuleNotFoundError as missing:
            if missing.name != f"{__name__}.fast":
                raise
            return _without_fast(name)
        value = globals()[name] = getattr(home, name)
        return value


def __dir__():
    return sorted({*globals(), *__all__})
