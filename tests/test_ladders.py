"""The ladders of small kernels: in plain Python at tiny sizes, on tensor cores at the network's."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import steps as bench_steps
from numba import cuda
from report import ladder, schema
from small_gpu import fresh_kernels, one_multiprocessor

from charcnn.catalog import LAYERS
from charcnn.config import POOL_SIZE, SMALL
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.ladder import POOL
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.wgmma.steps.common import BARRIER_BYTES, BLOCK_N, WGMMA_M
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d

TOLERANCE = TENSOR_PRECISIONS["fp16"].tolerance

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the same at real sizes")
hopper = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")
ampere = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")
LADDERS = {"mma": MmaStepConv1d, "wgmma": WgmmaStepConv1d}


def of(technique, *marks):
    """A case a step."""
    layer = LADDERS[technique]
    return [pytest.param(layer, step, id=f"{technique}-{step}", marks=marks) for step in layer.steps]


steps = pytest.mark.parametrize(("layer", "step"), [*of("mma"), *of("wgmma")])
steps_on_gpu = pytest.mark.parametrize(("layer", "step"), [*of("mma", ampere), *of("wgmma", hopper)])
ladders = pytest.mark.parametrize("layer", LADDERS.values(), ids=LADDERS)


def test_ladders_are_the_catalogues():
    assert {row.made for row in LAYERS if row.name.endswith("StepConv1d")} == {*LADDERS.values()}


@pytest.fixture
def machine(layer, monkeypatch):
    """Tensor cores in plain Python, and small tiles; nothing where there is a GPU."""
    if not device.SIMULATED:
        yield
        return
    modules = layer.steps.values()
    monkeypatch.setattr(layer, "block_n", 32 if layer is MmaStepConv1d else 64)
    if layer is MmaStepConv1d:
        fresh_kernels(monkeypatch)
        for module in modules:
            monkeypatch.setattr(module, "config", partial(small, module.config))
    else:
        one_multiprocessor(monkeypatch)
    limit = device.shared_limit()
    monkeypatch.setattr(device, "shared_limit", lambda: limit)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)  # a cluster
    for module in modules:
        module.make_kernel.cache_clear()  # of kernels that another machine runs
    yield
    for module in modules:
        module.make_kernel.cache_clear()


def small(config, taps, block_n):
    """The tile of a step to `mma`, of two warps."""
    tile = config(taps, block_n)
    warp_m = tile.warp_m if tile.pool > 1 else tile.warp_m // 2
    return replace(tile, block_m=2 * warp_m, warp_m=warp_m, warp_n=block_n)


def drawn(n, length, c_in, taps, c_out, constant=False):
    """x float16, weight and bias."""
    draw = np.random.default_rng(0)
    x = np.full((n, length, c_in), 0.5, np.float16)
    if not constant:
        x = draw.standard_normal((n, length, c_in), np.float32).astype(np.float16)
    weight = draw.standard_normal((taps, c_in, c_out), np.float32) / np.float32(np.sqrt(taps * c_in))
    return x, weight, draw.standard_normal(c_out, np.float32)


def expected(step, x, weight, bias):
    """In float64."""
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    if step == "pooled":
        return reference.conv1d_relu_maxpool1d_nlc(*exact, POOL)
    return reference.conv1d_relu_nlc(*exact)


@cache
def of_network(block, n, constant, pooled):
    """Features and weights of a convolution of the network, and what comes of them."""
    length, taps = SMALL.block_lengths[block - 2], SMALL.kernel_sizes[block - 1]
    if pooled:
        length -= length % POOL
    case = drawn(n, length, SMALL.in_channels(block), taps, SMALL.channels, constant)
    return *case, expected("pooled" if pooled else "", *case)


def check(layer, step, x, weight, bias, want=None):
    """Against the reference, from an output of NaN; on a GPU twice, which gives the same bits."""
    want = expected(step, x, weight, bias) if want is None else want
    conv, features = layer(step, weight, bias), device.to_device(x)
    made = []
    for _ in range(1 if device.SIMULATED else 2):
        y = device.to_device(np.full(want.shape, np.nan, np.float16))
        assert conv(features, out=y) is y
        made.append(y)
    cuda.synchronize()
    first, second = made[0].copy_to_host(), made[-1].copy_to_host()
    assert np.linalg.norm(first.astype(np.float64) - want) <= TOLERANCE * np.linalg.norm(want)
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize("taps", [1, 2, 3, 7, 31])
@steps
def test_shared_memory_holds_the_stages(layer, step, taps):
    tile = layer.steps[step].config(taps, layer.block_n)
    assert tile.fits(device.SHARED_LIMIT)
    assert tile.a_bytes % 1024 == tile.b_bytes % 1024 == 0  # where the swizzle begins anew
    assert tile.block_m % tile.pool == 0


@pytest.mark.parametrize("step", MmaStepConv1d.steps)
def test_warps_have_a_tile_and_copy_its_stages(step):
    module = MmaStepConv1d.steps[step]
    tile = module.config(7, MmaStepConv1d.block_n)
    assert tile.block_m % tile.warp_m == tile.block_n % tile.warp_n == tile.warp_m % 16 == tile.warp_n % 32 == 0
    assert tile.a_bytes % (16 * tile.threads) == tile.b_bytes % (16 * tile.threads) == 0
    assert tile.smem_bytes * module.BLOCKS <= device.SHARED_LIMIT
    assert tile.smem_bytes <= 101_376  # of compute capability 8.6 and 8.9
    assert tile.pool == 1 or tile.m_tiles == tile.pool


@pytest.mark.parametrize("step", WgmmaStepConv1d.steps)
@pytest.mark.parametrize("taps", [1, 7, 31])
def test_warpgroups_have_a_tile_and_registers(step, taps):
    module = WgmmaStepConv1d.steps[step]
    tile = module.config(taps, BLOCK_N)
    assert max(tile.a_stages, tile.b_stages) <= BARRIER_BYTES // 4 // 8
    assert tile.a_rows >= tile.math_warpgroups * WGMMA_M
    assert tile.exchange_at % 16 == tile.barriers_at % 16 == 0
    if tile.producer:
        fewer, more = module.PRODUCER_REGISTERS, module.MATH_REGISTERS
        at_first = 65_536 // tile.threads // 8 * 8
        assert fewer + tile.math_warpgroups * more <= at_first * (1 + tile.math_warpgroups)
        assert fewer % 8 == more % 8 == 0


def test_a_window_is_the_networks():
    assert POOL == POOL_SIZE


TINY = {
    MmaStepConv1d: {"one tile": (1, 9, 64, 3, 32), "odd": (2, 21, 128, 2, 64), "many taps": (3, 27, 64, 9, 32)},
    WgmmaStepConv1d: {"one tile": (1, 9, 64, 3, 64), "odd": (3, 45, 128, 2, 128), "many taps": (5, 27, 64, 9, 64)},
}
"""(N, L, C_in, K, C_out): L is a multiple of 3, and rows end within a tile."""


@simulated
@pytest.mark.parametrize(
    "name", ["odd", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("one tile", "many taps"))]
)
@steps
def test_against_the_reference(layer, step, name, machine):
    check(layer, step, *drawn(*TINY[layer][name]))


@simulated
@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (MmaStepConv1d, ("rings", (3, 64, 64), 64), "^step='rings': need one of word_loads, ldmatrix, "),
        (WgmmaStepConv1d, ("rings", (3, 64, 64), 64), "^step='rings': need one of one_warpgroup, tma, "),
        (MmaStepConv1d, ("ring", (3, 65, 64), 64), "multiples of 64 and 32"),
        (WgmmaStepConv1d, ("ring", (3, 64, 96), 96), "multiples of 64 and 64"),
        (WgmmaStepConv1d, ("ring", (64, 64), 64), "^weight has shape"),
        (WgmmaStepConv1d, ("ring", (3, 64, 64), 63), "^bias has shape"),
        (WgmmaStepConv1d, ("shared_taps", (2000, 64, 64), 64), "^weight has 2000 taps: "),
    ],
)
def test_weights_that_do_not_fit(layer, arguments, message, machine):
    step, weight, bias = arguments
    with pytest.raises(ValueError, match=message):
        layer(step, np.zeros(weight, np.float32), np.zeros(bias, np.float32))


@simulated
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight.astype(np.float64), "^weight has dtype float64: need float32"),
        (lambda weight: np.asfortranarray(weight), "^weight is not C-contiguous"),
        (device.to_device, "^weight is a .*: need a NumPy array"),
    ],
)
@ladders
def test_weights_of_another_kind(layer, change, message, machine):
    with pytest.raises(ValueError, match=message):
        layer("ring", change(np.zeros((3, 64, 64), np.float32)), np.zeros(64, np.float32))


@simulated
@pytest.mark.parametrize(
    ("step", "x", "message"),
    [
        ("ring", np.zeros((1, 9, 64), np.float16), "^x is a ndarray: need an array on the GPU"),
        ("ring", (1, 9, 128), r"^x has shape \(1, 9, 128\): need C_in=64"),
        ("ring", (1, 2, 64), "^x has 2 positions: need at least 3"),
        ("pooled", (1, 10, 64), "^x has 10 positions: need at least 5, a multiple of 3"),
        ("pooled", (1, 3, 64), "^x has 3 positions: need at least 5"),
    ],
)
@ladders
def test_features_that_do_not_fit(layer, step, x, message, machine):
    conv = layer(step, np.zeros((3, 64, 64), np.float32), np.zeros(64, np.float32))
    with pytest.raises(ValueError, match=message):
        conv(device.to_device(np.zeros(x, np.float16)) if isinstance(x, tuple) else x)


@simulated
@ladders
def test_arrays_begin_at_a_multiple_of_16_bytes(layer, machine):
    conv = layer(next(iter(layer.steps)), np.zeros((1, 64, 64), np.float32), np.zeros(64, np.float32))
    x, room = device.to_device(np.zeros((1, 1, 64), np.float16)), device.to_device(np.zeros(80, np.float16))
    behind = -device.address(room) % 16 // 2 + 1
    odd = room[behind : behind + 64].reshape((1, 1, 64))
    with pytest.raises(ValueError, match=r"^x begins 2 bytes past a multiple of 16"):
        conv(odd)
    with pytest.raises(ValueError, match=r"^out begins 2 bytes past a multiple of 16"):
        conv(x, out=odd)


@simulated
@ladders
def test_no_inputs(layer, machine):
    conv = layer("ring", np.zeros((3, 64, 64), np.float32), np.zeros(64, np.float32))
    assert conv(device.to_device(np.zeros((0, 9, 64), np.float16))).shape == (0, 7, 64)


@ladders
def test_a_step_differs_from_the_one_before_by_its_idea(layer):
    kernels = {module.make_kernel: module for module in reversed(layer.steps.values())}  # others are a tile alone
    files = [Path(module.__file__).read_text().splitlines() for module in reversed(kernels.values())]
    assert all(60 <= len(lines) <= 180 for lines in files)
    tiles = {module.__file__ for module in layer.steps.values()} - {module.__file__ for module in kernels.values()}
    assert all(len(Path(file).read_text().splitlines()) <= 30 for file in tiles)
    for before, after in pairwise([line.strip() for line in lines] for lines in files):
        changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
        assert len(changed) <= 90, after[0]
    for number, (name, module) in enumerate(layer.steps.items(), 1):
        assert module.__doc__.startswith(f"Step {number}: "), name
        since = f"level {13 if layer is MmaStepConv1d else 14}" if number == 1 else f"step {number - 1}"
        assert f". Since {since}: " in module.__doc__.replace("\n", " "), name


@pytest.mark.parametrize(
    ("technique", "second", "limits"), [("mma", "ldmatrix", "| 2 | 64 |"), ("wgmma", "tma", "| 51 | 277 |")]
)
def test_the_table_of_raw_results(technique, second, limits, monkeypatch, tmp_path):
    rates = {**dict.fromkeys(LADDERS[technique].steps, 50.0), "tuned kernel": 80.0, "cuBLAS": 100.0}
    rows = [
        {"step": step, "layer": layer, "batch": batch, "tflop_per_second": rate * batch}
        for batch in (1, 2)
        for layer in ("conv2", "conv3")
        for step, rate in rates.items()
        if (step, layer) != ("pooled", "conv3")
    ]
    raw = {"schema": f"{technique}_steps", f"{technique}_steps": rows, "machine": {"gpus": ["GPU of the test"]}}
    (tmp_path / "gpu-of-the-test.json").write_text(json.dumps(raw))
    monkeypatch.setattr(schema, "RESULTS", tmp_path)
    schema.results.cache_clear()
    try:
        head, _, *lines = getattr(ladder, f"{technique}_steps")(schema.ROOT / "README.md").splitlines()
    finally:
        schema.results.cache_clear()
    assert "GPU of the test" in head
    assert "N = 2: conv3" in head
    assert len(lines) == len(rates)
    assert lines[1].startswith(f"| [{second}](charcnn/")
    assert lines[1].endswith(f"{limits} 100 (50 %) | 100 (50 %) |")
    assert lines[-3].endswith("| 100 (50 %) | – |")
    assert lines[-2:] == [
        "| tuned kernel |  |  |  | 160 (80 %) | 160 (80 %) |",
        "| cuBLAS |  |  |  | 200 (100 %) | 200 (100 %) |",
    ]


@pytest.mark.parametrize("block", [2, 3])
@steps_on_gpu
def test_at_the_networks_sizes(layer, step, block):
    for constant, n in product((False, True), (1, 33)):  # by one test: they have one kernel
        check(layer, step, *of_network(block, n, constant, step == "pooled"))


@steps_on_gpu
def test_more_columns_and_an_odd_number_of_tiles(layer, step):
    for n, length, c_in, taps, c_out in ((67, 33, 320, 7, 512), (5, 63, 64, 1, 768), (1, 9, 64, 3, 256)):
        check(layer, step, *drawn(n, length, c_in, taps, c_out))


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which it measures")
def test_what_the_benchmark_refuses(capsys):
    assert bench_steps.main([]) == 2
    assert "mma needs tensor cores of compute capability 8.0 or later" in capsys.readouterr().err
    assert bench_steps.main(["--techniques", "mma,wgmma"]) == 2
    for wrong in (["--techniques", "mma,sass"], ["--batches", "0"]):
        with pytest.raises(SystemExit):
            bench_steps.main(wrong)
    assert "need some of mma, wgmma" in capsys.readouterr().err


def test_turns_are_sorted_by_technique(monkeypatch):
    class Product:
        def __init__(self, layer, batch):
            pass

        def kernels(self, technique):
            yield from (f"{technique} ring", f"{technique} tuned")

        def cublas(self):
            return "cuBLAS"

    monkeypatch.setattr(bench_steps, "Product", Product)
    monkeypatch.setattr(bench_steps, "by_turns", list)
    assert bench_steps.measure(["mma", "wgmma"], bench_steps.MEASURED[0], 1) == {
        "mma": ["mma ring", "mma tuned", "cuBLAS"],
        "wgmma": ["wgmma ring", "wgmma tuned", "cuBLAS"],
    }
