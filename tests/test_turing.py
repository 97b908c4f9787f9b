"""Compute capability 7.5: its tensor cores multiply fp16, no copy bypasses registers, shared memory has 64 KiB."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from prepared import prepared
from ptx_interpreter import LANES, Warp, values
from report import limits
from small_gpu import fresh_kernels
from test_mma import BROAD, DEEP, LINEAR, arrays, check_variant, close, run

from charcnn import catalog
from charcnn.classify import engine
from charcnn.compiling.stand_in import SIZES
from charcnn.config import SMALL, Config
from charcnn.gpu import device, ptx
from charcnn.levels import l14
from charcnn.levels.runner import command, options
from charcnn.model import network, params
from charcnn.ops import reference
from charcnn.ops.conv1d.mma import kernel, layer
from charcnn.ops.conv1d.mma.config import MmaHeldTile, Stages
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.linear.few_outputs import FewOutputsLinear

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")

if device.SIMULATED:
    from charcnn.gpu import emulator
    from charcnn.gpu.emulator import warp

T4 = (7, 5)
"""Its compute capability."""

SMALLEST = MmaHeldTile(48, 128, 48, 64, 2, 1)
"""Two warps, which are emulated in half the time of those that run."""


@pytest.fixture
def there(monkeypatch):
    """What asks for the GPU finds a T4."""
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "capability", lambda: T4)
    monkeypatch.setattr(device, "gpu_count", lambda: 1)


@pytest.fixture
def emulated(monkeypatch):
    """Kernels are chosen for a T4, and emulated; mistakes are found."""
    fresh_kernels(monkeypatch)
    kernel.make_kernel.cache_clear()  # of kernels that another machine runs
    monkeypatch.setattr(device, "capability", lambda: T4)
    monkeypatch.setattr(device, "has_capability", lambda least: least <= T4)
    monkeypatch.setattr(device, "shared_limit", lambda: SIZES[T4][1])
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    with emulator.checking(1) as findings:
        yield
    kernel.make_kernel.cache_clear()
    assert findings == []


@simulated
@pytest.mark.parametrize(
    ("name", "sizes", "tile"),
    [
        ("conv1d_stat_nlc_mma_fp16", DEEP, layer.HELD[0]),
        ("linear_relu_nlc_mma_fp16", LINEAR, SMALLEST),
        pytest.param("linear_relu_nlc_mma_fp16", LINEAR, layer.HELD[0], marks=pytest.mark.exhaustive),
        pytest.param("conv1d_stat_nlc_mma_fp16", DEEP, layer.HELD[1], marks=pytest.mark.exhaustive),
        pytest.param("conv1d_relu_nlc_mma_fp16", BROAD, layer.HELD[0], marks=pytest.mark.exhaustive),
    ],
)
def test_variant(name, sizes, tile, emulated, monkeypatch):
    monkeypatch.setattr(layer, "HELD", (tile,))
    check_variant(name, sizes)


@simulated
@pytest.mark.parametrize(
    ("length", "tile"),
    [(7, SMALLEST), *(pytest.param(n, layer.HELD[0], marks=pytest.mark.exhaustive) for n in (7, 8))],
)
def test_pooling_of_inputs_that_are_no_multiple_of_three(length, tile, emulated, monkeypatch):
    monkeypatch.setattr(layer, "HELD", (tile,))
    x, weight, bias = arrays(7, length, 8, 8, 3)  # some inputs a tile, and none where all begins
    y = run("relu", 3, x, weight, bias, "fp16", results="float32").copy_to_host()
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    assert close("fp16", y, reference.conv1d_relu_maxpool1d_nlc(*exact, 3))


@simulated
@pytest.mark.exhaustive  # a minute each
@pytest.mark.parametrize("name", ["l14", "l21"])
def test_level(name, emulated):
    config = Config(length=123, alphabet=9, channels=8, units=8)
    weights = params.init(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (1, config.length), np.uint8)
    built = catalog.level(name).module.build(weights, config, batch=1, streams=1)
    assert close("fp16", built(ids), network.forward(ids, weights, config))


@pytest.mark.parametrize("taps", [1, 3, 7])
def test_tiles_fit_its_shared_memory_in_two_stages(taps, monkeypatch):
    monkeypatch.setattr(device, "has_capability", lambda least: least <= T4)
    monkeypatch.setattr(device, "shared_limit", lambda: SIZES[T4][1])
    for pooled in (False, True):
        offered = layer.tiles_for(layer.choose("fp16"), pooled)
        assert layer.fitting(offered, taps, 256) == offered
        assert all(isinstance(tile, MmaHeldTile) and tile.held for tile in offered)
        assert {Stages.of(tile, taps).a_stages for tile in offered} == {2}
    monkeypatch.setattr(device, "has_capability", lambda least: True)
    assert not any(tile.held for pooled in (False, True) for tile in layer.tiles_for(layer.choose("fp16"), pooled))


def test_what_is_chosen(there):
    serving = [row.name for row in catalog.LEVELS if row.device == "cuda" and options.serves(row, None)]
    assert serving == [*(f"l{k}" for k in range(3, 11)), "l14", "l21"]  # l10 needs more shared memory, and says so
    for name in ("l14", "l21"):
        row = catalog.level(name)
        assert [of for of in row.precisions if options.serves(row, of)] == ["fp16"]
        assert engine.obstacle(engine.Choice(row, "fp16")) is None
        said = r"^precision='bf16': need compute capability 8\.0 or later, this GPU has 7\.5$"
        assert re.match(said, engine.obstacle(engine.Choice(row, "bf16")))
    chosen = next(choice for choice in engine.choices("cuda") if engine.obstacle(choice) is None)
    assert (chosen.level.name, chosen.precision) == ("l21", "fp16")


def test_another_precision_is_refused_in_a_line(there, ended):
    for precision in ("bf16", "tf32", "fp16x3"):
        done = ended(command.main, l14.build, ["--precision", precision])
        said = f"l14: precision='{precision}': need compute capability 8.0 or later, this GPU has 7.5\n"
        assert (done.returncode, done.stderr) == (2, said)


@simulated
def test_layers_take_what_it_multiplies(monkeypatch):
    monkeypatch.setattr(device, "capability", lambda: T4)
    monkeypatch.setattr(device, "has_capability", lambda least: least <= T4)
    _, weight, bias = arrays(1, 9, 8, 8, 3)
    message = r"^precision='{}': need compute capability 8\.\d or later, this GPU has 7\.5$"
    for made, array in ((layer.MmaConv, weight), (layer.MmaConv, weight[0]), (SmallBatchConv, weight)):
        prepared(made, array, bias, precision="fp16")
        for precision in ("bf16", "fp16x3", "fp8"):
            with pytest.raises(ValueError, match=message.format(precision)):
                prepared(made, array, bias, precision=precision)
    prepared(FewOutputsLinear, weight[0], bias, precision="fp16")
    with pytest.raises(device.DeviceError, match=r"^few_outputs in bf16 needs compute capability 8\.0, this GPU has 7"):
        prepared(FewOutputsLinear, weight[0], bias, precision="bf16")


def bits(*numbers):
    return np.array(numbers, np.float32).view(np.uint32)


def interpreted(intrinsic, *operands, results=1):
    """What stands in for an instruction on a T4, of bits that each lane has."""
    names = {f"${results + i}": operand for i, operand in enumerate(operands)}
    registers = Warp(names).run(intrinsic.before[device.AMPERE]).registers
    return np.array([registers[f"${i}"] for i in range(results)])


def halves(word):
    return np.array([word], np.uint32).view(np.float16)


@simulated
@pytest.mark.parametrize("rectified", [None, False, True], ids=["max_nan_f32", "cvt_f16x2", "cvt_f16x2 with ReLU"])
def test_what_stands_in_for_an_instruction_on_floats(rectified):
    intrinsic = ptx.max_nan_f32 if rectified is None else ptx.cvt_f16x2("f16", rectified)
    for a, b in values():
        found = interpreted(intrinsic, *(np.full(LANES, bits(one)[0]) for one in (a, b)))[0, 0]
        expected = intrinsic(np.float32(a), np.float32(b))
        if rectified is None:
            np.testing.assert_array_equal(np.uint32(found).view(np.float32), np.float32(expected))
        else:
            np.testing.assert_array_equal(halves(found), halves(expected))


@simulated
def test_what_stands_in_for_the_maximum_of_halves():
    peak = ptx.max_nan_f16x2("f16")
    with np.errstate(over="ignore"):
        words = [int(np.array(pair, np.float16).view(np.uint32)[0]) for pair in values()]
    for a, b in zip(words, words[::-1] + words[:1], strict=False):
        found = interpreted(peak, np.full(LANES, a, np.uint32), np.full(LANES, b, np.uint32))[0, 0]
        np.testing.assert_array_equal(halves(found), halves(peak(a, b)))


@simulated
def test_two_products_of_half_the_depth_are_one():
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-9, 9, (LANES, 2 * words)).astype(np.float16).view(np.uint32) for words in (4, 2))
    c = draw.integers(-9, 9, (LANES, 4)).astype(np.float32)
    expected = warp.product(a, b, c, "f16")
    found = interpreted(ptx.mma_sync("f16"), *a.T, *b.T, *c.view(np.uint32).T, results=4)
    np.testing.assert_array_equal(found.astype(np.uint32).view(np.float32).T, expected)


@pytest.mark.parametrize(("width", "wanted"), [(4, 16), (4, 12), (4, 4), (4, 0), (2, 8), (2, 4), (1, 4), (1, 0)])
def test_what_stands_in_for_a_copy(width, wanted):
    copies = [ptx.cp_async(width), *[ptx.cp_async_16] * (width == 4)]
    for copy in copies:
        memory = {4096 + 4 * i: 7 + i for i in range(wanted // 4)}  # nothing else is read
        found = Warp({"$0": 64, "$1": 4096, "$2": wanted}, memory).run(copy.before[device.AMPERE])
        assert found.shared == {64 + 4 * i: 7 + i if 4 * i < wanted else 0 for i in range(width)}
    assert ptx.cp_async_commit_group.before == ptx.cp_async_wait_group(0).before == {device.AMPERE: ""}


def test_the_page_computes_what_limits_it():
    page = (Path(__file__).parents[1] / "docs" / "gpus.md").read_text(encoding="utf-8")
    products = [node for node in SMALL.nodes if node.flops]
    between = [node.in_shape for node in products[1:6]] + [products[5].out_shape, products[6].in_shape]
    moved = 2 * 2 * sum(map(math.prod, between))  # 2 bytes each, written and read
    rows = [
        ("l21: tensor cores, fp16", 65e12, "65 TFLOP/s", limits.flops("l21"), f"{limits.flops('l21') / 1e9:.2f} GFLOP"),
        (
            "l21: memory, each kernel's features read and written once",
            320e9,
            "320 GB/s",
            moved,
            f"{moved / 1e6:.2f} MB",
        ),
        ("l9: float32", 8.1e12, "8.1 TFLOP/s", limits.flops("l9"), f"{limits.flops('l9') / 1e9:.2f} GFLOP"),
    ]
    for name, rate, said, each, of_each in rows:
        most = rate / each
        digits = 10 ** (len(str(int(most))) - 2)
        assert f"| {name} | {said} | {of_each} | {math.ceil(most / digits) * digits:,} |" in page, name
