"""This package."""

import os

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim

from .eager import Eager


class Library(Eager):
    """tinygrad_attn"""

    nn, optim, F = nn, optim, F

    def __init__(self):
        ta.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        ta.reuse_memory()

    def tensor(self, array, requires_grad=False):
        return Tensor(array, requires_grad=requires_grad)

    def generate(self, arrays, d, h, ff, layers, vocabulary, prompt, tokens):
        stack = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, h, ff, dropout=0.0, batch_first=True), layers
        ).eval()
        stack.load_state_dict({k: v for k, v in arrays.items() if k.startswith("layers.")})
        table, text, last = Tensor(arrays["table"]), arrays["y"], {}

        def read(tokens, cache):
            x = stack(F.embedding(tokens, table), is_causal=True, cache=cache)
            return x[:, -1] @ table.T

        def step():
            cache = nn.KeyValueCache()
            with ta.no_grad():
                unread = text[:, :prompt]
                for i in range(prompt, prompt + tokens):
                    # A writer would choose by the scores; all libraries get the same text.
                    last["scores"] = read(unread, cache)
                    unread = text[:, i : i + 1]

        return step, lambda: {"scores": last["scores"].numpy()}
