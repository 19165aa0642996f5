"""Training in several processes on one or more machines: `mpiexec -n 4 python train.py`.

    from tinygrad_attn import parallel

    model = parallel.DataParallel(model)                        # averages gradients over the ranks
    optimizer = parallel.ShardedAdamW(model.parameters())       # each rank keeps 1 / N of the state
    sampler = parallel.DistributedSampler(len(x))
    for indices, weight, _ in sampler.batches(64):              # this rank's part of each batch
        (weight * loss_of(model, x[indices], y[indices])).backward()

Needs mpi4py and an MPI library: `pip install 'tinygrad_attn[parallel]'`. A single process needs
neither.
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
