"""int8 and bf16 on the CPU: products beside integer and float64 arithmetic, block 1 in integers, level 20."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from conftest import CPU_LEVELS, by_turns
from test_calibrate import draw, error, same, sample

from charcnn import Classifier, catalog
from charcnn.catalog import FLOAT32
from charcnn.classify import engine
from charcnn.config import SMALL, TINY
from charcnn.levels import l11, l20
from charcnn.model import calibrate, params
from charcnn.ops.common import cpu_amx, cpu_dot, cpu_dot_gemm
from charcnn.ops.common.cpu_dot_gemm import DotWeights, narrow, quantised
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.precision import LARGEST_S8, LARGEST_U8
from charcnn.ops.conv1d.cpu_dot import CpuDotConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.token_conv1d.cpu import CpuTokenConvNormReluPool
from charcnn.ops.token_conv1d.cpu_dot import CpuDotTokenConvNormReluPool
from charcnn.text import encodings, texts

WEIGHTS = Path(l20.__file__).parents[1] / "model" / "weights" / "ag_news.safetensors"
WIDE = replace(TINY, channels=16, units=32)
PLAIN = replace(WIDE, length=130, layernorm=False)

each_precision = pytest.mark.parametrize(
    "precision",
    [
        pytest.param(name, marks=pytest.mark.skipif(bool(cpu_dot.missing(name)), reason="this processor cannot run it"))
        for name in cpu_dot.DOT_FORMATS
    ],
)
needs_int8 = pytest.mark.skipif(bool(cpu_dot.missing("int8")), reason="this processor has no dot products of int8")

SIZES = [  # n, length, c_in, c_out, k, pool_size
    (1, 1, 1, 1, 1, 1),  # less than a step, a row and a panel
    (2, 3, 4, 32, 3, 1),  # one row
    (1, 14, 4, 33, 3, 1),  # a whole tile of rows, and one column more than a panel
    (3, 7, 6, 31, 2, 1),  # rows that tiles of four compute twice
    (1, 8, 31, 64, 1, 1),  # a depth that no step ends with
    (2, 50, 16, 40, 7, 3),  # windows, in whole tiles and small ones
    (1, 11, 4, 8, 3, 3),  # positions that no window has
    (5, 260, 8, 64, 3, 1),  # several tasks
    (4, 256, 8, 96, 3, 3),
]

TILED = {  # by the kernel of AMX: a tile's rows are 16, a line 64 bytes
    ("int8", "int8", 3): [
        (1, 14, 6, 17, 2, 3),  # fewer rows than a tile has, a depth within a line, one column more than a tile
        (2, 40, 16, 16, 7, 3),  # positions that no window has, rows that begin in one input and end in the next
        (1, 90, 8, 16, 3, 3),  # four tiles at once, and what is left, some of it computed twice
        (1, 420, 8, 48, 3, 3),  # several tasks
    ],
    ("bf16", "float32", 1): [
        (3, 1, 33, 18, 1, 1),  # fewer rows than a tile has, a depth that ends in a line
        (33, 1, 64, 40, 1, 1),  # two tiles of rows, and a row
        (20, 1, 32, 33, 1, 1),  # rows that are computed twice, columns that end in a tile
    ],
}


def widen(bits):
    """The bits of bf16 -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def features(shape, precision, rng):
    """What a layer reads, and its values."""
    if precision == "int8":
        x = rng.integers(0, LARGEST_U8 + 1, shape, np.uint8)
        return x, x.astype(np.float64)
    x = narrow(rng.standard_normal(shape).astype(np.float32))
    return x, widen(x).astype(np.float64)


def convolved(x, weight, bias, pool_size):
    """In float64, before what is stored is rounded."""
    length = x.shape[1] - weight.shape[2] + 1
    y = sum(x[:, k : k + length] @ weight[..., k].T for k in range(weight.shape[2])) + bias
    kept = length // pool_size
    return y[:, : kept * pool_size].reshape(len(x), kept, pool_size, -1).max(axis=2)


def dot(weight, bias, *, relu=True, pool_size=1, **options):
    """The prepared convolution or linear layer, of PyTorch's weight."""
    return CpuDotConv(
        pattern_of(weight.T, "relu" if relu else "", pool_size), {"weight": weight.T, "bias": bias}, **options
    )


