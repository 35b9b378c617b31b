import builtins
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.checkpoint import Checkpoints, check_settings
from populora_envs.files import DamagedFile, load_file, save_file, write_text

CONTENT = {
    "generation": 7,
    "up": torch.arange(12.0).reshape(3, 4),
    "history": [{"generation": 0, "best_fitness": -0.1}, {"generation": 1, "best_fitness": 800.0}],
    "settings": {"seed": 2**64, "range": (-1.0, 1.0), "name": "a\n\udc80é", "horizon": None},
    "scale": torch.tensor(1.5, dtype=torch.bfloat16),
    "is_done": False,
}


def same(one, other):
    """Compare to the last bit: types, key order, dtypes, nan and the sign of zero count."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and raw(one) == raw(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 3)
    path.write_bytes(bytes(data))


# --- one file


def test_file_gives_back_what_was_saved(tmp_path):
    save_file(tmp_path / "a.pt", CONTENT)
    assert same(load_file(tmp_path / "a.pt"), CONTENT)
    assert names(tmp_path) == ["a.pt"]
    assert "checksum" not in CONTENT


def test_path_can_be_a_string(tmp_path):
    save_file(f"{tmp_path}/a.pt", CONTENT)
    write_text(f"{tmp_path}/a.txt", "é\n")
    assert same(load_file(f"{tmp_path}/a.pt"), CONTENT)
    assert (tmp_path / "a.txt").read_bytes() == "é\n".encode()


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
]
TENSORS = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 9),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**2038), 2**2038)
    | st.floats()
    | st.text(st.characters())
    | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(content=st.dictionaries(st.text(max_size=4).filter("checksum".__ne__), VALUES, max_size=5))
def test_any_nested_content_survives(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.pt"
    save_file(path, content)
    assert same(load_file(path), content)


def test_nan_and_infinity_survive(tmp_path):
    saved = {"a": math.nan, "b": [math.inf, -math.inf, -0.0], "c": torch.tensor([math.nan, -0.0])}
    save_file(tmp_path / "a.pt", saved)
    assert same(load_file(tmp_path / "a.pt"), saved)


def test_tensors_are_stored_detached_and_without_the_storage_behind_a_view(tmp_path):
    weight = nn.Parameter(torch.ones(1000, 1000))
    save_file(tmp_path / "a.pt", {"row": weight[3], "column": weight.t()[:, :2]})
    loaded = load_file(tmp_path / "a.pt")
    assert not loaded["row"].requires_grad
    assert type(loaded["row"]) is torch.Tensor
    assert torch.equal(loaded["column"], torch.ones(1000, 2))
    assert (tmp_path / "a.pt").stat().st_size < 20_000


def test_conjugated_tensor_survives(tmp_path):
    save_file(tmp_path / "a.pt", {"a": torch.tensor([1 + 2j]).conj()})
    assert load_file(tmp_path / "a.pt")["a"].tolist() == [1 - 2j]


def test_state_dict_becomes_a_plain_dict(tmp_path):
    save_file(tmp_path / "a.pt", {"model": nn.Linear(2, 2).state_dict(), "shape": torch.Size([2])})
    loaded = load_file(tmp_path / "a.pt")
    assert type(loaded["model"]) is dict
    assert list(loaded["model"]) == ["weight", "bias"]
    assert same(loaded["shape"], (2,))


def test_numpy_scalars_in_the_history_load_again(tmp_path):
    # D-45: sample-factory #313, pytorch #134346
    values = [np.float64(1.5), np.float32(0.1), np.int64(3), np.bool_(True), np.str_("a")]
    save_file(tmp_path / "a.pt", {"history": values})
    expected = [1.5, 0.10000000149011612, 3, True, "a"]
    assert same(load_file(tmp_path / "a.pt")["history"], expected)


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.zeros(2), "numpy.ndarray"),
        (np.timedelta64(1, "ns"), "numpy.timedelta64"),
        (np.complex64(1), "numpy.complex64"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (Color.RED, "Color"),
        (torch.float32, "torch.dtype"),
        (print, "builtin_function"),
    ],
)
def test_what_is_not_plain_is_named_and_nothing_is_written(tmp_path, value, name):
    save_file(tmp_path / "a.pt", {"old": 1})
    with pytest.raises(TypeError, match=rf"content\['a'\]\[1\]\['b'\] is a .*{name}"):
        save_file(tmp_path / "a.pt", {"a": (0, {"b": value})})
    assert load_file(tmp_path / "a.pt") == {"old": 1}


def test_keys_that_are_no_strings_are_named(tmp_path):
    with pytest.raises(TypeError, match=r"content\['a'\] has the key 3 of type int"):
        save_file(tmp_path / "a.pt", {"a": {3: 1}})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "tensor", [torch.eye(2).to_sparse_coo(), torch.empty(2, device="meta")], ids=["sparse", "meta"]
)
def test_tensors_without_plain_numbers_are_refused(tmp_path, tensor):
    with pytest.raises(TypeError, match=r"content\['a'\] is a sparse, quantized or meta tensor"):
        save_file(tmp_path / "a.pt", {"a": tensor})


def test_int_too_long_for_the_safe_loader_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"content\['a'\] is an int of 2041 bits, above 2039"):
        save_file(tmp_path / "a.pt", {"a": 2**2040})


def test_the_key_of_the_checksum_is_taken(tmp_path):
    with pytest.raises(ValueError, match="'checksum'"):
        save_file(tmp_path / "a.pt", {"checksum": 1})


# --- interrupted writes


def write_ten_bytes_and_raise(error):
    def save(_, file):
        file.write(b"0123456789")
        raise error

    return save


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()], ids=repr)
def test_a_kill_during_the_write_keeps_the_only_good_checkpoint(tmp_path, monkeypatch, error):
    # D-43: Lightning #688
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest({"step": 1})
    monkeypatch.setattr(torch, "save", write_ten_bytes_and_raise(error))
    with pytest.raises(type(error)):
        checkpoints.save_latest({"step": 2})
    assert checkpoints.load_latest() == {"step": 1}
    assert names(tmp_path) == ["latest.pt"]


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()], ids=repr)
def test_failing_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error):
    save_file(tmp_path / "a.pt", {"step": 1})
    write_text(tmp_path / "a.csv", "old")

    def fail(_):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        save_file(tmp_path / "a.pt", {"step": 2})
    with pytest.raises(type(error)):
        write_text(tmp_path / "a.csv", "new")
    assert load_file(tmp_path / "a.pt") == {"step": 1}
    assert (tmp_path / "a.csv").read_text() == "old"
    assert names(tmp_path) == ["a.csv", "a.pt"]


FULL_DISK = """
import resource, sys, torch
from populora_envs.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save_latest({"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
try:
    checkpoints.save_latest({"weights": torch.zeros(10_000)})
except OSError as error:
    print(error, *error.__notes__)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_full_disk_is_an_oserror_that_names_the_folder(tmp_path):
    printed = run_child(FULL_DISK, tmp_path)
    assert "File too large" in printed
    assert f"checkpoint_dir {str(tmp_path)!r}" in printed
    assert Checkpoints(tmp_path).load_latest() == {"step": 1}
    assert names(tmp_path) == ["latest.pt"]


KILLED = """
import os, random, signal, sys, time, torch
from populora_envs.checkpoint import Checkpoints

def content(step):
    return {"step": step, "weights": torch.full((50_000,), float(step))}

def save_forever(step):
    checkpoints = Checkpoints(sys.argv[1])
    while True:
        step += 1
        checkpoints.save_latest(content(step))

torch.set_num_threads(1)
Checkpoints(sys.argv[1]).save_latest(content(0))
start = time.perf_counter()
Checkpoints(sys.argv[1]).save_latest(content(0))
longest = 4 * (time.perf_counter() - start)
last, chance = 0, random.Random(0)
for _ in range(25):
    child = os.fork()
    if child == 0:
        save_forever(last)
    time.sleep(chance.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    loaded = Checkpoints(sys.argv[1]).load_latest()
    assert loaded["step"] >= last - 1, (loaded["step"], last)
    assert torch.equal(loaded["weights"], content(loaded["step"])["weights"])
    last = loaded["step"]
print(last)
"""


def run_child(program, folder):
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder)]
    root = Path(__file__).parent.parent
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork the killed processes")
def test_checkpoint_loads_after_kills_at_random_moments(tmp_path):
    assert int(run_child(KILLED, tmp_path)) > 0
    (tmp_path / ".latest.pt.0123.partial").write_text("of a killed process")
    Checkpoints(tmp_path).save_best({})
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_crash_between_the_two_renames_is_harmless(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest({"step": 1})
    checkpoints.save_latest({"step": 2})
    replace = Path.replace

    def crash(path, target):
        if path.name.startswith("."):
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save_latest({"step": 3})
    monkeypatch.undo()
    assert names(tmp_path) == ["previous.pt"]
    with pytest.warns(UserWarning, match=r"latest\.pt is missing: previous\.pt, .* is used"):
        assert Checkpoints(tmp_path).load_latest() == {"step": 2}
    checkpoints.save_latest({"step": 3})
    assert checkpoints.load_latest() == {"step": 3}
    assert load_file(tmp_path / "previous.pt") == {"step": 2}


# --- damaged files


def test_every_bit_flip_is_found_or_harmless(tmp_path):
    path = tmp_path / "a.pt"
    save_file(path, CONTENT)
    data = path.read_bytes()
    num_found = 0
    for bit in range(0, 8 * len(data), 11):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert same(load_file(path), CONTENT), f"bit {bit} went unseen"
        except DamagedFile:
            num_found += 1
    assert num_found > 100


def test_flipped_weight_is_found_by_the_checksum(tmp_path):
    path = tmp_path / "a.pt"
    save_file(path, {"weights": torch.full((100,), 3.0)})
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((100,), 3.0).numpy().tobytes()) + 17] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"a\.pt .*checksum does not fit"):
        load_file(path)


