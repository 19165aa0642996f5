"""HIPS autograd and JAX: functions of NumPy's names, whose gradient is another function."""

import importlib


class Functional:
    """The workloads as functions of a dict of arrays."""

    np = grad = None  # the library's NumPy, and the gradient of a function of a dict

    def _run(self, loss, arrays, names):
        gradient, last = self.grad(loss), {}
        p = {k: self.np.asarray(arrays[k]) for k in names}

        def step():
            last["g"] = gradient(p)

        return step, lambda: dict(last["g"])

    def attend(self, q, k, v):
        s = q @ self.np.swapaxes(k, -1, -2) * float(q.shape[-1]) ** -0.5
        e = self.np.exp(s - self.np.max(s, axis=-1, keepdims=True))
        return e / self.np.sum(e, axis=-1, keepdims=True) @ v

    def norm(self, x, p, name):
        np = self.np
        c = x - np.mean(x, axis=-1, keepdims=True)
        c = c / np.sqrt(np.mean(c * c, axis=-1, keepdims=True) + np.float32(1e-5))
        return c * p[f"{name}.weight"] + p[f"{name}.bias"]

    def encoder(self, arrays, d, h, ff, B, T):
        """A post-norm encoder layer, as PyTorch's."""
        np = self.np

        def loss(p):
            x, part = p["x"], lambda x, name: x @ p[name + "weight"].T + p[name + "bias"]
            packed = part(x, "self_attn.in_proj_")
            packed = np.reshape(packed, (B, T, 3, h, d // h))
            heads = self.attend(*(np.swapaxes(packed[:, :, i], 1, 2) for i in range(3)))
            y = part(np.reshape(np.swapaxes(heads, 1, 2), (B, T, d)), "self_attn.out_proj.")
            x = self.norm(x + y, p, "norm1")
            y = part(np.maximum(part(x, "linear1."), 0), "linear2.")
            return np.mean(self.norm(x + y, p, "norm2") ** 2)

        return self._run(loss, arrays, list(arrays))

    def attention(self, arrays, T, B=1, h=8, D=64, causal=False, padding=False):
        loss = lambda p: self.np.sum(self.attend(p["q"], p["k"], p["v"]) * arrays["g"])
        return self._run(loss, arrays, "qkv")

    def mlp(self, arrays, batch, width):
        y, rows, np = arrays["y"], self.np.arange(batch), self.np

        def loss(p):
            z = np.maximum(p["x"] @ p["w1"].T + p["b1"], 0)
            z = np.maximum(z @ p["w2"].T + p["b2"], 0)
            z = z @ p["w3"].T + p["b3"]
            z = z - np.max(z, axis=1, keepdims=True)
            return np.mean(np.log(np.sum(np.exp(z), axis=1)) - z[rows, y])

        return self._run(loss, arrays, [k for k in arrays if k != "y"])

    def chain(self, arrays, n, size=8):
        def loss(p):
            y = self.repeat(n // 4, lambda y: self.np.tanh(y * p["a"] + p["b"]) * p["a"], p["x"])
            return self.np.sum(y)

        return self._run(loss, arrays, "xab")

    def repeat(self, times, f, x):
        for _ in range(times):
            x = f(x)
        return x


class Hips(Functional):
    """HIPS autograd: NumPy code differentiated by tracing"""

    def __init__(self):
        self.np = importlib.import_module("autograd.numpy")
        self.grad = importlib.import_module("autograd").grad

    def recurrent(self, arrays, T, B, d):
        np = self.np

        def loss(p):
            h = np.zeros((B, d), np.float32)
            for t in range(T):
                h = np.tanh(p["x"][t] + h @ p["w"])
            return np.mean(h * h)

        return self._run(loss, arrays, "xw")


class Jax(Functional):
    """JAX (jit)"""

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.np = self.jax.numpy

    def grad(self, f):
        gradient = self.jax.jit(self.jax.grad(f))
        return lambda p: self.jax.block_until_ready(gradient(p))

    def repeat(self, times, f, x):
        return self.jax.lax.fori_loop(0, times, lambda _, y: f(y), x)
