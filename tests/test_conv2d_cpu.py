"""conv2d on all CPU cores: by the GEMM and by Winograd's filtering, with every tile and any number of threads."""

from __future__ import annotations

import re

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpu_gemm import each_tile, error, surrounded

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.ops import reference
from charcnn.ops.common import cpu_tile
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.cpu_gemm import READ
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.tasks import share_out
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv, nested
from charcnn.ops.conv1d.winograd_transforms import matrices

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
sides = st.tuples(*[st.integers(0, 4)] * 4)
sizes_of = st.fixed_dictionaries({
    "n": st.integers(0, 3), "c_in": st.integers(1, 12), "c_out": st.integers(1, 40), "size": st.tuples(
        st.integers(1, 24), st.integers(1, 24)), "kernel": st.tuples(st.integers(1, 8), st.integers(1, 8)),
})  # fmt: skip


def draw(n, c_in, c_out, size, kernel, groups=1, seed=0):
    """x, channels-last, with NaN around it; weight and bias as PyTorch has them."""
    rng = np.random.default_rng(seed)
    x, _ = surrounded((n, *size, groups * c_in))
    x[:] = rng.uniform(0.5, 1.5, x.shape)
    weight = rng.standard_normal((groups * c_out, c_in, *kernel), np.float32)
    return x, weight, rng.standard_normal(groups * c_out, np.float32)


def channels_first(function, x, *others, **options):
    """A reference on images, for channels-last ones."""
    return function(x.astype(np.float64).transpose(0, 3, 1, 2), *others, **options).transpose(0, 2, 3, 1)


def made(kind, weight, bias, epilogue="", tile=None, **moves):
    """The prepared convolution, of PyTorch's weight."""
    packed, of = pack(weight), cpu_tile.choose_tile(tile) if tile else None
    return kind(pattern_of(packed, epilogue, **moves), {"weight": packed, "bias": bias}, of)


def check(layer, x, expected):
    """What the layer writes, where it may; around it there is NaN, and it stays."""
    out, around = surrounded(expected.shape)
    assert layer(x, out) is out
    np.testing.assert_allclose(out, expected, rtol=5e-4, atol=5e-4)
    assert np.isnan(around).sum() == around.size - out.size
    return out


def spans(size, kernel, padding, dilation=(1, 1)):
    return all(
        each + before + after > apart * (taps - 1)
        for each, before, after, taps, apart in zip(size, padding[::2], padding[1::2], kernel, dilation, strict=True)
    )


@each_tile
def test_any_shape(tile):
    @settings(max_examples=60)
    @given(sizes_of, st.integers(1, 3), pairs, sides, pairs, st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
    def try_one(sizes, groups, stride, padding, dilation, relu, turned, seed):
        if not spans(sizes["size"], sizes["kernel"], padding, dilation) or (groups > 1 and sizes["c_in"] == 1):
            return
        x, weight, bias = draw(**sizes, groups=groups, seed=seed)
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        expected = channels_first(reference.conv2d_relu if relu else reference.conv2d, x, weight, bias, **options)
        layer = made(CpuConv, weight, bias, "relu" if relu else "", tile, **options)
        if turned:  # channels first in memory
            x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
        check(layer, x, expected)

    try_one()


@each_tile
def test_any_shape_filtered(tile):
    @settings(max_examples=60)
    @given(sizes_of, sides, st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
    def try_one(sizes, padding, groups, relu, seed):
        if not spans(sizes["size"], sizes["kernel"], padding):
            return
        groups = groups if nested(*sizes["kernel"]) else 1
        x, weight, bias = draw(**sizes, groups=groups, seed=seed)
        options = {"padding": padding, "groups": groups}
        expected = channels_first(reference.conv2d_relu if relu else reference.conv2d, x, weight, bias, **options)
        layer = made(CpuWinogradConv, weight, bias, "relu" if relu else "", tile, **options)
        check(layer, x, expected)

    try_one()


SHAPES = [  # n, c_in, c_out, size, kernel
    (2, 20, 70, (57, 9), (3, 3)),  # several lines a task, and a last one that is shorter
    (1, 6, 10, (4, 300), (3, 3)),  # lines that are cut
    (9, 6, 33, (7, 7), (3, 3)),  # several images a task
    (1, 150, 8, (9, 10), (5, 5)),  # several parts of terms
    (1, 5, 8, (15, 16), (7, 7)),
    (1, 5, 8, (15, 16), (4, 9)),
]


@pytest.mark.parametrize("layer", [CpuConv, CpuWinogradConv])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, np.hstack(shape))))
def test_bits_do_not_depend_on_threads_or_neighbours(layer, shape):
    x, weight, bias = draw(*shape)
    expected = channels_first(reference.conv2d, x, weight, bias, padding="same")
    conv, before = made(layer, weight, bias, padding="same"), numba.get_num_threads()
    whole = check(conv, x, expected)
    try:
        numba.set_num_threads(1)
        np.testing.assert_array_equal(check(conv, x, expected), whole)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(check(conv, x[-1:], expected[-1:]), whole[-1:])


@pytest.mark.parametrize("k", [1, 3, 7])
def test_an_image_of_one_row_is_a_sequence(k):
    x, weight, bias = draw(2, 33, 40, (1, 90), (1, k))
    one = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    options = {"stride": 2, "padding": 3, "dilation": 2}
    expected = ops.conv1d_relu_cpu_gemm(one[:, :, 0], weight[:, :, 0], bias, **options)
    out = ops.conv2d_relu_cpu_gemm(one, weight, bias, stride=(1, 2), padding=(0, 3), dilation=(1, 2))
    np.testing.assert_array_equal(out[:, :, 0], expected)
    expected = ops.conv1d_relu_nlc_winograd_cpu(x[:, 0].copy(), pack(weight[:, :, 0]), bias)
    np.testing.assert_array_equal(ops.conv2d_relu_nhwc_winograd_cpu(x, pack(weight), bias)[:, 0], expected)


