"""Weights' files that are damaged are refused, and nothing else comes of them; PyTorch's checkpoints, too."""

import os
import random
import re
import struct
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_params import OTHER, same

from charcnn.config import TINY
from charcnn.host.install import pip_install
from charcnn.model.model_files import check_sums, open_archive
from charcnn.model.params import Params, check, init, load, save
from charcnn.text.encodings import CLASSES

FUZZ = 300


def loads_or_refuses(path, config):
    """Only these two may come of a damaged file."""
    try:
        params = load(path, config)
    except ValueError as error:
        assert path.name in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert isinstance(params, Params)
        check(params, params.config)


def damaged(rng, data, header):
    """A truncation, or a few changed bytes, most of them in the header."""
    if rng.random() < 0.2:
        return data[: rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), header))])]
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 20])):
        position = rng.randrange(min(len(data), header)) if rng.random() < 0.8 else rng.randrange(len(data))
        data[position] = rng.choice([data[position] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255])
    return bytes(data)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_no_damage_escapes_as_another_error(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".bin":
        save(path, init(TINY), TINY)
    else:
        save(path, init(TINY), TINY, encoding="crepe", classes=CLASSES, accuracy=0.5)
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(FUZZ):
        path.write_bytes(damaged(rng, data, 3000))
        loads_or_refuses(path, rng.choice([None, TINY]) if suffix != ".bin" else TINY)


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_bytes_are_refused(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    for name, content in (
        ("a.safetensors", data),
        ("b.safetensors", struct.pack("<Q", len(data)) + data),
        ("a.bin", data),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            load(folder / name, TINY)


def test_a_checkpoint_without_pytorch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.pt: .*" + re.escape(pip_install("torch"))):
        load(tmp_path / "a.pt", TINY)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("nested", [None, "state_dict", "model_state_dict", "model", "params"])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_state_dict_plain_or_nested(torch, tmp_path, nested, suffix):
    path = tmp_path / f"a{suffix}"
    params = init(TINY)
    tensors = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in params.items()}
    torch.save({nested: tensors, "epoch": 3} if nested else tensors, path)
    loaded = load(path, TINY)
    assert same(loaded, params)
    assert loaded.config == TINY


@pytest.mark.parametrize("put", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model."])
def test_what_wrappers_put_before_names(torch, tmp_path, put):
    params = init(TINY)
    named = {put + name: array for name, array in params.items()}
    torch.save(
        {"model": {"state_dict": {name: torch.from_numpy(array) for name, array in named.items()}}}, tmp_path / "a.pt"
    )
    assert same(load(tmp_path / "a.pt", TINY), params)
    safetensors.numpy.save_file(named, tmp_path / "a.safetensors")
    assert same(load(tmp_path / "a.safetensors", TINY), params)
    named["other"] = np.zeros(1, np.float32)
    safetensors.numpy.save_file(named, tmp_path / "a.safetensors")
    message = rf"conv1\.bias.* are missing; {put}conv1\.bias, .* more are not of this network$"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.safetensors", TINY)


def test_a_module_of_the_same_names(torch, tmp_path):
    modules = torch.nn.Module()
    for name, shape in OTHER.parameter_shapes.items():
        layer, kind = name.split(".")
        if kind == "weight":
            make = torch.nn.Conv1d if len(shape) == 3 else torch.nn.Linear
            modules.add_module(layer, make(shape[1], shape[0], *shape[2:]))
    torch.save(modules.state_dict(), tmp_path / "a.pt")
    loaded = load(tmp_path / "a.pt", OTHER)
    assert np.array_equal(loaded["conv2.weight"], modules.conv2.weight.detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_become_float32(torch, tmp_path, dtype):
    tensors = {name: torch.from_numpy(array).to(getattr(torch, dtype)) for name, array in init(OTHER).items()}
    tensors["fc1.weight"] = tensors["fc1.weight"].mT.contiguous().mT  # values in another order
    torch.save(tensors, tmp_path / "a.pt")
    loaded = load(tmp_path / "a.pt", OTHER)
    for name, tensor in tensors.items():
        assert np.array_equal(loaded[name], tensor.float().numpy())
        assert loaded[name].dtype == np.float32
        assert loaded[name].flags.c_contiguous


def test_bfloat16_in_safetensors(torch, tmp_path):
    tensors = {name: torch.from_numpy(array).to(torch.bfloat16) for name, array in init(TINY).items()}
    tensors["fc1.bias"] = tensors["fc1.bias"].float()
    safetensors_of_torch = pytest.importorskip("safetensors.torch")
    safetensors_of_torch.save_file(tensors, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors", TINY)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], tensor.float().numpy())
    save(tmp_path / "b.safetensors", loaded, TINY)
    assert same(load(tmp_path / "b.safetensors"), loaded)


def test_wrong_contents_are_named(torch, tmp_path):
    path = tmp_path / "a.pt"
    tensors = {name: torch.from_numpy(array) for name, array in init(TINY).items()}
    without = {name: tensors[name] for name in tensors if name != "fc3.bias"}
    for content, message in (
        (without, r"fc3.bias is missing; conv1.bias, .* and \d+ more are there"),
        (
            {"net": tensors, "epoch": 3},
            "holds epoch, net: need a state_dict, or a dict that holds one under state_dict",
        ),
        (
            {name.replace("fc3", "out"): value for name, value in tensors.items()},
            "fc3.bias, fc3.weight are missing; out.b",
        ),
        ({**tensors, "fc3.bias": torch.zeros(5)}, r"fc3.bias has shape \(5,\): need \(4,\)"),
        ({**tensors, "fc3.bias": torch.full((4,), torch.nan)}, r"fc3.bias holds nan at \[0\]"),
        ({**tensors, "fc3.bias": torch.full((4,), 1e300, dtype=torch.float64)}, "fc3.bias holds inf"),
        ({**tensors, "fc3.bias": torch.arange(4)}, "fc3.bias has dtype torch.int64"),
        ({**tensors, "fc3.bias": torch.ones(4).to_sparse()}, "fc3.bias is not a plain tensor"),
        ({**tensors, "fc3.bias": 3}, "fc3.bias is a int"),
        ({**tensors, 3: torch.zeros(1)}, "3 is not of this network"),
        ([tensors], "holds a list: need a state_dict"),
        ({}, "holds nothing"),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=rf"a\.pt: .*{message}"):
            load(path, TINY)
    torch.save(tensors, path)
    with pytest.raises(ValueError, match=r"a\.pt: .*(missing|has shape)"):
        load(path)  # SMALL


def pickled_key(nested, times, value=b"K\x01"):
    """A checkpoint whose pickle is a dict of one key, tuples that hold the one before so often as `nested` says."""
    body = b")q\x00" + nested * times
    return b"\x80\x02}" + body + value + b"s."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickled_key(b"q\x00h\x00\x86", 60), r"a tuple of [\d,]+ values, \d+ deep: need 1,048,576 and 100 at most"),
        (pickled_key(b"\x85", 200_000), r"a tuple of \d+ values, 101 deep: need 1,048,576 and 100 at most"),
        (b"\x80\x02}" + b"ctorch\nSize\n" + b")" + b"2q\x00h\x00\x86" * 60 + b"\x85RK\x01s.", "a tuple of"),
    ],
    ids=["wide", "deep", "of a class"],
)
def test_a_key_that_would_take_years_is_refused(torch, tmp_path, data, message):
    torch.save({}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        for entry in whole.infolist():
            file.writestr(entry, data if entry.filename.endswith("data.pkl") else whole.read(entry))
    with pytest.raises(ValueError, match=rf"a\.pt: is not a whole PyTorch checkpoint \(ValueError: holds {message}"):
        load(tmp_path / "a.pt", TINY)


def test_pickles_of_checkpoints_are_let_through(torch, tmp_path):
    module = torch.nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    size = module.weight.shape
    state = {"model": module.state_dict(), "optimizer": optimiser.state_dict(), (size, (1, 2)): [size] * 1000}
    torch.save(state, tmp_path / "a.pt")
    with open(tmp_path / "a.pt", "rb") as file:
        check_sums(open_archive(file), storages=False)


def test_code_in_a_checkpoint_does_not_run(torch, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"fc3.bias": Evil()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt: is not a whole PyTorch checkpoint"):
        load(tmp_path / "a.pt", TINY)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")  # PyTorch comments on what it is made to read
def test_no_damage_of_a_checkpoint_escapes_as_another_error(torch, tmp_path):
    path = tmp_path / "a.pt"
    tensors = {name: torch.from_numpy(array) for name, array in init(TINY).items()}
    torch.save(tensors, path)
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(FUZZ):
        path.write_bytes(damaged(rng, data, 3000))
        loads_or_refuses(path, TINY)


def test_a_foreign_zip(torch, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("notes.txt", "hello")
    loads_or_refuses(tmp_path / "a.pt", TINY)
