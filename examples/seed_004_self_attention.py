"""Self-attention with trainable weights on six words of three numbers each, which is then trained,
with a causal mask and dropout.

The document computes one attention head step by step (query, scores, weights, context), makes it a
class, and says that Linear layers would be better for training. But it does not train anything. This
program reproduces the numbers with `ta.manual_seed`, shows that the two classes are equivalent, and
trains the head to predict the next word. Then it adds two things that many language models use: a
mask that hides the future, and dropout on the weights.

文档一步步计算一个注意力头，再写成类，但没有训练。这个程序重现那些数，训练这个头预测下一个词，再加上因果掩码
和对权重的 dropout。

Letters: T words, d_in numbers per word, d_out numbers per query, key, value or context.
"""

import math

import numpy as np
from _document import QUICK, Document

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim

page = Document("004: self-attention with trainable weights", "带可训练权重的自注意力")
WORDS = ["Your", "journey", "starts", "with", "one", "step"]
inputs = Tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)  # (T, d_in) = (6, 3)
d_in, d_out = 3, 2

# ---- One word, step by step. The query of the second word is compared with the keys of all six words,
# and the resulting weights mix their values.

page.say("Step by step for 'journey'", "以 journey 一词为例，逐步计算")
ta.manual_seed(123)
W_query, W_key, W_value = (ta.rand(d_in, d_out) for _ in range(3))
query_2 = inputs[1] @ W_query  # (d_out,)
keys, values = inputs @ W_key, inputs @ W_value  # (T, d_out)
scores_2 = query_2 @ keys.T  # (T,)
weights_2 = F.softmax(scores_2 / math.sqrt(d_out))
page.prints("query_2", query_2, "0.4306 1.4551")
page.prints("shape of the keys", keys.shape, "6 2")
page.prints("shape of the values", values.shape, "6 2")
page.prints("score_22", query_2 @ keys[1], "1.8524")
page.prints("scores_2", scores_2, "1.2705 1.8524 1.8111 1.0795 0.5577 1.5440")
page.prints("weights_2", weights_2, "0.1500 0.2264 0.2199 0.1311 0.0906 0.1820")
page.prints("context_2", weights_2 @ values, "0.3061 0.8210")

# ---- All words at once, first in a class of our own, then in the library's class, which uses Linear
# layers.


class PlainSelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        self.W_query, self.W_key, self.W_value = (
            nn.Parameter(ta.rand(d_in, d_out)) for _ in range(3)
        )

    def forward(self, x):
        """(T, d_in) -> (T, d_out)"""
        q, k, v = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return F.softmax(q @ k.T / math.sqrt(k.shape[-1])) @ v


page.say("All words", "所有的词")
ta.manual_seed(123)
plain = PlainSelfAttention(d_in, d_out)
page.prints(
    "class with three matrices",
    plain(inputs),
    """
    0.2996 0.8053
    0.3061 0.8210
    0.3058 0.8203
    0.2948 0.7939
    0.2927 0.7891
    0.2990 0.8040""",
)
ta.manual_seed(789)
layer = nn.SelfAttention(d_in, d_out)
contexts = layer(inputs)
page.prints("class with Linear layers, first word", contexts[0], "-0.0739 0.0713")
page.prints("class with Linear layers, last word", contexts[5], "-0.0754 0.0693")

# The two classes differ only in their initial weights. Linear stores its weight as (out, in), so
# transpose a weight to copy it.
plain.load_state_dict(
    {name.removesuffix(".weight"): weight.T for name, weight in layer.state_dict().items()}
)
page.check(
    "with the transposed weights of the layer, the first class gives the same result",
    np.allclose(plain(inputs).numpy(), contexts.numpy(), atol=1e-6),
)

# ---- Training. The model must predict the word after each word, and "Your" after "step". A Linear layer
# turns the context into a score for each of the six words. Guessing gives a loss of ln 6 = 1.79.


