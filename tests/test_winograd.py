"""Winograd's filtering: its matrices, the object that keeps the weights, and values that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda
from prepared import prepared

from charcnn.catalog import FLOAT32
from charcnn.gpu import device
from charcnn.layers import MaxPool1d
from charcnn.ops import conv1d_nlc_winograd, reference
from charcnn.ops.conv1d.winograd import WinogradConv, between
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices


def draw(n, length, c_in, c_out, k, seed=0):
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((n, length, c_in), np.float32), rng.standard_normal((k, c_in, c_out), np.float32)
    return x, weight, rng.standard_normal(c_out, np.float32)


def exact(function, *arrays):
    return function(*(array.astype(np.float64) if isinstance(array, np.ndarray) else array for array in arrays))


def close(got, expected):
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= FLOAT32 * np.linalg.norm(expected)


@pytest.mark.parametrize("taps", range(1, SPAN + 1))
def test_matrices(taps):
    a, g, b = matrices(taps)
    points = SPAN + taps - 1
    assert (a.shape, g.shape, b.shape) == ((SPAN, points), (points, taps), (points, points))
    rng = np.random.default_rng(taps)
    w, x = rng.standard_normal(taps), rng.standard_normal(points)
    expected = [w @ x[t : t + taps] for t in range(SPAN)]
    np.testing.assert_allclose(a @ ((g @ w) * (b @ x)), expected, rtol=1e-12, atol=1e-12)


def test_rounding_errors_stay_near_those_of_the_direct_sums():
    # By the matrices in float32 as the kernels do, at the network's depth, without the kernels.
    rng = np.random.default_rng(0)
    channels, kernel_size, tiles = 256, 7, 16
    x = np.maximum(rng.standard_normal((SPAN * (tiles + 2), channels)), 0).astype(np.float32)
    w = (rng.standard_normal((kernel_size, channels, 8)) / 42).astype(np.float32)
    a, g, b = matrices(SPAN)
    padded = np.concatenate([w, np.zeros_like(w[:1])]).astype(np.float64).reshape(2, SPAN, channels, 8)
    weights = np.einsum("pk,gkio->gpio", g, padded).astype(np.float32)
    windows = np.stack([x[SPAN * i : SPAN * i + len(b)] for i in range(tiles + 1)])
    features = np.einsum("pj,ijc->ipc", b.astype(np.float32), windows)
    products = np.zeros((tiles, len(b), 8), np.float32)
    for group in range(2):
        for c in range(channels):  # one after another, as a thread adds them up
            products += features[group : group + tiles, :, c, None] * weights[group, None, :, c]
    y = np.einsum("qp,ipo->iqo", a.astype(np.float32), products).reshape(SPAN * tiles, 8)
    expected = exact(reference.conv1d_nlc, x[None, : SPAN * tiles + kernel_size - 1], w, np.zeros(8))[0]
    close(y, expected)


@pytest.mark.parametrize("kernel_size", range(1, 10))
def test_kept_weights(kernel_size):
    x, weight, bias = draw(2, 13, 4, 5, kernel_size)
    expected, weights = exact(reference.conv1d_nlc, x, weight, bias), (weight, bias)
    close(prepared(WinogradConv, *weights).apply(x), expected)
    relu, pooled = (prepared(WinogradConv, *weights, "relu", pool) for pool in (None, MaxPool1d(2)))
    close(relu.apply(x[:1]), reference.relu(expected[:1]))
    close(pooled.apply(x), exact(reference.conv1d_relu_maxpool1d_nlc, x, weight, bias, 2))
    y, stat = prepared(WinogradConv, *weights, moments=True).with_moments(x)
    close(y, expected)
    np.testing.assert_allclose(stat, reference.stat(y.astype(np.float64)), rtol=2e-6, atol=2e-6)


def test_two_buffers_by_turns():
    x, weight, bias = draw(3, 14, 4, 4, 7)
    expected = exact(reference.conv1d_nlc, x, weight, bias)
    sizes = [int(np.prod(shape)) for shape in between(x.shape, weight.shape)]
    buffers = [device.to_device(np.full(max(*sizes, x.size), np.nan, np.float32)) for _ in range(2)]
    turns = []

    def space(shape):
        turns.append(tuple(shape))
        return buffers[len(turns) % 2][: int(np.prod(shape))].reshape(shape)

    given = space(x.shape)
    given.copy_to_device(x)
    weights = device.to_device(weight), device.to_device(bias)
    y = prepared(WinogradConv, *weights).apply(given, space=space)
    cuda.synchronize()
    close(y.copy_to_host(), expected)
    assert turns == [x.shape, *between(x.shape, weight.shape), expected.shape]
    given = space(x.shape)
    given.copy_to_device(x)
    statistics = device.to_device(np.full((3, 2), np.nan))
    y, stat = prepared(WinogradConv, *weights, moments=True).with_moments(given, out=(None, statistics), space=space)
    assert stat is statistics
    cuda.synchronize()
    close(y.copy_to_host(), expected)
    assert np.isfinite(stat.copy_to_host()).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of the simulator's scalars
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_tiles_nan(value):
    x, weight, bias = draw(1, 30, 2, 3, 3)
    whole = conv1d_nlc_winograd(x, weight, bias)
    x[0, 13, 0] = value  # read at positions 11 to 13, of the tiles 8 to 11 and 12 to 15
    y = conv1d_nlc_winograd(x, weight, bias)
    assert not np.isfinite(y[0, 11:14]).any()
    untouched = [*range(8), *range(16, 28)]
    np.testing.assert_array_equal(y[0, untouched], whole[0, untouched])


def test_what_the_weights_must_be():
    _, weight, bias = draw(1, 3, 2, 3, 3)
    with pytest.raises(ValueError, match=r"^weight has dtype float64"):
        prepared(WinogradConv, weight.astype(np.float64), bias)
    with pytest.raises(ValueError, match=r"bias has shape \(2,\)"):
        prepared(WinogradConv, weight, bias[:2])
    with pytest.raises(ValueError, match=r"^Linear\(units=3\): need Conv1d or Conv2d for WinogradConv"):
        prepared(WinogradConv, weight[0], bias)
