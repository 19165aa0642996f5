"""Leftover names; import from tinygrad_attn.errors."""

from __future__ import annotations

from typing import Any

from ..errors import INNER as INNER
from ..errors import MissingName as MissingName
from ..errors import describe as describe
from ..errors import explain as explain
from ..errors import is_integer as is_integer
from ..errors import is_number as is_number
from ..errors import listed as listed
from ..errors import missing_from as missing_from
from ..errors import missing_names as missing_names
from ..errors import nearest as nearest
from ..errors import quoted as quoted
from ..errors import warn as warn
from .hints import is_module as is_module
from .hints import refuse_mask as refuse_mask
from .hints import unmade as unmade
from .other_names import ELSEWHERE as ELSEWHERE


def only_renamed(t: Any) -> TypeError:
    """The error for `p -= step` of a tensor p that is trained."""
    return TypeError(
        f"p += x, p -= x and the like would leave {describe(t)} as it is, for they make a new "
        "Tensor. Write p.data -= x.data to change it, or y = p - x for a result."
    )
