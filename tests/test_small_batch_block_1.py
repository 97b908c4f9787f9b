"""Block 1 of an input or a few in one kernel, with its moments: in emulation, and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import by_turns, quick
from small_batch_cases import near, numbers, on_a_gpu, poisoned, small_batch_machine
from spaces import Space

from charcnn.compiling.networks import BATCHES
from charcnn.gpu import device, emulator
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.token_conv1d.in_parts import sums_shape
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.layers import ALONE, SmallBatchTokenConvNormReluPool, TokenConvNormReluPool
from charcnn.ops.token_conv1d.small_batch import conv_block_1
from charcnn.ops.token_conv1d.weights import TokenConvWeights

machine = small_batch_machine


def check_block_1(n, length, depth, channels, taps, precision, pool=3, wide=False, in_parts=False, **options):
    rng, of = np.random.default_rng(channels), TENSOR_PRECISIONS[precision]
    weight = rng.standard_normal((taps, depth, channels)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) + 2
    positions = length - taps + 1
    gamma, beta = (rng.standard_normal((positions, channels)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, depth + 3, (n, length), np.uint8)  # some beyond the blank
    ids[0, -taps:] = depth  # the end of a short text
    exact = [array.astype(np.float64) for array in (weight, bias)]
    want = reference.one_hot_conv1d_nlc(np.minimum(ids, depth), *exact)
    want = reference.layernorm_relu_maxpool1d_nlc(want, reference.stat(want), gamma, beta, pool, eps=0.5)
    block = TokenConvWeights(weight, bias, gamma, beta, precision=precision, wide=wide)
    tables = PairTables(weight, bias)

    def run(ids):
        out = poisoned((len(ids), want.shape[1], of.terms * channels), of.dtype)
        given = {**options, "eps": 0.5, "out": out}
        if in_parts:
            given["sums"] = poisoned(sums_shape(*ids.shape), np.float64)
        assert conv_block_1(device.to_device(ids), block, tables, pool, **given) is out
        return out

    together = run(ids)
    near(numbers(together, of), want, TENSOR_PRECISIONS["tf32"].tolerance if wide else of.tolerance)
    np.testing.assert_array_equal(run(ids[-1:]).copy_to_host(), together.copy_to_host()[-1:], "bit-equal")


@quick(lambda: False, everywhere=False)  # the network's sizes have it
@pytest.mark.parametrize(
    "precision",
    [pytest.param(one, marks=() if one == "fp8" else pytest.mark.exhaustive) for one in TENSOR_PRECISIONS],
)
def test_block_1(precision, machine):
    check_block_1(2, 14, 5, 24, 3, precision)


@quick(lambda: False, everywhere=False)
@pytest.mark.parametrize(
    "precision",
    [pytest.param(one, marks=() if one == "fp16" else pytest.mark.exhaustive) for one in TENSOR_PRECISIONS],
)
def test_block_1_without_clusters(precision, machine):
    with emulator.checking(seed=3) as findings:
        check_block_1(2, 14, 5, 24, 3, precision, in_parts=True)
    assert not findings


@pytest.mark.parametrize(
    ("length", "channels", "taps", "pool"),
    [
        pytest.param(262, 8, 3, 9, marks=pytest.mark.exhaustive),  # three parts
        pytest.param(4100, 8, 1, 3, marks=pytest.mark.exhaustive),  # more than a warp has lanes
        (9, 8, 7, 3),  # each position is at an end
        (13, 264, 1, 2),  # no pairs, and two runs of channels
    ],
)
def test_block_1_without_clusters_at_edges(length, channels, taps, pool, machine):
    check_block_1(2, length, 5, channels, taps, "fp16x3", pool, in_parts=True)


@pytest.mark.exhaustive
def test_block_1_in_fp16_that_is_computed_in_float32(machine):
    check_block_1(2, 14, 5, 24, 3, "fp16", wide=True)


@pytest.mark.parametrize(
    ("length", "channels", "taps", "pool", "cluster"),
    [
        pytest.param(262, 8, 3, 9, 2, marks=pytest.mark.exhaustive),  # some lanes look up two positions, and the last
        (9, 8, 7, 3, 2),  # each position is at an end
        (13, 264, 1, 2, 2),  # no pairs, and two runs of channels
        pytest.param(24, 8, 5, 9, 4, marks=pytest.mark.exhaustive),  # blocks of one window, and some of none
    ],
)
def test_block_1_at_edges(length, channels, taps, pool, cluster, machine):
    check_block_1(2, length, 5, channels, taps, "fp16x3", pool, cluster=cluster)


@on_a_gpu
@quick(lambda precision, length: length == 1014)
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
@pytest.mark.parametrize(("n", "length", "channels"), [(1, 1014, 256), (3, 100, 264), (2, 1500, 8)])
def test_block_1_of_the_network(n, length, channels, precision):
    check_block_1(n, length, 70, channels, 7, precision)
    if precision == "fp16":
        check_block_1(n, length, 70, channels, 7, precision, wide=True)
    check_block_1(n, length, 70, channels, 7, precision, in_parts=True)


def test_block_1_far_from_zero(machine):
    """Moments keep the digits that sums of squares lose in float32: a mean of some hundred deviations."""
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((3, 5, 16)).astype(np.float32) / 256, np.full(16, 8, np.float32)
    gamma, beta = np.ones((38, 16), np.float32), np.zeros((38, 16), np.float32)
    ids = rng.integers(0, 6, (1, 40), np.uint8)
    want = reference.one_hot_conv1d_nlc(ids, weight.astype(np.float64), bias.astype(np.float64))
    want = reference.layernorm_relu_maxpool1d_nlc(want, reference.stat(want), gamma, beta, 3)
    block = TokenConvWeights(weight, bias, gamma, beta, precision="fp16x3")
    out = poisoned((1, 12, 32), np.float16)
    conv_block_1(device.to_device(ids), block, PairTables(weight, bias), 3, out=out)
    near(numbers(out, TENSOR_PRECISIONS["fp16x3"]), want, 2.0**-24 * 8 * 256 / 2)  # sums' own rounding


@by_turns
def test_the_layer_gives_what_that_of_all_inputs_does(machine):
    rng, of = np.random.default_rng(0), TENSOR_PRECISIONS["tf32"]
    weight, bias = rng.standard_normal((3, 5, 16)).astype(np.float32), rng.standard_normal(16).astype(np.float32)
    norm = [rng.standard_normal((12, 16)).astype(np.float32) for _ in range(2)]
    whole, ids = TokenConvNormReluPool(weight, bias, norm, 3, precision="tf32"), rng.integers(0, 7, (2, 14), np.uint8)
    layers = [whole, *(SmallBatchTokenConvNormReluPool(whole, clusters=clusters) for clusters in (True, False))]
    assert all(layer.writes(ids.shape) == whole.writes(ids.shape) for layer in layers)
    many, *few = (numbers(one(device.to_device(ids), Space(one.scratch(ids.shape))), of) for one in layers)
    for y in few:
        near(y, many, of.tolerance)


def test_kernels_on_both_sides_are_compiled_ahead():
    assert {ALONE, ALONE + 1} <= set(BATCHES)


def test_block_1_of_what_does_not_fit(machine):
    weight, bias, ids = np.zeros((3, 5, 8), np.float32), np.zeros(8, np.float32), np.zeros((1, 14), np.uint8)
    affine = (np.zeros((12, 8), np.float32),) * 2
    block, tables, ids = TokenConvWeights(weight, bias, *affine), PairTables(weight, bias), device.to_device(ids)
    with pytest.raises(ValueError, match=r"pool_size=10: need 1 to 9"):
        conv_block_1(ids, block, tables, 10)
    with pytest.raises(ValueError, match=r"sums has shape \(1, 2, 2\): need \(1, 1, 2\)"):
        conv_block_1(ids, block, tables, 3, sums=device.to_device(np.zeros((1, 2, 2))))
    for cluster in (1, 9):
        with pytest.raises(ValueError, match=f"cluster={cluster}: need 2 to 8 blocks"):
            conv_block_1(ids, block, tables, 3, cluster=cluster)
    with pytest.raises(ValueError, match="ids has 13 positions: need 14, as gamma has 12"):
        conv_block_1(device.to_device(np.zeros((1, 13), np.uint8)), block, tables, 3)
    with pytest.raises(ValueError, match="weights has no gamma"):
        conv_block_1(ids, TokenConvWeights(weight, bias), tables, 3)
    with pytest.raises(ValueError, match=r"tables is of a weight \(2, 5, 8\): need \(3, 5, 8\)"):
        conv_block_1(ids, block, PairTables(weight[:2].copy(), bias), 3)
    with pytest.raises(ValueError, match="weights has C_out=4: need a multiple of 8"):
        conv_block_1(ids, TokenConvWeights(weight[..., :4].copy(), bias[:4].copy()), tables, 3)
    with pytest.raises(ValueError, match="whole has norm=None"):
        SmallBatchTokenConvNormReluPool(TokenConvNormReluPool(weight, bias, None, 3, precision="fp16"))
