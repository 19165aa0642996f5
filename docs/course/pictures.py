"""Makes the pictures of the course by running what the chapters describe. `python
docs/course/pictures.py` takes a few seconds.
"""

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.cli.demo import digits

IMAGES = Path(__file__).resolve().parent.parent / "images"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito
matplotlib.rcParams |= {
    "svg.hashsalt": "course",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
}


def save(figure: plt.Figure, name: str) -> None:
    """Save as SVG without a date, so that the same picture gives the same file."""
    figure.savefig(IMAGES / f"course_{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def v_curve() -> None:
    """Chapter 0: the error of a measured slope against eps, for sin at 1."""
    figure, ax = plt.subplots(figsize=(6, 3.4))
    for dtype, two_sided, colour, marker in (
        (np.float64, True, BLUE, "o"),
        (np.float64, False, GREEN, "^"),
        (np.float32, True, ORANGE, "s"),
    ):
        eps = np.logspace(-12 if dtype is np.float64 else -7, -0.5, 40)
        x = dtype(1)
        h = eps.astype(dtype)
        slope = (
            (np.sin(x + h) - np.sin(x - h)) / (2 * h)
            if two_sided
            else (np.sin(x + h) - np.sin(x)) / h
        )
        error = np.maximum(np.abs(slope.astype(np.float64) - np.cos(1.0)), 1e-14)
        name = f"{np.dtype(dtype)}, {'both sides' if two_sided else 'one side'}"
        ax.loglog(eps, error, marker=marker, markersize=3.5, linewidth=1, color=colour, label=name)
    ax.axvline(1e-6, color="grey", linewidth=0.8, linestyle=":")
    ax.text(1.3e-6, 3e-13, "gradcheck's eps", color="grey", fontsize=9)
    ax.set_ylim(bottom=1e-13)
    ax.set(xlabel="eps", ylabel="error of the slope of sin at 1")
    ax.legend(frameon=False)
    save(figure, "v-curve")


def diamond() -> None:
    """Chapter 2: a tensor that is used twice."""
    x = Tensor(1.5, requires_grad=True)
    x.name = "x"
    a = x * 2.0
    loss = a * a.tanh()
    loss.backward(retain_graph=True)
    ta.viz.graph(loss).save(IMAGES / "course_diamond.svg")


def complex_step() -> None:
    """Chapter 3b: the error of central differences, the complex step and a dual number against the step,
    for e^x sin(x) at 1.
    """
    Dual = runpy.run_path(
        str(Path(__file__).resolve().parent / "exercises" / "solutions" / "dual.py")
    )["Dual"]
    f: Any = lambda x: np.exp(x) * np.sin(x)
    slope = np.e * (np.sin(1) + np.cos(1))
    h = np.logspace(-14, -0.5, 55)
    figure, ax = plt.subplots(figsize=(6, 3.4))
    error = lambda found: np.maximum(np.abs(found - slope), 1e-16)  # 0 has no logarithm
    for name, found, colour, marker, size in (
        (
            "central difference",
            (f(1 + h) - f(1 - h)) / (2 * h),
            BLUE,
            "o",
            6,
        ),  # large, to stay visible below the other
        ("complex step", f(1 + 1j * h).imag / h, ORANGE, "s", 3),
    ):
        ax.loglog(
            h, error(found), marker=marker, markersize=size, linewidth=1, color=colour, label=name
        )
    ax.axhline(
        error(f(Dual(1.0, 1.0)).tangent),
        color=GREEN,
        linestyle="--",
        linewidth=1.5,
        label="dual number, without a step",
    )
    ax.set(xlabel="h", ylabel=r"error of the slope of $e^x\,\sin\,x$ at 1")
    ax.legend(frameon=False, fontsize=9, loc="upper center")
    save(figure, "complex-step")


def softmax_jacobian() -> None:
    """Chapter 6: every output depends on every score."""
    x = np.array([2.0, 1.0, 0.0, -1.0])
    jacobian = ta.jacobian(F.softmax, x)
    figure, ax = plt.subplots(figsize=(3.4, 3))
    image = ax.imshow(jacobian, cmap="PuOr", vmin=-0.4, vmax=0.4)
    for i, j in np.ndindex(4, 4):
        ax.text(j, i, f"{jacobian[i, j]:.2f}", ha="center", va="center", fontsize=9)
    ax.set(
        xticks=range(4),
        yticks=range(4),
        xticklabels=x,
        yticklabels=F.softmax(x).round(2),
        xlabel="score",
        ylabel="probability",
    )
    figure.colorbar(image, ax=ax, shrink=0.8)
    save(figure, "softmax")


def spiral() -> None:
    """The project after chapter 7: the network's answer at every point, after more and more steps."""
    page: dict[str, Any] = {"np": np}
    text = (Path(__file__).resolve().parent / "07b-your-own-engine.md").read_text("utf-8")
    for block in text.split("```python\n")[
        2:4
    ]:  # the second and third blocks: the data, and a fresh network
        exec(block.split("```")[0], page)
    x, answers, onehot, parameters = (
        page[name] for name in ("x", "answers", "onehot", "parameters")
    )
    plane = np.stack(
        np.meshgrid(np.linspace(-1.15, 1.15, 80), np.linspace(-1.15, 1.15, 80)), axis=-1
    ).reshape(-1, 2)
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), sharey=True)
    done = 0
    for ax, steps in zip(axes, (0, 30, 300)):
        page["train"](x, onehot, parameters, steps - done, lr=1.0)
        done = steps
        said = page["network"](plane, *parameters).data.argmax(axis=1).reshape(80, 80)
        ax.contourf(
            said,
            levels=[-0.5, 0.5, 1.5, 2.5],
            colors=(BLUE, ORANGE, GREEN),
            alpha=0.25,
            extent=(-1.15, 1.15, -1.15, 1.15),
        )
        for arm, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))):
            ax.plot(*x[answers == arm][::3].T, marker, color=colour, markersize=2)
        ax.set(title=f"{steps} steps" if steps else "fresh", xticks=[], yticks=[], aspect="equal")
    figure.tight_layout()
    save(figure, "spiral")


