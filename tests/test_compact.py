"""Networks whose layers differ in width, at every level and in files; and `charcnn compact`, which makes them."""

import argparse
from dataclasses import replace

import numpy as np
import pytest
from conftest import quick
from test_levels import LEVELS, random_ids, right

from charcnn.cli import compact as command
from charcnn.config import SMALL, Config
from charcnn.model import calibrate, compact, network, params
from charcnn.model.model_files import Header
from charcnn.text.encodings import ENCODINGS, encode

UNEVEN = Config.of_widths((4, 3, 6, 2, 5, 4, 9, 7), length=123, alphabet=9)
"""No two neighbours alike: a width that is taken for another shows."""
OF_OCTETS = Config.of_widths((64, 32, 96, 48, 80, 64, 128, 112), length=123, alphabet=9)
"""Sizes for tensor cores, wide enough that rounding averages out in the logits."""

# Sizes.


def test_widths_that_say_nothing_more_are_none():
    even = Config(widths=(256,) * 6 + (1024,) * 2)
    assert even == SMALL
    assert even.to_dict() == SMALL.to_dict()
    assert "widths" not in SMALL.to_dict()
    assert Config(**UNEVEN.to_dict()) == UNEVEN
    assert Config(**{**UNEVEN.to_dict(), "widths": list(UNEVEN.widths)}) == UNEVEN  # as JSON gives it
    assert hash(UNEVEN) != hash(SMALL)
    assert UNEVEN.block_channels == (4, 3, 6, 2, 5, 4)
    assert UNEVEN.fc_units == (9, 7, 4)
    assert [UNEVEN.in_channels(block) for block in range(1, 7)] == [9, 4, 3, 6, 2, 5]
    assert UNEVEN.parameter_shapes["fc1.weight"] == (9, 4 * UNEVEN.block_lengths[-1]) == (9, UNEVEN.features)
    assert SMALL.largest_features == 256 * 1008


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widths": (4,) * 7}, "need a tuple of eight ints"),
        ({"widths": 8}, "need a tuple of eight ints"),
        ({"widths": (4, 4, 0, 4, 4, 4, 8, 8)}, r"widths\[2\] \(conv3\)=0: need a positive int"),
        ({"widths": (4, 4, 4, 4, 4, 4, 8, True)}, r"widths\[7\] \(fc2\)=True"),
        ({"widths": (4, 4, 5, 4, 4, 4, 8, 8)}, "channels=4, units=8: need 5 and 8, the largest widths"),
    ],
)
def test_widths_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(length=123, channels=4, units=8, **fields)


def test_a_file_of_before_there_were_widths_keeps_its_digest(tmp_path):
    """Its digest is of its fields, so that there must be no new one."""
    assert set(Header(SMALL).fields(2)["config"]) == {
        "length", "alphabet", "channels", "kernel_sizes", "units", "classes", "layernorm"
    }  # fmt: skip
    path = tmp_path / "uneven.safetensors"
    weights = params.init(UNEVEN, seed=1)
    params.save(path, weights, UNEVEN)
    again = params.load(path)
    assert again.config == UNEVEN
    assert all(np.array_equal(again[name], weights[name]) for name in weights)


@quick(lambda name: name != "l10")  # whose kernel takes a GPU a quarter of a minute to compile
@pytest.mark.parametrize("name", LEVELS)
def test_every_level_takes_them(name):
    config = OF_OCTETS if LEVELS[name].tensor_cores else UNEVEN
    weights, ids = params.init(config, seed=3), random_ids(3, config)
    assert right(LEVELS[name].module.build(weights, config, batch=2)(ids), ids, weights, config, name)


def test_tensor_cores_need_multiples():
    from charcnn.levels import l14, l15

    config = replace(OF_OCTETS, length=1014, widths=(*OF_OCTETS.widths[:7], 111))
    weights = params.init(config)
    for level in (l14, l15):
        with pytest.raises(ValueError, match=r"widths=\(64, 32, 96, 48, 80, 64, 128, 111\).*: need multiples of 8"):
            level.build(weights, config)


def test_scales_for_8_bits_take_them():
    weights, ids = params.init(UNEVEN, seed=5), random_ids(4, UNEVEN)
    expected = network.forward(ids, weights, UNEVEN)
    scaled, eps = calibrate.rescaled(weights, UNEVEN, ids)
    logits = calibrate.forward(scaled, UNEVEN, ids, lambda name, x: x, eps)
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
    assert calibrate.rescaled_to_u8(weights, UNEVEN, ids)["fc1.weight"].shape == (9, UNEVEN.features)


