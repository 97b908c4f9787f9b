"""FP8's scales, and the network in FP8 emulated on the CPU: how far its logits may be from float64's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import runs_here
from prepared import of_kind
from test_number_formats import sweep

from charcnn import catalog
from charcnn.config import SMALL, TINY
from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.model import calibrate, network, params
from charcnn.ops import reference
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.layernorm.relu_maxpool1d_nlc_precisions import normalised_maxima
from charcnn.text import encodings, texts

WIDE = replace(TINY, channels=16, units=32)
"""TINY with as many channels as FP8 takes."""

PLAIN = replace(WIDE, length=130, layernorm=False)

EVERY = np.array([ptx.simulated.float_of_e4m3(bits) for bits in range(256)], np.float32)
"""Each e4m3."""

hopper = pytest.mark.skipif(not runs_here(catalog.level("l17")), reason="needs Hopper's tensor cores")


def eighths(x):
    """Rounded to e4m3, as the hardware does: to nearest even, 448 at most, down to steps of 2^-9."""
    size = np.minimum(abs(x), np.float32(448))
    step = np.exp2(np.floor(np.log2(np.maximum(size, np.float32(2**-6)))) - 3)
    return (np.sign(x) * np.rint(size / step) * step).astype(np.float32)


def emulated(weights, config, ids, calibration):
    """Level 17's logits, less the order of its sums and block 1's fp16."""
    new, eps = calibrate.rescaled(weights, config, calibration)
    for name in calibrate.LAYERS:
        weight = new[f"{name}.weight"]
        unit = np.exp2(np.ceil(np.log2(abs(weight).max() / 448)))
        weight[:] = eighths(weight / unit) * unit
    return calibrate.forward(new, config, ids, lambda name, x: eighths(x), eps)


def sample(config, n=40):
    return encodings.encode(texts.sample().texts[:n], "crepe", config.length)


def draw(config, n=6, seed=0):
    return np.random.default_rng(seed).integers(0, config.alphabet + 1, (n, config.length), np.uint8)


def error(y, expected):
    return np.linalg.norm(y - expected) / np.linalg.norm(expected)


def same(name, x):
    return x


def test_eighths_are_those_of_the_instructions():
    x = np.concatenate([sweep(2.0**-12, 500), np.array([0, 2**-10, 3 * 2**-10, 17, 18, 19, 20, 448, 463, 470, 1e9])])
    x = x.astype(np.float32)
    np.testing.assert_array_equal(
        eighths(x), [ptx.simulated.float_of_e4m3(ptx.simulated.e4m3_of(value)) for value in x]
    )
    assert np.isnan(eighths(np.float32(np.nan)))


@pytest.mark.parametrize("config", [WIDE, PLAIN], ids=["with layernorm", "without"])
def test_forward_is_the_network(config):
    weights, ids = params.init(config, seed=1), draw(config)
    read = []
    y = calibrate.forward(weights, config, ids, lambda name, x: read.append(name) or x)
    assert error(y, network.forward(ids, weights, config)) < 2e-6
    normalised = ["norm6"] if config.layernorm else []
    assert read == [*calibrate.LAYERS[:5], *normalised, *calibrate.LAYERS[5:]]


@pytest.mark.parametrize("config", [WIDE, PLAIN], ids=["with layernorm", "without"])
def test_the_same_logits_to_the_last_bit(config):
    weights, ids = params.init(config, seed=1), draw(config)
    before = {name: value.copy() for name, value in weights.items()}
    new, eps = calibrate.rescaled(weights, config, sample(config))
    expected = calibrate.forward(weights, config, ids, same)
    np.testing.assert_array_equal(calibrate.forward(new, config, ids, same, eps), expected)
    for name, value in weights.items():
        np.testing.assert_array_equal(value, before[name])
        assert new[name].dtype == np.float32


@pytest.mark.parametrize("config", [WIDE, PLAIN], ids=["with layernorm", "without"])
@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_features_of_the_calibration_leave_headroom(config, scale):
    weights, peaks = params.init(config, seed=1), {}
    for part in ("weight", "bias"):
        weights[f"conv5.{part}"] *= np.float32(scale)
    new, eps = calibrate.rescaled(weights, config, sample(config))
    calibrate.forward(new, config, sample(config), lambda name, x: peaks.setdefault(name, abs(x).max()) and x, eps)
    for name in (*calibrate.LAYERS, *(["norm6"] if config.layernorm else [])):
        assert 448 / calibrate.HEADROOM / 2 < peaks[name] <= 448 / calibrate.HEADROOM, name


def test_channels_of_unlike_weights_come_to_like_ones():
    weights = params.init(WIDE, seed=1)
    weights["conv3.weight"][::2] *= np.float32(1 / 32)
    new, _ = calibrate.rescaled(weights, WIDE, sample(WIDE))
    size = abs(new["conv3.weight"]).max(axis=(1, 2))
    assert size.max() < 4 * size.min()


def test_channels_without_a_value():
    weights = params.init(WIDE, seed=1)
    for name in ("conv2", "conv4", "fc1"):
        weights[f"{name}.weight"][3:5], weights[f"{name}.bias"][3:5] = 0, 0
    weights["conv5.weight"][:], weights["conv5.bias"][:] = 0, 0
    ids = draw(WIDE)
    new, eps = calibrate.rescaled(weights, WIDE, sample(WIDE))
    expected = calibrate.forward(weights, WIDE, ids, same)
    np.testing.assert_array_equal(calibrate.forward(new, WIDE, ids, same, eps), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_no_scale(value):
    weights = params.init(WIDE, seed=1)
    weights["conv3.bias"][2] = value
    new, eps = calibrate.rescaled(weights, WIDE, sample(WIDE))
    assert all(np.isfinite(array).all() for name, array in new.items() if name != "conv3.bias")
    assert np.isnan(calibrate.forward(new, WIDE, draw(WIDE), same, eps)).all()


@pytest.mark.parametrize("layer", ["conv1", "conv4", "conv6", "fc1"])
def test_features_that_outgrow_float32_have_no_scale(layer):
    weights = params.init(WIDE, seed=1)
    weights[f"{layer}.weight"] = np.copysign(np.float32(3e38), weights[f"{layer}.weight"])
    with pytest.raises(ValueError, match="is not finite in float32: the weights are too large for 8 bits"):
        calibrate.rescaled(weights, WIDE, sample(WIDE))


def test_the_networks_error_in_fp8():
    """What four digits cost: of random weights some tenth of the logits, about the root of eight layers' 3.6 % each."""
    weights, ids = params.init(SMALL, seed=0), sample(SMALL)[::10]
    found = error(emulated(weights, SMALL, ids, sample(SMALL)[::4]), calibrate.forward(weights, SMALL, ids, same))
    assert 0.02 < found < 0.25


