"""Block 1 to Toom-Cook's planes against planes of its own features, which `warp_gather` gives."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from small_gpu import fresh_kernels
from test_token_conv1d import affine, draw, exact, kinds

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.toom_cook import transforms
from charcnn.ops.conv1d.toom_cook.layer import PRECISIONS
from charcnn.ops.conv1d.toom_cook.planes import unit
from charcnn.ops.token_conv1d.plane_gather import byte_table, kernel, short_table
from charcnn.ops.token_conv1d.plane_gather.byte_table import MOST_WEIGHT, RAISED, SUBNORMAL, TAPS_A_SUM
from charcnn.ops.token_conv1d.plane_gather.weights import HELD, PlaneGatherWeights
from charcnn.ops.token_conv1d.warp_gather.config import WARP

ampere = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")
simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the same at real sizes")

E4M3 = np.array([ptx.simulated.float_of_e4m3(bits) for bits in range(256)])


@pytest.fixture
def machine(monkeypatch):
    """Addresses and warps in plain Python; nothing where there is a GPU."""
    if not device.SIMULATED:
        yield
        return
    kernel.make_kernel.cache_clear()  # of kernels that another machine runs
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    yield
    kernel.make_kernel.cache_clear()


def values(planes, precision):
    """Planes in float64, two terms as one number."""
    of = TENSOR_PRECISIONS[precision]
    if precision == "fp8":
        return E4M3[planes] * unit(of)
    planes = planes.astype(np.float64)
    return planes.reshape(*planes.shape[:-1], of.terms, -1).sum(-2)


def check(ids, weight, bias, precision, layernorm, whole, wide=False, **tiles):
    """Into a poisoned output, against planes of the reference's features in float64."""
    positions, channels = ids.shape[1] - len(weight) + 1, weight.shape[2]
    gamma, beta = affine(positions, channels) if layernorm else (None, None)
    made = PlaneGatherWeights(weight, bias, gamma, beta, precision=precision, wide=wide)
    assert (made._table is not made._of.table) == whole
    arrays = exact(weight, bias)
    stat = reference.one_hot_conv1d_stat_nlc(ids, *arrays)
    stat[:, 1] += 1  # of one value: not nothing
    if layernorm:
        features = reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, *exact(stat), *arrays, *exact(gamma, beta), 3
        )
    else:
        features = reference.one_hot_conv1d_relu_maxpool1d_nlc(ids, *arrays, 3)
    want = transforms.transformed_features(features)
    shape, of = made.planes_shape(*ids.shape), made.precision
    assert shape == (*want.shape[:-1], of.terms * want.shape[-1])
    got = []
    for _ in range(1 if device.SIMULATED else 2):
        call = Call(None, None, shape, of.dtype, ids=device.to_device(ids), stat=device.to_device(stat))
        poison = np.full(shape, 0xFF, np.uint8).repeat(of.itemsize, -1).view(of.dtype)
        call.out.copy_to_device(poison)  # NaN in all formats
        made.launch(call, call.inputs[0], call.inputs[1] if layernorm else None, call.out, **tiles)
        got.append(call.out.copy_to_host())
    np.testing.assert_array_equal(got[0].view(np.uint8), got[-1].view(np.uint8))
    error = values(got[0], precision) - want
    tolerance = TENSOR_PRECISIONS["tf32"].tolerance if wide else 2 * of.tolerance
    assert np.linalg.norm(error) <= tolerance * np.linalg.norm(want)
    return got[0]


TINY = (7, 5, 64)
"""K, depth, C_out."""


@simulated
@pytest.mark.parametrize(("precision", "layernorm", "held"), [
    ("fp16", True, 2), ("fp16", True, 3), ("fp8", True, 1), ("tf32", True, 2), ("fp16x3", False, 1), ("fp8", False, 2),
    ("fp8", True, 4), ("tf32", False, 1),
])  # fmt: skip
@quick(lambda held, precision: held > 1 and (held, precision) != (3, "fp16"))
def test_against_the_reference(precision, layernorm, held, machine):
    """Ends of inputs, of runs and of the batch within a block, blanks alone, and blocks of several units."""
    weight, bias = draw(*TINY)
    whole = precision in ("fp8", "tf32")
    check(kinds(9 * 7 + 6 + 2, 5)[:3], weight, bias + 2, precision, layernorm, whole, held=held, threads=WARP)


