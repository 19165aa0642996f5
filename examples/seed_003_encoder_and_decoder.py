"""A Transformer's encoder layer, computed by hand from its weights, and the decoder layer that the
document left out.

The document creates torch's encoder layer (width 4, 2 heads, feed-forward 8), repeats its calculation
from the weights and gets the same rows. Then it creates a decoder layer, prints its output, and ends
at the heading "the decoder by hand". This program reproduces the encoder and completes the decoder.
It uses our layers and does not need torch: after `ta.manual_seed(42)`, every number is the same as in
torch.

文档手算了 PyTorch 的编码器层，到“手算解码器”的标题为止。这个程序重现编码器，写完解码器，并手算它们的梯度。
它用这里的层，不需要 torch：设定种子后，每个数都相同。

Letters: T positions of the target, S of the source (the memory), B batch, E width, H heads, D size
of a head. Sequence first.
"""

import math

import numpy as np
from _document import Document

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn

page = Document("003: the encoder layer and the decoder layer by hand", "手算编码器层与解码器层")
E, H, FEED_FORWARD = 4, 2, 8


def encoder():
    return nn.TransformerEncoderLayer(d_model=E, nhead=H, dim_feedforward=FEED_FORWARD, dropout=0.0)


def decoder():
    return nn.TransformerDecoderLayer(d_model=E, nhead=H, dim_feedforward=FEED_FORWARD, dropout=0.0)


# ---- The document's encoder. First the input is drawn, and then the weights of the layer.

page.say("Encoder: the layer", "编码器：直接用层")
ta.manual_seed(42)
x = ta.randn(3, 1, E)
layer = encoder()
memory = layer(x)
page.prints(
    "input",
    x,
    """
    0.3367  0.1288 0.2345  0.2303
   -1.1229 -0.1863 2.2082 -0.6380
    0.4617  0.2674 0.5349  0.8094""",
)
page.prints(
    "layer",
    memory,
    ENCODED := """
   -1.0328 -0.9185 0.6710 1.2804
   -1.4175 -0.1948 1.3775 0.2347
   -1.0022 -0.8035 0.3029 1.5028""",
)


# ---- The parts. Both layers consist of just three functions.


