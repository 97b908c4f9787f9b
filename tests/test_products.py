"""Products of training on tensor cores: each kind against NumPy, odd sizes, shared depth, junk rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import by_turns, quick
from small_gpu import fresh_kernels

from charcnn import ops
from charcnn.compiling.stand_in import SIZES
from charcnn.config import Config
from charcnn.gpu import device
from charcnn.model import gradient_errors, params
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d import products
from charcnn.ops.conv1d.mma.products import PIECE, MmaProductTile, make_swizzled
from charcnn.ops.conv1d.mma.products_layer import MmaProduct
from charcnn.ops.conv1d.products import BY_FEATURES, BY_WEIGHTS, FORWARD, After, TrainingProduct
from charcnn.ops.conv1d.wgmma.products import MATH_WARPGROUPS, REGISTERS, ProductTile
from charcnn.ops.conv1d.wgmma.products_layer import WgmmaProduct
from charcnn.runtime.mixed_training import MixedTraining

if device.SIMULATED:
    from charcnn.gpu import emulator

BF16 = TENSOR_PRECISIONS["bf16"]


@pytest.fixture(params=[WgmmaProduct, MmaProduct], ids=["wgmma", "mma"])
def made(request):
    """A class whose products the GPU can compute."""
    try:
        request.param.require()
    except device.DeviceError as error:
        pytest.skip(str(error))
    return request.param


def words(values):
    """bf16 of float32, to the nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def slow(*sizes):
    """One that is emulated for seconds, and shows more of the same."""
    return pytest.param(*sizes, marks=pytest.mark.exhaustive)


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


def computed(made, kind, rows, inputs, outputs, taps, bias=None, rectified=False, mask=None):
    a, b, want = case(kind, rows, inputs, outputs, taps)
    poison = np.full(want.shape, np.nan, np.float32) if kind.by_tap else np.full(want.shape, 0x7FFF, np.uint16)
    a, b, out = map(device.to_device, (a, b, poison))
    more = {} if bias is None else {"bias": device.to_device(bias)}
    more |= {} if mask is None else {"mask": device.to_device(mask)}
    if rectified or mask is not None:
        more["factors"] = device.to_device(np.array(FACTORS, np.float32))
    product = made(kind, a, b, out, BF16, taps=taps, rectified=rectified, **more)
    stream = device.as_stream(None)
    product.start(stream)
    got = out.copy_to_host()
    if product.partial is not None:
        return product.partial.parts.copy_to_host().sum(0, dtype=np.float64).reshape(want.shape), want
    return got.astype(np.float64) if kind.by_tap else floats(got), want


def rows(made):
    """More than one tile's."""
    return made.cluster * made.block_m + 44


def near(got, want, tolerance):
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


@quick(lambda made: made is MmaProduct)  # of the other one test_no_race_in_emulation has it
@pytest.mark.parametrize(("outputs", "inputs", "taps"), [slow(64, 72, 3), (136, 72, 2), slow(8, 200, 1)])
def test_forward_with_bias_and_relu(made, outputs, inputs, taps):
    bias = np.random.default_rng(1).standard_normal(outputs).astype(np.float32)
    got, want = computed(made, FORWARD, rows(made), inputs, outputs, taps, bias, rectified=True)
    near(got, leaky(want + bias), BF16.tolerance / 2)


@quick(lambda made: made is WgmmaProduct)
@pytest.mark.parametrize(("outputs", "inputs", "taps"), [slow(72, 64, 3), (40, 136, 2)])
def test_by_features_where_the_mask_is_above_0(made, outputs, inputs, taps):
    mask = words(np.random.default_rng(1).standard_normal((rows(made), inputs)))
    mask[::3, ::2] = 0  # what dropout took
    got, want = computed(made, BY_FEATURES, rows(made), inputs, outputs, taps, mask=mask)
    near(got, chosen(want, floats(mask)), BF16.tolerance / 2)
    assert not got[floats(mask) == 0].any()


@quick(lambda made: made is WgmmaProduct)
@pytest.mark.parametrize(("rows", "outputs", "inputs", "taps"), [(150, 64, 72, 3), slow(200, 136, 40, 1)])
def test_by_weights(made, rows, outputs, inputs, taps):
    near(*computed(made, BY_WEIGHTS, rows, inputs, outputs, taps), 2e-6)


@quick(lambda made: made is WgmmaProduct)
def test_a_shared_depth_is_added_up(made, monkeypatch):
    monkeypatch.setattr(products, "_depth", lambda *_: 2)
    bias = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    got, want = computed(made, FORWARD, 40, 264, 40, 1, bias, rectified=True)
    near(got, leaky(want + bias), BF16.tolerance / 2)
    mask = words(np.random.default_rng(1).standard_normal((40, 24)))
    got, want = computed(made, BY_FEATURES, 40, 24, 264, 1, mask=mask)
    near(got, chosen(want, floats(mask)), BF16.tolerance / 2)
    near(*computed(made, BY_WEIGHTS, 300, 24, 40, 2), 2e-6)


