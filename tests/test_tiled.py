"""conv1d_nlc and its kin: tiles of every kind off their boundaries, the packing of weights, statistics, refusals."""

import numpy as np
import pytest
from conftest import quick

from charcnn.catalog import FLOAT32
from charcnn.gpu import device, ptx
from charcnn.gpu.device import DeviceError
from charcnn.gpu.launch import Call
from charcnn.ops import (
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_stat_nlc_double_buffered,
    layernorm_relu_maxpool1d_nlc_coalesced,
    linear_relu_nlc_double_buffered,
    reference,
)
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.group_rows import vector_width
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.conv1d import double_buffered, k_splits, register_tiled, vectorized
from charcnn.ops.conv1d.tile import NARROW, WIDE, RegisterTile, fitting

TILES = (
    RegisterTile(16, 16, 4, 4, 4),
    RegisterTile(16, 8, 4, 4, 4, stages=3),
    RegisterTile(16, 8, 8, 4, 4, stages=4),
    RegisterTile(32, 16, 32, 4, 4),  # a stage of two loops
    RegisterTile(32, 16, 16, 4, 8),
)
SHAPES = (  # N, L, C_in, C_out, K
    (2, 11, 3, 5, 3),  # a scalar at a time
    (3, 9, 4, 12, 2),  # vectors; tiles across inputs, and a half-filled one across
    (1, 6, 8, 4, 6),  # one position
    (5, 4, 20, 20, 1),
    (1, 19, 4, 36, 3),
)
POOLED = (2, 13, 3, 5, 3), (3, 17, 4, 20, 2)
SOME = (TILES[0], TILES[3])
tiles = pytest.mark.parametrize(
    "tile",
    [tile if tile in SOME else pytest.param(tile, marks=pytest.mark.exhaustive) for tile in TILES],
    ids=lambda tile: f"{tile.rows}x{tile.columns}x{tile.depth}",
)
shapes = pytest.mark.parametrize(
    "shape", [*SHAPES[:2], *(pytest.param(shape, marks=pytest.mark.exhaustive) for shape in SHAPES[2:])], ids=str
)


def draw(n, length, c_in, c_out, k, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, length, c_in), np.float32)
    weight = rng.standard_normal((k, c_in, c_out), np.float32)
    return x, weight, rng.standard_normal(c_out, np.float32)


def exact(function, *arrays):
    return function(*(array.astype(np.float64) if isinstance(array, np.ndarray) else array for array in arrays))


def close(got, expected):
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= FLOAT32 * np.linalg.norm(expected)


def prepared(arrays, shape):
    """A call with a poisoned output of the shape."""
    out = device.to_device(np.full(shape, np.nan, np.float32))
    x, weight, bias = (device.to_device(array) for array in arrays)
    return Call(out, None, shape, x=x, weight=weight, bias=bias)


def multiply(arrays, tile, shape, epilogue, **options):
    call = prepared(arrays, shape)
    double_buffered.launch(call, call.inputs, call.out, epilogue, tile=tile, **options)
    return call.out.copy_to_host()


def once(tile, shape):
    """Each tile and each width of vectors once, for what does not depend on both: a GPU compiles for each pair."""
    return TILES.index(tile) % len(SOME) == SHAPES.index(shape) % len(SOME)


@quick(lambda: False, everywhere=False)  # the next has a tile, test_ops another one
@tiles
@shapes
def test_double_buffered_in_any_tile(tile, shape):
    arrays = draw(*shape)
    expected = exact(reference.conv1d_nlc, *arrays)
    close(multiply(arrays, tile, expected.shape, "store"), expected)


@quick(lambda tile: tile == TILES[0])  # test_ops has another tile and width
@tiles
@pytest.mark.parametrize("pool_size", [3, *(pytest.param(size, marks=pytest.mark.exhaustive) for size in (1, 2, 7))])
def test_pooling_in_any_tile(tile, pool_size):
    """Behind ReLU; scalars and vectors by turns."""
    arrays = draw(*POOLED[(TILES.index(tile) + pool_size) % len(POOLED)])
    expected = exact(reference.conv1d_relu_maxpool1d_nlc, *arrays, pool_size)
    close(multiply(arrays, tile, expected.shape, "pool", pool_size=pool_size), expected)


