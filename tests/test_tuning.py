"""What `charcnn tune` chooses and writes, in the simulator, and the layers that it measures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from conftest import by_turns
from small_gpu import fresh_kernels

from charcnn import catalog
from charcnn.__main__ import main
from charcnn.cli import DONE, FAILED, UNUSABLE, sizes, tune
from charcnn.config import SMALL, TINY
from charcnn.gpu import device, ptx
from charcnn.ops import conv1d_relu_nlc_double_buffered, reference
from charcnn.ops.common import tile_choice
from charcnn.ops.common.precision import FP32, TENSOR_PRECISIONS
from charcnn.ops.conv1d import double_buffered
from charcnn.ops.conv1d.mma import kernel as mma_kernel
from charcnn.ops.conv1d.mma import layer as mma_layer
from charcnn.ops.conv1d.tile import WIDE, candidates
from charcnn.tuning import layers, measure
from charcnn.tuning.layers import TunedLayer

simulated = pytest.mark.skipif(not device.SIMULATED, reason="sizes and tiles are the simulator's")

LAYER = TunedLayer("conv3", "conv1d_relu_nlc", "double_buffered", "fp32", 12, 3, 4, 4)


@pytest.fixture(autouse=True)
def cache(tile_cache):
    return tile_cache


# The layers.


@pytest.mark.parametrize("level", layers.LEVELS)
@pytest.mark.parametrize("layernorm", [True, False])
def test_layers_have_the_networks_sizes(level, layernorm):
    config = replace(SMALL, layernorm=layernorm)
    found = {one.name: one for one in layers.of_level(level, config)}
    linear = ["fc1", "fc2"] if catalog.level(level).small_batches else ["fc1", "fc2", "fc3"]
    assert list(found) == [f"conv{i}" for i in range(1 if level == "l12" else 2, 7)] + linear
    assert (found["conv2"].length, found["conv2"].taps) == (336, 7)
    assert found["conv6"].operator == ("conv1d_stat_nlc" if layernorm else "conv1d_relu_maxpool1d_nlc")
    assert (found["fc1"].c_in, found[linear[-1]].c_out) == (8704, 4 if "fc3" in linear else 1024)
    many = layers.of_level(level, replace(config, classes=17))
    assert [one.c_out for one in many if one.name == "fc3"] == [17]
    if level == "l12":
        assert found["conv1"].c_in == 72


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp16x3"])
def test_decoded(precision):
    of, x = TENSOR_PRECISIONS[precision], np.array([[1.5, -0.25, 0, 7, 8, 9, 10, 11]], np.float32)
    halves = x.astype(np.float16)
    given = {
        "fp16": halves,
        "bf16": (x.view(np.uint32) >> 16).astype(np.uint16),
        "tf32": x,
        "fp16x3": np.concatenate([halves, np.full_like(halves, ptx.LOW_SCALE / 4)], axis=1),
    }[precision]
    np.testing.assert_array_equal(layers.decoded(given, of), x + (precision == "fp16x3") / 4)
    np.testing.assert_array_equal(layers.decoded(x, FP32), x)


# Measuring, in the simulator.

OTHER = candidates(4)[-1]


def slow(tiles, monkeypatch):
    """Times by hand: how many milliseconds a run with each of these tiles takes."""
    monkeypatch.setattr(measure, "_timed", lambda work, right: [tiles[tile] / 1e3 for tile in right])


@simulated
def test_the_fastest_is_chosen_and_then_taken(monkeypatch):
    slow({WIDE: 4, OTHER: 3}, monkeypatch)
    tuned = measure.tune(LAYER, 2, set())
    assert tuned.key == tile_choice.Key("double_buffered relu", "fp32", 3, 4, 4, 64)
    assert [one.problem for one in tuned.candidates] == [None, None]
    assert (tuned.before.tile, tuned.chosen.tile) == (WIDE, OTHER)
    assert tuned.gain == pytest.approx(0.25)
    tile_choice.store(tile_choice.cache_file("simulator"), "simulator", {str(tuned.key): tuned.entry()})
    assert double_buffered.chosen("relu", (3, 4, 4), 20) == OTHER
    assert double_buffered.chosen("relu", (3, 4, 4), 2000) == WIDE
    assert measure.tune(LAYER, 2, {tuned.key}) is None
    assert measure.tune(LAYER, 2, set()).before.tile == WIDE  # what would run without what was tuned


@simulated
def test_so_little_gain_is_none(monkeypatch):
    slow({WIDE: 1000, OTHER: 995}, monkeypatch)
    tuned = measure.tune(LAYER, 2, set())
    assert tuned.chosen is tuned.before
    assert tuned.gain == 0


@pytest.fixture
def broken(monkeypatch):
    """The kernel of one tile does not do what it should: the tile, and how."""

    def breaks(tile, how):
        build = double_buffered.make_kernel

        def build_or_break(asked, *arguments):
            made = build(asked, *arguments)
            if asked != tile:
                return made

            class Broken:
                def __getitem__(self, launch):
                    def run(*given):
                        made[launch](*given)
                        how(given[3])

                    return run

            return Broken()

        monkeypatch.setattr(double_buffered, "make_kernel", build_or_break)

    return breaks


def one_wrong(y):
    y[1, 3, 2] += np.float32(0.01)


def one_missing(y):
    y[1, 9, 3] = np.float32(np.nan)


def no_launch(y):
    raise RuntimeError("the driver\nrefuses")


@simulated
@pytest.mark.parametrize(
    ("how", "told"),
    [
        (one_wrong, r"wrong: relative error \d\.\de-0\d, allowed 2e-06"),
        (one_missing, "wrong: relative error nan, allowed 2e-06"),
        (no_launch, "RuntimeError: the driver refuses"),
    ],
)
def test_a_candidate_that_is_wrong_is_never_chosen(how, told, broken, monkeypatch, capsys):
    broken(OTHER, how)
    slow({WIDE: 4, OTHER: 1}, monkeypatch)
    tuned = measure.tune(LAYER, 2, set())
    (problem,) = [one.problem for one in tuned.candidates if one.tile == OTHER]
    assert re.fullmatch(told, problem)
    assert tuned.chosen.tile == WIDE
    tune._show("l12", 2, tuned)
    assert problem in capsys.readouterr().out


@simulated
def test_where_the_rules_own_is_wrong_another_is_chosen(broken, monkeypatch):
    broken(WIDE, no_launch)
    slow({OTHER: 4}, monkeypatch)
    tuned = measure.tune(LAYER, 2, set())
    assert (tuned.chosen.tile, tuned.gain) == (OTHER, None)
    assert json.loads(json.dumps(tuned.entry()))["tile"] == asdict(OTHER)


@simulated
def test_on_tensor_cores(monkeypatch):
    fresh_kernels(monkeypatch)
    mma_kernel.make_kernel.cache_clear()
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    Tile = mma_layer.MmaTile
    first, second = Tile(64, 128, 32, 64, 3, 1), Tile(32, 256, 32, 64, 2, 1)
    monkeypatch.setattr(mma_layer, "PLAIN", (first, second))
    monkeypatch.setattr(layers, "DRAWN", 1)
    one = TunedLayer("conv3", "conv1d_relu_nlc", "mma", "bf16", 6, 2, 8, 136)
    tuned = measure.tune(one, 2, set())
    mma_kernel.make_kernel.cache_clear()
    assert tuned.key == tile_choice.Key("mma relu", "bf16", 2, 8, 136, 16)
    assert [(one.tile, one.problem) for one in tuned.candidates] == [(first, None), (second, None)]


@simulated
@pytest.mark.parametrize("operator", ["conv1d_stat_nlc", "conv1d_relu_maxpool1d_nlc"])
def test_by_winograds_filtering(operator):
    work = layers.prepare(replace(LAYER, operator=operator, technique="winograd"), 3)
    work.poison()
    assert np.isnan(work.error())
    key, tiles = measure.asked(work)
    assert key == tile_choice.Key("double_buffered several", "fp32", 6, 4, 4, 16)
    assert tiles == candidates(4)
    assert work.error() <= LAYER.tolerance
    work.poison()
    work.start(None)
    assert work.error() <= LAYER.tolerance


# The command.


@by_turns
@simulated
def test_command(cache, capsys):
    assert main(["tune", "--levels", "l12", "--batch", "1", "--dry-run"]) == DONE
    out = capsys.readouterr().out
    assert not cache.exists()
    for name in ("conv1", "conv2", "conv3", "conv6", "fc1", "fc3"):
        assert f"\nl12 {name}, 1 inputs: double_buffered " in out
    assert "rows 32, depth 16" in out
    assert out.count("chosen") >= 6
    assert out.count("less time than without tuning") == out.count("candidate ")


@simulated
def test_command_writes_what_a_level_then_takes(cache, monkeypatch, capsys):
    monkeypatch.setattr(layers, "of_level", lambda *given: iter([LAYER, replace(LAYER, name="conv4"), LAYER]))
    slow({WIDE: 4, OTHER: 3}, monkeypatch)
    assert main(["tune", "--levels", "l12", "--config", "tiny"]) == DONE
    out = capsys.readouterr().out
    assert "25.0% less time than without tuning" in out
    assert "l12 conv4" not in out  # the same key
    found = json.loads((cache / "tiles" / "simulator.json").read_text())
    assert [entry["tile"] for entry in found["tiles"].values()] == [asdict(OTHER)]
    built, build = [], double_buffered.make_kernel
    monkeypatch.setattr(double_buffered, "make_kernel", lambda tile, *rest: built.append(tile) or build(tile, *rest))
    draw = np.random.default_rng(0)
    x, weight, bias = (draw.standard_normal(shape, np.float32) for shape in ((2, 12, 4), (3, 4, 4), (4,)))
    y = conv1d_relu_nlc_double_buffered(x, weight, bias)
    assert built == [OTHER]
    np.testing.assert_allclose(y, reference.conv1d_relu_nlc(x, weight, bias), atol=1e-5)


@simulated
def test_command_where_there_is_nothing_to_choose(cache, monkeypatch, capsys):
    monkeypatch.setattr(layers, "of_level", lambda *given: iter([LAYER]))
    monkeypatch.setattr(double_buffered, "candidates", lambda columns, pool_size: (WIDE,))
    assert main(["tune", "--levels", "l12"]) == DONE
    assert "nothing to choose" in capsys.readouterr().out
    assert not cache.exists()


@simulated
def test_command_where_nothing_is_right(cache, broken, monkeypatch, capsys):
    monkeypatch.setattr(layers, "of_level", lambda *given: iter([LAYER]))
    for tile in (WIDE, OTHER):
        broken(tile, no_launch)
    assert main(["tune", "--levels", "l12"]) == FAILED
    assert "no candidate gives right results" in capsys.readouterr().out
    assert not cache.exists()


@simulated
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--levels", "l3"], "level='l3': need one of l12,"),
        (["--levels", "l12", "--precision", "fp16"], "precision='fp16': l12 has fp32"),
        (["--precision", "fp17"], "--precision fp17: no level whose tiles can be chosen computes in it"),
        (["--precision", "bf16"], "l14 to l16 and l21: this GPU runs none of them"),
        (["--levels", "l14"], "l14 needs tensor cores of compute capability 7.5 or later, which the simulator only"),
        (["--config", "small"], "--config small: the simulator would take hours"),
        (["--config", "{"], "--config {: need small, large, tiny, or sizes as JSON"),
        (["--config", '{"width": 3}'], "need small, large, tiny, or sizes as JSON"),
    ],
)
def test_command_refuses(words, message, cache, capsys):
    assert main(["tune", *words]) == UNUSABLE
    error = capsys.readouterr().err
    assert error.startswith("charcnn tune: ")
    assert message in error
    assert error.count("\n") == 1
    assert not cache.exists()


def test_command_with_no_gpu_and_no_simulator():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "charcnn", "tune"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == UNUSABLE
    assert re.fullmatch(r"charcnn tune: .*NVIDIA driver.*\n", done.stderr)
    assert done.stdout == ""


def test_command_refuses_a_batch_of_none(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--batch", "0"])
    assert ended.value.code == UNUSABLE
    assert "need a whole number from 1" in capsys.readouterr().err


@simulated
def test_command_where_the_cache_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHARCNN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(layers, "of_level", lambda *given: iter([LAYER]))
    assert main(["tune", "--levels", "l12"]) == UNUSABLE
    assert "Not a directory" in capsys.readouterr().err


def test_sizes_of_a_configuration():
    assert [sizes.config_of(name) for name in ("small", "tiny")] == [SMALL, TINY]
    assert sizes.config_of('{"channels": 1024, "layernorm": false}') == replace(SMALL, channels=1024, layernorm=False)
