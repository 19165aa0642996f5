"""class Tensor, what one is made from, and NumPy's names for the ops."""

from .tensor import Axis, Tensor, get_default_dtype, set_default_dtype

__all__ = ["Axis", "Tensor", "get_default_dtype", "set_default_dtype"]
