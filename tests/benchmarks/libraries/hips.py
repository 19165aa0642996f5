"""HIPS autograd: NumPy code differentiated by tracing."""

import autograd.numpy as np
from autograd import grad


class Library:
    """HIPS autograd"""

    def _run(self, loss, arrays, names):
        gradient, last = grad(loss), {}
        p = {k: arrays[k] for k in names}

        def step():
            last["g"] = gradient(p)

        return step, lambda: dict(last["g"])

    def encoder(self, arrays, d, h, ff, B, T):
        return self._run(lambda p: np.mean(encoder(p, h) ** 2), arrays, list(arrays))

    def attention(self, arrays, T, B=1, h=8, D=64, causal=False, padding=False):
        g = arrays["g"]
        return self._run(lambda p: np.sum(attend(p["q"], p["k"], p["v"]) * g), arrays, "qkv")

    def mlp(self, arrays, batch, width):
        y, rows = arrays["y"], np.arange(batch)

        def loss(p):
            z = np.maximum(p["x"] @ p["w1"].T + p["b1"], 0)
            z = np.maximum(z @ p["w2"].T + p["b2"], 0)
            z = z @ p["w3"].T + p["b3"]
            z = z - np.max(z, axis=1, keepdims=True)
            return np.mean(np.log(np.sum(np.exp(z), axis=1)) - z[rows, y])

        return self._run(loss, arrays, [k for k in arrays if k != "y"])

    def chain(self, arrays, n, size=8):
        def loss(p):
            y = p["x"]
            for _ in range(n // 4):
                y = np.tanh(y * p["a"] + p["b"]) * p["a"]
            return np.sum(y)

        return self._run(loss, arrays, "xab")

    def recurrent(self, arrays, T, B, d):
        def loss(p):
            h = np.zeros((B, d), np.float32)
            for t in range(T):
                h = np.tanh(p["x"][t] + h @ p["w"])
            return np.mean(h * h)

        return self._run(loss, arrays, "xw")


def attend(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) * float(q.shape[-1]) ** -0.5
    e = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True) @ v


def norm(x, weight, bias):
    c = x - np.mean(x, axis=-1, keepdims=True)
    return c / np.sqrt(np.mean(c * c, axis=-1, keepdims=True) + np.float32(1e-5)) * weight + bias


def encoder(p, h):
    """A post-norm encoder layer, as PyTorch's."""
    x = p["x"]
    B, T, d = x.shape
    qkv = np.reshape(
        x @ p["self_attn.in_proj_weight"].T + p["self_attn.in_proj_bias"], (B, T, 3, h, d // h)
    )
    q, k, v = (np.swapaxes(qkv[:, :, i], 1, 2) for i in range(3))
    y = np.reshape(np.swapaxes(attend(q, k, v), 1, 2), (B, T, d))
    x = norm(
        x + y @ p["self_attn.out_proj.weight"].T + p["self_attn.out_proj.bias"],
        p["norm1.weight"],
        p["norm1.bias"],
    )
    y = (
        np.maximum(x @ p["linear1.weight"].T + p["linear1.bias"], 0) @ p["linear2.weight"].T
        + p["linear2.bias"]
    )
    return norm(x + y, p["norm2.weight"], p["norm2.bias"])
