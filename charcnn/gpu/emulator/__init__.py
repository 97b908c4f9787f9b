"""GPUs in plain Python: what runs kernels where there is no GPU, tensor cores and Hopper's copies included.

In a process that Numba simulates CUDA in, it runs all kernels once it is imported, as `charcnn.gpu.launch` imports it.
`run` runs one and says what is wrong with it. docs/emulator.md says what is emulated, what is found, and what is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device
from charcnn.gpu.emulator import loads, system, tma, warp, wgmma  # noqa: F401 - which say what instructions do
from charcnn.gpu.emulator.findings import EmulatorError, Finding
from charcnn.gpu.emulator.launch import checking, emulate, install, start_grid

__all__ = ["EmulatorError", "Finding", "checking", "run", "start_grid"]

if device.SIMULATED:
    install()


def run(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Array],
    *,
    seed: int = 0,
    cluster: int = 1,
    shared: int = 0,
    after: Sequence[Array] = (),
) -> list[Finding]:
    """Run a kernel, and say what is wrong with it.

    Args:
        kernel: what `numba.cuda.jit` or `charcnn.gpu.launch.jit` made, or a plain function.
        grid: blocks, or up to three sizes along x, y and z.
        block: threads of a block, likewise.
        args: the kernel's arguments: device arrays, NumPy arrays, which it may write to, and numbers.
        seed: of the schedule: which warp runs, and when copies land. One seed always gives one schedule.
        cluster: blocks of a cluster, which divides the grid's blocks along x.
        shared: bytes of dynamic shared memory.
        after: device arrays that a kernel before writes. Where there are some, this one may begin before that has
            ended, as by programmatic dependent launch.

    Returns:
        Findings in the order in which they were met; empty where there are none.

    Raises:
        ValueError: the cluster does not divide the grid.
        DeviceError: Numba does not simulate CUDA in this process.
    """
    if not device.SIMULATED:
        raise device.DeviceError("the emulator runs in Numba's simulator: set NUMBA_ENABLE_CUDASIM=1")
    return emulate(kernel, grid, block, args, seed=seed, cluster=cluster, shared=shared, after=after)
