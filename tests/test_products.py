"""Products of training on Hopper's tensor cores: each kind against NumPy, odd sizes, shared depth, junk rows."""

from __future__ import annotations

import numpy as np
import pytest
from small_gpu import fresh_kernels

from charcnn.gpu import device
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import products, products_layer
from charcnn.ops.conv1d.wgmma.products import BY_FEATURES, BY_WEIGHTS, FORWARD, After, ProductTile
from charcnn.ops.conv1d.wgmma.products_layer import Product

if device.SIMULATED:
    from charcnn.gpu import emulator

BF16 = TENSOR_PRECISIONS["bf16"]

needs_hopper = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)


def words(values):
    """bf16 of float32, to the nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


FACTORS = 2.0, 0.25
"""Above 0, and below."""


def leaky(values):
    return np.where(values > 0, values, FACTORS[1] * values)


def chosen(values, mask):
    return values * np.where(mask > 0, FACTORS[0], np.where(mask < 0, FACTORS[1], 0))


def floats(found):
    return (found.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def case(kind, rows, inputs, outputs, taps, seed=0):
    """Arrays of a convolution over flat rows, whose last ones have no gradient, and what the product must be."""
    draw = np.random.default_rng(seed)
    x, dy = words(draw.standard_normal((rows, inputs))), words(draw.standard_normal((rows, outputs)))
    weight = words(draw.standard_normal((taps * inputs, outputs)) / np.sqrt(inputs * taps))
    dy[rows - taps + 1 :] = 0
    behind, before = np.zeros((taps, inputs)), np.zeros((taps, outputs))
    longer, later = np.concatenate([floats(x), behind]), np.concatenate([before, floats(dy)])
    matrices = floats(weight).reshape(taps, inputs, outputs)
    if kind is FORWARD:
        want = sum(longer[tap : tap + rows] @ matrices[tap] for tap in range(taps))
        return x, weight, want
    if kind is BY_FEATURES:
        want = sum(later[taps - tap : taps - tap + rows] @ matrices[tap].T for tap in range(taps))
        return dy, weight, want
    return x, dy, np.stack([longer[tap : tap + rows].T @ floats(dy) for tap in range(taps)])


def computed(kind, rows, inputs, outputs, taps, bias=None, rectified=False, mask=None):
    a, b, want = case(kind, rows, inputs, outputs, taps)
    poison = np.full(want.shape, np.nan, np.float32) if kind.by_tap else np.full(want.shape, 0x7FFF, np.uint16)
    a, b, out = map(device.to_device, (a, b, poison))
    more = {} if bias is None else {"bias": device.to_device(bias)}
    more |= {} if mask is None else {"mask": device.to_device(mask)}
    if rectified or mask is not None:
        more["factors"] = device.to_device(np.array(FACTORS, np.float32))
    product = Product(kind, a, b, out, BF16, taps=taps, rectified=rectified, **more)
    stream = device.as_stream(None)
    product.start(stream)
    got = out.copy_to_host()
    if product.partial is not None:
        return product.partial.parts.copy_to_host().sum(0, dtype=np.float64).reshape(want.shape), want
    return got.astype(np.float64) if kind.by_tap else floats(got), want


def near(got, want, tolerance):
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


@needs_hopper
@pytest.mark.parametrize(("outputs", "inputs", "taps"), [(64, 72, 3), (136, 72, 2), (8, 200, 1)])
def test_forward_with_bias_and_relu(outputs, inputs, taps):
    bias = np.random.default_rng(1).standard_normal(outputs).astype(np.float32)
    got, want = computed(FORWARD, 300, inputs, outputs, taps, bias, rectified=True)
    near(got, leaky(want + bias), BF16.tolerance / 2)


@needs_hopper
@pytest.mark.parametrize(("outputs", "inputs", "taps"), [(72, 64, 3), (40, 136, 2)])
def test_by_features_where_the_mask_is_above_0(outputs, inputs, taps):
    mask = words(np.random.default_rng(1).standard_normal((300, inputs)))
    mask[::3, ::2] = 0  # what dropout took
    got, want = computed(BY_FEATURES, 300, inputs, outputs, taps, mask=mask)
    near(got, chosen(want, floats(mask)), BF16.tolerance / 2)
    assert not got[floats(mask) == 0].any()


@needs_hopper
@pytest.mark.parametrize(("rows", "outputs", "inputs", "taps"), [(150, 64, 72, 3), (200, 136, 40, 1)])
def test_by_weights(rows, outputs, inputs, taps):
    near(*computed(BY_WEIGHTS, rows, inputs, outputs, taps), 2e-6)


@needs_hopper
def test_a_shared_depth_is_added_up(monkeypatch):
    monkeypatch.setattr(products_layer, "_depth", lambda *_: 2)
    bias = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    got, want = computed(FORWARD, 40, 264, 40, 1, bias, rectified=True)
    near(got, leaky(want + bias), BF16.tolerance / 2)
    mask = words(np.random.default_rng(1).standard_normal((40, 24)))
    got, want = computed(BY_FEATURES, 40, 24, 264, 1, mask=mask)
    near(got, chosen(want, floats(mask)), BF16.tolerance / 2)
    near(*computed(BY_WEIGHTS, 300, 24, 40, 2), 2e-6)


def test_depth_is_shared_where_blocks_are_idle():
    assert products_layer._depth(tiles=5376, steps=28, clusters=66, nbytes=1 << 29, by_tap=False) == 28
    few = products_layer._depth(tiles=4, steps=136, clusters=66, nbytes=1 << 20, by_tap=False)
    assert 4 * -(-136 // few) > 33  # half of the clusters or more


def test_what_shared_memory_holds():
    for after in (After(biased=True), After(masked=True), After(partial=True)):
        for columns in (8, 128, 256, 1024):
            tile = ProductTile.of(columns, after)
            assert tile.smem_bytes <= device.SHARED_LIMIT
            assert tile.stage_bytes % 1024 == tile.a_bytes % 1024 == tile.staged_at % 1024 == 0
    copy, math = products.REGISTERS
    assert 128 * (copy + products.MATH_WARPGROUPS * math) <= 65_536


def test_channels_that_a_tensor_map_cannot_have():
    if not device.SIMULATED and not device.has_tensor_cores(hopper=True):
        pytest.skip("needs a GPU of compute capability 9.0")
    a, b, out = (device.to_device(np.zeros(shape, np.uint16)) for shape in ((8, 12), (12, 8), (8, 8)))
    with pytest.raises(ValueError, match=r"a has 12 channels: need a multiple of 8"):
        Product(FORWARD, a, b, out, BF16)


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.parametrize("kind", [FORWARD, BY_FEATURES, BY_WEIGHTS], ids=lambda kind: kind.name)
def test_no_race_in_emulation(kind, monkeypatch):
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    bias = np.zeros(40, np.float32) if kind is FORWARD else None
    mask = words(np.random.default_rng(1).standard_normal((300, 40))) if kind is BY_FEATURES else None
    with emulator.checking(seed=3):
        got, want = computed(kind, 300, 40, 40, 2, bias=bias, mask=mask)
    near(got, want if mask is None else chosen(want, floats(mask)), BF16.tolerance / 2)
