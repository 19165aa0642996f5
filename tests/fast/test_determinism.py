"""Two threads that train two models get the numbers they get one after the other; and the same seed gives the same bits."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, enable_grad, nn, no_grad, op, optim
from tinygrad_attn.check import detect_anomaly, gradcheck
from tinygrad_attn.engine import context, inplace


def make(seed):
    ta.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Linear(8, 3),
    )


def train(model, seed, steps=25):
    """Losses of a small training run; every number comes from its own generator."""
    r = np.random.default_rng(seed)
    step = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x, target = r.standard_normal((4, 5, 6)).astype(np.float32), r.integers(0, 3, (4, 3))
        step.zero_grad()
        out = np.swapaxes(model(Tensor(x)), 1, 2)[:, :, :3]
        loss = F.cross_entropy(out, target)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        losses.append(loss.item())
        with no_grad():
            model(Tensor(x))
    return losses


def in_threads(*jobs):
    """The results of jobs that start together; an exception in one is raised here."""
    gate, results = threading.Barrier(len(jobs)), [None] * len(jobs)

    def run(k):
        gate.wait()
        try:
            results[k] = jobs[k]()
        except BaseException as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("workers", [1, 2])
def test_two_threads_train_two_models_as_one_after_the_other(workers):
    before, threads = sys.getswitchinterval(), ta.get_num_threads()
    ta.set_num_threads(workers)
    sys.setswitchinterval(1e-5)  # change threads as often as possible
    try:
        expected = [train(make(seed), seed) for seed in (1, 2)]
        models = [
            make(seed) for seed in (1, 2)
        ]  # one after the other: the package has one generator
        found = in_threads(*(lambda m=m, s=s: train(m, s) for m, s in zip(models, (1, 2))))
    finally:
        sys.setswitchinterval(before)
        ta.set_num_threads(threads)
    assert found == expected
    assert len(set(found[0])) > 20


def test_many_threads_may_share_one_model_for_inference():
    model, x = make(3), np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)

    def infer():
        with no_grad():
            return [model(Tensor(x)).numpy().copy() for _ in range(20)]

    with no_grad():
        expected = model(Tensor(x)).numpy()
    assert all(np.array_equal(y, expected) for ys in in_threads(*[infer] * 4) for y in ys)


def test_gradients_of_one_shared_parameter_from_two_graphs():
    """Each thread has its own graph; ta.grad touches no .grad, so a shared leaf is safe."""
    w = Tensor(np.arange(4.0), requires_grad=True)

    def job(k):
        return lambda: [ta.grad((w**2 * k).sum(), w)[0].numpy() for _ in range(200)]

    for k, found in zip((1.0, 3.0), in_threads(job(1.0), job(3.0))):
        assert all(np.array_equal(g, 2 * k * w.numpy()) for g in found)


def test_no_gradient_is_lost_where_threads_add_to_one_parameter_at_once():
    """Arrays so large that NumPy lets go of Python's lock while it adds them."""
    w, together = Tensor(np.zeros(2_000_000), requires_grad=True), threading.Barrier(3, timeout=60)
    w.grad = np.zeros(w.shape)
    meet = op(lambda x: x + 0)
    meet.vjp(lambda g, y, x: (together.wait(), g + 0)[1])
    for _ in range(5):
        in_threads(*[lambda: meet(w).backward(np.ones(w.shape))] * 3)
    assert np.array_equal(w.grad.numpy(), np.full(w.shape, 15.0))


def test_no_grad_and_observers_belong_to_their_thread():
    inside, seen = threading.Event(), threading.Event()

    def quiet():
        with no_grad(), detect_anomaly():
            inside.set()
            seen.wait(10)
            return (Tensor([1.0], requires_grad=True) * 2).requires_grad, len(context.listeners)

    def loud():
        inside.wait(10)
        try:
            with np.errstate(divide="ignore"):
                y = np.log(Tensor([0.0], requires_grad=True))  # no anomaly is detected here
            return y.requires_grad, len(context.listeners)
        finally:
            seen.set()

    assert in_threads(quiet, loud) == [(False, 1), (True, 0)]


def test_a_new_thread_starts_recording_whatever_its_parent_does():
    with no_grad():
        assert in_threads(lambda: (Tensor([1.0], requires_grad=True) * 2).requires_grad) == [True]
        with enable_grad():
            assert (Tensor([1.0], requires_grad=True) * 2).requires_grad


