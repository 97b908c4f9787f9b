"""Linear layers whose weights stream through shared memory: on a GPU that has what they need, and in emulation."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from prepared import prepared
from small_gpu import one_multiprocessor
from spaces import Space

from charcnn.gpu import device
from charcnn.layers import Linear
from charcnn.ops import reference
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS
from charcnn.ops.linear import split_k
from charcnn.ops.linear.split_k import SplitKLinear

on_a_gpu = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")
emulated = pytest.mark.skipif(not device.SIMULATED, reason="the simulator alone is emulated")

AFTER = {"": lambda x: x, "relu": reference.relu, "gelu": reference.gelu}


def compare(sizes, float32, epilogue, precision, inputs):
    rng, of = np.random.default_rng(sizes[0]), HALF_PRECISIONS[precision]
    weight = rng.standard_normal(sizes).astype(np.float32) / sizes[0] ** 0.5
    bias = rng.standard_normal(sizes[1]).astype(np.float32)
    layer = prepared(SplitKLinear, weight, bias, epilogue, precision=precision, results="float32" if float32 else None)
    for n in inputs:
        x = as_stored(rng.standard_normal((n, 2, sizes[0] // 2)), of)
        want = AFTER[epilogue](as_numbers(x, of).reshape(n, -1) @ weight.astype(np.float64) + bias)
        out = layer(device.to_device(x), Space()).copy_to_host()
        assert out.shape == (n, 1, sizes[1])
        assert np.linalg.norm((out if float32 else as_numbers(out, of))[:, 0] - want) <= of.tolerance * np.linalg.norm(
            want
        )
    return layer, of


def as_stored(values, of):
    values = values.astype(np.float32)
    return values.astype(np.float16) if of.dtype == np.float16 else (values.view(np.uint32) >> 16).astype(np.uint16)


def as_numbers(stored, of):
    if of.dtype == np.float16:
        return stored.astype(np.float64)
    return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@on_a_gpu
@quick(lambda precision: precision == "fp16")
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("epilogue", ["relu", pytest.param("gelu", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("sizes", "float32"), [((9216, 4096), False), ((4096, 1000), True), ((3104, 24), False)])
def test_a_linear_layer_whose_depth_is_split(sizes, float32, epilogue, precision):
    layer, of = compare(sizes, float32, epilogue, precision, (1, 3, 9, 31, 33, 64))
    with pytest.raises(ValueError, match="need at most 64 inputs"):
        layer(device.to_device(np.zeros((65, sizes[0]), of.dtype)), Space())
    assert layer(device.to_device(np.zeros((0, sizes[0]), of.dtype)), Space()).shape == (0, 1, sizes[1])


@emulated
@pytest.mark.parametrize(
    ("sizes", "float32", "epilogue", "precision", "inputs", "stages"),
    [
        ((1032, 20), False, "relu", "fp16", (3,), 2),  # a ring that goes round
        ((520, 10), True, "", "bf16", (9,), 1),
        ((264, 16), True, "gelu", "fp16", (1,), split_k.STAGES[1]),  # longer than what there is
    ],
)
def test_in_emulation(sizes, float32, epilogue, precision, inputs, stages, monkeypatch):
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(split_k, "STAGES", {1: stages, 2: stages})
    compare(sizes, float32, epilogue, precision, inputs)


def test_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(device, "require_hopper", lambda what, emulated=True: None)
    bias = np.zeros(6, np.float32)
    with pytest.raises(ValueError, match=r"weight has shape \(12, 6\): need C_in a multiple of 8"):
        prepared(SplitKLinear, np.zeros((12, 6), np.float32), bias)
    with pytest.raises(ValueError, match="precision"):
        prepared(SplitKLinear, np.zeros((8, 6), np.float32), bias, precision="tf32")


@emulated
def test_weight_and_bias_as_release_1_took_them(monkeypatch):
    one_multiprocessor(monkeypatch)
    with pytest.warns(DeprecationWarning, match="^SplitKLinear takes a pattern and its weights$"):
        layer = SplitKLinear(np.zeros((8, 6), np.float32), np.zeros(6, np.float32), epilogue="gelu", float32=True)
    assert (layer.product, layer.epilogue, layer.results) == (Linear(6), Epilogue("gelu"), FP32)
