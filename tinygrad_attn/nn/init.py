"""Parameter initialisers that draw the same numbers as `torch.nn.init`.

Every function fills its tensor in place and returns it. `ta.manual_seed` sets the seed.
"""

import math
from typing import TypeVar

from ..engine import inplace
from ..errors import describe
from ..functional.checks import check_choice
from ..random import default_generator
from ..tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

T = TypeVar("T", bound=Tensor)


def constant_(tensor: T, val) -> T:
    """Fill the tensor with one value."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"pass a Tensor such as layer.weight, not its data {describe(tensor)}.")
    tensor._array()[...] = val
    inplace.changed(tensor._data)
    return tensor


def zeros_(tensor: T) -> T:
    """Fill the tensor with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: T) -> T:
    """Fill the tensor with ones."""
    return constant_(tensor, 1.0)


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Fill the tensor from the uniform distribution on [a, b). Raises ValueError if a > b."""
    return constant_(tensor, default_generator().uniform(tensor.shape, a, b, tensor.dtype))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Fill the tensor from the normal distribution. Raises ValueError if std < 0."""
    return constant_(tensor, default_generator().normal(tensor.shape, mean, std, tensor.dtype))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended scale of the initial weights before a nonlinearity.

    `param` is the negative slope of "leaky_relu", 0.01 by default.
    """
    slope = 0.01 if param is None else param
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2.0 / (1 + slope**2)),
        "selu": 3 / 4,
    }
    check_choice(nonlinearity, [*gains], "nonlinearity", "calculate_gain")
    return gains[nonlinearity]


def _fans(tensor):
    """Return the number of inputs per output (fan_in) and of outputs per input (fan_out)."""
    out_features, in_features, *rest = tensor.shape
    window = math.prod(rest)
    return {"fan_in": in_features * window, "fan_out": out_features * window}


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Draw from U[-a, a) with a = gain sqrt(6 / (fan_in + fan_out)). Glorot and Bengio, 2010."""
    a = gain * math.sqrt(6.0 / sum(_fans(tensor).values()))
    return uniform_(tensor, -a, a)


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Draw from N(0, s^2) with s = gain sqrt(2 / (fan_in + fan_out)). Glorot and Bengio, 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor).values())))


def _kaiming_std(tensor, a, mode, nonlinearity):
    fans = _fans(tensor)
    check_choice(mode, [*fans], "mode", "kaiming")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans[mode] or 1)  # 1 for an empty tensor


def kaiming_uniform_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Draw from U[-b, b) with b = gain sqrt(3 / fan). He et al., 2015.

    `a` is the negative slope of leaky_relu. Linear uses a = sqrt(5), so that b = 1 / sqrt(fan_in).
    Raises ValueError for an unknown mode or nonlinearity.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Draw from N(0, s^2) with s = gain / sqrt(fan). He et al., 2015."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))
