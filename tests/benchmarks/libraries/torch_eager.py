"""PyTorch eager, the yardstick."""

import os

import numpy as np
import torch
import torch.nn.functional as F

from .ours import scalar_network


def leaves(arrays):
    return {
        k: torch.from_numpy(v.copy()).requires_grad_(v.dtype.kind == "f")
        for k, v in arrays.items()
        if k != "g" and not k.startswith("grad:")
    }


def forget(tensors):
    for t in tensors:
        t.grad = None


class Library:
    """PyTorch"""

    def __init__(self):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def _layer(self, cls, arrays, d, h, ff):
        layer = cls(d, h, ff, dropout=0.0, batch_first=True)
        layer.load_state_dict(
            {k: torch.from_numpy(v) for k, v in arrays.items() if k in layer.state_dict()}
        )
        return layer

    def encoder(self, arrays, d, h, ff, B, T):
        layer, x = (
            self._layer(torch.nn.TransformerEncoderLayer, arrays, d, h, ff),
            torch.from_numpy(arrays["x"]).requires_grad_(),
        )
        last = {}

        def step():
            layer.zero_grad()
            x.grad = None
            y = layer(x)
            last["y"] = y.detach()
            (y * y).mean().backward()

        return step, lambda: {
            "y": last["y"].numpy(),
            "x": x.grad.numpy(),
            **{k: p.grad.numpy() for k, p in layer.named_parameters()},
        }

    def decoder(self, arrays, d, h, ff, B, T, S):
        layer = self._layer(torch.nn.TransformerDecoderLayer, arrays, d, h, ff)
        x, memory = (torch.from_numpy(arrays[k]).requires_grad_() for k in ("x", "memory"))

        def step():
            layer.zero_grad()
            forget([x, memory])
            y = layer(x, memory)
            (y * y).mean().backward()

        return step, lambda: {
            "x": x.grad.numpy(),
            "memory": memory.grad.numpy(),
            **{k: p.grad.numpy() for k, p in layer.named_parameters()},
        }

    def train(self, arrays, d, h, ff, B, T):
        layer, x = (
            self._layer(torch.nn.TransformerEncoderLayer, arrays, d, h, ff),
            torch.from_numpy(arrays["x"]),
        )
        optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-4)

        def step():
            optimiser.zero_grad()
            y = layer(x)
            (y * y).mean().backward()
            optimiser.step()

        return step, lambda: {k: p.detach().numpy() for k, p in layer.named_parameters()}

    def generate(self, arrays, d, h, ff, layers, vocabulary, prompt, tokens):
        t = {k: torch.from_numpy(v) for k, v in arrays.items()}
        stack = [
            {
                k.removeprefix(f"layers.{i}."): v
                for k, v in t.items()
                if k.startswith(f"layers.{i}.")
            }
            for i in range(layers)
        ]
        last = {}

        def layer(p, x, kept):
            """nn.TransformerEncoderLayer has no cache, so this is it, spelled out with PyTorch's functions."""
            q, k, v = (
                a.unflatten(-1, (h, d // h)).transpose(1, 2)
                for a in F.linear(
                    x, p["self_attn.in_proj_weight"], p["self_attn.in_proj_bias"]
                ).chunk(3, -1)
            )
            k, v = (
                (torch.cat([old, new], 2) for old, new in zip(kept, (k, v), strict=True))
                if kept
                else (k, v)
            )
            y = (
                F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
                .transpose(1, 2)
                .flatten(2)
            )
            x = F.layer_norm(
                x + F.linear(y, p["self_attn.out_proj.weight"], p["self_attn.out_proj.bias"]),
                (d,),
                p["norm1.weight"],
                p["norm1.bias"],
            )
            y = F.linear(
                F.relu(F.linear(x, p["linear1.weight"], p["linear1.bias"])),
                p["linear2.weight"],
                p["linear2.bias"],
            )
            return F.layer_norm(x + y, (d,), p["norm2.weight"], p["norm2.bias"]), (k, v)

        def step():
            cache = [None] * layers
            with torch.no_grad():
                unread = t["y"][:, :prompt]
                for i in range(prompt, prompt + tokens):
                    x = F.embedding(unread, t["table"])
                    for n, p in enumerate(stack):
                        x, cache[n] = layer(p, x, cache[n])
                    last["scores"] = x[:, -1] @ t["table"].T
                    unread = t["y"][:, i : i + 1]

        return step, lambda: {"scores": last["scores"].numpy()}

    def attention(self, arrays, T, B=1, h=8, D=64, causal=False, padding=False):
        q, k, v = (torch.from_numpy(arrays[n]).requires_grad_() for n in "qkv")
        g, last = torch.from_numpy(arrays["g"]), {}
        mask = (
            (torch.arange(T) < int(arrays["length"][0]))[None, None, None, :].expand(1, 1, T, T)
            if padding
            else None
        )

        def step():
            forget([q, k, v])
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            y.backward(g)
            last["y"] = y.detach()

        return step, lambda: {
            "y": last["y"].numpy(),
            "q": q.grad.numpy(),
            "k": k.grad.numpy(),
            "v": v.grad.numpy(),
        }

    def mlp(self, arrays, batch, width):
        t = leaves({k: v for k, v in arrays.items() if k != "y"})
        y = torch.from_numpy(arrays["y"])

        def step():
            forget(t.values())
            h = F.relu(F.linear(t["x"], t["w1"], t["b1"]))
            h = F.relu(F.linear(h, t["w2"], t["b2"]))
            F.cross_entropy(F.linear(h, t["w3"], t["b3"]), y).backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def chain(self, arrays, n, size=8):
        t = leaves(arrays)
        x, a, b = t["x"], t["a"], t["b"]

        def step():
            forget(t.values())
            y = x
            for _ in range(n // 4):
                y = torch.tanh(y * a + b) * a
            y.sum().backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def recurrent(self, arrays, T, B, d):
        t = leaves(arrays)

        def step():
            forget(t.values())
            h = torch.zeros((B, d))
            for row in t["x"]:
                h = torch.tanh(row + h @ t["w"])
            (h * h).mean().backward()

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def scalars(self, arrays):
        t = {
            k: [
                [torch.tensor(float(u), requires_grad=True) for u in row]
                for row in np.atleast_2d(v)
            ]
            for k, v in arrays.items()
        }
        everything = [u for rows in t.values() for row in rows for u in row]

        def step():
            forget(everything)
            scalar_network(t, torch.relu).backward()

        return step, lambda: {
            k: np.array([[u.grad.item() for u in row] for row in rows]).reshape(arrays[k].shape)
            for k, rows in t.items()
        }

    def adamw(self, arrays, d, ff):
        parameters = {
            k: torch.nn.Parameter(torch.from_numpy(v.copy()))
            for k, v in arrays.items()
            if not k.startswith("grad:")
        }
        for k, p in parameters.items():
            p.grad = torch.from_numpy(arrays["grad:" + k].copy())
        optimiser = torch.optim.AdamW(parameters.values(), lr=1e-3)
        return optimiser.step, lambda: {k: p.detach().numpy() for k, p in parameters.items()}

    def _pointwise(self, f, arrays):
        t, g = leaves(arrays), torch.from_numpy(arrays["g"])

        def step():
            forget(t.values())
            f(**t).backward(g)

        return step, lambda: {k: v.grad.numpy() for k, v in t.items()}

    def gelu(self, arrays, shape):
        return self._pointwise(lambda x: F.gelu(x), arrays)

    def softmax(self, arrays, shape):
        return self._pointwise(lambda x: torch.softmax(x, -1), arrays)

    def layer_norm(self, arrays, shape):
        return self._pointwise(
            lambda x, weight, bias: F.layer_norm(x, shape[-1:], weight, bias), arrays
        )

    def cross_entropy(self, arrays, n, classes):
        x, y = torch.from_numpy(arrays["x"]).requires_grad_(), torch.from_numpy(arrays["y"])

        def step():
            x.grad = None
            F.cross_entropy(x, y).backward()

        return step, lambda: {"x": x.grad.numpy()}

    def embedding(self, arrays, rows, d, n):
        weight, g, y = (
            torch.from_numpy(arrays["weight"]).requires_grad_(),
            torch.from_numpy(arrays["g"]),
            torch.from_numpy(arrays["y"]),
        )

        def step():
            weight.grad = None
            F.embedding(y, weight).backward(g)

        return step, lambda: {"weight": weight.grad.numpy()}