def test_beyond_the_headroom_values_are_cut_off():
    """Calibrated with blanks alone, a network whose features are far greater of letters: wrong, but finite."""
    weights, blank = params.init(PLAIN, seed=1), np.full((1, PLAIN.length), PLAIN.alphabet, np.uint8)
    weights["conv1.weight"] *= 64
    expected = calibrate.forward(weights, PLAIN, draw(PLAIN), same)
    y = emulated(weights, PLAIN, draw(PLAIN), blank)
    assert np.isfinite(y).all()
    assert error(y, expected) > 0.5
    assert error(emulated(weights, PLAIN, draw(PLAIN), draw(PLAIN, seed=1)), expected) < 0.5


@pytest.mark.parametrize("channels", [8, 5])
def test_layernorm_between_eighths(channels):
    """From e4m3 to e4m3, with an eps for its unit: what float64 gives of the same numbers, rounded once."""
    rng = np.random.default_rng(0)
    x = rng.permutation(np.flatnonzero(np.isfinite(EVERY) & (abs(EVERY) < 200)))[: 2 * 6 * channels]
    x = x.reshape((2, 6, channels)).astype(np.uint8)
    x[1, 2, 0] = 0x7F  # NaN, in the first window of the second input
    gamma, beta = rng.standard_normal((2, 6, channels), np.float32)
    stat = np.array([[3.0, 900.0], [-2.0, 400.0]])
    arguments = (device.to_device(array) for array in (x, stat, gamma, beta))
    y = normalised_maxima(*arguments, 3, precision="fp8", eps=25.0).copy_to_host()
    exact = (EVERY[x].astype(np.float64), stat, gamma.astype(np.float64), beta.astype(np.float64))
    expected = reference.layernorm_relu_maxpool1d_nlc(*exact, 3, eps=25.0)
    np.testing.assert_array_equal(np.isnan(EVERY[y]), np.isnan(expected))
    assert np.isnan(expected[1, 0, 0])
    rounded, kept = eighths(expected.astype(np.float32)), ~np.isnan(expected)
    np.testing.assert_array_equal(EVERY[y][kept], rounded[kept])


