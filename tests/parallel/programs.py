"""What the tests run on several ranks: `mpiexec -n 2 python tests/parallel/programs.py NAME ARGS`,
and several in one run with ` + ` between them.

Each program asserts on every rank and prints "ok" on rank 0.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import runpy
import sys
import time
import warnings
import weakref
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim, parallel

RANK, SIZE = parallel.rank(), parallel.world_size()
SAMPLES, BATCH, STEPS = 50, 12, 20
HALF = STEPS // 2
"""50 samples in batches of 12 leave 2, less than one for each of 4 ranks."""


class Net(nn.Module):
    """A layer of everything: (B, 5, 4) -> (B, 3)"""

    def __init__(self) -> None:
        self.embed = nn.Linear(4, 8)
        # Without biases: by a bias of the keys the derivative is 0, and what rounding makes of
        # it AdamW scales to full steps, in float32 to 1e-3 after 50 of them.
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)).mean(axis=1))


def data(dtype):
    rng = np.random.default_rng(0)
    return rng.standard_normal((SAMPLES, 5, 4)).astype(dtype), rng.integers(0, 3, SAMPLES)


def make(seed, dtype=np.float64, net=Net):
    ta.manual_seed(seed)
    return net().astype(dtype)


def optimizer_for(kind, model, comm=None):
    if kind == "sgd":
        return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if kind == "sharded":
        return parallel.ShardedAdamW(model.parameters(), lr=1e-3, amsgrad=True, comm=comm)
    return optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)


def steps_of(sampler, steps, accumulate):
    """Groups of `accumulate` batches, epoch after epoch."""
    batches, epoch = [], 0
    while len(batches) < steps * accumulate:
        sampler.set_epoch(epoch)
        batches += sampler.batches(BATCH)
        epoch += 1
    return [batches[i * accumulate : (i + 1) * accumulate] for i in range(steps)]


def train(model, optimizer, clip, sampler, dtype, accumulate=1, steps=range(STEPS)):
    """Train a model, a DataParallel or a bare one; returns its parameters."""
    x, y = data(dtype)
    bare = model.module if isinstance(model, parallel.DataParallel) else model
    for group in steps_of(sampler, steps.stop, accumulate)[steps.start :]:
        optimizer.zero_grad()
        for number, (indices, weight, _) in enumerate(group):

            def backward(indices=indices, weight=weight):
                loss = F.cross_entropy(model(x[indices]), y[indices])
                (loss * (weight / accumulate)).backward()

            if number < accumulate - 1 and bare is not model:
                with model.no_sync():
                    backward()
            else:
                backward()
        norm = clip(bare.parameters(), 0.1)
        assert norm > 0.1
        optimizer.step()
    return {name: p.numpy().copy() for name, p in bare.named_parameters()}


def on_ranks(kind, dtype, accumulate, steps=range(STEPS), seed=RANK):
    model = parallel.DataParallel(make(seed, dtype))
    sampler = parallel.DistributedSampler(SAMPLES, seed=1)
    optimizer = optimizer_for(kind, model)
    return train(
        model, optimizer, parallel.clip_grad_norm_, sampler, dtype, accumulate, steps
    ), optimizer


def digest(values):
    return hashlib.sha256(b"".join(v.tobytes() for v in values.values())).hexdigest()


def equal(kind, dtype, accumulate, steps=STEPS):
    """N ranks and one process; prints a digest of the result."""
    dtype, accumulate, steps = np.dtype(dtype), int(accumulate), range(int(steps))
    found, _ = on_ranks(kind, dtype, accumulate, steps)
    digests = parallel.group.group().gather("digest", digest(found))
    assert len(set(digests)) == 1
    if RANK == 0:
        alone = make(0, dtype)  # rank 0's seed, whose weights all ranks have got
        expected = train(
            alone,
            optimizer_for("adamw" if kind == "sharded" else kind, alone),
            optim.clip_grad_norm_,
            parallel.DistributedSampler(SAMPLES, num_replicas=1, rank=0, seed=1),
            dtype,
            accumulate,
            steps,
        )
        worst = max(float(np.abs(found[name] - expected[name]).max()) for name in found)
        limit = 1e-12 if dtype == np.float64 else 1e-5
        assert worst <= limit, worst
        print("digest", digests[0], worst)
    parallel.barrier()  # the others wait here without work, and in MPI's end with all their might


def sharded():
    """Bit-equal to AdamW, with 1 / N of the state, which goes from one to the other."""
    for dtype in (np.float32, np.float64):
        runs = (on_ranks(kind, dtype, 1, range(8)) for kind in ("adamw", "sharded"))
        (one, _), (other, optimizer) = runs
        assert digest(one) == digest(other)
    if SIZE > 1:
        kept = sum(p.size for p in optimizer.state)
        numbers, largest = sum(v.size for v in one.values()), max(v.size for v in one.values())
        assert kept <= numbers / SIZE + largest and parallel.total(kept) == numbers
        few = [nn.Parameter(np.ones(n)) for n in [1] * SIZE + [SIZE]]  # the largest has one rank
        for p in few:
            p.grad = Tensor(np.ones(p.shape))
        halves = parallel.ShardedAdamW(few)
        halves.step()
        assert max(parallel.group.group().gather("kept", sum(p.size for p in halves.state))) == SIZE
        alone = parallel.ShardedAdamW(few[:1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a rank that owns no parameter has nothing to say
            alone.step()
    whole = optimizer.state_dict()
    model = make(0)
    plain = optimizer_for("adamw", model)
    plain.load_state_dict(whole)
    again = optimizer_for("sharded", model)
    again.load_state_dict(plain.state_dict())
    for i, entry in again.state_dict()["state"].items():
        for name, value in entry.items():
            assert np.array_equal(value, whole["state"][i][name]), (i, name)
    again.param_groups[0]["lr"] = 0.5
    assert again.state_dict()["param_groups"][0]["lr"] == 0.5
    if SIZE > 1:
        whole["state"][0]["exp_avg"] = whole["state"][0]["exp_avg"].T
        try:
            again.load_state_dict(whole)
        except ValueError as error:
            assert "exp_avg" in str(error)
        else:
            raise AssertionError("a transposed state was taken")


def graphs():
    """Uses of a model that a simple exchange gets wrong."""
    x, y = data(np.float64)
    mine = slice(RANK, 12, SIZE)
    penalty = lambda m: sum((p * p).sum() for p in m.parameters())  # noqa: E731

    def check(loss, net=Net, passes=1, share=1.0):
        """loss(model, rows) on ranks and alone gives the same gradients."""
        alone, model = make(0, net=net), parallel.DataParallel(make(RANK, net=net))
        whole = loss(alone, alone, slice(0, 12))
        part = loss(model, model.module, mine)
        for number in range(passes):
            whole.backward(retain_graph=number + 1 < passes)
            part.backward(retain_graph=number + 1 < passes)
        for (name, p), q in zip(alone.named_parameters(), model.module.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                error = np.abs(p.grad.numpy() - q.grad.numpy()).max()
                assert error < 1e-14, (name, error)
        return model

    cross = lambda m, rows: F.cross_entropy(m(x[rows]), y[rows])  # noqa: E731
    check(lambda m, bare, rows: cross(m, rows))
    check(lambda m, bare, rows: cross(m, rows) + penalty(bare))
    check(lambda m, bare, rows: cross(m, rows) + (m(2 * x[rows]) ** 2).mean())
    check(lambda m, bare, rows: cross(m, rows), passes=3)

    def hidden(m, bare, rows):
        with ta.activations(bare, "layer") as seen:
            m(x[rows])
        return np.sin(seen["layer"].output).mean()

    check(hidden)

    class Told(nn.Module):
        """Puts its output into an argument, too."""

        def __init__(self):
            self.linear = nn.Linear(4, 3)

        def forward(self, x, seen):
            seen.append(self.linear(x).tanh())
            return seen[-1]

    check(lambda m, bare, rows: (m(x[rows], []) ** 2).mean(), Told)

    class Checkpointed(nn.Module):
        """Asserts that no tensor between its layers is kept, while its forward pass goes on."""

        def __init__(self):
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            between = []

            def layers(x):
                h = self.first(x)
                between.append(weakref.ref(h))
                return self.second(h.tanh())

            y = ta.checkpoint(layers, x)
            assert between[0]() is None
            return y

    check(lambda m, bare, rows: (m(x[rows]) ** 2).mean(), Checkpointed)

    class Two(nn.Module):
        """Several results, a tied weight, a part that is unused, one that is frozen."""

        def __init__(self):
            self.a, self.b, self.unused = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(2, 2)
            self.c = nn.Linear(4, 3)
            self.c.weight = self.a.weight
            self.b.bias.requires_grad = False

        def forward(self, x):
            x = x.mean(axis=1)
            inside = ta.checkpoint(lambda x: self.a(x).tanh(), x)
            return {"one": inside, "two": (self.b(x), [self.c(x), 3])}

    def several(m, bare, rows):
        found = m(x[rows])
        assert found["two"][1][1] == 3
        return (found["one"] ** 2).mean() + (found["two"][1][0] ** 2).mean()

    model = check(several, Two)
    check(lambda m, b, rows: several(m, b, rows) + (m(x[rows])["two"][0] ** 3).mean(), Two)
    assert model.module.unused.weight.grad is None and model.module.b.weight.grad is None
    with ta.no_grad():
        assert not model(x)["one"].requires_grad
    some_ranks_only(x)
    a_gradient_of_another_dtype(x)


def a_gradient_of_another_dtype(x):
    """Rank 0 has set .grad before; the ranks exchange numbers of the parameters' dtype."""
    alone, model = make(0), parallel.DataParallel(make(0))
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        p.grad = np.full(p.shape, 1 / SIZE)
        if RANK == 0:
            q.grad = Tensor(np.ones(p.shape, np.float32))
    for m in alone, model:
        (m(x) ** 2).mean().backward()
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), atol=1e-14)


