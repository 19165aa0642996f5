"""MyGrad: NumPy's functions on tensors."""

import mygrad as mg
import numpy as np


class Library:
    """MyGrad"""

    def chain(self, arrays, n, size=8):
        t = {k: mg.tensor(v) for k, v in arrays.items()}

        def step():
            y = t["x"]
            for _ in range(n // 4):
                y = mg.tanh(y * t["a"] + t["b"]) * t["a"]
            y.sum().backward()

        return step, lambda: {k: v.grad for k, v in t.items()}

    def mlp(self, arrays, batch, width):
        from mygrad.nnet.losses import softmax_crossentropy

        t = {k: mg.tensor(v) for k, v in arrays.items() if k != "y"}

        def step():
            h = mg.maximum(t["x"] @ t["w1"].T + t["b1"], np.float32(0))
            h = mg.maximum(h @ t["w2"].T + t["b2"], np.float32(0))
            softmax_crossentropy(h @ t["w3"].T + t["b3"], arrays["y"]).backward()

        return step, lambda: {k: v.grad for k, v in t.items()}
