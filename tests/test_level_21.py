"""Level 21's limits between few inputs and more."""

from __future__ import annotations

import pytest

from charcnn.catalog import level
from charcnn.gpu import device
from charcnn.ops.conv1d.layers import SPREAD_BESIDE_MMA, Limits, limits
from charcnn.ops.linear.small_batch import MOST


@pytest.mark.parametrize(
    ("multiprocessors", "expected"), [(132, (12, 16, 64)), (170, (12, 16, 64)), (58, (5, 7, 28)), (1, (1, 1, 1))]
)
def test_a_smaller_gpu_is_filled_by_fewer_inputs(multiprocessors, expected, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: multiprocessors)
    assert limits(Limits(12, 16, 64)) == expected


def test_each_precision_has_limits_that_its_layers_take():
    assert {*SPREAD_BESIDE_MMA} == {*level("l21").precisions} - {"fp16x3"}
    assert all(of.linear <= MOST for of in SPREAD_BESIDE_MMA.values())
