"""Training in several processes on one or more machines: `mpiexec -n 4 python train.py`.

Needs mpi4py and an MPI library: `pip install 'tinygrad_attn[parallel]'`. A single process needs
neither. docs/more-than-one-machine.md and examples/data_parallel.py show how to train, and
examples/tensor_parallel.py divides one layer among the ranks.
"""

from .data_parallel import Batch, DataParallel, DistributedSampler, ShardedAdamW
from .group import barrier, rank, set_time_limit, world_size
from .training import clip_grad_norm_, load_checkpoint, manual_seed, mean, save_checkpoint, total

__all__ = [
    "Batch",
    "DataParallel",
    "DistributedSampler",
    "ShardedAdamW",
    "barrier",
    "clip_grad_norm_",
    "load_checkpoint",
    "manual_seed",
    "mean",
    "rank",
    "save_checkpoint",
    "set_time_limit",
    "total",
    "world_size",
]