def optimizers() -> None:
    """Chapter 8: gradient descent, with momentum, and Adam, in a narrow valley."""
    figure, ax = plt.subplots(figsize=(6, 3.2))
    u, v = np.meshgrid(np.linspace(-4.5, 1.5, 200), np.linspace(-1.8, 2.2, 200))
    ax.contour(
        u,
        v,
        0.1 * u**2 + 2 * v**2,
        levels=np.geomspace(0.02, 12, 10),
        colors="lightgrey",
        linewidths=0.8,
    )
    for name, make, colour, marker in (
        ("SGD", lambda p: optim.SGD(p, lr=0.4), BLUE, "o"),
        ("with momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.8), ORANGE, "s"),
        ("Adam", lambda p: optim.Adam(p, lr=0.4), GREEN, "^"),
    ):
        p = nn.Parameter(np.array([-4.0, 1.5]))
        optimizer, path = make([p]), [p.numpy().copy()]
        for _ in range(30):
            optimizer.zero_grad()
            np.sum(p**2 * np.array([0.1, 2.0])).backward()
            optimizer.step()
            path.append(p.numpy().copy())
        ax.plot(
            *np.array(path).T, marker=marker, markersize=3.5, linewidth=1, color=colour, label=name
        )
    ax.plot(0, 0, "+", color="black", markersize=12)
    ax.legend(frameon=False, loc="upper right")
    save(figure, "optimizers")


def causal() -> None:
    """Chapter 9: the weights for the same scores, with and without a causal mask."""
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((6, 6))
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.2))
    words = ["the", "cat", "sat", "on", "the", "mat"]
    for ax, is_causal in zip(axes, (False, True)):
        weights = F.softmax(np.where(np.tri(6) == 1, scores, -np.inf) if is_causal else scores)
        ta.viz.attention(weights, words, words, ax=ax)
        ax.set(title="causal" if is_causal else "free")
    figure.tight_layout()
    save(figure, "causal")