def heads(x):
    """(T, B, E) -> (B, H, T, D): head h uses columns h D to (h + 1) D of every position"""
    T, B, _ = x.shape
    return x.reshape(T, B, H, E // H).transpose(1, 2, 0, 3)


def attention(part, x, memory):
    """x (T, B, E) attends to memory (S, B, E), with the weights of a MultiheadAttention -> (T, B, E)

    in_proj_weight (3 E, E) contains the matrices for queries, keys and values, one below another.
    """
    (Wq, Wk, Wv), (bq, bk, bv) = (np.split(p, 3) for p in (part.in_proj_weight, part.in_proj_bias))
    q, k, v = heads(x @ Wq.T + bq), heads(memory @ Wk.T + bk), heads(memory @ Wv.T + bv)
    weights = F.softmax(q @ k.swapaxes(-1, -2) / math.sqrt(E // H))  # (B, H, T, S)
    together = (weights @ v).transpose(2, 0, 1, 3).reshape(x.shape)  # (T, B, H D)
    return together @ part.out_proj.weight.T + part.out_proj.bias


def norm(part, x):
    """Normalise each position to mean 0 and variance 1, then apply the layer's scale and shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + part.eps) * part.weight
        + part.bias
    )


def feed_forward(layer, x):
    hidden = np.maximum(0, x @ layer.linear1.weight.T + layer.linear1.bias)
    return hidden @ layer.linear2.weight.T + layer.linear2.bias


# ---- The encoder layer. It takes the same step twice: it adds the output of a sublayer to its input,
# and normalises the sum.

page.say("Encoder: by hand", "编码器：手算")
page.prints("norm1.weight", layer.norm1.weight, "1 1 1 1")
page.prints("norm1.bias", layer.norm1.bias, "0 0 0 0")
page.prints("norm2.weight", layer.norm2.weight, "1 1 1 1")
page.prints("norm2.bias", layer.norm2.bias, "0 0 0 0")
first = norm(layer.norm1, x + attention(layer.self_attn, x, x))
page.prints(
    "after the first norm",
    first,
    """
   -0.9493 -1.0434 1.1045  0.8881
   -1.0025 -0.1531 1.6511 -0.4955
   -1.0129 -0.9286 0.6342  1.3073""",
)
by_hand = norm(layer.norm2, first + feed_forward(layer, first))
page.prints("by hand", by_hand, ENCODED)

# ---- The document's decoder. Some of its cells were run more than once, and each new layer
# advanced the random numbers. The order below reproduces the output of the document: two runs that
# are not in it each created an encoder layer and a decoder layer.

page.say("Decoder: the layer", "解码器：直接用层")
ta.manual_seed(42)
ta.randn(3, 1, E), encoder()  # the first half, above
encoder(), decoder()  # a run that is not in the document
source, target = ta.randn(3, 1, E), ta.randn(5, 1, E)
encoder(), decoder()  # another such run
encode, decode = encoder(), decoder()
memory = encode(source)
output = decode(target, memory)
page.prints(
    "layer",
    output,
    DECODED := """
   -0.1402 -0.7298 -0.8038  1.6738
   -0.7154  1.6404 -0.8922 -0.0327
    0.0890  0.6641 -1.6547  0.9016
    0.2811 -1.0920  1.5008 -0.6900
   -0.4675  1.5222 -1.2012  0.1465""",
)
page.prints(
    "shapes of source, memory, output",
    [*source.shape, *memory.shape, *output.shape],
    "3 1 4 3 1 4 5 1 4",
)


# ---- The missing part. A decoder layer takes three such steps. First the target attends to itself.
# Then it attends to the memory, with queries from the 5 target positions and keys and values from the
# 3 source positions. The third step is the feed-forward network.


def decoder_layer(layer, x, memory):
    """x (T, B, E), memory (S, B, E) -> (T, B, E)"""
    x = norm(layer.norm1, x + attention(layer.self_attn, x, x))
    x = norm(layer.norm2, x + attention(layer.multihead_attn, x, memory))
    return norm(layer.norm3, x + feed_forward(layer, x))


page.say("Decoder: by hand", "解码器：手算")
by_hand = decoder_layer(decode, target, memory)
page.prints("by hand", by_hand, DECODED)
page.check(
    "the calculation by hand and the layer agree far beyond four digits",
    np.allclose(by_hand.numpy(), output.numpy(), atol=1e-6),
)

# ---- One step further. Both versions can be trained, so their gradients must agree for all 18
# parameters of the decoder and, through the memory, for the 12 parameters of the encoder.

page.say("The gradients by hand and from the layers", "手算的梯度与层给出的梯度")
cotangent = ta.randn(5, 1, E)
parameters = {
    **{f"encoder.{name}": p for name, p in encode.named_parameters()},
    **{f"decoder.{name}": p for name, p in decode.named_parameters()},
}
of_layers = ta.grad(decode(target, encode(source)), list(parameters.values()), cotangent)
memory = norm(encode.norm1, source + attention(encode.self_attn, source, source))
memory = norm(encode.norm2, memory + feed_forward(encode, memory))
of_hand = ta.grad(decoder_layer(decode, target, memory), list(parameters.values()), cotangent)
worst = {
    name: np.abs(a.numpy() - b.numpy()).max() for name, a, b in zip(parameters, of_layers, of_hand)
}
name = max(worst, key=worst.get)
print(f"           {len(worst)} parameters; largest difference {worst[name]:.1e}, at {name}")
page.check(
    "all gradients agree",
    worst[name] < 1e-5 and any(np.abs(g.numpy()).max() > 0.1 for g in of_hand),
)
page.end()