@simulated
@pytest.mark.parametrize(
    ("layernorm", "channels"), [(True, 64), pytest.param(False, 136, marks=pytest.mark.exhaustive), (True, 4)]
)
def test_planes_of_fp16_that_are_computed_in_float32(layernorm, channels, machine):
    """From whole numbers, or where C_out is in no whole 8s from float32."""
    weight, bias = draw(7, 5, channels)
    tiles = {"held": 2, "threads": WARP * (2 if channels == 136 else 1)}
    check(kinds(9 * 7 + 6 + 2, 5)[:3], weight, bias + 2, "fp16", layernorm, channels != 4, wide=True, **tiles)


@simulated
def test_weights_that_bytes_do_not_hold(machine):
    """The table is float16: steps would be none."""
    weight, bias = draw(*TINY)
    check(kinds(9 * 7 + 6 + 2, 5)[:1], weight * (2 * MOST_WEIGHT / abs(weight).max()), bias, "fp8", True, False, held=1)


@simulated
@pytest.mark.parametrize(("precision", "channels"), [("tf32", 136), ("fp8", 144)])
def test_a_row_that_two_warps_share(precision, channels, machine):
    """And a second block has a few channels of."""
    weight, bias = draw(7, 5, channels)
    check(kinds(9 * 2 + 6 + 2, 5)[:2], weight, bias, precision, True, True, held=1, threads=2 * WARP)


@simulated
def test_weights_that_no_whole_numbers_hold(machine):
    """The table is float32: C_out is in no whole 8s."""
    weight, bias = draw(7, 5, 4)
    check(kinds(9 * 7 + 6 + 2, 5)[:1], weight, bias, "tf32", True, False, held=1)


@pytest.mark.parametrize("taps", [7, 8, 1])
def test_short_whole_numbers_of_weights(taps):
    """Each is off by half a step at most, and a sum of all taps is one."""
    weight, bias = draw(taps, 9, 32)
    weight[:, :, 0], weight[:, :, 1] = 0, abs(weight[:, :, 1])
    table, rows = short_table.pack(weight, bias)
    (steps, begins), table = rows.reshape(2, 32).astype(np.float64), table.astype(np.int64)
    np.testing.assert_allclose(short_table.variance(weight), (taps + 1) * steps**2 / 12)
    error = (table - table[:, -1:])[:, :-1] * steps - weight
    assert (abs(error) <= 0.501 * steps).all()
    assert abs((error**2)[..., 2:].mean() / (steps**2)[..., 2:].mean() - 1 / 12) < 0.02  # what `variance` has of a tap
    np.testing.assert_allclose(begins + (table[:, -1:] * steps).sum((0, 1)), bias, atol=1e-6)
    most = table.max(1).sum(0)
    assert most.max() <= 0xFFFF
    assert most[2:].min() >= 0xFFFF - 3 * taps


def test_weights_that_short_whole_numbers_hold():
    """They do as well as TF32; not where a great one makes all others coarse, or none is finite."""
    weight, _ = draw(7, 70, 32)
    weight[:, :, 3] = 0
    assert short_table.holds(weight)
    assert not short_table.holds(weight[:, :, :20])
    for value in (np.nan, np.inf, 300 * abs(weight).max()):
        spoiled = weight.copy()
        spoiled[2, 5, 4] = value
        assert not short_table.holds(spoiled)


