"""Weights: initialised, checked, saved, loaded, and refused where they do not fit."""

import json
import os

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from charcnn.config import SMALL, TINY, Config
from charcnn.model.params import check, init, load, save
from charcnn.ops import reference
from charcnn.text.encodings import CLASSES, ENCODINGS, Encoding

OTHER = Config(length=130, alphabet=5, channels=3, kernel_sizes=(5, 4, 3, 3, 2, 1), units=6, classes=3, layernorm=False)


def same(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_init_is_a_function_of_the_seed():
    params = init(TINY, 3)
    assert same(params, init(TINY, 3))
    assert not same(params, init(TINY, 4))
    assert list(params) == list(TINY.parameter_shapes)
    assert params.config is TINY
    check(params, TINY)
    # The same bits everywhere, for checksums of logits across machines.
    first = params["conv1.weight"].ravel()[:3]
    assert first.tolist() == [0.40785515308380127, -0.5425126552581787, -0.4197106659412384]


@pytest.mark.parametrize("layernorm", [True, False])
def test_init_keeps_the_scale_of_features_and_shows_a_missed_parameter(layernorm):
    config = Config(length=300, channels=48, units=256, layernorm=layernorm)
    params = init(config)
    for name, array in params.items():
        assert np.ptp(array) > 0, name
    if layernorm:
        assert 0.74 < params["norm1.weight"].min() < 0.8 < 1.2 < params["norm1.weight"].max() < 1.26
        assert abs(params["norm1.bias"]).max() < 0.11
    x = reference.one_hot(np.random.default_rng(0).integers(0, 70, (4, 300), np.uint8))
    for block in range(1, 7):
        x = reference.conv1d(x, params[f"conv{block}.weight"], params[f"conv{block}.bias"])
        assert 0.4 < x.std() < 5, block
        if layernorm and block in (1, 6):
            x = reference.layernorm(x, params[f"norm{block}.weight"], params[f"norm{block}.bias"])
        x = reference.relu(x)
        if block in (1, 2, 6):
            x = reference.maxpool1d(x, 3)
    x = reference.collapse(x)
    for block in (1, 2, 3):
        x = reference.linear(reference.relu(x), params[f"fc{block}.weight"], params[f"fc{block}.bias"])
        assert 0.4 < x.std() < 20, block


@pytest.mark.parametrize("seed", [-1, 1.0, None, True])
def test_init_refuses_a_seed_that_is_none(seed):
    with pytest.raises(ValueError, match="seed="):
        init(TINY, seed)


def broken(**changes):
    params = dict(init(TINY))
    for name, value in changes.items():
        name = name.replace("_", ".")
        if value is None:
            del params[name]
        else:
            params[name] = value
    return params


BROKEN = [
    (broken(conv2_bias=None), "conv2.bias is missing"),
    (broken(conv1_weight=None, conv1_bias=None, fc1_bias=None, fc2_bias=None, fc3_bias=None), "and 1 more are missing"),
    (broken(conv7_bias=np.zeros(4, np.float32)), "conv7.bias is not of this network"),
    (broken(fc3_bias=np.zeros(5, np.float32)), r"fc3.bias has shape \(5,\): need \(4,\)"),
    (broken(fc3_bias=np.zeros((4, 1), np.float32)), r"fc3.bias has shape \(4, 1\): need \(4,\)"),
    (broken(fc3_bias=np.zeros(4)), "fc3.bias has dtype float64: need float32"),
    (broken(fc3_bias=np.zeros(4, np.int32)), "fc3.bias has dtype int32: need float32"),
    (broken(fc3_bias=[0, 0, 0, 0]), "fc3.bias is a list"),
    (broken(fc3_bias=np.array([0, 0, np.nan, 0], np.float32)), r"fc3.bias holds nan at \[2\]"),
    (broken(fc3_weight=np.full((4, 8), -np.inf, np.float32)), r"fc3.weight holds -inf at \[0, 0\]"),
]


@pytest.mark.parametrize(("params", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_check_names_what_is_wrong_and_save_writes_no_such_file(tmp_path, params, message):
    with pytest.raises(ValueError, match=message):
        check(params, TINY)
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "a.safetensors", params, TINY)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".SafeTensors"])
@pytest.mark.parametrize("config", [TINY, OTHER], ids=["tiny", "other"])
def test_what_was_saved_is_loaded(tmp_path, suffix, config):
    params = init(config, 5)
    path = tmp_path / f"a{suffix}"
    save(path, params, config)
    for name in (path, str(path)):
        loaded = load(name, config)
        assert same({name: loaded[name] for name in params}, params)
        assert set(loaded) == set(params)
        assert loaded.config == config
        assert loaded.encoding is None
        assert loaded.classes is None
        assert loaded.metadata == {}
        assert all(array.flags.c_contiguous and array.dtype == np.float32 for array in loaded.values())


