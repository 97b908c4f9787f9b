"""Two convolutions with pooling on tensor cores, by strips: plans against counts, the kernel against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulation_hopper import emulate_hopper
from test_chain2d import H200, arguments, close
from test_chain_mma import emulated, expected, on_a_gpu

from charcnn.gpu import device
from charcnn.model.layers import LocalResponseNorm
from charcnn.networks import alexnet
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
    "2012": (alexnet.layers("2012")[1:9], (3, 227, 227)), "torchvision": (alexnet.layers("torchvision")[1:7], (3, 224, 224))
}  # fmt: skip


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
    c, h, w = made.out_shape
    out = np.full((n, h, w, c), np.nan, made.precision.dtype)
    assert made.prepare(weights, biases, pixels)(x, out=out) is out
    found = out if made.precision.ptx_type == "f16" else (out.astype(np.uint32) << 16).view(np.float32)
    assert close(found.astype(np.float32).transpose(0, 3, 1, 2), want, 3 * made.precision.tolerance)
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
    ("alexnet", "rolling", "fp16", 1, True), ("groups", "whole", "bf16", None, False),
    ("even", "tiles", "fp16", 2, False),
])  # fmt: skip
def test_in_emulation(name, walk, precision, tile, from_bytes, monkeypatch):
    emulate_hopper(monkeypatch)
    made = planned(name, walk, precision=precision, tile=tile)
    check(name, replace(made, made=1), 1, from_bytes)
