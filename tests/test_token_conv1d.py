"""Block 1 from token ids: statistics by lags against direct sums, the gather against the dense product."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn import ops
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.token_conv1d import gather
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.weights import TokenConvWeights

TOLERANCE = 2e-6
FEW = device.SIMULATED


def tables(weight, bias):
    """The tables of `token_conv1d.lags`, in NumPy: singles (2, K, depth + 1) and pairs, a row for each (d, j)."""
    kernel_size, depth, channels = weight.shape
    rows = np.zeros((kernel_size, depth + 1, channels))
    rows[:, :depth] = weight
    rows[0] += bias  # tap 0's: it is met once a window
    sums = rows.sum(axis=2)
    squares = np.square(weight).sum(axis=2) + 2 * weight @ bias
    squares = np.pad(squares, ((0, 0), (0, 1)))
    squares[0] += bias @ bias
    pairs = [
        np.cumsum([2 * weight[k] @ weight[k + lag].T for k in range(kernel_size - lag)], axis=0)
        for lag in range(1, kernel_size)
    ]
    return np.cumsum([sums, squares], axis=1), np.concatenate([*pairs, np.zeros((0, depth, depth))])


def by_lags(ids, weight, bias):
    """Mean and variance of each input's convolution as the kernel finds them, in NumPy."""
    kernel_size, depth, channels = weight.shape
    length = ids.shape[1]
    windows = length - kernel_size + 1
    singles, pairs = tables(weight, bias)
    totals = np.zeros((len(ids), 2))
    for n, i in np.ndindex(ids.shape):
        high, low = min(i, kernel_size - 1), max(0, i - windows + 1)
        a = min(ids[n, i], depth)
        totals[n] += singles[:, high, a] - (singles[:, low - 1, a] if low else 0)
        row = 0
        for lag in range(1, kernel_size):
            last = min(high, kernel_size - 1 - lag)
            if low <= last and a < depth and ids[n, i + lag] < depth:
                b = ids[n, i + lag]
                totals[n, 1] += pairs[row + last, a, b] - (pairs[row + low - 1, a, b] if low else 0)
            row += kernel_size - lag
    mean, square = totals.T / (windows * channels)
    return np.stack([mean, square - mean**2], axis=1)


