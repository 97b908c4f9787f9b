"""Memory that is kept from call to call: the driver is a function of this file."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import compiler_installed
from gpu_arrays import BEGIN, OnGpu
from numba import cuda

from charcnn import ops
from charcnn.gpu import device, pool
from charcnn.gpu.described import described


class Full(Exception):
    code = 2


class Memory:
    """What Numba allocates."""

    def __init__(self, begin, freed):
        self.handle, self.context, self._freed = begin, SimpleNamespace(), freed

    def __del__(self):
        self._freed.append(self.handle)


@pytest.fixture
def driver(monkeypatch):
    """Sizes that the driver was asked for, addresses that were freed, and what it fails with, if anything."""
    found = SimpleNamespace(asked=[], freed=[], fails=[])

    def memalloc(size):
        found.asked.append(size)
        if found.fails:
            raise found.fails.pop()
        return Memory(BEGIN + 4096 * len(found.asked), found.freed)

    gpu = SimpleNamespace(memalloc=memalloc)
    monkeypatch.setattr(pool, "_homes", {})
    monkeypatch.setattr(pool, "_forms", {})
    monkeypatch.setattr(pool, "context", lambda: 7)
    monkeypatch.setattr(pool, "cuda", SimpleNamespace(current_context=lambda: gpu))
    monkeypatch.setattr(pool, "driver", SimpleNamespace(CudaAPIError=Full, MemoryPointer=pointer))
    monkeypatch.setattr(device, "SIMULATED", False)
    yield found
    pool.free_all()


def pointer(context, handle, size, owner):
    return SimpleNamespace(context=context, handle=handle, size=size, owner=owner)


def test_memory_that_was_given_back_is_given_again(driver):
    first = pool.PooledMemory(1000)
    address = first.address
    second = pool.PooledMemory(1000)
    assert second.address != address
    del first
    assert pool.PooledMemory(900).address == address
    assert driver.asked == [1024, 1024]
    assert not driver.freed


def test_each_context_has_its_own(driver, monkeypatch):
    pool.PooledMemory(1000)
    monkeypatch.setattr(pool, "context", lambda: 8)
    pool.PooledMemory(1000)
    assert len(driver.asked) == 2


def test_no_more_is_kept_than_it_says(driver):
    blocks = [pool.PooledMemory(pool.MOST // 2) for _ in range(3)]
    del blocks
    assert len(driver.freed) == 1
    large = pool.PooledMemory(pool.MOST + 1)
    del large
    assert len(driver.freed) == 2


def test_what_is_kept_is_freed_where_memory_is_short(driver):
    pool.PooledMemory(1 << 20)
    driver.fails = [Full()]
    assert pool.PooledMemory(2 << 20).address
    assert len(driver.freed) == 1
    driver.fails = [Full(), Full()]
    with pytest.raises(Full):
        pool.PooledMemory(4 << 20)
    other = Full()
    other.code = 1
    driver.fails = [other]
    with pytest.raises(Full) as refused:
        pool.PooledMemory(4 << 20)
    assert refused.value is other


def test_memory_that_went_with_its_context_is_not_given(driver):
    class Gone:
        @property
        def handle(self):
            raise ReferenceError("weakly-referenced object no longer exists")

    pool.PooledMemory(1000)
    (home,) = pool._homes.values()
    home.append(Gone())
    assert pool.PooledMemory(1000).address == BEGIN + 2 * 4096


@pytest.mark.parametrize("size", [0, 1, 512, 513, 4096, 4097, 10**6, 10**9 + 1])
def test_sizes_are_an_eighth_more_at_most(size):
    assert size <= pool.kept_size(size) <= max(512, size + max(511, size // 8))
    assert pool.kept_size(pool.kept_size(size)) == pool.kept_size(size)


def test_arrays_are_as_numbas(driver, monkeypatch):
    made = []

    def device_array(shape, dtype, stream=0):
        made.append(OnGpu(shape, BEGIN + (1 << 30), dtype))
        return made[-1]

    monkeypatch.setattr(device, "empty", device_array)
    one, two = pool.pooled((2, 3), np.float32), pool.pooled((2, 3), np.float32)
    assert len(made) == 1
    for array in (one, two):
        assert (type(array), array.shape, array.dtype, array.strides) == (OnGpu, (2, 3), np.float32, (12, 4))
        found = described(array)
        assert (found.begin, found.end) == (array.gpu_data.owner.address, array.gpu_data.owner.address + 24)
        assert found.kind == described(OnGpu((2, 3), BEGIN)).kind
    assert one.gpu_data.handle != two.gpu_data.handle
    view, address = one.gpu_data, one.gpu_data.owner.address
    del one, array, found  # a view still holds the memory
    assert pool.pooled((2, 3), np.float32).gpu_data.owner.address != address
    del view
    assert pool.pooled((2, 3), np.float32).gpu_data.owner.address == address
    assert pool.pooled((0, 3), np.float32).size == 0
    pool.pooled((2, 3), np.float32, stream=5)
    assert len(made) == 3  # those that the pool does not give


VIEWS = """
from types import SimpleNamespace
import numpy as np
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from charcnn.gpu import pool

