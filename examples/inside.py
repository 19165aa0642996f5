"""Look inside a real language model: write runs/inside.html, one page that works without a network.

    python examples/inside.py                               # three prompts, about a minute
    python examples/inside.py "The capital of France is"    # prompts of your own

For each prompt, the page shows which tokens the answer depends on, what every layer would say next
(a logit lens), and the attention of every head with the answer's change when the head is replaced.
It finds heads that continue a repetition ("induction heads", Olsson et al., 2022) and heads that
copy a name, tests both on other texts beside random heads of the same layers, and patches one
sentence into another. Letters: B batch, T tokens, E embedding, V vocabulary, L layers, H heads.
"""

import base64
import html
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from _smollm import load, missing

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn.viz.page import as_json, page

SENTENCE = "When {0} and {1} went to the store, {1} gave a drink to"
PROMPTS = SENTENCE.format("Mary", "John"), "The capital of France is", "Mr. Dursley met Mr. Durs"
PAIRS = "Mary John", "Anna Mark", "Paul Lucy", "Emma Jack", "Luke Rose", "Jane Adam", "Karl Ruth"
LONGEST = 60  # tokens of a prompt: the page has a byte for each head, query and earlier key


# ---- what the model computes


def next_log_p(model, x, first=0):
    """Return log p (B, V) of the next token from the input x (B, T, E) of the layer `first`."""
    for layer in model.layers[first:]:
        x = layer(x)
    return F.log_softmax(model.scores(x[:, -1:]))[:, 0]


def watch(model, tokens):
    """Return the input of each layer and the last output, (L + 1, T, E), and weights (L, H, T, T)."""
    with ta.activations(model, "embed_tokens", "layers.*") as seen:
        model([tokens], last=1)
    layers = [f"layers.{n}" for n in range(len(model.layers))]
    states = [seen[name].output.numpy()[0] for name in ("embed_tokens", *layers)]
    return np.stack(states), np.stack([seen[f"{name}.self_attn"].weights[0] for name in layers])


def head_outputs(model, tokens):
    """Return the outputs of all heads, side by side, (L, T, H D)."""
    with ta.activations(model, "layers.*.heads") as seen:
        model([tokens], last=1)
    return np.stack([heads.output.numpy()[0] for heads in seen.values()])


def replaced(model, heads, values):
    """Replace outputs of heads where heads (B, L, H) is True, in a `with` block.

    The values are (L, T, H D), or (L, 1, H D) for the same at each token.
    """
    patches = {}
    for n in np.flatnonzero(heads.any(axis=(0, 2))):
        mask = np.repeat(heads[:, n], model.head_dim, axis=-1)[:, None]  # (B, 1, H D)
        new = lambda y, mask=mask, value=values[n]: np.where(mask, value, y)
        patches[f"layers.{n}.self_attn.heads"] = new
    return ta.patch(model, patches)


def ablate(model, states, score, values):
    """Return score(log p) for each head when its output is replaced alone, (L, H); see `replaced`."""
    (layers, heads), scores = (len(model.layers), model.heads), []
    for n in range(layers):  # the layers before n do not change
        alone = np.zeros((heads, layers, heads), bool)  # in sequence h, head h
        alone[:, n] = np.eye(heads)
        with replaced(model, alone, values):
            log_p = next_log_p(model, np.repeat(states[n][None], heads, axis=0), n)
        scores.append(score(log_p).numpy())
    return np.stack(scores)


# ---- one prompt


@ta.enable_grad()
def saliency(model, x, answer):
    """Return how log p of the answer depends on the embeddings x (T, E): |gradient|, gradient . x."""
    x = ta.Tensor(x, requires_grad=True)
    next_log_p(model, x[None])[0, answer].backward()
    return {"gradient": np.linalg.norm(x.grad, axis=-1), "times": (x.grad * x).sum(axis=-1)}