class Choice(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, first):
        return (self.a if first else self.b)(x.mean(axis=1))


def some_ranks_only(x):
    """Rank 0 uses one half of the model, the others the other half; accumulated and not."""
    if SIZE == 1:
        return
    for accumulate in (False, True):
        model = parallel.DataParallel(make(0, net=Choice))
        if accumulate:
            with model.no_sync():
                (model(x, RANK != 0) ** 2).mean().backward()
        (model(x, RANK == 0) ** 2).mean().backward()
        alone = make(0, net=Choice)
        for half, count in (alone.a, 1), (alone.b, SIZE - 1):
            users = SIZE if accumulate else count
            half.zero_grad()
            (half(x.mean(axis=1)) ** 2).mean().backward()
            for p, q in zip(
                half.parameters(),
                getattr(model.module, "a" if half is alone.a else "b").parameters(),
            ):
                assert np.allclose(q.grad.numpy(), p.grad.numpy() * users / SIZE, atol=1e-15)


def refused():
    """Gradients that nobody would average, and how to write them. Others of a rank alone go on."""
    x, y = data(np.float64)
    model = parallel.DataParallel(make(0))
    given = Tensor(x, requires_grad=True)
    loss = F.cross_entropy(model(given), y)
    (by_input,) = ta.grad(loss, given, retain_graph=True)  # of this rank's samples, no exchange
    assert by_input.shape == x.shape
    own = dict(model.named_parameters())
    name, weight = next(iter(own.items()))
    other = Tensor(weight.numpy(), requires_grad=True)
    with_other = lambda w: (ta.functional_call(model, {name: w}, x) ** 2).sum()  # noqa: E731
    only, again = "only loss.backward() averages", "cannot be differentiated again"
    for call, kind, text in (
        (lambda: ta.grad(loss, [*own.values()], retain_graph=True), RuntimeError, only),
        (lambda: loss.backward(create_graph=True), TypeError, again),
        (lambda: ta.value_and_grad(with_other)(other), RuntimeError, only),
        (lambda: ta.value_and_grad(lambda w: with_other(2 * w))(other), RuntimeError, only),
        (lambda: with_other(other).backward(), RuntimeError, only),
        (lambda: with_other(2 * weight + other).backward(), RuntimeError, only),
        (lambda: ta.grad(with_other(2 * weight), weight), RuntimeError, only),
    ):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    with_other(2 * weight).backward()  # computed from the model's own parameters
    assert_same_on_all_ranks(weight.grad)


