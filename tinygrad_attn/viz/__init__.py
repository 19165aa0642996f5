"""Pictures of the computation graph, the backward pass step by step, and attention weights."""

from .attention import attention, attention_html
from .graph import graph
from .picture import Graph
from .steps import Step, Steps, backward_steps

__all__ = ["Graph", "Step", "Steps", "attention", "attention_html", "backward_steps", "graph"]
