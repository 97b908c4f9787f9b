"""Moments of few inputs from exact tables, a cluster of blocks an input: in emulation, and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from small_batch_cases import on_a_gpu, small_batch_machine
from test_token_conv1d import close, draw, exact, kinds

from charcnn.compiling.networks import BATCHES
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.token_conv1d import cluster_moments
from charcnn.ops.token_conv1d.lag_sums import CLUSTER_INPUTS, SharedPairTables

hoppers = small_batch_machine


@pytest.fixture
def machine(hoppers, monkeypatch):
    """One that has clusters."""
    if device.SIMULATED:
        monkeypatch.setattr(device, "has_tensor_cores", lambda *, hopper=False, turing=False: hopper)


def check(n, length, depth, channels, taps, mean=0.0):
    """The statistics, the same bits again and of an input alone; and their references."""
    weight, bias = draw(taps, depth, channels)
    bias += np.float32(mean)
    made, ids = SharedPairTables(weight, bias), np.resize(kinds(length, depth), (n, length))
    stat, again = np.full((2, n, 2), np.nan)
    for out in (stat, again):
        assert made(ids, out=out) is out
    np.testing.assert_array_equal(again, stat, "bit-equal")
    np.testing.assert_array_equal(made(ids[-1:]), stat[-1:], "whatever comes with an input")
    expected = reference.one_hot_conv1d_stat_nlc(ids, *exact(weight, bias))
    close(stat, expected)
    return stat, expected


@quick(lambda n: n != 1)
@pytest.mark.parametrize(
    ("n", "length", "depth", "channels", "taps"),
    [
        (1, 1, 1, 1, 1),
        (5, 13, 4, 7, 1),  # no pairs
        (3, 7, 5, 8, 7),  # one window: each position is at both ends
        (33, 9, 4, 3, 4),
        (1, 70, 9, 3, 7),  # three warps, of a block each
        pytest.param(2, 1061, 5, 4, 3, marks=pytest.mark.exhaustive),  # some lanes look up two positions, and the last
        pytest.param(6, 40, 5, 2, 20, marks=pytest.mark.exhaustive),
    ],
)
@quick(lambda n: n != 33)
def test_edges(n, length, depth, channels, taps, machine):
    check(n, length, depth, channels, taps)


def test_a_mean_far_from_zero(machine):
    stat, expected = check(2, 40, 6, 8, 7, mean=1e4)
    assert (abs(stat[:, 1] - expected[:, 1]) <= 1e-5 * expected[:, 1]).all()


@on_a_gpu
@quick(lambda n: n == CLUSTER_INPUTS)
@pytest.mark.parametrize(("n", "length", "depth"), [
    (1, 1014, 70), (CLUSTER_INPUTS, 1014, 70), (5, 3001, 70), (3, 1014, 255),
])  # fmt: skip
def test_of_the_network(n, length, depth, machine):
    check(n, length, depth, 256, 7)


@pytest.mark.parametrize("hopper", [True, False])
def test_which_inputs_take_it(hopper, monkeypatch):
    taken, (weight, bias) = [], draw(2, 3, 4)
    made = SharedPairTables(weight, bias)
    monkeypatch.setattr(device, "has_tensor_cores", lambda *, hopper=False, turing=False, has=hopper: has)
    monkeypatch.setattr(cluster_moments, "launch", lambda call, ids, *tables: taken.append(len(ids)))
    for n in (1, CLUSTER_INPUTS, CLUSTER_INPUTS + 1):
        made(np.zeros((n, 3), np.uint8))
    assert taken == [1, CLUSTER_INPUTS] * hopper


def test_kernels_on_both_sides_are_compiled_ahead():
    assert {CLUSTER_INPUTS, CLUSTER_INPUTS + 1} <= set(BATCHES)
