"""Ablate attention heads, patch activations, and read a logit lens. Saves three pictures in runs/.

The language model is from language_model.py. If its checkpoint is missing, it is trained (3 minutes).
Letters: B batch, T tokens, E embedding, V characters."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _manual import Manual
from data_parallel import Digits, load
from language_model import HALF, QUICK, SETTINGS, LanguageModel, train

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import optim


def picture(name, title, values, rows, columns, letters=()):
    """Save a heat map (rows, columns), with a letter in each cell if `letters` is given."""
    _, axes = plt.subplots(figsize=(2.5 + 0.4 * len(columns), 3), layout="constrained")
    plt.colorbar(axes.imshow(values, cmap="cividis", aspect="auto"))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    for (i, j), letter in np.ndenumerate(letters):
        axes.text(j, i, letter, ha="center", va="center", color="white", weight="bold")
    plt.title(title)
    plt.savefig(f"runs/{name}.png", dpi=120)
    print(f"wrote runs/{name}.png")


def ablate_heads(steps):
    """Zero one head's columns of out_proj's input, and measure how much the loss rises."""
    (x, y), model = load(), Digits()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = np.random.default_rng(step).integers(0, 1437, 64)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    loss = ta.no_grad(lambda: F.cross_entropy(model(x[1437:]), y[1437:]).item())
    rise, whole = np.zeros((2, 4)), loss()
    for layer, head in np.ndindex(rise.shape):
        keep = (np.arange(64) // 16 != head).astype(np.float32)  # (E,), 16 columns for each head
        out_proj = model.encoder.layers[layer].self_attn.out_proj
        with out_proj.register_forward_pre_hook(lambda _, args: args[0] * keep):  # noqa: B023
            rise[layer, head] = loss() - whole
    picture("heads", f"Loss {whole:.2f}: rise without head 0 to 3", rise, "01", "0123")


@ta.no_grad()
def patch_and_read(model, manual, right="of the [name", wrong='of the "name', letter="]"):
    """Replace activations of `wrong` with those of `right`, and predict from every layer of `right`."""
    ids, others, (answer,) = [manual.encode(right)], [manual.encode(wrong)], manual.encode(letter)
    score = lambda: F.log_softmax(model(others))[0, -1, answer].item()
    with ta.activations(model, "encoder.layers.?") as seen:
        model(ids)
    names = list(seen)
    clean = [activation.output.numpy() for activation in seen.values()]  # (1, T, E) of each layer
    gain, before = np.zeros((len(names), len(right))), score()
    for layer, place in np.ndindex(gain.shape):
        here = (np.arange(len(right)) == place)[:, None]  # (T, 1)
        swap = lambda y: np.where(here, clean[layer], y)  # noqa: B023
        with ta.patch(model, {names[layer]: swap}):
            gain[layer, place] = score() - before
    picture("patching", f"Nats gained by {letter!r}, patched from {right!r}", gain, names, wrong)
    p = [F.softmax(model.scores(model.encoder.norm(y)))[0].numpy() for y in clean]  # (T, V)
    letters = [list(manual.decode(layer.argmax(-1)).replace(" ", "_")) for layer in p]
    picture("lens", "Likeliest next character", np.max(p, -1), names, right, letters)


if __name__ == "__main__":
    ta.manual_seed(0)
    Path("runs").mkdir(exist_ok=True)
    ablate_heads(40 if QUICK else 300)
    checkpoint, manual = Path("runs/language-model.safetensors"), Manual(tail_multiple=HALF)
    model = LanguageModel(manual.vocabulary, *[SETTINGS[k] for k in ("d_model", "heads", "layers")])
    if checkpoint.exists() or train(model, manual, SETTINGS, checkpoint, resume=False):
        ta.load_checkpoint(checkpoint, model=model)
        patch_and_read(model, manual)
