"""The technique `direct`: any plan, strips and images by turns, copies and stores of any width, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from conftest import quick, sampled
from numba import cuda

from charcnn import ops
from charcnn.catalog import FLOAT32, network
from charcnn.gpu import device
from charcnn.layers.windows import Window, window
from charcnn.networks import cuda as cuda_networks
from charcnn.networks.calls import operator
from charcnn.networks.lowering import lower
from charcnn.ops import reference
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.conv2d import direct, direct_plan
from charcnn.ops.conv2d.direct_plan import NO_POOL, DirectTile

CASES = {  # x, (C_out, KH, KW), how it moves, pooling
    "vectors": ((3, 2, 7, 12), (3, 3, 3), {"padding": 1}, None),
    "pairs": ((2, 1, 6, 10), (5, 2, 3), {"padding": (1, 0, 2, 2)}, None),
    "odd": ((2, 2, 5, 9), (2, 3, 2), {"stride": (2, 1), "dilation": (1, 2)}, None),
    "strides": ((1, 1, 9, 11), (4, 3, 5), {"stride": 2, "padding": 2}, None),
    "pooled": ((3, 1, 8, 8), (6, 3, 3), {"padding": 1}, Window((2, 2), (2, 2))),
    "overlapping": ((2, 1, 9, 10), (2, 2, 2), {}, Window((3, 2), (2, 1))),
    "gaps": ((1, 2, 9, 9), (3, 2, 1), {}, Window((1, 2), (3, 3))),
    "wide": ((1, 1, 3, 30), (1, 2, 23), {"padding": (0, 0, 3, 2)}, None),
}


@pytest.fixture
def poisoned(monkeypatch):
    """Shared memory in which nothing lies but NaN, before a block begins."""
    if device.SIMULATED:
        from numba.cuda.simulator import kernelapi

        begin = kernelapi.FakeCUDAShared.__init__

        def filled(self, size):
            begin(self, size)
            self._dynshared.fill(-1)

        monkeypatch.setattr(kernelapi.FakeCUDAShared, "__init__", filled)


def draw(name):
    x, (c_out, *kernel), moves, pool = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in (x, (c_out, x[1], *kernel), (c_out,))]
    found = window(*x[2:], tuple(kernel), **moves)
    expected = reference.relu(reference.conv2d(*(array.astype(np.float64) for array in arrays), **moves))
    if pool:
        expected = reference.maxpool2d(expected, pool.kernel, stride=pool.stride)
    return arrays, found, pool or NO_POOL, expected


def run(arrays, found, pool, shape):
    arrays = [device.to_device(array) for array in arrays]
    out = device.to_device(np.full(shape, np.nan, np.float32))
    call = direct.Call(out, None, shape, x=arrays[0])
    direct.start(call, arrays, call.out, found, Epilogue("relu", pool))
    return out.copy_to_host()


def close(out, expected):
    assert np.linalg.norm(out - expected) <= FLOAT32 * np.linalg.norm(expected)


def plans(arrays, found, pool, count):
    """About so many, evenly out of all of each kind: with several images a block or one, and with parts or none."""
    x, weight, _ = arrays
    every = list(direct_plan._candidates(x.shape, len(weight), found, pool, True))
    assert all(one.threads <= direct_plan.THREADS for one in every)
    kinds = {}
    for one in every:
        kinds.setdefault((one.images > 1, one.parts > 1), []).append(one)
    each = max(1, count // len(kinds))
    assert len(kinds) > 1
    return [one for alike in kinds.values() for one in alike[:: -(-len(alike) // each)]]


FEW = 4
"""Plans of which a GPU, which compiles each, takes one by default: of another kind with other windows."""


@quick(lambda name: name in ("odd", "pooled"))
@pytest.mark.parametrize("most", [8] if device.SIMULATED else sampled(FEW, 8))
@pytest.mark.parametrize("name", CASES)
def test_any_plan(name, most, monkeypatch, poisoned):
    arrays, found, pool, expected = draw(name)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    every = plans(arrays, found, pool, most)
    if most == FEW:
        every = [every[list(CASES).index(name) % len(every)]]
    for one in every:
        monkeypatch.setattr(direct, "plan", lambda *_, one=one: one)
        monkeypatch.setattr(direct_plan.DirectPlan, "resident", lambda *_: 1)  # so that a block has several items
        close(run(arrays, found, pool, expected.shape), expected)


@quick(lambda name: name == "pooled")
@pytest.mark.parametrize("name", ["vectors", "pairs", "pooled"])
def test_items_by_turns_use_both_buffers(name, monkeypatch, poisoned):
    arrays, found, pool, _ = draw(name)
    more = [np.concatenate([arrays[0]] * 3), *arrays[1:]]
    more[0] *= np.arange(1, len(more[0]) + 1, dtype=np.float32)[:, None, None, None]  # no image is like another
    monkeypatch.setattr(direct_plan.DirectPlan, "blocks", lambda *_: 2)
    many = reference.relu(reference.conv2d(*map(np.float64, more), stride=found.stride, padding=found.padding))
    many = reference.maxpool2d(many, pool.kernel, stride=pool.stride)
    close(run(more, found, pool, many.shape), many)


@quick(lambda name: name == "pairs")
@pytest.mark.parametrize("name", ["vectors", "pairs", "pooled"])
def test_arrays_that_start_at_no_multiple_of_16_bytes(name, monkeypatch):
    arrays, found, pool, expected = draw(name)
    vectors = run(arrays, found, pool, expected.shape)
    monkeypatch.setattr(device, "address", lambda array: 4)
    np.testing.assert_array_equal(run(arrays, found, pool, expected.shape), vectors)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_stays_where_it_is(poisoned):
    """Neither tiles that hang over nor maps that there are not bring a value into another output."""
    (x, weight, bias), found, pool, _ = draw("vectors")
    x[1, 0, 3, 5], x[0, 1, 6, 11] = np.nan, np.inf
    expected = reference.relu(reference.conv2d(*map(np.float64, (x, weight, bias)), padding=1))
    out = run((x, weight, bias), found, pool, expected.shape)
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(expected))
    finite = np.isfinite(expected)
    close(out[finite], expected[finite])


@quick(lambda: False, everywhere=False)  # test_ops has none, others ReLU; each is a function of an accumulator
@pytest.mark.parametrize("epilogue", ["", "tanh", "gelu"])
def test_every_epilogue(epilogue):
    (x, weight, bias), found, _, _ = draw("odd")
    moves = CASES["odd"][2]
    expected = reference.conv2d(*map(np.float64, (x, weight, bias)), **moves)
    expected = {"": lambda y: y, "tanh": reference.tanh, "gelu": reference.gelu}[epilogue](expected)
    call = direct.Call(None, None, expected.shape, x=x)
    direct.start(call, (*call.inputs, *map(device.to_device, (weight, bias))), call.out, found, Epilogue(epilogue))
    close(call.result(), expected)


# Plans.

ECE408 = (((1, 64, 64), 6), ((6, 30, 30), 16))
KERNEL = Window((5, 5))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Plans as of an H200, blocks of the simulator have few threads."""
    monkeypatch.setattr(direct_plan, "THREADS", 256)
    direct_plan._plan.cache_clear()
    yield
    direct_plan._plan.cache_clear()