def look(model, tokenizer, prompt, means):
    """Return everything about one prompt, for the page."""
    tokens = tokenizer.encode(prompt).ids
    word = lambda token: tokenizer.decode([int(token)], skip_special_tokens=False)
    states, weights = watch(model, tokens)
    log_p = next_log_p(model, states[-1:], len(model.layers))[0].numpy()
    answer = int(log_p.argmax())

    def lens(x):  # five likeliest next tokens for each state (T, E)
        for p in F.softmax(model.scores(x)).numpy():
            top = sorted(np.argpartition(-p, 5)[:5], key=lambda i: -p[i])  # noqa: B023
            yield [(word(i), few(p[i])) for i in top]

    effect = lambda values: ablate(model, states, lambda log_p: log_p[:, answer], values)
    effects = {"mean": effect(means), "zero": effect(np.zeros_like(means))}
    least = np.unravel_index(effects["mean"].argmin(), effects["mean"].shape)
    bytes_ = np.round(255 * weights[..., *np.tril_indices(len(tokens))]).astype(np.uint8)  # q >= k
    return {
        "tokens": [word(token) for token in tokens],
        "answer": word(answer),
        "lens": [list(lens(x)) for x in states],
        "saliency": {name: few(x) for name, x in saliency(model, states[0], answer).items()},
        "head": [int(i) for i in least],  # the one that the page begins with
        "effects": {name: few(x - log_p[answer]) for name, x in effects.items()},
        "weights": base64.b64encode(bytes_.tobytes()).decode(),
    }


def few(numbers):
    """Round to three places, for the page."""
    return np.round(np.asarray(numbers, float), 3).tolist()


# ---- do these heads matter?


def compare(model, score, count, values, measure, draws=20):
    """Return measure() of the whole model, without the best heads, and without random others.

    The best have the highest score (L, H). The others are as many heads of the same layers.
    """
    rng, chosen, numbers = np.random.default_rng(0), score >= np.sort(score, None)[-count], []
    for draw in range(draws + 2):  # first no heads, then those chosen
        order = np.where(chosen, 2, rng.random(chosen.shape)).argsort(-1).argsort(-1)
        others = (order < chosen.sum(axis=-1, keepdims=True)) & ~chosen
        heads = np.zeros_like(chosen) if draw == 0 else chosen if draw == 1 else others
        with replaced(model, heads[None], values):
            numbers.append(few(measure()))
    whole, without, *controls = numbers
    heads = np.argwhere(chosen).tolist()
    return {"heads": heads, "whole": whole, "without": without, "controls": sorted(controls)}


def loss(model, tokens, start):
    """Return the mean of -log p of tokens[start:], each from those before it."""
    rows = model([tokens])[0, start - 1 : -1]
    return F.cross_entropy(rows, np.array(tokens[start:])).item()


