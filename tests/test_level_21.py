"""Level 21: limits between few inputs and more, and tiles of what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.catalog import level
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import Conv1d, Relu
from charcnn.ops.common import tile_choice
from charcnn.ops.conv1d.layers import SPREAD_BESIDE_MMA, Limits, limits
from charcnn.ops.conv1d.mma.layer import MmaConv


@pytest.mark.parametrize(
    ("multiprocessors", "expected"), [(132, (12, 16, 64)), (170, (12, 16, 64)), (58, (5, 7, 28)), (1, (1, 1, 1))]
)
def test_a_smaller_gpu_is_filled_by_fewer_inputs(multiprocessors, expected, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: multiprocessors)
    assert limits(Limits(12, 16, 64)) == expected


def test_precisions_that_have_limits():
    assert {*SPREAD_BESIDE_MMA} == {*level("l21").precisions} - {"fp16x3"}


def test_a_batch_that_fills_no_gpu_takes_smaller_tiles(monkeypatch):
    monkeypatch.setattr(Call, "launch", lambda *_, **__: None)
    weights = {"weight": np.zeros((3, 64, 256), np.float32), "bias": np.zeros(256, np.float32)}
    chosen = []
    monkeypatch.setattr(tile_choice, "choose", lambda *key: chosen.append(key[-1]) or key[-1][0])
    for fills in (False, True):
        conv = MmaConv((Conv1d(256, 3), Relu()), weights, fills=fills)
        for n in (1, 32, 256):
            conv.apply(device.to_device(np.zeros((n, 110, 64), np.float16)))
    assert [tiles[0] for tiles in chosen] == [*[conv.tiles[0]] * 3, *[min(conv.tiles, key=size)] * 2, conv.tiles[0]]
    assert all({*tiles} == {*conv.tiles} for tiles in chosen)


def size(tile):
    return tile.block_m * tile.block_n
