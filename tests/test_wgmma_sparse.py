"""2:4 sparse products: what is kept, where metadata say it belongs, and the product on Hopper or in the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensor_energy
from case_kinds import built
from cases import error
from operator_cases import CASES, takes
from prepared import of_kind
from tensor_energy import DEPTH, ROWS, STAGES, numbers, paired

from charcnn import catalog
from charcnn.config import TINY_MATRICES
from charcnn.gpu import device
from charcnn.layers import Conv1d
from charcnn.model import params, sparsity
from charcnn.model.validation import expected, in_sigmas
from charcnn.ops import reference
from charcnn.ops.common.epilogues import Elementwise, pattern_of
from charcnn.ops.common.precision import choose
from charcnn.ops.common.sparse import compressed, largest, pruned
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.conv1d.toom_cook.pack import bits
from charcnn.ops.conv1d.wgmma_sparse.config import SparseTile
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv

hopper_or_simulated = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)


def test_the_largest_two_of_four():
    values = np.array([[3, -4, 1, 2], [0, 0, 0, 0], [1, 1, -1, 1], [0, 0, 0, -5]], np.float32)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1]]
    np.testing.assert_array_equal(largest(values.reshape(2, 8)).reshape(4, 4), expected)


@pytest.mark.parametrize("ptx_type", ["f16", "e4m3"])
def test_compressed_is_put_back_where_it_was(ptx_type):
    pytest.importorskip("greenlet", reason="the emulator needs it")
    from charcnn.gpu.emulator.wgmma import sparse_places

    depth = DEPTH[ptx_type]
    a = numbers(paired((2 * ROWS, 2 * depth), 1, np.random.default_rng(0)), ptx_type)
    a[5, 8:12] = 0  # fewer than two
    tiles = compressed(a)
    assert tiles.kept.shape == (2, 2, ROWS, depth // 2)
    for i, j in np.ndindex(2, 2):
        found = np.zeros((ROWS, depth // 4, 4), a.dtype)
        places = sparse_places(tiles.metadata[i, j], ptx_type)
        np.put_along_axis(found, places, tiles.kept[i, j].reshape(places.shape), 2)
        expected = a[ROWS * i : ROWS * (i + 1), depth * j : depth * (j + 1)]
        np.testing.assert_array_equal(found.reshape(ROWS, depth), expected)


def test_metadata_as_the_figure_of_16_bits_has_them():
    a = np.zeros((ROWS, 64), np.float16)
    a[9, 34] = a[9, 35] = 1  # the second row of warp 0's group 1; of 32 to 47 the first four, by lane 2
    metadata = compressed(a).metadata[0, 0, :, 0]
    assert metadata[4 * 1 + 2] == 0x444E4444  # 2 and 3; elsewhere 0 and 1
    assert (np.delete(metadata, 6) == 0x44444444).all()


def test_metadata_as_the_figure_of_8_bits_has_them():
    a = np.zeros((ROWS, 128), np.uint8)
    a[25, 64 + 32 + 5] = a[25, 64 + 32 + 6] = 1  # warp 1, second row of group 1; of the second 64 the second half
    metadata = compressed(a).metadata[0, 0]
    assert metadata[32 + 4 * 1 + 3, 1] == 0x44444494
    assert (metadata == 0x44444444).sum() == 255


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (np.ones((64, 64), np.float16), "need two zeros of each four"),
        (np.zeros((63, 64), np.float16), "need .M, K., multiples of 64 and 64"),
        (np.zeros((64, 64), np.uint8), "multiples of 64 and 128"),
        (np.zeros((64, 64), np.float32), "dtype float32: need float16"),
    ],
)
def test_what_is_not_compressed(values, what):
    with pytest.raises(ValueError, match=what):
        compressed(values)


def test_fours_are_whole():
    with pytest.raises(ValueError, match="6 numbers in depth"):
        largest(np.zeros((2, 6), np.float32))


@hopper_or_simulated
@pytest.mark.parametrize("ptx_type", ["f16", "e4m3"])
def test_product(ptx_type):
    assert tensor_energy.wrong(ptx_type, 8 if device.SIMULATED else 128, 1, range(2)) == []


@hopper_or_simulated
@pytest.mark.parametrize("weights", ["dense", "dense, zeros", "sparse"])
def test_what_is_measured_is_the_product(weights):
    one = tensor_energy.Product("f16", weights, "relu", 16, 1)
    operands = tensor_energy.operands_of(one)
    operands.start(1, 1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, STAGES * DEPTH["f16"])) for rows in (ROWS, 16))
    a = a if weights == "dense" else np.where(largest(a), a, 0)
    expected = a.astype(np.float16).astype(np.float64) @ np.maximum(b, 0).astype(np.float16).T.astype(np.float64)
    np.testing.assert_allclose(operands.d.copy_to_host(), expected, atol=1e-3)


KINDS = {
    "relu": (9, 7, 64, 136, 3), "pool": (3, 14, 72, 32, 7), "stat": (3, 35, 64, 16, 3), "line": (13, 1, 264, 32, 1),
}  # fmt: skip
"""Inputs, positions, channels in and out, taps: parts of a tile, of its channels, of a k block."""


@hopper_or_simulated
@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.exhaustive), "fp8"])
@pytest.mark.parametrize("kind", KINDS)
def test_convolution(kind, precision):
    of, (n, length, c_in, c_out, taps) = choose(precision), KINDS[kind]
    c_in = -(-c_in // 16) * 16
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, length, c_in), np.float32)
    weight = pruned(rng.standard_normal((taps, c_in, c_out), np.float32) / np.float32(np.sqrt(taps * c_in)), 1)
    bias, method = rng.standard_normal(c_out, np.float32), "conv1d" if kind == "stat" else "conv1d_relu"
    features = device.to_device(bits(x, of)[0].view(of.dtype))
    conv = of_kind(SparseConv, kind, weight, bias, precision=precision, results="float32")
    expected = getattr(reference, f"{method}_nlc")(*(one.astype(np.float64) for one in (x, weight, bias)))
    if kind == "pool":
        expected = reference.maxpool1d(expected.transpose(0, 2, 1), 3).transpose(0, 2, 1)
    if kind == "stat":
        y, stat = conv.with_moments(features)
        moments = np.stack([expected.mean((1, 2)), expected.var((1, 2))], 1)
        np.testing.assert_allclose(stat.copy_to_host(), moments, atol=10 * of.tolerance / np.sqrt(length * c_out))
    else:
        y = conv.apply(features)
    assert error(y.copy_to_host(), expected) < of.tolerance


@hopper_or_simulated
def test_tiles_give_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 9, 128)).astype(np.float16)
    weight, bias = pruned(rng.standard_normal((3, 128, 64), np.float32), 1), np.zeros(64, np.float32)
    resident = SparseTile(3, 3, 2, 1, 2, True)
    found = []
    for tile in (resident, replace(resident, resident=False, cluster=2)):
        conv = of_kind(SparseConv, "relu", weight, bias)
        monkeypatch.setattr(conv, "_tile", lambda written, tile=tile: tile)
        found.append(conv.apply(device.to_device(x)).copy_to_host())
    np.testing.assert_array_equal(*found)


@hopper_or_simulated
def test_a_cluster_shares_the_rows_of_a_linear_layer():
    rng = np.random.default_rng(0)
    x, bias = rng.standard_normal((13, 1, 192)).astype(np.float16), np.zeros(256, np.float32)
    weight = pruned(rng.standard_normal((1, 192, 256), np.float32), 1)
    y = of_kind(SparseConv, "line", weight, bias).apply(device.to_device(x)).copy_to_host()
    assert error(y, np.maximum(x.astype(np.float64) @ weight[0], 0)) < 2e-3


@hopper_or_simulated
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"weight": np.ones((3, 64, 16), np.float32)}, r"weight\[0, 0:4, 0\] has more than 2 of 4"),
        ({"weight": np.zeros((3, 64, 24), np.float32), "moments": True}, "C_out=24: need a multiple of 16 for moments"),
        ({"pattern": [Conv1d(16, 3), Elementwise("gelu")]}, "gelu: need ReLU or nothing"),
        ({"precision": "tf32"}, "precision='tf32': need one of fp16, bf16, fp8"),
        ({"weight": np.zeros((300, 64, 16), np.float32), "pattern": [Conv1d(16, 300)]}, "weight has 300 taps"),
    ],
)
def test_what_is_refused(given, what):
    weight = given.pop("weight", np.zeros((3, 64, 16), np.float32))
    pattern = given.pop("pattern", pattern_of(weight))
    with pytest.raises(ValueError, match=what):
        SparseConv(pattern, {"weight": weight}, **given)


def test_a_model_is_sparse_or_named():
    weights = params.init(TINY_MATRICES, 0)
    with pytest.raises(ValueError, match=r"conv2.weight has more than two of four weights .* --sparse 2:4"):
        sparsity.check(weights, TINY_MATRICES)
    found = catalog.level("l22").taken(weights)
    sparsity.check(found, TINY_MATRICES)
    assert (found["fc2.weight"] != 0).mean() == 0.5


SPARSE_ROWS = [row for row in catalog.VARIANTS if row.sparse]


@hopper_or_simulated
@pytest.mark.parametrize("row", [row for row in SPARSE_ROWS if row.precision == "fp16"], ids=lambda row: row.name)
def test_operators_take_sparse_weights_alone(row):
    cases = CASES[row.operator]
    for sizes in [sizes for sizes in cases.edges if takes(row.label, sizes)][:3]:
        case = built(row, cases, sizes)
        expected = case.oracle(catalog.operator(row.operator).reference)
        y = row.launcher(**case.inputs, **case.options)
        assert y.shape == expected.shape
        assert error(y, expected) <= catalog.tolerance(row)
    dense = {"weight": np.ones_like(case.inputs["weight"])}
    if dense["weight"].shape[-2] > 2 and len(case.inputs["x"]):
        with pytest.raises(ValueError, match=r"weight.* has more than 2 of 4 numbers that are not 0"):
            row.launcher(**{**case.inputs, **dense}, **case.options)


@hopper_or_simulated
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
def test_what_is_not_finite_changes_sums_whose_weights_count():
    weight = np.zeros((1, 64, 16), np.float32)
    weight[0, 4, :8] = 1
    x = np.ones((9, 1, 64), np.float32)
    x[3, 0, 4] = np.inf
    y = SparseConv(pattern_of(weight), {"weight": weight}).apply(device.to_device(x.astype(np.float16))).copy_to_host()
    assert np.isposinf(y[3, 0, :8]).all()
    np.testing.assert_array_equal(np.delete(y, 3, 0), np.broadcast_to(weight[0, 4].astype(np.float16), (8, 1, 16)))


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tile", [SparseTile(3, 3, 2, 1, 2, True), SparseTile(3, 3, 2, 1, 2, False, cluster=2)])
def test_no_schedule_shows_a_race(tile, seed, monkeypatch):
    from charcnn.gpu import emulator

    conv = of_kind(SparseConv, "relu", np.zeros((3, 128, 64), np.float32), np.zeros(64, np.float32))
    monkeypatch.setattr(conv, "_tile", lambda written: tile)
    with emulator.checking(seed) as findings:
        conv.apply(device.to_device(np.zeros((9, 6, 128), np.float16)))
    assert findings == []


@hopper_or_simulated
def test_a_level_refuses_dense_weights_and_names_the_layer():
    weights = params.init(TINY_MATRICES, 0)
    with pytest.raises(ValueError, match=r"^conv2.weight has more than two of four weights"):
        catalog.level("l22").module.build(weights, TINY_MATRICES, batch=2, streams=1)


@hopper_or_simulated
@pytest.mark.exhaustive
@pytest.mark.parametrize(("precision", "layernorm"), [("fp16", True), ("fp8", False)])
def test_a_level_with_more_than_a_few_inputs(precision, layernorm):
    level, config = catalog.level("l22"), replace(TINY_MATRICES, layernorm=layernorm)
    weights = level.taken(params.init(config, 0))
    ids = np.random.default_rng(0).integers(0, config.alphabet, (SPREAD["fp16"].linear + 1, config.length), np.uint8)
    logits = level.module.build(weights, config, batch=len(ids), streams=1, precision=precision)(ids)
    rounding = level.rounding(precision)
    assert (in_sigmas(logits, *expected(ids, weights, config, rounding)) <= rounding.bound).all()
