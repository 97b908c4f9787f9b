"""Chains over images on tensor cores: the plan, and the kernel on a GPU and in the emulation of tensor cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import quick
from small_gpu import one_multiprocessor
from test_chain2d import FOUR, H200, arguments, close
from test_channels_last import errors
from test_networks import architecture

from charcnn.catalog import network, network_technique
from charcnn.gpu import device
from charcnn.layers import LocalResponseNorm, place
from charcnn.model import network as forms
from charcnn.networks.lowering import lower
from charcnn.ops.chain import Conv2d, MaxPool2d, Relu, Sigmoid, Tanh, plan
from charcnn.ops.common.precision import HALF_PRECISIONS

on_a_gpu = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")
emulated = pytest.mark.skipif(not device.SIMULATED, reason="the simulator alone is emulated")

CHAINS = {
    "fused4": (FOUR, (1, 28, 28)),
    "ece408": ((Conv2d(6, 5, bias=False), Tanh(), MaxPool2d(2), Conv2d(16, 5, bias=False)), (1, 64, 64)),
    "pooled": ((Conv2d(5, 5, padding=2), MaxPool2d(2), Relu()), (1, 28, 28)),
    "channels": ((Conv2d(24, 3, stride=2), Relu(), Conv2d(19, 3, padding=(0, 1, 2, 1)), Tanh()), (3, 13, 11)),
    "dilated": ((Conv2d(3, (2, 8), dilation=2), Conv2d(9, 2, stride=3, dilation=2), MaxPool2d(2, 1)), (2, 14, 21)),
    "one": ((Conv2d(4, 1),), (1, 1, 1)),
    "normalised": (
        (
            Conv2d(19, 3),
            Sigmoid(),  # which makes 1/2 of places that hold no channel
            LocalResponseNorm(5, 5e-2, 0.75, 2.0),
            MaxPool2d(3, 2),
            LocalResponseNorm(4, 0.3, 0.6),
            Conv2d(9, 3, padding=1),
        ),
        (2, 11, 9),
    ),
}
SMALL = {
    "fused4": (FOUR, (1, 14, 14)),
    "pooled": ((Conv2d(5, 5, padding=2), MaxPool2d(2), Relu()), (1, 9, 8)),
    **{name: CHAINS[name] for name in ("channels", "dilated", "one", "normalised")},
}


def planned(layers, in_shape, precision="fp16", threads=None):
    return plan(layers, in_shape=in_shape, method="mma", precision=precision, threads=threads, shared_limit=H200)


def check(layers, made, n, seed=0, from_bytes=False):
    (x, weights, biases), want = arguments(layers, made, n, seed)
    pixels = None
    if from_bytes:
        rng = np.random.default_rng(seed)
        x, pixels = rng.integers(0, 256, x.shape, np.uint8), rng.standard_normal((x.shape[1], 256), np.float32)
        values = np.stack([pixels[c][x[:, c]] for c in range(x.shape[1])], axis=1).astype(np.float64)
        want = expected(layers, made, weights, biases, values)
    out = np.full((n, *made.out_shape), np.nan, np.float32)
    assert made.prepare(weights, biases, pixels)(x, out=out) is out
    assert close(out, want, 2 * made.precision.tolerance)  # each convolution rounds
    return out


def expected(layers, made, weights, biases, values):
    nodes = place([replace(layer, name=f"layer{i}") for i, layer in enumerate(layers)], made.in_shape)
    given = iter(zip(weights, biases, strict=True))
    params = {}
    for node in nodes:
        if isinstance(node.layer, Conv2d):
            for name, value in zip(("weight", "bias"), next(given), strict=True):
                if value is not None:
                    params[f"{node.layer.name}.{name}"] = value
    return forms.run(nodes, values, params)


@on_a_gpu
@pytest.mark.parametrize("from_bytes", [False, True])
@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("name", CHAINS)
@quick(lambda name, precision, from_bytes: from_bytes == (precision == "fp16"))
def test_a_chain(name, precision, from_bytes):
    layers, in_shape = CHAINS[name]
    made = planned(layers, in_shape, precision)
    n = 2 * made.resident * device.multiprocessors() + 1  # a block has some
    for count in (1, n):
        first, again = (check(layers, made, count, from_bytes=from_bytes) for _ in range(2))
        np.testing.assert_array_equal(first, again)


@on_a_gpu
@pytest.mark.parametrize("threads", [32, 96, 256])
def test_any_number_of_warps(threads):
    check(FOUR, planned(FOUR, (1, 28, 28), threads=threads), 3)


@emulated
@pytest.mark.parametrize(("name", "precision", "from_bytes"), [
    ("fused4", "fp16", True), ("pooled", "bf16", False), ("channels", "fp16", False), ("dilated", "bf16", True),
    ("one", "fp16", False), ("normalised", "fp16", True),
])  # fmt: skip
def test_in_emulation(name, precision, from_bytes, monkeypatch):
    one_multiprocessor(monkeypatch)
    layers, in_shape = SMALL[name]
    made = planned(layers, in_shape, precision, threads=64)
    check(layers, made, 2 if name == "one" else 1, from_bytes=from_bytes)


@emulated
@pytest.mark.parametrize("name", dict(network_technique("strong_mma").networks))
def test_a_network_in_emulation(name, monkeypatch):
    one_multiprocessor(monkeypatch)
    found, bound = errors("strong_mma", architecture(name), "fp16", 2)
    assert found.max() < bound


@pytest.mark.parametrize(
    ("layers", "in_shape", "options", "message"),
    [
        (FOUR, (1, 28, 28), {"precision": "fp32"}, "precision='fp32': method 'mma' needs one of fp16, bf16"),
        (FOUR, (1, 28, 28), {"threads": 48}, "threads=48: method 'mma' needs a multiple of 32, at most 1,024"),
        (FOUR, (1, 28, 28), {"shared_limit": 9000}, "an image's maps take [0-9,]+ bytes of shared memory by method"),
        ([Conv2d(4, 3, groups=2)], (2, 9, 9), {}, "conv2d 3x3/1 has 2 groups: method 'mma' needs 1"),
        ([Conv2d(4, 9)], (1, 12, 12), {}, "conv2d 9x9/1: method 'mma' needs at most 8 columns of taps"),
        ([Conv2d(4, 3), MaxPool2d(3, 1, 1)], (1, 9, 9), {}, "maxpool2d 3x3/1 has padding: method 'mma' needs"),
        ([Conv2d(4, 3), LocalResponseNorm()], (1, 9, 9), {}, "norm 5: method 'mma' needs .* a layer behind it"),
        ([Conv2d(4, 3), LocalResponseNorm(18), Conv2d(4, 3)], (1, 9, 9), {}, "norm 18: method 'mma' needs at most 17"),
        (
            [Conv2d(64, 3), Conv2d(16, 3)],
            (1, 9, 9),
            {},
            "conv2d 3x3/1 of 64 channels: method 'mma' needs 144",
        ),
    ],
)
def test_what_does_not_fit(layers, in_shape, options, message):
    with pytest.raises(ValueError, match=message):
        plan(layers, in_shape=in_shape, method="mma", **{"precision": "fp16", "shared_limit": H200, **options})


@emulated
def test_an_infinity_stays_where_it_is(monkeypatch):
    one_multiprocessor(monkeypatch)
    layers = Conv2d(1, 1), Relu(), Conv2d(1, 1)  # the octet's other channels would be 0 times an infinity
    ones = np.ones((1, 1, 1, 1), np.float32)
    made = planned(layers, (1, 1, 3)).prepare([-ones, ones], [np.zeros(1, np.float32), np.full(1, 3, np.float32)])
    x = np.array([7e4, np.inf, -2], np.float32).reshape(1, 1, 1, 3)
    np.testing.assert_array_equal(made(x).ravel(), [3, 3, 5])


@pytest.mark.parametrize(("name", "needed"), network_technique("strong_mma").networks)
def test_the_catalogue_knows_how_much_shared_memory_networks_need(name, needed):
    row, of = network_technique("strong_mma"), network(name).architecture()
    (op,) = [op for op in lower(of.nodes, row.module.rewrites(row.name, of, batch=1)) if op.plan is not None]
    assert op.plan.shared_bytes == needed
    assert row.computes(name, needed)
    assert not row.computes(name, needed - 1)


def test_networks_that_it_leaves():
    row = network_technique("strong_mma")
    for name, message in (("alexnet", "needs at most 8 columns of taps"), ("ffn", "it has no convolutions")):
        assert not row.computes(name)
        of = network(name).architecture()
        with pytest.raises(ValueError, match=f"{name}: strong_mma cannot compute it: .*{message}.*; .*direct.* can"):
            row.build(row.name, {}, of)


def test_a_plan_counts():
    made = planned(FOUR, (1, 28, 28))
    assert made.flops == 1_223_120 - 2 * 484 * 10
    assert made.products == 49 * 3 + 11 * 8 * 2 + 11 * 9 + 8 * 5
    assert made.places[:-1] == (0, 32 * 28 * 16, 32 * 28 * 16 + 28 * 28 * 16, 0)  # the last map where the image was
    assert "6 blocks" in made.describe()
    packed = made.packed([np.ones(shape, np.float32) for shape in made.parameter_shapes])
    assert packed.size == 32 * sum(made.fragments(i) for i in range(4))
    weights = packed.view(np.float16)
    assert weights.sum() == sum(np.prod(shape) for shape in made.parameter_shapes)  # what is there twice is halved
