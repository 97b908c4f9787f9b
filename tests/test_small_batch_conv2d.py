"""Convolutions of one image or a few: on a GPU that has what they need, in emulation, and how images are cut up."""

from __future__ import annotations

import numpy as np
import pytest
from alexnet_cases import ALEXNET, POOL
from conftest import quick
from prepared import prepared
from small_gpu import one_multiprocessor

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import MaxPool2d
from charcnn.ops import reference
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.small_batch_images_plan import BLOCK_N, JOINED, SMEM_BYTES, SPLITS, SUMS, best, plans

on_a_gpu = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")
emulated = pytest.mark.skipif(not device.SIMULATED, reason="the simulator alone is emulated")

IMAGES = {
    "padded": ((5, 6, 8), (3, 3, 8, 20), {"padding": 1}),
    "strided, odd borders": ((9, 8, 16), (3, 2, 16, 32), {"stride": (2, 3), "padding": (1, 0, 2, 1)}),
    "dilated, five chunks": ((4, 5, 72), (2, 1, 72, 32), {"dilation": (2, 3), "padding": 1}),
    "groups": ((5, 5, 48), (2, 2, 24, 64), {"groups": 2, "padding": "same"}),
    "pooled": ((7, 9, 24), (3, 3, 24, 16), {"padding": 1, "pool": POOL}),
    "pooled, apart": ((8, 8, 8), (2, 2, 8, 36), {"pool": ((2, 1), (3, 2))}),
    "one row": ((1, 13, 24), (1, 3, 24, 40), {"stride": (1, 2)}),
}


def stored(values, of):
    values = values.astype(np.float32)
    return values.astype(np.float16) if of.dtype == np.float16 else (values.view(np.uint32) >> 16).astype(np.uint16)


def numbers(array, of):
    if of.dtype == np.float16:
        return array.astype(np.float64)
    return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def of_pool(options):
    """The max-pooling that options name."""
    return MaxPool2d(*options["pool"]) if "pool" in options else None


def compare(images, image, filters, options, *, epilogue="relu", precision="fp16", plan=None):
    """Beside the reference; again, and each image alone, the results are the same bits."""
    draw, of = np.random.default_rng(1), HALF_PRECISIONS[precision]
    weight = draw.standard_normal(filters).astype(np.float32) / np.float32(np.prod(filters[:3]) ** 0.5)
    bias = draw.standard_normal(filters[3]).astype(np.float32)
    moves = {name: value for name, value in options.items() if name != "pool"}
    conv = prepared(SmallBatchConv, weight, bias, epilogue, of_pool(options), precision=precision, **moves)
    x = stored(draw.standard_normal((images, *image)), of)
    if plan is not None:
        conv._images._plans[x.shape[1:]] = plan
    want = reference.conv2d_nhwc(numbers(x, of), weight.astype(np.float64), bias.astype(np.float64), **moves)
    want = getattr(reference, epilogue)(want) if epilogue else want
    if "pool" in options:
        size, step = options["pool"]
        want = reference.maxpool2d_nhwc(want, size, stride=step)

    def run(x):
        out = device.to_device(np.full(conv.out_shape(x.shape), 0x7FFF, np.uint16)).view(of.dtype)  # NaN
        return conv.apply(device.to_device(x), out=out).copy_to_host()

    y = run(x)
    assert y.shape == want.shape
    assert np.linalg.norm(numbers(y, of) - want) <= of.tolerance * np.linalg.norm(want)
    if not device.SIMULATED:
        for i in range(images):
            assert np.array_equal(run(x[i : i + 1])[0].view(np.uint16), y[i].view(np.uint16)), "bit-equal"
    return conv


@on_a_gpu
@quick(lambda precision, name: precision == "fp16" or name == "features.8")
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("name", ALEXNET)
def test_convolutions_of_alexnet(name, precision):
    for images in (1, 3):
        compare(images, *ALEXNET[name], precision=precision)


@on_a_gpu
@quick(lambda name: name in ("strided, odd borders", "groups", "pooled, apart"))
@pytest.mark.parametrize("name", IMAGES)
def test_how_windows_move(name):
    for epilogue in ("", "relu", "gelu"):
        compare(2, *IMAGES[name], epilogue=epilogue)


@on_a_gpu
@quick(lambda name, splits, block_n: (name, block_n) == ("features.8", 16))
@pytest.mark.parametrize("block_n", BLOCK_N)
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("name", ["features.3", "features.8", "features.10"])
def test_every_number_of_splits(name, splits, block_n):
    for plan in plans(problem_of(*ALEXNET[name])):
        if (plan.splits, plan.block_n) == (splits, block_n):
            compare(1, *ALEXNET[name], plan=plan)
            break
    else:
        pytest.skip("a block cannot hold that")


@emulated
@pytest.mark.parametrize(
    ("name", "epilogue", "precision"),
    [
        ("padded", "", "fp16"), ("strided, odd borders", "gelu", "fp16"), ("dilated, five chunks", "relu", "bf16"),
        ("groups", "relu", "fp16"), ("pooled", "relu", "fp16"), ("pooled, apart", "relu", "fp16"),
        ("one row", "", "fp16"),
    ],
)  # fmt: skip
def test_in_emulation(name, epilogue, precision, monkeypatch):
    one_multiprocessor(monkeypatch)
    compare(2, *IMAGES[name], epilogue=epilogue, precision=precision)


