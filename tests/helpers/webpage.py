"""What the tests of saved pages ask of them: that they need no network, and that they can be read."""

import re

import numpy as np

EXTERNAL = re.compile(
    r"""(?:src|href|action|data)\s*=\s*["']?(?!#)|url\(|@import|<(?:link|iframe|object|embed)|fetch\(|XMLHttp"""
)


def external(page):
    """References to anything outside the page; names of XML namespaces are no references."""
    return EXTERNAL.findall(re.sub(r'xmlns(:\w+)?="[^"]*"', "", page))


def contrast(colour):
    """With white, as WCAG counts it: 4.5 for text that is read, 3 for what shows where the focus is."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    light = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return 1.05 / (light @ [0.2126, 0.7152, 0.0722] + 0.05)
