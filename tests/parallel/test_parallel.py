"""Training on several ranks: the same numbers as one process, and no hang whatever goes wrong."""

import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ranks import TIMEOUT, finished, start
from ranks import passes as ranks_pass
from support import ROOT, installed, require

require("mpi4py")
PROGRAMS = ROOT / "tests" / "parallel" / "programs.py"


def passes(ranks, *orders):
    """What each of these programs prints, of one run of them all: starting ranks is what takes long."""
    out = ranks_pass(ranks, PROGRAMS, " + ".join(orders))
    printed = dict(part.split("\n", 1) for part in out.split("== ")[1:])
    assert [*printed] == [*orders]
    return printed


def digest(out):
    return re.search(r"^digest (\w+)", out, re.M)[1]


USES = ["sharded", "graphs", "tensors", "small"]


def equal(steps):
    """Steps with clipping and a last batch of 2 samples: 1e-12 in float64, 1e-5 in float32.

    Some steps add up the gradients of three batches.
    """
    kinds = "sgd float64 1", "adamw float64 3", "adamw float32 1", "sharded float64 1"
    return [f"equal {kind} {steps}" for kind in (*kinds, "sharded float64 3")]


DIFFERENT = {
    "shape": "rank 0 has 'out.weight' (3, 8) float64, rank 1 has 'out.weight' (4, 8)",
    "dtype": "rank 0 has 'out.weight' (3, 8) float64, rank 1 has 'out.weight' (3, 8) float32",
    "frozen": "rank 1 has 'out.weight' (3, 8) float64 frozen",
    "order": "rank 0 has 'embed.weight' (8, 4) float64, rank 1 has 'layer.self_attn",
    "more": "rank 0 has nothing, rank 1 has 'more.weight'",
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """A checkpoint of two ranks, and what all programs print there.

    Among them are gradients that nobody would average, which are refused, and passes that fail: the
    next unrelated backward pass of one rank waits for nobody.
    """
    require("safetensors")
    path = tmp_path_factory.mktemp("ranks") / "half.safetensors"
    saved = [f"half_way {path}", f"second_half {path}"]
    told = [f"different {what}" for what in DIFFERENT]
    return path, passes(2, *USES, *equal(20), "refused", *saved, *told, "failed_passes")


@pytest.mark.slow
def test_two_ranks_resume_from_rank_0s_checkpoint(two_ranks):
    import tinygrad_attn as ta

    path, printed = two_ranks
    assert digest(printed[f"half_way {path}"]) == digest(printed[f"second_half {path}"])
    assert {"model.embed.weight", "optimizer.0.exp_avg"} <= {*ta.load(path)}


def test_different_models_are_told_by_name(two_ranks):
    for what, told in DIFFERENT.items():
        assert told in two_ranks[1][f"different {what}"], what


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, orders", [(1, ["equal sharded float64 3 20"]), (3, equal(8)), (4, equal(8))]
)
def test_any_number_of_ranks_equals_one_process_and_resumes(two_ranks, ranks, orders):
    """The checkpoint is that of two ranks. On four, the sum of the ranks depends on its order."""
    again = "equal sharded float32 1 8"
    uses = {1: USES, 3: [], 4: [*USES, again]}[ranks]
    printed = passes(ranks, *uses, *orders, *[f"second_half {two_ranks[0]}"] * (ranks < 4))
    if ranks == 4:  # a run is repeated bit for bit
        assert digest(printed[again]) == digest(passes(4, again)[again])


def fails(ranks, *words):
    begun = time.perf_counter()
    code, out, err = finished(start(ranks, PROGRAMS, *words))
    assert code != 0 and "ok" not in out and time.perf_counter() - begun < 30
    return code, err.strip().splitlines()


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_exception_on_one_rank_ends_all(ranks):
    code, lines = fails(ranks, "raises")
    told = "ValueError: the data of rank 1 are damaged"
    assert code == 1 and told in lines and "Traceback (most recent call last):" in lines
    assert f"rank 1 of {ranks} stopped with {told}. All ranks will stop." in lines


def test_ctrl_c_on_one_rank_ends_all():
    lines = fails(2, "interrupted")[1]
    assert "rank 1 of 2 stopped with KeyboardInterrupt: . All ranks will stop." in lines


def test_a_call_of_some_ranks_only_ends():
    lines = fails(3, "alone_in_a_call")[1]
    assert any("stopped with TimeoutError" in line and "has waited" in line for line in lines)


