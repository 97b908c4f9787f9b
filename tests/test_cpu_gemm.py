"""The operators by the CPU's GEMM: every tile, and what is beyond a tile's border."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.config import SMALL
from charcnn.layers import Linear
from charcnn.model import params
from charcnn.ops import reference
from charcnn.ops.common import cpu_gemm, cpu_tile
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.cpu_gemm import RELU, CpuPacked
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv
from charcnn.ops.conv1d.winograd_transforms import SPAN
from charcnn.ops.layernorm.norm_relu_pool import MOMENTS, NormReluPool, standardising, take_moments
from charcnn.ops.token_conv1d.cpu import CHUNK, CpuTokenConvNormReluPool


def usable(name):
    try:
        return bool(cpu_tile.choose_tile(name))
    except ValueError:
        return False


def marks(name):
    """Of a tile. It is compiled for seconds in each kernel: this processor's own does."""
    if not usable(name):
        return pytest.mark.skip(reason="this processor cannot run it")
    return [] if cpu_tile.choose_tile() is cpu_tile.TILES[name] else pytest.mark.exhaustive


each_tile = pytest.mark.parametrize("tile", [pytest.param(name, marks=marks(name)) for name in cpu_tile.TILES])


def error(out, expected):
    assert out.shape == expected.shape
    return np.linalg.norm(out - expected) / np.linalg.norm(expected)


def random_ids(n, config, seed=0):
    return np.random.default_rng(seed).integers(0, config.alphabet + 1, (n, config.length), np.uint8)


def surrounded(shape):
    """An array of NaN, and the buffer of NaN in whose middle it lies."""
    size, margin = int(np.prod(shape)), 4096
    buffer = np.full(size + 2 * margin, np.nan, np.float32)
    return buffer[margin : margin + size].reshape(shape), buffer


# The micro-kernel, by way of the convolution.

TILE_BOUNDARIES = [  # n, length, c_in, c_out, k, stride, dilation, pool_size
    (1, 1, 1, 1, 1, 1, 1, 1),
    (2, 7, 3, 5, 2, 1, 1, 1),  # a tile of rows and a bit
    (1, 12, 16, 64, 1, 1, 1, 1),  # whole tiles of AVX-512
    (1, 13, 17, 65, 1, 1, 1, 1),  # and one more of each
    (3, 66, 5, 15, 7, 1, 1, 1),  # as many rows as a task takes
    (2, 69, 4, 130, 3, 1, 1, 3),
    (2, 200, 3, 9, 2, 1, 1, 7),  # windows that no tile ends with
    (1, 30, 3, 9, 3, 1, 1, 25),  # longer than a task's rows could be
    (1, 9, cpu_gemm.PART + 1, 3, 2, 1, 1, 1),  # several parts of terms
    (2, 40, 6, 20, 4, 3, 1, 2),
    (2, 40, 6, 20, 4, 1, 5, 1),
    (1, 50, 2, 33, 3, 2, 7, 3),
]


def convolve(tile, n, length, c_in, c_out, k, stride, dilation, pool_size, *, relu=True, seed=0):
    """The convolution and what it must give, both (N, L_out, C_out). Around its arrays there is NaN, and it stays."""
    rng = np.random.default_rng(seed)
    x, _ = surrounded((n, length, c_in))
    x[:] = rng.uniform(0.5, 1.5, x.shape)
    weight = rng.standard_normal((c_out, c_in, k)).astype(np.float32)
    bias = rng.standard_normal(c_out).astype(np.float32)
    expected = reference.conv1d(x.transpose(0, 2, 1).astype(np.float64), weight, bias, stride=stride, dilation=dilation)
    expected = reference.maxpool1d(reference.relu(expected) if relu else expected, pool_size).transpose(0, 2, 1)
    out, around = surrounded(expected.shape)
    packed = CpuPacked(weight.transpose(0, 2, 1)[:, None], bias, cpu_tile.choose_tile(tile))
    moves = {"stride": (1, stride), "dilation": (1, dilation), "pool_size": pool_size, "after": RELU if relu else 0}
    packed.multiply(x[:, None], out[:, None], **moves)
    assert np.isnan(around).sum() == around.size - out.size
    return out, expected


