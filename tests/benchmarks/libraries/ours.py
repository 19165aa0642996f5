"""This package."""

import os

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, ops, optim


def leaves(arrays):
    return {
        k: Tensor(v, requires_grad=v.dtype.kind == "f")
        for k, v in arrays.items()
        if k != "g" and not k.startswith("grad:")
    }


def forget(tensors):
    for t in tensors:
        t.zero_grad()


def mean_square(y):
    return (y * y).mean()


class Library:
    """tinygrad_attn"""

    way = staticmethod(lambda f: f)  # how a function is called: as it is

    def __init__(self):
        ta.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        ta.reuse_memory()

    def _layer(self, cls, arrays, d, h, ff):
        layer = cls(d, h, ff, dropout=0.0, batch_first=True)
        layer.load_state_dict({k: v for k, v in arrays.items() if k in layer.state_dict()})
        return layer

    def encoder(self, arrays, d, h, ff, B, T):
        layer, x = (
            self._layer(nn.TransformerEncoderLayer, arrays, d, h, ff),
            Tensor(arrays["x"], requires_grad=True),
        )
        loss = self.way(lambda x: mean_square(layer(x)))

        def step():
            layer.zero_grad()
            x.zero_grad()
            loss(x).backward()

        return step, lambda: {
            "y": layer(x).numpy(),
            "x": x.grad.numpy(),
            **{k: p.grad.numpy() for k, p in layer.named_parameters()},
        }

    def decoder(self, arrays, d, h, ff, B, T, S):
        layer, x = (
            self._layer(nn.TransformerDecoderLayer, arrays, d, h, ff),
            Tensor(arrays["x"], requires_grad=True),
        )
        memory = Tensor(arrays["memory"], requires_grad=True)
        loss = self.way(lambda x, memory: mean_square(layer(x, memory)))

        def step():
            layer.zero_grad()
            forget([x, memory])
            loss(x, memory).backward()

        return step, lambda: {
            "x": x.grad.numpy(),
            "memory": memory.grad.numpy(),
            **{k: p.grad.numpy() for k, p in layer.named_parameters()},
        }

    def train(self, arrays, d, h, ff, B, T):
        layer, x = self._layer(nn.TransformerEncoderLayer, arrays, d, h, ff), Tensor(arrays["x"])
        optimiser = optim.AdamW(layer.parameters(), lr=1e-4)
        loss = self.way(lambda x: mean_square(layer(x)))

        def step():
            optimiser.zero_grad()
            loss(x).backward()
            optimiser.step()

        return step, lambda: {k: p.numpy() for k, p in layer.named_parameters()}

    def generate(self, arrays, d, h, ff, layers, vocabulary, prompt, tokens):
        stack = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, h, ff, dropout=0.0, batch_first=True), layers
        ).eval()
        stack.load_state_dict({k: v for k, v in arrays.items() if k.startswith("layers.")})
        table, text, last = Tensor(arrays["table"]), arrays["y"], {}

        def read(tokens, cache):
            x = stack(F.embedding(tokens, table), is_causal=True, cache=cache)
            return x[:, -1] @ table.T

        read = self.way(read)

        def step():
            cache = nn.KeyValueCache()
            with ta.no_grad():
                unread = text[:, :prompt]
                for i in range(prompt, prompt + tokens):
                    # A writer would choose by the scores; all libraries get the same text.
                    last["scores"] = read(unread, cache)
                    unread = text[:, i : i + 1]

        return step, lambda: {"scores": last["scores"].numpy()}

    def attention(self, arrays, T, B=1, h=8, D=64, causal=False, padding=False):
        q, k, v = (Tensor(arrays[n], requires_grad=True) for n in "qkv")
        g, last = Tensor(arrays["g"]), {}
        mask = (np.arange(T) < arrays["length"][0])[None, None, None, :] if padding else None

        def step():
            forget([q, k, v])
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            y.backward(g)
            last["y"] = y

        return step, lambda: {
            "y": last["y"].numpy(),
            "q": q.grad.numpy(),
            "k": k.grad.numpy(),
            "v": v.grad.numpy(),
        }

    def mlp(self, arrays, batch, width):
        t = leaves({k: v for k, v in arrays.items() if k != "y"})

        @self.way
        def loss(x, w1, b1, w2, b2, w3, b3, y):
            h = F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2))
            return F.cross_entropy(F.linear(h, w3, b3), y)

        def step():
            forget(t.values())
            loss(**t, y=arrays["y"]).backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def chain(self, arrays, n, size=8):
        t = leaves(arrays)

        @self.way
        def total(x, a, b):
            for _ in range(n // 4):
                x = ops.tanh(x * a + b) * a
            return x.sum()

        def step():
            forget(t.values())
            total(**t).backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def recurrent(self, arrays, T, B, d):
        t = leaves(arrays)

        def step():
            forget(t.values())
            h = np.zeros((B, d), np.float32)
            for row in t["x"]:
                h = ops.tanh(row + h @ t["w"])
            (h * h).mean().backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def scalars(self, arrays):
        t = {
            k: [[Tensor(float(u), requires_grad=True) for u in row] for row in np.atleast_2d(v)]
            for k, v in arrays.items()
        }
        everything = [u for rows in t.values() for row in rows for u in row]

        def step():
            forget(everything)
            total = scalar_network(t, lambda u: u.relu())
            total.backward()

        return step, lambda: {
            k: np.array([[u.grad.item() for u in row] for row in rows]).reshape(arrays[k].shape)
            for k, rows in t.items()
        }

    def adamw(self, arrays, d, ff):
        parameters = {k: nn.Parameter(v) for k, v in arrays.items() if not k.startswith("grad:")}
        for k, p in parameters.items():
            p.grad = Tensor(arrays["grad:" + k])
        optimiser = optim.AdamW(parameters.values(), lr=1e-3)
        return optimiser.step, lambda: {k: p.numpy() for k, p in parameters.items()}

    def _pointwise(self, f, arrays):
        t, g = leaves(arrays), Tensor(arrays["g"])

        def step():
            forget(t.values())
            f(**t).backward(g)

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def gelu(self, arrays, shape):
        return self._pointwise(F.gelu, arrays)

    def softmax(self, arrays, shape):
        return self._pointwise(F.softmax, arrays)

    def layer_norm(self, arrays, shape):
        return self._pointwise(
            lambda x, weight, bias: F.layer_norm(x, shape[-1:], weight, bias), arrays
        )

    def cross_entropy(self, arrays, n, classes):
        x, y = Tensor(arrays["x"], requires_grad=True), arrays["y"]

        def step():
            x.zero_grad()
            F.cross_entropy(x, y).backward()

        return step, lambda: {"x": x.grad.numpy()}

    def embedding(self, arrays, rows, d, n):
        weight, g = Tensor(arrays["weight"], requires_grad=True), Tensor(arrays["g"])

        def step():
            weight.zero_grad()
            F.embedding(arrays["y"], weight).backward(g)

        return step, lambda: {"weight": weight.grad.numpy()}


def scalar_network(t, relu):
    """A two-layer network of single numbers, spelled out as micrograd's users do."""
    total = None
    for row, bias, out in zip(t["w"], t["b"][0], t["v"][0], strict=True):
        s = bias
        for w, x in zip(row, t["x"][0], strict=True):
            s = s + w * x
        s = relu(s) * out
        total = s if total is None else total + s
    return total * total
