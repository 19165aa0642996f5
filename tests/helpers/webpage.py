"""Checks for saved pages: they need no network, and their text has enough contrast."""

import re

import numpy as np

EXTERNAL = re.compile(
    r"""(?:src|href|action|data)\s*=\s*["']?(?!#)|url\(|@import|<(?:link|iframe|object|embed)|fetch\(|XMLHttp"""
)


def external(page):
    """Return the references to anything outside the page, except XML namespaces."""
    return EXTERNAL.findall(re.sub(r'xmlns(:\w+)?="[^"]*"', "", page))


def contrast(colour):
    """Return the WCAG contrast with white. Text needs at least 4.5, and a focus indicator 3."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    light = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return 1.05 / (light @ [0.2126, 0.7152, 0.0722] + 0.05)
