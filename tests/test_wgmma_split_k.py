"""Linear layers whose depth a cluster's blocks share: what tiles hold, when they are taken, that they give what they
must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import quick
from prepared import of_kind, prepared
from small_gpu import one_multiprocessor
from test_wgmma import compare_tiles

from charcnn.compiling.networks import BATCHES
from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.gpu.replay import Replay
from charcnn.ops import reference
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.pack import make_pack_kernel

LIMIT = 232_448
"""Bytes of shared memory of a block of an H100 or H200."""


@pytest.mark.parametrize("k_blocks", [1, 2, 3, 7, 8, 136, 272])
@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_what_they_hold(name, k_blocks):
    of = TENSOR_PRECISIONS[name]
    tiles = list(split_k.candidates(k_blocks, of, LIMIT))
    assert len(tiles) == len(split_k.TILES)
    for tile in tiles:
        assert tile.smem_bytes <= LIMIT
        assert tile.smem_bytes + tile.b_bytes > LIMIT or tile.b_stages == split_k.MOST_B
        assert tile.packed_n == BLOCK_N[of.promoted]
        assert tile.splits <= k_blocks
        assert 2 * tile.splits > k_blocks or tile.splits == split_k.SPLITS
        assert tile.pieces * tile.splits * split_k.PIECE_N * 16 == tile.block_m * tile.block_n
        assert 8 * tile.b_stages <= Barrier.B_EMPTY - Barrier.B_FULL
        assert 8 * tile.a_stages <= Barrier.A_EMPTY - Barrier.A_FULL
        assert tile.a_bytes % 1024 == tile.b_bytes % 1024 == 0  # where the swizzle begins anew
        assert tile.threads <= 384  # registers are not given away


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_when_they_are_taken(name, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMIT)
    of = TENSOR_PRECISIONS[name]
    usual, k_blocks = WgmmaTile.of(1, False, of), 8704 * of.itemsize // 128

    def offered(rows: int) -> split_k.SplitKTile | None:
        return split_k.offered(usual, rows, k_blocks, 1024, of)

    assert all(offered(rows) is None for rows in (513, 1024, 4096))
    taken = {rows: offered(rows) for rows in (1, 64, 65, 128, 129, 512)}
    assert {rows: tile and (tile.block_m, tile.block_n) for rows, tile in taken.items()} == {
        1: (64, 64), 64: (64, 64), 65: (128, 64), 128: (128, 64), 129: (128, 128), 512: (128, 128),
    }  # fmt: skip


def test_wide_layers_of_few_rows_are_one_round(monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMIT)
    of = TENSOR_PRECISIONS["fp16"]
    usual = WgmmaTile.of(1, False, of)
    for c_out, splits in ((768, 4), (2304, 2), (3072, 2)):
        tile = split_k.offered(usual, 128, 12, c_out, of)
        assert (tile.block_m, tile.block_n, tile.splits) == (128, 64, splits)
        assert -(-c_out // tile.block_n) * tile.splits <= 132
        assert tile.smem_bytes <= LIMIT
    assert split_k.offered(usual, 512, 12, 3072, of) is None  # where smaller tiles are faster


def test_the_time_of_a_tile_by_hand():
    (tile, *_) = split_k.candidates(136, TENSOR_PRECISIONS["fp16"], LIMIT)
    # 16 clusters of 4 blocks at once; 34 steps of 8,192 + 32 / 64 of 8,192 bytes, 3200 / 64 a cycle.
    cycles = 34 * (8192 + 4096) / 50 + few_rows.START + split_k.EXCHANGE * 4
    assert split_k.time(tile, 32, 136, 1024, 132) == pytest.approx(cycles)
    # 256 rows are four tiles, 64 clusters: two rounds of 33.
    assert split_k.time(tile, 256, 136, 1024, 132) > 2 * split_k.time(tile, 128, 136, 1024, 132) - 1


@pytest.fixture
def machine(monkeypatch):
    """Hopper in plain Python, a cluster of two blocks at a time; nothing where there is a GPU."""
    if device.SIMULATED:
        for made in (make_kernel, make_pack_kernel, split_k.make_split_k_kernel):
            made.cache_clear()  # of kernels that another machine runs
        one_multiprocessor(monkeypatch)
        for name in ("SPLITS", "MOST_A", "MOST_B"):
            monkeypatch.setattr(split_k, name, 2)  # so that stages come round
    yield
    for made in (make_kernel, make_pack_kernel, split_k.make_split_k_kernel):
        made.cache_clear()


@pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)
@quick(lambda name: name == "fp16")
@pytest.mark.parametrize("name", [*TENSOR_PRECISIONS, "fp8 promoted"])
@pytest.mark.exhaustive
def test_each_gives_what_it_must(name, machine, monkeypatch):
    name, promoted = name.removesuffix(" promoted"), name.endswith(" promoted")
    unit, whole = (5 / 448, 80) if name == "fp8" else (1.0, 83)
    # Rows, depth, columns: one step; stages that come round; columns that fill no tile; rows of a second tile.
    sizes = [(1, 64, 64), (33, 456, whole), (130, 72, 8 if name == "fp8" else 4)]
    if not device.SIMULATED:
        sizes += [(64, 8704, 1000), (200, 4104, 264)]
    draw, taken = np.random.default_rng(0), []
    for n, c_in, c_out in sizes:
        x = draw.standard_normal((n, 1, c_in), np.float32)
        weight = draw.standard_normal((1, c_in, c_out), np.float32) / np.float32(np.sqrt(c_in))
        bias = draw.standard_normal(c_out, np.float32)
        options: dict[str, Any] = {"precision": name, "x_unit": unit, "promoted": promoted}
        conv = of_kind(WgmmaConv, "line", weight, bias, y_unit=unit, **options)
        features = rounded(x, conv, unit)
        exact = tuple(array.astype(np.float64) for array in (x, weight, bias))
        for tile in split_k.candidates(conv._k_blocks, conv.precision, device.shared_limit()):
            monkeypatch.setattr(split_k, "offered", lambda *_, tile=tile: taken.append(tile) or tile)
            with Replay.pause():  # else a call like one before takes that one's tile
                compare_tiles(conv, features, reference.conv1d_relu_nlc(*exact), name, "line", unit)
        floats = prepared(WgmmaConv, weight, bias, "tanh", results="float32", **options)
        with Replay.pause():
            got = floats.apply(features).copy_to_host()
        want = np.tanh(reference.conv1d_nlc(*exact))
        assert np.linalg.norm(got - want) <= conv.precision.tolerance * np.linalg.norm(want)
    assert len(taken) == len(sizes) * (2 * len(split_k.TILES) + 1)
    assert {tile.block_m for tile in taken} == {64, 128}


def rounded(x, conv, unit):
    """Features as the layer takes them."""
    call = Call(None, None, x.shape, x=x)
    return narrow(call, call.inputs[0], x.shape[1], conv.width, conv.precision, 1 / unit)


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_what_is_compiled_ahead_has_all_of_a_levels_tiles(name, monkeypatch):
    """Over every number of inputs that a stream makes a graph of, as in test_few_rows."""
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMIT)
    of = TENSOR_PRECISIONS[name]
    usual, sizes = WgmmaTile.of(1, False, of), {graph.size(inputs, 4096) for inputs in range(1, 4097)}
    for c_in, c_out in ((8704, 1024), (1024, 1024), (1024, 4)):
        k_blocks = c_in * of.itemsize // 128
        taken, ahead = (
            {split_k.offered(usual, inputs, k_blocks, c_out, of) for inputs in numbers} for numbers in (sizes, BATCHES)
        )
        assert taken == ahead