def test_arrays_in_any_layout_are_saved_by_value(tmp_path):
    params = init(TINY)
    params["fc2.weight"] = np.asfortranarray(params["fc2.weight"])
    for path in (tmp_path / "a.safetensors", tmp_path / "a.bin"):
        save(path, params, TINY)
        assert np.array_equal(load(path, TINY)["fc2.weight"], params["fc2.weight"])


def test_safetensors_says_all_about_the_model(tmp_path):
    path, again = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    mine = Encoding("crepe", dash="first", reverse=True)  # a known name, and other values
    save(path, init(TINY), TINY, encoding=mine, classes=list(CLASSES), accuracy=np.float32(0.5), epochs=3, data=["x"])
    loaded = load(path)
    assert loaded.config == TINY
    assert loaded.encoding == mine != ENCODINGS["crepe"]
    assert loaded.classes == CLASSES
    assert loaded.metadata == {"accuracy": 0.5, "epochs": 3, "data": ["x"]}
    save(again, loaded, TINY)
    assert again.read_bytes() == path.read_bytes()
    save(again, loaded, TINY, encoding="forward", accuracy=1, epochs=4)
    assert load(again).encoding == ENCODINGS["forward"]
    assert load(again).metadata == {"accuracy": 1.0, "epochs": 4, "data": ["x"]}
    assert load(again).classes == CLASSES


def test_other_programs_read_the_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    params = init(TINY)
    save(path, params, TINY, encoding="crepe")
    arrays = safetensors.numpy.load_file(path)
    assert same({name: arrays[name] for name in params}, params)


def test_float16_halves_the_file_and_loads_as_float32(tmp_path):
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half.safetensors"
    params = init(TINY)
    save(whole, params, TINY, classes=CLASSES)
    save(half, params, TINY, classes=CLASSES, dtype="float16")
    assert whole.stat().st_size - half.stat().st_size == pytest.approx(2 * TINY.parameters, abs=200)
    assert {array.dtype for array in safetensors.numpy.load_file(half).values()} == {np.dtype(np.float16)}
    loaded = load(half)
    assert loaded.classes == CLASSES
    assert same(loaded, {name: params[name].astype(np.float16).astype(np.float32) for name in loaded})
    params["conv2.bias"][1] = -7e4
    with pytest.raises(ValueError, match=r"conv2\.bias holds 70000 in size: float16 ends at 65504"):
        save(half, params, TINY, dtype="float16")
    assert same(load(half), loaded)


def test_bin_is_the_values_alone_in_order(tmp_path):
    path = tmp_path / "params.bin"
    params = init(TINY)
    save(path, params, TINY)
    values = np.fromfile(path, "<f4")
    assert values.size == TINY.parameters
    np.testing.assert_array_equal(values, np.concatenate([params[name].ravel() for name in TINY.parameter_shapes]))
    np.testing.assert_array_equal(values[: 4 * 70 * 7], params["conv1.weight"].ravel())


def test_bin_is_small_by_default(tmp_path):
    path = tmp_path / "params.bin"
    values = np.arange(SMALL.parameters, dtype="<f4")
    values.tofile(path)
    params = load(path)
    assert params.config == SMALL
    assert params["fc3.bias"][-1] == values[-1]
    assert params["conv1.bias"][0] == 256 * 70 * 7
    with pytest.raises(ValueError, match=rf"has {4 * SMALL.parameters} bytes: need {4 * TINY.parameters},"):
        load(path, TINY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "latin"}, "encoding='latin'"),
        ({"encoding": Encoding("short", alphabet="abc")}, "has 3 characters: need alphabet=70"),
        ({"classes": ["a", "b"]}, "need 4 names"),
        ({"classes": [1, 2, 3, 4]}, "need 4 names"),
        ({"classes": "abcd"}, "classes='abcd'"),
        ({"classes": ["a", "b", "c", "b"]}, "holds 'b' twice"),
        ({"classes": ["a", "b", "c", ""]}, "the name '' is empty"),
        ({"accuracy": 1.5}, "accuracy=1.5"),
        ({"accuracy": float("nan")}, "accuracy=nan"),
        ({"accuracy": "high"}, "accuracy='high'"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16'"),
        ({"loss": float("inf")}, "metadata: need JSON values"),
        ({"loss": np.zeros(2)}, "metadata: need JSON values"),
    ],
)
def test_save_refuses_what_does_not_fit(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "a.safetensors", init(TINY), TINY, **arguments)
    assert not os.listdir(tmp_path)


