"""The kernel of `mma` with windows that move over images: its tiles, its source in plain Python, and a GPU's."""

from __future__ import annotations

from dataclasses import astuple
from itertools import product

import numpy as np
import pytest
from conftest import multiplied_here, quick
from numba import cuda
from prepared import prepared
from test_mma import machine, simulated  # noqa: F401 - a fixture
from test_mma_layout import decoded
from test_wgmma_windows import IMAGES, LARGE, by_turns, taken_by_turns

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.windows import window as window_of
from charcnn.ops import conv1d_relu_nlc_mma, conv2d_nhwc_mma, conv2d_relu_nhwc_mma, reference
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d import windows
from charcnn.ops.conv1d.mma.config import Stages
from charcnn.ops.conv1d.mma.im2col import GEOMETRY_BYTES, LARGEST_N, MmaGeometry, candidates
from charcnn.ops.conv1d.mma.layer import MmaConv

ampere = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")

MULTIPLIED = list(filter(multiplied_here, TENSOR_PRECISIONS))

LIMITS = {"9.0": 232_448, "8.0": 166_912, "8.6": 101_376}
"""Bytes of shared memory that a block may have, by compute capability; 8.9 has as many as 8.6."""


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("block_n", range(32, LARGEST_N + 1, 32))
@pytest.mark.parametrize("name", TENSOR_PRECISIONS)
def test_every_gpu_has_a_tile(name, block_n, limit, monkeypatch):
    monkeypatch.setattr(device, "shared_limit", lambda: limit)
    tiles = list(candidates(block_n, TENSOR_PRECISIONS[name], 4))
    assert tiles
    for tile in tiles:
        stages = Stages.of(tile, 1)
        assert stages.smem_bytes <= limit
        assert stages.a_rows == tile.block_m
        assert stages.a_stages == tile.b_stages  # a step has both
        assert stages.a_bytes % 1024 == tile.b_bytes % 1024 == 0  # where the swizzle begins anew
        assert tile.block_m * 8 % tile.threads == tile.block_n * 8 % tile.threads == 0  # pieces of 16 bytes
        assert tile.threads % 64 == 0  # so that rows that a thread copies are swizzled alike
    assert len({tile.block_m for tile in tiles}) == len(tiles)


@pytest.mark.parametrize(("pixels", "block_m"), [(1 << 20, 256), (128, 64), (132 * 256 * 2, 256), (132 * 128, 128)])
def test_few_outputs_take_small_tiles(pixels, block_m, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "shared_limit", lambda: LIMITS["9.0"])
    tiles = list(candidates(128, TENSOR_PRECISIONS["fp16"], 4))
    assert min(tiles, key=lambda tile: tile.time(pixels, 1)).block_m == block_m


@pytest.mark.parametrize(("c_out", "groups", "expected"), [(256, 2, 128), (384, 2, 96), (320, 1, 128), (160, 1, 96)])
def test_a_tile_is_of_one_group(c_out, groups, expected):
    assert windows.columns(c_out, groups, LARGEST_N) == expected


@pytest.mark.parametrize(("size", "expected"), [(16, 1), (64, 2), (128, 4), (140, 3), (192, 3), (256, 4), (400, 4)])
def test_channels_go_to_few_k_blocks_alike(size, expected):
    assert windows.quarters(size) == expected


