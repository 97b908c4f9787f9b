"""Matrix products on Hopper's tensor cores: their own kernel, its bands of tiles, and when it is taken."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from small_gpu import fresh_kernels

from charcnn.gpu import device
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.layers import Gelu, Linear, Relu
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import few_rows, layer, matmul, split_k
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.matmul import TILES

if device.SIMULATED:
    from charcnn.gpu import emulator

AFTER = {"": [], "relu": [Relu()], "gelu": [Gelu()]}

CASES = [(300, 264, 136, ""), (520, 520, 320, "relu"), (100, 8, 40, "gelu")]
"""Rows, columns, depth: of several tiles, of more steps than boxes, of one step; what follows."""

EIGHTHS = 130, 272, 272, "gelu"
"""A case of fp8."""


@pytest.mark.parametrize("tile", TILES.values())
def test_what_shared_memory_holds(tile):
    assert tile.smem_bytes <= device.SHARED_LIMIT
    assert tile.stage_bytes % 1024 == tile.staged_at % 1024 == matmul.BOX_BYTES % 1024 == 0  # the swizzle begins anew
    assert tile.bias_at - tile.staged_at == tile.result_bytes * tile.block_m * tile.block_n  # all results
    copy, math = tile.registers
    assert 128 * (copy + tile.math_warpgroups * math) <= 65_536
    assert math >= 32 + tile.block_n // 2


@pytest.mark.skipif(not device.SIMULATED, reason="calls a device function")
@pytest.mark.parametrize(("m_tiles", "n_tiles", "band"), [(1, 1, 8), (16, 3, 8), (11, 4, 8), (5, 7, 1), (3, 2, 4)])
def test_bands_have_each_tile_once(m_tiles, n_tiles, band):
    place = matmul.make_place()
    found = [tuple(map(int, place(tile, m_tiles, n_tiles, band))) for tile in range(m_tiles * n_tiles)]
    assert sorted(found) == [(m, n) for m in range(m_tiles) for n in range(n_tiles)]
    assert [m // band for m, _ in found] == sorted(m // band for m, _ in found)
    assert found[:2] == [(0, 0), (1, 0) if min(band, m_tiles) > 1 else (0, 1) if n_tiles > 1 else None][: len(found)]


@pytest.fixture
def machine(monkeypatch):
    """Two multiprocessors, a cluster's, and no tiles for few rows."""
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(few_rows, "offered", lambda *_: ())
    monkeypatch.setattr(split_k, "offered", lambda *_: None)
    if device.SIMULATED:
        monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    monkeypatch.setattr(layer, "BAND", 2)


needs_hopper = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)


def values_of(bits, precision):
    """Numbers of a format."""
    if precision == "fp8":
        return E4M3[bits]
    return bits if precision == "fp16" else (bits.astype(np.uint32) << 16).view(np.float32)


def multiplied(case, precision="fp16"):
    """A result, poisoned before, and what it must be."""
    m, n, k, after = case
    draw = np.random.default_rng(0)
    of = TENSOR_PRECISIONS[precision]
    a, b = draw.standard_normal((m, k)).astype(np.float16), draw.standard_normal((k, n), np.float32) / np.sqrt(k)
    bias = draw.standard_normal(n, np.float32) if after else None
    weights = {"weight": b.astype(np.float32)} | ({} if bias is None else {"bias": bias})
    made = WgmmaConv([Linear(n), *AFTER[after]], weights, precision=precision)
    x = a if precision == "fp16" else (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if precision == "fp8":
        x = draw.integers(0x28, 0x3F, (m, k), np.uint8) | draw.integers(0, 2, (m, k), np.uint8) << 7  # 1/4 to 1.9
    y = device.to_device(np.full(m * n * of.itemsize, 0x7F, np.uint8).view(of.dtype).reshape(m, 1, n))
    made.apply(device.to_device(x), out=y)
    exact = values_of(x, precision).astype(np.float64) @ b
    want = exact + (0 if bias is None else bias)
    if after == "relu":
        want = np.maximum(want, 0)
    elif after == "gelu":
        want = 0.5 * want * (1 + np.tanh(np.sqrt(2 / np.pi) * (want + 0.044715 * want**3)))
    return values_of(y.copy_to_host()[:, 0], precision), want


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.parametrize(("case", "precision"), [*((case, "fp16") for case in CASES), (EIGHTHS, "fp8")])
@quick(lambda case: case == CASES[2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 20))])
def test_the_emulator_finds_nothing(case, precision, seed, machine):
    with emulator.checking(seed) as findings:
        got, want = multiplied(case, precision)
    assert findings == []
    assert np.linalg.norm(got - want) <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(want)


@needs_hopper
@pytest.mark.parametrize(
    "precision", [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("fp16", "bf16")), "fp8"]
)
def test_the_product(precision, machine):
    got, want = multiplied((257, 272, 208, ""), precision)
    assert np.linalg.norm(got - want) <= 2 * TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(want)


@needs_hopper
@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, True),
        ({"precision": "bf16"}, True),
        ({"precision": "fp8"}, True),
        ({"results": "float32"}, False),
        ({"precision": "fp16x3"}, False),
    ],
)
def test_when_it_is_taken(options, own, machine):
    weight = np.zeros((64, 16), np.float32)
    assert bool(WgmmaConv([Linear(16)], {"weight": weight}, **options)._matmul_tiles) == own


@needs_hopper
def test_results_that_begin_between_16_bytes_take_the_convolutions_kernel(machine, monkeypatch):
    monkeypatch.setattr(layer, "make_matmul_kernel", None)  # calling it fails
    made = WgmmaConv([Linear(16)], {"weight": np.ones((64, 16), np.float32)})
    x, room = device.to_device(np.ones((3, 64), np.float16)), device.to_device(np.zeros(49, np.float16))
    y = room[1:].reshape(3, 1, 16)
    made.apply(x, out=y)
    np.testing.assert_array_equal(room.copy_to_host()[1:], 64)
