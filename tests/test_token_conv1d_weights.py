"""Block 1 by warps, in every precision, and its statistics by tables in shared memory, against the references."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from test_token_conv1d import affine, draw, exact, kinds

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.cast import WORDS, narrow, widen
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS, choose
from charcnn.ops.token_conv1d import lag_sums
from charcnn.ops.token_conv1d.lag_sums import SharedPairTables
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.warp_gather import launch
from charcnn.ops.token_conv1d.weights import TokenConvWeights

FEW = device.SIMULATED

EIGHTHS = np.array([ptx.simulated.float_of_e4m3(bits) for bits in range(256)], np.float32)
"""Every e4m3."""


def numbers(y, precision):
    """What was written, as float32."""
    assert y.dtype == TENSOR_PRECISIONS[precision].dtype
    if precision == "fp8":
        return EIGHTHS[y]
    return y.astype(np.float32) if precision == "fp16" else (y.astype(np.uint32) << 16).view(np.float32)


def close(y, expected, precision):
    y = numbers(y, precision)
    assert y.shape == expected.shape
    assert np.linalg.norm(y - expected) <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(expected)


def block(ids, weight, bias, pool_size, precision="fp16", seed=0, layernorm=True, **tiles):
    """The kernel into a poisoned output, against the reference in float64."""
    windows, channels = ids.shape[1] - len(weight) + 1, weight.shape[2]
    gamma, beta = affine(windows, channels, seed) if layernorm else (None, None)
    kept = TokenConvWeights(weight, bias, gamma, beta, precision=precision)
    if layernorm:
        stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
        stat[:, 1] += 1  # of one value: not nothing
        arrays = exact(stat, weight, bias, gamma, beta)
        expected = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, *arrays, pool_size)
        call = Call(None, None, expected.shape, kept.precision.dtype, ids=ids, stat=stat)
        ids, stat = call.inputs
    else:
        expected = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact(weight, bias), pool_size)
        call = Call(None, None, expected.shape, kept.precision.dtype, ids=ids)
        (ids,), stat = call.inputs, None
    y = call.out.view(WORDS[call.out.dtype.itemsize])
    y.copy_to_device(np.full(expected.shape, 0x7FFF, np.uint16).astype(y.dtype))  # NaN in all formats: 0xFF in fp8
    kept.launch(call, ids, stat, call.out, pool_size, **tiles)
    close(call.out.copy_to_host(), expected, precision)


@quick(lambda layernorm, channels, tiles: layernorm == ((channels == 8) == (tiles["per"] == 4)))
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize(("channels", "precision"), [
    (8, "fp16"), (20, "fp8"), *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((7, "bf16"), (24, "fp8"))),
])  # fmt: skip
@pytest.mark.parametrize("tiles", [
    {"channel_tile": 16, "per": 4},
    {"channel_tile": 32, "per": 2, "threads": 32},
    {"channel_tile": 256, "per": 64},
])  # fmt: skip
def test_tiles(layernorm, channels, precision, tiles, monkeypatch):
    """Several blocks along every axis, several runs a warp, and tiles that reach over every edge."""
    weight, bias = draw(4, 5, channels)
    ids = kinds(23, 5)
    for multiprocessors in (1, 5):
        monkeypatch.setattr(device, "multiprocessors", lambda count=multiprocessors: count)
        block(ids, weight, bias, 3, precision, layernorm=layernorm, **tiles)


CONSTANTS = ((4, 5, 3, 8, "fp16"), (4, 5, 3, 7, "bf16"), (1, 1, 9, 40, "fp8"), (8, 9, 2, 150, "fp16"))
"""Of compiled kernels: kernel_size, depth, pool_size, channels and precision."""

constants = (
    st.tuples(
        st.integers(1, 8), st.integers(1, 9), st.integers(1, 9), st.integers(1, 12),
        st.sampled_from(["fp16", "bf16", "fp8"]),
    )
    if FEW
    else st.sampled_from(CONSTANTS)
)  # fmt: skip


@quick(lambda: False, everywhere=False)  # a GPU has those of test_ops
@settings(max_examples=12)
@given(st.integers(0, 5), st.integers(0, 30), constants, st.booleans(), st.integers(0, 99))
def test_drawn_sizes(n, more, constants, layernorm, seed):
    kernel_size, depth, pool_size, channels, precision = constants
    weight, bias = draw(kernel_size, depth, channels, seed)
    bias += 2  # so that ReLU leaves something
    length = kernel_size + pool_size - 1 + more
    ids = np.random.default_rng(seed).integers(0, depth + 2, (n, length), np.uint8)
    block(ids, weight, bias, pool_size, precision, seed, layernorm)


@pytest.mark.skipif(FEW, reason="too slow in the simulator")
@quick(lambda layernorm, precision, most: most < 300 and (layernorm or precision == "fp8"))
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8"])
@pytest.mark.parametrize("most", [40, 300])
def test_the_networks_sizes(layernorm, precision, most):
    weight, bias = draw(7, 70, 256)
    for n in (1, 3, most):  # by one test: they have one kernel
        ids = np.concatenate([kinds(1014, 70, seed) for seed in range(-(-n // 6))])[:n]
        block(ids, weight, bias, 3, precision, layernorm=layernorm)


def test_methods_and_where_they_write():
    weight, bias = draw(3, 5, 8)
    ids = kinds(20, 5)
    gamma, beta = affine(18, 8)
    stat = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
    kept = TokenConvWeights(weight, bias, gamma, beta)
    out = np.full((6, 6, 8), np.nan, np.float16)
    assert kept.layernorm_relu_maxpool1d(ids, stat, 3, out=out) is out
    arrays = exact(stat, weight, bias, gamma, beta)
    close(out, reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, *arrays, 3), "fp16")
    on_device = kept.relu_maxpool1d(cuda.to_device(ids), 3)
    close(on_device.copy_to_host(), reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *exact(weight, bias), 3), "fp16")


def test_an_input_does_not_depend_on_the_others():
    weight, bias = draw(7, 5, 8)
    kept, ids = TokenConvWeights(weight, bias), kinds(30, 5)
    together = kept.relu_maxpool1d(ids, 3)
    for n in range(len(ids)):
        np.testing.assert_array_equal(kept.relu_maxpool1d(ids[n : n + 1], 3), together[n : n + 1])


def test_windows_of_blanks_are_what_zeros_give():
    weight, bias = draw(3, 2, 8)
    ids = np.full((1, 20), 2, np.uint8)
    ids[0, 10] = 0
    y = TokenConvWeights(weight, bias).relu_maxpool1d(ids, 3)
    alone = np.maximum(bias.astype(np.float16), 0)
    for window in (0, 1, 4, 5):  # 2 and 3 read position 10
        np.testing.assert_array_equal(y[0, window], alone)
    weight[:, 1] = 0
    np.testing.assert_array_equal(
        TokenConvWeights(weight, bias).relu_maxpool1d(np.minimum(ids, 1), 3)[0, [0, 1, 4, 5]], y[0, [0, 1, 4, 5]]
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8"])
def test_nan_wins_where_it_is_picked_and_great_values_become_infinite(precision):
    weight, bias = draw(3, 2, 8)
    weight[1, 0, 2], weight[1, 0, 5] = np.nan, 1e5
    ids = np.array([[0, 1, 1, 1, 1, 0, 1, 1]], np.uint8)  # tap 1 meets a 0 at window 4
    y = numbers(TokenConvWeights(weight, bias, precision=precision).relu_maxpool1d(ids, 3), precision)
    most = 448 if precision == "fp8" else np.inf  # which knows no infinity
    np.testing.assert_array_equal(np.argwhere(~(y < 448)), [[0, 1, 2], [0, 1, 5]])
    assert np.isnan(y[0, 1, 2])
    assert y[0, 1, 5] == most


@pytest.mark.parametrize(("inputs", "per"), [(1, 1), (31, 40), (33, 33), (65, 65)])
def test_stages(inputs, per):
    """What a warp stages at once: less than an input a thread, and several times that."""
    ids = np.random.default_rng(0).integers(0, 6, (inputs, 9), np.uint8)
    block(ids, *draw(3, 5, 8), 2, per=per)


@quick(lambda depth: depth in (128, 255, 256))
@pytest.mark.parametrize(
    "depth", [127, 128, 255, 256, *(pytest.param(depth, marks=pytest.mark.exhaustive) for depth in (126, 190, 200))]
)
def test_great_alphabets(depth):
    """The blank is the least id that is none, whatever byte that is, and none of them for 256."""
    ids = np.random.default_rng(0).integers(depth - 3, min(depth + 3, 256), (3, 9)).astype(np.uint8)
    ids[0, :], ids[1, 3:] = 255, min(depth, 255)
    block(ids, *draw(2, depth, 8), 3)


@pytest.mark.parametrize("kibibytes", [99, 227])  # of compute capability 8.6 and 8.9, and of 9.0
def test_the_table_of_all_bytes_fits_any_gpu_with_tensor_cores(kibibytes, monkeypatch):
    """Its 1,792 rows, by keeping fewer channels a block: 40 would take 229,376 bytes."""
    monkeypatch.setattr(device, "shared_limit", lambda: kibibytes << 10)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    ids = np.random.default_rng(0).integers(0, 256, (2, 9), np.uint8)
    ids[1, 5:] = 255
    block(ids, *draw(7, 255, 40), 3)


def test_rows_of_256_bytes():
    """A character is a byte of its row's address."""
    block(kinds(15, 5), *draw(7, 5, 128), 3)


