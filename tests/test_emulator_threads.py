"""The emulator's threads: barriers hold, those that are missing show, and nothing is left behind by what fails."""

import numpy as np
import pytest
from numba import cuda, float32

from charcnn.gpu import device

if device.SIMULATED:
    from charcnn.gpu import emulator
    from charcnn.gpu.emulator import threads

WARP = 32

pytestmark = pytest.mark.skipif(not device.SIMULATED, reason="of the simulator")

THREADS = 8


@cuda.jit(device=True)
def give_way():
    cuda.syncthreads()


def shift(by, barrier):
    """A kernel whose threads each take what another one wrote."""

    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(THREADS, float32)
        thread = cuda.threadIdx.x
        shared[thread] = -1
        cuda.syncthreads()
        shared[thread] = thread
        if barrier:
            give_way()
        out[cuda.blockIdx.x, thread] = shared[(thread + by) % THREADS]

    return kernel


def launched(kernel, blocks=2):
    out = np.full((blocks, THREADS), np.nan, np.float32)
    kernel[blocks, THREADS](out)
    return out


@pytest.mark.parametrize("by", [1, -1])
def test_a_barrier_holds_and_one_that_is_missing_shows(by):
    expected = (np.arange(THREADS) + by) % THREADS
    np.testing.assert_array_equal(launched(shift(by, True)), [expected] * 2)
    out = launched(shift(by, False))
    assert (out != expected).any(axis=1).all()
    assert (out[0] != out[1]).any(), "blocks take turns in other orders"


@pytest.mark.parametrize("barrier", [True, False])
def test_a_warp_goes_as_far_as_it_can(barrier):
    warps = 2

    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(warps * WARP, float32)
        thread = cuda.threadIdx.x
        for step in range(2):
            shared[thread] = step
            cuda.syncthreads()
            for _ in range(5):  # as for a warp's instructions
                cuda.syncwarp()
            out[step, thread] = shared[(thread + WARP) % (warps * WARP)]
            if barrier:
                cuda.syncthreads()

    out = np.full((2, warps * WARP), np.nan, np.float32)
    kernel[1, warps * WARP](out)
    assert (out[0] == 0).all() == barrier
    assert (out[1] == 1).all()


def test_threads_that_have_ended_are_not_waited_for():
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x % 3 == 0:
            return
        cuda.syncthreads()
        out[0, cuda.threadIdx.x] = cuda.threadIdx.x

    out = launched(kernel, 1)[0]
    assert np.isnan(out).tolist() == [thread % 3 == 0 for thread in range(THREADS)]


def test_what_waits_for_ever_is_an_error():
    @cuda.jit
    def kernel(out):
        thread = cuda.threadIdx.x
        threads.wait(lambda: thread == 0, "the first one")

    with pytest.raises(emulator.EmulatorError, match=rf"deadlock: .*{THREADS - 1} threads wait for ever"):
        launched(kernel, 1)


def test_an_error_names_its_thread_and_leaves_nothing_behind():
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x == 5:
            out[0, THREADS] = 1
        give_way()

    with pytest.raises(IndexError, match=r"Dim3\(x=5, y=0, z=0\) of block .* out of bounds") as error:
        launched(kernel, 1)
    assert error.tb, "which is kept, with all that it knows of"
    np.testing.assert_array_equal(launched(shift(1, True), 1)[0], (np.arange(THREADS) + 1) % THREADS)