@each_tile
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sizes", TILE_BOUNDARIES, ids=lambda sizes: "-".join(map(str, sizes)))
def test_off_every_tile_boundary(tile, sizes, relu):
    out, expected = convolve(tile, *sizes, relu=relu)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5 * np.sqrt(sizes[2] * sizes[4]))
    assert error(out, expected) <= FLOAT32 or np.linalg.norm(expected) < 1


@each_tile
@pytest.mark.exhaustive
def test_any_shape(tile):
    @settings(max_examples=60)
    @given(
        st.tuples(
            st.integers(0, 3), st.integers(1, 90), st.integers(1, 20), st.integers(1, 140), st.integers(1, 9),
            st.integers(1, 4), st.integers(1, 4), st.integers(1, 5),
        ).filter(lambda s: (s[1] - s[6] * (s[4] - 1) - 1) // s[5] + 1 >= s[7] and s[1] > s[6] * (s[4] - 1)),
        st.integers(0, 2**32 - 1),
    )  # fmt: skip
    def try_one(sizes, seed):
        out, expected = convolve(tile, *sizes, relu=False, seed=seed)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)

    try_one()


@each_tile
@pytest.mark.parametrize(("n", "c_in", "c_out"), [(1, 8704, 65), (7, 3, 1), (13, 1025, 130), (61, 33, 4)])
def test_linear(tile, n, c_in, c_out):
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, c_in), (c_out, c_in), c_out))
    out = CpuConv([Linear(len(bias))], {"weight": weight.T, "bias": bias}, cpu_tile.choose_tile(tile))(
        x, np.full((n, c_out), np.nan, np.float32)
    )
    assert error(out, reference.linear(x.astype(np.float64), weight, bias)) <= FLOAT32


@each_tile
def test_an_input_alone_as_among_others(tile):
    """Few rows take tiles of few, which add up the same terms in the same order."""
    rng = np.random.default_rng(3)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 1025), (130, 1025), 130))
    layer = CpuConv([Linear(len(bias))], {"weight": weight.T, "bias": bias}, cpu_tile.choose_tile(tile))
    whole = layer(x, np.empty((9, 130), np.float32))
    for n in range(1, 9):
        np.testing.assert_array_equal(layer(x[:n], np.full((n, 130), np.nan, np.float32)), whole[:n])


@pytest.mark.parametrize(("panel", "columns", "rows"), [
    (64, 4096, None), (48, 96, None), (48, 4096, 32), (64, 4096, 48), (64, 1024, 32), (48, 1000, 32), (64, 64, 32),
])  # fmt: skip
def test_a_tile_with_little_too_much(panel, columns, rows, monkeypatch):
    monkeypatch.setattr(cpu_tile, "choose_tile", lambda: cpu_tile.TILES["avx512"])
    assert cpu_tile.tile_of_columns(columns, rows).panel == panel


@pytest.mark.parametrize("tile", [pytest.param("avx2", marks=marks("avx2"))])
def test_a_tile_that_fetches_lines_and_a_half(tile):
    of = cpu_tile.replace(cpu_tile.choose_tile(tile), rows=4, vectors=3)
    draw = np.random.default_rng(0)
    weight, bias = draw.standard_normal((50, 1, 1, 40), np.float32), draw.standard_normal(50, np.float32)
    for rows in (4, 5, 12, 33):
        x, y = draw.standard_normal((1, 1, rows, 40), np.float32), np.empty((1, 1, rows, 50), np.float32)
        CpuPacked(weight, bias, of).multiply(x, y)
        np.testing.assert_allclose(y[0, 0], x[0, 0] @ weight[:, 0, 0].T + bias, rtol=1e-4, atol=1e-4)


@each_tile
def test_launchers_take_the_environments_tile(tile, monkeypatch):
    rng = np.random.default_rng(2)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 40), (7, 5, 3), 7))
    taken = []
    compiled = cpu_gemm._compiled
    monkeypatch.setattr(cpu_gemm, "_compiled", lambda tile: taken.append(tile) or compiled(tile))
    monkeypatch.setenv("CHARCNN_CPU_TILE", tile)
    options = {"stride": 2, "padding": 3, "dilation": 2}
    out = ops.conv1d_relu_cpu_gemm(x, weight, bias, **options)
    assert error(out, reference.conv1d_relu(x.astype(np.float64), weight, bias, **options)) <= FLOAT32
    ops.linear_cpu_gemm(x[0], np.ones((7, 40), np.float32), bias)
    assert set(taken) == {cpu_tile.TILES[tile]}