# What is removed.


def with_dead(config, seed=0):
    """Weights of which some channels never fire, by layer how many, and ids."""
    weights = params.init(config, seed=seed)
    dead = {"conv2": 3, "conv3": 1, "conv4": 2, "conv5": 4, "fc1": 5, "fc2": 2}
    for name, count in dead.items():
        weights[f"{name}.bias"][:count] -= 1000
    return weights, random_ids(60, config)


@pytest.mark.parametrize("layernorm", [True, False])
def test_what_never_fires_is_removed_and_logits_stay(layernorm):
    config = Config(length=123, alphabet=9, channels=12, units=16, layernorm=layernorm)
    weights, ids = with_dead(config)
    if not layernorm:
        weights["conv1.bias"][:2] -= 1000
        weights["conv6.bias"][:2] -= 1000
    watched = compact.Watched(weights, config)
    logits = watched(ids)
    reference = network.forward(ids, weights, config)
    assert np.abs(logits - reference).max() < 1e-5 * np.abs(reference).max()
    x, last = ids, ""
    for node in config.nodes:  # the largest before ReLU, by the plain operators
        x = network.run([node], x, weights)
        last = node.layer.name or last
        if last in ("conv2", "conv3", "fc1") and last == node.layer.name:
            assert np.allclose(watched.peaks[last], x.max(axis=(0, *range(2, x.ndim))), rtol=1e-3, atol=1e-4)
    made = compact.compact(weights, watched.peaks, multiple=1)
    had = dict(zip(compact.HIDDEN, (12,) * 6 + (16,) * 2, strict=True))
    has = dict(zip(compact.HIDDEN, (*made.params.config.block_channels, *made.params.config.fc_units), strict=False))
    for name in compact.HIDDEN:
        kept_all = layernorm and name in ("conv1", "conv6")
        assert has[name] == (had[name] if kept_all else made.live[name])
    assert has["conv2"] <= 9
    assert has["fc1"] <= 11
    narrow = made.params
    params.check(narrow, narrow.config)
    assert narrow.config.flops < 0.95 * config.flops
    expected = network.forward(ids, narrow, narrow.config)
    assert np.abs(expected - reference).max() < 1e-12 * np.abs(reference).max(), "float64: not a sum has changed"
    again = compact.Watched(narrow, narrow.config)
    assert compact.apart(logits, again(ids)) == (0, pytest.approx(0, abs=1e-6))
    assert {name: int((peaks > 0).sum()) for name, peaks in again.peaks.items()} == made.live


def test_widths_are_padded_with_what_came_nearest_to_firing():
    config = Config(length=123, alphabet=9, channels=12, units=16)
    weights, _ = with_dead(config)
    peaks = {name: np.full(16 if name[0] == "f" else 12, 1.0, np.float32) for name in compact.HIDDEN}
    peaks["conv3"][:] = -np.arange(1, 13)
    peaks["conv3"][7] = 2.0
    peaks["fc2"][:] = 0  # what is never more than 0 never fires
    made = compact.compact(weights, peaks, multiple=4)
    assert made.live["conv3"] == 1
    assert made.live["fc2"] == 0
    assert made.params.config.block_channels == (12, 12, 4, 12, 12, 12)
    assert made.params.config.fc_units[:2] == (16, 4)
    assert np.array_equal(made.params["conv3.bias"], weights["conv3.bias"][[0, 1, 2, 7]])
    assert np.array_equal(made.params["conv4.weight"], weights["conv4.weight"][:, [0, 1, 2, 7]])
    wide = compact.compact(weights, peaks, multiple=100)
    assert wide.params.config == config
    with pytest.raises(ValueError, match="multiple=0: need an int of at least 1"):
        compact.compact(weights, peaks, multiple=0)


def test_differences():
    logits = np.array([[0.0, 1.0], [2.0, 0.0]])
    assert compact.apart(logits, logits) == (0, 0.0)
    changed, largest = compact.apart(logits, logits[:, ::-1])
    assert changed == 2
    assert largest == pytest.approx(np.tanh(1.0))


# The command.

