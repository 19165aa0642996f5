"""Multi-head attention in plain NumPy, as you might write it after your first lecture. Then the same
code learns.

The document computes attention for 3 sequences of 11 tokens of width 35 with 5 heads of size 7,
prints one row of the output and one of the weights, and ends with a question: *why must the
embedding size be a multiple of the number of heads?* This program reproduces the numbers, trains the
unchanged code by passing Tensors instead of arrays, and answers the question.

文档用纯 NumPy 计算多头注意力。这个程序重现它印出的数，把张量交给一字未改的代码来训练，并回答文末的问题：
嵌入的大小为什么必须是头数的倍数？（不必。）

Letters: B sequences, T tokens, E embedding, H heads, D size of a query or key, V size of a value.
"""

import math

import numpy as np
from _document import QUICK, Document

from tinygrad_attn import Tensor, nn, optim

page = Document("000: multi-head attention in plain NumPy", "纯 NumPy 的多头注意力")


# ---- The code. It uses only NumPy and does not compute any gradients.


def softmax(scores):
    e = np.exp(scores)
    return e / np.sum(e, axis=-1, keepdims=True)


def attention(x, Wq, Wk, Wv, Wo):
    """x (B, T, E); Wq, Wk (H, E, D); Wv (H, E, V); Wo (H V, E) -> output (B, T, E), weights (B, H,
    T, T)
    """
    x = x[:, None]  # (B, 1, T, E): every head reads the same tokens
    q, k, v = x @ Wq, x @ Wk, x @ Wv  # (B, H, T, D) twice, (B, H, T, V)
    weights = softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    heads = np.swapaxes(weights @ v, 1, 2)  # (B, T, H, V)
    B, T, H, V = heads.shape
    return heads.reshape(B, T, H * V) @ Wo, weights


# ---- The document's numbers. The order of the random draws matters: first the input, then the four
# weights.

np.random.seed(114514)
B, T, E, H, D = 3, 11, 35, 5, 7
x = np.random.randn(B, T, E)
Wq, Wk, Wv = (np.random.randn(H, E, D) for _ in range(3))
Wo = np.random.randn(H * D, E)
output, weights = attention(x, Wq, Wk, Wv, Wo)

page.say("The numbers in the document", "文档里的数")
page.prints("shape of Wq", Wq.shape, "5 35 7")
page.prints("shape of Wo", Wo.shape, "35 35")
page.prints("shape of the output", output.shape, "3 11 35")
page.prints("shape of the weights", weights.shape, "3 5 11 11")
page.prints(
    "output[0, 0]",
    output[0, 0],
    """
    -1.00275258 -25.66227608  42.57650594   7.97341477  -2.09239899
    22.53574569 -32.31421119 -19.31954746  35.94738272   5.09795971
   -34.47604002   0.86513501  50.51554347  21.8124433   35.35536458
   -30.79651531   0.38839876   6.82163086 -14.5239423  -50.32858852
    20.92636831 -11.40505511  34.35585814  -8.64440007  17.03970826
   -46.23846407   0.86446847  27.91816735  -6.19561116 -11.2085796
    -0.52242257 -86.61101946 -23.54598171 -26.04331552 -26.03110728""",
)
page.prints(
    "weights[0, 0, 0]",
    weights[0, 0, 0],
    """
    1.29420131e-12 1.81028363e-33 4.99676145e-31 5.48498138e-21
    3.03060036e-26 1.09915871e-16 3.71961110e-10 1.56721677e-26
    1.97962592e-25 1.00000000e+00 2.35854129e-25""",
)

# ---- A hidden problem. The weights are drawn with standard deviation 1. A query is a sum of 35 such
# products, so the standard deviation of a score is about 35, and the largest score is 181. In float32,
# e^89 is already infinite, and infinity / infinity is NaN. If the maximum of each row is subtracted
# first, the result is mathematically the same, but no exponent is above 0.


def safe_softmax(scores):
    return softmax(scores - np.max(scores, axis=-1, keepdims=True))


