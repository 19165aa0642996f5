"""A small random Llama: its file, as gguf's writer writes it, and its scores, computed by PyTorch's plain functions."""

import math

import numpy as np

SIZES = {"layers": 3, "size": 64, "hidden": 96, "heads": 4, "kv_heads": 2}
LAYER = {  # name in the file: (Hugging Face's name, rows, columns)
    "attn_q": ("self_attn.q_proj", 64, 64),
    "attn_k": ("self_attn.k_proj", 32, 64),
    "attn_v": ("self_attn.v_proj", 32, 64),
    "attn_output": ("self_attn.o_proj", 64, 64),
    "ffn_gate": ("mlp.gate_proj", 96, 64),
    "ffn_up": ("mlp.up_proj", 96, 64),
    "ffn_down": ("mlp.down_proj", 64, 96),
    "attn_norm": ("input_layernorm", 64, None),
    "ffn_norm": ("post_attention_layernorm", 64, None),
}


def vocabulary():
    """All bytes, a few words, each digit alone, and the marks of a message."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet())]
    merges = []
    for word in (
        "user",
        "system",
        "\u0120the",
        "\u0120and",
        "\u0120to",
        "\u0120store",
        "\u0120gave",
    ):
        for end in range(2, len(word) + 1):
            pair = f"{word[: end - 1]} {word[end - 1]}"
            if pair not in merges:
                merges.append(pair)
                tokens.append(word[:end])
    return tokens, merges


def weights(seed=0, scale=0.35):
    """Random weights by Hugging Face's names, rounded as the file rounds them; and the file's tensors."""
    import gguf

    rng, kinds = np.random.default_rng(seed), gguf.GGMLQuantizationType
    ours, file = {}, {}

    def add(name, path, rows, columns, kind):
        w = rng.standard_normal((rows, columns) if columns else rows).astype(np.float32)
        w = w * np.float32(scale) if columns else 1 + w / 10
        data = gguf.quantize(w, kind)
        ours[path], heads = (
            gguf.dequantize(data, kind),
            {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2]),
        )
        if heads:  # the file has the two halves of each head as neighbours
            data = data.reshape(heads, 2, -1, data.shape[-1]).swapaxes(1, 2).reshape(data.shape)
        file[name] = data, kind

    tokens, _ = vocabulary()
    add("token_embd.weight", "embed_tokens.weight", len(tokens), 64, kinds.Q8_0)
    for n in range(SIZES["layers"]):
        for name, (path, rows, columns) in LAYER.items():
            kind = kinds.Q4_1 if columns else kinds.F32
            add(f"blk.{n}.{name}.weight", f"layers.{n}.{path}.weight", rows, columns, kind)
    add("output_norm.weight", "norm.weight", 64, None, kinds.F32)
    return ours, file


def write(path, leave_out=()):
    """Write the model to a GGUF file, without the tensors that are to be left out. Return its weights."""
    import gguf

    ours, file = weights()
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(128)
    writer.add_block_count(SIZES["layers"])
    writer.add_embedding_length(SIZES["size"])
    writer.add_feed_forward_length(SIZES["hidden"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_rope_freq_base(100.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    for name, (data, kind) in file.items():
        if name not in leave_out:
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ours


def scores(weights, tokens, heads, kv_heads, base, eps, change=lambda what, n, y: y):
    """The scores (T, V) after each token, as PyTorch's plain functions compute them from the weights.

    change("heads", n, y) replaces the heads (T, H D) of layer n, change("layer", n, y) its output (T, E).
    """
    import torch

    f, w = torch.nn.functional, {name: torch.from_numpy(x) for name, x in weights.items()}
    x = w["embed_tokens.weight"][tokens]  # (T, E)
    size, t = x.shape[1], torch.arange(len(tokens), dtype=torch.float64)
    half = size // heads // 2
    turn = torch.exp(1j * t[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half))

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w[f"{name}.weight"]

    def split(y, heads, turned):
        y = y.view(len(tokens), heads, 2 * half).transpose(0, 1)  # (H, T, D)
        if not turned:
            return y
        z = torch.complex(y[..., :half].double(), y[..., half:].double()) * turn
        return torch.cat([z.real, z.imag], dim=-1).float()

    for n in range(1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))):
        linear = lambda y, name, here=f"layers.{n}": y @ w[f"{here}.{name}.weight"].T
        y = norm(x, f"layers.{n}.input_layernorm")
        q = split(linear(y, "self_attn.q_proj"), heads, True)
        k, v = (
            split(linear(y, f"self_attn.{name}"), kv_heads, turned).repeat_interleave(
                heads // kv_heads, 0
            )
            for name, turned in (("k_proj", True), ("v_proj", False))
        )
        hidden = torch.full((len(tokens),) * 2, -math.inf).triu(1)
        y = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(2 * half) + hidden, dim=-1) @ v
        y = change("heads", n, y.transpose(0, 1).reshape(len(tokens), size))
        x = x + linear(y, "self_attn.o_proj")
        y = norm(x, f"layers.{n}.post_attention_layernorm")
        x = x + linear(
            f.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj"), "mlp.down_proj"
        )
        x = change("layer", n, x)
    return (norm(x, "norm") @ w["embed_tokens.weight"].T).numpy()
