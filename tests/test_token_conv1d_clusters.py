"""Block 1 by warps whose blocks, in clusters, take the moments themselves: in emulation, and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from small_batch_cases import near, numbers, on_a_gpu, poisoned, small_batch_machine
from spaces import Space

from charcnn.compiling.networks import BATCHES
from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.token_conv1d.cluster_moments import HELD_BYTES
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.layers import TOGETHER, TokenConvNormReluPool
from charcnn.ops.token_conv1d.warp_gather import launch
from charcnn.ops.token_conv1d.warp_gather.launch import Tiles
from charcnn.ops.token_conv1d.weights import TokenConvWeights

machine = small_batch_machine


def drawn(n, length, depth, channels, taps, pool):
    """Token ids, parameters, and the result in float64."""
    rng = np.random.default_rng(channels + n)
    weight = rng.standard_normal((taps, depth, channels)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) + 2
    norm = [rng.standard_normal((length - taps + 1, channels)).astype(np.float32) for _ in range(2)]
    ids = rng.integers(0, depth + 3, (n, length), np.uint8)  # some beyond the blank
    ids[0, -taps - pool :] = depth  # the end of a short text
    want = reference.one_hot_conv1d_nlc(np.minimum(ids, depth), weight.astype(np.float64), bias.astype(np.float64))
    return ids, weight, bias, norm, reference.layernorm_relu_maxpool1d_nlc(want, reference.stat(want), *norm, pool)


def check(n, length, depth, channels, taps, precision, pool=3, *, octets=False, **tiles):
    of, (ids, weight, bias, norm, want) = TENSOR_PRECISIONS[precision], drawn(n, length, depth, channels, taps, pool)
    block = TokenConvWeights(weight, bias, *norm, precision=precision, octets=octets)
    tables = PairTables(weight, bias)

    def run(ids):
        out, ids = poisoned((len(ids), want.shape[1], of.terms * channels), of.dtype), device.to_device(ids)
        call = Call(out, None, out.shape, of.dtype, ids=ids)
        block.launch(call, ids, tables, out, pool, **tiles)
        return out

    together = run(ids)
    host = together.copy_to_host()
    np.testing.assert_array_equal(run(ids).copy_to_host(), host, "bit-equal")
    np.testing.assert_array_equal(run(ids[-1:]).copy_to_host(), host[-1:], "whatever comes with an input")
    got = numbers(together, of)
    if octets:
        high, low = np.moveaxis(host.astype(np.float64).reshape(*host.shape[:-1], -1, 2, 8), -2, 0)
        got = (high + low / ptx.LOW_SCALE).reshape(want.shape)
    near(got, want, of.tolerance)


@quick(lambda: False)  # the network's sizes have it
@pytest.mark.parametrize("octets", [False, True])
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
def test_every_precision(precision, octets, machine):
    if octets and precision != "fp16x3":
        pytest.skip("octets are of fp16x3")
    check(3, 15, 5, 24, 3, precision, octets=octets, channel_tile=32)


@quick(lambda n: n in (3, 33))
@pytest.mark.parametrize(
    ("n", "length", "channels", "taps", "pool", "precision", "tiles"),
    [
        (1, 9, 8, 7, 3, "fp16", {"cluster": 2}),  # each position is at an end
        (5, 13, 7, 1, 2, "bf16", {"cluster": 3}),  # no pairs, and no whole vectors
        (33, 11, 8, 4, 2, "fp8", {"per": 3}),  # fewer inputs in the last cluster
        (3, 75, 40, 2, 3, "fp16", {"channel_tile": 32, "cluster": 7}),  # three tiles of channels, twice
        (3, 35, 9, 4, 2, "tf32", {"channel_tile": 16, "cluster": 4}),  # three, once
        pytest.param(1, 1061, 8, 3, 2, "fp16", {"cluster": 2}, marks=pytest.mark.exhaustive),  # lanes look up twice
    ],
)
def test_at_edges(n, length, channels, taps, pool, precision, tiles, machine):
    check(n, length, 5, channels, taps, precision, pool, **tiles)


@on_a_gpu
@quick(lambda precision, n: n == 33 or precision == "fp8")
@pytest.mark.parametrize("precision", TENSOR_PRECISIONS)
@pytest.mark.parametrize(("n", "length", "channels", "tiles"), [
    (33, 1014, 256, {}), (3, 1014, 256, {"cluster": 4}), (66, 301, 256, {}), (5, 1500, 8, {"cluster": 2}),
    (140, 100, 264, {}),
])  # fmt: skip
def test_of_the_network(n, length, channels, tiles, precision):
    check(n, length, 70, channels, 7, precision, **tiles)


@quick(lambda n: n == TOGETHER[0])
@pytest.mark.parametrize("n", [TOGETHER[0] - 1, TOGETHER[0], TOGETHER[1] + 1])
def test_the_layer_of_a_few_inputs_launches_one_kernel(n, machine, monkeypatch):
    launched, start, of = [], Call.launch, TENSOR_PRECISIONS["fp16"]
    if device.SIMULATED:
        monkeypatch.setattr(device, "has_tensor_cores", lambda *, hopper=False: True)
    ids, weight, bias, norm, want = drawn(n, 11, 5, 8, 3, 3)
    layer = TokenConvNormReluPool(weight, bias, norm, 3, precision="fp16")
    monkeypatch.setattr(
        Call,
        "launch",
        lambda *args, cluster=1, **more: launched.append(cluster) or start(*args, cluster=cluster, **more),
    )
    y = layer(device.to_device(ids), Space(layer.scratch(ids.shape)))
    assert launched == ([8] if n == TOGETHER[0] else [1, 1])
    near(numbers(y, of), want, of.tolerance)


def test_other_gpus_have_a_kernel_for_the_moments():
    weight, bias, norm = np.zeros((3, 5, 8), np.float32), np.zeros(8, np.float32), (np.zeros((12, 8), np.float32),) * 2
    layer = TokenConvNormReluPool(weight, bias, norm, 3, precision="fp16")
    hopper = device.has_tensor_cores(hopper=True)
    assert [layer.together(n) for n in (TOGETHER[0] - 1, *TOGETHER, TOGETHER[1] + 1)] == [False, hopper, hopper, False]
    assert not TokenConvNormReluPool(weight, bias, None, 3, precision="fp16").together(TOGETHER[0])
    assert list(layer.scratch((TOGETHER[0], 14))) == ["moments"]  # of fewer inputs than the most


def test_more_channels_than_a_cluster_keeps(machine, monkeypatch):
    weight, bias, norm = (
        np.zeros((3, 5, 80), np.float32),
        np.zeros(80, np.float32),
        (np.zeros((12, 80), np.float32),) * 2,
    )
    layer = TokenConvNormReluPool(weight, bias, norm, 3, precision="fp16")
    block, tables = layer.weights, PairTables(weight, bias)
    ids = device.to_device(np.zeros((3, 14), np.uint8))
    call = Call(None, None, (3, 4, 80), np.float16, ids=ids)
    with pytest.raises(ValueError, match="cluster=8: need at least 10 blocks, which have all channels, and at most 8"):
        block.launch(call, ids, tables, call.out, 3, channel_tile=16)
    monkeypatch.setattr(device, "has_tensor_cores", lambda *, hopper=False: True)
    assert layer.together(TOGETHER[0])
    room = 2 * 16 * 3 * 6 + device.block_size(512) * 4 * 16 + HELD_BYTES  # two vectors of channels, and records
    monkeypatch.setattr(device, "shared_limit", lambda: room)
    assert layer.together(TOGETHER[0])
    monkeypatch.setattr(device, "shared_limit", lambda: room - 1)
    assert not layer.together(TOGETHER[0])


@pytest.mark.parametrize(("wide", "cluster", "blocks", "per"), [
    (False, 8, 8, [1, 1, 2, 2, 3, 4, 5, 16]), (True, 8, 8, [1, 1, 2, 2, 3, 4, 5, 16]),
    (True, 7, 4, [1, 1, 1, 1, 2, 2, 3, 16]), (False, 2, 2, [1, 1, 1, 1, 1, 1, 2, 16]),
])  # fmt: skip
def test_all_clusters_run_at_once(wide, cluster, blocks, per, monkeypatch):
    """An H200 has 8 times 16 multiprocessors, and 4 more."""
    monkeypatch.setattr(device, "multiprocessors", lambda: device.MULTIPROCESSORS)
    monkeypatch.setattr(device, "shared_limit", lambda: device.SHARED_LIMIT)
    tile = Tiles.of((7, 70, 256), 3, True, wide, threads=512)
    chosen = [launch._clusters(n, tile, cluster, 64) for n in (3, 16, 17, 32, 33, 64, 66, 2000)]
    assert chosen == [(blocks, each) for each in per]


def test_kernels_on_both_sides_are_compiled_ahead():
    least, most = TOGETHER
    assert {least - 1, least, most, most + 1} <= set(BATCHES)


def test_what_does_not_fit(machine):
    weight, bias, ids = np.zeros((3, 5, 8), np.float32), np.zeros(8, np.float32), np.zeros((1, 14), np.uint8)
    affine = (np.zeros((12, 8), np.float32),) * 2
    block, tables = TokenConvWeights(weight, bias, *affine), PairTables(weight, bias)
    for cluster in (1, 9):
        with pytest.raises(ValueError, match=f"cluster={cluster}: need at least 2 blocks"):
            block.conv_block_1(ids, tables, 3, cluster=cluster)
    with pytest.raises(ValueError, match=r"gamma has shape \(12, 8\): need \(11, 8\)"):
        block.conv_block_1(ids[:, 1:].copy(), tables, 3)
    with pytest.raises(ValueError, match="gamma is None"):
        TokenConvWeights(weight, bias).conv_block_1(ids, tables, 3)
    with pytest.raises(ValueError, match=r"tables is of a weight \(2, 5, 8\): need \(3, 5, 8\)"):
        block.conv_block_1(ids, PairTables(weight[:2].copy(), bias), 3)
