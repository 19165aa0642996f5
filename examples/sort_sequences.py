"""An encoder-decoder that learns to sort: it reads eight digits and writes them, one by one, in
ascending order.

    python examples/sort_sequences.py                               # under a minute
    python examples/sort_sequences.py --task reverse --length 10 --seed 1
    # saves a picture that shows where it looks while it writes
    python examples/sort_sequences.py --out sort.png

Nobody explains sorting to the model. It sees pairs of unsorted and sorted sequences, and is tested on
sequences that it has never seen. A sequence counts as right only if every digit is right.

Letters: B sequences, S digits read, T digits written, E embedding, V symbols.
"""

import argparse
import importlib.util
import os
import secrets
import sys
import time
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim

QUICK = os.environ.get("TINYGRAD_ATTN_QUICK") == "1"
DIGITS = 10
START = 10
"""The symbol that the decoder receives before its first digit."""
UNSEEN = 2000
"""The size of the test set, unless this is more than a tenth of all possible sequences."""

TASKS = {"sort": np.sort, "reverse": np.fliplr, "copy": np.copy}


# ---- The data: any sequence of digits, except those in the test set


class Data:
    """Training batches, and a fixed test set whose sequences are not in any batch."""

    def __init__(self, task, length, seed):
        self.answer, self.length = TASKS[task], length
        self.rng = np.random.default_rng(seed)
        count = min(UNSEEN, DIGITS**length // 10)
        self.unseen = np.unique(
            self.rng.integers(0, DIGITS, (count, length)), axis=0
        )  # (count, S) or a few fewer rows
        self.kept = self.name(self.unseen)

    def name(self, sequences):
        """Convert each sequence to one integer: 3 1 4 is 314."""
        return sequences @ DIGITS ** np.arange(self.length)[::-1]

    def batch(self, size):
        """Return the sequences to read (B, S) and to write (B, T), none of them from the test set.

        Half of them have at most three different digits. Otherwise, sequences in which a digit
        occurs five times would be too rare for the model to learn.
        """
        sequences = self.rng.integers(0, DIGITS, (size, self.length))
        three = self.rng.integers(0, DIGITS, (size // 2, 3))
        which = self.rng.integers(0, 3, (size // 2, self.length))
        sequences[: size // 2] = np.take_along_axis(three, which, axis=1)
        sequences = sequences[~np.isin(self.name(sequences), self.kept)]
        return sequences, self.answer(sequences)


# ---- The model


class Seq2Seq(nn.Module):
    """Scores of the next symbol, given the complete input and the output so far. (B, S), (B, T) ->
    (B, T, V)
    """

    def __init__(self, length, d_model=64, heads=4, layers=2):
        self.embed = nn.Embedding(DIGITS + 1, d_model)
        self.positions = nn.LearnedPositionalEncoding(length, d_model)
        self.transformer = nn.Transformer(
            d_model,
            heads,
            layers,
            layers,
            2 * d_model,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.scores = nn.Linear(d_model, DIGITS)

    def read(self, digits):
        """Compute the memory that the decoder attends to. (B, S) -> (B, S, E)"""
        return self.transformer.encoder(self.positions(self.embed(digits)))

    def write(self, symbols, memory, cache=None):
        """With a cache, `symbols` are only the new ones. (B, T), (B, S, E) -> (B, T, V)"""
        x = self.positions(self.embed(symbols), offset=0 if cache is None else cache.length)
        return self.scores(self.transformer.decoder(x, memory, tgt_is_causal=True, cache=cache))

    def forward(self, digits, symbols):
        return self.write(symbols, self.read(digits))


def shifted(answers):
    """Return the input of the decoder: START, then all digits of the answer except the last.
    (B, T) -> (B, T)
    """
    return np.insert(answers[:, :-1], 0, START, axis=1)


def solve(model, digits):
    """Write the likeliest digit, read it back, and write the next. (B, S) -> (B, S)"""
    with ta.no_grad():
        memory, cache = model.read(digits), nn.KeyValueCache()
        written = [np.full((len(digits), 1), START)]
        for _ in range(digits.shape[1]):
            scores = model.write(written[-1], memory, cache)  # (B, 1, V)
            written.append(scores.numpy().argmax(axis=-1))
    return np.concatenate(written[1:], axis=1)


def right(model, data):
    """Return the percentage of unseen sequences that the model answers without any mistake."""
    return 100 * float(
        np.mean(np.all(solve(model, data.unseen) == data.answer(data.unseen), axis=1))
    )


def train(data, steps, seed, batch=64, lr=3e-3):
    """Train a model and print its progress."""
    ta.manual_seed(seed)
    model = Seq2Seq(data.length)
    optimizer = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = optim.warmup_cosine(optimizer, warmup_steps=steps // 10, total_steps=steps)

    def loss_of(digits, symbols, answers):
        return F.cross_entropy(model(digits, symbols).mT, answers)

    begun = time.perf_counter()
    for step in range(1, steps + 1):
        digits, answers = data.batch(batch)
        loss = loss_of(digits, shifted(answers), answers)
        optimizer.zero_grad()
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % (steps // 4) == 0:
            print(
                f"  step {step:4d} of {steps}, loss {loss.item():.4f}, {right(model, data):6.2f} % "
                f"of the unseen sequences right, {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
    return model


# ---- The picture


def draw(model, digits, path):
    """Save a picture to `path` that shows where each head of the last decoder layer looks in `digits`
    (S,) while the model writes the answer.
    """
    answer = solve(model, digits[None])
    with ta.no_grad(), ta.record_attention(model) as seen:
        model(digits[None], shifted(answer))
    last = max(name for name in seen if name.endswith("multihead_attn"))
    axes = ta.viz.attention(seen[last][0][0], queries=list(answer[0]), keys=list(digits))
    for ax in axes:
        ax.set(xlabel="read", ylabel="written")
    part = path.with_name(
        f".{secrets.token_hex(4)}{path.suffix}"
    )  # so that no incomplete file is left
    try:
        axes[0].figure.savefig(part, dpi=110)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def main():
    options = argparse.ArgumentParser(
        description="An encoder-decoder learns to sort, reverse or copy digits."
    )
    options.add_argument("--task", choices=TASKS, default="sort")
    options.add_argument(
        "--length", type=int, default=5 if QUICK else 8, help="digits in a sequence, 4 to 18 (8)"
    )
    options.add_argument(
        "--steps", type=int, default=200 if QUICK else 800, help="training steps (800)"
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--out",
        type=Path,
        metavar="PICTURE",
        help="save the cross-attention as .png, .svg or .pdf; needs matplotlib",
    )
    chosen = options.parse_args()
    if not 4 <= chosen.length <= 18 or chosen.steps < 4 or chosen.seed < 0:
        options.error("--length must be 4 to 18, --steps at least 4, and --seed not negative")
    if chosen.out and chosen.out.suffix.lower() not in (
        ".png",
        ".svg",
        ".pdf",
    ):  # fail now, not after the training
        options.error(
            f"--out must be a file name that ends in .png, .svg or .pdf, not {str(chosen.out)!r}"
        )
    if chosen.out and chosen.out.is_dir():
        options.error(f"--out must be the name of a file, but {str(chosen.out)!r} is a folder")
    if sys.stdout:  # None if it is closed, as with pythonw
        sys.stdout.reconfigure(
            errors="replace"
        )  # a pipe on Windows cannot encode every letter of a file name
    if chosen.out and importlib.util.find_spec("matplotlib") is None:
        print(
            "skipped: matplotlib, which draws the picture, is not installed: pip install "
            "matplotlib, or leave out --out"
        )
        return
    if chosen.out:
        try:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"--out: {error}")

    ta.reuse_memory()
    ta.set_num_threads(1)  # for matrices this small, a second thread does not help
    data = Data(chosen.task, chosen.length, chosen.seed)
    print(
        f"Learning to {chosen.task} {chosen.length} digits; {len(data.unseen)} sequences are held "
        "out for the test."
    )
    model = train(data, chosen.steps, chosen.seed)

    print("\nSome of the unseen sequences:")
    for digits, answer in zip(data.unseen[::600], solve(model, data.unseen[::600])):
        print(f"  {' '.join(map(str, digits))}  ->  {' '.join(map(str, answer))}")
    if chosen.out:
        draw(model, data.unseen[len(data.unseen) // 2], chosen.out)
        print(f"This picture shows where the model looked while it wrote: {chosen.out}")

    reached, goal = right(model, data), 90.0 if QUICK else 100.0
    print(
        f"\n{'true      ' if reached >= goal else 'false     '} {reached:.2f} % of the unseen "
        f"sequences are completely right (the goal is {goal:.0f} %)"
    )
    if reached < goal:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nStopped. Nothing is saved.")
        sys.exit(130)
