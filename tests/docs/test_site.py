"""The live pages in a browser, in a short form: one chapter, three exercises, a digit. `make site-test` drives all of it."""

import shutil
import subprocess
import sys

import pytest
from live import RUN_ALL, native, opened, press, same, served, solution, stub, write
from support import IN_CI, ROOT, changed, require

require("playwright.sync_api")
require("sphinx")
sys.path.insert(0, str(ROOT / "docs" / "live"))
import make_site

FIRST, CHAPTER = "course/00-slope-by-nudging", "course/06-softmax"
TEXT = "() => document.querySelector('.live-exercise .CodeMirror')?.CodeMirror.getValue()"
INSIDE = """() => {
  const svg = decodeURIComponent(document.querySelector(".live-output img").src);
  return [...new DOMParser().parseFromString(svg.slice(svg.indexOf("<svg")), "image/svg+xml").querySelectorAll("text")]
    .filter(text => !text.hasAttribute("textLength")).map(text => text.textContent);
}"""
PRACTICE = """async () => {
  const found = [];
  await Live.call("practice", ["norms", 3], { clear() {}, show: (kind, text) => found.push(text) });
  return found;
}"""
MARK = """async ([text, name]) => {
  let said = "";
  const show = (kind, text) => { if (kind === "text") said += text; };
  await Live.call("mark", [text, name, "", 0], { clear() {}, show });
  return said;
}"""