@quick(lambda: False, everywhere=False)  # test_ops has them, of scalars and of vectors
@tiles
@pytest.mark.parametrize("turn", range(3))
def test_statistics_in_any_tile(tile, turn):
    arrays = draw(*SHAPES[(TILES.index(tile) + 2 * turn) % len(SHAPES)])
    y, stat = exact(reference.conv1d_stat_nlc, *arrays)
    call = prepared(arrays, y.shape)
    n, length, c_out = y.shape
    partial_moments = device.to_device(
        np.full((n, length * -(-c_out // tile.columns), PART_VALUES), np.nan, np.float32)
    )
    double_buffered.launch(call, call.inputs, call.out, "stat", partial_moments=partial_moments, tile=tile)
    merged = device.to_device(np.full((n, 2), np.nan))
    launch_merge(call, partial_moments, length * c_out, merged, part=tile.columns, row=c_out)
    close(call.out.copy_to_host(), y)
    np.testing.assert_allclose(merged.copy_to_host(), stat, rtol=0, atol=4e-6 * np.abs(stat).max())


@quick(lambda: False, everywhere=False)  # a linear layer's, below and in test_images_fp32, have parts
@tiles
def test_parts_of_the_depth(tile):
    x, weight, _ = arrays = draw(3, 5, 12, 9, 3)
    step = tile.depth
    count = -(-36 // step)
    got = multiply(arrays, tile, (count, 3, 3, 9), "k_split", split_depth=step)
    rows = np.stack([x[:, t : t + 3].reshape(3, 36) for t in range(3)], 1).astype(np.float64)
    for part in range(count):
        terms = slice(part * step, (part + 1) * step)
        close(got[part], rows[:, :, terms] @ weight.reshape(36, 9)[terms].astype(np.float64))


@pytest.mark.parametrize("build", [register_tiled.make_kernel, lambda tile: vectorized.make_kernel(tile, 1)])
def test_one_stage_kernels_in_another_tile(build):
    tile, arrays = RegisterTile(32, 16, 8, 4, 4), draw(3, 13, 3, 20, 2)
    expected = exact(reference.conv1d_nlc, *arrays)
    call = prepared(arrays, expected.shape)
    call.launch(build(tile), tile.blocks(3 * 12, 20), tile.threads, *call.inputs, call.out)
    close(call.out.copy_to_host(), expected)


def test_scalars_where_vectors_would_do():
    # as for arrays that start at no multiple of 16 bytes
    tile, arrays = TILES[1], draw(3, 9, 4, 12, 2)
    expected = exact(reference.conv1d_nlc, *arrays)
    call = prepared(arrays, expected.shape)
    for kernel, rest, shared in (
        (double_buffered.make_kernel(tile, 1, "store"), (call.out, 8), double_buffered.shared_bytes(tile, "store")),
        (vectorized.make_kernel(tile, 1), (), 0),
    ):
        call.launch(kernel, tile.blocks(3 * 8, 12), tile.threads, *call.inputs, call.out, *rest, shared=shared)
        close(call.out.copy_to_host(), expected)


def test_a_rows_sum_does_not_depend_on_its_tile():
    x, weight, bias = draw(7, 9, 4, 5, 3)
    many, stat = conv1d_stat_nlc_double_buffered(x, weight, bias)
    for n in range(7):
        one, alone = conv1d_stat_nlc_double_buffered(x[n : n + 1], weight, bias)
        np.testing.assert_array_equal(one[0], many[n])
        np.testing.assert_array_equal(alone[0], stat[n])


@pytest.mark.parametrize("mean", [0.0, 1e4, -1e6])
def test_statistics_are_accurate_where_the_mean_is_large(mean):
    rng, c = np.random.default_rng(0), 10
    x = (rng.standard_normal((2, 31, c)) + mean).astype(np.float32)  # an identity passes it through
    y, stat = conv1d_stat_nlc_double_buffered(x, np.eye(c, dtype=np.float32)[None], np.zeros(c, np.float32))
    expected = reference.stat(y.astype(np.float64))
    assert abs(stat[:, 0] - expected[:, 0]).max() <= 5e-7, "in standard deviations"
    np.testing.assert_allclose(stat[:, 1], expected[:, 1], rtol=2e-6)
    gamma, beta = rng.standard_normal((2, 31, c), np.float32)
    arguments = y.astype(np.float64), expected, gamma.astype(np.float64), beta.astype(np.float64), 3
    close(
        layernorm_relu_maxpool1d_nlc_coalesced(y, stat, gamma, beta, 3),
        reference.layernorm_relu_maxpool1d_nlc(*arguments),
    )


def test_a_deep_linear_is_split(monkeypatch):
    x, weight, bias = draw(3, 1, 75, 10, 1)
    x, weight = x[:, 0], weight[0]
    expected = exact(reference.linear_relu_nlc, x, weight, bias)
    for depth in (16, 32, 75, 2304):
        monkeypatch.setattr(k_splits, "DEPTH", depth)
        close(linear_relu_nlc_double_buffered(x, weight, bias), expected)


def test_pack():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 3, 9)), rng.standard_normal((5, 3, 4))
    bias = rng.standard_normal(5)
    packed = pack(weight)
    assert packed.shape == (4, 3, 5)
    assert packed.flags.c_contiguous
    turned = reference.conv1d_nlc(np.ascontiguousarray(x.swapaxes(1, 2)), packed, bias)
    np.testing.assert_allclose(turned.swapaxes(1, 2), reference.conv1d(x, weight, bias))
    features, fc = rng.standard_normal((2, 3, 9)), rng.standard_normal((6, 27))
    by_position = pack(fc.reshape(6, 3, 9)).reshape(27, 6)
    expected = reference.linear(reference.collapse(features), fc, np.zeros(6))
    last = np.ascontiguousarray(features.swapaxes(1, 2)).reshape(2, 27)
    np.testing.assert_allclose(reference.linear_nlc(last, by_position, np.zeros(6)), expected)
    with pytest.raises(ValueError, match=r"weight has shape \(5,\)"):
        pack(bias)


@pytest.mark.parametrize(
    "sizes",
    [
        (10, 8, 4, 4, 4),  # rows are not whole threads'
        (4, 8, 4, 4, 4),  # one thread down
        (16, 8, 12, 4, 4),  # no such depth
        (16, 8, 4, 4, 2),  # columns are read by four
        (16, 8, 4, 4, 4, 1),  # one stage
        (16, 8, 16, 4, 4),  # fewer threads than a row of features
    ],
)
def test_tiles_that_no_kernel_has(sizes):
    with pytest.raises(ValueError, match=r"need|do not copy"):
        RegisterTile(*sizes)


def test_which_tile_and_width(monkeypatch):
    assert fitting(NARROW.columns) == NARROW
    assert fitting(NARROW.columns + 1) == WIDE
    four, five = np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float32)
    starts = {id(four): 4096, id(five): 4096}
    monkeypatch.setattr(device, "address", lambda array: starts[id(array)])
    assert vector_width(four, four) == ptx.VECTOR
    assert vector_width(four, five) == 1
    starts[id(four)] += 4
    assert vector_width(four, four) == 1


def test_a_window_longer_than_a_tile_is_refused():
    x, weight, bias = draw(1, NARROW.rows + 2, 1, 1, 1)
    with pytest.raises(ValueError, match=r"pool_size=\d+: need at most"):
        conv1d_relu_maxpool1d_nlc_double_buffered(x, weight, bias, NARROW.rows + 1)


def test_an_older_gpu_is_told(monkeypatch):
    gpu = type("Gpu", (), {"compute_capability": (7, 5)})
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device.cuda, "get_current_device", lambda: gpu, raising=False)
    with pytest.raises(DeviceError, match=r"cp.async needs compute capability 8.0, this GPU has 7.5; use"):
        device.require_capability((8, 0), "cp.async", "use another")