def test_cut_file_is_found(tmp_path):
    path = tmp_path / "a.pt"
    save_file(path, CONTENT)
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFile, match=r"a\.pt is damaged"):
            load_file(path)


class Malicious:
    def __reduce__(self):
        return builtins.exec, ("import pathlib; pathlib.Path('HACKED').touch()",)


@pytest.mark.parametrize("write", [torch.save, pickle.dump], ids=["torch", "pickle"])
def test_malicious_file_is_refused_and_not_run(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    with Path("a.pt").open("wb") as file:
        write({"step": 1, "checksum": Malicious()}, file)
    with pytest.raises(DamagedFile, match=r"a\.pt .*more than tensors and plain values$"):
        load_file("a.pt")
    assert names(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("value", [{"step": 1}, [1], torch.ones(2), {"step": 1, "checksum": "0"}])
def test_file_of_someone_else_is_refused(tmp_path, value):
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(DamagedFile, match=r"a\.pt .*checksum"):
        load_file(tmp_path / "a.pt")


def test_text_is_no_checkpoint(tmp_path):
    write_text(tmp_path / "a.pt", "generation,best_fitness\n")
    with pytest.raises(DamagedFile, match=r"a\.pt is damaged or not a file of populora_envs"):
        load_file(tmp_path / "a.pt")


def test_empty_file_is_damaged(tmp_path):
    (tmp_path / "a.pt").touch()
    with pytest.raises(DamagedFile, match=r"a\.pt is damaged .*EOFError$"):
        load_file(tmp_path / "a.pt")


def test_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "a.pt")


# --- the folder of a run


def test_empty_folder_holds_no_run_and_is_made_at_the_first_write(tmp_path):
    checkpoints = Checkpoints(tmp_path / "runs" / "one")
    assert not checkpoints.holds_run()
    assert checkpoints.load_latest() is None
    assert checkpoints.load_best() is None
    assert not (tmp_path / "runs").exists()
    checkpoints.save_config({"seed": 1})
    assert not checkpoints.holds_run()
    checkpoints.save_latest({"step": 1})
    assert checkpoints.holds_run()
    assert names(tmp_path / "runs" / "one") == ["config.json", "latest.pt"]


def test_latest_and_the_one_before_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in range(4):
        checkpoints.save_latest({"step": step})
    assert checkpoints.load_latest() == {"step": 3}
    assert load_file(tmp_path / "previous.pt") == {"step": 2}
    assert names(tmp_path) == ["latest.pt", "previous.pt"]


def test_best_is_its_own_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best({"score": 1.0})
    checkpoints.save_best({"score": 2.0})
    assert checkpoints.load_best() == {"score": 2.0}
    assert checkpoints.load_latest() is None
    assert checkpoints.holds_run()


def test_damaged_latest_gives_the_previous_and_never_takes_its_place(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest({"step": 1})
    checkpoints.save_latest({"step": 2})
    damage(tmp_path / "latest.pt")
    with pytest.warns(
        UserWarning, match=r"latest\.pt is damaged.*previous\.pt.* is used"
    ) as caught:
        assert checkpoints.load_latest() == {"step": 1}
    assert caught[0].filename == __file__
    checkpoints.save_latest({"step": 3})
    assert load_file(tmp_path / "previous.pt") == {"step": 1}
    checkpoints.save_latest({"step": 4})
    assert load_file(tmp_path / "previous.pt") == {"step": 3}


def test_two_damaged_files_are_both_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest({"step": 1})
    checkpoints.save_latest({"step": 2})
    damage(tmp_path / "latest.pt")
    damage(tmp_path / "previous.pt")
    with pytest.raises(DamagedFile, match=r"latest\.pt is damaged.*previous\.pt is damaged"):
        checkpoints.load_latest()


def test_damaged_latest_without_a_previous_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest({"step": 1})
    damage(tmp_path / "latest.pt")
    with pytest.raises(DamagedFile, match=r"latest\.pt is damaged"):
        checkpoints.load_latest()


def test_config_is_readable_json(tmp_path):
    config = {"seed": 3, "range": (-1, 1), "rate": np.float32(0.5), "device": None}
    Checkpoints(tmp_path).save_config(config)
    text = (tmp_path / "config.json").read_text()
    assert text.startswith('{\n  "seed": 3,\n')
    assert json.loads(text) == {"seed": 3, "range": [-1, 1], "rate": 0.5, "device": None}
    with pytest.raises(TypeError, match=r"config\['action'\] is a builtin_function"):
        Checkpoints(tmp_path).save_config({"action": print})


@pytest.mark.parametrize("method", ["save_latest", "save_best", "save_config"])
def test_folder_that_cannot_be_made_is_named(tmp_path, method):
    write_text(tmp_path / "file", "")
    folder = tmp_path / "file" / "run"
    with pytest.raises(OSError, match="file") as caught:
        getattr(Checkpoints(folder), method)({"step": 1})
    assert caught.value.__notes__ == [f"while writing to checkpoint_dir {str(folder)!r}"]


def test_read_only_folder_is_named(tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write to read-only folders")
    with pytest.raises(PermissionError) as caught:
        Checkpoints(tmp_path).save_latest({"step": 1})
    assert "checkpoint_dir" in caught.value.__notes__[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
def test_files_have_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "usual").touch()
    save_file(tmp_path / "a.pt", CONTENT)
    assert (tmp_path / "a.pt").stat().st_mode == (tmp_path / "usual").stat().st_mode


# --- settings


def test_every_differing_setting_is_named_with_both_values():
    saved = {"pop_size": 16, "low_rank": 4, "seed": 0, "num_envs": 8, "old": 1}
    now = {"pop_size": 32, "low_rank": 8, "seed": 0, "num_envs": 2, "new": 2}
    with pytest.raises(ValueError, match="pop_size was 16") as caught:
        check_settings(saved, now, may_differ={"num_envs"})
    assert str(caught.value) == (
        "pop_size was 16 in the checkpoint and is 32 now; "
        "low_rank was 4 in the checkpoint and is 8 now; "
        "old was 1 in the checkpoint and is not set now; "
        "new was not set in the checkpoint and is 2 now: "
        "use the saved values to resume, or another checkpoint_dir to start anew"
    )


def test_equal_settings_pass():
    saved = {"a": (1, 2), "b": math.nan, "c": {"d": [torch.ones(2)]}, "e": None, "f": 1}
    now = {"a": [1, 2], "b": math.nan, "c": OrderedDict(d=[torch.ones(2)]), "e": None, "f": 1.0}
    check_settings(saved, now, ())


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (torch.ones(2), torch.zeros(2)),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
        (torch.ones(1), 1.0),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (None, 0),
    ],
)
def test_differing_values_of_all_kinds_are_seen(saved, now):
    with pytest.raises(ValueError, match=r"x was .* in the checkpoint and is .* now"):
        check_settings({"x": saved}, {"x": now}, ())


def test_loading_a_good_file_warns_of_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_latest(CONTENT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoints.load_latest()
    assert caught == []
