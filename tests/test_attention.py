"""attention: what a query sees, whatever the rest holds, and what techniques refuse."""

from __future__ import annotations

import numpy as np
import pytest
from case_kinds import Case
from case_makers import attention
from conftest import quick
from operator_rows import VARIANTS, each
from test_ops import check

from charcnn import catalog, ops
from charcnn.catalog import operator
from charcnn.gpu import device
from charcnn.ops import reference

ROWS = [row for row in VARIANTS if row.operator == "attention" and not row.tensor_cores]  # test_wgmma_attention


def drawn(**sizes):
    case = attention(np.random.default_rng(0), True, **{"n": 3, "heads": 2, "s": 9, "d": 4, "given": 1, **sizes})
    return case.inputs, case.options


def run(variant, inputs, options):
    check(variant, variant.launcher(**inputs, **options), Case(inputs, options).oracle(reference.attention))


HEADS, S, D = (1, 3, 12), (1, 7, 64, 129), (32, 64, 128)


@each(ROWS)
@quick(
    lambda heads, s, d: (
        ((HEADS.index(heads) + S.index(s) + D.index(d)) % 3 == 0 or (s == 7 and heads * d <= 73))
        and (not device.SIMULATED or heads * s * d <= 256)
    ),
)  # each pair once, and what the simulator can run
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("s", S)
@pytest.mark.parametrize("d", D)
def test_sizes_of_transformers(variant, heads, s, d):
    if variant.device == "cuda" and device.SIMULATED and heads * s * d > 512:
        pytest.skip("the simulator would take minutes: needs a GPU")
    for given in (0, 1):
        for causal in (0, 1):
            run(variant, *drawn(heads=heads, s=s, d=d, given=given, causal=causal))


@each(ROWS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the simulator's scalars
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@quick(lambda name, value, causal: np.isnan(value) == (causal == (name == "v")))  # of all with causal by turns
def test_what_is_not_finite(variant, name, value, causal):
    inputs, options = drawn(causal=causal)
    inputs["lengths"][...] = 9, 5, 0
    for place in ((0, 0, 3, 1), (1, 1, 6, 2), (2, 0, 0, 0)):  # of the second behind its length, of the third as well
        inputs[name][place] = value
    run(variant, inputs, options)


@each(ROWS)
def test_what_no_query_sees_has_no_part(variant):
    inputs, options = drawn(causal=1)
    expected = variant.launcher(**inputs, **options)
    for n, length in enumerate(inputs["lengths"]):
        for name in ("q", "k", "v"):
            inputs[name][n, :, length:] = np.nan
    np.testing.assert_array_equal(variant.launcher(**inputs, **options), expected)
    assert not expected[0].any(), "of length 0"


@each(ROWS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_are_minus_infinity(variant):
    inputs, options = drawn(given=0, s=70, heads=1, n=1)
    inputs["q"][...] = np.abs(inputs["q"]) + 1
    inputs["k"][0, 0, :66] = -np.inf
    run(variant, inputs, options)
    inputs["k"][...] = -np.inf  # all of them: NaN
    run(variant, inputs, options)


@each(ROWS)
def test_great_scores(variant):
    inputs, options = drawn()
    inputs["q"] *= np.float32(1e4)
    run(variant, inputs, options)


@each(ROWS)
def test_lengths_out_of_range_are_all(variant):
    inputs, options = drawn()
    inputs["lengths"][...] = -1, 10, 9
    expected = variant.launcher(*(inputs[name] for name in "qkv"), **options)
    np.testing.assert_array_equal(variant.launcher(**inputs, **options), expected)


def test_more_features_than_shared_memory_holds():
    q = np.zeros((1, 1, 2, 132), np.float32)
    with pytest.raises(ValueError, match=r"^q has shape \(1, 1, 2, 132\): need d of at most 128$"):
        ops.attention_flash(q, q, q)
    assert operator("attention").reference(q, q, q).shape == q.shape


def test_shapes_are_named():
    q = np.zeros((2, 1, 3, 4), np.float32)
    for given, message in (
        ((q[0], q, q), r"^q has shape \(1, 3, 4\): need \(N, heads, S, d\)"),
        ((q[..., :0], q, q), r"^q has shape \(2, 1, 3, 0\): need .*, d at least 1"),
        ((q, q[:1], q), r"^k has shape \(1, 1, 3, 4\): need \(2, 1, 3, 4\)"),
        ((q, q, q[:, :, :2]), r"^v has shape \(2, 1, 2, 4\): need \(2, 1, 3, 4\)"),
        ((q, q, q, np.zeros(3, np.int32)), r"^lengths has shape \(3,\): need \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.attention_loops(*given)


def test_tensor_cores_need_compute_capability_8():
    rows = [row for row in catalog.VARIANTS if row.operator == "attention" and row.technique == "mma"]
    assert {row.precision: row.capability for row in rows} == {"fp16": (8, 0), "bf16": (8, 0)}