def test_a_gather_and_a_sum_never_exchange_data():
    """Otherwise the barrier of the gather would end the sum, and the gather would wait forever."""
    lines = fails(2, "gather_against_sum")[1]
    assert any("has waited" in line and "for other ranks" in line for line in lines)


def test_different_calls_are_told():
    _, lines = fails(2, "other_call")
    assert any("rank 0: mean(); rank 1: barrier()" in line for line in lines)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_leaves_a_whole_checkpoint(tmp_path):
    require("safetensors")
    import tinygrad_attn as ta

    process = start(3, PROGRAMS, "killed", tmp_path)
    checkpoint, until = tmp_path / "last.safetensors", time.time() + 60
    while not checkpoint.exists() and time.time() < until and process.poll() is None:
        time.sleep(0.05)
    time.sleep(random.random())
    os.kill(int((tmp_path / f"pid-{random.randrange(3)}").read_text()), signal.SIGKILL)
    begun = time.perf_counter()
    code, _, _ = finished(process)
    assert code != 0 and time.perf_counter() - begun < 15
    for name, array in ta.load(checkpoint).items():  # a generator's NaN says that it keeps none
        assert name.endswith("spare_normal") or np.isfinite(array).all(), name


def test_the_example_of_divided_layers_equals_whole_layers(tmp_path):
    """`tensors` runs its layers on four ranks, too."""
    example = ROOT / "examples" / "tensor_parallel.py"
    code, out, err = finished(start(2, example, folder=tmp_path))
    assert code == 0 and out.startswith("2 ranks") and "true " in out, out + err


def test_the_example_runs_on_two_ranks(tmp_path):
    installed("sklearn")
    code, out, err = finished(start(2, ROOT / "examples" / "data_parallel.py", folder=tmp_path))
    assert code == 0 and out.count("2 ranks") == 1, out + err


