"""The marker in Chinese: every text of its sources is translated, and what is printed is Chinese, but for names and error texts."""

import ast
import json
import os
import re
import sys
from collections import Counter

import pytest
from support import EXERCISES, MARKING, ROOT
from wrong_answers import WRONG

from tinygrad_attn import cli

sys.path[:0] = [str(MARKING), str(ROOT / "docs" / "zh")]
import _language
import _stubs
import templates

STUBS = sorted(path.stem for path in EXERCISES.glob("*.py"))
SENTENCE = re.compile(r"(?:\b[A-Za-z][a-z]+,? ){3}[A-Za-z]+")
HAN = re.compile("[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def translations():
    return dict(_language.entries((MARKING / "zh.po").read_text("utf-8")))


def in_chinese(text):
    return _language.in_language(text, "zh")


def test_every_text_of_the_sources_is_translated_and_no_other(translations):
    texts = templates.templates()
    missing = [text for text in texts if text not in translations]
    assert not missing, (len(missing), "of", len(texts), missing[:5])
    assert not set(translations) - set(texts), (
        "python docs/zh/marker.py drops what is no longer said"
    )
    assert len(texts) > 1000


def test_a_changed_text_is_missed(tmp_path):
    path = tmp_path / "_marks.py"
    path.write_text('TEXT = f"The gradient of {name} is off by {factor:.6g}, or not."\n', "utf-8")
    assert templates.read([path]) == ["The gradient of {0} is off by {1}, or not."]


def test_inserted_values_and_code_are_the_same_in_both_languages(translations):
    for english, chinese in translations.items():
        fields = [Counter(_language.FIELD.findall(text)) for text in (english, chinese)]
        assert fields[0] == fields[1], (english, chinese)
        code = re.findall(r"`[^`]+`", english)
        assert all(part in chinese for part in code if "{" not in part), (english, chinese)


@pytest.mark.parametrize(
    "english, chinese",
    [
        ("softmax: not written yet", "softmax：还没有写"),
        ("the gradient of x: not written yet", "x 的梯度：还没有写"),
        ("2 of 9 checks pass, 1 of 9 points.", "9 项检查中通过 2 项，满分 9 分，得 1 分。"),
        ("Take the short way to the sea.", "Take the short way to the sea."),
        ("Nothing is masked. Mind the gap between two trains.", "没有用掩码。Mind the gap between two trains."),
        (
            "    softmax: raises ValueError in line 3\n    The arguments are x (3, 4), y (4,).",
            "    softmax：引发 ValueError（第 3 行）\n    传入的参数是 x (3, 4), y (4,)。",
        ),
        (
            "TypeError: unsupported operand type(s) for *: 'float' and 'Scalar'",
            "TypeError: unsupported operand type(s) for *: 'float' and 'Scalar'",
        ),
        (
            "KeyError in line 2 of a.py: the weight of the first layer",
            "a.py 第 2 行引发 KeyError：the weight of the first layer",
        ),
        (  # a diagnosis in the words of the stub
            "The gradient is 0.5 times what it should be.",
            "梯度是正确值的 0.5 倍。",
        ),
        (
            "transposed: the rule is right for q with axes 0 and 1 exchanged.",
            "转置：反向规则对轴 0 和 1 互换了的 q 才是正确的。",
        ),
    ],
)  # fmt: skip
def test_a_text_is_translated_as_a_whole_or_by_its_parts_or_stays(english, chinese):
    assert in_chinese(english) == chinese


def test_no_catalogue_leaves_every_text():
    for language in ("", "en", "fr", "../zh"):
        assert _language.in_language("not written yet", language) == "not written yet"


def test_the_columns_of_a_table_stay_below_each_other():
    rows = ["name                max abs   verdict", "softmax of large numbers  1.0e+00   ok",
            "  a  0.0e+00   not written yet"]  # fmt: skip
    rows = [f"{row.rpartition('  ')[0]:40}  {row.rpartition('  ')[2].strip()}" for row in rows]
    said = in_chinese("\n".join(rows)).split("\n")
    starts = {_language.width(re.match(r".*\S +(?=\S)", row)[0]) for row in said}
    assert len(starts) == 1 and all(HAN.search(row) for row in said)


SIX = [WRONG[0], *(one for one in WRONG if one[2] in (
    "a - b falls as b grows", "rule of the sigmoid", "mask is inverted", "comes before its user",
    "A reshape alone"))][:6]  # fmt: skip


@pytest.mark.parametrize("name, wrong, said, share", SIX)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_answer_is_explained_in_chinese(marker, tmp_path, name, wrong, said, share):
    path = tmp_path / f"{name}.py"
    solution = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    path.write_text(f"{solution}\n\n{wrong}\n", "utf-8")
    chosen = marker.exercises[name]
    english = marker.outcome(chosen, marker.mark(chosen, path), path, everything=True)
    chinese = in_chinese(english)
    lines = [line.partition("Error：")[0] for line in chinese.splitlines()]
    assert not [line for line in lines if SENTENCE.search(line)] and said not in chinese
    assert chinese.count("\n") == english.count("\n") and HAN.search(chinese)


@pytest.mark.parametrize("name", STUBS)
def test_the_task_of_a_stub_is_chinese_and_its_code_the_same(name):
    english = (EXERCISES / f"{name}.py").read_text("utf-8")
    chinese = _stubs.in_language(english, "zh")
    bare = [re.sub(r'""".*?"""|#.*', "", text, flags=re.S) for text in (english, chinese)]
    assert bare[0] == bare[1] and HAN.search(ast.get_docstring(ast.parse(chinese)))
    said = [text for text, _ in _stubs.docstrings(chinese)]
    assert not [text for text in said if re.search(r"\b(the|of|with)\b", text)], name
    assert all(
        _language.width(line) <= 110
        for text in said
        for line in text.splitlines()
        if HAN.match(line)
    )
    assert _stubs.in_language(english, "en") == english


@pytest.fixture
def language(monkeypatch):
    monkeypatch.setenv(_language.VARIABLE, "")  # put back, whatever --lang does


def test_the_command_line_speaks_chinese(language, capfd, tmp_path, monkeypatch):
    assert cli.main(["exercise", "--lang", "zh"]) == 0
    listed = capfd.readouterr().out
    assert "用中心差分求任意函数的梯度" in listed and not SENTENCE.search(listed)
    assert cli.main(["exercise", "slope", "--json"]) == 1  # the environment has the language now
    results = json.loads(capfd.readouterr().out)
    assert results["output"].startswith("slope：") and "还没有写" in results["tests"][0]["output"]
    assert {test["status"] for test in results["tests"]} == {"failed"}
    monkeypatch.chdir(tmp_path)
    assert cli.main(["practice", "norms", "--seed", "1", "--lang", "zh"]) == 0
    assert cli.main(["practice", "practice_norms_1_1.py"]) == 1
    said = capfd.readouterr().out + (tmp_path / "practice_norms_1_1.py").read_text("utf-8")
    assert (
        "请写出反向规则" in said
        and "还没有写" in said
        and not SENTENCE.search(said.replace("import numpy as np", ""))
    )
    assert cli.main(["exercise", "slope", "--lang", "en"]) == 1
    assert "not written yet" in capfd.readouterr().out
    assert os.environ[_language.VARIABLE] == "en"


def test_errors_stay_english(language, capfd):
    assert cli.main(["exercise", "sloop", "--lang", "zh"]) == 2
    assert "there is no exercise 'sloop'" in capfd.readouterr().err
