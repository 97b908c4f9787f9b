"""The kernel of `mma`: its source in the simulator, with tensor cores in plain Python, at tiles of few warps."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from operator_cases import CASES
from prepared import prepared
from small_gpu import fresh_kernels
from test_mma_layout import decoded
from test_ops import check

from charcnn import catalog
from charcnn.classify import engine
from charcnn.config import Config
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import MaxPool1d
from charcnn.levels import l14
from charcnn.levels.runner import command, options
from charcnn.model import network, params
from charcnn.model.validation import expected as expected_of
from charcnn.model.validation import in_sigmas
from charcnn.ops import reference
from charcnn.ops.common import epilogues
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.mma import kernel, layer
from charcnn.ops.conv1d.mma.config import MmaTile, Stages

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the same by test_ops")

PLAIN, POOLED = MmaTile(64, 128, 32, 64, 3, 1), MmaTile(96, 128, 48, 64, 3, 1)


@pytest.fixture
def machine(monkeypatch):
    """Tensor cores in plain Python, and small tiles."""
    fresh_kernels(monkeypatch)
    kernel.make_kernel.cache_clear()  # of kernels that another machine runs
    monkeypatch.setattr(layer, "PLAIN", (PLAIN,))
    monkeypatch.setattr(layer, "POOLED", (POOLED,))
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    yield
    kernel.make_kernel.cache_clear()


DEEP = {"n": 3, "c_in": 70, "c_out": 16, "length": 29, "k": 3}
"""Two chunks or three; two tiles down."""

BROAD = {"n": 5, "c_in": 5, "c_out": 131, "length": 13, "k": 2}
"""Two tiles across, stored float by float."""

LINEAR = {"n": 2, "c_in": 300, "c_out": 8}
"""Equally many stages of features and of weights."""

EMULATED = {
    "conv1d_stat_nlc_mma_fp16": DEEP,
    "conv1d_stat_nlc_mma_fp16x3": DEEP,
    "conv1d_nlc_mma_bf16": BROAD,
    "conv1d_relu_nlc_mma_fp16x3": BROAD,
    "linear_relu_nlc_mma_fp16": LINEAR,
    "conv1d_stat_nlc_mma_fp8": DEEP,
    "conv1d_relu_nlc_mma_fp8": BROAD,
    "linear_nlc_mma_fp8": LINEAR,
    "linear_gelu_linear_nlc_mma_fp16": {"n": 2, "c_in": 20, "c_mid": 24, "c_out": 8},
}
"""Emulation is slow: each epilogue and precision once, and what differs in how they store."""


def check_variant(name, sizes):
    row = next(row for row in catalog.VARIANTS if row.name == name)
    case = CASES[row.operator].build(sizes, normal=True)
    expected = case.oracle(catalog.operator(row.operator).reference)
    check(row, row.launcher(**case.inputs, **case.options), expected)


@simulated
@pytest.mark.parametrize(("name", "sizes"), EMULATED.items(), ids=EMULATED)
def test_variant(name, sizes, machine):
    check_variant(name, sizes)


def test_launches_ask_for_their_method_and_precision():
    """What a technique prepares and asks for, where a GPU would run it."""
    asked = []

    class Kept:
        def __init__(self, pattern, weights, precision, unit, stream, moments):
            self.asks = epilogues.read(pattern)[1].kind if not moments else "stat"
            asked.append((weights["weight"].shape, precision, unit, stream))

        @staticmethod
        def unit(call, x, precision):
            return 0.5

        def run(self, call, x, y):
            asked.append((self.asks, x.shape, y.shape))

        def stat(self, call, x, y, moments):
            asked.append((self.asks, x.shape, y.shape, moments))

    def compute(call, x, weight, bias, precision, **options):
        asked.append((x.shape, weight.shape, precision, options))

    launch, pooled, stat, linear, two = one_shot.launches(Kept, "said", compute)
    assert launch.__doc__ == linear.__doc__ == "said"
    x, weight = np.zeros((2, 9, 4)), np.zeros((3, 4, 5))
    call = SimpleNamespace(out=np.zeros((2, 7, 5)), moments="m", stream="s")
    once, run = ((3, 4, 5), "bf16", 0.5, "s"), ((2, 9, 4), (2, 7, 5))
    launch(call, x, weight, None, precision="bf16", epilogue="relu")
    assert asked == [once, ("relu", *run)]
    launch.prepare(weight, None, precision="bf16", epilogue="")(call, x)
    assert asked[2:] == [((3, 4, 5), "bf16", 1.0, 0), ("store", *run)]
    launch(call, x, weight, None, 2, 3, 4, precision="fp8", epilogue="tanh")
    moves = {"stride": (1, 2), "padding": (0, 0, 3, 3), "dilation": (1, 4)}
    assert asked[4:] == [((2, 1, 9, 4), (1, 3, 4, 5), "fp8", {"epilogue": "tanh", **moves})]
    with pytest.raises(ValueError, match=r"stride, padding, dilation = \(2, 3, 4\): need 1, 0, 1"):
        launch.prepare(weight, None, 2, 3, 4, precision="fp8", epilogue="tanh")
    pooled(call, x, weight, None, 3, precision="bf16")
    pooled.prepare(weight, None, 3, precision="bf16")(call, x)
    assert asked[5:] == [once, last := ("pool", *run), ((3, 4, 5), "bf16", 1.0, 0), last]
    stat(call, x, weight, None, precision="bf16")
    assert asked[9:] == [once, ("stat", *run, "m")]
    call.out = np.zeros((2, 5))
    linear(call, np.zeros((2, 4)), weight[0], None, precision="fp16", epilogue="relu")
    assert asked[11:] == [((1, 4, 5), "fp16", 0.5, "s"), ("relu", (2, 1, 4), (2, 1, 5))]
    linear.prepare(weight[0], None, precision="fp16", epilogue="relu")(call, np.zeros((2, 4)))
    assert asked[13:] == [((1, 4, 5), "fp16", 1.0, 0), ("relu", (2, 1, 4), (2, 1, 5))]
    call.scratch = lambda shape, dtype: np.zeros(shape, dtype)
    two(call, np.zeros((2, 4)), weight[0], np.zeros(5), np.zeros((5, 5)), None, precision="fp16", epilogue="gelu")
    assert [one[0] for one in asked[15:]] == [(1, 4, 5), "gelu", (1, 5, 5), "store"]
    one_shot.launch_conv2d(compute, "said")(call, x, weight, None, 2, 3, 4, 5, precision="fp16", epilogue="relu")
    moves = {"stride": 2, "padding": 3, "dilation": 4, "groups": 5}
    assert asked[19:] == [((2, 9, 4), (3, 4, 5), "fp16", {"epilogue": "relu", **moves})]


def run(pointwise, pool_size, x, weight, bias, precision, **options):
    """A prepared convolution of float32 features, encoded first."""
    call = Call(None, None, (0,), x=x)
    pool = MaxPool1d(pool_size) if pool_size else None
    made = prepared(layer.MmaConv, weight, bias, pointwise, pool, precision=precision, **options)
    encoded = encode(call, call.inputs[0], x.shape[1], made.width, TENSOR_PRECISIONS[precision])
    return made.apply(encoded)


def close(precision, y, expected):
    return np.linalg.norm(y - expected) <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(expected)


def arrays(n, length, c_in, c_out, k):
    rng = np.random.default_rng(1)
    shapes = (n, length, c_in), (k, c_in, c_out), (c_out,)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@simulated
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
def test_features_to_features(precision, machine):
    x, weight, bias = arrays(2, 11, 20, 40, 2)
    y = run("relu", 3, x, weight, bias, precision).copy_to_host()
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    assert y.dtype == TENSOR_PRECISIONS[precision].dtype
    assert close(precision, decoded(y, precision), reference.conv1d_relu_maxpool1d_nlc(*exact, 3))


@simulated
def test_another_epilogue(machine):
    x, weight, bias = arrays(1, 9, 24, 16, 2)
    y = run("tanh", 0, x, weight, bias, "bf16").copy_to_host()
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    assert close("bf16", decoded(y, "bf16"), np.tanh(reference.conv1d_nlc(*exact)))


@simulated
def test_positions_that_do_not_count(machine):
    x, weight, bias = arrays(2, 11, 8, 8, 2)
    y = run("relu", 3, x, weight, bias, "bf16", length=8).copy_to_host()
    exact = [array.astype(np.float64) for array in (x[:, :8], weight, bias)]
    assert close("bf16", decoded(y, "bf16"), reference.conv1d_relu_maxpool1d_nlc(*exact, 3))


@simulated
@pytest.mark.parametrize("length", [7, 8])
def test_windows_of_inputs_that_are_no_multiple_of_three(length, machine):
    x, weight, bias = arrays(12, length, 8, 8, 3)  # some inputs a tile, and none where all begins
    y = run("relu", 3, x, weight, bias, "fp16", results="float32").copy_to_host()
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    assert close("fp16", y, reference.conv1d_relu_maxpool1d_nlc(*exact, 3))


@simulated
def test_small_and_great_weights(machine):
    x, weight, bias = arrays(1, 9, 24, 16, 2)
    weight *= np.exp2(np.arange(-30, 2, 2)).astype(np.float32)  # column by column
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    for scale in (2.0**-60, 2.0**60):
        bias[:] = 0
        exact[2][:] = 0
        y = run("", 0, x, weight * np.float32(scale), bias, "fp16x3", results="float32").copy_to_host() / scale
        expected = reference.conv1d_nlc(*exact)
        assert close("fp16x3", y, expected)
        for c in range(16):  # a column's own error grows where it is 2^-17 of the greatest weight
            slack = max(1, 2.0 ** (28 - 2 * c - 15))
            assert np.linalg.norm(y[..., c] - expected[..., c]) <= slack * 2e-6 * np.linalg.norm(expected[..., c])


@simulated
def test_what_is_not_finite(machine):
    x, weight, bias = arrays(4, 9, 8, 16, 3)
    x[:, 4, 3] = np.inf, -np.inf, np.nan, 1e5
    exact = [array.astype(np.float64) for array in (x, weight, bias)]
    exact[0][abs(exact[0]) > 65504] *= np.inf
    with np.errstate(invalid="ignore"):
        expected = reference.conv1d_nlc(*exact)
        y = run("", 0, x, weight, bias, "fp16x3", results="float32").copy_to_host()
    np.testing.assert_array_equal(y[~np.isfinite(expected)], expected[~np.isfinite(expected)])
    assert close("fp16x3", y[np.isfinite(expected)], expected[np.isfinite(expected)])


@simulated
def test_refuses(machine):
    x, weight, bias = arrays(1, 9, 8, 12, 3)
    with pytest.raises(ValueError, match=r"C_out=12: need a multiple of 8 where results are not float32"):
        run("", 0, x, weight, bias, "fp16")
    with pytest.raises(ValueError, match=r"pool_size=2: need 3"):
        run("relu", 2, x, weight, bias, "fp16", results="float32")
    with pytest.raises(ValueError, match=r"length=10: need 5 to 9"):
        run("relu", 3, x, weight, bias, "fp16", length=10, results="float32")
    with pytest.raises(ValueError, match=r"^precision='int4': need one of fp16, bf16, tf32, fp16x3, fp8"):
        prepared(layer.MmaConv, weight, bias, precision="int4")
    with pytest.raises(ValueError, match=r"^x has shape \(1, 9, 8\): need C_in=16, a multiple of 16"):
        prepared(layer.MmaConv, weight, bias, precision="fp8", results="float32").apply(device.to_device(x))
    with pytest.raises(ValueError, match=r"x has dtype float32: need float16"):
        prepared(layer.MmaConv, weight, bias, results="float32").apply(device.to_device(x))


@simulated
def test_whole_numbers_are_exact_in_fp8(machine):
    # e4m3 holds them, and float32 their sums, so that nothing is rounded: each number meets the one that it should.
    draw = np.random.default_rng(2)
    x, weight, bias = (draw.integers(-8, 9, shape).astype(np.float32) for shape in ((2, 9, 150), (3, 150, 40), (40,)))
    y = run("", 0, x, weight, bias, "fp8", results="float32").copy_to_host()
    np.testing.assert_array_equal(y, reference.conv1d_nlc(x, weight, bias))


@simulated
def test_fp8_below_its_compute_capability(machine, monkeypatch, ended):
    monkeypatch.setattr(device, "capability", lambda: (8, 6))
    monkeypatch.setattr(device, "has_capability", lambda least: least <= (8, 6))
    config, (_, weight, bias) = Config(length=123, alphabet=9, channels=16, units=16), arrays(1, 9, 16, 32, 3)
    message = r"^precision='fp8': need compute capability 8\.9 or later, this GPU has 8\.6$"
    for one in (weight, weight[None]):
        prepared(layer.MmaConv, one, bias, precision="bf16")
        with pytest.raises(ValueError, match=message):
            prepared(layer.MmaConv, one, bias, precision="fp8")
    with pytest.raises(ValueError, match=message):
        l14.build(params.init(config, seed=3), config, batch=1, streams=1, precision="fp8")
    monkeypatch.setattr(device, "has_tensor_cores", lambda hopper=False, turing=False: not hopper)
    assert engine.obstacle(engine.Choice(catalog.level("l14"), "fp16")) is None
    assert re.match(message, engine.obstacle(engine.Choice(catalog.level("l14"), "fp8")))
    assert [options.serves(catalog.level("l14"), of) for of in (None, "bf16", "fp8")] == [True, True, False]
    done = ended(command.main, l14.build, ["--precision", "fp8"])
    assert (done.returncode, re.fullmatch(f"l14: {message[1:-1]}\n", done.stderr) is not None) == (2, True)


def test_stages_hold_what_is_under_way():
    for taps in range(1, 9):
        for stages in range(2, 6):
            held = Stages.of(MmaTile(48, 128, 48, 64, stages, 1), taps)
            # At any step, chunks from the one that is multiplied to the one of the step that is asked for.
            assert held.a_stages == max((s + stages - 1) // taps - s // taps for s in range(8 * taps)) + 1
            assert held.a_rows >= 48 + taps - 1


@pytest.mark.parametrize("sizes", [(48, 100, 48, 64), (50, 128, 25, 64), (64, 128, 64, 48), (48, 128, 32, 64)])
def test_tiles_that_are_none(sizes):
    with pytest.raises(ValueError, match="need"):
        MmaTile(*sizes, 4, 1)


def test_a_gpu_with_less_shared_memory_gets_a_smaller_tile(monkeypatch):
    for limit, plain, pooled in ((232_448, 256, 192), (166_912, 256, 192), (101_376, 128, 96)):  # 9.0; 8.0; 8.6 and 8.9
        monkeypatch.setattr(device, "shared_limit", lambda limit=limit: limit)
        assert layer.fitting(layer.PLAIN, 7, 256)[0].block_m == plain
        assert layer.fitting(layer.POOLED, 7, 256)[0].block_m == pooled
        assert layer.fitting(layer.PLAIN, 1, 256)
        for taps in (1, 3, 7):  # where products in e4m3 are converted there is room for the tile that suits them
            first = layer.fitting((layer.CONVERTED, *layer.PLAIN), taps, 256)[0]
            assert (first is layer.CONVERTED) == (limit > 101_376)
    with pytest.raises(ValueError, match="300 taps"):
        layer.fitting(layer.PLAIN, 300, 256)


def test_no_tile_reads_columns_that_are_not_laid_out():
    for tiles in (layer.PLAIN, layer.POOLED):
        assert {tile.block_n for tile in layer.fitting(tiles, 3, 256)} == {128, 256}
        assert {tile.block_n for tile in layer.fitting(tiles, 3, 384)} == {128}


@simulated
@pytest.mark.exhaustive
def test_level(machine):
    config = Config(length=123, alphabet=9, channels=8, units=8)
    weights = params.init(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (1, config.length), np.uint8)
    run = l14.build(weights, config, batch=1, streams=1, precision="fp16x3")
    assert close("fp16x3", run(ids), network.forward(ids, weights, config))
    assert run.on_device(device.to_device(ids[:0])).shape == (0, config.classes)
    with pytest.raises(ValueError, match=r"^channels=8, units=8, .*: need multiples of 16 for tensor cores"):
        l14.build(weights, config, precision="fp8")


@simulated
@pytest.mark.exhaustive  # seconds each
@pytest.mark.parametrize("layernorm", [True, False])
def test_level_in_fp8(layernorm, machine):
    config = Config(length=123, alphabet=9, channels=48, units=32, layernorm=layernorm)  # no whole k block
    weights = params.init(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (2, config.length), np.uint8)
    logits = l14.build(weights, config, batch=2, streams=1, precision="fp8")(ids)
    rounding = catalog.level("l14").rounding("fp8")
    assert in_sigmas(logits, *expected_of(ids, weights, config, rounding)).max() <= rounding.bound
