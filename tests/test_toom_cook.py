"""Toom-Cook's products for windows of three outputs: the mathematics, and the kernels in plain Python."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import steps as bench_steps
import toom_cook as bench_toom_cook
from conftest import quick
from numba import cuda
from prepared import of_kind
from small_gpu import one_multiprocessor
from turns import Ready

from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.toom_cook import kernel, planes, transforms
from charcnn.ops.conv1d.toom_cook.config import ToomCookTile
from charcnn.ops.conv1d.toom_cook.layer import PRECISIONS, ToomCookConv
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW


def test_a_group_is_exact():
    # Output q's sum of A[q, p] G[p, k] B[p, j] is 1 where j = q + k, else 0: in rationals, and so for all numbers.
    a, g, b = transforms.OUTPUTS, transforms.WEIGHTS, transforms.FEATURES
    for q in range(WINDOW):
        for k in range(transforms.GROUP):
            for j in range(POINTS):
                assert sum(a[q][p] * g[p][k] * b[p][j] for p in range(POINTS)) == Fraction(j == q + k)


def test_what_the_kernel_takes_for_granted():
    a, g, _ = transforms.OUTPUTS, transforms.WEIGHTS, transforms.FEATURES
    assert [row[0] for row in a] == [1, 0, 0]
    assert [row[transforms.INFINITY] for row in a] == [0, 0, 1]
    assert not any(g[transforms.INFINITY][:WINDOW]), "the first group has nothing there"
    for p, point in enumerate(transforms.FOLDED, transforms.DIRECT):
        assert [row[p] for row in a] == [point**q for q in range(WINDOW)]
    assert (transforms.PRODUCTS, transforms.DIRECT_PRODUCTS) == (11, 21)


def drawn(n, length, c_in, c_out, seed=0):
    """x float16, weight (7, C_in, C_out) and bias float32."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((n, length, c_in), np.float32).astype(np.float16)
    weight = draw.standard_normal((7, c_in, c_out), np.float32) / np.float32(np.sqrt(7 * c_in))
    return x, weight, draw.standard_normal(c_out, np.float32)


@pytest.mark.parametrize("length", [9, 11, 12, 40])
def test_eleven_products_are_the_seven_taps(length):
    x, weight, _ = (array.astype(np.float64) for array in drawn(2, length, 5, 4))
    count = transforms.windows(length)
    want = reference.conv1d_nlc(x, weight, np.zeros(4))[:, : WINDOW * count].reshape(2, count, WINDOW, 4)
    weights = transforms.transformed_weights(weight)
    multiplied = sum(bool(weights[p, g].any()) for p in range(POINTS) for g in range(2))
    assert multiplied == transforms.PRODUCTS
    np.testing.assert_allclose(
        transforms.outputs(transforms.transformed_features(x), weights), want, rtol=1e-12, atol=1e-12
    )


def rounded(x, weight):
    """Windows' sums from planes and weights that were rounded to fp16, all else exact."""
    planes = transforms.transformed_features(x.astype(np.float32)).astype(np.float16)
    weights = transforms.transformed_weights(weight).astype(np.float16)
    return transforms.outputs(planes.astype(np.float64), weights.astype(np.float64))


def test_rounding_costs_a_few_times_that_of_direct_sums():
    x, weight, _ = drawn(2, 66, 64, 16)
    x = np.maximum(x, 0)
    exact = reference.conv1d_nlc(x.astype(np.float64), weight.astype(np.float64), np.zeros(16))
    want = exact.reshape(2, -1, WINDOW, 16)
    direct = reference.conv1d_nlc(x.astype(np.float64), weight.astype(np.float16).astype(np.float64), np.zeros(16))
    direct_error, error = (np.linalg.norm(got - want) for got in (direct.reshape(want.shape), rounded(x, weight)))
    assert direct_error < error < 6 * direct_error
    assert error < 2e-3 * np.linalg.norm(want)


@pytest.mark.skipif(not device.SIMULATED, reason="a device function, which plain Python calls in the simulator alone")
def test_planes_in_float16_add_little_to_the_error(machine):
    """Block 1 takes them in fp16, beside planes that are rounded once."""
    rng = np.random.default_rng(0)
    tiles = np.maximum(rng.standard_normal((64, 6, 32)), 0).astype(np.float16)
    words = tiles.view(np.uint32).astype(object)  # two channels a word
    plane_words = planes.make_plane_words()
    found = np.array([[plane_words(*tile[:, c]) for c in range(16)] for tile in words], np.uint32)
    found = found.transpose(0, 2, 1).copy().view(np.float16).astype(np.float64)  # tile, plane, channel
    exact = np.einsum("pj,njc->npc", np.array(transforms.FEATURES, np.float64), tiles.astype(np.float64))
    once = exact.astype(np.float16).astype(np.float64)
    weights = transforms.transformed_weights(rng.standard_normal((7, 32, 16)))[:, 1]

    def outputs(of, w):
        return np.einsum("qp,npo->nqo", np.array(transforms.OUTPUTS, np.float64), np.einsum("npc,pco->npo", of, w))

    right, rounded = outputs(exact, weights), weights.astype(np.float16).astype(np.float64)
    error, least = (np.linalg.norm(outputs(of, rounded) - right) for of in (found, once))
    assert least < error < 1.2 * least


