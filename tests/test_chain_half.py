"""Chains of convolutions in half precision: the plan, and the kernel on a GPU and in the emulation of tensor cores."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import half_chain
import numpy as np
import pytest
from conftest import quick
from emulation_hopper import emulate_hopper

from charcnn.config import TINY
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.chain import Conv1d, Relu, Stat, plan
from charcnn.ops.common.precision import HALF_PRECISIONS

on_a_gpu = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")
emulated = pytest.mark.skipif(not device.SIMULATED, reason="the simulator alone is emulated")


def chain(channels, taps, count, length, precision="fp16", stat=True):
    layers = [layer for _ in range(count) for layer in (Conv1d(channels, taps), Relu())][:-1]
    return plan(layers + [Stat()] * stat, in_channels=channels, length=length, precision=precision)


def check(made, n, seed=0):
    rng, of = np.random.default_rng(seed), made.precision
    shape = made.channels, made.channels, made.taps
    weights = [
        rng.standard_normal(shape, np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)
        for _ in range(made.convolutions)
    ]
    biases = [rng.standard_normal(made.channels, np.float32) for _ in weights]
    x = as_stored(rng.standard_normal((n, made.length, made.channels), np.float32), of)
    want = as_numbers(x, of)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        want = reference.conv1d_nlc(want, weight.transpose(2, 1, 0).astype(np.float64), bias.astype(np.float64))
        want = reference.relu(want) if i + 1 < len(weights) else want
    nothing = np.frombuffer(b"\xff" * want.size * 2, of.dtype).reshape(want.shape)  # NaN
    y, stat = device.to_device(nothing), device.to_device(np.full((n, 2), np.nan))
    made.prepare(weights, biases)(device.to_device(x), out=(y, stat) if made.stat else y)
    found = as_numbers(y.copy_to_host(), of)
    assert np.linalg.norm(found - want) <= 2 * of.tolerance * np.linalg.norm(want)  # each convolution rounds
    if made.stat:
        mean, variance = reference.stat(want).T
        np.testing.assert_allclose(stat.copy_to_host()[:, 0], mean, atol=of.tolerance * np.sqrt(variance).max())
        np.testing.assert_allclose(stat.copy_to_host()[:, 1], variance, rtol=4 * of.tolerance)
    return y


def as_stored(values, of):
    return values.astype(np.float16) if of.dtype == np.float16 else (values.view(np.uint32) >> 16).astype(np.uint16)


def as_numbers(stored, of):
    if of.dtype == np.float16:
        return stored.astype(np.float64)
    return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


SIZES = [  # channels, taps, convolutions, positions, inputs
    (256, 3, 4, 110, 5),  # blocks 3 to 6
    (32, 3, 1, 19, 2),
    (64, 5, 3, 116, 3),  # seven tiles of sixteen
    (96, 2, 6, 18, 1),
]


@on_a_gpu
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("stat", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
@quick(lambda sizes, stat, precision: stat == ((SIZES.index(sizes) % 2 == 0) == (precision == "fp16")))
def test_a_chain(sizes, stat, precision):
    *of, n = sizes
    made = chain(*of, precision, stat)
    bits = [check(made, n).copy_to_host() for _ in range(2)]
    np.testing.assert_array_equal(*(array.view(np.uint16) for array in bits))


@emulated
@pytest.mark.parametrize(
    ("sizes", "precision", "stat"),
    [((32, 3, 2, 21, 2), "fp16", True), ((64, 2, 2, 9, 1), "bf16", True), ((32, 1, 1, 5, 1), "fp16", False)],
)
def test_in_emulation(sizes, precision, stat, monkeypatch):
    emulate_hopper(monkeypatch)
    monkeypatch.setattr(device, "require_capability", lambda *_: None)
    *of, n = sizes
    check(chain(*of, precision, stat), n)


def test_a_plan_counts():
    made = chain(256, 3, 4, 110)
    assert made.length_out == 102
    assert made.flops == 2 * (108 + 106 + 104 + 102) * 3 * 256 * 256
    assert made.computed_flops == 2 * 4 * 112 * 3 * 256 * 256
    assert made.weight_bytes == 4 * 3 * 256 * 256 * 2
    assert made.shared_bytes == 114 * 528
    assert "1,572,864 bytes an input" in made.describe()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((48, 3, 2, 20), "in_channels=48: need a multiple of 32, at most 256, in fp16"),
        ((288, 3, 2, 20), "in_channels=288: need a multiple of 32, at most 256"),
        ((32, 3, 2, 115), "length=115: need 5 to 114 positions for 2 convolutions of 3 taps in fp16"),
        ((32, 3, 2, 4), "length=4: need 5 to 114"),
    ],
)
def test_what_does_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        chain(*given)


def test_convolutions_that_differ():
    layers = [Conv1d(32, 3), Relu(), Conv1d(32, 5)]
    with pytest.raises(
        ValueError, match="32 channels and 3 taps, 32 channels and 5 taps on 32 channels: need the same"
    ):
        plan(layers, in_channels=32, length=20, precision="fp16")
    with pytest.raises(ValueError, match="need Relu after each convolution but the last"):
        plan([Conv1d(32, 3), Conv1d(32, 3)], in_channels=32, length=20, precision="bf16")
    with pytest.raises(ValueError, match="precision='tf32': need one of fp32, fp16, bf16"):
        plan(layers, in_channels=32, length=20, precision="tf32")


@pytest.mark.exhaustive
@emulated
def test_the_benchmark_checks_all_ways(monkeypatch):
    emulate_hopper(monkeypatch)
    monkeypatch.setattr(device, "require_capability", lambda *_: None)
    monkeypatch.setattr(device, "has_tensor_cores", lambda hopper=False: not hopper)  # wgmma's tiles take minutes here
    config = replace(TINY, channels=32, length=260)
    monkeypatch.setattr(half_chain, "SMALL", config)
    monkeypatch.setattr(
        half_chain, "LAYERS", [layer for k in config.kernel_sizes[2:] for layer in (Conv1d(32, k), Relu())]
    )
    monkeypatch.setattr(half_chain, "DRAWN", 2)
    monkeypatch.setattr(half_chain.graph, "Graph", lambda start, stream: SimpleNamespace(launch=lambda: start(stream)))
    found = []
    monkeypatch.setattr(half_chain, "by_turns", lambda every: found.extend(every) or [one.row for one in every])
    assert [row["way"] for row in half_chain.measure("bf16", 3)] == ["one kernel", "a kernel each, mma"]
    assert found[0].flop == 2 * 3 * 32 * 32 * 3 * sum(config.conv_lengths[2:])
