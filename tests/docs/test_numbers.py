"""Numbers that README and documents claim, where counting them is cheap."""

import re

from compositions.ways import MODELS, WAYS
from support import ROOT, zoo

README = (ROOT / "README.md").read_text("utf-8")
CHAPTERS = sorted((ROOT / "docs" / "course").glob("[0-9]*.md"))


def test_bugs_of_the_zoo():
    claimed = [
        int(n) for n in re.findall(r"(\d+) bugs of published|catches (\d+) of", README)[0] if n
    ]
    assert claimed == [len(zoo().list())]


def test_chapters_of_the_course():
    projects = [path for path in CHAPTERS if path.name.startswith("07b")]
    assert len(CHAPTERS) - len(projects) == 24 and "twenty-four chapters and a project" in README


def test_pages_about_the_engine():
    pages = [*(ROOT / "docs" / "engine").glob("*.md")]
    assert len(pages) == 13 and "thirteen pages" in README


def test_ways_to_run_a_model():
    page = (ROOT / "docs" / "looking-inside.md").read_text("utf-8")
    assert f"crosses {len(WAYS)} ways to run a model on {len(MODELS)} models" in page
