"""Kernels timed one by one: each launch with a CUDA event before it and one behind it on its stream.

A launch takes the host longer than many a kernel runs, and events around it would time the host. So the stream is held
before the first event by a kernel that only waits, until the launch and both events are queued.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from numbers import Number
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Event, Kernel, Record, Stream
from charcnn.gpu import launch, ptx

RUNS = 5
"""Of which the medians are taken, at least."""

WARP = 32

_MARGIN = 50e-6
"""Seconds that a stream is held beyond twice what the launch took the host before."""

_LONGEST = 20e-3

_MASK = 0xFFFFFFFF

_NAMED = 3
"""Constants that tell kernels of one name apart: so many are shown."""


@launch.jit()
def _hold_kernel(nanoseconds):
    begin = ptx.globaltimer_lo()
    while ((ptx.globaltimer_lo() - begin) & _MASK) < nanoseconds:
        pass


def hold(seconds: float, stream: Stream) -> None:
    """Have the stream wait so long, at most 4 seconds, before what it is given next."""
    launch.start(_hold_kernel, 1, 1, stream, np.uint32(1e9 * seconds))


@dataclass
class Launch:
    """One launch of a kernel."""

    kernel: Kernel
    compiled: Any
    """For its arguments and this GPU."""
    stage: str
    """Of the network; empty where none is named."""
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    """Bytes of dynamic shared memory."""
    start: Event
    stop: Event
    """Events."""
    call: int = 0
    """Number of the operator's call: several launches may be of one."""
    reads: tuple[int, ...] = ()
    """Bytes of each input of that call, its features first; weights that a layer holds are none."""
    writes: int = 0
    """Bytes of its result."""
    took: float = 0.0
    """Seconds of the host, with both events."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What launches of one row of the table share."""
        return self.stage, id(self.compiled), self.grid, self.block, self.shared


class Recorder:
    """Collects launches.

    Args:
        stage: gives the network's stage that is being computed.
    """

    def __init__(self, stage: Callable[[], str]) -> None:
        self._stage = stage
        self._found: list[Launch] = []
        self._holds: Sequence[float] = ()
        self._calls: dict[int, Any] = {}

    def run(self, work: Callable[[], object], holds: Sequence[float] = ()) -> list[Launch]:
        """Do the work, which waits for the GPU, by one thread at a time; its launches, in order.

        Args:
            holds: seconds that the stream is held before each launch; not at all where empty.
        """
        self._found, self._holds, self._calls = [], holds, {}
        launch.profiler = self._timing
        try:
            work()
        finally:
            launch.profiler, self._calls = None, {}
        for one in self._found:
            one.stop.synchronize()
        return self._found

    @contextmanager
    def _timing(
        self, kernel: Kernel, args: Any, blocks: Any, threads: Any, shared: int, cluster: int, call: launch.Call
    ) -> Iterator[None]:
        grid, block = _sizes(blocks), _sizes(threads)
        grid = (grid[0] * cluster, *grid[1:])  # blocks counts clusters
        compiled = launch.compiled_for(kernel, args)
        one = Launch(kernel, compiled, self._stage(), grid, block, shared, cuda.event(), cuda.event())
        self._calls.setdefault(id(call), call)  # kept, so that no other one gets its id
        one.call, one.writes = list(self._calls).index(id(call)), int(call.out.nbytes)
        one.reads = tuple(int(array.nbytes) for array in call.inputs)
        if self._holds:
            hold(self._holds[len(self._found)], call.stream)
        began = time.perf_counter()
        one.start.record(call.stream)
        yield
        one.stop.record(call.stream)
        one.took = time.perf_counter() - began
        self._found.append(one)


Done = tuple[float | None, float | None]
"""Floating-point operations of a launch, and bytes that it moves if each value is read or written once; None where
that is not known."""


