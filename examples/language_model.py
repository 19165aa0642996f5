"""A language model: a causal Transformer reads Python's own manual character by character, and learns
to continue it.

    # trains for about three minutes, then writes
    python examples/language_model.py
    # continues the training after Ctrl-C, or only writes if training is complete
    python examples/language_model.py --resume
    python examples/language_model.py --resume --prompt "The class " --temperature 0.5 --seed 7
    python examples/language_model.py --steps 5000                  # trains longer, writes better

The last tenth of the manual is held out. The program prints the loss on it in nats per character,
compared with the losses of simple models that count which character follows the last one, two, three
or four in the rest of the manual.

Letters: B sequences, T characters, E embedding, V characters of the vocabulary.
"""

import argparse
import importlib.util
import json
import math
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from _manual import Manual, n_gram_losses

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn, optim
from tinygrad_attn.files import load_with_metadata
from tinygrad_attn.random import default_generator

QUICK = os.environ.get("TINYGRAD_ATTN_QUICK") == "1"
CONTEXT = 128
"""How many characters the model sees at once."""
HALF = CONTEXT // 2
EARLY = 64
"""How many held-out half contexts are used to evaluate the model during training; few, to save time."""

SETTINGS = {"steps": 1200, "batch": 16, "lr": 3e-3, "d_model": 128, "heads": 4, "layers": 3}
if QUICK:
    SETTINGS |= {"steps": 60, "batch": 8, "d_model": 32, "layers": 1}


