"""docs/from-pytorch.md: both columns of its tables give the same numbers, and its cells are PyTorch's."""

import re

import numpy as np
import pytest
from pages import blocks
from support import ROOT, require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, errors, optim

torch = require("torch")
TEXT = (ROOT / "docs" / "from-pytorch.md").read_text()
ROWS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", TEXT.partition("## Training")[0], re.M)


def arrays():
    rng = np.random.default_rng(0)
    normal = rng.standard_normal
    return {
        "x": normal((2, 3, 4)),
        "m": normal((3, 4)),
        "n": normal((4, 5)),
        "v": normal(4),
        "p": rng.uniform(0.1, 0.9, (3, 4)),
        "y": rng.uniform(0.1, 0.9, (3, 4)),
        "image": normal((2, 3, 6, 6)),
        "kernel": normal((5, 3, 2, 2)),
        "mask": normal((2, 3, 4)) > 0,
        "i": np.array([1, 0, 2]),
    }


def values(y):
    if isinstance(y, (list, tuple)):
        return [v for part in y for v in values(part)]
    return [y.detach().numpy() if hasattr(y, "detach") else np.asarray(y)]


@pytest.mark.parametrize("theirs, ours", ROWS)
def test_both_columns_are_equal(theirs, ours):
    windows = np.lib.stride_tricks.sliding_window_view
    kept = lambda a: Tensor(a, requires_grad=True) if a.dtype.kind == "f" else a
    here = {"np": np, "ta": ta, "F": F, "windows": windows} | {
        k: kept(a) for k, a in arrays().items()
    }
    there = {"torch": torch, "F": torch.nn.functional}
    there |= {k: torch.tensor(a) for k, a in arrays().items()}
    pairs = zip(values(eval(ours, here)), values(eval(theirs, there)), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
        assert np.shape(a) == np.shape(b)


def test_the_table_is_read():
    assert len(ROWS) > 55


def test_every_name_that_an_error_sends_here_is_on_the_page():
    sent = [name for name, hint in errors.WRITE.items() if "from-pytorch" in hint]
    words = set(re.findall(r"\w+", TEXT.lower().replace("_", "")))
    words |= {w + end for w in words for end in ("loss", "cell")} | {
        w.removesuffix("cell") for w in words
    }
    missing = [name for name in sent if name.lower().replace("_", "") not in words]
    assert not missing


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells_are_pytorchs(name):
    namespace = {}
    exec(blocks(TEXT)[0].code, namespace)
    theirs, ours = getattr(torch.nn, name)(3, 4), namespace[name](3, 4)
    state = {k: v for k, v in theirs.state_dict().items()}
    ours.load_state_dict(
        {
            f"of_{layer}.{kind}": state[f"{kind}_{short}"]
            for layer, short in (("x", "ih"), ("h", "hh"))
            for kind in ("weight", "bias")
        }
    )
    x, h, c = (np.random.default_rng(0).standard_normal((2, k)).astype("f") for k in (3, 4, 4))
    states = (h, c) if name == "LSTMCell" else (h,)
    wanted = theirs(
        torch.tensor(x), tuple(map(torch.tensor, states)) if len(states) > 1 else torch.tensor(h)
    )
    found = ours(Tensor(x), *map(Tensor, states))
    for a, b in zip(values(found), values(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "here, there",
    [
        (lambda t: 0.5 ** (t // 10), lambda o: torch.optim.lr_scheduler.StepLR(o, 10, 0.5)),
        (lambda t: 0.9**t, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
    ],
)
def test_schedules_are_pytorchs(here, there):
    ours = optim.SGD([Tensor([1.0], requires_grad=True)], lr=0.1)
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    mine, other = optim.Schedule(ours, here), there(theirs)
    for _ in range(25):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        theirs.step()
        mine.step()
        other.step()
