"""What a transformer's operators refuse, and ids that are in no table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from operator_rows import VARIANTS, each, example

from charcnn import ops


def zeros(*shape):
    return np.zeros(shape, np.float32)


TOKENS = np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((TOKENS[0], zeros(5, 4), zeros(3, 4), zeros(2, 4)), r"^tokens has shape \(3,\): need \(N, S\)$"),
        ((TOKENS, zeros(0, 4), zeros(3, 4), zeros(2, 4)), r"^weight has shape \(0, 4\): .*vocabulary at least 1$"),
        (
            (TOKENS, zeros(5, 4), zeros(2, 4), zeros(2, 4)),
            r"^positions has shape \(2, 4\): need \(P, 4\), P at least 3$",
        ),
        ((TOKENS, zeros(5, 4), zeros(3, 5), zeros(2, 4)), r"^positions has shape \(3, 5\): need \(P, 4\)"),
        ((TOKENS, zeros(5, 4), zeros(3, 4), zeros(0, 4)), r"^types has shape \(0, 4\): need \(T, 4\), T at least 1$"),
        ((TOKENS, zeros(5, 4), zeros(3, 4), zeros(2, 4), TOKENS[:1]), r"^type_ids has shape \(1, 3\): need \(2, 3\)$"),
    ],
)
def test_embedding_names_what_does_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        ops.embedding_loops(*given)


@each([row for row in VARIANTS if row.operator == "embedding"])
def test_ids_that_are_in_no_table_add_zeros(variant):
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    tokens = np.array([[least, -1, 0, 4, 5, most]], np.int32)
    tables = np.ones((5, 2), np.float32), zeros(6, 2), 10 * np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(variant.launcher(tokens, *tables)[0, :, 0], [10, 10, 11, 11, 10, 10])
    y = variant.launcher(np.zeros_like(tokens), *tables, tokens)
    np.testing.assert_array_equal(y[0, :, 1], [1, 1, 11, 1, 1, 1])


@each([row for row in VARIANTS if row.operator in ("rownorm", "add_rownorm")])
@pytest.mark.parametrize("shape", [(7,), (2, 0, 7), (2, 1, 3, 7)])
def test_rownorm_takes_any_leading_axes(variant, shape):
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32)] * (1 + variant.operator.startswith("add"))
    y = variant.launcher(*arrays, np.ones(7, np.float32), zeros(7))
    assert y.shape == shape
    np.testing.assert_allclose(y.mean(axis=-1), zeros(*shape[:-1]), atol=1e-6)
    np.testing.assert_allclose(np.square(y).mean(axis=-1), 1 + zeros(*shape[:-1]), rtol=1e-3)


OF_ROWS = [row for row in VARIANTS if re.match("linear|softmax|argmax", row.operator)]
"""Whose operators take the last axis, whatever stands before it; losses and gradients do not."""


@each([row for row in OF_ROWS if row.precision in (None, "fp16") and not re.search("backward|cross", row.operator)])
def test_any_leading_axes(variant):
    case = example(variant)
    x = np.stack([case.inputs["x"]] * 2)
    y = variant.launcher(**{**case.inputs, "x": x}, **case.options)
    np.testing.assert_array_equal(y, np.stack([variant.launcher(**case.inputs, **case.options)] * 2))


def test_rownorm_names_what_does_not_fit():
    for given, message in (
        ((zeros(2, 3), zeros(2), zeros(3)), r"^gamma has shape \(2,\): need \(3,\)$"),
        ((zeros(2, 0), zeros(0), zeros(0)), r"^x has shape \(2, 0\): need \(\.\.\., H\), at least one value a row$"),
        ((zeros(2, 3), zeros(3), zeros(3), 0.0), r"^eps=0\.0: need a positive number$"),
    ):
        *arrays, eps = given if len(given) == 4 else (*given, 1e-5)
        with pytest.raises(ValueError, match=message):
            ops.rownorm_loops(*arrays, eps=eps)
    with pytest.raises(ValueError, match=r"^residual has shape \(1, 3\): need \(2, 3\)$"):
        ops.add_rownorm_loops(zeros(2, 3), zeros(1, 3), zeros(3), zeros(3))
    wide = zeros(1, 2049)
    with pytest.raises(ValueError, match=r"^x has shape \(1, 2049\): need at most 2048 values a row, or .* naive$"):
        ops.rownorm_vectorized(wide, wide[0], wide[0])


def test_argmax_and_linear_need_two_axes():
    with pytest.raises(ValueError, match=r"^x has shape \(3,\): need \(N, \.\.\., C\), at least one class$"):
        ops.argmax_loops(zeros(3))
    with pytest.raises(ValueError, match=r"^x has shape \(3,\): need \(N, \.\.\., C_in\)$"):
        ops.linear_loops(zeros(3), zeros(2, 3), zeros(2))


def test_packed_attention_names_what_does_not_fit():
    rows, offsets = zeros(4, 12), np.array([0, 1, 4], np.int32)
    for given, message in (
        ((rows, offsets, 5), r"^qkv has shape \(4, 12\): need \(T, 3 \* heads \* d\) for heads=5, d at least 1$"),
        ((rows, offsets[:1], 2), r"^offsets has shape \(1,\): need \(N \+ 1,\), N at least 1$"),
        ((rows, offsets, 0), r"^heads=0: need an int of at least 1$"),
        ((rows, offsets[::-1].copy(), 2), r"^offsets are from 4 to 0: need to ascend from 0 to 4, the rows$"),
        ((rows, offsets[:2].copy(), 2), r"^offsets are from 0 to 1: need"),
    ):
        for launcher in (ops.packed_attention_loops, ops.packed_attention_cpu_vector):
            with pytest.raises(ValueError, match=message):
                launcher(*given)
