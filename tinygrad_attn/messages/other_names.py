"""Leftover name; import WRITE from tinygrad_attn.errors."""

from ..errors import WRITE as ELSEWHERE

__all__ = ["ELSEWHERE"]
