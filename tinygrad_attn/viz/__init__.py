"""Pictures: the computation graph, the backward pass step by step, attention weights."""

from .attention import attention
from .attention_page import attention_html
from .graph import Graph, graph
from .steps import Step, Steps, backward_steps

__all__ = ["Graph", "Step", "Steps", "attention", "attention_html", "backward_steps", "graph"]
