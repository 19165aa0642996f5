"""Sentences of different lengths in one batch: masked softmax, heads folded into the batch, and two
ways to compute scores.

Short sequences are padded to the length of the longest, and attention must not look at the padding.
The document specifies how much of each sequence is real (its *valid length*), folds the heads into the
batch so that one product computes them all, and presents additive scoring as well as dot products. Its
only test uses inputs of all ones and prints a shape. Such a test passes even without a mask. This
program adds tests that fail without a mask, and the case of a sequence of length 0.

文档讲一批长短不一的句子：有效长度、把各个头折叠进批量，以及加性评分。它唯一的测试在没有掩码时也会通过；
这个程序补上没有掩码就通不过的测试，以及长度为 0 的序列。

Letters: B batch, T queries, S keys, E embedding, H heads, D size of a head.
"""

import numpy as np
from _document import Document

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn

page = Document(
    "002: valid lengths, folded heads, additive scoring", "有效长度、折叠的头与加性评分"
)
ta.manual_seed(0)


# ---- Masked attention. There is one length for each sequence (B,), or one for each query (B, T).


def attention(q, k, v, lengths=None):
    """q (B, T, D), k (B, S, D), v (B, S, V) -> output (B, T, V), weights (B, T, S)"""
    visible = None
    if lengths is not None:
        visible = ~F.padding_mask(
            lengths, k.shape[1]
        )  # (B, S) or (B, T, S), True where there is a word
        visible = (
            visible if visible.ndim == 3 else visible[:, None]
        )  # one row for all queries: (B, 1, S)
    return F.scaled_dot_product_attention(q, k, v, visible, need_weights=True)


# ---- The heads are part of the batch. Head h of sequence b becomes row b H + h, so one batched product
# computes all heads at once.


def fold(x, heads):
    """(B, T, E) -> (B H, T, E/H)"""
    x = F.split_heads(x, heads)  # (B, H, T, D)
    return x.reshape(-1, *x.shape[2:])


def unfold(x, heads):
    """(B H, T, D) -> (B, T, H D)"""
    return F.merge_heads(x.reshape(-1, heads, *x.shape[1:]))


page.say("The shapes in the document", "文档里的形状")
x = ta.randn(2, 3, 8)
page.prints("x", x.shape, "2 3 8")
page.prints("two heads folded into the batch", fold(x, 2).shape, "4 3 4")
page.prints("and unfolded", unfold(fold(x, 2), 2).shape, "2 3 8")
page.check(
    "folding and unfolding give x again", np.array_equal(unfold(fold(x, 2), 2).numpy(), x.numpy())
)

E, H, lengths = 100, 5, np.array([3, 2])
project = [nn.Linear(E, E, bias=False) for _ in range(4)]  # for queries, keys, values, output


def multi_head(queries, keys, lengths):
    """queries (B, T, E), keys (B, S, E), which are also the values -> output (B, T, E), weights (B
    H, T, S)
    """
    q, k, v = (fold(W(x), H) for W, x in zip(project, (queries, keys, keys)))
    heads, weights = attention(
        q, k, v, np.repeat(lengths, H, axis=0)
    )  # every head of a sequence has the same length
    return project[3](unfold(heads, H)), weights


ones_4, ones_6 = Tensor(np.ones((2, 4, E), np.float32)), Tensor(np.ones((2, 6, E), np.float32))
page.prints(
    "4 queries, 6 keys, hiddens 100, heads 5",
    multi_head(ones_4, ones_6, lengths)[0].shape,
    "2 4 100",
)

# ---- Additive scoring, w . tanh(W_q q + W_k k), works with queries and keys of different widths. All
# keys are equal here, so all have the same weight, and the output is the mean of the valid values: rows
# 0 and 1 of arange(40), and rows 0 to 5.

page.say("Additive scoring", "加性评分")
additive = nn.AdditiveAttention(query_dim=20, key_dim=2, hidden_dim=8, dropout=0.1).eval()
values = np.tile(np.arange(40.0, dtype=np.float32).reshape(1, 10, 4), (2, 1, 1))
output, weights = additive(
    ta.randn(2, 1, 20), np.ones((2, 10, 2), np.float32), values, F.padding_mask([2, 6], 10)
)
page.prints("length 2", output[0, 0], "2 3 4 5")
page.prints("length 6", output[1, 0], "10 11 12 13")

# ---- Can a test detect a broken mask? Consider a mask that hides nothing. If all inputs are ones, all
# values are equal, and their mean is the same for any weights. With random numbers, the difference is
# obvious.