def assert_same_on_all_ranks(tensor):
    assert (
        len({row.tobytes() for row in parallel.group.group().gather("same", tensor.numpy())}) == 1
    )


def failed_passes():
    """After an exception, a pass of one rank talks to nobody, and the next pass averages."""
    parallel.set_time_limit(5)
    x = np.random.default_rng(RANK).standard_normal((3, 4))

    class Failure(BaseException):
        """As Ctrl-C, no Exception."""

    def fails(*_):
        raise Failure

    bad = ta.op(lambda x: x * 1.0)
    bad.vjp(fails)

    def in_a_vjp(model, forward):
        forward(bad(Tensor(x, requires_grad=True)))[0].sum().backward()

    def in_a_hook(model, forward):
        given = Tensor(x, requires_grad=True)
        given.register_hook(fails)
        forward(given)[0].sum().backward()

    def in_a_backward_hook(model, forward):
        with model.module.register_full_backward_hook(fails):
            forward(Tensor(x, requires_grad=True))[0].sum().backward()

    def in_forward(model, forward):
        with model.module.b.register_forward_hook(fails):
            forward(Tensor(x, requires_grad=True))

    def with_a_wrong_seed(model, forward):
        forward(Tensor(x))[0].sum().backward(np.ones(2))

    for place in in_a_vjp, in_a_hook, in_a_backward_hook, in_forward, with_a_wrong_seed:
        for checkpointed in False, True:
            model = parallel.DataParallel(make(0, net=Fork))
            before = ta.engine.context.captured()
            forward = model if not checkpointed else lambda x: ta.checkpoint(model, x)  # noqa: B023
            try:
                place(model, forward)
            except (Failure, ValueError):
                pass
            else:
                raise AssertionError(place)
            left = ta.engine.context.captured()
            assert all(left[name] is value for name, value in before.items()), (place, left)
            assert all(p.grad is None for p in model.parameters()), place
            if RANK == 0:
                alone = Tensor(x, requires_grad=True)
                (alone * 2).sum().backward()
            sum(y.sum() for y in forward(x)).backward()
            for p in model.parameters():
                assert_same_on_all_ranks(p.grad)