def weights_of(c_out, c_in, k, precision, rng):
    """Drawn weights and bias, and the weights as they are multiplied; sums of u8 reach from below 0 beyond 255."""
    weight, bias = rng.standard_normal((c_out, c_in, k)), rng.standard_normal(c_out).astype(np.float32)
    weight = (weight / np.sqrt(c_in * k)).astype(np.float32)
    if precision == "bf16":
        return weight, bias, widen(narrow(weight)).astype(np.float64)
    numbers, scale = quantised(weight)
    return weight, bias, numbers * scale[:, None, None].astype(np.float64)


@each_precision
@pytest.mark.parametrize("size", SIZES)
def test_products_are_exact_and_what_is_stored_is_rounded_once(size, precision):
    (n, length, c_in, c_out, k, pool_size), rng = size, np.random.default_rng(0)
    x, values = features((n, length, c_in), precision, rng)
    weight, bias, multiplied = weights_of(c_out, c_in, k, precision, rng)
    expected = convolved(values, multiplied, bias, pool_size)
    options = {"precision": precision, "pool_size": pool_size}
    margin = 64
    for relu in (False, True):
        buffer = np.full(expected.size + 2 * margin, np.nan, np.float32)
        out = buffer[margin:-margin].reshape(expected.shape)
        dot(weight, bias, results="float32", relu=relu, **options)(x, out)
        off = np.linalg.norm(out - (expected.clip(0) if relu else expected))
        assert off < FLOAT32 * np.linalg.norm(expected)
        assert np.isnan(buffer[:margin]).all()
    assert np.isnan(buffer[-margin:]).all()
    dtype = cpu_dot.DOT_FORMATS[precision].dtype
    buffer = np.full(expected.size + 2 * margin, 77, dtype)
    stored = buffer[margin:-margin].reshape(expected.shape)
    dot(weight, bias, **options)(x, stored)
    if precision == "bf16":
        np.testing.assert_array_equal(stored, narrow(out))
    else:
        np.testing.assert_array_equal(stored, np.floor(np.minimum(out, 255) + np.float32(0.5)))
    assert (buffer[:margin] == 77).all()
    assert (buffer[-margin:] == 77).all()


@by_turns
@pytest.mark.parametrize("kernel", TILED)
def test_tiles_of_amx_emulated(kernel, monkeypatch):
    precision, result, _ = kernel
    monkeypatch.setattr(cpu_amx, "form", lambda precision: "emulated")
    monkeypatch.setattr(cpu_dot_gemm, "require", cpu_dot.DOT_FORMATS.get)
    rng = np.random.default_rng(0)
    for n, length, c_in, c_out, k, pool in TILED[kernel]:
        x, values = features((n, length, c_in), precision, rng)
        weight, bias, multiplied = weights_of(c_out, c_in, k, precision, rng)
        expected = convolved(values, multiplied, bias, pool).clip(0)
        dtype = np.float32 if result == "float32" else cpu_dot.DOT_FORMATS[precision].dtype
        buffer = np.full(expected.size + 128, 77, dtype)
        out = buffer[64:-64].reshape(expected.shape)
        dot(weight, bias, precision=precision, results=result, pool_size=pool)(x, out)
        off = abs(out - (expected if result == "float32" else np.floor(expected.clip(0, 255) + 0.5)))
        assert off.max() < 1e-5, (n, length, c_in, c_out, k)
        assert (buffer[:64] == 77).all()
        assert (buffer[-64:] == 77).all()


@each_precision
def test_any_number_of_threads_and_any_batch_give_the_same_bits(precision):
    rng = np.random.default_rng(1)
    x, _ = features((7, 60, 12), precision, rng)
    weight, bias, _ = weights_of(70, 12, 3, precision, rng)
    layer, found = dot(weight, bias, precision=precision, results="float32"), []
    for count in (numba.get_num_threads(), 1):
        numba.set_num_threads(count)
        try:
            found.append(layer(x, np.empty((7, 58, 70), np.float32)))
        finally:
            numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    found.append(np.concatenate([layer(part[None], np.empty((1, 58, 70), np.float32)) for part in x]))
    assert all(np.array_equal(one, found[0]) for one in found)


@each_precision
@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_a_linear_layer(n, precision):
    rng = np.random.default_rng(n)
    x, values = features((n, 100), precision, rng)
    weight, bias, multiplied = weights_of(45, 100, 1, precision, rng)
    layer = dot(weight[..., 0], bias, precision=precision, results="float32", relu=False)
    assert error(layer(x, np.empty((n, 45), np.float32)), values @ multiplied[..., 0].T + bias) < FLOAT32


