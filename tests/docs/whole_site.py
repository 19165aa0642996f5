"""All live pages in a browser: `make site-test`. Some minutes; SITE_SHOTS names a folder for pictures of the pages."""

import os
import re
import sys
import time
from pathlib import Path

import pytest
import wrong_answers
from live import IDLE, RUN_ALL, native, opened, press, same, served, solution, stub, write
from support import EXERCISES, ROOT, changed, require

require("playwright.sync_api")
sys.path.insert(0, str(ROOT / "docs" / "live"))
sys.path.insert(0, str(Path(__file__).parent))
import make_site
from test_course import MISTAKES

SITE = ROOT / "docs" / "_build" / "site"
LIVE_PAGES = sorted(
    path.relative_to(ROOT / "docs").with_suffix("").as_posix()
    for pattern in ("course/*.md", "engine/*.md", "getting-started.md", "index.md")
    for path in (ROOT / "docs").glob(pattern)
)
CHAPTERS = {
    name: path.stem
    for path in sorted((ROOT / "docs" / "course").glob("[0-9]*.md"))
    for name in re.findall(
        r"^python -m tinygrad_attn exercise (?!zoo)(\w+)$", path.read_text("utf-8"), re.M
    )
}
WRONG = {
    name: [
        *(changed(solution(name), right, wrong) for at, right, wrong, _ in MISTAKES if at == name),
        *(f"{solution(name)}\n\n{wrong}\n" for at, wrong, *_ in wrong_answers.WRONG if at == name),
    ][:2]
    for name in CHAPTERS
}
counted = {"blocks": 0, "failed": 0, "shown": 0, "of the course": 0}


@pytest.fixture(scope="module")
def address():
    with served(SITE) as address:
        yield address


@pytest.fixture
def chapter(browser, address):
    page = opened(browser, f"{address}course/06-softmax.html")
    page.locator(".live-exercise .CodeMirror").wait_for()
    yield page
    assert page.said == page.abroad == []
    page.context.close()


def test_the_folder_is_small():
    sizes = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"\n{sizes / 1e6:.1f} MB")
    assert sizes < 26e6


def test_the_first_answer_comes_soon(browser, address):
    begun = time.monotonic()
    page = opened(browser, address)
    assert "dy/dx" in press(page, "Run", page.locator(".live-block").first)
    took = time.monotonic() - begun
    print(f"\n{took:.1f} s to the first answer, with a graph, on load {os.getloadavg()[0]:.0f}")
    page.context.close()


@pytest.mark.parametrize("name", LIVE_PAGES)
def test_every_block_runs_or_says_why_not(browser, address, name):
    page = opened(browser, f"{address}{name}.html")
    page.set_default_timeout(600_000)
    for number, (error, promised, shown) in enumerate(page.evaluate(RUN_ALL), 1):
        counted["blocks"] += 1
        if name.startswith("course/"):
            counted["of the course"] += 1
            counted["shown"] += shown
        counted["failed"] += bool(error) != promised
        assert bool(error) == promised, f"block {number}: {error}"
    assert page.said == page.abroad == []
    page.context.close()


def test_most_blocks_have_run():
    print(f"\n{counted['blocks'] - counted['failed']} of {counted['blocks']} blocks run")
    print(f"{counted['shown']} of {counted['of the course']} blocks of the course show something")
    assert counted["failed"] <= 0.05 * counted["blocks"]
    assert counted["shown"] >= 0.9 * counted["of the course"]


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_marker_says_what_it_says_on_the_command_line(browser, address, tmp_path, name):
    page = opened(browser, f"{address}course/{CHAPTERS[name]}.html")
    exercise = page.locator(".live-exercise")
    exercise.locator(".CodeMirror").wait_for()
    for text in (stub(name), *WRONG[name], solution(name)):
        write(page, exercise, text)
        assert same(press(page, "Mark", exercise)) == same(native(name, text, tmp_path))
    assert "✓ passed" in exercise.inner_text() and page.said == page.abroad == []
    page.context.close()


def test_a_check_without_end_costs_itself_alone(chapter, tmp_path):
    exercise = chapter.locator(".live-exercise")
    text = changed(
        solution("softmax"),
        '*, allowed):\n    """x, allowed',
        '*, allowed):\n    while True: pass\n    """x, allowed',
    )
    chapter.evaluate("LIVE.limit = 5")
    write(chapter, exercise, text)
    found = press(chapter, "Mark", exercise)
    assert found.count("no end in 5 s") >= 2 and "7 of 9 checks pass" in found


def test_syntax_errors_and_a_thousand_prints(chapter, tmp_path):
    exercise, block = chapter.locator(".live-exercise"), chapter.locator(".live-block").first
    write(chapter, exercise, "def softmax(x:\n")
    assert same(press(chapter, "Mark", exercise)) == same(
        native("softmax", "def softmax(x:\n", tmp_path)
    )
    assert "SyntaxError" in press(chapter, "Run", exercise)
    block.locator("button:text-is('Edit')").click()
    write(chapter, block, "for i in range(1000): print(i)\ni * 2")
    rows = press(chapter, "Run", block).split()
    assert rows == [*map(str, range(1000)), "1998"]
    write(chapter, block, "while True: print('again and again')")
    block.locator("button:text-is('Run')").click()
    chapter.wait_for_function(
        "document.querySelector('.live-output').textContent.includes('more than')"
    )
    chapter.click("text=Stop")
    block.locator("text=Stopped.").wait_for()