# The kernels' source, with TMA and tensor cores in plain Python.

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the same at real sizes")
hopper = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")

TILES = {
    "all runs": ToomCookTile(block_n=56, stages=3),
    "not staggered": ToomCookTile(block_n=24, stages=2, staggered=False),
    "clustered": ToomCookTile(block_n=40, stages=3, cluster_m=2),
}

TINY = {"one tile": (1, 9, 128, 16), "more": (7, 66, 128, 64), "one k block": (3, 21, 64, 8)}
"""(N, L, C_in, C_out): rows that end within a tile, positions that make no window, channels that end within a tile."""


@pytest.fixture
def machine(monkeypatch):
    """Hopper in plain Python; nothing where there is a GPU."""
    if not device.SIMULATED:
        yield
        return
    makers = kernel.make_kernel, planes.make_kernel
    for made in makers:
        made.cache_clear()  # of kernels that another machine runs
    limit = device.shared_limit()
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(device, "shared_limit", lambda: limit)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)  # a cluster
    yield
    for made in makers:
        made.cache_clear()


def expected(x, weight, bias):
    """In float64."""
    return reference.conv1d_relu_maxpool1d_nlc(*(array.astype(np.float64) for array in (x, weight, bias)), WINDOW)


def check(x, weight, bias, tile):
    """Against the reference, planes first, from outputs of NaN; on a GPU twice, which gives the same bits."""
    conv, features = of_kind(ToomCookConv, "pool", weight, bias, tile=tile), device.to_device(x)
    made = device.to_device(np.full(conv.planes_shape(*x.shape[:2]), np.nan, np.float16))
    assert conv.planes(features, out=made) is made
    exact = transforms.transformed_features(x.astype(np.float64))
    assert np.abs(made.copy_to_host() - exact).max() <= 2.0**-11 * np.abs(exact).max()
    want, results = expected(x, weight, bias), []
    for _ in range(1 if device.SIMULATED else 2):
        y = device.to_device(np.full(want.shape, np.nan, np.float16))
        assert conv.of_planes(made, out=y) is y
        results.append(y)
    cuda.synchronize()
    first, second = results[0].copy_to_host(), results[-1].copy_to_host()
    assert np.linalg.norm(first.astype(np.float64) - want) <= TENSOR_PRECISIONS["fp16"].tolerance * np.linalg.norm(want)
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


@simulated
@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ("one tile", "all runs"),
        ("more", "clustered"),
        pytest.param("more", "all runs", marks=pytest.mark.exhaustive),
        ("one k block", "not staggered"),
    ],
)
def test_against_the_reference(size, tile, machine):
    check(*drawn(*TINY[size]), TILES[tile])


@quick(lambda name, tile: (name, tile.cluster_m) in (("fp8", 1),))  # seconds each
@pytest.mark.parametrize("name", ["tf32", "fp16x3", "fp8"])
@pytest.mark.parametrize("tile", [ToomCookTile(56, 2, staggered=False), ToomCookTile(24, 3, cluster_m=2)])
@simulated
def test_other_precisions(name, tile, machine):
    of, (x, weight, bias) = PRECISIONS[name], drawn(3, 27, 384, 24)
    x = np.maximum(x, 0).astype(np.float32) * np.float32(1 + 2**-12)  # of more bits than fp16 has
    unit = 5 / 448 if name == "fp8" else 1.0
    tile = replace(tile, terms=of.terms)
    conv = of_kind(ToomCookConv, "pool", weight, bias, precision=name, x_unit=unit, y_unit=unit, tile=tile)
    call = Call(None, None, x.shape, x=x)
    features = narrow(call, call.inputs[0], x.shape[1], x.shape[2], of, 1 / unit)
    y = conv.apply(features)
    assert y.dtype == of.dtype
    want, got = expected(x, weight, bias), y
    if name != "tf32":
        call = Call(None, None, want.shape, dtypes={"x": of.dtype}, x=y)
        widen(call, y, call.out, of, unit)
        got = call.out
    error = np.linalg.norm(got.copy_to_host() - want) / np.linalg.norm(want)
    assert of.tolerance / 50 < error < of.tolerance


