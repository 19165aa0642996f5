"""Says the marker's texts in another language: `--lang zh`, or TINYGRAD_ATTN_LANG=zh.

The package and the marker write English. What is printed is looked up here: a catalogue has a
translation for each template, a text of the sources in which `{0}` stands for an inserted value.
A text is taken apart into lines and sentences, and each part is matched against the templates;
inserted values are translated by themselves. What no template fits stays English.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from _wording import (
    entries,
    has_chinese,
    in_lines,
    in_the_markers_words,
    letters,
    split,
    unbraced,
    width,
    without_sentences,
)

HERE = Path(__file__).resolve().parent
VARIABLE = "TINYGRAD_ATTN_LANG"
"""The environment variable that names the language."""
FIELD = re.compile(r"\{(\d)\}")
SENTENCE = re.compile(r"(?<=[.:;?!])\s+|\n\s*")
ENGLISH = re.compile(r"(\b[A-Za-z][a-z]+,? ){3}")
"""Three words that no template has."""
CLOSE = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
"""A space that Chinese does not have."""
TWO_WORDS = re.compile(r"[A-Za-z]{2} [A-Za-z]{2}|[\n=:*]|[A-Z]{4} |[A-Z]{4},|^for ")
TWO_SENTENCES = re.compile(r"[.?!] [A-Z]|\n")
PART = re.compile(r"(?<=[:;,])\s+")
ENDS = {".": "。", ":": "：", ";": "；", ",": "，", "?": "？", "!": "！"}
FOR_PROGRAMS = "status"
"""The key of a text in results.json that no person reads."""
MOST = 9
"""The largest number of sentences in a template."""


class Template(NamedTuple):
    """English text around the inserted values, and its translation."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]
    translation: str
    letters: int

    @property
    def short(self) -> bool:
        """Whether it has so few words that no sentence may be inserted."""
        return self.letters < 6

    def values(self, text: str) -> dict[str, str] | None:
        """Return the values that make the template this text, by their fields."""
        first, *others, last = self.literals
        if not text.startswith(first):
            return None
        found, at = [], len(first)
        for literal in others:
            next_at = text.find(literal, at)
            if next_at < 0:
                return None
            found.append(text[at:next_at])
            at = next_at + len(literal)
        if not text.endswith(last) or len(text) - len(last) < at:
            return None
        return dict(zip(self.fields, [*found, text[at : len(text) - len(last)]]))


