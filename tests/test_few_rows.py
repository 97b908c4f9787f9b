"""Tiles of Hopper's kernel for few rows: what they hold, when they are taken, and that each gives what it must."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from prepared import of_kind
from test_wgmma import compare_tiles, machine  # noqa: F401 - a fixture

from charcnn.compiling.networks import BATCHES
from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv

LIMIT = 232_448
"""Bytes of shared memory of a block of an H100 or H200."""

KINDS = {"relu": 3, "stat": 3, "pool": 7, "line": 1}
"""Epilogues, and taps; a line is a linear layer."""


def usual_tile(kind: str, name: str) -> WgmmaTile:
    return WgmmaTile.of(KINDS[kind], kind == "pool", TENSOR_PRECISIONS[name], measured=kind == "stat")


def smaller(kind: str, name: str, limit: int = LIMIT) -> list[few_rows.FewRowsTile]:
    of = TENSOR_PRECISIONS[name]
    return list(few_rows.candidates(usual_tile(kind, name), KINDS[kind], of, kind == "stat", limit))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_what_they_hold(name, kind):
    of, tiles = TENSOR_PRECISIONS[name], smaller(kind, name)
    warpgroups = 1 if kind == "pool" else usual_tile(kind, name).math_warpgroups
    assert len(tiles) == warpgroups - 1 + warpgroups * (not of.promoted and kind != "stat")
    for tile in tiles:
        assert tile.smem_bytes + few_rows.BIAS_BYTES <= LIMIT
        assert (tile.packed_n, tile.pooled, tile.terms) == (BLOCK_N[of.promoted], kind == "pool", of.terms)
        assert 8 * tile.b_stages <= Barrier.B_EMPTY - Barrier.B_FULL
        assert 8 * tile.a_stages <= Barrier.A_EMPTY - Barrier.A_FULL
        assert 0 < tile.prefetch < tile.b_stages
        assert tile.a_bytes % 1024 == tile.b_bytes % 1024 == 0  # where the swizzle begins anew
        assert tile.block_n % 32 == 0  # as packed columns are in order in so many
        assert 65_536 // tile.threads >= 32 + tile.block_n // 2 * (1 + of.promoted)


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_when_they_are_taken(name, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMIT)
    of, usual = TENSOR_PRECISIONS[name], usual_tile("relu", name)
    k_blocks = 256 * of.itemsize // 128

    def offered(inputs: int) -> tuple[WgmmaTile, ...]:
        return few_rows.offered(usual, inputs * 110, 3, k_blocks, 256, of, False)

    def takes(tile: WgmmaTile, inputs: int) -> float:
        return few_rows.time(tile, inputs * 110, 3, k_blocks, 256, 132)

    assert offered(4096) == offered(1024) == ()
    for inputs in (1, 16, 32, 64):
        first, *others = offered(inputs)
        assert takes(first, inputs) <= few_rows.LESS * takes(usual, inputs)
        assert {first, *others} == set(smaller("relu", name))
        assert all(takes(first, inputs) <= takes(other, inputs) for other in others)


def test_the_time_of_a_tile_by_hand():
    tile = few_rows.FewRowsTile(72, 4, 8, 128, False, 7, math_warpgroups=1, shares=2)
    # 55 x 2 blocks at once; a step is 2 * 128 cycles of tensor cores, and 16,384 + 3,072 bytes of 3200 / 110 a cycle.
    assert few_rows.time(tile, 55 * 64, 3, 4, 256, 132) == pytest.approx(12 * (16384 + 3072) / (3200 / 110) + 3000)
    # 100 x 2 blocks on 132 multiprocessors: two rounds.
    assert few_rows.time(tile, 100 * 64, 3, 4, 256, 132) == pytest.approx(2 * (12 * 19456 / (3200 / 132) + 3000))


@pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)
@quick(lambda name, kind: (name == "fp16") == (kind != "pool") or (name, kind) in (("fp8", "pool"), ("fp16x3", "relu")))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
@quick(lambda name: name != "fp16x3")
def test_each_gives_what_it_must(name, kind, machine, monkeypatch):  # noqa: F811
    of, taps, pooled = TENSOR_PRECISIONS[name], KINDS[kind], kind == "pool"
    unit = 5 / 448 if name == "fp8" else 1.0
    monkeypatch.setattr(split_k, "offered", lambda *_: None)
    if device.SIMULATED:
        for promoted in BLOCK_N:
            monkeypatch.setitem(BLOCK_N, promoted, 128)  # a share of the columns is as many as in `machine`
        monkeypatch.setattr(device, "shared_limit", lambda: 2 * LIMIT)  # as stages are as many as of half the columns
    sizes = [(2, 39, 16, 80)] if device.SIMULATED else [(1, 9, 64, 256), (13, 63, 80, 264), (67, 33, 320, 512)]
    draw = np.random.default_rng(0)
    for n, length, c_in, c_out in sizes:
        length = 1 if kind == "line" else length
        x = draw.standard_normal((n, length, c_in), np.float32)
        weight = draw.standard_normal((taps, c_in, c_out), np.float32) / np.float32(np.sqrt(taps * c_in))
        bias = draw.standard_normal(c_out, np.float32)
        conv = of_kind(WgmmaConv, kind, weight, bias, precision=name, x_unit=unit, y_unit=unit)
        call = Call(None, None, x.shape, x=x)
        features = narrow(call, call.inputs[0], length, conv.width, of, 1 / unit)
        exact = (array.astype(np.float64) for array in (x, weight, bias))
        if pooled:
            want = reference.conv1d_relu_maxpool1d_nlc(*exact, 3)
        else:
            want = (reference.conv1d_nlc if kind == "stat" else reference.conv1d_relu_nlc)(*exact)
        for tile in smaller(kind, name, device.shared_limit()):
            monkeypatch.setattr(few_rows, "offered", lambda *_, tile=tile: (tile,))
            compare_tiles(conv, features, want, name, kind, unit)


@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_what_is_compiled_ahead_has_all_of_a_levels_tiles(name, monkeypatch):
    """Over every number of inputs that a stream makes a graph of; `BATCHES` are those that are compiled for."""
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMIT)
    of = TENSOR_PRECISIONS[name]
    layers = ("pool", 112, 7, 256, 256), ("relu", 110, 3, 256, 256), ("stat", 104, 3, 256, 256)
    layers += ("line", 1, 1, 8704, 1024), ("line", 1, 1, 1024, 1024)

    def taken(kind: str, rows: int, taps: int, c_in: int, c_out: int, inputs: int) -> WgmmaTile:
        k_blocks, usual = c_in * of.itemsize // 128, usual_tile(kind, name)
        return (*few_rows.offered(usual, inputs * rows, taps, k_blocks, c_out, of, kind == "stat"), usual)[0]

    sizes = {graph.size(inputs, 4096) for inputs in range(1, 4097)}
    for layer in layers:
        assert {taken(*layer, inputs) for inputs in sizes} == {taken(*layer, inputs) for inputs in BATCHES}
