"""Two convolutions with pooling on tensor cores, by strips: plans against counts, the kernel against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import by_turns, quick
from small_gpu import one_multiprocessor
from test_chain2d import H200, HALF, TOLERANCE, arguments, close
from test_chain2d import check as check_chain
from test_chain_mma import emulated, expected, on_a_gpu
from test_networks import architecture, drawn

from charcnn.catalog import fused_technique
from charcnn.gpu import device
from charcnn.layers import LocalResponseNorm
from charcnn.networks import alexnet, cuda, fused
from charcnn.networks.reference import expected as reference
from charcnn.networks.runner.command import main
from charcnn.ops.chain import Conv2d, MaxPool2d, Relu, Tanh, plan
from charcnn.ops.common.precision import HALF_PRECISIONS

WALKS = ("whole", "tiles", "rolling")
NORM, POOL = LocalResponseNorm(5, 5e-2, 0.75, 2.0), MaxPool2d(3, 2)

CHAINS = {
    "alexnet": ((Conv2d(8, 7, 4), Relu(), NORM, POOL, Conv2d(10, 5, padding=2, groups=2), Relu(), NORM, POOL),
                (3, 47, 35)),
    "groups": ((Conv2d(32, 3, 2, bias=False), POOL, Conv2d(64, 3, padding=(1, 0, 0, 1), groups=2), Relu(), POOL),
               (1, 33, 27)),
    "even": ((Conv2d(20, 5, 2, 2), Relu(), MaxPool2d(2), Conv2d(6, 3), Relu(), LocalResponseNorm(4, 0.3, 0.6),
              MaxPool2d(2)), (2, 34, 26)),
}  # fmt: skip
ALEXNET = {
    "2012": (alexnet.layers("2012")[1:9], (3, 227, 227)),
    "torchvision": (alexnet.layers("torchvision")[1:7], (3, 224, 224)),
}


def planned(name, walk, **options):
    layers, in_shape = {**CHAINS, **ALEXNET}[name]
    return plan(layers, in_shape=in_shape, method="mma", walk=walk, **{"shared_limit": H200, **options})


def check(name, made, n, from_bytes):
    layers, _ = {**CHAINS, **ALEXNET}[name]
    (x, weights, biases), want = arguments(layers, made, n)
    pixels = None
    if from_bytes:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, x.shape, np.uint8)
        pixels = ((np.arange(256) - rng.integers(100, 150, (x.shape[1], 1))) / 60).astype(np.float32)
        values = np.stack([pixels[c][x[:, c]] for c in range(x.shape[1])], axis=1).astype(np.float64)
        want = expected(layers, made, weights, biases, values)
    out = np.full((n, *made.result[0]), np.nan, made.precision.dtype)
    assert made.prepare(weights, biases, pixels)(x, out=out) is out
    found = out if made.precision.ptx_type == "f16" else (out.astype(np.uint32) << 16).view(np.float32)
    channels, found = made.out_shape[0], found.astype(np.float32).transpose(0, 3, 1, 2)
    assert close(found[:, :channels], want, 3 * made.precision.tolerance)
    assert not found[:, channels:].any()
    return out


@on_a_gpu
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("name", [*CHAINS, *ALEXNET])
def test_a_chain(name, precision, walk):
    made = planned(name, walk, precision=precision)
    for n in (1, 3):
        first, again = (check(name, made, n, precision == "fp16") for _ in range(2))
        np.testing.assert_array_equal(first, again)
    if name in ALEXNET and precision == "fp16":
        check(name, made, device.multiprocessors() + 1, True)  # a block has some


@emulated
@pytest.mark.parametrize(("name", "walk", "precision", "tile", "from_bytes"), [
    ("alexnet", "rolling", "fp16", 1, True), ("groups", "whole", "fp16", None, False),
    ("even", "tiles", "fp16", 2, False),
])  # fmt: skip
def test_in_emulation(name, walk, precision, tile, from_bytes, monkeypatch):
    one_multiprocessor(monkeypatch)
    made = planned(name, walk, precision=precision, tile=tile)
    check(name, replace(made, made=1), 1, from_bytes)


@emulated
@pytest.mark.exhaustive
def test_a_network_in_emulation(monkeypatch):
    one_multiprocessor(monkeypatch)
    row, network = fused_technique("fp16"), architecture("alexnet")
    weights, images = drawn(network, 1)
    got = row.build(row.name, weights, network, batch=1, precision="fp16", method="rolling", gpus=1)(images)
    want, sigma = reference(images, weights, network, row.rounding("fp16"))
    assert (abs(got - want) / sigma).max() < row.rounding("fp16").bound


@by_turns
def test_a_network_in_float32(monkeypatch):
    """One kernel of a few threads, where the simulator has them run."""
    network = architecture("alexnet")
    weights, images = drawn(network, 1)
    plans = []

    def few(run, batch, **options):
        plans.append(cuda.planned(run, batch, **options, **({"threads": 32} if device.SIMULATED else {})))
        return plans[-1]

    monkeypatch.setattr(fused, "planned", few)
    row = fused_technique(None)
    got = row.build(row.name, weights, network, batch=1, method="whole", gpus=1)(images)
    want, sigma = reference(images, weights, network, row.rounding())
    assert (abs(got - want) / sigma).max() < row.rounding().bound
    assert [of.launches for of in plans] == [1]


# The chain in float32.

NORMALISED = (Conv2d(7, 5, 2), Relu(), LocalResponseNorm(5, 5e-2, 0.75, 2.0), MaxPool2d(3, 2), Conv2d(6, 3, 1, 1),
              LocalResponseNorm(4, 0.3, 0.6), MaxPool2d(3, 2, 1), Tanh(), LocalResponseNorm(1))  # fmt: skip


@quick(lambda options, precision: (precision == "fp16") == (options["method"] != "whole"))
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("options", [{"method": "whole"}, {"method": "tiles", "tile": 2},
                                     {"method": "rolling", "tile": 1}], ids=str)  # fmt: skip
def test_a_block_normalises_maps_where_they_lie(options, precision):
    made = plan(NORMALISED, in_shape=(3, 27, 25), threads=32, precision=precision, **options)
    check_chain(NORMALISED, made, 2, tolerance=HALF if precision == "fp16" else TOLERANCE)
    bare = [layer for layer in NORMALISED if not isinstance(layer, LocalResponseNorm)]
    without = plan(bare, in_shape=(3, 27, 25), threads=32, precision=precision, **options)
    assert made.shared_bytes == without.shared_bytes
    assert made.seconds > without.seconds
    assert (
        "conv2d 5x5/2 relu norm 5, maxpool2d 3x3/2, conv2d 3x3/1 norm 4, maxpool2d 3x3/2 tanh norm 1" in made.describe()
    )


# Plans.


def test_counts_of_alexnets_strips():
    """By hand: pool2's row r needs conv2's 2 r to 2 r + 2, and those pool1's two above to two below; likewise conv1."""
    made = replace(planned("2012", "rolling"), first=4, rows=3, made=3)
    assert [*made.strips(0)] == [(0, 4), (4, 7), (7, 10), (10, 13)]
    assert made.counted["pixels"][1] == [27 * rows for rows in (9, 6, 6, 6)]
    first = [rows * 55 for rows in (7, 6, 6, 4, 7, 6, 7, 6, 7, 2)]  # pool1's rows 0 to 10, 11 to 16, 17 to 22, 23 to 26
    assert sum(made.counted["pixels"][0]) == sum(first)
    assert made.counted["rows"] == (9, 7, 11, 9)
    assert made.maps[2].row_bytes == 12 * 29 * 16
    assert made.shared_bytes <= H200
    whole = planned("2012", "whole")
    assert (whole.computed_flops, whole.flops) == (658_728_000, 658_728_000)
    assert whole.counted["rows"][2] == 27
    tiles = planned("torchvision", "tiles", tile=1)
    assert (tiles.tiles, tiles.counted["rows"][2]) == (13, 7)
    assert tiles.computed_flops > 1.9 * tiles.flops
    assert "blocks an image  13 of 1 rows" in tiles.describe()


