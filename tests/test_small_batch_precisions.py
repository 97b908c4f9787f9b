"""Layers for a few inputs in every precision: in emulation at tiny sizes, and on a GPU at the network's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import quick
from prepared import of_kind, prepared
from small_batch_cases import drawn, near, numbers, on_a_gpu, poisoned, small_batch_machine, stored
from spaces import Space

from charcnn.config import SMALL, TINY
from charcnn.gpu import device, emulator
from charcnn.gpu.launch import Call
from charcnn.layers import MaxPool1d
from charcnn.levels import l16, l17, l19, l21
from charcnn.model import network, params
from charcnn.ops import reference
from charcnn.ops.common.layer import flat
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.layernorm.layers import small_batch_block
from charcnn.ops.layernorm.small_batch import affine, between, normalised
from charcnn.ops.linear.small_batch import SmallBatchMlp
from charcnn.ops.token_conv1d.layers import ALONE
from charcnn.runtime.sequence import Weights

machine = small_batch_machine
OTHERS = [name for name in TENSOR_PRECISIONS if name not in HALF_PRECISIONS]
"""Of 16 bits that are a number each, test_small_batch.py has what runs on a GPU."""


def merged(partial_moments):
    """Mean and variance of each input, from partial moments."""
    mean, squares, count = np.moveaxis(partial_moments.copy_to_host().astype(np.float64)[..., :3], 2, 0)
    whole = (mean * count).sum(1) / count.sum(1)
    return np.stack([whole, (squares + count * (mean - whole[:, None]) ** 2).sum(1) / count.sum(1)], 1)


def check_convolution(n, length, c_in, c_out, taps, precision, methods):
    of, (rng, weight, bias) = TENSOR_PRECISIONS[precision], drawn(length, c_in, c_out, taps)
    x, exact = stored(rng.standard_normal((n, length, c_in)), precision)
    exact_arguments = exact, weight.astype(np.float64), bias.astype(np.float64)
    want = reference.conv1d_nlc(*exact_arguments)
    results = {
        "conv1d": want,
        "conv1d_relu": np.maximum(want, 0),
        "conv1d_relu_maxpool1d": reference.conv1d_relu_maxpool1d_nlc(*exact_arguments, 3)
        if want.shape[1] >= 3
        else None,
    }
    for method in methods:
        expected = results[method]
        out = poisoned((*expected.shape[:2], of.terms * c_out), of.dtype)
        pool = MaxPool1d(3) if "pool" in method else None
        conv = prepared(SmallBatchConv, weight, bias, "relu" if "relu" in method else "", pool, precision=precision)
        near(numbers(conv.apply(x, out=out), of), expected, of.tolerance)
    floats = prepared(SmallBatchConv, weight, bias, precision=precision, results=FP32.name)
    near(floats.apply(x, out=poisoned(want.shape, np.float32)).copy_to_host(), want, of.tolerance)


@quick(lambda: False, everywhere=False)  # the network's sizes have it
@quick(lambda precision, taps: ([*TENSOR_PRECISIONS].index(precision) + taps) % 3 == 0)
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
@pytest.mark.parametrize(
    ("n", "length", "c_in", "c_out", "taps", "method"),
    [(1, 10, 80, 8, 3, "conv1d_relu"), (2, 12, 16, 24, 2, "conv1d_relu_maxpool1d"), (1, 9, 32, 16, 7, "conv1d")],
)
def test_convolutions(n, length, c_in, c_out, taps, method, precision, machine):
    check_convolution(n, length, c_in, c_out, taps, precision, [method])


@on_a_gpu
@quick(lambda precision, taps: taps == 7)
@pytest.mark.parametrize("precision", OTHERS)
@pytest.mark.parametrize(
    ("n", "length", "c_in", "c_out", "taps"),
    [(1, 336, 256, 256, 7), (3, 110, 256, 256, 3), (2, 20, 48, 24, 3), (3, 50, 272, 17, 2), (2, 9, 16, 5, 1)],
)
def test_convolutions_of_the_network(n, length, c_in, c_out, taps, precision):
    methods = ["conv1d", "conv1d_relu", "conv1d_relu_maxpool1d"]
    check_convolution(n, length, c_in, c_out, taps, precision, methods)


def check_statistics(n, length, c_in, c_out, taps, precision, wide=False):
    of, (rng, weight, bias) = TENSOR_PRECISIONS[precision], drawn(length, c_in, c_out, taps)
    bias, given = bias + 3, between(of, wide)
    x, exact = stored(rng.standard_normal((n, length, c_in)), precision)
    want = reference.conv1d_nlc(exact, weight.astype(np.float64), bias.astype(np.float64))
    conv = of_kind(SmallBatchConv, "stat", weight, bias, precision=precision, results=given.name)
    partial_moments = poisoned(conv.partial_moments_shape(n, length), np.float32)
    y = conv.with_partial_moments(x, partial_moments, out=poisoned(want.shape, given.dtype))
    near(numbers(y, given), want, of.tolerance)
    assert np.allclose(merged(partial_moments), reference.stat(want), rtol=of.tolerance)
    gamma, beta = (rng.standard_normal(want.shape[1:]).astype(np.float32) for _ in range(2))
    pooled = reference.layernorm_relu_maxpool1d_nlc(want, reference.stat(want), gamma, beta, 3, eps=0.5)
    on_gpu = affine(gamma, beta, wide=given is FP32)
    for rows in (False, True):
        shape = (n, 1, of.terms * pooled[0].size) if rows else (*pooled.shape[:2], of.terms * c_out)
        out = poisoned(shape, of.dtype)
        normalised(y, partial_moments, *on_gpu, 3, precision=precision, rows=rows, wide=wide, eps=0.5, out=out)
        near(numbers(out, of).reshape(pooled.shape), pooled, of.tolerance)


def parts_of_rows(values, part):
    """The parts of `common.moments`: a first value, the mean less it, squared deviations."""
    n, length, channels = values.shape
    found = [values[..., i : i + part] for i in range(0, channels, part)]
    shift = [one[..., 0].astype(np.float32).astype(np.float64) for one in found]
    moments = [
        (first, one.mean(-1) - first, ((one - one.mean(-1, keepdims=True)) ** 2).sum(-1))
        for one, first in zip(found, shift, strict=True)
    ]
    return np.stack([np.stack(one, -1) for one in moments], 2).reshape(n, length * len(found), 3).astype(np.float32)


def check_parts_of_rows(n, length, channels, part, precision, mean=3.0, wide=False):
    """Moments of parts of rows, as `WgmmaConv` gives them: of values whose mean is far from zero, too."""
    of, rng = TENSOR_PRECISIONS[precision], np.random.default_rng(length)
    given = between(of, wide)
    x = (rng.standard_normal((n, length, channels)) + mean).astype(np.float32)
    x, exact = (device.to_device(x), x.astype(np.float64)) if given is FP32 else stored(x, given.name)
    gamma, beta = (rng.standard_normal((length, channels)).astype(np.float32) for _ in range(2))
    want = reference.layernorm_relu_maxpool1d_nlc(exact, reference.stat(exact), gamma, beta, 3, eps=0.5)
    partial_moments = device.to_device(parts_of_rows(exact, part))
    for rows in (False, True):
        shape = (n, 1, of.terms * want[0].size) if rows else (*want.shape[:2], of.terms * channels)
        more = {"precision": precision, "rows": rows, "part": part, "eps": 0.5, "out": poisoned(shape, of.dtype)}
        out = normalised(x, partial_moments, *affine(gamma, beta, wide=given is FP32), 3, wide=wide, **more)
        near(numbers(out, of).reshape(want.shape), want, TENSOR_PRECISIONS["tf32"].tolerance if wide else of.tolerance)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp16x3"])
def test_parts_of_rows(precision, machine):
    check_parts_of_rows(2, 7, 40, 16, precision, mean=1000 if precision == "fp16x3" else 3.0)


def test_fp16_from_float32(machine):
    """What is far from zero keeps its digits: a mean of a thousand deviations."""
    check_parts_of_rows(2, 7, 40, 16, "fp16", mean=1000, wide=True)
    check_statistics(1, 9, 16, 24, 3, "fp16", wide=True)


@on_a_gpu
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp16x3"])
def test_parts_of_rows_of_the_network(precision):
    check_parts_of_rows(3, 102, 256, 128 if precision == "fp16x3" else 256, precision)
    check_parts_of_rows(33, 31, 264, 256, precision)
    if precision == "fp16":
        check_parts_of_rows(3, 102, 256, 128, precision, mean=1000, wide=True)
        check_statistics(3, 104, 256, 256, 3, precision, wide=True)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
@pytest.mark.parametrize("place", [0, 6])  # in a window, and behind the last one
def test_infinities_make_their_input_nan(precision, place, machine):
    given, x = between(TENSOR_PRECISIONS[precision]), np.random.default_rng(0).standard_normal((2, 7, 16))
    x[1, place, 3] = np.inf
    with np.errstate(invalid="ignore"):
        partial_moments = device.to_device(parts_of_rows(x, 16))
    y = device.to_device(x.astype(np.float32)) if given is FP32 else stored(x, given.name)[0]
    pair = affine(np.ones((7, 16), np.float32), np.zeros((7, 16), np.float32), wide=given is FP32)
    out = numbers(normalised(y, partial_moments, *pair, 3, precision=precision, part=16), TENSOR_PRECISIONS[precision])
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[0]).all()


def test_parts_that_do_not_fit(machine):
    x, pair = device.to_device(np.zeros((2, 7, 16), np.float16)), affine(*np.zeros((2, 7, 16), np.float32))
    with pytest.raises(ValueError, match=r"^partial_moments has shape \(2, 7, 4\): need \(2, 14, 3\)"):
        normalised(x, device.to_device(np.zeros((2, 7, 4), np.float32)), *pair, 3, part=8)


@on_a_gpu
@pytest.mark.parametrize("precision", ["fp16", "fp16x3"])
def test_moments_of_rows_are_those_of_the_convolution(precision):
    """What `WgmmaConv` leaves is what LayerNorm merges: two parts a row in fp16x3, the last of 8 channels."""
    of, (rng, weight, bias) = TENSOR_PRECISIONS[precision], drawn(31, 40, 136, 3)
    x, exact = stored(rng.standard_normal((5, 31, 40)), precision)
    given = between(of)
    conv = of_kind(WgmmaConv, "stat", weight, bias, precision=precision, results=given.name)
    want = reference.conv1d_nlc(exact, weight.astype(np.float64), bias.astype(np.float64))
    partial_moments = poisoned(conv.partial_moments_shape(5, 31), np.float32)
    y = conv.with_partial_moments(x, partial_moments, out=poisoned(want.shape, given.dtype))
    gamma, beta = (rng.standard_normal(want.shape[1:]).astype(np.float32) for _ in range(2))
    pooled = reference.layernorm_relu_maxpool1d_nlc(want, reference.stat(want), gamma, beta, 3)
    more = {"precision": precision, "part": conv.part, "out": poisoned((*pooled.shape[:2], of.terms * 136), of.dtype)}
    out = normalised(y, partial_moments, *affine(gamma, beta, wide=given is FP32), 3, **more)
    near(numbers(out, of), pooled, of.tolerance)


@quick(lambda: False, everywhere=False)  # the network's sizes have it
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
def test_statistics(precision, machine):
    check_statistics(2, 9, 16, 16, 3, precision)


@on_a_gpu
@pytest.mark.parametrize("precision", OTHERS)
def test_statistics_of_the_network(precision):
    check_statistics(3, 104, 256, 256, 3, precision)


def check_linear(sizes, inputs, precision):
    rng, of = np.random.default_rng(sizes[0]), TENSOR_PRECISIONS[precision]
    weights = [rng.standard_normal(pair).astype(np.float32) / pair[0] ** 0.5 for pair in pairwise(sizes)]
    biases = [rng.standard_normal(size).astype(np.float32) for size in sizes[1:]]
    layers = SmallBatchMlp(weights, biases, precision=precision)
    for n in inputs:
        x, want = stored(rng.standard_normal((n, sizes[0])), precision)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            want = want @ weight.astype(np.float64) + bias
            want = np.maximum(want, 0) if i < 2 else want
        scratch = poisoned(layers.k_splits_shape(n), np.float32)
        few = 1 + 2 / want.size**0.5  # how far the mean error of so many numbers may be from that of many
        near(layers(x, scratch, out=poisoned(want.shape, np.float32)).copy_to_host(), want, of.tolerance * few)


@quick(lambda: False, everywhere=False)  # the network's sizes have it
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
def test_linear_layers(precision, machine):
    check_linear((336, 32, 16, 3), (3,), precision)


@on_a_gpu
@quick(lambda precision, sizes: sizes[0] == 8704)
@pytest.mark.parametrize("precision", OTHERS)
@pytest.mark.parametrize("sizes", [(8704, 1024, 1024, 4), (48, 32, 16, 3), (272, 1040, 16, 1)])
def test_linear_layers_of_the_network(sizes, precision):
    check_linear(sizes, (1, 2, 7, 8, 9, 31, 33, 64), precision)


@pytest.mark.parametrize("precision", OTHERS)
def test_the_last_block_without_layernorm(precision, machine):
    of, (rng, weight, bias) = TENSOR_PRECISIONS[precision], drawn(11, 16, 16, 3)
    x, exact = stored(rng.standard_normal((2, 11, 16)), precision)
    want = reference.conv1d_relu_maxpool1d_nlc(exact, weight.astype(np.float64), bias.astype(np.float64), 3)
    for layer in small_batch_block(weight, bias, None, 3, precision=precision):
        x = layer(x, Space())
    near(numbers(x, of).reshape(want.shape), want, of.tolerance)


def test_what_does_not_fit(machine):
    weight, bias = np.zeros((3, 8, 8), np.float32), np.zeros(8, np.float32)
    conv = prepared(SmallBatchConv, weight, bias, precision="fp16x3")
    with pytest.raises(ValueError, match="need C_in=8, a multiple of 8 and as many for low terms"):
        conv.apply(device.to_device(np.zeros((2, 9, 8), np.float16)))
    conv = prepared(SmallBatchConv, weight, bias, precision="fp8")
    with pytest.raises(ValueError, match="need C_in=16, a multiple of 16"):
        conv.apply(device.to_device(np.zeros((2, 9, 8), np.uint8)))
    shapes = ((24, 16), (16, 16), (16, 4))
    with pytest.raises(ValueError, match=r"weights\[0\] has shape \(24, 16\): need a multiple of 16 inputs"):
        SmallBatchMlp(
            [np.zeros(shape, np.float32) for shape in shapes], [np.zeros(shape[1], np.float32) for shape in shapes],
            precision="fp8",
        )  # fmt: skip
    shapes = ((16, 16), (16, 16), (16, 4))
    biases = [np.zeros(shape[1], np.float32) for shape in shapes]
    layers = SmallBatchMlp([np.zeros(shape, np.float32) for shape in shapes], biases, precision="fp8", most=2)
    with pytest.raises(ValueError, match=r"x has shape \(3, 16\): need at most 2 rows of 16"):
        layers(device.to_device(np.zeros((3, 16), np.uint8)), device.to_device(np.zeros(256, np.float32)))


def layers_of(level, precision, weights, config, n, monkeypatch):
    def stages(network, p, config, **_):
        return [layer for _, layers in network(Weights(p, config)) for layer in layers]

    monkeypatch.setattr(level, "gpu_pipeline", stages)
    return flat(level.build(weights, config, **({} if level is l17 else {"precision": precision})), n)


MORE = {"more taps": {"length": 204, "kernel_sizes": (7, 9, 3, 3, 3, 3)}, "more classes": {"classes": 300}}
"""Than layers for a few inputs take."""


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the whole level")
@pytest.mark.parametrize(
    ("level", "precision", "more"),
    [
        (l16, "fp16", "more taps"),
        (l16, "tf32", "more classes"),
        (l17, "fp8", "more taps"),
        (l19, "fp16x3", "more classes"),  # its conv2 takes 7 taps alone
        (l21, "bf16", "more taps"),
        (l21, "fp16x3", None),  # whose features lie otherwise
    ],
)
def test_a_few_inputs_have_the_layers_of_many_where_theirs_take_no_such_network(
    level, precision, more, machine, monkeypatch
):
    monkeypatch.setattr(Call, "launch", lambda *_, **__: None)  # nothing is packed: it is asked which layers there are
    config = replace(TINY, channels=64, units=16, **MORE.get(more, {}))
    layers = layers_of(level, precision, params.init(config, seed=3), config, 2, monkeypatch)
    assert not any("SmallBatch" in type(layer).__name__ for layer in layers)


@on_a_gpu
@quick(lambda: False, everywhere=False)  # the simulator sees which layers such a level has
@pytest.mark.parametrize("more", MORE)
def test_a_level_of_more_than_a_few_inputs_layers_take(more):
    config = replace(TINY, channels=16, units=16, **MORE[more])
    weights = params.init(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (5, config.length), np.uint8)
    run = l16.build(weights, config, batch=5, gpus=[0], precision="tf32")
    near(run(ids), network.forward(ids, weights, config), 4 * TENSOR_PRECISIONS["tf32"].tolerance)


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the whole level")
@pytest.mark.exhaustive  # ten seconds each
@pytest.mark.parametrize(
    ("level", "precision"), [(l16, "tf32"), (l16, "fp16x3"), (l17, "fp8"), (l21, "bf16"), (l21, "tf32"), (l21, "fp8")]
)
def test_a_level_s_layers_fit_each_other(level, precision, machine, monkeypatch):
    config = replace(TINY, channels=16, units=16)
    weights = params.init(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (ALONE, config.length), np.uint8)
    x, layers = device.to_device(ids), layers_of(level, precision, weights, config, len(ids), monkeypatch)
    assert all("SmallBatch" in type(layer).__name__ for layer in layers)
    with emulator.checking(seed=7) as findings:
        for layer in layers:
            x = layer(x, Space(layer.scratch(x.shape)))
    assert not findings
    near(x.copy_to_host(), network.forward(ids, weights, config), 4 * TENSOR_PRECISIONS[precision].tolerance)


@on_a_gpu
@quick(lambda level, held_as: level is l19 and held_as != "fp16")  # others' layers; test_levels has TF32 as fp16
@pytest.mark.parametrize(
    ("level", "precision", "held_as"),
    [
        (l16, "tf32", None), (l16, "fp16x3", None), (l17, "fp8", None), (l19, "fp16x3", "fp16x3"), (l19, "fp8", "fp8"),
        (l19, "tf32", "fp16"), (l19, "tf32", "tf32"), (l21, "tf32", None), (l21, "fp8", None),
    ],
)  # fmt: skip
def test_batches_of_levels(level, precision, held_as):
    weights, of = params.init(SMALL, seed=4), TENSOR_PRECISIONS[precision]
    if (precision, held_as) == ("tf32", "tf32"):  # the same network, of numbers that fp16 has few digits of
        for name in ("fc2.weight", "fc2.bias"):
            weights[name] *= np.float32(2.0**-18)
        weights["fc3.weight"] *= np.float32(2.0**18)
    ids = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (67, SMALL.length), np.uint8)
    ids[::3, 200:] = SMALL.alphabet  # the end of a short text
    expected = network.forward(ids[:9], weights, SMALL)
    given = {} if level is l17 else {"precision": precision}
    run = level.build(weights, SMALL, batch=67, gpus=[0], **given)
    assert run.held_as == held_as
    once = {}
    for n in (1, 3, 8, 9, 12, 13, 16, 17, 24, 25, 33, 64, 65, 67):
        once[n] = run.on_device(device.to_device(ids[:n])).copy_to_host()
        near(once[n][:9], expected[:n], 4 * of.tolerance)
    for n, logits in reversed(once.items()):
        run.on_device(device.to_device(ids[::-1][:n].copy()))
        assert np.array_equal(run.on_device(device.to_device(ids[:n])).copy_to_host(), logits), "bit-equal"
