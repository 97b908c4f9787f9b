"""`emulator.run`: what it finds, where, and that its page is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, uint32

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call

ROOT = Path(__file__).resolve().parent.parent

if device.SIMULATED:
    from charcnn.gpu import emulator

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")


def line_of(kernel, words):
    """The number of the kernel's line that holds these words."""
    code = kernel.py_func.__code__
    lines = Path(code.co_filename).read_text().splitlines()
    found = [i for i, line in enumerate(lines[code.co_firstlineno :], code.co_firstlineno + 1) if words in line]
    return found[0]


@simulated
def test_a_kernel_without_mistakes_gives_its_result_and_no_finding():
    @cuda.jit
    def rotate(x, y):
        shared = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        shared[i] = x[cuda.blockIdx.x, i]
        cuda.syncthreads()
        y[cuda.blockIdx.x, i] = shared[(i + 1) % 64]

    x, y = np.arange(256, dtype=np.float32).reshape(4, 64), np.zeros((4, 64), np.float32)
    assert emulator.run(rotate, 4, 64, [x, y], seed=3) == []
    np.testing.assert_array_equal(y, np.roll(x, -1, 1))


@simulated
def test_two_arrays_of_one_line_do_not_alias():
    @cuda.jit
    def kernel(y):
        a, b = cuda.shared.array(1, float32), cuda.shared.array(1, float32)
        a[0], b[0] = 1, 2
        y[0] = a[0]

    y = np.zeros(1, np.float32)
    kernel[1, 1](y)
    assert y[0] == 1


@simulated
def test_shuffles_and_votes():
    @cuda.jit
    def kernel(y):
        lane = cuda.threadIdx.x
        y[0, lane] = cuda.shfl_xor_sync(-1, lane, 1)
        y[1, lane] = cuda.shfl_down_sync(-1, lane, 30)
        y[2, lane] = cuda.ballot_sync(-1, lane < 4)

    y = np.zeros((3, 32), np.int64)
    assert emulator.run(kernel, 1, 32, [y]) == []
    lanes = np.arange(32)
    np.testing.assert_array_equal(y[:2], [lanes ^ 1, np.where(lanes < 2, lanes + 30, lanes)])
    assert (y[2] == 15).all()


@simulated
@pytest.mark.parametrize("seed", [0, 1])
def test_a_deadlock_is_a_finding_at_the_line_that_waits(seed):
    @cuda.jit
    def kernel():
        shared = cuda.shared.array(2, uint32)
        at = ptx.cvta_to_shared(shared)
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(at, 2)
            ptx.mbarrier_arrive(at)
        cuda.syncthreads()
        ptx.mbarrier_wait(at, 0)

    (found,) = emulator.run(kernel, 1, 2, [], seed=seed)
    assert (found.kind, found.file, found.line) == ("deadlock", __file__, line_of(kernel, "mbarrier_wait"))
    assert "1 of 2 arrivals" in found.text


@simulated
def test_global_memory_that_is_nobodys_ends_no_process():
    @cuda.jit
    def kernel(y, address):
        y[0] = ptx.ld_global_b32(address)

    (found,) = emulator.run(kernel, 1, 1, [np.zeros(1, np.uint32), 4096])
    assert (found.kind, found.line) == ("out of bounds", line_of(kernel, "ld_global"))


@simulated
def test_a_barrier_tells_others_that_the_grid_has_ended():
    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        if i == 0:
            ptx.griddepcontrol_wait()
        cuda.syncthreads()
        y[i] = x[i] + ptx.ld_global_f32(x, i)

    x, y = device.to_device(np.arange(64, dtype=np.float32)), np.zeros(64, np.float32)
    assert emulator.run(kernel, 1, 64, [x, y], after=[x]) == []
    assert emulator.run(kernel, 1, 64, [x, y]) == []


@cuda.jit
def first_one(x):
    ptx.griddepcontrol_launch()
    x[cuda.threadIdx.x] = 7


@cuda.jit
def early_one(x, y, wait, release):
    i = cuda.threadIdx.x
    if release:
        ptx.griddepcontrol_launch()
    if wait:
        ptx.griddepcontrol_wait()
    y[i] = x[i]


@simulated
@pytest.mark.parametrize(
    ("chain", "found"),
    [
        (["first", (0, 1, 0)], []),
        (["first", (0, 0, 0)], ["missing grid wait"]),
        (["first", "other", (0, 0, 0)], []),  # the other one began when the first had ended
        (["first", (1, 1, 0), (0, 0, 0)], []),  # which began when the one before had waited
        (["first", (1, 1, 1), (0, 0, 0)], ["missing grid wait"]),  # when it had not
        (["first", (1, 0, 0), (0, 1, 0)], []),
    ],
)
def test_what_may_still_run(chain, found):
    x, other, y = (device.to_device(np.zeros(32, np.float32)) for _ in range(3))
    call = Call(None, None, (1,), x=np.zeros(1, np.float32))
    with emulator.checking() as findings:
        for step in chain:
            if isinstance(step, str):
                call.launch(first_one, 1, 32, x if step == "first" else other)
            else:
                elsewhere, wait, release = step
                call.launch(early_one, 1, 32, other if elsewhere else x, y, wait, release, early=True)
    assert [one.kind for one in findings] == found
    assert all(one.line == line_of(early_one, "y[i] = x[i]") for one in findings)


@simulated
def test_a_cluster_divides_the_grid():
    with pytest.raises(ValueError, match=r"^cluster=2: need a divisor of the grid's 3 blocks"):
        emulator.run(lambda: None, 3, 1, [], cluster=2)


def test_the_page_prints_what_it_shows(tmp_path):
    code, printed = re.search(
        r"```python\n(.*?)```\n```text\n(.*?)```", (ROOT / "docs" / "emulator.md").read_text(), re.DOTALL
    ).groups()
    path = tmp_path / "reverse.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (printed, "")


@cuda.jit
def reads_more_than_it_uses(x, y, used):
    """y = 2 x; the last thread also reads what nobody wrote, which counts where `used`."""
    shared = cuda.shared.array(8, float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    behind = shared[i + 1]
    y[i] = 2 * shared[i] + (behind if used or i + 1 < x.shape[0] else float32(0)) * (1 if used else 0)


@pytest.mark.parametrize("used", [False, True])
def test_a_read_that_no_result_depends_on_is_no_mistake(used):
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    found = emulator.run(reads_more_than_it_uses, 1, 4, (x, y, used))
    assert [one.kind for one in found] == ["uninitialised read"] * used
    if not used:
        assert np.array_equal(y, 2 * x)