@hopper
@pytest.mark.parametrize("method", ["conv1d_relu", "conv1d_relu_maxpool1d", "conv1d_stat"])
@pytest.mark.parametrize("promoted", [False, True])
def test_products_of_eighths(method, promoted):
    """Sums of so few terms are exact, and each result is rounded once, cut off at 448, or NaN."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (3, 21, 48)).astype(np.float32)
    weight = rng.integers(-2, 3, (4, 48, 264)).astype(np.float32)
    weight[0, 0, 0] = 448  # so that the weights' unit is 1
    bias = rng.integers(-200, 200, 264).astype(np.float32)
    x[1, 6, 5] = np.nan
    call = Call(None, None, x.shape, x=x)
    narrowed = narrow(call, call.inputs[0], 21, 48, TENSOR_PRECISIONS["fp8"])
    kind = {"conv1d_relu": "relu", "conv1d_relu_maxpool1d": "pool", "conv1d_stat": "stat"}[method]
    conv = of_kind(WgmmaConv, kind, weight, bias, precision="fp8", promoted=promoted)
    y = (conv.with_moments if kind == "stat" else conv.apply)(narrowed)
    plain = [reference.conv1d_nlc(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64))]
    if method == "conv1d_stat":
        y, stat = y
        ends = [0, 2]
        np.testing.assert_allclose(stat.copy_to_host()[ends], reference.stat(plain[0])[ends], rtol=1e-5, atol=1e-3)
    else:
        plain.append(reference.relu(plain[-1]))
    if method == "conv1d_relu_maxpool1d":
        plain.append(reference.maxpool1d(plain[-1].transpose(0, 2, 1), 3).transpose(0, 2, 1))
    np.testing.assert_array_equal(EVERY[y.copy_to_host()], eighths(plain[-1].astype(np.float32)))


@hopper
@pytest.mark.exhaustive
@pytest.mark.parametrize("promoted", [False, True])
def test_level_17_is_as_far_off_as_the_emulated_network(promoted):
    """Not by the same: of a sum that is another by its last bit, one in a hundred is rounded the other way."""
    weights, ids = params.init(SMALL, seed=0), sample(SMALL)
    expected = calibrate.forward(weights, SMALL, ids, same)
    predicted = error(emulated(weights, SMALL, ids, ids), expected)
    found = error(catalog.level("l17").module.build(weights, SMALL, batch=25, promoted=promoted)(ids), expected)
    assert 0.7 * predicted < found < 1.4 * predicted


@hopper
def test_level_17_keeps_what_is_no_number_apart():
    weights, ids = params.init(SMALL, seed=0), sample(SMALL)[:4]
    weights["conv1.weight"][0, 0, 0] = np.nan  # of an "a" with six characters behind it
    ids[2] = SMALL.alphabet
    y = catalog.level("l17").module.build(weights, SMALL, batch=4)(ids)
    assert np.isnan(y[[0, 1, 3]]).all()
    assert np.isfinite(y[2]).all()


@hopper
def test_level_17_takes_the_texts_it_is_given(tmp_path):
    weights, ids = params.init(SMALL, seed=0), sample(SMALL)[:4]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(one.decode() for one in texts.sample().texts))
    build = catalog.level("l17").module.build
    np.testing.assert_array_equal(build(weights, SMALL, batch=4, texts=file)(ids), build(weights, SMALL, batch=4)(ids))
    with pytest.raises(ValueError, match=r"channels=8, units=1024.*need multiples of 16"):
        build(params.init(replace(SMALL, channels=8), seed=0), replace(SMALL, channels=8))