page.say("Testing the mask", "检验掩码")


def without_mask(queries, keys):
    return multi_head(queries, keys, np.array([6, 6]))[0].numpy()


def difference(queries, keys):
    return np.abs(multi_head(queries, keys, lengths)[0].numpy() - without_mask(queries, keys)).max()


queries, keys = ta.randn(2, 4, E), ta.randn(2, 6, E)
ones, random = difference(ones_4, ones_6), difference(queries, keys)
print(
    f"           largest difference without the mask: {ones:.1e} with ones, "
    f"{random:.1e} with random inputs"
)
page.check(
    "inputs of all ones do not show that the mask is missing, but random inputs do",
    ones < 1e-6 and random > 1e-3,
)

# The best test needs no second implementation: change the masked keys, and the output must not change.
changed = keys.numpy().copy()
for sequence, length in zip(changed, lengths):
    sequence[length:] = 1000 * np.random.default_rng(1).normal(size=sequence[length:].shape)
ours, weights = multi_head(queries, keys, lengths)
page.check(
    "huge changes to the masked keys do not change the output",
    np.allclose(multi_head(queries, changed, lengths)[0].numpy(), ours.numpy(), atol=1e-6),
)
page.check(
    "... but without the mask they do",
    not np.allclose(without_mask(queries, changed), without_mask(queries, keys), atol=1),
)
page.check(
    "masked weights are exactly 0",
    all((weights.numpy()[b * H : (b + 1) * H, :, n:] == 0).all() for b, n in enumerate(lengths)),
)

tracked = Tensor(keys.numpy(), requires_grad=True)
output, _ = multi_head(queries, tracked, lengths)
output.backward(np.random.default_rng(2).normal(size=output.shape).astype(np.float32))
page.check(
    "the gradient is zero at every masked key, and not zero at every other key",
    all(
        (tracked.grad[b, n:] == 0).all() and (tracked.grad[b, :n] != 0).any(axis=-1).all()
        for b, n in enumerate(lengths)
    ),
)

# ---- Length 0. With a mask of -1000000, an empty sequence attends equally to all its padding. With a
# mask of -infinity, the weights are 0 / 0, which is NaN. Here the weights, the output and the gradient
# of an empty sequence are all zero.

page.say("A sequence of length 0", "长度为 0 的序列")
empty = np.array([3, 0])
tracked = Tensor(keys.numpy(), requires_grad=True)
output, weights = multi_head(queries, tracked, empty)
np.sum(output**2).backward()
page.check(
    "weights, output and gradient of the empty sequence are zero",
    (weights[H:] == 0).all() and (output[1] == 0).all() and (tracked.grad[1] == 0).all(),
)
page.check(
    "the other sequence does not change", np.allclose(output[0].numpy(), ours[0].numpy(), atol=1e-6)
)

# ---- A length for each query. With lengths [1, 2, 3, 4], query t sees the first t + 1 keys. This is
# the causal mask of a decoder.

page.say("Two-dimensional lengths", "二维的有效长度")
q = ta.randn(2, 4, 8)
own, _ = attention(q, q, q, np.array([[1, 2, 3, 4], [1, 2, 3, 4]]))
page.check(
    "lengths 1 2 3 4 give the causal mask",
    np.allclose(
        own.numpy(), F.scaled_dot_product_attention(q, q, q, is_causal=True).numpy(), atol=1e-6
    ),
)

# ---- The same in a single layer. In training, dropout removes some of the weights; eval() turns it
# off.

page.say("nn.MultiheadAttention with the same weights", "权重相同的 nn.MultiheadAttention")
layer = nn.MultiheadAttention(E, H, dropout=0.5, bias=False, batch_first=True)
layer.load_state_dict(
    {
        "in_proj_weight": np.concatenate([W.weight for W in project[:3]]),
        "out_proj.weight": project[3].weight,
    }
)
padding = F.padding_mask(lengths, 6)
dropped, _ = layer(queries, keys, keys, key_padding_mask=padding)
output, weights = layer.eval()(queries, keys, keys, key_padding_mask=padding)
page.check(
    "the output is the same in evaluation", np.allclose(output.numpy(), ours.numpy(), atol=1e-6)
)
page.check(
    "the output differs in training, where half of the weights are dropped",
    not np.allclose(dropped.numpy(), ours.numpy(), atol=1e-3),
)
page.prints("keys that query 0 of each sequence looks at", (weights[:, 0] > 0).sum(axis=-1), "3 2")
page.end()
