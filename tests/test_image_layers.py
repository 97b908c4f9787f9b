"""Pixels, pooling and normalisation on features in every precision, as they lie for tensor cores; what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from spaces import Space

from charcnn.config import Config
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import AvgPool2d, Conv2d, GlobalAvgPool2d, LocalResponseNorm, MaxPool2d, Pixels, place, windows
from charcnn.model import network
from charcnn.ops import image_layers, reference
from charcnn.ops.common import features
from charcnn.ops.common.cast import as_float, as_format
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.pixel_tables import exact_tables, pixel_tables
from charcnn.ops.image_layers import VectorizedImageLayer, VectorizedPixels
from charcnn.ops.pixels_to_depth import Blocks

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of NaN, in the simulator

LAYOUTS = [("fp32", False), ("tf32", False), ("fp16x3", False), ("fp16x3", True), ("fp16", False), ("bf16", False)]
UNITS = {"fp32": 2e-7, "tf32": 5e-4, "fp16x3": 5e-7, "fp16": 5e-4, "bf16": 4e-3}
"""Half a unit of the last place, and a few roundings of float32."""

each = pytest.mark.parametrize(
    ("precision", "octets", "channels"),
    [(*layout, channels) for layout in LAYOUTS for channels in (8, 3) if channels == 8 or not layout[1]],
)


def stored(x, precision, octets):
    """x float32 (N, H, W, C) in a format, on the GPU."""
    n, height, width, channels = x.shape
    rows = device.to_device(x.reshape(n * height, width, channels))
    if precision == "fp32":
        made = rows
    elif octets:
        made = encode(Call(None, None, rows.shape, x=rows), rows, width, channels, features.STORED[precision])
    else:
        made = as_format(rows, precision)
    return made.reshape((n, height, width, tuple(made.shape)[-1]))


def values(y, precision, octets):
    """What features are, in float64."""
    if octets:
        parts = y.copy_to_host().astype(np.float64).reshape(*y.shape[:-1], -1, 2, 8)
        joined = parts[..., 0, :] + parts[..., 1, :] / 2048
        return joined.reshape(*joined.shape[:-2], -1)
    if precision in ("fp32", "tf32"):
        return y.copy_to_host().astype(np.float64)
    return as_float(y, precision).copy_to_host().astype(np.float64)


def draw(precision, octets, channels, n=2, height=6, width=7):
    x = np.random.default_rng(0).standard_normal((n, height, width, channels), np.float32)
    x[0, -1, -1, channels // 2], x[-1, 0, 0, 1] = np.nan, -np.inf
    given = stored(x, precision, octets)
    return given, values(given, precision, octets)


def check(layer, given, expected, precision, octets, tolerance=0.0):
    y = layer(given, Space())
    (written,) = layer.writes(given.shape)
    assert (y.shape, y.dtype) == (written.shape, np.dtype(written.dtype))
    np.testing.assert_allclose(values(y, precision, octets), expected, rtol=tolerance, atol=tolerance)


@each
def test_maxima_are_exact_and_nan_wins(precision, octets, channels):
    given, x = draw(precision, octets, channels)
    for moves in ({"kernel_size": 3, "stride": 2}, {"kernel_size": (2, 3), "stride": (1, 3), "padding": (1, 0, 1, 1)}):
        layer = VectorizedImageLayer(MaxPool2d(**moves), precision=precision, octets=octets)
        check(layer, given, reference.maxpool2d_nhwc(x, **moves), precision, octets)


@each
def test_means(precision, octets, channels):
    given, x = draw(precision, octets, channels)
    moves = {"kernel_size": 3, "stride": 2, "padding": 1}
    layer = VectorizedImageLayer(AvgPool2d(**moves), precision=precision, octets=octets)
    check(layer, given, reference.avgpool2d_nhwc(x, **moves), precision, octets, UNITS[precision])
    layer = VectorizedImageLayer(GlobalAvgPool2d(), precision=precision, octets=octets)
    check(layer, given, reference.global_avgpool2d_nhwc(x), precision, octets, UNITS[precision])


@each
@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_local_response_norm(precision, octets, channels, beta):
    given, x = draw(precision, octets, channels, height=2, width=3)
    numbers = {"alpha": 0.7, "beta": beta, "k": 2.0}
    for size in (5, 2):
        layer = VectorizedImageLayer(LocalResponseNorm(size, **numbers), precision=precision, octets=octets)
        expected = reference.local_response_norm_nhwc(x, size, **numbers)
        check(layer, given, expected, precision, octets, UNITS[precision])


def test_local_response_norm_reaches_past_a_vector():
    given, x = draw("fp16", False, 32, n=1, height=1, width=2)
    layer = VectorizedImageLayer(LocalResponseNorm(21, alpha=3.0))
    check(layer, given, reference.local_response_norm_nhwc(x, 21, alpha=3.0), "fp16", False, UNITS["fp16"])


@each
def test_pixels(precision, octets, channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 3 * 4 * 5), dtype=np.uint8)
    tables = pixel_tables((0.5, 0.4, 0.3), (0.2, 0.25, 1.5)).astype(np.float32)
    layer = VectorizedPixels(tables, 4, 5, channels=channels, precision=precision, octets=octets)
    assert layer.nbytes == tables.nbytes
    expected = reference.pixels_nhwc(images, tables, 4, 5, channels=channels)
    check(layer, device.to_device(images), expected, precision, octets, UNITS[precision])


@pytest.mark.parametrize(("precision", "octets"), LAYOUTS)
@pytest.mark.parametrize("blocks", [Blocks((2, 3), (3, 2), (1, 2)), Blocks.whole(4, 5)])
def test_pixels_as_blocks(precision, octets, blocks):
    images = np.random.default_rng(0).integers(0, 256, (2, 3 * 4 * 5), dtype=np.uint8)
    tables = pixel_tables((0.5, 0.4, 0.3), (0.2, 0.25, 1.5)).astype(np.float32)
    (down, across), (height, width), (top, left) = blocks
    room = np.zeros((2, 3, height * down, width * across))
    room[:, :, top : top + 4, left : left + 5] = reference.pixels(images, tables, 4, 5)[
        :, :, : room.shape[2] - top, : room.shape[3] - left
    ]
    parts = room.reshape(2, 3, height, down, width, across).transpose(0, 2, 4, 1, 3, 5)
    expected, area = parts.reshape(2, height, width, -1), 3 * down * across
    for channels in (-(-area // 8) * 8, *(() if octets else (area,))):
        layer = VectorizedPixels(tables, 4, 5, channels=channels, blocks=blocks, precision=precision, octets=octets)
        padded = np.pad(expected, ((0, 0), (0, 0), (0, 0), (0, channels - area)))
        check(layer, device.to_device(images), padded, precision, octets, UNITS[precision])
    few = VectorizedPixels(tables, 4, 5, channels=area - 1, blocks=blocks, precision=precision, octets=octets)
    with pytest.raises(ValueError, match=f"^channels={area - 1}: need at least the {area} of a block"):
        few.writes(images.shape)


def test_pixels_that_one_half_holds():
    mean, std = (0.485, 0.0, 1.0), (0.229, 1.0, 0.5)
    of, expected = exact_tables(mean, std), pixel_tables(mean, std)
    np.testing.assert_array_equal(of.tables[:, :256], of.tables[:, :256].astype(np.float16))
    values = of.factor[:, None] * of.tables.astype(np.float16).astype(np.float64) + of.offset[:, None]
    np.testing.assert_allclose(values[:, :256], expected, atol=1e-14)
    assert (np.abs(values[:, 256]) * std).max() < 6e-8
    assert exact_tables((0.5, -0.1), (1.0, 1.0)) is None
    with pytest.raises(ValueError, match=r"^std=\(0.0,\): need numbers greater than 0"):
        exact_tables((0.5,), (0.0,))


def test_what_lies_beyond_an_image():
    images = np.random.default_rng(0).integers(0, 256, (2, 3 * 4 * 5), dtype=np.uint8)
    tables = np.arange(3 * 257, dtype=np.float32).reshape(3, 257)
    layer = VectorizedPixels(tables, 4, 5, blocks=Blocks((2, 2), (3, 4), (1, 2)), channels=16, precision="fp32")
    room = np.broadcast_to(tables[:, 256, None, None], (2, 3, 6, 8)).copy()
    room[:, :, 1:5, 2:7] = reference.pixels(images, tables[:, :256], 4, 5)
    expected = room.reshape(2, 3, 3, 2, 4, 2).transpose(0, 2, 4, 1, 3, 5).reshape(2, 3, 4, 12)
    got = layer(device.to_device(images), Space()).copy_to_host()
    np.testing.assert_array_equal(got, np.pad(expected, ((0, 0), (0, 0), (0, 0), (0, 4))))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [((11, 11), (4, 4), 2), ((3, 5), (2, 3), (1, 0, 3, 2))])
def test_blocks_are_those_that_a_window_reads(kernel, stride, padding):
    moves = windows.window(26, 31, kernel, stride, padding)
    blocks = Blocks.of(moves, 26, 31)
    reach = [-(-taps // step) for taps, step in zip(kernel, stride, strict=True)]
    assert [count - taps + 1 for count, taps in zip(blocks.counts, reach, strict=True)] == [*moves.out(26, 31)]
    assert (blocks.size, blocks.before) == (stride, (moves.padding[0], moves.padding[2]))


def test_a_block_takes_pixels_by_turns(monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 0)
    images = np.random.default_rng(0).integers(0, 256, (3, 20 * 11), dtype=np.uint8)
    tables = pixel_tables().astype(np.float32)
    layer = VectorizedPixels(tables, 20, 11, channels=8)
    check(
        layer, device.to_device(images), reference.pixels_nhwc(images, tables, 20, 11, channels=8), "fp16", False, 1e-3
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16x3", "bf16"])
def test_arrays_that_start_at_no_multiple_of_16_bytes(precision, monkeypatch):
    given, _ = draw(precision, False, 8)
    layers = [
        VectorizedImageLayer(MaxPool2d(2), precision=precision),
        VectorizedImageLayer(LocalResponseNorm(5), precision=precision),
    ]
    vectors = [layer(given, Space()).copy_to_host() for layer in layers]
    monkeypatch.setattr(device, "address", lambda array: 8)
    for layer, before in zip(layers, vectors, strict=True):
        np.testing.assert_array_equal(layer(given, Space()).copy_to_host(), before)
    octets, _ = draw("fp16x3", True, 8)
    with pytest.raises(ValueError, match=r"^features in octets begin between multiples of 16 bytes"):
        VectorizedImageLayer(MaxPool2d(2), precision="fp16x3", octets=True)(octets, Space())


def test_a_network_begins_as_its_layer_does():
    """The reference's pixels are the layer's, from one table."""
    mean, std = (0.485, 0.456), (0.229, 0.224)
    nodes = place([Pixels(2, 3, 4, mean, std)], (24,))
    images = np.arange(48, dtype=np.uint8).reshape(2, 24) * 5
    expected = (images.reshape(2, 2, 3, 4) / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(network.run(nodes, images, {}), expected, rtol=1e-14)
    tables = pixel_tables(mean, std)
    np.testing.assert_array_equal(network.run(nodes, images, {}), reference.pixels(images, tables, 3, 4))
    assert not any(isinstance(node.layer, Pixels) for node in Config().nodes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pixel_tables((0.5,), (1.0, 2.0)), r"^std=\(1.0, 2.0\): need one a channel, as mean=\(0.5,\) has"),
        (lambda: pixel_tables((), ()), "need one a channel.*and at least one"),
        (lambda: pixel_tables((0.5,), (0.0,)), r"^std=\(0.0,\): need numbers greater than 0"),
        (
            lambda: VectorizedImageLayer(MaxPool2d(2), precision="fp8"),
            "^precision='fp8': need one of fp32, fp16, bf16, tf32, fp16x3",
        ),
        (
            lambda: VectorizedImageLayer(MaxPool2d(3, padding=2)).writes((1, 5, 5, 8)),
            "^padding=2: need at most half of kernel_size",
        ),
        (
            lambda: VectorizedImageLayer(MaxPool2d(2), precision="fp16x3")(stored_as(np.float16, 1, 4, 4, 9), Space()),
            r"^x has shape \(1, 4, 4, 9\): need a multiple of 2 in its last axis",
        ),
        (
            lambda: VectorizedImageLayer(MaxPool2d(2), precision="fp16x3", octets=True)(
                stored_as(np.float16, 1, 4, 4, 8), Space()
            ),
            r"^x has shape \(1, 4, 4, 8\): need a multiple of 16 in its last axis",
        ),
        (
            lambda: VectorizedImageLayer(LocalResponseNorm(5))(stored_as(np.float32, 1, 4, 4, 8), Space()),
            "^x has dtype float32: need float16",
        ),
        (
            lambda: VectorizedPixels(np.zeros((3, 256), np.float32), 4, 4, channels=2).writes((1, 48)),
            "^channels=2: need an int of at least 3",
        ),
        (
            lambda: VectorizedPixels(np.zeros((3, 256), np.float32), 4, 4).writes((1, 47)),
            r"^images has shape \(1, 47\): need \(N, 48\) for 3 channels of 4 x 4 pixels",
        ),
        (
            lambda: VectorizedPixels(np.zeros((3, 255), np.float32), 4, 4).writes((1, 48)),
            r"^tables has shape \(3, 255\): need \(C, 256\)",
        ),
        (
            lambda: VectorizedPixels(np.zeros((49, 256), np.float32), 1, 1)(stored_as(np.uint8, 1, 49), Space()),
            r"^tables has shape \(49, 256\): need at most 48 channels; coalesced has more",
        ),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def stored_as(dtype, *shape):
    return device.to_device(np.zeros(shape, dtype))


def test_a_layer_of_another_kind_and_former_names():
    with pytest.raises(ValueError, match=r"^layer=Conv2d\(.*: need MaxPool2d or AvgPool2d or "):
        VectorizedImageLayer(Conv2d(4, 3))
    with pytest.warns(DeprecationWarning, match=r"VectorizedMaxPool2d is .*\.VectorizedImageLayer now"):
        made = image_layers.VectorizedMaxPool2d
    assert made(3, stride=2, precision="fp32").writes((2, 7, 7, 8)) == [((2, 3, 3, 8), np.float32)]
    with pytest.raises(AttributeError, match="has no attribute 'VectorizedConv2d'"):
        image_layers.VectorizedConv2d  # noqa: B018 - the access is what fails
