"""PyTorch eager, the yardstick."""

import os

import torch
import torch.nn.functional as F

from .eager import Eager


class Library(Eager):
    """PyTorch"""

    nn, optim, F = torch.nn, torch.optim, F

    def __init__(self):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def tensor(self, array, requires_grad=False):
        return torch.from_numpy(array.copy()).requires_grad_(requires_grad)

    def mask(self, mask):
        return torch.from_numpy(mask.copy())

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