@needs_int8
def test_the_largest_sums_that_int32_holds():
    depth = cpu_dot.DEEPEST
    weight, bias = np.ones((2, depth), np.float32), np.zeros(2, np.float32)
    weight[1] = -1
    x = np.full((1, depth), LARGEST_U8, np.uint8)
    out = np.empty((1, 2), np.float32)
    dot(weight, bias, precision="int8", results="float32", relu=False)(x, out)
    np.testing.assert_allclose(out, [[LARGEST_U8 * depth, -LARGEST_U8 * depth]], rtol=1e-6)
    with pytest.raises(ValueError, match=f"^weight: {depth + 1} terms a sum, of which int32 holds {depth}; use bf16"):
        DotWeights(np.ones((1, 1, depth + 1), np.float32), bias[:1], precision="int8")


def test_quantised_weights_are_whole_steps_of_their_channel():
    weight = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
    weight[2], weight[3] = 0, weight[3] * 1e-20
    numbers, scale = quantised(weight)
    peaks = abs(numbers).max(axis=(1, 2))
    np.testing.assert_array_equal(peaks, [LARGEST_S8, LARGEST_S8, 0, LARGEST_S8, LARGEST_S8])
    assert (abs(numbers * scale[:, None, None] - weight) <= scale[:, None, None] * 0.500001).all()


@each_precision
def test_what_is_not_finite(precision):
    weight, bias = np.ones((4, 4, 1), np.float32), np.zeros(4, np.float32)
    weight[1, 2], bias[3] = np.nan, np.inf
    if precision == "int8":
        with pytest.raises(ValueError, match="weight or bias is not finite: int8 has neither infinities nor NaN"):
            dot(weight, bias, precision=precision)
        return
    out = np.empty((1, 3, 4), np.uint16)
    found = widen(dot(weight, bias, precision=precision)(narrow(np.ones((1, 3, 4))), out))
    assert np.isnan(found[..., 1]).all()
    assert (found[..., 3] == np.inf).all()
    assert (found[..., (0, 2)] == 4).all()
    pooled = dot(weight, bias, precision=precision, pool_size=3)
    assert np.isnan(widen(pooled(narrow(np.ones((1, 3, 4))), np.empty((1, 1, 4), np.uint16)))[..., 1]).all()


def test_a_processor_without_the_instructions_is_refused(monkeypatch):
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma,+avx512f")
    for precision, name in (("int8", "avx512bw, avx512vnni"), ("bf16", "avx512bf16, avx512bw")):
        refused = f"^precision='{precision}': this processor lacks {name}; fp32 runs on any$"
        with pytest.raises(ValueError, match=refused):
            dot(np.ones((1, 4), np.float32), np.zeros(1, np.float32), precision=precision)
        with pytest.raises(ValueError, match=refused):
            l20.build(params.init(TINY), TINY, precision=precision)
        with pytest.raises(ValueError, match=f"no level can run: .* l20 cannot run here: .* lacks {name}"):
            engine.Engine(params.init(TINY), device="cpu", precision=precision)
        assert engine.obstacle(engine.Choice(catalog.level("l20"), precision)) is not None
    assert engine.Engine(params.init(TINY), device="cpu").faster is None
    with pytest.raises(ValueError, match=r"^precision='fp4': need one of int8, bf16$"):
        cpu_dot.require("fp4")


# Block 1.


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("layernorm", [True, False])
def test_block_1_in_integers_is_that_in_float32(layernorm, n):
    config = replace(SMALL, channels=48, length=400)
    p, ids = params.init(config, seed=2), draw(config, n)
    norm = NormReluPool(p["norm1.weight"], p["norm1.bias"], 3) if layernorm else NormReluPool(None, None, 3)
    arrays = p["conv1.weight"], p["conv1.bias"], norm
    made = CpuTokenConvNormReluPool(*arrays, config.length), CpuDotTokenConvNormReluPool(*arrays)
    shape = (n, config.block_lengths[0], config.channels)
    expected, found = (layer(ids, np.empty(shape, np.float32)) for layer in made)
    assert error(found, expected) < 5e-4
    if not cpu_dot.missing("bf16"):  # elsewhere LLVM makes of the rounding a call of a library that is not there
        np.testing.assert_array_equal(made[1](ids, np.empty(shape, np.uint16)), narrow(found))
    np.testing.assert_array_equal(made[1](ids, np.empty(shape, np.uint8)), np.floor(found + np.float32(0.5)))


