"""Keeps the Chinese catalogues: what is to be translated, what has changed, what is missing.

python docs/zh/translate.py            takes changes of the English pages into the catalogues
python docs/zh/translate.py --check    says what is missing or has changed since it was translated
python docs/zh/translate.py --list PAGE      prints the paragraphs of a page that wait, numbered
python docs/zh/translate.py --fill PAGE FILE takes translations: lines "#3", each with its text below

Needs the extra `docs`. A paragraph whose English has changed keeps its old translation as "fuzzy",
which is not shown to readers and which --check reports, until somebody has looked at it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

DOCS = Path(__file__).resolve().parents[1]
CATALOGUES = DOCS / "zh" / "locale" / "zh_CN" / "LC_MESSAGES"
PAGES = [
    "index",
    "getting-started",
    "from-numpy",
    "from-pytorch",
    "checking-anything",
    "looking-inside",
    *("practice", "own-exercises"),
    *sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("course/*.md")),
]
"""The pages that are there in Chinese; any other page is shown in English."""


def read(path: Path) -> Catalog:
    """Read a catalogue, an empty one if there is no file."""
    if not path.exists():
        return Catalog(locale="zh_CN", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale="zh_CN")


def write(path: Path, catalogue: Catalog) -> None:
    """Write a catalogue without what changes from day to day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        write_po(file, catalogue, omit_header=True, width=0, ignore_obsolete=True, no_location=True)
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    new.write_text(header + new.read_text("utf-8"), "utf-8")
    new.replace(path)


def english(folder: Path) -> dict[str, Catalog]:
    """Return the paragraphs of the pages as they are now, read by Sphinx into a folder."""
    command = [sys.executable, "-m", "sphinx", "-Q", "-b", "gettext"]
    command += ["-D", f"include_patterns={','.join(f'{page}.md' for page in PAGES)}"]
    subprocess.run([*command, DOCS, folder], check=True)
    pages = {page: read(folder / f"{page}.pot") for page in PAGES if (DOCS / f"{page}.md").exists()}
    for catalogue in pages.values():
        for message in [*texts(catalogue)]:
            if message.id.startswith("!["):  # a picture; its text is a message of its own
                catalogue.delete(message.id)
    return pages


def texts(catalogue: Catalog) -> Iterator[Message]:
    """The messages of a catalogue, without its header."""
    return (message for message in catalogue if message.id)


def state() -> dict[str, Catalog]:
    """Return the catalogues, with the English pages' changes taken in."""
    with tempfile.TemporaryDirectory() as folder:
        now = english(Path(folder))
    kept = {page: read(CATALOGUES / f"{page}.po") for page in now}
    for page, catalogue in kept.items():
        catalogue.update(now[page])
    return kept


def has_words(text: str) -> bool:
    """Return whether a text is more than code and formulas."""
    return bool(re.search(r"[A-Za-z]", re.sub(r"`[^`]+`|\$[^$]+\$", "", text)))


def waiting(catalogue: Catalog) -> list[Message]:
    """The messages without a translation that somebody has looked at."""
    return [
        message
        for message in texts(catalogue)
        if has_words(message.id) and (not message.string or message.fuzzy)
    ]


def fill(page: str, translations: str) -> list[str]:
    """Take numbered translations of the paragraphs that wait, and return what is wrong with them."""
    catalogue = state()[page]
    messages, wrong = waiting(catalogue), []
    for number, text in re.findall(r"^#(\d+)\n(.*?)(?=^#\d+\n|\Z)", translations, re.M | re.S):
        message = messages[int(number) - 1]
        wrong += [f"#{number}: {fault}" for fault in faults(message.id, text.strip())]
        message.string = text.strip()
        message.flags.discard("fuzzy")
    write(CATALOGUES / f"{page}.po", catalogue)
    return wrong


def faults(original: str, translation: str) -> list[str]:
    """Return what a translation has lost: formulas, code, and the targets of links stay as they are."""
    kept = {"formula": r"\$[^$]+\$", "code": r"`[^`]+`", "link": r"\]\(([^)]+)\)"}
    lost = {
        kind: Counter(re.findall(pattern, original)) - Counter(re.findall(pattern, translation))
        for kind, pattern in kept.items()
    }
    return [f"the {kind} {text}" for kind, texts in lost.items() for text in texts]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--list", page]:
            for number, message in enumerate(waiting(state()[page]), 1):
                print(f"#{number}\n{message.id}\n")
            return 0
        case ["--fill", page, file]:
            print(*fill(page, Path(file).read_text("utf-8")), sep="\n")
            return 0
    catalogues = state()
    missing = {page: len(waiting(catalogue)) for page, catalogue in catalogues.items()}
    if arguments != ["--check"]:
        for page, catalogue in catalogues.items():
            write(CATALOGUES / f"{page}.po", catalogue)
    for page, number in missing.items():
        if number:
            print(f"{page}: {number} paragraphs are not translated, or their English has changed")
    return int(any(missing.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
