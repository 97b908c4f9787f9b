"""A linear layer of few outputs: against float64, in every format, and at sizes off every stretch of a warp."""

from __future__ import annotations

import numpy as np
import pytest
from prepared import prepared

from charcnn.gpu import device
from charcnn.layers import Linear, Relu
from charcnn.ops.common.cast import as_float, as_format
from charcnn.ops.linear import few_outputs
from charcnn.ops.linear.few_outputs import TAKEN, FewOutputsLinear

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of NaN and infinities, in the simulator


def drawn(n, c_in, c_out, precision, scale=1.0):
    """Features on the GPU and as float64, weights, biases."""
    rng = np.random.default_rng(0)
    x = as_format(device.to_device(scale * rng.standard_normal((n, 1, c_in), np.float32)), precision)
    exact = as_float(x, precision).copy_to_host().astype(np.float64).reshape(n, c_in)
    return x, exact, *(rng.standard_normal(shape, np.float32) for shape in ((c_in, c_out), c_out))


@pytest.mark.parametrize("precision", TAKEN)
@pytest.mark.parametrize("shape", [(1, 8, 1), (3, 264, 4), (2, 1288, 3), (2, 16, 16), (9, 24, 2), (0, 8, 4)])
def test_edges(shape, precision):
    assert few_outputs.AT_ONCE * few_outputs.LANES * few_outputs.OCTET < 1288
    x, exact, weight, bias = drawn(*shape, precision)
    out = device.to_device(np.full((shape[0], 1, shape[2]), np.nan, np.float32))
    y = prepared(FewOutputsLinear, weight, bias, precision=precision).apply(x, out=out)
    assert y is out
    expected = exact @ weight.astype(np.float64) + bias
    assert np.linalg.norm(y.copy_to_host()[:, 0] - expected) <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("precision", TAKEN)
def test_a_row_does_not_depend_on_how_many_there_are(precision):
    x, _, weight, bias = drawn(9, 264, 2, precision)
    layer = prepared(FewOutputsLinear, weight, bias, precision=precision)
    together = layer.apply(x).copy_to_host()
    for row in (0, 8):
        np.testing.assert_array_equal(layer.apply(x[row : row + 1]).copy_to_host()[0], together[row])


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_small_and_large_values(scale):
    x, exact, weight, bias = drawn(2, 256, 2, "fp16", scale)
    y = prepared(FewOutputsLinear, weight, bias).apply(x).copy_to_host()[:, 0]
    expected = exact @ weight.astype(np.float64) + bias
    assert np.linalg.norm(y - expected) <= 2e-6 * np.linalg.norm(expected)


def test_what_is_not_finite():
    x, exact, weight, bias = drawn(3, 512, 4, "bf16")
    host = x.copy_to_host()
    host[0, 0, 100], host[2, 0, 511] = 0x7F80, 0x7FC0  # an infinity, NaN
    exact[0, 100], exact[2, 511] = np.inf, np.nan
    weight[100, 2] = 0
    y = prepared(FewOutputsLinear, weight, bias, precision="bf16").apply(device.to_device(host)).copy_to_host()[:, 0]
    np.testing.assert_allclose(y, exact @ weight.astype(np.float64) + bias, rtol=1e-4, atol=1e-4)


def test_errors_name_the_argument(monkeypatch):
    weight, bias = np.zeros((16, 4), np.float32), np.zeros(4, np.float32)
    layer = prepared(FewOutputsLinear, weight, bias)
    with pytest.raises(ValueError, match=r"weight has shape .* multiple of 8"):
        prepared(FewOutputsLinear, weight[:9], bias)
    with pytest.raises(ValueError, match="need Linear of 1 to 16 outputs alone"):
        prepared(FewOutputsLinear, np.zeros((16, 17), np.float32), np.zeros(17, np.float32))
    with pytest.raises(ValueError, match="bias"):
        prepared(FewOutputsLinear, weight, bias[:3])
    with pytest.raises(ValueError, match="need Linear of 1 to 16 outputs alone"):
        FewOutputsLinear([Linear(4), Relu()], {"weight": weight, "bias": bias})
    with pytest.raises(ValueError, match="precision"):
        prepared(FewOutputsLinear, weight, bias, precision="tf32")
    with pytest.raises(ValueError, match="x is a ndarray"):
        layer.apply(np.zeros((2, 1, 16), np.float16))
    with pytest.raises(ValueError, match="need C_in=16"):
        layer.apply(device.to_device(np.zeros((2, 1, 8), np.float16)))
    monkeypatch.setattr(device, "address", lambda array: 8)
    with pytest.raises(ValueError, match="x begins 8 bytes"):
        layer.apply(device.to_device(np.zeros((2, 1, 16), np.float16)))


def test_weight_and_bias_as_release_1_took_them():
    x, _, weight, bias = drawn(2, 16, 3, "bf16")
    with pytest.warns(DeprecationWarning, match="^FewOutputsLinear takes a pattern and its weights$"):
        layer = FewOutputsLinear(weight, bias, precision="bf16")
    want = prepared(FewOutputsLinear, weight, bias, precision="bf16").apply(x).copy_to_host()
    np.testing.assert_array_equal(layer.apply(x).copy_to_host(), want)