def test_the_scripts_of_the_site_and_of_the_pictures_are_few():
    scripts = [*make_site.HERE.glob("*.js"), *(ROOT / "tinygrad_attn").rglob("*.js")]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in scripts) <= 650


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The first page and a chapter, with all that their Python needs."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "course").mkdir()
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    for name in ("index", FIRST, CHAPTER):
        shutil.copy(ROOT / "docs" / f"{name}.md", source / f"{name}.md")
    command = [sys.executable, "-m", "sphinx", "-Q", "-b", "html", "-t", "live", "-t", "offline"]
    subprocess.run([*command, "-c", ROOT / "docs", source, out], check=True)
    try:
        make_site.lay_out(out / "_static" / "live", offline=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if IN_CI:
            raise
        pytest.skip(f"Pyodide cannot be had here: {error}")
    return out


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:
        yield address


def test_a_chapter_runs_is_stopped_and_marks(browser, address, tmp_path):
    page = opened(browser, f"{address}{CHAPTER}.html", viewport={"width": 1300, "height": 900})
    blocks, exercise = page.locator(".live-block"), page.locator(".live-exercise")
    exercise.locator(".CodeMirror").wait_for()
    assert "0.644" in press(page, "Run", blocks.nth(0))
    ran = page.evaluate(RUN_ALL)
    assert [promised for error, promised, _ in ran if error] == []
    assert all(shown for *_, shown in ran)
    blocks.nth(1).locator("button:text-is('Edit')").click()
    write(page, blocks.nth(1), "assert 1 + 1 == 2")
    assert press(page, "Run", blocks.nth(1)) == "\u2713 1 + 1 == 2\n"
    blocks.nth(1).locator("button:text-is('Reset')").click()
    wrong = changed(solution("softmax"), "return y * (g - ", "return y * (g + ")
    for text in (stub("softmax"), wrong, solution("softmax")):
        write(page, exercise, text)
        assert same(press(page, "Mark", exercise)) == same(native("softmax", text, tmp_path))
    for name in ("unbroadcast", "matmul"):
        found = page.evaluate(MARK, [solution(name), name])
        assert same(found) == same(native(name, solution(name), tmp_path))
    page.evaluate("document.documentElement.lang = 'zh-CN'")
    assert "还没有写" in page.evaluate(MARK, [stub("softmax"), "softmax"])
    page.evaluate("document.documentElement.lang = 'en'")
    formulas, begun_rule = page.evaluate(PRACTICE)
    assert formulas.count("<math") == 3 and "def backward(g, y, x" in begun_rule
    write(page, blocks.nth(1), "while True: pass")
    blocks.nth(1).locator("button:text-is('Run')").click()
    page.wait_for_function("document.querySelector('.live-bar').textContent.startsWith('Running')")
    page.click("text=Stop")
    blocks.nth(1).locator("text=Stopped.").wait_for()
    blocks.nth(1).locator("button:text-is('Reset')").click()
    assert press(page, "Run", blocks.nth(3)) is not None
    assert page.locator(".live-output .error, .live-output .note").count() == 0, (
        "all was built again"
    )
    page.reload()  # what was written is kept
    page.wait_for_function(
        "document.querySelector('.live-exercise')?.textContent.includes('✓ passed')"
    )
    assert page.said == page.abroad == []
    page.context.close()


def test_the_first_page_and_python_stays_while_the_reader_goes_on(browser, address):
    """The inside of a language model, a graph and a digit, on a telephone; then chapter 0 and back."""
    page = opened(browser, f"{address}index.html", viewport={"width": 420, "height": 900})
    page.locator("iframe.inside").scroll_into_view_if_needed()
    inside = page.frame_locator("iframe.inside")
    inside.locator("#tokens span").first.wait_for()
    assert "30 layers of 9 heads" in inside.locator("body").inner_text()
    assert "\u00b7Mary" in inside.locator("#next").inner_text()
    assert "dy/dx" in press(page, "Run", page.locator(".live-block").first)
    assert page.locator(".live-output img").evaluate("image => image.naturalWidth") > 100
    draws_a_one(page)
    assert page.evaluate(INSIDE) == [], "each text has the width that was laid out for it"
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.evaluate("window.stays = true")
    page.click("text=Start chapter 0")
    page.locator(".live-exercise .CodeMirror").wait_for()
    assert page.evaluate("stays") and page.url.endswith(f"{FIRST}.html")
    block = page.locator(".live-block").first
    block.locator("button:text-is('Edit')").click()
    write(page, block, "x")  # the first page's
    assert "NameError" in press(page, "Run", block)
    assert press(page, "Run", page.locator(".live-block").nth(1)).startswith("Not run: block 1")
    page.go_back()
    page.locator("#digit canvas").wait_for()
    assert page.evaluate("stays") and page.url.endswith("index.html")
    assert page.said == page.abroad == []
    page.context.close()


def draws_a_one(page):
    """Draw a vertical line, and read what the model says about it."""
    box = page.locator("#digit canvas").first
    box.hover(position={"x": 96, "y": 20})  # waits until the canvas stands still
    at = box.bounding_box()
    page.mouse.down()
    page.mouse.move(at["x"] + 96, at["y"] + 170, steps=9)
    page.mouse.up()
    page.locator("#digit figure").nth(7).wait_for()
    assert page.inner_text("#digit [role=status]").startswith("The model reads a 1. Chances: 1:")
    patch = page.locator("#digit figure span").nth(3)
    patch.click()  # what it says under the pointer moves nothing
    assert "chosen" in patch.get_attribute("class")
    page.click("#digit button:text-is('Clear')")
    page.mouse.up()  # nothing is drawn
    assert page.inner_text("#digit [role=status]").startswith("Draw")


def test_a_link_to_an_answer_leaves_the_readers_own(browser, address):
    page = opened(browser, f"{address}{CHAPTER}.html")
    exercise = page.locator(".live-exercise")
    exercise.locator(".CodeMirror").wait_for()
    write(page, exercise, "shared = 1")
    exercise.locator("button:text-is('Copy link')").click()
    link = exercise.locator(".note").text_content().removeprefix("Copied: ")
    write(page, exercise, "mine = 2")
    page.goto(link)
    linked = page.locator(".live-exercise:has-text('from a link')")
    linked.locator(".CodeMirror").wait_for()
    write(page, linked, "shared = 3")
    page.reload()
    linked.locator("text=shared = 3").wait_for()
    page.wait_for_function(f"({TEXT})() === 'mine = 2'")
    linked.locator("button:text-is('Reset')").click()
    page.reload()
    page.wait_for_function(f"({TEXT})() === 'mine = 2'")
    assert page.locator(".live-exercise").count() == 1
    assert page.said == page.abroad == []
    page.context.close()