@pytest.mark.skipif(FEW, reason="the simulator has no addresses")
@pytest.mark.parametrize("behind", [1, 2, 3, 4])
def test_ids_at_any_address(behind):
    weight, bias = draw(7, 5, 8)
    kept, ids = TokenConvWeights(weight, bias), kinds(31, 5)
    held = cuda.to_device(np.concatenate([np.zeros(behind, np.uint8), ids.ravel()]))
    y = kept.relu_maxpool1d(held[behind:].reshape(ids.shape), 3).copy_to_host()
    np.testing.assert_array_equal(y, kept.relu_maxpool1d(ids, 3))


@pytest.mark.parametrize(("free", "channel_tile", "threads"), [(3300, 24, 32), (2500, 8, 32)])
def test_fewer_channels_where_shared_memory_is_short(free, channel_tile, threads, monkeypatch):
    asked, build = [], launch._warp_gather_pool_kernel
    monkeypatch.setattr(device, "shared_limit", lambda: free)
    monkeypatch.setattr(
        launch, "_warp_gather_pool_kernel", lambda *constants: asked.append(constants) or build(*constants)
    )
    block(kinds(9, 5), *draw(4, 5, 32), 3, threads=32)
    ((_, _, _, *tiles, _, _, _, _, _),) = asked
    assert tiles == [channel_tile, threads]


