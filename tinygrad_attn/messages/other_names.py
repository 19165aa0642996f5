"""What PyTorch's and NumPy's users look for, and what it is called here.

`ELSEWHERE` is read where a name is missing, `AFTER` where a function of NumPy's is advised. In the
recipes t is the Tensor. A recipe that begins with "It is not here" is said as it stands; of every
other one it is said that it is to be written.
"""

ELSEWHERE = {
    "unsqueeze": "np.expand_dims(t, axis) or t[:, None]",
    "permute": "t.transpose(1, 0, 2)",
    "expand": "np.broadcast_to(t, shape)",
    "split": (
        "np.split(t, range(size, t.shape[axis], size), axis), which takes the places to cut; a "
        "single number is how many parts"
    ),
    "where": "np.where(mask, t, other)",
    "select": "np.take(t, index, axis)",
    "indices": "t.argmax(axis) or t.argmin(axis)",
    "cat": "np.concatenate([...], axis)",
    "chunk": "np.split(t, parts, axis)",
    "t": "t.T",
    "dim": "t.ndim",
    "numel": "t.size",
    "type": "t.dtype, or t.astype(dtype) for t.type(dtype)",
    "norm": "np.linalg.norm(t), or np.linalg.norm(t, axis=axis)",
    "contiguous": "nothing: memory order does not matter here",
    "clamp_min": "t.clip(min)",
    "clamp_max": "t.clip(None, max)",
    "cpu": "nothing: everything is on the CPU",
    "cuda": "nothing: there is only the CPU",
    "to": "t.astype(dtype) for another dtype; everything is on the CPU",
    "autocast": "nothing: half precision is not trained in",
    "float": "t.astype(np.float32)",
    "double": "t.astype(np.float64)",
    "long": "t.astype(np.int64)",
    "Generator": "ta.random.Generator(seed)",
    "set_default_device": "nothing: everything is on the CPU",
    "jit": "ta.compile(f), which runs f as a flat NumPy program",
    "mm": "t @ other",
    "matmul": "t @ other",
    "bmm": "t @ other",
    "masked_fill": "np.where(mask, value, t)",
    "masked_select": "t[mask]",
    "index_select": "np.take(t, indices, axis)",
    "index_add": "t + ta.ops.scatter(other, index=indices, shape=t.shape)",
    "scatter_add": (
        "t + ta.ops.scatter(other, index=(indices[:, None], np.arange(t.shape[1])), "
        "shape=t.shape), which adds to rows of t"
    ),
    "gather": "np.take_along_axis(t, indices, axis)",
    "repeat_interleave": "np.repeat(t, repeats, axis)",
    "one_hot": (
        "np.eye(classes, dtype=np.int64)[np.asarray(labels)], or dtype=np.float32 to compute with"
    ),
    "clamp": "t.clip(min, max)",
    "topk": (
        "np.take_along_axis(t, indices, -1) with indices = np.argsort(-t.numpy())[..., :k], or, in "
        "no order but ten times as fast, np.argpartition(-t.numpy(), k - 1)[..., :k]"
    ),
    "append": "np.concatenate([t, other])",
    "relu": "F.relu(t)",
    "sigmoid": "F.sigmoid(t)",
    "gelu": "F.gelu(t)",
    "softmax": "F.softmax(t, axis=-1)",
    "log_softmax": "F.log_softmax(t, axis=-1)",
    "logsumexp": "F.logsumexp(t, axis)",
    "softplus": "np.logaddexp(t, 0)",
    "logsigmoid": "-np.logaddexp(-t, 0)",
    "leaky_relu": "np.where(t > 0, t, 0.01 * t)",
    "glu": "np.split(t, 2, axis=-1)[0] * F.sigmoid(np.split(t, 2, axis=-1)[1])",
    "elu": "np.where(t > 0, t, np.expm1(t.clip(None, 0)))",
    "selu": (
        "1.0507009873554805 * np.where(t > 0, t, 1.6732632423543772 * np.expm1(t.clip(None, 0)))"
    ),
    "relu6": "F.relu(t).clip(None, 6)",
    "hardtanh": "t.clip(-1, 1)",
    "hardsigmoid": "(t / 6 + 0.5).clip(0, 1)",
    "hardswish": "t * (t / 6 + 0.5).clip(0, 1)",
    "mish": "t * np.tanh(np.logaddexp(t, 0))",
    "softsign": "t / (1 + np.abs(t))",
    "tanhshrink": "t - np.tanh(t)",
    "softmin": "F.softmax(-t, axis=-1)",
    "lerp_": "t.data += weight * (other.data - t.data)",
    "cosine_similarity": (
        "np.sum(t * other, axis=-1) / np.linalg.norm(t, axis=-1) / np.linalg.norm(other, axis=-1)"
    ),
    "max_pool2d": (
        "t.reshape(*t.shape[:-2], rows // 2, 2, columns // 2, 2).max((-3, -1)), which takes blocks "
        "of 2 x 2"
    ),
    "avg_pool2d": (
        "t.reshape(*t.shape[:-2], rows // 2, 2, columns // 2, 2).mean((-3, -1)), which takes "
        "blocks of 2 x 2"
    ),
    "conv1d": (
        "np.einsum('nclk,ock->nol', np.lib.stride_tricks.sliding_window_view(t, k, -1), weight), "
        "for a window of k"
    ),
    "conv2d": (
        "np.einsum('nchwij,ocij->nohw', np.lib.stride_tricks.sliding_window_view(t, (k, k), (-2, "
        "-1)), weight), for k x k windows"
    ),
    "normalize": "t / np.maximum(np.linalg.norm(t, axis=-1, keepdims=True), 1e-12)",
    "l1_loss": "np.mean(np.abs(t - target))",
    "nll_loss": "F.cross_entropy(t, target), which takes scores and their log_softmax alike",
    "smooth_l1_loss": (
        "np.mean(np.where(np.abs(t - target) < 1, (t - target)**2 / 2, np.abs(t - target) - 0.5))"
    ),
    "kl_div": (
        "np.mean(target * (np.log(np.maximum(target, 1e-30)) - t)), or np.sum(...) / len(t) for "
        "reduction='batchmean'"
    ),
    "binary_cross_entropy": (
        "-np.mean(target * np.log(np.maximum(t, 1e-30)) + (1 - target) * np.log(np.maximum(1 - t, "
        "1e-30))), which holds logarithms at -69 where PyTorch does at -100"
    ),
    "std": "np.std(t, axis, ddof=1), as PyTorch's, which divides by n - 1",
    "var": "np.var(t, axis, ddof=1), as PyTorch's, which divides by n - 1",
    "median": (
        "np.sort(t, axis=None)[(t.size - 1) // 2], the lower of two as PyTorch's, or "
        "np.take(np.sort(t, axis), (t.shape[axis] - 1) // 2, axis) along an axis; np.median is "
        "their mean"
    ),
    "max": "np.max(t, axis), or np.maximum(t, other) of two",
    "min": "np.min(t, axis), or np.minimum(t, other) of two",
    "GroupNorm": (
        "F.layer_norm(t.reshape(len(t), groups, -1), t.size // len(t) // groups).reshape(t.shape), "
        "before weight and bias"
    ),
    "binary_cross_entropy_with_logits": "np.mean(np.logaddexp(t, 0) - t * target)",
    "zero_": "t.data[...] = 0, or w.zero_grad() for w.grad.zero_()",
    "copy_": "t.data[...] = other.data",
    "add_": "t.data += other.data",
    "fill_": "t.data[...] = value",
    "clamp_": "t.data[...] = t.data.clip(min, max)",
    "detach_": "t = t.detach()",
    "inference_mode": "ta.no_grad",
    "LambdaLR": "optim.Schedule(optimizer, factor)",
    "lerp": "t + weight * (other - t)",
    "lr_scheduler": (
        "optim.Schedule(optimizer, factor), optim.warmup_cosine or optim.noam, or set group['lr'] "
        "in optimizer.param_groups"
    ),
    "CosineAnnealingLR": "optim.warmup_cosine(optimizer, 0, total_steps, min_lr)",
    "sub_": "t.data -= other.data",
    "mul_": "t.data *= other.data",
    "backwards": "t.backward()",
    "register_hook": (
        "t.retain_grad() before backward(), and look at t.grad after it; an op of your own may "
        "change a gradient"
    ),
    "apply": "an op: @ta.op on the function, .vjp under it",
    "Function": "an op: @ta.op on the function, .vjp under it",
    "detect_anomaly": "ta.detect_anomaly()",
    "set_detect_anomaly": "with ta.detect_anomaly():",
    "func": "ta.functional_call, ta.vjp, ta.jvp, ta.jacobian, ta.hessian or ta.hvp",
    "vmap": "leading axes, over which ops run at once",
    "functional": "ta.vjp, ta.jvp, ta.jacobian, ta.hessian or ta.hvp",
    "set_rng_state": "ta.random.set_rng_state(state)",
    "randint": "ta.random.randint(low, high, size)",
    "randperm": "ta.random.randperm(n)",
    "rand_like": "ta.rand(*t.shape, dtype=t.dtype)",
    "randn_like": "ta.randn(*t.shape, dtype=t.dtype)",
    "get_rng_state": "ta.random.get_rng_state()",
    "Flatten": "t.reshape(len(t), -1) in forward",
    "flatten": "t.reshape(len(t), -1) for start_dim=1",
    "rsqrt": "1 / np.sqrt(t)",
    "from_numpy": "Tensor(array)",
    "device": "nothing: everything is on the CPU",
    "unbind": "list(np.moveaxis(t, axis, 0))",
    "expand_as": "np.broadcast_to(t, other.shape)",
    "view_as": "t.reshape(other.shape)",
    "type_as": "t.astype(other.dtype)",
    "set_grad_enabled": "with ta.enable_grad() if mode else ta.no_grad():",
    "masked_fill_": "t.data[mask] = value",
    "normal_": "nn.init.normal_(t, mean, std)",
    "uniform_": "nn.init.uniform_(t, low, high)",
    "int": "t.astype(np.int32)",
    "RMSprop": (
        "optim.Adam(params, lr, betas=(0, 0.99)), which is RMSprop but for larger numbers under "
        "the root in its first steps"
    ),
    "StepLR": "optim.Schedule(optimizer, lambda t: gamma ** (t // step_size))",
    "ExponentialLR": "optim.Schedule(optimizer, lambda t: gamma ** t)",
    "multinomial": (
        "np.argmax(t.numpy() / rng.exponential(size=t.shape), -1), which draws one of each row, "
        "rng = np.random.default_rng()"
    ),
    "eye_": "p.data[...] = np.eye(*p.shape)",
    "unfold": (
        "np.lib.stride_tricks.sliding_window_view(t, size, axis), or, for F.unfold, what is said "
        "for nn.Unfold"
    ),
    "orthogonal_": (
        "p.data[...] = np.linalg.qr(ta.randn(*p.shape).numpy())[0], if it has no more columns than "
        "rows"
    ),
    "ParameterList": "setattr(self, f'weight_{i}', p) for each parameter",
    "ParameterDict": "self.register_parameter(name, p) for each parameter",
}
ELSEWHERE |= {
    name: ELSEWHERE[function]
    for name, function in {
        "Softplus": "softplus",
        "LogSigmoid": "logsigmoid",
        "LeakyReLU": "leaky_relu",
        "ELU": "elu",
        "celu": "elu",
        "CELU": "elu",
        "SELU": "selu",
        "ReLU6": "relu6",
        "Hardtanh": "hardtanh",
        "Hardsigmoid": "hardsigmoid",
        "Hardswish": "hardswish",
        "Mish": "mish",
        "Softsign": "softsign",
        "Tanhshrink": "tanhshrink",
        "Softmin": "softmin",
        "GLU": "glu",
        "L1Loss": "l1_loss",
        "SmoothL1Loss": "smooth_l1_loss",
        "huber_loss": "smooth_l1_loss",
        "HuberLoss": "smooth_l1_loss",
        "NLLLoss": "nll_loss",
        "KLDivLoss": "kl_div",
        "BCELoss": "binary_cross_entropy",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "CosineSimilarity": "cosine_similarity",
        "MaxPool2d": "max_pool2d",
        "AvgPool2d": "avg_pool2d",
        "Conv1d": "conv1d",
        "Conv2d": "conv2d",
        "index_add_": "index_add",
        "scatter_add_": "scatter_add",
    }.items()
}
ELSEWHERE |= dict.fromkeys(
    ("RNN", "LSTM", "GRU"),
    "a Module whose forward calls a Linear layer for one step after the other",
)

