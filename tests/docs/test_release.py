"""A lecturer's release: what students get, the autograder's zips on submissions, and slides."""

import json
import re
import stat
import sys
import zipfile

import pytest
from support import EXERCISES, ROOT, require

require("nbformat")
require("markdown_it")

COURSE = ROOT / "docs" / "course"
STUDENTS = [("ann@x.org", "1001"), ("bob@x.org", "0012")]


@pytest.fixture(scope="module")
def release():
    before = sys.path.copy()
    sys.path.insert(0, str(COURSE))
    import release

    yield release
    sys.path[:] = before


def test_a_student_gets_no_answer(release, tmp_path):
    release.copy_for_students(tmp_path)
    stubs = {path.name for path in EXERCISES.glob("*.py")}
    assert {path.name for path in tmp_path.glob("*.py")} == stubs
    for path in [tmp_path / "questions.md", *(tmp_path / "notebooks").glob("*.ipynb")]:
        text = path.read_text("utf-8")
        assert not re.search(r"<details>|exercises/solutions|\]\((\.\./|/)", text), path
    questions = (tmp_path / "questions.md").read_text("utf-8")
    asked = re.compile(r"^\*\*\d+\w?\.\d+\*\*", re.M)
    whole = (COURSE / "questions.md").read_text("utf-8")
    assert len(asked.findall(questions)) == len(asked.findall(whole)) > 100
    for link in re.findall(r"\]\((notebooks/[^)#]+)", questions):
        assert (tmp_path / link).is_file(), link


@pytest.fixture(scope="module")
def marked(release, tmp_path_factory):
    """A function that marks submissions with the zip of an exercise."""
    folder = tmp_path_factory.mktemp("autograder")
    release.hidden_inputs, before = lambda name: 7, release.hidden_inputs
    assert release.make_autograders(folder / "zips", ["slope"], STUDENTS) == 1
    release.hidden_inputs = before

    def mark(name, user="ann@x.org", **files):
        place = folder / name
        with zipfile.ZipFile(folder / "zips" / f"{name}.zip") as archive:
            archive.extractall(place / "source")
            for script in release.SCRIPTS:
                assert stat.S_IMODE(archive.getinfo(script).external_attr >> 16) == 0o755
            assert not any("solutions" in entry for entry in archive.namelist())
        (place / "submission").mkdir(exist_ok=True)
        for path in (place / "submission").iterdir():
            path.unlink()
        for file, text in files.items():
            (place / "submission" / f"{file}.py").write_text(text, "utf-8")
        users = {"users": [{"email": user, "id": 1, "name": "A Student"}]}
        (place / "submission_metadata.json").write_text(json.dumps(users))
        release.autograder.SOURCE = place / "source"
        assert release.autograder.main(str(place)) == 0
        return json.loads((place / "results" / "results.json").read_text("utf-8"))

    return mark


def test_a_zip_marks_with_hidden_inputs(marked):
    none = marked("slope", other="")
    assert none["score"] == 0 and "This submission has: other.py." in none["output"]
    right = (EXERCISES / "solutions" / "slope.py").read_text("utf-8")
    results = marked("slope", slope=right)
    tests = results["tests"]
    assert results["score"] == pytest.approx(sum(test["max_score"] for test in tests), rel=1e-3)
    hidden = [test for test in tests if test.get("visibility") == "after_due_date"]
    assert len(hidden) == len(tests) / 2 and hidden[0]["name"].startswith("other inputs: ")
    assert {test["status"] for test in tests} == {"passed"}


def test_practice_takes_only_a_students_own_task(release, marked, tmp_path):
    release.write_variants(tmp_path, 12)
    own = {path.stem: path.read_text("utf-8") for path in tmp_path.glob("*.py")}
    assert len(own) == len(release.TASKS)
    scores = lambda user: marked("practice", user, **dict([own.popitem()]))["tests"]
    assert any("not written yet" in test["output"] for test in scores("BOB@x.org"))
    assert all("There is no file for: practice" in test["output"] for test in scores("ann@x.org"))
    assert "not in the list" in marked("practice", "who@x.org")["output"]


def test_students_are_read_from_a_file(release, tmp_path):
    path = tmp_path / "students.csv"
    path.write_text("email,number\nann@x.org, 1001\n\n")
    assert release.list_of_students(str(path)) == [("ann@x.org", "1001")]
    path.write_text("ann@x.org,1001\nbob@x.org,none\n")
    with pytest.raises(ValueError, match=r"expected a line `email,number`, got 'bob@x.org,none'"):
        release.list_of_students(str(path))
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        release.release(tmp_path)


def test_slides_are_the_chapters_own_text(release):
    slides = release.slides
    for chapter in release.notebooks.chapters():
        text = chapter.read_text("utf-8")
        title, page = slides.page_of(chapter, offline=True)
        assert f"# {title}" in text and "https://" not in re.sub(r'href="https?://[^"]*"', "", page)
        code = [block for block in slides.blocks_of(text) if block.startswith("```")]
        assert page.count("<pre>") >= len(code) > 0 and page.count("<section>") > 3, chapter
        assert "<math" in page or "$" not in text, chapter
        for picture in re.findall(r'<img src="images/([^"]+)"', page):
            assert (ROOT / "docs" / "images" / picture).is_file(), picture
    _, page = slides.page_of(release.notebooks.chapters()[0], offline=False)
    assert page.count('integrity="sha256-') == len(slides.FILES)
