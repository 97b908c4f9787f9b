"""LayerNorm, ReLU and pooling from and to precisions: blocks that take many inputs, and where arrays lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from conftest import quick

from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.common.cast import as_float, as_format
from charcnn.ops.layernorm import relu_maxpool1d_nlc_precisions as precisions

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of NaN, in the simulator


@dataclass(frozen=True)
class Drawn:
    """Arguments on the GPU, and what they are in float64."""

    on_gpu: list
    exact: list

    def maxima(self, precision, results=None):
        return precisions.normalised_maxima(*self.on_gpu, 3, precision=precision, results=results).copy_to_host()


def draw(n, length, channels, precision):
    """Features with NaN among them, gamma of either sign."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, length, channels), np.float32)
    gamma, beta = rng.standard_normal((2, length, channels), np.float32)
    x[n // 2, 1, channels // 2] = np.nan
    stat = np.stack([rng.uniform(-1, 1, n), rng.uniform(0.5, 2, n)], 1)
    if precision == "float32":
        formatted, exact = device.to_device(x), (x, stat, gamma, beta)
    else:
        formatted = as_format(device.to_device(x), precision)
        exact = as_float(formatted, precision).copy_to_host(), stat, gamma, beta
    on_gpu = [formatted, *map(device.to_device, (stat, gamma, beta))]
    return Drawn(on_gpu, [array.astype(np.float64) for array in exact])


def decoded(y, results):
    return y if results == "tf32" else as_float(device.to_device(y), results).copy_to_host()


ROUNDED = {"fp16": (6e-4, 1e-6), "tf32": (6e-4, 1e-6), "fp16x3": (1e-6, 1e-6)}
"""Relative and absolute tolerance of results; others have some 4 to 11 bits."""


@pytest.mark.parametrize(
    ("precision", "results"),
    [("fp16", None), ("bf16", None), ("bf16", "fp8"), ("fp8", None), ("float32", "tf32"), ("float32", "fp16x3")],
)
@quick(lambda precision, results, shape: precision == "fp16" or results == "fp16x3" or shape == (7, 7, 8))
@pytest.mark.parametrize("shape", [(7, 7, 8), (6, 6, 3), (1, 3, 16), (precisions.INPUTS + 3, 3, 8)])
def test_inputs_of_a_block_in_turn(precision, results, shape, monkeypatch):
    drawn = draw(*shape, precision)
    apart = drawn.maxima(precision, results)  # a block has one input
    monkeypatch.setattr(device, "multiprocessors", lambda: 0)  # now as many as it may have
    together = drawn.maxima(precision, results)
    np.testing.assert_array_equal(together.view(np.uint8), apart.view(np.uint8))
    expected = reference.layernorm_relu_maxpool1d_nlc(*drawn.exact, 3)
    out = decoded(together, results or precision).reshape(expected.shape)
    relative, absolute = ROUNDED.get(results, (0.07, 0.02))
    np.testing.assert_allclose(out, expected, rtol=relative, atol=absolute)  # NaN where it is


@pytest.mark.parametrize(
    ("precision", "results"), [("bf16", None), ("fp8", None), ("float32", "tf32"), ("float32", "fp16x3")]
)
def test_arrays_that_start_at_no_multiple_of_16_bytes(precision, results, monkeypatch):
    drawn = draw(3, 7, 8, precision)
    vectors = drawn.maxima(precision, results)
    monkeypatch.setattr(device, "address", lambda array: 8)
    np.testing.assert_array_equal(drawn.maxima(precision, results).view(np.uint8), vectors.view(np.uint8))


@pytest.mark.parametrize("results", ["fp16", "tf32", "fp16x3"])
@pytest.mark.parametrize(("n", "kernel_size", "stride"), [(3, 5, None), (3, 2, 3), (3, 3, 1), (0, 3, None)])
def test_windows_from_float32(n, kernel_size, stride, results):
    rng = np.random.default_rng(1)
    x, (gamma, beta) = rng.standard_normal((n, 11, 8), np.float32), rng.standard_normal((2, 11, 8), np.float32)
    stat = np.stack([rng.uniform(-1, 1, n), rng.uniform(0.5, 2, n)], 1)
    exact = reference.layernorm_relu_maxpool1d_nlc(
        *(array.astype(np.float64) for array in (x, stat, gamma, beta)), kernel_size, stride=stride
    )
    on_gpu = map(device.to_device, (x, stat, gamma, beta))
    y = precisions.normalised_maxima(*on_gpu, kernel_size, stride=stride, precision="float32", results=results)
    relative, absolute = ROUNDED[results]
    out = decoded(y.copy_to_host(), results).reshape(exact.shape)
    np.testing.assert_allclose(out, exact, rtol=relative, atol=absolute)


def test_float32_is_no_result():
    with pytest.raises(ValueError, match=r"^precision='float32': need one of tf32, fp16x3, fp16$"):
        draw(1, 3, 8, "float32").maxima("float32")
