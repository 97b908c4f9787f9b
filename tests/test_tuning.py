"""Which tile is taken: by the user's cache, what ships, or the rule; what `charcnn tune` chooses, in the simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import compiler_installed
from emulation import emulate

from charcnn import files
from charcnn.__main__ import main
from charcnn.cli import DONE, FAILED, UNUSABLE, tune
from charcnn.config import SMALL, TINY
from charcnn.gpu import device, ptx
from charcnn.ops import conv1d_relu_nlc_double_buffered, reference
from charcnn.ops.common import tile_choice
from charcnn.ops.common.precision import FP32, TENSOR_PRECISIONS
from charcnn.ops.conv1d import double_buffered
from charcnn.ops.conv1d.mma import kernel as mma_kernel
from charcnn.ops.conv1d.mma import layer as mma_layer
from charcnn.ops.conv1d.tile import WIDE, candidates
from charcnn.ops.conv1d.wgmma.config import Barrier, TileConfig
from charcnn.tuning import layers, measure
from charcnn.tuning.layers import Layer

simulated = pytest.mark.skipif(not device.SIMULATED, reason="sizes and tiles are the simulator's")

GPU = "Some GPU 80GB/PCIe"

LAYER = Layer("conv3", "conv1d_relu_nlc", "double_buffered", "fp32", 12, 3, 4, 4)


@dataclass(frozen=True)
class Side:
    """A candidate."""

    size: int


SIDES = tuple(map(Side, (1, 2, 3)))
SHAPE = 3, 4, 5
KEY = tile_choice.Key("mma relu", "fp16", *SHAPE, 256)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered before or after."""
    monkeypatch.setenv("CHARCNN_CACHE", str(tmp_path / "cache"))
    tile_choice.forget()
    yield tmp_path / "cache"
    tile_choice.forget()


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_name", lambda: GPU)


def taken(rows=200):
    return tile_choice.choose("mma relu", "fp16", SHAPE, rows, SIDES)


def kept(size, **more):
    entry = {"tile": {"size": size}, "versions": tile_choice.versions(KEY.kernel), **more}
    tile_choice.store(tile_choice.cache_file(GPU), GPU, {str(KEY): entry})


