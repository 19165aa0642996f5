"""The workloads in eager mode, for this package and PyTorch, whose functions have the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Run = tuple[Callable[[], Any], Callable[[], dict[str, Any]]]


class Eager:
    """The workloads, by `nn`, `optim` and `F` of a library and its tensors."""

    nn: Any
    optim: Any
    F: Any

    def tensor(self, array: Any, requires_grad: bool = False) -> Any:
        """A tensor of these numbers."""
        raise NotImplementedError

    def leaves(self, arrays: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
        return {k: self.tensor(arrays[k], requires_grad=True) for k in names}

    def gradients(self, loss: Callable[..., Any], t: dict[str, Any], g: Any = None) -> Run:
        """A step computes the gradients of these tensors."""

        def step() -> None:
            for x in t.values():
                x.grad = None
            y = loss(**t)
            y.backward() if g is None else y.backward(g)

        return step, lambda: {k: x.grad.numpy() for k, x in t.items()}

    def layer_step(self, kind: Any, arrays: Any, sizes: tuple, names: list[str], lr=None) -> Run:
        """A step of a layer of Transformers, with AdamW if there is a learning rate."""
        layer = kind(*sizes, dropout=0.0, batch_first=True)
        state = layer.state_dict()
        layer.load_state_dict({k: self.tensor(v) for k, v in arrays.items() if k in state})
        t = {k: self.tensor(arrays[k], requires_grad=lr is None) for k in names}
        optimizer = self.optim.AdamW(layer.parameters(), lr=lr or 0.0)

        def loss(*inputs: Any) -> Any:
            y = layer(*inputs)
            return (y * y).mean()

        def step() -> None:
            optimizer.zero_grad()
            for x in t.values():
                x.grad = None
            loss(*t.values()).backward()
            if lr:
                optimizer.step()

        def results() -> dict[str, Any]:
            of_layer = {k: p if lr else p.grad for k, p in layer.named_parameters()}
            of_inputs = {} if lr else {k: x.grad for k, x in t.items()}
            return {k: x.detach().numpy() for k, x in (of_layer | of_inputs).items()}

        return step, results

    def encoder(self, arrays, d, h, ff, B, T):
        return self.layer_step(self.nn.TransformerEncoderLayer, arrays, (d, h, ff), ["x"])

    def decoder(self, arrays, d, h, ff, B, T, S):
        kind = self.nn.TransformerDecoderLayer
        return self.layer_step(kind, arrays, (d, h, ff), ["x", "memory"])

    def train(self, arrays, d, h, ff, B, T):
        return self.layer_step(self.nn.TransformerEncoderLayer, arrays, (d, h, ff), ["x"], 1e-4)

    def attention(self, arrays, T, B=1, h=8, D=64, causal=False, padding=False):
        mask = None
        if padding:
            mask = np.broadcast_to(np.arange(T) < arrays["length"][0], (1, 1, T, T))
            mask = self.mask(mask)

        def attend(q, k, v):
            return self.F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

        return self.gradients(attend, self.leaves(arrays, "qkv"), self.tensor(arrays["g"]))

    def mask(self, mask: Any) -> Any:
        return mask

    def op(self, arrays: dict[str, Any], f: Callable[..., Any]) -> Run:
        """The gradients of f by all arrays but g, the cotangent, and y, labels or indices."""
        t = self.leaves(arrays, [k for k in arrays if k not in ("g", "y")])
        return self.gradients(f, t, self.tensor(arrays["g"]) if "g" in arrays else None)

    def mlp(self, arrays, batch, width):
        F, y = self.F, self.tensor(arrays["y"])

        def loss(x, w1, b1, w2, b2, w3, b3):
            h = F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2))
            return F.cross_entropy(F.linear(h, w3, b3), y)

        return self.op(arrays, loss)

    def chain(self, arrays, n, size=8):
        def total(x, a, b):
            for _ in range(n // 4):
                x = (x * a + b).tanh() * a
            return x.sum()

        return self.op(arrays, total)

    def recurrent(self, arrays, T, B, d):
        zeros = self.tensor(np.zeros((B, d), np.float32))

        def loss(x, w):
            h = zeros
            for row in x:
                h = (row + h @ w).tanh()
            return (h * h).mean()

        return self.op(arrays, loss)

    def adamw(self, arrays, d, ff):
        names = [k for k in arrays if not k.startswith("grad:")]
        parameters = self.leaves(arrays, names)
        for k, p in parameters.items():
            p.grad = self.tensor(arrays["grad:" + k])
        optimizer = self.optim.AdamW(parameters.values(), lr=1e-3)
        return optimizer.step, lambda: {k: p.detach().numpy() for k, p in parameters.items()}

    def gelu(self, arrays, shape):
        return self.op(arrays, self.F.gelu)

    def softmax(self, arrays, shape):
        return self.op(arrays, lambda x: self.F.softmax(x, -1))

    def layer_norm(self, arrays, shape):
        norm = lambda x, weight, bias: self.F.layer_norm(x, shape[-1:], weight, bias)
        return self.op(arrays, norm)

    def cross_entropy(self, arrays, n, classes):
        y = self.tensor(arrays["y"])
        return self.op(arrays, lambda x: self.F.cross_entropy(x, y))

    def embedding(self, arrays, rows, d, n):
        y = self.tensor(arrays["y"])
        return self.op(arrays, lambda weight: self.F.embedding(y, weight))
