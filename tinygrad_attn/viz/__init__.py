"""Pictures: the computation graph, the backward pass step by step, attention weights."""

from typing import TYPE_CHECKING

from ..errors import missing_names
from .attention import attention
from .attention_page import attention_html
from .graph import Graph, graph
from .graph_page import graph_html
from .steps import Step, Steps, backward_steps

__all__ = [
    "Graph",
    "Step",
    "Steps",
    "attention",
    "attention_html",
    "backward_steps",
    "graph",
    "graph_html",
]


if not TYPE_CHECKING:  # for a type checker every misspelt name would exist
    __getattr__ = missing_names(__name__, globals())