def test_what_is_where_overlaps_nothing_that_is_needed():
    for name in ALEXNET:
        for walk in WALKS:
            made = planned(name, walk)
            image, conv1, between, conv2 = made.places
            held = [of.nbytes for of in made.maps]
            assert image + held[0] <= conv1
            assert between + held[2] <= conv2
            kept = made.keeps(1) * made.maps[3].row_bytes
            assert image >= conv2 + (kept if walk == "rolling" else 0)


@pytest.mark.parametrize(("layers", "options", "message"), [
    ((Conv2d(8, 3), Relu(), POOL), {}, "conv2d 3x3/1 relu, maxpool2d 3x3/2: method 'mma' with a walk needs Conv2d"),
    ((Conv2d(8, 3), Tanh(), POOL, Conv2d(8, 3), POOL), {}, "conv2d 3x3/1 tanh: .* needs Relu, or nothing, behind it"),
    ((Conv2d(8, 3), POOL, Conv2d(8, 3, 2), POOL), {}, "conv2d 3x3/2: .* needs a second convolution that moves by 1"),
    ((Conv2d(8, 3), MaxPool2d(3, 1), Conv2d(8, 3), POOL), {}, "maxpool2d 3x3/1: .* needs windows that share"),
    ((Conv2d(8, 3), POOL, Conv2d(8, 3), POOL), {"shared_limit": 9000},
     "strips need [0-9,]+ bytes of shared memory a block by 'rolling' in fp16, there are 9,000: try"),
    ((Conv2d(8, 3), POOL, Conv2d(8, 3), POOL), {"walk": "up"}, "walk='up': need one of whole, tiles, rolling, or None"),
    ((Conv2d(8, 3), POOL, Conv2d(8, 3), POOL), {"threads": 32}, "threads=32: method 'mma' takes no such option"),
])  # fmt: skip
def test_what_does_not_fit(layers, options, message):
    given = {"walk": "rolling", "shared_limit": H200, **options}
    with pytest.raises(ValueError, match=message):
        plan(layers, in_shape=(3, 40, 40), method="mma", **given)


@pytest.mark.parametrize(("words", "message"), [
    ("--as cpu_gemm --fuse 2", "alexnet: --fuse 2: needs --as strong, not cpu_gemm"),
    ("--as cpu_gemm --method tiles", "alexnet: --method tiles: needs --fuse 2"),
    ("--as strong --fuse 2 --method whole --variant 2012 --plan",
     "alexnet: convolutions 1 to 2 need 447,232 bytes of shared memory a block by method 'whole', there are 232,448"),
])  # fmt: skip
def test_the_command_says_what_does_not_fit(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main("alexnet", words.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_shows_the_plan(capsys):
    words = "--as strong --fuse 2 --precision fp16 --method whole --plan"
    with pytest.raises(SystemExit) as ended:
        main("alexnet", words.split())
    assert ended.value.code == 0
    assert "kernel           1, whole, products of 16 x 8 x 16 in fp16" in capsys.readouterr().out
