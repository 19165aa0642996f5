"""The Tensor class, conversions to Tensors, and NumPy's functions on Tensors."""

from .tensor import Axis, Tensor, get_default_dtype, set_default_dtype

__all__ = ["Axis", "Tensor", "get_default_dtype", "set_default_dtype"]