# Functions that NumPy and PyTorch both have, with other arguments or other results.
ELSEWHERE |= {
    "sort": "np.sort(t, axis), the values alone; t.argsort(axis) are the indices",
    "values": "nothing: t.max(axis), np.sort(t, axis) and the like return the values alone",
    "einsum": "np.einsum(equation, t, other)",
    "nonzero": "np.argwhere(t), or np.nonzero(t) for as_tuple=True",
    "equal": "np.array_equal(t, other); np.equal goes element by element",
    "byte": "t.astype(np.uint8)",
    "transpose": "np.swapaxes(t, axis1, axis2)",
    "meshgrid": "np.meshgrid(t, other, indexing='ij')",
    "nanmedian": (
        "np.sort(t, axis=None)[(np.sum(~np.isnan(t)) - 1) // 2], the lower of two as PyTorch's"
    ),
    "ldexp": "t * 2.0**other",
    "row_stack": "np.vstack([t, other])",
    "put": "np.put(t.data, index, source), which changes t itself",
    "pad": (
        "np.pad(t, [(0, 0)] * (t.ndim - 1) + [(left, right)]), which has a pair for each axis, the "
        "first one first"
    ),
    "tril_indices": "np.tril_indices(rows, offset, columns)",
    "triu_indices": "np.triu_indices(rows, offset, columns)",
    "arange": "np.arange(start, end, step), with dtype=np.float32 for real numbers",
    "asarray": "Tensor(data)",
    "zeros": "Tensor(np.zeros(shape, np.float32))",
    "ones": "Tensor(np.ones(shape, np.float32))",
    "empty": "Tensor(np.empty(shape, np.float32))",
    "full": "Tensor(np.full(shape, value, np.float32))",
    "eye": "Tensor(np.eye(n, dtype=np.float32))",
    "linspace": "Tensor(np.linspace(start, end, steps, dtype=np.float32))",
}
# Arithmetic, linear algebra, special functions and random numbers.
ELSEWHERE |= {
    "sub": "t - other",
    "mul": "t * other",
    "div": "t / other",
    "neg": "-t",
    "eq": "t == other",
    "ne": "t != other",
    "lt": "t < other",
    "le": "t <= other",
    "gt": "t > other",
    "ge": "t >= other",
    "div_": "t.data /= other.data",
    "mv": "t @ other",
    "det": "np.linalg.det(t)",
    "slogdet": "np.linalg.slogdet(t)",
    "logdet": "np.linalg.slogdet(t)[1], where the determinant is positive",
    "inverse": "np.linalg.inv(t)",
    "pinverse": "np.linalg.pinv(t)",
    "cholesky": "np.linalg.cholesky(t)",
    "cholesky_solve": "np.linalg.solve(L @ L.mT, t)",
    "cdist": "np.linalg.norm(t[..., :, None, :] - other[..., None, :, :], axis=-1)",
    "logcumsumexp": "np.logaddexp.accumulate(t, axis)",
    "logit": "np.log(t / (1 - t))",
    "erf": "ta.ops.erf(t)",
    "erfc": "1 - ta.ops.erf(t)",
    "special": (
        "ta.ops.erf(t), F.sigmoid(t) for expit, F.logsumexp(t, axis), or an op of your own: @ta.op "
        "on SciPy's, .vjp under it"
    ),
    "lgamma": "gammaln(t), an op of your own: gammaln = ta.op(lambda x: scipy.special.gammaln(x)); "
    "gammaln.vjp(lambda g, y, x: g * scipy.special.digamma(x))",
    "digamma": (
        "digamma(t), an op of your own: digamma = ta.op(lambda x: scipy.special.digamma(x)); "
        "digamma.vjp(lambda g, y, x: g * scipy.special.polygamma(1, x))"
    ),
    "narrow": "t[:, start:start + length], for dim=1",
    "movedim": "np.moveaxis(t, source, destination)",
    "unflatten": "t.reshape(*t.shape[:axis], *sizes, *t.shape[axis + 1:]), for an axis >= 0",
    "new_zeros": "Tensor(np.zeros(shape, t.dtype))",
    "new_ones": "Tensor(np.ones(shape, t.dtype))",
    "new_full": "Tensor(np.full(shape, value, t.dtype))",
    "new_tensor": "Tensor(data, dtype=t.dtype)",
    "scatter_reduce": ELSEWHERE["scatter_add"] + ", for reduce='sum'",
    "is_tensor": "isinstance(x, Tensor)",
    "grad_fn": (
        "ta.viz.graph(t), which draws how t was made, or t.is_leaf, which is True where nothing "
        "made it"
    ),
    "is_grad_enabled": "(p * 1).requires_grad, of a p that requires a gradient",
    "normal": "mean + std * ta.randn(*shape), or nn.init.normal_(t, mean, std) in place",
    "bernoulli": "(ta.rand(*t.shape, dtype=t.dtype) < t).astype(t.dtype)",
    "distributions": (
        "It is not here; ta.rand, ta.randn and np.random.default_rng() draw, and a logarithm of a "
        "density is a line of np.log"
    ),
    "DataLoader": (
        "for rows in np.array_split(np.random.permutation(len(x)), batches): and take x[rows], "
        "y[rows] in it"
    ),
}
# Names of JAX's, tinygrad's and torch.distributed's.
ELSEWHERE |= {
    "jacfwd": "ta.jacobian(f, x)",
    "jacrev": "ta.jacobian(f, x)",
    "stop_gradient": "t.detach()",
    "PRNGKey": "ta.manual_seed(seed)",
    "default_rng": "ta.random.Generator(seed)",
    "block_until_ready": "nothing: numbers are computed at once",
    "realize": "nothing: numbers are computed at once",
    "TinyJit": ELSEWHERE["jit"],
    "assign": "t.data[...] = value",
    "at": (
        "np.where(mask, value, t) for t.at[mask].set(value), or t + ta.ops.scatter(value, "
        "index=index, shape=t.shape) for .add(value)"
    ),
    "sparse_categorical_crossentropy": "F.cross_entropy(t, target)",
    "attention": "F.scaled_dot_product_attention(q, k, v)",
    "multi_head_attention_forward": "nn.MultiheadAttention(embed_dim, num_heads)",
    "bce_loss": ELSEWHERE["binary_cross_entropy"],
    "rand": "ta.rand(*shape)",
    "randn": "ta.randn(*shape)",
    "init_process_group": "nothing: mpiexec -n 4 python train.py starts the processes",
    "destroy_process_group": "nothing: a process ends by itself",
    "get_rank": "parallel.rank()",
    "get_world_size": "parallel.world_size()",
    "all_reduce": "parallel.total(values), or parallel.mean(values)",
    "DistributedDataParallel": "parallel.DataParallel(model)",
}
METHODS = {
    "cross_entropy": "F.cross_entropy(t, target)",
    "mse_loss": "F.mse_loss(t, target)",
    "layer_norm": "F.layer_norm(t, t.shape[-1])",
    "dropout": "F.dropout(t, p)",
    "silu": "F.silu(t)",
}
"""Functions of F that are methods in tinygrad."""

