"""Arrays of the host to a GPU: by threads, piece by piece, or straight from pinned pages.

Without a GPU the driver is stood in for: it copies as late as it may. The compiled code that calls it is the real one.
"""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from charcnn.gpu import device, graph, pieces
from charcnn.runtime import staging

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, whose driver is not stood in for")
REFUSED = 719


class OnGpu:
    """Memory that stands for a GPU's."""

    def __init__(self, shape):
        self.array = np.full(shape, 7, np.uint8)

    def copy_to_device(self, source, stream=0):
        self.array[...] = source

    @property
    def ctypes(self):
        return self.array.ctypes


class Driver:
    """A bus that copies a piece when its event is waited for, and not before."""

    def __init__(self):
        self.sizes, self.refused, self.waiting, self._thread = [], None, {}, threading.local()
        made = {1: self.context, 2: self.record, 4: self.copy}
        kinds = {n: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * n) for n in made}
        context, record, copy = (kinds[n](made[n]) for n in made)
        self._kept = context, context, kinds[1](self.wait), copy, record
        self.addresses = tuple(ctypes.cast(one, ctypes.c_void_p).value for one in self._kept)

    def context(self, _):
        return REFUSED if self.refused == "context" else 0

    def copy(self, to, pinned, size, stream):
        assert stream == 5
        self.sizes.append(size)
        self._thread.last = to, pinned, size
        return REFUSED if self.refused == "copy" else 0

    def record(self, event, stream):
        self.waiting[event] = self._thread.last
        return REFUSED if self.refused == "record" else 0

    def wait(self, event):
        if event in self.waiting:
            ctypes.memmove(*self.waiting.pop(event))
        return REFUSED if self.refused == "wait" else 0

    def finish(self):
        for event in [*self.waiting]:
            self.wait(event)


@pytest.fixture
def driver(monkeypatch):
    """In place of NVIDIA's; a piece has 100 bytes."""
    made, numbers = Driver(), count(1)
    monkeypatch.setattr(pieces, "addresses", lambda names: made.addresses)
    monkeypatch.setattr(pieces, "PIECE", 100)
    monkeypatch.setattr(pieces, "status_name", str)
    monkeypatch.setattr(pieces, "pinned", lambda array: False)
    monkeypatch.setattr(graph, "event", lambda: next(numbers))
    monkeypatch.setattr(cuda, "current_context", lambda: SimpleNamespace(handle=3))
    monkeypatch.setattr(cuda, "pinned_array", np.empty)
    monkeypatch.setattr(device, "address", lambda array: array.ctypes.data)
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(staging, "_made", {})
    monkeypatch.setattr(staging, "ALONE", 150)
    monkeypatch.setattr(staging, "_LOOKED_AT", 1)
    return made


def drawn(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@simulated
@pytest.mark.parametrize("size", [151, 200, 1000, 12_345])
def test_every_byte_arrives_where_it_belongs(driver, size):
    array, to = drawn(size), OnGpu(size + 3)
    way = staging.copy_up(array, None, to, 5)
    driver.finish()
    assert np.array_equal(to.array[:size], array)
    assert (to.array[size:] == 7).all()
    assert sorted(driver.sizes, reverse=True) == [100] * (size // 100) + [size % 100] * (size % 100 > 0)
    threads = staging._made[0].threads
    assert way == f"staged by {threads} thread{'s' * (threads > 1)}"


@simulated
def test_several_batches_at_once_share_the_threads_and_their_pieces(driver):
    arrays = [drawn(7, 900 + n) for n in range(6)]
    places = [OnGpu(array.shape) for array in arrays]
    with ThreadPoolExecutor(3) as workers:
        for done in [
            workers.submit(staging.copy_up, *what, 5) for what in zip(arrays, [None] * 6, places, strict=True)
        ]:
            done.result()
    driver.finish()
    assert all(np.array_equal(place.array, array) for place, array in zip(places, arrays, strict=True))
    assert len(staging._made) == 1


@simulated
def test_rows_with_gaps_between_them_are_copied(driver):
    array, to = drawn(30, 40)[:, ::2], OnGpu((30, 20))
    staging.copy_up(array, None, to, 5)
    driver.finish()
    assert np.array_equal(to.array, array)


@simulated
@pytest.mark.parametrize("step", ["context", "wait", "copy", "record"])
def test_a_copy_that_the_driver_refuses_is_an_error(driver, step):
    array, to = drawn(1000), OnGpu(1000)
    driver.refused = step
    for _ in range(2):
        with pytest.raises(device.DeviceError, match=f"refused a copy to the GPU: {REFUSED}"):
            staging.copy_up(array, None, to, 5)
    driver.refused, driver.waiting = None, {}
    staging.copy_up(array, None, to, 5)
    driver.finish()
    assert np.array_equal(to.array, array)


@simulated
def test_pinned_pages_are_copied_as_they_lie(driver, monkeypatch):
    array, to, copied = drawn(1000), OnGpu(1000), []
    monkeypatch.setattr(pieces, "pinned", lambda one: True)
    monkeypatch.setattr(graph, "copy_up", lambda *what: copied.append(what))
    assert staging.copy_up(array, None, to, 5) == staging.DIRECT
    assert copied == [(to, array, 0, 5)]
    assert not staging._made


@simulated
def test_a_few_bytes_are_staged_by_the_caller(driver):
    array, to, room = drawn(5, 40)[:, ::2], OnGpu((5, 20)), []
    way = staging.copy_up(array, lambda *what: room.append(np.empty(*what)) or room[-1], to, 5)
    assert way == staging.ONE
    assert np.array_equal(to.array, array)
    assert np.array_equal(room[0], array)
    with pytest.raises(TypeError, match="ids has dtype float32: need uint8"):
        staging.copy_up(array.astype(np.float32), None, to, 5)


@pytest.mark.skipif(device.SIMULATED, reason="needs a GPU")
def test_a_gpu_gets_every_byte_from_pages_of_either_kind():
    array, stream = drawn(37, 1 << 20), cuda.stream()
    to = device.empty(array.shape, np.uint8)
    ways = [staging.copy_up(array, None, to, stream)]
    stream.synchronize()
    assert np.array_equal(to.copy_to_host(), array)
    array[:] = array[::-1].copy()
    with cuda.pinned(array):
        ways.append(staging.copy_up(array, None, to, stream))
        stream.synchronize()
    assert np.array_equal(to.copy_to_host(), array)
    assert not pieces.pinned(array)
    assert ways[0].startswith("staged by")
    assert ways[1] == staging.DIRECT