TEXTS = ["the home side won", "stocks fell on monday", "a probe left for mars", "ministers met again in geneva"]


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def files(tmp_path):
    config = Config(length=123, channels=12, units=16)
    weights, _ = with_dead(config)
    model = tmp_path / "m.safetensors"
    halves = {name: value.astype(np.float16).astype(np.float32) for name, value in weights.items()}
    params.save(
        model, halves, config, dtype="float16", encoding="forward", accuracy=0.9, training={"command": "charcnn train"}
    )
    (tmp_path / "a.csv").write_text("".join(f'{n + 1},"{text}"\n' for n, text in enumerate(TEXTS)))
    (tmp_path / "b.csv").write_text("".join(f'{n + 1},"{text[::-1]}"\n' for n, text in enumerate(TEXTS)))
    return tmp_path


def test_the_command_writes_a_model_of_its_own(files, capsys):
    model, out = files / "m.safetensors", files / "narrow.safetensors"
    options = [model, "--data", files / "a.csv", "--test", files / "b.csv", "--out", out, "--multiple", 2, "--allow", 1]
    assert run(*options) == 0
    shown = capsys.readouterr().out
    assert "a.csv: 4 rows, 0 labels change" in shown
    wide, narrow = params.load(model), params.load(out)
    assert narrow.config.widths is not None
    assert all(width % 2 == 0 for width in narrow.config.widths)
    assert narrow.encoding == wide.encoding
    assert "accuracy" not in narrow.metadata, "it was of another network"
    assert narrow.metadata["training"] == wide.metadata["training"]
    assert narrow.metadata["compacted"]["from"] == params.digest(wide)
    assert narrow.metadata["compacted"]["data"]["labels_changed"] == 0
    assert narrow.metadata["live"]["rows"] == 4
    assert out.stat().st_size < model.stat().st_size
    ids = encode(TEXTS, ENCODINGS["forward"], 123)
    apart = np.abs(network.forward(ids, wide, wide.config) - network.forward(ids, narrow, narrow.config)).max()
    assert apart < 1e-9
    with pytest.raises(ValueError, match="already exists: name another output, or add --force"):
        run(*options)


def test_the_command_writes_nothing_where_labels_change(files, capsys, monkeypatch):
    out = files / "narrow.safetensors"
    monkeypatch.setattr(compact, "apart", lambda *_, **__: (1, 0.5))
    options = [files / "m.safetensors", "--data", files / "a.csv", "--out", out]
    assert run(*options) == 1
    assert "labels change, so nothing is written" in capsys.readouterr().err
    assert not out.exists()
    assert run(*options, "--allow", 0.25) == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "x.bin"], "need a name that ends in .safetensors"),
        (["--data", "empty.csv"], "empty.csv holds no texts"),
    ],
)
def test_the_command_refuses(files, monkeypatch, options, message):
    monkeypatch.chdir(files)
    (files / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=message):
        run("m.safetensors", "--data", "a.csv", "--out", "n.safetensors", *options)


def test_rows_that_cannot_be_read_are_left_out(files, capsys):
    (files / "a.jsonl").write_text('{"text": "one text"}\n{"text"\n{"text": "another"}\n')
    assert run(files / "m.safetensors", "--data", files / "a.jsonl", "--out", files / "n.safetensors") == 0
    assert "1 rows cannot be read and are left out" in capsys.readouterr().err


def test_other_libraries_take_them():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    from charcnn.training.network import TrainableNetwork

    weights, ids = params.init(UNEVEN, seed=2), random_ids(3, UNEVEN)
    model = TrainableNetwork(UNEVEN, 0.0, torch.float32).eval()
    model.load(weights)
    expected = network.forward(ids, weights, UNEVEN)
    assert np.allclose(model(torch.from_numpy(ids)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime", reason="compares with ONNX Runtime")
    from charcnn.model import onnx_graph

    graph = onnx_graph.graph(weights, UNEVEN, None, "gather", {})
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"ids": ids})[0], expected, rtol=1e-3, atol=1e-4)


def test_several_labels_that_change():
    logits = np.array([[3.0, -1.0], [1.0, 1.0], [-2.0, -2.0]])
    others = np.array([[1.0, -1.0], [1.0, -1.0], [-2.0, -2.0]])
    changed, largest = compact.apart(logits, others, multi_label=True)
    assert changed == 1
    assert largest == pytest.approx(1 / (1 + np.exp(-1)) - 1 / (1 + np.exp(1)))