ELSEWHERE["utils"] = (
    ELSEWHERE["DataLoader"] + ", for utils.data; ta.checkpoint is utils.checkpoint's"
)
# Layers, losses and windows.
ELSEWHERE |= {
    "BatchNorm1d": (
        "nn.LayerNorm, which needs no running statistics, or (t - t.mean(0)) / np.sqrt(t.var(0) + "
        "1e-5)"
    ),
    "BatchNorm2d": "nn.LayerNorm, which needs no running statistics, or "
    "(t - t.mean((0, 2, 3), keepdims=True)) / np.sqrt(t.var((0, 2, 3), keepdims=True) + 1e-5)",
    "InstanceNorm2d": (
        "(t - t.mean((2, 3), keepdims=True)) / np.sqrt(t.var((2, 3), keepdims=True) + 1e-5)"
    ),
    "LSTMCell": (
        "i, f, g, o = np.split(self.linear(np.concatenate([x, h], -1)), 4, -1); c = F.sigmoid(f) * "
        "c + F.sigmoid(i) * np.tanh(g); h = F.sigmoid(o) * np.tanh(c), in a Module with "
        "self.linear = nn.Linear(inputs + size, 4 * size)"
    ),
    "GRUCell": (
        "a, b = np.split(self.of_x(x), 3, -1), np.split(self.of_h(h), 3, -1); z = F.sigmoid(a[1] + "
        "b[1]); h = (1 - z) * np.tanh(a[2] + F.sigmoid(a[0] + b[0]) * b[2]) + z * h, in a Module "
        "with two nn.Linear of 3 * size outputs"
    ),
    "RNNCell": "h = np.tanh(self.of_x(x) + self.of_h(h)), in a Module with two nn.Linear",
    "gumbel_softmax": (
        "F.softmax((t - np.log(-np.log(ta.rand(*t.shape, dtype=t.dtype)))) / tau, axis=-1), for "
        "hard=False"
    ),
    "ctc_loss": (
        "It is not here; its sum over alignments is a loop of np.logaddexp over the time steps"
    ),
    "cosine_embedding_loss": "np.mean(np.where(target > 0, 1 - c, F.relu(c - margin))), with c = "
    + ELSEWHERE["cosine_similarity"],
    "pairwise_distance": "np.linalg.norm(t - other + 1e-6, axis=-1)",
    "triplet_margin_loss": "np.mean(F.relu(np.linalg.norm(t - positive + 1e-6, axis=-1) - "
    "np.linalg.norm(t - negative + 1e-6, axis=-1) + margin))",
    "margin_ranking_loss": "np.mean(F.relu(-target * (t - other) + margin))",
    "gaussian_nll_loss": "np.mean(np.log(var) + (t - target)**2 / var) / 2, for var > 0",
    "poisson_nll_loss": "np.mean(np.exp(t) - target * t)",
    "prelu": "np.where(t > 0, t, weight * t)",
    "interpolate": "np.repeat(np.repeat(t, k, -2), k, -1), for mode='nearest' and scale_factor=k",
    "adaptive_avg_pool2d": "t.mean((-2, -1), keepdims=True), for an output of size 1",
    "conv_transpose2d": (
        "np.einsum('nchw,coij->nohiwj', t, weight).reshape(len(t), -1, rows * k, columns * k), for "
        "k x k windows and stride=k"
    ),
    "fold": (
        "t.reshape(len(t), -1, k, k, rows // k, columns // k).transpose(0, 1, 4, 2, 5, "
        "3).reshape(len(t), -1, rows, columns), for k x k windows and stride=k"
    ),
    "Unfold": (
        "np.lib.stride_tricks.sliding_window_view(t, (k, k), (-2, -1)).transpose(0, 1, 4, 5, 2, "
        "3).reshape(len(t), t.shape[1] * k * k, -1)"
    ),
}
ELSEWHERE |= {
    name: ELSEWHERE[function]
    for name, function in {
        "batch_norm": "BatchNorm1d",
        "instance_norm": "InstanceNorm2d",
        "group_norm": "GroupNorm",
        "CTCLoss": "ctc_loss",
        "CosineEmbeddingLoss": "cosine_embedding_loss",
        "PairwiseDistance": "pairwise_distance",
        "TripletMarginLoss": "triplet_margin_loss",
        "MarginRankingLoss": "margin_ranking_loss",
        "GaussianNLLLoss": "gaussian_nll_loss",
        "PoissonNLLLoss": "poisson_nll_loss",
        "PReLU": "prelu",
        "Upsample": "interpolate",
        "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
        "ConvTranspose2d": "conv_transpose2d",
        "Fold": "fold",
        "Unflatten": "unflatten",
        "concat": "cat",
        "concatenate": "cat",
    }.items()
}
# Optimisers and schedules.
ELSEWHERE |= {
    "Adagrad": "It is not here; optim.Adam, which forgets old gradients, is nearest to it",
    "LBFGS": (
        "scipy.optimize.minimize(lambda x: [y.numpy() for y in ta.value_and_grad(loss)(x)], x, "
        "jac=True, method='L-BFGS-B'), of all parameters as one vector x"
    ),
    "OneCycleLR": (
        "optim.warmup_cosine(optimizer, warmup_steps, total_steps), which warms up along a line "
        "and leaves momentum as it is"
    ),
    "ReduceLROnPlateau": (
        "for group in optimizer.param_groups: group['lr'] *= factor, when the loss has not fallen "
        "for some epochs"
    ),
    "MultiStepLR": (
        "optim.Schedule(optimizer, lambda t: gamma ** sum(t >= step for step in milestones))"
    ),
    "LinearLR": "optim.Schedule(optimizer, lambda t: start + (end - start) * min(t / total, 1))",
    "ConstantLR": "optim.Schedule(optimizer, lambda t: factor if t < total else 1)",
    "PolynomialLR": "optim.Schedule(optimizer, lambda t: (1 - min(t / total, 1)) ** power)",
    "CosineAnnealingWarmRestarts": (
        "optim.Schedule(optimizer, lambda t: (1 + np.cos(np.pi * (t % period) / period)) / 2), for "
        "T_mult=1"
    ),
    "CyclicLR": (
        "optim.Schedule(optimizer, lambda t: low + (1 - low) * (1 - abs(t / size_up % 2 - 1))), "
        "with max_lr as the optimiser's lr, low = base_lr / max_lr, and momentum as it is"
    ),
    **dict.fromkeys(
        ("SequentialLR", "ChainedScheduler", "MultiplicativeLR"),
        "optim.Schedule(optimizer, factor), with one function of the step for all of it",
    ),
    **dict.fromkeys(
        ("NAdam", "RAdam", "Adamax", "Adadelta", "SparseAdam"),
        "It is not here; optim.Adam is nearest to it",
    ),
    "Rprop": (
        "It is not here; optim.Adam(params, lr, betas=(0, 0)), which steps by the sign of the "
        "gradient alone, is nearest to it"
    ),
    "ASGD": "It is not here; optim.SGD makes its steps, without the average over them",
}
# What changes a tensor itself in PyTorch, whether there is room for it in the graph or not.
ELSEWHERE |= {
    f"{name}_": f"t = {function}(t), or t.data[...] = {function}(t.data) to change t itself"
    for name, function in {
        **{
            name: f"np.{name}"
            for name in (
                "abs",
                "ceil",
                "cos",
                "exp",
                "expm1",
                "floor",
                "log",
                "log1p",
                "log2",
                "log10",
                "reciprocal",
                "round",
                "sign",
                "sin",
                "sqrt",
                "square",
                "tan",
                "tanh",
                "trunc",
            )
        },
        "neg": "np.negative",
        "relu": "F.relu",
        "sigmoid": "F.sigmoid",
        "silu": "F.silu",
    }.items()
}
ELSEWHERE |= {
    "clip_": ELSEWHERE["clamp_"],
    "pow_": "t.data **= other.data",
    "unsqueeze_": "t = np.expand_dims(t, axis)",
    "squeeze_": "t = t.squeeze(axis)",
    "transpose_": "t = np.swapaxes(t, axis1, axis2)",
    "t_": "t = t.T",
    "addcmul_": "t.data += value * a.data * b.data",
    "addcdiv_": "t.data += value * a.data / b.data",
    "addmm": "t + a @ b",
}
# Layers of nearly the same name as one that is here, and names that other packages use.
ELSEWHERE |= dict.fromkeys(
    ("Bilinear", "bilinear"), "np.einsum('...i,oij,...j->...o', t, weight, other) + bias"
)
ELSEWHERE |= dict.fromkeys(
    ("EmbeddingBag", "embedding_bag"), "F.embedding(t, weight).mean(-2), or .sum(-2) for mode='sum'"
)
ELSEWHERE |= {
    name: f"t * F.dropout(np.ones((*t.shape[:2]{', 1' * axes}), t.dtype), p, training), "
    "which drops whole channels"
    for axes in (1, 2, 3)
    for name in (f"Dropout{axes}d", f"dropout{axes}d")
}
ELSEWHERE |= {
    "__delitem__": "np.delete(t, index, axis), which gives a new one",
    "H": "t.T",
    "mH": "t.mT",
    "nelement": "t.size",
    "is_floating_point": "t.dtype.kind == 'f'",
    "stride": "t.data.strides, which counts bytes",
    "is_contiguous": "t.data.flags.c_contiguous",
    "is_cuda": "nothing: everything is on the CPU",
    "element_size": "t.data.itemsize",
    **{
        name: f"t.data.{name}"
        for name in ("base", "flags", "flat", "itemsize", "nbytes", "strides")
    },
    "Variable": "Tensor(data, requires_grad=True)",
    "FloatTensor": "Tensor(data)",
    "DoubleTensor": "Tensor(data, dtype=np.float64)",
    "LongTensor": "Tensor(data, dtype=np.int64)",
    "BoolTensor": "Tensor(data, dtype=bool)",
    "Dense": "nn.Linear(inputs, outputs)",
    "PositionalEncoding": (
        "nn.SinusoidalPositionalEncoding(d_model), or nn.LearnedPositionalEncoding(max_len, "
        "d_model)"
    ),
    **dict.fromkeys(("draw", "draw_dot", "draw_graph", "make_dot"), "ta.viz.graph(t)"),
    "log_sigmoid": ELSEWHERE["logsigmoid"],
    **dict.fromkeys(
        ("heatmap", "imshow", "attention_map"), "ta.viz.attention(weights, queries, keys)"
    ),
    "version": "ta.__version__",
    "onnx": "It is not here; ta.save(model.state_dict(), path) writes the weights as safetensors",
    "sparse": "It is not here; w[indices] and F.embedding(indices, w) read single rows",
    "range": "np.arange(start, end + step, step), which leaves its end out",
    "solve": "np.linalg.solve(t, other)",
    **dict.fromkeys(
        ("RReLU", "rrelu"),
        "np.where(t > 0, t, t * (lower + (upper - lower) * ta.rand(*t.shape, dtype=t.dtype)))",
    ),
    **dict.fromkeys(
        ("AlphaDropout", "alpha_dropout", "FeatureAlphaDropout", "feature_alpha_dropout"),
        "It is not here; nn.Dropout(p) puts zeros in, which do not keep the mean of SELU's results",
    ),
    "Softmax2d": "F.softmax(t, axis=-3)",
    "seed": "ta.manual_seed(n)",
    "uniform": "low + (high - low) * ta.rand(*shape), or nn.init.uniform_(t, low, high) in place",
    **dict.fromkeys(("permutation", "shuffle"), "x[ta.random.randperm(len(x))]"),
    "choice": (
        "x[ta.random.randint(len(x), (n,))], which may take one twice, or "
        "x[ta.random.randperm(len(x))[:n]]"
    ),
}

