"""tinygrad_attn: reverse-mode automatic differentiation on NumPy, and attention layers interchangeable with PyTorch's."""

__version__ = "0.1.0"

from .autograd import enable_grad, grad, no_grad
from .engine import op
from .tensor import Tensor, get_default_dtype, set_default_dtype

__all__ = ["Tensor", "enable_grad", "get_default_dtype", "grad", "no_grad", "op", "set_default_dtype"]