def induction(model, means, text, n=32):
    """Score all heads on n random tokens and their repetition. Test the best on other tokens."""
    rng, size = np.random.default_rng(0), len(model.embed_tokens.weight)
    tokens, other = ([*rng.integers(size // 50, size // 2, n)] * 2 for _ in range(2))
    weights = watch(model, tokens)[1]
    back = lambda k: np.diagonal(weights, -k, -2, -1)[..., -n:].mean(axis=-1)
    scores = {"induction": back(n - 1), "previous": back(1), "first": weights[..., 1:, 0].mean(-1)}
    test = lambda *how: compare(model, scores["induction"], 8, means, *how)
    repeated, ordinary = (lambda: loss(model, other, n + 1)), (lambda: loss(model, text, 1))
    tests = {"repeated": test(repeated), "text": test(ordinary, 3)}
    return {name: few(x) for name, x in scores.items()}, tests


def sentences(tokenizer, *pairs):
    """Return the sentences of pairs of names, (B, T), and a function that compares their endings.

    From log p (B, V) it computes log p of the first name, which is right, minus that of the second.
    """
    encode = lambda text: tokenizer.encode(text).ids
    first, second = np.array([[encode(f" {name}")[-1] for name in pair] for pair in pairs]).T
    pick = lambda log_p, names: log_p[np.arange(len(log_p)), names]
    score = lambda log_p: pick(log_p, first) - pick(log_p, second)
    return [encode(SENTENCE.format(*pair)) for pair in pairs], score


def patching(model, tokenizer):
    """Put parts of one sentence into another, whose names are exchanged, one at a time.

    The effect on the score is 0 if it stays that of the other sentence, 1 if it becomes the first's.
    Return the effects of states (L, T), for the page, and of heads at all tokens (L, H).
    """
    names = PAIRS[0].split()
    (given, taking), _ = sentences(tokenizer, names, names[::-1])
    _, score = sentences(tokenizer, names)
    states, old = watch(model, given)[0], watch(model, taking)[0]
    high, low = (score(next_log_p(model, x[:1])).item() for x in (states, old))
    here, scores = np.eye(len(given), dtype=bool)[..., None], []  # in sequence t, position t
    for n in range(len(model.layers)):
        patch = lambda y, new=states[n + 1]: np.where(here, new, y)
        with ta.patch(model, {f"layers.{n}": patch}):
            log_p = next_log_p(model, np.repeat(old[n][None], len(given), axis=0), n)
        scores.append(score(log_p).numpy())
    share = lambda scores: (np.array(scores) - low) / (high - low)
    words = [[tokenizer.decode([token]) for token in tokens] for tokens in (given, taking)]
    pairs = [[token.strip() for token in pair] for pair in zip(*words)]
    places = [there if there == here else f"{there} from {here}" for here, there in pairs]
    shown = {"sentences": words, "places": places, "names": names, "ends": few([high, low])}
    shown["effects"] = few(share(scores))
    return shown, share(ablate(model, old, score, head_outputs(model, given)))


def other_names(model, tokenizer, carried, means):
    """Test the heads that carry most of the name on sentences with other names."""
    tokens, score = sentences(tokenizer, *(pair.split() for pair in PAIRS[1:]))
    mean = lambda: score(next_log_p(model, model.embed_tokens(tokens))).mean().item()
    return compare(model, carried, 3, means, mean)


# ---- the page


def sentences_of(data):
    """Return the values in the page's sentences about tests and patching."""
    patches, carried = data["patching"], np.array(data["scores"]["names"])
    given, other = ("".join(words) for words in patches["sentences"])
    (right, wrong), (most, least), (layers, heads) = (
        patches["names"],
        patches["ends"],
        carried.shape,
    )
    found = dict(given=given, other=other, right=right, wrong=wrong, most=most, least=least)
    shares = [f"{carried[tuple(pair)]:.0%}" for pair in data["tests"]["names"]["heads"]]
    for name, test in data["tests"].items():
        low, *_, high = test["controls"]
        found |= {f"{name}_{key}": test[key] for key in ("whole", "without")}
        found[f"{name}_heads"] = ", ".join(f"{layer}.{head}" for layer, head in test["heads"])
        found[f"{name}_others"] = f"{np.mean(test['controls']):.2f} ({low} to {high})"
    found |= {"layers": layers, "heads": heads, "carried": ", ".join(shares)}
    return {name: html.escape(str(value)) for name, value in found.items()}


@ta.no_grad()
def inside(model, tokenizer, prompts):
    """Return the page about these prompts. ValueError for one that is too short or too long."""
    for prompt in prompts:
        if not 2 <= len(tokenizer.encode(prompt).ids) <= LONGEST:
            raise ValueError(f"a prompt has 2 to {LONGEST} tokens; {prompt!r} has fewer or more.")
    text = tokenizer.encode(topics["class"]).ids[:256]
    means = head_outputs(model, text)[:, 1:].mean(axis=1, keepdims=True)
    print("looking for heads that continue a repetition or carry a name, for half a minute ...")
    scores, tests = induction(model, means, text)
    patches, carried = patching(model, tokenizer)
    scores["names"] = few(carried)
    tests["names"] = other_names(model, tokenizer, carried, means)
    data = {"scores": scores, "tests": tests, "patching": patches, "prompts": []}
    for prompt in prompts:
        print(f"looking at {prompt!r} ...", flush=True)
        data["prompts"].append(look(model, tokenizer, prompt, means))
    data["said"] = sentences_of(data)
    return page("Inside SmolLM2-135M", "inside", data=as_json(data), **data["said"])


if __name__ == "__main__":
    if sentence := missing():
        sys.exit(print(sentence))
    try:
        made = inside(*load(), sys.argv[1:] or PROMPTS)
    except (KeyboardInterrupt, ValueError) as error:
        sys.exit(str(error) or "\nStopped.")
    Path("runs").mkdir(exist_ok=True)
    made.save("runs/inside.html")
    print(f"wrote runs/inside.html, {len(made.encode()) / 1e3:.0f} kB")