def train(attention, words, follower, steps):
    model = nn.Sequential(attention, nn.Linear(d_out, len(WORDS)))
    optimizer = optim.Adam(model.parameters(), lr=0.03)
    for step in range(steps):
        loss = F.cross_entropy(model(words), follower)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, steps // 4, steps // 2, steps - 1):
            print(f"           step {step + 1:3d}: loss {loss.item():.4f}")
    return model


page.say("Training", "训练")
ta.manual_seed(123)
model = train(
    nn.SelfAttention(d_in, d_out), inputs, np.array([1, 2, 3, 4, 5, 0]), steps=150 if QUICK else 500
)
answers = model(inputs)
said = answers.argmax(axis=-1)
print("           " + ", ".join(f"{word} -> {WORDS[i]}" for word, i in zip(WORDS, said)))
page.check(
    "the loss falls below half the loss of guessing",
    F.cross_entropy(answers, np.array([1, 2, 3, 4, 5, 0])).item() < math.log(6) / 2,
)
if not QUICK:
    page.check("the next word is right for every word", np.array_equal(said, [1, 2, 3, 4, 5, 0]))

# ---- The causal mask. A model that predicts the next word must not see it. A score of -infinity
# becomes a weight of 0, and the rest of the row still sums to 1.

page.say("The causal mask", "因果掩码")
ta.manual_seed(789)
causal = nn.SelfAttention(d_in, d_out, causal=True)
scores = causal.W_query(inputs) @ causal.W_key(inputs).T
weights = F.softmax(np.where(F.causal_mask(6), -math.inf, scores / math.sqrt(d_out)))
for word, row in zip(WORDS, weights):
    print(f"           {word:8s}" + " ".join(f"{w:.4f}" for w in row))
page.check(
    "all weights above the diagonal are 0, and each row sums to 1",
    (np.triu(weights.numpy(), 1) == 0).all() and np.allclose(weights.numpy().sum(axis=-1), 1),
)
page.check(
    "nn.SelfAttention(causal=True) computes the same contexts",
    np.allclose(causal(inputs).numpy(), (weights @ causal.W_value(inputs)).numpy(), atol=1e-6),
)
other_end = np.concatenate([inputs[:4], ta.rand(2, d_in)])
page.check(
    "a different ending changes the contexts of the ending, but none before it",
    np.allclose(causal(other_end)[:4].numpy(), causal(inputs)[:4].numpy(), atol=1e-6)
    and not np.allclose(causal(other_end)[4:].numpy(), causal(inputs)[4:].numpy(), atol=1e-3),
)

# ---- Dropout on the weights. In training, each weight is dropped with probability p, so that no word
# relies on just one other. The remaining weights are multiplied by 1 / (1 - p), so that their mean does
# not change.

page.say("Dropout on the weights, with p = 0.5", "对权重做 dropout，p = 0.5")
ta.manual_seed(123)
thinned = F.dropout(weights, p=0.5, training=True)
print("           step    " + " ".join(f"{w:.4f}" for w in thinned[5]))
page.check(
    "each weight is either dropped or doubled",
    np.logical_or(thinned.numpy() == 0, np.isclose(thinned.numpy(), 2 * weights.numpy())).all(),
)
mean = sum(F.dropout(weights, p=0.5, training=True).numpy() for _ in range(2000)) / 2000
page.check(
    "the mean of 2000 draws is close to the weights", np.allclose(mean, weights.numpy(), atol=0.1)
)

layer = nn.SelfAttention(d_in, d_out, causal=True, dropout=0.5)
page.check(
    "in training, each call of the layer drops different weights",
    not np.allclose(layer(inputs).numpy(), layer(inputs).numpy()),
)
layer.eval()
page.check(
    "... and in evaluation, each call gives the same output",
    np.array_equal(layer(inputs).numpy(), layer(inputs).numpy()),
)
page.end()
