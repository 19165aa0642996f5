"""Leftover names; import from tinygrad_attn.errors."""

from ..errors import INNER as INNER
from ..errors import quoted as quoted
from ..errors import warn as warn
