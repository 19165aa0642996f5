"""Initial values of parameters: `torch.nn.init`, PyTorch's numbers in PyTorch's drawing order.

Every function writes into the tensor it is given and returns it. `generator` is the stream to draw
from; None is the one that `ta.manual_seed` seeds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import inplace
from ..errors import describe, missing_names
from ..functional.checks import check_choice
from ..random import Generator, default_generator
from ..tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def constant_(tensor: Tensor, val: Any) -> Tensor:
    """The same value everywhere."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"an initialiser writes into a Tensor, got {describe(tensor)}; give it the parameter p "
            "itself, such as layer.weight, not p.data"
        )
    tensor._array()[...] = val
    inplace.changed(tensor._data)
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Zero everywhere."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """One everywhere."""
    return constant_(tensor, 1.0)


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """u from the uniform distribution on [a, b). Raises ValueError for a > b."""
    draw = generator or default_generator()
    return constant_(tensor, draw.uniform(tensor.shape, a, b, tensor.dtype))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """n from the normal distribution with this mean and deviation. ValueError for std < 0."""
    draw = generator or default_generator()
    return constant_(tensor, draw.normal(tensor.shape, mean, std, tensor.dtype))


GAINS = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "leaky_relu": 0.0,  # depends on the slope
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor on the standard deviation that keeps the variance through a nonlinearity.

    1 for "linear" and "sigmoid", 5/3 for "tanh", sqrt(2) for "relu", 3/4 for "selu", and for
    "leaky_relu" sqrt(2 / (1 + slope^2)), slope being `param`, or 0.01. Raises ValueError for any
    other name. Source: `torch.nn.init.calculate_gain`.
    """
    check_choice(nonlinearity, [*GAINS], "nonlinearity", "calculate_gain")
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    return GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out): how many numbers go into one output, how many outputs one reaches."""
    if tensor.ndim < 2:
        raise ValueError(
            "fan in and fan out need a weight of at least 2 dimensions (out, in), got shape "
            f"{tensor.shape}; for a bias use uniform_, normal_ or zeros_"
        )
    out_features, in_features, *rest = tensor.shape
    window = math.prod(rest)
    return in_features * window, out_features * window


def _xavier_std(tensor: Tensor, gain: float) -> float:
    if isinstance(gain, str):
        raise ValueError(f"gain is a number, got {gain!r}; write init.calculate_gain({gain!r})")
    return gain * math.sqrt(2.0 / sum(_fans(tensor)))


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """u from [-a, a) with a = gain sqrt(6 / (fan_in + fan_out)). Glorot and Bengio, 2010.

    Raises ValueError for fewer than 2 axes.
    """
    a = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -a, a, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """n with mean 0 and std = gain sqrt(2 / (fan_in + fan_out)). Glorot and Bengio, 2010.

    Raises ValueError for fewer than 2 axes.
    """
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if 0 in tensor.shape:
        return 0.0  # there is nothing to draw
    check_choice(mode, ("fan_in", "fan_out"), "mode", "kaiming")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """u from [-b, b) with b = gain sqrt(3 / fan). He et al., 2015.

    `a` is the negative slope of leaky_relu. PyTorch's Linear draws its weight with a = sqrt(5),
    which makes b = 1 / sqrt(fan_in). Raises ValueError for fewer than 2 axes, another mode or an
    unknown nonlinearity.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """n with mean 0 and std = gain / sqrt(fan). He et al., 2015. Raises as `kaiming_uniform_`."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """n from the normal distribution, drawn again while outside [a, b].

    Whole tensors of normals are drawn and fill the places that are still outside, as in PyTorch.
    Raises ValueError unless [a, b] holds at least 0.3 of the mass: PyTorch draws far tails in
    another way.
    """
    below = [math.erf((x - mean) / std / math.sqrt(2.0)) / 2.0 for x in (a, b)]
    if below[1] - below[0] <= 0.3:
        raise ValueError(
            f"trunc_normal_ needs [a, b] with at least 0.3 of the mass, got [{a}, {b}] for the "
            f"mean {mean} and the deviation {std}."
        )
    draw, dtype = generator or default_generator(), tensor.dtype
    values = draw.normal(tensor.shape, mean, std, dtype)
    while np.any(outside := (values < dtype.type(a)) | (values > dtype.type(b))):
        values = np.where(outside, draw.normal(tensor.shape, mean, std, dtype), values)
    return constant_(tensor, values)


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here
    __getattr__ = missing_names(__name__, globals())
