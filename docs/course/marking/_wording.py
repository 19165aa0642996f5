"""Reads the catalogue of translations, and takes texts apart."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

ERROR = re.compile(r"\w(Error|Exception|Interrupt|Exit):")


def entries(po: str) -> Iterator[tuple[str, str]]:
    """Yield the texts and translations of a catalogue in gettext's format, without babel."""
    for block in po.split("\n\n"):
        texts, last = dict[str, str](), ""
        for line in block.splitlines():
            keyword, quote, text = line.partition('"')
            if line.startswith("#,") and "fuzzy" in line:
                break
            if quote and not line.startswith("#"):
                last = keyword.strip() or last
                texts[last] = texts.get(last, "") + json.loads(quote + text)
        if texts.get("msgid") and texts.get("msgstr"):
            yield texts["msgid"], texts["msgstr"]


def in_the_markers_words(english: str, translation: str) -> Iterator[tuple[str, str]]:
    """Yield a template, and the forms that `in_stub_words` gives to a diagnosis of gradcheck."""
    forms = [(english, translation)]
    kind, colon, rest = english.partition(": ")
    if colon and re.fullmatch(r"[A-Za-z ]{3,25}", kind) and "：" in translation:
        after = translation.partition("：")[2]
        forms += [(rest, after), (rest[:1].upper() + rest[1:], after)]
    for place in re.findall(r", called at (\{\d\}),", english):
        forms += [
            (one.replace(f", called at {place},", ""), other.replace(f"在 {place} 处调用的 ", ""))
            for one, other in forms
        ]
    for one, other in forms:
        yield one, other
        if "VJP" in one:
            in_chinese = other.replace("VJP", "反向规则")
            yield re.sub(r"\bVJP(s?)\b", r"rule\1", one), in_chinese
            yield re.sub(r"\b([Ii]ts|[Tt]he) VJP\b", "the rule", one), in_chinese  # practice


def without_sentences(english: str, translation: str) -> tuple[str, str]:
    """Leave out inserted sentences at the beginning and the end, which are translated by themselves."""
    for pattern in (r"^(\{\d\}) (?=[A-Z])", r"(?<=[.?!]) (\{\d\})$"):
        found = re.search(pattern, english)
        at = "^" if pattern[0] == "^" else "$"
        for field in found.groups() if found else ():
            field = re.escape(field)
            shorter = re.sub(rf"^{field} ?" if at == "^" else rf" ?{field}$", "", translation)
            if shorter != translation:
                english, translation = re.sub(pattern, "", english), shorter
    return english, translation


def unbraced(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def split(separator: re.Pattern[str], text: str) -> list[str]:
    """Return the parts of a text and the separators between them. What is in brackets or in code, and
    an error with its text, is one part.
    """
    pieces, at = [], 0
    for found in separator.finditer(text):
        before = text[at : found.start()]
        if "\n" not in found[0] and ERROR.search(before.rpartition("\n")[2]):
            continue
        brackets = [len(re.findall(signs, before)) for signs in (r"[(\[]", r"[)\]]")]
        if brackets[0] == brackets[1] and before.count("`") % 2 == 0:
            pieces += [before, found[0]]
            at = found.end()
    return [*pieces, text[at:]]


def in_lines(text: str) -> str:
    """Return a text with single spaces, and without indentation."""
    return re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n", text))


def has_chinese(text: str) -> bool:
    return bool(re.search("[\u3000-\u9fff\uff00-\uffef]", text))


def letters(text: str) -> int:
    """Count the letters of words."""
    return sum(map(len, re.findall(r"[A-Za-z]{2,}", text)))


def width(text: str) -> int:
    """Return the cells that a text takes in a terminal: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