def test_unknown_tile(monkeypatch):
    monkeypatch.setenv("CHARCNN_CPU_TILE", "avx1024")
    with pytest.raises(ValueError, match=r"^CHARCNN_CPU_TILE=avx1024: need one of avx512, avx2, plain$"):
        cpu_tile.choose_tile()


def test_the_processor_decides(monkeypatch):
    monkeypatch.delenv("CHARCNN_CPU_TILE", raising=False)
    for features, name in (
        ("+sse2,+avx,+avx2,+fma,+avx512f", "avx512"),
        ("+avx2,+fma,-avx512f", "avx2"),
        ("+avx2,-fma", "plain"),
        ("+neon,+fp-armv8", "plain"),
        ("", "plain"),
    ):
        monkeypatch.setattr(numba.config, "CPU_FEATURES", features)
        assert cpu_tile.choose_tile() is cpu_tile.TILES[name]
        assert cpu_tile.choose_tile("plain") is cpu_tile.TILES["plain"]
    with pytest.raises(ValueError, match=r"^CHARCNN_CPU_TILE=avx2: this processor lacks avx2, fma$"):
        cpu_tile.choose_tile("avx2")


# Winograd's filtering, by the micro-kernel.

SPANS = [  # n, length, c_in, c_out, k, pool_size
    (1, 1, 1, 1, 1, 1),
    (2, 6, 3, 5, 3, 1),  # one tile of positions
    (2, 7, 3, 5, 3, 1),  # and a position of another
    (3, 29, 5, 65, 7, 3),
    (1, 336, 8, 70, 7, 3),  # several tasks an input
    (5, 110, 4, 33, 3, 1),  # several inputs a task
    (2, 66, 5, 15, 9, 5),  # three groups of taps
    (2, 20, cpu_gemm.PART + 1, 3, 2, 1),  # several parts of terms
    (1, 30, 3, 9, 4, 27),  # one window
    (7, 300, 2, 5, 5, 1),
]


def filtered(tile, n, length, c_in, c_out, k, pool_size, *, relu, seed=0):
    """CpuWinogradConv and what it must give, both (N, L_out, C_out). Around its result there is NaN, and it stays."""
    rng = np.random.default_rng(seed)
    x, _ = surrounded((n, length, c_in))
    x[:] = rng.uniform(0.5, 1.5, x.shape)
    weight = rng.standard_normal((c_out, c_in, k)).astype(np.float32)
    bias = rng.standard_normal(c_out).astype(np.float32)
    expected = reference.conv1d(x.transpose(0, 2, 1).astype(np.float64), weight, bias)
    expected = reference.maxpool1d(reference.relu(expected) if relu else expected, pool_size).transpose(0, 2, 1)
    out, around = surrounded(expected.shape)
    pattern = pattern_of(weight.T, "relu" if relu else "", pool_size)
    packed = CpuWinogradConv(pattern, {"weight": weight.T, "bias": bias}, cpu_tile.choose_tile(tile))
    assert packed(x, out) is out
    assert np.isnan(around).sum() == around.size - out.size
    return out, expected


@each_tile
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sizes", SPANS, ids=lambda sizes: "-".join(map(str, sizes)))
def test_off_every_span(tile, sizes, relu):
    out, expected = filtered(tile, *sizes, relu=relu)
    np.testing.assert_allclose(out, expected, rtol=2e-4, atol=1e-4 * np.sqrt(sizes[2] * sizes[4]))
    assert error(out, expected) <= FLOAT32 or np.linalg.norm(expected) < 1


