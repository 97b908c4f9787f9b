"""Convolutions over images in float32 on a GPU: windows in any tile, and Winograd's filtering along both axes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from prepared import prepared

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.windows import window
from charcnn.ops import (
    conv1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    conv2d_nhwc_double_buffered,
    conv2d_nhwc_winograd,
    reference,
)
from charcnn.ops.common.epilogues import EPILOGUES
from charcnn.ops.conv1d import double_buffered, k_splits
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.tile import NARROW, RegisterTile, filling
from charcnn.ops.conv1d.winograd import WinogradConv
from charcnn.ops.conv1d.winograd_images_plan import ERROR, TransformAxis, WinogradPlan, axes, plan
from charcnn.ops.conv1d.winograd_transforms import growth, matrices
from charcnn.ops.operator_row import FILTERED, FLOAT32

TILES = (RegisterTile(16, 16, 4, 4, 4), RegisterTile(16, 8, 8, 4, 4, stages=3), RegisterTile(32, 16, 32, 4, 4))
WINDOWS = (  # (N, H, W, C_in), (KH, KW, C_in / groups, C_out), moves
    ((2, 5, 6, 3), (3, 2, 3, 5), {"padding": (1, 0, 2, 1)}),
    ((1, 6, 7, 4), (3, 3, 4, 8), {"stride": (1, 2), "padding": 1, "dilation": (2, 1)}),
    ((1, 4, 6, 8), (2, 3, 4, 24), {"groups": 2, "padding": "same"}),
)
NESTED = TransformAxis(3, 4), TransformAxis(3, 4)


def draw(x, weight, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape, np.float32) for shape in (x, weight, weight[-1:]))


def exact(arrays, **moves):
    return reference.conv2d_nhwc(*(array.astype(np.float64) for array in arrays), **moves)


def close(got, expected, tolerance=FLOAT32):
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


@quick(lambda: False, everywhere=False)  # test_tiled has another
@pytest.mark.parametrize(("x", "weight", "moves"), WINDOWS)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}x{tile.depth}")
def test_windows_in_any_tile(tile, x, weight, moves):
    arrays = draw(x, weight)
    expected = exact(arrays, **moves)
    out = device.to_device(np.full(expected.shape, np.nan, np.float32))
    call = Call(
        out, None, expected.shape, **dict(zip(("x", "weight", "bias"), map(device.to_device, arrays), strict=True))
    )
    groups = moves.get("groups", 1)
    moved = window(*x[1:3], weight[:2], **{name: value for name, value in moves.items() if name != "groups"})
    double_buffered.launch_windows(call, call.inputs, call.out, "store", moved, groups=groups, tile=tile)
    close(out.copy_to_host(), expected)


@quick(lambda moves: "dilation" in moves)
@pytest.mark.parametrize("moves", [{"stride": 3}, {"padding": 4, "dilation": 2}, {"stride": 2, "padding": 1}], ids=str)
def test_sequences_by_strides(moves):
    x, weight, bias = draw((2, 11, 5), (3, 5, 9))
    expected = reference.conv1d_nlc(*(array.astype(np.float64) for array in (x, weight, bias)), **moves)
    close(conv1d_nlc_double_buffered(x, weight, bias, **moves), expected)
    close(conv1d_relu_nlc_double_buffered(x, weight, bias, **moves), reference.relu(expected))


def test_which_tile():
    assert filling(NARROW.columns) is NARROW
    if not device.SIMULATED:
        assert [filling(columns).columns for columns in (64, 96, 128, 192, 256, 512)] == [64, 96, 128, 64, 128, 128]


@pytest.mark.parametrize(("taps", "span"), [(1, 1), (2, 2), (4, 2), (2, 3), (5, 2), (5, 4)])
def test_matrices(taps, span):
    a, g, b = matrices(taps, span)
    rng = np.random.default_rng(taps)
    w, x = rng.standard_normal(taps), rng.standard_normal(len(b))
    expected = [w @ x[t : t + taps] for t in range(span)]
    np.testing.assert_allclose(a @ ((g @ w) * (b @ x)), expected, rtol=1e-12, atol=1e-12)


PLANS = [
    ((5, 5, 3, 3), 1, WinogradPlan(*NESTED)),
    ((6, 5, 3, 3), 1, WinogradPlan(TransformAxis(1, 1, 3), TransformAxis(3, 4))),
    ((6, 6, 5, 5), (2, 1, 0, 3), WinogradPlan(TransformAxis(5, 2), TransformAxis(5, 4))),
    ((6, 6, 7, 7), 3, WinogradPlan(TransformAxis(4, 2, 2), TransformAxis(4, 4, 2))),
    ((5, 6, 2, 6), 1, WinogradPlan(TransformAxis(2, 3), TransformAxis(2, 2, 3))),
]


@pytest.mark.parametrize(
    ("sizes", "padding", "found"), PLANS, ids=lambda one: str(one) if isinstance(one, tuple) else None
)
def test_any_plan(sizes, padding, found):
    height, width, rows, columns = sizes
    arrays = x, weight, bias = draw((1, height, width, 2), (rows, columns, 2, 3))
    expected = exact(arrays, padding=padding)
    close(prepared(WinogradConv, weight, bias, padding=padding, plan=found).apply(x), expected, FILTERED)


@pytest.mark.parametrize("splits", [2, 4])
def test_splits_of_the_depth(splits):
    arrays = x, weight, bias = draw((1, 5, 4, 16), (3, 3, 16, 4))
    conv = prepared(
        WinogradConv, weight, bias, "relu", plan=WinogradPlan(TransformAxis(3, 2), TransformAxis(3, 2), splits)
    )
    close(conv.apply(x), reference.relu(exact(arrays)), FILTERED)


@pytest.mark.parametrize(("taps", "channels"), [(3, 64), (5, 32), (7, 24)])
def test_rounding_is_as_planned(taps, channels):
    # By the matrices in float32 as the kernels do, without the kernels; sums one after another, as a thread adds them.
    found = plan(taps, taps, channels, channels)
    (a, g, b), (a_across, g_across, b_across) = (matrices(axis.taps, axis.span) for axis in (found.down, found.across))
    down, across, tiles = found.down, found.across, 4
    size = tiles * down.span + down.groups * down.taps - 1, tiles * across.span + across.groups * across.taps - 1
    x, w, _ = draw((1, *size, channels), (taps, taps, channels, 8))
    padded = np.zeros((down.groups * down.taps, across.groups * across.taps, channels, 8))
    padded[:taps, :taps] = w
    by_group = padded.reshape(down.groups, down.taps, across.groups, across.taps, channels, 8)
    weights = np.einsum("pk,rl,gkhlio->prghio", g, g_across, by_group).astype(np.float32)

    def window_of(line, column):
        return x[0, line : line + len(b), column : column + len(b_across)]

    def windows(group, other):
        lines = [group * down.taps + i * down.span for i in range(tiles)]
        columns = [other * across.taps + i * across.span for i in range(tiles)]
        return np.stack([np.stack([window_of(line, column) for column in columns]) for line in lines])

    summed = np.zeros((found.splits, tiles, tiles, len(b), len(b_across), 8), np.float32)
    each = channels // found.splits
    for group in range(down.groups):
        for other in range(across.groups):
            once = np.einsum("pi,xyijc->xypjc", b.astype(np.float32), windows(group, other))
            features = np.einsum("rj,xypjc->xyprc", b_across.astype(np.float32), once)
            for c in range(channels):
                summed[c // each] += features[..., c, None] * weights[:, :, group, other, c]
    products = summed.sum(axis=0)
    y = np.einsum("qp,xypro->xyqro", a.astype(np.float32), products)
    y = np.einsum("sr,xyqro->xqyso", a_across.astype(np.float32), y).reshape(tiles * down.span, tiles * across.span, 8)
    expected = exact((x, w, np.zeros(8, np.float32)))[0, : len(y), : y.shape[1]]
    error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    assert error <= FILTERED
    assert 0.5 * found.error(channels) <= error <= 1.5 * found.error(channels)


def test_plans():
    for taps, channels in ((3, 64), (3, 512), (5, 96), (7, 64), (7, 512), (2, 8)):
        found = plan(taps, taps, channels, channels)
        assert found.error(channels) <= ERROR
        assert found.down.groups * found.down.taps >= taps
        assert max(found.down.span, found.across.span) > 1
        assert channels % found.splits == 0
    assert plan(3, 3, 64, 64) == WinogradPlan(*NESTED)
    assert plan(1, 7, 64, 64).down == TransformAxis(1, 1)
    assert plan(7, 7, 1 << 16, 64).error(1 << 16) == min(
        WinogradPlan(down, across, splits).error(1 << 16)
        for down in axes(7) for across in axes(7) for splits in (1, 2, 4, 8)
        if max(down.span, across.span) > 1
    )  # fmt: skip
    assert growth(1, 1) == 1


class Space:
    """Two buffers by turns, poisoned."""

    stream = None

    def __init__(self, floats):
        self._buffers, self._turn = [device.to_device(np.full(floats, np.nan, np.float32)) for _ in range(2)], 0

    def device(self, shape, dtype=np.float32):
        self._turn ^= 1
        return self._buffers[self._turn][: int(np.prod(shape))].reshape(shape)


@pytest.mark.parametrize("layer", [WinogradConv, DoubleBufferedConv])
def test_layers(layer):
    arrays = x, weight, bias = draw((2, 5, 6, 4), (3, 3, 4, 8))
    made = prepared(layer, weight, bias, "relu", padding=1)
    written = [array.shape for array in made.writes(x.shape)]
    space = Space(max(x.size, *map(np.prod, written)))
    given = space.device(x.shape)
    given.copy_to_device(x)
    y = made(given, space)
    assert written[-1] == y.shape == (2, 5, 6, 8)
    assert made.nbytes > 0
    close(y.copy_to_host(), reference.relu(exact(arrays, padding=1)), FILTERED)


@quick(lambda name: name == "gelu")  # test_ops has ReLU and none, and each is a function of an accumulator
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_convolution(name):
    follows = getattr(reference, name) if name else np.asarray
    arrays = x, weight, bias = draw((1, 4, 5, 4), (3, 3, 4, 8))
    y = prepared(DoubleBufferedConv, weight, bias, name)(device.to_device(x), Space(2 * 3 * 8 * 10))
    close(y.copy_to_host(), follows(exact(arrays)))


@quick(lambda: False, everywhere=False)  # the accumulators are a convolution's
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_linear_layer(name, monkeypatch):
    follows, space = getattr(reference, name) if name else np.asarray, Space(2 * 3 * 8 * 10)
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.standard_normal(size, np.float32) for size in ((3, 2, 20), (40, 8), 8))
    expected = follows(reference.linear_nlc(*(one.astype(np.float64) for one in (x.reshape(3, 40), weight, bias))))
    for depth in (8, 512):  # the sum of several parts, or one
        monkeypatch.setattr(k_splits, "DEPTH", depth)
        layer = prepared(DoubleBufferedConv, weight, bias, name)
        assert len(layer.writes(x.shape)) == 1 + (depth < 40)
        close(layer(device.to_device(x), space).copy_to_host(), expected)
        close(layer.apply(device.to_device(x)).copy_to_host(), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of the simulator's scalars
def test_what_is_not_finite_makes_its_tiles_nan():
    x, weight, bias = draw((1, 14, 14, 1), (3, 3, 1, 1))
    conv = prepared(WinogradConv, weight, bias, plan=WinogradPlan(*NESTED))
    whole = conv.apply(x)
    x[0, 2, 2, 0] = np.nan  # read by the first tile alone
    y = conv.apply(x)
    assert np.isnan(y[0, :3, :3]).all()
    y[0, :4, :4] = whole[0, :4, :4]
    np.testing.assert_array_equal(y, whole)


@quick(lambda moves: "stride" not in moves)
@pytest.mark.parametrize("moves", [{"stride": 2}, {"dilation": (1, 2)}, {"groups": 2}], ids=str)
def test_moves_that_only_the_others_have(moves):
    arrays = draw((1, 7, 7, 4), (3, 3, 4 // moves.get("groups", 1), 4))
    with pytest.raises(ValueError, match=r"Winograd's filtering needs 1; double_buffered"):
        conv2d_nhwc_winograd(*arrays, **moves)
    assert np.isfinite(conv2d_nhwc_double_buffered(*arrays, **moves)).all()


def test_other_channels_are_refused():
    x, weight, bias = draw((1, 4, 4, 3), (3, 3, 2, 2))
    with pytest.raises(ValueError, match=r"x has shape \(1, 4, 4, 3\): need C_in=2"):
        prepared(WinogradConv, weight, bias).apply(x)