@pytest.mark.parametrize("taps", [7, 8, 1])
def test_bytes_of_weights(taps):
    """Each is off by half a step at most, and a sum of bytes is one."""
    weight, bias = draw(taps, 9, 32)
    weight[:, :, 0], weight[:, :, 1] = 0, abs(weight[:, :, 1])
    table, rows = byte_table.pack(weight, bias)
    table = table.reshape(*table.shape[:2], -1, 2, 2).swapaxes(3, 4).reshape(table.shape).astype(np.int64)
    *steps, begins = rows.reshape(-1, 32).astype(np.float64)
    steps = np.repeat(np.array(steps) * RAISED / SUBNORMAL, TAPS_A_SUM, axis=0)[:taps, None]
    np.testing.assert_array_equal(byte_table.steps(weight), steps[:, 0])
    error = (table - table[:, -1:])[:, :-1] * steps - weight
    assert (abs(error) <= 0.5001 * steps).all()
    assert abs((error**2)[..., 2:].mean() / (steps**2)[..., 2:].mean() - 1 / 12) < 0.02  # what `model.rounding` has
    np.testing.assert_allclose(begins + (table[:, -1:] * steps).sum((0, 1)), bias, atol=1e-5)
    for first in range(0, taps, TAPS_A_SUM):
        most = table[first : first + TAPS_A_SUM].max(1).sum(0)
        assert most.max() <= 255
        assert most[2:].min() >= 255 - 2 * TAPS_A_SUM


@ampere
@quick(lambda precision, layernorm, most: most < 150 and (layernorm or precision == "fp16"))
@pytest.mark.parametrize("layernorm", [True, False])
@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("most", [20, 150])
def test_the_networks_sizes(precision, layernorm, most):
    """The reference in float64 takes longer than its kernel to compile."""
    weight, bias = draw(7, 70, 256)
    for n in (1, 3, most):
        ids = np.concatenate([kinds(1014, 70, seed) for seed in range(-(-n // 6))])[:n]
        check(ids, weight, bias, precision, layernorm, precision in ("fp8", "tf32"))
    if precision == "fp16":
        check(ids, weight, bias, precision, layernorm, True, wide=True)


@pytest.mark.parametrize(("shape", "precision"), [((9, 70, 16), "fp16"), ((7, 192, 16), "fp16"), ((7, 70, 12), "fp16")])
def test_weights_that_do_not_fit(shape, precision):
    with pytest.raises(ValueError, match="need K up to 8, depth up to 191, C_out in whole 8s"):
        PlaneGatherWeights(np.zeros(shape, np.float32), np.zeros(shape[2], np.float32), precision=precision)


@simulated
@pytest.mark.parametrize("layernorm", [True, False])
def test_an_outlier_of_a_rare_character(layernorm, machine):
    """TF32 has float32's range: one great weight of a character that does not occur costs the others nothing."""
    weight, bias = draw(7, 5, 8)
    weight[3, 4, 2] = 1e6
    ids = kinds(9 * 3 + 6 + 2, 5)[:1].copy()
    ids[ids == 4] = 3
    check(ids, weight, bias, "tf32", layernorm, False, held=1, threads=WARP)


@simulated
def test_great_weights(machine):
    """2^23 steps would be no float32."""
    weight, bias = draw(7, 5, 8)
    weight *= np.float32(1e36) / abs(weight).max()
    check(kinds(9 * 3 + 6 + 2, 5)[:1], weight, bias, "tf32", False, False, held=1, threads=WARP)


@simulated
def test_one_tap(machine):
    """Of four words of a record the last one's neighbour is there, too."""
    weight, bias = draw(1, 5, 8)
    check(kinds(9 * 3 + 2, 5)[:1], weight, bias, "tf32", True, True, held=1, threads=WARP)


@simulated
@pytest.mark.parametrize(("precision", "channels"), [("tf32", 136), ("fp8", 144), ("tf32", 64), ("fp16", 136)])
def test_a_table_that_leaves_room_for_one_warp(precision, channels, machine, monkeypatch):
    """Two that share a row of whole numbers need more: the table has none then."""
    room = kernel.smem_bytes(7, 5, HELD, WARP)
    monkeypatch.setattr(device, "shared_limit", lambda: room)
    made = PlaneGatherWeights(*draw(7, 5, channels), precision=precision)
    started = []

    class Launched(Call):  # one that starts nothing
        def launch(self, kernel, blocks, threads, *args, shared=0):
            started.append((threads, shared))

    ids = device.to_device(kinds(9 * 7 + 6 + 2, 5)[:1])
    call = Launched(None, None, made.planes_shape(*ids.shape), made.precision.dtype, ids=ids)
    made.launch(call, call.inputs[0], None, call.out)
    assert started == [(WARP, room)]
    assert (made._table is not made._of.table) == (channels == 64)