class Fork(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x), self.b(x)


def tensors():
    """The divided layers of examples/tensor_parallel.py are the layers they were made from."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tensor_parallel.py"))
    feed_forward = example["DividedFeedForward"]
    ta.manual_seed(3)
    x = np.random.default_rng(1).standard_normal((2, 5, 8))
    one, two = nn.Linear(8, 24).astype(np.float64), nn.Linear(24, 8).astype(np.float64)
    pair = feed_forward(one, two)
    same_layer(lambda x: two(F.gelu(one(x))), pair, x)
    part = np.split(one.weight.grad.numpy(), SIZE)[RANK]
    np.testing.assert_allclose(pair.weight1.grad.numpy(), part, atol=1e-13)
    if SIZE < 4:  # four ranks on two cores take long for the thousand exchanges of a check
        assert ta.gradgradcheck(lambda x: pair(x).sum(), x[:1, :1], atol=1e-4)
    heads = example["WholeAttention"](8, 4, bias=False, batch_first=True).astype(np.float64)
    same_layer(heads, example["DividedAttention"](heads), x)
    if SIZE == 4:
        both_kinds(feed_forward, one, two, x)


def same_layer(whole, part, x):
    a, b = Tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
    y, z = whole(a), part(b)
    assert np.allclose(y.numpy(), z.numpy(), atol=1e-13)
    (y**3).sum().backward()
    (z**3).sum().backward()
    assert np.allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-11, atol=1e-11)


def both_kinds(feed_forward, one, two, x):
    """Two times two ranks: the samples divided one way, the hidden units the other."""
    from mpi4py import MPI

    row, column = divmod(RANK, 2)
    data_comm, tensor_comm = MPI.COMM_WORLD.Split(column, row), MPI.COMM_WORLD.Split(row, column)
    pair = feed_forward(one, two, comm=tensor_comm)
    model = parallel.DataParallel(pair, comm=data_comm)
    one.zero_grad()
    (two(F.gelu(one(x))) ** 2).mean().backward()
    mine = x[parallel.rank(data_comm) :: 2]
    (model(mine) ** 2).mean().backward()
    part = np.split(one.weight.grad.numpy(), 2)[parallel.rank(tensor_comm)]
    assert np.allclose(pair.weight1.grad.numpy(), part, atol=1e-14)
    try:
        pickle.dumps(parallel.DataParallel(nn.Linear(2, 2), comm=data_comm))
    except TypeError as error:
        assert "Pickle model.module" in str(error)
    else:
        raise AssertionError("ranks that another program does not have")


def small():
    """Sums, means, texts, the sampler, the generators."""
    told = parallel.mean({"loss": float(RANK), "right": 1.0}, weight=RANK + 1)
    ranks = np.arange(SIZE)
    assert np.isclose(told["loss"], (ranks * (ranks + 1)).sum() / (ranks + 1).sum())
    assert told["right"] == 1.0
    assert parallel.mean(np.nan if RANK else 2.0, weight=0 if RANK else 3) == 2.0
    assert parallel.mean(RANK, **({"weight": 1} if RANK else {})) == ranks.mean()  # the default
    assert parallel.total({"n": RANK})["n"] == ranks.sum() == parallel.total(RANK)
    assert np.array_equal(parallel.total(np.full(3, 2)), np.full(3, 2 * SIZE))
    ours = parallel.group.group()
    assert ours.gather("names", "x" * RANK) == ["x" * r for r in range(SIZE)]
    for size in (0, 1, 7, 50):
        sampler = parallel.DistributedSampler(size)
        every = [i for row in ours.gather("all", str(list(sampler))) for i in eval(row)]
        assert sorted(every) == list(range(size)) and len(sampler) == len(list(sampler))
        batches = list(sampler.batches(12))
        assert len(batches) == -(-size // 12) and all(len(b.indices) for b in batches)
        assert parallel.total(sum(b.samples for b in batches)) == size
    drawn = ours.gather("random", parallel.manual_seed(5).uniform((3,)))
    assert len(np.unique(drawn, axis=0)) == SIZE
    drawn = ours.gather("random", parallel.manual_seed(5, same=True).uniform((3,)))
    assert (drawn == drawn[0]).all()
    parallel.barrier()


def half_way(path):
    """Train half of the steps and write a checkpoint; print what all of them lead to."""
    parallel.manual_seed(9)
    run_and_save(path, range(HALF))
    assert os.path.exists(path)  # also on ranks that do not write it
    finished, _ = on_ranks("sharded", np.float64, 1, seed=4)
    if RANK == 0:
        print("digest", digest(finished))


def run_and_save(path, steps):
    model = parallel.DataParallel(make(4))
    optimizer = optimizer_for("sharded", model)
    sampler = parallel.DistributedSampler(SAMPLES, seed=1)
    train(model, optimizer, parallel.clip_grad_norm_, sampler, np.float64, 1, steps)
    parallel.manual_seed(77)
    parallel.save_checkpoint(path, model=model, optimizer=optimizer, step=HALF, extra={"a": 1})


def second_half(path):
    """Go on from a checkpoint, maybe with another number of ranks."""
    model = parallel.DataParallel(make(RANK + 10))
    optimizer = optimizer_for("sharded", model)
    progress = parallel.load_checkpoint(path, model=model, optimizer=optimizer)
    assert progress == (HALF, {"a": 1})
    drawn = parallel.group.group().gather("random", ta.rand(2).numpy())
    assert len(np.unique(drawn, axis=0)) == SIZE
    for rank in range(min(SIZE, 2)):  # there were two, with seeds 77 and 78
        ta.manual_seed(77 + rank)
        assert np.array_equal(drawn[rank], ta.rand(2).numpy())
    sampler = parallel.DistributedSampler(SAMPLES, seed=1)
    found = train(
        model, optimizer, parallel.clip_grad_norm_, sampler, np.float64, 1, range(HALF, STEPS)
    )
    expected, _ = on_ranks("sharded", np.float64, 1, seed=4)
    assert max(np.abs(found[name] - expected[name]).max() for name in found) < 1e-12
    if RANK == 0:
        print("digest", digest(found))


# ---- what goes wrong


def different(what):
    """The last rank has another model."""
    model = make(0)
    if RANK == SIZE - 1:
        if what == "shape":
            model.out = nn.Linear(8, 4)
        elif what == "dtype":
            model.out = nn.Linear(8, 3)
        elif what == "frozen":
            model.out.weight.requires_grad = False
        elif what == "order":
            out = model.out
            del model.out
            embed = model.embed
            del model.embed
            model.out, model.embed = out, embed
        else:
            model.more = nn.Linear(1, 1)
    try:
        parallel.DataParallel(model)
    except ValueError as error:
        if RANK == 0:
            print(error)
    else:
        raise AssertionError("no rank may go on")


def raises():
    """One rank raises while the others wait in an exchange."""
    model = parallel.DataParallel(make(0))
    x, y = data(np.float64)
    for step in range(3):
        if step == 2 and RANK == 1:
            raise ValueError("the data of rank 1 are damaged")
        F.cross_entropy(model(x), y).backward()


def interrupted():
    """One rank gets Ctrl-C."""
    parallel.barrier()
    if RANK == 1:
        raise KeyboardInterrupt
    parallel.barrier()


def alone_in_a_call():
    """Rank 0 alone averages its loss."""
    parallel.set_time_limit(1.5)
    model = parallel.DataParallel(make(0))
    x, y = data(np.float64)
    if RANK == 0:
        parallel.mean({"loss": 1.0})
    elif RANK == 1:
        time.sleep(8)
    else:
        F.cross_entropy(model(x), y).backward()


def gather_against_sum():
    """Rank 0 gathers values, while rank 1 sums an array."""
    parallel.set_time_limit(1.5)
    if RANK == 0:
        parallel.barrier()
    else:
        parallel.group.group().sum("the sum", np.ones(4))


def other_call():
    """The ranks make different calls."""
    parallel.mean({"loss": 1.0}) if RANK == 0 else parallel.barrier()


def killed(path, seconds="60"):
    """Train and write checkpoints until somebody kills a rank; each rank writes down its pid."""
    with open(os.path.join(path, f"pid-{RANK}.part"), "w") as file:
        file.write(str(os.getpid()))
    os.replace(os.path.join(path, f"pid-{RANK}.part"), os.path.join(path, f"pid-{RANK}"))
    until = time.time() + float(seconds)
    model = parallel.DataParallel(make(0))
    optimizer = optimizer_for("sharded", model)
    sampler = parallel.DistributedSampler(SAMPLES, seed=1)
    step = 0
    while time.time() < until:
        train(model, optimizer, lambda p, n: 1.0, sampler, np.float64, 1, range(step, step + 2))
        step += 2
        parallel.save_checkpoint(
            os.path.join(path, "last.safetensors"), model=model, optimizer=optimizer, step=step
        )


if __name__ == "__main__":
    for order in " ".join(sys.argv[1:]).split(" + "):
        name, *args = order.split()
        if RANK == 0:
            print("==", order, flush=True)
        globals()[name](*args)
    if RANK == 0:
        print("ok")
