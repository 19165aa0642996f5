"""Training in several processes on one or more machines: `mpiexec -n 4 python train.py`.

Needs mpi4py and an MPI library: `pip install 'tinygrad_attn[parallel]'`. A single process needs
neither. docs/more-than-one-machine.md and examples/data_parallel.py show how to train.
"""

from .data_parallel import Batch, DataParallel, DistributedSampler, ShardedAdamW
from .group import barrier, rank, set_time_limit, world_size
from .tensor_parallel import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelFeedForward,
    RowParallelLinear,
    ShardedParameter,
    grid,
)
from .training import clip_grad_norm_, load_checkpoint, manual_seed, mean, save_checkpoint, total

__all__ = [
    "Batch",
    "ColumnParallelLinear",
    "DataParallel",
    "DistributedSampler",
    "ParallelAttention",
    "ParallelFeedForward",
    "RowParallelLinear",
    "ShardedAdamW",
    "ShardedParameter",
    "barrier",
    "clip_grad_norm_",
    "grid",
    "load_checkpoint",
    "manual_seed",
    "mean",
    "rank",
    "save_checkpoint",
    "set_time_limit",
    "total",
    "world_size",
]