@each_tile
def test_any_shape_filtered(tile):
    @settings(max_examples=60)
    @given(
        st.tuples(
            st.integers(0, 3), st.integers(1, 300), st.integers(1, 20), st.integers(1, 140), st.integers(1, 9),
            st.integers(1, 5),
        ).filter(lambda s: s[1] - s[4] + 1 >= s[5]),
        st.integers(0, 2**32 - 1),
    )  # fmt: skip
    def try_one(sizes, seed):
        out, expected = filtered(tile, *sizes, relu=False, seed=seed)
        np.testing.assert_allclose(out, expected, rtol=5e-4, atol=5e-4)

    try_one()


def test_what_is_not_finite_stays_in_its_tiles_and_inputs():
    rng = np.random.default_rng(8)
    x, weight = rng.standard_normal((6, 110, 4), np.float32), rng.standard_normal((3, 4, 7), np.float32)
    bias = rng.standard_normal(7, np.float32)
    clean = ops.conv1d_nlc_winograd_cpu(x, weight, bias)
    x[1, 50], x[4, 0] = np.nan, np.inf
    out = ops.conv1d_nlc_winograd_cpu(x, weight, bias)
    with np.errstate(invalid="ignore"):
        expected = reference.conv1d_nlc(x.astype(np.float64), weight, bias)
    assert not np.isfinite(out[~np.isfinite(expected)]).any()
    spoiled = ~np.isfinite(out).all(axis=2)
    assert set(np.flatnonzero(spoiled[1]) // SPAN) == {12}  # positions 48 to 50 read it
    assert set(np.flatnonzero(spoiled[4]) // SPAN) == {0}
    assert np.array_equal(out[~spoiled], clean[~spoiled])


# The gather.


def test_the_gather_is_the_dense_convolution():
    config, ids = SMALL, random_ids(3, SMALL)
    ids[1, 100:] = config.alphabet  # blank, as a short text is
    ids[2, ::3] = 255  # blank, too
    weights = params.init(config, seed=7)
    weight, bias = weights["conv1.weight"], weights["conv1.bias"]
    dense = ops.conv1d_cpu_gemm(ops.one_hot_loops(ids, config.alphabet), weight, bias)
    out = ops.one_hot_conv1d_cpu_gather(ids, weight, bias)
    np.testing.assert_allclose(out, dense, rtol=1e-5, atol=1e-6)
    exact = reference.one_hot_conv1d(ids, weight.astype(np.float64), bias.astype(np.float64))
    assert error(out, exact) <= FLOAT32


@pytest.mark.parametrize("k", range(1, 10))
def test_blanks_add_nothing(k):
    rng = np.random.default_rng(k)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 4, k), 6))
    ids = np.full((2, 12), 4, np.uint8)
    out = ops.one_hot_conv1d_cpu_gather(ids, weight, bias)
    np.testing.assert_array_equal(out, np.broadcast_to(bias[:, None], out.shape))
    ids[1, 11] = 2  # only the last tap of the last position sees it
    out = ops.one_hot_conv1d_cpu_gather(ids, weight, bias)
    np.testing.assert_array_equal(out[1, :, :-1], np.broadcast_to(bias[:, None], (6, 12 - k)))
    np.testing.assert_allclose(out[1, :, -1], bias + weight[:, 2, k - 1], rtol=1e-6)


# LayerNorm, ReLU and max-pool.


