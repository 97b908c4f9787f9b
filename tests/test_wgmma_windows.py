"""Hopper's kernel with windows that move over images: its tiles, TMA's walk in plain Python, and a GPU's."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from numba import cuda
from prepared import prepared
from test_wgmma import machine, simulated  # noqa: F401 - a fixture

from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.layers import windows
from charcnn.ops import conv1d_relu_nlc_wgmma, conv2d_nhwc_wgmma, reference
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.config import Barrier
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.windows import WgmmaWindows

hopper = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")


@pytest.mark.parametrize("name", list(TENSOR_PRECISIONS))
@pytest.mark.parametrize("c_out", [1, 64, 96, 128, 192, 256, 320, 512, 1000])
def test_shared_memory_holds_the_stages(c_out, name):
    of = TENSOR_PRECISIONS[name]
    block_n, pack_n = im2col.columns(c_out, 1, of.promoted)
    tiles = dict(im2col.candidates(block_n, pack_n, of, 4))
    assert tiles
    for tile in tiles:
        assert tile.smem_bytes + 4 * c_out <= device.SHARED_LIMIT
        assert 2 <= tile.a_stages <= im2col.MOST_STAGES
        assert min(Barrier.A_EMPTY - Barrier.A_FULL, Barrier.B_EMPTY - Barrier.B_FULL) >= 8 * im2col.MOST_STAGES
        assert tile.a_bytes % 1024 == tile.b_bytes % 1024 == 0  # where the swizzle begins anew
        assert tile.block_n % tile.pack_n == 0
        producer, math = tile.registers or (65_536 // tile.threads,) * 2
        assert 128 * (producer + tile.math_warpgroups * math) <= 65_536
        assert math >= 32 + tile.block_n // 2 * (1 + of.promoted)
    assert -(-c_out // block_n) * block_n - c_out < 32 * -(-c_out // block_n)  # few columns that are not there


@pytest.mark.parametrize(("c_out", "groups", "expected"), [(256, 2, 128), (384, 2, 192), (576, 2, 96), (320, 1, 160)])
def test_a_tile_is_of_one_group(c_out, groups, expected):
    assert im2col.columns(c_out, groups, promoted=False)[0] == expected


@pytest.mark.parametrize(("name", "a_stages"), [("fp16", 2), ("fp16x3", 1)])
def test_weights_stay_where_there_is_room(name, a_stages):
    of, window = TENSOR_PRECISIONS[name], windows.window(57, 57, (3, 3))
    found = [tile for tile, _ in bands.candidates(57, window, (64,), 64, of, 3, 9, 64) if tile.resident]
    assert [(tile.a_stages, tile.b_stages) for tile in found] == [(a_stages, 9)] * 2
    for tile in found:
        assert tile.smem_bytes + bands.BIAS_BYTES <= device.SHARED_LIMIT
    for steps, c_out in ((17, 64), (9, 65)):
        assert not [tile for tile, _ in bands.candidates(57, window, (64,), 64, of, 3, steps, c_out) if tile.resident]


def test_a_group_of_too_few_columns():
    with pytest.raises(ValueError, match=r"^weight has 16 output channels a group: need a multiple of 32"):
        im2col.columns(64, 4, promoted=False)


@pytest.mark.parametrize(
    ("walk", "message"),
    [
        (tensor_map.Im2col((0, -129), (0, 0), (1, 1), 64), "need -128 to 127 pixels"),
        (tensor_map.Im2col((0, 0), (128, 0), (1, 1), 64), "need -128 to 127 pixels"),
        (tensor_map.Im2col((0, 0), (0, 0), (9, 1), 64), "need 1 to 8 pixels"),
        (tensor_map.Im2col((0, 0), (0, 0), (1, 1), 257), "need 1 to 256"),
    ],
)
def test_walks_that_tma_has_not(walk, message):
    with pytest.raises(ValueError, match=message):
        walk.check()


IMAGES = {
    "padded": ((2, 5, 6, 8), (3, 3, 8, 64), {"padding": 1}),
    "strided, odd borders": ((1, 9, 8, 16), (3, 2, 16, 32), {"stride": (2, 3), "padding": (1, 0, 2, 1)}),
    "dilated, two k blocks": ((1, 4, 5, 72), (2, 1, 72, 32), {"dilation": (2, 3), "padding": 1}),
    "groups": ((1, 5, 5, 32), (2, 2, 16, 64), {"groups": 2, "padding": "same"}),
    "one row": ((3, 1, 13, 24), (1, 3, 24, 40), {"stride": (1, 2)}),
}
"""Shapes of x and of the weight, and how the window moves."""

BANDS = {
    "padded": IMAGES["padded"],
    "wide borders": ((1, 15, 11, 72), (3, 2, 72, 64), {"padding": (2, 0, 1, 4), "dilation": (2, 3)}),
    "one row": ((3, 1, 33, 24), (1, 3, 24, 40), {"padding": (0, 0, 1, 1)}),
    "wider than the image": IMAGES["dilated, two k blocks"],
    "no borders": ((2, 30, 31, 64), (3, 3, 64, 96), {}),
    "of ResNet": ((2, 56, 56, 64), (3, 3, 64, 64), {"padding": 1}),
    "wide window": ((2, 56, 56, 64), (7, 7, 64, 64), {"padding": 3}),
    "three quarters": ((3, 27, 27, 96), (5, 5, 96, 96), {"padding": 2}),
    "two tiles across": ((2, 20, 20, 128), (3, 3, 128, 256), {"padding": 1}),
}
"""What bands take, likewise."""

EXACT = {
    "padded": IMAGES["padded"],
    "blocks of pixels": ((3, 57, 57, 48), (3, 3, 48, 64), {}),
    "two k blocks": ((2, 20, 20, 104), (3, 2, 104, 96), {"padding": 1}),
    "columns that are not there": ((1, 9, 30, 8), (2, 3, 8, 200), {"padding": (0, 1, 2, 0)}),
}
"""Of features that are exact in one term, in fp16x3."""

LARGE = {
    "of ResNet": ((3, 14, 14, 256), (3, 3, 256, 256), {"padding": 1}),
    "many columns": ((2, 9, 7, 64), (3, 3, 64, 1000), {"padding": "same", "stride": 2}),
    "three quarters": ((5, 27, 27, 96), (5, 5, 96, 96), {"padding": 2}),
    "two groups": ((4, 13, 13, 384), (3, 3, 192, 384), {"padding": 1, "groups": 2}),
    "few channels": ((2, 57, 57, 3), (11, 11, 3, 96), {"stride": 4}),
    "long": ((3, 1, 336, 256), (1, 7, 256, 320), {"dilation": (1, 3), "padding": (0, 0, 9, 9)}),
    "pixels": ((2, 12, 11, 128), (1, 1, 128, 192), {}),
}

EPILOGUES = ["", "relu", "tanh", "gelu"]


def by_turns(name, images):
    """One epilogue for each precision and image, so that each of both has every epilogue with some other."""
    return EPILOGUES[(list(TENSOR_PRECISIONS).index(name) + [*IMAGES, *LARGE].index(images)) % len(EPILOGUES)]


def taken_by_turns(name, images):
    """How a window moves is the same in all precisions: of small images fp16 takes all, each other one a third.

    Large ones have one each, by turns. bf16 takes one: it is one word in fp16's kernels.
    """
    turn = [*IMAGES, *LARGE].index(images)
    if name == "bf16" or images in LARGE:
        return images == "padded" if name == "bf16" else name == ("fp16", "tf32", "fp8", "fp16x3")[turn % 4]
    return name == "fp16" or turn % 3 == ("tf32", "fp8", "fp16x3").index(name)


def compare(name, x_shape, weight_shape, moves, *, epilogue="relu", tile=None):
    """A convolution in a precision, twice, beside the reference; the results are the same bits."""
    draw, of = np.random.default_rng(0), TENSOR_PRECISIONS[name]
    x = draw.standard_normal(x_shape).astype(np.float32)
    exact = moves.get("exact", False)
    x = x.astype(np.float16).astype(np.float32) if exact else x
    weight = draw.standard_normal(weight_shape).astype(np.float32) / np.float32(np.prod(weight_shape[:3]) ** 0.5)
    bias = draw.standard_normal(weight_shape[3]).astype(np.float32)
    unit = 6 / 448 if name == "fp8" else 1.0
    # Eighths are stored eight at a time, and not in plain Python.
    wide = name == "fp8" and (device.SIMULATED or weight_shape[3] % 8 > 0 or epilogue in ("tanh", "gelu"))
    results, y_unit = ("float32", 1.0) if wide else (None, unit)
    options = {"precision": name, "results": results, "x_unit": unit, "y_unit": y_unit}
    conv = prepared(WgmmaConv, weight, bias, epilogue, **options, **moves)
    if tile is not None:
        vars(conv.windows)["candidates"] = lambda x: {tile: 1.0}
    call = Call(None, None, x.shape, x=x)
    n, height, width, channels = x_shape
    features_of = TENSOR_PRECISIONS["fp16"] if exact else of
    rows = narrow(call, call.inputs[0].reshape((n * height, width, channels)), width, conv.width, features_of, 1 / unit)
    features = rows.reshape((n, height, width, rows.shape[2]))
    steps = {key: value for key, value in moves.items() if key != "exact"}
    want = reference.conv2d_nhwc(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64), **steps)
    norm = np.linalg.norm(want)  # no function of them has a greater slope than GELU's 1.13
    want = getattr(reference, epilogue)(want) if epilogue else want
    norm = norm if epilogue in ("tanh", "gelu") else np.linalg.norm(want)
    made = []
    for _ in range(1 if device.SIMULATED else 2):
        shape = conv.out_shape(features.shape)
        assert shape[:3] == want.shape[:3]
        nothing = np.frombuffer(b"\xff" * int(np.prod(shape)) * conv.results.itemsize, conv.results.dtype)  # NaN
        y = device.to_device(nothing.reshape(shape))
        conv.apply(features, out=y)
        made.append(y)
    cuda.synchronize()
    np.testing.assert_array_equal(*(made[i].copy_to_host().view(np.uint8) for i in (0, -1)))
    got = made[0]
    if conv.results.ptx_type not in ("tf32", "f32"):
        call = Call(None, None, want.shape, dtypes={"x": of.dtype}, x=got)
        widen(call, got, call.out, of, unit)
        got = call.out
    error = np.linalg.norm(got.copy_to_host() - want) / norm
    assert error <= of.tolerance


@simulated
@pytest.mark.parametrize(
    ("name", "images", "epilogue"),
    [
        ("fp16", "padded", "relu"),
        ("fp16", "groups", ""),
        ("tf32", "strided, odd borders", "tanh"),
        ("fp16x3", "dilated, two k blocks", "gelu"),
        pytest.param("fp16x3", "groups", "relu", marks=pytest.mark.exhaustive),
        ("fp8", "one row", "relu"),
    ],
)
def test_in_plain_python(name, images, epilogue, machine, monkeypatch):  # noqa: F811
    def few_threads(self, x):
        return {next(tile for tile in self.im2col_tiles if tile.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaWindows, "candidates", few_threads)
    compare(name, *IMAGES[images], epilogue=epilogue)


@simulated
@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("fp16", "padded"),
        ("fp16", "wide borders"),
        ("fp16", "wider than the image"),
        pytest.param("tf32", "one row", marks=pytest.mark.exhaustive),
    ],
)
def test_bands_in_plain_python(name, images, machine, monkeypatch):  # noqa: F811
    every = WgmmaWindows.candidates

    def in_bands(self, x):
        return {next(t for t in every(self, x) if isinstance(t, bands.BandTile) and t.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaWindows, "candidates", in_bands)
    compare(name, *BANDS[images])


@simulated
@pytest.mark.parametrize("exact", [False, True])
def test_weights_that_stay_in_shared_memory_in_plain_python(exact, machine, monkeypatch):  # noqa: F811
    """Of several tiles of a block the first one copies them."""
    every = WgmmaWindows.candidates

    def staying(self, x):
        return {next(tile for tile in every(self, x) if tile.resident and tile.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaWindows, "candidates", staying)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    shape = (3, 12, 11, 8), (3, 2, 8, 32)
    compare(
        "fp16x3" if exact else "fp16", *shape, {"exact": True, "padding": 1} if exact else {"padding": (0, 1, 1, 2)}
    )


@pytest.mark.exhaustive
@simulated
def test_exact_features_in_plain_python(machine, monkeypatch):  # noqa: F811
    every = WgmmaWindows.candidates

    def few_threads(self, x):
        return {next(tile for tile in every(self, x) if tile.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaWindows, "candidates", few_threads)
    x, weight, moves = EXACT["padded"]
    compare("fp16x3", x, weight, {**moves, "exact": True})


@simulated
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"precision": "fp16"}, "^exact=True, precision='fp16', groups=1: need fp16x3 and one group"),
        ({"precision": "fp16x3", "groups": 2}, "need fp16x3 and one group"),
        ({"precision": "fp16x3", "stride": 2}, r"need steps of 1 and narrower images"),
    ],
)
def test_exact_features_that_do_not_fit(more, message, machine):  # noqa: F811
    def convolve():
        conv = prepared(WgmmaConv, np.ones((3, 3, 8, 64), np.float32), np.ones(64, np.float32), exact=True, **more)
        conv.apply(device.to_device(np.zeros((1, 8, 8, 8), np.float16)))

    with pytest.raises(ValueError, match=message):
        convolve()


BAND_OF = {"fp16": ("wider than the image", "one row", "of ResNet"), "tf32": ("padded",), "fp8": ("three quarters",)}
"""Those that a GPU takes by default."""


@hopper
@quick(taken_by_turns)
@pytest.mark.parametrize("images", [*IMAGES, *LARGE])
@pytest.mark.parametrize("name", list(TENSOR_PRECISIONS))
def test_on_a_gpu(name, images):
    x, weight, moves = {**IMAGES, **LARGE}[images]
    if name == "fp8" and moves.get("groups") and weight[2] % 16:
        pytest.skip("a group of fewer than 16 bytes")
    compare(name, x, weight, moves, epilogue=by_turns(name, images))


@hopper
@quick(lambda: False, everywhere=False)  # those before and behind have a tile each, the offline build all
@pytest.mark.parametrize("c_out", [64, 96, 192, 256])
@pytest.mark.parametrize("name", ["fp16", "tf32", "fp8", "fp16x3"])
def test_every_tile(name, c_out):
    of = TENSOR_PRECISIONS[name]
    block_n, pack_n = im2col.columns(c_out, 1, of.promoted)
    for tile in dict(im2col.candidates(block_n, pack_n, of, 4)):
        compare(name, (7, 9, 11, 128), (3, 3, 128, c_out), {"padding": 1}, tile=tile)


@hopper
@quick(lambda name, images: images in BAND_OF.get(name, ()))
@pytest.mark.parametrize("images", list(BANDS))
@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp8"])
@pytest.mark.parametrize("count", [1, pytest.param(99, marks=pytest.mark.exhaustive)], ids=["a tile", "every tile"])
def test_bands(count, name, images):
    x, weight, moves = BANDS[images]
    conv = prepared(WgmmaConv, np.ones(weight, np.float32), np.ones(weight[3], np.float32), precision=name, **moves)
    found = [tile for tile in conv.windows.candidates(x) if isinstance(tile, bands.BandTile)]
    assert found or (name, images) == ("tf32", "wide window")
    first = list(BANDS).index(images)  # by turns, so that images have them all
    for i in range(min(count, len(found))):
        compare(name, x, weight, moves, tile=found[(first + i) % len(found)])


@hopper
@pytest.mark.parametrize("images", list(EXACT))
def test_exact_features(images):
    x, weight, moves = EXACT[images]
    moves = {**moves, "exact": True}
    conv = prepared(WgmmaConv, np.ones(weight, np.float32), np.ones(weight[3], np.float32), precision="fp16x3", **moves)
    for tile in conv.windows.candidates(x):
        compare("fp16x3", x, weight, moves, epilogue="" if images == "padded" else "relu", tile=tile)


@hopper
def test_infinities_reach_what_their_windows_hold():
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((2, 8, 8, 64)).astype(np.float32), np.ones((3, 3, 64, 32), np.float32)
    x[0, 3, 4, 5], x[1, 7, 7, 0], bias = np.inf, np.nan, np.zeros(32, np.float32)
    want = reference.conv2d_nhwc(x, weight, bias, padding=1)
    got = conv2d_nhwc_wgmma(x, weight, bias, padding=1, precision="bf16")
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@hopper
@quick(lambda name, stride: name == "fp16" or stride == 3)
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(2, 3, 1), (1, 0, 3), (3, 5, 2), (1, 1, 1)])
@pytest.mark.parametrize("name", ["fp16", "fp16x3"])
def test_sequences(name, stride, padding, dilation):
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((9, 61, 70)).astype(np.float32), draw.standard_normal((5, 70, 130))
    weight, bias, moves = weight.astype(np.float32), np.ones(130, np.float32), (stride, padding, dilation)
    moves = {"stride": stride, "padding": padding, "dilation": dilation}
    want = reference.conv1d_relu_nlc(*(one.astype(np.float64) for one in (x, weight, bias)), **moves)
    got = conv1d_relu_nlc_wgmma(x, weight, bias, precision=name, **moves)
    assert np.linalg.norm(got - want) <= TENSOR_PRECISIONS[name].tolerance * np.linalg.norm(want)


@simulated
@pytest.mark.parametrize(
    ("weight", "moves", "message"),
    [
        ((3, 3, 8, 33), {"groups": 2}, "C_out in groups=2"),
        ((3, 3, 4, 64), {"groups": 2}, "^weight has C_in/groups=4: need a multiple of 8 in fp16"),
        ((3, 3, 8, 16), {"groups": 2}, "8 output channels a group: need a multiple of 32"),
        ((3, 3, 8, 64), {"precision": "fp4"}, "^precision='fp4'"),
    ],
)
def test_weights_that_do_not_fit(weight, moves, message, machine):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        prepared(WgmmaConv, np.ones(weight, np.float32), np.ones(weight[-1], np.float32), **moves)


@simulated
@pytest.mark.parametrize(
    ("x", "moves", "message"),
    [
        ((1, 5, 8), {}, r"^x has shape \(1, 5, 8\): need \(N, H, W, C_in\)"),
        ((1, 5, 5, 16), {}, "need C_in=8, a multiple of 8"),
        ((1, 2, 5, 8), {}, "^x has 2 x 5 pixels"),
        ((1, 300, 300, 8), {"dilation": 100}, "need -128 to 127 pixels: a smaller window"),
    ],
)
def test_features_that_do_not_fit(x, moves, message, machine):  # noqa: F811
    conv = prepared(WgmmaConv, np.ones((3, 3, 8, 32), np.float32), np.ones(32, np.float32), **moves)
    with pytest.raises(ValueError, match=message):
        conv.apply(device.to_device(np.zeros(x, np.float16)))


@simulated
@pytest.mark.parametrize(
    ("epilogue", "unit", "message"),
    [
        ("sine", 1.0, "^epilogue='sine': need one of relu, tanh, gelu"),
        ("tanh", 0.5, "need results of y_unit=1, not 0.5"),
    ],
)
def test_epilogues_that_there_are_not(epilogue, unit, message, machine):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        prepared(WgmmaConv, np.ones((1, 1, 8, 32), np.float32), np.ones(32, np.float32), epilogue, y_unit=unit)