def ship(tmp_path, monkeypatch, size):
    """A package that ships this choice."""
    folder = tmp_path / "package" / "tuning"
    folder.mkdir(parents=True)
    for names in tile_choice.SOURCES.values():
        for name in names:
            file = tmp_path / "package" / (name if name.endswith(".py") else f"{name}/chapter.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("kernel")
    entries = {str(KEY): {"tile": {"size": size}}}
    (folder / "some-gpu-80gb-pcie.json").write_text(json.dumps({"gpu": GPU, "tiles": entries}))
    monkeypatch.setattr(tile_choice, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(tile_choice, "versions", tile_choice.versions.__wrapped__)


def test_order_of_lookup(gpu, tmp_path, monkeypatch):
    assert taken() == Side(1)  # the rule's
    ship(tmp_path, monkeypatch, 2)
    tile_choice.forget()
    assert taken() == Side(2)
    kept(3)
    assert taken() == Side(3)
    with tile_choice.trying(lambda key, sides: sides[1] if key == KEY else None):
        assert taken() == Side(2)
    assert taken() == Side(3)


@pytest.mark.parametrize(("rows", "found"), [(256, True), (65, True), (64, False), (257, False), (0, False)])
def test_rows_up_to_a_power_of_four(gpu, rows, found):
    kept(3)
    assert taken(rows) == Side(3 if found else 1)


def test_only_the_same_layer_precision_kernel_and_gpu(gpu, monkeypatch):
    kept(3)
    assert tile_choice.choose("mma pool", "fp16", SHAPE, 200, SIDES) == Side(1)
    assert tile_choice.choose("mma relu", "bf16", SHAPE, 200, SIDES) == Side(1)
    assert tile_choice.choose("mma relu", "fp16", (3, 4, 6), 200, SIDES) == Side(1)
    monkeypatch.setattr(device, "gpu_name", lambda: "another")
    assert taken() == Side(1)


def test_a_choice_of_another_kernel_or_compiler_counts_no_more(gpu, tmp_path, monkeypatch):
    ship(tmp_path, monkeypatch, 2)
    kept(3)
    assert taken() == Side(3)
    (tmp_path / "package" / "gpu" / "ptx" / "chapter.py").write_text("another kernel")
    tile_choice.forget()
    assert taken() == Side(2)


def test_what_kernels_are_made_of_is_there():
    for path in (tile_choice.PACKAGE / name for names in tile_choice.SOURCES.values() for name in names):
        assert path.is_file() or list(path.glob("*.py"))


def test_what_is_no_candidate_is_not_taken(gpu):
    kept(4)
    assert taken() == Side(1)
    assert tile_choice.choose("mma relu", "fp16", SHAPE, 200, SIDES[:1]) == Side(1)


def test_files_are_read_once(gpu, cache, monkeypatch):
    kept(3)
    assert taken() == Side(3)
    tile_choice.cache_file(GPU).unlink()
    assert taken() == Side(3)
    assert taken(100) == Side(3)


DAMAGED = {
    "no JSON": b'{"gpu": ',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "another GPU's": json.dumps({"gpu": "NVIDIA H200", "tiles": {}}).encode(),
    "no entries": json.dumps({"gpu": GPU, "tiles": []}).encode(),
    "an entry that is none": json.dumps({"gpu": GPU, "tiles": {str(KEY): 3}}).encode(),
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_told_once_and_replaced(gpu, content):
    path = tile_choice.cache_file(GPU)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"some-gpu-80gb-pcie\.json: .*; no tile is taken from it") as told:
        assert taken() == Side(1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken() == Side(1)
        assert tile_choice.choose("mma pool", "fp16", SHAPE, 200, SIDES) == Side(1)
    with pytest.warns(UserWarning, match="no tile is taken"):
        kept(3)
    assert taken() == Side(3)


def test_a_tile_of_odd_values_is_not_taken(gpu):
    for odd in (None, [], "x", {"size": "1"}, {"size": 2, "more": 1}, {}):
        tile_choice.store(
            tile_choice.cache_file(GPU), GPU, {str(KEY): {"tile": odd, "versions": tile_choice.versions("mma")}}
        )
        assert taken() == Side(1)


def test_a_file_that_may_not_be_read(gpu, monkeypatch):
    kept(3)
    tile_choice.cache_file(GPU).unlink()
    tile_choice.cache_file(GPU).mkdir()
    with pytest.warns(UserWarning, match="Is a directory"):
        assert taken() == Side(1)


def test_where_the_cache_is(monkeypatch):
    for name in ("CHARCNN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/of me")
    assert tile_choice.cache_file("NVIDIA H200") == Path("/of me/.cache/charcnn/tiles/nvidia-h200.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert tile_choice.cache_file("NVIDIA H200") == Path("/caches/charcnn/tiles/nvidia-h200.json")
    monkeypatch.setenv("CHARCNN_CACHE", "/mine")
    assert tile_choice.cache_file("NVIDIA H200") == Path("/mine/tiles/nvidia-h200.json")


WRITER = """
import sys
from charcnn.ops.common import tile_choice
for i in range(8):
    tile_choice.store(tile_choice.cache_file("g"), "g", {f"{sys.argv[1]} {i}": {"tile": {"size": i}}})
"""


def test_writers_at_once_lose_nothing(cache):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in range(4)]
    assert not any(writer.wait(timeout=300) for writer in writers)
    found = json.loads(tile_choice.cache_file("g").read_text())["tiles"]
    assert {key: entry["tile"]["size"] for key, entry in found.items()} == {
        f"{n} {i}": i for n in range(4) for i in range(8)
    }
    assert {path.name for path in (cache / "tiles").iterdir()} == {"g.json", "g.lock"}


def test_a_write_that_fails_leaves_what_was_there(gpu, monkeypatch):
    kept(3)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            kept(2)
    tile_choice.forget()
    assert taken() == Side(3)


# What ships.


def test_a_gpu_that_nothing_ships_for_has_the_rules_tiles(gpu):
    x, weight, bias = (np.ones(shape, np.float32) for shape in ((1, 9, 8), (3, 8, 8), (8,)))
    asked = []
    with tile_choice.trying(lambda key, tiles: asked.append((key, tiles)) or tiles[0]):
        conv1d_relu_nlc_double_buffered(x, weight, bias)
    ((key, tiles),) = asked
    assert key == tile_choice.Key("double_buffered relu", "fp32", 3, 8, 8, 16)
    assert tile_choice.untuned(GPU, key, tiles) == tiles[0] == candidates(8)[0]


@pytest.fixture(scope="module")
def asked_at_full_size():
    if not compiler_installed():
        pytest.skip("the CUDA compiler is not installed: pip install 'charcnn[cuda]'")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CHARCNN_CACHE": "/nowhere"}
    script = Path(__file__).with_name("tuned_keys.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_ships_for_the_h200_is_what_kernels_are_built_with(asked_at_full_size):
    shipped = json.loads((tile_choice.PACKAGE / "tuning" / "nvidia-h200.json").read_text())
    assert shipped["gpu"] == device.GPU_NAME
    assert shipped["tiles"].keys() == asked_at_full_size.keys()
    for key, found in asked_at_full_size.items():
        assert found["gpu"] == device.GPU_NAME
        assert shipped["tiles"][key]["tile"] == found["taken"] == found["built"], key
        assert found["taken"] in found["candidates"]
        assert len(found["candidates"]) > 1


def test_what_was_measured_on_an_h200_by_hand_is_what_ships(asked_at_full_size):
    wide = {"rows": 64, "columns": 128, "depth": 32, "thread_rows": 8, "thread_columns": 8, "stages": 2, "resident": 3}
    plain = {"block_m": 256, "block_n": 128, "warp_m": 64, "warp_n": 64, "b_stages": 4, "resident": 1}
    taken = {key: found["taken"] for key, found in asked_at_full_size.items()}
    assert taken["double_buffered pool fp32, 7 x 256 x 256, up to 262144 rows"] == wide
    assert taken["double_buffered k_split fp32, 1 x 1024 x 4, up to 256 rows"]["columns"] == 32
    assert taken["mma relu fp16, 3 x 256 x 256, up to 1048576 rows"] == plain
    assert taken["mma relu fp16x3, 3 x 256 x 256, up to 1048576 rows"]["warp_m"] == 48
    assert taken["wgmma pool fp16, 7 x 256 x 256, up to 4194304 rows"]["cluster_m"] == 2
    assert taken["wgmma pool tf32, 7 x 256 x 256, up to 4194304 rows"]["cluster_m"] == 1


def test_partial_moments_are_of_the_same_columns_with_every_tile():
    for tiles in (mma_layer.PLAIN, mma_layer.POOLED):
        assert len({tile.warp_n for tile in tiles}) == 1


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
@pytest.mark.parametrize("taps", [1, 3, 7, 11])
@pytest.mark.parametrize("pooled", [True, False])
def test_hoppers_candidates(name, taps, pooled):
    found = TileConfig.candidates(taps, pooled, TENSOR_PRECISIONS[name])
    assert found[0] == TileConfig.of(taps, pooled, TENSOR_PRECISIONS[name])
    assert len(set(found)) == len(found)
    for config in found:
        assert (config.block_n, config.pooled) == (found[0].block_n, pooled)  # weights and moments lie as before
        assert config.smem_bytes <= device.SHARED_LIMIT
        assert 8 * max(config.b_stages, 2 * config.a_stages) <= Barrier.B_EMPTY - Barrier.B_FULL
        assert config.prefetch in range(1, config.b_stages)
        assert config.threads <= (384 if config.block_n == 256 else 512)


# The layers.


@pytest.mark.parametrize("level", layers.LEVELS)
@pytest.mark.parametrize("layernorm", [True, False])
def test_layers_have_the_networks_sizes(level, layernorm):
    config = replace(SMALL, layernorm=layernorm)
    found = {one.name: one for one in layers.of_level(level, config)}
    linear = ["fc1", "fc2"] if level in ("l16", "l17") else ["fc1", "fc2", "fc3"]
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
    emulate(monkeypatch)
    mma_kernel.make_kernel.cache_clear()
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    Tile = mma_layer.TileConfig
    first, second = Tile(64, 128, 32, 64, 3, 1), Tile(32, 256, 32, 64, 2, 1)
    monkeypatch.setattr(mma_layer, "PLAIN", (first, second))
    monkeypatch.setattr(layers, "DRAWN", 1)
    one = Layer("conv3", "conv1d_relu_nlc", "mma", "bf16", 6, 2, 8, 136)
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
    assert "there is nothing to choose" in capsys.readouterr().out
    assert not cache.exists()


@simulated
def test_command_where_nothing_is_right(cache, broken, monkeypatch, capsys):
    monkeypatch.setattr(layers, "of_level", lambda *given: iter([LAYER]))
    for tile in (WIDE, OTHER):
        broken(tile, no_launch)
    assert main(["tune", "--levels", "l12"]) == FAILED
    assert "no candidate is right" in capsys.readouterr().out
    assert not cache.exists()


@simulated
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--levels", "l3"], "level='l3': need one of l12,"),
        (["--levels", "l12", "--precision", "fp16"], "precision='fp16': l12 has fp32"),
        (["--precision", "fp17"], "--precision fp17: no level whose tiles can be chosen computes in it"),
        (["--precision", "bf16"], "l14 to l16: this GPU has not the tensor cores for it"),
        (["--levels", "l14"], "mma needs tensor cores of compute capability 8.0 or later, which the simulator has not"),
        (["--config", "small"], "--config small: the simulator would take hours"),
        (["--config", "{"], "--config {: need small, tiny, or sizes as JSON"),
        (["--config", '{"width": 3}'], "need small, tiny, or sizes as JSON"),
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
    assert tune._config(None, TINY) == TINY
    assert tune._config("small", TINY) == SMALL
    assert tune._config('{"channels": 1024, "layernorm": false}', TINY) == replace(
        SMALL, channels=1024, layernorm=False
    )