class LanguageModel(nn.Module):
    """Scores of the next character after each one. (B, T) numbers of characters -> (B, T, V)"""

    def __init__(self, vocabulary, d_model, heads, layers):
        self.embed = nn.Embedding(vocabulary, d_model)
        self.positions = nn.LearnedPositionalEncoding(CONTEXT, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model,
            heads,
            4 * d_model,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d_model))
        self.scores = nn.Linear(d_model, vocabulary, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(
                    p, std=0.02
                )  # small, so that all characters are about equally likely at first

    def forward(self, characters, cache=None):
        """With a cache, `characters` are only those that are not in the cache yet."""
        x = self.positions(
            self.embed(characters), offset=0 if cache is None else cache.length
        )  # (B, T, E)
        return self.scores(self.encoder(x, is_causal=True, cache=cache))  # (B, T, V)


def tail_loss(model, manual, windows=None):
    """Return the nats per character of the whole tail, or of its first `windows` half contexts. Each
    character is predicted from at least half a context.
    """
    starts = np.arange(manual.start - HALF - 1, len(manual.all) - CONTEXT, HALF)[:windows]
    total = 0.0
    with ta.no_grad():
        for some in np.array_split(starts, math.ceil(len(starts) / 32)):
            text = manual.all[some[:, None] + np.arange(CONTEXT + 1)]  # (B, T + 1)
            scores = model(text[:, :-1])[:, HALF:]  # (B, T / 2, V)
            total += F.cross_entropy(scores.mT, text[:, HALF + 1 :], reduction="sum").item()
    return total / (len(starts) * HALF)


# ---- Training


def train(model, manual, settings, checkpoint, resume):
    """Train on random pieces of the head. Return True if training is complete, or False after Ctrl-C.
    In both cases, the last step is saved.
    """
    steps = settings["steps"]
    optimizer = optim.AdamW(
        model.parameters(), lr=settings["lr"], betas=(0.9, 0.99), weight_decay=0.1
    )
    schedule = optim.warmup_cosine(
        optimizer, warmup_steps=steps // 20, total_steps=steps, min_lr=settings["lr"] / 20
    )
    step = (
        ta.load_checkpoint(checkpoint, model=model, optimizer=optimizer, schedule=schedule).step
        if resume
        else 0
    )

    def save():
        ta.save_checkpoint(
            checkpoint,
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            step=step,
            extra=settings,
        )

    every = math.ceil(steps / 10)
    with ctrl_c_noticed() as stopped, Progress(step, steps) as progress:
        while step < steps and not stopped:
            starts = default_generator().integers(0, manual.start - CONTEXT, settings["batch"])
            text = manual.all[starts[:, None] + np.arange(CONTEXT + 1)]  # (B, T + 1)
            loss = F.cross_entropy(model(text[:, :-1]).mT, text[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % every == 0 or step == steps:
                progress.note(f"{tail_loss(model, manual, windows=EARLY):.3f}")
                save()
            progress.show(step, loss.item())
        if stopped:
            save()
    return step == steps


@contextmanager
def ctrl_c_noticed():
    """Inside the block, the first Ctrl-C only fills the yielded list, so that the current step is
    completed. The second Ctrl-C interrupts the program.
    """
    stopped = []

    def notice(*_):
        stopped.append(True)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


class Progress:
    """A progress bar on a terminal, or up to ten plain lines in a log."""

    def __init__(self, done, steps):
        self.steps, self.begun, self.noted, self.bar = steps, time.perf_counter(), None, None
        if sys.stderr and sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
            from tqdm import tqdm

            self.bar = tqdm(
                total=steps, initial=done, desc="  learning", unit="step", dynamic_ncols=True
            )

    def note(self, kept_out):
        """Set the current loss on the start of the tail, which is shown with the next step."""
        self.noted = kept_out

    def show(self, step, loss):
        if self.bar is not None:
            self.bar.set_postfix_str(
                f"loss {loss:.3f}" + (f", held out {self.noted}" if self.noted else ""),
                refresh=False,
            )
            self.bar.update()
        elif self.noted:
            print(
                f"  step {step:5d} of {self.steps}, loss {loss:.3f}, held out {self.noted}, "
                f"{time.perf_counter() - self.begun:.0f} s",
                flush=True,
            )
            self.noted = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()


# ---- Writing


def write(model, start, count, choose, cached=True):
    """Continue `start` with `count` characters, each chosen by `choose` from the scores. Return their
    numbers and the scores (count, V).

    With a cache, the model reads only the new characters. When the context is full, it starts again
    with the last half.
    """
    window = unread = list(start)[-CONTEXT:]
    cache = nn.KeyValueCache() if cached else None
    numbers, all_scores = [], []
    with ta.no_grad():
        for _ in range(count):
            scores = model(np.array([unread if cached else window]), cache)[0, -1].numpy()  # (V,)
            numbers.append(choose(scores))
            all_scores.append(scores)
            window, unread = [*window, numbers[-1]], numbers[-1:]
            if len(window) > CONTEXT:
                window = unread = window[-HALF:]
                cache = nn.KeyValueCache() if cached else None
    return numbers, np.stack(all_scores)


def greedy(scores):
    """Choose the likeliest character."""
    return int(scores.argmax())


def sampler(temperature, top_k, seed):
    """Draw from softmax(scores / temperature) among the `top_k` likeliest characters. At a lower
    temperature, the likeliest characters are chosen more often.
    """
    rng = np.random.default_rng(seed)

    def choose(scores):
        likeliest = np.argsort(-scores)[:top_k]
        p = F.softmax(scores[likeliest].astype(np.float64) / temperature)
        return int(rng.choice(likeliest, p=p))

    return choose


def compare_with_and_without_cache(model, start, count):
    """Write the same characters without and with the cache, and return whether the scores agree."""
    numbers, scores = write(model, start, count, greedy)
    speeds = []
    for cached in (False, True):
        again, begun = iter(numbers), time.perf_counter()
        _, others = write(model, start, count, lambda scores: next(again), cached)  # noqa: B023
        speeds.append(f"{count / (time.perf_counter() - begun):.0f}")
        if not cached:
            same = np.allclose(scores, others, rtol=1e-4, atol=1e-4)
            difference = np.abs(scores - others).max()
    print(
        f"{'true      ' if same else 'false     '} the key/value cache changes no score (largest "
        f"difference {difference:.0e})\n           characters per second: {speeds[0]} without it, "
        f"{speeds[1]} with it"
    )
    return same


# ---- The program


def read_options():
    options = argparse.ArgumentParser(
        description="A causal Transformer learns to write like Python's manual."
    )
    options.add_argument("--steps", type=int, help=f"training steps ({SETTINGS['steps']})")
    options.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed for the initial weights, the batches and the sampled text (0)",
    )
    options.add_argument(
        "--prompt", default="The value of the ", help="the start of the generated text"
    )
    options.add_argument(
        "--temperature", type=float, default=0.7, help="temperature of the sampled text (0.7)"
    )
    options.add_argument(
        "--top-k", type=int, default=20, help="sample among this many characters (20)"
    )
    options.add_argument(
        "--length", type=int, default=150 if QUICK else 400, help="characters to write (400)"
    )
    options.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    options.add_argument("--checkpoint", type=Path, default=Path("runs/language-model.safetensors"))
    chosen = options.parse_args()
    if (
        min(chosen.length, chosen.top_k, 1 if chosen.steps is None else chosen.steps) < 1
        or not chosen.temperature > 0
        or not chosen.prompt
    ):
        options.error(
            "--steps, --length and --top-k must be at least 1, --temperature must be above 0, and "
            "--prompt must not be empty"
        )
    if chosen.seed < 0:
        options.error("--seed must not be negative")
    if chosen.checkpoint.is_dir():
        options.error(
            f"--checkpoint must be the name of a file, but {str(chosen.checkpoint)!r} is a folder"
        )
    if chosen.resume and not chosen.checkpoint.exists():
        options.error(
            f"there is nothing to resume: no file {str(chosen.checkpoint)!r}; leave out --resume"
        )
    return chosen


def settings_of(chosen):
    """The settings of this run, or of the resumed run."""
    if not chosen.resume:
        return SETTINGS | {"steps": chosen.steps or SETTINGS["steps"]}
    settings = json.loads(load_with_metadata(chosen.checkpoint)[1].get("extra", "null"))
    if not isinstance(settings, dict) or settings.keys() != SETTINGS.keys():
        raise ValueError(
            f"{str(chosen.checkpoint)!r} was not saved by this program; leave out --resume, or "
            "choose another file"
        )
    if chosen.steps not in (None, settings["steps"]):
        sys.exit(
            f"{str(chosen.checkpoint)!r} is from a run of {settings['steps']} steps, and its learning "
            "rate schedule has this length; leave out --steps, or leave out --resume to start "
            "again."
        )
    return settings


def main():
    chosen = read_options()
    if sys.stdout:  # None if it is closed, as with pythonw
        sys.stdout.reconfigure(
            errors="replace"
        )  # a pipe on Windows cannot encode every character of the manual
    if importlib.util.find_spec("safetensors") is None:
        print(
            "skipped: safetensors, which is needed for checkpoints, is not installed: pip install "
            "safetensors"
        )
        return
    manual = Manual(tail_multiple=HALF)
    try:
        prompt = manual.encode(chosen.prompt)
    except ValueError as error:
        sys.exit(f"--prompt: {error}")
    try:
        settings = settings_of(chosen)
        chosen.checkpoint.parent.mkdir(
            parents=True, exist_ok=True
        )  # fail now, not after the training
    except (OSError, ValueError) as error:
        sys.exit(f"--checkpoint: {error}")
    ta.reuse_memory()
    ta.manual_seed(chosen.seed)
    model = LanguageModel(
        manual.vocabulary, settings["d_model"], settings["heads"], settings["layers"]
    )
    print(
        f"Python's manual: {len(manual.all):,} characters, {manual.vocabulary} different ones; the "
        f"last {len(manual.tail):,} are held out."
    )
    print(f"The model: {sum(p.size for p in model.parameters()):,} parameters.")
    print(
        f"During training it is evaluated on the first {EARLY * HALF:,} held-out characters, and at the "
        "end on all of them."
    )
    fresh, even = tail_loss(model, manual, windows=EARLY), math.log(manual.vocabulary)
    sound = abs(fresh - even) < 0.1
    print(
        f"{'true      ' if sound else 'false     '} before training, the loss is about "
        f"ln({manual.vocabulary}) = {even:.2f} nats per character: {fresh:.2f}",
        flush=True,
    )

    if not train(model, manual, settings, chosen.checkpoint, chosen.resume):
        print(
            f'\nStopped. To continue: python "{sys.argv[0]}" --resume --checkpoint "{chosen.checkpoint}"'
        )
        sys.exit(130)

    print("\nNats per held-out character:")
    ours, counted = tail_loss(model, manual), n_gram_losses(manual)
    for runs, loss in zip(
        ("single characters", "pairs", "triples", "four in a row", "five in a row"), counted
    ):
        print(
            f"  {loss:.2f}  counting "
            f"{runs}{'' if ours < loss else ' (still better than the model)'}"
        )
    print(f"  {ours:.2f}  the model\n")
    same = compare_with_and_without_cache(model, prompt, chosen.length)

    for how, choose in (
        ("always the likeliest character", greedy),
        (
            f"drawn from the {chosen.top_k} likeliest, temperature {chosen.temperature:g}",
            sampler(chosen.temperature, chosen.top_k, chosen.seed),
        ),
    ):
        numbers, _ = write(model, prompt, chosen.length, choose)
        print(f"\n---- {how}\n{chosen.prompt}{manual.decode(numbers)}")
    if not (sound and same):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # outside training, which handles Ctrl-C itself
        print("\nStopped. An existing checkpoint is unchanged.")
        sys.exit(130)