class Said(NamedTuple):
    """A translated text, how many letters of it were not understood, and how many signs were."""

    text: str
    cost: int
    known: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Of several translations, the one with the lowest rank understands most."""
        return self.cost, -self.known


class Catalogue:
    """The translations of one language, found by the words of a template."""

    def __init__(self, path: Path) -> None:
        self.by_word: dict[str, list[Template]] = {}
        self.exact: dict[str, str] = {}
        for english, translation in entries(path.read_text("utf-8")):
            for one, other in in_the_markers_words(english, translation):
                self.enter(one, other)
        self.translate = lru_cache(4096)(self._translate)

    def enter(self, english: str, translation: str) -> None:
        number = len(FIELD.findall(english))
        if re.match(r"[,:]| (?! )", english):  # such a text is said after another, or before one
            english, translation = f"{{{number}}}{english}", f"{{{number}}}{translation}"
            number += 1
        elif english.startswith("with "):  # in Chinese, this stands before what has it
            self.enter(f"{{{number}}} {english}", f"{translation}的 {{{number}}}")
        if english.endswith(" "):
            english, translation = f"{english}{{{number}}}", f"{translation}{{{number}}}"
        english, translation = without_sentences(english, translation)
        english = in_lines(re.sub(r"^ {2,}", "", english))
        pieces = re.split(r"\{(\d)\}", english)
        literals = tuple(map(unbraced, pieces[::2]))
        words = re.findall(r"[A-Za-z]{2,}", " ".join(literals))
        if len(literals) == 1:
            self.exact.setdefault(literals[0].replace("\n", " "), unbraced(translation))
        elif words:
            self.head(english, translation)
            fields = tuple(pieces[1::2])
            template = Template(literals, fields, translation, letters(" ".join(literals)))
            self.by_word.setdefault(max(words, key=len), []).append(template)

    def head(self, english: str, translation: str) -> None:
        """Enter what stands before the value at the end, which may be several sentences."""
        before, colon, value = translation.rpartition("：")
        if colon and FIELD.fullmatch(value) and english.endswith(f": {value}"):
            self.enter(english.removesuffix(f" {value}"), before + colon)

    def _translate(self, text: str) -> Said:
        """Translate a text without tables: a whole template, or what it consists of."""
        pieces = split(SENTENCE, text)
        if len(pieces) == 1:
            return self.single(text)
        return self.better(text, self.sentences(pieces[::2], pieces[1::2]))

    def better(self, text: str, in_parts: Said) -> Said:
        """Return the translation of a text by one template, if that understands no less of it."""
        whole = self.whole(text)
        return whole if whole and whole.rank <= in_parts.rank else in_parts

    def single(self, text: str) -> Said:
        """Translate a sentence, or else its parts."""
        if not re.search(r"[A-Za-z]{2}", text):
            return Said(text, 0)
        pieces = split(PART, text)
        if len(pieces) == 1:
            return self.whole(text) or Said(text, letters(text))
        return self.better(text, self.sentences(pieces[::2], pieces[1::2]))

    def whole(self, text: str) -> Said | None:
        """Translate a text that is one template, perhaps with a full stop or a colon after it."""
        plain = in_lines(text)
        if plain.replace("\n", " ") in self.exact:
            return Said(self.exact[plain.replace("\n", " ")], 0, len(plain))
        number, _, name = plain.partition(" ")  # of a step, before the name of a case
        if number.isdigit() and name in self.exact:
            return Said(f"{number} {self.exact[name]}", 0, len(plain))
        found = [self.filled(template, plain) for template in self.candidates(plain)]
        if text[-1] in ENDS and len(text) > 1 and (core := self.whole(text[:-1].rstrip())):
            end = "" if core.text[-1] in ENDS.values() else ENDS[text[-1]]
            end = text[-1] if re.search(r"[A-Za-z] [A-Za-z]+$", core.text) else end
            found.insert(0, Said(core.text + end, core.cost, core.known))
        return min(filter(None, found), key=lambda said: said.rank, default=None)

    def candidates(self, plain: str) -> Iterator[Template]:
        for word in dict.fromkeys(re.findall(r"[A-Za-z]{2,}", plain)):
            yield from self.by_word.get(word, ())

    def filled(self, template: Template, plain: str) -> Said | None:
        """Return the translation with its values, if a template fits."""
        values = template.values(plain)
        if values is None and template.literals[-1] == "":  # nothing follows
            values = template.values(plain + " ")
        if values is None:
            return None
        unlike = TWO_WORDS if template.short else TWO_SENTENCES
        if any(unlike.search(value) and value not in self.exact for value in values.values()):
            return None
        said = {name: self.value(value) for name, value in values.items()}
        text = FIELD.sub(lambda field: said[field[1]].text, template.translation)
        text = CLOSE.sub("", unbraced(text).rstrip())
        closed = [*values.values()][: -1 if template.literals[-2].endswith(": ") else None]
        swallowed = sum(": " in value for value in closed)  # such a value is rather two
        known = sum(map(len, template.literals)) + sum(one.known for one in said.values())
        return Said(text, sum(one.cost for one in said.values()) + swallowed, known)

    def value(self, text: str) -> Said:
        """Translate an inserted value. An error text, which stays English, is not taken apart."""
        said = self.translate(text)
        return Said(text, letters(text)) if ENGLISH.search(said.text) else said

    def sentences(self, parts: list[str], between: list[str]) -> Said:
        """Translate consecutive parts by the templates that understand most of them."""
        best = [((0, 0), 0)] * (len(parts) + 1)  # the rank from here on, and where the next begins
        said: dict[tuple[int, int], Said] = {}
        for start in reversed(range(len(parts))):
            choices = []
            for end in range(start + 1, min(len(parts), start + MOST) + 1):
                text = parts[start] + "".join(
                    gap + part for gap, part in zip(between[start:], parts[start + 1 : end])
                )
                one = self.whole(text) if end > start + 1 else self.single(text)
                if one is not None:
                    said[start, end] = one
                    (cost, known), _ = best[end]
                    choices.append(((one.cost + cost, known - one.known), end))
            best[start] = min(choices, key=lambda choice: (choice[0], -choice[1]))
        texts, start = [""], 0
        while start < len(parts):
            end = best[start][1]
            texts.append(said[start, end].text)
            gap = between[end - 1] if end < len(parts) else ""
            after = said[end, best[end][1]].text if gap == " " else ""
            if after and has_chinese(texts[-1] + after):  # full-width signs take no space
                texts[-1] = texts[-1][:-1] + ENDS.get(texts[-1][-1:], texts[-1][-1:])
                gap = "" if texts[-1][-1:] in ENDS.values() else gap
            texts.append(gap)
            start = end
        (cost, known), _ = best[0]
        return Said("".join(texts), cost, -known)

    def page(self, text: str) -> str:
        """Translate what is printed: paragraphs, with their indentation, and tables."""
        return "\n\n".join(map(self.paragraph, text.split("\n\n")))

    def paragraph(self, text: str) -> str:
        """Translate consecutive lines; those with columns are a table."""
        lines = text.split("\n")
        if any(re.search(r"\S {2,}\S", line) for line in lines):
            return self.table(lines)
        indent, quotes = re.match(r'( *)((?:""")?)', text).groups()  # type: ignore[union-attr]
        body = "\n".join(line.removeprefix(indent) for line in lines).removeprefix(quotes)
        said = self.translate(body)
        rows = f"{quotes}{said.text}".split("\n")
        return "\n".join(f"{indent}{row}".rstrip(" ") for row in rows)

    def table(self, lines: list[str]) -> str:
        """Translate each cell of a table, and lay out its columns again."""
        rows = [re.split(r"(?<=\S)( {2,})(?=\S)", line) for line in lines]
        said = [[self.cell(cell) for cell in row] for row in rows]
        if said == rows:
            return "\n".join(lines)
        longer = max(
            width(new[0]) + 2 - len("".join(old[:2])) for old, new in zip(rows, said) if old[1:]
        )
        texts = []
        for old, new in zip(rows, said):
            for k in range(1, len(new), 2):
                start = len("".join(old[: k + 1])) + max(0, longer)
                new[k] = " " * max(2, start - width("".join(new[:k])))
            texts.append("".join(new))
        return "\n".join(texts)

    def cell(self, text: str) -> str:
        if not text.strip():
            return text
        indent = re.match(r" *", text)[0]  # type: ignore[index]
        return indent + self.translate(text[len(indent) :]).text


