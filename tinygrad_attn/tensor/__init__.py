"""The class Tensor, conversion to it, and the ops under NumPy's names."""

from .tensor import Axis, Tensor, get_default_dtype, set_default_dtype

__all__ = ["Axis", "Tensor", "get_default_dtype", "set_default_dtype"]
