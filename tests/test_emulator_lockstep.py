"""All threads at once: the same results as one by one, and what may not run so is run one by one."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32

from charcnn.catalog import VARIANTS
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32

if not device.SIMULATED:
    pytest.skip("there is a GPU: nothing to emulate", allow_module_level=True)

from operator_rows import example

from charcnn.gpu import emulator
from charcnn.gpu.emulator import launch, lockstep


def of_some(value):
    """Leaves in several places."""
    if value < 0:
        return -value
    for k in range(3):
        if value > float32(k) + float32(0.5):
            continue
        return value * k
    return value


@cuda.jit
def flow(x, y):
    i = cuda.grid(1)
    if i >= x.size:
        return
    total, k, found = float32(0), i % 7, -1
    while k < 9:
        k += 1
        if k % 3 == 1:
            continue
        if x[i] > 1 and k == 5:
            break
        found = k
        for j in range(k, 2 * k + i % 3, 2):
            total += x[i] * j if j & 1 or i % 5 == 0 else of_some(x[i])
    held = cuda.local.array((2, 3), float32)
    for j in range(6):
        held[j // 3, j % 3] = total + j
    if i % 4:
        held[1, i % 3] = found
    a, b = (held[1, i % 3], held[0, 1]) if not 3 < i <= 20 else (x[i], min(total, float32(k), x[i - 1]))
    y[i, 0], y[i, 1] = a, b
    y[i, 2] = total % 3 if found > 2 else k // 2


@cuda.jit
def blocks_meet(x, y):
    shared, thread = cuda.shared.array(64, float32), cuda.threadIdx.x
    shared[thread] = x[cuda.blockIdx.x, thread]
    cuda.syncthreads()
    half = 32
    while half:
        if thread < half:
            shared[thread] += shared[thread + half]
        cuda.syncthreads()
        half //= 2
    y[cuda.blockIdx.x] = shared[0] if thread == 0 else y[cuda.blockIdx.x]


copy, wait, pack = ptx.cp_async(4), ptx.cp_async_wait_group(0), ptx.cvt_f16x2("f16")


@cuda.jit
def words(x, y, address):
    i = cuda.grid(1)
    shared = cuda.shared.array(0, float32)
    copy(shared, 4 * i, 0, x, 4 * i, uint32(16) if i % 3 else uint32(0))
    ptx.cp_async_commit_group()
    wait()
    cuda.syncthreads()
    a, b, c, d = ptx.ld_shared_v4_f32(shared, 4 * ((i + 1) % 32), 0)
    ptx.st_global_v4_f32(y, 4 * i, a, b, c, d)
    word = pack(a, ptx.max_nan_f32(b, c))
    ptx.st_global_b32(address + 4 * i, word ^ ptx.bitcast_b32(d) & ptx.prmt(word, i, 0x5410))


def both_ways(monkeypatch, kernel, grid, block, args, shared=0):
    """What a kernel writes, all threads at once; it is what it writes one by one."""
    before = [np.copy(one) for one in args]
    assert emulator.run(kernel, grid, block, args, shared=shared) == []
    assert kernel.py_func not in lockstep.REFUSED
    monkeypatch.setattr(launch.lockstep, "run", lambda *given: False)
    assert emulator.run(kernel, grid, block, before, shared=shared) == []
    for one, other in zip(args, before, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_branches_loops_and_returns(monkeypatch):
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    both_ways(monkeypatch, flow, 4, 32, [x, np.zeros((100, 3), np.float32)])


def test_copies_words_and_addresses(monkeypatch):
    x, y = np.random.default_rng(0).standard_normal(128).astype(np.float32), np.zeros(128, np.float32)
    at_once, one_by_one = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    assert emulator.run(words, 1, 32, [x, y, at_once.ctypes.data], shared=512) == []
    assert words.py_func not in lockstep.REFUSED
    monkeypatch.setattr(launch.lockstep, "run", lambda *given: False)
    other = np.zeros(128, np.float32)
    assert emulator.run(words, 1, 32, [x, other, one_by_one.ctypes.data], shared=512) == []
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(at_once, one_by_one)
    assert at_once.any()


def run_at_once(kernel, grid, block, args, seed=0):
    config = launch.LaunchConfig.of(grid, block, 0, 1, seed, launch.Findings())
    return lockstep.run(kernel, config, args)


def in_place(x):
    i = cuda.grid(1)
    x[i] = x[(i + 1) % x.size]


def no_barrier(x):
    shared = cuda.shared.array(64, float32)
    shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    x[cuda.threadIdx.x] = shared[63 - cuda.threadIdx.x]


def one_place(x):
    x[0] = cuda.threadIdx.x


def past_the_end(x):
    x[cuda.grid(1) + 1] = 1


def barrier_of_some(x):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


def unwritten(x):
    x[cuda.threadIdx.x] = cuda.shared.array(64, float32)[cuda.threadIdx.x]


def other_calls(x):
    cuda.atomic.add(x, 0, 1)
    x[cuda.threadIdx.x] = 1


def divided(x):
    x[cuda.threadIdx.x] = 3 // cuda.threadIdx.x


@pytest.mark.parametrize(
    "kernel", [in_place, no_barrier, one_place, past_the_end, barrier_of_some, unwritten, other_calls, divided]
)
def test_what_schedules_or_mistakes_decide_is_refused_and_changes_nothing(kernel):
    x = np.arange(64, dtype=np.float32)
    assert not run_at_once(kernel, 1, 64, [x])
    np.testing.assert_array_equal(x, np.arange(64))
    assert kernel in lockstep.REFUSED


def test_a_refused_kernel_is_run_one_by_one_with_its_findings():
    @cuda.jit
    def kernel(x):
        shared = cuda.shared.array(64, float32)
        shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = shared[63 - cuda.threadIdx.x]

    found = emulator.run(kernel, 1, 64, [np.arange(64, dtype=np.float32)])
    assert {one.kind for one in found} <= {"race", "uninitialised read"} != set()


AT_ONCE = (
    "naive",
    "tiled",
    "register_tiled",
    "vectorized",
    "double_buffered",
    "winograd",
    "coalesced",
    "lags",
    "pairs",
    "flash",
)
ROWS = [
    row
    for row in VARIANTS
    if row.device == "cuda"
    and row.name.endswith(AT_ONCE)
    and row.name != "conv1d_stat_nlc_winograd"  # whose threads read what others of their block wrote to global memory
    and row.operator != "packed_attention"  # which cuts rows at places that differ from block to block
    and not row.operator.endswith("maxpool1d_backward_nlc")  # training's kernels, which are emulated a thread at a time
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_operators_without_tensor_cores_run_at_once(row, monkeypatch):
    refused = []
    monkeypatch.setattr(lockstep, "REFUSED", set())  # another test may have launched it with what is not supported
    monkeypatch.setattr(launch, "one_by_one", lambda function, *given, **how: refused.append(function))
    case = example(row)
    row.launcher(**case.inputs, **case.options)
    assert not refused
