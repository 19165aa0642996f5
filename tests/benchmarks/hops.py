"""How many functions of the package a call passes through: `python -m tests.benchmarks.hops`.

A hop is a call of a Python function whose file lies in the package, seen by `sys.setprofile`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn import functional as F

PACKAGE = os.path.dirname(ta.__file__) + os.sep


def hops(prepare: Callable[[], Any], call: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """How often `call` calls each function of the package, by (file, name)."""
    found: Counter[tuple[str, str]] = Counter()

    def look(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            found[file[len(PACKAGE) :], frame.f_code.co_qualname] += 1

    call()  # what is only done the first time is not counted
    prepare()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def encoder_layer() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forwards and backwards through a layer: 8 sequences of 16 tokens, width 32, 4 heads."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = Tensor(np.random.default_rng(0).standard_normal((8, 16, 32)).astype(np.float32))
    return layer.zero_grad, lambda: layer(x).sum().backward()


def linear() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """F.linear of tensors that require gradients."""
    x, w, b = (Tensor(np.ones(s), requires_grad=True) for s in ((8, 4), (3, 4), 3))
    return lambda: None, lambda: F.linear(x, w, b)


def softmax() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """F.softmax of a tensor that requires a gradient."""
    x = Tensor(np.ones((8, 4)), requires_grad=True)
    return lambda: None, lambda: F.softmax(x)


MEASURED = {"encoder layer": encoder_layer, "F.linear": linear, "F.softmax": softmax}


def main() -> None:
    for name, make in MEASURED.items():
        found = hops(*make())
        modules = Counter[str]()
        for (file, _), times in found.items():
            modules[file] += times
        print(f"{name}: {found.total()} calls in {len(modules)} modules")
        if "-v" in sys.argv:
            for file, times in modules.most_common():
                print(f"  {times:4} {file}")
                for (other, function), count in found.most_common():
                    if other == file:
                        print(f"       {count:4} {function}")


if __name__ == "__main__":
    main()