@simulated
@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        ((6, 64, 8), {}, r"^weight has 6 taps: need 7 taps, ReLU and max-pooling of 3"),
        ((7, 96, 8), {}, "^weight has shape=.* C_in in whole 64s"),
        ((7, 64, 12), {}, "^weight has shape=.* C_out in whole 8s"),
        ((7, 64), {}, "behind Linear"),
        ((7, 128, 8), {"precision": "bf16"}, "^precision='bf16': need one of fp16, tf32, fp16x3, fp8"),
        ((7, 128, 8), {"tile": ToomCookTile(stages=4)}, "^tile=.*: need terms=1, and if staggered stages in range"),
        ((7, 256, 8), {"precision": "fp16x3", "tile": ToomCookTile(64, 3)}, "^tile=.*: need terms=2"),
        ((7, 256, 8), {"tile": ToomCookTile(96, 8, staggered=False)}, "^tile=.*: needs .* bytes of shared memory"),
    ],
)
def test_weights_that_do_not_fit(weight, options, message, machine):
    bias = np.zeros(weight[-1], np.float32)
    with pytest.raises(ValueError, match=message):
        of_kind(ToomCookConv, "pool", np.zeros(weight, np.float32), bias, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_n": 104}, "^self.block_n=104: need a multiple of 8 from 8 to 96"),
        ({"stages": 9}, "^self.stages=9: need 2 to 8"),
        ({"cluster_m": 3}, "^self.cluster_m=3: need 1, 2 or 4 blocks"),
    ],
)
def test_tiles_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        ToomCookTile(**options)


@simulated
@pytest.mark.parametrize(
    ("method", "shape", "message"),
    [
        ("planes", (1, 9, 64), r"^x has shape \(1, 9, 64\): need C_in=128"),
        ("planes", (1, 8, 128), "^x has 8 positions: need at least 9"),
        ("of_planes", (1, 2, 5, 128), "^planes has shape .*: need 6 planes of at least 2 rows"),
        ("of_planes", (1, 1, 6, 128), "^planes has shape .*: need 6 planes of at least 2 rows"),
        ("of_planes", (1, 2, 6, 64), "^planes has shape .*: need C_in=128"),
    ],
)
def test_features_that_do_not_fit(method, shape, message, machine):
    conv = of_kind(
        ToomCookConv, "pool", np.zeros((7, 128, 8), np.float32), np.zeros(8, np.float32), tile=TILES["not staggered"]
    )
    with pytest.raises(ValueError, match=message):
        getattr(conv, method)(device.to_device(np.zeros(shape, np.float16)))
    with pytest.raises(ValueError, match="need an array on the GPU"):
        getattr(conv, method)(np.zeros(shape, np.float16))


@hopper
@pytest.mark.parametrize("tile", [ToomCookTile(), ToomCookTile(cluster_m=2), ToomCookTile(80, 6, 2, staggered=False)])
def test_at_the_networks_size(tile):
    for n in (1, 33):
        check(*drawn(n, 336, 256, 256), tile)


@simulated
@pytest.mark.exhaustive
def test_the_benchmark(machine, monkeypatch, capsys):
    tiles = ToomCookTile(56, 3), ToomCookTile(40, 3, cluster_m=2)
    monkeypatch.setattr(bench_toom_cook, "TILES", {"fp16": tiles, "fp16x3": (ToomCookTile(16, 2, terms=2),)})
    monkeypatch.setattr(bench_steps, "DRAWN", 2)
    monkeypatch.setattr(bench_steps, "sizes", lambda layer: (12, 128, 7, 32))
    monkeypatch.setattr(device, "require_hopper", lambda what, emulated=True: None)
    monkeypatch.setattr(bench_toom_cook, "find_spec", lambda name: None)
    monkeypatch.setattr(graph, "Graph", lambda start, stream: SimpleNamespace(launch=lambda: start(stream)))
    monkeypatch.setattr(bench_toom_cook.Conv2, "tuned", lambda self: Ready("wgmma", lambda: None, 1, {}))
    monkeypatch.setattr(bench_toom_cook, "by_turns", timed := Timed())
    assert bench_toom_cook.main(["--batch", "3", "--relu", "--precisions", "fp16,fp16x3"]) == 0
    assert timed.names == [
        "fp16 toom_cook 56x3, staggered",
        "fp16 toom_cook 40x3, cluster 2, staggered",
        "fp16 toom_cook 56x3, staggered, planes first",
        "wgmma",
        "fp16x3 toom_cook 16x2, staggered",
        "fp16x3 toom_cook 16x2, staggered, planes first",
        "wgmma",
    ]
    assert capsys.readouterr().out == (
        "fp16: best tile 40x3, cluster 2, staggered: 2 TFLOP/s of direct sums, 1 taken; enough from 900 on\n"
        "fp16x3: best tile 16x2, staggered: 1 TFLOP/s of direct sums, 1 taken\n"
    )


class Timed:
    """In place of `by_turns`: each is called, and is as fast as it is late."""

    def __init__(self):
        self.names = []

    def __call__(self, every):
        self.names += [one.name for one in every]
        for one in every:
            one.call()
        return [one.row | {"tflop_per_second": rate} for rate, one in enumerate(every, 1)]


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which it measures")
def test_what_the_benchmark_refuses(capsys):
    assert bench_toom_cook.main([]) == 2
    assert "toom_cook needs tensor cores of compute capability 9.0" in capsys.readouterr().err
    for wrong in (["--batch", "0"], ["--precisions", "bf16"]):
        with pytest.raises(SystemExit):
            bench_toom_cook.main(wrong)
    assert "--precisions 'bf16': need some of fp16, tf32, fp16x3, fp8" in capsys.readouterr().err