def projections() -> None:
    """Chapter 10: queries, keys and values are learned projections of the same tokens."""
    figure, ax = plt.subplots(figsize=(7.2, 2.9))

    def box(x: float, y: float, text: str, colour: str, wide: float = 1.0) -> None:
        ax.add_patch(plt.Rectangle((x, y - 0.26), wide, 0.52, color=colour, alpha=0.25))
        ax.text(x + wide / 2, y, text, ha="center", va="center", fontsize=9)

    def arrow(start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "grey"})
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.12
        ax.text(*middle, text, ha="center", va="bottom", fontsize=9)

    box(0, 1, "tokens $x$\n(T, E)", "grey", 1.2)
    for y, name, role, colour in (
        (2, "q", "what each looks for", BLUE),
        (1, "k", "how each is found", ORANGE),
        (0, "v", "what each tells", GREEN),
    ):
        arrow((1.2, 1), (2.6, y), f"$W^{name}$")
        box(2.6, y, f"${name}$: {role}", colour, 2.1)
    box(5.6, 1.5, "weights\n(T, T)", "grey", 1.1)
    box(7.5, 0.75, "output\n(T, D)", "grey", 1.1)
    arrow((4.7, 2), (5.6, 1.55))
    arrow((4.7, 1), (5.6, 1.45))
    arrow((6.7, 1.5), (7.5, 0.85))
    arrow((4.7, 0), (7.5, 0.65))
    ax.set(xlim=(-0.1, 8.7), ylim=(-0.4, 2.5))
    ax.axis("off")
    save(figure, "projections")


def positions() -> None:
    """Chapter 12: the table, and the similarity of its rows."""
    table = F.sinusoidal_positions(64, 32).numpy()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2))
    left.imshow(table, cmap="PuOr", aspect="auto")
    left.set(xlabel="column", ylabel="position", title="the table")
    image = right.imshow(table @ table.T, cmap="viridis")
    right.set(xlabel="position", ylabel="position", title="dot product of two rows")
    figure.colorbar(image, ax=right, shrink=0.8)
    figure.tight_layout()
    figure.savefig(IMAGES / "course_positions.png", dpi=110)
    plt.close(figure)


def learning() -> None:
    """Chapter 13: the loss of each batch and the accuracy on unseen images, with the model and the
    loop of the chapter.
    """
    chapter: dict[str, Any] = {}
    text = (Path(__file__).resolve().parent / "13-training-digits.md").read_text("utf-8")
    exec(
        text.split("```python\n")[1].split("```")[0], chapter
    )  # the first block: the data, and a fresh model with seed 0
    split, model = chapter["split"], chapter["model"]
    x, y = digits.patches(split.train_images), split.train_labels
    optimizer = optim.AdamW(model.parameters(), lr=5e-3)
    rng = np.random.default_rng(0)
    losses, right = [], []
    for _ in range(8):
        for batch in np.split(rng.permutation(len(y))[: 22 * 64], 22):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with ta.no_grad():
            answers = model(digits.patches(split.test_images)).numpy().argmax(axis=1)
        right.append((len(losses), 100 * np.mean(answers == split.test_labels)))
    figure, (left, ax) = plt.subplots(1, 2, figsize=(7.5, 2.8))
    left.semilogy(losses, color=BLUE, linewidth=1)
    left.axhline(np.log(10), color="grey", linestyle=":", linewidth=0.8)
    left.text(len(losses), np.log(10) * 0.85, "ln 10: a guess", ha="right", va="top", color="grey")
    left.set(xlabel="step", ylabel="loss of the batch")
    ax.plot(*zip(*right), marker="o", color=ORANGE)
    ax.set(xlabel="step", ylabel="% of unseen images right")
    figure.tight_layout()
    save(figure, "learning")