home, begin = [], 1 << 40
block = object.__new__(pool.PooledMemory)
block._home, block.memory, block.address, block.handle = home, "memory", begin, driver.binding.CUdeviceptr(begin)
whole = driver.MemoryPointer(SimpleNamespace(), block.handle, 4096, owner=block)
array = DeviceNDArray((1024,), (4,), np.float32, gpu_data=whole)
del whole, block
part = array._do_getitem(slice(16, 32)).reshape(4, 4)
assert part.device_ctypes_pointer.value == begin + 64
del array
assert not home
del part
assert home == ["memory"]
"""


@pytest.mark.skipif(not compiler_installed(), reason="reads numba-cuda's classes")
def test_numbas_views_hold_the_memory():
    """In a process without the simulator, on memory that is not there."""
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    subprocess.run([sys.executable, "-c", VIEWS], check=True, env=env, timeout=300)


@pytest.fixture
def layer():
    """A linear layer whose depth is split, so that each call needs scratch memory, and what it gives of rows."""
    if device.SIMULATED:
        pytest.skip("needs a GPU")
    rng = np.random.default_rng(3)
    weight, bias = rng.standard_normal((1536, 96), np.float32) / 39, rng.standard_normal(96, np.float32)
    weights = [device.to_device(array) for array in (weight, bias)]
    rows = [rng.standard_normal((1 + i % 5, 1536), np.float32) for i in range(40)]
    right = [np.maximum(x.astype(np.float64) @ weight + bias, 0) for x in rows]
    return lambda x: ops.linear_relu_nlc_double_buffered(x, *weights), rows, right


def test_results_that_live_together_are_apart(layer):
    call, rows, right = layer
    for _ in range(3):
        found = [call(device.to_device(x)) for x in rows]  # scratch is written again at once, results are not
        assert len({device.address(y) for y in found}) == len(rows)
        for y, expected in zip(found, right, strict=True):
            np.testing.assert_allclose(y.copy_to_host(), expected, atol=1e-4)


def test_threads_share_what_is_kept(layer):
    call, rows, right = layer

    def work(first):
        for i in range(first, 400, 8):
            which = i % len(rows)
            np.testing.assert_allclose(call(device.to_device(rows[which])).copy_to_host(), right[which], atol=1e-4)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_memory_stays_as_it_is(layer):
    call, rows, _ = layer
    given = [device.to_device(x) for x in rows]
    for repeat in range(30):
        for x in given:
            y = call(x)
        y.copy_to_host()
        if repeat == 1:
            before = cuda.current_context().get_memory_info().free
    assert cuda.current_context().get_memory_info().free >= before - (1 << 22)