@pytest.mark.parametrize(("c", "k"), [(64, 3), (512, 3), (256, 4), (256, 5), (128, 7)])
def test_rounding_errors(c, k):
    rng = np.random.default_rng(c)
    x = rng.standard_normal((1, 12, 12, c), np.float32)
    weight, bias = rng.standard_normal((16, c, k, k), np.float32), np.zeros(16, np.float32)
    expected = channels_first(reference.conv2d, x, weight, bias, padding="same")
    for layer in (CpuConv, CpuWinogradConv):
        out = made(layer, weight, bias, padding="same")(x, np.empty(expected.shape, np.float32))
        assert error(out, expected) <= FLOAT32


@pytest.mark.parametrize(("taps", "span"), [(3, 4), (4, 3), (5, 2)])
def test_matrices_of_six_points(taps, span):
    a, g, b = matrices(taps, span)
    assert (a.shape, g.shape, b.shape) == ((span, 6), (6, taps), (6, 6))
    rng = np.random.default_rng(taps)
    w, x = rng.standard_normal(taps), rng.standard_normal(6)
    np.testing.assert_allclose(a @ ((g @ w) * (b @ x)), [w @ x[t : t + taps] for t in range(span)], rtol=1e-11)


def test_what_is_not_finite_stays_in_its_tiles():
    x, weight, bias = draw(2, 3, 5, (20, 20), (3, 3))
    clean = made(CpuWinogradConv, weight, bias)(x, np.empty((2, 18, 18, 5), np.float32))
    x[1, 9, 14] = np.nan  # read in rows 7 to 9 and columns 12 to 14
    out = made(CpuWinogradConv, weight, bias)(x, np.empty((2, 18, 18, 5), np.float32))
    assert np.isnan(out[1, 7:10, 12:15]).all()
    assert not np.isnan(out[0]).any()
    rows, columns = np.nonzero(np.isnan(out[1]).any(axis=2))
    assert {*rows // 4} == {1, 2}
    assert {*columns // 4} == {3}
    np.testing.assert_array_equal(out[~np.isnan(out)], clean[~np.isnan(out)])


def test_weights_that_are_only_read_and_features_that_are():
    x, weight, bias = draw(1, 4, 5, (9, 9), (3, 3))
    expected = channels_first(reference.conv2d, x, weight, bias, padding=[1, 1])
    x.flags.writeable = weight.flags.writeable = False
    for layer in (CpuConv, CpuWinogradConv):
        check(made(layer, weight, bias, padding=[1, 1]), x, expected)


@settings(max_examples=200)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 400)), st.integers(1, 240),
    st.sampled_from([4, 6]), st.integers(1, 40), st.integers(1, 64), st.sampled_from([0, 8]),
)  # fmt: skip
def test_shares(shape, most, rows, panels, workers, read):
    together, lines, columns, split = share_out(shape, most, rows, rows, panels, 0.1, workers, read)
    assert all(size >= 1 for size in (together, lines, columns))
    assert 1 <= split <= min(panels, workers)
    assert together * lines * columns <= max(most, rows) + rows
    assert together == 1 or (lines, columns) == shape[1:]
    assert lines == 1 or columns == shape[2]


@pytest.mark.parametrize("n", [1, 7, 8, 32])
@pytest.mark.parametrize("workers", [2, 8])
def test_large_weights_are_read_once(n, workers):
    assert share_out((1, 1, n), 240, 8, 8, 86, 0.02, workers, READ) == (1, 1, n, workers)


A = np.ones


def test_errors():
    x, oihw, hwio, bias = (A(s, np.float32) for s in ((1, 4, 6, 6), (8, 1, 3, 3), (3, 3, 1, 8), 8))
    with pytest.raises(ValueError, match=r"^groups=4: a group has one input channel.*; conv2d's loops and naive take"):
        ops.conv2d_cpu_gemm(x, oihw, bias, groups=4)
    with pytest.raises(ValueError, match=r"^groups=4: a group has one input channel"):
        ops.conv2d_nhwc_cpu_gemm(A((1, 6, 6, 4), np.float32), hwio, bias, groups=4)
    features, weight = A((1, 6, 6, 4), np.float32), A((3, 3, 4, 8), np.float32)
    for options in ({"stride": 2}, {"dilation": (1, 2)}, {"groups": 2}):
        given = weight[:2, :, :2].copy() if "groups" in options else weight
        words = re.escape(", ".join(f"{name}={value}" for name, value in options.items()))
        with pytest.raises(ValueError, match=rf"{words}.*: Winograd's filtering needs 1, .* conv2d_nhwc's cpu_gemm"):
            ops.conv2d_nhwc_winograd_cpu(features, given, bias, **options)
    with pytest.raises(ValueError, match=r"need C_in/groups=4"):
        ops.conv2d_relu_nhwc_cpu_gemm(features, weight.transpose(3, 2, 0, 1).copy(), bias)
    with pytest.raises(ValueError, match=r"^out has shape \(1, 4, 4, 7\): need \(1, 4, 4, 8\)"):
        ops.conv2d_nhwc_winograd_cpu(features, weight, bias, out=np.empty((1, 4, 4, 7), np.float32))
