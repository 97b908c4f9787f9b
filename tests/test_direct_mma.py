"""The technique `direct_mma`: its source with tensor cores in plain Python, plans, what it refuses, and a GPU's."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from conftest import quick
from emulation import emulate

from charcnn import ops
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.common.shapes2d import Window
from charcnn.ops.conv2d import direct_mma, direct_mma_kernel, direct_mma_plan
from charcnn.ops.conv2d.direct_mma_plan import NONE, PRECISIONS, candidates, plan

CASES = {  # x, (C_out, KH, KW), padding
    "even": ((3, 2, 7, 12), (3, 3, 3), 0),
    "odd": ((2, 1, 6, 11), (17, 2, 4), 0),
    "padded": ((2, 3, 5, 9), (2, 3, 2), 1),
    "sides": ((1, 1, 4, 6), (5, 4, 5), (1, 0, 3, 2)),
    "narrow": ((2, 6, 5, 4), (4, 3, 1), 0),
    "course": ((2, 6, 9, 10), (16, 5, 5), 0),
    "broad": ((1, 1, 2, 40), (1, 1, 13), (0, 0, 3, 0)),
    "only padding": ((1, 1, 1, 2), (2, 2, 2), (3, 0, 3, 0)),
}

gpu = pytest.mark.skipif(not device.has_tensor_cores(), reason="needs a GPU of compute capability 8.0")


@pytest.fixture
def machine(monkeypatch):
    """Tensor cores in plain Python where there are none, and shared memory in which nothing lies but NaN."""
    if device.SIMULATED:
        from numba.cuda.simulator import kernelapi

        begin = kernelapi.FakeCUDAShared.__init__

        def filled(self, size):
            begin(self, size)
            self._dynshared.fill(-1)

        monkeypatch.setattr(kernelapi.FakeCUDAShared, "__init__", filled)
        emulate(monkeypatch)
    elif not device.has_tensor_cores():
        pytest.skip("needs a GPU of compute capability 8.0")


def draw(name, images=None):
    x, (c_out, *kernel), padding = CASES[name]
    rng = np.random.default_rng(0)
    shapes = (images or x[0], *x[1:]), (c_out, x[1], *kernel), (c_out,)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    return arrays, padding, reference.conv2d(*(array.astype(np.float64) for array in arrays), padding=padding)


def close(out, expected, precision):
    assert np.linalg.norm(out - expected) <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(expected)


@quick(lambda name, precision: [*CASES].index(name) % len(PRECISIONS) == [*PRECISIONS].index(precision))
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(name, precision, machine):
    arrays, padding, expected = draw(name)
    out = np.full(expected.shape, np.nan, np.float32)
    assert ops.conv2d_direct_mma(*arrays, padding=padding, precision=precision, out=out) is out
    close(out, expected, precision)
