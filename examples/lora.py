"""Fine-tune a real language model on a page of Python's manual, with low-rank adapters.

    python examples/lora.py                       # 50 steps, about a minute, 1 GB
    python examples/lora.py --topic truth --steps 30

The weights W of SmolLM2 stay as they are. In the attention of the last layers, queries and values
become W x + 2 U D x, where only U (out, rank) and D (rank, in) learn (LoRA, Hu et al., 2021). They
are added by forward hooks. The model learns the first half of a page by heart: its loss falls from
2.90 to 0.08 nats. The second half is held out, and its loss rises from 2.45 to 4.7, or to 2.8 with
--lr 0.001: half a page teaches words, and not what comes next on another page. Letters: T tokens, V
vocabulary.
"""

import argparse
import math
import os
import sys
import time
import tracemalloc
from pydoc_data.topics import topics

import numpy as np
from _smollm import load, missing

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim

QUICK = bool(os.environ.get("TINYGRAD_ATTN_QUICK"))


class Adapter(nn.Module):
    """y = 2 U D x with D (rank, in) and U (out, rank). U is zero at first, and so is y."""

    def __init__(self, layer, rank):
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return 2 * self.up(self.down(x))


def add_adapters(layers, rank):
    """Add an adapter to queries and values of each layer, and return all of them."""
    adapters = nn.ModuleList([])
    for layer in layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.v_proj):
            adapter = Adapter(projection, rank)
            hook = lambda _, args, y, adapter=adapter: y + adapter(args[0])
            projection.register_forward_hook(hook)
            adapters.append(adapter)
    return adapters


def loss(model, tokens, start=1, trained=0, checkpoint=False):
    """Return the mean of -log p of tokens[start:], each from those before it.

    Only the last `trained` layers can have adapters. With `checkpoint`, the backward pass computes
    these layers again, one after the other, and keeps only their inputs.
    """
    x = model.embed_tokens([tokens])  # (1, T, E)
    frozen = len(model.layers) - trained
    for n, layer in enumerate(model.layers):
        x = ta.checkpoint(layer, x) if checkpoint and n >= frozen else layer(x)
    scores = model.scores(x[:, start - 1 : -1])[0]  # (T - start, V)
    return F.cross_entropy(scores, np.array(tokens[start:]))


def peak(model, tokens, **settings):
    """Return the most megabytes that a forward and a backward pass allocate."""
    tracemalloc.start()
    loss(model, tokens, **settings).backward()
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return megabytes


@ta.no_grad()
def continued(model, tokenizer, tokens, count=24):
    """Return the text with which the model continues, always the likeliest token."""
    cache, new = nn.KeyValueCache(), tokens
    written = []
    for _ in range(count):
        new = [int(model([new], cache, last=1)[0, -1].numpy().argmax())]
        written += new
    return tokenizer.decode(written)


def fine_tune(model, adapters, tokens, steps, lr, show, **settings):
    """Train the adapters on all tokens at once, with a rate that rises for 5 steps and then falls."""
    optimizer = optim.AdamW(adapters.parameters(), lr=lr, weight_decay=0.0)
    for step in range(steps):
        rate = lr * min(1, (step + 1) / 5) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        value = loss(model, tokens, **settings)
        value.backward()
        optimizer.step()
        show(step, value.item())


def options():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune SmolLM2 with low-rank adapters.")
    add = parser.add_argument
    add("--topic", default="context-managers", help="a page of Python's manual (context-managers)")
    add("--steps", type=int, default=3 if QUICK else 50, help="(50)")
    add("--rank", type=int, default=8, help="of the adapters (8)")
    add("--layers", type=int, default=10, help="how many of the last layers learn (10)")
    add("--lr", type=float, default=5e-3, help="the highest learning rate (0.005)")
    add("--checkpoint", action="store_true", help="compute layers twice, to keep less in memory")
    add("--model", metavar="FILE", help="another Llama in a GGUF file, with SmolLM2's tokeniser")
    chosen = parser.parse_args()
    if chosen.topic not in topics:
        parser.error(f"no topic {chosen.topic!r} in help(); for example with, truth or naming.")
    if min(chosen.steps, chosen.rank, chosen.layers) < 1:
        parser.error("--steps, --rank and --layers are at least 1.")
    return chosen


def main():
    chosen = options()
    if sentence := missing(chosen.model):
        print(sentence)
        return
    model, tokenizer = load(chosen.model)
    page = tokenizer.encode(topics[chosen.topic]).ids[:512]
    half = len(page) // 2
    learned = page[:half]
    layers = model.layers[-chosen.layers :]
    ta.manual_seed(0)
    adapters = add_adapters(layers, chosen.rank)
    count = sum(p.size for p in adapters.parameters())
    print(f"{half} tokens to learn, {len(page) - half} held out; {count:,} numbers learn.")
    settings = {"trained": len(layers)}
    for checkpoint in (False, True):
        most = peak(model, learned, checkpoint=checkpoint, **settings)
        print(
            f"one step allocates {most:,.0f} MB {'with' if checkpoint else 'without'} checkpoints"
        )
    adapters.zero_grad()

    def report(when):
        with ta.no_grad():
            on, off = loss(model, learned).item(), loss(model, page, start=half).item()
        print(f"\n{when}: loss {on:.2f} on what is learned, {off:.2f} on what is held out")
        text = continued(model, tokenizer, page[:16])
        print(f"{tokenizer.decode(page[:16])!r} continues with\n{text!r}\n", flush=True)

    def show(step, value):
        print(f"\rstep {step + 1:3} of {chosen.steps}, loss {value:.2f}", end="", flush=True)
        if (step + 1) % 10 == 0:
            with ta.no_grad():
                print(f", {loss(model, page, start=half).item():.2f} on what is held out")

    report("before")
    begun = time.perf_counter()
    settings["checkpoint"] = chosen.checkpoint
    fine_tune(model, adapters, learned, chosen.steps, chosen.lr, show, **settings)
    print(f"\n{time.perf_counter() - begun:.0f} s")
    report("after")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
