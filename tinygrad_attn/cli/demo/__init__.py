"""`python -m tinygrad_attn demo`: train a Transformer on images of digits."""

import copy
import math
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ... import functional as F
from ... import nn, no_grad, optim, record_attention, reuse_memory, set_num_threads
from ...check import gradcheck
from ...random import manual_seed
from ...tensor import Tensor
from .digits import CLASSES, PATCH_NUMBERS, TOKENS, Split, baselines, load_split, patches, wiggle

BATCH = 64


class DigitClassifier(nn.Module):
    """A Transformer that maps 16 patches to the scores of ten digits, (B, 16, 4) -> (B, 10)."""

    def __init__(self):
        self.embed = nn.Linear(PATCH_NUMBERS, 64)
        self.positions = nn.LearnedPositionalEncoding(TOKENS, 64)
        # The std is large, because the position of a stroke matters as much as its shape.
        nn.init.normal_(self.positions.weight, std=0.5)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(64))
        self.classify = nn.Linear(TOKENS * 64, CLASSES)

    def forward(self, x):
        x = self.encoder(self.positions(self.embed(x)))  # (B, 16, E)
        return self.classify(x.reshape(len(x), -1))  # (B, 10)


@dataclass
class Training:
    """One training run: the model, and its losses and accuracies along the way."""

    split: Split
    model: DigitClassifier
    losses: list[float]  # one per update
    accuracies: list[float]  # one per epoch, on test images, in %
    seconds: float = 0.0


def predict(model, images):
    """Return the probabilities of the ten digits for each image, (N, 8, 8) -> (N, 10)."""
    with no_grad():
        return F.softmax(model(patches(images)), axis=-1).numpy()


def picture(image):
    """Draw an image of ink, from 0 to 1, as SVG, and return its address."""
    squares = [
        f'<path d="M{j} {i}h1v1h-1z" opacity="{ink:.4g}"/>'
        for (i, j), ink in np.ndenumerate(image) if ink
    ]  # fmt: skip
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8" shape-rendering="crispEdges">'
    return "data:image/svg+xml," + quote(f"{head}{''.join(squares)}</svg>")


def views(model, images):
    """Return what a page shows of each image: a picture, the chances of each digit, every head's
    attention, and the patch with the most ink.
    """
    with record_attention() as seen:
        chances = predict(model, images)
    starts = patches(images).sum(axis=2).argmax(axis=1)
    return [
        {
            "picture": picture(image),
            "start": int(starts[i]),
            "scores": chances[i].round(4).tolist(),
            "maps": {
                f"layer {layer}, head {head}": weights.round(3).tolist()
                for layer, (call,) in enumerate(seen.values(), 1)
                for head, weights in enumerate(np.asarray(call)[i], 1)
            },
        }
        for i, image in enumerate(images)
    ]


def loss_of(model, images, labels):
    """Return the cross-entropy of the model's scores for these images."""
    return F.cross_entropy(model(patches(images)), labels, label_smoothing=0.1)


def train(split, seed=0, epochs=20):
    """Train a model, with all random numbers drawn from the seed."""
    from tqdm import tqdm

    rng, n = manual_seed(seed), len(split.train_labels)
    run = Training(split, DigitClassifier(), [], [])
    parameters, steps = list(run.model.parameters()), math.ceil(n / BATCH) * epochs
    optimizer = optim.AdamW(parameters, lr=3e-3, weight_decay=0.05)
    schedule = optim.warmup_cosine(optimizer, steps // 10, steps)
    begun = time.perf_counter()
    for _ in tqdm(range(epochs), f"  {split.name}", unit="epoch", disable=None):
        order, images = rng.permutation(n), wiggle(split.train_images, rng)
        for batch in np.split(order, range(BATCH, n, BATCH)):
            loss = loss_of(run.model, images[batch], split.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            run.losses.append(loss.item())
        right = predict(run.model, split.test_images).argmax(axis=1) == split.test_labels
        run.accuracies.append(100 * float(np.mean(right)))
    run.seconds = time.perf_counter() - begun
    return run


def run_demo(out, seed, epochs, runs):
    """Train on `runs` random splits, check the gradients, and write `out`/report.html.

    With the default of three runs, also trains on the ordered split. Returns 1 if a gradient is
    wrong, else 0.
    """
    if not all(map(find_spec, ("sklearn", "matplotlib", "tqdm"))):
        name = "tinygrad_attn[examples,viz]"
        raise ValueError(f'the demo needs additional libraries: pip install "{name}"')
    from .report import accuracy_table, write_report

    path = Path(out, "report.html").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    reuse_memory()
    set_num_threads(1)  # a second thread gains nothing with matrices this small
    print("Digits of 8 x 8 pixels, as 16 patches: 1,437 images to train on, 360 to test on.")
    done: list[Training] = []
    for number in [*range(seed, seed + runs)] + [None] * (runs == 3):
        run = train(load_split(number), seed if number is None else number, epochs)
        text = f"loss {run.losses[-1]:.3f}, test {run.accuracies[-1]:.2f} %, {run.seconds:.0f} s"
        print(f"  {run.split.name}: {epochs} epochs, {text}", flush=True)
        done.append(run)
    others = [baselines(run.split) for run in done]
    print(f"\nRight answers on the unseen images, in %:\n{accuracy_table(done, others)}")
    check = check_gradients(done[0])
    agree = f"{len(check.entries)} parameter tensors agree with finite differences"
    print(f"\nGradient check of the trained model: {agree if check else check}")
    write_report(path, done, others, check)
    print(f"\nThe report, to open in a browser:\n  {path}")
    return int(not check)


def check_gradients(run, images=8):
    """Check the gradients of a trained model's loss, in float64 and along random directions."""
    model = copy.deepcopy(run.model).astype(np.float64).eval()
    some = run.split.test_images[:images].astype(np.float64), run.split.test_labels[:images]
    params = dict(model.named_parameters())
    loss = lambda: loss_of(model, *some)
    return gradcheck(loss, params=params, fast_mode=True, raise_exception=False)