def test_sums_of_block_1_reach_the_ends_of_int16():
    weight, norm = np.full((2, 3, 5), 7.0, np.float32), NormReluPool(None, None, 1)
    weight[1] = -7
    layer = CpuDotTokenConvNormReluPool(weight, np.array([3, -3], np.float32), norm)
    found = layer(np.zeros((1, 9), np.uint8), np.empty((1, 5, 2), np.float32))
    np.testing.assert_allclose(found, np.broadcast_to([38, 0], found.shape), rtol=1e-4)
    for name in ("weight", "bias", "gamma", "beta"):
        given = {"weight": weight, "bias": np.ones(2), "gamma": np.ones((2, 5)), "beta": np.ones((2, 5))}
        given[name] = given[name] * np.nan
        with pytest.raises(ValueError, match=f"^{name} of block 1 is not finite"):
            CpuDotTokenConvNormReluPool(given["weight"], given["bias"], NormReluPool(given["gamma"], given["beta"], 1))


# Scales, and the level.


@pytest.mark.parametrize("config", [WIDE, PLAIN], ids=["with layernorm", "without"])
@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_features_of_the_calibration_fill_u8(config, scale):
    weights, peaks, ids = params.init(config, seed=1), {}, sample(config)
    for part in ("weight", "bias"):
        weights[f"conv5.{part}"] *= np.float32(scale)
    new = calibrate.rescaled_to_u8(weights, config, ids)
    logits = calibrate.forward(new, config, ids, lambda name, x: peaks.setdefault(name, x.max()) and x)
    assert error(logits, calibrate.forward(weights, config, ids, same)) < 1e-5
    for name in calibrate.LAYERS:
        assert peaks[name] == pytest.approx(LARGEST_U8 / calibrate.HEADROOM_U8, rel=1e-4), name


@each_precision
def test_the_model_that_ships_keeps_its_labels(precision):
    model = params.load(WEIGHTS)
    ids = encodings.encode(texts.sample(model.encoding).texts, model.encoding, model.config.length)
    expected = l11.build(model, model.config)(ids)
    logits = l20.build(model, model.config, precision=precision)(ids)
    assert (logits.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert error(logits, expected) < {"int8": 2e-2, "bf16": 5e-3}[precision]


@needs_int8
def test_other_texts_to_calibrate_with(tmp_path):
    model, file = params.init(WIDE, seed=1), tmp_path / "texts.txt"
    file.write_text("Oil rose.\nStocks fell on Monday.\n")
    ids = draw(WIDE)
    runs = [l20.build(model, WIDE, texts=given)(ids) for given in (None, file)]
    assert not np.array_equal(*runs)
    assert error(*runs) < 0.3


@each_precision
def test_the_classifier_computes_in_it_where_it_is_asked_to(precision):
    model = params.init(TINY, seed=0)
    asked = Classifier(model, encoding="crepe", device="cpu", precision=precision)
    assert (asked.engine.choice.level.name, asked.engine.choice.precision) == ("l20", precision)
    assert asked.engine.faster is None
    assert Classifier(model, encoding="crepe", level="l20").engine.choice.precision == "int8"


@needs_int8
def test_what_is_exact_stays_the_default_and_names_what_is_faster():
    default = engine.Engine(params.init(TINY), device="cpu")
    assert str(default.choice) == f"{CPU_LEVELS[-1].name} (CPU, fp32)"
    assert default.faster.startswith("precision int8 (l20) labels ")


@pytest.mark.skipif(
    "CHARCNN_AG_NEWS" not in os.environ, reason="CHARCNN_AG_NEWS names no folder with AG News' test.csv"
)
@pytest.mark.exhaustive
@each_precision
def test_ag_news(precision):
    model = params.load(WEIGHTS)
    data = texts.read_texts(Path(os.environ["CHARCNN_AG_NEWS"]) / "test.csv", model.encoding)
    ids = encodings.encode(data.texts, model.encoding, model.config.length)
    exact = l11.build(model, model.config)(ids).argmax(axis=1)
    labels = l20.build(model, model.config, precision=precision)(ids).argmax(axis=1)
    assert (labels == exact).mean() >= 0.995
    assert abs((labels == data.labels).mean() - (exact == data.labels).mean()) <= 0.003