def test_only_the_first_launch_waits_for_the_table(monkeypatch):
    """Later ones copy it while the kernel before still runs."""
    early, weights = [], TokenConvWeights(*draw(3, 5, 8))
    monkeypatch.setattr(device, "begins_early", lambda: True)
    monkeypatch.setattr(Call, "launch", lambda *_, **options: early.append(options["early"]))
    weights.relu_maxpool1d(kinds(9, 5)[:0], 3)  # nothing is launched
    for _ in range(3):
        weights.relu_maxpool1d(kinds(9, 5), 3)
    assert early == [False, True, True]


def test_a_callers_own_table_is_read_in_order(monkeypatch):
    """Its owner may write it, on the same stream."""
    early, weights = [], TokenConvWeights(*(cuda.to_device(array) for array in draw(3, 5, 8)), precision="tf32")
    monkeypatch.setattr(device, "begins_early", lambda: True)
    monkeypatch.setattr(Call, "launch", lambda *_, **options: early.append(options["early"]))
    for _ in range(2):
        weights.relu_maxpool1d(cuda.to_device(kinds(9, 5)), 3)
    assert early == [False, False]


def test_what_half_precision_refuses():
    weight, bias = draw(3, 5, 8)
    gamma, beta = affine(7, 8)
    for match, wrong in (
        ("weight has dtype float64", (weight.astype(np.float64), bias)),
        (r"bias has shape \(7,\): need \(8,\)", (weight, bias[1:])),
        (r"beta has shape \(6, 8\): need \(7, 8\)", (weight, bias, gamma, beta[1:])),
        (r"gamma has shape \(8,\)", (weight, bias, gamma[0], beta)),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            TokenConvWeights(*wrong)
    with pytest.raises(ValueError, match=r"^precision='fp32': need one of fp16, bf16, tf32, fp16x3, fp8"):
        TokenConvWeights(weight, bias, precision="fp32")
    with pytest.raises(ValueError, match=r"^wide=True: need precision fp16, not bf16$"):
        TokenConvWeights(weight, bias, precision="bf16", wide=True)
    ids, stat = kinds(9, 5), np.ones((6, 2))
    with pytest.raises(ValueError, match=r"^gamma is None"):
        TokenConvWeights(weight, bias).layernorm_relu_maxpool1d(ids, stat, 3)
    kept = TokenConvWeights(weight, bias, gamma, beta)
    for match, wrong in (
        (r"gamma has shape \(7, 8\): need \(6, 8\)", (ids[:, 1:], stat)),
        (r"stat has shape \(5, 2\): need \(6, 2\)", (ids, stat[1:])),
        ("ids has dtype int64", (ids.astype(np.int64), stat)),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            kept.layernorm_relu_maxpool1d(*wrong, 3)
    with pytest.raises(ValueError, match=r"^out has dtype float32: need float16"):
        kept.relu_maxpool1d(ids, 3, out=np.zeros((6, 2, 8), np.float32))


def test_a_table_that_shared_memory_does_not_hold(monkeypatch):
    monkeypatch.setattr(device, "shared_limit", lambda: 4096)  # a table for more takes the simulator a minute
    weight, bias = draw(4, 60, 8)
    with pytest.raises(ValueError, match=r"^weight has shape \(4, 60, 8\), pool_size=3: 244 rows of 8 channels"):
        TokenConvWeights(weight, bias).relu_maxpool1d(np.zeros((1, 70), np.uint8), 3)
    weight, bias = draw(2, 1, 8)
    with pytest.raises(ValueError, match=r"^weight has shape \(2, 1, 8\), pool_size=5000: .* need 641088 bytes"):
        TokenConvWeights(weight, bias).relu_maxpool1d(np.zeros((1, 5001), np.uint8), 5000)


def test_no_output_channels():
    weight, bias = draw(2, 3, 0)
    assert TokenConvWeights(weight, bias).relu_maxpool1d(kinds(9, 3), 3).shape == (6, 2, 0)


# The numbers themselves.


@pytest.mark.parametrize("precision", list(HALF_PRECISIONS))
def test_narrow_and_widen(precision):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 3, 5)) * 10.0 ** rng.integers(-9, 9, (2, 3, 5))).astype(np.float32)
    x[0, 0] = [0, -0.0, np.inf, -np.inf, np.nan]
    x[0, 1] = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65520]  # ties to even; past fp16's greatest
    call = Call(None, None, x.shape, x=x)
    y = narrow(call, *call.inputs, 4, 6, choose(precision))
    got = numbers(y.copy_to_host(), precision)
    with np.errstate(over="ignore"):
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        expected = x.astype(np.float16).astype(np.float32) if precision == "fp16" else np.where(x == x, rounded, np.nan)
    np.testing.assert_array_equal(got[:, :3, :5], expected)
    assert not got[:, 3:].any()
    assert not got[:, :, 5:].any()
    wide = call.scratch(y.shape, np.float32)
    widen(call, y, wide, choose(precision))
    np.testing.assert_array_equal(wide.copy_to_host(), got)


