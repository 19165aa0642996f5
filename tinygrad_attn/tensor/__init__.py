"""The Tensor class, conversions to Tensors, and NumPy's functions on Tensors."""

from .convert import get_default_dtype, set_default_dtype
from .tensor import Axis, Tensor
