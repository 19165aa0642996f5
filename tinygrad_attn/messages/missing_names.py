"""Leftover names; import from tinygrad_attn.errors."""

from ..errors import written_here


def not_for_torch(name: str, kind: str) -> TypeError:
    """The error for one of PyTorch's functions that is called with a Tensor of ours."""
    return TypeError(
        f"PyTorch's {name} takes PyTorch's tensors and knows no {kind} of this "
        f"package.{written_here(name)} To leave the graph on purpose give it "
        "torch.from_numpy(t.numpy())."
    )
