"""Attention, then positions, then a feed-forward network: the whole pipeline, run and trained.

The document builds three parts on a sentence of four words, "I like eating apples", each word
one-hot of width 6: attention with 2 heads, the sinusoidal position table, and a network 6 -> 12 ->
6 with ReLU. Its second and third parts never ran: the one-hot sentence holds integers, and real
numbers cannot be added to integers in place. It also had no way to train.

Letters: B sentences, T words, E embedding, H heads.
"""

import itertools

import numpy as np
from _document import QUICK, Document

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim

page = Document("001: attention, positions, feed-forward")
WORDS = ["I", "like", "eating", "apples"]
sentence = np.eye(4, 6, dtype=int)[None]  # (B, T, E) = (1, 4, 6)


# ---- The position table. Word t gets a point on each of E / 2 circles, which turn more and more
# slowly: t, t / 10000^(2/E), ...


def positions(length, width):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (T, E/2)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(
        length, width
    )  # sin, cos, sin, cos, ...


page.say("The numbers of the document: its position table")
table = positions(4, 6)
page.prints("position 1", table[1], "0.841471 0.540302 0.046399 0.998923 0.002154 0.999998")
page.prints("position 3", table[3], "0.141120 -0.989992 0.138798 0.990321 0.006463 0.999979")
page.check(
    "F.sinusoidal_positions(4, 6) is the same table",
    np.allclose(F.sinusoidal_positions(4, 6).numpy(), table),
)

# ---- Where the document stopped.

page.say("Adding the table to the sentence")
try:
    sentence += table
    stopped = False
except TypeError as error:
    stopped = True
    print(f"           NumPy, in place: {str(error)[:96]} ...")
page.check("integers += real numbers is refused, and rightly", stopped)
page.check(
    "Tensor(sentence) + table is a new tensor of real numbers",
    np.array_equal((Tensor(sentence) + table).numpy(), sentence + table),
)


# ---- The pipeline. The layer that adds positions converts integers itself.


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


page.say("Attention, positions and feed-forward, to the end")
ta.manual_seed(1)
output, weights = Pipeline(embed=6, heads=2, hidden=12)(sentence)
page.prints("shape of the sentence", sentence.shape, "1 4 6")
page.prints("shape of the weights", weights.shape, "1 2 4 4")
page.prints("shape of the output", output.shape, "1 4 6")
page.check("every row of weights sums to 1", np.allclose(weights.numpy().sum(axis=-1), 1))

# ---- A softmax that works until it does not. The maximum is subtracted so that exp cannot
# overflow, but the document takes the maximum of the whole array. One large score then pushes all
# other rows to exp(-800) = 0, and 0 / 0 is NaN. Each row must subtract its own maximum.

page.say("One score of 800 among (1, 2, 4, 4)")
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
    "with each row's own maximum (F.softmax) every row sums to 1, and the gradient is finite",
    np.allclose(ours.numpy().sum(axis=-1), 1) and np.isfinite(scores.grad.numpy()).all(),
)

# ---- Training. In all 24 orders of the four words, each word must name the one before it, and the
# first says "start". Attention alone sees a bag of words, so it cannot know: it can only guess
# among four, a loss of ln 4 = 1.386. With positions each word can find its left neighbour.

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


page.say("Who stands before me? With positions:")
model, loss, right = train(True, 80 if QUICK else 500)
page.say("The same without positions:")
_, blind_loss, blind_right = train(False, 80 if QUICK else 500)
page.say(f"Right: {right:.0%} with positions, {blind_right:.0%} without")
page.check(
    "with positions it learns, without it can only guess among four",
    loss < 0.7 and blind_loss > np.log(4) - 1e-3,
)
if not QUICK:
    page.check("with positions it gets every word of every sentence", right == 1)

words = ["eating", "I", "apples", "like"]
logits, _ = model(np.eye(4, 6, dtype=int)[[WORDS.index(word) for word in words]][None])
answers = [[*WORDS, "(start)"][i] for i in logits[0, :, :5].argmax(axis=-1)]
print(
    "           "
    + ", ".join(f"before {word!r}: {answer!r}" for word, answer in zip(words, answers))
)
page.end()
