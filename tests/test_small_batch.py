"""Layers for a few inputs, and CUDA graphs of them, on a GPU that has what they need."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import quick, runs_here
from numba import cuda
from prepared import of_kind, prepared

from charcnn import catalog
from charcnn.config import SMALL, TINY
from charcnn.gpu import device, graph, ptx
from charcnn.gpu.launch import Call
from charcnn.layers import MaxPool1d
from charcnn.levels import l16
from charcnn.model import network, params
from charcnn.ops import reference
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.linear.small_batch import SmallBatchMlp
from charcnn.ops.token_conv1d.layers import ALONE

pytestmark = pytest.mark.skipif(not runs_here(catalog.level("l16")), reason="needs a GPU of compute capability 9.0")


def rounded(values, precision):
    """An array of 16 bits, and what it holds."""
    values = values.astype(np.float32)
    if precision == "fp16":
        values = values.astype(np.float16)
        return values, values.astype(np.float64)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def poisoned(shape, dtype):
    """A device array of NaN, in any of the formats."""
    size = np.dtype(dtype).itemsize
    return device.to_device(np.full(shape, np.uint32(0x7FFF7FFF) if size == 4 else 0x7FFF, f"u{size}")).view(dtype)


def numbers(y, precision):
    y = y.copy_to_host()
    return y.astype(np.float64) if precision == "fp16" else (y.astype(np.uint32) << 16).view(np.float32)


def error(y, expected):
    return np.linalg.norm(y - expected) / np.linalg.norm(expected)


def merged(partial_moments):
    """Mean and variance of each input, from partial moments."""
    mean, squares, count = np.moveaxis(partial_moments.copy_to_host().astype(np.float64)[..., :3], 2, 0)
    whole = (mean * count).sum(1) / count.sum(1)
    return np.stack([whole, (squares + count * (mean - whole[:, None]) ** 2).sum(1) / count.sum(1)], 1), count.sum(1)


@quick(lambda precision, n: precision == "fp16" or n == 3)  # bf16 is one word in fp16's kernels
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize(
    ("n", "length", "c_in", "c_out", "taps"),
    [(1, 336, 256, 256, 7), (3, 110, 256, 256, 3), (2, 20, 40, 24, 3), (3, 50, 264, 17, 2), (2, 9, 8, 5, 1)],
)
def test_parts_of_statistics(n, length, c_in, c_out, taps, precision):
    rng = np.random.default_rng(length)
    weight = (rng.standard_normal((taps, c_in, c_out)) / np.sqrt(taps * c_in)).astype(np.float32)
    bias = rng.standard_normal(c_out).astype(np.float32) + 3
    x, exact = rounded(rng.standard_normal((n, length, c_in)), precision)
    expected = reference.conv1d_nlc(exact, weight.astype(np.float64), bias.astype(np.float64))
    conv = of_kind(SmallBatchConv, "stat", weight, bias, precision=precision)
    partial_moments = poisoned(conv.partial_moments_shape(n, length), np.float32)
    y = conv.with_partial_moments(device.to_device(x), partial_moments, out=poisoned(expected.shape, x.dtype))
    assert error(numbers(y, precision), expected) <= HALF_PRECISIONS[precision].tolerance
    stat, count = merged(partial_moments)
    assert np.all(count == expected[0].size)
    assert np.allclose(stat, reference.stat(expected), rtol=HALF_PRECISIONS[precision].tolerance)


@quick(lambda precision, sizes: precision == "fp16" or sizes[0] == 40)
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("sizes", [(8704, 1024, 1024, 4), (40, 24, 8, 3), (272, 1032, 16, 1)])
def test_linear_layers(sizes, precision):
    rng = np.random.default_rng(sizes[0])
    weights = [rng.standard_normal(pair).astype(np.float32) / pair[0] ** 0.5 for pair in pairwise(sizes)]
    biases = [rng.standard_normal(size).astype(np.float32) for size in sizes[1:]]
    layers = SmallBatchMlp(weights, biases, precision=precision)
    for n in (1, 2, 7, 8, 9, 31, 33, 64):
        x, expected = rounded(rng.standard_normal((n, sizes[0])), precision)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            expected = expected @ weight.astype(np.float64) + bias
            expected = np.maximum(expected, 0) if i < 2 else expected
        scratch = poisoned(layers.k_splits_shape(n), np.float32)
        out = layers(device.to_device(x), scratch, out=poisoned(expected.shape, np.float32))
        assert error(out.copy_to_host(), expected) <= HALF_PRECISIONS[precision].tolerance
    with pytest.raises(ValueError, match="need at most 64 rows"):
        layers(device.to_device(np.zeros((65, sizes[0]), x.dtype)), scratch)
    assert layers(device.to_device(x[:0]), scratch).shape == (0, sizes[3])


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="weight has 8 taps: need at most 7"):
        prepared(SmallBatchConv, np.zeros((8, 8, 8), np.float32), np.zeros(8, np.float32))
    weights = np.zeros((3, 8, 8), np.float32), np.zeros(8, np.float32)
    conv = of_kind(SmallBatchConv, "stat", *weights)
    x = device.to_device(np.zeros((2, 9, 8), np.float16))
    with pytest.raises(ValueError, match="pool_size=2: need 3"):
        prepared(SmallBatchConv, *weights, "relu", MaxPool1d(2))
    with pytest.raises(ValueError, match="x has 2 positions"):
        conv.apply(device.to_device(np.zeros((2, 2, 8), np.float16)))
    with pytest.raises(ValueError, match="partial_moments has shape"):
        conv.with_partial_moments(x, device.to_device(np.zeros((2, 2, 4), np.float32)))
    with pytest.raises(ValueError, match=r"weights\[1\] has shape \(12, 8\)"):
        SmallBatchMlp(
            [np.zeros(pair, np.float32) for pair in ((8, 12), (12, 8), (8, 4))],
            [np.zeros(s, np.float32) for s in (12, 8, 4)],
        )


@cuda.jit
def _early_kernel(x, y):
    i = cuda.grid(1)
    ptx.griddepcontrol_launch()
    ptx.griddepcontrol_wait()
    y[i] = x[(i * 7 + 1) % x.size] + np.float32(1)


def test_a_graph_of_kernels_that_begin_early(stream):
    x, y = (device.to_device(np.zeros(132 * 256, np.float32)) for _ in range(2))

    def start(stream):
        call = Call(y, stream, y.shape, x=x)
        for a, b in [(x, y), (y, x)] * 20:
            call.launch(_early_kernel, 132, 256, a, b, early=True)
        return x

    recorded = graph.Graph(start, stream)  # runs it once
    assert recorded.result is x
    for _ in range(10):
        recorded.launch()
    stream.synchronize()
    assert np.all(x.copy_to_host() == 11 * 40)


def test_a_graph_that_cannot_be_recorded_is_an_error(stream):
    with pytest.raises(Exception, match="CAPTURE"):
        graph.Graph(lambda stream: stream.synchronize(), stream)
    assert graph.Graph(lambda stream: 3, stream).result == 3  # and the stream is usable again


def test_a_graph_is_recorded_while_others_use_the_default_stream(stream):
    x, over = device.to_device(np.zeros(64, np.float32)), threading.Event()

    def copies():
        with cuda.gpus[0]:
            while not over.is_set():
                device.to_device(np.zeros(1000, np.float32))

    def start(stream):
        for _ in range(50):
            call = Call(x, stream, x.shape, in_place="x", x=x)
            call.launch(_early_kernel, 1, 64, x, x)

    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(copies)
        try:
            for _ in range(20):
                graph.Graph(start, stream).launch()
        finally:
            over.set()
        copying.result()
    stream.synchronize()


@quick(lambda precision: precision == "fp16")  # test_levels takes the other
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
def test_batches_of_level_16(precision):
    weights = params.init(SMALL, seed=4)
    ids = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (67, SMALL.length), np.uint8)
    ids[::3, 200:] = SMALL.alphabet  # the end of a short text
    expected = network.forward(ids[:9], weights, SMALL)
    run = l16.build(weights, SMALL, batch=67, gpus=[0], precision=precision)
    few, some, more = SPREAD[precision]
    once, edges = {}, (1, ALONE, few, some, more, 64)
    for n in sorted({3, 5, 67, *edges, *(edge + 1 for edge in edges)}):
        once[n] = run.on_device(device.to_device(ids[:n])).copy_to_host()
        assert error(once[n][:9], expected[:n]) <= HALF_PRECISIONS[precision].tolerance
    for n, logits in reversed(once.items()):
        run.on_device(device.to_device(ids[::-1][:n].copy()))
        assert np.array_equal(run.on_device(device.to_device(ids[:n])).copy_to_host(), logits), "bit-equal"
        assert np.array_equal(run._on_gpu[0](ids[:n], again := np.empty_like(logits)) or again, logits)
    for n in range(1, few + 1):  # by the same kernels
        same = once[ALONE if n <= ALONE else few]
        assert np.array_equal(run.on_device(device.to_device(ids[:n])).copy_to_host(), same[:n])


def test_graphs_kept_are_bounded():
    config = replace(TINY, channels=8, units=8)
    weights = params.init(config, seed=0)
    run = l16.build(weights, config, batch=140, gpus=[0])
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (140, config.length), np.uint8)
    expected = network.forward(ids, weights, config)
    for n in range(140, 64, -1):
        logits = run.on_device(device.to_device(ids[:n])).copy_to_host()
        assert error(logits, expected[:n]) <= HALF_PRECISIONS["fp16"].tolerance
    assert sorted(run._on_gpu[0]._graphs) == [*range(72, 129, 8), 140]


def test_more_classes_than_the_last_layer_has_threads():
    weights = [np.zeros((8, units), np.float32) for units in (8, 8, 257)]
    with pytest.raises(ValueError, match="at most 256 outputs"):
        SmallBatchMlp(weights, [np.zeros(weight.shape[1], np.float32) for weight in weights])
