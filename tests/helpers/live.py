"""Helpers to serve a live site, press its buttons in a browser and read its output."""

import functools
import http.server
import io
import re
import shutil
import threading
from contextlib import chdir, contextmanager, redirect_stdout

import pytest
from support import EXERCISES, IN_CI, require

from tinygrad_attn import cli

IDLE = "document.querySelector('.live-bar').hidden"
RUN_ALL = """async () => {
  const found = [];
  for (const block of document.querySelectorAll(".live-block")) {
    block.querySelector(".live-buttons button").click();
    await Live.inTurn(() => {});
    const errors = [...block.querySelectorAll(".live-output .error, .live-output .note")].map(one => one.textContent);
    const shown = block.querySelector(".live-output > :not(.quiet, .note)");
    found.push([errors.join(""), Boolean(block.querySelector(".live-why")), Boolean(shown)]);
  }
  return found;
}"""
"""Runs every block of a page. Returns each block's errors, whether the page announces an error, and
whether the block shows something."""


@contextmanager
def started():
    """Start Chromium. If it is missing, skip the test, or fail in CI."""
    playwright = require("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=path, args=flags)
        except playwright.Error as error:
            if IN_CI:
                raise RuntimeError("CI must have chromium: apt-get install chromium") from error
            pytest.skip("no chromium: apt-get install chromium, or playwright install chromium")
        yield browser
        browser.close()


@contextmanager
def served(folder):
    """Serve a folder on this machine only, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def opened(browser, address, **settings):
    """Open a page that records its errors in `said` and its external requests in `abroad`."""
    page = browser.new_context(**settings).new_page()
    page.set_default_timeout(60_000)
    page.said, page.abroad = [], []
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.context.on(
        "request",
        lambda request: (
            request.url.startswith(("http://127.0.0.1:", "blob:", "data:"))
            or page.abroad.append(request.url)
        ),
    )
    page.goto(address)
    return page


def press(page, button, box):
    """Press a button of a block or an exercise, and return the output after Python has finished."""
    box.locator(f"button:text-is('{button}')").click()
    page.evaluate("() => Live.inTurn(() => {})")
    page.wait_for_function(IDLE)
    return box.locator(".live-output").text_content()


def write(page, box, text):
    """Put text into the editor of a block or an exercise."""
    box.locator(".CodeMirror").evaluate("(host, text) => host.CodeMirror.setValue(text)", text)


HINTS = re.compile(
    r"\n(?:\d+ more: --all .*|--time-limit .*|Write your answer .*|    python -m .*)\n?"
)
"""What the command line says about itself after a report. A page does not."""


def native(name, text, folder):
    """The command line's report on a solution."""
    path, out = folder / f"{name}.py", io.StringIO()
    path.write_text(text, "utf-8")
    with chdir(folder), redirect_stdout(out):
        cli.main(["exercise", name, path.name])
    return HINTS.sub("", out.getvalue())


def rounded(number):
    """Round a matched number to two digits, and a rounding error to 0."""
    return f"{float(number[0]):.2g}" if abs(float(number[0])) > 1e-6 else "0"


def same(text):
    """Remove machine-dependent details from a report: last digits, and the sizes and positions of
    rounding errors.
    """
    rows = []
    for row in text.splitlines():
        row = re.sub(r" +\S+ +\S+ +\([\d, ]*\) +ok$", " ok", row)
        row = re.sub(r" +\S+ +\S+ +ok$", " ok", row)
        row = re.sub(r"-?\d+\.\d+(e[-+]\d+)?", rounded, row)
        rows.append(re.sub(r"\s+", " ", row).strip())
    return "\n".join(rows).strip()


def stub(name):
    return (EXERCISES / f"{name}.py").read_text("utf-8")


def solution(name):
    return (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