def test_gradcheck_in_two_threads():
    def job(seed):
        return lambda: str(
            gradcheck(
                lambda x: np.tanh(x) ** 2,
                Tensor(np.random.default_rng(seed).standard_normal((3, 3)), requires_grad=True),
            )
        )

    assert in_threads(job(1), job(2)) == [job(1)(), job(2)()]


def test_the_values_of_one_tensor_may_be_read_in_many_threads(monkeypatch):
    """The memory that is lent is counted; no count may be lost."""
    before, lost, w = sys.getswitchinterval(), [], Tensor(np.ones(3))
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    monkeypatch.setattr(threading, "excepthook", lost.append)
    sys.setswitchinterval(1e-6)
    try:
        readers = [
            threading.Thread(target=lambda: [w.numpy().sum() for _ in range(2000)])
            for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        sys.setswitchinterval(before)
    assert not lost and id(inplace.owner(w._data)) not in inplace.lent


def test_in_place_changes_are_found_in_the_thread_that_made_them():
    def job():
        for k in range(100):
            x = Tensor(np.ones(3), requires_grad=True)
            loss = (x * x).sum()
            if k % 2:
                x.data += 1
                with pytest.raises(ValueError, match="changed in place"):
                    loss.backward()
            else:
                loss.backward()

    in_threads(job, job)


def test_the_same_seed_gives_the_same_bits():
    first, second = (train(make(5), 5) for _ in range(2))
    assert first == second
    ta.manual_seed(7)
    a, drop_a = ta.randn(5).numpy(), F.dropout(Tensor(np.ones(50)), 0.5, True).numpy()
    ta.manual_seed(7)
    b, drop_b = ta.randn(5).numpy(), F.dropout(Tensor(np.ones(50)), 0.5, True).numpy()
    assert np.array_equal(a, b) and np.array_equal(drop_a, drop_b)


PROGRAM = """
import numpy as np, tinygrad_attn as ta
from tinygrad_attn import nn, optim, Tensor
ta.manual_seed(3)
model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)
step = optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    step.zero_grad()
    (model(ta.randn(4, 2, 8)) ** 2).mean().backward()
    step.step()
print([p.numpy().tobytes().hex() for p in model.parameters()])
"""


def test_another_process_gets_the_same_bits():
    """Nothing depends on addresses, hash seeds or the order of a set."""
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        outputs.append(
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert outputs[0] == outputs[1] and len(outputs[0]) > 1000


def test_the_global_generator_of_numpy_is_left_alone():
    np.random.seed(4)
    expected = np.random.RandomState(4).rand()
    ta.manual_seed(1)
    train(make(1), 1, steps=2)
    F.dropout(Tensor(np.ones(5)), 0.5, True)
    assert np.random.rand() == expected


def test_the_number_of_threads_changes_results_by_rounding_only_and_each_number_repeats_itself():
    """docs/benchmarks.md says how far: a millionth of an array's largest entry."""
    r = np.random.default_rng(0)
    x, g = r.standard_normal((2, 8, 128, 128)).astype(np.float32)
    q, k, v, w = r.standard_normal((4, 1, 3, 1100, 16)).astype(np.float32)
    ta.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        128, 4, 512, dropout=0.0, activation="gelu", batch_first=True
    )

    def everything():
        layer.zero_grad()
        inputs = [Tensor(a, requires_grad=True) for a in (x, q, k, v)]
        y, z = layer(inputs[0]), F.scaled_dot_product_attention(*inputs[1:], is_causal=True)
        (y * g).sum().backward()
        (z * w).sum().backward()
        return [
            t.numpy().copy()
            for t in (y, z, *(i.grad for i in inputs), *(p.grad for p in layer.parameters()))
        ]

    before, results = ta.get_num_threads(), {}
    try:
        for n in (1, 2, 3):
            ta.set_num_threads(n)
            results[n] = everything()
            assert all(np.array_equal(a, b) for a, b in zip(results[n], everything(), strict=True))
    finally:
        ta.set_num_threads(before)
    for n in (2, 3):
        assert all(
            np.abs(a - b).max() <= 3e-6 * np.abs(b).max()
            for a, b in zip(results[n], results[1], strict=True)
        )
