"""Calls from several threads at once, and very many: only on a GPU, as the simulator runs one kernel at a time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import cuda

from charcnn import ops
from charcnn.gpu import device

pytestmark = pytest.mark.skipif(device.SIMULATED, reason="the simulator runs one kernel at a time: needs a GPU")

THREADS, CALLS = 8, 200


def work(number, gpu):
    """One thread's: results that differ from one call to the next, on a stream of its own."""
    rng = np.random.default_rng(number)
    with cuda.gpus[gpu]:
        stream = cuda.stream()
        weight, bias = rng.standard_normal((4, 3, 2), np.float32), rng.standard_normal(4, np.float32)
        on_gpu = [device.to_device(array) for array in (weight, bias)]
        rows = [rng.standard_normal((2, 3, 9 + number % 3), np.float32) for _ in range(4)]
        features = [device.to_device(row) for row in rows]
        cuda.synchronize()
        expected = [ops.reference.conv1d_relu(row, weight, bias) for row in rows]
        outs = [device.empty(right.shape, np.float32) for right in expected]
        for i in range(CALLS):
            ops.conv1d_relu_naive(features[i % 4], *on_gpu, out=outs[i % 4], stream=stream)
            if i % 50 < 4:
                stream.synchronize()
                np.testing.assert_allclose(outs[i % 4].copy_to_host(), expected[i % 4], rtol=1e-4, atol=1e-5)
                outs[i % 4].copy_to_device(np.full(expected[0].shape, np.nan, np.float32))
        stream.synchronize()
    return number


@pytest.mark.parametrize("gpus", [1, 2])
def test_eight_threads_launch_at_once(gpus):
    if gpus > device.gpu_count():
        pytest.skip("needs two GPUs")
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS), [number % gpus for number in range(THREADS)]))
    assert found == [*range(THREADS)]


def test_a_thread_without_a_context_gets_one():
    x = device.to_device(np.arange(-4, 4, dtype=np.float32))
    y = device.empty(x.shape, np.float32)
    ops.relu_naive(x, out=y)
    ops.relu_naive(x, out=y)
    y.copy_to_device(np.full(8, np.nan, np.float32))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ops.relu_naive, x, out=y).result()
    assert np.array_equal(y.copy_to_host(), np.maximum(np.arange(-4, 4), 0))


def test_memory_does_not_grow_with_launches():
    import tracemalloc

    x, y = (device.to_device(np.zeros(64, np.float32)) for _ in range(2))
    for _ in range(10):
        ops.relu_naive(x, out=y)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for i in range(20_000):
        ops.relu_naive(x, out=y)
        if i % 500 == 0:
            cuda.synchronize()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000