def test_a_bin_file_cannot_keep_more(tmp_path):
    for arguments in (
        {"encoding": "crepe"},
        {"classes": CLASSES},
        {"accuracy": 0.5},
        {"dtype": "float16"},
        {"epochs": 3},
    ):
        with pytest.raises(ValueError, match=r"a \.bin file holds only float32 weights"):
            save(tmp_path / "a.bin", init(TINY), TINY, **arguments)


def test_another_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"a\.npz: need a name that ends in \.safetensors or \.bin"):
        save(tmp_path / "a.npz", init(TINY), TINY)
    with pytest.raises(ValueError, match=r"a: need a name that ends in \.safetensors, \.bin, \.pt, \.pth"):
        load(tmp_path / "a")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pt"])
def test_a_file_that_cannot_be_read_is_an_oserror(tmp_path, suffix):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / f"a{suffix}")
    (tmp_path / f"b{suffix}").mkdir()
    with pytest.raises(IsADirectoryError):
        load(tmp_path / f"b{suffix}")


def test_a_config_that_differs_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, init(TINY), TINY)
    with pytest.raises(ValueError, match=r"a\.safetensors: is for Config\(length=123.*, not for Config\(length=1014"):
        load(path, SMALL)


def test_safetensors_of_others_need_a_config(tmp_path):
    path = tmp_path / "a.safetensors"
    params = init(TINY)
    safetensors.numpy.save_file(params, path, {"format": "pt"})
    with pytest.raises(ValueError, match="charcnn did not write it: pass its config"):
        load(path)
    assert same({name: load(path, TINY)[name] for name in params}, params)
    with pytest.raises(ValueError, match=r"a\.safetensors: .* (is|are) (missing|not of this network)"):
        load(path, OTHER)


def test_half_and_double_safetensors_become_float32(tmp_path):
    path = tmp_path / "a.safetensors"
    params = init(TINY)
    for dtype in (np.float16, np.float64):
        safetensors.numpy.save_file({name: array.astype(dtype) for name, array in params.items()}, path)
        loaded = load(path, TINY)
        assert np.array_equal(loaded["fc1.weight"], params["fc1.weight"].astype(dtype).astype(np.float32))
    for value, message in ((np.arange(4), "fc3.bias has dtype I64"), (np.full(4, 1e300), "fc3.bias holds inf at")):
        safetensors.numpy.save_file({**params, "fc3.bias": value}, path)
        with pytest.raises(ValueError, match=message):
            load(path, TINY)


@pytest.mark.parametrize(
    ("params", "message"), [row for row in BROKEN if "dtype" not in row[1] and "list" not in row[1]]
)
def test_a_safetensors_file_with_wrong_arrays_is_named(tmp_path, params, message):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(params, path)
    with pytest.raises(ValueError, match=f"a.safetensors: .*{message}"):
        load(path, TINY)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 3),
        ("format", 0),
        ("format", 1),  # which has no digest
        ("format", 1.0),
        ("format", 2.0),
        ("format", True),
        ("format", None),
        ("sha256", None),
        ("config", None),
        ("config", {"length": 3}),
        ("config", {"width": 3}),
        ("config", [3]),
        ("encoding", "crepe"),
        ("encoding", {"name": "mine", "dash": 1}),
        ("encoding", {"name": "mine", "alphabet": "abc"}),
        ("encoding", 3),
        ("classes", "abcd"),
        ("classes", ["a"]),
        ("classes", ["a", "b", "a", "c"]),
        ("metadata", []),
    ],
)
def test_foreign_metadata_is_refused(tmp_path, key, value):
    path = tmp_path / "a.safetensors"
    save(path, init(TINY), TINY, encoding="crepe", classes=CLASSES)
    with safetensors.safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["charcnn"])
    for fields in ({**header, key: value}, {name: header[name] for name in header if name != key}):
        safetensors.numpy.save_file(init(TINY), path, {"charcnn": json.dumps(fields)})
        with pytest.raises(ValueError, match=r"a\.safetensors: its metadata is damaged or foreign"):
            load(path)
    for text in ("", "[" * 100_000, "3", "[]"):
        safetensors.numpy.save_file(init(TINY), path, {"charcnn": text})
        with pytest.raises(ValueError, match="its metadata is damaged or foreign"):
            load(path)


def test_a_bin_file_with_wrong_values_is_named(tmp_path):
    path = tmp_path / "a.bin"
    values = np.concatenate([array.ravel() for array in init(TINY).values()])
    values[4 * 70 * 7 + 1] = np.nan
    values.tofile(path)
    with pytest.raises(ValueError, match=r"a\.bin: conv1\.bias holds nan at \[1\]"):
        load(path, TINY)
