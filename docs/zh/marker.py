"""Keeps the catalogue of the marker's texts and of gradcheck's diagnoses, docs/course/marking/zh.po.

python docs/zh/marker.py           takes changes of the sources into the catalogue
python docs/zh/marker.py --check   says what is missing or has changed since it was translated
python docs/zh/marker.py --list    prints the texts that wait, numbered
python docs/zh/marker.py --fill FILE   takes translations: lines "#3", each with its text below

The texts are read out of the sources: see docs/zh/templates.py.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from templates import templates
from translate import read, write

CATALOGUE = Path(__file__).resolve().parents[1] / "course" / "marking" / "zh.po"


def state() -> Catalog:
    """Return the catalogue, with the changes of the sources taken in."""
    now = Catalog(fuzzy=False)
    for text in templates():
        now.add(text)
    kept = read(CATALOGUE)
    kept.update(now)
    for message in kept:
        message.flags.discard("python-brace-format")
    return kept


def waiting(catalogue: Catalog) -> list[Message]:
    """The texts without a translation that somebody has looked at."""
    return [one for one in catalogue if one.id and (not one.string or one.fuzzy)]


def faults(english: str, translation: str) -> list[str]:
    """Return the inserted values that a translation has lost or made up."""
    before, after = (Counter(re.findall(r"\{\d\}", text)) for text in (english, translation))
    return [field for field in (before - after) | (after - before)]


def fill(translations: str) -> list[str]:
    """Take numbered translations of the texts that wait, and return what is wrong with them."""
    catalogue = state()
    messages, wrong = waiting(catalogue), []
    for number, text in re.findall(r"^#(\d+)\n(.*?)(?=^#\d+\n|\Z)", translations, re.M | re.S):
        message = messages[int(number) - 1]
        message.string = text.strip("\n")
        message.flags.discard("fuzzy")
        wrong += [f"#{number}: {fault}" for fault in faults(message.id, message.string)]
    write(CATALOGUE, catalogue)
    return wrong


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--fill"]:
        print(*fill(Path(arguments[1]).read_text("utf-8")), sep="\n")
        return 0
    catalogue = state()
    missing = waiting(catalogue)
    if arguments == ["--list"]:
        for number, message in enumerate(missing, 1):
            print(f"#{number}\n{message.id}")
    elif arguments != ["--check"]:
        write(CATALOGUE, catalogue)
    if missing:
        print(f"{len(missing)} texts are not translated, or their English has changed")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
