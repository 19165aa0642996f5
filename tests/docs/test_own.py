"""A teacher's own exercises: the examples of docs/own-exercises.md, in the terminal, as JSON and as a page."""

import json
import re
import sys
import zipfile

import pytest
from support import ROOT

from tinygrad_attn import cli

BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "own-exercises.md").read_text("utf-8"), re.S
)
GELU, NORM, RELU = BLOCKS
ANSWERS = {  # right and wrong lines in place of `return None`, and what is said about the wrong one
    "gelu": (
        GELU,
        "t = np.tanh(C * (x + 0.044715 * x**3))\n"
        "    return g * 0.5 * (1 + t + x * (1 - t * t) * C * (1 + 3 * 0.044715 * x**2))",
        "return g * x / x",
        "returns its argument g unchanged",
    ),
    "rms_norm": (
        NORM,
        "return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight",
        "return x / np.sqrt((x * x).mean(axis=-1) + 1e-5) * weight",
        "(2, 1) fits",
    ),
    "relu": (
        RELU,
        "return Tensor(np.maximum(self.data, 0), (self,), (lambda g: g * (self.data > 0),))",
        "return Tensor(np.maximum(self.data, 0), (self,), (lambda g: g,))",
        "it is the incoming gradient g, unchanged",
    ),
}


def marked(capsys, *words):
    code = cli.main(["exercise", *map(str, words)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", ANSWERS)
def test_an_example_of_the_page_is_marked(capsys, tmp_path, name):
    text, right, wrong, said = ANSWERS[name]
    own, mine = tmp_path / f"{name}.py", tmp_path / "mine.py"
    own.write_text(text, "utf-8")
    code, stub = marked(capsys, own)
    assert code == 0 and "return None" in stub and "exercise(" not in stub
    for answer, expected in (("return None", 1), (right, 0)):
        mine.write_text(stub.replace("return None", answer), "utf-8")
        code, out = marked(capsys, own, mine)
        assert code == expected and out.startswith(f"exercise {name}: "), out
    mine.write_text(stub.replace("return None", wrong), "utf-8")
    code, out = marked(capsys, own, mine, "--json")
    assert code == 1 and said in out, out
    found = json.loads(out)
    points = float(re.search(r"points=(\d)", text)[1])
    assert sum(test["max_score"] for test in found["tests"]) == points > found["score"]


def test_a_page_holds_no_solution(tmp_path):
    sys.path[:0] = [str(ROOT / "docs" / "live"), str(ROOT / "docs" / "course" / "marking")]
    both = tmp_path / "both.py"
    both.write_text(f"{NORM}\n\ndef gelu_vjp(g, y, x):\n    return SOLUTION\n\n{GELU}", "utf-8")
    assert cli.main(["page", str(both), "-o", str(tmp_path / "page")]) == 0
    live = tmp_path / "page" / "live"
    archive = zipfile.ZipFile(live / "tinygrad_attn.zip")
    assert not [name for name in archive.namelist() if "solutions" in name]
    packed = archive.read("docs/course/marking/own.json").decode()
    stub = (live / "exercises" / "en" / "both.py").read_text("utf-8")
    for text in (packed, stub):
        assert "SOLUTION" not in text and ".mean(axis" not in text and "np.tanh" in text
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert "exercise both<" in page and "live/live.js" in page


@pytest.mark.parametrize(
    "call, said",
    [
        ('exercise("f", forward=f, ask="gradient")', "ask must be one of vjp, forward, engine"),
        ('exercise("f", forward=f, shapes=[(2,)])', "has 2 arguments (x, w)"),
    ],
)
def test_a_wrong_call_is_explained(capsys, tmp_path, call, said):
    path = tmp_path / "f.py"
    path.write_text(f"def f(x, w):\n    return x * w\n\n\n{call}\n", "utf-8")
    assert cli.main(["exercise", str(path)]) == 2
    assert said in capsys.readouterr().err