def test_depth_is_shared_where_blocks_are_idle():
    assert products._depth(tiles=5376, steps=28, clusters=66, nbytes=1 << 29, by_tap=False) == 28
    few = products._depth(tiles=4, steps=136, clusters=66, nbytes=1 << 20, by_tap=False)
    assert 4 * -(-136 // few) > 33  # half of the clusters or more


def test_what_shared_memory_holds():
    for after in (After(biased=True), After(masked=True), After(partial=True)):
        for columns in (8, 128, 256, 1024):
            tile = ProductTile.of(columns, after)
            assert tile.smem_bytes <= device.SHARED_LIMIT
            assert tile.stage_bytes % 1024 == tile.a_bytes % 1024 == tile.staged_at % 1024 == 0
    copy, math = REGISTERS
    assert 128 * (copy + MATH_WARPGROUPS * math) <= 65_536
    for columns in (8, 128, 256, 1024):
        tile = MmaProductTile.of(columns)
        assert tile.smem_bytes <= SIZES[8, 6][1]
        assert tile.resident * (tile.smem_bytes + 1024) <= SIZES[8, 6][1] + 1024


@pytest.mark.parametrize("pieces", [2, 4, 8, 16, 32])
def test_eight_rows_that_are_read_at_once_are_in_all_banks(pieces):
    swizzled = make_swizzled(pieces)
    swizzled = getattr(swizzled, "py_func", swizzled)
    for row, piece in itertools.product((0, 8, 16), range(pieces)):
        at = [(row + i) * pieces + swizzled(row + i, piece) for i in range(8)]
        assert {one * PIECE % 128 for one in at} == {PIECE * i for i in range(8)}
    assert {swizzled(5, piece) for piece in range(pieces)} == {*range(pieces)}


def test_what_does_not_fit(made):
    a, b, out = (device.to_device(np.zeros(shape, np.uint16)) for shape in ((8, 12), (12, 8), (8, 8)))
    with pytest.raises(ValueError, match=r"a has 12 channels: need a multiple of 8"):
        made(FORWARD, a, b, out, BF16)
    a = device.to_device(np.zeros((8, 16), np.uint16))
    with pytest.raises(ValueError, match=r"b has shape \(12, 8\): need \(32, 8\)"):
        made(FORWARD, a, b, out, BF16, taps=2)
    with pytest.raises(ValueError, match=r"mask has shape \(8, 16\): need \(8, 8\)"):
        made(BY_FEATURES, out, out, out, BF16, mask=a, factors=out)
    with pytest.raises(ValueError, match=r"a has shape \(8, 16\): need \(8, 8\)"):
        made(BY_WEIGHTS, a, out, out, BF16)


@by_turns
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@quick(lambda made, kind: kind is BY_WEIGHTS or (made is WgmmaProduct) == (kind is FORWARD))
@pytest.mark.parametrize("kind", [FORWARD, BY_FEATURES, BY_WEIGHTS], ids=lambda kind: kind.name)
def test_no_race_in_emulation(made, kind, monkeypatch):
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    bias = np.zeros(40, np.float32) if kind is FORWARD else None
    mask = words(np.random.default_rng(1).standard_normal((rows(made), 40))) if kind is BY_FEATURES else None
    with emulator.checking(seed=3):
        got, want = computed(made, kind, rows(made), 40, 40, 2, bias=bias, mask=mask)
    near(got, want if mask is None else chosen(want, floats(mask)), BF16.tolerance / 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("made", [MmaProduct], indirect=True)
def test_a_step_of_a_network(made, monkeypatch):
    """The loss and all gradients within what rounding allows; a network as small as products can be."""
    if device.SIMULATED:
        fresh_kernels(monkeypatch)
        monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    config, draw = Config(length=123, channels=8, units=8, classes=3), np.random.default_rng(0)
    ids = draw.integers(0, config.alphabet + 1, (2, config.length), np.uint8)
    targets, weights = draw.dirichlet(np.ones(3), 2).astype(np.float32), params.init(config, 1)
    training = MixedTraining(config.nodes, weights, 2, technique="mma")
    products = [one for one in training._step.workspace if isinstance(one, TrainingProduct)]
    assert {type(product) for product in products} == {made}
    loss, found = training.loss_and_gradients(ids, targets)
    exact, sigma = gradient_errors.expected(config.nodes, ids, targets, weights, "bf16")
    errors = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
    assert errors.keys() == {"loss", *weights}
    assert max(errors.values()) <= gradient_errors.BOUNDS["bf16"], errors


@quick(lambda made: made is WgmmaProduct)
@pytest.mark.parametrize("operator", ["conv1d", slow("relu_conv1d"), slow("linear"), slow("relu_linear")])
def test_operators(made, operator):
    """float32 in and out, channels that are no octets, and two inputs, of which the second has an infinity."""
    draw, technique = np.random.default_rng(0), "wgmma" if made is WgmmaProduct else "mma"
    sizes = ((2, 5), (2, 9), (9, 5)) if "linear" in operator else ((2, 6, 5), (2, 8, 9), (3, 9, 5))
    dy, x, weight = (draw.standard_normal(of, np.float32) for of in sizes)
    x *= draw.random(x.shape) < 0.7
    name = f"{operator}_backward_nlc"
    function, oracle = getattr(ops, f"{name}_{technique}"), getattr(reference, name)
    for got, want in zip(function(dy, x, weight), oracle(*map(np.float64, (dy, x, weight))), strict=True):
        near(got, want, TENSOR_PRECISIONS["fp16"].tolerance)
    if operator == "conv1d":
        x[1, 0, 1] = np.inf
        dx, dweight, dbias = function(dy, x, weight, precision="bf16")
        assert all(np.isfinite(array).all() for array in (dx, dbias, np.delete(dweight, 1, axis=1)))
        assert not np.isfinite(dweight[:, 1]).any()
    assert all(not np.any(one) for one in function(dy[:0], x[:0], weight))


def test_a_technique_that_there_is_not():
    with pytest.raises(ValueError, match=r"technique='tma': need one of mma, wgmma"):
        MixedTraining((), {}, 1, technique="tma")