def draw(kernel_size=3, depth=5, channels=6, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((kernel_size, depth, channels), np.float32)
    return weight, rng.standard_normal(channels, np.float32)


def exact(*arrays):
    return tuple(array.astype(np.float64) for array in arrays)


def close(stat, expected, slack=1e-13):
    """Both to float64's accuracy, which a mean beside the deviation costs its square."""
    deviation = np.sqrt(expected[:, 1])
    size = abs(expected[:, 0]) + deviation
    assert (abs(stat[:, 0] - expected[:, 0]) <= slack * size).all(), (stat, expected)
    assert (abs(stat[:, 1] - expected[:, 1]) <= slack * size**2).all(), (stat, expected)
    assert (stat[:, 1] >= 0).all()


def kinds(length, depth, seed=0):
    """Ids of every kind: random, all blank, an id above, one character, two by turns, text and then blanks."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, depth + 1, (6, length), np.uint8)
    ids[1], ids[2, ::2], ids[3] = depth, 255, depth - 1
    ids[4] = np.arange(length) % min(2, depth)
    ids[5, length // 2 :] = depth
    return ids


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 7])
def test_lags_are_the_direct_statistics_at_every_length(kernel_size):
    weight, bias = exact(*draw(kernel_size, depth=4))
    for length in range(kernel_size, 3 * kernel_size + 2):
        ids = kinds(length, 4)
        expected = reference.one_hot_conv1d_stat_nlc(ids, weight, bias)
        close(np.maximum(by_lags(ids, weight, bias), [-np.inf, 0]), expected)


@pytest.mark.parametrize(("kernel_size", "depth", "channels"), [(1, 1, 1), (2, 9, 3), (7, 5, 6), (5, 17, 2)])
def test_tables(kernel_size, depth, channels):
    weight, bias = draw(kernel_size, depth, channels)
    made = PairTables(weight, bias)
    singles, pairs = tables(*exact(weight, bias))
    np.testing.assert_allclose(made.singles.copy_to_host(), singles, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(made.pairs.copy_to_host(), pairs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel_size", [1, 2, 7])
def test_statistics_at_every_length(kernel_size):
    weight, bias = draw(kernel_size, depth=4, channels=3)
    made = PairTables(weight, bias)
    for length in [*range(kernel_size, 3 * kernel_size + 2), 70]:
        ids = kinds(length, 4)
        out = np.full((len(ids), 2), np.nan)
        assert made(ids, out=out) is out
        close(out, reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))


@settings(max_examples=15)
@given(
    st.integers(0, 3), st.integers(0, 200), st.integers(1, 8) if FEW else st.sampled_from([1, 2, 4, 7]),
    st.integers(1, 12), st.integers(1, 9), st.integers(0, 99),
)  # fmt: skip
def test_statistics_of_drawn_sizes(n, more, kernel_size, depth, channels, seed):
    weight, bias = draw(kernel_size, depth, channels, seed)
    ids = np.random.default_rng(seed).integers(0, 256, (n, kernel_size + (more % 20 if FEW else more)), np.uint8)
    ids %= depth + 2
    close(PairTables(weight, bias)(ids), reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))


@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_a_mean_far_from_zero(mean):
    weight, bias = draw(7, 6, 8)
    bias += np.float32(mean)
    ids = kinds(40, 6)
    stat = PairTables(weight, bias)(ids)
    expected = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
    close(stat, expected)
    assert (abs(stat[:, 1] - expected[:, 1]) <= 1e-5 * expected[:, 1]).all()


def test_equal_values_have_no_variance():
    weight, bias = draw(3, 2, 4)
    weight[...], bias[...] = 0.1, 0.3
    stat = PairTables(weight, bias)(np.array([[0, 1, 0, 0, 1], [2] * 5], np.uint8))
    np.testing.assert_allclose(stat[:, 0], [0.6, 0.3], rtol=1e-6)
    assert (stat[:, 1] >= 0).all()
    assert (stat[:, 1] <= 1e-15).all()


def test_an_inputs_statistics_do_not_depend_on_the_others():
    weight, bias = draw(7, 6, 8)
    made, ids = PairTables(weight, bias), kinds(30, 6)
    together = made(ids)
    for n in range(len(ids)):
        np.testing.assert_array_equal(made(ids[n : n + 1]), together[n : n + 1])


def test_tables_refuse():
    weight, bias = draw(4)
    for match, wrong in (
        ("weight has shape", (weight[0], bias)),
        ("weight has shape", (weight[:, :0], bias)),
        ("weight has shape", (weight[..., :0], bias[:0])),
        ("ids has 1 positions: need at least 1 for K=0", (weight[:0], bias)),
        (r"bias has shape \(5,\): need \(6,\)", (weight, bias[1:])),
        ("weight has dtype float64", exact(weight, bias)),
        ("bias is on the device and weight is on the host", (weight, device.to_device(bias))),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            PairTables(*wrong)
    made = PairTables(weight, bias)
    ids = kinds(9, 5)
    for match, wrong, out in (
        ("ids has 3 positions: need at least 4", ids[:, :3], None),
        (r"ids has shape \(9,\)", ids[0], None),
        ("ids has dtype int64: need uint8", ids.astype(np.int64), None),
        ("out has dtype float32: need float64", ids, np.zeros((6, 2), np.float32)),
        (r"out has shape \(5, 2\)", ids, np.zeros((5, 2))),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            made(wrong, out=out)


def affine(windows, channels, seed=0):
    """gamma of either sign, with zeros, and beta."""
    rng = np.random.default_rng(seed)
    gamma, beta = rng.standard_normal((2, windows, channels), np.float32)
    gamma[::3, ::2] = 0
    return gamma, beta


def block(ids, weight, bias, pool_size, seed=0, layernorm=True, **tiles):
    """The fused kernel into a poisoned output, against its reference in float64 and the tolerance."""
    windows, channels = ids.shape[1] - len(weight) + 1, weight.shape[2]
    if layernorm:
        stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
        stat[:, 1] += 0.1  # of one value: not nothing
        given = (stat, *affine(windows, channels, seed))
        expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, *exact(stat, weight, bias, *given[1:]), pool_size
        )
    else:
        given = None
        expected = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact(weight, bias), pool_size)
    out = np.full(expected.shape, np.nan, np.float32)
    call = Call(None, None, out.shape, ids=ids, weight=weight, bias=bias)
    call.out.copy_to_device(out)
    arrays = None if given is None else tuple(map(device.to_device, given))
    gather._launch_pooled(call, *call.inputs, arrays, pool_size, **tiles)
    out = call.out.copy_to_host()
    assert np.linalg.norm(out - expected) <= TOLERANCE * max(1, np.linalg.norm(expected))


@quick(lambda layernorm, channels, tiles: layernorm == ((channels + tiles["channel_tile"] // 4) % 2 == 0))
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("channels", [4, 7, 16])
@pytest.mark.parametrize("tiles", [
    {"channel_tile": 4, "threads": 3, "staged": 200},
    {"channel_tile": 8, "threads": 8, "staged": 120},
    {"channel_tile": 12, "threads": 1, "resident": 2},
])  # fmt: skip
def test_tiles(layernorm, channels, tiles, monkeypatch):
    """Several blocks along every axis, several stages of inputs, and tiles that reach over every edge."""
    weight, bias = draw(4, 5, channels)
    ids = kinds(23, 5)
    for multiprocessors in (1, 40):
        monkeypatch.setattr(device, "multiprocessors", lambda count=multiprocessors: count)
        block(ids, weight, bias, 3, layernorm=layernorm, **tiles)


CONSTANTS = ((1, 1, 1, 3), (3, 9, 4, 8), (4, 5, 3, 17), (8, 2, 2, 150))
"""Of compiled kernels: kernel_size, depth, pool_size, and channels, of which a few become a power of two."""

constants = (
    st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(1, 4), st.integers(1, 12))
    if FEW
    else st.sampled_from(CONSTANTS)
)


@settings(max_examples=12)
@given(st.integers(0, 5), st.integers(0, 30), constants, st.booleans(), st.integers(0, 99))
def test_drawn_sizes(n, more, constants, layernorm, seed):
    kernel_size, depth, pool_size, channels = constants
    weight, bias = draw(kernel_size, depth, channels, seed)
    length = kernel_size + pool_size - 1 + more
    ids = np.random.default_rng(seed).integers(0, depth + 2, (n, length), np.uint8)
    block(ids, weight, bias, pool_size, seed, layernorm)
    y = ops.one_hot_conv1d_nlc_gather(ids, weight, bias)
    dense = reference.conv1d_nlc(reference.one_hot_nlc(ids, depth, dtype=np.float64), *exact(weight, bias))
    assert np.linalg.norm(y - dense) <= TOLERANCE * np.linalg.norm(dense)


@pytest.mark.skipif(FEW, reason="too slow in the simulator")
@quick(lambda layernorm, n: n < 300)
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("n", [1, 3, 40, 300])
def test_the_networks_sizes(layernorm, n):
    weight, bias = draw(7, 70, 256)
    ids = np.concatenate([kinds(1014, 70, seed) for seed in range(-(-n // 6))])[:n]
    close(PairTables(weight, bias)(ids), reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))
    block(ids, weight, bias, 3, layernorm=layernorm)


@pytest.mark.parametrize("kibibytes", [64, 99, 227])  # of compute capability 7.5, 8.9 and 9.0
def test_the_table_of_all_bytes_fits_any_gpu(kibibytes, monkeypatch):
    """Its 1,792 rows, by keeping fewer channels a block."""
    monkeypatch.setattr(device, "shared_limit", lambda: kibibytes << 10)
    ids = np.random.default_rng(0).integers(0, 256, (2, 9), np.uint8)
    ids[1, 5:] = 255
    block(ids, *draw(7, 255, 12), 3)


def test_every_id_above_the_alphabet_is_blank():
    weight, bias = draw(3, 4, 5)
    above = np.array([np.arange(4, 256)], np.uint8)
    blank = np.full_like(above, 4)
    gamma, beta = affine(250, 5)
    stat = PairTables(weight, bias)(blank)
    np.testing.assert_array_equal(PairTables(weight, bias)(above), stat)
    for launcher, before, after in (
        (ops.one_hot_conv1d_nlc_gather, (), ()),
        (ops.one_hot_conv1d_relu_maxpool1d_nlc_gather, (), (3,)),
        (ops.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather, (stat,), (gamma, beta, 3)),
    ):
        expected = launcher(blank, *before, weight, bias, *after)
        np.testing.assert_array_equal(launcher(above, *before, weight, bias, *after), expected)


def test_the_window_is_normalised_before_its_maximum():
    weight, bias = draw(1, 3, 4)
    ids = np.array([[0, 1, 2]], np.uint8)
    stat, beta = np.array([[0.0, 1.0]]), np.full((3, 4), 9, np.float32)
    out = ops.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather(
        ids, stat, weight, bias, np.full((3, 4), -1, np.float32), beta, 3, eps=1e-12
    )
    np.testing.assert_allclose(out[0, 0], 9 - (weight[0] + bias).min(axis=0), rtol=1e-6)


def test_block_with_a_mean_far_from_zero():
    weight, bias = draw(3, 5, 6)
    ids = kinds(20, 5)
    bias += np.float32(1e4)
    stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
    gamma, beta = affine(18, 6)
    arrays = stat, weight, bias, gamma, beta
    out = ops.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather(ids, *arrays, 3)
    expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, *exact(*arrays), 3)
    assert np.linalg.norm(out - expected) <= TOLERANCE * np.linalg.norm(expected)  # bias - mean is exact


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_wins_where_it_is_picked():
    weight, bias = draw(3, 2, 5)
    weight[1, 0, 2] = np.nan
    ids = np.array([[0, 1, 1, 1, 1, 0, 1, 1]], np.uint8)  # tap 1 meets a 0 at window 4
    out = ops.one_hot_conv1d_relu_maxpool1d_nlc_gather(ids, weight, bias, 3)
    np.testing.assert_array_equal(np.argwhere(~np.isfinite(out)), [[0, 1, 2]])
    assert np.isnan(out[0, 1, 2])


@pytest.mark.parametrize(("free", "resident", "channel_tile"), [(6000, 2, 8), (3000, 1, 8), (1400, 1, 4)])
def test_blocks_of_a_multiprocessor_share_its_memory(free, resident, channel_tile, monkeypatch):
    asked, build = [], gather._gather_pool_kernel
    monkeypatch.setattr(device, "shared_limit", lambda: free)
    monkeypatch.setattr(gather, "_gather_pool_kernel", lambda *constants: asked.append(constants) or build(*constants))
    block(kinds(9, 5), *draw(4, 5, 8), 3, staged=1000)
    ((_, _, _, tile, _, _, blocks, *_),) = asked
    assert (blocks, tile) == (resident, channel_tile)


@quick(lambda channels, layernorm, wide: layernorm == (channels != 8) and wide == (channels == 6))
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("channels", [6, 8, 64])
@pytest.mark.parametrize(("precision", "wide"), [("tf32", False), ("fp16", True)])
def test_block_with_the_digits_of_tf32(precision, wide, channels, layernorm):
    ids, (weight, bias) = kinds(11, 5), draw(3, 5, channels)
    gamma, beta = affine(9, channels)
    given = TokenConvWeights(weight, bias, *((gamma, beta) if layernorm else ()), precision=precision, wide=wide)
    on_gpu = device.to_device(ids)
    if layernorm:
        stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
        stat[:, 1] += 0.1
        arrays = exact(stat, weight, bias, gamma, beta)
        expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, *arrays, 2)
        y = given.layernorm_relu_maxpool1d(on_gpu, device.to_device(stat), 2)
    else:
        expected = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact(weight, bias), 2)
        y = given.relu_maxpool1d(on_gpu, 2)
    assert np.linalg.norm(y.copy_to_host() - expected) <= TENSOR_PRECISIONS["tf32"].tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("channels", [7, 8])
def test_block_in_two_halves_a_number(channels, layernorm):
    ids, (weight, bias) = kinds(9, 5), draw(3, 5, channels)
    gamma, beta = affine(7, channels)
    stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
    stat[:, 1] += 0.1
    given = TokenConvWeights(weight, bias, *((gamma, beta) if layernorm else ()), precision="fp16x3")
    on_gpu = device.to_device(ids)
    if layernorm:
        expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, *exact(stat, weight, bias, gamma, beta), 2
        )
        y = given.layernorm_relu_maxpool1d(on_gpu, device.to_device(stat), 2)
    else:
        expected = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact(weight, bias), 2)
        y = given.relu_maxpool1d(on_gpu, 2)
    assert y.shape == (*expected.shape[:2], 2 * channels)
    assert y.dtype == np.float16
    high, low = y.copy_to_host()[..., :channels].astype(np.float64), y.copy_to_host()[..., channels:].astype(np.float64)
    assert np.linalg.norm(high + low - expected) <= TOLERANCE * np.linalg.norm(expected)
    assert np.linalg.norm(high - expected) > 10 * TOLERANCE * np.linalg.norm(expected)


def test_a_table_that_shared_memory_does_not_hold():
    weight, bias = draw(60, 255, 4)
    ids = np.zeros((1, 70), np.uint8)
    with pytest.raises(ValueError, match=r"^weight has shape \(60, 255, 4\): its 15360 rows.* need 245760 bytes"):
        ops.one_hot_conv1d_relu_maxpool1d_nlc_gather(ids, weight, bias, 3)
    weight, bias = draw(2, 1, 4)
    with pytest.raises(ValueError, match=r"^pool_size=5000: need at most 4091 for K=2$"):
        ops.one_hot_conv1d_relu_maxpool1d_nlc_gather(np.zeros((1, 5001), np.uint8), weight, bias, 5000)


def test_no_output_channels():
    weight, bias = draw(2, 3, 0)
    ids = kinds(9, 3)
    assert ops.one_hot_conv1d_nlc_gather(ids, weight, bias).shape == (6, 8, 0)
    assert ops.one_hot_conv1d_relu_maxpool1d_nlc_gather(ids, weight, bias, 3).shape == (6, 2, 0)
