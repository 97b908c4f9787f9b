"""Which tile is taken: by the user's cache, what ships, or the rule."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns, compiler_installed

from charcnn import files
from charcnn.gpu import device
from charcnn.ops import conv1d_relu_nlc_double_buffered
from charcnn.ops.common import tile_choice
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.mma import layer as mma_layer
from charcnn.ops.conv1d.tile import candidates
from charcnn.ops.conv1d.wgmma.config import Barrier, WgmmaTile

GPU = "Some GPU 80GB/PCIe"


@dataclass(frozen=True)
class Side:
    """A candidate."""

    size: int


SIDES = tuple(map(Side, (1, 2, 3)))
SHAPE = 3, 4, 5
KEY = tile_choice.Key("mma relu", "fp16", *SHAPE, 256)


@pytest.fixture(autouse=True)
def cache(tile_cache):
    return tile_cache


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
    with pytest.warns(UserWarning, match=r"some-gpu-80gb-pcie\.json: .*; its tiles are ignored") as told:
        assert taken() == Side(1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken() == Side(1)
        assert tile_choice.choose("mma pool", "fp16", SHAPE, 200, SIDES) == Side(1)
    with pytest.warns(UserWarning, match="its tiles are ignored"):
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


@by_turns
def test_writers_at_once_lose_nothing(cache):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in range(2)]
    assert not any(writer.wait(timeout=300) for writer in writers)
    found = json.loads(tile_choice.cache_file("g").read_text())["tiles"]
    assert {key: entry["tile"]["size"] for key, entry in found.items()} == {
        f"{n} {i}": i for n in range(2) for i in range(8)
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
        pytest.skip("the CUDA compiler is not installed: pip install -e '.[cuda]'")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CHARCNN_CACHE": "/nowhere"}
    script = Path(__file__).with_name("tuned_keys.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.exhaustive
def test_what_ships_for_the_h200_is_what_kernels_are_built_with(asked_at_full_size):
    shipped = json.loads((tile_choice.PACKAGE / "tuning" / "nvidia-h200.json").read_text())
    assert shipped["gpu"] == device.GPU_NAME
    unmeasured = asked_at_full_size.keys() - shipped["tiles"].keys()
    assert asked_at_full_size.keys() >= shipped["tiles"].keys()
    few = {key for key in unmeasured if "shares" in asked_at_full_size[key]["candidates"][0]}
    assert all(re.match("mma .* fp8, ", key) for key in unmeasured - few), "for GPUs that have no wgmma"
    for key, found in asked_at_full_size.items():
        assert found["gpu"] == device.GPU_NAME
        tile = found["candidates"][0] if key in unmeasured else shipped["tiles"][key]["tile"]
        assert tile == found["taken"] == found["built"], key
        assert found["taken"] in found["candidates"]
        assert len(found["candidates"]) > 1


@by_turns
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
    for tiles in ((mma_layer.CONVERTED, *mma_layer.PLAIN), mma_layer.POOLED):
        assert len({tile.warp_n for tile in tiles}) == 1


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
@pytest.mark.parametrize("taps", [1, 3, 7, 11])
@pytest.mark.parametrize("pooled", [True, False])
def test_hoppers_candidates(name, taps, pooled):
    found = WgmmaTile.candidates(taps, pooled, TENSOR_PRECISIONS[name])
    assert found[0] == WgmmaTile.of(taps, pooled, TENSOR_PRECISIONS[name])
    assert len(set(found)) == len(found)
    for config in found:
        assert (config.block_n, config.pooled) == (found[0].block_n, pooled)  # weights and moments lie as before
        assert config.smem_bytes <= device.SHARED_LIMIT
        assert 8 * max(config.b_stages, 2 * config.a_stages) <= Barrier.B_EMPTY - Barrier.B_FULL
        assert config.prefetch in range(1, config.b_stages)
        assert config.threads <= (384 if config.block_n == 256 else 512)