@pytest.mark.parametrize(("x", "maps"), ECE408)
def test_many_images_take_large_tiles_and_few_all_multiprocessors(x, maps, as_on_a_gpu):
    many, few = (direct_plan.plan((n, *x), maps, KERNEL, NO_POOL, True) for n in (10_000, 10))
    assert many.tile.accumulators >= 48
    assert many.threads <= 1.1 * many.images * prod(many.tiles) * many.groups  # few lanes idle
    assert many.resident(x[0], 5) >= 2
    assert few.tile.accumulators < many.tile.accumulators
    assert few.blocks(10, x[0], 5) * few.parts >= device.multiprocessors() // 2


def test_what_a_tile_reads():
    tile = DirectTile(1, 2, 6, 5, (1, 1), 1, Window((2, 2), (2, 2)))
    assert (tile.conv_rows, tile.conv_columns, tile.accumulators) == (2, 4, 48)
    assert (tile.down, tile.right, tile.span, tile.read, tile.vector) == (2, 4, 8, 8, True)
    tile = replace(tile, columns=1, stride=(2, 3), dilation=2, pool=NO_POOL)
    assert (tile.conv_rows, tile.conv_columns, tile.down, tile.right) == (1, 1, 2, 3)
    assert (tile.span, tile.read, tile.vector) == (9, 9, False)