def test_one_process_needs_no_mpi(tmp_path):
    """mpi4py is hidden: everything works as one rank, and under mpiexec the error says why not."""
    text = (
        "import sys\nsys.modules['mpi4py'] = None\n"  # as if it were not installed
        "sys.argv = ['programs.py', 'equal', 'sharded', 'float64', '1']\n"
        f"exec(open({str(PROGRAMS)!r}).read())"
    )
    (tmp_path / "hidden.py").write_text(text)
    done = subprocess.run(
        [sys.executable, tmp_path / "hidden.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stdout + done.stderr
    code, _, err = finished(start(2, tmp_path / "hidden.py"))
    assert code != 0 and "pip install 'tinygrad_attn[parallel]'" in err


def test_the_package_does_not_import_it():
    text = (
        "import sys, tinygrad_attn as ta; ta.nn, ta.optim; "
        "print([m for m in sys.modules if m.startswith(('mpi4py', 'tinygrad_attn.parallel'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_arguments_are_checked():
    from tinygrad_attn import parallel

    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        parallel.DistributedSampler(3, 2, 2)
    for nothing in None, {"loss": None}, [1.0, None], "much":
        with pytest.raises(TypeError):
            parallel.mean(nothing)
    with pytest.raises(ValueError, match="max_norm must be a number >= 0"):
        parallel.clip_grad_norm_([], -1.0)


def test_drop_last_gives_every_rank_as_many():
    from tinygrad_attn.parallel import DistributedSampler

    parts = [DistributedSampler(11, 3, r, drop_last=True) for r in range(3)]
    assert [len(p) for p in parts] == [3, 3, 3] == [len(list(p)) for p in parts]
    assert [len(list(p.batches(6))) for p in parts] == [1, 1, 1]
    one, other = (DistributedSampler(11, 1, 0, seed=s) for s in (1, 1))
    assert list(one) == list(other) and sorted(one) == list(range(11)) != list(one)
    other.set_epoch(1)
    assert list(one) != list(other) == list(DistributedSampler(11, 1, 0, seed=2))
    assert list(DistributedSampler(3, 1, 0, shuffle=False)) == [0, 1, 2]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_weighted_mean_over_ranks_is_the_mean_over_the_batch(ranks, drop_last):
    """For each batch of all ranks: whose samples are whose, and what the means of their losses are multiplied by."""
    from tinygrad_attn.parallel import DistributedSampler

    losses = np.random.default_rng(0).standard_normal(13)
    for size, batch_size in ((13, 4), (12, 4), (13, 13), (3, 20), (1, 1), (0, 2), (13, 1)):
        samplers = [DistributedSampler(size, ranks, r, drop_last=drop_last) for r in range(ranks)]
        order, parts = samplers[0].order(), [[*s.batches(batch_size)] for s in samplers]
        assert len(order) == size - (size % ranks if drop_last else 0)
        whole = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        if drop_last and whole and len(whole[-1]) < batch_size:
            whole.pop()
        assert [len(part) for part in parts] == [len(whole)] * ranks
        for batch, of_ranks in zip(whole, zip(*parts)):
            own = [part.indices[: part.samples] for part in of_ranks]
            assert sorted(np.concatenate(own)) == sorted(batch)
            assert all(len(part.indices) == max(1, part.samples) for part in of_ranks)
            mean = np.mean([part.weight * losses[part.indices].mean() for part in of_ranks])
            np.testing.assert_allclose(mean, losses[batch].mean())
        assert [len(s) for s in samplers] == [len([*s]) for s in samplers]
        assert sorted(i for s in samplers for i in s) == sorted(order)


def test_an_infinite_norm_is_the_error_that_one_process_has():
    from tinygrad_attn import Tensor, nn, optim, parallel

    p = nn.Parameter(np.ones(3))
    for value in (np.inf, np.nan):
        p.grad = Tensor(np.array([1.0, value, 2.0]))
        told = []
        for clip in (optim.clip_grad_norm_, parallel.clip_grad_norm_):
            with pytest.raises(Exception, match="norm") as error:
                clip([p], 1.0, error_if_nonfinite=True)
            told.append(error.type)
        assert told[0] == told[1]
        assert p.grad.numpy()[0] == 1  # nothing was scaled
        parallel.clip_grad_norm_([p], 1.0)
        plain = nn.Parameter(np.ones(3))
        plain.grad = Tensor(np.array([1.0, value, 2.0]))
        optim.clip_grad_norm_([plain], 1.0)
        np.testing.assert_array_equal(p.grad.numpy(), plain.grad.numpy())


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("size", [1e-8, 1e-6, 1.0, 1e6])
def test_one_process_clips_as_without_ranks(size, norm_type):
    """Also gradients as small as what keeps the divisor from being 0."""
    from tinygrad_attn import Tensor, optim, parallel

    def parameters():
        rng = np.random.default_rng(0)
        made = [Tensor(np.zeros(shape), requires_grad=True) for shape in ((3, 4), (5,), ())]
        for p in made:
            p.grad = Tensor(size * rng.standard_normal(p.shape))
        return made

    for max_norm in (0.1 * size, 100 * size):
        ours, plain = parameters(), parameters()
        norm = parallel.clip_grad_norm_(ours, max_norm, norm_type)
        expected = optim.clip_grad_norm_(plain, max_norm, norm_type)
        np.testing.assert_allclose(norm, expected, rtol=1e-14)
        for p, q in zip(ours, plain):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-14)


def test_in_one_process_a_mean_and_a_total_are_the_values_themselves():
    from tinygrad_attn import parallel

    for values in (np.arange(3.0), np.arange(6).reshape(2, 3), 2.5, {"loss": 1.5, "right": 3}):
        for put_together in (parallel.mean, parallel.total):
            found = put_together(values)
            if isinstance(values, dict):
                assert found == values
            else:
                assert np.shape(found) == np.shape(values)
                np.testing.assert_array_equal(found, values)
    assert parallel.mean(2.5, weight=7) == 2.5


def test_ranks_that_a_checkpoint_does_not_know_draw_numbers_of_their_own(tmp_path, monkeypatch):
    """The checkpoint is that of one rank; two or three more read it."""
    require("safetensors")
    import tinygrad_attn as ta
    from tinygrad_attn import nn, parallel

    model, drawn = nn.Linear(2, 2), {}
    ta.manual_seed(3)
    parallel.save_checkpoint(tmp_path / "one", model=model)

    class OneOfThree(parallel.group.Group):
        """Other ranks read the same file."""

        def gather(self, call, value):
            return [value] * 3

    for after, rank in [(0, 0), (0, 1), (0, 2), (5, 1)]:
        one = OneOfThree()
        one.rank, one.size = rank, 3
        monkeypatch.setitem(parallel.group._known, None, one)
        ta.rand(after + 1)
        parallel.load_checkpoint(tmp_path / "one", model=model)
        drawn[after, rank] = ta.rand(2).numpy().tolist()
    ta.manual_seed(3)
    assert drawn[0, 0] == ta.rand(2).numpy().tolist()
    assert drawn[0, 1] == drawn[5, 1]  # as often as it is resumed
    assert len({*map(str, drawn.values())}) == 3
