"""What the references refuse, and what they say of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from charcnn.ops import reference


def a(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.conv1d(a(2, 3), a(4, 3, 3), a(4)), r"x has shape \(2, 3\): need \(N, C_in, L\)"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3), a(4)), r"weight has shape \(4, 3\): need \(C_out, C_in, K\)"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 2, 3), a(4)), r"weight has shape \(4, 2, 3\): need C_in=3"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 3), a(5)), r"bias has shape \(5,\): need \(4,\)"),
        (lambda: reference.conv1d(a(1, 3, 2), a(4, 3, 3), a(4)), "x has 2 positions: need at least 3 for K=3"),
        (lambda: reference.conv1d(a(1, 3, 6), a(4, 3, 3), a(4), dilation=3, padding=0), "need at least 7"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 0), a(4)), "K=0"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 3), a(4), stride=0), "stride=0: need an int of at least 1"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 3), a(4), stride=1.5), "stride=1.5: need an int"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 3), a(4), padding=-1), "padding=-1: need an int of at least 0"),
        (lambda: reference.conv1d(a(1, 3, 9), a(4, 3, 3), a(4), dilation=True), "dilation=True: need an int"),
        (lambda: reference.conv1d([1.0], a(4, 3, 3), a(4)), "x is a list: need an array"),
        (lambda: reference.layernorm(a(3), a(3), a(3)), r"x has shape \(3,\): need \(N, ...\)"),
        (lambda: reference.layernorm(a(2, 0), a(0), a(0)), "at least one value an input"),
        (lambda: reference.layernorm(a(2, 3, 4), a(4), a(3, 4)), r"gamma has shape \(4,\): need \(3, 4\)"),
        (lambda: reference.layernorm(a(2, 3, 4), a(3, 4), a(4, 3)), r"beta has shape \(4, 3\): need \(3, 4\)"),
        (lambda: reference.layernorm(a(2, 3), a(3), a(3), eps=0), "eps=0: need a positive number"),
        (lambda: reference.layernorm(a(2, 3), a(3), a(3), eps=math.nan), "eps=nan: need a positive number"),
        (lambda: reference.maxpool1d(a(3, 4), 3), r"x has shape \(3, 4\): need \(N, C, L\)"),
        (lambda: reference.maxpool1d(a(1, 3, 2), 3), "x has 2 positions: need at least 3"),
        (lambda: reference.maxpool1d(a(1, 3, 9), 0), "kernel_size=0: need an int of at least 1"),
        (lambda: reference.maxpool1d(a(1, 3, 9), 3, stride=0), "stride=0"),
        (lambda: reference.maxpool1d(a(1, 3, 9), 3, padding=2), "padding=2: need at most half of kernel_size=3"),
        (lambda: reference.linear(a(3), a(4, 3), a(4)), r"x has shape \(3,\): need \(N, ..., C_in\)"),
        (lambda: reference.linear(a(1, 3), a(4, 2), a(4)), r"weight has shape \(4, 2\): need C_in=3"),
        (lambda: reference.linear(a(1, 3), a(4, 3), a(3)), r"bias has shape \(3,\): need \(4,\)"),
        (lambda: reference.stat(a(3)), r"x has shape \(3,\): need \(N, ...\)"),
        (lambda: reference.layernorm_relu(a(2, 3), a(2, 3), a(3), a(3)), r"stat has shape \(2, 3\): need \(2, 2\)"),
        (lambda: reference.layernorm_relu(a(2, 3), a(2, 2), a(4), a(3)), r"gamma has shape \(4,\): need \(3,\)"),
        (lambda: reference.relu_maxpool1d(a(1, 3, 2), 3), "x has 2 positions: need at least 3"),
        (lambda: reference.conv1d_relu_maxpool1d(a(1, 3, 4), a(4, 3, 3), a(4), 3), "x convolves to 2 positions: need"),
        (lambda: reference.conv1d_relu_maxpool1d(a(1, 3, 9), a(4, 3, 3), a(4), 0), "pool_size=0: need an int"),
        (
            lambda: reference.conv1d_relu_maxpool1d(a(1, 3, 9), a(4, 3, 3), a(4), 3, pool_stride=0),
            "pool_stride=0: need an int of at least 1",
        ),
        (lambda: reference.layernorm_relu_maxpool1d(a(1, 3, 2), a(1, 2), a(3, 2), a(3, 2), 3), "x has 2 positions"),
        (lambda: reference.linear_relu_linear(a(1, 3), a(4, 2), a(4), a(2, 4), a(2)), "weight1 has shape"),
        (lambda: reference.linear_relu_linear(a(1, 3), a(4, 3), a(4), a(2, 3), a(2)), r"weight2 .* need C_mid=4"),
        (lambda: reference.linear_relu_linear(a(1, 3), a(4, 3), a(4), a(2, 4), a(3)), r"bias2 .* need \(2,\)"),
        (lambda: reference.one_hot(np.zeros(3, np.uint8), 3), r"ids has shape \(3,\): need \(N, L\)"),
        (lambda: reference.one_hot(np.zeros((1, 3), np.uint8), 0), "depth=0: need an int of at least 1"),
        (
            lambda: reference.one_hot_conv1d(np.zeros((1, 3), np.uint8), a(2, 0, 3), a(2)),
            r"weight has shape \(2, 0, 3\): need a depth of at least 1",
        ),
        (
            lambda: reference.one_hot_conv1d(np.zeros((1, 3), np.uint8), a(2, 5, 4), a(2)),
            "weight has K=4: need 1 to 3, the positions of ids",
        ),
        (lambda: reference.one_hot_conv1d(np.zeros((1, 3), np.uint8), a(2, 5, 3), a(3)), r"bias .* need \(2,\)"),
        (lambda: reference.collapse(a(2, 3)), r"x has shape \(2, 3\): need \(N, C, L\)"),
        (lambda: reference.softmax(np.array(3.0)), r"x has shape \(\): need \(..., C\), at least one class"),
        (lambda: reference.softmax(a(3, 0)), r"need \(..., C\), at least one class"),
        (lambda: reference.argmax(a(3, 0)), r"need \(N, ..., C\), at least one class"),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
