"""What tests of layers for a few inputs share: where they run, and arrays in every precision."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import runs_here
from small_gpu import one_multiprocessor

from charcnn import catalog
from charcnn.gpu import device
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.ops.common.cast import as_format
from charcnn.ops.common.precision import TENSOR_PRECISIONS

on_a_gpu = pytest.mark.skipif(not runs_here(catalog.level("l16")), reason="needs a GPU of compute capability 9.0")


@pytest.fixture
def small_batch_machine(monkeypatch):
    """Warps and tensor cores in plain Python where there is no GPU; none of Hopper's: skipped."""
    if device.SIMULATED:
        one_multiprocessor(monkeypatch)
        monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    elif not runs_here(catalog.level("l16")):
        pytest.skip("needs a GPU of compute capability 9.0")


def stored(values, precision):
    """On the GPU in a precision, and what it then holds."""
    values = values.astype(np.float32)
    made = as_format(device.to_device(values.reshape(1, -1, values.shape[-1])), precision)
    made = made.reshape((*values.shape[:-1], made.shape[2]))
    return made, numbers(made, TENSOR_PRECISIONS[precision])


def numbers(y, of):
    """What an array on the GPU holds, in float64."""
    y = y.copy_to_host()
    if of.ptx_type == "e4m3":
        return E4M3[y]
    if of.name == "bf16":
        return (y.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return y.astype(np.float64).reshape(*y.shape[:-1], of.terms, -1).sum(-2)


def poisoned(shape, dtype):
    """A device array of NaN, in any of the formats."""
    return device.to_device(np.full((*shape, np.dtype(dtype).itemsize), 0x7F, np.uint8).view(dtype)[..., 0])


def near(y, expected, tolerance):
    error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    assert error <= tolerance, error


def drawn(length, c_in, c_out, taps):
    rng = np.random.default_rng(length)
    weight = (rng.standard_normal((taps, c_in, c_out)) / np.sqrt(taps * c_in)).astype(np.float32)
    return rng, weight, rng.standard_normal(c_out).astype(np.float32)