def rotary() -> None:
    """Chapter 18: the rotated pairs of a query, and the score against the distance, with added
    positions and with rotated pairs.
    """
    turn = runpy.run_path(
        str(Path(__file__).resolve().parent / "exercises" / "solutions" / "rotary.py")
    )["turn"]
    figure, (plane, added, rotated) = plt.subplots(1, 3, figsize=(9, 3), width_ratios=[1.05, 1, 1])
    hands = turn(np.tile([1.0, 0.2, 0.6, -0.2] + [0.0] * 12, (9, 1)), positions=np.arange(9))
    for first, colour in ((0, BLUE), (2, ORANGE)):
        tips = hands[:, first : first + 2]
        for position, tip in enumerate(tips):
            plane.plot(*zip((0, 0), tip), color=colour, linewidth=1, alpha=0.35)
            plane.annotate(
                str(position),
                tip * (1 + 0.13 / np.hypot(*tip)),
                ha="center",
                va="center",
                fontsize=8,
                color=colour,
            )
        plane.plot(
            *tips.T, "o", color=colour, markersize=3.5, label=f"numbers {first}, {first + 1}"
        )
    plane.set(
        aspect="equal",
        xlim=(-1.3, 1.3),
        ylim=(-1.3, 1.3),
        xticks=[],
        yticks=[],
        title="positions 0 to 8",
    )
    for spine in plane.spines.values():
        spine.set_visible(False)
    plane.legend(
        frameon=False,
        fontsize=8,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        handletextpad=0.1,
        columnspacing=1,
    )
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 32))
    distance, table = np.arange(33), F.sinusoidal_positions(80, 32, np.float64).numpy()
    for start, colour, width in (
        (0, BLUE, 9),
        (20, ORANGE, 5),
        (40, GREEN, 1.5),
    ):  # of different widths, so that the lines below stay visible
        here, there = np.array([start]), start + distance
        added.plot(
            distance,
            (q + table[start]) @ (k + table[there]).T,
            color=colour,
            label=f"query at {start}",
        )
        scores = turn(q[None], positions=here) @ turn(np.tile(k, (33, 1)), positions=there).T
        rotated.plot(distance, scores[0], color=colour, linewidth=width)
    added.set(xlabel="distance of the key", ylabel="score", title="positions added")
    rotated.set(xlabel="distance of the key", title="pairs rotated")
    added.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    save(figure, "rotary")


def memory() -> None:
    """Chapter 19: the blocks of a causal head, and the memory of attention against the length, as
    measured by the code of the chapter.
    """
    chapter: dict[str, Any] = {}
    text = (Path(__file__).resolve().parent / "19-linear-memory.md").read_text("utf-8")
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0], chapter)
    figure, (square, ax) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=[1, 1.6])
    size, count = 4, 6
    for n in range(count):
        start = size * n
        for row in range(start, size * count):
            seen = min(size, row - start + 1)
            square.add_patch(
                plt.Rectangle(
                    (start, row), size, 1, facecolor="none", edgecolor="lightgrey", linewidth=0.5
                )
            )
            square.add_patch(
                plt.Rectangle(
                    (start, row), seen, 1, facecolor=BLUE, alpha=0.3 + 0.4 * (n % 2), linewidth=0
                )
            )
        square.text(
            start + size / 2, size * count + 0.4, str(n + 1), ha="center", va="top", fontsize=9
        )
    square.text(size * count * 0.72, size * 1.4, "left out", ha="center", color="grey")
    square.set(
        xlim=(0, size * count),
        ylim=(size * count, 0),
        xticks=[],
        yticks=[],
        aspect="equal",
        ylabel="queries",
    )
    square.set_xlabel("blocks of keys", labelpad=14)
    lengths = [256, 512, 1024, 2048, 4096]
    peak, numbers, gradients = (chapter[name] for name in ("peak", "numbers", "gradients"))
    for way, label, colour, marker in (
        (partial(gradients, chapter["chapter_9"]), "chapter 9", ORANGE, "s"),
        (partial(gradients, chapter["package"]), "the package", GREEN, "^"),
        (chapter["blockwise"], "blocks of 128 keys", BLUE, "o"),
    ):
        ax.loglog(
            lengths,
            [float(f"{peak(way, *numbers(length)):.2g}") for length in lengths],
            marker=marker,
            color=colour,
            label=label,
        )
    ax.set(
        xlabel="tokens",
        ylabel="MB at the peak",
        xticks=lengths,
        xticklabels=lengths,
        yticks=[1, 10, 100],
        yticklabels=[1, 10, 100],
    )
    ax.minorticks_off()
    ax.legend(frameon=False)
    figure.tight_layout()
    save(figure, "memory")


if __name__ == "__main__":
    v_curve()
    diamond()
    complex_step()
    softmax_jacobian()
    spiral()
    optimizers()
    causal()
    projections()
    positions()
    learning()
    rotary()
    memory()