def profiled(
    work: Callable[[], object],
    stage: Callable[[], str],
    runs: int = RUNS,
    done: Callable[[Sequence[Launch]], Sequence[Done]] | None = None,
) -> Record:
    """Run some work of the current GPU several times, and time its kernels.

    Args:
        work: starts kernels by `launch.Call`, the same each time, and waits for them.
        stage: as of `Recorder`.
        runs: to take medians of.
        done: what launches compute and move; nothing is known where None.

    Returns:
        runs; kernels, a row each as `rows` gives it; layers, microseconds by stage, in order; microseconds of all
        kernels; elapsed_microseconds, from the begin of the first to the end of the last where nothing is held;
        launches in order: kernel, layer, its own microseconds, and where nothing is held start and stop in
        microseconds from the begin of the first, in the last run.
    """
    recorder = Recorder(stage)
    hold(0, 0)
    for _ in range(2):  # compiles and loads kernels, and makes what they keep; then as fast as later
        recorder.run(work)
    free = [recorder.run(work) for _ in range(runs)]
    holds = [min(_LONGEST, 2 * max(one.took for one in same) + _MARGIN) for same in zip(*free, strict=True)]
    held = [recorder.run(work, holds) for _ in range(runs)]
    elapsed = statistics.median(_microseconds(run[0].start, run[-1].stop) for run in free if run)
    spent = [statistics.median(_microseconds(one.start, one.stop) for one in same) for same in zip(*held, strict=True)]
    layers: dict[str, float] = {}
    for one, took in zip(held[0], spent, strict=True):
        layers[one.stage] = layers.get(one.stage, 0.0) + took
    names = titles([one.kernel for one in held[0]])
    launches = [
        {
            "kernel": name, "layer": one.stage, "microseconds": took,
            "start": _microseconds(free[-1][0].start, one.start), "stop": _microseconds(free[-1][0].start, one.stop),
        }
        for name, one, took in zip(names, free[-1], spent, strict=True)
    ]  # fmt: skip
    return {
        "runs": runs,
        "kernels": rows(held[0], spent, done(held[0]) if done is not None else None),
        "launches": launches,
        "layers": layers,
        "microseconds": sum(spent),
        "elapsed_microseconds": elapsed,
    }


def rows(launches: Sequence[Launch], microseconds: Sequence[float], done: Sequence[Done] | None = None) -> list[Record]:
    """A row for all launches of a kernel by the same stage and of the same size, the longest time first.

    Its flop and bytes are of all its calls, and None where they are not known of each.
    """
    done = done or [(None, None)] * len(launches)
    names, groups = titles([one.kernel for one in launches]), dict[tuple[Any, ...], list[int]]()
    for i, one in enumerate(launches):
        groups.setdefault(one.key, []).append(i)
    found = []
    for group in groups.values():
        one, spent = launches[group[0]], sum(microseconds[i] for i in group)
        found.append({
            "kernel": names[group[0]], "layer": one.stage, "calls": len(group), "microseconds": spent,
            "mean_microseconds": spent / len(group), "share": spent / (sum(microseconds) or math.nan),
            "grid": one.grid, "block": one.block, **resources(one),
            "flop": _sum(done[i][0] for i in group), "bytes": _sum(done[i][1] for i in group),
        })  # fmt: skip
    return sorted(found, key=lambda row: -row["microseconds"])


def resources(one: Launch) -> Record:
    """What the compiled kernel takes, and how much of it a multiprocessor holds at once, by the driver.

    Occupancy is the share of the multiprocessor's warps, where the grid has blocks enough. Clusters may hold fewer.
    """
    function, threads = one.compiled._codelibrary.get_cufunc(), math.prod(one.block)
    blocks = int(function.kernel.occupancy.max_active_blocks_per_multiprocessor(threads, one.shared))
    warps = int(cuda.get_current_device().MAX_THREADS_PER_MULTIPROCESSOR) // WARP
    return {
        "registers": int(function.attrs.regs),
        "static_shared_bytes": int(function.attrs.shared),
        "dynamic_shared_bytes": one.shared,
        "local_bytes": int(function.attrs.local),
        "blocks_per_multiprocessor": blocks,
        "occupancy": blocks * -(-threads // WARP) / warps,
    }


def titles(kernels: Sequence[Kernel]) -> list[str]:
    """A name for each kernel, with what tells those of one module and function apart."""
    groups: dict[str, dict[int, Record]] = {}
    for kernel in kernels:
        groups.setdefault(launch.title(kernel), {})[id(kernel)] = constants(kernel)
    found = []
    for kernel in kernels:
        title = launch.title(kernel)
        alike = list(groups[title].values())
        named, apart = list[str](), 1
        for name in alike[0]:
            count = len({repr([other.get(one) for one in (*named, name)]) for other in alike})
            if count > apart and len(named) < _NAMED:
                named, apart = [*named, name], count
        words = ", ".join(f"{name}={groups[title][id(kernel)].get(name)}" for name in named)
        found.append(f"{title}({words})" if words else title)
    return found


def constants(kernel: Kernel) -> Record:
    """Numbers, words and tuples of them that the function was called with that made it; a dataclass's as tile.rows."""
    found: Record = {}

    def add(name: str, value: Any) -> None:
        if is_dataclass(value) and hasattr(value, "name"):
            found[name] = value.name
        elif is_dataclass(value):
            for field in fields(value):
                add(f"{name}.{field.name}", getattr(value, field.name))
        elif all(isinstance(one, (Number, str)) for one in (value if isinstance(value, tuple) else (value,))):
            found[name] = value

    for name, value in kernel.made_with.items():
        add(name, value)
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(one for one in known if one is not None)


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)


def _microseconds(start: Event, stop: Event) -> float:
    return 1000 * float(start.elapsed_time(stop))  # of milliseconds
