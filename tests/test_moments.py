"""Moments from partial ones: any number of them, in rows whose last part is shorter, however far apart their means."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.gpu.launch import Call
from charcnn.ops import reference
from charcnn.ops.common.moments import PART_VALUES, launch_merge


def parts_of(x, row, part):
    """(N, parts, 3) of (N, size): rows of `row` values in parts of `part`, each as a kernel leaves it."""
    n = len(x)
    found = []
    for values in x.reshape(n, -1, row).swapaxes(0, 1):
        for at in range(0, row, part):
            shift = values[:, at]
            shifted = values[:, at : at + part] - shift[:, None]
            mean = shifted.mean(1, dtype=np.float32)
            found.append([shift, mean, np.square(shifted - mean[:, None]).sum(1, dtype=np.float32)])
    return np.ascontiguousarray(np.array(found, np.float32).transpose(2, 0, 1))


def merged(x, row, part):
    parts = parts_of(x, row, part)
    assert parts.shape[2] == PART_VALUES
    call = Call(None, None, (len(x), 2), np.float64, x=parts)
    launch_merge(call, call.inputs[0], x.shape[1], call.out, part, row)
    return call.result()


@pytest.mark.parametrize(
    ("n", "rows", "row", "part"),
    [(1, 1, 1, 8), (3, 1, 20, 8), (9, 3, 7, 7), (2, 31, 5, 9), (2, 33, 3, 2), (5, 43, 12, 4), (2, 130, 2, 2)],
)
def test_any_number_of_parts(n, rows, row, part):
    x = np.random.default_rng(0).standard_normal((n, rows * row)).astype(np.float32)
    stat = merged(x, row, part)
    np.testing.assert_allclose(stat, reference.stat(x.astype(np.float64)), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(merged(x, row, part), stat)
    for i in range(n):
        np.testing.assert_array_equal(merged(x[i : i + 1], row, part)[0], stat[i])


@pytest.mark.parametrize("place", [0, 17, 39])
def test_a_part_far_from_all_others(place):
    x = np.random.default_rng(0).standard_normal((2, 40 * 16))
    x.reshape(2, 40, 16)[:, place] += 1e6
    x = x.astype(np.float32)
    np.testing.assert_allclose(merged(x, 16, 16), reference.stat(x.astype(np.float64)), rtol=1e-6)


def test_values_that_are_all_alike():
    np.testing.assert_array_equal(merged(np.full((2, 45), 0.1, np.float32), 9, 4), [[np.float32(0.1), 0]] * 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of the simulator's scalars
def test_what_is_not_finite(value):
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    x[1, 13] = value
    stat = merged(x, 20, 6)
    assert np.isnan(stat[1, 1])
    np.testing.assert_allclose(stat[::2], reference.stat(x[::2].astype(np.float64)), rtol=1e-6, atol=1e-7)