def test_steps_are_of_k_blocks_and_taps_in_turn():
    window = window_of(9, 11, (2, 3), dilation=(4, 5))
    geometry = MmaGeometry(1, 1, 1, 1, 0, 0, 9, 11, 32, 8)
    words = geometry.words(window, 2, 96)
    assert words.dtype == np.uint32
    assert words[: GEOMETRY_BYTES // 4].tolist() == [*astuple(geometry)[:-1], 0, 0]
    taps = [(i * 11 + j, i, j, byte) for byte, i, j in product((0, 96), (0, 4), (0, 5, 10))]
    np.testing.assert_array_equal(words[GEOMETRY_BYTES // 4 :].reshape(-1, 4), taps)


def compare(name, x_shape, weight_shape, moves, *, epilogue="relu", float32=False, block_m=None):
    """A convolution in a precision, twice, beside the reference; the results are the same bits."""
    draw, of = np.random.default_rng(0), TENSOR_PRECISIONS[name]
    x = draw.standard_normal(x_shape).astype(np.float32)
    weight = draw.standard_normal(weight_shape).astype(np.float32) / np.float32(np.prod(weight_shape[:3]) ** 0.5)
    bias = draw.standard_normal(weight_shape[3]).astype(np.float32)
    results = "float32" if float32 else None
    conv = prepared(MmaConv, weight, bias, epilogue, precision=name, results=results, **moves)
    if block_m is not None:
        conv.tiles = tuple(tile for tile in conv.tiles if tile.block_m == block_m)
    n, height, width, channels = x_shape
    call = Call(None, None, x.shape, x=x)
    rows = encode(call, call.inputs[0].reshape((n * height, width, channels)), width, conv.width, of)
    features = rows.reshape((n, height, width, rows.shape[2]))
    want = reference.conv2d_nhwc(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64), **moves)
    want = getattr(reference, epilogue)(want) if epilogue else want
    made = []
    for _ in range(1 if device.SIMULATED else 2):
        shape = conv.out_shape(features.shape)
        assert shape[:3] == want.shape[:3]
        nothing = np.frombuffer(b"\xff" * int(np.prod(shape)) * conv.results.itemsize, conv.results.dtype)  # NaN
        y = device.to_device(nothing.reshape(shape))
        conv.apply(features, out=y)
        made.append(y)
    cuda.synchronize()
    made = [one.copy_to_host() for one in made]
    np.testing.assert_array_equal(*(made[i].view(np.uint8) for i in (0, -1)))
    got = made[0] if float32 else decoded(made[0].reshape((-1, *made[0].shape[2:])), name).reshape(want.shape)
    assert np.linalg.norm(got - want) <= of.tolerance * np.linalg.norm(want)


@simulated
@pytest.mark.parametrize(
    ("name", "images", "epilogue", "float32"),
    [
        ("fp16", "padded", "relu", False),
        ("bf16", "groups", "", True),
        ("tf32", "strided, odd borders", "tanh", False),
        ("fp16x3", "dilated, two k blocks", "gelu", True),
        ("fp8", "padded", "relu", False),
        ("fp8", "dilated, two k blocks", "gelu", True),
        pytest.param("fp16x3", "groups", "relu", False, marks=pytest.mark.exhaustive),
        pytest.param("fp16", "one row", "relu", False, marks=pytest.mark.exhaustive),
    ],
)
def test_in_plain_python(name, images, epilogue, float32, machine, monkeypatch):  # noqa: F811
    x, weight, moves = IMAGES[images]
    block_n = windows.columns(weight[3], moves.get("groups", 1), LARGEST_N)
    block_m = min(tile.block_m for tile in candidates(block_n, TENSOR_PRECISIONS[name], 4))
    compare(name, x, weight, moves, epilogue=epilogue, float32=float32, block_m=block_m)


@ampere
@quick(taken_by_turns)
@pytest.mark.parametrize("images", [*IMAGES, *LARGE])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_on_a_gpu(name, images):
    x, weight, moves = {**IMAGES, **LARGE}[images]
    if name == "fp8" and moves.get("groups") and weight[2] % 16:
        pytest.skip("a group of fewer than 16 bytes")
    compare(name, x, weight, moves, epilogue=by_turns(name, images))


@ampere
@quick(lambda: False, everywhere=False)  # those before and behind have a tile each, the offline build all
@pytest.mark.parametrize("c_out", [32, 64, 96, 128, 200])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_every_tile(name, c_out):
    """With results in float32, and in the precision itself, by turns."""
    tiles = candidates(windows.columns(c_out, 1, LARGEST_N), TENSOR_PRECISIONS[name], 4)
    for turn, tile in enumerate(tiles, list(MULTIPLIED).index(name) + c_out // 32):
        moves = {"padding": 1}
        compare(name, (7, 9, 11, 128), (3, 3, 128, c_out), moves, float32=turn % 2 == 1, block_m=tile.block_m)


@ampere
@quick(
    lambda name, c_in: (
        c_in in (3, 24, 100) if name == "fp16" else (name, c_in) in {("tf32", 8), ("fp16x3", 40), ("fp8", 24)}
    )
)
@pytest.mark.parametrize("c_in", [3, 8, 24, 40, 96, 100])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_channels_that_fill_no_k_block(name, c_in):
    compare(name, (3, 11, 9, c_in), (3, 3, c_in, 77), {"padding": "same", "stride": 2}, float32=True)


@ampere
def test_infinities_reach_what_their_windows_hold():
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((2, 8, 8, 64)).astype(np.float32), np.ones((3, 3, 64, 32), np.float32)
    x[0, 3, 4, 5], x[1, 7, 7, 0], bias = np.inf, np.nan, np.zeros(32, np.float32)
    want = reference.conv2d_nhwc(x, weight, bias, padding=1)
    got = conv2d_nhwc_mma(x, weight, bias, padding=1, precision="bf16")
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@ampere
@quick(lambda name, stride: stride in (2, 3, 9) if name == "fp16" else stride == 3)
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(2, 3, 1), (1, 0, 3), (3, 5, 2), (1, 1, 1), (9, 70, 40)])
@pytest.mark.parametrize("name", ["fp16", "fp16x3"])
def test_sequences(name, stride, padding, dilation):
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((9, 61, 70)).astype(np.float32), draw.standard_normal((5, 70, 130))
    weight, bias = weight.astype(np.float32), np.ones(130, np.float32)
    moves = {"stride": stride, "padding": padding, "dilation": dilation}
    want = reference.conv1d_relu_nlc(*(one.astype(np.float64) for one in (x, weight, bias)), **moves)
    got = conv1d_relu_nlc_mma(x, weight, bias, precision=name, **moves)
    assert np.linalg.norm(got - want) <= TENSOR_PRECISIONS[name].tolerance * np.linalg.norm(want)


@simulated
def test_one_shots(machine):  # noqa: F811
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((1, 6, 8)).astype(np.float32), draw.standard_normal((2, 8, 9)).astype(np.float32)
    bias, moves = draw.standard_normal(9).astype(np.float32), {"stride": 2, "padding": 1}
    got = conv1d_relu_nlc_mma(x, weight, bias, precision="tf32", **moves)
    want = reference.conv1d_relu_nlc(x, weight, bias, **moves)
    assert np.linalg.norm(got - want) <= TENSOR_PRECISIONS["tf32"].tolerance * np.linalg.norm(want)
    np.testing.assert_array_equal(
        conv2d_relu_nhwc_mma(
            x[:, None], weight[None], bias, precision="tf32", stride=(1, 2), padding=(0, 0, 1, 1)
        ), got[:, None],
    )  # fmt: skip


@simulated
def test_nothing_to_compute(machine):  # noqa: F811
    for n, c_out in ((0, 8), (2, 0)):
        arrays = (np.ones(shape, np.float32) for shape in ((n, 4, 4, 8), (3, 3, 8, c_out), (c_out,)))
        assert conv2d_nhwc_mma(*arrays).shape == (n, 2, 2, c_out)


@simulated
@pytest.mark.parametrize(
    ("weight", "moves", "message"),
    [
        ((3, 3, 8, 33), {"groups": 2}, "C_out in groups=2"),
        ((3, 3, 4, 64), {"groups": 2}, "^weight has C_in/groups=4: need a multiple of 8 in fp16"),
        ((3, 3, 8, 16), {"groups": 2}, "8 output channels a group: need a multiple of 32"),
        ((3, 3, 8, 12), {}, "^weight has C_out=12: need a multiple of 8 where results are not float32"),
        ((3, 3, 24, 64), {"precision": "fp8", "groups": 2}, "^weight has C_in/groups=24: need a multiple of 16 in fp8"),
        ((3, 3, 8, 64), {"precision": "int4"}, "^precision='int4'"),
        ((3, 3, 8, 64), {"results": "bf16"}, "^precision='bf16': need one of fp16"),
    ],
)
def test_weights_that_do_not_fit(weight, moves, message, machine):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        prepared(MmaConv, np.ones(weight, np.float32), np.ones(weight[-1], np.float32), **moves)


@simulated
@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        ((1, 5, 8), {}, r"^x has shape \(1, 5, 8\): need \(N, H, W, C_in\)"),
        ((1, 5, 5, 16), {}, "need C_in=8, a multiple of 8"),
        ((1, 2, 5, 8), {}, "^x has 2 x 5 pixels"),
        ((1, 5, 5, 8), {"pointwise": "swish"}, "^epilogue='swish'"),
    ],
)
def test_features_that_do_not_fit(x, options, message, machine):  # noqa: F811
    def convolve():
        conv = prepared(MmaConv, np.ones((3, 3, 8, 32), np.float32), np.ones(32, np.float32), **options)
        conv.apply(device.to_device(np.zeros(x, np.float16)))

    with pytest.raises(ValueError, match=message):
        convolve()