def catalogue(language: str | None = None) -> Catalogue | None:
    """Return the catalogue of a language such as zh, zh_CN or zh-CN, by default the environment's;
    None of one that has none.
    """
    chosen = os.environ.get(VARIABLE, "") if language is None else language
    return loaded(HERE / f"{re.split('[-_.]', chosen.lower())[0]}.po")


@cache
def loaded(path: Path) -> Catalogue | None:
    return Catalogue(path) if path.is_file() else None


def in_language(said: Any, language: str | None = None) -> Any:
    """Return a text in a language, by default that of the environment; also the texts of a dict."""
    found = catalogue(language)
    if found is None:
        return said
    if isinstance(said, dict):
        return {
            key: value if key == FOR_PROGRAMS else in_language(value, language)
            for key, value in said.items()
        }
    if isinstance(said, list):
        return [in_language(value, language) for value in said]
    return found.page(said) if isinstance(said, str) else said


class Spoken:
    """A stream that translates each text that is printed to it."""

    def __init__(self, stream: Any, language: str | None) -> None:
        self.stream, self.language = stream, language

    def write(self, text: str) -> int:
        if text.startswith("{\n"):  # results.json
            said = json.dumps(in_language(json.loads(text), self.language), indent=1)
        else:
            said = in_language(text, self.language)
        self.stream.write(said)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def speaking(language: str | None = None) -> Iterator[None]:
    """Print in a language inside, by default that of the environment."""
    if sys.stdout is None or catalogue(language) is None:
        yield
        return
    with redirect_stdout(Spoken(sys.stdout, language)):  # type: ignore[type-var]
        yield
