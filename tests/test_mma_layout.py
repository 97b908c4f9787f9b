"""Features as tensor cores take them: formats, how close they come, and who writes them."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.ops import reference
from charcnn.ops.common.mma_layout import OCTET, WIDE, encode, together
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.layernorm.relu_maxpool1d_nlc_precisions import encoded_maxima
from charcnn.ops.token_conv1d.weights import TokenConvWeights


def decoded(array, precision):
    """Features of any format in float64."""
    of = TENSOR_PRECISIONS[precision]
    array = np.ascontiguousarray(array)
    if of.ptx_type == "e4m3":
        return E4M3[array]
    if of.terms == 1:
        return (array.astype(np.uint32) << 16).view(np.float32) if of.ptx_type == "bf16" else array.astype(np.float64)
    halves = array.reshape(*array.shape[:-1], -1, 2, OCTET).astype(np.float64)
    return (halves[..., 0, :] + halves[..., 1, :] / ptx.LOW_SCALE).reshape(*array.shape[:-1], -1)


def encoded(x, length, channels, precision):
    call = Call(None, None, (0,), x=x)
    y = encode(call, call.inputs[0], length, channels, TENSOR_PRECISIONS[precision])
    return y.copy_to_host()


def spread(*shape):
    """Normal numbers of magnitudes that differ by 2^12."""
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 5, shape))).astype(np.float32)


def test_formats():
    assert set(TENSOR_PRECISIONS) == {*HALF_PRECISIONS, *WIDE, "fp8"}
    assert [of.size for of in TENSOR_PRECISIONS.values()] == [2, 2, 4, 4, 1]
    assert [together(of) for of in TENSOR_PRECISIONS.values()] == [8, 8, 8, 8, 16]
    assert [of.capability for of in TENSOR_PRECISIONS.values()] == [(7, 5), *[(8, 0)] * 3, (8, 9)]


@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
def test_encode(precision):
    x = spread(2, 3, 11)
    y = encoded(x, 4, 16, precision)
    assert y.shape == (2, 4, 16 * TENSOR_PRECISIONS[precision].terms)
    assert y.dtype == TENSOR_PRECISIONS[precision].dtype
    y = decoded(y, precision)
    bits = {"fp16": 11, "bf16": 8, "tf32": 11, "fp16x3": 22, "fp8": 4}[precision]
    tiny = 2.0**-10 if precision == "fp8" else 0
    assert (abs(y[:, :3, :11] - x) <= np.maximum(2.0**-bits * abs(x), tiny)).all()
    assert not y[:, 3:].any()
    assert not y[:, :, 11:].any()


def test_split_of_what_half_precision_holds_no_digits_of():
    # Below 2^-14 the high half loses digits to the low one, which is 2^11 times as large; nothing is lost before 2^-24.
    x = np.float32(1 + 2**-12) * np.exp2(np.arange(-24, 16)).astype(np.float32).reshape(1, 5, OCTET)
    error = abs(decoded(encoded(x, 5, OCTET, "fp16x3"), "fp16x3") - x)
    assert (error <= np.maximum(2.0**-22 * x, 2.0**-36)).all()
    zeros = np.array([0.0, -0.0, 2.0**-37, -(2.0**-149), 2.0**-40, 0, 0, 0], np.float32).reshape(1, 1, OCTET)
    assert not decoded(encoded(zeros, 1, OCTET, "fp16x3"), "fp16x3").any()


def test_split_of_what_is_not_finite():
    x = np.array([np.inf, -np.inf, np.nan, 7e4, -7e4, 65504, -65504, 1], np.float32).reshape(1, 1, OCTET)
    words = encoded(x, 1, OCTET, "fp16x3").reshape(2, OCTET)
    assert np.isfinite(words[0]).all(), "times a small weight of either sign it would be NaN, or infinite"
    np.testing.assert_array_equal(words[1], [np.inf, -np.inf, np.nan, np.inf, -np.inf, 0, 0, 0])


def test_tf32_of_what_is_not_finite():
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -1e-40, 0, -0.0, 1], np.float32).reshape(1, 1, OCTET)
    y = encoded(x, 1, OCTET, "tf32")
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(x))
    np.testing.assert_array_equal(y[np.isinf(x)], x[np.isinf(x)])
    assert not (y.view(np.uint32)[np.isfinite(y)] & 0x1FFF).any()


BLOCK = {"n": 3, "length": 19, "kernel_size": 3, "depth": 4, "channels": 16, "pool_size": 3}


def block_1(layernorm):
    rng = np.random.default_rng(0)
    depth, channels, length_out = BLOCK["depth"], BLOCK["channels"], BLOCK["length"] - BLOCK["kernel_size"] + 1
    ids = rng.integers(0, depth + 1, (BLOCK["n"], BLOCK["length"]), np.uint8)
    weight = rng.standard_normal((BLOCK["kernel_size"], depth, channels), np.float32)
    bias = rng.standard_normal(channels, np.float32)
    affine = [rng.standard_normal((length_out, channels), np.float32) for _ in range(2)] if layernorm else []
    return ids, weight, bias, *affine


@pytest.mark.parametrize("precision", WIDE)
def test_block_1(precision):
    tolerance = TENSOR_PRECISIONS[precision].tolerance
    ids, weight, bias = block_1(False)
    exact = [array.astype(np.float64) for array in (weight, bias)]
    y = TokenConvWeights(weight, bias, precision=precision, octets=True).relu_maxpool1d(ids, 3)
    expected = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact, 3)
    assert y.dtype == TENSOR_PRECISIONS[precision].dtype
    assert np.linalg.norm(decoded(y, precision) - expected) <= tolerance * np.linalg.norm(expected)

    ids, weight, bias, gamma, beta = block_1(True)
    exact = [array.astype(np.float64) for array in (weight, bias, gamma, beta)]
    stat = reference.one_hot_conv1d_stat_nlc(ids, *exact[:2])
    block = TokenConvWeights(weight, bias, gamma, beta, precision=precision, octets=True)
    out = np.full_like(y, 1)
    assert block.layernorm_relu_maxpool1d(ids, stat, 3, out=out) is out
    expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, stat, *exact, 3)
    assert np.linalg.norm(decoded(out, precision) - expected) <= tolerance * np.linalg.norm(expected)


def test_block_1_refuses():
    _, weight, bias, gamma, _ = block_1(True)
    with pytest.raises(ValueError, match=r"C_out=15: need a multiple of 8"):
        TokenConvWeights(weight[..., :15].copy(), bias[:15].copy(), octets=True)
    with pytest.raises(ValueError, match=r"^beta has shape"):
        TokenConvWeights(weight, bias, gamma, gamma[1:], precision="tf32")
    ids = block_1(False)[0]
    with pytest.raises(ValueError, match="gamma is None"):
        TokenConvWeights(weight, bias, precision="tf32").layernorm_relu_maxpool1d(ids, np.ones((3, 2)), 3)


@pytest.mark.parametrize("precision", WIDE)
def test_encoded_maxima(precision, monkeypatch):
    x, gamma, beta = spread(9, 7, 264), spread(7, 264), spread(7, 264)  # more channels than a block has threads
    stat = reference.stat(x.astype(np.float64))
    expected = reference.layernorm_relu_maxpool1d_nlc(
        x.astype(np.float64), stat, gamma.astype(np.float64), beta.astype(np.float64), 3
    )
    y = encoded_maxima(x, stat, gamma, beta, 3, precision=precision)
    error = np.linalg.norm(decoded(y, precision) - expected)
    assert error <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(expected)
    with monkeypatch.context() as patch:
        patch.setattr(device, "address", lambda array: 8)  # then a thread writes one channel, not eight
        np.testing.assert_array_equal(encoded_maxima(x, stat, gamma, beta, 3, precision=precision), y)
    with pytest.raises(ValueError, match=r"^precision='bf16': need one of tf32, fp16x3$"):
        encoded_maxima(x, stat, gamma, beta, 3, precision="bf16")
    odd = [np.ascontiguousarray(array[..., :23]) for array in (x, gamma, beta)]
    with pytest.raises(ValueError, match="a multiple of 8 channels"):
        encoded_maxima(odd[0], stat, *odd[1:], 3, precision=precision)
