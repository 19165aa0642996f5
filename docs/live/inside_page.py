"""Write the page about the inside of SmolLM2 that the site shows, from the numbers in inside.json.

The numbers are those of the page that examples/inside.py writes for its first prompt.
"""

import json
from pathlib import Path

from tinygrad_attn.viz.page import page

NUMBERS = Path(__file__).with_name("inside.json")


def save(folder: Path) -> None:
    """Write inside.html into a folder."""
    numbers = NUMBERS.read_text("utf-8").strip()
    said = json.loads(numbers)["said"]
    page("Inside SmolLM2-135M", "inside", data=numbers, **said).save(folder / "inside.html")