@pytest.mark.parametrize("mean", [0, 1e2, 1e4])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (16, 3), (17, 5), (1008, 256)])
def test_statistics_are_accurate_where_the_mean_is_large(shape, mean):
    y = (mean + np.random.default_rng(3).standard_normal(shape)).astype(np.float32)
    moments = np.full((-(-len(y) // CHUNK), MOMENTS), np.nan)
    for part in range(len(moments)):
        take_moments(y[part * CHUNK : (part + 1) * CHUNK], moments[part])
    high, low, factor = standardising(moments, y.size, 1e-5)
    exact = y.astype(np.float64)
    assert abs(float(high) + float(low) - exact.mean()) <= 1e-7
    assert factor == pytest.approx(1 / np.sqrt(exact.var() + 1e-5), rel=2e-6)


def test_statistics_of_an_outlier_that_comes_first():
    y = np.ones((32, 3), np.float32)
    y[0] = 1e6
    moments = np.empty((1, MOMENTS))
    take_moments(y, moments[0])
    _, _, factor = standardising(moments, y.size, 1e-5)
    assert factor == pytest.approx(1 / y.astype(np.float64).std(), rel=2e-6)


@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize(
    ("length", "c", "k", "pool_size"), [(9, 1, 1, 3), (150, 5, 3, 3), (100, 33, 7, 4), (60, 2, 4, 59)]
)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_block(n, length, c, k, pool_size, layernorm):
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 9, (n, length), np.uint8)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((c, 8, k), c))
    gamma, beta = rng.standard_normal((2, c, length - k + 1), np.float32)  # of either sign
    if length - k + 1 < pool_size:
        pool_size = length - k + 1
    norm = NormReluPool(gamma, beta, pool_size) if layernorm else NormReluPool(None, None, pool_size)
    y = reference.one_hot_conv1d(ids, weight.astype(np.float64), bias.astype(np.float64))
    normal = reference.layernorm(y, gamma, beta) if layernorm else y
    expected = reference.relu_maxpool1d(normal, pool_size).transpose(0, 2, 1)
    out, around = surrounded(expected.shape)
    CpuTokenConvNormReluPool(weight, bias, norm, length)(ids, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    again = np.full_like(out, np.nan)
    norm(np.ascontiguousarray(y.transpose(0, 2, 1), np.float32), again)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(around).sum() == around.size - out.size


@each_tile
@pytest.mark.parametrize(("n", "c_in", "c_out"), [
    (1, 5, 3), (1, 8704, 65), (2, 1, 1), (7, 3, 1), (13, 1025, 130), (61, 33, 4), (100, 2056, 97), (385, 9, 17),
    (3, 0, 2), (0, 4, 3),
])  # fmt: skip
@pytest.mark.parametrize("relu", [False, True])
def test_a_linear_layer_used_once(tile, n, c_in, c_out, relu, monkeypatch):
    monkeypatch.setenv("CHARCNN_CPU_TILE", tile)
    rng = np.random.default_rng(4)
    x, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((n, c_in), (c_out, c_in), c_out))
    expected = reference.linear(x.astype(np.float64), weight, bias)
    expected = reference.relu(expected) if relu else expected
    out, around = surrounded((n, c_out))
    (ops.linear_relu_cpu_gemm if relu else ops.linear_cpu_gemm)(x, weight, bias, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5 * np.sqrt(c_in + 1))
    assert np.isnan(around).sum() == around.size - out.size


@each_tile
def test_a_row_alone_as_among_others_where_weights_are_used_once(tile, monkeypatch):
    """Tiles of one row and of several add up the same terms in the same order."""
    monkeypatch.setenv("CHARCNN_CPU_TILE", tile)
    rng = np.random.default_rng(5)
    x, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((9, 1033), (130, 1033), 130))
    x[4, 7] = np.nan
    whole = ops.linear_cpu_gemm(x, weight, bias)
    assert np.isnan(whole).any(1).tolist() == [row == 4 for row in range(9)]
    for n in range(1, 9):
        np.testing.assert_array_equal(ops.linear_cpu_gemm(x[n - 1 : n], weight, bias), whole[n - 1 : n])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1), (2, 3, 0, 1), (3, 2, 1, 0)])
@pytest.mark.parametrize("shape", [(1, 64, 1, 40), (2, 21, 3, 19), (1, 8, 9, 1), (1, 1, 1, 8), (1, 33, 5, 3)])
def test_packed_weights_of_any_layout(shape, order):
    """C_in, taps or C_out lie side by side in memory, or nothing does."""
    rng = np.random.default_rng(6)
    weights = rng.standard_normal([shape[axis] for axis in order]).astype(np.float32).transpose(np.argsort(order))
    for view in (weights, weights[:, ::-1], np.repeat(weights, 2, axis=3)[..., ::2]):
        n, c_out, taps, c_in = view.shape
        packed = cpu_gemm.pack(view, cpu_tile.TILES["avx2"])
        expected = np.zeros((n, packed.shape[1] * 16, taps * c_in), np.float32)
        expected[:, :c_out] = view.reshape(n, c_out, -1)
        np.testing.assert_array_equal(packed, expected.reshape(n, -1, 16, taps * c_in).transpose(0, 1, 3, 2))