def test_a_reload_keeps_answers_and_two_tabs_agree(chapter, address, tmp_path):
    exercise = chapter.locator(".live-exercise")
    write(chapter, exercise, "mine = 1")
    chapter.locator(".live-block button:text-is('Run')").first.click()
    chapter.reload()  # in the middle of a run
    read = "() => document.querySelector('.live-exercise .CodeMirror')?.CodeMirror.getValue()"
    chapter.wait_for_function(f"({read})() === 'mine = 1'")
    other = chapter.context.new_page()
    other.goto(chapter.url)
    other.wait_for_function(f"({read})() === 'mine = 1'")
    write(other, other.locator(".live-exercise"), "mine = 2")
    chapter.wait_for_function(f"({read})() === 'mine = 2'")
    other.close()
    exercise.locator("button:text-is('Copy link')").click()
    link = exercise.locator(".note").text_content().removeprefix("Copied: ")
    write(chapter, exercise, "mine = 4")
    chapter.goto(link)
    linked = chapter.locator(".live-exercise:has-text('from a link')")
    linked.locator("text=mine = 2").wait_for()
    assert "#" not in chapter.url
    chapter.wait_for_function(f"({read})() === 'mine = 4'")
    linked.locator("button:text-is('Reset')").click()
    chapter.reload()
    chapter.wait_for_function(f"({read})() === 'mine = 4'")
    exercise = chapter.locator(".live-exercise")
    write(chapter, exercise, "mine = 2")
    with chapter.expect_download() as found:
        exercise.locator("button:has-text('Save softmax.py')").click()
    assert Path(found.value.path()).read_text() == "mine = 2"
    write(chapter, exercise, "mine = 3")
    chapter.goto(f"{address}course/index.html")
    assert "softmax (begun)" in chapter.inner_text("table")
    with chapter.expect_download() as found:
        chapter.click("text=Export my answers")
    answers = Path(found.value.path()).read_text()
    assert '"mine = 3"' in answers
    kept = tmp_path / "answers.json"
    kept.write_text(answers.replace("mine = 3", "mine = 5"))
    with chapter.expect_navigation():
        chapter.locator("input[type=file]").set_input_files(kept)
    assert "mine = 5" in chapter.evaluate("localStorage['tinygrad_attn']")


def test_the_keyboard_alone(chapter):
    chapter.locator(".live-buttons button").first.focus()
    chapter.keyboard.press("Tab")
    chapter.keyboard.press("Enter")  # Edit
    chapter.keyboard.press("Control+A")
    chapter.keyboard.type("if True:\nprint(6 * 7)")  # the editor indents
    chapter.keyboard.press("Control+Enter")
    chapter.locator(".live-output >> text=42").wait_for()
    chapter.wait_for_function(IDLE)
    chapter.keyboard.press("Escape")
    assert chapter.evaluate("document.activeElement.textContent") == "Run"
    unnamed = """[...document.querySelectorAll("button, textarea, [role=region], [role=group]")]
      .filter(e => e.offsetParent && !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""
    assert chapter.evaluate(unnamed) == []


@pytest.mark.parametrize("width", [420, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_can_be_read(browser, address, width, scheme):
    for name in ("index", "course/06-softmax", "course/index"):
        page = opened(
            browser,
            f"{address}{name}.html",
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
        )
        for block in page.locator(".live-block").all()[:1]:
            press(page, "Run", block)
        for exercise in page.locator(".live-exercise").all():
            exercise.locator(".CodeMirror").wait_for()
            press(page, "Mark", exercise)
            exercise.scroll_into_view_if_needed()
        if name == "index":
            page.click("text=Show me one")
            page.locator("#digit figure").nth(7).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("SITE_SHOTS"):
            page.screenshot(
                path=f"{folder}/{name.replace('/', '-')}_{width}_{scheme}.png",
                full_page=name == "index",
            )
        page.context.close()


def test_from_the_cdn_every_file_has_its_hash(browser, tmp_path):
    """The default site, with the CDN's answers given by the files that `make site OFFLINE=1` has fetched."""
    static = tmp_path / "_static" / "live"
    make_site.lay_out(static, offline=False)
    html = "<!doctype html><title>x</title>"
    for name in ("settings", "page", "live"):
        html += f"<script src=_static/live/{name}.js></script>"
    (tmp_path / "page.html").write_text(
        f"{html}<div class=highlight-python><pre>import numpy\nnumpy.arange(3)</pre></div>"
    )
    parts, asked = {part.url: part for part in make_site.PARTS}, []

    def answer(route):
        part, spoilt = parts[route.request.url], route.request.url == asked_to_spoil
        asked.append(part.name)
        body = make_site.collect(part, ROOT / "docs" / "_build" / "parts") + b" " * spoilt
        headers = {"Access-Control-Allow-Origin": "*", "Content-Type": part.type}
        route.fulfill(body=body, headers=headers)

    with served(tmp_path) as address:
        for asked_to_spoil in (None, make_site.part("pyodide.asm.wasm").url):
            context = browser.new_context()
            context.route("https://cdn.jsdelivr.net/**", answer)
            page = context.new_page()
            page.goto(f"{address}page.html")
            said = press(page, "Run", page.locator(".live-block"))
            assert ("array([0, 1, 2])" in said) == (asked_to_spoil is None), said
            context.close()
    assert set(asked) >= {part.name for part in make_site.PARTS if part.size}


def test_the_list_of_exercises_is_whole():
    assert sorted(CHAPTERS) == sorted(path.stem for path in EXERCISES.glob("*.py"))