def problem_of(image, filters, options):
    """Of an image's convolution, by the weights' own plan."""
    zeros = np.zeros(filters, np.float32)
    moves = {name: value for name, value in options.items() if name != "pool"}
    conv = prepared(SmallBatchConv, zeros, zeros[0, 0, 0], "", of_pool(options), **moves)
    return conv.plan((1, *image)).of


def emulate_launches(monkeypatch):
    """Weights are made, and no kernel runs."""
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(Call, "launch", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("filters", "options", "message"),
    [
        ((3, 3, 8, 6), {}, r"C_out=6, groups=1: need a multiple of 4"),
        ((3, 3, 8, 16), {"groups": 2}, r"C_out=16, groups=2: need a multiple of 16 a group"),
        ((3, 3, 4, 32), {"groups": 2}, r"C_in/groups=4: need a multiple of 8"),
        ((3, 3, 8, 16), {"precision": "tf32"}, "precision='tf32'"),
    ],
)
def test_weights_that_do_not_fit(filters, options, message, monkeypatch):
    monkeypatch.setattr(device, "require_hopper", lambda what, emulated=True: None)
    zeros = np.zeros(filters, np.float32)
    with pytest.raises(ValueError, match=message):
        prepared(SmallBatchConv, zeros, zeros[0, 0, 0], **options)


@emulated
def test_images_that_do_not_fit(monkeypatch):
    emulate_launches(monkeypatch)
    conv = prepared(SmallBatchConv, np.zeros((3, 3, 8, 16), np.float32), np.zeros(16, np.float32), "", MaxPool2d(*POOL))
    with pytest.raises(
        ValueError, match=r"x has shape \(1, 9, 20000, 8\): need images of which a block can hold a row"
    ):
        conv.apply(device.to_device(np.zeros((1, 9, 20000, 8), np.float16)))
    with pytest.raises(ValueError, match="need C_in=8"):
        conv.apply(device.to_device(np.zeros((1, 9, 9, 16), np.float16)))
    assert conv.apply(device.to_device(np.zeros((0, 9, 9, 8), np.float16))).shape == (0, 3, 3, 16)


@emulated
def test_what_is_asked_for_ahead(monkeypatch):
    emulate_launches(monkeypatch)
    conv = prepared(SmallBatchConv, np.zeros((3, 3, 8, 16), np.float32), np.zeros(16, np.float32))
    weights, launched = device.to_device(np.zeros(1000, np.uint32)), []
    for begin, size in ((8, 16), (16, 4000), (-16, 16)):
        with pytest.raises(ValueError, match="need a part of 4000 bytes"):
            conv.ask_ahead(weights, begin, size)
    conv.ask_ahead(weights, 32, 3968)
    monkeypatch.setattr(Call, "launch", lambda call, kernel, clusters, threads, *given, **how: launched.append(given))
    conv.apply(device.to_device(np.zeros((1, 9, 9, 8), np.float16)))
    ((*_, ahead, size),) = launched
    blocks = conv.plan((1, 9, 9, 8)).blocks
    assert ahead == device.address(weights) + 32
    assert size % 16 == 0
    assert 3968 - 16 * blocks < size * blocks <= 3968


@emulated
@pytest.mark.parametrize("name", ALEXNET)
def test_how_images_are_cut_up(name, monkeypatch):
    emulate_launches(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    of = problem_of(*ALEXNET[name])
    for plan in plans(of):
        assert plan.smem_bytes <= SMEM_BYTES
        assert plan.m_tiles * 16 * 8 >= plan.sums[0] * plan.sums[1]
        assert plan.m_tiles * plan.block_n // 2 <= SUMS
        assert plan.splits * plan.chunks >= of.chunks > (plan.splits - 1) * plan.chunks
        assert plan.bands * plan.band >= of.out[0] > (plan.bands - 1) * plan.band
        assert of.pool[0] * of.pool[1] * plan.splits <= JOINED
        assert plan.pixel_bytes // 16 % 2 == 1
        assert plan.sum_stride // 8 % 2 == 1
    found = best(of)
    assert found.clocks == min(plan.clocks for plan in plans(of))
    assert found.blocks >= 96, "most of 132 multiprocessors have a part"
    assert found.clocks < 7000, "4 us"


@emulated
@pytest.mark.parametrize(
    ("name", "precision", "block_n", "splits", "band"),
    [
        ("dilated, five chunks", "fp16", 16, 2, 2),  # of the second split, two chunks
        pytest.param("pooled", "bf16", 16, 2, 1, marks=pytest.mark.exhaustive),
        ("groups", "fp16", 32, 2, 3),
    ],
)
def test_splits_and_bands_in_emulation(name, precision, block_n, splits, band, monkeypatch):
    one_multiprocessor(monkeypatch)
    of = problem_of(*IMAGES[name])
    (plan,) = [one for one in plans(of) if (one.block_n, one.splits, one.band) == (block_n, splits, band)]
    assert plan.bands > 1
    compare(1, *IMAGES[name], precision=precision, plan=plan)
