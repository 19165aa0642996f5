"""Attention, positions and a feed-forward network: the complete pipeline, which runs and is trained.

The document uses a sentence of four words, "I like eating apples", with each word as a one-hot vector
of width 6. It has three parts: attention with 2 heads, the sinusoidal position table, and a network
6 -> 12 -> 6 with ReLU. The second and third parts never ran, because the one-hot sentence contains
integers, and NumPy cannot add real numbers to integers in place. The document also could not train.

文档的三个部分是注意力、位置表和前馈网络，后两部分从未运行过。这个程序把整个流程跑通，并训练它说出每个词
的前一个词；没有位置，它就做不到。

Letters: B sentences, T words, E embedding, H heads.
"""

import itertools

import numpy as np
from _document import QUICK, Document

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim

page = Document("001: attention, positions, feed-forward", "注意力、位置与前馈网络")
WORDS = ["I", "like", "eating", "apples"]
sentence = np.eye(4, 6, dtype=int)[None]  # (B, T, E) = (1, 4, 6)


# ---- The position table. Word t gets a point on each of E / 2 circles. The angles grow more slowly
# from circle to circle: t, t / 10000^(2/E), ...


def positions(length, width):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (T, E/2)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(
        length, width
    )  # sin, cos, sin, cos, ...


page.say("The position table in the document", "文档里的位置表")
table = positions(4, 6)
page.prints("position 1", table[1], "0.841471 0.540302 0.046399 0.998923 0.002154 0.999998")
page.prints("position 3", table[3], "0.141120 -0.989992 0.138798 0.990321 0.006463 0.999979")
page.check(
    "F.sinusoidal_positions(4, 6) is the same table",
    np.allclose(F.sinusoidal_positions(4, 6).numpy(), table),
)

# ---- The point where the document stopped.

page.say("Adding the table to the sentence", "把位置表加到句子上")
try:
    sentence += table
    stopped = False
except TypeError as error:
    stopped = True
    print(f"           NumPy, in place: {str(error)[:96]} ...")
page.check("NumPy rightly refuses integers += real numbers", stopped)
page.check(
    "Tensor(sentence) + table is a new tensor of real numbers",
    np.array_equal((Tensor(sentence) + table).numpy(), sentence + table),
)


# ---- The pipeline. The layer that adds positions converts integers to real numbers.


class Pipeline(nn.Module):
    def __init__(self, embed, heads, hidden, with_positions=True):
        self.positions = nn.SinusoidalPositionalEncoding(embed) if with_positions else nn.Identity()
        self.attention = nn.MultiheadAttention(embed, heads, batch_first=True)
        self.feed_forward = nn.FeedForward(embed, hidden, activation="relu")

    def forward(self, sentence):
        """(B, T, E) -> (B, T, E), and the weights (B, H, T, T)"""
        x = self.positions(sentence)
        x, weights = self.attention(x, x, x, average_attn_weights=False)
        return self.feed_forward(x), weights


page.say(
    "The complete pipeline: attention, positions and feed-forward",
    "完整的流程：注意力、位置和前馈网络",
)
ta.manual_seed(1)
output, weights = Pipeline(embed=6, heads=2, hidden=12)(sentence)
page.prints("shape of the sentence", sentence.shape, "1 4 6")
page.prints("shape of the weights", weights.shape, "1 2 4 4")
page.prints("shape of the output", output.shape, "1 4 6")
page.check("every row of weights sums to 1", np.allclose(weights.numpy().sum(axis=-1), 1))

# ---- A softmax that does not always work. The document subtracts the maximum of the whole array, so
# that exp cannot overflow. But then one large score turns all other rows into exp(-800) = 0, and 0 / 0
# is NaN. Each row must subtract its own maximum.

page.say(
    "Scores of shape (1, 2, 4, 4), one of which is 800",
    "形状为 (1, 2, 4, 4) 的分数，其中一个是 800",
)
scores = np.zeros((1, 2, 4, 4))
scores[0, 0, 0, 0] = 800
e = np.exp(scores - scores.max())
with np.errstate(invalid="ignore"):
    broken = e / e.sum(axis=-1, keepdims=True)
page.prints(
    "rows of NaN with one maximum for all, of how many",
    [np.isnan(broken).any(axis=-1).sum(), 2 * 4],
    "7 8",
)
scores = Tensor(scores, requires_grad=True)
ours = F.softmax(scores)
ours.backward(np.random.default_rng(0).normal(size=ours.shape))
page.check(
    "with each row's own maximum (F.softmax), every row sums to 1, and the gradient is finite",
    np.allclose(ours.numpy().sum(axis=-1), 1) and np.isfinite(scores.grad.numpy()).all(),
)

# ---- Training. In all 24 orders of the four words, the model must predict the word before each word,
# or "start" for the first. Attention alone does not see the order of the words, so it can only guess
# among four answers, with a loss of ln 4 = 1.386. With positions, each word can find the word before it.

orders = np.array(list(itertools.permutations(range(4))))  # (24, 4)
sentences = np.eye(4, 6, dtype=int)[orders]  # (24, 4, 6)
START = 4
before = np.concatenate([np.full((24, 1), START), orders[:, :-1]], axis=1)  # (24, 4)


def train(with_positions, steps):
    ta.manual_seed(1)
    model = Pipeline(embed=6, heads=2, hidden=12, with_positions=with_positions)
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps):
        logits, _ = model(sentences)
        loss = F.cross_entropy(np.swapaxes(logits, 1, 2), before)  # classes on axis 1: (24, 6, 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, steps // 4, steps // 2, steps - 1):
            print(f"           step {step + 1:3d}: loss {loss.item():.4f}")
    return model, loss.item(), np.mean(logits.argmax(axis=-1) == before)


page.say("Which word comes before each word? With positions:", "每个词的前一个词是什么？有位置时：")
model, loss, right = train(True, 80 if QUICK else 500)
page.say("Without positions:", "没有位置时：")
_, blind_loss, blind_right = train(False, 80 if QUICK else 500)
page.say(
    f"Correct: {right:.0%} with positions, {blind_right:.0%} without",
    f"正确率：有位置 {right:.0%}，没有位置 {blind_right:.0%}",
)
page.check(
    "the model learns with positions, but can only guess among four words without them",
    loss < 0.7 and blind_loss > np.log(4) - 1e-3,
)
if not QUICK:
    page.check("with positions, every word of every sentence is right", right == 1)

words = ["eating", "I", "apples", "like"]
logits, _ = model(np.eye(4, 6, dtype=int)[[WORDS.index(word) for word in words]][None])
answers = [[*WORDS, "(start)"][i] for i in logits[0, :, :5].argmax(axis=-1)]
print(
    "           "
    + ", ".join(f"before {word!r}: {answer!r}" for word, answer in zip(words, answers))
)
page.end()
