"""2:4 sparse products: what is kept, where metadata say it belongs, and the product on Hopper or in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
import sparse_conv
import steps
import tensor_energy
from tensor_energy import DEPTH, ROWS, STAGES, numbers, paired

from charcnn.gpu import device
from charcnn.gpu.emulator.wgmma import sparse_places
from charcnn.ops.common.sparse import compressed, largest

hopper_or_simulated = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)


def test_the_largest_two_of_four():
    values = np.array([[3, -4, 1, 2], [0, 0, 0, 0], [1, 1, -1, 1], [0, 0, 0, -5]], np.float32)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1]]
    np.testing.assert_array_equal(largest(values.reshape(2, 8)).reshape(4, 4), expected)


@pytest.mark.parametrize("ptx_type", ["f16", "e4m3"])
def test_compressed_is_put_back_where_it_was(ptx_type):
    depth = DEPTH[ptx_type]
    a = numbers(paired((2 * ROWS, 2 * depth), 1, np.random.default_rng(0)), ptx_type)
    a[5, 8:12] = 0  # fewer than two
    tiles = compressed(a)
    assert tiles.kept.shape == (2, 2, ROWS, depth // 2)
    for i, j in np.ndindex(2, 2):
        found = np.zeros((ROWS, depth // 4, 4), a.dtype)
        places = sparse_places(tiles.metadata[i, j], ptx_type)
        np.put_along_axis(found, places, tiles.kept[i, j].reshape(places.shape), 2)
        expected = a[ROWS * i : ROWS * (i + 1), depth * j : depth * (j + 1)]
        np.testing.assert_array_equal(found.reshape(ROWS, depth), expected)


def test_metadata_as_the_figure_of_16_bits_has_them():
    a = np.zeros((ROWS, 64), np.float16)
    a[9, 34] = a[9, 35] = 1  # the second row of warp 0's group 1; of 32 to 47 the first four, by lane 2
    metadata = compressed(a).metadata[0, 0, :, 0]
    assert metadata[4 * 1 + 2] == 0x444E4444  # 2 and 3; elsewhere 0 and 1
    assert (np.delete(metadata, 6) == 0x44444444).all()


def test_metadata_as_the_figure_of_8_bits_has_them():
    a = np.zeros((ROWS, 128), np.uint8)
    a[25, 64 + 32 + 5] = a[25, 64 + 32 + 6] = 1  # warp 1, second row of group 1; of the second 64 the second half
    metadata = compressed(a).metadata[0, 0]
    assert metadata[32 + 4 * 1 + 3, 1] == 0x44444494
    assert (metadata == 0x44444444).sum() == 255


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (np.ones((64, 64), np.float16), "need two zeros of each four"),
        (np.zeros((63, 64), np.float16), "need .M, K., multiples of 64 and 64"),
        (np.zeros((64, 64), np.uint8), "multiples of 64 and 128"),
        (np.zeros((64, 64), np.float32), "dtype float32: need float16"),
    ],
)
def test_what_is_not_compressed(values, what):
    with pytest.raises(ValueError, match=what):
        compressed(values)


def test_fours_are_whole():
    with pytest.raises(ValueError, match="6 numbers in depth"):
        largest(np.zeros((2, 6), np.float32))


@hopper_or_simulated
@pytest.mark.parametrize("ptx_type", ["f16", "e4m3"])
def test_product(ptx_type):
    assert tensor_energy.wrong(ptx_type, 8 if device.SIMULATED else 128, 1, range(2)) == []


@hopper_or_simulated
@pytest.mark.parametrize("weights", ["dense", "dense, zeros", "sparse"])
def test_what_is_measured_is_the_product(weights):
    one = tensor_energy.Product("f16", weights, "relu", 16, 1)
    operands = tensor_energy.operands_of(one)
    operands.start(1, 1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, STAGES * DEPTH["f16"])) for rows in (ROWS, 16))
    a = a if weights == "dense" else np.where(largest(a), a, 0)
    expected = a.astype(np.float16).astype(np.float64) @ np.maximum(b, 0).astype(np.float16).T.astype(np.float64)
    np.testing.assert_allclose(operands.d.copy_to_host(), expected, atol=1e-3)


@hopper_or_simulated
def test_convolution():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 14, 64)).astype(np.float16), rng.standard_normal((3, 64, 128)) / 14
    weight = np.where(largest(weight.transpose(0, 2, 1)).transpose(0, 2, 1), weight, 0).astype(np.float32)
    bias = rng.standard_normal(128).astype(np.float32)
    y = sparse_conv.SparseConv1d(weight, bias, 16)(device.to_device(x)).copy_to_host()
    expected = steps.expected("conv1d_relu", x, weight, bias)
    np.testing.assert_allclose(y.astype(np.float64), expected, atol=5e-3)
