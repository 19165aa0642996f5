"""Files: what goes in comes out; what is broken is named; what is interrupted loses nothing."""

import errno
import itertools
import json
import os
import pickle
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import require

import tinygrad_attn
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.files import load, load_checkpoint, load_with_metadata, save, save_checkpoint
from tinygrad_attn.random import get_rng_state

safetensors = require("safetensors.numpy")
KILLS = int(os.environ.get("TINYGRAD_ATTN_KILLS", "15"))

EVERY_DTYPE = [np.dtype(c) for c in "?bBhHiIlLefd"]
SHAPES = [(), (0,), (3, 0, 2), (5,), (2, 3, 4)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.safetensors"


@pytest.fixture
def saved(path):
    save({"old": np.arange(5.0)}, path)
    return path


def unchanged(path: Path) -> bool:
    """The old file is whole and nothing lies beside it."""
    return [p.name for p in path.parent.iterdir()] == [path.name] and load(path)[
        "old"
    ].tolist() == [0, 1, 2, 3, 4]


# ---- round trips ----------------------------------------------------------------------------------------------------


def test_every_dtype_and_shape_comes_back(path):
    for dtype, shape in itertools.product(EVERY_DTYPE, SHAPES):
        x = (np.random.default_rng(0).random(shape) * 100).astype(dtype)
        save({"x": x}, path)
        back = load(path)["x"]
        assert back.dtype == x.dtype and back.shape == shape and back.flags.writeable
        assert back.tobytes() == x.tobytes()


LAYOUTS = {
    "transposed": np.arange(12.0).reshape(3, 4).T,
    "strided": np.arange(20.0)[::-3],
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "big-endian int": np.arange(6, dtype=">i4"),
    "big-endian float": np.arange(6, dtype=">f8").reshape(2, 3),
    "NumPy scalar": np.float32(2.5),
    "Tensor": Tensor([[1.0, 2.0]], requires_grad=True),
    "long long": np.arange(6, dtype=np.longlong),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_whatever_lies_in_memory(path, name):
    x = LAYOUTS[name]
    save({"x": x}, path)
    expected = np.asarray(getattr(x, "_data", x))
    back = load(path)["x"]
    assert back.shape == expected.shape and back.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, expected)


def test_shared_memory_names_metadata_and_no_tensors(path):
    x = np.arange(6.0)
    metadata = {"step": "3", "größe": "naïve\n"}
    save({"a": x, "b": x[::2], "c.weight": x, "": x}, path, metadata)
    assert sorted(load(path)) == ["", "a", "b", "c.weight"]
    assert load_with_metadata(path)[1] == metadata
    save({}, path)
    assert load_with_metadata(path) == ({}, {})


def test_torch_tensors_and_torchs_files_both_ways(path):
    torch, torch_files = require("torch"), require("safetensors.torch")
    x = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    save({"x": x, "i": torch.tensor([1, 2])}, path)
    assert torch.equal(torch_files.load_file(path)["x"], x)
    half = torch.randn(5, 10).bfloat16()
    torch_files.save_file({"half": half, "n": torch.tensor(2.0)}, path)
    back = load(path)
    assert back["half"].dtype == np.float32 and back["n"].shape == ()
    np.testing.assert_array_equal(back["half"], half.float().numpy())


@pytest.mark.parametrize("how", ["relative", "str", "link"])
def test_paths(tmp_path, monkeypatch, how, saved):
    monkeypatch.chdir(tmp_path)
    target = {"relative": "weights.safetensors", "str": str(saved), "link": tmp_path / "link"}[how]
    if how == "link":
        try:
            target.symlink_to(saved)
        except OSError:
            pytest.skip("no links may be made here, as by most users of Windows")
    save({"new": np.ones(2)}, target)
    assert list(load(saved)) == list(load(target)) == ["new"]
    assert how != "link" or target.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps other permissions")
def test_the_mode_of_an_old_file_is_kept_and_a_new_one_follows_the_umask(saved):
    saved.chmod(0o640)
    save({"new": np.ones(2)}, saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        save({"new": np.ones(2)}, saved.with_name("fresh"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(saved.with_name("fresh").stat().st_mode) == 0o640


# ---- what cannot be saved -------------------------------------------------------------------------------------------


# ---- when the system refuses ----------------------------------------------------------------------------------------


def fails_with(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("where", ["fsync", "replace", "chmod"])
def test_a_failing_disk_leaves_the_old_file(saved, monkeypatch, where):
    monkeypatch.setattr(os, where, fails_with(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(OSError) as caught:
        save({"new": np.ones(2)}, saved)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC and "could not save" in caught.value.__notes__[0]
    assert unchanged(saved)


def test_a_disk_that_fills_while_writing(saved):
    """The system itself refuses here: no file may grow beyond 1000 bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            save({"new": np.ones(10000)}, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert unchanged(saved)


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_ctrl_c_while_saving(saved, monkeypatch, where):
    monkeypatch.setattr(os, where, fails_with(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        save({"new": np.ones(2)}, saved)
    monkeypatch.undo()
    assert unchanged(saved)


@pytest.mark.parametrize("mode", [0o444, 0o555, 0o400])
def test_a_write_protected_file_is_not_replaced(saved, mode):
    """Renaming asks the folder's permission only, and root has every one: the mode decides."""
    saved.chmod(mode)
    with pytest.raises(PermissionError, match="is write-protected; .*chmod u\\+w"):
        save({"new": np.ones(2)}, saved)
    assert stat.S_IMODE(saved.stat().st_mode) == (mode if os.name != "nt" else 0o444)
    saved.chmod(0o644)
    assert unchanged(saved)


# ---- files that are not ours ----------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (os.abort, ())


def a_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


FOREIGN = {
    "empty": (b"", "truncated, damaged or not a safetensors"),
    "text": (b"hello, world, this is text", "truncated, damaged or not a safetensors"),
    "pickle": (pickle.dumps(Bomb()), "pickle.*which can run code"),
    "torch zip": (b"PK\x03\x04" + bytes(50), "zip archive.*safetensors.torch.save_file"),
    "endless header": ((2**62).to_bytes(8, "little") + b"{}", "damaged"),
    "no json": (
        a_file(b"{oops"),
        "damaged.*(JSON|InvalidHeader)",
    ),  # the reason in safetensors' own words, new and before 0.6
    "no data": (a_file({"a": entry()}), "damaged.*(not fully covered|IncompleteBuffer)"),
    "too much data": (
        a_file({"a": entry()}, bytes(9)),
        "damaged.*(not fully covered|IncompleteBuffer)",
    ),
    "overlap": (a_file({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "damaged"),
    "shape too large": (a_file({"a": entry(shape=(2**40, 2**40))}, bytes(8)), "damaged"),
    "wrong size": (a_file({"a": entry(shape=(3,))}, bytes(8)), "damaged"),
    "unknown dtype": (a_file({"a": entry(dtype="F33")}, bytes(8)), "damaged"),
    "a long axis without elements": (
        a_file({"a": entry(shape=(2**62, 0), offsets=(0, 0))}),
        "damaged",
    ),
    "a hundred axes": (
        a_file({"a": entry("BF16", [1] * 100, (0, 2))}, bytes(2)),
        "damaged",
    ),
    "surrogate in a name": (
        a_file(b'{"\\ud800": %s}' % json.dumps(entry()).encode(), bytes(8)),
        "damaged",
    ),
    "metadata that is no text": (
        a_file({"__metadata__": {"step": 3}, "a": entry()}, bytes(8)),
        "damaged",
    ),
    "float8": (
        a_file({"a": entry("F8_E4M3", (8,))}, bytes(8)),
        "'a' has dtype F8_E4M3, which NumPy lacks",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_and_hostile_files_are_named(path, name):
    data, text = FOREIGN[name]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=text):
        load(path)


def test_a_file_cut_at_any_place_is_an_error(path):
    save({"a": np.arange(7.0), "b": np.ones((2, 2), np.int8)}, path)
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="weights.safetensors"):
            load(path)


@given(place=st.integers(0, 500), byte=st.integers(0, 255), data=st.data())
def test_any_changed_byte_gives_arrays_or_a_value_error(tmp_path_factory, place, byte, data):
    path = tmp_path_factory.mktemp("byte") / "x"
    save({"a": np.arange(7.0), "b": np.ones((2, 2), np.int8)}, path, {"k": "v"})
    whole = bytearray(path.read_bytes())
    whole[place % len(whole)] = byte
    path.write_bytes(whole)
    try:
        assert all(isinstance(x, np.ndarray) for x in load(path).values())
    except ValueError as error:
        assert str(path) in str(error)


# ---- kills ----------------------------------------------------------------------------------------------------------


def run(script, *arguments, check=True):
    """A Python process of its own that can import the package, installed or not."""
    environment = {**os.environ, "PYTHONPATH": str(Path(tinygrad_attn.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=check,
        env=environment,
    )


KILLING = """
import os, random, signal, sys, time
import numpy as np
from tinygrad_attn.files import load, save

path, kills = sys.argv[1], int(sys.argv[2])
arrays = lambda n: {"a": np.full((300, 1000), n, np.int64), "b": np.array(n)}
save(arrays(0), path)
chance, bad, changed, parts = random.Random(0), 0, set(), set()
for kill in range(kills):
    child = os.fork()
    if not child:
        n = 1000 * kill
        while True:
            n += 1
            save(arrays(n), path)
    time.sleep(chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    parts |= {name for name in os.listdir(os.path.dirname(path)) if name.endswith(".part")}
    try:
        back = load(path)
        bad += not (back["a"] == back["b"]).all()
        changed.add(int(back["b"]))
    except Exception as error:
        print(error)
        bad += 1
print(
    f"{kills} kills, {len(parts)} in the middle of a save, {len(changed)} contents seen, "
    f"{bad} unreadable"
)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_a_whole_file(path):
    done = run(KILLING, path, KILLS)
    print(done.stdout)
    assert done.stdout.endswith(" 0 unreadable\n"), done.stdout


# ---- checkpoints ----------------------------------------------------------------------------------------------------

TRAINING = """
import os, sys
import numpy as np
import tinygrad_attn as ta
from tinygrad_attn import nn, optim
import tinygrad_attn.functional as F

path, last, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ta.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = optim.AdamW(model.parameters(), lr=0.01)
schedule = optim.warmup_cosine(optimizer, 5, 40)
step, losses = 0, []
if os.path.exists(path):
    step, losses = ta.load_checkpoint(path, model=model, optimizer=optimizer, schedule=schedule)
while step < last:
    x = ta.randn(7, 3)  # the batch, like the dropout mask, comes from the generator; 21 numbers and 3 spare ones
    ta.randn(1)
    loss = F.mse_loss(model(x), x._data.sum(1, keepdims=True))
    optimizer.zero_grad()
    loss.backward()
    if step == kill_at:
        os.kill(os.getpid(), 9)
    optimizer.step()
    schedule.step()
    step += 1
    losses.append(loss.item())
    ta.save_checkpoint(path, model=model, optimizer=optimizer, schedule=schedule, step=step, extra=losses)
print(len(losses), losses[-1])
"""


def test_killed_and_resumed_training_ends_in_the_same_bits(tmp_path):
    straight = run(TRAINING, tmp_path / "straight", 20, -1)
    for kill_at in (0, 9, 14):
        assert run(TRAINING, tmp_path / "killed", 20, kill_at, check=False).returncode == (
            9 if os.name == "nt" else -9
        )
    resumed = run(TRAINING, tmp_path / "killed", 20, -1)
    assert resumed.stdout == straight.stdout and resumed.stdout.startswith("20 ")
    one, other = load(tmp_path / "straight"), load(tmp_path / "killed")
    assert one.keys() == other.keys() and len(one) == 4 + 4 * 3 + 3
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name
    texts = [load_with_metadata(tmp_path / name)[1] for name in ("straight", "killed")]
    assert texts[0] == texts[1]


@pytest.fixture
def training():
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": optim.SGD(model.parameters(), momentum=0.9)}


def test_checkpoint_of_a_model_alone(path, training):
    save_checkpoint(
        path, model=training["model"], step=7, extra={"best": 0.1 + 0.2, "names": ["a"]}
    )
    progress = load_checkpoint(path, model=training["model"])
    assert progress == (7, {"best": 0.1 + 0.2, "names": ["a"]}) and progress.step == 7
    assert "seen" not in load(path)
    save_checkpoint(path, model=training["model"], beside={"seen": np.arange(3)})
    np.testing.assert_array_equal(load(path)["seen"], np.arange(3))
    assert load_checkpoint(path, model=training["model"]) == (0, None)
    save_checkpoint(path, model=training["model"])
    with pytest.raises(ValueError, match="saved without optimizer; omit optimizer="):
        load_checkpoint(path, **training)


def test_a_checkpoint_that_does_not_fit_changes_nothing(path, training):
    schedule = optim.warmup_cosine(training["optimizer"], 2, 10)
    for p in training["model"].parameters():
        p.grad = Tensor(np.ones(p.shape, p.dtype))
    training["optimizer"].step()
    save_checkpoint(path, **training, schedule=schedule)
    other = nn.Linear(3, 2)
    groups = [{"params": [other.weight]}, {"params": [other.bias]}]
    for optimizer in (optim.SGD(groups, momentum=0.9), optim.AdamW(other.parameters(), lr=0.5)):
        before = {k: v.numpy().copy() for k, v in other.state_dict().items()}
        with pytest.raises(ValueError, match="saved groups have|another kind of optimiser"):
            load_checkpoint(path, model=other, optimizer=optimizer)
        assert all(np.array_equal(v.numpy(), before[k]) for k, v in other.state_dict().items())
    optimizer = optim.SGD(other.parameters(), lr=0.5, momentum=0.9)
    schedule = optim.warmup_cosine(optimizer, 2, 10)
    before = {k: v.numpy().copy() for k, v in other.state_dict().items()}
    # a schedule that takes back its own state but not the saved one, the last of the three to be restored
    schedule.load_state_dict, works = (
        lambda state: 1 / 0 if state["step_number"] == 0 else None,
        schedule.load_state_dict,
    )
    schedule.step_number = 3
    with pytest.raises(ZeroDivisionError):
        load_checkpoint(path, model=other, optimizer=optimizer, schedule=schedule)
    assert all(np.array_equal(v.numpy(), before[k]) for k, v in other.state_dict().items())
    assert not optimizer.state_dict()["state"]
    schedule.load_state_dict = works
    load_checkpoint(path, model=other, optimizer=optimizer, schedule=schedule)
    assert (
        np.array_equal(other.weight.numpy(), training["model"].weight.numpy())
        and optimizer.state_dict()["state"]
    )


DAMAGE = {  # arrays and texts in place of those saved; None takes one out
    "short key": ({"generator.key": np.zeros(5, np.uint32)}, {}),
    "position": ({"generator.position": np.array(9999)}, {}),
    "no spare normal": ({"generator.spare_normal": None}, {}),
    "extra": ({}, {"extra": "{not JSON"}),
    "no extra": ({}, {"extra": None}),
    "extra too deep": ({}, {"extra": "[" * 100_000}),
    "step": ({}, {"step": "seven"}),
    "optimiser a list": ({}, {"optimizer": "[]"}),
    "no groups": ({}, {"optimizer": "{}"}),
    "array of no number": ({"optimizer.one.momentum": np.ones(3)}, {}),
    "array of no name": ({"optimizer.1": np.ones(3)}, {}),
}


@pytest.mark.parametrize("array, text", DAMAGE.values(), ids=DAMAGE)
def test_a_checkpoint_with_a_damaged_end_changes_nothing(path, training, array, text):
    save_checkpoint(path, **training, step=3)
    arrays, metadata = load_with_metadata(path)
    arrays, metadata = (
        {k: v for k, v in both.items() if v is not None}
        for both in ({**arrays, **array}, {**metadata, **text})
    )
    save(arrays, path, metadata)
    other = nn.Linear(3, 2)
    optimizer = optim.SGD(other.parameters(), lr=0.5, momentum=0.9)
    before, generator = (
        {k: v.numpy().copy() for k, v in other.state_dict().items()},
        get_rng_state(),
    )
    with pytest.raises((ValueError, KeyError, TypeError, RecursionError)):
        load_checkpoint(path, model=other, optimizer=optimizer)
    assert all(np.array_equal(v.numpy(), before[k]) for k, v in other.state_dict().items())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert all(np.array_equal(v, generator[k], equal_nan=True) for k, v in get_rng_state().items())


def test_checkpoints_that_do_not_fit(path, training):
    for metadata in (None, {"step": "100", "format": "pt"}):
        save(training["model"].state_dict(), path, metadata)
        with pytest.raises(ValueError, match=r"weights but no checkpoint; read it with ta.load"):
            load_checkpoint(path, **training)
    save_checkpoint(path, **training)
    with pytest.raises(ValueError, match="weight"):
        load_checkpoint(path, model=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"groups have \[2\] parameters, the optimiser's \[1\]"):
        load_checkpoint(
            path, model=training["model"], optimizer=optim.SGD([Tensor([1.0], requires_grad=True)])
        )
    with pytest.raises(TypeError, match="a checkpoint can contain only numbers.*'set' object"):
        save_checkpoint(path, model=training["model"], extra={1, 2})
    assert load_checkpoint(path, **training) == (0, None)
    save_checkpoint(path, model=training["model"], step=np.int64(3), extra=[np.ones(2)])
    assert load_checkpoint(path, model=training["model"]) == (3, [[1.0, 1.0]])


@pytest.mark.parametrize(
    "mapping, text",
    [
        ([("a", np.ones(2))], "mapping of names to arrays, got list"),
        (np.ones(2), r"ta.save\(\{'name': x\}, path\)"),
        ({"a": np.array([None])}, "'a' is array .* object, which a file cannot contain"),
        ({"a": np.ones(2, complex)}, "'a' is array .* complex128"),
        ({"a": {"b": np.ones(2)}}, "join nested names with a dot"),
        ({3: np.ones(2)}, "'int' object"),
    ],
)
def test_what_a_file_cannot_hold(saved, mapping, text):
    with pytest.raises(TypeError, match=text):
        save(mapping, saved)
    with pytest.raises(TypeError, match="'int' object"):
        save({}, saved, {"step": 3})
    with pytest.raises(ValueError, match="is reserved by the format"):
        save({"__metadata__": np.ones(2)}, saved)
    assert unchanged(saved)


def test_parts_of_killed_saves_go_after_a_day(saved):
    part = saved.with_name(".saving-0123.part")
    for hours in (23, 25):
        part.write_bytes(b"half")
        os.utime(part, (time.time() - hours * 3600,) * 2)
        save({"new": np.ones(2)}, saved)
        assert part.exists() == (hours < 24)


def test_places_that_are_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is not an ordinary file; choose a file name"):
        save({"a": np.ones(2)}, tmp_path)
    with pytest.raises(FileNotFoundError):
        save({"a": np.ones(2)}, tmp_path / "no" / "x")
    with pytest.raises(OSError):  # Windows refuses a folder with PermissionError
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no"):
        load(tmp_path / "no")
