"""The Chinese pages: nothing is missing, nothing has changed since it was translated, and nothing is lost in between."""

import json
import re
import sys

import pytest
from support import ROOT, require

require("sphinx")
sys.path.insert(0, str(ROOT / "docs" / "zh"))
import translate


@pytest.fixture(scope="module")
def catalogues():
    return translate.state()


def test_every_paragraph_of_the_pages_is_translated_from_its_present_text(catalogues):
    waiting = {page: len(translate.waiting(catalogue)) for page, catalogue in catalogues.items()}
    assert not {page: number for page, number in waiting.items() if number}


def test_formulas_code_and_links_are_the_same_in_both_languages(catalogues):
    for page, catalogue in catalogues.items():
        for message in translate.texts(catalogue):
            faults = message.string and translate.faults(message.id, message.string)
            assert not faults, (page, message.id, faults)


def test_a_changed_paragraph_waits_for_its_translator(catalogues):
    catalogue = translate.Catalog(locale="zh_CN")
    catalogue.add("A gradient has the shape of its tensor.", "梯度与它的张量形状相同。")
    now = translate.Catalog()
    now.add("A gradient has the shape and dtype of its tensor.")
    catalogue.update(now)
    assert len(translate.waiting(catalogue)) == 1


def test_the_live_pages_say_everything_in_chinese():
    words = json.loads((ROOT / "docs" / "zh" / "live.json").read_text("utf-8"))
    scripts = "".join(
        (ROOT / "docs" / "live" / f"{name}.js").read_text("utf-8") for name in ("live", "digit")
    )
    said = re.findall(r'\bt\("((?:[^"\\]|\\.)+)"', scripts)
    said += re.findall(r'\bbutton\("([^"]+)"', scripts) + re.findall(r'\bsay\("([^"]+)"', scripts)
    assert len(said) > 30 and set(said) <= set(words)
    assert all(text.count("{}") == words[text].count("{}") for text in words)


def test_the_glossary_is_long_and_names_each_term_once():
    rows = (ROOT / "docs" / "zh" / "glossary.md").read_text("utf-8").splitlines()
    terms = [row.split("|")[1].strip() for row in rows if row.startswith("| ")][1:]
    assert len(terms) >= 150 and len(set(terms)) == len(terms)
