"""Arrays of the host to a GPU, in pieces by several threads."""

import ctypes

import numpy as np
import pytest

from charcnn.gpu import device, graph
from charcnn.runtime import staging


class OnGpu:
    """Memory that stands for a GPU's."""

    def __init__(self, shape):
        self.array = np.zeros(shape, np.uint8)

    def copy_to_device(self, source, stream=0):
        self.array[...] = source


@pytest.fixture
def copied(monkeypatch):
    """Sizes of the pieces that were copied."""
    found = []

    def copy_up(to, source, offset, stream):
        found.append(source.nbytes)
        ctypes.memmove(to.array.ctypes.data + offset, source.ctypes.data, source.nbytes)

    monkeypatch.setattr(graph, "copy_up", copy_up)
    monkeypatch.setattr(device, "SIMULATED", False)
    return found


@pytest.mark.parametrize(("rows", "pieces"), [(1, 0), (8, 0), (9, 5), (64, 32), (65, 33)])
def test_every_row_arrives_where_it_belongs(copied, monkeypatch, rows, pieces):
    monkeypatch.setattr(staging, "ALONE", 8 * 100)
    monkeypatch.setattr(staging, "PIECE", 200)
    array = np.random.default_rng(0).integers(0, 256, (rows, 200), np.uint8)[:, ::2]  # of any strides
    staged, to = np.full((rows, 100), 7, np.uint8), OnGpu((rows, 100))
    staging.copy_up(array, staged, to, 0)
    assert np.array_equal(to.array, array)
    assert np.array_equal(staged, array)
    assert len(copied) == pieces


def test_a_row_larger_than_a_piece_is_copied_whole(copied, monkeypatch):
    monkeypatch.setattr(staging, "ALONE", 0)
    monkeypatch.setattr(staging, "PIECE", 10)
    array = np.arange(120, dtype=np.uint8).reshape(3, 40)
    to = OnGpu((3, 40))
    staging.copy_up(array, np.empty_like(array), to, 0)
    assert np.array_equal(to.array, array)
    assert copied == [40] * 3
