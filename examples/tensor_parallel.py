"""One layer on several processes: `mpiexec -n 2 python examples/tensor_parallel.py`.

A layer that is too large for one process can be divided. Rank r has some of the hidden units of a
feed-forward network, and some of the heads of attention (Shoeybi et al., 2019). Each rank computes
its part for all samples, and the sum over the ranks is the output:

    x -> to_all_ranks -> A_r -> f -> B_r -> sum_of_ranks -> + bias -> y

The program trains the divided layers and the whole layers, and compares their losses. Without MPI,
the same file runs as one process: `python examples/tensor_parallel.py`. More than one process needs
mpi4py and an MPI library: `pip install 'tinygrad_attn[parallel]'`.
"""

import sys

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim, parallel

WIDTH, HEADS, HIDDEN, STEPS = 16, 4, 64, 20


@ta.op
def to_all_ranks(x, *, comm=None):
    """y = x, with the same x on every rank. The VJP sums the cotangents of all ranks."""
    return x.copy()


@ta.op
def sum_of_ranks(x, *, comm=None):
    """y = sum of x over the ranks. The VJP returns the cotangent unchanged."""
    return parallel.total(x, comm=comm)


to_all_ranks.vjp(lambda g, y, x, *, comm: sum_of_ranks(g, comm=comm))
sum_of_ranks.vjp(lambda g, y, x, *, comm: to_all_ranks(g, comm=comm))


def part(tensor, axis=0, comm=None):
    """Return this rank's part of an array that is divided evenly, as a Parameter."""
    parts = np.split(tensor.numpy(), parallel.world_size(comm), axis)
    return nn.Parameter(parts[parallel.rank(comm)])


class DividedFeedForward(nn.Module):
    """y = gelu(x W_1^T + b_1) W_2^T + b_2, with the hidden units divided among the ranks."""

    def __init__(self, linear1, linear2, comm=None):
        self.weight1, self.bias1 = part(linear1.weight, 0, comm), part(linear1.bias, 0, comm)
        self.weight2 = part(linear2.weight, 1, comm)
        self.bias2 = nn.Parameter(linear2.bias.numpy())  # the same on every rank
        self.comm = comm

    def forward(self, x):
        """(..., E) -> (..., E)"""
        x = to_all_ranks(x, comm=self.comm)
        hidden = F.gelu(F.linear(x, self.weight1, self.bias1))
        return sum_of_ranks(F.linear(hidden, self.weight2), comm=self.comm) + self.bias2


class DividedAttention(nn.Module):
    """Self-attention without biases, with the heads divided among the ranks."""

    def __init__(self, attention, comm=None):
        # The rows of each projection are ordered by head, so a part of the rows is some heads.
        weights = np.split(attention.in_proj_weight, 3)
        self.query, self.key, self.value = (part(weight, 0, comm) for weight in weights)
        self.out = part(attention.out_proj.weight, 1, comm)
        self.heads, self.comm = attention.num_heads // parallel.world_size(comm), comm

    def forward(self, x):
        """(B, T, E) -> (B, T, E)"""
        x = to_all_ranks(x, comm=self.comm)
        weights = self.query, self.key, self.value
        q, k, v = (F.split_heads(F.linear(x, weight), self.heads) for weight in weights)
        y = F.merge_heads(F.scaled_dot_product_attention(q, k, v))
        return sum_of_ranks(F.linear(y, self.out), comm=self.comm)


class Block(nn.Module):
    """x = x + attention(x), and x = x + feed_forward(x): (B, T, E) -> (B, T, E)"""

    def __init__(self, attention, feed_forward):
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class WholeAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention as self-attention that returns the output alone."""

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


def losses(model, x, y):
    """Train the model, and return the loss before each step."""
    optimizer, values = optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(STEPS):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # a whole parameter has the same gradient on every rank
        optimizer.step()
        values.append(loss.item())
    return values


def main():
    ta.manual_seed(0)  # every rank creates the same layers and data
    attention = WholeAttention(WIDTH, HEADS, bias=False, batch_first=True)
    linear1, linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
    whole = Block(attention, nn.Sequential(linear1, nn.GELU(), linear2))
    divided = Block(DividedAttention(attention), DividedFeedForward(linear1, linear2))
    x, y = ta.randn(8, 6, WIDTH), ta.randn(8, 6, WIDTH)

    count = sum(p.size for p in divided.parameters())
    together = losses(divided, x, y)
    same = np.allclose(together, losses(whole, x, y), rtol=1e-4)
    if parallel.rank() == 0:
        print(f"{parallel.world_size()} ranks with {count:,} numbers each")
        print(f"loss {together[0]:.4f}, after {STEPS} steps {together[-1]:.4f}")
        print(f"{str(same).lower():5}  the losses of the whole layers are the same")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