page.say("The same scores in float32", "用 float32 计算同样的分数")
scores = ((x[:, None] @ Wq) @ (x[:, None] @ Wk).swapaxes(-1, -2) / math.sqrt(D)).astype(np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    broken = np.isnan(softmax(scores))
page.prints("the largest score", scores.max(), "180.69")
page.prints("weights that are NaN, of how many", [broken.sum(), broken.size], "28 1815")
page.check(
    "with the row's maximum subtracted, no weight is NaN and all equal those above",
    np.allclose(safe_softmax(scores), weights, atol=1e-4),
)

# ---- Now the code learns. A teacher with its own weights provides the targets. The student is the
# same `attention`, unchanged, called with Tensors. NumPy's functions call ours when they receive a
# Tensor, so the graph is recorded. The initial weights are divided by sqrt(35), so that a query is as
# large as the numbers in the input. The next section explains why.


def train(start, target, fixed=()):
    """Fit `target`, starting from the weights `start`, while the weights `fixed` do not change. Return
    the loss of each step.
    """
    trained = [Tensor(W, requires_grad=True) for W in start]
    optimizer = optim.Adam(trained, lr=0.01)
    losses = []
    for _ in range(40 if QUICK else 200):
        output, _ = attention(Tensor(x), *trained, *fixed)
        loss = np.mean((output - target) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(
        "           loss "
        + " -> ".join(f"{loss:.4f}" for loss in losses[:: len(losses) // 4] + losses[-1:])
    )
    return losses


page.say("The same code learns when it receives Tensors", "把张量交给同样的代码，它就能学习")
rng = np.random.default_rng(0)
scaled = [W / math.sqrt(E) for W in (Wq, Wk, Wv, Wo)]
teacher = [rng.normal(0, 1 / math.sqrt(E), W.shape) for W in scaled]
losses = train(scaled, attention(x, *teacher)[0])
page.check("the loss falls below a tenth of its first value", losses[-1] < losses[0] / 10)

# ---- Another problem with large scores. Softmax becomes a hard choice, whose slope is 0: the
# derivative of a weight w with respect to its own score is w (1 - w), which is 0 if w is 1. To show
# this, we pass a random gradient back through softmax and measure what remains in each row.

page.say("How much of a gradient gets through softmax", "有多少梯度能穿过 softmax")
through = {}
for name, factor in (("the document's scores", 1), ("scores from scaled weights", 1 / E)):
    s = Tensor(scores.astype(np.float64) * factor, requires_grad=True)
    w, g = safe_softmax(s), rng.normal(size=s.shape)
    w.backward(g)
    through[factor] = np.median(
        np.linalg.norm(s.grad.numpy(), axis=-1) / np.linalg.norm(g, axis=-1)
    )
    print(
        f"           {name}: mean of the largest weight in a row {np.mean(w.max(axis=-1).numpy()):.2f}, "
        f"share of the gradient that remains {through[factor]:.1e} (median)"
    )
page.check(
    "with the document's scores, less than a thousandth as much of the gradient remains",
    through[1] < through[1 / E] / 1000,
)

# Now train only the queries and keys, while the values and the output are fixed. Start once from
# scaled weights and once from the document's.
keep = scaled[2:]
target, _ = attention(x, *teacher[:2], *keep)
good, stuck = train(scaled[:2], target, keep), train((Wq, Wk), target, keep)
page.check(
    "the queries and keys learn from scaled weights, but not from the document's",
    good[-1] < good[0] / 10 and stuck[-1] > stuck[0] / 2,
)

# ---- The question. Nothing in `attention` requires E = H D. Only the queries and keys must have the
# same size (D). The values may have their own size (V), and Wo maps H V numbers back to E. D = E / H
# is just a convention, which makes H heads cost as much as one.

page.say(
    "Any head size works: E = 35, H = 5, D = 6, V = 4",
    "头的大小可以任取：E = 35，H = 5，D = 6，V = 4",
)
D, V = 6, 4
Wq, Wk, Wv, Wo = (
    rng.normal(0, 0.2, shape) for shape in ((H, E, D), (H, E, D), (H, E, V), (H * V, E))
)
output, weights = attention(x, Wq, Wk, Wv, Wo)
page.prints("shape of Wo", Wo.shape, "20 35")
page.prints("shape of the output", output.shape, "3 11 35")

layer = nn.MultiheadAttention(
    E, H, bias=False, batch_first=True, head_dim=D, value_head_dim=V
).astype(np.float64)
layer.load_state_dict(
    {  # a layer's weights are (out, in), with the heads stacked in rows
        "in_proj_weight": np.concatenate(
            [np.swapaxes(W, 1, 2).reshape(-1, E) for W in (Wq, Wk, Wv)]
        ),
        "out_proj.weight": Wo.T,
    }
)
theirs, their_weights = layer(Tensor(x), Tensor(x), Tensor(x), average_attn_weights=False)
page.check(
    "nn.MultiheadAttention(35, 5, head_dim=6, value_head_dim=4) gives the same output and weights",
    np.allclose(theirs.numpy(), output) and np.allclose(their_weights.numpy(), weights),
)
page.end()
