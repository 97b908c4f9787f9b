"""All threads of a grid at once, each value a NumPy array of theirs: for kernels whose threads only meet at barriers.

That is a hundred times as fast as a thread after another. No schedule changes what such kernels compute, so it is what
every seed gives. What else a kernel does is `Unsupported`: memory becomes what it was, and its threads run one by one,
which also says what is wrong with it. `code` rewrites functions, `flow` says which threads run, and `memory` holds what
they share.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import FunctionType
from weakref import WeakSet

import numpy as np

from charcnn.aliases import Function, Value
from charcnn.gpu.backend.simulator import FakeCUDAArray
from charcnn.gpu.emulator.lockstep.batch import Batch
from charcnn.gpu.emulator.lockstep.memory import GlobalMemory, Globals
from charcnn.gpu.emulator.threads import Dim3, LaunchConfig

_AT_ONCE = 1 << 14
"""Threads: more would want too much memory."""

REFUSED: WeakSet[FunctionType] = WeakSet()
"""Kernels of which one launch was unsupported: their threads run one by one from then on."""


def run(function: Function, launch: LaunchConfig, args: Sequence[Value]) -> bool:
    """Run a kernel's grid, if it can; else nothing has changed."""
    if not isinstance(function, FunctionType) or function in REFUSED or launch.cluster > 1 or launch.running:
        return False
    memory = Globals()
    if not (done := _tried(function, launch, args, memory)) and memory.in_place():
        done = _tried(function, launch, args, Globals(memory.in_place()))
    if not done:
        REFUSED.add(function)
    return done


def _tried(function: Function, launch: LaunchConfig, args: Sequence[Value], memory: Globals) -> bool:
    try:
        with np.errstate(all="ignore"):
            stores = _run(function, launch, args, memory)
        if memory.alone():
            launch.results.stores += stores if launch.findings is not None else []
            return True
    except Exception:  # whatever it is: threads one by one give the kernel's own error, or none
        pass
    memory.restore()
    return False


def _run(function: Function, launch: LaunchConfig, args: Sequence[Value], memory: Globals) -> list[tuple[int, int]]:
    threads = launch.block.x * launch.block.y * launch.block.z
    x, y, z = launch.grid
    places = [Dim3(i, j, k) for k, j, i in itertools.product(range(z), range(y), range(x))]
    count, stores = max(1, _AT_ONCE // threads), []
    given = [_given(arg, memory) for arg in args]
    for first in range(0, len(places), count):
        batch = Batch(launch, places[first : first + count], first * threads, memory)
        batch.function(function)(*given)
        stores += batch.stores
    return stores


def _given(arg: Value, memory: Globals) -> Value:
    if isinstance(arg, tuple):
        parts = [_given(one, memory) for one in arg]
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    if isinstance(arg, (np.ndarray, FakeCUDAArray)):
        return GlobalMemory(np.asarray(arg), memory)
    return arg
