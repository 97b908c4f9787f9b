"""Numba's simulator without threads of the host: those of a block take turns, and where one waits it gives way.

Numba starts a thread of the host for each of a block, and watches for barriers in a loop, which takes most of a test's
time. Here each is a greenlet, of which one runs until it waits. Which warp is first, and which thread of it, changes
from turn to turn, and a warp goes as far as it can, so that what a missing barrier leaves to chance goes wrong at once.
Threads that all wait for ever are an error. Commands in processes of their own still run in Numba's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
from numba import types

WARP = 32


class Place(NamedTuple):
    """Of a thread in its block, or of a block in the grid."""

    x: int
    y: int
    z: int


class Block:
    """What the threads of a block share."""

    def __init__(self, threads: int) -> None:
        self.living, self.waiting, self.phases = threads, 0, 0

    def end_phase(self) -> None:
        """Let those who wait at the barrier go on, if they are all that live."""
        if self.waiting and self.waiting == self.living:
            self.waiting, self.phases = 0, self.phases + 1

    def synchronise(self) -> None:
        """`cuda.syncthreads`."""
        before, self.waiting = self.phases, self.waiting + 1
        self.end_phase()
        wait(lambda: self.phases > before)


class Thread(greenlet):
    """A thread of a block, whose kernel begins when it is first switched to."""

    ready: Callable[[], bool] | None = None
    """What it waits for."""

    def __init__(self, kernel: Callable[[], None], block: Block, block_index: Place, index: Place) -> None:
        super().__init__(kernel)
        self.block, self.blockIdx, self.threadIdx = block, block_index, index

    def turn(self) -> bool:
        """Run until it waits or ends; whether it did anything."""
        if self.ready and not self.ready():
            return False
        self.ready = None
        try:
            self.switch()
        except Exception as error:
            where = f"{self.threadIdx} of block {self.blockIdx}: {error}"
            raise type(error)(where).with_traceback(error.__traceback__) from None
        if self.dead:
            self.block.living -= 1
            self.block.end_phase()
        return True


def wait(ready: Callable[[], bool]) -> None:
    """Give way to other threads until that is so."""
    if not ready():
        thread = getcurrent()
        thread.ready = ready
        thread.parent.switch()


def run(threads: list[Thread]) -> None:
    """Run them to their ends: each time another warp, as far as it comes without the others."""
    order = random.Random(repr(threads[0].blockIdx))
    warps = [threads[first : first + WARP] for first in range(0, len(threads), WARP)]
    try:
        while warps:
            order.shuffle(warps)
            moved = [_advance(warp, order) for warp in warps]
            if not any(moved):
                raise AssertionError(f"{sum(map(len, warps))} threads wait for ever, one as {warps[0][0].threadIdx}")
            warps = [warp for warp in warps if warp]
    finally:
        for thread in threads:  # of which one failed: others would keep what they hold until nobody knows of them
            thread.throw()


def _advance(warp: list[Thread], order: random.Random) -> bool:
    """Run a warp until all its threads wait for others; those that end are left out. Whether any did anything."""
    moved = False
    while True:
        order.shuffle(warp)
        turns = [thread.turn() for thread in warp]
        if not any(turns):
            return moved
        moved, warp[:] = True, [thread for thread in warp if not thread.dead]


class BlockManager:
    """Stands in for Numba's, which runs a block after the other."""

    def __init__(self, kernel: Callable[..., None], grid_dim: Any, block_dim: Any, debug: bool) -> None:
        self._kernel, self._block_dim = kernel, block_dim

    def threads(self, place: tuple[int, ...], *args: Any) -> list[Thread]:
        """Those of the block at `place` of the grid, which have not begun."""
        block, index = Block(math.prod(self._block_dim)), Place(*place)
        places = (Place(*at[::-1]) for at in np.ndindex(*self._block_dim[::-1]))  # along x first
        return [Thread(lambda: self._kernel(*args), block, index, at) for at in places]

    def run(self, place: tuple[int, ...], *args: Any) -> None:
        """Run the block at `place` of the grid."""
        run(self.threads(place, *args))


def array_in_kernel(array: Any) -> Any:
    """What a kernel sees of a device array: NumPy's own, unless it has fields."""
    from numba.cuda.simulator.cudadrv.devicearray import FakeWithinKernelCUDAArray

    return array._ary if array._ary.dtype.names is None else FakeWithinKernelCUDAArray(array)


def cast(kind: Any, *args: Any) -> Any:
    """A number as of Numba's type `kind`; or the signature that it makes of types."""
    if len(args) == 1 and isinstance(args[0], (int, float, np.number)):
        return getattr(np, kind.name)(args[0])
    return types.Type.__call__(kind, *args)


def install() -> None:
    """Have it run all kernels of this process."""
    from numba.cuda.simulator import kernel, kernelapi

    kernel.BlockManager, kernel.FakeWithinKernelCUDAArray = BlockManager, array_in_kernel
    module = kernelapi.FakeCUDAModule
    module.threadIdx = property(lambda self: getcurrent().threadIdx)
    module.blockIdx = property(lambda self: getcurrent().blockIdx)
    module.syncthreads = lambda self: getcurrent().block.synchronise()
    types.Float.__call__ = cast