def test_strips_cover_an_image():
    for name in CASES:
        (x, weight, _), found, pool, expected = draw(name)
        for one in direct_plan._candidates(x.shape, len(weight), found, pool, True):
            tile, (down, across) = one.tile, one.tiles
            assert one.strips[0] * down * tile.rows >= expected.shape[2]
            assert one.strips[1] * across * tile.columns >= expected.shape[3]
            assert one.map_blocks * one.groups * tile.maps >= len(weight)
            assert one.images == 1 or one.strips == (1, 1)
            assert one.features[1] % 4 == 0
            assert one.exact(len(weight), expected.shape[2:]) == (
                one.strips[0] * down * tile.rows == expected.shape[2]
                and one.strips[1] * across * tile.columns == expected.shape[3]
                and one.map_blocks * one.groups * tile.maps == len(weight)
            )


@pytest.mark.parametrize(
    ("name", "variant", "found"),
    [
        ("ece408", "64", ["conv2d_tanh_maxpool2d", "conv2d"]),
        ("mnist", "stride1", ["conv2d_relu_maxpool2d"]),
        ("fused4", "28", ["conv2d_relu"] * 4),
        ("alexnet", "2012", ["conv2d_relu"]),  # others have many channels
    ],
)
def test_which_layers_of_networks_take_it(name, variant, found):
    config = network(name).architecture(variant)
    ops = lower(config.nodes, cuda_networks.rewrites("direct", config, batch=1))
    taken = [operator(op.nodes) for op in ops if cuda_networks.few(op.nodes)]
    assert taken == found


# What does not fit.


def a(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.conv2d_direct(a(1, 4, 5, 5), a(4, 2, 3, 3), a(4), groups=2),
            "^groups=2: the technique direct needs 1; conv2d's naive takes any",
        ),
        (
            lambda: ops.conv2d_direct(a(1, 1, 2, 40), a(1, 1, 1, 25), a(1)),
            "^weight has a kernel of 1 x 25: direct needs at most 24 columns; the naive kernel takes any",
        ),
        (
            lambda: ops.conv2d_relu_maxpool2d_direct(a(1, 1, 12, 12), a(1, 1, 1, 1), a(1), 11),
            r"^pool_size=\(11, 11\): direct needs at most 96 values in all",
        ),
        (
            lambda: ops.conv2d_direct(a(1, 2000, 9, 9), a(1, 2000, 5, 5), a(1)),
            "^x has 2000 channels, weight a kernel of 5 x 5: direct needs .* bytes of shared memory .*, a block has",
        ),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numpy_and_device_arrays():
    x, weight, bias = a(1, 1, 4, 4), a(2, 1, 3, 3), a(2)
    out = ops.conv2d_direct(*map(cuda.to_device, (x, weight, bias)))
    np.testing.assert_array_equal(out.copy_to_host(), ops.conv2d_direct(x, weight, bias))
    np.testing.assert_array_equal(out.copy_to_host(), np.full((1, 2, 2, 2), 10))