AFTER = {
    "roll": "shift, axis",
    "rot90": "k, axes",
    "diff": "n, axis",
    "quantile": "q, axis",
    "nanquantile": "q, axis",
    "percentile": "q, axis",
    "cross": "other, axis=axis",
    "nan_to_num": "nan=0.0",
    "tile": "repeats",
    "resize": "shape",
    "histogram": "bins",
    "histogramdd": "bins",
    "isin": "elements",
    "full_like": "value",
    "tensordot": "other, axes",
    "around": "decimals",
    "delete": "index, axis",
    "insert": "index, values, axis",
    "partition": "kth, axis",
    "take_along_axis": "indices, axis",
    "array_split": "parts, axis",
    "permute_dims": "axes",
    "unravel_index": "shape",
    "ravel_multi_index": "shape",
    "copyto": "values",
    "putmask": "mask, values",
    **dict.fromkeys(("hsplit", "vsplit", "dsplit"), "parts"),
    **dict.fromkeys(("inner", "vdot", "may_share_memory", "shares_memory"), "other"),
    **dict.fromkeys(("diag", "diagflat", "tril", "triu"), "k"),
    **dict.fromkeys(
        (
            "amax",
            "amin",
            "average",
            "count_nonzero",
            "flip",
            "nancumprod",
            "nancumsum",
            "nanmax",
            "nanmean",
            "nanmin",
            "nanprod",
            "nanstd",
            "nansum",
            "nanvar",
            "ptp",
        ),
        "axis",
    ),
    **dict.fromkeys(("cumulative_prod", "cumulative_sum", "unstack"), "axis=axis"),
}
"""What a function of NumPy's is given after t, where its signature does not say it well."""
