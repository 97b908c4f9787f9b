"""Numbers of tensor cores: rounding, ranges, and the way there and back."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import as_float, as_format, largest, narrow, widen
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS, choose

LEAST = {"fp16": 2.0**-14, "bf16": 2.0**-126, "tf32": 2.0**-126, "fp16x3": 2.0**-3, "fp8": 2.0**-6}
"""Smallest numbers that keep all their bits; of fp16x3, that the low part does."""

MOST = {"fp16": 6e4, "bf16": 1e38, "tf32": 1e38, "fp16x3": 6e4, "fp8": 448}

ULP = {"fp16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0**-11, "fp16x3": 2.0**-22, "fp8": 2.0**-4}
"""Largest relative error of a number between those."""


def sweep(least, most, n=120):
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(np.log(least), np.log(most), n))
    return (size * rng.choice([-1, 1], n)).astype(np.float32)


def there_and_back(x, name, factor=1.0):
    x = x.reshape((1, 1, x.size))
    call = Call(None, None, x.shape, x=x)
    y = narrow(call, call.inputs[0], 1, x.size, TENSOR_PRECISIONS[name], factor)
    if name == "tf32":
        return y.copy_to_host().ravel()
    widen(call, y, call.out, TENSOR_PRECISIONS[name], 1 / factor)
    return call.out.copy_to_host().ravel()


@pytest.mark.parametrize("name", list(TENSOR_PRECISIONS))
def test_relative_error(name):
    x = sweep(LEAST[name], MOST[name])
    y = there_and_back(x, name)
    assert (abs(y - x) <= ULP[name] * abs(x) * (1 + 1e-6)).all()
    assert (y != x).any()  # and it does round
    assert not there_and_back(np.zeros(3, np.float32), name).any()


@pytest.mark.parametrize("name", list(TENSOR_PRECISIONS))
def test_what_is_not_finite(name):
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    y = there_and_back(x, name)
    assert np.isnan(y[0])
    if name == "fp8":  # e4m3 knows no infinity
        np.testing.assert_array_equal(y[1:], [448, -448])
    else:
        np.testing.assert_array_equal(y[1:], x[1:])


def test_high_parts_are_finite():
    x = np.array([np.inf, -np.inf, 1e5, -65_536, 65_535, -65_504, 1], np.float32).reshape((1, 1, 7))
    high, low = as_format(device.to_device(x), "fp16x3").copy_to_host().reshape((2, 7))
    np.testing.assert_array_equal(high, [65_504, -65_504, 65_504, -65_504, 65_504, -65_504, 1])
    np.testing.assert_array_equal(low, [np.inf, -np.inf, np.inf, -np.inf, 31, 0, 0])


@pytest.mark.parametrize(("form", "unit"), [("halves", 1), ("split", ptx.LOW_SCALE)])
@pytest.mark.parametrize("value", [0.1, -3e4, 65_519, 7e4, -7e4, np.inf, -np.inf, np.nan])
@pytest.mark.skipif(not device.SIMULATED, reason="what the simulator stands in for")
def test_two_halves_of_a_number_times_those_of_another(form, unit, value):
    x, w = np.float32(value), np.array([-0.7, 1300, 0, 3.3, np.inf, -np.inf, np.nan, 2048, -0.0], np.float32)
    (h, low), parts = ptx.pack_floats(form)(x, x), [ptx.pack_floats(form)(weight, weight) for weight in w]

    def number(word):
        return np.float64(np.uint16(word & 0xFFFF).view(np.float16))

    if abs(x) > 65_536:
        x = x * np.float32(np.inf)
    for weight, (high, rest) in zip(w, parts, strict=True):
        with np.errstate(invalid="ignore"):
            exact = np.float64(x) * np.float64(weight)
            product = number(low) * number(high) / unit + number(h) * number(rest) / unit + number(h) * number(high)
        np.testing.assert_allclose(product, exact, rtol=2.0**-20)


def test_tf32_rounds_to_nearest_and_ties_away_from_zero():
    x = np.array([1 + 2**-11, -(1 + 2**-11), 1 + 2**-11 - 2**-23, 1 + 3 * 2**-11], np.float32)
    np.testing.assert_array_equal(there_and_back(x, "tf32"), [1 + 2**-10, -(1 + 2**-10), 1, 1 + 2**-9])


def test_e4m3_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    mine = np.array([ptx.simulated.float_of_e4m3(bits) for bits in range(256)])
    np.testing.assert_array_equal(mine, every)
    x = np.concatenate([sweep(2.0**-12, 448), every[np.isfinite(every)], [2.0**-10, 3 * 2.0**-10, 17, 18, 19, 20]])
    x = x.astype(np.float32)
    rounded = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(there_and_back(x, "fp8"), rounded)


def test_a_factor_uses_the_range():
    x = sweep(1e-6, 9e-4)
    assert not there_and_back(x, "fp8").any()  # all below what e4m3 knows
    y = there_and_back(x, "fp8", 448 / abs(x).max())
    big = abs(x) > abs(x).max() / 448 * LEAST["fp8"]
    assert (abs(y - x)[big] <= 2.0**-4 * abs(x)[big]).all()


def test_the_greatest_finite_value():
    x = np.array([[1, -7, 3, np.inf, -np.inf, np.nan]], np.float32)
    call = Call(None, None, x.shape, x=x)
    assert largest(call, call.inputs[0]) == 7


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp16x3"])
def test_as_format_and_as_float(name):
    x = sweep(0.1, 100, 24).reshape((2, 3, 4))
    y = as_format(device.to_device(x), name)
    assert y.shape == (2, 3, 4 * TENSOR_PRECISIONS[name].terms)
    np.testing.assert_allclose(as_float(y, name).copy_to_host(), x, rtol=ULP[name])


def test_names():
    assert choose("tf32") is TENSOR_PRECISIONS["tf32"]
    with pytest.raises(ValueError, match=r"^precision='fp4': need one of fp16, bf16, tf32, fp16x3, fp8$"):
        choose("fp4")
    with pytest.raises(ValueError, match=r"^precision='tf32': need one of fp16, bf16$"):
        choose("tf32", HALF_PRECISIONS)
