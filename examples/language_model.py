"""A language model: a causal Transformer reads Python's own manual character by character and learns to go on writing.

    python examples/language_model.py                               # learns for about three minutes, then writes
    python examples/language_model.py --steps 4000                  # learns longer, writes better
    python examples/language_model.py --resume                      # goes on after Ctrl-C; when all is learned, only writes
    python examples/language_model.py --resume --prompt "The class " --temperature 0.5

The text is the help that comes with Python (`pydoc_data.topics`), so nothing is downloaded. The last tenth is kept for judging:
how many nats does it cost to guess the next character there, compared with counting pairs, triples ... of characters?

Letters: B sequences, T characters, E embedding, V characters of the vocabulary.
"""

import argparse
import importlib.util
import math
import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim

QUICK = os.environ.get("TINYGRAD_ATTN_QUICK") == "1"
CONTEXT = 128
"""How many characters the model sees at once."""


# ---- The text, and what counting alone achieves


class Text:
    """The manual as numbers, one a character: 90 % to learn from, and the rest, `tail`, to be judged by."""

    def __init__(self):
        text = "\n".join(topics.values())
        self.characters = sorted(set(text))
        self.number = {c: i for i, c in enumerate(self.characters)}
        self.all = self.encode(text)
        self.start = len(self.all) * 9 // 10                      # where the tail begins
        self.head, self.tail = self.all[:self.start], self.all[self.start:]

    def encode(self, text):
        return np.array([self.number[c] for c in text])

    def decode(self, numbers):
        return "".join(self.characters[i] for i in numbers)

    def __len__(self):
        return len(self.characters)


def n_gram_losses(text, longest=5, trust=4.0):
    """Nats per character of the tail, guessed from the 0, 1, 2 ... characters before it.

    p_n(c | h) = (count(h c) + trust p_{n-1}(c | h without its first)) / (count(h) + trust), counted in the head: the estimate of a
    shorter history counts as much as `trust` observations. A history is written as one integer, in base V.
    """
    p, losses = 1 / len(text), []
    history = np.zeros(len(text.all), dtype=np.int64)
    for n in range(longest):
        if n:
            history[n:] += text.all[:-n] * len(text) ** (n - 1)
        both = history * len(text) + text.all
        seen = [count(codes[n:text.start], codes[text.start:]) for codes in (both, history)]
        p = (seen[0] + trust * p) / (seen[1] + trust)
        losses.append(-np.log(p).mean())
    return losses


def count(codes, wanted):
    """How often each of `wanted` occurs among `codes`."""
    codes = np.sort(codes)
    return np.searchsorted(codes, wanted, "right") - np.searchsorted(codes, wanted, "left")


# ---- The model


class LanguageModel(nn.Module):
    """Scores of the next character after each one. (B, T) numbers of characters -> (B, T, V)"""

    def __init__(self, vocabulary, d_model, heads, layers):
        self.embed = nn.Embedding(vocabulary, d_model)
        self.positions = nn.LearnedPositionalEncoding(CONTEXT, d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d_model))
        self.scores = nn.Linear(d_model, vocabulary, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)                      # small, so that a fresh model finds all characters equally likely

    def forward(self, characters, cache=None):
        """With a cache, `characters` are those that it has not seen yet."""
        seen = 0 if cache is None else cache.length
        x = self.positions(self.embed(characters), offset=seen)                               # (B, T, E)
        return self.scores(self.encoder(x, is_causal=True, cache=cache))                      # (B, T, V)


def loss_of(model, windows):
    """Mean cross-entropy of each window's characters after the first, guessed from those before. (B, T + 1) -> one number"""
    return F.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:])


def tail_loss(model, text, windows=None):
    """Nats per character of the whole tail (or of so many windows of it), every one guessed from at least half a context."""
    half = CONTEXT // 2
    starts = range(text.start - half, len(text.all) - CONTEXT, half)[:windows]
    total = guessed = 0.0
    with ta.no_grad():
        for i in range(0, len(starts), 32):
            batch = np.stack([text.all[s:s + CONTEXT + 1] for s in starts[i:i + 32]])
            scores = model(batch[:, half - 1:-1] if False else batch[:, :-1])[:, half - 1:]
            total += F.cross_entropy(scores.mT, batch[:, half:], reduction="sum").item()
            guessed += batch[:, half:].size
    return total / guessed
