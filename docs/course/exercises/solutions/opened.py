"""Chapter 22: three experiments inside a language model.

model(tokens) takes whole numbers (B, T) and returns the scores of the next token, (B, T, V). The parts of the model have names:
model.embed_tokens, and model.layers[n].self_attn for each layer n. In self_attn, the module `heads` returns the outputs of all H
heads side by side, (B, T, H D), and self_attn.num_heads is H. `tokens` is a list of T numbers, a batch of one is [tokens].

Write three functions:

1. saliency: which token decided? For each token, the gradient of log p with respect to its embedding, times the embedding, summed
   over the embedding's elements. p is the probability of the likeliest token after the last one.
2. induction: which head copies? `tokens` is a list of n numbers, twice. In the second half, the token that followed last time is
   n - 1 places back. For each head, the weight of that key, averaged over the n queries of the second half.
3. exchanged: what happens when two heads are exchanged? log p of the next token after the last one, when head a of a layer has the
   output of head b, and b that of a, at every token.

Hints: with ta.patch(model, {"embed_tokens": x}), the layers read a Tensor x that you have made, for example one that requires a
gradient. The output of a patch has the shape of what it replaces. ta.record_attention(model) records an array (B, H, T, T) for
each layer. np.diagonal(w, -k, -2, -1) has the weights of the keys k places back. The name of a layer's heads is
f"layers.{n}.self_attn.heads". Indexing an axis with [1, 0, 2, 3] exchanges its first two elements. Leave the model as it is.
"""

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F


def saliency(model, tokens):
    """tokens: T numbers. Returns an array (T,)."""
    x = ta.Tensor(model.embed_tokens([tokens]).numpy(), requires_grad=True)
    with ta.patch(model, {"embed_tokens": x}):
        log_p = F.log_softmax(model([tokens])[0, -1])
    log_p[log_p.numpy().argmax()].backward()
    return (x.grad * x).sum(axis=-1).numpy()[0]


def induction(model, tokens):
    """tokens: 2 n numbers, the second half equal to the first. Returns an array (L, H)."""
    n = len(tokens) // 2
    with ta.no_grad(), ta.record_attention(model) as seen:
        model([tokens])
    weights = np.stack([calls[0][0] for calls in seen.values()])  # (L, H, T, T)
    return np.diagonal(weights, 1 - n, -2, -1)[..., -n:].mean(axis=-1)


def exchanged(model, tokens, layer, a, b):
    """tokens: T numbers; layer, a, b: whole numbers. Returns an array (V,)."""
    order = np.arange(model.layers[layer].self_attn.num_heads)
    order[[a, b]] = b, a
    swap = lambda y: y.reshape(*y.shape[:2], len(order), -1)[:, :, order].reshape(y.shape)
    with ta.no_grad(), ta.patch(model, {f"layers.{layer}.self_attn.heads": swap}):
        return F.log_softmax(model([tokens])[0, -1]).numpy()