# Statistics, not by clusters: those are in test_cluster_moments.


@pytest.fixture
def no_clusters(monkeypatch):
    monkeypatch.setattr(lag_sums, "CLUSTER_INPUTS", 0)


def accurate(stat, expected, slack=5e-7):
    deviation = np.sqrt(expected[:, 1])
    size = abs(expected[:, 0]) + deviation
    assert (abs(stat[:, 0] - expected[:, 0]) <= slack * size).all(), (stat, expected)
    assert (abs(stat[:, 1] - expected[:, 1]) <= slack * size**2).all(), (stat, expected)
    assert (stat[:, 1] >= 0).all()


@pytest.mark.parametrize("kernel_size", [1, 2, 7])
def test_statistics_at_every_length(kernel_size, no_clusters):
    weight, bias = draw(kernel_size, depth=4, channels=3)
    made = SharedPairTables(weight, bias)
    for length in [*range(kernel_size, 3 * kernel_size + 2), 70]:
        ids = kinds(length, 4)
        out = np.full((len(ids), 2), np.nan)
        assert made(ids, out=out) is out
        accurate(out, reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))


def test_the_tables_of_all_bytes_stay_in_global_memory():
    """A lag's 256 by 256 float32 are more than any GPU's shared memory."""
    weight, bias = draw(2, 255, 1)
    ids = np.random.default_rng(0).integers(0, 256, (200, 6), np.uint8)  # more than multiprocessors
    ids[1, 3:] = 255
    accurate(SharedPairTables(weight, bias)(ids), reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))


