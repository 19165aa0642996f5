"""What is measured: each workload is a name, sizes, and its input arrays, the same for every library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Workload:
    """One line of the table.  `kind` is the method of a library that runs it; `sizes` are that method's settings."""

    name: str
    kind: str
    sizes: dict[str, Any]
    full: bool = False  # long: only with --full
    memory: bool = False
    tokens: int = 0  # how many a step generates
    rivals: tuple[str, ...] = field(default=())

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs, drawn from a generator of the workload's own."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return {
            k: a if a.dtype.kind == "i" else a.astype(np.float32)
            for k, a in INPUTS[self.kind](rng, **self.sizes).items()
        }


def _layer(rng: np.random.Generator, d: int, ff: int) -> dict[str, np.ndarray]:
    """An encoder layer's parameters by PyTorch's names."""
    sizes = {"self_attn.in_proj_": (3 * d, d), "self_attn.out_proj.": (d, d)}
    found = {}
    for name, (n, m) in {**sizes, "linear1.": (ff, d), "linear2.": (d, ff)}.items():
        found[name + "weight"] = rng.standard_normal((n, m)) / np.sqrt(m)
        found[name + "bias"] = 0.1 * rng.standard_normal(n)
    for name in ("norm1", "norm2"):
        found[f"{name}.weight"] = 1 + 0.1 * rng.standard_normal(d)
        found[f"{name}.bias"] = 0.1 * rng.standard_normal(d)
    return found


def _encoder(rng, d, h, ff, B, T):
    return {"x": rng.standard_normal((B, T, d)), **_layer(rng, d, ff)}


def _decoder(rng, d, h, ff, B, T, S):
    layer = _layer(rng, d, ff)
    cross = {
        k.replace("self_attn", "multihead_attn"): v
        for k, v in _layer(rng, d, ff).items()
        if "self_attn" in k
    }
    return {
        "x": rng.standard_normal((B, T, d)),
        "memory": rng.standard_normal((B, S, d)),
        **layer,
        **cross,
        "norm3.weight": np.ones(d),
        "norm3.bias": np.zeros(d),
    }


def _generate(rng, d, h, ff, layers, vocabulary, prompt, tokens):
    stack = {f"layers.{i}.{k}": v for i in range(layers) for k, v in _layer(rng, d, ff).items()}
    return {
        "table": rng.standard_normal((vocabulary, d)),
        "y": rng.integers(0, vocabulary, (1, prompt + tokens)),
        **stack,
    }


def _attention(rng, T, B=1, h=8, D=64, causal=False, padding=False):
    out = {k: rng.standard_normal((B, h, T, D)) for k in "qkvg"}
    if padding:
        out["length"] = np.array([T - T // 3])
    return out


def _mlp(rng, batch, width, classes=10):
    w = lambda *s: rng.standard_normal(s) / np.sqrt(s[-1])
    return {
        "x": rng.standard_normal((batch, width)),
        "y": rng.integers(0, classes, batch),
        "w1": w(width, width),
        "b1": np.zeros(width),
        "w2": w(width, width),
        "b2": np.zeros(width),
        "w3": w(classes, width),
        "b3": np.zeros(classes),
    }


def _pair(rng, shape):
    return {"x": rng.standard_normal(shape), "g": rng.standard_normal(shape)}


INPUTS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "encoder": _encoder,
    "decoder": _decoder,
    "train": _encoder,
    "attention": _attention,
    "mlp": _mlp,
    "generate": _generate,
    "chain": lambda rng, n, size=8: {
        "x": rng.random(size),
        "a": 0.9 + 0.1 * rng.random(size),
        "b": 0.1 * rng.random(size),
    },
    "recurrent": lambda rng, T, B, d: {
        "x": rng.standard_normal((T, B, d)),
        "w": rng.standard_normal((d, d)) / np.sqrt(d),
    },
    "adamw": lambda rng, d, ff: {
        k: v
        for name, p in _layer(rng, d, ff).items()
        for k, v in ((name, p), ("grad:" + name, rng.standard_normal(p.shape)))
    },
    "gelu": _pair,
    "softmax": _pair,
    "layer_norm": lambda rng, shape: {
        **_pair(rng, shape),
        "weight": 1 + 0.1 * rng.standard_normal(shape[-1]),
        "bias": rng.standard_normal(shape[-1]),
    },
    "cross_entropy": lambda rng, n, classes: {
        "x": rng.standard_normal((n, classes)),
        "y": rng.integers(0, classes, n),
    },
    "embedding": lambda rng, rows, d, n: {
        "weight": rng.standard_normal((rows, d)),
        "y": rng.integers(0, rows, n),
        "g": rng.standard_normal((n, d)),
    },
}

_SIZES = {
    "tiny": dict(d=32, h=4, ff=64, B=8, T=16),
    "small": dict(d=128, h=4, ff=512, B=16, T=64),
    "base": dict(d=384, h=12, ff=1536, B=8, T=128),
    "large": dict(d=768, h=12, ff=3072, B=4, T=256),
}
_RIVALS = {"rivals": ("hips", "jax")}

WORKLOADS: list[Workload] = [
    *(Workload(f"encoder {s}", "encoder", _SIZES[s], **_RIVALS) for s in _SIZES),
    Workload("decoder base", "decoder", dict(_SIZES["base"], S=96)),
    *(Workload(f"training step {s}", "train", _SIZES[s]) for s in ("tiny", "base")),
    *(
        Workload(
            f"attention T {T}{kind and ' '}{kind}",
            "attention",
            {"T": T, **({kind: True} if kind else {})},
            full=T > 4096,
            memory=True,
            **(_RIVALS if T <= 1024 and not kind else {}),
        )
        for kind, lengths in {
            "": (256, 512, 1024, 2048, 4096, 8192, 16384),
            "causal": (1024, 4096),
            "padding": (1024, 4096),
        }.items()
        for T in lengths
    ),
    Workload(
        "generation, 128 tokens",
        "generate",
        dict(d=256, h=8, ff=1024, layers=4, vocabulary=1000, prompt=64, tokens=128),
        tokens=128,
    ),
    Workload("MLP 64 x 256", "mlp", dict(batch=64, width=256), **_RIVALS),
    Workload("chain of 1,000 ops on (8,)", "chain", dict(n=1000), **_RIVALS),
    Workload("chain of 100,000 ops on (8,)", "chain", dict(n=100_000)),
    Workload("recurrent net, 500 steps", "recurrent", dict(T=500, B=16, d=64), rivals=("hips",)),
    Workload("AdamW tiny", "adamw", dict(d=32, ff=64)),
    Workload("AdamW base", "adamw", dict(d=384, ff=1536)),
    Workload("exact GELU", "gelu", dict(shape=(1024, 1536))),
    Workload("layer norm", "layer_norm", dict(shape=(1024, 768))),
    Workload("softmax", "softmax", dict(shape=(2048, 512))),
    Workload("cross-entropy, 50,000 classes", "cross_entropy", dict(n=128, classes=50_000)),
    Workload("embedding backward", "embedding", dict(rows=20_000, d=256, n=4096)),
]
