"""A grid of a kernel, a cluster of blocks at a time, in place of Numba's simulator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numba import types

from charcnn.aliases import Array, Function, Kernel, Stream, Value
from charcnn.gpu.backend.simulator import ArgHint, FakeCUDAArray, FakeWithinKernelCUDAArray, InOut
from charcnn.gpu.backend.simulator import kernel as simulator
from charcnn.gpu.emulator import kernel_api, lockstep
from charcnn.gpu.emulator.coroutines import getcurrent
from charcnn.gpu.emulator.findings import UNINITIALISED, Finding, Findings
from charcnn.gpu.emulator.order import Actor
from charcnn.gpu.emulator.overlap import GlobalArray, Launches, results_of, written
from charcnn.gpu.emulator.results import Results
from charcnn.gpu.emulator.threads import LANES, Cluster, Dim3, Gate, LaunchConfig, Size, Thread, ThreadBlock, run, sizes

OTHERWISE = 0x3C
"""What each byte of shared memory holds before it is written, the second time: no NaN, and not 0."""


def start(function: Function, launch: LaunchConfig, args: Sequence[Array], *, cooperative: bool = False) -> None:
    """Run the kernel of this function to its end; if `cooperative`, all its blocks at once.

    Raises:
        EmulatorError: the kernel has a mistake, and the launch does not collect findings.
    """
    landed: list[Callable[[], None]] = []
    given = [_in_kernel(arg, landed) for arg in args]
    arrays = [one for one in given if isinstance(one, np.ndarray) and launch.findings is not None]
    before = [array.copy() for array in arrays]
    if not lockstep.run(function, launch, given):
        known = len(launch.findings or ())
        one_by_one(function, launch, given, cooperative=cooperative)
        _forget_unused(function, launch, given, before, known)
    written(arrays, before, launch.results)
    for land in landed:
        land()


def one_by_one(function: Function, launch: LaunchConfig, given: Sequence[Array], *, cooperative: bool = False) -> None:
    """Run a thread after another: of a cluster, or if `cooperative` of all."""
    if launch.running:
        given = [one.view(GlobalArray) if isinstance(one, np.ndarray) else one for one in given]
    together: list[Thread] = []
    under_way: list[Callable[[], None]] = []
    for x, y, z in itertools.product(*(range(size) for size in launch.grid)):
        if x % launch.cluster == 0:
            cluster = Cluster(launch, under_way=under_way)
            threads = [thread for rank in range(launch.cluster)
                       for thread in _threads(function, given, Dim3(x + rank, y, z), rank, cluster)]  # fmt: skip
            if cooperative:
                together += threads
            else:
                run(threads, random.Random(repr((launch.seed, x, y, z))))
    if together:
        run(together, random.Random(launch.seed))


def _forget_unused(
    function: Function, launch: LaunchConfig, given: Sequence[Array], before: Sequence[np.ndarray], known: int
) -> None:
    """Drop this launch's findings of uninitialised reads where no result depends on what was read.

    The launch runs again by the same schedule, with other bytes where nobody wrote. Where it writes by addresses, its
    results are not seen here, and the findings stay.

    Args:
        function, launch, given: what has run.
        before: the arguments' arrays before it.
        known: findings that were there before.
    """
    found = launch.findings
    if found is None or not any(one.kind == UNINITIALISED for one in found[known:]):
        return
    arrays = [one for one in given if isinstance(one, np.ndarray)]
    by_address = any(isinstance(one, int) and one >> 32 for one in given)
    if by_address:
        return
    results = [array.copy() for array in arrays]
    for array, held in zip(arrays, before, strict=True):
        array[...] = held
    again = replace(launch, findings=Findings(), results=Results(), unwritten=OTHERWISE)
    one_by_one(function, again, given)
    if not any(map(_differ, arrays, results)):
        found[known:] = [one for one in found[known:] if one.kind != UNINITIALISED]
    for array, held in zip(arrays, results, strict=True):
        array[...] = held


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() != other.tobytes()


def _threads(function: Function, args: Sequence[Array], index: Dim3, rank: int, cluster: Cluster) -> list[Thread]:
    """Those of a block, which have not begun."""
    launch, block = cluster.launch, ThreadBlock(cluster.launch, index, rank, cluster)
    cluster.blocks.append(block)
    places = (Dim3(*at[::-1]) for at in np.ndindex(*launch.block[::-1]))  # along x first
    warps = [
        (Gate(min(LANES, block.size - first)), None if cluster.actors is None else Actor(cluster.actors, "warp"))
        for first in range(0, block.size, LANES)
    ]
    block.warps = [actor for _, actor in warps if actor]
    return [
        Thread(lambda: function(*args), block, at, number, *warps[number // LANES]) for number, at in enumerate(places)
    ]


def _in_kernel(arg: Value, landed: list[Callable[[], None]]) -> Value:
    """What a kernel sees of an argument: NumPy's own array, unless it has fields; Python's integers."""
    if isinstance(arg, np.ndarray) and arg.ndim > 0:
        arg = InOut(arg).to_device(landed)
    elif isinstance(arg, ArgHint):
        arg = arg.to_device(landed)
    elif isinstance(arg, np.void):
        arg = FakeCUDAArray(arg)
    elif isinstance(arg, np.integer):
        return int(arg)
    if isinstance(arg, FakeCUDAArray):
        return arg.__array__() if arg.dtype.names is None else FakeWithinKernelCUDAArray(arg)
    return arg


_checking: list[tuple[int, Findings, Launches]] = []
"""The seed, where findings go, and what ran before, of launches that name none."""


@contextmanager
def checking(seed: int = 0) -> Iterator[list[Finding]]:
    """Check all launches of the block, by schedules of this seed; gives their findings, which come meanwhile.

    It is for what launches kernels itself, such as an operator or a layer. `run` is for one kernel.
    """
    findings = Findings()
    _checking.append((seed, findings, Launches()))
    try:
        yield findings
    finally:
        _checking.pop()


def start_grid(
    kernel: Kernel, clusters: Size, threads: Size, args: Sequence[Array], shared: int, cluster: int,
    stream: Stream = 0, early: bool = False, cooperative: bool = False,
) -> None:  # fmt: skip
    """What a launch does: run a grid of so many clusters; it is checked within `checking`.

    With `early` it may begin before the kernels before it on the stream have ended; if `cooperative`, blocks may wait
    for each other.
    """
    if not _checking:
        launch = LaunchConfig.of(clusters, threads, shared, cluster)
        start(kernel.py_func, launch, args, cooperative=cooperative)
        return
    seed, findings, launches = _checking[-1]
    launch = LaunchConfig.of(clusters, threads, shared, cluster, seed, findings)
    launch.running = launches.before(stream, early)
    start(kernel.py_func, launch, args, cooperative=cooperative)
    launches.after(stream, launch)


def emulate(
    kernel: Kernel, grid: Size, block: Size, args: Sequence[Array], *, seed: int = 0, cluster: int = 1, shared: int = 0,
    after: Sequence[Array] = (),
) -> list[Finding]:  # fmt: skip
    """See `charcnn.gpu.emulator.run`."""
    findings, blocks = Findings(), sizes(grid)
    if blocks.x % cluster:
        raise ValueError(f"{cluster=}: need a divisor of the grid's {blocks.x} blocks along x")
    launch = LaunchConfig(blocks, sizes(block), shared, cluster, seed, findings)
    launch.running = [results_of(after)] * bool(after)
    start(kernel.py_func if hasattr(kernel, "py_func") else kernel, launch, args)
    return list(findings)


def _called(kernel: Kernel, *args: Value) -> Value:
    """A kernel that is launched, or a device function that is called."""
    if isinstance(getcurrent(), Thread):
        return kernel.fn(*args)
    grid, block = simulator.normalize_kernel_dimensions(kernel.grid_dim, kernel.block_dim)
    for extension in kernel.extensions:
        args = tuple(extension.prepare_args(None, arg, stream=0, retr=[])[1] for arg in args)
    return start_grid(kernel, grid, block, args, kernel.dynshared_size, 1, kernel.stream)


_FLOATS: dict[int, type[np.floating]] = {16: np.float16, 32: np.float32, 64: np.float64}
"""By their bits."""


def cast(kind: Value, *args: Value) -> Value:
    """A number as of Numba's type `kind`; or the signature that it makes of types."""
    if len(args) == 1 and isinstance(args[0], (int, float, np.number)):
        return _FLOATS[kind.bitwidth](args[0])
    return types.Type.__call__(kind, *args)


def install() -> None:
    """Have it run all kernels of this process."""
    kernel_api.install()
    simulator.FakeCUDAKernel.__call__ = _called
    types.Float.__call__ = cast