@pytest.mark.parametrize("kept_lags", [0, 1, 3, 6])
def test_lags_that_shared_memory_does_not_hold(kept_lags, monkeypatch, no_clusters):
    asked, build = [], lag_sums._stat_kernel
    monkeypatch.setattr(lag_sums, "_stat_kernel", lambda *constants: asked.append(constants) or build(*constants))
    weight, bias = draw(7, 9, 4)
    few = 4 * lag_sums._floats(0, 9) + lag_sums.SUMS + lag_sums.RESERVED
    monkeypatch.setattr(device, "shared_limit", lambda: few + 400 * kept_lags)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    ids = kinds(40, 9)
    accurate(SharedPairTables(weight, bias)(ids), reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))
    ((*_, kept, _, _),) = asked
    assert kept == kept_lags


@pytest.mark.parametrize(("threads", "warp", "n"), [(32, 32, 7), (32, 8, 1), (32, 8, 3), (32, 8, 8), (32, 8, 19)])
def test_threads_of_an_input(threads, warp, n, monkeypatch, no_clusters):
    """An input a block, several a block, and more than the blocks take at once."""
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    monkeypatch.setattr(lag_sums, "THREADS", threads)
    monkeypatch.setattr(lag_sums, "WARP", warp)
    weight, bias = draw(3, 4, 3)
    ids = np.random.default_rng(0).integers(0, 6, (n, 15), np.uint8)
    made = SharedPairTables(weight, bias)
    stat = made(ids)
    accurate(stat, reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias)))
    np.testing.assert_array_equal(made(ids), stat)


@pytest.mark.skipif(FEW, reason="too slow in the simulator")
@pytest.mark.parametrize("n", [1, 300, 5000])
def test_statistics_at_the_networks_sizes(n, no_clusters):
    weight, bias = draw(7, 70, 256)
    ids = np.random.default_rng(n).integers(0, 72, (n, 1014), np.uint8)
    ids[::2, 235:] = 70
    accurate(SharedPairTables(weight, bias)(ids), PairTables(weight, bias)(ids))
