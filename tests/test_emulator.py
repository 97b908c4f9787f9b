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
